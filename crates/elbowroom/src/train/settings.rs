//! The settings of a training and their defaults.

use std::path::PathBuf;
use std::time::Duration;

use elbowroom_engine::HostOptions;
use elbowroom_graph::Graph;
use elbowroom_ir::Bytes;
use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::packing::Packer;
use elbowroom_ir::planning::{Freedom, Planner};
use elbowroom_ir::search::Budget;

use super::TrainError;
use super::host::HostSetting;
use super::schedule::{Course, Schedule};
use crate::algorithms::{AlgorithmChoice, Conditions};
use crate::data::{self, Augmentation, Batch, DataError, Dataset, Feed, Subset, Tokenizer};
use crate::network::Network;
use crate::pipeline::Method;
use crate::registry;
use crate::size::MemorySpec;
use crate::tiles::TileChoice;

/// Time that each search for a plan may take by default.
const TIME: Duration = Duration::from_secs(10);
/// Iterations by default.
const ITERATIONS: u64 = 5;
/// Stands for the iterations of a training whose length in epochs is not resolved yet: the search for the largest batch precedes the data.
const UNKNOWN_ITERATIONS: u64 = 1000;

/// A training that is to run: a network, a limit, and settings that all have defaults.
///
/// ```
/// use elbowroom::graph::zoo::Options;
/// use elbowroom::ir::Bytes;
/// use elbowroom::network::Model;
/// use elbowroom::train::Training;
///
/// let network = Model::new("resnet20", Options::new(4).image(8))?;
/// let training = Training::new(network, Bytes(4 << 20)).evaluations(20).iterations(2).verify(true);
/// let report = training.run()?;
/// assert_eq!(report.verified, Some(true));
/// assert!(report.measured_peak_bytes <= Bytes(4 << 20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a training does nothing until it runs"]
pub struct Training<'a> {
    pub(super) network: Box<dyn Network + 'a>,
    pub(super) memory: MemorySpec,
    pub(super) largest_batch: bool,
    pub(super) machine: Machine,
    pub(super) method: Method<'a>,
    pub(super) freedom: Freedom,
    pub(super) algorithms: AlgorithmChoice,
    pub(super) tiles: TileChoice,
    pub(super) iterations: u64,
    pub(super) epochs: Option<u64>,
    pub(super) schedule: Option<Schedule>,
    pub(super) schedule_length: Option<u64>,
    pub(super) micro_batch: Option<MicroBatch>,
    pub(super) clip: Option<f32>,
    pub(super) evaluation: Data<'a>,
    pub(super) evaluate_every: Option<u64>,
    pub(super) held_out: Option<f64>,
    pub(super) augmentation: Augmentation,
    pub(super) one_pass: bool,
    pub(super) tokenizer: Tokenizer,
    pub(super) data: Data<'a>,
    pub(super) host: HostSetting,
    pub(super) seed: Option<u64>,
    pub(super) threads: usize,
    pub(super) verify: bool,
    pub(super) save: Option<Saving>,
    pub(super) resume: Option<PathBuf>,
    pub(super) weights: Option<PathBuf>,
    pub(super) save_weights: Option<PathBuf>,
    pub(super) dynamic: bool,
}

/// Where the batches come from.
#[derive(Default)]
pub(super) enum Data<'a> {
    /// Computed from the seed.
    #[default]
    Synthetic,
    /// Files that a reader of this crate knows.
    Path(PathBuf),
    /// Nothing: without evaluation.
    None,
    /// The user's own.
    Own(Box<dyn Dataset + 'a>),
}

impl<'a> Data<'a> {
    /// Opens the data for a graph.
    pub(super) fn open(
        self,
        graph: &Graph,
        seed: u64,
        one_pass: bool,
        tokenizer: &Tokenizer,
    ) -> Result<Feed<'a>, TrainError> {
        Ok(match self {
            Self::Path(path) if one_pass => {
                Feed::new(data::open_evaluation(&Batch::new(graph), &path, tokenizer)?, seed)?
            }
            Self::Synthetic | Self::None => Feed::open(graph, None, seed)?,
            Self::Path(path) => Feed::open_tokenized(graph, Some(&path), seed, tokenizer)?,
            Self::Own(dataset) => Feed::new(dataset, seed)?,
        })
    }

    /// The data of a training and a share of it that is held out.
    pub(super) fn split(
        self,
        graph: &Graph,
        share: f64,
        seed: u64,
        tokenizer: &Tokenizer,
    ) -> Result<[Self; 2], TrainError> {
        let dataset = match self {
            Self::Synthetic | Self::None => return Err(DataError::Endless.into()),
            Self::Path(path) => data::open_tokenized(&Batch::new(graph), Some(&path), seed, tokenizer)?,
            Self::Own(dataset) => dataset,
        };
        Ok(Subset::split(dataset, share, seed)?.map(|part| Self::Own(Box::new(part))))
    }

    /// Opens the data for an evaluation; `None` if there is none.
    pub(super) fn open_evaluation(
        self,
        graph: &Graph,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Box<dyn Dataset + 'a>>, TrainError> {
        Ok(match self {
            Self::Synthetic | Self::None => None,
            Self::Path(path) => Some(data::open_evaluation(&Batch::new(graph), &path, tokenizer)?),
            Self::Own(dataset) => Some(dataset),
        })
    }
}

/// In which parts a batch is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MicroBatch {
    /// Of this many samples.
    Samples(usize),
    /// Of as many samples as fit.
    Largest,
}

/// Where and how often to save.
#[derive(Clone, Debug)]
pub(super) struct Saving {
    pub path: PathBuf,
    /// Iterations between two checkpoints; another follows the last iteration.
    pub every: u64,
}

impl<'a> Training<'a> {
    /// A training of a network under a limit: a [`Graph`], a [`Model`](crate::network::Model) of the zoo, or any other
    /// [`Network`]. The limit is in [`Bytes`], or a [`MemorySpec`]: a share of the unconstrained peak, or the smallest limit for which a plan is
    /// found.
    ///
    /// Defaults: 5 iterations on synthetic data, seed 0 or that of the checkpoint, all cores, the planner and packer `auto` with 10 seconds for
    /// each search, offload and recompute allowed, bit-exact algorithms, host copies in a file in `/var/tmp` or `/tmp`, no verification and no
    /// checkpoints.
    pub fn new(network: impl Network + 'a, memory: impl Into<MemorySpec>) -> Self {
        let planner = registry::planner(registry::DEFAULT_PLANNER).expect("a test builds a training");
        let packer = registry::packer(registry::DEFAULT_PACKER).expect("a test builds a training");
        Self {
            network: Box::new(network),
            memory: memory.into(),
            largest_batch: false,
            machine: elbowroom_sim::presets::machine("cpu").expect("a test builds a training"),
            method: Method::new(planner, packer, Budget::time(TIME)),
            freedom: Freedom::ALL,
            algorithms: AlgorithmChoice::default(),
            tiles: TileChoice::default(),
            iterations: ITERATIONS,
            epochs: None,
            schedule: None,
            schedule_length: None,
            micro_batch: None,
            clip: None,
            evaluation: Data::None,
            evaluate_every: None,
            held_out: None,
            augmentation: Augmentation::default(),
            one_pass: false,
            tokenizer: Tokenizer::default(),
            data: Data::default(),
            host: HostSetting::default(),
            seed: None,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            verify: false,
            save: None,
            resume: None,
            weights: None,
            save_weights: None,
            dynamic: false,
        }
    }

    /// Sets the number of iterations.
    pub fn iterations(self, iterations: u64) -> Self {
        Self { iterations, epochs: None, ..self }
    }

    /// Sets the length of the training to this many passes over the data, those before a checkpoint included: a training that is resumed with
    /// the same number ends where an uninterrupted one would have ended.
    pub fn epochs(self, epochs: u64) -> Self {
        Self { iterations: UNKNOWN_ITERATIONS, epochs: Some(epochs), ..self }
    }

    /// Holds this share of the samples out of the training, at least one sample, and evaluates the network on them. The seed decides which.
    pub fn hold_out(self, share: f64) -> Self {
        Self { held_out: Some(share), ..self }
    }

    /// Shifts and mirrors images before the network sees them in training; evaluations see them as they are.
    pub fn augmentation(self, augmentation: Augmentation) -> Self {
        Self { augmentation, ..self }
    }

    /// Runs over the data once, in its own order, instead of training: for a network that only runs forward. The observer receives the
    /// [outputs](super::TrainObserver::outputs) of every batch. Held-out files are read where a folder has them.
    pub fn one_pass(self) -> Self {
        Self { one_pass: true, ..self }
    }

    /// Sets how the learning rate changes; by default as in the checkpoint from which the training starts, or not at all. A schedule that spans
    /// the training spans all of it: with a length in [epochs](Self::epochs), those before the checkpoint included; otherwise as many iterations
    /// as in the checkpoint, if that has the same schedule.
    pub fn schedule(self, schedule: Schedule) -> Self {
        Self { schedule: Some(schedule), ..self }
    }

    /// Sets the number of iterations, those before a checkpoint included, that a schedule spans, for trainings in several runs whose length is in
    /// iterations.
    pub fn schedule_length(self, iterations: u64) -> Self {
        Self { schedule_length: Some(iterations), ..self }
    }

    /// Computes each batch in parts of this many samples, whose gradients are added up before the update: activations of one part at a time are
    /// alive. The network must be one that can be built for another batch and has one structure; the batch must be a multiple of the part.
    pub fn micro_batch(self, samples: usize) -> Self {
        Self { micro_batch: Some(MicroBatch::Samples(samples)), ..self }
    }

    /// As [`micro_batch`](Self::micro_batch), with the largest part for which a plan is found within the limit, which must be in bytes.
    pub fn largest_micro_batch(self) -> Self {
        Self { micro_batch: Some(MicroBatch::Largest), ..self }
    }

    /// Multiplies the gradients by a common factor where their global norm is larger than this. All gradients are alive at the update then.
    pub fn clip_norm(self, norm: f32) -> Self {
        Self { clip: Some(norm), ..self }
    }

    /// Evaluates the network on this data set, which has an end: at the end of every epoch and of the training, unless
    /// [`evaluate_every`](Self::evaluate_every) is set.
    pub fn evaluation_data(self, dataset: impl Dataset + 'a) -> Self {
        Self { evaluation: Data::Own(Box::new(dataset)), ..self }
    }

    /// Cuts texts into tokens in this way. The network needs at least as many tokens as the tokenizer has.
    pub fn tokenizer(self, tokenizer: Tokenizer) -> Self {
        Self { tokenizer, ..self }
    }

    /// Evaluates the network on the files at this path ([`open_evaluation`](crate::data::open_evaluation)).
    pub fn evaluation_path(self, path: impl Into<PathBuf>) -> Self {
        Self { evaluation: Data::Path(path.into()), ..self }
    }

    /// Evaluates whenever this many more iterations have ended, at least one, those before a checkpoint included, and at the end.
    pub fn evaluate_every(self, iterations: u64) -> Self {
        Self { evaluate_every: Some(iterations.max(1)), ..self }
    }

    /// Trains on this data set.
    pub fn data(self, dataset: impl Dataset + 'a) -> Self {
        Self { data: Data::Own(Box::new(dataset)), ..self }
    }

    /// Trains on the files at this path: a folder with CIFAR-10 or MNIST, or a text file.
    pub fn data_path(self, path: impl Into<PathBuf>) -> Self {
        Self { data: Data::Path(path.into()), ..self }
    }

    /// Sets the seed of everything random: searches, initial values, order of samples, dropout, structures. By default it is that of the
    /// checkpoint from which the training starts, or 0 without one. A training does not start from a checkpoint with another seed.
    pub fn seed(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// Sets the number of threads that search and compute, at least one.
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: threads.max(1), ..self }
    }

    /// Builds the network for the largest batch that fits the limit, which must be in bytes.
    pub fn largest_batch(self) -> Self {
        Self { largest_batch: true, ..self }
    }

    /// Sets the planner.
    pub fn planner(mut self, planner: &'a dyn Planner) -> Self {
        self.method.planner = planner;
        self
    }

    /// Sets the packer.
    pub fn packer(mut self, packer: &'a dyn Packer) -> Self {
        self.method.packer = packer;
        self
    }

    /// Sets the time that each search may take.
    pub fn time(mut self, time: Duration) -> Self {
        (self.method.budget.time, self.method.budget.evaluations) = (Some(time), None);
        self
    }

    /// Sets the evaluations that each search may make, instead of a time: then the same seed gives the same plans.
    pub fn evaluations(mut self, evaluations: u64) -> Self {
        (self.method.budget.time, self.method.budget.evaluations) = (None, Some(evaluations));
        self
    }

    /// Sets planner, packer, budget and rounds at once. Seed and threads of its budget are replaced by those of the training.
    pub fn method(self, method: Method<'a>) -> Self {
        Self { method, ..self }
    }

    /// Sets what plans may decide.
    pub fn freedom(self, freedom: Freedom) -> Self {
        Self { freedom, ..self }
    }

    /// Sets which algorithms may be chosen for convolutions.
    pub fn algorithms(self, algorithms: AlgorithmChoice) -> Self {
        Self { algorithms, ..self }
    }

    /// Sets which weights may be cut into tiles that are updated one by one; by default large ones, if the limit is too small for whole ones.
    /// Nothing is cut if [numerically different algorithms](AlgorithmChoice::NumericChanges) may be chosen.
    pub fn tiles(self, tiles: TileChoice) -> Self {
        Self { tiles, ..self }
    }

    /// Sets the machine. Its memory is replaced by the limit and its link by what the host tier measures when training begins.
    pub fn machine(self, machine: Machine) -> Self {
        Self { machine, ..self }
    }

    /// Sets the bytes that may be reserved for host copies.
    pub fn host_memory(mut self, bytes: Bytes) -> Self {
        self.machine.host_memory = bytes;
        self
    }

    /// Sets where host copies lie, and the link to which their copies are slowed down if there is one. Host copies in memory count as resident
    /// memory of the process in addition to the limit.
    pub fn host(self, host: HostOptions) -> Self {
        Self { host: HostSetting::Given(host), ..self }
    }

    /// Stores host copies in a file in the first of these folders that lies on a disk and can be written to, and slows copies down to a link if
    /// there is one. Without such a folder nothing is offloaded. The default is this with `/var/tmp` and `/tmp`.
    pub fn host_on_disk(self, folders: Vec<PathBuf>, link: Option<(Channel, Channel)>) -> Self {
        Self { host: HostSetting::Disk { folders, link }, ..self }
    }

    /// Sets whether to run the same iterations again without a limit and to compare results and parameters bit by bit.
    pub fn verify(self, verify: bool) -> Self {
        Self { verify, ..self }
    }

    /// Writes a checkpoint to a file after the last iteration, and after every `every` iterations, at least one. If the file cannot be
    /// written, the training continues and tries again soon; [`TrainReport::saved`](crate::report::TrainReport::saved) says how it ended.
    pub fn save(self, path: impl Into<PathBuf>, every: u64) -> Self {
        Self { save: Some(Saving { path: path.into(), every: every.max(1) }), ..self }
    }

    /// Starts from a checkpoint. A network that only runs forward reads its parameters alone.
    pub fn resume(self, path: impl Into<PathBuf>) -> Self {
        Self { resume: Some(path.into()), ..self }
    }

    /// Begins with the weights and statistics in this safetensors file, with an optimizer state of zero at iteration zero: a file of
    /// [`save_weights`](Self::save_weights), a checkpoint, or what PyTorch saved of the same network ([`weights`](crate::weights)).
    pub fn weights(self, path: impl Into<PathBuf>) -> Self {
        Self { weights: Some(path.into()), ..self }
    }

    /// Writes weights and statistics after the last iteration so that PyTorch's module loads them.
    pub fn save_weights(self, path: impl Into<PathBuf>) -> Self {
        Self { save_weights: Some(path.into()), ..self }
    }

    /// Sets whether to execute all iterations dynamically, none by a plan.
    pub fn dynamic(self, dynamic: bool) -> Self {
        Self { dynamic, ..self }
    }

    /// The schedule that applies, where that of the checkpoint is `saved`.
    pub(super) fn course(&self, saved: Option<Course>, first: u64) -> Option<Course> {
        let schedule = self.schedule.or(saved.map(|saved| saved.schedule))?;
        let same = saved.filter(|saved| saved.schedule == schedule && self.epochs.is_none());
        let total = match (self.schedule_length, same) {
            (Some(total), _) => total,
            (None, Some(saved)) => saved.total,
            (None, None) => first.saturating_add(self.iterations),
        };
        Some(Course { schedule, total })
    }

    /// The seed that applies.
    pub(super) fn effective_seed(&self) -> u64 {
        self.seed.unwrap_or(0)
    }

    /// The settings that plans depend on, with this limit and this machine.
    pub(super) fn conditions_within<'t>(&'t self, limit: Bytes, machine: &'t Machine) -> Conditions<'t> {
        Conditions { memory: MemorySpec::Absolute(limit), ..self.conditions(machine) }
    }

    /// The settings that plans depend on, with this machine.
    pub(super) fn conditions<'t>(&'t self, machine: &'t Machine) -> Conditions<'t> {
        Conditions {
            memory: self.memory,
            machine,
            method: &self.method,
            freedom: self.freedom,
            iterations: self.iterations,
            threads: self.threads,
            algorithms: self.algorithms,
        }
    }
}

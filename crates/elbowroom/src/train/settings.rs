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
use crate::algorithms::{AlgorithmChoice, Conditions};
use crate::data::{Dataset, Feed};
use crate::network::Network;
use crate::pipeline::Method;
use crate::registry;
use crate::size::MemorySpec;

/// Time that each search for a plan may take by default.
const TIME: Duration = Duration::from_secs(10);
/// Iterations by default.
const ITERATIONS: u64 = 5;

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
    pub(super) iterations: u64,
    pub(super) data: Data<'a>,
    pub(super) host: HostSetting,
    pub(super) seed: Option<u64>,
    pub(super) threads: usize,
    pub(super) verify: bool,
    pub(super) save: Option<Saving>,
    pub(super) resume: Option<PathBuf>,
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
    /// The user's own.
    Own(Box<dyn Dataset + 'a>),
}

impl<'a> Data<'a> {
    /// Opens the data for a graph.
    pub(super) fn open(self, graph: &Graph, seed: u64) -> Result<Feed<'a>, TrainError> {
        Ok(match self {
            Self::Synthetic => Feed::open(graph, None, seed)?,
            Self::Path(path) => Feed::open(graph, Some(&path), seed)?,
            Self::Own(dataset) => Feed::new(dataset, seed)?,
        })
    }
}

/// Where and how often to save.
#[derive(Clone, Debug)]
pub(super) struct Saving {
    pub path: PathBuf,
    /// Iterations between two checkpoints; another follows the last iteration.
    pub every: u64,
}

impl<'a> Training<'a> {
    /// A training of a network under a limit: a [`Graph`](elbowroom_graph::Graph), a [`Model`](crate::network::Model) of the zoo, or any other
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
            iterations: ITERATIONS,
            data: Data::default(),
            host: HostSetting::default(),
            seed: None,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            verify: false,
            save: None,
            resume: None,
            dynamic: false,
        }
    }

    /// Sets the number of iterations.
    pub fn iterations(self, iterations: u64) -> Self {
        Self { iterations, ..self }
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

    /// Sets whether to execute all iterations dynamically, none by a plan.
    pub fn dynamic(self, dynamic: bool) -> Self {
        Self { dynamic, ..self }
    }

    /// The seed that applies.
    pub(super) fn effective_seed(&self) -> u64 {
        self.seed.unwrap_or(0)
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

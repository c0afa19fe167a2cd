//! Training under a limit: plan with estimated times, measure one iteration, plan again with measured times, and run.

mod run;

use std::path::PathBuf;
use std::sync::Arc;

use elbowroom_engine::{HostOptions, HostPlace};
use elbowroom_graph::Graph;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::{Costs, Freedom};
use elbowroom_ir::search::Observer;
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sim::cost::Roofline;

use crate::checkpoint::CheckpointError;
use crate::data::DataError;
use crate::explain::Refusal;
use crate::pipeline::{self, Method, PlanError, Planned, Task};
use crate::report::{PlanReport, TrainReport};
use crate::size::MemorySpec;
use run::{Run, Runner};

/// What to train, under which limit, and what to do besides.
pub struct Training<'a> {
    /// The network: a training iteration, or its forward part alone.
    pub graph: Arc<Graph>,
    /// The limit.
    pub memory: MemorySpec,
    /// The machine that runs it. Its memory is replaced by the limit.
    pub machine: Machine,
    /// How to plan.
    pub method: Method<'a>,
    /// What may be decided.
    pub freedom: Freedom,
    /// Number of iterations.
    pub iterations: u64,
    /// Where the batches come from; `None` makes them on the spot.
    pub data: Option<PathBuf>,
    /// Where offloaded values go.
    pub host: HostOptions,
    /// Where random numbers start.
    pub seed: u64,
    /// Threads that compute.
    pub threads: usize,
    /// Whether to run the same iterations without a limit and compare.
    pub verify: bool,
    /// Where checkpoints go.
    pub save: Option<Saving>,
    /// The checkpoint to go on from.
    pub resume: Option<PathBuf>,
}

/// Where and how often to save.
pub struct Saving {
    /// The file.
    pub path: PathBuf,
    /// Iterations between two saves; one more is made at the end.
    pub every: u64,
}

/// Hears how training goes on.
pub trait TrainObserver: Observer {
    /// Something else begins: for a person to read.
    fn stage(&self, what: &str);
    /// The iterations of a run begin.
    fn begin(&self, iterations: u64);
    /// An iteration is done.
    fn iteration(&self, done: &Iteration);
}

/// What there is to say about one iteration that ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Iteration {
    /// Its number, from zero.
    pub number: u64,
    /// Its loss; none where the forward part runs alone.
    pub loss: Option<f32>,
    /// Its length.
    pub time: Nanos,
    /// The measured peak so far.
    pub peak: Bytes,
    /// The limit.
    pub limit: Bytes,
}

/// Why training did not go to its end.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// There is no plan at this limit.
    #[error("{}", .0.sentence())]
    Refused(Box<Refusal>),
    /// Planning failed by a fault of ours.
    #[error(transparent)]
    Plan(PlanError),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The run failed.
    #[error(transparent)]
    Engine(#[from] elbowroom_engine::EngineError),
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The sizes of the network cannot be traced.
    #[error("{0} cannot be traced: {1}")]
    Trace(String, elbowroom_ir::trace::TraceError),
}

/// Trains, and says what it took.
pub fn train(training: &Training<'_>, observer: &dyn TrainObserver) -> Result<TrainReport, TrainError> {
    observer.stage("tracing one iteration");
    let estimate = estimate(&training.graph, &training.machine, training.freedom)?;
    // Data and checkpoint are looked at before anything long begins.
    let mut runner = Runner::new(training)?;

    observer.stage("planning");
    let natural = pipeline::natural(&estimate, training.method.packer, observer).map_err(TrainError::Plan)?;
    let draft = limited(training, &estimate, natural.height(), observer)?;

    observer.stage("measuring an iteration");
    let task = runner.measure(&draft.plan, &estimate)?.with_memory(draft.plan.machine().memory);
    let planned = replan(training, &task, draft, observer)?;
    let report = PlanReport::new(&task, &training.method, natural.height(), &planned);

    observer.stage("training");
    let mut session = runner.open(&planned.plan, training.host.clone())?;
    let limited = runner.run(&mut session, training.iterations, training.save.as_ref(), observer)?;
    let intact = session.first_stain().is_none();
    // Digests, not values: both runs' parameters at once would need more memory than either run.
    let digests = training.verify.then(|| session.digests()).transpose()?;
    drop(session);

    let free = match digests {
        Some(digests) => {
            observer.stage("running the same iterations without a limit");
            let mut session = runner.open(&natural.plan, HostOptions::default())?;
            let free = runner.run(&mut session, limited.iterations, None, observer)?;
            let equal = free.results == limited.results && session.digests()? == digests;
            Some((free, equal))
        }
        None => None,
    };
    Ok(told(training, report, runner.first, limited, intact, free))
}

/// The task with estimated durations and without a limit.
pub(crate) fn estimate(graph: &Graph, machine: &Machine, freedom: Freedom) -> Result<Task, TrainError> {
    let trace =
        elbowroom_engine::trace(graph).map_err(|error| TrainError::Trace(graph.name.clone(), error))?;
    let costs = Costs::estimate(&trace, &Roofline::new(machine));
    Ok(Task { trace: Arc::new(trace), costs, machine: machine.clone(), freedom })
}

/// A plan under the limit that the user named.
fn limited(
    training: &Training<'_>,
    task: &Task,
    natural: Bytes,
    observer: &dyn TrainObserver,
) -> Result<Planned, TrainError> {
    let planned = match training.memory.resolve(natural) {
        // The draft only has to fit: durations are not known yet, so a long search would be wasted.
        Some(limit) => pipeline::plan(&task.with_memory(limit), &training.method.at_once(), observer),
        None => pipeline::smallest(task, &training.method.at_once(), natural, observer),
    };
    planned.map_err(|error| {
        observer.stage("looking for the smallest limit that works");
        let smallest = pipeline::smallest(task, &training.method.at_once(), natural, observer);
        match Refusal::new(&task.trace, &error, smallest.ok().map(|planned| planned.plan.machine().memory)) {
            Some(refusal) => TrainError::Refused(Box::new(refusal)),
            None => TrainError::Plan(error),
        }
    })
}

/// A plan for measured durations; the draft where the planner finds none with them, for the draft is known to fit.
fn replan(
    training: &Training<'_>,
    task: &Task,
    draft: Planned,
    observer: &dyn TrainObserver,
) -> Result<Planned, TrainError> {
    let kept = pipeline::predict(task, draft);
    match pipeline::plan(task, &training.method, observer) {
        Ok(planned) if planned.predicted.iteration <= kept.predicted.iteration => Ok(planned),
        Err(PlanError::Illegal(fault)) => Err(TrainError::Plan(fault.into())),
        _ => Ok(kept),
    }
}

/// Samples in a batch: the first extent of every input.
fn samples(graph: &Graph) -> usize {
    let first = graph.inputs.first().and_then(|input| graph.values[input.value].shape.dims().first());
    first.copied().unwrap_or(1)
}

/// What the runs were like, beside what was promised.
fn told(
    training: &Training<'_>,
    plan: PlanReport,
    first_iteration: u64,
    run: Run,
    arena_above_intact: bool,
    free: Option<(Run, bool)>,
) -> TrainReport {
    let measured_unlimited = free.as_ref().map(|(free, _)| free.iteration);
    let unlimited = measured_unlimited.unwrap_or(run.unlimited_by_ops);
    let batch = samples(&training.graph);
    TrainReport {
        plan,
        host: match &training.host.place {
            HostPlace::Memory => "memory".to_owned(),
            HostPlace::Folder(folder) => folder.display().to_string(),
        },
        threads: training.threads,
        first_iteration,
        measured_peak_bytes: run.peak,
        arena_above_intact,
        batch,
        samples_per_second: batch as f64 * 1e9 / run.iteration.get().max(1) as f64,
        measured_iteration_ns: run.iteration,
        measured_unlimited_iteration_ns: measured_unlimited,
        measured_overhead: PlanReport::overhead(run.iteration, unlimited),
        measured_to_host_bytes: run.last.traffic.to_host,
        measured_to_device_bytes: run.last.traffic.to_device,
        measured_recomputed_ops: run.last.recomputed,
        losses: run.losses,
        verified: free.map(|(_, equal)| equal),
    }
}

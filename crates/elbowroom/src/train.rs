//! Training under a limit: draft a plan with estimated times, run the first iteration on demand and measure it, plan with measured times,
//! and run. Every iteration that runs counts, and every one stays under the limit.

pub mod changing;
mod dtr;
mod run;
mod ways;

use std::path::PathBuf;
use std::sync::Arc;

use elbowroom_engine::{EngineError, HostOptions, HostPlace};
use elbowroom_graph::Graph;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::{Costs, Freedom};
use elbowroom_ir::search::{Budget, Observer};
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sim::cost::Roofline;

use crate::algorithms;
use crate::checkpoint::CheckpointError;
use crate::data::DataError;
use crate::explain::Refusal;
use crate::pipeline::{self, Method, PlanError, Planned, Task};
use crate::report::{PlanReport, TrainReport};
use crate::size::MemorySpec;
use changing::Changing;
use run::{Run, Runner, Start};
use ways::{ByPlan, Unlimited, Ways};

/// What to train, under which limit, and what to do besides.
pub struct Training<'a> {
    /// The network: a training iteration, or its forward part alone.
    pub graph: Arc<Graph>,
    /// The limit.
    pub memory: MemorySpec,
    /// The machine that runs it. Its memory is replaced by the limit, its link by what the host tier measures when training begins.
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
    /// The network as it changes from iteration to iteration; `graph` is the largest form that it takes.
    pub changing: Option<&'a Changing>,
    /// Whether to run all iterations on demand, and none by a plan.
    pub reactive: bool,
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
    /// The measured peak: of this iteration without a plan, since the plan was taken up with one.
    pub peak: Bytes,
    /// The limit.
    pub limit: Bytes,
    /// Whether it followed a plan.
    pub planned: bool,
    /// Different structures that have run so far.
    pub structures: u64,
    /// Plans made while training so far.
    pub plans: u64,
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
    Engine(#[from] EngineError),
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The sizes of the network cannot be traced.
    #[error("{0} cannot be traced: {1}")]
    Trace(String, elbowroom_ir::trace::TraceError),
    /// The planners' order of ops is none: a fault of ours.
    #[error(transparent)]
    Order(#[from] elbowroom_ir::order::OrderError),
    /// A form of the network cannot be built.
    #[error(transparent)]
    Zoo(#[from] elbowroom_graph::zoo::ZooError),
}

/// Trains, and says what it took.
pub fn train(training: &Training<'_>, observer: &dyn TrainObserver) -> Result<TrainReport, TrainError> {
    train_after(training, None, observer)
}

/// Trains where the plan that keeps everything may have been made before; a plan for another trace is not looked at.
pub fn train_after(
    training: &Training<'_>,
    natural: Option<Planned>,
    observer: &dyn TrainObserver,
) -> Result<TrainReport, TrainError> {
    observer.stage("tracing one iteration");
    let (to_host, to_device) = training.host.measure().map_err(EngineError::from)?;
    let machine = Machine { to_host, to_device, ..training.machine.clone() };
    let estimate = estimate(&training.graph, &machine, training.freedom)?;
    // Data and checkpoint are looked at before anything long begins.
    let mut runner = Runner::new(training)?;

    observer.stage("planning");
    let key = estimate.trace.fingerprint();
    let natural = match natural.filter(|known| known.plan.trace().fingerprint() == key) {
        Some(known) => known,
        None => pipeline::natural(&estimate, training.method.packer, observer).map_err(TrainError::Plan)?,
    };
    let draft = limited(training, &estimate, natural.height(), observer)?;

    let limit = draft.plan.machine().memory;

    observer.stage("training");
    let mut ways = Ways::new(training, &estimate.with_memory(limit), draft, observer)?;
    let mut session = runner.open(&Start::Memory(&machine.with_memory(limit)), training.host.clone())?;
    let saving = training.save.as_ref();
    let limited = runner.run(&mut session, &mut ways, training.iterations, saving, observer)?;
    let intact = ways.intact(&session);
    // Digests, not values: both runs' parameters at once would need more memory than either run.
    let digests = training.verify.then(|| session.digests()).transpose()?;
    drop(session);

    let free = match digests {
        Some(digests) => {
            observer.stage("running the same iterations without a limit");
            let everything = training.machine.clone().with_memory(all_of(&estimate));
            let (mut by_plan, mut unlimited) = (ByPlan { plan: natural.plan.clone() }, Unlimited::default());
            let (start, way): (_, &mut dyn ways::Way) = match training.changing {
                None => (Start::Plan(&natural.plan), &mut by_plan),
                Some(_) => (Start::Memory(&everything), &mut unlimited),
            };
            let mut session = runner.open(&start, HostOptions::default())?;
            let free = runner.run(&mut session, way, limited.iterations, None, observer)?;
            let equal = free.results == limited.results && session.digests()? == digests;
            Some((free, equal))
        }
        None => None,
    };
    Ok(told(training, &ways, natural.height(), (runner.first, intact), limited, free))
}

/// More bytes than all values of an iteration take together, scattered as they may be.
fn all_of(task: &Task) -> Bytes {
    let (trace, align) = (&task.trace, task.machine.align);
    let storages = trace.storages().values().map(|storage| storage.bytes.align_up(align));
    let scratch = trace.ops().values().map(|op| op.workspace.align_up(align)).max();
    Bytes(2 * (storages.sum::<Bytes>() + scratch.unwrap_or_default()).get())
}

/// The task with estimated durations and without a limit.
pub(crate) fn estimate(graph: &Graph, machine: &Machine, freedom: Freedom) -> Result<Task, TrainError> {
    let trace =
        elbowroom_engine::trace(graph).map_err(|error| TrainError::Trace(graph.name.clone(), error))?;
    let costs = Costs::estimate(&trace, &Roofline::new(machine));
    Ok(Task { trace: Arc::new(trace), costs, machine: machine.clone(), freedom })
}

/// A plan without a long search, or why there is none. A fault of ours is an error.
pub(crate) fn plan_at_once(
    training: &Training<'_>,
    task: &Task,
    observer: &dyn Observer,
) -> Result<Result<Planned, PlanError>, TrainError> {
    match pipeline::plan(task, &training.method.at_once(), observer) {
        Err(error @ PlanError::Illegal(_)) => Err(TrainError::Plan(error)),
        done => Ok(done),
    }
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
        Some(limit) => {
            let (task, at_once) = (task.with_memory(limit), training.method.at_once());
            match pipeline::plan(&task, &briefly(&at_once, task.trace.ops().len()), observer) {
                Err(PlanError::GaveUp { .. }) => pipeline::plan(&task, &at_once, observer),
                done => done,
            }
        }
        None => pipeline::smallest(task, &training.method.at_once(), natural, observer),
    };
    let error = match planned {
        Ok(planned) => return Ok(planned),
        Err(error) => error,
    };
    let at_once = training.method.at_once();
    let from = |lower: Planned, limit| {
        let task = task.with_memory(limit);
        pipeline::plan_from(&task, &at_once, &[lower.plan], observer).map_err(TrainError::Plan)
    };
    let gave_up = if let PlanError::GaveUp { limit, .. } = error { Some(limit) } else { None };
    if let Some(limit) = gave_up {
        let within = |percent| task.with_memory(Bytes(limit.get() / 100 * percent));
        let lower = LESS.iter().find_map(|&share| pipeline::plan(&within(share), &at_once, observer).ok());
        if let Some(lower) = lower {
            return from(lower, limit);
        }
    }
    observer.stage("looking for the smallest limit that works");
    // With the link that the machine is described by, so that what is named here works again, however fast the host tier is then.
    let described = Task { machine: training.machine.clone(), ..task.clone() };
    let smallest = pipeline::smallest(&described, &at_once, natural, observer).ok();
    let smallest = match (smallest, gave_up) {
        (Some(lower), Some(limit)) if lower.plan.machine().memory <= limit => return from(lower, limit),
        (smallest, _) => smallest.map(|planned| planned.plan.machine().memory),
    };
    Err(match Refusal::new(&task.trace, &error, smallest) {
        Some(refusal) => TrainError::Refused(Box::new(refusal)),
        None => TrainError::Plan(error),
    })
}

/// Shares of a limit, in percent, at which a plan is looked for where none is found at the limit itself: planners are not monotone, and
/// what they find within less fits.
const LESS: [u64; 4] = [95, 85, 70, 50];

/// Ops of a trace for which a search is not cut short.
const FEW_OPS: usize = 2048;

/// The same method with fewer evaluations for a trace of many ops: each of them takes as many times longer, and there are enough of them
/// that thousands of layers do not wait for minutes.
fn briefly<'a>(method: &Method<'a>, ops: usize) -> Method<'a> {
    let share = |all: u64| (all * FEW_OPS as u64 / ops.max(FEW_OPS) as u64).max(1);
    let evaluations = method.budget.evaluations.map(share);
    Method { budget: Budget { evaluations, ..method.budget.clone() }, ..method.clone() }
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
pub fn samples(graph: &Graph) -> usize {
    let first = graph.inputs.first().and_then(|input| graph.values[input.value].shape.dims().first());
    first.copied().unwrap_or(1)
}

/// What the runs were like, beside what was promised.
fn told(
    training: &Training<'_>,
    ways: &Ways<'_>,
    natural: Bytes,
    (first_iteration, arena_above_intact): (u64, bool),
    run: Run,
    free: Option<(Run, bool)>,
) -> TrainReport {
    let measured_unlimited = free.as_ref().map(|(free, _)| free.iteration);
    let unlimited = measured_unlimited.unwrap_or_else(|| ways.unlimited_by_ops());
    let batch = samples(&training.graph);
    TrainReport {
        plan: ways.promised(natural),
        host: match &training.host.place {
            HostPlace::Memory => "memory".to_owned(),
            HostPlace::Folder(folder) => folder.display().to_string(),
        },
        to_host_rate: ways.machine().to_host.rate,
        to_device_rate: ways.machine().to_device.rate,
        threads: training.threads,
        algorithms: algorithms::counts(&training.graph),
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
        execution: ways.execution(),
        losses: run.losses,
        verified: free.map(|(_, equal)| equal),
    }
}

//! From a trace to a checked plan: schedule, place, check. If the placement does not fit, the limit on live memory is lowered and the planner
//! runs again (`fit.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use elbowroom_graph::Graph;
use elbowroom_ir::check::{self, CheckedPlan, CheckedSchedule, Illegal};
use elbowroom_ir::machine::Machine;
use elbowroom_ir::packing::{Packer, Problem};
use elbowroom_ir::plan::Plan;
use elbowroom_ir::planning::{Costs, Freedom, Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Goal, Infeasible, Observer, Outcome, StopReason};
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::trace::{Trace, TraceError};
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sched::lower::waits;
use elbowroom_sim::cost::Roofline;

mod clock;
mod evaluations;
mod fit;

pub use evaluations::{Evaluations, ParseEvaluationsError, Round};
use fit::{Fitted, Placing, fit, place};

/// Evaluations of a short search ([`Method::at_once`]).
const AT_ONCE: u64 = 256;

/// A planning problem: one iteration on one machine.
#[derive(Clone)]
pub struct Task {
    /// The iteration.
    pub trace: Arc<Trace>,
    /// Durations of its ops.
    pub costs: Costs,
    /// The machine; its memory is the limit.
    pub machine: Machine,
    /// What planners may decide.
    pub freedom: Freedom,
}

/// The sizes of a graph overflow, so that it has no trace.
#[derive(Debug, thiserror::Error)]
#[error("{network} cannot be traced: {source}")]
pub struct Untraceable {
    /// Name of the graph.
    pub network: String,
    /// What is wrong with its trace.
    pub source: TraceError,
}

impl Task {
    /// The task of a graph on a machine, with durations estimated from its work.
    ///
    /// # Errors
    ///
    /// [`Untraceable`] if the sizes of the graph overflow.
    pub fn estimate(graph: &Graph, machine: &Machine, freedom: Freedom) -> Result<Self, Untraceable> {
        let trace = elbowroom_engine::trace(graph)
            .map_err(|source| Untraceable { network: graph.name.clone(), source })?;
        let costs = Costs::estimate(&trace, &Roofline::new(machine));
        Ok(Self { trace: Arc::new(trace), costs, machine: machine.clone(), freedom })
    }

    /// The same task under another limit.
    pub fn with_memory(&self, memory: Bytes) -> Self {
        Self { machine: self.machine.clone().with_memory(memory), ..self.clone() }
    }
}

/// How a task is planned.
#[derive(Clone)]
pub struct Method<'a> {
    /// The planner, which decides when.
    pub planner: &'a dyn Planner,
    /// The packer, which decides where.
    pub packer: &'a dyn Packer,
    /// How long the planner may search in each round.
    pub budget: Budget,
    /// Which rounds follow if a schedule cannot be packed within the limit.
    pub rounds: Rounds,
}

/// The rounds that follow if a schedule cannot be packed within the limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rounds {
    /// Up to a fixed number of rounds, each with the budget's evaluations or a share of its time and a long packing attempt. Then the
    /// searches of the planner's peers.
    #[default]
    AsNeeded,
    /// The same rounds with short packing attempts and no peers: for quick answers, not for the best plan.
    AtOnce,
    /// Exactly the rounds recorded with a plan, instead of the budget's evaluations and time: this reproduces the plan.
    Recorded(Evaluations),
}

/// A checked plan with its predicted iteration.
#[derive(Clone)]
pub struct Planned {
    /// The checked plan.
    pub plan: Arc<CheckedPlan>,
    /// The predicted iteration, by the task's costs.
    pub predicted: Timeline,
    /// Why the planner stopped.
    pub stop: StopReason,
    /// The evaluations of the search. Passed back as [`Rounds::Recorded`], with the same seed and any number of threads, they reproduce the
    /// plan unless the observer interrupted the search.
    pub evaluations: Evaluations,
    /// Time spent on planning, packing and checking.
    pub planning: Duration,
}

impl<'a> Method<'a> {
    /// A method with [`Rounds::AsNeeded`].
    pub fn new(planner: &'a dyn Planner, packer: &'a dyn Packer, budget: Budget) -> Self {
        Self { planner, packer, budget, rounds: Rounds::AsNeeded }
    }

    /// The same method with short searches. Planners that try a few settings still try them all; planners and packers that search stop early.
    pub fn at_once(&self) -> Self {
        let budget = Budget { evaluations: Some(AT_ONCE), time: None, ..self.budget.clone() };
        Self { budget, rounds: Rounds::AtOnce, ..self.clone() }
    }

    /// How long the packer searches if no clock stops it.
    fn placing(&self) -> Placing {
        if self.rounds == Rounds::AtOnce { Placing::AtOnce } else { Placing::PATIENT }
    }
}

impl Planned {
    /// Arena size of the plan: the peak that a run will measure.
    pub fn height(&self) -> Bytes {
        self.plan.plan().placement.height
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Infeasible: no plan exists at this limit.
    #[error("no plan can exist within {limit}")]
    Infeasible {
        /// The limit.
        limit: Bytes,
        /// The proof.
        proof: Infeasible,
    },
    /// Gave up: no plan was found at this limit, and nothing is proved.
    #[error("no plan was found within {limit}")]
    GaveUp {
        /// The limit.
        limit: Bytes,
        /// The smallest arena size, or peak of live memory, that was reached.
        best: Option<Bytes>,
    },
    /// The planner or packer made an illegal plan, which is a fault in this project.
    #[error("the plan that was found is illegal, which is a fault in elbowroom: {0}")]
    Illegal(#[from] Illegal),
}

/// Plans a task: schedules, packs and checks.
///
/// # Errors
///
/// A [`PlanError`] if there is no plan.
pub fn plan(task: &Task, method: &Method<'_>, observer: &dyn Observer) -> Result<Planned, PlanError> {
    plan_from(task, method, &[], observer)
}

/// Plans a task with a short search ([`Method::at_once`]). The inner error is the reason why there is no plan; the outer error is always an
/// illegal plan.
///
/// # Errors
///
/// [`PlanError::Illegal`], which is a fault in this project.
pub fn plan_at_once(
    task: &Task,
    method: &Method<'_>,
    observer: &dyn Observer,
) -> Result<Result<Planned, PlanError>, PlanError> {
    match plan(task, &method.at_once(), observer) {
        Err(error @ PlanError::Illegal(_)) => Err(error),
        done => Ok(done),
    }
}

/// Plans a task as [`plan`] does, with the known plans as warm starts if the planner takes any. If the search finds no faster plan, returns
/// the fastest known plan that fits the limit.
///
/// # Errors
///
/// A [`PlanError`] if there is no plan.
pub fn plan_from(
    task: &Task,
    method: &Method<'_>,
    known: &[Arc<CheckedPlan>],
    observer: &dyn Observer,
) -> Result<Planned, PlanError> {
    let started = Instant::now();
    let schedules: Vec<&Schedule> = known.iter().map(|plan| plan.schedule()).collect();
    let (fitted, recorded) = fit(task, method, &schedules, observer);
    let found = fitted.and_then(|fitted| prove(task, fitted, recorded.clone(), started));
    let fits = |plan: &&Arc<CheckedPlan>| plan.placement().height <= task.machine.memory;
    let timed = known.iter().filter(fits).map(|plan| (simulate(task, plan.schedule()), plan));
    let Some((predicted, plan)) = timed.min_by_key(|(predicted, _)| predicted.iteration) else {
        return found;
    };
    let stop = match &found {
        Ok(own) if own.predicted.iteration <= predicted.iteration => return found,
        Ok(own) => own.stop.clone(),
        Err(PlanError::GaveUp { .. }) => StopReason::Finished,
        Err(_) => return found,
    };
    let plan = check::check(task.trace.clone(), task.machine.clone(), plan.plan().clone())?;
    Ok(Planned { plan: Arc::new(plan), predicted, stop, evaluations: recorded, planning: started.elapsed() })
}

/// Offsets of the persistent tensors between iterations, in the trace's order; `None` for tensors that are on the host alone.
pub fn persistent_offsets(plan: &CheckedPlan) -> Vec<Option<Bytes>> {
    let offsets = &plan.placement().offsets;
    plan.schedule()
        .boundary
        .iter()
        .map(|at_boundary| at_boundary.device.map(|buffer| offsets[buffer]))
        .collect()
}

/// Plans a task as [`plan`] does. If everything else fits around them, the persistent tensors get the [offsets](persistent_offsets) of another
/// plan of the same network, so that no tensor moves when a training changes from one plan to the other.
///
/// # Errors
///
/// Those of [`plan`].
pub fn plan_at_offsets(
    task: &Task,
    method: &Method<'_>,
    persistent_offsets: &[Option<Bytes>],
    observer: &dyn Observer,
) -> Result<Planned, PlanError> {
    let started = Instant::now();
    let (fitted, recorded) = fit(task, method, &[], observer);
    let fitted = fitted?;
    let mut problem = elbowroom_sim::liveness::problem(&fitted.schedule, &task.machine);
    problem.capacity = Some(task.machine.memory.align_up(task.machine.align));
    for (at_boundary, &offset) in fitted.schedule.boundary.iter().zip(persistent_offsets) {
        if let (Some(buffer), Some(offset)) = (at_boundary.device, offset) {
            problem.blocks[buffer].fixed = Some(offset);
        }
    }
    let placement = place(problem, &fitted.schedule, method, method.placing(), observer);
    let fixed = placement.ok().filter(|placement| placement.height <= task.machine.memory);
    let placement = fixed.unwrap_or(fitted.placement);
    prove(task, Fitted { placement, ..fitted }, recorded, started)
}

/// Thins the waits for this placement, checks the plan and predicts its iteration.
fn prove(
    task: &Task,
    fitted: Fitted,
    evaluations: Evaluations,
    started: Instant,
) -> Result<Planned, PlanError> {
    let Fitted { mut schedule, placement, stop } = fitted;
    waits::thin(&mut schedule, &placement);
    let plan = Plan { trace: task.trace.fingerprint(), schedule, placement };
    let plan = check::check(task.trace.clone(), task.machine.clone(), plan)?;
    let predicted = simulate(task, plan.schedule());
    Ok(Planned { plan: Arc::new(plan), predicted, stop, evaluations, planning: started.elapsed() })
}

/// The same plan with its iteration predicted by the task's costs and link.
pub fn predict(task: &Task, planned: Planned) -> Planned {
    Planned { predicted: simulate(task, planned.plan.schedule()), ..planned }
}

/// A schedule checked under a limit on live memory alone, with its predicted iteration. It cannot run, because no buffer has an offset.
pub struct PlannedSchedule {
    /// The checked schedule.
    pub schedule: CheckedSchedule,
    /// The predicted iteration, by the task's costs.
    pub predicted: Timeline,
    /// Why the planner stopped.
    pub stop: StopReason,
    /// Evaluations of the planner.
    pub evaluations: u64,
    /// Time spent on planning and checking.
    pub planning: Duration,
}

/// Plans a task whose limit bounds live memory, for comparison with work that does not pack. The `known` schedules for the same task are warm
/// starts if the planner takes any; the result is never slower than they are.
///
/// # Errors
///
/// A [`PlanError`] if there is no schedule.
pub fn plan_schedule(
    task: &Task,
    method: &Method<'_>,
    known: &[Schedule],
    observer: &dyn Observer,
) -> Result<PlannedSchedule, PlanError> {
    let started = Instant::now();
    let limit = task.machine.memory;
    let budget = match &method.rounds {
        Rounds::Recorded(recorded) => {
            let evaluations = recorded.rounds.first().map(|round| round.planner);
            Budget { evaluations, time: None, ..method.budget.clone() }
        }
        _ => method.budget.clone(),
    };
    observer.begins(&goal(task, method.planner, &budget));
    let known_first: Vec<&Schedule> = known.iter().collect();
    let request = request(task, limit);
    let Outcome { best, evaluations, stop } =
        method.planner.schedule_from(&request, &known_first, &budget, observer);
    let timed = best.iter().chain(known).map(|schedule| (simulate(task, schedule), schedule));
    let fastest = timed.min_by_key(|(predicted, _)| predicted.iteration);
    let (predicted, schedule) = fastest.ok_or_else(|| no_schedule(stop.clone(), true, limit, None))?;
    let schedule = check::check_schedule(task.trace.clone(), task.machine.clone(), schedule.clone(), limit)?;
    Ok(PlannedSchedule { schedule, predicted, stop, evaluations, planning: started.elapsed() })
}

fn simulate(task: &Task, schedule: &Schedule) -> Timeline {
    elbowroom_sim::simulate(&task.trace, &task.costs, &task.machine, schedule)
        .expect("planners return schedules for the requested trace, with waits that point backwards")
}

/// The goal of a search, for its observer.
fn goal<'a>(task: &Task, planner: &'a dyn Planner, budget: &'a Budget) -> Goal<'a> {
    Goal { planner: planner.name(), limit: task.machine.memory, unlimited: task.costs.total(), budget }
}

/// The request to a planner whose schedule is not packed, and which therefore gets no packer.
fn request(task: &Task, live_limit: Bytes) -> Request<'_> {
    Request {
        trace: &task.trace,
        costs: &task.costs,
        machine: &task.machine,
        live_limit,
        freedom: task.freedom,
        packer: None,
    }
}

/// The error in terms of the user's limit. A proof for less live memory than the `whole` limit proves nothing about that limit.
fn no_schedule(stop: StopReason, whole: bool, limit: Bytes, lowest: Option<Bytes>) -> PlanError {
    match stop {
        StopReason::Infeasible(proof) if whole => PlanError::Infeasible { limit, proof: *proof },
        StopReason::GaveUp { best } => PlanError::GaveUp { limit, best: lowest.or(best) },
        _ => PlanError::GaveUp { limit, best: lowest },
    }
}

/// The plan that keeps every tensor on the device: its arena size is the *unconstrained peak*, its iteration time that of a device without a
/// limit.
///
/// # Errors
///
/// A [`PlanError`] if the packer finds no placement.
pub fn unconstrained(
    task: &Task,
    packer: &dyn Packer,
    observer: &dyn Observer,
) -> Result<Planned, PlanError> {
    let started = Instant::now();
    let method = Method::new(&elbowroom_sched::keep::Keep, packer, Budget::default());
    let (schedule, stop) = keep(task, observer)?;
    // Without a capacity the packer minimizes the arena size.
    let problem = elbowroom_sim::liveness::problem(&schedule, &task.machine);
    let placement = place(problem, &schedule, &method, method.placing(), observer)
        .map_err(|none| PlanError::GaveUp { limit: UNLIMITED, best: Some(none.height) })?;
    let limit = placement.height.align_up(task.machine.align);
    prove(&task.with_memory(limit), Fitted { schedule, placement, stop }, Evaluations::once(1), started)
}

/// The placement problem of the plan that keeps every tensor. Its peak of live memory is a lower bound on the unconstrained peak.
pub fn natural_problem(task: &Task, observer: &dyn Observer) -> Result<Problem, PlanError> {
    let (schedule, ..) = keep(task, observer)?;
    Ok(elbowroom_sim::liveness::problem(&schedule, &task.machine))
}

/// The schedule that keeps every tensor.
fn keep(task: &Task, observer: &dyn Observer) -> Result<(Schedule, StopReason), PlanError> {
    let unlimited = task.with_memory(UNLIMITED);
    let Outcome { best, stop, .. } =
        elbowroom_sched::keep::Keep.schedule(&request(&unlimited, UNLIMITED), &Budget::default(), observer);
    let schedule = best.ok_or_else(|| no_schedule(stop.clone(), true, UNLIMITED, None))?;
    Ok((schedule, stop))
}

/// More than any real limit, and far from overflow.
const UNLIMITED: Bytes = Bytes(1 << 60);

/// The smallest limit at which the method finds a plan, to within half a percent, with that plan; the limit is the memory of the plan's
/// machine. Bisects between what is proved impossible and the unconstrained peak. Planners are not monotone, so smaller limits that work may
/// exist that a bisection misses; the result was planned at exactly this limit.
///
/// # Errors
///
/// A [`PlanError`] if there is no plan at the unconstrained peak.
pub fn smallest(
    task: &Task,
    method: &Method<'_>,
    unconstrained: Bytes,
    observer: &dyn Observer,
) -> Result<Planned, PlanError> {
    let align = task.machine.align;
    let patient = method;
    // Whether a limit works must not depend on the budget, and a long search at each of twenty limits would take too long.
    let method = &patient.at_once();
    let mut best = plan(&task.with_memory(unconstrained), method, observer)?;
    let mut works = unconstrained;
    let mut too_small = Bytes::ZERO;
    while works.saturating_sub(too_small) > align.max(Bytes(works.get() / 200)) && !observer.interrupted() {
        // A plan that needs less than its limit suggests the next candidate; otherwise bisection decides.
        let needed = best.height().align_up(align);
        let middle = Bytes((works.get() + too_small.get()) / 2).align_up(align);
        let candidate = if needed > middle && needed < works { needed } else { middle };
        if candidate >= works {
            break;
        }
        match plan(&task.with_memory(candidate), method, observer) {
            Ok(planned) => (best, works) = (planned, candidate),
            Err(PlanError::Infeasible { proof: Infeasible::Op { needed, .. }, .. }) => {
                too_small = candidate.max(needed.saturating_sub(align));
            }
            Err(PlanError::Illegal(fault)) => return Err(fault.into()),
            Err(_) => too_small = candidate,
        }
    }
    // At the limit that was found, the search uses its whole budget. Only this search is recorded: everything before is deterministic.
    let (started, task) = (Instant::now(), task.with_memory(works));
    let (fitted, evaluations) = fit(&task, patient, &[], observer);
    match fitted.and_then(|fitted| prove(&task, fitted, evaluations.clone(), started)) {
        Ok(planned) if planned.predicted.iteration < best.predicted.iteration => Ok(planned),
        Err(PlanError::Illegal(fault)) => Err(fault.into()),
        _ => Ok(Planned { evaluations, ..best }),
    }
}

/// [Lower bound](elbowroom_sim::bound::lower_bound) on the iteration time at the task's limit.
pub fn lower_bound(task: &Task) -> Nanos {
    let Task { trace, costs, machine, freedom } = task;
    let limit = machine.memory.align_up(machine.align);
    let request = Request { trace, costs, machine, live_limit: limit, freedom: *freedom, packer: None };
    elbowroom_sim::bound::lower_bound(&request)
}

/// The op that needs the most bytes by itself, and that number: no plan exists for a smaller limit.
pub fn largest_op(task: &Task) -> (String, Bytes) {
    let largest = elbowroom_sim::bound::largest_op(&task.trace, task.machine.align);
    largest.map_or_else(Default::default, |(op, bytes)| (task.trace.ops()[op].name.clone(), bytes))
}

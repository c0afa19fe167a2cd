//! From a trace to a proved plan: schedule, place, check; and again with a lower load when the placement does not fit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use elbowroom_graph::Graph;
use elbowroom_ir::check::{self, CheckedPlan, CheckedSchedule, Illegal};
use elbowroom_ir::machine::Machine;
use elbowroom_ir::packing::{Packer, Problem};
use elbowroom_ir::plan::Plan;
use elbowroom_ir::planning::{Costs, Freedom, Request, Scheduler};
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

/// Evaluations of a search that has just begun.
const AT_ONCE: u64 = 256;

/// What is to be planned.
#[derive(Clone)]
pub struct Task {
    /// The iteration.
    pub trace: Arc<Trace>,
    /// Durations of its ops.
    pub costs: Costs,
    /// The hardware; its memory is the limit.
    pub machine: Machine,
    /// What may be decided.
    pub freedom: Freedom,
}

/// A graph whose sizes cannot be traced.
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

/// How it is to be planned.
#[derive(Clone)]
pub struct Method<'a> {
    /// Decides when.
    pub scheduler: &'a dyn Scheduler,
    /// Decides where.
    pub packer: &'a dyn Packer,
    /// How long to look.
    pub budget: Budget,
    /// What to do where a schedule finds no place.
    pub rounds: Rounds,
}

/// How a schedule that finds no place is followed by others with a lower load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Rounds {
    /// As long as that takes, within a fixed number: each round with the budget's evaluations or a share of its time, and a patient
    /// placement. Then others are asked too.
    #[default]
    AsNeeded,
    /// The same with placements of a few evaluations, and nobody else is asked: for answers that others wait for, not for the best plan.
    AtOnce,
    /// Just those that a plan was made in, in place of the budget's evaluations and time: that makes it again.
    Again(Evaluations),
}

/// A proved plan with what it promises.
#[derive(Clone)]
pub struct Planned {
    /// The proof.
    pub plan: Arc<CheckedPlan>,
    /// What an iteration will do, by the task's costs.
    pub predicted: Timeline,
    /// Why the planner stopped.
    pub stop: StopReason,
    /// Evaluations that made it: as [`Rounds::Again`], with the same seed, they make it again on any number of threads, unless the observer
    /// interrupted.
    pub evaluations: Evaluations,
    /// Time spent planning, placing and proving.
    pub planning: Duration,
}

impl<'a> Method<'a> {
    /// A method with as many rounds as needed.
    pub fn new(scheduler: &'a dyn Scheduler, packer: &'a dyn Packer, budget: Budget) -> Self {
        Self { scheduler, packer, budget, rounds: Rounds::AsNeeded }
    }

    /// The same method without a long search: planners that try a few settings try them all, planners that search have just begun, and so
    /// have packers.
    pub fn at_once(&self) -> Self {
        let budget = Budget { evaluations: Some(AT_ONCE), time: None, ..self.budget.clone() };
        Self { budget, rounds: Rounds::AtOnce, ..self.clone() }
    }

    /// How hard its packer looks where no clock ends it.
    fn placing(&self) -> Placing {
        if self.rounds == Rounds::AtOnce { Placing::AtOnce } else { Placing::PATIENT }
    }
}

impl Planned {
    /// Bytes of arena that the plan uses: the peak that a run will measure.
    pub fn height(&self) -> Bytes {
        self.plan.plan().placement.height
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Nothing can exist at this limit.
    #[error("no plan can exist within {limit}")]
    Infeasible {
        /// The limit.
        limit: Bytes,
        /// The proof.
        proof: Infeasible,
    },
    /// Nothing was found at this limit; nothing is proved.
    #[error("no plan was found within {limit}")]
    GaveUp {
        /// The limit.
        limit: Bytes,
        /// The fewest bytes of arena, or of load, for which something was found on the way.
        best: Option<Bytes>,
    },
    /// The planner or packer made an illegal plan: a fault of ours.
    #[error("the plan that was found is illegal, which is a fault in elbowroom: {0}")]
    Illegal(#[from] Illegal),
}

/// Plans a task: the road from trace to proof.
pub fn plan(task: &Task, method: &Method<'_>, observer: &dyn Observer) -> Result<Planned, PlanError> {
    plan_from(task, method, &[], observer)
}

/// Plans a task with a short search ([`Method::at_once`]). The inner error says why there is no plan; only an illegal plan is an outer one.
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

/// Plans a task as [`plan`] does, starting from plans that others have found for its trace, if the planner can; and returns the fastest of
/// them if they fit the limit and what was found is slower.
pub fn plan_from(
    task: &Task,
    method: &Method<'_>,
    known: &[Arc<CheckedPlan>],
    observer: &dyn Observer,
) -> Result<Planned, PlanError> {
    let started = Instant::now();
    let schedules: Vec<&Schedule> = known.iter().map(|plan| plan.schedule()).collect();
    let (fitted, told) = fit(task, method, &schedules, observer);
    let found = fitted.and_then(|fitted| prove(task, fitted, told.clone(), started));
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
    Ok(Planned { plan: Arc::new(plan), predicted, stop, evaluations: told, planning: started.elapsed() })
}

/// Offsets of the persistent tensors that a plan has in the arena between iterations, in the order of the trace's; `None` for those that
/// it has on the host alone.
pub fn persistent_offsets(plan: &CheckedPlan) -> Vec<Option<Bytes>> {
    let offsets = &plan.placement().offsets;
    plan.schedule().boundary.iter().map(|home| home.device.map(|buffer| offsets[buffer])).collect()
}

/// Plans a task as [`plan`] does, with the persistent tensors at the [offsets](persistent_offsets) of another plan of the same network if
/// everything else fits around them: then no tensor moves when a training goes from one plan to the other.
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
    let (fitted, told) = fit(task, method, &[], observer);
    let fitted = fitted?;
    let mut problem = elbowroom_sim::liveness::problem(&fitted.schedule, &task.machine);
    problem.capacity = Some(task.machine.memory.align_up(task.machine.align));
    for (home, &offset) in fitted.schedule.boundary.iter().zip(persistent_offsets) {
        if let (Some(buffer), Some(offset)) = (home.device, offset) {
            problem.blocks[buffer].fixed = Some(offset);
        }
    }
    let placement = place(problem, &fitted.schedule, method, method.placing(), observer);
    let fixed = placement.ok().filter(|placement| placement.height <= task.machine.memory);
    let placement = fixed.unwrap_or(fitted.placement);
    prove(task, Fitted { placement, ..fitted }, told, started)
}

/// The end of the road: waits for just this placement, the proof, and what it promises.
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

/// The same plan with what it promises by the task's costs and link.
pub fn predict(task: &Task, planned: Planned) -> Planned {
    Planned { predicted: simulate(task, planned.plan.schedule()), ..planned }
}

/// A schedule proved under a limit on its load alone, with what it promises. It cannot be run: nothing in it has a place.
pub struct PlannedLoad {
    /// The proof.
    pub schedule: CheckedSchedule,
    /// What an iteration would do, by the task's costs.
    pub predicted: Timeline,
    /// Why the planner stopped.
    pub stop: StopReason,
    /// Evaluations that the planner made.
    pub evaluations: u64,
    /// Time spent planning and proving.
    pub planning: Duration,
}

/// Plans a task whose limit bounds the live load, for comparison with work that does not place. Starts from `known` schedules for the same
/// task, if the planner can, and returns none that is slower than those.
pub fn plan_load(
    task: &Task,
    method: &Method<'_>,
    known: &[Schedule],
    observer: &dyn Observer,
) -> Result<PlannedLoad, PlanError> {
    let started = Instant::now();
    let limit = task.machine.memory;
    let budget = match &method.rounds {
        Rounds::Again(told) => {
            let evaluations = told.rounds.first().map(|round| round.planner);
            Budget { evaluations, time: None, ..method.budget.clone() }
        }
        _ => method.budget.clone(),
    };
    observer.begins(&goal(task, method.scheduler, &budget));
    let known_first: Vec<&Schedule> = known.iter().collect();
    let request = request(task, limit);
    let Outcome { best, evaluations, stop } =
        method.scheduler.schedule_from(&request, &known_first, &budget, observer);
    let timed = best.iter().chain(known).map(|schedule| (simulate(task, schedule), schedule));
    let fastest = timed.min_by_key(|(predicted, _)| predicted.iteration);
    let (predicted, schedule) = fastest.ok_or_else(|| no_schedule(stop.clone(), true, limit, None))?;
    let schedule = check::check_schedule(task.trace.clone(), task.machine.clone(), schedule.clone(), limit)?;
    Ok(PlannedLoad { schedule, predicted, stop, evaluations, planning: started.elapsed() })
}

fn simulate(task: &Task, schedule: &Schedule) -> Timeline {
    elbowroom_sim::simulate(&task.trace, &task.costs, &task.machine, schedule).expect(
        "planners make schedules for the trace that they are asked about, with waits that point backwards",
    )
}

/// What a search is told to look for, for those who watch it.
fn goal<'a>(task: &Task, scheduler: &'a dyn Scheduler, budget: &'a Budget) -> Goal<'a> {
    Goal { planner: scheduler.name(), limit: task.machine.memory, unlimited: task.costs.total(), budget }
}

/// What a planner is asked where nothing will be placed, so that it need not look for a place.
fn request(task: &Task, load_limit: Bytes) -> Request<'_> {
    Request {
        trace: &task.trace,
        costs: &task.costs,
        machine: &task.machine,
        load_limit,
        freedom: task.freedom,
        packer: None,
    }
}

/// Why there is no schedule, in terms of the limit that the user named. A proof for a lower load than `whole` proves nothing about it.
fn no_schedule(stop: StopReason, whole: bool, limit: Bytes, lowest: Option<Bytes>) -> PlanError {
    match stop {
        StopReason::Infeasible(proof) if whole => PlanError::Infeasible { limit, proof: *proof },
        StopReason::GaveUp { best } => PlanError::GaveUp { limit, best: lowest.or(best) },
        _ => PlanError::GaveUp { limit, best: lowest },
    }
}

/// The plan that keeps everything: its height is the *natural peak*, its iteration time that of an unlimited device.
pub fn natural(task: &Task, packer: &dyn Packer, observer: &dyn Observer) -> Result<Planned, PlanError> {
    let started = Instant::now();
    let method = Method::new(&elbowroom_sched::keep::Keep, packer, Budget::default());
    let (schedule, stop) = keep(task, observer)?;
    // Without a capacity the packer looks for the lowest height.
    let problem = elbowroom_sim::liveness::problem(&schedule, &task.machine);
    let placement = place(problem, &schedule, &method, method.placing(), observer)
        .map_err(|none| PlanError::GaveUp { limit: UNLIMITED, best: Some(none.height) })?;
    let limit = placement.height.align_up(task.machine.align);
    prove(&task.with_memory(limit), Fitted { schedule, placement, stop }, Evaluations::once(1), started)
}

/// The placement problem of the plan that keeps everything, whose peak load nothing that keeps everything is below.
pub fn natural_problem(task: &Task, observer: &dyn Observer) -> Result<Problem, PlanError> {
    let (schedule, ..) = keep(task, observer)?;
    Ok(elbowroom_sim::liveness::problem(&schedule, &task.machine))
}

/// The schedule that keeps everything.
fn keep(task: &Task, observer: &dyn Observer) -> Result<(Schedule, StopReason), PlanError> {
    let unlimited = task.with_memory(UNLIMITED);
    let Outcome { best, stop, .. } =
        elbowroom_sched::keep::Keep.schedule(&request(&unlimited, UNLIMITED), &Budget::default(), observer);
    let schedule = best.ok_or_else(|| no_schedule(stop.clone(), true, UNLIMITED, None))?;
    Ok((schedule, stop))
}

/// More than anything real, and far from overflow.
const UNLIMITED: Bytes = Bytes(1 << 60);

/// The smallest limit at which the method finds a plan, to within half a percent, with that plan; the limit is the memory of the plan's
/// machine. Searches between what is proved impossible and the natural peak. Planners are not monotone, so there may be islands below
/// that a bisection does not see; what it returns has been planned at just this limit.
pub fn smallest(
    task: &Task,
    method: &Method<'_>,
    natural: Bytes,
    observer: &dyn Observer,
) -> Result<Planned, PlanError> {
    let align = task.machine.align;
    let patient = method;
    // Whether a limit works must not depend on how long one looks, and a search at each of twenty limits would take too long.
    let method = &patient.at_once();
    let mut best = plan(&task.with_memory(natural), method, observer)?;
    let mut works = natural;
    let mut too_small = Bytes::ZERO;
    while works.saturating_sub(too_small) > align.max(Bytes(works.get() / 200)) && !observer.interrupted() {
        // A plan that needs less than it was allowed suggests what to try; bisection decides otherwise.
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
    // At the limit that was found, the search may take its time. What is told is that search, for everything before is the same again.
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
    let request = Request { trace, costs, machine, load_limit: limit, freedom: *freedom, packer: None };
    elbowroom_sim::bound::lower_bound(&request)
}

/// The op that needs most by itself, and how much that is: no limit below it can work.
pub fn largest_op(task: &Task) -> (String, Bytes) {
    let largest = elbowroom_sim::bound::largest_op(&task.trace, task.machine.align);
    largest.map_or_else(Default::default, |(op, bytes)| (task.trace.ops()[op].name.clone(), bytes))
}

//! From a trace to a checked plan: schedule, place, check. If the placement does not fit, the limit on live memory is lowered and the planner
//! runs again (`fit.rs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use elbowroom_graph::Graph;
use elbowroom_ir::check::{self, CheckedPlan, CheckedSchedule, Illegal};
use elbowroom_ir::machine::Machine;
use elbowroom_ir::packing::{Packer, Problem};
use elbowroom_ir::plan::Plan;
use elbowroom_ir::planning::{Costs, Freedom, Known, Pins, Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Goal, Infeasible, Observer, Outcome, StopReason};
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::trace::{Trace, TraceError};
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sched::deadline::Until;
use elbowroom_sched::lower::waits;
use elbowroom_sim::cost::Roofline;

mod clock;
mod derive;
mod descent;
mod evaluations;
mod fit;
mod live_limit;
mod origin;
mod placing;
mod remembered;
mod series;
mod share;
pub mod sizes;
mod smallest;

pub use derive::{Underived, derived_plan};
pub use evaluations::{Evaluations, ParseEvaluationsError, Quick, Round};
use fit::{Fitted, fit};
use origin::Origin;
use placing::{Placed, Placing, place, problem_within};
use remembered::Remembered;
pub(crate) use share::planning_share;
pub(crate) use smallest::{offload_alone, smallest_soon};
pub use smallest::{quick_smallest, smallest};

/// What found a plan that was given to the pipeline.
const KNOWN: &str = "a known plan";

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
    /// What the user has decided, for this trace: see [`pins`](crate::pins).
    pub pins: Option<Arc<Pins>>,
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
        Ok(Self { trace: Arc::new(trace), costs, machine: machine.clone(), freedom, pins: None })
    }

    /// The same task under another limit.
    pub fn with_memory(&self, memory: Bytes) -> Self {
        Self { machine: self.machine.clone().with_memory(memory), ..self.clone() }
    }

    /// The same task with another limit on host memory.
    pub fn with_host_memory(&self, host_memory: Bytes) -> Self {
        Self { machine: Machine { host_memory, ..self.machine.clone() }, ..self.clone() }
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
    /// Plans of the same task, whatever their limits. A schedule whose buffers live as long as theirs gets their placement if it fits, and is
    /// not packed again.
    pub placed: Vec<Arc<CheckedPlan>>,
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
    /// As needed, for plans that are made while a training waits: peers that pack every candidate of their search, which takes a hundred times
    /// as long as the candidate itself, do not pack them. The record of evaluations does not reproduce what such a search finds.
    Sparing,
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
    /// The planner whose schedule this is: the method's, one of its peers or warm starts, or the part of it that it named.
    pub found_by: String,
    /// The evaluations of the search. Passed back as [`Rounds::Recorded`], with the same seed and any number of threads, they reproduce the
    /// plan if it is [`reproducible`](Self::reproducible).
    pub evaluations: Evaluations,
    /// Whether the evaluations reproduce the plan: not if the observer, or the clock within a part of the search that counts no evaluations,
    /// interrupted it.
    pub reproducible: bool,
    /// The same of a plan at the limit that [`smallest()`] found, as a plan for that limit: also if the clock ended the search for the limit.
    /// As `reproducible` for every other plan.
    pub reproducible_at_limit: bool,
    /// Time spent on planning, packing and checking.
    pub planning: Duration,
}

impl<'a> Method<'a> {
    /// A method with [`Rounds::AsNeeded`].
    pub fn new(planner: &'a dyn Planner, packer: &'a dyn Packer, budget: Budget) -> Self {
        Self { planner, packer, budget, rounds: Rounds::AsNeeded, placed: Vec::new() }
    }

    /// The same method with placements that may be used again: that of the [`unconstrained`] plan lets a limit that holds every tensor be met.
    pub fn placed(self, plans: impl IntoIterator<Item = Arc<CheckedPlan>>) -> Self {
        Self { placed: plans.into_iter().collect(), ..self }
    }

    /// The same method with the time that is left of its budget since `started`.
    pub fn since(mut self, started: Instant) -> Self {
        self.budget.time = self.budget.time.map(|time| time.saturating_sub(started.elapsed()));
        self
    }

    /// The same method with short searches of at most its own evaluations, and without a time limit. Planners that try a few
    /// settings still try them all; planners and packers that search stop early.
    pub fn at_once(&self) -> Self {
        let evaluations = self.budget.evaluations.map_or(AT_ONCE, |own| own.min(AT_ONCE));
        let budget = Budget { evaluations: Some(evaluations), time: None, ..self.budget.clone() };
        Self { budget, rounds: Rounds::AtOnce, ..self.clone() }
    }

    /// As [`at_once`](Self::at_once), but within the method's time budget if it has one.
    pub fn at_once_within_time(&self) -> Self {
        let at_once = self.at_once();
        Self { budget: Budget { time: self.budget.time, ..at_once.budget.clone() }, ..at_once }
    }

    /// The same method with a time budget of at most this, if it has a time budget.
    pub fn within(mut self, time: Duration) -> Self {
        self.budget.time = self.budget.time.map(|own| own.min(time));
        self
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

/// Shares of a limit, in percent, that are tried where the planner gives up at the limit itself.
const SHARES: [u64; 4] = [95, 85, 70, 50];

/// Plans a task as [`plan`] does, or where the planner gives up before its time is over, for less memory: not every planner that finds a plan
/// finds one for every larger limit.
///
/// # Errors
///
/// The [`PlanError`] of the task itself.
pub fn plan_or_for_less(
    task: &Task,
    method: &Method<'_>,
    observer: &dyn Observer,
) -> Result<Planned, PlanError> {
    let started = Instant::now();
    match plan(task, method, observer) {
        Err(error @ PlanError::GaveUp { .. }) => {
            let left = method.clone().since(started);
            let time_is_left = left.budget.time != Some(Duration::ZERO);
            time_is_left.then(|| plan_for_less(task, &left, observer)).flatten().ok_or(error)
        }
        done => done,
    }
}

/// Plans a task for less memory than it has, as [`plan_or_for_less`] does where the planner gives up. The plan is checked for all of
/// the memory. A time budget is for all attempts together.
pub(crate) fn plan_for_less(task: &Task, method: &Method<'_>, observer: &dyn Observer) -> Option<Planned> {
    let started = Instant::now();
    let memory = task.machine.memory.get();
    let less = |percent: u64| {
        let planned =
            plan(&task.with_memory(Bytes(memory / 100 * percent)), &method.clone().since(started), observer);
        let planned = planned.ok()?;
        let plan = check::check(task.trace.clone(), task.machine.clone(), planned.plan.plan().clone());
        Some(Planned { plan: Arc::new(plan.ok()?), ..planned })
    };
    SHARES.into_iter().find_map(less)
}

/// Plans a task with a short search ([`Method::at_once_within_time`]). The inner error is the reason why there is no plan; the outer error
/// is always an illegal plan.
///
/// # Errors
///
/// [`PlanError::Illegal`], which is a fault in this project.
pub fn plan_at_once(
    task: &Task,
    method: &Method<'_>,
    observer: &dyn Observer,
) -> Result<Result<Planned, PlanError>, PlanError> {
    match plan(task, &method.at_once_within_time(), observer) {
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
    if let Some(proved) = impossible(task) {
        return Err(proved);
    }
    if let Rounds::Recorded(Evaluations { quick: Some(quick), .. }) = &method.rounds {
        return smallest::again(*quick, task, method, observer);
    }
    // A planner that is never slower than others is not slower than a plan whose placement is known either.
    let promises = !method.planner.peers(&task.trace).is_empty();
    let placed = method.placed.iter().filter(|_| promises);
    let fits = |plan: &&Arc<CheckedPlan>| plan.placement().height <= task.machine.memory;
    let timed = known.iter().chain(placed).filter(fits);
    let timed = timed.map(|plan| (simulate(task, plan.schedule()), plan));
    let fastest = timed.min_by_key(|(predicted, _)| predicted.iteration);
    if let Some((predicted, plan)) = &fastest
        && promises
        && predicted.iteration <= bound_of_ops(task)
    {
        let search = Searched { stop: StopReason::Optimal, found_by: KNOWN.to_owned(), reproducible: true };
        let (plan, predicted) = (plan.plan().clone(), predicted.clone());
        return checked(task, plan, |_| predicted, search, Evaluations::once(1), started);
    }
    let schedules: Vec<&Schedule> = known.iter().map(|plan| plan.schedule()).collect();
    let packer = Remembered::new(method.packer);
    let (fitted, recorded) = fit(task, &Method { packer: &packer, ..method.clone() }, &schedules, observer);
    let found = fitted.and_then(|fitted| prove(task, fitted, recorded.clone(), started));
    let Some((predicted, plan)) = fastest else { return found };
    let stop = match &found {
        Ok(own) if own.predicted.iteration <= predicted.iteration => return found,
        Ok(own) => own.stop.clone(),
        Err(PlanError::GaveUp { .. }) => StopReason::Finished,
        Err(_) => return found,
    };
    let reproducible = found.as_ref().map_or(true, |own| own.reproducible);
    let search = Searched { stop, found_by: KNOWN.to_owned(), reproducible };
    checked(task, plan.plan().clone(), |_| predicted, search, recorded, started)
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
    let packer = Remembered::new(method.packer);
    let method = &Method { packer: &packer, ..method.clone() };
    let (fitted, recorded) = fit(task, method, &[], observer);
    let fitted = fitted?;
    let mut problem = problem_within(&fitted.schedule, &task.machine);
    for (at_boundary, &offset) in fitted.schedule.boundary.iter().zip(persistent_offsets) {
        if let (Some(buffer), Some(offset)) = (at_boundary.device, offset) {
            problem.blocks[buffer].fixed = Some(offset);
        }
    }
    let placement = place(problem, &fitted.schedule, method, method.placing(), observer);
    let fixed = placement.ok().map(|placed| placed.placement);
    let fixed = fixed.filter(|placement| placement.height <= task.machine.memory);
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
    let Fitted { mut schedule, placement, stop, found_by, reproducible } = fitted;
    waits::thin(&mut schedule, &placement);
    let plan = Plan { trace: task.trace.fingerprint(), schedule, placement };
    let search = Searched { stop, found_by, reproducible };
    checked(task, plan, |plan| simulate(task, plan.schedule()), search, evaluations, started)
}

/// How the search for a plan ended.
struct Searched {
    stop: StopReason,
    found_by: String,
    reproducible: bool,
}

/// Checks a plan, with the iteration that is predicted for it.
fn checked(
    task: &Task,
    plan: Plan,
    predicted: impl FnOnce(&CheckedPlan) -> Timeline,
    search: Searched,
    evaluations: Evaluations,
    started: Instant,
) -> Result<Planned, PlanError> {
    let Searched { stop, found_by, reproducible } = search;
    let plan = check::check(task.trace.clone(), task.machine.clone(), plan)?;
    let predicted = predicted(&plan);
    let planning = started.elapsed();
    Ok(Planned {
        plan: Arc::new(plan),
        predicted,
        stop,
        found_by,
        evaluations,
        reproducible,
        reproducible_at_limit: reproducible,
        planning,
    })
}

/// The same plan with its iteration predicted by the task's costs and link.
pub fn predict(task: &Task, planned: Planned) -> Planned {
    Planned { predicted: simulate(task, planned.plan.schedule()), ..planned }
}

/// The predicted iteration time of a plan for the task's trace, by the task's costs and link.
pub(crate) fn iteration_time(task: &Task, plan: &CheckedPlan) -> Nanos {
    simulate(task, plan.schedule()).iteration
}

/// A schedule checked under a limit on live memory alone, with its predicted iteration. It cannot run, because no buffer has an offset.
pub struct PlannedSchedule {
    /// The checked schedule.
    pub schedule: CheckedSchedule,
    /// The predicted iteration, by the task's costs.
    pub predicted: Timeline,
    /// Why the planner stopped.
    pub stop: StopReason,
    /// As for [`Planned`].
    pub found_by: String,
    /// Evaluations of the planner.
    pub evaluations: u64,
    /// Whether they reproduce the schedule.
    pub reproducible: bool,
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
    if let Some(proved) = impossible_schedule(task) {
        return Err(proved);
    }
    let budget = match &method.rounds {
        Rounds::Recorded(recorded) => {
            let evaluations = recorded.rounds.first().map_or(0, |round| round.planner);
            Budget { evaluations: Some(evaluations), time: None, ..method.budget.clone() }
        }
        _ => method.budget.clone(),
    };
    let watch = Until::new(observer, budget.time.and_then(|time| started.checked_add(time)));
    // Planners that end by themselves do so before, and count their evaluations. Nothing but a check and a simulation follows.
    let budget = Budget { time: budget.time.map(|time| time / 12 * 11), ..budget };
    observer.begins(&goal(task, method.planner, &budget));
    let known_first: Vec<&Schedule> = known.iter().collect();
    let request = request(task, limit);
    let origin = Origin::new(&watch);
    let Outcome { best, evaluations, mut stop } =
        method.planner.schedule_from(&request, Known::schedules(&known_first), &budget, &origin);
    let found_by = origin.found_by(method.planner);
    let reproducible = stop != StopReason::Interrupted;
    if !reproducible && !observer.interrupted() {
        stop = StopReason::Time;
    }
    let own = best.iter().map(|schedule| (schedule, found_by.clone()));
    let known = known.iter().map(|schedule| (schedule, KNOWN.to_owned()));
    let timed = own.chain(known).map(|(schedule, by)| (simulate(task, schedule), schedule, by));
    let fastest = timed.min_by_key(|(predicted, ..)| predicted.iteration);
    let (predicted, schedule, found_by) =
        fastest.ok_or_else(|| no_schedule(stop.clone(), true, limit, None))?;
    let schedule = check::check_schedule(task.trace.clone(), task.machine.clone(), schedule.clone(), limit)?;
    let planning = started.elapsed();
    Ok(PlannedSchedule { schedule, predicted, stop, found_by, evaluations, reproducible, planning })
}

/// The iteration of a schedule for the task's trace, as the task's costs and link predict it.
pub(crate) fn simulate(task: &Task, schedule: &Schedule) -> Timeline {
    elbowroom_sim::simulate(&task.trace, &task.costs, &task.machine, schedule)
        .expect("planners return schedules for the requested trace, with waits that point backwards")
}

/// The goal of a search, for its observer.
fn goal<'a>(task: &Task, planner: &'a dyn Planner, budget: &'a Budget) -> Goal<'a> {
    Goal { planner: planner.name(), limit: task.machine.memory, unlimited: task.costs.total(), budget }
}

/// The request to a planner whose schedule is not packed, and which therefore gets no packer.
pub fn request(task: &Task, live_limit: Bytes) -> Request<'_> {
    Request {
        trace: &task.trace,
        costs: &task.costs,
        machine: &task.machine,
        live_limit,
        freedom: task.freedom,
        packer: None,
        pins: task.pins.as_deref(),
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
    let found_by = elbowroom_sched::keep::Keep.name().to_owned();
    // Without a capacity the packer minimizes the arena size.
    let problem = elbowroom_sim::liveness::problem(&schedule, &task.machine);
    let placing = Placing::unlimited(&problem);
    let Placed { placement, .. } = place(problem, &schedule, &method, placing, observer)
        .map_err(|none| PlanError::GaveUp { limit: UNLIMITED, best: Some(none.height) })?;
    let limit = placement.height.align_up(task.machine.align);
    let fitted = Fitted { schedule, placement, stop, found_by, reproducible: true };
    prove(&task.with_memory(limit), fitted, Evaluations::once(1), started)
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
pub(crate) const UNLIMITED: Bytes = Bytes(1 << 60);

/// The highest lower bound on the iteration time at the task's limit that is known: that of [single ops](elbowroom_sim::bound::thorough_bound),
/// which includes Proposition 3 of Beaumont et al., or the [value of Algorithm 1](relaxed_bound) where there is one.
pub fn lower_bound(task: &Task) -> Nanos {
    bounds(task, None).0
}

/// The [`lower_bound`] and the [`relaxed_bound`], which takes most of the time and is computed once; with less work after a search of a short
/// `time`, so that the whole takes little longer.
pub(crate) fn bounds(task: &Task, time: Option<Duration>) -> (Nanos, Option<Nanos>) {
    let relaxed = relaxed_bound(task);
    let of_ops = elbowroom_sim::bound::thorough_bound(&request_at_limit(task), time);
    (of_ops.max(relaxed.unwrap_or_default()), relaxed)
}

/// The part of the [`lower_bound`] that takes milliseconds: searches that reach it end.
fn bound_of_ops(task: &Task) -> Nanos {
    elbowroom_sim::bound::lower_bound(&request_at_limit(task))
}

/// The [`request`] at the task's own limit.
fn request_at_limit(task: &Task) -> Request<'_> {
    request(task, task.machine.memory.align_up(task.machine.align))
}

/// The [value of Algorithm 1](elbowroom_sched::chain::bound::relaxed_bound) of Beaumont et al. at the task's limit: a bound for plans that only
/// offload. `None` if the task permits more or its trace is no chain.
pub fn relaxed_bound(task: &Task) -> Option<Nanos> {
    elbowroom_sched::chain::bound::relaxed_bound(&request_at_limit(task))
}

/// The proof that no plan exists within the task's limit, if the [floor] exceeds it: one sum for each op, and no search.
pub fn impossible(task: &Task) -> Option<PlanError> {
    let limit = task.machine.memory;
    let proof = elbowroom_sched::verdict::impossible_in_arena(&request(task, limit), limit)?;
    Some(PlanError::Infeasible { limit, proof })
}

/// The proof that no [schedule](plan_schedule) exists if the task's limit bounds live memory.
pub fn impossible_schedule(task: &Task) -> Option<PlanError> {
    let limit = task.machine.memory;
    let proof = elbowroom_sched::verdict::impossible_op(&request(task, limit))?;
    Some(PlanError::Infeasible { limit, proof })
}

/// The op that needs the most bytes by itself, and that number.
pub fn largest_op(task: &Task) -> (String, Bytes) {
    floor_of(task, Freedom::ALL)
}

/// The op during which the most bytes must be on the device: its own, and those of tensors that the task permits neither to offload nor to
/// recompute. No plan exists for a smaller limit.
pub fn floor(task: &Task) -> (String, Bytes) {
    floor_of(task, task.freedom)
}

fn floor_of(task: &Task, freedom: Freedom) -> (String, Bytes) {
    let (trace, align) = (&task.trace, task.machine.align);
    let floor = elbowroom_sim::bound::floor(trace, freedom, align);
    floor.map_or_else(Default::default, |floor| {
        (trace.ops()[floor.op].name.clone(), floor.arena(trace, align))
    })
}

//! A schedule and a place for it: the planner promises load, the pipeline promises bytes of arena.
//!
//! What a planner finds is placed; if that takes more than the limit, the planner is asked again for a lower load. A planner that is never
//! behind others by its load could fall behind them by that, for theirs may fit where its own does not. So where the first schedule does
//! not fit, the others are asked too, each down to the load at which it fits, and the fastest of all is taken.

use std::time::Instant;

use elbowroom_ir::Bytes;
use elbowroom_ir::packing::{Placement, Problem};
use elbowroom_ir::planning::Request;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Infeasible, Observer, StopReason, Unheard};
use elbowroom_sched::placed::next_load;

use super::{Method, PlanError, Task, goal, no_schedule, request, simulate};

/// How often the planner is asked for another load before a limit is given up.
const ROUNDS: u32 = 8;

/// Evaluations of the packer for each placement, where the planner has just begun to look; and the work that it may do where it searches, in
/// evaluations × blocks. Not a time: on a busy machine a placement must not fail that succeeds on an idle one.
const PLACEMENT_EVALUATIONS: u64 = 20;
const PLACEMENT_WORK: u64 = 300_000;

/// A schedule and a placement that fits the limit, not yet proved.
pub(super) struct Fitted {
    pub schedule: Schedule,
    pub placement: Placement,
    pub stop: StopReason,
    pub evaluations: u64,
    /// Schedules that were asked for until one fitted.
    pub rounds: u32,
}

impl Fitted {
    fn time(&self, task: &Task) -> elbowroom_ir::Nanos {
        simulate(task, &self.schedule).iteration
    }
}

/// A schedule with a placement that fits: the one that the method finds, starting from `known` ones if it can. Where the first did not
/// fit, the fastest of that, of what is found at once, when little time was left for later rounds, and of what the planner's peers find,
/// as far as twice the time reaches; a method that only looks at once is content with its own.
pub(super) fn fit(
    task: &Task,
    method: &Method<'_>,
    known: &[&Schedule],
    observer: &dyn Observer,
) -> Result<Fitted, PlanError> {
    let started = Instant::now();
    let mut best = descend(task, method, method, known, observer);
    let in_one_round = best.as_ref().is_ok_and(|fitted| fitted.rounds == 1);
    let impossible = matches!(best, Err(PlanError::Infeasible { .. }));
    if in_one_round || impossible || method.is_at_once() {
        return best;
    }
    for scheduler in std::iter::once(method.scheduler).chain(method.scheduler.peers(&task.trace)) {
        if observer.interrupted() || (best.is_ok() && method.is_overdue(started)) {
            break;
        }
        let quick = Method { scheduler, ..method.at_once() };
        if let Ok(other) = descend(task, &quick, method, &[], &Unheard(observer))
            && best.as_ref().map_or(true, |best| other.time(task) < best.time(task))
        {
            best = Ok(other);
        }
    }
    best
}

/// Asks for schedules of ever lower load until one's placement fits. A load that is too low for the planner says that the last step was too
/// long, and halves it. Placements are made as patiently as `placing` says.
fn descend(
    task: &Task,
    method: &Method<'_>,
    placing: &Method<'_>,
    known: &[&Schedule],
    observer: &dyn Observer,
) -> Result<Fitted, PlanError> {
    let limit = task.machine.memory;
    // Loads count every buffer rounded up to the alignment; the highest one may end where its bytes end.
    let whole = limit.align_up(task.machine.align);
    let mut load_limit = whole;
    // The load that the last schedule took without fitting.
    let mut taken = whole;
    let mut lowest: Option<Bytes> = None;
    let mut evaluations = 0;
    let mut unplaced: Vec<Schedule> = Vec::new();
    let started = Instant::now();
    for rounds in 1..=ROUNDS {
        if rounds > 1 && placing.is_overdue(started) {
            break;
        }
        let round = method.for_a_round(rounds, started);
        observer.begins(&goal(task, &round));
        let request = Request { packer: Some(method.packer), ..request(task, load_limit) };
        // The last to have been found needs the least.
        let known: Vec<&Schedule> = unplaced.iter().rev().chain(known.iter().copied()).collect();
        let outcome = method.scheduler.schedule_from(&request, &known, &round.budget, observer);
        evaluations += outcome.evaluations;
        let Some(schedule) = outcome.best else {
            let between = Bytes(load_limit.get().midpoint(taken.get()));
            if load_limit == whole || observer.interrupted() || between <= load_limit {
                return Err(no_schedule(outcome.stop, load_limit == whole, limit, lowest));
            }
            load_limit = between;
            continue;
        };
        let problem = elbowroom_sim::liveness::problem(&schedule, &task.machine);
        let load = problem.peak_load();
        let problem = Problem { capacity: Some(whole), ..problem };
        let height = match place(problem, &schedule, placing, observer) {
            Ok(placement) if placement.height <= limit => {
                return Ok(Fitted { schedule, placement, stop: outcome.stop, evaluations, rounds });
            }
            Ok(placement) => placement.height,
            Err(height) => height,
        };
        lowest = Some(lowest.map_or(height, |lowest| lowest.min(height)));
        taken = load_limit.min(load);
        load_limit = match next_load(load_limit, load, height - limit, rounds - 1) {
            Some(lower) => lower,
            None => break,
        };
        unplaced.push(schedule);
    }
    Err(PlanError::GaveUp { limit, best: lowest })
}

/// A placement within the problem's capacity (the lowest without one), or the lowest height that the packer reached: how far that is above the limit says how far
/// the load must fall.
///
/// Blocks are rounded up to the alignment, buffers are not: the highest one ends where its bytes end.
pub(super) fn place(
    problem: Problem,
    schedule: &Schedule,
    method: &Method<'_>,
    observer: &dyn Observer,
) -> Result<Placement, Bytes> {
    let evaluations = match method.is_at_once() {
        true => PLACEMENT_EVALUATIONS,
        false => (PLACEMENT_WORK / problem.blocks.len().max(1) as u64).max(PLACEMENT_EVALUATIONS),
    };
    let budget = Budget { evaluations: Some(evaluations), time: None, ..method.budget.clone() };
    let outcome = method.packer.pack(&problem, &budget, &Unheard(observer));
    let Some(placement) = outcome.best else {
        let unknown = problem.capacity.unwrap_or_default() + Bytes(1);
        return Err(match outcome.stop {
            StopReason::GaveUp { best: Some(best) } => best,
            StopReason::Infeasible(proof) => match *proof {
                Infeasible::Blocks { needed, .. } => needed.max(unknown),
                Infeasible::Op { .. } => unknown,
            },
            _ => unknown,
        });
    };
    let offsets = placement.offsets;
    Ok(Placement { height: elbowroom_sim::liveness::height(schedule, &offsets), offsets })
}

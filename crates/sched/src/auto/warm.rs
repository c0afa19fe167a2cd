//! Warm starts: what other planners find, as decisions to continue from, and the best of their schedules to fall back on.

use elbowroom_ir::planning::Request;
use elbowroom_ir::schedule::{Action, Schedule};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_ir::{Id, OpId};

use super::instance::{Instance, NONE};
use super::sequence::{Decisions, policy};
use crate::lower::lower;
use crate::policy::FetchRule;

/// Planners that answer at once, one for each idea.
const QUICK: [&str; 7] = ["greedy", "autoswap", "dynprog", "mixed", "sublinear", "dtr", "floor"];
/// Planners that are asked only for traces of at most [`SHORT`] ops.
const SLOWER: [&str; 2] = ["rotor", "bo"];
const SHORT: usize = 800;
/// Evaluations of each: the search does better with the time.
const EVALUATIONS: u64 = 32;

/// One planner's answer.
pub(crate) struct Warm {
    /// Exact iteration time.
    pub time: u64,
    /// Its schedule.
    pub schedule: Schedule,
    /// The same as decisions, as far as these can express it.
    pub decisions: Decisions,
}

/// Asks the others, best first. One that reaches `bound` ends the asking.
pub(crate) fn starts(request: &Request<'_>, inst: &Instance, bound: u64, seed: u64) -> Vec<Warm> {
    let budget = Budget { evaluations: Some(EVALUATIONS), time: None, seed, threads: 1 };
    // A start need not be placed: the search changes it anyway.
    let request = &Request { packer: None, ..*request };
    let slower = SLOWER.iter().filter(|_| inst.ops.len() <= SHORT);
    let mut found: Vec<Warm> = Vec::new();
    for name in QUICK.iter().chain(slower) {
        let Some(scheduler) = crate::scheduler(name) else { continue };
        let Some(schedule) = scheduler.schedule(request, &budget, &Silent).best else { continue };
        let predicted = elbowroom_sim::simulate(request.trace, request.costs, request.machine, &schedule);
        let Ok(timeline) = predicted else { continue };
        let decisions = decisions(inst, &schedule);
        let time = timeline.iteration.get();
        found.push(Warm { time, schedule, decisions });
        if time <= bound {
            break;
        }
    }
    found.sort_by_key(|warm| warm.time);
    found
}

/// The order of the instance with nothing away, if that fits.
pub(crate) fn kept(request: &Request<'_>, inst: &Instance) -> Option<Warm> {
    let decisions = Decisions { repeats: Vec::new(), fetches: Vec::new(), rule: FetchRule::Eager };
    let lowered = lower(request, &policy(request, inst, &decisions)).ok()?;
    Some(Warm { time: lowered.iteration.get(), schedule: lowered.schedule, decisions })
}

/// What a schedule decides: which ops it runs again before which op, and for which runs it fetches values.
fn decisions(inst: &Instance, schedule: &Schedule) -> Decisions {
    let mut number = vec![NONE; inst.ops.len()];
    for (index, op) in (0u32..).zip(&inst.order) {
        number[op.index()] = index;
    }
    let number = |op: OpId| number[op.index()];
    // The stage of a run is the next op that runs for the first time.
    let mut stages = vec![NONE; schedule.steps.len()];
    let mut stage = NONE;
    for (id, step) in schedule.steps.iter().rev() {
        if let Action::Compute(launch) = &step.action {
            stage = number(launch.op);
        }
        stages[id.index()] = stage;
    }
    let mut repeats = Vec::new();
    let mut fetches = Vec::new();
    let mut pending: Vec<u32> = Vec::new();
    for (id, step) in schedule.steps.iter() {
        let stage = stages[id.index()];
        match &step.action {
            Action::Recompute(launch) if stage != NONE => repeats.push((stage, number(launch.op))),
            Action::Prefetch { value, .. } => pending.push(value.0),
            _ => {}
        }
        if let Some(launch) = step.action.launch()
            && stage != NONE
            && !pending.is_empty()
        {
            let op = number(launch.op);
            let reads = &inst.ops[op as usize].reads;
            fetches.extend(pending.iter().filter(|v| reads.contains(v)).map(|&value| (value, stage, op)));
            pending.retain(|value| !reads.contains(value));
        }
    }
    repeats.sort_unstable();
    repeats.dedup();
    fetches.sort_unstable();
    fetches.dedup();
    Decisions { repeats, fetches, rule: FetchRule::Eager }
}

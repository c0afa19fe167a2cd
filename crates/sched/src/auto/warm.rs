//! Warm starts: what other planners find, as decisions to continue from, and the best of their schedules to fall back on.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use elbowroom_ir::planning::{Request, Scheduler};
use elbowroom_ir::schedule::{Action, Schedule};
use elbowroom_ir::search::{Budget, Observer, Unheard};
use elbowroom_ir::{Id, OpId};

use super::instance::{Instance, NONE};
use super::sequence::{Decisions, policy};
use crate::lower::lower;
use crate::policy::FetchRule;

/// Planners that answer at once, one for each idea, the quickest first.
const QUICK: [&str; 6] = ["sublinear", "mixed", "greedy", "dynprog", "floor", "dtr"];
/// Planners that are asked only for traces of at most so many ops.
const SLOWER: [(&str, usize); 3] = [("autoswap", 4_000), ("rotor", 800), ("bo", 800)];
/// Evaluations of each: the search does better with the time.
const EVALUATIONS: u64 = 32;

/// A sequence to start from.
pub(crate) struct Warm {
    /// Exact iteration time.
    pub time: u64,
    /// Its schedule, if that keeps to the limit whatever its placement.
    pub schedule: Option<Schedule>,
    /// The same as decisions, as far as these can express it.
    pub decisions: Decisions,
}

/// The planners that are asked for traces of so many ops.
pub(crate) fn asked(ops: usize) -> impl Iterator<Item = &'static dyn Scheduler> {
    let slower = SLOWER.iter().filter(move |(_, most)| ops <= *most).map(|(name, _)| name);
    QUICK.iter().chain(slower).filter_map(|name| crate::scheduler(name))
}

/// Asks the others, side by side: time and schedule of each that finds one, in the order of [`asked`]. The first that reaches `bound` ends
/// the list, whatever the threads, and an interruption ends the asking.
pub(crate) fn starts(
    request: &Request<'_>,
    bound: u64,
    budget: &Budget,
    observer: &dyn Observer,
) -> Vec<(u64, Schedule)> {
    let each = Budget { evaluations: Some(EVALUATIONS), time: None, seed: budget.seed, threads: 1 };
    // A start need not be placed: the search changes it anyway.
    let request = &Request { packer: None, ..*request };
    let planners: Vec<&dyn Scheduler> = asked(request.trace.ops().len()).collect();
    let answers: Vec<OnceLock<(u64, Schedule)>> = planners.iter().map(|_| OnceLock::new()).collect();
    let (next, met) = (AtomicUsize::new(0), AtomicBool::new(false));
    // Whoever is asked is heard to the end, so that no answer is missing before the first that reaches the bound.
    let ask = || {
        while !met.load(Ordering::Relaxed) && !observer.interrupted() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(planner) = planners.get(index) else { return };
            let Some(schedule) = planner.schedule(request, &each, &Unheard(observer)).best else { continue };
            let predicted = elbowroom_sim::simulate(request.trace, request.costs, request.machine, &schedule);
            let Ok(timeline) = predicted else { continue };
            let time = timeline.iteration.get();
            met.fetch_or(time <= bound, Ordering::Relaxed);
            // Nobody else sets the answer of this index.
            let _ = answers[index].set((time, schedule));
        }
    };
    std::thread::scope(|scope| {
        (1..budget.threads.min(planners.len())).for_each(|_| {
            scope.spawn(ask);
        });
        ask();
    });
    let mut found: Vec<(u64, Schedule)> = Vec::new();
    for answer in answers.into_iter().filter_map(OnceLock::into_inner) {
        let optimal = answer.0 <= bound;
        found.push(answer);
        if optimal {
            break;
        }
    }
    found
}

impl Warm {
    /// A schedule that keeps to the limit.
    pub(crate) fn fitting(inst: &Instance, time: u64, schedule: &Schedule) -> Self {
        Self { time, decisions: decisions(inst, schedule), schedule: Some(schedule.clone()) }
    }

    /// A schedule made for whatever limit and placement: what it decides, in the instance's order, if it can be simulated.
    pub(crate) fn known(request: &Request<'_>, inst: &Instance, schedule: &Schedule) -> Option<Self> {
        let predicted = elbowroom_sim::simulate(request.trace, request.costs, request.machine, schedule);
        let time = predicted.ok()?.iteration.get();
        let decisions = decisions(inst, schedule);
        Some(match lower(request, &policy(request, inst, &decisions)) {
            Ok(lowered) => {
                Self { time: lowered.iteration.get(), schedule: Some(lowered.schedule), decisions }
            }
            Err(_) => Self { time, schedule: None, decisions },
        })
    }

    /// The order of the instance with nothing away, if that fits.
    pub(crate) fn kept(request: &Request<'_>, inst: &Instance) -> Option<Self> {
        let decisions = Decisions { repeats: Vec::new(), fetches: Vec::new(), rule: FetchRule::Eager };
        let lowered = lower(request, &policy(request, inst, &decisions)).ok()?;
        Some(Self { time: lowered.iteration.get(), schedule: Some(lowered.schedule), decisions })
    }
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

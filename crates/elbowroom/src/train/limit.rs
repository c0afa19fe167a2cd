//! The first plan of a training: one that fits the limit, from estimated durations.
//!
//! Planners are not monotone: one that gives up at a limit may find a plan for less, and that plan fits. So where the planner gives up,
//! this step tries smaller limits, then searches the smallest limit at which the planner succeeds, and starts from the plan that it found
//! there. This is a step of training and not of the [pipeline], because it would change the answers of `plan` and
//! `compare`, which report what a planner finds at a limit by itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use elbowroom_engine::reserved_host_bytes;
use elbowroom_ir::Bytes;
use elbowroom_ir::check;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::Freedom;
use elbowroom_ir::search::Budget;
use elbowroom_sched::deadline::Until;

use super::host::Host;
use super::{TrainError, Training};
use crate::explain::Refusal;
use crate::observer::TrainObserver;
use crate::pipeline::{self, Method, PlanError, Planned, Task};
use crate::size::MemorySpec;

/// Plans that are made for less host memory before this step gives up.
const HOST_ATTEMPTS: usize = 4;

/// Time in which a limit that works is searched for after a proof that the requested one does not.
const NAMING: Duration = Duration::from_secs(1);

/// Time that packing without a limit and the search for the first plan, or for the smallest limit, may take together if the search finds one,
/// so that the first iteration begins within a second.
const FIRST: Duration = Duration::from_millis(500);
/// What the search has of it in any case.
const LEAST: Duration = Duration::from_millis(100);

/// More host memory than any plan takes, and far from overflow.
const AMPLE: Bytes = Bytes(1 << 60);

/// Ops of a trace for which a search is not shortened.
const FEW_OPS: usize = 2048;

/// A plan under the limit of the training, or the reason why there is none with the smallest limit that works. `fitting` is a plan that is
/// known to fit: it is followed if no faster one is found.
pub(super) fn plan(
    training: &Training<'_>,
    memory: MemorySpec,
    task: &Task,
    unconstrained: &Planned,
    fitting: Option<&Planned>,
    observer: &dyn TrainObserver,
) -> Result<Planned, TrainError> {
    let started = Instant::now();
    let unconstrained_peak = unconstrained.height();
    // A limit that holds every tensor takes no search.
    let placed = [Some(unconstrained), fitting].into_iter().flatten();
    let method = training.method.clone().placed(placed.map(|planned| planned.plan.clone()));
    let at_most = FIRST.saturating_sub(unconstrained.planning).max(LEAST);
    // A time budget is for everything here together.
    let patient = || method.clone().since(started).at_once_within_time();
    let share = pipeline::planning_share(task.costs.total(), training.iterations);
    let planned = match memory.resolve(unconstrained_peak) {
        // The plan only has to fit: durations are not measured yet, so a long search would be wasted.
        Some(limit) => {
            let task = task.with_memory(limit);
            // Nor is it worth more than half of what planning may take, by the estimate, or making the first iteration wait: the plan for measured
            // durations matters more.
            let first = method.clone().within((share / 2).min(at_most)).at_once_within_time();
            let first = shortened(&first, task.trace.ops().len());
            let long = task.trace.ops().len() > FEW_OPS && limit < unconstrained_peak;
            let offloaded = || {
                let timed = first.budget.time.is_some();
                timed.then(|| pipeline::offload_alone(&task, observer)).flatten()
            };
            // On traces of many ops a search takes seconds. Where offload alone fits, the first iteration does not wait for one.
            let at_once = if long { offloaded() } else { None };
            match at_once.map_or_else(|| pipeline::plan(&task, &first, observer), Ok) {
                // What was shortened may have ended too early. No search gets less than an eighth of the time.
                Err(PlanError::GaveUp { .. })
                    if first.budget.evaluations != patient().budget.evaluations
                        || first.budget.time.is_some_and(|time| started.elapsed() >= time / 8) =>
                {
                    let offloaded = if long { None } else { offloaded() };
                    offloaded.map_or_else(|| pipeline::plan(&task, &patient(), observer), Ok)
                }
                done => done,
            }
        }
        None => {
            let end = training
                .method
                .budget
                .time
                .and_then(|time| started.checked_add(time.min(share).min(at_most)));
            pipeline::smallest_soon(task, &training.method, unconstrained_peak, end, observer)
        }
    };
    let error = match planned {
        Ok(planned) => return Ok(planned),
        Err(error) => error,
    };
    let from = |known: Planned, limit| {
        let task = task.with_memory(limit);
        pipeline::plan_from(&task, &patient(), &[known.plan], observer).map_err(TrainError::Plan)
    };
    let gave_up = if let PlanError::GaveUp { limit, .. } = error { Some(limit) } else { None };
    // With the link of the described machine, so that what is found and what is refused do not depend on how fast the host tier is now.
    let described = Task { machine: training.machine.clone(), ..task.clone() };
    if let (Some(limit), Some(fitting)) = (gave_up, fitting) {
        return from(fitting.clone(), limit);
    }
    if let Some(limit) = gave_up {
        // By either link. The task itself has been planned above.
        let for_less = pipeline::plan_for_less(&task.with_memory(limit), &patient(), observer);
        let other_link = || {
            let described = described.with_memory(limit);
            let differs = described.machine != task.with_memory(limit).machine;
            differs.then(|| pipeline::plan_or_for_less(&described, &patient(), observer).ok()).flatten()
        };
        // Whatever the planner is: where a shortened search gave up, this was tried before a longer one, and what is refused must not depend on
        // how long searches take.
        let offloaded = || pipeline::offload_alone(&described.with_memory(limit), observer);
        if let Some(found) = for_less.or_else(other_link).or_else(offloaded) {
            return from(found, limit);
        }
    }
    observer.stage("looking for a limit that works");
    // What one op needs is a proof: a limit that works is named, but not searched for long.
    let naming = Instant::now().checked_add(NAMING);
    let smallest = match gave_up {
        Some(_) => {
            let end = training.method.budget.time.and_then(|time| started.checked_add(time).max(naming));
            pipeline::smallest_soon(&described, &training.method, unconstrained_peak, end, observer).ok()
        }
        None => pipeline::quick_smallest(&described, unconstrained_peak, naming, observer),
    };
    let smallest = match (smallest, gave_up) {
        (Some(smaller), Some(limit)) if smaller.plan.machine().memory <= limit => {
            return from(smaller, limit);
        }
        // Everything on the device works, whatever may be decided.
        (None, None) => Some(unconstrained_peak),
        (smallest, _) => smallest.map(|planned| planned.height()),
    };
    Err(match Refusal::new(&task.trace, &error, smallest) {
        Some(refusal) => TrainError::Refused(Box::new(refusal)),
        None => TrainError::Plan(error),
    })
}

/// The refusal with the host memory that a plan within the limit needs, if there was too little: found by a quick search with as much host memory
/// as it takes. `freedom` is what the user permits, also if there is nowhere to offload to.
pub(super) fn explain_shortage(
    refusal: Refusal,
    training: &Training<'_>,
    task: &Task,
    host: &Host,
    freedom: Freedom,
    observer: &dyn TrainObserver,
) -> TrainError {
    let limit = refusal.limit_bytes;
    let available = task.machine.host_memory;
    let found = freedom
        .offload
        .then(|| {
            let roomy = Task { freedom, ..task.with_memory(limit) }.with_host_memory(AMPLE);
            let watch = Until::new(observer, Instant::now().checked_add(NAMING));
            let quick = training.method.at_once();
            pipeline::offload_alone(&roomy, &watch).or_else(|| pipeline::plan(&roomy, &quick, &watch).ok())
        })
        .flatten();
    let needed = found.map(|planned| reserved_host_bytes(&planned.plan));
    let shortage = needed.filter(|&needed| needed > available);
    let shortage = shortage.map(|needed| host.shortage(needed, available));
    TrainError::Refused(Box::new(refusal.short_of_host_memory(shortage)))
}

/// The method with fewer evaluations for a trace of many ops: each evaluation takes longer in proportion, and thousands of layers must not
/// wait for minutes.
fn shortened<'a>(method: &Method<'a>, ops: usize) -> Method<'a> {
    let share = |all: u64| (all * FEW_OPS as u64 / ops.max(FEW_OPS) as u64).max(1);
    let evaluations = method.budget.evaluations.map(share);
    Method { budget: Budget { evaluations, ..method.budget.clone() }, ..method.clone() }
}

/// A plan for measured durations, or the one for estimated durations where the planner finds none that is faster: that one fits. If that one
/// reaches the lower bound by the measured durations, too, nothing is searched.
pub(super) fn replan(
    method: &Method<'_>,
    task: &Task,
    estimated: Planned,
    observer: &dyn TrainObserver,
) -> Result<Planned, TrainError> {
    let kept = pipeline::predict(task, estimated);
    let method = &method.clone().placed([kept.plan.clone()]);
    match pipeline::plan(task, method, observer) {
        Ok(planned) if planned.predicted.iteration <= kept.predicted.iteration => Ok(planned),
        Err(PlanError::Illegal(fault)) => Err(TrainError::Plan(fault.into())),
        _ => Ok(kept),
    }
}

/// The plan if the host copies of a session that follows it fit in the host memory of the task, otherwise another one that does. A planner
/// limits the sum of host copies; each of them takes one range of bytes, so that the bytes reserved can be more. The other plans are made for
/// less host memory, in the end for none; `None` if none of them fits either.
pub(super) fn within_host_memory(
    training: &Training<'_>,
    task: &Task,
    planned: Planned,
    offsets: &[Option<Bytes>],
    observer: &dyn TrainObserver,
) -> Result<Option<Planned>, TrainError> {
    let limit = task.machine.host_memory;
    let mut needed = reserved_host_bytes(&planned.plan);
    if needed <= limit {
        return Ok(Some(planned));
    }
    let mut host_memory = limit;
    for attempt in 1..=HOST_ATTEMPTS {
        host_memory = host_memory.saturating_sub(needed - limit);
        let mut tighter = task.clone();
        if attempt == HOST_ATTEMPTS {
            host_memory = Bytes::ZERO;
            tighter.freedom = Freedom { offload: false, ..task.freedom };
        }
        tighter.machine = Machine { host_memory, ..task.machine.clone() };
        match pipeline::plan_at_offsets(&tighter, &training.method.at_once(), offsets, observer) {
            Ok(planned) => {
                needed = reserved_host_bytes(&planned.plan);
                if needed <= limit {
                    // The session limits what it reserves to the host memory of the plan's machine.
                    let plan = planned.plan.plan().clone();
                    let plan = check::check(task.trace.clone(), task.machine.clone(), plan)
                        .map_err(|fault| TrainError::Plan(fault.into()))?;
                    let planned = Planned { plan: Arc::new(plan), ..planned };
                    return Ok(Some(pipeline::predict(task, planned)));
                }
            }
            Err(PlanError::Illegal(fault)) => return Err(TrainError::Plan(fault.into())),
            Err(_) => {}
        }
    }
    Ok(None)
}

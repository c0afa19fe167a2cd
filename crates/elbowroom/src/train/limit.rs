//! The first plan of a training: one that fits the limit, from estimated durations.
//!
//! Planners are not monotone: one that gives up at a limit may find a plan for less, and that plan fits. So where the planner gives up,
//! this step tries smaller limits, then searches the smallest limit at which the planner succeeds, and starts from the plan that it found
//! there. This is a step of training and not of the [pipeline](crate::pipeline), because it would change the answers of `plan` and
//! `compare`, which report what a planner finds at a limit by itself.

use std::time::{Duration, Instant};

use elbowroom_engine::reserved_host_bytes;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::Freedom;
use elbowroom_ir::search::Budget;
use elbowroom_ir::{Bytes, Nanos};

use super::{TrainError, Training};
use crate::explain::Refusal;
use crate::observer::TrainObserver;
use crate::pipeline::{self, Method, PlanError, Planned, Task};
use crate::size::MemorySpec;

/// Shares of a limit, in percent, that are tried where the planner gives up at the limit itself.
const SHARES: [u64; 4] = [95, 85, 70, 50];

/// Plans that are made for less host memory before this step gives up.
const HOST_ATTEMPTS: usize = 4;

/// Time in which a limit that works is searched for after a proof that the requested one does not.
const NAMING: Duration = Duration::from_secs(1);

/// Ops of a trace for which a search is not shortened.
const FEW_OPS: usize = 2048;

/// A plan under the limit of the training, or the reason why there is none with the smallest limit that works.
pub(super) fn plan(
    training: &Training<'_>,
    memory: MemorySpec,
    task: &Task,
    unconstrained_peak: Bytes,
    observer: &dyn TrainObserver,
) -> Result<Planned, TrainError> {
    let at_once = training.method.at_once();
    let planned = match memory.resolve(unconstrained_peak) {
        // The plan only has to fit: durations are not measured yet, so a long search would be wasted.
        Some(limit) => {
            let task = task.with_memory(limit);
            // Nor is it worth more than a share of the training, by the estimate.
            let share = planning_share(task.costs.total(), training.iterations);
            let first = training.method.clone().within(share).at_once_within_time();
            match pipeline::plan(&task, &shortened(&first, task.trace.ops().len()), observer) {
                Err(PlanError::GaveUp { .. }) => pipeline::plan(&task, &at_once, observer),
                done => done,
            }
        }
        None => pipeline::smallest(task, &at_once, unconstrained_peak, observer),
    };
    let error = match planned {
        Ok(planned) => return Ok(planned),
        Err(error) => error,
    };
    let from = |smaller: Planned, limit| {
        let task = task.with_memory(limit);
        pipeline::plan_from(&task, &at_once, &[smaller.plan], observer).map_err(TrainError::Plan)
    };
    let gave_up = if let PlanError::GaveUp { limit, .. } = error { Some(limit) } else { None };
    if let Some(limit) = gave_up {
        let within = |percent| task.with_memory(Bytes(limit.get() / 100 * percent));
        let found = SHARES.iter().find_map(|&share| pipeline::plan(&within(share), &at_once, observer).ok());
        if let Some(smaller) = found {
            return from(smaller, limit);
        }
    }
    observer.stage("looking for a limit that works");
    // With the link of the described machine, so that the limit named here works again, however fast the host tier is then.
    let described = Task { machine: training.machine.clone(), ..task.clone() };
    let packer = training.method.packer;
    let smallest = match gave_up {
        Some(_) => pipeline::smallest(&described, &at_once, unconstrained_peak, observer).ok(),
        // What one op needs is a proof: a limit that works is named, but not searched for long.
        None => pipeline::quick_smallest(
            &described,
            packer,
            unconstrained_peak,
            Instant::now().checked_add(NAMING),
            observer,
        ),
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

/// The method with fewer evaluations for a trace of many ops: each evaluation takes longer in proportion, and thousands of layers must not
/// wait for minutes.
fn shortened<'a>(method: &Method<'a>, ops: usize) -> Method<'a> {
    let share = |all: u64| (all * FEW_OPS as u64 / ops.max(FEW_OPS) as u64).max(1);
    let evaluations = method.budget.evaluations.map(share);
    Method { budget: Budget { evaluations, ..method.budget.clone() }, ..method.clone() }
}

/// The share of a training that planning may take.
const PLANNING_SHARE: u32 = 5;

/// The time that planning may take before this many iterations, each of about this duration.
pub(super) fn planning_share(iteration: Nanos, iterations: u64) -> Duration {
    Duration::from_nanos(iteration.get().saturating_mul(iterations)) / PLANNING_SHARE
}

/// A plan for measured durations, or the one for estimated durations where the planner finds none that is faster: that one fits.
pub(super) fn replan(
    method: &Method<'_>,
    task: &Task,
    estimated: Planned,
    observer: &dyn TrainObserver,
) -> Result<Planned, TrainError> {
    let kept = pipeline::predict(task, estimated);
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
                    return Ok(Some(pipeline::predict(task, planned)));
                }
            }
            Err(PlanError::Illegal(fault)) => return Err(TrainError::Plan(fault.into())),
            Err(_) => {}
        }
    }
    Ok(None)
}

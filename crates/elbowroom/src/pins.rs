//! Decisions of the user about a task: tensors that stay on the device, ops that run once, persistent tensors that live on the host.
//!
//! `parse` reads a file of them, `pin` applies them to a task, and `broken` says what a schedule does otherwise. Words and patterns are those of
//! [`elbowroom_sched::pins`].

use std::collections::BTreeSet;
use std::sync::Arc;

use elbowroom_ir::TensorId;
use elbowroom_ir::schedule::{Action, Schedule};
use elbowroom_ir::trace::Again;
use elbowroom_sched::pins;

pub use elbowroom_sched::pins::{Pin, PinError, Pinned, Verb, parse};

use crate::pipeline::Task;

/// A task with pins. Its trace differs from the one that was given in the ops that are never recomputed. A plan for it is legal for the given trace,
/// too, once it states that one's fingerprint: the given trace only permits more.
pub struct PinnedTask {
    /// The task.
    pub task: Task,
    /// What each pin covers, in their order.
    pub pinned: Vec<Pinned>,
}

/// Decides about the tensors and ops of a task.
///
/// # Errors
///
/// A [`PinError`] if a pin covers nothing or cannot be obeyed.
pub fn pin(task: &Task, pins: &[Pin]) -> Result<PinnedTask, PinError> {
    let decided = pins::decide(&task.trace, task.freedom, pins)?;
    let task = Task { trace: decided.trace, pins: Some(Arc::new(decided.pins)), ..task.clone() };
    Ok(PinnedTask { task, pinned: decided.pinned })
}

/// Names of the tensors and ops that a schedule treats in another way than the pins of its task say: none for the schedules of planners.
pub fn broken(task: &Task, schedule: &Schedule) -> Vec<String> {
    let trace = &task.trace;
    let mut names = BTreeSet::new();
    let pins = task.pins.as_deref();
    let kept = |tensor: &TensorId| pins.is_some_and(|pins| pins.kept.contains(tensor));
    for step in schedule.steps.values() {
        match &step.action {
            Action::Offload { tensor, .. } | Action::Prefetch { tensor, .. } if kept(tensor) => {
                names.insert(trace.tensors()[*tensor].name.clone());
            }
            Action::Recompute(launch) if trace.ops()[launch.op].again == Again::Never => {
                names.insert(trace.ops()[launch.op].name.clone());
            }
            _ => {}
        }
    }
    for (index, at_boundary) in schedule.boundary.iter().enumerate() {
        let pair = trace.persistent()[index];
        let hosted = pins.is_some_and(|pins| pins.hosted.contains(&index));
        let stays = kept(&pair.begin) || kept(&pair.end);
        if (hosted && at_boundary.device.is_some()) || (stays && at_boundary.device.is_none()) {
            names.insert(trace.tensors()[pair.begin].name.clone());
        }
    }
    names.into_iter().collect()
}

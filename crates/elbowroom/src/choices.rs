//! Why a plan does what it does: which values leave the device and come back, what that saves, and what it costs.

use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sched::explain::{self, Absence, Return};
use serde::Serialize;

use crate::pipeline::Task;

/// One stay of a value away from the device.
#[derive(Clone, Debug, Serialize)]
pub struct Choice {
    /// The value's name.
    pub value: String,
    /// How it comes back: `fetched` from the host or `recomputed`.
    pub returns: &'static str,
    /// Its size.
    pub bytes: Bytes,
    /// When its bytes were free, from the beginning of the iteration.
    pub from_ns: Nanos,
    /// When bytes for it were taken again; past the iteration's end if it comes back in the next one.
    pub to_ns: Nanos,
    /// What it saves: bytes × seconds.
    pub saved_byte_seconds: f64,
    /// Time of the op that runs again for it, or of its copies both ways.
    pub cost_ns: Nanos,
}

/// All that a plan chose to send away, those first that save most.
#[derive(Clone, Debug, Serialize)]
pub struct Choices {
    /// Each stay away from the device.
    pub choices: Vec<Choice>,
    /// How many come back from the host.
    pub fetched: usize,
    /// How many are made again.
    pub recomputed: usize,
    /// What they save together: bytes × seconds.
    pub saved_byte_seconds: f64,
    /// What they cost together. Copies may run beside the ops, so that an iteration is often lengthened by less.
    pub cost_ns: Nanos,
}

impl Choices {
    /// Reads them off a schedule, whoever made it, with its timeline on the task's machine.
    pub fn of(task: &Task, schedule: &Schedule, timeline: &Timeline) -> Self {
        let absences = explain::absences(&task.trace, &task.costs, &task.machine, schedule, timeline);
        let count = |how: Return| absences.iter().filter(|absence| absence.how == how).count();
        Self {
            fetched: count(Return::Fetched),
            recomputed: count(Return::Recomputed),
            saved_byte_seconds: absences.iter().map(byte_seconds).sum(),
            cost_ns: absences.iter().map(|absence| absence.cost).sum(),
            choices: absences
                .iter()
                .map(|absence| Choice {
                    value: task.trace.tensors()[absence.value].name.clone(),
                    returns: match absence.how {
                        Return::Fetched => "fetched",
                        Return::Recomputed => "recomputed",
                    },
                    bytes: absence.bytes,
                    from_ns: absence.from,
                    to_ns: absence.to,
                    saved_byte_seconds: byte_seconds(absence),
                    cost_ns: absence.cost,
                })
                .collect(),
        }
    }
}

fn byte_seconds(absence: &Absence) -> f64 {
    absence.saved() as f64 / 1e9
}

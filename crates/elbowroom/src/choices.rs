//! The decisions of a plan: for each gap in which a tensor is off the device, how many bytes × seconds that saves and what it costs.

use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sched::explain::{self, GapCost, Restore};
use serde::Serialize;

use crate::pins::Pinned;
use crate::pipeline::Task;

/// One gap in which a tensor is not on the device.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Choice {
    /// Name of the tensor.
    pub tensor: String,
    /// How the tensor returns to the device: `prefetched` or `recomputed`.
    pub restored: &'static str,
    /// Size of the tensor.
    pub bytes: Bytes,
    /// Time from which its bytes were free, counted from the start of the iteration.
    pub from_ns: Nanos,
    /// Time from which it had bytes again; after the end of the iteration if it returns in the next one.
    pub to_ns: Nanos,
    /// What the gap saves: bytes × seconds.
    pub saved_byte_seconds: f64,
    /// Time of the recomputed op, or of the copies in both directions.
    pub cost_ns: Nanos,
}

/// Every gap of a plan in which a tensor is off the device, largest saving first.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Choices {
    /// The gaps.
    pub choices: Vec<Choice>,
    /// Number of gaps that end with a prefetch.
    pub prefetched: usize,
    /// Number of gaps that end with a recomputed op.
    pub recomputed: usize,
    /// Sum of the savings: bytes × seconds.
    pub saved_byte_seconds: f64,
    /// Sum of the costs. Copies overlap ops, so an iteration usually grows by less.
    pub cost_ns: Nanos,
    /// What the user decided about the trace, where there are pins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<Pinned>,
}

impl Choices {
    /// The same with what the user decided.
    #[must_use]
    pub fn with_pins(self, pins: Vec<Pinned>) -> Self {
        Self { pins, ..self }
    }

    /// Lists the gaps of a schedule of any planner; `timeline` is the schedule's timeline on the task's machine.
    pub fn of(task: &Task, schedule: &Schedule, timeline: &Timeline) -> Self {
        let gaps = explain::gap_costs(&task.trace, &task.costs, &task.machine, schedule, timeline);
        let count = |how: Restore| gaps.iter().filter(|gap| gap.how == how).count();
        Self {
            prefetched: count(Restore::Prefetched),
            recomputed: count(Restore::Recomputed),
            saved_byte_seconds: gaps.iter().map(byte_seconds).sum(),
            cost_ns: gaps.iter().map(|gap| gap.cost).sum(),
            pins: Vec::new(),
            choices: gaps
                .iter()
                .map(|gap| Choice {
                    tensor: task.trace.tensors()[gap.value].name.clone(),
                    restored: match gap.how {
                        Restore::Prefetched => "prefetched",
                        Restore::Recomputed => "recomputed",
                    },
                    bytes: gap.bytes,
                    from_ns: gap.from,
                    to_ns: gap.to,
                    saved_byte_seconds: byte_seconds(gap),
                    cost_ns: gap.cost,
                })
                .collect(),
        }
    }
}

fn byte_seconds(gap: &GapCost) -> f64 {
    gap.saved() as f64 / 1e9
}

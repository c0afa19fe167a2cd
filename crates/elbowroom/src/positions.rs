//! Positions of a schedule in time.

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::{Id, Nanos};

/// The time at which each position begins, and that at which the last ends. Streams run at the same time, so a position begins when all before
/// it have begun; a release begins when the ops before it have ended.
pub(crate) fn times(plan: &CheckedPlan, timeline: &Timeline) -> Vec<Nanos> {
    let steps = plan.schedule().steps.len();
    let (mut starts, mut ends) = (vec![None; steps], vec![Nanos::ZERO; steps]);
    for span in timeline.spans.iter().filter(|span| span.action.index() < steps) {
        (starts[span.action.index()], ends[span.action.index()]) = (Some(span.start), span.end);
    }
    let (mut now, mut computed) = (Nanos::ZERO, Nanos::ZERO);
    let mut at = Vec::with_capacity(steps + 1);
    for (index, step) in plan.schedule().steps.values().enumerate() {
        now = now.max(starts[index].unwrap_or(computed));
        at.push(now);
        if step.action.launch().is_some() {
            computed = computed.max(ends[index]);
        }
    }
    at.push(timeline.iteration.max(now));
    at
}

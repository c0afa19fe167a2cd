//! Plans in the formats of other programs' viewers, for the commands that write them.

use std::path::Path;

use anyhow::Result;
use elbowroom::export::{self, Course};
use elbowroom::ir::check::CheckedPlan;
use elbowroom::ir::timeline::Timeline;

use crate::files;

/// Writes the files that were asked for: the predicted iteration as trace events, and the plan as a memory snapshot.
pub fn write(
    plan: &CheckedPlan,
    predicted: &Timeline,
    timeline: Option<&Path>,
    snapshot: Option<&Path>,
) -> Result<()> {
    if let Some(path) = timeline {
        let course = Course { name: "predicted", timeline: predicted };
        files::write(Some(path), &export::trace_events(plan, &[course]))?;
    }
    if let Some(path) = snapshot {
        files::write_bytes(path, &export::memory_snapshot(plan, predicted))?;
    }
    Ok(())
}

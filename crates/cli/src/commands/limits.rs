//! How much memory a trace needs: its unconstrained peak, the smallest limit for which a plan is found, and a lower bound on every limit.

use std::time::Instant;

use anyhow::Result;
use elbowroom::ir::{Bytes, Nanos};
use elbowroom::pipeline::{self, Method, Task};
use elbowroom::registry;
use elbowroom::report::PlanReport;
use elbowroom::sched::deadline::Until;
use serde::Serialize;

use super::plan::floor;
use crate::printer::{self, row};
use crate::progress::Progress;

/// The figures for choosing a limit.
#[derive(Serialize)]
pub struct Limits {
    trace: String,
    machine: String,
    /// Arena size when every tensor stays on the device.
    unconstrained_peak_bytes: Bytes,
    /// Sum of the op times.
    unlimited_iteration_ns: Nanos,
    /// The smallest limit for which a plan was found; other planners or a longer search may find plans for less.
    smallest_limit_bytes: Option<Bytes>,
    /// Predicted overhead of that plan.
    smallest_limit_overhead: Option<f64>,
    /// The planner that found it.
    smallest_limit_planner: Option<&'static str>,
    /// What the largest op needs by itself: a lower bound on every limit.
    largest_op_bytes: Bytes,
    /// Name of that op.
    largest_op: String,
    /// Bytes that must be on the device together: those of an op, and of the tensors that may be neither offloaded nor recomputed. No plan
    /// exists for a smaller limit.
    floor_bytes: Bytes,
    /// Name of that op.
    floor_op: String,
}

impl Limits {
    /// Looks for the smallest limit with a quick planner, and with `chosen` where one is given or the quick one finds nothing, until `end`.
    pub fn find(
        task: &Task,
        default: &Method<'_>,
        chosen: bool,
        end: Option<Instant>,
        progress: &Progress,
    ) -> Result<Self> {
        progress.stage_begins("finding the unconstrained peak");
        let peak = pipeline::unconstrained(task, default.packer, progress)?.height();
        progress.stage_begins("finding the smallest limit");
        let quick = Method {
            planner: registry::planner(registry::FRUGAL_PLANNER)?,
            packer: registry::packer(registry::QUICK_PACKER)?,
            ..default.at_once()
        };
        let methods = if chosen { vec![default.at_once()] } else { vec![quick, default.at_once()] };
        let found = methods.iter().find_map(|method| {
            let watch = Until::new(progress, end);
            let planned = pipeline::smallest(task, method, peak, &watch).ok()?;
            let limit = planned.plan.machine().memory;
            // The plan that keeps everything has the unconstrained peak: that is no limit.
            (limit < peak).then(|| (method.planner.name(), limit, planned.predicted.iteration))
        });
        let (largest_op, largest_op_bytes) = pipeline::largest_op(task);
        let (floor_op, floor_bytes) = pipeline::floor(task);
        let unlimited = task.costs.total();
        Ok(Self {
            trace: task.trace.name().to_owned(),
            machine: task.machine.name.clone(),
            unconstrained_peak_bytes: peak,
            unlimited_iteration_ns: unlimited,
            smallest_limit_bytes: found.map(|(_, limit, _)| limit),
            smallest_limit_overhead: found.map(|(.., time)| PlanReport::overhead(time, unlimited)),
            smallest_limit_planner: found.map(|(planner, ..)| planner),
            largest_op_bytes,
            largest_op,
            floor_bytes,
            floor_op,
        })
    }

    /// Prints the figures as a section.
    pub fn print(&self) -> Result<()> {
        let peak = self.unconstrained_peak_bytes;
        let mut rows = vec![row("unconstrained peak", peak, "arena size with every tensor on the device")];
        rows.push(match (self.smallest_limit_bytes, self.smallest_limit_planner) {
            (Some(limit), Some(planner)) => {
                let overhead = printer::percent(self.smallest_limit_overhead.unwrap_or_default());
                let share = 100.0 * limit.ratio(peak);
                let note =
                    format!("{share:.1} % of the unconstrained peak; planner {planner}, overhead {overhead}");
                row("smallest limit found", limit, note)
            }
            _ => row("smallest limit found", peak, "no plan was found for less"),
        });
        rows.push(floor(self.largest_op_bytes, self.floor_bytes, &self.floor_op));
        let note = format!("without a limit, on {}", self.machine);
        rows.push(row("iteration time", self.unlimited_iteration_ns, note));
        printer::section("Memory", &rows)?;
        Ok(())
    }
}

//! Planners side by side: every one at every limit.

use std::fmt::Write;

use elbowroom_ir::check::Illegal;
use elbowroom_ir::packing::Packer;
use elbowroom_ir::planning::Scheduler;
use elbowroom_ir::search::{Budget, Observer};
use elbowroom_ir::{Bytes, Nanos};
use serde::Serialize;

use crate::pipeline::{self, Method, PlanError, Task};
use crate::report::PlanReport;

/// What is compared.
pub struct Comparison<'a> {
    /// The task; its memory is replaced by each limit.
    pub task: &'a Task,
    /// The planners.
    pub planners: &'a [&'a dyn Scheduler],
    /// Decides where.
    pub packer: &'a dyn Packer,
    /// How long each planner may look at each limit.
    pub budget: Budget,
    /// The limits.
    pub limits: &'a [Bytes],
    /// Whether the limits bound the live load and nothing is placed.
    pub by_load: bool,
    /// Height (or load) of the arena when everything stays.
    pub natural: Bytes,
}

/// One planner at one limit.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The planner.
    pub planner: &'static str,
    /// The limit.
    pub limit_bytes: Bytes,
    /// The limit as a share of the natural peak.
    pub share: f64,
    /// Whether it found a plan.
    pub feasible: bool,
    /// Bytes that its plan uses.
    pub peak_bytes: Option<Bytes>,
    /// Predicted iteration time.
    pub iteration_ns: Option<Nanos>,
    /// Iteration time ÷ sum of the op times − 1.
    pub overhead: Option<f64>,
    /// Iteration time ÷ lower bound: the bound of the task's freedom, without recompute the one from what must come back.
    pub ratio_to_bound: Option<f64>,
    /// The lower bound.
    pub lower_bound_ns: Nanos,
    /// Bytes copied, both ways together.
    pub traffic_bytes: Option<Bytes>,
    /// Ops run again.
    pub recomputed_ops: Option<usize>,
    /// Time spent planning, placing and proving.
    pub planning_ns: Nanos,
    /// Why the planner stopped.
    pub stop_reason: &'static str,
}

/// Asks every planner at every limit, the largest limit first. Ends early, with what there is, when the observer interrupts. A planner
/// that makes an illegal plan is a fault of ours and ends the comparison.
pub fn compare(
    comparison: &Comparison<'_>,
    observer: &dyn Observer,
    mut heard: impl FnMut(&Row),
) -> Result<Vec<Row>, Illegal> {
    let mut rows = Vec::new();
    for &limit in comparison.limits.iter().rev() {
        let task = comparison.task.with_memory(limit);
        for &scheduler in comparison.planners {
            if observer.interrupted() {
                return Ok(rows);
            }
            let row = ask(comparison, &task, scheduler, observer)?;
            heard(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

/// What a row needs of a plan, placed or not.
struct Found {
    peak: Bytes,
    timeline: elbowroom_ir::timeline::Timeline,
    stop: &'static str,
}

fn ask(
    comparison: &Comparison<'_>,
    task: &Task,
    scheduler: &dyn Scheduler,
    observer: &dyn Observer,
) -> Result<Row, Illegal> {
    let method = Method { scheduler, packer: comparison.packer, budget: comparison.budget.clone() };
    let started = std::time::Instant::now();
    let found = if comparison.by_load {
        pipeline::plan_load(task, &method, observer).map(|planned| Found {
            peak: planned.predicted.peak_load,
            stop: planned.stop.name(),
            timeline: planned.predicted,
        })
    } else {
        pipeline::plan(task, &method, observer).map(|planned| Found {
            peak: planned.height(),
            stop: planned.stop.name(),
            timeline: planned.predicted,
        })
    };
    let planning = Nanos::from(started.elapsed());
    let (found, stop_reason) = match found {
        Ok(found) => {
            let stop = found.stop;
            (Some(found), stop)
        }
        Err(PlanError::Infeasible { .. }) => (None, "infeasible"),
        Err(PlanError::GaveUp { .. }) => (None, "gave-up"),
        Err(PlanError::Illegal(fault)) => return Err(fault),
    };
    let bound = pipeline::lower_bound(task);
    let limit = task.machine.memory;
    Ok(Row {
        planner: scheduler.name(),
        limit_bytes: limit,
        share: limit.ratio(comparison.natural),
        feasible: found.is_some(),
        peak_bytes: found.as_ref().map(|f| f.peak),
        iteration_ns: found.as_ref().map(|f| f.timeline.iteration),
        overhead: found.as_ref().map(|f| PlanReport::overhead(f.timeline.iteration, task.costs.total())),
        ratio_to_bound: found.as_ref().map(|f| f.timeline.iteration.ratio(bound)),
        lower_bound_ns: bound,
        traffic_bytes: found.as_ref().map(|f| f.timeline.traffic.to_host + f.timeline.traffic.to_device),
        recomputed_ops: found.as_ref().map(|f| f.timeline.recomputed),
        planning_ns: planning,
        stop_reason,
    })
}

/// The rows as comma-separated values with a head; empty where there is no plan.
pub fn csv(rows: &[Row]) -> String {
    let mut out = String::from(
        "planner,limit_bytes,share,feasible,peak_bytes,iteration_ns,overhead,ratio_to_bound,lower_bound_ns,traffic_bytes,\
         recomputed_ops,planning_ns,stop_reason\n",
    );
    let or_empty = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
    let share = |number: Option<f64>| number.map_or_else(String::new, |number| format!("{number:.6}"));
    for row in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{},{},{:.6},{},{},{},{},{},{},{},{},{},{}",
            row.planner,
            row.limit_bytes.get(),
            row.share,
            row.feasible,
            or_empty(row.peak_bytes.map(Bytes::get)),
            or_empty(row.iteration_ns.map(Nanos::get)),
            share(row.overhead),
            share(row.ratio_to_bound),
            row.lower_bound_ns.get(),
            or_empty(row.traffic_bytes.map(Bytes::get)),
            or_empty(row.recomputed_ops.map(|ops| ops as u64)),
            row.planning_ns.get(),
            row.stop_reason,
        );
    }
    out
}

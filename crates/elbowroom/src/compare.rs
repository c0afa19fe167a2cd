//! Compares planners: each at every limit, or each at the smallest limit that it can meet within an overhead.

use std::sync::Arc;
use std::time::Instant;

use elbowroom_ir::check::{CheckedPlan, Illegal};
use elbowroom_ir::packing::Packer;
use elbowroom_ir::planning::Planner;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer};
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sim::bound::proposition_3;
use serde::Serialize;

use crate::pipeline::{self, Method, PlanError, Task};
use crate::report::PlanReport;

/// What is compared.
pub struct Comparison<'a> {
    /// The task; its memory is replaced by each limit.
    pub task: &'a Task,
    /// The planners.
    pub planners: &'a [&'a dyn Planner],
    /// Decides where.
    pub packer: &'a dyn Packer,
    /// How long each planner may search at each limit.
    pub budget: Budget,
    /// The limits, the smallest first.
    pub limits: &'a [Bytes],
    /// Whether the limits bound live memory, so that schedules are not packed.
    pub by_live_memory: bool,
    /// The unconstrained peak (with `by_live_memory`, the peak memory when every tensor stays): shares are relative to it.
    pub unconstrained: Bytes,
    /// Whether every planner works alone. Otherwise, a planner with [peers](Planner::peers) takes the plans of the other rows at its limit as
    /// warm starts.
    pub alone: bool,
}

/// One planner at one limit.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The planner.
    pub planner: &'static str,
    /// The limit.
    pub limit_bytes: Bytes,
    /// The limit as a share of the unconstrained peak.
    pub share: f64,
    /// Whether the planner found a plan.
    pub feasible: bool,
    /// Arena size of the plan; `null` if the limits bound live memory.
    pub arena_bytes: Option<Bytes>,
    /// Peak memory of the plan.
    pub peak_live_bytes: Option<Bytes>,
    /// Predicted iteration time.
    pub iteration_ns: Option<Nanos>,
    /// Iteration time ÷ sum of the op times − 1.
    pub overhead: Option<f64>,
    /// Iteration time ÷ lower bound. The bound depends on the task's freedom: without recomputation it counts the prefetches that are necessary.
    pub ratio_to_bound: Option<f64>,
    /// The lower bound.
    pub lower_bound_ns: Nanos,
    /// Iteration time ÷ the bound of Beaumont et al., Proposition 3, on the unconstrained peak, the measure of their paper. It is
    /// a bound for plans that recompute nothing and do not move persistent tensors; other plans may go below 1.
    pub ratio_to_chain_bound: Option<f64>,
    /// The value of Algorithm 1 of Beaumont et al., which the lower bound includes, for plans of a chain that only offload; `null` if the task permits more or its trace
    /// is no chain.
    pub relaxed_bound_ns: Option<Nanos>,
    /// Bytes offloaded and prefetched together.
    pub traffic_bytes: Option<Bytes>,
    /// Ops that are recomputed.
    pub recomputed_ops: Option<usize>,
    /// Time spent on planning, packing and checking.
    pub planning_ns: Nanos,
    /// Why the planner stopped.
    pub stop_reason: &'static str,
    /// What found the plan: the planner, one of its warm starts, or a plan of another row; `null` without a plan.
    pub found_by: Option<String>,
    /// Plans of other rows that were warm starts of the planner.
    pub warm_starts: usize,
}

/// Runs every planner at every limit, the largest limit first, and calls `on_row` with each row and its plan, if it was placed. Planners with [peers](Planner::peers) run
/// last, because the plans of the other rows at the limit are their warm starts. If the observer interrupts, returns the rows so far.
///
/// # Errors
///
/// [`Illegal`] if a planner makes an illegal plan, which is a fault in this project.
pub fn compare(
    comparison: &Comparison<'_>,
    observer: &dyn Observer,
    mut on_row: impl FnMut(&Row, Option<&CheckedPlan>),
) -> Result<Vec<Row>, Illegal> {
    let mut planners = comparison.planners.to_vec();
    planners.sort_by_key(|planner| !planner.peers(&comparison.task.trace).is_empty());
    let mut rows = Vec::new();
    for &limit in comparison.limits.iter().rev() {
        let task = comparison.task.with_memory(limit);
        let mut known = Known::default();
        for &planner in &planners {
            if observer.interrupted() {
                return Ok(rows);
            }
            let row = plan_row(comparison, &task, planner, &mut known, observer)?;
            // What was found last, if something was, is the plan of this row.
            let plan = known.plans.last().filter(|_| row.feasible);
            on_row(&row, plan.map(Arc::as_ref));
            rows.push(row);
        }
    }
    Ok(rows)
}

/// The plans found at one limit.
#[derive(Default)]
struct Known {
    plans: Vec<Arc<CheckedPlan>>,
    /// Schedules, if the limits bound live memory.
    schedules: Vec<Schedule>,
}

/// Searches, for every planner, the smallest limit at which its iteration takes at most (1 + `overhead`) × the sum of the op times.
///
/// Overhead does not always grow as memory shrinks (Zhang et al., section VI-B), so the comparison's limits are tried from the smallest on;
/// below the first that the planner meets, bisection continues to a thousandth of the unconstrained peak. A row's limit is the number of bytes
/// that its plan uses. A planner that is too slow at every limit gets a row without a plan, at the largest limit, with the reason `too-slow`.
///
/// # Errors
///
/// [`Illegal`] if a planner makes an illegal plan, which is a fault in this project.
pub fn smallest(
    comparison: &Comparison<'_>,
    overhead: f64,
    observer: &dyn Observer,
    mut on_row: impl FnMut(&Row),
) -> Result<Vec<Row>, Illegal> {
    let mut rows = Vec::new();
    for &planner in comparison.planners {
        let mut search = Smallest { comparison, planner, overhead, observer, found: None };
        let mut too_small = Bytes::ZERO;
        for &limit in comparison.limits {
            if observer.interrupted() {
                return Ok(rows);
            }
            if search.meets(limit)? {
                break;
            }
            too_small = limit;
        }
        search.bisect(too_small)?;
        let row = match search.found {
            Some(row) => row,
            None => Row::without_plan(comparison, planner.name(), too_small, "too-slow"),
        };
        on_row(&row);
        rows.push(row);
    }
    Ok(rows)
}

/// One planner's search for its smallest limit.
struct Smallest<'a> {
    comparison: &'a Comparison<'a>,
    planner: &'a dyn Planner,
    overhead: f64,
    observer: &'a dyn Observer,
    found: Option<Row>,
}

impl Smallest<'_> {
    /// Whether the planner keeps to the overhead at a limit. If so, the row becomes the result.
    fn meets(&mut self, limit: Bytes) -> Result<bool, Illegal> {
        let comparison = self.comparison;
        let task = comparison.task.with_memory(limit);
        let mut row = plan_row(comparison, &task, self.planner, &mut Known::default(), self.observer)?;
        let meets = row.overhead.is_some_and(|overhead| overhead <= self.overhead);
        if meets {
            // The plan also meets a limit of exactly the bytes that it uses.
            let used = row.arena_bytes.or(row.peak_live_bytes).unwrap_or(limit).min(limit);
            row.limit_bytes = used;
            row.share = used.ratio(comparison.unconstrained);
            let at_used = comparison.task.with_memory(used);
            (row.lower_bound_ns, row.relaxed_bound_ns) = pipeline::bounds(&at_used, None);
            row.ratio_to_bound = row.iteration_ns.map(|time| time.ratio(row.lower_bound_ns));
            row.ratio_to_chain_bound = row.iteration_ns.map(|time| chain_ratio(comparison, time, used));
            self.found = Some(row);
        }
        Ok(meets)
    }

    fn bisect(&mut self, mut too_small: Bytes) -> Result<(), Illegal> {
        let align = self.comparison.task.machine.align;
        let near = align.max(Bytes(self.comparison.unconstrained.get() / 1000));
        while let Some(used) = self.found.as_ref().map(|row| row.limit_bytes)
            && used.saturating_sub(too_small) > near
            && !self.observer.interrupted()
        {
            let middle = Bytes(too_small.get() + (used.get() - too_small.get()) / 2);
            if !self.meets(middle)? {
                too_small = middle;
            }
        }
        Ok(())
    }
}

/// The facts of a plan or schedule that a row shows.
struct Found {
    peak: Bytes,
    timeline: elbowroom_ir::timeline::Timeline,
    stop: &'static str,
    found_by: String,
}

/// Plans with one planner at one limit, and adds the plan to the known ones.
fn plan_row(
    comparison: &Comparison<'_>,
    task: &Task,
    planner: &dyn Planner,
    known: &mut Known,
    observer: &dyn Observer,
) -> Result<Row, Illegal> {
    let method = Method::new(planner, comparison.packer, comparison.budget.clone());
    let started = Instant::now();
    let Known { plans, schedules } = known;
    let (from_plans, from_schedules): (&[_], &[_]) =
        if comparison.alone || planner.peers(&task.trace).is_empty() {
            (&[], &[])
        } else {
            (plans, schedules)
        };
    let warm_starts = from_plans.len() + from_schedules.len();
    let found = if comparison.by_live_memory {
        pipeline::plan_schedule(task, &method, from_schedules, observer).map(|planned| {
            schedules.push(planned.schedule.into_schedule());
            let peak = planned.predicted.peak_live;
            let (stop, found_by) = (planned.stop.name(), planned.found_by);
            Found { peak, stop, found_by, timeline: planned.predicted }
        })
    } else {
        pipeline::plan_from(task, &method, from_plans, observer).map(|planned| {
            plans.push(planned.plan.clone());
            let (peak, stop) = (planned.height(), planned.stop.name());
            Found { peak, stop, found_by: planned.found_by, timeline: planned.predicted }
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
    let mut row = Row::without_plan(comparison, planner.name(), task.machine.memory, stop_reason);
    row.planning_ns = planning;
    row.warm_starts = warm_starts;
    if let Some(Found { peak, timeline, found_by, .. }) = found {
        row.found_by = Some(found_by);
        row.feasible = true;
        row.arena_bytes = Some(peak).filter(|_| !comparison.by_live_memory);
        row.peak_live_bytes = Some(timeline.peak_live);
        row.iteration_ns = Some(timeline.iteration);
        row.overhead = Some(PlanReport::overhead(timeline.iteration, task.costs.total()));
        row.ratio_to_bound = Some(timeline.iteration.ratio(row.lower_bound_ns));
        row.ratio_to_chain_bound = Some(chain_ratio(comparison, timeline.iteration, task.machine.memory));
        row.traffic_bytes = Some(timeline.traffic.to_host + timeline.traffic.to_device);
        row.recomputed_ops = Some(timeline.recomputed);
    }
    Ok(row)
}

/// An iteration time ÷ Proposition 3 at a limit.
fn chain_ratio(comparison: &Comparison<'_>, iteration: Nanos, limit: Bytes) -> f64 {
    let Task { costs, machine, .. } = comparison.task;
    iteration.ratio(proposition_3(costs.total(), comparison.unconstrained, limit, machine))
}

impl Row {
    fn without_plan(
        comparison: &Comparison<'_>,
        planner: &'static str,
        limit: Bytes,
        stop_reason: &'static str,
    ) -> Self {
        let task = comparison.task.with_memory(limit);
        let (lower_bound_ns, relaxed_bound_ns) = pipeline::bounds(&task, None);
        Self {
            planner,
            limit_bytes: limit,
            share: limit.ratio(comparison.unconstrained),
            feasible: false,
            arena_bytes: None,
            peak_live_bytes: None,
            iteration_ns: None,
            overhead: None,
            ratio_to_bound: None,
            lower_bound_ns,
            ratio_to_chain_bound: None,
            relaxed_bound_ns,
            traffic_bytes: None,
            recomputed_ops: None,
            planning_ns: Nanos::ZERO,
            stop_reason,
            found_by: None,
            warm_starts: 0,
        }
    }
}

/// The column names of [`csv_line`].
pub const CSV_HEAD: &str = "planner,limit_bytes,share,feasible,arena_bytes,peak_live_bytes,iteration_ns,overhead,ratio_to_bound,\
     lower_bound_ns,ratio_to_chain_bound,traffic_bytes,recomputed_ops,planning_ns,stop_reason,warm_starts,found_by,\
     relaxed_bound_ns";

/// Free text as a field of comma-separated values.
fn quoted(text: &str) -> String {
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// A row as comma-separated values, without the end of the line; fields are empty if there is no plan.
pub fn csv_line(row: &Row) -> String {
    let or_empty = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
    let share = |number: Option<f64>| number.map_or_else(String::new, |number| format!("{number:.6}"));
    [
        row.planner.to_owned(),
        row.limit_bytes.get().to_string(),
        share(Some(row.share)),
        row.feasible.to_string(),
        or_empty(row.arena_bytes.map(Bytes::get)),
        or_empty(row.peak_live_bytes.map(Bytes::get)),
        or_empty(row.iteration_ns.map(Nanos::get)),
        share(row.overhead),
        share(row.ratio_to_bound),
        row.lower_bound_ns.get().to_string(),
        share(row.ratio_to_chain_bound),
        or_empty(row.traffic_bytes.map(Bytes::get)),
        or_empty(row.recomputed_ops.map(|ops| ops as u64)),
        row.planning_ns.get().to_string(),
        row.stop_reason.to_owned(),
        row.warm_starts.to_string(),
        quoted(row.found_by.as_deref().unwrap_or_default()),
        or_empty(row.relaxed_bound_ns.map(Nanos::get)),
    ]
    .join(",")
}

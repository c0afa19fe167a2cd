//! Planners side by side: every one at every limit, or every one at the smallest limit that it can serve within an overhead.

use std::sync::Arc;

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
    /// How long each planner may look at each limit.
    pub budget: Budget,
    /// The limits, the smallest first.
    pub limits: &'a [Bytes],
    /// Whether the limits bound the live load and nothing is placed.
    pub by_load: bool,
    /// Height (or load) of the arena when everything stays: the whole of which shares are taken.
    pub unconstrained: Bytes,
    /// Whether every planner works alone; else a planner with [peers](Planner::peers) starts from the plans of the other rows at its limit.
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
    /// Whether it found a plan.
    pub feasible: bool,
    /// Bytes of arena that its plan uses; `null` where the limits bound live memory.
    pub arena_bytes: Option<Bytes>,
    /// Largest sum of the buffers that are alive at one time.
    pub peak_live_bytes: Option<Bytes>,
    /// Predicted iteration time.
    pub iteration_ns: Option<Nanos>,
    /// Iteration time ÷ sum of the op times − 1.
    pub overhead: Option<f64>,
    /// Iteration time ÷ lower bound: the bound of the task's freedom, without recompute the one from what must come back.
    pub ratio_to_bound: Option<f64>,
    /// The lower bound.
    pub lower_bound_ns: Nanos,
    /// Iteration time ÷ the bound of Beaumont et al., Proposition 3, on the unconstrained peak: what plans are measured by in their paper. It
    /// binds plans that recompute nothing and leave persistent values where they are; others may go below 1.
    pub ratio_to_chain_bound: Option<f64>,
    /// Bytes copied, both ways together.
    pub traffic_bytes: Option<Bytes>,
    /// Ops run again.
    pub recomputed_ops: Option<usize>,
    /// Time spent planning, placing and proving.
    pub planning_ns: Nanos,
    /// Why the planner stopped.
    pub stop_reason: &'static str,
    /// Plans of other rows from which the planner started.
    pub warm_starts: usize,
}

/// Asks every planner at every limit, the largest limit first. Those that are never behind others ([`Planner::peers`]) come last: they
/// start from what the others have found at the limit. Ends early, with what there is, when the observer interrupts. A planner that makes
/// an illegal plan is a fault of ours and ends the comparison.
pub fn compare(
    comparison: &Comparison<'_>,
    observer: &dyn Observer,
    mut heard: impl FnMut(&Row),
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
            let row = ask(comparison, &task, planner, &mut known, observer)?;
            heard(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

/// What has been found at one limit.
#[derive(Default)]
struct Known {
    plans: Vec<Arc<CheckedPlan>>,
    /// Where the limits bound the load.
    schedules: Vec<Schedule>,
}

/// For every planner the smallest limit at which its iteration takes at most (1 + `overhead`) × the sum of the op times, with what it does
/// there.
///
/// Overhead does not always grow as memory shrinks (Zhang et al., section VI-B), so the comparison's limits are asked from the smallest on;
/// below the first that serves, bisection goes on down to a thousandth of the unconstrained peak. A row's limit is what its plan uses. A planner
/// that is too slow at every limit gets a row without a plan, at the largest limit, whose reason is `too-slow`.
pub fn smallest(
    comparison: &Comparison<'_>,
    overhead: f64,
    observer: &dyn Observer,
    mut heard: impl FnMut(&Row),
) -> Result<Vec<Row>, Illegal> {
    let mut rows = Vec::new();
    for &planner in comparison.planners {
        let mut search = Smallest { comparison, planner, overhead, observer, found: None };
        let mut too_small = Bytes::ZERO;
        for &limit in comparison.limits {
            if observer.interrupted() {
                return Ok(rows);
            }
            if search.serves(limit)? {
                break;
            }
            too_small = limit;
        }
        search.bisect(too_small)?;
        let row = match search.found {
            Some(row) => row,
            None => Row::without_plan(comparison, planner.name(), too_small, "too-slow"),
        };
        heard(&row);
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
    /// Whether the planner keeps to the overhead at a limit; if so, that is what was found.
    fn serves(&mut self, limit: Bytes) -> Result<bool, Illegal> {
        let comparison = self.comparison;
        let task = comparison.task.with_memory(limit);
        let mut row = ask(comparison, &task, self.planner, &mut Known::default(), self.observer)?;
        let serves = row.overhead.is_some_and(|overhead| overhead <= self.overhead);
        if serves {
            // The plan is one for a limit of just the bytes that it uses.
            let used = row.arena_bytes.or(row.peak_live_bytes).unwrap_or(limit).min(limit);
            row.limit_bytes = used;
            row.share = used.ratio(comparison.unconstrained);
            row.lower_bound_ns = pipeline::lower_bound(&comparison.task.with_memory(used));
            row.ratio_to_bound = row.iteration_ns.map(|time| time.ratio(row.lower_bound_ns));
            row.ratio_to_chain_bound = row.iteration_ns.map(|time| chain_ratio(comparison, time, used));
            self.found = Some(row);
        }
        Ok(serves)
    }

    fn bisect(&mut self, mut too_small: Bytes) -> Result<(), Illegal> {
        let align = self.comparison.task.machine.align;
        let near = align.max(Bytes(self.comparison.unconstrained.get() / 1000));
        while let Some(used) = self.found.as_ref().map(|row| row.limit_bytes)
            && used.saturating_sub(too_small) > near
            && !self.observer.interrupted()
        {
            let middle = Bytes(too_small.get() + (used.get() - too_small.get()) / 2);
            if !self.serves(middle)? {
                too_small = middle;
            }
        }
        Ok(())
    }
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
    planner: &dyn Planner,
    known: &mut Known,
    observer: &dyn Observer,
) -> Result<Row, Illegal> {
    let method = Method::new(planner, comparison.packer, comparison.budget.clone());
    let started = std::time::Instant::now();
    let Known { plans, schedules } = known;
    let (from_plans, from_schedules): (&[_], &[_]) =
        if comparison.alone || planner.peers(&task.trace).is_empty() {
            (&[], &[])
        } else {
            (plans, schedules)
        };
    let warm_starts = from_plans.len() + from_schedules.len();
    let found = if comparison.by_load {
        pipeline::plan_load(task, &method, from_schedules, observer).map(|planned| {
            schedules.push(planned.schedule.into_schedule());
            let peak = planned.predicted.peak_live;
            Found { peak, stop: planned.stop.name(), timeline: planned.predicted }
        })
    } else {
        pipeline::plan_from(task, &method, from_plans, observer).map(|planned| {
            plans.push(planned.plan.clone());
            Found { peak: planned.height(), stop: planned.stop.name(), timeline: planned.predicted }
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
    if let Some(Found { peak, timeline, .. }) = found {
        row.feasible = true;
        row.arena_bytes = Some(peak).filter(|_| !comparison.by_load);
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
            lower_bound_ns: pipeline::lower_bound(&comparison.task.with_memory(limit)),
            ratio_to_chain_bound: None,
            traffic_bytes: None,
            recomputed_ops: None,
            planning_ns: Nanos::ZERO,
            stop_reason,
            warm_starts: 0,
        }
    }
}

/// The names of the columns of [`csv_line`].
pub const CSV_HEAD: &str = "planner,limit_bytes,share,feasible,arena_bytes,peak_live_bytes,iteration_ns,overhead,ratio_to_bound,\
     lower_bound_ns,ratio_to_chain_bound,traffic_bytes,recomputed_ops,planning_ns,stop_reason,warm_starts";

/// A row as comma-separated values, without the end of the line; fields are empty where there is no plan.
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
    ]
    .join(",")
}

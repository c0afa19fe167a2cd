//! What a plan promises and what a run did, as people read it and as programs read it: fields carry their units in their names.

use std::collections::BTreeMap;
use std::time::Duration;

use elbowroom_engine::reactive::ReactiveReport;
use elbowroom_ir::search::StopReason;
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::{Bytes, Nanos};
use serde::Serialize;

use crate::pipeline::{self, Evaluations, Method, Planned, PlannedLoad, Task};

/// What a plan promises.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// Name of the trace.
    pub trace: String,
    /// Name of the machine.
    pub machine: String,
    /// Name of the planner.
    pub planner: String,
    /// The limit, in bytes of arena (of load, where nothing was placed).
    pub limit_bytes: Bytes,
    /// Height of the arena when everything stays.
    pub natural_peak_bytes: Bytes,
    /// Bytes of arena that the plan uses: the peak that a run measures.
    pub predicted_peak_bytes: Bytes,
    /// The same: the end of the highest buffer. `null` where nothing was placed.
    pub height_bytes: Option<Bytes>,
    /// Largest sum of live bytes.
    pub peak_load_bytes: Bytes,
    /// Predicted iteration time.
    pub iteration_ns: Nanos,
    /// Sum of the op times: the iteration time of an unlimited device.
    pub unlimited_iteration_ns: Nanos,
    /// Below this no plan under this limit can go.
    pub lower_bound_ns: Nanos,
    /// Iteration time ÷ lower bound: 1 is optimal.
    pub ratio_to_bound: f64,
    /// What the largest op needs by itself: no limit below it can work.
    pub largest_op_bytes: Bytes,
    /// Name of that op.
    pub largest_op: String,
    /// Iteration time ÷ unlimited iteration time − 1.
    pub overhead: f64,
    /// Bytes copied to the host.
    pub to_host_bytes: Bytes,
    /// Bytes copied to the device.
    pub to_device_bytes: Bytes,
    /// Ops run again.
    pub recomputed_ops: usize,
    /// Time spent planning, placing and proving.
    pub planning_ns: Nanos,
    /// Evaluations that the planner made in all.
    pub evaluations: u64,
    /// The option of `elbowroom plan` that makes this plan again in place of a time, with the same seed on any number of threads, like
    /// `--evaluations 812,40,3`; left out where nothing would, because somebody interrupted or durations were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub again: Option<String>,
    /// Why the planner stopped.
    pub stop_reason: &'static str,
    /// Which of those that the planner asked found the plan, or in which of its episodes; left out if the planner did not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found_by: Option<String>,
}

impl PlanReport {
    /// What a placed plan promises. The task's memory is the limit that was asked for.
    pub fn new(task: &Task, method: &Method<'_>, natural: Bytes, planned: &Planned) -> Self {
        let effort =
            Effort { planning: planned.planning, evaluations: &planned.evaluations, stop: &planned.stop };
        Self::of(task, method, natural, &planned.predicted, Some(planned.height()), effort)
    }

    /// What a schedule without a placement promises.
    pub fn of_load(task: &Task, method: &Method<'_>, natural: Bytes, planned: &PlannedLoad) -> Self {
        let evaluations = &Evaluations::once(planned.evaluations);
        let effort = Effort { planning: planned.planning, evaluations, stop: &planned.stop };
        Self::of(task, method, natural, &planned.predicted, None, effort)
    }

    fn of(
        task: &Task,
        method: &Method<'_>,
        natural: Bytes,
        predicted: &Timeline,
        height: Option<Bytes>,
        effort: Effort<'_>,
    ) -> Self {
        let unlimited = task.costs.total();
        let bound = pipeline::lower_bound(task);
        let (largest_op, largest_op_bytes) = pipeline::largest_op(task);
        Self {
            trace: task.trace.name().to_owned(),
            machine: task.machine.name.clone(),
            planner: method.scheduler.name().to_owned(),
            limit_bytes: task.machine.memory,
            natural_peak_bytes: natural,
            predicted_peak_bytes: height.unwrap_or(predicted.peak_load),
            height_bytes: height,
            peak_load_bytes: predicted.peak_load,
            iteration_ns: predicted.iteration,
            unlimited_iteration_ns: unlimited,
            lower_bound_ns: bound,
            ratio_to_bound: predicted.iteration.ratio(bound),
            largest_op_bytes,
            largest_op,
            overhead: Self::overhead(predicted.iteration, unlimited),
            to_host_bytes: predicted.traffic.to_host,
            to_device_bytes: predicted.traffic.to_device,
            recomputed_ops: predicted.recomputed,
            planning_ns: effort.planning.into(),
            evaluations: effort.evaluations.total(),
            again: Some(format!("--evaluations {}", effort.evaluations)),
            stop_reason: effort.stop.name(),
            found_by: None,
        }
    }

    /// Overhead of one iteration time over another.
    pub fn overhead(iteration: Nanos, unlimited: Nanos) -> f64 {
        if unlimited.is_zero() { 0.0 } else { iteration.get() as f64 / unlimited.get() as f64 - 1.0 }
    }
}

/// What finding a plan took.
struct Effort<'a> {
    planning: Duration,
    evaluations: &'a Evaluations,
    stop: &'a StopReason,
}

/// How the iterations of a training ran: by plans, or on demand where there was none.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Conduct {
    /// Iterations that followed a plan.
    pub planned_iterations: u64,
    /// Iterations that ran on demand.
    pub reactive_iterations: u64,
    /// Different traces that ran. One that was given up for many others and came again counts again.
    pub traces: u64,
    /// Plans made while training: one for each trace that came again, or that would have got stuck on demand.
    pub replans: u64,
    /// Bytes of persistent values moved in going from one plan to another, or from none to the first.
    pub switch_moved_bytes: Bytes,
    /// Largest end of any range handed out in iterations on demand.
    pub reactive_peak_bytes: Bytes,
    /// Most bytes that copies on the host took together in iterations on demand.
    pub reactive_host_bytes: Bytes,
    /// Median time of iterations on demand.
    pub reactive_iteration_ns: Option<Nanos>,
    /// Values dropped in iterations on demand.
    pub reactive_dropped: u64,
    /// Values sent to the host in iterations on demand.
    pub reactive_offloaded: u64,
    /// Ops run again in iterations on demand.
    pub reactive_recomputed_ops: u64,
    /// How often iterations on demand moved blocks together.
    pub compactions: u64,
    /// Bytes moved by that.
    pub compacted_bytes: Bytes,
}

impl Conduct {
    /// Counts an iteration on demand.
    pub(crate) fn add(&mut self, report: &ReactiveReport) {
        self.reactive_iterations += 1;
        self.reactive_peak_bytes = self.reactive_peak_bytes.max(report.measured_peak);
        self.reactive_host_bytes = self.reactive_host_bytes.max(report.most_on_host);
        self.reactive_dropped += report.dropped as u64;
        self.reactive_offloaded += report.offloaded as u64;
        self.reactive_recomputed_ops += report.recomputed as u64;
        self.compactions += report.compactions as u64;
        self.compacted_bytes += report.moved;
    }
}

/// What the command `train` did.
#[derive(Clone, Debug, Serialize)]
pub struct TrainReport {
    /// What the plan promised.
    #[serde(flatten)]
    pub plan: PlanReport,
    /// Where offloaded values went.
    pub host: String,
    /// Bytes per second on the way there, measured before the first plan was made, which counts on them.
    pub to_host_rate: u64,
    /// Bytes per second on the way back, likewise.
    pub to_device_rate: u64,
    /// Threads that computed.
    pub threads: usize,
    /// Convolutions and their gradients, counted by algorithm.
    pub algorithms: BTreeMap<&'static str, usize>,
    /// Number of the first iteration of this run.
    pub first_iteration: u64,
    /// Samples in a batch.
    pub batch: usize,
    /// Samples per second at the median iteration time.
    pub samples_per_second: f64,
    /// Loss of every iteration; empty where the forward part ran alone.
    pub losses: Vec<f32>,
    /// Largest end of any range handed to a kernel or a copy, over all iterations.
    pub measured_peak_bytes: Bytes,
    /// Whether the bytes of the arena above the plan's height were left alone.
    pub arena_above_intact: bool,
    /// Median of the measured iteration times.
    pub measured_iteration_ns: Nanos,
    /// Median iteration time of the unlimited run, where one was made.
    pub measured_unlimited_iteration_ns: Option<Nanos>,
    /// Measured iteration time ÷ unlimited iteration time − 1; without an unlimited run, over the sum of the first-run op times.
    pub measured_overhead: f64,
    /// Bytes copied to the host in one measured iteration.
    pub measured_to_host_bytes: Bytes,
    /// Bytes copied to the device in one measured iteration.
    pub measured_to_device_bytes: Bytes,
    /// Ops run again in one measured iteration.
    pub measured_recomputed_ops: usize,
    /// How the iterations ran.
    #[serde(flatten)]
    pub conduct: Conduct,
    /// Whether the unlimited run gave the same results and parameters to the bit; `null` if it was not asked for.
    pub verified: Option<bool>,
}

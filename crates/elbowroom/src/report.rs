//! What a plan promises and what a run did, as people read it and as programs read it: fields carry their units in their names.

use elbowroom_ir::{Bytes, Nanos};
use serde::Serialize;

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
    /// Evaluations that the planner made.
    pub evaluations: u64,
    /// Why the planner stopped.
    pub stop_reason: &'static str,
}

impl PlanReport {
    /// Overhead of one iteration time over another.
    pub fn overhead(iteration: Nanos, unlimited: Nanos) -> f64 {
        if unlimited.is_zero() { 0.0 } else { iteration.get() as f64 / unlimited.get() as f64 - 1.0 }
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
    /// Threads that computed.
    pub threads: usize,
    /// Number of the first iteration of this run.
    pub first_iteration: u64,
    /// Loss of every iteration.
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
    /// Whether the unlimited run gave the same losses and parameters to the bit; `null` if it was not asked for.
    pub verified: Option<bool>,
}

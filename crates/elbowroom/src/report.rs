//! Reports: what a plan predicts, and what a training measured against that prediction.
//!
//! A report serializes to one JSON object. The end of a field's name gives its unit: `_bytes`, `_ns` (nanoseconds), `_rate` (bytes per
//! second), `_ops` (a count). Fields without such an end are names, flags, counts or ratios.

use std::collections::BTreeMap;
use std::time::Duration;

use elbowroom_engine::dynamic::DynamicReport;
use elbowroom_ir::search::StopReason;
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::{Bytes, Nanos};
use serde::Serialize;

use crate::pipeline::{self, Evaluations, Method, Planned, PlannedSchedule, Task};

/// What a plan predicts for one iteration.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PlanReport {
    /// Name of the trace.
    pub trace: String,
    /// Name of the machine.
    pub machine: String,
    /// Name of the planner.
    pub planner: String,
    /// The limit, in bytes of arena; in bytes of live memory where nothing was placed.
    pub limit_bytes: Bytes,
    /// Arena size when every tensor stays on the device.
    pub unconstrained_peak_bytes: Bytes,
    /// The peak that a run will measure: the arena size, or the peak of live memory where nothing was placed.
    pub predicted_peak_bytes: Bytes,
    /// Arena size: the end of the highest buffer. `null` where nothing was placed.
    pub arena_bytes: Option<Bytes>,
    /// Peak of live memory.
    pub peak_live_bytes: Bytes,
    /// Predicted iteration time.
    pub iteration_ns: Nanos,
    /// Sum of the op times: the iteration time on a device without a limit.
    pub unlimited_iteration_ns: Nanos,
    /// Where the op times are from: `measured`, `recorded` or `captured` with the trace, or `roofline`, estimated for the machine.
    pub durations: &'static str,
    /// No plan under this limit has a shorter iteration.
    pub lower_bound_ns: Nanos,
    /// Iteration time ÷ lower bound; 1 is optimal.
    pub ratio_to_bound: f64,
    /// The value of Algorithm 1 of Beaumont et al., which `lower_bound_ns` includes: for plans of a chain that only offload. Absent if the plan
    /// may recompute or the trace is no chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relaxed_bound_ns: Option<Nanos>,
    /// Bytes that the largest op needs by itself.
    pub largest_op_bytes: Bytes,
    /// Name of that op.
    pub largest_op: String,
    /// Bytes that must be on the device together: those of an op, and of the tensors that may be neither offloaded nor recomputed. No plan
    /// exists for a smaller limit.
    pub floor_bytes: Bytes,
    /// Name of that op.
    pub floor_op: String,
    /// Iteration time ÷ unlimited iteration time − 1.
    pub overhead: f64,
    /// Bytes copied to the host.
    pub to_host_bytes: Bytes,
    /// Bytes copied to the device.
    pub to_device_bytes: Bytes,
    /// Ops recomputed.
    pub recomputed_ops: usize,
    /// Time spent on planning, packing and checking.
    pub planning_ns: Nanos,
    /// Evaluations of the planner in all rounds together.
    pub evaluations: u64,
    /// The option of `elbowroom plan` that reproduces this plan in place of a time budget, with the same seed and any number of threads,
    /// like `--evaluations 812,40,3`; with `--memory 12345` in place of `--memory min` if the time ended the search for the limit. Absent
    /// if nothing reproduces it: the search was interrupted, or its durations were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reproduce_with: Option<String>,
    /// Why the planner stopped.
    pub stop_reason: &'static str,
    /// What found the plan: the planner, one of its warm starts or episodes, or a peer of it whose schedule could be packed.
    pub found_by: String,
}

impl PlanReport {
    /// The report of a placed plan. The task's memory is the requested limit.
    pub fn new(task: &Task, method: &Method<'_>, unconstrained_peak: Bytes, planned: &Planned) -> Self {
        let effort = Effort {
            planning: planned.planning,
            evaluations: &planned.evaluations,
            reproducible: planned.reproducible,
            reproducible_at_limit: planned.reproducible_at_limit,
            stop: &planned.stop,
            found_by: &planned.found_by,
        };
        Self::of(task, method, unconstrained_peak, &planned.predicted, Some(planned.height()), effort)
    }

    /// The report of a schedule without a placement.
    pub fn of_load(
        task: &Task,
        method: &Method<'_>,
        unconstrained_peak: Bytes,
        planned: &PlannedSchedule,
    ) -> Self {
        let evaluations = &Evaluations::once(planned.evaluations);
        let effort = Effort {
            planning: planned.planning,
            evaluations,
            reproducible: planned.reproducible,
            reproducible_at_limit: planned.reproducible,
            stop: &planned.stop,
            found_by: &planned.found_by,
        };
        Self::of(task, method, unconstrained_peak, &planned.predicted, None, effort)
    }

    fn of(
        task: &Task,
        method: &Method<'_>,
        unconstrained_peak: Bytes,
        predicted: &Timeline,
        arena: Option<Bytes>,
        effort: Effort<'_>,
    ) -> Self {
        let unlimited = task.costs.total();
        let (bound, relaxed) = pipeline::bounds(task, method.budget.time);
        let (largest_op, largest_op_bytes) = pipeline::largest_op(task);
        let (floor_op, floor_bytes) = pipeline::floor(task);
        Self {
            trace: task.trace.name().to_owned(),
            machine: task.machine.name.clone(),
            planner: method.planner.name().to_owned(),
            limit_bytes: task.machine.memory,
            unconstrained_peak_bytes: unconstrained_peak,
            predicted_peak_bytes: arena.unwrap_or(predicted.peak_live),
            arena_bytes: arena,
            peak_live_bytes: predicted.peak_live,
            iteration_ns: predicted.iteration,
            unlimited_iteration_ns: unlimited,
            durations: task.costs.source.name(),
            lower_bound_ns: bound,
            ratio_to_bound: predicted.iteration.ratio(bound),
            relaxed_bound_ns: relaxed,
            largest_op_bytes,
            largest_op,
            floor_bytes,
            floor_op,
            overhead: Self::overhead(predicted.iteration, unlimited),
            to_host_bytes: predicted.traffic.to_host,
            to_device_bytes: predicted.traffic.to_device,
            recomputed_ops: predicted.recomputed,
            planning_ns: effort.planning.into(),
            evaluations: effort.evaluations.total(),
            reproduce_with: effort.reproducing_options(task.machine.memory),
            stop_reason: effort.stop.name(),
            found_by: effort.found_by.to_owned(),
        }
    }

    /// Overhead of an iteration time: `iteration` ÷ `unlimited` − 1, and 0 where `unlimited` is 0.
    pub fn overhead(iteration: Nanos, unlimited: Nanos) -> f64 {
        if unlimited.is_zero() { 0.0 } else { iteration.get() as f64 / unlimited.get() as f64 - 1.0 }
    }
}

/// How long the search for a plan took.
struct Effort<'a> {
    planning: Duration,
    evaluations: &'a Evaluations,
    reproducible: bool,
    reproducible_at_limit: bool,
    stop: &'a StopReason,
    found_by: &'a str,
}

impl Effort<'_> {
    /// The options that reproduce the plan. Where the time ended the search for the smallest limit, they name the limit that it had found.
    fn reproducing_options(&self, limit: Bytes) -> Option<String> {
        let evaluations = format!("--evaluations {}", self.evaluations);
        match (self.reproducible, self.reproducible_at_limit) {
            (true, _) => Some(evaluations),
            (false, true) => Some(format!("--memory {} {evaluations}", limit.get())),
            (false, false) => None,
        }
    }
}

/// How the iterations of a training were executed: by plans or dynamically.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Execution {
    /// Iterations that followed a plan.
    pub planned_iterations: u64,
    /// Iterations that were executed dynamically.
    pub dynamic_iterations: u64,
    /// Different structures that ran. A structure that was forgotten to save memory and then ran again counts twice.
    pub structures: u64,
    /// Plans made while training: one for each structure that ran more than once or that dynamic execution could not run, and one for the
    /// largest structure if others were derived from it.
    pub plans_made: u64,
    /// Plans derived from that of the largest structure, without a search. A structure that was forgotten counts again.
    pub derived_plans: u64,
    /// Planned iterations that followed a derived plan.
    pub derived_iterations: u64,
    /// Dynamic iterations of structures for which no plan could be derived.
    pub underived_iterations: u64,
    /// Bytes of persistent tensors moved when one plan followed another, or when the first plan followed dynamic execution.
    pub switch_moved_bytes: Bytes,
    /// Largest end of a range of the arena in use during dynamic execution.
    pub dynamic_peak_bytes: Bytes,
    /// Most bytes of host copies held at once during dynamic execution.
    pub dynamic_host_bytes: Bytes,
    /// Median time of the dynamic iterations.
    pub dynamic_iteration_ns: Option<Nanos>,
    /// Tensors evicted during dynamic execution.
    pub dynamic_evictions: u64,
    /// Tensors offloaded during dynamic execution.
    pub dynamic_offloads: u64,
    /// Ops recomputed during dynamic execution.
    pub dynamic_recomputed_ops: u64,
    /// Compactions of the arena during dynamic execution.
    pub compactions: u64,
    /// Bytes moved by compactions.
    pub compacted_bytes: Bytes,
}

impl Execution {
    /// Adds a dynamic iteration.
    pub(crate) fn add(&mut self, report: &DynamicReport) {
        self.dynamic_iterations += 1;
        self.dynamic_peak_bytes = self.dynamic_peak_bytes.max(report.measured_peak);
        self.dynamic_host_bytes = self.dynamic_host_bytes.max(report.peak_host_bytes);
        self.dynamic_evictions += report.evicted as u64;
        self.dynamic_offloads += report.offloaded as u64;
        self.dynamic_recomputed_ops += report.recomputed as u64;
        self.compactions += report.compactions as u64;
        self.compacted_bytes += report.moved;
    }
}

/// What a host tier lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HostKind {
    /// Memory of the process.
    Memory,
    /// A folder whose files are in memory (tmpfs or ramfs).
    FolderInMemory,
    /// A folder on a disk.
    Disk,
    /// Nothing: no folder on a disk was found, so nothing is offloaded.
    None,
}

/// Why a training ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Ending {
    /// All iterations ran.
    #[default]
    Finished,
    /// The observer interrupted.
    Interrupted,
    /// The loss, or a tensor that was to be saved, is not finite.
    Diverged,
}

/// What an evaluation on held-out data gave.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Evaluation {
    /// Iterations before it, those of earlier runs included.
    pub iterations: u64,
    /// Samples that were computed.
    pub samples: u64,
    /// Their labels that count.
    pub labels: u64,
    /// Mean loss over all labels. Not a number if no label counts.
    pub loss: f64,
    /// Share of the labels that the network found, from 0 to 1.
    pub accuracy: f64,
    /// Whether the network is a language model.
    pub language: bool,
}

impl Evaluation {
    /// Of a language model, e raised to the mean loss.
    pub fn perplexity(&self) -> Option<f64> {
        self.language.then(|| self.loss.exp())
    }
}

/// What a training saved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Saved {
    /// Iterations before the last checkpoint of this run, those of earlier runs included; `null` if none was written.
    pub saved_iterations: Option<u64>,
    /// Attempts that failed.
    pub failed_saves: u64,
    /// Why the last attempt failed. Absent if it succeeded, or if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_error: Option<String>,
    /// Why the weights could not be written. Absent if they were, or were not to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights_error: Option<String>,
}

/// A weight that is cut into [tiles](crate::tiles).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TiledWeight {
    /// Its name.
    pub name: String,
    /// Number of its tiles.
    pub tiles: usize,
    /// Bytes of the whole weight.
    pub weight_bytes: Bytes,
    /// Bytes of its largest tile.
    pub tile_bytes: Bytes,
}

/// What a training measured, with what its plan predicted.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct TrainReport {
    /// What the plan predicted.
    #[serde(flatten)]
    pub plan: PlanReport,
    /// The host tier: `memory`, the folder that host copies were written to, or `none` where nothing was offloaded because no folder on a disk
    /// was found.
    pub host: String,
    /// What the host tier lies on: `memory`, `folder_in_memory`, `disk` or `none`. Host copies in memory add to resident memory.
    pub host_kind: HostKind,
    /// Most bytes that were reserved for host copies.
    pub host_reserved_bytes: Bytes,
    /// Bytes per second to the host, measured before the first plan was made, which relies on them.
    pub to_host_rate: u64,
    /// Bytes per second to the device, measured at the same time.
    pub to_device_rate: u64,
    /// Threads that computed.
    pub threads: usize,
    /// Convolutions and their gradients, counted by algorithm.
    pub algorithms: BTreeMap<&'static str, usize>,
    /// Weights that were cut into tiles because their updates need too many bytes for the limit.
    pub tiled_weights: Vec<TiledWeight>,
    /// Number of the first iteration of this run.
    pub first_iteration: u64,
    /// Samples in a batch.
    pub batch: usize,
    /// Samples per second at the median iteration time.
    pub samples_per_second: f64,
    /// Why the training ended.
    pub ending: Ending,
    /// What is not finite and where, if the training ended for that reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diverged: Option<String>,
    /// What was saved.
    #[serde(flatten)]
    pub saved: Saved,
    /// Loss of every iteration; empty where only the forward part ran. One that is not finite is `null` in JSON.
    pub losses: Vec<f32>,
    /// Iterations before each evaluation, those of earlier runs included. Where only the forward part ran, all its iterations together are
    /// one evaluation; there is none without labels.
    pub eval_iterations: Vec<u64>,
    /// Samples of each evaluation.
    pub eval_samples: Vec<u64>,
    /// Labels of each evaluation that count.
    pub eval_labels: Vec<u64>,
    /// Mean loss of each evaluation over all labels.
    pub eval_loss: Vec<f64>,
    /// Share of the labels that the network found, of each evaluation, from 0 to 1.
    pub eval_accuracy: Vec<f64>,
    /// Of a language model, e raised to the mean loss of each evaluation; empty for other networks.
    pub eval_perplexity: Vec<f64>,
    /// Largest end of a range of the arena that a kernel or a copy used, over all iterations.
    pub measured_peak_bytes: Bytes,
    /// Whether the bytes of the arena above the plan's arena size were left untouched.
    pub arena_above_intact: bool,
    /// Most bytes of memory that the whole process has had resident until the last iteration under the limit, program code included; `null`
    /// where the system does not report it.
    pub peak_resident_bytes: Option<Bytes>,
    /// Median of the measured iteration times.
    pub measured_iteration_ns: Nanos,
    /// Median iteration time of the unlimited run, where there was one.
    pub measured_unlimited_iteration_ns: Option<Nanos>,
    /// Measured iteration time ÷ unlimited iteration time − 1. Without an unlimited run, the sum of the median op times takes its place.
    pub measured_overhead: f64,
    /// Bytes copied to the host in one measured iteration.
    pub measured_to_host_bytes: Bytes,
    /// Bytes copied to the device in one measured iteration.
    pub measured_to_device_bytes: Bytes,
    /// Ops recomputed in one measured iteration.
    pub measured_recomputed_ops: usize,
    /// How the iterations were executed.
    #[serde(flatten)]
    pub execution: Execution,
    /// Why no plan was derived, for the last structure for which none was. Absent if there was no such structure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub underived_reason: Option<String>,
    /// Whether the unlimited run gave the same results and parameters to the bit; `null` if there was none or if it was
    /// interrupted.
    pub verified: Option<bool>,
}

//! The progress of a training, for programs that display it.

use std::path::Path;

use elbowroom_graph::Graph;
use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::planning::Costs;
use elbowroom_ir::search::Observer;
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::{Bytes, Nanos};

use crate::checkpoint::CheckpointError;
use crate::report::Evaluation;

/// Receives the progress of a training, and that of its searches as an [`Observer`]. Every method does nothing by default.
pub trait TrainObserver: Observer {
    /// A stage begins; `what` describes it for people.
    fn stage(&self, _what: &str) {}

    /// The network that is trained, in its largest form, once the size of the batch is known and data and checkpoint are open.
    fn network(&self, _graph: &Graph) {}

    /// Something about the training that is probably not meant but hinders nothing, as a sentence for people.
    fn remark(&self, _sentence: &str) {}

    /// A run of this many iterations begins. A training that is verified has two runs.
    fn begin(&self, _iterations: u64) {}

    /// An iteration has ended.
    fn iteration(&self, _done: &Iteration) {}

    /// An evaluation of this many batches begins.
    fn evaluation_begins(&self, _batches: u64) {}

    /// An evaluation has ended.
    fn evaluated(&self, _evaluation: &Evaluation) {}

    /// The outputs of a batch of [one pass](crate::train::Training::one_pass).
    fn outputs(&self, _outputs: &Outputs) {}

    /// When every action of the iteration that has just [ended](Self::iteration) ran, if it followed a plan.
    fn measured(&self, _timeline: &Timeline) {}

    /// The run under the limit has ended, and this is its last iteration that followed a plan.
    fn executed(&self, _last: &Executed<'_>) {}

    /// A checkpoint of this many iterations, those before the run included, was written to a file.
    fn saved(&self, _path: &Path, _iterations_done: u64) {}

    /// A checkpoint could not be written; the training continues. The next attempt follows after `retry` iterations, those before the run
    /// included; with `None`, no attempt follows because the training ends.
    fn save_failed(&self, _error: &CheckpointError, _retry: Option<u64>) {}
}

/// One iteration that ran.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Iteration {
    /// Its number, from zero.
    pub number: u64,
    /// Its loss; `None` where only the forward part runs.
    pub loss: Option<f32>,
    /// Its duration.
    pub time: Nanos,
    /// Highest used byte of the arena: in this iteration if it was executed dynamically, otherwise since the first iteration of its plan.
    pub peak: Bytes,
    /// The limit.
    pub limit: Bytes,
    /// Whether it followed a plan.
    pub planned: bool,
    /// Different structures that have run so far.
    pub structures: u64,
    /// Plans made while training so far.
    pub plans: u64,
}

/// An iteration that followed a plan, predicted and measured.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Executed<'a> {
    /// The plan.
    pub plan: &'a CheckedPlan,
    /// The durations for which it was made.
    pub costs: &'a Costs,
    /// The course that these durations predict.
    pub predicted: &'a Timeline,
    /// The course that was measured.
    pub measured: &'a Timeline,
}

/// What the forward part gave for one batch.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Outputs {
    /// Index of its first sample.
    pub first: u64,
    /// Samples that the network takes at once.
    pub batch: usize,
    /// Samples of the data in this batch; the others fill it up.
    pub samples: usize,
    /// Labels that count; none where the network takes no labels.
    pub labels: u64,
    /// Extent of a row of logits; 0 if the first output has no rows.
    pub classes: usize,
    /// Whether the network reads tokens.
    pub language: bool,
    /// Every output with its name, row-major, sample after sample.
    pub values: Vec<(String, Vec<f32>)>,
}

/// Ignores all progress and never interrupts.
pub use elbowroom_ir::search::Silent;

impl TrainObserver for Silent {}

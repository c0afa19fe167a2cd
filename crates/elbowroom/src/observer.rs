//! The progress of a training, for programs that display it.

use elbowroom_graph::Graph;
use elbowroom_ir::search::Observer;
use elbowroom_ir::{Bytes, Nanos};

/// Receives the progress of a training, and that of its searches as an [`Observer`]. Every method does nothing by default.
pub trait TrainObserver: Observer {
    /// A stage begins; `what` describes it for people.
    fn stage(&self, _what: &str) {}

    /// The network that is trained, in its largest form, once the size of the batch is known and data and checkpoint are open.
    fn network(&self, _graph: &Graph) {}

    /// A run of this many iterations begins. A training that is verified has two runs.
    fn begin(&self, _iterations: u64) {}

    /// An iteration has ended.
    fn iteration(&self, _done: &Iteration) {}
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

/// Ignores all progress and never interrupts.
pub use elbowroom_ir::search::Silent;

impl TrainObserver for Silent {}

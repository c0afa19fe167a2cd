//! The course of one iteration, predicted or measured.

use serde::{Deserialize, Serialize};

use crate::schedule::Stream;
use crate::{ActionId, Bytes, Nanos};

/// The interval in which an action runs on its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The action.
    pub action: ActionId,
    /// Its stream.
    pub stream: Stream,
    /// Its start, counted from the start of the iteration.
    pub start: Nanos,
    /// Its end.
    pub end: Nanos,
}

/// Bytes copied over the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Device → host.
    pub to_host: Bytes,
    /// Host → device.
    pub to_device: Bytes,
}

/// The course of one iteration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Actions that run on a stream, in order of positions.
    pub spans: Vec<Span>,
    /// Live memory over time: `(time, bytes from then on)`, ascending, each time once.
    pub live: Vec<(Nanos, Bytes)>,
    /// Peak memory over all positions. This is what a plan promises. In [`live`](Self::live) a moment can have more where copies overlap ops that
    /// do not wait for them; the arena holds it all the same, because such a copy's bytes have offsets of their own.
    pub peak_live: Bytes,
    /// From the start of the first action to the end of the last, on any stream.
    pub iteration: Nanos,
    /// Time in which the compute stream was idle before its last op ended, waiting for copies or for memory.
    pub compute_idle: Nanos,
    /// Bytes copied.
    pub traffic: Traffic,
    /// Number of recomputed ops.
    pub recomputed: usize,
    /// Time spent recomputing.
    pub recompute_time: Nanos,
}

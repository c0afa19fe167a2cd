//! What one iteration did, or would do: one shape for predicted and measured.

use serde::{Deserialize, Serialize};

use crate::schedule::Lane;
use crate::{ActionId, Bytes, Nanos};

/// One action's stretch of time on its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The action.
    pub action: ActionId,
    /// The lane it ran on.
    pub lane: Lane,
    /// When it started, counted from the start of the iteration.
    pub start: Nanos,
    /// When it had finished.
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

/// One iteration in time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Actions that took a lane, in order of positions.
    pub spans: Vec<Span>,
    /// Live bytes over time: `(moment, bytes from then on)`, ascending, each moment once.
    pub load: Vec<(Nanos, Bytes)>,
    /// Largest load at any position. This is the peak that a plan promises; at every moment of every run the load is at most this.
    pub peak_load: Bytes,
    /// From the start of the first action to the end of the last, on any lane.
    pub iteration: Nanos,
    /// Time in which the compute lane was idle before its last op ended: waiting for copies or for memory.
    pub compute_idle: Nanos,
    /// Bytes copied.
    pub traffic: Traffic,
    /// Ops run again.
    pub recomputed: usize,
    /// Time spent in ops run again.
    pub recompute_time: Nanos,
}

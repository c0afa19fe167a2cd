//! What an imported file says of itself, and what importing changed.

use std::time::Duration;

use elbowroom_ir::{Bytes, Nanos};

use crate::detect::Kind;

/// A result that somebody published for the file's graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// Device memory for which it was found.
    pub memory: Bytes,
    /// The same as a limit on the load of the values in a trace read with [`Units::Published`](crate::Units::Published).
    pub load_limit: Bytes,
    /// Iteration time reached, without transfers.
    pub time: Nanos,
    /// Iteration time without a limit.
    pub unlimited_time: Nanos,
    /// How long the solver took.
    pub solver: Duration,
}

/// What an imported file says of itself, and what importing changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Notes {
    /// The kind found.
    pub kind: Kind,
    /// Where the file says it came from.
    pub origin: Option<String>,
    /// The peak that the file itself states.
    pub stated_peak: Option<Bytes>,
    /// The peak load of the program as the file records it, with its own frees; `None` for kinds that record no frees.
    pub recorded_peak: Option<Bytes>,
    /// The peak load of the trace when every value lives until its last use and every permitted reuse is taken.
    pub peak: Bytes,
    /// The total duration that the file itself states.
    pub stated_time: Option<Nanos>,
    /// Published results for this graph.
    pub references: Vec<Reference>,
    /// Bytes that the file counts beside the trace's values (parameters, gradients and batch), where the trace leaves them out.
    pub left_out: Bytes,
    /// What importing changed or assumed, a sentence each.
    pub remarks: Vec<String>,
}

impl Notes {
    /// Notes with nothing in them yet.
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            origin: None,
            stated_peak: None,
            recorded_peak: None,
            peak: Bytes::ZERO,
            stated_time: None,
            references: Vec::new(),
            left_out: Bytes::ZERO,
            remarks: Vec::new(),
        }
    }
}

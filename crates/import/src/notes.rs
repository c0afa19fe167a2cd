//! The description of an imported file, and what importing changed.

use std::fmt;
use std::time::Duration;

use elbowroom_ir::{Bytes, Nanos};

use crate::detect::Format;

/// A result that somebody published for the file's graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// Device memory for which it was found.
    pub memory: Bytes,
    /// The same as a limit on live memory of a trace read with [`Units::Published`](crate::Units::Published).
    pub live_limit: Bytes,
    /// Iteration time reached, without transfers.
    pub time: Nanos,
    /// Iteration time without a limit.
    pub unlimited_time: Nanos,
    /// How long the solver took.
    pub solver: Duration,
}

/// The description of an imported file, and what importing changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Notes {
    /// The kind found.
    pub kind: Format,
    /// Where the file says it came from.
    pub origin: Option<String>,
    /// The peak that the file itself states.
    pub stated_peak: Option<Bytes>,
    /// The peak load of the program as the file records it, with its own frees; `None` for kinds that record no frees.
    pub recorded_peak: Option<Bytes>,
    /// Peak memory of the trace if every tensor lives until its last use and every permitted reuse is taken.
    pub peak: Bytes,
    /// The total duration that the file itself states.
    pub stated_time: Option<Nanos>,
    /// Published results for this graph.
    pub references: Vec<Reference>,
    /// Bytes that the file counts in addition to the trace's tensors (parameters, gradients and batch), where the trace leaves them out.
    pub left_out: Bytes,
    /// What importing changed or assumed, a sentence each.
    pub remarks: Vec<String>,
}

impl Notes {
    /// Notes with nothing in them yet.
    pub(crate) fn new(kind: Format) -> Self {
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

/// A few lines for people.
impl fmt::Display for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(origin) = &self.origin {
            write!(f, " from {origin}")?;
        }
        write!(f, "\npeak load {}", self.peak)?;
        if let Some(recorded) = self.recorded_peak {
            write!(f, ", {recorded} with the recorded frees")?;
        }
        if !self.left_out.is_zero() {
            write!(f, ", and {} that are left out", self.left_out)?;
        }
        for Reference { memory, live_limit, time, unlimited_time, solver } in &self.references {
            let overhead = 100.0 * (time.ratio(*unlimited_time) - 1.0);
            write!(
                f,
                "\npublished for {memory} (load limit {live_limit}): {time}, {overhead:+.2} %, after {:.0} s",
                solver.as_secs_f64()
            )?;
        }
        self.remarks.iter().try_for_each(|remark| write!(f, "\n{remark}"))
    }
}

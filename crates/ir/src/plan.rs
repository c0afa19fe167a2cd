//! A schedule with a placement: everything needed to run one iteration. Plain data, not yet proved: see [`check`](crate::check).

use serde::{Deserialize, Serialize};

use crate::packing::Placement;
use crate::schedule::Schedule;
use crate::trace::Fingerprint;

/// A schedule and a placement for one trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The trace of the plan.
    pub trace: Fingerprint,
    /// The order of actions.
    pub schedule: Schedule,
    /// The offsets of buffers.
    pub placement: Placement,
}

//! A schedule with a placement: everything needed to run one iteration. Plain data, not yet believed: see [`check`](crate::check).

use serde::{Deserialize, Serialize};

use crate::packing::Placement;
use crate::schedule::Schedule;
use crate::trace::Fingerprint;

/// When and where, for one trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The trace that it was made for.
    pub trace: Fingerprint,
    /// When things happen.
    pub schedule: Schedule,
    /// Where buffers lie.
    pub placement: Placement,
}

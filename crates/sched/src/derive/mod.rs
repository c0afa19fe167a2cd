//! The plan of a part, derived from the plan of the whole: the same actions without those of the ops that the part lacks.
//!
//! A network with stochastic depth runs another structure in every iteration, so that no structure is worth a search. All of them are
//! parts of the largest one. Its plan decides for all of them:
//!
//! ```text
//! whole   F0   F1   F2   offload t0   F3   …   prefetch t0   B2   B1   B0
//! part    F0             offload t0   F3   …   prefetch t0             B0
//! ```
//!
//! **What is derived.** Every op of the part is an op of the whole: the one of the same name and kind. The part runs its ops in the order of the
//! plan and recomputes, offloads and prefetches where the plan does, unless nothing needs the result. Every residency keeps the offset that
//! the plan has for it.
//!
//! **Tensors that stand for others.** Where the whole reads the result of an op that the part lacks, the part reads another tensor, which
//! *stands for* it: the input of a residual block that is left out stands for its output. Such a tensor is needed for longer than
//! in the whole. It is offloaded and prefetched wherever either of the two is, and where one of them is resident in the plan it may
//! [stay](Holding) instead.
//!
//! **What stays open.** A residency that is longer than in the plan may run into bytes that the plan gives to others. It gets no offset
//! here; a packer places it between those that have one. A derived schedule is unproved, as any other: the checker decides.

mod events;
mod matching;
mod residencies;

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{BufferId, Bytes, OpId, Table};

use matching::Matching;

/// A derived schedule, without waits. They depend on the placement: [`waits::thin`](crate::waits::thin) adds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// The actions.
    pub schedule: Schedule,
    /// The offset that each buffer has in the plan of the whole; `None` for a buffer that has to be placed.
    pub offsets: Table<BufferId, Option<Bytes>>,
}

/// How long tensors stay in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// A tensor that the plan prefetches or recomputes although another one, for which it stands, is resident there is not fetched again: it
    /// stays in the arena until then.
    WhereThePlanHasBytes,
    /// A tensor stays until its last use before the plan fetches it again.
    AsShortAsPossible,
}

/// Why no schedule can be derived. Names are those of the part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Underivable {
    /// An op of the part is no op of the whole.
    #[error("the planned structure has no op {0}")]
    Op(String),
    /// The two have different persistent tensors.
    #[error("the planned structure has other persistent tensors")]
    Persistent,
    /// The order of the plan does not suit the part: a tensor would be read before it exists.
    #[error("the plan uses {0} before this structure has it")]
    Missing(String),
    /// The order of the plan does not suit the part: a tensor is read after it has been overwritten.
    #[error("the plan overwrites {0} before this structure has used it")]
    Overwritten(String),
    /// A persistent tensor does not end where it has to be when the next iteration begins.
    #[error("{0} would not return to where the next iteration expects it")]
    Boundary(String),
}

/// Derives the schedule of a part from the plan of the whole.
///
/// # Errors
///
/// [`Underivable`] if the part is none, or if it needs a tensor where the plan does not have it.
pub fn derive(whole: &CheckedPlan, part: &Trace, holding: Holding) -> Result<Derived, Underivable> {
    let matching = Matching::new(whole.trace(), part)?;
    let events = events::select(whole, part, &matching, holding)?;
    residencies::assign(whole, part, &events)
}

/// For each op of the whole, the same op of a part; `None` if the part lacks it.
///
/// # Errors
///
/// [`Underivable`] if the part is none.
pub fn same_ops(whole: &Trace, part: &Trace) -> Result<Table<OpId, Option<OpId>>, Underivable> {
    Ok(Matching::new(whole, part)?.op)
}

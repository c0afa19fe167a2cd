//! What lowering returns: a schedule with its figures, or why there is none.

use elbowroom_ir::planning::Request;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::{Bytes, Nanos, OpId, TensorId};

use super::analysis::PolicyError;
use super::program::{Program, Residency};
use crate::policy::{Policy, SequenceIndex};

/// A policy that needs more than the limit, at the place where it needs most.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error(
    "{} needs {needed}, with the tensors that the policy keeps: {missing} more than the limit",
    .op.map_or("the end of the iteration".to_owned(), |op| op.to_string())
)]
pub struct Shortfall {
    /// The place in the sequence; its length for the boundary.
    pub place: SequenceIndex,
    /// The op there; `None` for the boundary.
    pub op: Option<OpId>,
    /// The tensors on the device while it runs, its own inputs and outputs among them.
    pub resident: Vec<TensorId>,
    /// Live memory while it runs, its workspace included.
    pub needed: Bytes,
    /// Bytes by which it exceeds the limit.
    pub missing: Bytes,
}

/// Why there is no schedule for a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LowerError {
    /// The policy contradicts itself or its trace, at any limit.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The policy keeps too much for the limit.
    #[error(transparent)]
    Shortfall(#[from] Shortfall),
    /// The copies on the host exceed the host's memory.
    #[error("the copies on the host take {needed}, more than the {memory} that it has")]
    Host {
        /// Bytes of copies at once.
        needed: Bytes,
        /// The host's memory.
        memory: Bytes,
    },
}

/// A schedule with what its making has shown.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The schedule, with conservative waits.
    pub schedule: Schedule,
    /// Its iteration time, as the exact simulator finds it too.
    pub iteration: Nanos,
    /// Its peak memory.
    pub peak: Bytes,
}

/// The error for a place that needs more than the limit.
pub(crate) fn shortfall(
    request: &Request<'_>,
    policy: &Policy,
    program: &Program,
    place: SequenceIndex,
    needed: u64,
) -> Shortfall {
    let end = policy.sequence.len() as SequenceIndex;
    let covers = |residency: &&Residency| {
        program.first_place(residency) <= place
            && program.last_place(residency, end).is_some_and(|last| place <= last)
    };
    Shortfall {
        place,
        op: policy.sequence.get(place as usize).copied(),
        resident: program.residencies.iter().filter(covers).map(|r| r.value).collect(),
        needed: Bytes(needed),
        missing: Bytes(needed).saturating_sub(request.live_limit),
    }
}

//! What the planner reports through [`Observer::note`](elbowroom_ir::search::Observer::note): receivers downcast the note to these types.

use std::fmt;

use elbowroom_ir::Bytes;

use crate::network::Weights;

/// One pass over all decisions, as it ended.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Episode {
    /// Its number, from 1.
    pub number: u32,
    /// Episodes in all, if nothing ends the training before.
    pub of: u32,
    /// The share of its decisions that were random.
    pub exploration: f32,
    /// Sum of its rewards, in the environment's unit: what training maximizes.
    pub gain: f32,
    /// Iteration time of its plan in nanoseconds; if the plan does not fit, with a price for the missing bytes.
    pub cost: u64,
    /// Whether its plan fits the limit.
    pub fits: bool,
    /// The shortest iteration time of a plan that fits so far, in nanoseconds.
    pub best: Option<u64>,
}

/// The network at the end of training.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained(pub Weights);

/// All decisions of the network together leave the live memory above the limit, so that nothing is trained and a fixed rule answers. This is
/// the first note of a request; it comes before any rule has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfReach {
    /// The limit on live memory.
    pub limit: Bytes,
    /// Decisions in an episode.
    pub decisions: usize,
    /// What stays above the limit if all of them remove their tensors.
    pub missing: Bytes,
    /// Candidates for a decision, of which [`Settings::decisions`](crate::settings::Settings::decisions) bounds how many are decided.
    pub candidates: usize,
    /// What stays above the limit if all candidates are removed; zero if that reaches it.
    pub missing_of_all: Bytes,
}

impl fmt::Display for OutOfReach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, decisions, missing, candidates, missing_of_all } = self;
        write!(f, "its {decisions} decisions together leave {missing} above the limit of {limit}; ")?;
        match missing_of_all {
            _ if decisions == candidates => write!(f, "there are no more candidates"),
            &Bytes::ZERO => {
                write!(f, "--dqn decisions={candidates} takes all candidates, which may reach it")
            }
            left => write!(f, "all {candidates} candidates together leave {left}"),
        }
    }
}

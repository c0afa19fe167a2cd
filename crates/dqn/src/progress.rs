//! What the planner reports through [`Observer::note`](elbowroom_ir::search::Observer::note): receivers downcast the note to these types.

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

//! Why a training did not reach its end.

use elbowroom_engine::EngineError;

use crate::algorithms::AlgorithmError;
use crate::checkpoint::CheckpointError;
use crate::data::DataError;
use crate::explain::Refusal;
use crate::largest::LargestError;
use crate::network::NetworkError;
use crate::pipeline::{PlanError, Untraceable};
use crate::weights::WeightsError;

/// Why a training did not reach its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// No plan was found at this limit. The refusal contains the reason and the smallest limit for which a plan was found.
    #[error("{}", .0.sentence())]
    Refused(Box<Refusal>),
    /// The observer interrupted before the first iteration.
    #[error("interrupted before the first iteration, so that there is nothing to save")]
    Interrupted,
    /// There is no largest batch.
    #[error(transparent)]
    Largest(#[from] LargestError),
    /// Numerically different algorithms were requested, but the network varies: each structure would have its own.
    #[error(
        "numerically different algorithms are for networks whose structure does not vary: each structure would choose its own"
    )]
    NumericChanges,
    /// The network has no form for evaluation.
    #[error(
        "this network cannot be evaluated: it has no classes to find, or its structures have no common form"
    )]
    Unevaluable,
    /// The length of the training is in epochs, and the data has none.
    #[error("this data has no epochs: name the number of iterations, or the samples of an epoch")]
    NoEpochs,
    /// The batch cannot be computed in parts.
    #[error("a batch of {batch} cannot be computed in parts of {part}: {why}")]
    Parts {
        /// Samples of the batch.
        batch: usize,
        /// Samples of a part.
        part: usize,
        /// What is wrong, and what to do.
        why: &'static str,
    },
    /// The checkpoint contains all iterations of the training already.
    #[error(
        "nothing is left to train: the checkpoint contains {done} iterations, and {epochs} epochs are {total}"
    )]
    Complete {
        /// Iterations of the checkpoint.
        done: u64,
        /// Epochs requested.
        epochs: u64,
        /// Their iterations.
        total: u64,
    },
    /// No algorithms could be chosen.
    #[error(transparent)]
    Algorithms(#[from] AlgorithmError),
    /// Planning failed through a fault in this project.
    #[error(transparent)]
    Plan(PlanError),
    /// The data cannot be read or does not fit the network.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The run failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Weights cannot be read or written.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The sizes of the network cannot be traced.
    #[error(transparent)]
    Untraceable(#[from] Untraceable),
    /// The planners' order of ops is not an order, which is a fault in this project.
    #[error(transparent)]
    Order(#[from] elbowroom_ir::order::OrderError),
    /// The network or one of its structures cannot be built.
    #[error(transparent)]
    Network(#[from] NetworkError),
}

impl TrainError {
    /// Whether the state of the training is that after the last iteration. A failure within an iteration leaves it half updated.
    pub(super) fn leaves_state(&self) -> bool {
        matches!(
            self,
            Self::Data(_)
                | Self::Network(_)
                | Self::Plan(_)
                | Self::Untraceable(_)
                | Self::Order(_)
                | Self::Refused(_)
        )
    }

    /// The same error, or [`Interrupted`](Self::Interrupted) if it only says that an interrupted search found nothing.
    pub(super) fn or_interrupted(self, interrupted: bool) -> Self {
        match self {
            Self::Refused(_) | Self::Largest(_) | Self::Plan(_) if interrupted => Self::Interrupted,
            error => error,
        }
    }
}

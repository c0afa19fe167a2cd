//! Why a training did not reach its end.

use elbowroom_engine::EngineError;

use crate::algorithms::AlgorithmError;
use crate::checkpoint::CheckpointError;
use crate::data::DataError;
use crate::explain::Refusal;
use crate::largest::LargestError;
use crate::network::NetworkError;
use crate::pipeline::{PlanError, Untraceable};

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

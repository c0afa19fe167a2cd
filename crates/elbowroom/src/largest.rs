//! The largest batch that fits a limit, found by planning.

use std::sync::Arc;

use elbowroom_graph::Graph;
use elbowroom_ir::Bytes;
use elbowroom_ir::search::Observer;

use crate::algorithms::{self, Conditions};
use crate::network::{Network, NetworkError};
use crate::pipeline::{self, PlanError, Task, Untraceable};

/// The largest batch that is tried: the zoo's own bound.
const MOST: usize = 1 << 20;

/// Why there is no largest batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LargestError {
    /// Not even one sample fits, for this reason.
    #[error("not even a batch of one fits: {0}")]
    None(PlanError),
    /// The limit is a share of what the batch decides.
    #[error(
        "the largest batch needs a limit in bytes, like 600MiB: a share of the unconstrained peak fits every batch"
    )]
    Relative,
    /// The network has one batch.
    #[error("this network cannot be built for another batch, so there is no largest one")]
    Fixed,
    /// The network cannot be built even for one sample.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The network cannot be traced.
    #[error(transparent)]
    Untraceable(#[from] Untraceable),
    /// An illegal plan: a fault in this project.
    #[error(transparent)]
    Plan(PlanError),
}

/// The largest batch with its graph.
pub struct Largest {
    /// Samples in the batch.
    pub samples: usize,
    /// The network's largest structure for it.
    pub graph: Arc<Graph>,
}

/// The largest batch for which a plan is found within the limit, where the same search finds none for one sample more. A batch fits if
/// the first plan of a training would be found: from estimated durations and without a long search.
///
/// # Errors
///
/// A [`LargestError`].
pub fn largest(
    network: &dyn Network,
    conditions: &Conditions<'_>,
    observer: &dyn Observer,
) -> Result<Largest, LargestError> {
    let limit = conditions.memory.absolute().ok_or(LargestError::Relative)?;
    let fits = |batch: usize| fit(network, conditions, batch, limit, observer);
    let mut best = match fits(1)? {
        Ok(graph) => graph,
        Err(why) => return Err(LargestError::None(why)),
    };
    let (mut works, mut fails) = (1, MOST + 1);
    while works + 1 < fails && !observer.interrupted() {
        // Doubles until a batch does not fit, then halves the gap.
        let batch = if fails > MOST { (2 * works).min(MOST) } else { works.midpoint(fails) };
        match fits(batch) {
            Ok(Ok(graph)) => (best, works) = (graph, batch),
            // A network that is too large to be built does not fit.
            Ok(Err(_)) | Err(LargestError::Network(_)) => fails = batch,
            Err(error) => return Err(error),
        }
    }
    Ok(Largest { samples: works, graph: best })
}

/// The graph of a batch if it fits, with the smallest workspaces if only those fit and the [choice](algorithms::choose) of the training
/// considers them; or why it does not fit.
fn fit(
    network: &dyn Network,
    conditions: &Conditions<'_>,
    batch: usize,
    limit: Bytes,
    observer: &dyn Observer,
) -> Result<Result<Arc<Graph>, PlanError>, LargestError> {
    let plan = |graph: &Graph| -> Result<_, LargestError> {
        let task = Task::estimate(graph, conditions.machine, conditions.freedom)?.with_memory(limit);
        pipeline::plan_at_once(&task, conditions.method, observer).map_err(LargestError::Plan)
    };
    let graph = network.with_batch(batch).ok_or(LargestError::Fixed)?.largest()?;
    let why = match plan(&graph)? {
        Ok(_) => return Ok(Ok(graph)),
        Err(why) => why,
    };
    if algorithms::is_worth_choosing(conditions, &graph, limit) {
        let graph = algorithms::smallest(&graph);
        if plan(&graph)?.is_ok() {
            return Ok(Ok(graph));
        }
    }
    Ok(Err(why))
}

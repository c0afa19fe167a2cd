//! The largest batch that fits a limit, found by planning.

use std::sync::Arc;

use elbowroom_graph::Graph;
use elbowroom_graph::zoo::ZooError;
use elbowroom_ir::Bytes;
use elbowroom_ir::search::Observer;

use crate::algorithms;
use crate::pipeline::PlanError;
use crate::train::{self, TrainError, Training};

/// Batches are not looked for above this: the zoo's own bound.
const MOST: usize = 1 << 20;

/// Why there is no largest batch.
#[derive(Debug, thiserror::Error)]
pub enum LargestError {
    /// Not even one sample fits. Says why for one sample.
    #[error("not even a batch of one fits: {0}")]
    None(PlanError),
    /// The limit is a share of what the batch decides.
    #[error(
        "the largest batch needs a limit in bytes, like 600MiB: a share of the natural peak fits every batch"
    )]
    Relative,
    /// The network cannot be built even for one sample.
    #[error(transparent)]
    Zoo(#[from] ZooError),
    /// A graph cannot be planned by a fault of ours.
    #[error(transparent)]
    Train(#[from] TrainError),
}

/// The network at the largest batch for which a plan is found within the training's limit, where the same search finds none for one
/// sample more. `build` makes the network of a batch; the training's own graph is not looked at. Fitting is decided as the training's
/// first plan is made, from estimated durations and without a long search, so that the training then finds a plan.
pub fn largest(
    training: &Training<'_>,
    build: &dyn Fn(usize) -> Result<Graph, ZooError>,
    observer: &dyn Observer,
) -> Result<Arc<Graph>, LargestError> {
    let limit = training.memory.absolute().ok_or(LargestError::Relative)?;
    let fits = |batch: usize| fit(training, build, batch, limit, observer);
    let mut best = match fits(1)? {
        Ok(graph) => graph,
        Err(why) => return Err(LargestError::None(why)),
    };
    let (mut works, mut fails) = (1, MOST + 1);
    while works + 1 < fails && !observer.interrupted() {
        // Doubling until something does not fit, halving the gap from then on.
        let batch = if fails > MOST { (2 * works).min(MOST) } else { works.midpoint(fails) };
        match fits(batch) {
            Ok(Ok(graph)) => (best, works) = (graph, batch),
            // A network that is too large to be built is too large.
            Ok(Err(_)) | Err(LargestError::Zoo(_)) => fails = batch,
            Err(error) => return Err(error),
        }
    }
    Ok(best)
}

/// The graph of a batch if it fits, with the smallest workspaces if only those do and [`algorithms::choose`] looks at them; or why it does
/// not.
fn fit(
    training: &Training<'_>,
    build: &dyn Fn(usize) -> Result<Graph, ZooError>,
    batch: usize,
    limit: Bytes,
    observer: &dyn Observer,
) -> Result<Result<Arc<Graph>, PlanError>, LargestError> {
    let plan = |graph: &Graph| {
        let task = train::estimate(graph, &training.machine, training.freedom)?;
        train::plan_at_once(training, &task.with_memory(limit), observer)
    };
    let graph = Arc::new(build(batch)?);
    let why = match plan(&graph)? {
        Ok(_) => return Ok(Ok(graph)),
        Err(why) => why,
    };
    if algorithms::is_worth_choosing(training, &graph, limit) {
        let graph = algorithms::smallest(&graph);
        if plan(&graph)?.is_ok() {
            return Ok(Ok(graph));
        }
    }
    Ok(Err(why))
}

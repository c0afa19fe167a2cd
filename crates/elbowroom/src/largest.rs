//! The largest batch that fits a limit, found by planning.

use std::sync::Arc;
use std::time::Instant;

use elbowroom_graph::Graph;
use elbowroom_ir::Bytes;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::search::Observer;
use elbowroom_sched::deadline::Until;

use crate::algorithms::{self, AlgorithmChoice, Conditions};
use crate::network::{Network, NetworkError};
use crate::pipeline::{self, PlanError, Task, Untraceable};
use crate::tiles::{self, TileChoice};

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
    /// Weights cannot be cut into tiles.
    #[error(transparent)]
    Tiles(#[from] tiles::CutError),
    /// An illegal plan: a fault in this project.
    #[error(transparent)]
    Plan(PlanError),
}

/// A note to the observer: whether a batch of this many samples fits is tried now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TriedBatch(pub usize);

/// The largest batch with its graph.
pub struct Largest {
    /// Samples in the batch.
    pub samples: usize,
    /// The network's largest structure for it.
    pub graph: Arc<Graph>,
    /// Whether the search ended by itself: one sample more does not fit. Otherwise time or observer ended it.
    pub complete: bool,
}

/// The largest batch for which a plan is found within the limit, where the same search finds none for one sample more. A batch fits if
/// the first plan of a training would be found: from estimated durations, with large weights in tiles if need be, and without a long search. If
/// the method has a time budget, the search ends after that time with the largest batch found so far.
///
/// # Errors
///
/// A [`LargestError`].
pub fn largest(
    network: &dyn Network,
    conditions: &Conditions<'_>,
    tiles: TileChoice,
    observer: &dyn Observer,
) -> Result<Largest, LargestError> {
    largest_for(network, conditions, tiles, &[conditions.machine], observer)
}

/// As [`largest`], where a batch fits if it fits one of these machines: those whose links a training plans for.
pub(crate) fn largest_for(
    network: &dyn Network,
    conditions: &Conditions<'_>,
    tiles: TileChoice,
    machines: &[&Machine],
    observer: &dyn Observer,
) -> Result<Largest, LargestError> {
    let limit = conditions.memory.absolute().ok_or(LargestError::Relative)?;
    // The clock ends the search, not the first answer. Until then each plan may take the whole of its own time.
    let end = conditions.method.budget.time.and_then(|time| Instant::now().checked_add(time));
    observer.note(&TriedBatch(1));
    let mut best = match fit(network, conditions, tiles, machines, 1, limit, observer)? {
        Ok(graph) => graph,
        Err(why) => return Err(LargestError::None(why)),
    };
    let watch = Until::new(observer, end);
    let fits = |batch: usize| fit(network, conditions, tiles, machines, batch, limit, &watch);
    let (mut works, mut fails) = (1, MOST + 1);
    while works + 1 < fails && !watch.interrupted() {
        // Doubles until a batch does not fit, then halves the gap.
        let batch = if fails > MOST { (2 * works).min(MOST) } else { works.midpoint(fails) };
        observer.note(&TriedBatch(batch));
        match fits(batch) {
            Ok(Ok(graph)) => (best, works) = (graph, batch),
            // What was interrupted is no answer.
            Ok(Err(_)) if watch.interrupted() => break,
            // A network that is too large to be built does not fit.
            Ok(Err(_)) | Err(LargestError::Network(_)) => fails = batch,
            Err(error) => return Err(error),
        }
    }
    Ok(Largest { samples: works, graph: best, complete: works + 1 >= fails })
}

/// The graph of a batch if it [fits], or why it does not fit.
fn fit(
    network: &dyn Network,
    conditions: &Conditions<'_>,
    tiles: TileChoice,
    machines: &[&Machine],
    batch: usize,
    limit: Bytes,
    observer: &dyn Observer,
) -> Result<Result<Arc<Graph>, PlanError>, LargestError> {
    let graph = network.with_batch(batch).ok_or(LargestError::Fixed)?.largest()?;
    fits(graph, conditions, tiles, machines, limit, observer)
}

/// The graph if it fits, with the smallest workspaces if only those fit and the [choice](algorithms::choose) of the training considers
/// them; or why it does not fit.
pub(crate) fn fits(
    graph: Arc<Graph>,
    conditions: &Conditions<'_>,
    tiles: TileChoice,
    machines: &[&Machine],
    limit: Bytes,
    observer: &dyn Observer,
) -> Result<Result<Arc<Graph>, PlanError>, LargestError> {
    let plan = |graph: &Graph| -> Result<_, LargestError> {
        let mut first = None;
        for machine in machines {
            let task = Task::estimate(graph, machine, conditions.freedom)?.with_memory(limit);
            match pipeline::plan_or_for_less(&task, &conditions.method.at_once_within_time(), observer) {
                Err(error @ PlanError::Illegal(_)) => return Err(LargestError::Plan(error)),
                Err(error @ PlanError::GaveUp { .. }) => first = first.or(Some(error)),
                done => return Ok(done.map(|_| ())),
            }
        }
        Ok(first.map_or(Ok(()), Err))
    };
    // A training cuts large weights where the limit is too small for whole ones, and chooses algorithms for what it has cut.
    let tiled = match (conditions.algorithms, machines.first()) {
        (AlgorithmChoice::NumericChanges, _) | (_, None) => graph.clone(),
        (_, Some(machine)) => tiles::cut(&graph, tiles, limit, machine, conditions.freedom)?,
    };
    let why = match plan(&tiled)? {
        Ok(()) => return Ok(Ok(graph)),
        Err(why) => why,
    };
    if algorithms::is_worth_choosing(conditions, &tiled, limit)
        && plan(&algorithms::smallest(&tiled))?.is_ok()
    {
        // What is cut is cut again, from the whole weights.
        return Ok(Ok(if Arc::ptr_eq(&tiled, &graph) { algorithms::smallest(&graph) } else { graph }));
    }
    Ok(Err(why))
}

//! The largest batch that fits a limit, found by planning.

use std::sync::Arc;
use std::time::Instant;

use elbowroom_graph::Graph;
use elbowroom_ir::Bytes;
use elbowroom_ir::search::{Budget, Observer};
use elbowroom_sched::deadline::Until;

use crate::algorithms::{self, AlgorithmChoice, Conditions};
use crate::network::{Network, NetworkError};
use crate::pipeline::{self, Method, PlanError, Planned, Task, Untraceable};
use crate::tiles::{self, TileChoice};

/// The largest batch that is tried: the zoo's own bound.
const MOST: usize = 1 << 20;
/// Evaluations of the first search for each batch. Most batches that fit are found to fit by it, whatever a longer search would gain.
const FEW: u64 = 8;
/// The batch whose largest op shows how sizes grow: large enough that they exceed those of the weights.
const SAMPLED: usize = 256;

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
    /// A plan for this batch within the limit, of the graph with large weights in tiles if need be.
    pub planned: Planned,
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
    let limit = conditions.memory.absolute().ok_or(LargestError::Relative)?;
    // The clock ends the search, not the first answer. Until then each plan may take the whole of its own time.
    let end = conditions.method.budget.time.and_then(|time| Instant::now().checked_add(time));
    let search = Search { network, conditions, tiles, limit };
    observer.note(&TriedBatch(1));
    let first = match search.fits(1, Effort::Whole, observer)? {
        Ok(first) => first,
        Err(why) => return Err(LargestError::None(why)),
    };
    let watch = Until::new(observer, end);
    let mut found = Found { samples: 1, fitting: first };
    let complete = search.at_limit(&mut found, &watch)? && search.beyond(&mut found, &watch)?;
    let Fitting { graph, planned } = found.fitting;
    Ok(Largest { samples: found.samples, graph, complete, planned })
}

/// The largest batch that is known to fit.
struct Found {
    samples: usize,
    fitting: Fitting,
}

/// What shows that a batch fits.
pub(crate) struct Fitting {
    /// The graph of the batch, with whole weights.
    pub graph: Arc<Graph>,
    /// The plan that was found, for the graph with large weights in tiles if need be.
    pub planned: Planned,
}

/// How much is tried before a batch does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effort {
    /// A search of [`FEW`] evaluations.
    Quick,
    /// What a training tries before it refuses a limit: also the short search of a first plan, plans for less memory, and offload alone. Many
    /// times the work if a batch does not fit.
    Whole,
}

/// A search for the largest batch.
struct Search<'a> {
    network: &'a dyn Network,
    conditions: &'a Conditions<'a>,
    tiles: TileChoice,
    limit: Bytes,
}

impl Search<'_> {
    /// Finds where quick searches find no plan any more. `false` if the observer interrupted.
    fn at_limit(&self, found: &mut Found, watch: &dyn Observer) -> Result<bool, LargestError> {
        let mut fails = MOST + 1;
        let mut guess = self.guess();
        while found.samples + 1 < fails {
            let works = found.samples;
            let next = match guess.filter(|guess| (works + 1..fails).contains(guess)) {
                Some(guess) => guess,
                // Doubles until a batch does not fit, then halves the gap.
                None if fails > MOST => (2 * works).min(MOST),
                None => works.midpoint(fails),
            };
            let guessed = guess.take() == Some(next);
            match self.attempt(next, Effort::Quick, watch)? {
                None => return Ok(false),
                Some(Ok(fitting)) => *found = Found { samples: next, fitting },
                Some(Err(why)) => {
                    fails = next;
                    // Two guesses in a row could approach the end by one sample each.
                    guess = if guessed { None } else { why.and_then(|why| in_proportion(next, &why)) };
                }
            }
        }
        Ok(true)
    }

    /// Goes on from there with the whole effort, mostly for one sample more, which does not fit. `false` if the observer interrupted.
    fn beyond(&self, found: &mut Found, watch: &dyn Observer) -> Result<bool, LargestError> {
        let (mut step, mut fails) = (1, None);
        while fails.is_none_or(|fails| found.samples + 1 < fails) && found.samples < MOST {
            let works = found.samples;
            let next = fails.map_or((works + step).min(MOST), |fails| works.midpoint(fails));
            match self.attempt(next, Effort::Whole, watch)? {
                None => return Ok(false),
                Some(Ok(fitting)) => {
                    *found = Found { samples: next, fitting };
                    step *= 2;
                }
                Some(Err(_)) => fails = Some(next),
            }
        }
        Ok(true)
    }

    /// What shows that a batch fits, or why it does not, if that is known; `None` if the observer interrupted.
    #[allow(clippy::type_complexity)] // An answer, or none, with or without a reason.
    fn attempt(
        &self,
        batch: usize,
        effort: Effort,
        watch: &dyn Observer,
    ) -> Result<Option<Result<Fitting, Option<PlanError>>>, LargestError> {
        if watch.interrupted() {
            return Ok(None);
        }
        watch.note(&TriedBatch(batch));
        match self.fits(batch, effort, watch) {
            Ok(Ok(fitting)) => Ok(Some(Ok(fitting))),
            // What was interrupted is no answer.
            Ok(Err(_)) if watch.interrupted() => Ok(None),
            Ok(Err(why)) => Ok(Some(Err(Some(why)))),
            // A network that is too large to be built does not fit.
            Err(LargestError::Network(_)) => Ok(Some(Err(None))),
            Err(error) => Err(error),
        }
    }

    /// A batch to begin with: where the largest op of a batch shows how many samples no plan can hold, a quarter of these.
    fn guess(&self) -> Option<usize> {
        let needs = |batch: usize| {
            let graph = self.network.with_batch(batch)?.largest().ok()?;
            let task = Task::estimate(&graph, self.conditions.machine, self.conditions.freedom).ok()?;
            Some(pipeline::largest_op(&task).1.get())
        };
        let [few, many] = [needs(1)?, needs(SAMPLED)?];
        let each = many.checked_sub(few)? / (SAMPLED as u64 - 1);
        let most = self.limit.get().saturating_sub(few).checked_div(each)?;
        usize::try_from(most / 4).ok().map(|guess| guess.min(MOST))
    }

    /// What shows that a batch [fits], or why it does not fit.
    fn fits(
        &self,
        batch: usize,
        effort: Effort,
        observer: &dyn Observer,
    ) -> Result<Result<Fitting, PlanError>, LargestError> {
        let graph = self.network.with_batch(batch).ok_or(LargestError::Fixed)?.largest()?;
        fits_with(graph, self.conditions, self.tiles, self.limit, effort, observer)
    }
}

/// The batch that would fit if the bytes that were reached grew in proportion to it.
fn in_proportion(batch: usize, why: &PlanError) -> Option<usize> {
    match why {
        PlanError::GaveUp { limit, best: Some(reached) } if reached > limit => {
            Some((batch as f64 * limit.get() as f64 / reached.get() as f64) as usize)
        }
        _ => None,
    }
}

/// What shows that a graph fits, with the smallest workspaces if only those fit and the [choice](algorithms::choose) of the training considers
/// them; or why it does not fit.
pub(crate) fn fits(
    graph: Arc<Graph>,
    conditions: &Conditions<'_>,
    tiles: TileChoice,
    limit: Bytes,
    observer: &dyn Observer,
) -> Result<Result<Fitting, PlanError>, LargestError> {
    fits_with(graph, conditions, tiles, limit, Effort::Whole, observer)
}

fn fits_with(
    graph: Arc<Graph>,
    conditions: &Conditions<'_>,
    tiles: TileChoice,
    limit: Bytes,
    effort: Effort,
    observer: &dyn Observer,
) -> Result<Result<Fitting, PlanError>, LargestError> {
    let Conditions { machine, freedom, .. } = *conditions;
    let patient = conditions.method.at_once_within_time();
    let few = patient.budget.evaluations.map_or(FEW, |own| own.min(FEW));
    let quick =
        Method { budget: Budget { evaluations: Some(few), ..patient.budget.clone() }, ..patient.clone() };
    let plan = |graph: &Graph| -> Result<Result<Planned, PlanError>, LargestError> {
        let task = Task::estimate(graph, machine, freedom)?.with_memory(limit);
        let planned = match pipeline::plan(&task, &quick, observer) {
            Err(PlanError::GaveUp { .. }) if effort == Effort::Whole => {
                pipeline::plan_or_for_less(&task, &patient, observer)
                    .or_else(|why| pipeline::offload_alone(&task, observer).ok_or(why))
            }
            done => done,
        };
        match planned {
            Err(error @ PlanError::Illegal(_)) => Err(LargestError::Plan(error)),
            done => Ok(done),
        }
    };
    // A training cuts large weights where the limit is too small for whole ones, and chooses algorithms for what it has cut.
    let tiled = match conditions.algorithms {
        AlgorithmChoice::NumericChanges => graph.clone(),
        _ => tiles::cut(&graph, tiles, Some(limit), machine, freedom)?,
    };
    let why = match plan(&tiled)? {
        Ok(planned) => return Ok(Ok(Fitting { graph, planned })),
        Err(why) => why,
    };
    if algorithms::is_worth_choosing(conditions, &tiled, limit)
        && let Ok(planned) = plan(&algorithms::smallest(&tiled))?
    {
        // What is cut is cut again, from the whole weights.
        let graph = if Arc::ptr_eq(&tiled, &graph) { algorithms::smallest(&graph) } else { graph };
        return Ok(Ok(Fitting { graph, planned }));
    }
    Ok(Err(why))
}

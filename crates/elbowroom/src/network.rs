//! Networks as a training sees them: one graph, or another structure in every iteration.

mod model;
mod parts;
mod source;

use std::error::Error;
use std::sync::Arc;

use elbowroom_graph::zoo::ZooError;
use elbowroom_graph::{BuildError, Graph};
use elbowroom_onnx::OnnxError;
pub use elbowroom_onnx::Weight;

use crate::data::{POOL, Samples};

pub use model::Model;
pub(crate) use parts::InParts;
pub use source::Source;

/// Name of the output that holds the loss.
pub(crate) const LOSS: &str = "loss";
/// Name of the output that holds the number of rows classified correctly.
pub(crate) const HITS: &str = "hits";

/// Structures that are kept in memory at most; those that have not run for longest are forgotten first.
pub(crate) const KEPT_STRUCTURES: usize = 64;

/// What one iteration runs.
#[derive(Clone, Debug)]
pub struct Structure {
    /// The graph. All structures of a network have the same persistent tensors in the same order.
    pub graph: Arc<Graph>,
    /// The samples that the graph reads.
    pub samples: Samples,
}

/// A network to be trained.
///
/// A [`Graph`] is a network with one structure. A [`Model`] is a network of the zoo, which may vary from iteration to iteration and can be
/// built for any batch.
pub trait Network {
    /// The largest structure: a limit in percent refers to its unconstrained peak, and every structure must fit the limit.
    ///
    /// # Errors
    ///
    /// Any [`NetworkError`]. It ends the training.
    fn largest(&self) -> Result<Arc<Graph>, NetworkError>;

    /// Whether iterations run different structures. By default they do not.
    fn varies(&self) -> bool {
        false
    }

    /// What an iteration runs. Must depend on the iteration's number (from zero) and the seed alone. Called only if the network
    /// [varies](Self::varies); returns the same `Arc` where it can for a structure that occurs again.
    ///
    /// # Errors
    ///
    /// Any [`NetworkError`]. It ends the training.
    fn structure(&self, iteration: u64, _seed: u64) -> Result<Structure, NetworkError> {
        Structure::of(self.largest()?, iteration)
    }

    /// Samples after which an epoch ends, if its last batch may be smaller than the others; `None`, as by default, if all batches are of one
    /// size.
    fn samples_in_epoch(&self) -> Option<u64> {
        None
    }

    /// The network for evaluation: forward only, with the sum of the losses of its samples as output `loss` and the number of rows that it
    /// classifies correctly as output `hits`. Its inputs and its persistent tensors are those of the [largest](Self::largest) structure, in
    /// the same order ([`Graph::with_persistent_of`]); a label outside the classes counts for neither output. `None`, as by default, if the
    /// network cannot be evaluated.
    ///
    /// # Errors
    ///
    /// Any [`NetworkError`]. It ends the training.
    fn evaluation(&self) -> Result<Option<Arc<Graph>>, NetworkError> {
        Ok(None)
    }

    /// The values with which weights and statistics begin, by the names of the [largest](Self::largest) structure; the others are drawn from the
    /// seed. By default all are.
    ///
    /// # Errors
    ///
    /// Any [`NetworkError`]. It ends the training.
    fn initial_values(&self) -> Result<Vec<Weight>, NetworkError> {
        Ok(Vec::new())
    }

    /// The same network for batches of this many samples, or `None` if it cannot be built for another batch, as by default.
    fn with_batch(&self, _samples: usize) -> Option<Box<dyn Network>> {
        None
    }
}

/// Why there is no network or no structure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The zoo has no such network.
    #[error(transparent)]
    Zoo(#[from] ZooError),
    /// The ONNX file cannot be read, or its network cannot be built.
    #[error(transparent)]
    Onnx(#[from] OnnxError),
    /// The operands of an operation do not fit.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The position of an iteration's samples, or the number of the iteration after it, exceeds 64 bits.
    #[error(
        "iteration {iteration} exceeds the range of iterations: samples and iterations are counted in 64 bits"
    )]
    Iteration {
        /// The number of the iteration, from zero.
        iteration: u64,
    },
    /// A network of the user failed.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}

impl NetworkError {
    /// An error of a network outside this crate.
    pub fn other(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }
}

impl Structure {
    /// The structure of a graph that every iteration runs: the next batch of the endless sequence of epochs.
    ///
    /// # Errors
    ///
    /// [`NetworkError::Iteration`] if the position of its samples exceeds 64 bits.
    pub fn of(graph: Arc<Graph>, iteration: u64) -> Result<Self, NetworkError> {
        let samples = Samples::From(first_sample(iteration, samples(&graph))?);
        Ok(Self { graph, samples })
    }
}

/// The position of the first sample of an iteration if every batch has the same size. Leaves room for a whole pool of batches after it,
/// which sentences are drawn from.
fn first_sample(iteration: u64, batch: usize) -> Result<u64, NetworkError> {
    let end = iteration.checked_add(POOL).and_then(|end| end.checked_mul(batch as u64));
    end.map(|_| iteration * batch as u64).ok_or(NetworkError::Iteration { iteration })
}

/// Samples in a batch: the first extent of the first input, of all its parts if the batch is computed in parts; 1 without inputs.
pub fn samples(graph: &Graph) -> usize {
    let Some(first) = graph.inputs.first() else { return 1 };
    let parts = graph.inputs.iter().filter(|input| input.name == first.name);
    parts.map(|part| graph.tensors[part.tensor].shape.dims().first().copied().unwrap_or(1)).sum()
}

impl Network for Arc<Graph> {
    fn largest(&self) -> Result<Arc<Graph>, NetworkError> {
        Ok(self.clone())
    }
}

impl Network for Graph {
    fn largest(&self) -> Result<Arc<Graph>, NetworkError> {
        Ok(Arc::new(self.clone()))
    }
}

impl<N: Network + ?Sized> Network for &N {
    fn largest(&self) -> Result<Arc<Graph>, NetworkError> {
        (**self).largest()
    }
    fn varies(&self) -> bool {
        (**self).varies()
    }
    fn structure(&self, iteration: u64, seed: u64) -> Result<Structure, NetworkError> {
        (**self).structure(iteration, seed)
    }
    fn samples_in_epoch(&self) -> Option<u64> {
        (**self).samples_in_epoch()
    }
    fn evaluation(&self) -> Result<Option<Arc<Graph>>, NetworkError> {
        (**self).evaluation()
    }
    fn initial_values(&self) -> Result<Vec<Weight>, NetworkError> {
        (**self).initial_values()
    }
    fn with_batch(&self, samples: usize) -> Option<Box<dyn Network>> {
        (**self).with_batch(samples)
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_graph::zoo::{self, Options};

    use super::*;

    #[test]
    fn iterations_beyond_the_range_are_refused() {
        let graph = Arc::new(zoo::build("resnet20", &Options::new(8)).unwrap());
        let last = u64::MAX / 8 - POOL;
        assert_eq!(Structure::of(graph.clone(), last).unwrap().samples, Samples::From(8 * last));
        for iteration in [last + 1, u64::MAX / 8 + 1, u64::MAX] {
            let error = Structure::of(graph.clone(), iteration).unwrap_err().to_string();
            assert!(error.contains(&format!("iteration {iteration} exceeds")), "{error}");
        }
        let sentences = Model::new("seq2seq", Options::new(8)).unwrap();
        let epochs = Model::new("resnet20", Options::new(8)).unwrap().epoch(20);
        for model in [sentences, epochs] {
            assert!(matches!(model.structure(u64::MAX, 0), Err(NetworkError::Iteration { .. })));
        }
    }
}

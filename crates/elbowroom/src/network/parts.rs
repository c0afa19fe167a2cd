//! A network whose batches are computed in parts, and whose gradients may be clipped.

use std::sync::{Arc, Mutex, PoisonError};

use elbowroom_graph::Graph;

use super::{KEPT_STRUCTURES, Network, NetworkError, Structure, Weight};

/// A network with batches of several micro-batches: see [`Graph::accumulated`].
pub(crate) struct InParts<'a> {
    /// The network of one micro-batch.
    network: Box<dyn Network + 'a>,
    parts: usize,
    clip: Option<f32>,
    /// What was made from the graphs of the network.
    made: Mutex<Vec<(Arc<Graph>, Arc<Graph>)>>,
}

impl<'a> InParts<'a> {
    pub(crate) fn new(network: Box<dyn Network + 'a>, parts: usize, clip: Option<f32>) -> Self {
        Self { network, parts, clip, made: Mutex::default() }
    }

    /// The graph over all parts, the same one every time while it is kept.
    fn over_parts(&self, graph: &Arc<Graph>) -> Result<Arc<Graph>, NetworkError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, whole)) = made.iter().find(|(part, _)| Arc::ptr_eq(part, graph)) {
            return Ok(whole.clone());
        }
        let whole = Arc::new(graph.accumulated(self.parts, self.clip)?);
        if made.len() >= KEPT_STRUCTURES {
            made.remove(0);
        }
        made.push((graph.clone(), whole.clone()));
        Ok(whole)
    }
}

impl Network for InParts<'_> {
    fn largest(&self) -> Result<Arc<Graph>, NetworkError> {
        self.over_parts(&self.network.largest()?)
    }

    fn varies(&self) -> bool {
        self.network.varies()
    }

    fn structure(&self, iteration: u64, seed: u64) -> Result<Structure, NetworkError> {
        let Structure { graph, samples } = self.network.structure(iteration, seed)?;
        Ok(Structure { graph: self.over_parts(&graph)?, samples })
    }

    fn samples_in_epoch(&self) -> Option<u64> {
        self.network.samples_in_epoch()
    }

    fn with_batch(&self, samples: usize) -> Option<Box<dyn Network>> {
        let network = self.network.with_batch(samples.div_ceil(self.parts))?;
        samples
            .is_multiple_of(self.parts)
            .then(|| -> Box<dyn Network> { Box::new(InParts::new(network, self.parts, self.clip)) })
    }

    fn evaluation(&self) -> Result<Option<Arc<Graph>>, NetworkError> {
        self.network.evaluation()
    }

    fn initial_values(&self) -> Result<Vec<Weight>, NetworkError> {
        self.network.initial_values()
    }
}

//! Networks that change from iteration to iteration: the last batch of an epoch is smaller, residual branches are left out at random.
//! All of them have the same parameters.

use std::sync::{Arc, Mutex, PoisonError};

use elbowroom_graph::zoo::{self, Options, ZooError};
use elbowroom_graph::{Graph, Mode};

use crate::data::mix;

/// Which network an iteration runs, and on which samples.
#[derive(Clone, Debug)]
pub struct Lesson {
    /// The network.
    pub graph: Arc<Graph>,
    /// Place of its first sample in the endless sequence of epochs.
    pub first_sample: u64,
}

/// A network by name, with epochs of a given length and, where the network says so, another structure in every iteration.
#[derive(Debug)]
pub struct Changing {
    name: String,
    options: Options,
    /// Samples of an epoch; no batch goes from one epoch into the next.
    samples: Option<u64>,
    /// Determines the structures.
    seed: u64,
    /// Graphs without a random structure, by batch: few.
    made: Mutex<Vec<(usize, Arc<Graph>)>>,
}

/// Names that begin like this change their structure in training.
const STOCHASTIC: &str = "stochastic-";

impl Changing {
    /// The network of this name as it changes; nothing if it does not: without epochs, and with one structure.
    pub fn new(name: &str, options: &Options, samples: Option<u64>, seed: u64) -> Option<Self> {
        let drawn = name.starts_with(STOCHASTIC) && options.mode == Mode::Training;
        let whole = samples.is_none_or(|samples| samples.is_multiple_of(options.batch as u64));
        let this = || Self {
            name: name.to_owned(),
            options: options.clone(),
            samples: samples.filter(|&samples| samples > 0),
            seed,
            made: Mutex::default(),
        };
        (drawn || !whole).then(this)
    }

    /// What an iteration runs.
    pub fn at(&self, iteration: u64) -> Result<Lesson, ZooError> {
        let batch = self.options.batch as u64;
        let (first_sample, batch) = match self.samples {
            None => (iteration * batch, batch),
            Some(samples) => {
                let in_epoch = samples.div_ceil(batch);
                let done = iteration % in_epoch * batch;
                (iteration / in_epoch * samples + done, batch.min(samples - done))
            }
        };
        let batch = batch as usize;
        let drawn = self.name.starts_with(STOCHASTIC);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, graph)) = made.iter().find(|(size, _)| *size == batch && !drawn) {
            return Ok(Lesson { graph: graph.clone(), first_sample });
        }
        let draw = drawn.then(|| mix(self.seed, iteration));
        let graph = Arc::new(zoo::build(&self.name, &Options { batch, draw, ..self.options.clone() })?);
        if !drawn {
            made.push((batch, graph.clone()));
        }
        Ok(Lesson { graph, first_sample })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_batch_of_an_epoch_has_the_rest() {
        let changing = Changing::new("resnet20", &Options::new(8), Some(20), 1).unwrap();
        let lesson = |iteration| {
            let Lesson { graph, first_sample } = changing.at(iteration).unwrap();
            (first_sample, graph.values[graph.inputs[0].value].shape.dims()[0])
        };
        assert_eq!(
            (0..7).map(lesson).collect::<Vec<_>>(),
            [(0, 8), (8, 8), (16, 4), (20, 8), (28, 8), (36, 4), (40, 8)]
        );
        assert!(Arc::ptr_eq(&changing.at(0).unwrap().graph, &changing.at(4).unwrap().graph));
        assert!(Changing::new("resnet20", &Options::new(8), Some(24), 1).is_none());
        assert!(Changing::new("resnet20", &Options::new(8), None, 1).is_none());
    }

    #[test]
    fn a_random_structure_is_drawn_for_every_iteration_and_repeats_with_its_seed() {
        let nodes = |seed: u64| -> Vec<usize> {
            let changing = Changing::new("stochastic-resnet20", &Options::new(2), None, seed).unwrap();
            (0..8).map(|iteration| changing.at(iteration).unwrap().graph.nodes.len()).collect()
        };
        assert_eq!(nodes(1), nodes(1));
        assert_ne!(nodes(1), nodes(2));
        assert!(nodes(1).iter().any(|&count| count != nodes(1)[0]));
    }
}

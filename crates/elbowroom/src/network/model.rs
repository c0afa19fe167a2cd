//! Networks of the zoo and of ONNX files, as they vary: the last batch of an epoch is smaller, residual branches are left out at random, sentences are
//! longer and shorter.

use std::sync::{Arc, Mutex, PoisonError};

use elbowroom_graph::zoo::{Options, Variation, ZooError};
use elbowroom_graph::{Graph, Mode};

use super::{HITS, KEPT_STRUCTURES, Network, NetworkError, Source, Structure, Weight, first_sample};
use crate::data::sentences::Sentences;
use crate::data::{Samples, mix};

/// A network of the zoo by name, or of an ONNX file by its path ([`Source`]). It varies as the zoo says: `stochastic-resnetN` has another structure in every iteration, and `seq2seq` the
/// lengths of its sentences, unless [`Options::length`] fixes them. Other networks vary only if an epoch ends with a smaller batch.
///
/// ```
/// use elbowroom::graph::zoo::Options;
/// use elbowroom::network::{Model, Network};
///
/// let model = Model::new("resnet20", Options::new(8))?;
/// assert!(!model.varies());
/// assert!(model.epoch(20).varies(), "batches of 8, 8 and 4");
/// # Ok::<(), elbowroom::network::NetworkError>(())
/// ```
#[derive(Debug)]
pub struct Model {
    source: Source,
    options: Options,
    variation: Option<Variation>,
    epoch: Option<u64>,
    /// Graphs without a random structure, by what differs between them; the one that was used last is the last.
    built: Mutex<Vec<(Extents, Arc<Graph>)>>,
}

/// What differs between graphs without a random structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extents {
    batch: usize,
    length: Option<usize>,
    target: Option<usize>,
}

impl Model {
    /// The network of this name, or of the ONNX file at this path, with these options.
    ///
    /// # Errors
    ///
    /// [`NetworkError::Zoo`] if no network has this name, [`NetworkError::Onnx`] if the file cannot be read.
    pub fn new(name: impl Into<String>, options: Options) -> Result<Self, NetworkError> {
        Self::of(Source::open(name)?, options)
    }

    /// This network with these options.
    ///
    /// # Errors
    ///
    /// [`NetworkError::Zoo`] if no network has this name, [`NetworkError::Onnx`] if a file has impossible inputs.
    pub fn of(source: Source, options: Options) -> Result<Self, NetworkError> {
        source.resolved(&options)?;
        let variation = source
            .variation(options.mode)
            .filter(|varies| !matches!(varies, Variation::Lengths { .. }) || options.length.is_none());
        let model = Self { source, options, variation, epoch: None, built: Mutex::default() };
        Ok(match variation {
            Some(Variation::Lengths { longest }) => model.with_lengths(longest),
            _ => model,
        })
    }

    /// Ends an epoch after this many samples: its last batch has what is left of them. By default epochs follow one another without
    /// smaller batches. Zero means the default.
    pub fn epoch(self, samples: u64) -> Self {
        Self { epoch: Some(samples).filter(|&samples| samples > 0), ..self }
    }

    /// Sets the number of tokens of the longest sentence.
    ///
    /// # Errors
    ///
    /// [`NetworkError::Zoo`] if the network takes no sentences of different lengths.
    pub fn longest(self, tokens: usize) -> Result<Self, NetworkError> {
        match self.variation {
            Some(Variation::Lengths { .. }) => Ok(self.with_lengths(tokens)),
            _ => Err(NetworkError::Zoo(ZooError::Option {
                what: "longest sentence",
                value: tokens.to_string(),
                range: format!(
                    "left out, because {} takes no sentences of different lengths",
                    self.source.name()
                ),
            })),
        }
    }

    /// Whether the network, run forward, can be judged by labels: by a loss and by a count of labels that it finds.
    ///
    /// # Errors
    ///
    /// Those of [`Source::build`].
    pub fn can_evaluate(source: &Source, options: &Options) -> Result<bool, NetworkError> {
        let graph = source.build(&options.clone().mode(Mode::Evaluation))?;
        Ok(graph.outputs.iter().any(|output| output.name == HITS))
    }

    fn with_lengths(self, longest: usize) -> Self {
        let options = self.options.length(longest).target(longest);
        Self { options, variation: Some(Variation::Lengths { longest }), ..self }
    }

    /// The options, with the lengths of the largest structure.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The graph of these extents, the same one every time while it is kept.
    fn graph(&self, extents: Extents) -> Result<Arc<Graph>, NetworkError> {
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        let (extents, graph) = match built.iter().position(|(other, _)| *other == extents) {
            Some(at) => built.remove(at),
            None => {
                let Extents { batch, length, target } = extents;
                let options = self.options.clone().batch(batch).length(length).target(target);
                (extents, Arc::new(self.source.build(&options)?))
            }
        };
        if built.len() >= KEPT_STRUCTURES {
            built.remove(0);
        }
        built.push((extents, graph.clone()));
        Ok(graph)
    }
}

impl Network for Model {
    fn largest(&self) -> Result<Arc<Graph>, NetworkError> {
        Ok(Arc::new(self.source.build(&self.options)?))
    }

    fn varies(&self) -> bool {
        let whole = self.epoch.is_none_or(|samples| samples.is_multiple_of(self.options.batch as u64));
        self.variation.is_some() || !whole
    }

    fn structure(&self, iteration: u64, seed: u64) -> Result<Structure, NetworkError> {
        let Options { batch, length, target, .. } = self.options;
        let whole_batches = first_sample(iteration, batch)?;
        if let Some(Variation::Lengths { longest }) = self.variation {
            let sentences = Sentences { longest, samples: self.epoch, seed }.batch(iteration, batch);
            let extents = Extents { batch, length: Some(sentences.source), target: Some(sentences.target) };
            return Ok(Structure { graph: self.graph(extents)?, samples: Samples::Sentences(sentences) });
        }
        let (first, batch) = match self.epoch {
            None => (whole_batches, batch),
            Some(samples) => {
                let in_epoch = samples.div_ceil(batch as u64);
                let done = iteration % in_epoch * batch as u64;
                (iteration / in_epoch * samples + done, (samples - done).min(batch as u64) as usize)
            }
        };
        let graph = match self.variation {
            Some(Variation::Random) => {
                let draw = Some(mix(seed, iteration));
                Arc::new(self.source.build(&self.options.clone().batch(batch).draw(draw))?)
            }
            _ => self.graph(Extents { batch, length, target })?,
        };
        Ok(Structure { graph, samples: Samples::From(first) })
    }

    fn samples_in_epoch(&self) -> Option<u64> {
        self.epoch
    }

    fn evaluation(&self) -> Result<Option<Arc<Graph>>, NetworkError> {
        let options = self.options.clone().mode(Mode::Evaluation);
        if matches!(self.variation, Some(Variation::Lengths { .. })) {
            return Ok(None);
        }
        let graph = self.source.build(&options)?;
        if !graph.outputs.iter().any(|output| output.name == HITS) {
            return Ok(None);
        }
        let training = self.source.build(&self.options)?;
        Ok(Some(Arc::new(graph.with_persistent_of(&training)?)))
    }

    fn initial_values(&self) -> Result<Vec<Weight>, NetworkError> {
        self.source.initial_values(&self.options)
    }

    fn with_batch(&self, samples: usize) -> Option<Box<dyn Network>> {
        let options = self.options.clone().batch(samples);
        let Self { source, variation, epoch, .. } = self;
        let model = Self {
            source: source.clone(),
            options,
            variation: *variation,
            epoch: *epoch,
            built: Mutex::default(),
        };
        Some(Box::new(model))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_batch_of_an_epoch_has_the_rest() {
        let model = |samples| Model::new("resnet20", Options::new(8)).unwrap().epoch(samples);
        let epochs = model(20);
        let structure = |iteration| {
            let Structure { graph, samples } = epochs.structure(iteration, 1).unwrap();
            let Samples::From(first) = samples else { panic!("images are no sentences") };
            (first, graph.tensors[graph.inputs[0].tensor].shape.dims()[0])
        };
        assert_eq!(
            (0..7).map(structure).collect::<Vec<_>>(),
            [(0, 8), (8, 8), (16, 4), (20, 8), (28, 8), (36, 4), (40, 8)]
        );
        let graph = |iteration| epochs.structure(iteration, 1).unwrap().graph;
        assert!(Arc::ptr_eq(&graph(0), &graph(4)));
        assert!(epochs.varies() && !model(24).varies() && !model(0).varies());
        assert!(!Model::new("resnet20", Options::new(8)).unwrap().varies());
    }

    #[test]
    fn a_random_structure_is_drawn_for_every_iteration_and_repeats_with_its_seed() {
        let model = Model::new("stochastic-resnet20", Options::new(2)).unwrap();
        assert!(model.varies());
        let nodes = |seed: u64| -> Vec<usize> {
            (0..8).map(|iteration| model.structure(iteration, seed).unwrap().graph.nodes.len()).collect()
        };
        assert_eq!(nodes(1), nodes(1));
        assert_ne!(nodes(1), nodes(2));
        assert!(nodes(1).iter().any(|&count| count != nodes(1)[0]));
    }

    #[test]
    fn a_translator_has_the_lengths_of_its_sentences_and_one_set_of_parameters() {
        let options = Options::new(4).width(8);
        let model = Model::new("seq2seq", options.clone()).unwrap().longest(12).unwrap();
        let names = |graph: &Graph| -> Vec<String> {
            graph.persistent.iter().map(|parameter| parameter.name.clone()).collect()
        };
        let (mut lengths, first) = (Vec::new(), model.structure(0, 1).unwrap().graph);
        for iteration in 0..40 {
            let Structure { graph, samples } = model.structure(iteration, 1).unwrap();
            let Samples::Sentences(batch) = samples else { panic!("a translator takes sentences") };
            assert_eq!(graph.tensors[graph.inputs[0].tensor].shape.dims(), [4, batch.source + batch.target]);
            assert_eq!(names(&graph), names(&first));
            lengths.push((batch.source, batch.target));
        }
        assert!(lengths.windows(2).any(|pair| pair[0] != pair[1]));
        let repeated = (1..40).find(|&at| lengths[at] == lengths[0]).unwrap() as u64;
        assert!(Arc::ptr_eq(&model.structure(repeated, 1).unwrap().graph, &first));
        let fixed = Model::new("seq2seq", options.clone().length(5)).unwrap();
        assert!(!fixed.varies() && fixed.longest(12).is_err());
        let inference = options.mode(Mode::Inference);
        assert_eq!(Model::new("seq2seq", inference).unwrap().options().length, Some(100));
        assert!(Model::new("lstm", Options::new(1)).unwrap().longest(12).is_err());
    }

    #[test]
    fn another_batch_keeps_everything_else() {
        let model = Model::new("resnet20", Options::new(8)).unwrap().epoch(20);
        let other = model.with_batch(10).unwrap();
        assert!(model.varies() && !other.varies());
        assert_eq!(super::super::samples(&other.largest().unwrap()), 10);
        assert!(model.largest().unwrap().with_batch(10).is_none(), "a graph has one batch");
    }
}

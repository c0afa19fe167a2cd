//! Networks that change from iteration to iteration: the last batch of an epoch is smaller, residual branches are left out at random,
//! sentences are longer and shorter. All forms have the same parameters.

use std::sync::{Arc, Mutex, PoisonError};

use elbowroom_graph::zoo::{self, Options, ZooError};
use elbowroom_graph::{Graph, Mode};

use crate::data::mix;
use crate::data::sentences::{Batch, Sentences};

/// Which network an iteration runs, and on which samples.
#[derive(Clone, Debug)]
pub struct Lesson {
    /// The network.
    pub graph: Arc<Graph>,
    /// What it is given.
    pub samples: Samples,
}

/// The samples of an iteration.
#[derive(Clone, Debug)]
pub enum Samples {
    /// As many as the batch has, from this place of the endless sequence of epochs on.
    From(u64),
    /// These pairs of sentences.
    Sentences(Batch),
}

/// What changes about a network besides what its name says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Varying {
    /// Samples of an epoch. No batch goes from one epoch into the next, except that pairs of sentences only repeat.
    pub samples: Option<u64>,
    /// Whether a translator's batches have the lengths of their sentences, those of the options being the longest.
    pub lengths: bool,
}

/// A network by name, with epochs of a given length and, where the network says so, another structure or other lengths in every iteration.
#[derive(Debug)]
pub struct Changing {
    name: String,
    options: Options,
    samples: Option<u64>,
    sentences: Option<Sentences>,
    /// Determines the structures.
    seed: u64,
    /// Graphs without a random structure, by what differs between them: the one that was asked for last at the end.
    made: Mutex<Vec<(Form, Arc<Graph>)>>,
}

/// What differs between graphs without a random structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    batch: usize,
    length: Option<usize>,
    target: Option<usize>,
}

/// Names that begin like this change their structure in training.
const STOCHASTIC: &str = "stochastic-";
/// The network that takes pairs of sentences.
const TRANSLATOR: &str = "seq2seq";
/// Graphs, and what is known about their traces, that are kept at most; those that were not asked for longest are given up first.
pub(super) const FORMS: usize = 64;

/// Words of the longest sentence that a network is given, where its batches have the lengths of their sentences: 50 in training, 100 in
/// inference; none for a network that does not translate.
pub fn longest_sentence(name: &str, mode: Mode) -> Option<usize> {
    (name == TRANSLATOR).then_some(if mode == Mode::Training { 50 } else { 100 })
}

impl Changing {
    /// The network of this name as it changes; nothing if it does not: without epochs, and with one structure and one length.
    pub fn new(name: &str, options: &Options, varying: Varying, seed: u64) -> Option<Self> {
        let Varying { samples, lengths } = varying;
        let drawn = name.starts_with(STOCHASTIC) && options.mode == Mode::Training;
        let sentences = (name == TRANSLATOR && lengths).then(|| Sentences {
            longest: options.length.unwrap_or(1),
            samples,
            seed,
        });
        let whole = samples.is_none_or(|samples| samples.is_multiple_of(options.batch as u64));
        let changes = drawn || sentences.is_some() || !whole;
        changes.then(|| Self {
            name: name.to_owned(),
            options: options.clone(),
            samples: samples.filter(|&samples| samples > 0),
            sentences,
            seed,
            made: Mutex::default(),
        })
    }

    /// What an iteration runs.
    pub fn at(&self, iteration: u64) -> Result<Lesson, ZooError> {
        let Options { batch, length, target, .. } = self.options;
        if let Some(sentences) = &self.sentences {
            let pairs = sentences.batch(iteration, batch);
            let form = Form { batch, length: Some(pairs.source), target: Some(pairs.target) };
            return Ok(Lesson { graph: self.form(form)?, samples: Samples::Sentences(pairs) });
        }
        let (first, batch) = match self.samples {
            None => (iteration * batch as u64, batch),
            Some(samples) => {
                let in_epoch = samples.div_ceil(batch as u64);
                let done = iteration % in_epoch * batch as u64;
                (iteration / in_epoch * samples + done, (samples - done).min(batch as u64) as usize)
            }
        };
        let graph = match self.name.starts_with(STOCHASTIC) {
            true => {
                let draw = Some(mix(self.seed, iteration));
                Arc::new(zoo::build(&self.name, &Options { batch, draw, ..self.options.clone() })?)
            }
            false => self.form(Form { batch, length, target })?,
        };
        Ok(Lesson { graph, samples: Samples::From(first) })
    }

    /// The graph of a form, the same one every time that it comes while it is kept.
    fn form(&self, form: Form) -> Result<Arc<Graph>, ZooError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let (form, graph) = match made.iter().position(|(other, _)| *other == form) {
            Some(at) => made.remove(at),
            None => {
                let Form { batch, length, target } = form;
                let options = Options { batch, length, target, ..self.options.clone() };
                (form, Arc::new(zoo::build(&self.name, &options)?))
            }
        };
        if made.len() >= FORMS {
            made.remove(0);
        }
        made.push((form, graph.clone()));
        Ok(graph)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs(samples: u64) -> Varying {
        Varying { samples: Some(samples), ..Varying::default() }
    }

    #[test]
    fn the_last_batch_of_an_epoch_has_the_rest() {
        let changing = Changing::new("resnet20", &Options::new(8), epochs(20), 1).unwrap();
        let lesson = |iteration| {
            let Lesson { graph, samples } = changing.at(iteration).unwrap();
            let Samples::From(first) = samples else { panic!("images are no sentences") };
            (first, graph.values[graph.inputs[0].value].shape.dims()[0])
        };
        assert_eq!(
            (0..7).map(lesson).collect::<Vec<_>>(),
            [(0, 8), (8, 8), (16, 4), (20, 8), (28, 8), (36, 4), (40, 8)]
        );
        assert!(Arc::ptr_eq(&changing.at(0).unwrap().graph, &changing.at(4).unwrap().graph));
        assert!(Changing::new("resnet20", &Options::new(8), epochs(24), 1).is_none());
        assert!(Changing::new("resnet20", &Options::new(8), Varying::default(), 1).is_none());
    }

    #[test]
    fn a_random_structure_is_drawn_for_every_iteration_and_repeats_with_its_seed() {
        let nodes = |seed: u64| -> Vec<usize> {
            let changing =
                Changing::new("stochastic-resnet20", &Options::new(2), Varying::default(), seed).unwrap();
            (0..8).map(|iteration| changing.at(iteration).unwrap().graph.nodes.len()).collect()
        };
        assert_eq!(nodes(1), nodes(1));
        assert_ne!(nodes(1), nodes(2));
        assert!(nodes(1).iter().any(|&count| count != nodes(1)[0]));
    }

    #[test]
    fn a_translator_has_the_lengths_of_its_sentences_and_one_set_of_parameters() {
        let longest = Some(12);
        let options = Options { length: longest, target: longest, width: Some(8), ..Options::new(4) };
        let varying = Varying { lengths: true, ..Varying::default() };
        let changing = Changing::new("seq2seq", &options, varying, 1).unwrap();
        let names = |graph: &Graph| -> Vec<String> {
            graph.persistent.iter().map(|parameter| parameter.name.clone()).collect()
        };
        let (mut forms, first) = (Vec::new(), changing.at(0).unwrap().graph);
        for iteration in 0..40 {
            let Lesson { graph, samples } = changing.at(iteration).unwrap();
            let Samples::Sentences(batch) = samples else { panic!("a translator takes sentences") };
            assert_eq!(graph.values[graph.inputs[0].value].shape.dims(), [4, batch.source + batch.target]);
            assert_eq!(names(&graph), names(&first));
            forms.push((batch.source, batch.target));
        }
        assert!(forms.windows(2).any(|pair| pair[0] != pair[1]));
        let again = (1..40).find(|&at| forms[at] == forms[0]).unwrap() as u64;
        assert!(Arc::ptr_eq(&changing.at(again).unwrap().graph, &first));
        assert!(Changing::new("seq2seq", &options, Varying::default(), 1).is_none());
        assert_eq!(longest_sentence("seq2seq", Mode::Inference), Some(100));
        assert_eq!(longest_sentence("lstm", Mode::Training), None);
    }
}

//! From a data set to the inputs of a graph: which samples each iteration sees.

use std::path::Path;

use elbowroom_graph::{Graph, Shape};

use super::batch::{Kind, NO_LABEL};
use super::order::EpochOrder;
use super::sentences::SentenceBatch;
use super::{Augmentation, Batch, DataError, Dataset, TokenShape, Tokenizer, open_tokenized};

/// The samples of one iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Samples {
    /// As many as the batch has, from this position of the endless sequence of epochs on.
    From(u64),
    /// These pairs of sentences, padded to common lengths.
    Sentences(SentenceBatch),
}

/// The token that fills up a sentence. Any would do, because its label counts for no loss.
const PADDING: i32 = 0;

/// A data set in the order in which a training sees it. Buffers are kept from one iteration to the next.
pub struct Feed<'a> {
    dataset: Box<dyn Dataset + 'a>,
    /// The order of every epoch; `None` for data without an end.
    order: Option<EpochOrder>,
    /// Buffers by the shapes of a graph's inputs.
    batches: Vec<(Vec<Shape>, Batch)>,
    indices: Vec<u64>,
    /// How images are changed, and the seed that decides it.
    augmentation: (Augmentation, u64),
    /// Whether the samples come once and in their own order.
    one_pass: bool,
    /// Samples of the last batch, and its labels that count.
    part: (usize, u64),
    /// Position of the last batch in `batches`.
    last: usize,
}

impl<'a> Feed<'a> {
    /// The samples of a data set, shuffled by seed and epoch.
    ///
    /// # Errors
    ///
    /// [`DataError::Samples`] if the data set has no samples or more than 2³² − 1.
    pub fn new(dataset: Box<dyn Dataset + 'a>, seed: u64) -> Result<Self, DataError> {
        let order = |samples: u64| match u32::try_from(samples) {
            Ok(count) if count > 0 => Ok(EpochOrder::new(count, seed)),
            _ => Err(DataError::Samples { samples }),
        };
        let order = dataset.samples().map(order).transpose()?;
        Ok(Self {
            dataset,
            order,
            batches: Vec::new(),
            indices: Vec::new(),
            augmentation: (Augmentation::default(), seed),
            one_pass: false,
            part: (0, 0),
            last: 0,
        })
    }

    /// Changes images before the network sees them; other data stays as it is.
    pub fn augmented(mut self, augmentation: Augmentation) -> Self {
        self.augmentation.0 = augmentation;
        self
    }

    /// Reads the samples once and in their own order. What fills up the last batch repeats the first sample, without a label.
    ///
    /// # Errors
    ///
    /// [`DataError::Endless`] if the data has no end.
    pub(crate) fn in_one_pass(mut self) -> Result<(Self, u64), DataError> {
        let samples = self.dataset.samples().ok_or(DataError::Endless)?;
        (self.order, self.one_pass) = (None, true);
        Ok((self, samples))
    }

    /// Samples of the last batch that was read, and its labels that count.
    pub(crate) fn part(&self) -> (usize, u64) {
        self.part
    }

    /// The last batch that was read.
    pub(crate) fn batch(&self) -> Option<&Batch> {
        self.batches.get(self.last).map(|(_, batch)| batch)
    }

    /// The data at a path for a graph, or synthetic data without one ([`open`](super::open())).
    ///
    /// # Errors
    ///
    /// Those of [`open`](super::open()).
    pub fn open(graph: &Graph, path: Option<&Path>, seed: u64) -> Result<Self, DataError> {
        Self::open_tokenized(graph, path, seed, &Tokenizer::default())
    }

    /// As [`open`](Self::open), where a text is cut into tokens in another way.
    ///
    /// # Errors
    ///
    /// Those of [`open`](super::open()).
    pub fn open_tokenized(
        graph: &Graph,
        path: Option<&Path>,
        seed: u64,
        tokenizer: &Tokenizer,
    ) -> Result<Self, DataError> {
        let dataset =
            open_tokenized(&Batch::new(graph), path, seed, tokenizer).map_err(|error| match error {
                DataError::Mismatch(why) => DataError::Mismatch(format!("{}: {why}", graph.name)),
                error => error,
            })?;
        Self::new(dataset, seed)
    }

    /// Gives the memory of all batches back, until another is read.
    pub(crate) fn give_back(&mut self) {
        (self.batches, self.last) = (Vec::new(), 0);
    }

    /// Names of the classes of the data, if it has any.
    pub(crate) fn class_names(&self) -> Option<Vec<String>> {
        self.dataset.class_names()
    }

    /// What to know if the network has more classes than the data: outputs that no sample trains. `None` if it has not.
    pub(crate) fn spare_classes(&self, graph: &Graph) -> Option<String> {
        let named = self.class_names().map_or(0, |names| names.len());
        let classes = Batch::new(graph).label_classes().filter(|&classes| 0 < named && named < classes)?;
        let spare = classes - named;
        Some(format!(
            "the data has {named} classes and the network {classes}: no sample trains the other {spare}; use --classes {named} unless they are meant"
        ))
    }

    /// Samples of an epoch for a graph; `None` if the data has no epochs.
    pub fn epoch(&self, graph: &Graph) -> Option<u64> {
        self.dataset.epoch(&Batch::new(graph))
    }

    /// Reads the samples of an iteration into the inputs of a graph.
    ///
    /// # Errors
    ///
    /// Those of the data set.
    pub fn read(&mut self, graph: &Graph, samples: &Samples) -> Result<&Batch, DataError> {
        let shapes: Vec<Shape> = graph.inputs.iter().map(|input| graph.tensors[input.tensor].shape).collect();
        let at = self.batches.iter().position(|(known, _)| *known == shapes).unwrap_or_else(|| {
            self.batches.push((shapes, Batch::new(graph)));
            self.batches.len() - 1
        });
        self.last = at;
        let Self {
            dataset, order, batches, indices, augmentation: (augmentation, seed), one_pass, part, ..
        } = self;
        let batch = &mut batches[at].1;
        let mut index = |position: u64| match order {
            Some(order) => u64::from(order.sample(position)),
            None => position,
        };
        match samples {
            Samples::From(first) => {
                indices.clear();
                indices.extend((*first..).take(batch.samples()).map(index));
                let samples = dataset.samples().filter(|_| *one_pass);
                if let Some(samples) = samples {
                    indices.iter_mut().filter(|index| **index >= samples).for_each(|index| *index = 0);
                }
                dataset.fill(indices, batch)?;
                if let Some(samples) = samples {
                    let here = samples.saturating_sub(*first).min(batch.samples() as u64) as usize;
                    batch.ignore_labels_after(here);
                    *part = (here, batch.counted_labels());
                } else {
                    *part = (batch.samples(), batch.counted_labels());
                }
                if *augmentation != Augmentation::default()
                    && let Ok(mut images) = batch.images("augmentation")
                {
                    augmentation.apply(&mut images, *seed, *first);
                }
            }
            Samples::Sentences(sentences) => {
                read_sentences(dataset.as_mut(), &mut index, sentences, batch)?;
                *part = (batch.samples(), batch.counted_labels());
            }
        }
        Ok(batch)
    }
}

/// Reads pairs of sentences into the tokens of a translator: the padding of a source lies before it, that of a translation after it, and
/// no padding counts as a label.
fn read_sentences(
    dataset: &mut dyn Dataset,
    index: &mut dyn FnMut(u64) -> u64,
    sentences: &SentenceBatch,
    batch: &mut Batch,
) -> Result<(), DataError> {
    let labelled = batch.labelled();
    let Some(Kind::Tokens(shape)) = batch.kind() else {
        return Err(DataError::Mismatch("sentences are for networks that take tokens".to_owned()));
    };
    let (rows, whole) = (sentences.pairs.len(), sentences.source + sentences.target);
    if (rows, whole) != (shape.batch, shape.length) {
        let (batch, length) = (shape.batch, shape.length);
        let why = format!("{rows} rows of {whole} tokens for {batch} rows of {length}");
        return Err(DataError::Mismatch(why));
    }
    let inputs = batch.tokens("a translation")?;
    inputs.tokens.fill(PADDING);
    inputs.following.fill(NO_LABEL);
    for (row, pair) in sentences.pairs.iter().enumerate() {
        let length = pair.source + pair.target;
        if pair.source > sentences.source || pair.target > sentences.target {
            let why = format!("a pair of {length} tokens is longer than its batch");
            return Err(DataError::Mismatch(why));
        }
        let mut single = Batch::of_tokens(TokenShape { batch: 1, length, ..shape }, labelled);
        dataset.fill(&[index(pair.sample)], &mut single)?;
        let single = single.tokens("a translation")?;
        let first = row * whole + sentences.source - pair.source;
        inputs.tokens[first..first + length].copy_from_slice(single.tokens);
        if labelled {
            let first = row * whole + sentences.source;
            inputs.following[first..first + pair.target].copy_from_slice(&single.following[pair.source..]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use elbowroom_graph::Mode;
    use elbowroom_graph::zoo::{self, Options};

    use super::*;
    use crate::data::sentences::SentencePair;

    #[test]
    fn sentences_lie_around_the_position_at_which_the_translation_begins() {
        let options = Options::new(2).length(4).target(5).width(8);
        let graph = zoo::build("seq2seq", &options).unwrap();
        let mut feed = Feed::open(&graph, None, 7).unwrap();
        let pair = |sample, source, target| SentencePair { sample, source, target };
        let batch = SentenceBatch { source: 4, target: 5, pairs: vec![pair(3, 2, 5), pair(9, 4, 1)] };
        let slots: Vec<Vec<i32>> = feed
            .read(&graph, &Samples::Sentences(batch.clone()))
            .unwrap()
            .slots()
            .map(|slot| slot.chunks(4).map(|w| i32::from_ne_bytes([w[0], w[1], w[2], w[3]])).collect())
            .collect();
        let rows = |slot: usize, row: usize| &slots[slot][9 * row..9 * row + 9];
        assert_eq!(rows(0, 0)[..2], [0, 0]);
        assert_eq!(rows(0, 1)[5..], [0; 4]);
        assert_eq!(rows(1, 0)[..4], [-1; 4]);
        // A label is the token that follows.
        assert_eq!(rows(1, 0)[4..8], rows(0, 0)[5..9]);
        assert_eq!(rows(1, 1)[5..], [-1; 4]);
        assert!(rows(1, 1)[4] >= 0 && rows(1, 0)[8] >= 0);
        let long = SentenceBatch { pairs: vec![pair(3, 5, 1), pair(9, 4, 1)], ..batch.clone() };
        assert!(feed.read(&graph, &Samples::Sentences(long)).is_err());
        assert!(feed.read(&graph, &Samples::Sentences(SentenceBatch { source: 5, ..batch })).is_err());
    }

    #[test]
    fn every_kind_of_network_is_fed_with_and_without_labels() {
        for name in ["resnet18", "unet", "kmeans", "lstm", "seq2seq", "gpt"] {
            for mode in [Mode::Training, Mode::Inference] {
                let options = Options::new(3).mode(mode).image(32).length(4);
                let graph = zoo::build(name, &options).unwrap();
                let mut feed = Feed::open(&graph, None, 7).unwrap();
                let batch = feed.read(&graph, &Samples::From(2)).unwrap();
                let slots: Vec<Vec<u8>> = batch.slots().map(<[u8]>::to_vec).collect();
                let sizes: Vec<u64> = slots.iter().map(|slot| slot.len() as u64).collect();
                let expected: Vec<u64> =
                    graph.inputs.iter().map(|input| graph.tensors[input.tensor].bytes().get()).collect();
                assert_eq!(sizes, expected, "{name} {mode:?}");
                assert!(slots[0].iter().any(|&byte| byte != 0), "{name}");
            }
        }
    }

    /// Records the requested indices.
    struct Notes<'a>(Option<u64>, &'a std::sync::Mutex<Vec<u64>>);

    impl Dataset for Notes<'_> {
        fn samples(&self) -> Option<u64> {
            self.0
        }
        fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError> {
            assert_eq!(indices.len(), batch.samples());
            self.1.lock().unwrap().extend(indices);
            Ok(())
        }
    }

    #[test]
    fn every_epoch_visits_every_sample_once_and_endless_data_counts_up() {
        let graph = zoo::build("kmeans", &Options::new(4)).unwrap();
        let indices = |samples: Option<u64>| {
            let notes = std::sync::Mutex::new(Vec::new());
            let mut feed = Feed::new(Box::new(Notes(samples, &notes)), 1).unwrap();
            for first in [0, 4, 8, 12] {
                feed.read(&graph, &Samples::From(first)).unwrap();
            }
            drop(feed);
            notes.into_inner().unwrap()
        };
        assert_eq!(indices(None), (0..16).collect::<Vec<_>>());
        let seen = indices(Some(8));
        for epoch in seen.chunks(8) {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..8).collect::<Vec<_>>());
        }
        assert_ne!(seen[..8], seen[8..]);
        let notes = std::sync::Mutex::new(Vec::new());
        for samples in [0, 1 << 32] {
            let error = Feed::new(Box::new(Notes(Some(samples), &notes)), 1).err().unwrap();
            assert!(error.to_string().contains(&samples.to_string()), "{error}");
        }
    }
}

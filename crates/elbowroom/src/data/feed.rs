//! From data to the inputs of a graph: which source fills which slot.

use std::path::Path;

use elbowroom_graph::{Content, Graph};

use super::sentences::Batch;
use super::{DataError, ImageShape, Images, Synthetic, Text, TokenShape, Tokens, open_images};

/// What a graph trains on.
enum Source {
    /// Slot 0 is images, slot 1 their classes, where the graph learns from them.
    Images(ImageShape, Box<dyn Images>),
    /// Slot 0 is images, slot 1 a class for every pixel. Made on the spot only.
    Segments(ImageShape, Synthetic),
    /// Slot 0 is points `[batch, width]`, and there is no other. Made on the spot only.
    Points([usize; 2], Synthetic),
    /// Slot 0 is tokens, slot 1 the tokens that follow, where the graph learns from them.
    Tokens(TokenShape, Box<dyn Tokens>),
}

/// What fills up a sentence: any token, for no label asks what follows it.
const PADDING: i32 = 0;
/// Counts for no loss, because it is no token.
const NO_LABEL: i32 = -1;

/// Fills the inputs of one graph, iteration by iteration. The buffers are kept from one iteration to the next.
pub struct Feed {
    source: Source,
    pixels: Vec<f32>,
    tokens: Vec<i32>,
    labels: Vec<i32>,
    /// Whether the graph takes labels.
    labelled: bool,
}

impl Feed {
    /// Finds out what the graph trains on, and opens the data at `path`, or makes synthetic data without one.
    pub fn open(graph: &Graph, path: Option<&Path>, seed: u64) -> Result<Self, DataError> {
        let unknown =
            || DataError::Mismatch(format!("{} takes inputs that no reader here makes", graph.name));
        let [first, rest @ ..] = graph.inputs.as_slice() else {
            return Err(unknown());
        };
        let shape = &graph.values[first.value].shape;
        let labelled = !rest.is_empty();
        let labels = rest.iter().map(|input| graph.values[input.value].shape.len()).sum();
        let synthetic = Synthetic { seed };
        let made = |source| match path {
            None => Ok(source),
            Some(path) => {
                let (path, name) = (path.display(), &graph.name);
                let why = format!("{name} trains on synthetic data only, so {path} is of no use to it");
                Err(DataError::Mismatch(why))
            }
        };
        let classes = match rest {
            [] => None,
            [labels] => Some(labels.content),
            _ => return Err(unknown()),
        };
        let images = || path.map_or_else(|| Ok(Box::new(synthetic) as _), |path| open_images(path, seed));
        let source = match (first.content, classes, shape.dims()) {
            (Content::Real, Some(Content::Class { classes }), &[batch, channels, height, width]) => {
                let shape = ImageShape { batch, channels, height, width, classes };
                if labels == batch * height * width && height * width > 1 {
                    made(Source::Segments(shape, synthetic))?
                } else if labels == batch {
                    Source::Images(shape, images()?)
                } else {
                    return Err(unknown());
                }
            }
            (Content::Real, None, &[batch, channels, height, width]) => {
                // Without labels the classes are those that the network tells apart: the second extent of what it puts out.
                let classes =
                    graph.outputs.first().and_then(|o| graph.values[o.value].shape.dims().get(1).copied());
                let shape = ImageShape { batch, channels, height, width, classes: classes.unwrap_or(1) };
                Source::Images(shape, images()?)
            }
            (Content::Real, None, &[batch, width]) => made(Source::Points([batch, width], synthetic))?,
            (
                Content::Class { classes: vocabulary },
                None | Some(Content::Class { .. }),
                &[batch, length],
            ) if labels == batch * length || !labelled => {
                let shape = TokenShape { batch, length, vocabulary };
                let tokens: Box<dyn Tokens> = match path {
                    Some(path) => Box::new(Text::open(path, seed)?),
                    None => Box::new(synthetic),
                };
                Source::Tokens(shape, tokens)
            }
            _ => return Err(unknown()),
        };
        let elements = shape.len();
        // Readers give labels whether anybody wants them or not.
        let labels = match &source {
            Source::Images(shape, _) => shape.batch,
            Source::Tokens(..) => elements,
            Source::Segments(..) | Source::Points(..) => labels,
        };
        let (pixels, tokens) = match &source {
            Source::Images(..) | Source::Segments(..) | Source::Points(..) => {
                (vec![0.0; elements], Vec::new())
            }
            Source::Tokens(..) => (Vec::new(), vec![0; elements]),
        };
        Ok(Self { source, pixels, tokens, labels: vec![0; labels], labelled })
    }

    /// Reads the batch whose first sample is at this place of the endless sequence of epochs.
    pub fn read(&mut self, first: u64) -> Result<(), DataError> {
        match &mut self.source {
            Source::Images(shape, images) => images.fill(first, *shape, &mut self.pixels, &mut self.labels),
            Source::Segments(shape, synthetic) => {
                synthetic.segments(first, *shape, &mut self.pixels, &mut self.labels);
                Ok(())
            }
            Source::Points(shape, synthetic) => {
                synthetic.points(first, *shape, &mut self.pixels);
                Ok(())
            }
            Source::Tokens(shape, source) => source.fill(first, *shape, &mut self.tokens, &mut self.labels),
        }
    }

    /// Reads pairs of sentences into the tokens of a translator: the padding of a source lies in front of it, that of a translation behind
    /// it, and nothing that is padding counts as a label.
    pub fn read_sentences(&mut self, batch: &Batch) -> Result<(), DataError> {
        let Source::Tokens(shape, source) = &mut self.source else {
            return Err(DataError::Mismatch("sentences are for networks that take tokens".to_owned()));
        };
        let (rows, whole) = (batch.sentences.len(), batch.source + batch.target);
        if (rows, whole) != (shape.batch, shape.length) {
            let (batch, length) = (shape.batch, shape.length);
            let why = format!("{rows} rows of {whole} words for {batch} rows of {length}");
            return Err(DataError::Mismatch(why));
        }
        self.tokens.fill(PADDING);
        self.labels.fill(NO_LABEL);
        let (mut words, mut following) = (vec![0; whole], vec![0; whole]);
        let lines = self.tokens.chunks_exact_mut(whole).zip(self.labels.chunks_exact_mut(whole));
        for (pair, (tokens, labels)) in batch.sentences.iter().zip(lines) {
            let length = pair.source + pair.target;
            if pair.source > batch.source || pair.target > batch.target {
                let why = format!("a pair of {length} words is longer than its batch");
                return Err(DataError::Mismatch(why));
            }
            let (words, following) = (&mut words[..length], &mut following[..length]);
            source.fill(pair.sample, TokenShape { batch: 1, length, ..*shape }, words, following)?;
            let first = batch.source - pair.source;
            tokens[first..first + length].copy_from_slice(words);
            let of_target = batch.source..batch.source + pair.target;
            labels[of_target].copy_from_slice(&following[pair.source..]);
        }
        Ok(())
    }

    /// The inputs of the batch that was read last, by slot, in the machine's byte order.
    pub fn slots(&self) -> impl Iterator<Item = &[u8]> {
        let samples = match &self.source {
            Source::Images(..) | Source::Segments(..) | Source::Points(..) => {
                bytemuck::cast_slice(&self.pixels)
            }
            Source::Tokens(..) => bytemuck::cast_slice(&self.tokens),
        };
        let labels = self.labelled.then(|| bytemuck::cast_slice(&self.labels));
        std::iter::once(samples).chain(labels)
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_graph::Mode;
    use elbowroom_graph::zoo::{self, Options};

    use super::*;

    #[test]
    fn sentences_lie_around_the_place_where_the_translation_begins() {
        use crate::data::sentences::Sentence;
        let options = Options { length: Some(4), target: Some(5), width: Some(8), ..Options::new(2) };
        let graph = zoo::build("seq2seq", &options).unwrap();
        let mut feed = Feed::open(&graph, None, 7).unwrap();
        let pair = |sample, source, target| Sentence { sample, source, target };
        let batch = Batch { source: 4, target: 5, sentences: vec![pair(3, 2, 5), pair(9, 4, 1)] };
        feed.read_sentences(&batch).unwrap();
        let slots: Vec<Vec<i32>> = feed
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
        let long = Batch { sentences: vec![pair(3, 5, 1), pair(9, 4, 1)], ..batch.clone() };
        assert!(feed.read_sentences(&long).is_err());
        assert!(feed.read_sentences(&Batch { source: 5, ..batch }).is_err());
    }

    #[test]
    fn every_kind_of_network_is_fed_with_and_without_labels() {
        for name in ["resnet18", "unet", "kmeans", "lstm", "seq2seq", "gpt"] {
            for mode in [Mode::Training, Mode::Inference] {
                let options = Options { mode, image: Some(32), length: Some(4), ..Options::new(3) };
                let graph = zoo::build(name, &options).unwrap();
                let mut feed = Feed::open(&graph, None, 7).unwrap();
                feed.read(2).unwrap();
                let slots: Vec<Vec<u8>> = feed.slots().map(<[u8]>::to_vec).collect();
                let sizes: Vec<u64> = slots.iter().map(|slot| slot.len() as u64).collect();
                let expected: Vec<u64> =
                    graph.inputs.iter().map(|input| graph.values[input.value].bytes().get()).collect();
                assert_eq!(sizes, expected, "{name} {mode:?}");
                assert!(slots[0].iter().any(|&byte| byte != 0), "{name}");
            }
        }
    }
}

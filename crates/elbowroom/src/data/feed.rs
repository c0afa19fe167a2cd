//! From data to the inputs of a graph: which source fills which slot.

use std::path::Path;

use elbowroom_graph::{Content, Graph};

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

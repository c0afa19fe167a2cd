//! From data to the inputs of a graph: which source fills which slot.

use std::path::Path;

use elbowroom_graph::{Content, Graph};

use super::{DataError, ImageShape, Images, Synthetic, Text, TokenShape, Tokens, open_images};

/// One input's batch on the host.
#[derive(Clone, Debug, PartialEq)]
pub enum HostValue {
    /// Images.
    F32(Vec<f32>),
    /// Labels and tokens.
    I32(Vec<i32>),
}

impl HostValue {
    /// Whether there are no elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::I32(values) => values.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a graph trains on.
enum Source {
    /// Slot 0 is images, slot 1 their classes.
    Images(ImageShape, Box<dyn Images>),
    /// Slot 0 is tokens, slot 1 the tokens that follow.
    Tokens(TokenShape, Box<dyn Tokens>),
}

/// Fills the inputs of one graph, iteration by iteration. The buffers are kept from one iteration to the next.
pub struct Feed {
    source: Source,
    slots: Vec<HostValue>,
}

impl Feed {
    /// Finds out what the graph trains on, and opens the data at `path`, or makes synthetic data without one.
    pub fn open(graph: &Graph, path: Option<&Path>, seed: u64) -> Result<Self, DataError> {
        let [first, second] = graph.inputs.as_slice() else {
            return Err(DataError::Mismatch(format!("{} does not take samples with labels", graph.name)));
        };
        let shape = &graph.values[first.value].shape;
        let labels = graph.values[second.value].shape.len();
        let synthetic = Synthetic { seed };
        let source = match (first.content, second.content, shape.dims()) {
            (Content::Real, Content::Class { classes }, &[batch, channels, height, width]) if labels == batch => {
                let shape = ImageShape { batch, channels, height, width, classes };
                let images = path.map_or_else(|| Ok(Box::new(synthetic) as _), |path| open_images(path, seed))?;
                Source::Images(shape, images)
            }
            (Content::Class { classes: vocabulary }, Content::Class { .. }, &[batch, length]) if labels == batch * length => {
                let shape = TokenShape { batch, length, vocabulary };
                let tokens: Box<dyn Tokens> = match path {
                    Some(path) => Box::new(Text::open(path, seed)?),
                    None => Box::new(synthetic),
                };
                Source::Tokens(shape, tokens)
            }
            _ => return Err(DataError::Mismatch(format!("{} takes inputs that no reader here makes", graph.name))),
        };
        let slots = match &source {
            Source::Images(..) => vec![HostValue::F32(vec![0.0; shape.len()]), HostValue::I32(vec![0; labels])],
            Source::Tokens(..) => vec![HostValue::I32(vec![0; shape.len()]), HostValue::I32(vec![0; labels])],
        };
        Ok(Self { source, slots })
    }

    /// The inputs of one iteration, by slot.
    pub fn batch(&mut self, iteration: u64) -> Result<&[HostValue], DataError> {
        match (&mut self.source, self.slots.as_mut_slice()) {
            (Source::Images(shape, images), [HostValue::F32(pixels), HostValue::I32(labels)]) => {
                images.fill(iteration, *shape, pixels, labels)?;
            }
            (Source::Tokens(shape, source), [HostValue::I32(tokens), HostValue::I32(following)]) => {
                source.fill(iteration, *shape, tokens, following)?;
            }
            _ => unreachable!("the slots were made for this source"),
        }
        Ok(&self.slots)
    }
}

//! From data to the inputs of a graph: which source fills which slot.

use std::path::Path;

use elbowroom_graph::{Content, Graph};

use super::{DataError, ImageShape, Images, Synthetic, Text, TokenShape, Tokens, open_images};

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
    pixels: Vec<f32>,
    tokens: Vec<i32>,
    labels: Vec<i32>,
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
            (Content::Real, Content::Class { classes }, &[batch, channels, height, width])
                if labels == batch =>
            {
                let shape = ImageShape { batch, channels, height, width, classes };
                let images =
                    path.map_or_else(|| Ok(Box::new(synthetic) as _), |path| open_images(path, seed))?;
                Source::Images(shape, images)
            }
            (Content::Class { classes: vocabulary }, Content::Class { .. }, &[batch, length])
                if labels == batch * length =>
            {
                let shape = TokenShape { batch, length, vocabulary };
                let tokens: Box<dyn Tokens> = match path {
                    Some(path) => Box::new(Text::open(path, seed)?),
                    None => Box::new(synthetic),
                };
                Source::Tokens(shape, tokens)
            }
            _ => {
                return Err(DataError::Mismatch(format!(
                    "{} takes inputs that no reader here makes",
                    graph.name
                )));
            }
        };
        let elements = shape.len();
        let (pixels, tokens) = match &source {
            Source::Images(..) => (vec![0.0; elements], Vec::new()),
            Source::Tokens(..) => (Vec::new(), vec![0; elements]),
        };
        Ok(Self { source, pixels, tokens, labels: vec![0; labels] })
    }

    /// Reads one iteration's batch.
    pub fn read(&mut self, iteration: u64) -> Result<(), DataError> {
        match &mut self.source {
            Source::Images(shape, images) => {
                images.fill(iteration, *shape, &mut self.pixels, &mut self.labels)
            }
            Source::Tokens(shape, source) => {
                source.fill(iteration, *shape, &mut self.tokens, &mut self.labels)
            }
        }
    }

    /// The inputs of the batch that was read last, by slot, in the machine's byte order.
    pub fn slots(&self) -> [&[u8]; 2] {
        let samples = match &self.source {
            Source::Images(..) => bytemuck::cast_slice(&self.pixels),
            Source::Tokens(..) => bytemuck::cast_slice(&self.tokens),
        };
        [samples, bytemuck::cast_slice(&self.labels)]
    }
}

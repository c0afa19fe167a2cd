//! From data to the inputs of a graph: which source fills which slot.

use std::path::Path;

use elbowroom_graph::{Content, Graph};

use super::{DataError, ImageShape, Images, Synthetic, Text, TokenShape, Tokens, open_images};

/// What a graph trains on.
enum Source {
    /// Slot 0 is images, slot 1 their classes.
    Images(ImageShape, Box<dyn Images>),
    /// Slot 0 is images, slot 1 a class for every pixel. Made on the spot only.
    Segments(ImageShape, Synthetic),
    /// Slot 0 is points `[batch, width]`, and there is no other. Made on the spot only.
    Points([usize; 2], Synthetic),
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
        let unknown =
            || DataError::Mismatch(format!("{} takes inputs that no reader here makes", graph.name));
        let [first, rest @ ..] = graph.inputs.as_slice() else {
            return Err(unknown());
        };
        let shape = &graph.values[first.value].shape;
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
        let source = match (first.content, classes, shape.dims()) {
            (Content::Real, Some(Content::Class { classes }), &[batch, channels, height, width]) => {
                let shape = ImageShape { batch, channels, height, width, classes };
                if labels == batch * height * width && height * width > 1 {
                    made(Source::Segments(shape, synthetic))?
                } else if labels == batch {
                    let images =
                        path.map_or_else(|| Ok(Box::new(synthetic) as _), |path| open_images(path, seed))?;
                    Source::Images(shape, images)
                } else {
                    return Err(unknown());
                }
            }
            (Content::Real, None, &[batch, width]) => made(Source::Points([batch, width], synthetic))?,
            (Content::Class { classes: vocabulary }, Some(Content::Class { .. }), &[batch, length])
                if labels == batch * length =>
            {
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
        let (pixels, tokens) = match &source {
            Source::Images(..) | Source::Segments(..) | Source::Points(..) => {
                (vec![0.0; elements], Vec::new())
            }
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
            Source::Segments(shape, synthetic) => {
                synthetic.segments(iteration, *shape, &mut self.pixels, &mut self.labels);
                Ok(())
            }
            Source::Points(shape, synthetic) => {
                synthetic.points(iteration, *shape, &mut self.pixels);
                Ok(())
            }
            Source::Tokens(shape, source) => {
                source.fill(iteration, *shape, &mut self.tokens, &mut self.labels)
            }
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
        let labels = (!self.labels.is_empty()).then(|| bytemuck::cast_slice(&self.labels));
        std::iter::once(samples).chain(labels)
    }
}

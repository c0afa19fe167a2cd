//! The inputs of one iteration, as a data set fills them.

use elbowroom_graph::{Content, Graph, InputSpec, Shape};

use super::DataError;

/// The inputs of one iteration of a graph, in host memory. A [`Dataset`](super::Dataset) fills them by name, or by what they hold.
#[derive(Clone, Debug)]
pub struct Batch {
    inputs: Vec<Input>,
    /// Samples of each part in which the graph takes the batch, each with inputs of the same names.
    parts: Vec<usize>,
    /// Number of classes of the network, if no input holds them.
    classes: usize,
}

/// One input.
#[derive(Clone, Debug)]
struct Input {
    name: String,
    shape: Shape,
    content: Content,
    values: Values,
}

/// Elements of an input, row-major.
#[derive(Clone, Debug)]
enum Values {
    Reals(Vec<f32>),
    Classes(Vec<i32>),
}

/// A label that is no class and therefore counts for no loss.
pub(super) const NO_LABEL: i32 = -1;

/// Extents of a batch of images: `[batch, channels, height, width]`, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// Images in the batch.
    pub batch: usize,
    /// Channels of an image: 3 for colour, 1 for grey.
    pub channels: usize,
    /// Height in pixels.
    pub height: usize,
    /// Width in pixels.
    pub width: usize,
    /// Number of classes of the network.
    pub classes: usize,
}

/// Extents of a batch of token sequences: `[batch, length]`, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenShape {
    /// Sequences in the batch.
    pub batch: usize,
    /// Tokens of a sequence.
    pub length: usize,
    /// Number of different tokens.
    pub vocabulary: usize,
}

/// What the inputs of a network are, judged by their contents and extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Images `[batch, channels, height, width]` and, in training, a class for each.
    Images(ImageShape),
    /// Images and a class for every pixel.
    Segments(ImageShape),
    /// Points `[batch, width]` without labels.
    Points([usize; 2]),
    /// Samples of this many real numbers with as many targets as the second number says.
    Targets([usize; 2]),
    /// Tokens `[batch, length]` and, in training, the token that follows each.
    Tokens(TokenShape),
}

/// A batch of labelled images.
pub(super) struct ImageBatch<'a> {
    pub shape: ImageShape,
    pub pixels: &'a mut [f32],
    /// A class for each image; empty where the network takes no labels.
    pub labels: &'a mut [i32],
}

/// A batch of token sequences.
pub(super) struct TokenBatch<'a> {
    pub shape: TokenShape,
    pub tokens: &'a mut [i32],
    /// For each token the one that follows it; empty where the network takes no labels.
    pub following: &'a mut [i32],
}

impl Input {
    fn new(name: &str, shape: Shape, content: Content) -> Self {
        let values = match content {
            Content::Real => Values::Reals(vec![0.0; shape.len()]),
            Content::Class { .. } => Values::Classes(vec![0; shape.len()]),
        };
        Self { name: name.to_owned(), shape, content, values }
    }

    /// Changes the number of elements that there is memory for.
    fn resize(&mut self, elements: usize) {
        match &mut self.values {
            Values::Reals(values) => {
                values.resize(elements, 0.0);
                values.shrink_to_fit();
            }
            Values::Classes(values) => {
                values.resize(elements, 0);
                values.shrink_to_fit();
            }
        }
    }

    /// Extents of one sample.
    fn sample(&self) -> &[usize] {
        self.shape.dims().get(1..).unwrap_or_default()
    }
}

impl Batch {
    /// The inputs of a graph, all zero.
    pub fn new(graph: &Graph) -> Self {
        let first = graph.inputs.first().map(|input| input.name.as_str());
        let parts = graph.inputs.iter().filter(|input| Some(input.name.as_str()) == first).count().max(1);
        let per_part = (graph.inputs.len() / parts).max(1);
        let extents = |input: &InputSpec| graph.tensors[input.tensor].shape.dims().to_vec();
        let rows = |input: &InputSpec| extents(input).first().copied().unwrap_or(1);
        let inputs = graph.inputs.iter().take(per_part).enumerate().map(|(position, input)| {
            let mut extents = extents(input);
            let of_parts = graph.inputs.iter().skip(position).step_by(per_part);
            extents.iter_mut().take(1).for_each(|samples| *samples = of_parts.clone().map(rows).sum());
            Input::new(&input.name, Shape::new(&extents), input.content)
        });
        let inputs = inputs.collect();
        let parts = graph.inputs.iter().step_by(per_part).map(rows).collect();
        let output = graph.outputs.first().map(|output| graph.tensors[output.tensor].shape);
        // Without labels, the number of classes is the second extent of its first output.
        let classes = output.and_then(|shape| shape.dims().get(1).copied()).unwrap_or(1);
        Self { inputs, parts, classes }
    }

    /// Sequences of tokens with their labels, apart from any graph.
    pub(super) fn of_tokens(shape: TokenShape, labelled: bool) -> Self {
        let content = Content::Class { classes: shape.vocabulary };
        let extents = Shape::new(&[shape.batch, shape.length]);
        let names = if labelled { &["tokens", "labels"][..] } else { &["tokens"] };
        let inputs = names.iter().map(|name| Input::new(name, extents, content)).collect();
        Self { inputs, parts: vec![shape.batch], classes: shape.vocabulary }
    }

    /// Gives the memory of all elements back, until [`hold`](Self::hold).
    pub(super) fn give_back(&mut self) {
        self.inputs.iter_mut().for_each(|input| input.resize(0));
    }

    /// Has memory for all elements again; those that were given back are zero.
    pub(super) fn hold(&mut self) {
        self.inputs.iter_mut().for_each(|input| input.resize(input.shape.len()));
    }

    /// Samples in the batch: the first extent of every input.
    pub fn samples(&self) -> usize {
        self.inputs.first().and_then(|input| input.shape.dims().first().copied()).unwrap_or(1)
    }

    /// Names of the inputs with the extents of one sample.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.inputs.iter().map(|input| (input.name.as_str(), input.sample()))
    }

    /// Whether the network has an input of this name; a network that only runs forward takes no labels.
    pub fn has(&self, name: &str) -> bool {
        self.inputs.iter().any(|input| input.name == name)
    }

    /// The elements of an input of real numbers, sample after sample, row-major. `sample` is the extents of one sample, without the batch.
    ///
    /// # Errors
    ///
    /// [`DataError::Mismatch`] if the network has no such input, or one of other extents or contents.
    pub fn reals(&mut self, name: &str, sample: &[usize]) -> Result<&mut [f32], DataError> {
        match self.find(name, sample)? {
            Values::Reals(values) => Ok(values),
            Values::Classes(_) => {
                Err(DataError::Mismatch(format!("input `{name}` takes classes, not real numbers")))
            }
        }
    }

    /// The elements of an input of classes (labels, tokens), sample after sample, row-major. `sample` is the extents of one sample: empty
    /// for one label a sample. A label outside the network's classes counts for no loss.
    ///
    /// # Errors
    ///
    /// [`DataError::Mismatch`] if the network has no such input, or one of other extents or contents.
    pub fn classes(&mut self, name: &str, sample: &[usize]) -> Result<&mut [i32], DataError> {
        match self.find(name, sample)? {
            Values::Classes(values) => Ok(values),
            Values::Reals(_) => {
                Err(DataError::Mismatch(format!("input `{name}` takes real numbers, not classes")))
            }
        }
    }

    fn find(&mut self, name: &str, sample: &[usize]) -> Result<&mut Values, DataError> {
        let names: Vec<&str> = self.inputs.iter().map(|input| input.name.as_str()).collect();
        let Some(at) = names.iter().position(|other| *other == name) else {
            let names = names.join(", ");
            return Err(DataError::Mismatch(format!("no input is called `{name}`; the inputs are: {names}")));
        };
        let input = &mut self.inputs[at];
        if input.sample() != sample {
            let takes = input.sample();
            let why = format!("a sample of input `{name}` has extents {takes:?}, the data has {sample:?}");
            return Err(DataError::Mismatch(why));
        }
        Ok(&mut input.values)
    }

    /// What the inputs are; `None` if they are nothing that a reader of this crate fills.
    pub(crate) fn kind(&self) -> Option<Kind> {
        let [first, rest @ ..] = self.inputs.as_slice() else { return None };
        let labels = match rest {
            [] => None,
            [labels] => Some((labels.shape.len(), labels.content)),
            _ => return None,
        };
        match (first.content, labels, first.shape.dims()) {
            (
                Content::Real,
                Some((labels, Content::Class { classes })),
                &[batch, channels, height, width],
            ) => {
                let shape = ImageShape { batch, channels, height, width, classes };
                if labels == batch * height * width && height * width > 1 {
                    Some(Kind::Segments(shape))
                } else {
                    (labels == batch).then_some(Kind::Images(shape))
                }
            }
            (Content::Real, None, &[batch, channels, height, width]) => {
                let classes = self.classes;
                Some(Kind::Images(ImageShape { batch, channels, height, width, classes }))
            }
            (Content::Real, Some((targets, Content::Real)), &[batch, ..]) => {
                Some(Kind::Targets([first.shape.len(), targets].map(|count| count / batch.max(1))))
            }
            (Content::Real, None, &[batch, width]) => Some(Kind::Points([batch, width])),
            (
                Content::Class { classes: vocabulary },
                None | Some((_, Content::Class { .. })),
                &[batch, length],
            ) if labels.is_none_or(|(labels, _)| labels == batch * length) => {
                Some(Kind::Tokens(TokenShape { batch, length, vocabulary }))
            }
            _ => None,
        }
    }

    /// Gives the samples from this one on labels that count for nothing.
    pub(super) fn ignore_labels_after(&mut self, samples: usize) {
        let batch = self.samples().max(1);
        if let Some((_, labels)) = self.parts() {
            let per_sample = labels.len() / batch;
            labels.iter_mut().skip(samples * per_sample).for_each(|label| *label = NO_LABEL);
        }
    }

    /// The number of classes that labels name, if the network has labels.
    pub(super) fn label_classes(&self) -> Option<usize> {
        match self.inputs.get(1) {
            Some(&Input { content: Content::Class { classes }, .. }) => Some(classes),
            _ => None,
        }
    }

    /// Labels that are classes of the network.
    pub(super) fn counted_labels(&self) -> u64 {
        let Some(Input { content: Content::Class { classes }, values: Values::Classes(labels), .. }) =
            self.inputs.get(1)
        else {
            return 0;
        };
        labels.iter().filter(|&&label| usize::try_from(label).is_ok_and(|label| label < *classes)).count()
            as u64
    }

    /// Whether the network takes labels.
    pub(super) fn labelled(&self) -> bool {
        self.inputs.len() > 1
    }

    /// The elements of the first input and of the labels, which are empty where there are none.
    fn parts(&mut self) -> Option<(&mut Values, &mut [i32])> {
        let (first, rest) = self.inputs.split_first_mut()?;
        let labels = match rest.first_mut().map(|input| &mut input.values) {
            Some(Values::Classes(labels)) => labels.as_mut_slice(),
            _ => &mut [],
        };
        Some((&mut first.values, labels))
    }

    /// Real numbers and targets, for networks that take those.
    pub(super) fn reals_and_targets(&mut self) -> Option<[&mut [f32]; 2]> {
        match self.inputs.as_mut_slice() {
            [Input { values: Values::Reals(reals), .. }, Input { values: Values::Reals(targets), .. }] => {
                Some([reals, targets])
            }
            _ => None,
        }
    }

    /// Real numbers and labels, for networks that take those.
    pub(super) fn reals_and_labels(&mut self) -> Option<(&mut [f32], &mut [i32])> {
        match self.parts()? {
            (Values::Reals(reals), labels) => Some((reals, labels)),
            _ => None,
        }
    }

    /// Whether the network takes images, each with one label or none.
    pub(crate) fn takes_images(&self) -> bool {
        matches!(self.kind(), Some(Kind::Images(_)))
    }

    /// The batch as labelled images of the data set `what`.
    pub(super) fn images(&mut self, what: &str) -> Result<ImageBatch<'_>, DataError> {
        match (self.kind(), self.parts()) {
            (Some(Kind::Images(shape)), Some((Values::Reals(pixels), labels))) => {
                Ok(ImageBatch { shape, pixels, labels })
            }
            _ => Err(DataError::Mismatch(format!("{what} has labelled images, and the network takes none"))),
        }
    }

    /// The batch as sequences of tokens of the data set `what`.
    pub(super) fn tokens(&mut self, what: &str) -> Result<TokenBatch<'_>, DataError> {
        match (self.kind(), self.parts()) {
            (Some(Kind::Tokens(shape)), Some((Values::Classes(tokens), following))) => {
                Ok(TokenBatch { shape, tokens, following })
            }
            _ => Err(DataError::Mismatch(format!("{what} has tokens, and the network takes none"))),
        }
    }

    /// The bytes of the inputs by slot, in the machine's byte order.
    pub fn slots(&self) -> impl Iterator<Item = &[u8]> {
        let samples = self.parts.iter().sum::<usize>().max(1);
        let begins = self.parts.iter().scan(0, |end, part| {
            let begin = *end;
            *end += part;
            Some(begin..*end)
        });
        begins.flat_map(move |part| {
            self.inputs.iter().map(move |input| {
                let bytes: &[u8] = match &input.values {
                    Values::Reals(values) => bytemuck::cast_slice(values),
                    Values::Classes(values) => bytemuck::cast_slice(values),
                };
                let sample = bytes.len() / samples;
                &bytes[sample * part.start..sample * part.end]
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_graph::zoo::{self, Options};

    use super::*;

    #[test]
    fn inputs_are_found_by_name_and_checked_against_the_extents_of_a_sample() {
        let graph = zoo::build("resnet20", &Options::new(3).image(8)).unwrap();
        let mut batch = Batch::new(&graph);
        assert_eq!(batch.samples(), 3);
        assert_eq!(batch.reals("images", &[3, 8, 8]).unwrap().len(), 3 * 192);
        assert_eq!(batch.classes("labels", &[]).unwrap().len(), 3);
        let message = |result: Result<usize, DataError>| result.unwrap_err().to_string();
        let reals = |batch: &mut Batch, name: &str, sample: &[usize]| {
            batch.reals(name, sample).map(|values| values.len())
        };
        assert!(message(reals(&mut batch, "pictures", &[3, 8, 8])).contains("images, labels"));
        assert!(message(reals(&mut batch, "images", &[1, 8, 8])).contains("[3, 8, 8]"));
        assert!(message(reals(&mut batch, "labels", &[])).contains("takes classes"));
    }

    #[test]
    fn parts_of_different_sizes_take_the_samples_in_order() {
        // In parts of 3: the last one has 2.
        let graph = zoo::build("kmeans", &Options::new(35).width(2)).unwrap();
        let mut batch = Batch::new(&graph);
        assert_eq!((batch.samples(), graph.inputs.len()), (35, 12));
        assert_eq!(batch.kind(), Some(Kind::Points([35, 2])));
        let points = batch.reals("points", &[2]).unwrap();
        points.iter_mut().zip(0u8..).for_each(|(value, number)| *value = f32::from(number));
        let points: Vec<u8> = bytemuck::cast_slice(points).to_vec();
        let slots: Vec<&[u8]> = batch.slots().collect();
        assert_eq!(slots.concat(), points);
        for (slot, input) in slots.iter().zip(&graph.inputs) {
            assert_eq!(slot.len() as u64, graph.tensors[input.tensor].bytes().get());
        }
    }
}

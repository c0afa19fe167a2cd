//! A network from layers, ready to be trained.

use std::sync::Arc;

use elbowroom_graph::layers::Part;
use elbowroom_graph::op::Adam;
use elbowroom_graph::shape::MAX_RANK;
use elbowroom_graph::{BuildError, Builder, Content, Graph, Mode, Optimizer, Shape};

use super::{Layer, Sequential, refuse};
use crate::network::{Network, NetworkError};

/// Layers that classify: their last extent has a number for each class, and the loss is the mean cross entropy. A network for training and for
/// evaluation; `--batch max`'s search and micro-batches can build it for other batches.
#[derive(Clone, Debug)]
pub struct Classifier {
    name: String,
    input: Input,
    classes: usize,
    batch: usize,
    layers: Sequential,
    optimizer: Optimizer,
}

/// What the network reads.
#[derive(Clone, Debug)]
enum Input {
    /// Real numbers under this name, of these extents for each sample, and one label for a sample.
    Reals(String, Vec<usize>),
    /// Sequences of this many tokens, and a label for every token.
    Tokens(usize),
}

impl Classifier {
    fn new(input: Input, classes: usize, layers: Sequential) -> Self {
        let adam = Adam { learning_rate: 1e-3, betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.0 };
        let (name, optimizer) = ("network".to_owned(), Optimizer::Adam(adam));
        Self { name, input, classes, batch: 32, layers, optimizer }
    }

    /// Images of `[channels, height, width]`: input `images`. The readers of this crate fill it.
    pub fn of_images(image: [usize; 3], classes: usize, layers: Sequential) -> Self {
        Self::new(Input::Reals("images".to_owned(), image.to_vec()), classes, layers)
    }

    /// Samples of any extents: an input of this name.
    pub fn of_reals(name: &str, sample: &[usize], classes: usize, layers: Sequential) -> Self {
        Self::new(Input::Reals(name.to_owned(), sample.to_vec()), classes, layers)
    }

    /// A language model: sequences of `length` tokens out of `vocabulary`, input `tokens`, where every token is classified as the one that
    /// follows it.
    pub fn of_tokens(length: usize, vocabulary: usize, layers: Sequential) -> Self {
        Self::new(Input::Tokens(length), vocabulary, layers)
    }

    /// Sets the name, for people.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Sets the number of samples in a batch, 32 by default.
    pub fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// Sets the optimizer, by default Adam with a learning rate of 0.001.
    pub fn optimizer(self, optimizer: Optimizer) -> Self {
        Self { optimizer, ..self }
    }

    /// The graph for training, evaluation or inference.
    ///
    /// # Errors
    ///
    /// A [`BuildError`] if the extents of a layer do not fit, or if the last layer does not give a number for each class.
    pub fn graph(&self, mode: Mode) -> Result<Graph, BuildError> {
        let (batch, classes) = (self.batch, self.classes);
        if batch == 0 || classes == 0 {
            return Err(refuse("", format!("a batch of {batch} samples in {classes} classes is none")));
        }
        if let Input::Reals(name, sample) = &self.input
            && (sample.len() >= MAX_RANK || sample.contains(&0))
        {
            let why = format!(
                "a sample has at most {} extents, none of them zero, and this has {sample:?}",
                MAX_RANK - 1
            );
            return Err(refuse(name, why));
        }
        if matches!(self.input, Input::Tokens(0)) {
            return Err(refuse("tokens", "a sequence has at least one token".to_owned()));
        }
        let mut b = Builder::new(format!("{} batch {batch}", self.name), mode);
        let class = Content::Class { classes };
        let (x, label) = match &self.input {
            Input::Reals(name, sample) => {
                let extents: Vec<usize> = [batch].into_iter().chain(sample.iter().copied()).collect();
                (b.input(name, Shape::new(&extents), Content::Real), vec![batch])
            }
            Input::Tokens(length) => (b.input("tokens", [batch, *length], class), vec![batch, *length]),
        };
        let labels = (mode != Mode::Inference).then(|| b.input("labels", Shape::new(&label), class));
        let rows: usize = label.iter().product();
        let logits = self.layers.forward(&mut b, "", x)?;
        if logits.shape.dims().last() != Some(&classes) || logits.shape.len() != rows * classes {
            return Err(refuse(
                "",
                format!(
                    "the last layer gives {}, and {rows} labels of {classes} classes need {}",
                    logits.shape,
                    rows * classes
                ) + " numbers with the classes last; end with Linear::new of the number of classes",
            ));
        }
        let Some(labels) = labels else { return Ok(b.finish_inference(&[("logits", logits)])) };
        let loss = b.cross_entropy("loss", [logits, labels], Part::ALL, 1.0 / rows as f32)?;
        b.finish_training(loss, self.optimizer)
    }
}

impl Network for Classifier {
    fn largest(&self) -> Result<Arc<Graph>, NetworkError> {
        Ok(Arc::new(self.graph(Mode::Training)?))
    }

    fn evaluation(&self) -> Result<Option<Arc<Graph>>, NetworkError> {
        let training = self.graph(Mode::Training)?;
        Ok(Some(Arc::new(self.graph(Mode::Evaluation)?.with_persistent_of(&training)?)))
    }

    fn with_batch(&self, samples: usize) -> Option<Box<dyn Network>> {
        Some(Box::new(self.clone().batch(samples)))
    }
}

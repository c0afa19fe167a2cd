//! Sequence to sequence (Sutskever et al., 2014): an LSTM encoder whose final state begins the LSTM decoder, both unrolled, without
//! attention, as in Chainer's example.
//! The tokens of a sample are its source, then its target: `[batch, length + target]`. The labels have the same shape; only those of the
//! target's part count. A batch of shorter sequences has a graph of its own with smaller extents; padding positions have a label outside
//! the vocabulary.

use super::lstm::Layer;
use super::{OptimizerKind, Options, Variation};
use crate::builder::{BuildError, Builder, Mode, Var};
use crate::graph::{Content, Graph};
use crate::init::Init;
use crate::layers::{Part, WeightInit};

/// The network's name.
pub const NAME: &str = "seq2seq";

const WIDTH: usize = 256;
const LAYERS: usize = 2;
const LENGTH: usize = 25;
const VOCABULARY: usize = 256;
const DROPOUT: f32 = 0.1;

/// Layers of one side, with the table of its tokens.
struct Side {
    name: &'static str,
    table: Var,
    layers: Vec<Layer>,
}

impl Side {
    fn new(b: &mut Builder, name: &'static str, [vocabulary, width, layers]: [usize; 3]) -> Self {
        let table = Init::Normal { std: 1.0 / (width as f32).sqrt(), stream: b.init_stream() };
        let table = b.weight(format!("{name}.embed.weight"), [vocabulary, width], table);
        let layer = |layer| Layer::new(b, &format!("{name}.lstm.{layer}"), width, width);
        Self { name, table, layers: (0..layers).map(layer).collect() }
    }

    /// One step over the tokens at a position: the state of the last layer.
    fn step(&mut self, b: &mut Builder, tokens: Var, position: usize) -> Result<Var, BuildError> {
        let part = Part::step(position, [tokens.dim(0), tokens.dim(1)]);
        let mut x = b.embedding(&format!("{}.embed.{position}", self.name), tokens, self.table, part)?;
        for (index, layer) in self.layers.iter_mut().enumerate() {
            x = b.dropout(&format!("{}.lstm.{index}.{position}.dropout", self.name), x, DROPOUT)?;
            x = layer.step(b, position, x)?;
        }
        Ok(x)
    }
}

/// Every batch has the lengths of its sentences: up to 50 tokens in training, up to 100 in inference.
pub fn variation(mode: Mode) -> Variation {
    Variation::Lengths { longest: if mode == Mode::Training { 50 } else { 100 } }
}

/// The network.
pub fn build(name: &str, options: &Options) -> Result<Graph, BuildError> {
    let batch = options.batch;
    let source = options.length.unwrap_or(LENGTH);
    let target = options.target.unwrap_or(source);
    let vocabulary = options.vocabulary.unwrap_or(VOCABULARY);
    let width = options.width.unwrap_or(WIDTH);
    let layers = options.layers.unwrap_or(LAYERS);
    let length = source + target;
    let mut b = Builder::new(format!("{name} batch {batch} lengths {source} and {target}"), options.mode);
    let content = Content::Class { classes: vocabulary };
    let tokens = b.input("tokens", [batch, length], content);
    let labels = (options.mode != Mode::Inference).then(|| b.input("labels", [batch, length], content));
    let mut encoder = Side::new(&mut b, "encoder", [vocabulary, width, layers]);
    let mut decoder = Side::new(&mut b, "decoder", [vocabulary, width, layers]);
    let output = b.linear_weights("output", [width, vocabulary], true, WeightInit::FanInUniform);

    for position in 0..source {
        encoder.step(&mut b, tokens, position)?;
    }
    for (to, from) in decoder.layers.iter_mut().zip(&encoder.layers) {
        to.state = from.state;
    }
    let mean = 1.0 / (batch * target) as f32;
    let mut loss: Option<Var> = None;
    let mut outputs = Vec::new();
    for position in source..length {
        let x = decoder.step(&mut b, tokens, position)?;
        let logits = b.linear(&format!("output.{position}"), x, output)?;
        let Some(labels) = labels else {
            outputs.push((format!("logits.{position}"), logits));
            continue;
        };
        let part = Part::step(position, [batch, length]);
        let here = b.cross_entropy(&format!("loss.{position}"), [logits, labels], part, mean)?;
        loss = Some(match loss {
            Some(before) => b.add(&format!("loss.{position}.sum"), before, here)?,
            None => here,
        });
    }
    match loss {
        Some(loss) => b.finish_training(loss, options.optimizer_or(OptimizerKind::Adam, 1e-3)),
        None => {
            let outputs: Vec<(&str, Var)> =
                outputs.iter().map(|(name, value)| (name.as_str(), *value)).collect();
            Ok(b.finish_inference(&outputs))
        }
    }
}

//! Sequence to sequence (Sutskever et al., 2014): an LSTM encoder whose final state begins the LSTM decoder, both unrolled, without
//! attention, as in Chainer's example.
//! The tokens of a sample are its source, then its target: `[batch, length + target]`. The labels have the same shape; only those of the
//! target's part count. A batch of shorter sequences has a graph of its own with smaller extents; padding positions have a label outside
//! the vocabulary. As in [`super::lstm`], what does not depend on the step before is computed for several steps at once.

use std::ops::Range;

use super::lstm::{Layer, blocks};
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

    /// Some steps over the tokens at these positions: the state of the last layer after each.
    fn steps(
        &mut self,
        b: &mut Builder,
        tokens: Var,
        positions: Range<usize>,
    ) -> Result<Vec<Var>, BuildError> {
        let (first, part) = (positions.start, Part::steps(&positions, [tokens.dim(0), tokens.dim(1)]));
        let mut states =
            vec![b.embedding(&format!("{}.embed.{first}", self.name), tokens, self.table, part)?];
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let name = format!("{}.lstm.{index}.{first}", self.name);
            let x = b.joined(&format!("{name}.inputs"), &states)?;
            let x = b.dropout(&format!("{name}.dropout"), x, DROPOUT)?;
            states = layer.steps(b, positions.clone(), x)?;
        }
        Ok(states)
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

    for positions in blocks(0..source, batch) {
        encoder.steps(&mut b, tokens, positions)?;
    }
    for (to, from) in decoder.layers.iter_mut().zip(&encoder.layers) {
        to.state = from.state;
    }
    let mean = 1.0 / (batch * target) as f32;
    let mut loss: Option<Var> = None;
    let mut outputs = Vec::new();
    for positions in blocks(source..length, batch) {
        let first = positions.start;
        let states = decoder.steps(&mut b, tokens, positions.clone())?;
        let x = b.joined(&format!("output.{first}.inputs"), &states)?;
        let logits = b.linear(&format!("output.{first}"), x, output)?;
        let Some(labels) = labels else {
            let parts = b.parts(&format!("output.{first}.steps"), logits, positions.len())?;
            outputs.extend(positions.map(|position| format!("logits.{position}")).zip(parts));
            continue;
        };
        let part = Part::steps(&positions, [batch, length]);
        let here = b.cross_entropy(&format!("loss.{first}"), [logits, labels], part, mean)?;
        loss = Some(match loss {
            Some(before) => b.add(&format!("loss.{first}.sum"), before, here)?,
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

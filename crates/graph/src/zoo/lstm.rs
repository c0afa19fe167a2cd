//! A language model of stacked LSTM layers (Hochreiter and Schmidhuber, 1997; dropout as Zaremba et al., 2014), unrolled over the
//! sequence, in the form of PyTorch's example of a word language model: two biases per layer, dropout around every layer.
//!
//! Every step reads the same weights, so that their gradients accumulate over the steps.

use super::{OptimizerKind, Options};
use crate::builder::{BuildError, Builder, Mode, Var};
use crate::graph::{Content, Graph};
use crate::init::Init;
use crate::layers::{LinearWeights, Part, WeightInit};
use crate::op::OpKind;

const WIDTH: usize = 200;
const LAYERS: usize = 2;
const LENGTH: usize = 35;
const VOCABULARY: usize = 256;
const DROPOUT: f32 = 0.2;

/// The weights and the running state of one layer.
pub(super) struct Layer {
    name: String,
    from_input: LinearWeights,
    from_state: LinearWeights,
    hidden: usize,
    /// State and cell after the last step; zeros if there was none.
    pub state: Option<[Var; 2]>,
}

impl Layer {
    /// A layer from `inputs` to `hidden` columns.
    pub fn new(b: &mut Builder, name: &str, inputs: usize, hidden: usize) -> Self {
        let init = WeightInit::Uniform(1.0 / (hidden as f32).sqrt());
        let from_input = b.linear_weights(&format!("{name}.ih"), [inputs, 4 * hidden], true, init);
        let from_state = b.linear_weights(&format!("{name}.hh"), [hidden, 4 * hidden], true, init);
        Self { name: name.to_owned(), from_input, from_state, hidden, state: None }
    }

    /// One step over `x [batch, inputs]`: the new state.
    pub fn step(&mut self, b: &mut Builder, step: usize, x: Var) -> Result<Var, BuildError> {
        let (name, batch) = (format!("{}.{step}", self.name), x.dim(0));
        let [h, c] = match self.state {
            Some(state) => state,
            None => [self.zeros(b, "h", batch)?, self.zeros(b, "c", batch)?],
        };
        let from_input = b.linear(&format!("{name}.ih"), x, self.from_input)?;
        let from_state = b.linear(&format!("{name}.hh"), h, self.from_state)?;
        let kind = OpKind::LstmCell { batch, hidden: self.hidden };
        let made = b.push(name, kind, &[from_input.id, from_state.id, c.id])?;
        self.state = Some([made[0], made[1]]);
        Ok(made[0])
    }

    fn zeros(&self, b: &mut Builder, which: &str, batch: usize) -> Result<Var, BuildError> {
        let kind = OpKind::Fill { len: batch * self.hidden, value: 0.0 };
        let zeros = b.push1(format!("{}.{which}0", self.name), kind, &[])?;
        Ok(Var { id: zeros.id, shape: [batch, self.hidden].into() })
    }
}

/// The network.
pub fn build(name: &str, options: &Options) -> Result<Graph, BuildError> {
    let batch = options.batch;
    let length = options.length.unwrap_or(LENGTH);
    let vocabulary = options.vocabulary.unwrap_or(VOCABULARY);
    let width = options.width.unwrap_or(WIDTH);
    let mut b = Builder::new(format!("{name} batch {batch} length {length}"), options.mode);
    let content = Content::Class { classes: vocabulary };
    let tokens = b.input("tokens", [batch, length], content);
    let labels = (options.mode != Mode::Inference).then(|| b.input("labels", [batch, length], content));

    let table = Init::Uniform { bound: 0.1, stream: b.init_stream() };
    let table = b.weight("encoder.weight", [vocabulary, width], table);
    let mut layers: Vec<Layer> = (0..options.layers.unwrap_or(LAYERS))
        .map(|layer| Layer::new(&mut b, &format!("rnn.{layer}"), width, width))
        .collect();
    let decoder = b.linear_weights("decoder", [width, vocabulary], true, WeightInit::Uniform(0.1));

    let mut loss: Option<Var> = None;
    let mut last = None;
    for step in 0..length {
        let part = Part::step(step, [batch, length]);
        let mut x = b.embedding(&format!("encoder.{step}"), tokens, table, part)?;
        x = b.dropout(&format!("encoder.{step}.dropout"), x, DROPOUT)?;
        for (index, layer) in layers.iter_mut().enumerate() {
            x = layer.step(&mut b, step, x)?;
            x = b.dropout(&format!("rnn.{index}.{step}.dropout"), x, DROPOUT)?;
        }
        if let Some(labels) = labels {
            let logits = b.linear(&format!("decoder.{step}"), x, decoder)?;
            let mean = 1.0 / (batch * length) as f32;
            let here = b.cross_entropy(&format!("loss.{step}"), [logits, labels], part, mean)?;
            loss = Some(match loss {
                Some(before) => b.add(&format!("loss.{step}.sum"), before, here)?,
                None => here,
            });
        }
        last = Some(x);
    }
    match (loss, last) {
        (Some(loss), _) => b.finish_training(loss, options.optimizer_or(OptimizerKind::Adam, 2e-3)),
        (None, Some(last)) => {
            // Generation needs what follows the last token only.
            let logits = b.linear("decoder", last, decoder)?;
            Ok(b.finish_inference(&[("logits", logits)]))
        }
        (None, None) => Err(BuildError::Extents {
            node: name.to_owned(),
            why: "a sequence has at least one token".to_owned(),
        }),
    }
}

//! A language model of stacked LSTM layers (Hochreiter and Schmidhuber, 1997; dropout as Zaremba et al., 2014), unrolled over the
//! sequence, in the form of PyTorch's example of a word language model: two biases per layer, dropout around every layer.
//!
//! What does not depend on the state of the step before is computed for several steps at once ([`blocks`]); the rows of their tensors are the
//! sequences of the first step, then those of the second, and so on. All steps read the same weights, so that their gradients accumulate.
//!
//! ```text
//! several steps    x ── product with the input's weight ── split ─┬────────────┬───── …
//! step by step                      state ── product ──────────── cell ── product ── cell ── … ── concatenated: the next layer's x
//! ```

use std::ops::Range;

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

/// Rows of a product from which on more of them hardly make a row cheaper. All steps at once were not faster than blocks of this size, but the
/// tensors of all steps had to lie in memory together: the smallest limit of 200 steps (batch 20) was 43 % of the unconstrained peak instead of 3 %.
const ROWS: usize = 256;

/// Steps of a batch in blocks of nearly equal length, each of about [`ROWS`] rows, or of a step if that has more.
pub(super) fn blocks(steps: Range<usize>, batch: usize) -> impl Iterator<Item = Range<usize>> {
    let count = steps.len().div_ceil(ROWS.div_ceil(batch.max(1)));
    let at = move |block: usize| steps.start + block * steps.len() / count;
    (0..count).map(move |block| at(block)..at(block + 1))
}

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

    /// Some steps over `x [steps · batch, inputs]`: the new state of each.
    pub fn steps(&mut self, b: &mut Builder, steps: Range<usize>, x: Var) -> Result<Vec<Var>, BuildError> {
        let batch = x.dim(0) / steps.len().max(1);
        let name = |step: usize| format!("{}.{step}", self.name);
        let [mut h, mut c] = match self.state {
            Some(state) => state,
            None => [self.zeros(b, "h", batch)?, self.zeros(b, "c", batch)?],
        };
        let first = name(steps.start);
        let from_input = b.linear(&format!("{first}.ih"), x, self.from_input)?;
        let from_input = b.parts(&format!("{first}.ih.steps"), from_input, steps.len())?;
        let mut states = Vec::with_capacity(steps.len());
        for (step, from_input) in steps.zip(from_input) {
            let from_state = b.linear(&format!("{}.hh", name(step)), h, self.from_state)?;
            let kind = OpKind::LstmCell { batch, hidden: self.hidden };
            let made = b.push(name(step), kind, &[from_input.id, from_state.id, c.id])?;
            [h, c] = [made[0], made[1]];
            states.push(h);
        }
        self.state = Some([h, c]);
        Ok(states)
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
    for steps in blocks(0..length, batch) {
        let (first, part) = (steps.start, Part::steps(&steps, [batch, length]));
        let mut states = vec![b.embedding(&format!("encoder.{first}"), tokens, table, part)?];
        let mut name = format!("encoder.{first}");
        for (index, layer) in layers.iter_mut().enumerate() {
            let x = b.joined(&format!("{name}.steps"), &states)?;
            let x = b.dropout(&format!("{name}.dropout"), x, DROPOUT)?;
            states = layer.steps(&mut b, steps.clone(), x)?;
            name = format!("rnn.{index}.{first}");
        }
        last = states.last().copied();
        if let Some(labels) = labels {
            let x = b.joined(&format!("{name}.steps"), &states)?;
            let x = b.dropout(&format!("{name}.dropout"), x, DROPOUT)?;
            let logits = b.linear(&format!("decoder.{first}"), x, decoder)?;
            let mean = 1.0 / (batch * length) as f32;
            let here = b.cross_entropy(&format!("loss.{first}"), [logits, labels], part, mean)?;
            loss = Some(match loss {
                Some(before) => b.add(&format!("loss.{first}.sum"), before, here)?,
                None => here,
            });
        }
    }
    match (loss, last) {
        (Some(loss), _) => b.finish_training(loss, options.optimizer_or(OptimizerKind::Adam, 2e-3)),
        (None, Some(last)) => {
            // Generation needs what follows the last token only; there is no dropout.
            let logits = b.linear("decoder", last, decoder)?;
            Ok(b.finish_inference(&[("logits", logits)]))
        }
        (None, None) => Err(BuildError::Extents {
            node: name.to_owned(),
            why: "a sequence has at least one token".to_owned(),
        }),
    }
}

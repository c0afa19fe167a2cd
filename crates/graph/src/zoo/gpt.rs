//! A decoder-only transformer in the form of GPT-2 (Radford et al., 2019): normalization before every part, learned positions, the
//! output tied to the token table. Dropout is on the embeddings and on both branches of every block; the fused attention has none
//! inside.

use super::{OptimizerKind, Options};
use crate::builder::{BuildError, Builder, Mode, Var};
use crate::graph::{Content, Graph};
use crate::init::Init;
use crate::layers::{LinearWeights, Part, WeightInit};
use crate::op::{Function, OpKind};

/// Default extents.
pub struct GptSize {
    layers: usize,
    width: usize,
    length: usize,
    vocabulary: usize,
}

/// Columns of one attention head.
const HEAD: usize = 64;
const DROPOUT: f32 = 0.1;
const STD: f32 = 0.02;

/// Small enough to train on a laptop.
pub const SMALL: GptSize = GptSize { layers: 4, width: 256, length: 128, vocabulary: 256 };
/// The smallest published GPT-2: 124 million parameters.
pub const GPT2: GptSize = GptSize { layers: 12, width: 768, length: 1024, vocabulary: 50_257 };

/// The network.
pub fn build(name: &str, size: &GptSize, options: &Options) -> Result<Graph, BuildError> {
    let batch = options.batch;
    let length = options.length.unwrap_or(size.length);
    let vocabulary = options.vocabulary.unwrap_or(size.vocabulary);
    let width = options.width.unwrap_or(size.width);
    let layers = options.layers.unwrap_or(size.layers);
    if !width.is_multiple_of(HEAD) {
        let why = format!("the width is a multiple of {HEAD}, the columns of a head, and {width} is not");
        return Err(BuildError::Extents { node: name.to_owned(), why });
    }
    let mut b = Builder::new(format!("{name} batch {batch} length {length}"), options.mode);
    let content = Content::Class { classes: vocabulary };
    let tokens = b.input("tokens", [batch, length], content);
    let labels = (options.mode != Mode::Inference).then(|| b.input("labels", [batch, length], content));

    let table = Init::Normal { std: STD, stream: b.init_stream() };
    let table = b.weight("wte.weight", [vocabulary, width], table);
    let positions = Init::Normal { std: STD, stream: b.init_stream() };
    let positions = b.weight("wpe.weight", [length, width], positions);

    let x = b.embedding("wte", tokens, table, Part::ALL)?;
    let add = OpKind::AddRow { outer: batch, inner: length * width };
    let x = b.push1("wpe", add, &[x.id, positions.id])?;
    let mut x = Var { id: x.id, shape: [batch, length, width].into() };
    x = b.dropout("drop", x, DROPOUT)?;
    for layer in 0..layers {
        x = block(&mut b, &format!("h.{layer}"), x, layers)?;
    }
    x = b.layer_norm("ln_f", x)?;
    let logits = b.linear("lm_head", x, LinearWeights { weight: table, bias: None })?;
    let Some(labels) = labels else {
        return Ok(b.finish_inference(&[("logits", logits)]));
    };
    let mean = 1.0 / (batch * length) as f32;
    let loss = b.cross_entropy("loss", [logits, labels], Part::ALL, mean)?;
    b.finish_training(loss, options.optimizer_or(OptimizerKind::Adam, 1e-3))
}

fn block(b: &mut Builder, name: &str, x: Var, layers: usize) -> Result<Var, BuildError> {
    let width = x.dim(2);
    // Every block adds two branches to the residual stream, whose variance would otherwise grow with the depth.
    let last = WeightInit::Normal(STD / ((2 * layers) as f32).sqrt());

    let y = b.layer_norm(&format!("{name}.ln_1"), x)?;
    let qkv = dense(b, &format!("{name}.attn.c_attn"), y, 3 * width, WeightInit::Normal(STD))?;
    let y = b.attention(&format!("{name}.attn"), qkv, width / HEAD, true)?;
    let y = dense(b, &format!("{name}.attn.c_proj"), y, width, last)?;
    let y = b.dropout(&format!("{name}.attn.dropout"), y, DROPOUT)?;
    let x = b.add(&format!("{name}.attn.add"), x, y)?;

    let y = b.layer_norm(&format!("{name}.ln_2"), x)?;
    let y = dense(b, &format!("{name}.mlp.c_fc"), y, 4 * width, WeightInit::Normal(STD))?;
    let y = b.map(&format!("{name}.mlp.gelu"), y, Function::Gelu)?;
    let y = dense(b, &format!("{name}.mlp.c_proj"), y, width, last)?;
    let y = b.dropout(&format!("{name}.mlp.dropout"), y, DROPOUT)?;
    b.add(&format!("{name}.mlp.add"), x, y)
}

/// A linear layer over the last extent of `x [batch, length, inputs]`.
fn dense(b: &mut Builder, name: &str, x: Var, outputs: usize, init: WeightInit) -> Result<Var, BuildError> {
    let weights = b.linear_weights(name, [x.dim(2), outputs], true, init);
    let y = b.linear(name, x, weights)?;
    Ok(Var { id: y.id, shape: [x.dim(0), x.dim(1), outputs].into() })
}

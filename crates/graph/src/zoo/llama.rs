//! A decoder-only transformer in the form of LLaMA (Touvron et al., 2023; heads that share keys and values as in its second version): root-mean-
//! square normalization before every part, rotary positions, gated layers, no biases, an output layer of its own. Weights have the names of
//! Hugging Face's `LlamaForCausalLM`.

use super::{OptimizerKind, Options};
use crate::builder::{BuildError, Builder, Mode, Var};
use crate::graph::{Content, Graph};
use crate::init::Init;
use crate::layers::{LinearWeights, Part, WeightInit};
use crate::op::Function;

/// Default extents.
pub struct LlamaSize {
    pub layers: usize,
    pub width: usize,
    pub length: usize,
    pub vocabulary: usize,
    /// Heads of queries that share keys and values.
    share: usize,
}

/// Columns of one attention head.
const HEAD: usize = 64;
/// The gated layers' columns are a multiple of this.
const MULTIPLE: usize = 256;
const STD: WeightInit = WeightInit::Normal(0.02);
const EPSILON: f32 = 1e-5;
const BASE: f32 = 10_000.0;

/// Small enough to train on a laptop.
pub const SMALL: LlamaSize = LlamaSize { layers: 4, width: 256, length: 128, vocabulary: 256, share: 2 };
/// TinyLlama (Zhang et al., 2024): 1.1 billion parameters.
pub const TINY: LlamaSize = LlamaSize { layers: 22, width: 2048, length: 2048, vocabulary: 32_000, share: 8 };

/// The network. The width is a multiple of 64.
pub fn build(name: &str, size: &LlamaSize, options: &Options) -> Result<Graph, BuildError> {
    let batch = options.batch;
    let length = options.length.unwrap_or(size.length);
    let vocabulary = options.vocabulary.unwrap_or(size.vocabulary);
    let width = options.width.unwrap_or(size.width);
    if !width.is_multiple_of(HEAD) {
        let why = format!("the width is a multiple of {HEAD}, the columns of a head, and {width} is not");
        return Err(BuildError::Extents { node: name.to_owned(), why });
    }
    let heads = width / HEAD;
    // Where heads cannot share evenly, each has its own.
    let shared = if heads.is_multiple_of(size.share) { heads / size.share } else { heads };
    let mut b = Builder::new(format!("{name} batch {batch} length {length}"), options.mode);
    let content = Content::Class { classes: vocabulary };
    let tokens = b.input("tokens", [batch, length], content);
    let labels = (options.mode != Mode::Inference).then(|| b.input("labels", [batch, length], content));

    let table = Init::Normal { std: 0.02, stream: b.init_stream() };
    let table = b.weight("model.embed_tokens.weight", [vocabulary, width], table);
    let x = b.embedding("model.embed_tokens", tokens, table, Part::ALL)?;
    let mut x = Var { id: x.id, shape: [batch, length, width].into() };
    for layer in 0..options.layers.unwrap_or(size.layers) {
        x = block(&mut b, &format!("model.layers.{layer}"), x, [heads, shared])?;
    }
    x = b.rms_norm("model.norm", x, EPSILON)?;
    let logits = dense(&mut b, "lm_head", x, vocabulary)?;
    let Some(labels) = labels else {
        return Ok(b.finish_inference(&[("logits", logits)]));
    };
    let mean = 1.0 / (batch * length) as f32;
    let loss = b.cross_entropy("loss", [logits, labels], Part::ALL, mean)?;
    b.finish_training(loss, options.optimizer_or(OptimizerKind::Adam, 1e-3))
}

fn block(b: &mut Builder, name: &str, x: Var, [heads, shared]: [usize; 2]) -> Result<Var, BuildError> {
    let width = x.dim(2);
    let y = b.rms_norm(&format!("{name}.input_layernorm"), x, EPSILON)?;
    let attention = format!("{name}.self_attn");
    let q = dense(b, &format!("{attention}.q_proj"), y, heads * HEAD)?;
    let k = dense(b, &format!("{attention}.k_proj"), y, shared * HEAD)?;
    let v = dense(b, &format!("{attention}.v_proj"), y, shared * HEAD)?;
    let q = b.rotary(&format!("{attention}.q_rotary"), q, heads, BASE)?;
    let k = b.rotary(&format!("{attention}.k_rotary"), k, shared, BASE)?;
    let y = b.cross_attention(&attention, [q, k, v], [heads, shared], true)?;
    let y = dense(b, &format!("{attention}.o_proj"), y, width)?;
    let x = b.add(&format!("{attention}.add"), x, y)?;

    let y = b.rms_norm(&format!("{name}.post_attention_layernorm"), x, EPSILON)?;
    let wide = (8 * width / 3).next_multiple_of(MULTIPLE);
    let gate = dense(b, &format!("{name}.mlp.gate_proj"), y, wide)?;
    let up = dense(b, &format!("{name}.mlp.up_proj"), y, wide)?;
    let gate = b.map(&format!("{name}.mlp.act_fn"), gate, Function::Silu)?;
    let y = b.mul(&format!("{name}.mlp.gated"), gate, up)?;
    let y = dense(b, &format!("{name}.mlp.down_proj"), y, width)?;
    b.add(&format!("{name}.mlp.add"), x, y)
}

/// A linear layer without bias over the last extent of `x [batch, length, inputs]`.
fn dense(b: &mut Builder, name: &str, x: Var, outputs: usize) -> Result<Var, BuildError> {
    let weights: LinearWeights = b.linear_weights(name, [x.dim(2), outputs], false, STD);
    let y = b.linear(name, x, weights)?;
    Ok(Var { id: y.id, shape: [x.dim(0), x.dim(1), outputs].into() })
}

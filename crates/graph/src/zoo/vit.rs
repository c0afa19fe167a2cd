//! The vision transformer ViT-B/16 (Dosovitskiy et al., *An image is worth 16x16 words*, 2021), in torchvision's form. Small images have patches
//! of 4×4.

use super::{OptimizerKind, Options, Vision};
use crate::builder::{BuildError, Builder, Var};
use crate::graph::Graph;
use crate::init::Init;
use crate::layers::{ConvLayer, LinearWeights, WeightInit};
use crate::op::{Function, OpKind, Window};

pub const WIDTH: usize = 768;
pub const LAYERS: usize = 12;
/// Columns of one attention head.
const HEAD: usize = 64;
const EPSILON: f32 = 1e-6;
/// Patches along one side of an image at most: every patch looks at every other.
const PATCHES: usize = 128;

/// The network. The image size is a multiple of the patch, the width one of 64.
pub fn build(name: &str, options: &Options) -> Result<Graph, BuildError> {
    let mut net = Vision::new(name, options, 224);
    let (width, layers) = (options.width.unwrap_or(WIDTH), options.layers.unwrap_or(LAYERS));
    let patch = if net.small() { 4 } else { 16 };
    let batch = net.images.dim(0);
    let refuse = |why: String| Err(BuildError::Extents { node: name.to_owned(), why });
    if !net.size.is_multiple_of(patch) {
        return refuse(format!("the image size is a multiple of {patch}, and {} is not", net.size));
    }
    if net.size > PATCHES * patch {
        return refuse(format!("the image size is at most {}, and {} is more", PATCHES * patch, net.size));
    }
    if !width.is_multiple_of(HEAD) {
        return refuse(format!(
            "the width is a multiple of {HEAD}, the columns of a head, and {width} is not"
        ));
    }
    let tokens = (net.size / patch).pow(2) + 1;
    let b = &mut net.builder;
    let class = b.weight("class_token", [1, 1, width], Init::Constant(0.0));
    let layer = ConvLayer {
        channels: width,
        window: Window::square(patch, patch, 0),
        bias: true,
        init: WeightInit::Normal(1.0 / (3.0 * (patch * patch) as f32).sqrt()),
    };
    let x = b.conv2d("conv_proj", net.images, layer)?;
    let x = b.channels_last("patches", x)?;
    // The same token before those of every image.
    let zeros = b.push1("class_token.zeros", OpKind::Fill { len: batch * width, value: 0.0 }, &[])?;
    let first = OpKind::AddRow { outer: batch, inner: width };
    let first = b.push1("class_token.rows", first, &[zeros.id, class.id])?;
    let widths = vec![width, (tokens - 1) * width];
    let x = b.push1("tokens", OpKind::Concat { outer: batch, widths }, &[first.id, x.id])?;
    let init = Init::Normal { std: 0.02, stream: b.init_stream() };
    let positions = b.weight("encoder.pos_embedding", [1, tokens, width], init);
    let add = OpKind::AddRow { outer: batch, inner: tokens * width };
    let x = b.push1("encoder.positions", add, &[x.id, positions.id])?;
    let mut x = Var { id: x.id, shape: [batch, tokens, width].into() };
    for layer in 0..layers {
        x = block(b, &format!("encoder.layers.encoder_layer_{layer}"), x)?;
    }
    x = b.layer_norm_with("encoder.ln", x, EPSILON)?;
    let part = OpKind::Slice { outer: batch, total: tokens * width, start: 0, width };
    let x = b.push1("class", part, &[x.id])?;
    let head = b.linear_weights("heads.head", [width, net.classes], true, WeightInit::FanInUniform);
    let logits = b.linear("heads.head", x, head)?;
    net.finish(logits, &[], options.optimizer_or(OptimizerKind::Adam, 1e-3))
}

/// Uniform within Glorot's bound.
fn glorot([inputs, outputs]: [usize; 2]) -> WeightInit {
    WeightInit::Uniform((6.0 / (inputs + outputs) as f32).sqrt())
}

fn block(b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
    let width = x.dim(2);
    let y = b.layer_norm_with(&format!("{name}.ln_1"), x, EPSILON)?;
    // Names of PyTorch's `MultiheadAttention`, which end otherwise than those of its layers.
    let attention = format!("{name}.self_attention");
    let bound = (6.0 / (4 * width) as f32).sqrt();
    let init = Init::Uniform { bound, stream: b.init_stream() };
    let weight = b.weight(format!("{attention}.in_proj_weight"), [3 * width, width], init);
    let bias = b.weight(format!("{attention}.in_proj_bias"), [3 * width], Init::Constant(0.0));
    let qkv = b.linear(&format!("{attention}.in_proj"), y, LinearWeights { weight, bias: Some(bias) })?;
    let qkv = Var { id: qkv.id, shape: [x.dim(0), x.dim(1), 3 * width].into() };
    let y = b.attention(&attention, qkv, width / HEAD, false)?;
    let y = dense(b, &format!("{attention}.out_proj"), y, width)?;
    let x = b.add(&format!("{attention}.add"), y, x)?;

    let y = b.layer_norm_with(&format!("{name}.ln_2"), x, EPSILON)?;
    let y = dense(b, &format!("{name}.mlp.0"), y, 4 * width)?;
    let y = b.map(&format!("{name}.mlp.1"), y, Function::GeluExact)?;
    let y = dense(b, &format!("{name}.mlp.3"), y, width)?;
    b.add(&format!("{name}.mlp.add"), x, y)
}

/// A linear layer over the last extent of `x [batch, tokens, inputs]`.
fn dense(b: &mut Builder, name: &str, x: Var, outputs: usize) -> Result<Var, BuildError> {
    let sizes = [x.dim(2), outputs];
    let weights = b.linear_weights(name, sizes, true, glorot(sizes));
    let y = b.linear(name, x, weights)?;
    Ok(Var { id: y.id, shape: [x.dim(0), x.dim(1), outputs].into() })
}

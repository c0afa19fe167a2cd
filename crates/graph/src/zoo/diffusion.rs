//! A small diffusion model of images (Ho et al., *Denoising diffusion probabilistic models*, 2020): a U-Net of residual blocks with group
//! normalization that learn of the time step, with attention at the smallest size. Every iteration draws a time step for each image and noise
//! for each pixel, and the loss is the mean squared difference between that noise and what the network makes of the noisy image.

use super::{OptimizerKind, Options};
use crate::builder::{BuildError, Builder, Mode, Var};
use crate::graph::{Content, Graph};
use crate::layers::{ConvLayer, EPSILON, TransposedLayer, WeightInit};
use crate::op::{Channels, Diffusion, Function, OpKind, Window};

pub const WIDTH: usize = 64;
pub const IMAGE: usize = 32;
const WIDEST: usize = 2048;
/// Every pixel of the smallest level looks at every other.
const LARGEST: usize = 512;
/// Channels of every level, as multiples of the width; between levels, images are halved.
const LEVELS: [usize; 3] = [1, 2, 2];
/// Channels that are normalized together, if they divide the channels.
const GROUP: usize = 8;
/// Columns of one attention head, if they divide the channels.
const HEAD: usize = 32;
const STEPS: usize = 1000;
const INIT: WeightInit = WeightInit::FanInUniform;

/// The network. The image size is a multiple of 4, the width an even number.
pub fn build(name: &str, options: &Options) -> Result<Graph, BuildError> {
    let (batch, size) = (options.batch, options.image.unwrap_or(IMAGE));
    let width = options.width.unwrap_or(WIDTH);
    let refuse = |why: String| Err(BuildError::Extents { node: name.to_owned(), why });
    if !size.is_multiple_of(1 << (LEVELS.len() - 1)) {
        let multiple = 1 << (LEVELS.len() - 1);
        return refuse(format!("the image size is a multiple of {multiple}, and {size} is not"));
    }
    if size > LARGEST {
        return refuse(format!("the image size is at most {LARGEST}, and {size} is more"));
    }
    if width > WIDEST || !width.is_multiple_of(2) {
        return refuse(format!("the width is an even number up to {WIDEST}, and {width} is not"));
    }
    let mut b = Builder::new(format!("{name} batch {batch} image {size}"), options.mode);
    let images = b.input("images", [batch, 3, size, size], Content::Real);
    let noise = b.noise("noise", [batch, 3, size, size])?;
    let steps = b.random_steps("steps", batch, STEPS)?;
    let diffusion = Diffusion { batch, size: 3 * size * size, steps: STEPS };
    let noisy = b.push1("noisy", OpKind::Diffuse(diffusion), &[images.id, noise.id, steps.id])?;
    let noisy = Var { id: noisy.id, shape: images.shape };

    let time = b.push1("time", OpKind::Sinusoid { rows: batch, width }, &[steps.id])?;
    let time = dense(&mut b, "time.0", time, 4 * width)?;
    let time = b.map("time.1", time, Function::Silu)?;
    let time = dense(&mut b, "time.2", time, 4 * width)?;
    let time = b.map("time.3", time, Function::Silu)?;

    let mut x = conv(&mut b, "begin", noisy, width, Window::square(3, 1, 1))?;
    let mut skips = Vec::new();
    for (level, multiple) in LEVELS.into_iter().enumerate() {
        x = residual(&mut b, &format!("down.{level}"), x, time, multiple * width)?;
        skips.push(x);
        if level + 1 < LEVELS.len() {
            x = conv(&mut b, &format!("halve.{level}"), x, x.dim(1), Window::square(3, 2, 1))?;
        }
    }
    let wide = x.dim(1);
    x = residual(&mut b, "middle.0", x, time, wide)?;
    x = attend(&mut b, "middle.1", x)?;
    x = residual(&mut b, "middle.2", x, time, wide)?;
    for (level, skip) in skips.into_iter().enumerate().rev() {
        x = b.concat(&format!("up.{level}.concat"), &[x, skip])?;
        x = residual(&mut b, &format!("up.{level}"), x, time, skip.dim(1))?;
        if level > 0 {
            let layer =
                ConvLayer { channels: x.dim(1), window: Window::square(4, 2, 1), bias: true, init: INIT };
            let double = TransposedLayer { layer, groups: 1, dilation: [1, 1], extra: [0, 0] };
            x = b.grouped_conv_transpose2d(&format!("enlarge.{level}"), x, double)?;
        }
    }
    x = norm(&mut b, "end.0", x)?;
    let found = conv(&mut b, "end.1", x, 3, Window::square(3, 1, 1))?;
    if options.mode == Mode::Inference {
        return Ok(b.finish_inference(&[("noise", found)]));
    }
    let mean = 1.0 / found.shape.len() as f32;
    let loss = b.squared_error("loss", found, noise, mean)?;
    b.finish_training(loss, options.optimizer_or(OptimizerKind::Adam, 2e-4))
}

fn dense(b: &mut Builder, name: &str, x: Var, outputs: usize) -> Result<Var, BuildError> {
    let weights = b.linear_weights(name, [x.dim(1), outputs], true, INIT);
    b.linear(name, x, weights)
}

fn conv(b: &mut Builder, name: &str, x: Var, channels: usize, window: Window) -> Result<Var, BuildError> {
    b.conv2d(name, x, ConvLayer { channels, window, bias: true, init: INIT })
}

/// Group normalization and SiLU.
fn norm(b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
    let groups = if x.dim(1).is_multiple_of(GROUP) { x.dim(1) / GROUP } else { 1 };
    let x = b.group_norm(name, x, groups, EPSILON)?;
    b.map(&format!("{name}.silu"), x, Function::Silu)
}

/// Two convolutions; between them every channel is moved by what a layer makes of the time step.
fn residual(b: &mut Builder, name: &str, x: Var, time: Var, channels: usize) -> Result<Var, BuildError> {
    let same = Window::square(3, 1, 1);
    let y = norm(b, &format!("{name}.norm1"), x)?;
    let y = conv(b, &format!("{name}.conv1"), y, channels, same)?;
    let shift = dense(b, &format!("{name}.time"), time, channels)?;
    let planes = Channels { batch: 1, channels: x.dim(0) * channels, spatial: x.dim(2) * x.dim(3) };
    let moved = b.push1(format!("{name}.moved"), OpKind::AddChannel(planes), &[y.id, shift.id])?;
    let y = norm(b, &format!("{name}.norm2"), Var { id: moved.id, shape: y.shape })?;
    let y = conv(b, &format!("{name}.conv2"), y, channels, same)?;
    let mut shortcut = x;
    if x.dim(1) != channels {
        shortcut = conv(b, &format!("{name}.shortcut"), x, channels, Window::square(1, 1, 0))?;
    }
    b.add(&format!("{name}.add"), shortcut, y)
}

/// Self-attention of the pixels.
fn attend(b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
    let [batch, channels, height, width] = [0, 1, 2, 3].map(|axis| x.dim(axis));
    let groups = if channels.is_multiple_of(GROUP) { channels / GROUP } else { 1 };
    let y = b.group_norm(&format!("{name}.norm"), x, groups, EPSILON)?;
    let y = b.channels_last(&format!("{name}.last"), y)?;
    let rows = Var { id: y.id, shape: [batch * height * width, channels].into() };
    let qkv = dense(b, &format!("{name}.qkv"), rows, 3 * channels)?;
    let qkv = Var { id: qkv.id, shape: [batch, height * width, 3 * channels].into() };
    let heads = if channels.is_multiple_of(HEAD) { channels / HEAD } else { 1 };
    let y = b.attention(&format!("{name}.attention"), qkv, heads, false)?;
    let rows = Var { id: y.id, shape: [batch * height * width, channels].into() };
    let y = dense(b, &format!("{name}.out"), rows, channels)?;
    let y = Var { id: y.id, shape: [batch, height, width, channels].into() };
    let y = b.channels_first(&format!("{name}.first"), y)?;
    b.add(&format!("{name}.add"), x, y)
}

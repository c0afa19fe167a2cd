//! ConvNeXt-Tiny (Liu et al., *A ConvNet for the 2020s*, 2022), in torchvision's form.

use super::{OptimizerKind, Options, Vision};
use crate::builder::{BuildError, Builder, Var};
use crate::graph::Graph;
use crate::init::Init;
use crate::layers::{ConvLayer, WeightInit};
use crate::op::{Channels, Function, OpKind, Window};

/// Channels of the first stage; each further one has twice as many.
pub const WIDTH: usize = 96;
/// Blocks of every stage.
const BLOCKS: [usize; 4] = [3, 3, 9, 3];
const EPSILON: f32 = 1e-6;
const STD: WeightInit = WeightInit::Normal(0.02);
const LAYER_SCALE: f32 = 1e-6;
/// The probability with which the last block is left out of a sample; that of the others grows towards it.
const STOCHASTIC_DEPTH: f32 = 0.1;
const WIDEST: usize = 4096;

/// The network. The image size is a multiple of 32.
pub fn build(name: &str, options: &Options) -> Result<Graph, BuildError> {
    let mut net = Vision::new(name, options, 224);
    let width = options.width.unwrap_or(WIDTH);
    if width > WIDEST {
        let why = format!("the width is at most {WIDEST}, and {width} is more");
        return Err(BuildError::Extents { node: name.to_owned(), why });
    }
    let b = &mut net.builder;
    let mut x = halved(b, "features.0.0", net.images, width, 4)?;
    x = norm_channels(b, "features.0.1", x)?;
    let (mut before, all) = (0, BLOCKS.iter().sum::<usize>());
    for (stage, blocks) in BLOCKS.into_iter().enumerate() {
        for index in 0..blocks {
            let left_out = STOCHASTIC_DEPTH * before as f32 / (all - 1) as f32;
            x = block(b, &format!("features.{}.{index}", 2 * stage + 1), x, left_out)?;
            before += 1;
        }
        if stage + 1 < BLOCKS.len() {
            let name = format!("features.{}", 2 * stage + 2);
            x = norm_channels(b, &format!("{name}.0"), x)?;
            x = halved(b, &format!("{name}.1"), x, width << (stage + 1), 2)?;
        }
    }
    x = b.global_average_pool("avgpool", x)?;
    // Of one element each, planes are columns.
    x = b.layer_norm_with("classifier.0", x.rows(), EPSILON)?;
    let head = b.linear_weights("classifier.2", [x.dim(1), net.classes], true, STD);
    let logits = b.linear("classifier.2", x, head)?;
    net.finish(logits, &[], options.optimizer_or(OptimizerKind::Adam, 1e-3))
}

/// A convolution whose windows touch.
fn halved(b: &mut Builder, name: &str, x: Var, channels: usize, by: usize) -> Result<Var, BuildError> {
    let layer = ConvLayer { channels, window: Window::square(by, by, 0), bias: true, init: STD };
    b.conv2d(name, x, layer)
}

/// Normalization of the channels of every pixel.
fn norm_channels(b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
    let y = b.channels_last(&format!("{name}.last"), x)?;
    let y = b.layer_norm_with(name, y, EPSILON)?;
    b.channels_first(&format!("{name}.first"), y)
}

/// A depthwise convolution, then two layers over the channels of every pixel.
fn block(b: &mut Builder, name: &str, x: Var, left_out: f32) -> Result<Var, BuildError> {
    let channels = x.dim(1);
    // torchvision's first parameter of a block.
    let scale = b.weight(format!("{name}.layer_scale"), [channels, 1, 1], Init::Constant(LAYER_SCALE));
    let layer = ConvLayer { channels, window: Window::square(7, 1, 3), bias: true, init: STD };
    let y = b.grouped_conv2d(&format!("{name}.block.0"), x, layer, channels, [1, 1])?;
    let y = b.channels_last(&format!("{name}.block.1"), y)?;
    let pixels = y.shape;
    let y = b.layer_norm_with(&format!("{name}.block.2"), y, EPSILON)?;
    let weights = b.linear_weights(&format!("{name}.block.3"), [channels, 4 * channels], true, STD);
    let y = b.linear(&format!("{name}.block.3"), y, weights)?;
    let y = b.map(&format!("{name}.block.4"), y, Function::GeluExact)?;
    let weights = b.linear_weights(&format!("{name}.block.5"), [4 * channels, channels], true, STD);
    let y = b.linear(&format!("{name}.block.5"), y, weights)?;
    let rows = Channels { batch: pixels.len() / channels, channels, spatial: 1 };
    let y = b.push1(format!("{name}.scaled"), OpKind::MulChannel(rows), &[y.id, scale.id])?;
    let y = b.channels_first(&format!("{name}.block.6"), Var { id: y.id, shape: pixels })?;
    let y = b.drop_samples(&format!("{name}.stochastic_depth"), y, left_out)?;
    b.add(&format!("{name}.add"), y, x)
}

//! DenseNet (Huang et al., *Densely connected convolutional networks*, 2016) with bottlenecks and compression, in torchvision's form.
//! Small images take a 3×3 stem without pooling.
//!
//! Every layer reads everything before it. The features grow by one concatenation of two parts per layer, which holds the same tensors as
//! concatenating all parts anew.

use super::{OptimizerKind, Options, Vision};
use crate::builder::{BuildError, Builder, Var};
use crate::graph::Graph;
use crate::layers::{ConvLayer, EPSILON, WeightInit};
use crate::op::Window;

/// One published configuration.
pub struct Config {
    /// Channels that each layer adds.
    growth: usize,
    /// Layers of each block.
    blocks: [usize; 4],
    /// Channels of the stem.
    stem: usize,
}

/// DenseNet-121.
pub const DENSENET121: Config = Config { growth: 32, blocks: [6, 12, 24, 16], stem: 64 };
/// DenseNet-161.
pub const DENSENET161: Config = Config { growth: 48, blocks: [6, 12, 36, 24], stem: 96 };
/// DenseNet-169.
pub const DENSENET169: Config = Config { growth: 32, blocks: [6, 12, 32, 32], stem: 64 };
/// DenseNet-201.
pub const DENSENET201: Config = Config { growth: 32, blocks: [6, 12, 48, 32], stem: 64 };

/// Channels of a bottleneck, in units of the growth.
const BOTTLENECK: usize = 4;

/// The network.
pub fn build(name: &str, config: &Config, options: &Options) -> Result<Graph, BuildError> {
    let mut net = Vision::new(name, options, 32);
    let small = net.small();
    let stem = if small { Window::square(3, 1, 1) } else { Window::square(7, 2, 3) };
    let b = &mut net.builder;
    let mut x = b.conv2d("features.conv0", net.images, ConvLayer::plain(config.stem, stem))?;
    x = norm_relu(b, "features.norm0", x)?;
    if !small {
        x = b.max_pool("features.pool0", x, Window::square(3, 2, 1))?;
    }
    for (block, &layers) in config.blocks.iter().enumerate() {
        for layer in 0..layers {
            let name = format!("features.denseblock{}.denselayer{}", block + 1, layer + 1);
            let wide = ConvLayer::plain(BOTTLENECK * config.growth, Window::square(1, 1, 0));
            let mut y = norm_relu(b, &format!("{name}.norm1"), x)?;
            y = b.conv2d(&format!("{name}.conv1"), y, wide)?;
            y = norm_relu(b, &format!("{name}.norm2"), y)?;
            let narrow = ConvLayer::plain(config.growth, Window::square(3, 1, 1));
            y = b.conv2d(&format!("{name}.conv2"), y, narrow)?;
            x = b.concat(&format!("{name}.concat"), &[x, y])?;
        }
        if block + 1 < config.blocks.len() {
            let name = format!("features.transition{}", block + 1);
            let half = ConvLayer::plain(x.dim(1) / 2, Window::square(1, 1, 0));
            x = norm_relu(b, &format!("{name}.norm"), x)?;
            x = b.conv2d(&format!("{name}.conv"), x, half)?;
            x = b.average_pool(&format!("{name}.pool"), x, Window::square(2, 2, 0))?;
        }
    }
    x = norm_relu(b, "features.norm5", x)?;
    x = b.global_average_pool("avgpool", x)?;
    let classifier = b.linear_weights("classifier", [x.dim(1), net.classes], true, WeightInit::FanInUniform);
    let logits = b.linear("classifier", x.rows(), classifier)?;
    net.finish(logits, &[], options.optimizer_or(OptimizerKind::Sgd, 0.05))
}

fn norm_relu(b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
    let x = b.batch_norm(name, x, EPSILON)?;
    b.relu(&format!("{name}.relu"), x)
}

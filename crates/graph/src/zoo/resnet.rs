//! ResNet (He et al., *Deep residual learning for image recognition*, 2015), in torchvision's form: the bottleneck's stride is on its
//! 3×3 convolution. Small images take a 3×3 stem without pooling.

use super::{OptimizerKind, Options, Vision};
use crate::builder::{BuildError, Builder, Var};
use crate::graph::Graph;
use crate::layers::{ConvLayer, WeightInit};
use crate::op::Window;

/// Blocks of one depth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Blocks in each stage.
    blocks: Vec<usize>,
    /// Channels of the first stage, doubled by every further one.
    width: usize,
    bottleneck: bool,
}

impl Depth {
    /// The published depths: those for ImageNet, and those for CIFAR in three narrow stages (20, 32, 44, 56, 110, 1202; here with
    /// projections where the paper pads). And any other that a number of blocks makes: even ones below 50, from 50 on 3·n + 2 with half
    /// of the blocks in the third stage, as in ResNet-152.
    pub fn of(depth: usize) -> Option<Self> {
        let made =
            |blocks: &[usize], width, bottleneck| Some(Self { blocks: blocks.to_vec(), width, bottleneck });
        match depth {
            18 => made(&[2, 2, 2, 2], 64, false),
            34 => made(&[3, 4, 6, 3], 64, false),
            50 => made(&[3, 4, 6, 3], 64, true),
            101 => made(&[3, 4, 23, 3], 64, true),
            152 => made(&[3, 8, 36, 3], 64, true),
            20 | 32 | 44 | 56 | 110 | 1202 => made(&[(depth - 2) / 6; 3], 16, false),
            10..50 if depth.is_multiple_of(2) => {
                let blocks = (depth - 2) / 2;
                made(&[blocks / 4, (blocks + 1) / 4, blocks.div_ceil(4), (blocks + 2) / 4], 64, false)
            }
            51..=20_000 if depth % 3 == 2 => {
                let blocks = (depth - 2) / 3;
                let second = blocks / 6;
                made(&[3, second, blocks - second - 6, 3], 64, true)
            }
            _ => None,
        }
    }
}

/// The network.
pub fn build(name: &str, depth: &Depth, options: &Options) -> Result<Graph, BuildError> {
    let mut net = Vision::new(name, options, 32);
    let stem = if net.small() { Window::square(3, 1, 1) } else { Window::square(7, 2, 3) };
    let b = &mut net.builder;
    let mut x = b.conv2d("conv1", net.images, ConvLayer::plain(depth.width, stem))?;
    x = b.batch_norm("bn1", x)?;
    x = b.relu("relu", x)?;
    if net.size >= super::SMALL_IMAGE {
        x = b.max_pool("maxpool", x, Window::square(3, 2, 1))?;
    }
    for (stage, &blocks) in depth.blocks.iter().enumerate() {
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let name = format!("layer{}.{block}", stage + 1);
            x = residual(b, &name, x, depth.width << stage, stride, depth.bottleneck)?;
        }
    }
    x = b.global_average_pool("avgpool", x)?;
    let features = x.dim(1);
    let fc = b.linear_weights("fc", [features, net.classes], true, WeightInit::FanInUniform);
    let logits = b.linear("fc", x.rows(), fc)?;
    net.finish(logits, &[], options.optimizer(OptimizerKind::Sgd, 0.05))
}

/// One block: two 3×3 convolutions, or 1×1, 3×3, 1×1 with four times as many channels out.
fn residual(
    b: &mut Builder,
    name: &str,
    x: Var,
    width: usize,
    stride: usize,
    bottleneck: bool,
) -> Result<Var, BuildError> {
    let wide = if bottleneck { 4 * width } else { width };
    let windows: &[(usize, Window)] = if bottleneck {
        &[
            (width, Window::square(1, 1, 0)),
            (width, Window::square(3, stride, 1)),
            (wide, Window::square(1, 1, 0)),
        ]
    } else {
        &[(width, Window::square(3, stride, 1)), (width, Window::square(3, 1, 1))]
    };
    let mut y = x;
    for (index, &(channels, window)) in windows.iter().enumerate() {
        y = b.conv2d(&format!("{name}.conv{}", index + 1), y, ConvLayer::plain(channels, window))?;
        y = b.batch_norm(&format!("{name}.bn{}", index + 1), y)?;
        if index + 1 < windows.len() {
            y = b.relu(&format!("{name}.relu{}", index + 1), y)?;
        }
    }
    let mut shortcut = x;
    if stride != 1 || x.dim(1) != wide {
        let layer = ConvLayer::plain(wide, Window::square(1, stride, 0));
        shortcut = b.conv2d(&format!("{name}.downsample.0"), x, layer)?;
        shortcut = b.batch_norm(&format!("{name}.downsample.1"), shortcut)?;
    }
    let sum = b.add(&format!("{name}.add"), y, shortcut)?;
    b.relu(&format!("{name}.relu"), sum)
}

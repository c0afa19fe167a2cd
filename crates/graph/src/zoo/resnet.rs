//! ResNet (He et al., *Deep residual learning for image recognition*, 2015), in torchvision's form: the bottleneck's stride is on its
//! 3×3 convolution. Small images take a 3×3 stem without pooling.

use super::{OptimizerKind, Options, Variation, Vision};
use crate::builder::{BuildError, Builder, Mode, Var};
use crate::graph::Graph;
use crate::layers::{ConvLayer, EPSILON, WeightInit};
use crate::op::Window;
use crate::philox::philox;

/// The name of a network with stochastic depth begins with this; `resnet` and a depth follow.
pub const STOCHASTIC: &str = "stochastic-";

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

    /// Channels of the first stage.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The same blocks with another number of channels in the first stage: a deep network that is narrow enough to train anywhere.
    pub fn with_width(self, width: usize) -> Self {
        Self { width, ..self }
    }
}

/// The network.
pub fn build(name: &str, depth: &Depth, options: &Options) -> Result<Graph, BuildError> {
    assemble(Vision::new(name, options, 32), depth, options, &|_, _| Branch::Taken)
}

/// The network with stochastic depth (Huang et al., *Deep networks with stochastic depth*, 2016): in training, residual branch ℓ of L is
/// taken with probability 1 − ℓ/(2·L), and left out otherwise; in inference all are taken, weighted by that probability.
/// [`Options::draw`] decides which; without a draw all are taken.
pub fn stochastic(name: &str, depth: &Depth, options: &Options) -> Result<Graph, BuildError> {
    let survival = |block: usize, of: usize| 1.0 - (block + 1) as f32 / (2 * of) as f32;
    let branch = |block: usize, of: usize| match (options.mode, options.draw) {
        (Mode::Inference | Mode::Evaluation, _) => Branch::Weighted(survival(block, of)),
        (Mode::Training, None) => Branch::Taken,
        (Mode::Training, Some(draw)) => {
            let word = philox([block as u32, 0, 0, 0], [draw as u32, (draw >> 32) as u32])[0];
            let taken = (word as f32) < survival(block, of) * 2f32.powi(32);
            if taken { Branch::Taken } else { Branch::LeftOut }
        }
    };
    assemble(Vision::new(name, options, 32), depth, options, &branch)
}

/// In training, stochastic depth leaves out other blocks in every iteration.
pub fn variation(mode: Mode) -> Option<Variation> {
    (mode == Mode::Training).then_some(Variation::Random)
}

/// What happens to the residual branch of a block.
#[derive(Clone, Copy)]
enum Branch {
    Taken,
    LeftOut,
    Weighted(f32),
}

fn assemble(
    mut net: Vision,
    depth: &Depth,
    options: &Options,
    branch: &dyn Fn(usize, usize) -> Branch,
) -> Result<Graph, BuildError> {
    let stem = if net.small() { Window::square(3, 1, 1) } else { Window::square(7, 2, 3) };
    let small = net.small();
    let b = &mut net.builder;
    let mut x = b.conv2d("conv1", net.images, ConvLayer::plain(depth.width, stem))?;
    x = b.batch_norm("bn1", x, EPSILON)?;
    x = b.relu("relu", x)?;
    if !small {
        x = b.max_pool("maxpool", x, Window::square(3, 2, 1))?;
    }
    let (mut index, of) = (0, depth.blocks.iter().sum());
    for (stage, &blocks) in depth.blocks.iter().enumerate() {
        for block in 0..blocks {
            let block = ResidualBlock {
                name: format!("layer{}.{block}", stage + 1),
                width: depth.width << stage,
                stride: if stage > 0 && block == 0 { 2 } else { 1 },
                bottleneck: depth.bottleneck,
            };
            x = block.build(b, x, branch(index, of))?;
            index += 1;
        }
    }
    x = b.global_average_pool("avgpool", x)?;
    let fc = b.linear_weights("fc", [x.dim(1), net.classes], true, WeightInit::FanInUniform);
    let logits = b.linear("fc", x.rows(), fc)?;
    net.finish(logits, &[], options.optimizer_or(OptimizerKind::Sgd, 0.02))
}

/// A block of two 3×3 convolutions, or of 1×1, 3×3 and 1×1 with four times as many channels out.
struct ResidualBlock {
    name: String,
    width: usize,
    stride: usize,
    bottleneck: bool,
}

impl ResidualBlock {
    fn build(&self, b: &mut Builder, x: Var, branch: Branch) -> Result<Var, BuildError> {
        let Self { name, width, stride, bottleneck } = self;
        let wide = if *bottleneck { 4 * width } else { *width };
        let layers = if *bottleneck {
            vec![
                (*width, Window::square(1, 1, 0)),
                (*width, Window::square(3, *stride, 1)),
                (wide, Window::square(1, 1, 0)),
            ]
        } else {
            vec![(*width, Window::square(3, *stride, 1)), (wide, Window::square(3, 1, 1))]
        };
        let (mut y, mut channels) = (x, x.dim(1));
        for (index, &(out, window)) in layers.iter().enumerate() {
            let (conv, norm) = (format!("{name}.conv{}", index + 1), format!("{name}.bn{}", index + 1));
            let weights = b.conv_weights(&conv, channels, ConvLayer::plain(out, window));
            let norms = b.norm_weights(&norm, out);
            channels = out;
            if matches!(branch, Branch::LeftOut) {
                continue;
            }
            y = b.conv2d_with(&conv, y, weights, window)?;
            y = b.batch_norm_with(&norm, y, norms, EPSILON)?;
            if index + 1 < layers.len() {
                y = b.relu(&format!("{name}.relu{}", index + 1), y)?;
            }
        }
        let mut shortcut = x;
        if *stride != 1 || x.dim(1) != wide {
            let layer = ConvLayer::plain(wide, Window::square(1, *stride, 0));
            shortcut = b.conv2d(&format!("{name}.downsample.0"), x, layer)?;
            shortcut = b.batch_norm(&format!("{name}.downsample.1"), shortcut, EPSILON)?;
        }
        let sum = match branch {
            // What comes in is behind a ReLU already, unless it was projected.
            Branch::LeftOut if shortcut == x => return Ok(x),
            Branch::LeftOut => shortcut,
            Branch::Taken => b.add(&format!("{name}.add"), y, shortcut)?,
            Branch::Weighted(weight) => {
                let y = b.scale(&format!("{name}.weight"), y, weight)?;
                b.add(&format!("{name}.add"), y, shortcut)?
            }
        };
        b.relu(&format!("{name}.relu"), sum)
    }
}

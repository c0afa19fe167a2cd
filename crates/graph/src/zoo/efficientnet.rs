//! EfficientNet-B0 (Tan and Le, *EfficientNet: rethinking model scaling for convolutional neural networks*, 2019), in torchvision's form. Small
//! images keep their size in the stem and in the first stage that halves them.

use super::{OptimizerKind, Options, Vision};
use crate::builder::{BuildError, Builder, Var};
use crate::graph::Graph;
use crate::layers::{ConvLayer, EPSILON, WeightInit};
use crate::op::{Function, Window};

/// A stage: expansion, kernel, stride, channels and blocks (table 1 of the paper).
const STAGES: [[usize; 5]; 7] = [
    [1, 3, 1, 16, 1],
    [6, 3, 2, 24, 2],
    [6, 5, 2, 40, 2],
    [6, 3, 2, 80, 3],
    [6, 5, 1, 112, 3],
    [6, 5, 2, 192, 4],
    [6, 3, 1, 320, 1],
];
const STEM: usize = 32;
const LAST: usize = 1280;
const DROPOUT: f32 = 0.2;
/// The probability with which the last block would be left out of a sample; that of the others grows towards it.
const STOCHASTIC_DEPTH: f32 = 0.2;

/// The network.
pub fn build(name: &str, options: &Options) -> Result<Graph, BuildError> {
    let mut net = Vision::new(name, options, 224);
    let small = net.small();
    let b = &mut net.builder;
    let stem = Window::square(3, if small { 1 } else { 2 }, 1);
    let mut x = normalized(b, "features.0", net.images, STEM, stem, 1)?;
    x = b.map("features.0.2", x, Function::Silu)?;
    let (mut before, all) = (0, STAGES.iter().map(|stage| stage[4]).sum::<usize>());
    for (stage, [expansion, kernel, stride, channels, blocks]) in STAGES.into_iter().enumerate() {
        for index in 0..blocks {
            let block = Block {
                name: format!("features.{}.{index}", stage + 1),
                wide: expansion * x.dim(1),
                squeezed: (x.dim(1) / 4).max(1),
                kernel,
                stride: if index == 0 && !(small && stage == 1) { stride } else { 1 },
                channels,
                left_out: STOCHASTIC_DEPTH * before as f32 / all as f32,
            };
            x = block.build(b, x)?;
            before += 1;
        }
    }
    x = normalized(b, "features.8", x, LAST, Window::square(1, 1, 0), 1)?;
    x = b.map("features.8.2", x, Function::Silu)?;
    x = b.global_average_pool("avgpool", x)?;
    x = b.dropout("classifier.0", x.rows(), DROPOUT)?;
    let init = WeightInit::Uniform(1.0 / (net.classes as f32).sqrt());
    let head = b.linear_weights("classifier.1", [LAST, net.classes], true, init);
    let logits = b.linear("classifier.1", x, head)?;
    net.finish(logits, &[], options.optimizer_or(OptimizerKind::Sgd, 0.02))
}

/// A convolution `name.0` with a batch normalization `name.1` behind it.
fn normalized(
    b: &mut Builder,
    name: &str,
    x: Var,
    channels: usize,
    window: Window,
    groups: usize,
) -> Result<Var, BuildError> {
    let layer = ConvLayer::plain(channels, window);
    let x = b.grouped_conv2d(&format!("{name}.0"), x, layer, groups, [1, 1])?;
    b.batch_norm(&format!("{name}.1"), x, EPSILON)
}

/// A mobile inverted bottleneck whose channels are weighted by what all of the image shows (Hu et al., 2018).
struct Block {
    name: String,
    wide: usize,
    squeezed: usize,
    kernel: usize,
    stride: usize,
    channels: usize,
    left_out: f32,
}

impl Block {
    fn build(&self, b: &mut Builder, x: Var) -> Result<Var, BuildError> {
        let Self { name, wide, kernel, stride, channels, .. } = self;
        let point = Window::square(1, 1, 0);
        let (mut y, mut layer) = (x, 0);
        if *wide != x.dim(1) {
            let expand = format!("{name}.block.0");
            y = normalized(b, &expand, y, *wide, point, 1)?;
            y = b.map(&format!("{expand}.2"), y, Function::Silu)?;
            layer = 1;
        }
        let depthwise = format!("{name}.block.{layer}");
        y = normalized(b, &depthwise, y, *wide, Window::square(*kernel, *stride, kernel / 2), *wide)?;
        y = b.map(&format!("{depthwise}.2"), y, Function::Silu)?;
        y = self.excite(b, &format!("{name}.block.{}", layer + 1), y)?;
        y = normalized(b, &format!("{name}.block.{}", layer + 2), y, *channels, point, 1)?;
        if *stride != 1 || x.dim(1) != *channels {
            return Ok(y);
        }
        y = b.drop_samples(&format!("{name}.stochastic_depth"), y, self.left_out)?;
        b.add(&format!("{name}.add"), x, y)
    }

    /// Every channel times a factor that two layers make of the means of all channels.
    fn excite(&self, b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
        let layer = |channels| ConvLayer {
            channels,
            window: Window::square(1, 1, 0),
            bias: true,
            init: WeightInit::KaimingFanOut,
        };
        let mut gate = b.global_average_pool(&format!("{name}.avgpool"), x)?;
        gate = b.conv2d(&format!("{name}.fc1"), gate, layer(self.squeezed))?;
        gate = b.map(&format!("{name}.activation"), gate, Function::Silu)?;
        gate = b.conv2d(&format!("{name}.fc2"), gate, layer(self.wide))?;
        gate = b.map(&format!("{name}.scale_activation"), gate, Function::Sigmoid)?;
        b.scale_planes(&format!("{name}.scale"), x, gate)
    }
}

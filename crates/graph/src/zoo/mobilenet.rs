//! MobileNet-v2 (Sandler et al., *MobileNetV2: inverted residuals and linear bottlenecks*, 2018), in torchvision's form. Small images keep their
//! size in the stem and in the first two stages.

use super::{OptimizerKind, Options, Vision};
use crate::builder::{BuildError, Builder, Var};
use crate::graph::Graph;
use crate::layers::{ConvLayer, EPSILON, WeightInit};
use crate::op::{Function, Window};

/// Expansion, channels, blocks and stride of every stage (table 2 of the paper).
const STAGES: [[usize; 4]; 7] = [
    [1, 16, 1, 1],
    [6, 24, 2, 2],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 2],
    [6, 320, 1, 1],
];
const STEM: usize = 32;
const LAST: usize = 1280;
const DROPOUT: f32 = 0.2;

/// The network.
pub fn build(name: &str, options: &Options) -> Result<Graph, BuildError> {
    let mut net = Vision::new(name, options, 32);
    let small = net.small();
    let b = &mut net.builder;
    let stem = Window::square(3, if small { 1 } else { 2 }, 1);
    let mut x = normalized(b, ["features.0.0", "features.0.1"], net.images, STEM, (stem, false))?;
    x = b.map("features.0.2", x, Function::Relu6)?;
    let mut block = 1;
    for (stage, [expansion, channels, blocks, stride]) in STAGES.into_iter().enumerate() {
        for index in 0..blocks {
            let first = index == 0 && !(small && stage == 1);
            let stride = if first { stride } else { 1 };
            x = inverted_residual(b, &format!("features.{block}.conv"), x, [expansion, channels, stride])?;
            block += 1;
        }
    }
    x = normalized(b, ["features.18.0", "features.18.1"], x, LAST, (Window::square(1, 1, 0), false))?;
    x = b.map("features.18.2", x, Function::Relu6)?;
    x = b.global_average_pool("avgpool", x)?;
    x = b.dropout("classifier.0", x.rows(), DROPOUT)?;
    let head = b.linear_weights("classifier.1", [LAST, net.classes], true, WeightInit::Normal(0.01));
    let logits = b.linear("classifier.1", x, head)?;
    net.finish(logits, &[], options.optimizer_or(OptimizerKind::Sgd, 0.02))
}

/// A convolution, depthwise if told, with a batch normalization behind it.
fn normalized(
    b: &mut Builder,
    [conv, norm]: [&str; 2],
    x: Var,
    channels: usize,
    (window, depthwise): (Window, bool),
) -> Result<Var, BuildError> {
    let groups = if depthwise { channels } else { 1 };
    let x = b.grouped_conv2d(conv, x, ConvLayer::plain(channels, window), groups, [1, 1])?;
    b.batch_norm(norm, x, EPSILON)
}

/// A 1×1 convolution to more channels, a depthwise one, and a 1×1 convolution to few without a function behind it.
fn inverted_residual(
    b: &mut Builder,
    name: &str,
    x: Var,
    [expansion, channels, stride]: [usize; 3],
) -> Result<Var, BuildError> {
    let (wide, point) = (expansion * x.dim(1), Window::square(1, 1, 0));
    let mut y = x;
    let mut layer = 0;
    let depthwise = (Window::square(3, stride, 1), true);
    for form in (expansion > 1).then_some((point, false)).into_iter().chain([depthwise]) {
        let names = [format!("{name}.{layer}.0"), format!("{name}.{layer}.1")];
        y = normalized(b, [&names[0], &names[1]], y, wide, form)?;
        y = b.map(&format!("{name}.{layer}.2"), y, Function::Relu6)?;
        layer += 1;
    }
    let names = [format!("{name}.{layer}"), format!("{name}.{}", layer + 1)];
    y = normalized(b, [&names[0], &names[1]], y, channels, (point, false))?;
    if stride == 1 && x.dim(1) == channels { b.add(&format!("{name}.add"), x, y) } else { Ok(y) }
}

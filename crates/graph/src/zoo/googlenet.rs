//! GoogLeNet (Szegedy et al., *Going deeper with convolutions*, 2014) with local response normalization, without batch normalization, and
//! with both auxiliary classifiers in training where the feature map is large enough for them: for images of 209 and more.

use super::{OptimizerKind, Options, Vision, conv_relu};
use crate::builder::{BuildError, Builder, Mode, Var};
use crate::graph::Graph;
use crate::layers::WeightInit;
use crate::op::Window;

/// k, α and β over 5 channels; α divided by 5, as the published model has it.
const RESPONSE: [f32; 3] = [1.0, 2e-5, 0.75];
const AUXILIARY_WEIGHT: f32 = 0.3;
const ONE: Window = Window::square(1, 1, 0);
/// Halves the size, rounding up.
const HALVE: Window = Window::square(3, 2, 0);

/// Channels of a module: of 1×1, before and of 3×3, before and of 5×5, behind the pooling.
type Module = (&'static str, [usize; 6]);

const STAGE3: &[Module] = &[("3a", [64, 96, 128, 16, 32, 32]), ("3b", [128, 128, 192, 32, 96, 64])];
const STAGE4: &[Module] = &[
    ("4a", [192, 96, 208, 16, 48, 64]),
    ("4b", [160, 112, 224, 24, 64, 64]),
    ("4c", [128, 128, 256, 24, 64, 64]),
    ("4d", [112, 144, 288, 32, 64, 64]),
    ("4e", [256, 160, 320, 32, 128, 128]),
];
const STAGE5: &[Module] = &[("5a", [256, 160, 320, 32, 128, 128]), ("5b", [384, 192, 384, 48, 128, 128])];

/// The network.
pub fn build(name: &str, options: &Options) -> Result<Graph, BuildError> {
    let mut net = Vision::new(name, options, 224);
    let b = &mut net.builder;
    let mut x = conv_relu(b, "conv1", net.images, 64, Window::square(7, 2, 3))?;
    x = b.max_pool_ceil("pool1", x, HALVE)?;
    x = b.response_norm("norm1", x, 5, RESPONSE)?;
    x = conv_relu(b, "conv2_reduce", x, 64, ONE)?;
    x = conv_relu(b, "conv2", x, 192, Window::square(3, 1, 1))?;
    x = b.response_norm("norm2", x, 5, RESPONSE)?;
    x = b.max_pool_ceil("pool2", x, HALVE)?;
    for module in STAGE3 {
        x = inception(b, module, x)?;
    }
    x = b.max_pool_ceil("pool3", x, HALVE)?;
    let mut auxiliary = Vec::new();
    for module in STAGE4 {
        x = inception(&mut net.builder, module, x)?;
        let observed = matches!(module.0, "4a" | "4d") && x.dim(2) >= 13;
        if observed && net.builder.mode() == Mode::Training {
            let name = format!("aux{}", auxiliary.len() + 1);
            auxiliary.push((auxiliary_classifier(&mut net, &name, x)?, AUXILIARY_WEIGHT));
        }
    }
    let b = &mut net.builder;
    x = b.max_pool_ceil("pool4", x, HALVE)?;
    for module in STAGE5 {
        x = inception(b, module, x)?;
    }
    x = b.global_average_pool("pool5", x)?;
    x = b.dropout("dropout", x, 0.4)?;
    let weights = b.linear_weights("fc", [x.dim(1), net.classes], true, WeightInit::FanInUniform);
    let logits = b.linear("fc", x.rows(), weights)?;
    net.finish(logits, &auxiliary, options.optimizer_or(OptimizerKind::Sgd, 0.01))
}

fn inception(b: &mut Builder, &(name, channels): &Module, x: Var) -> Result<Var, BuildError> {
    let name = format!("inception_{name}");
    let [one, three_reduce, three, five_reduce, five, projected] = channels;
    let straight = conv_relu(b, &format!("{name}.1x1"), x, one, ONE)?;
    let middle = conv_relu(b, &format!("{name}.3x3_reduce"), x, three_reduce, ONE)?;
    let middle = conv_relu(b, &format!("{name}.3x3"), middle, three, Window::square(3, 1, 1))?;
    let wide = conv_relu(b, &format!("{name}.5x5_reduce"), x, five_reduce, ONE)?;
    let wide = conv_relu(b, &format!("{name}.5x5"), wide, five, Window::square(5, 1, 2))?;
    let pooled = b.max_pool(&format!("{name}.pool"), x, Window::square(3, 1, 1))?;
    let pooled = conv_relu(b, &format!("{name}.pool_proj"), pooled, projected, ONE)?;
    b.concat(&name, &[straight, middle, wide, pooled])
}

fn auxiliary_classifier(net: &mut Vision, name: &str, x: Var) -> Result<Var, BuildError> {
    let b = &mut net.builder;
    let x = b.average_pool(&format!("{name}.pool"), x, Window::square(5, 3, 0))?;
    let x = conv_relu(b, &format!("{name}.conv"), x, 128, ONE)?.rows();
    let weights = b.linear_weights(&format!("{name}.fc1"), [x.dim(1), 1024], true, WeightInit::FanInUniform);
    let x = b.linear(&format!("{name}.fc1"), x, weights)?;
    let x = b.relu(&format!("{name}.relu"), x)?;
    let x = b.dropout(&format!("{name}.dropout"), x, 0.7)?;
    let weights =
        b.linear_weights(&format!("{name}.fc2"), [1024, net.classes], true, WeightInit::FanInUniform);
    b.linear(&format!("{name}.fc2"), x, weights)
}

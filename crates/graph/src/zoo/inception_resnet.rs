//! Inception-ResNet-v2 (Szegedy et al., *Inception-v4, Inception-ResNet and the impact of residual connections on learning*, 2016), in
//! the form of its published implementation, without the auxiliary classifier.

use super::inception::{ConvStep, FIVE, HALVE, ONE, THREE, branch, column, row};
use super::{OptimizerKind, Options, Vision};
use crate::builder::{BuildError, Builder, Var};
use crate::graph::Graph;
use crate::layers::{ConvLayer, WeightInit};
use crate::op::Window;

/// A kind of residual block: its branches, and the factor of what it adds.
struct Residual<'a> {
    branches: &'a [&'a [ConvStep<'a>]],
    scale: f32,
}

const BLOCK35: Residual<'_> = Residual {
    branches: &[
        &[("branch0", 32, ONE)],
        &[("branch1.0", 32, ONE), ("branch1.1", 32, THREE)],
        &[("branch2.0", 32, ONE), ("branch2.1", 48, THREE), ("branch2.2", 64, THREE)],
    ],
    scale: 0.17,
};

const BLOCK17: Residual<'_> = Residual {
    branches: &[
        &[("branch0", 192, ONE)],
        &[("branch1.0", 128, ONE), ("branch1.1", 160, row(7)), ("branch1.2", 192, column(7))],
    ],
    scale: 0.1,
};

const BLOCK8: Residual<'_> = Residual {
    branches: &[
        &[("branch0", 192, ONE)],
        &[("branch1.0", 192, ONE), ("branch1.1", 224, row(3)), ("branch1.2", 256, column(3))],
    ],
    scale: 0.2,
};

impl Residual<'_> {
    /// `x + scale · (branches side by side, back to the channels of x)`.
    fn add(&self, b: &mut Builder, name: &str, x: Var, scale: f32) -> Result<Var, BuildError> {
        let parts =
            self.branches.iter().map(|steps| branch(b, name, x, steps)).collect::<Result<Vec<_>, _>>()?;
        let y = b.concat(&format!("{name}.concat"), &parts)?;
        let back = ConvLayer { bias: true, ..ConvLayer::plain(x.dim(1), ONE) };
        let mut y = b.conv2d(&format!("{name}.conv2d"), y, back)?;
        if scale != 1.0 {
            y = b.scale(&format!("{name}.scale"), y, scale)?;
        }
        b.add(&format!("{name}.add"), x, y)
    }

    /// `times` blocks in a row, each followed by a ReLU.
    fn repeat(&self, b: &mut Builder, name: &str, mut x: Var, times: usize) -> Result<Var, BuildError> {
        for block in 0..times {
            let name = format!("{name}.{block}");
            x = self.add(b, &name, x, self.scale)?;
            x = b.relu(&format!("{name}.relu"), x)?;
        }
        Ok(x)
    }
}

/// The network.
pub fn build(name: &str, options: &Options) -> Result<Graph, BuildError> {
    let mut net = Vision::new(name, options, 299);
    let b = &mut net.builder;
    let valid = Window::square(3, 1, 0);
    let stem = [("conv2d_1a", 32, HALVE), ("conv2d_2a", 32, valid), ("conv2d_2b", 64, THREE)];
    let mut x = branch(b, "stem", net.images, &stem)?;
    x = b.max_pool("maxpool_3a", x, HALVE)?;
    x = branch(b, "stem", x, &[("conv2d_3b", 80, ONE), ("conv2d_4a", 192, valid)])?;
    x = b.max_pool("maxpool_5a", x, HALVE)?;

    let pooled = b.average_pool_inside("mixed_5b.avgpool", x, THREE)?;
    let parts = [
        branch(b, "mixed_5b", x, &[("branch0", 96, ONE)])?,
        branch(b, "mixed_5b", x, &[("branch1.0", 48, ONE), ("branch1.1", 64, FIVE)])?,
        branch(
            b,
            "mixed_5b",
            x,
            &[("branch2.0", 64, ONE), ("branch2.1", 96, THREE), ("branch2.2", 96, THREE)],
        )?,
        branch(b, "mixed_5b", pooled, &[("branch3", 64, ONE)])?,
    ];
    x = b.concat("mixed_5b", &parts)?;
    x = BLOCK35.repeat(b, "repeat", x, 10)?;

    let parts = [
        branch(b, "mixed_6a", x, &[("branch0", 384, HALVE)])?,
        branch(
            b,
            "mixed_6a",
            x,
            &[("branch1.0", 256, ONE), ("branch1.1", 256, THREE), ("branch1.2", 384, HALVE)],
        )?,
        b.max_pool("mixed_6a.maxpool", x, HALVE)?,
    ];
    x = b.concat("mixed_6a", &parts)?;
    x = BLOCK17.repeat(b, "repeat_1", x, 20)?;

    let parts = [
        branch(b, "mixed_7a", x, &[("branch0.0", 256, ONE), ("branch0.1", 384, HALVE)])?,
        branch(b, "mixed_7a", x, &[("branch1.0", 256, ONE), ("branch1.1", 288, HALVE)])?,
        branch(
            b,
            "mixed_7a",
            x,
            &[("branch2.0", 256, ONE), ("branch2.1", 288, THREE), ("branch2.2", 320, HALVE)],
        )?,
        b.max_pool("mixed_7a.maxpool", x, HALVE)?,
    ];
    x = b.concat("mixed_7a", &parts)?;
    x = BLOCK8.repeat(b, "repeat_2", x, 9)?;
    // The last block adds its branches in full and has no ReLU.
    x = BLOCK8.add(b, "block8", x, 1.0)?;

    x = branch(b, "head", x, &[("conv2d_7b", 1536, ONE)])?;
    x = b.global_average_pool("avgpool_1a", x)?;
    let classifier = b.linear_weights("last_linear", [x.dim(1), net.classes], true, WeightInit::FanInUniform);
    let logits = b.linear("last_linear", x.rows(), classifier)?;
    net.finish(logits, &[], options.optimizer_or(OptimizerKind::Sgd, 0.02))
}

//! Inception-v3 (Szegedy et al., *Rethinking the Inception architecture for computer vision*, 2015), in torchvision's form, with its
//! auxiliary classifier where the feature map is large enough for it: from images of 299 down to about 290.

use super::{OptimizerKind, Options, Vision};
use crate::builder::{BuildError, Builder, Mode, Var};
use crate::graph::Graph;
use crate::layers::{ConvLayer, WeightInit};
use crate::op::Window;

const EPSILON: f32 = 1e-3;
const AUXILIARY_WEIGHT: f32 = 0.4;

/// One convolution of a branch: its name, its channels and its window.
pub(super) type ConvStep<'a> = (&'a str, usize, Window);

/// A 1×1 convolution.
pub(super) const ONE: Window = Window::square(1, 1, 0);
/// A 3×3 convolution that keeps the size.
pub(super) const THREE: Window = Window::square(3, 1, 1);
/// A 3×3 convolution or pooling without padding that halves the size.
pub(super) const HALVE: Window = Window::square(3, 2, 0);
/// A 5×5 convolution that keeps the size.
pub(super) const FIVE: Window = Window::square(5, 1, 2);

/// A window of one row and `columns` columns that keeps the size.
pub(super) const fn row(columns: usize) -> Window {
    Window { kernel: [1, columns], stride: [1, 1], padding: [0, columns / 2] }
}

/// A window of one column and `rows` rows that keeps the size.
pub(super) const fn column(rows: usize) -> Window {
    Window { kernel: [rows, 1], stride: [1, 1], padding: [rows / 2, 0] }
}

/// Convolutions in a row, each with batch normalization and ReLU.
pub(super) fn branch(
    b: &mut Builder,
    name: &str,
    mut x: Var,
    steps: &[ConvStep<'_>],
) -> Result<Var, BuildError> {
    for &(step, channels, window) in steps {
        let name = format!("{name}.{step}");
        x = b.conv2d(&format!("{name}.conv"), x, ConvLayer::plain(channels, window))?;
        x = b.batch_norm(&format!("{name}.bn"), x, EPSILON)?;
        x = b.relu(&format!("{name}.relu"), x)?;
    }
    Ok(x)
}

/// Average pooling of neighbours, then a 1×1 convolution.
fn pooled(b: &mut Builder, name: &str, x: Var, channels: usize) -> Result<Var, BuildError> {
    let x = b.average_pool(&format!("{name}.avgpool"), x, THREE)?;
    branch(b, name, x, &[("branch_pool", channels, ONE)])
}

/// The network.
pub fn build(name: &str, options: &Options) -> Result<Graph, BuildError> {
    let mut net = Vision::new(name, options, 299);
    let b = &mut net.builder;
    let mut x = branch(
        b,
        "stem",
        net.images,
        &[
            ("Conv2d_1a_3x3", 32, HALVE),
            ("Conv2d_2a_3x3", 32, Window::square(3, 1, 0)),
            ("Conv2d_2b_3x3", 64, THREE),
        ],
    )?;
    x = b.max_pool("maxpool1", x, HALVE)?;
    x = branch(b, "stem", x, &[("Conv2d_3b_1x1", 80, ONE), ("Conv2d_4a_3x3", 192, Window::square(3, 1, 0))])?;
    x = b.max_pool("maxpool2", x, HALVE)?;
    x = mixed_a(b, "Mixed_5b", x, 32)?;
    x = mixed_a(b, "Mixed_5c", x, 64)?;
    x = mixed_a(b, "Mixed_5d", x, 64)?;
    x = reduce_b(b, "Mixed_6a", x)?;
    x = mixed_c(b, "Mixed_6b", x, 128)?;
    x = mixed_c(b, "Mixed_6c", x, 160)?;
    x = mixed_c(b, "Mixed_6d", x, 160)?;
    x = mixed_c(b, "Mixed_6e", x, 192)?;
    let mut auxiliary = Vec::new();
    if net.builder.mode() == Mode::Training && x.dim(2) >= 17 {
        auxiliary.push((auxiliary_classifier(&mut net, x)?, AUXILIARY_WEIGHT));
    }
    let b = &mut net.builder;
    x = reduce_d(b, "Mixed_7a", x)?;
    x = mixed_e(b, "Mixed_7b", x)?;
    x = mixed_e(b, "Mixed_7c", x)?;
    x = b.global_average_pool("avgpool", x)?;
    x = b.dropout("dropout", x, 0.5)?;
    let fc = b.linear_weights("fc", [x.dim(1), net.classes], true, WeightInit::FanInUniform);
    let logits = b.linear("fc", x.rows(), fc)?;
    net.finish(logits, &auxiliary, options.optimizer_or(OptimizerKind::Sgd, 0.02))
}

fn auxiliary_classifier(net: &mut Vision, x: Var) -> Result<Var, BuildError> {
    let b = &mut net.builder;
    let x = b.average_pool("AuxLogits.avgpool", x, Window::square(5, 3, 0))?;
    let x = branch(b, "AuxLogits", x, &[("conv0", 128, ONE), ("conv1", 768, Window::square(5, 1, 0))])?;
    let x = b.global_average_pool("AuxLogits.pool", x)?;
    let fc = b.linear_weights("AuxLogits.fc", [x.dim(1), net.classes], true, WeightInit::FanInUniform);
    b.linear("AuxLogits.fc", x.rows(), fc)
}

fn mixed_a(b: &mut Builder, name: &str, x: Var, pool: usize) -> Result<Var, BuildError> {
    let parts = [
        branch(b, name, x, &[("branch1x1", 64, ONE)])?,
        branch(b, name, x, &[("branch5x5_1", 48, ONE), ("branch5x5_2", 64, FIVE)])?,
        branch(
            b,
            name,
            x,
            &[("branch3x3dbl_1", 64, ONE), ("branch3x3dbl_2", 96, THREE), ("branch3x3dbl_3", 96, THREE)],
        )?,
        pooled(b, name, x, pool)?,
    ];
    b.concat(name, &parts)
}

fn reduce_b(b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
    let parts = [
        branch(b, name, x, &[("branch3x3", 384, HALVE)])?,
        branch(
            b,
            name,
            x,
            &[("branch3x3dbl_1", 64, ONE), ("branch3x3dbl_2", 96, THREE), ("branch3x3dbl_3", 96, HALVE)],
        )?,
        b.max_pool(&format!("{name}.maxpool"), x, HALVE)?,
    ];
    b.concat(name, &parts)
}

fn mixed_c(b: &mut Builder, name: &str, x: Var, narrow: usize) -> Result<Var, BuildError> {
    let parts = [
        branch(b, name, x, &[("branch1x1", 192, ONE)])?,
        branch(
            b,
            name,
            x,
            &[("branch7x7_1", narrow, ONE), ("branch7x7_2", narrow, row(7)), ("branch7x7_3", 192, column(7))],
        )?,
        branch(
            b,
            name,
            x,
            &[
                ("branch7x7dbl_1", narrow, ONE),
                ("branch7x7dbl_2", narrow, column(7)),
                ("branch7x7dbl_3", narrow, row(7)),
                ("branch7x7dbl_4", narrow, column(7)),
                ("branch7x7dbl_5", 192, row(7)),
            ],
        )?,
        pooled(b, name, x, 192)?,
    ];
    b.concat(name, &parts)
}

fn reduce_d(b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
    let parts = [
        branch(b, name, x, &[("branch3x3_1", 192, ONE), ("branch3x3_2", 320, HALVE)])?,
        branch(
            b,
            name,
            x,
            &[
                ("branch7x7x3_1", 192, ONE),
                ("branch7x7x3_2", 192, row(7)),
                ("branch7x7x3_3", 192, column(7)),
                ("branch7x7x3_4", 192, HALVE),
            ],
        )?,
        b.max_pool(&format!("{name}.maxpool"), x, HALVE)?,
    ];
    b.concat(name, &parts)
}

fn mixed_e(b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
    let straight = branch(b, name, x, &[("branch1x1", 320, ONE)])?;
    let short = branch(b, name, x, &[("branch3x3_1", 384, ONE)])?;
    let long = branch(b, name, x, &[("branch3x3dbl_1", 448, ONE), ("branch3x3dbl_2", 384, THREE)])?;
    let parts = [
        straight,
        branch(b, name, short, &[("branch3x3_2a", 384, row(3))])?,
        branch(b, name, short, &[("branch3x3_2b", 384, column(3))])?,
        branch(b, name, long, &[("branch3x3dbl_3a", 384, row(3))])?,
        branch(b, name, long, &[("branch3x3dbl_3b", 384, column(3))])?,
        pooled(b, name, x, 192)?,
    ];
    b.concat(name, &parts)
}

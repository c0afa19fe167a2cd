//! U-Net (Ronneberger et al., *U-Net: convolutional networks for biomedical image segmentation*, 2015) in the form that is common today:
//! padded convolutions with batch normalization, transposed convolutions on the way up. Every pixel has a label.

use super::{OptimizerKind, Options};
use crate::builder::{BuildError, Builder, Mode, Var};
use crate::graph::{Content, Graph};
use crate::layers::{ConvLayer, EPSILON, Part, WeightInit};
use crate::op::Window;

/// Channels at the full size; each of the four halvings doubles them.
const WIDTH: usize = 64;
const WIDEST: usize = 1024;
const DEPTH: usize = 4;
const IMAGE: usize = 128;
const CLASSES: usize = 2;

/// The network. The image size is a multiple of 16.
pub fn build(name: &str, options: &Options) -> Result<Graph, BuildError> {
    let (batch, size) = (options.batch, options.image.unwrap_or(IMAGE));
    let classes = options.classes.unwrap_or(CLASSES);
    let width = options.width.unwrap_or(WIDTH);
    if !size.is_multiple_of(1 << DEPTH) {
        let why = format!("the image size is a multiple of {}, and {size} is not", 1 << DEPTH);
        return Err(BuildError::Extents { node: name.to_owned(), why });
    }
    if width > WIDEST {
        let why = format!("the width is at most {WIDEST}, and {width} is more");
        return Err(BuildError::Extents { node: name.to_owned(), why });
    }
    let mut b = Builder::new(format!("{name} batch {batch} image {size}"), options.mode);
    let images = b.input("images", [batch, 3, size, size], Content::Real);
    let labels = (options.mode != Mode::Inference)
        .then(|| b.input("labels", [batch, size, size], Content::Class { classes }));

    let mut skips = Vec::new();
    let mut x = double(&mut b, "inc", images, width)?;
    for level in 0..DEPTH {
        skips.push(x);
        let name = format!("down{}", level + 1);
        x = b.max_pool(&format!("{name}.pool"), x, Window::square(2, 2, 0))?;
        x = double(&mut b, &name, x, width << (level + 1))?;
    }
    for (level, skip) in skips.into_iter().rev().enumerate() {
        let name = format!("up{}", level + 1);
        let up = ConvLayer {
            channels: skip.dim(1),
            window: Window::square(2, 2, 0),
            bias: true,
            init: WeightInit::FanInUniform,
        };
        x = b.conv_transpose2d(&format!("{name}.up"), x, up)?;
        x = b.concat(&format!("{name}.concat"), &[skip, x])?;
        x = double(&mut b, &name, x, skip.dim(1))?;
    }
    let head = ConvLayer {
        channels: classes,
        window: Window::square(1, 1, 0),
        bias: true,
        init: WeightInit::FanInUniform,
    };
    let logits = b.conv2d("outc", x, head)?;
    let Some(labels) = labels else {
        return Ok(b.finish_inference(&[("logits", logits)]));
    };
    let logits = b.channels_last("outc.pixels", logits)?;
    let mean = 1.0 / (batch * size * size) as f32;
    let loss = b.cross_entropy("loss", [logits, labels], Part::ALL, mean)?;
    b.finish_training(loss, options.optimizer_or(OptimizerKind::Sgd, 0.01))
}

/// Two 3×3 convolutions, each with batch normalization and ReLU.
fn double(b: &mut Builder, name: &str, mut x: Var, channels: usize) -> Result<Var, BuildError> {
    for index in [0, 3] {
        let layer = ConvLayer::plain(channels, Window::square(3, 1, 1));
        x = b.conv2d(&format!("{name}.{index}"), x, layer)?;
        x = b.batch_norm(&format!("{name}.{}", index + 1), x, EPSILON)?;
        x = b.relu(&format!("{name}.{}", index + 2), x)?;
    }
    Ok(x)
}

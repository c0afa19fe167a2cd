//! AlexNet (Krizhevsky et al., *ImageNet classification with deep convolutional neural networks*, 2012) with local response normalization
//! and without the split over two devices, as in Chainer's example. Images of 227.
//!
//! The paper says 224, but its first feature map of 55×55 needs 227 pixels. Images of 224 to 226 are padded by 2 on each side, as in
//! torchvision, and lead to the same map. From 224 to 258 pixels the classifier therefore is the published one, which takes 6×6; the
//! classifier of smaller or larger images takes their last feature map as it is and has another size.

use super::{OptimizerKind, Options, Vision, conv_relu};
use crate::builder::BuildError;
use crate::graph::Graph;
use crate::layers::WeightInit;
use crate::op::Window;

/// k, α and β of the paper, over 5 channels.
const RESPONSE: [f32; 3] = [2.0, 1e-4, 0.75];

/// The network.
pub fn build(name: &str, options: &Options) -> Result<Graph, BuildError> {
    let mut net = Vision::new(name, options, 227);
    let b = &mut net.builder;
    let pool = Window::square(3, 2, 0);
    let padding = if (224..227).contains(&net.size) { 2 } else { 0 };
    let mut x = conv_relu(b, "conv1", net.images, 96, Window::square(11, 4, padding))?;
    x = b.response_norm("norm1", x, 5, RESPONSE)?;
    x = b.max_pool("pool1", x, pool)?;
    x = conv_relu(b, "conv2", x, 256, Window::square(5, 1, 2))?;
    x = b.response_norm("norm2", x, 5, RESPONSE)?;
    x = b.max_pool("pool2", x, pool)?;
    x = conv_relu(b, "conv3", x, 384, Window::square(3, 1, 1))?;
    x = conv_relu(b, "conv4", x, 384, Window::square(3, 1, 1))?;
    x = conv_relu(b, "conv5", x, 256, Window::square(3, 1, 1))?;
    x = b.max_pool("pool5", x, pool)?.rows();
    for name in ["fc6", "fc7"] {
        let weights = b.linear_weights(name, [x.dim(1), 4096], true, WeightInit::FanInUniform);
        x = b.linear(name, x, weights)?;
        x = b.relu(&format!("{name}.relu"), x)?;
        x = b.dropout(&format!("{name}.dropout"), x, 0.5)?;
    }
    let weights = b.linear_weights("fc8", [x.dim(1), net.classes], true, WeightInit::FanInUniform);
    let logits = b.linear("fc8", x, weights)?;
    net.finish(logits, &[], options.optimizer_or(OptimizerKind::Sgd, 0.01))
}

//! VGG without batch normalization (Simonyan and Zisserman, 2014), in torchvision's form, with dropout in the classifier. The classifier
//! takes the feature map as it is: 7×7 for images of 224. Small images take the narrow classifier that is used on CIFAR (512, 512).

use super::{OptimizerKind, Options, Vision};
use crate::builder::BuildError;
use crate::graph::Graph;
use crate::layers::{ConvLayer, WeightInit};
use crate::op::Window;

/// Convolutions in each of the five stages.
pub type Stages = [usize; 5];

/// Configuration A.
pub const VGG11: Stages = [1, 1, 2, 2, 2];
/// Configuration B.
pub const VGG13: Stages = [2, 2, 2, 2, 2];
/// Configuration D.
pub const VGG16: Stages = [2, 2, 3, 3, 3];
/// Configuration E.
pub const VGG19: Stages = [2, 2, 4, 4, 4];

/// The network.
pub fn build(name: &str, stages: &Stages, options: &Options) -> Result<Graph, BuildError> {
    let mut net = Vision::new(name, options, 32);
    let hidden = if net.small() { 512 } else { 4096 };
    // Without normalization, the small standard deviation with which the paper begins the classifier needs the long training of the
    // paper; He's initial values keep the scale.
    let classifier = if net.small() { WeightInit::FanInUniform } else { WeightInit::Normal(0.01) };
    let b = &mut net.builder;
    let mut x = net.images;
    // Names count as torchvision's do: every convolution is followed by a ReLU, every stage by a pooling.
    let mut index = 0;
    for (stage, &convolutions) in stages.iter().enumerate() {
        for _ in 0..convolutions {
            let layer = ConvLayer {
                channels: (64 << stage).min(512),
                window: Window::square(3, 1, 1),
                bias: true,
                init: WeightInit::KaimingFanOut,
            };
            x = b.conv2d(&format!("features.{index}"), x, layer)?;
            x = b.relu(&format!("features.{}", index + 1), x)?;
            index += 2;
        }
        x = b.max_pool(&format!("features.{index}"), x, Window::square(2, 2, 0))?;
        index += 1;
    }
    x = x.rows();
    for layer in [0, 3] {
        let weights = b.linear_weights(&format!("classifier.{layer}"), [x.dim(1), hidden], true, classifier);
        x = b.linear(&format!("classifier.{layer}"), x, weights)?;
        x = b.relu(&format!("classifier.{}", layer + 1), x)?;
        x = b.dropout(&format!("classifier.{}", layer + 2), x, 0.5)?;
    }
    let weights = b.linear_weights("classifier.6", [hidden, net.classes], true, classifier);
    let logits = b.linear("classifier.6", x, weights)?;
    net.finish(logits, &[], options.optimizer_or(OptimizerKind::Sgd, 0.01))
}

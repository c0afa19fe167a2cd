//! Networks by name, one file each, at any size: building a graph takes no memory for its tensors.

mod alexnet;
mod convnext;
mod defaults;
mod densenet;
mod diffusion;
mod efficientnet;
mod googlenet;
mod gpt;
mod inception;
mod inception_resnet;
mod kmeans;
mod llama;
mod lstm;
mod mobilenet;
mod options;
mod resnet;
mod seq2seq;
mod unet;
mod variation;
mod vgg;
mod vit;

pub use defaults::{not_taken, resolved, without_effect};
pub use options::{OptimizerKind, Options};
pub use variation::{Variation, variation};

use crate::autodiff::Optimizer;
use crate::builder::{BuildError, Builder, Mode, Var};
use crate::graph::{Content, Graph};
use crate::layers::{ConvLayer, Part, WeightInit};
use crate::op::Window;

/// Why a network cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ZooError {
    /// No network has this name.
    #[error("no network is called `{name}`; choose one of {} (N stands for a depth, as in resnet56)", NAMES.join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// A residual network of a depth that no number of blocks makes.
    #[error(
        "no network is called `{name}`: the depth of a residual network is an even number from 10 to 48, or from 50 to 20000 a number that \
         leaves 2 when divided by 3, as in resnet18 or resnet50"
    )]
    Depth {
        /// The name.
        name: String,
    },
    /// An option is out of range.
    #[error("the {what} cannot be {value}; it is {range}")]
    Option {
        /// The option.
        what: &'static str,
        /// Its value.
        value: String,
        /// The permitted range.
        range: String,
    },
    /// The network cannot be built with these options.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// Every name that [`build`] knows. `N` stands for a depth: 18, 34, 50, 101, 152, 20, 32, 44, 56, 110, 1202, or any other that a number of
/// blocks makes.
pub const NAMES: &[&str] = &[
    "alexnet",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnetN",
    "stochastic-resnetN",
    "vgg11",
    "vgg13",
    "vgg16",
    "vgg19",
    "densenet121",
    "densenet161",
    "densenet169",
    "densenet201",
    "googlenet",
    "inception-v3",
    "inception-resnet-v2",
    "mobilenet-v2",
    "efficientnet-b0",
    "convnext-tiny",
    "vit-b-16",
    "unet",
    "diffusion",
    "kmeans",
    "lstm",
    "seq2seq",
    "gpt",
    "gpt2",
    "llama",
    "tinyllama",
];

/// The network of this name.
pub fn build(name: &str, options: &Options) -> Result<Graph, ZooError> {
    options.validate()?;
    let graph = match name {
        "vgg11" => vgg::build(name, &vgg::VGG11, options),
        "vgg13" => vgg::build(name, &vgg::VGG13, options),
        "vgg16" => vgg::build(name, &vgg::VGG16, options),
        "vgg19" => vgg::build(name, &vgg::VGG19, options),
        "densenet121" => densenet::build(name, &densenet::DENSENET121, options),
        "densenet161" => densenet::build(name, &densenet::DENSENET161, options),
        "densenet169" => densenet::build(name, &densenet::DENSENET169, options),
        "densenet201" => densenet::build(name, &densenet::DENSENET201, options),
        "alexnet" => alexnet::build(name, options),
        "googlenet" => googlenet::build(name, options),
        "mobilenet-v2" => mobilenet::build(name, options),
        "efficientnet-b0" => efficientnet::build(name, options),
        "convnext-tiny" => convnext::build(name, options),
        "vit-b-16" => vit::build(name, options),
        "diffusion" => diffusion::build(name, options),
        "llama" => llama::build(name, &llama::SMALL, options),
        "tinyllama" => llama::build(name, &llama::TINY, options),
        "unet" => unet::build(name, options),
        "kmeans" => kmeans::build(name, options),
        "inception-v3" => inception::build(name, options),
        "inception-resnet-v2" => inception_resnet::build(name, options),
        seq2seq::NAME => seq2seq::build(name, options),
        "lstm" => lstm::build(name, options),
        "gpt" => gpt::build(name, &gpt::SMALL, options),
        "gpt2" => gpt::build(name, &gpt::GPT2, options),
        _ => match resnet_depth(name, options)? {
            ("", depth) => resnet::build(name, &depth, options),
            (_, depth) => resnet::stochastic(name, &depth, options),
        },
    };
    Ok(graph?)
}

/// What precedes `resnet` in the name of a residual network, and its depth.
fn resnet_depth<'n>(name: &'n str, options: &Options) -> Result<(&'n str, resnet::Depth), ZooError> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = name.split_once("resnet");
    let known = parts.filter(|(kind, depth)| ["", resnet::STOCHASTIC].contains(kind) && is_number(depth));
    let (kind, depth) = known.ok_or_else(|| ZooError::Unknown { name: name.to_owned() })?;
    let published = depth.parse().ok().and_then(resnet::Depth::of);
    let published = published.ok_or_else(|| ZooError::Depth { name: name.to_owned() })?;
    Ok(match options.width {
        Some(width) => (kind, published.with_width(width)),
        None => (kind, published),
    })
}

/// Networks take the form for CIFAR below this image size.
const SMALL_IMAGE: usize = 96;

/// A convolution with a bias and a ReLU behind it.
fn conv_relu(
    b: &mut Builder,
    name: &str,
    x: Var,
    channels: usize,
    window: Window,
) -> Result<Var, BuildError> {
    let layer = ConvLayer { channels, window, bias: true, init: WeightInit::KaimingFanIn };
    let x = b.conv2d(name, x, layer)?;
    b.relu(&format!("{name}.relu"), x)
}

/// A classifier of images in the making.
struct Vision {
    builder: Builder,
    images: Var,
    labels: Option<Var>,
    size: usize,
    classes: usize,
}

impl Vision {
    fn new(name: &str, options: &Options, default_image: usize) -> Self {
        let size = options.image.unwrap_or(default_image);
        let classes = options.classes.unwrap_or(if size < SMALL_IMAGE { 10 } else { 1000 });
        let title = format!("{name} batch {} image {size}", options.batch);
        let mut builder = Builder::new(title, options.mode);
        let images = builder.input("images", [options.batch, 3, size, size], Content::Real);
        let labels = (options.mode != Mode::Inference)
            .then(|| builder.input("labels", [options.batch], Content::Class { classes }));
        Self { builder, images, labels, size, classes }
    }

    /// Whether the network takes its form for small images.
    fn small(&self) -> bool {
        self.size < SMALL_IMAGE
    }

    /// The whole graph: in training the mean cross entropy of `logits` and of auxiliary ones with their weights.
    fn finish(
        mut self,
        logits: Var,
        auxiliary: &[(Var, f32)],
        optimizer: Optimizer,
    ) -> Result<Graph, BuildError> {
        let Some(labels) = self.labels else {
            return Ok(self.builder.finish_inference(&[("logits", logits)]));
        };
        let mean = 1.0 / logits.dim(0) as f32;
        let mut loss = self.builder.cross_entropy("loss", [logits, labels], Part::ALL, mean)?;
        for (index, &(logits, weight)) in auxiliary.iter().enumerate() {
            let name = format!("aux{}.loss", index + 1);
            let part = self.builder.cross_entropy(&name, [logits, labels], Part::ALL, weight * mean)?;
            loss = self.builder.add(&format!("loss.with-aux{}", index + 1), loss, part)?;
        }
        self.builder.finish_training(loss, optimizer)
    }
}

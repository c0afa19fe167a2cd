//! Networks by name, one file each, at any size: building a graph takes no memory for its tensors.

mod alexnet;
mod defaults;
mod densenet;
mod googlenet;
mod gpt;
mod inception;
mod inception_resnet;
mod kmeans;
mod lstm;
mod resnet;
mod seq2seq;
mod unet;
mod variation;
mod vgg;

pub use defaults::resolved;
pub use variation::{Variation, variation};

use std::str::FromStr;

use crate::autodiff::Optimizer;
use crate::builder::{BuildError, Builder, Mode, Var};
use crate::graph::{Content, Graph};
use crate::layers::{ConvLayer, Part, WeightInit};
use crate::op::{Adam, Sgd, Window};

/// The parameters of a network. `None` means the network's own default.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Samples in a batch.
    pub batch: usize,
    /// A training iteration, or the forward part alone.
    pub mode: Mode,
    /// Height and width of the images. Below 96, image networks take the form used on CIFAR.
    pub image: Option<usize>,
    /// Number of classes: by default 10 for small images, 1,000 for large ones. Of k-means, the clusters.
    pub classes: Option<usize>,
    /// Tokens in a sequence.
    pub length: Option<usize>,
    /// Tokens in the target of a translation; as many as in the source by default.
    pub target: Option<usize>,
    /// Number of different tokens: by default 256, the bytes.
    pub vocabulary: Option<usize>,
    /// Columns of the hidden state of a language model; channels of U-Net at the full size and of ResNet's first stage; columns of a
    /// point of k-means.
    pub width: Option<usize>,
    /// Layers of a language model.
    pub layers: Option<usize>,
    /// Selects the random structure, for networks whose structure changes from iteration to iteration.
    pub draw: Option<u64>,
    /// The optimizer.
    pub optimizer: Option<OptimizerKind>,
    /// Step size of the optimizer.
    pub learning_rate: Option<f32>,
}

impl Options {
    /// Defaults for training on batches of this size.
    pub const fn new(batch: usize) -> Self {
        Self {
            batch,
            mode: Mode::Training,
            image: None,
            classes: None,
            length: None,
            target: None,
            vocabulary: None,
            width: None,
            layers: None,
            draw: None,
            optimizer: None,
            learning_rate: None,
        }
    }

    /// Rejects options beyond generous bounds that keep every product of extents below 2⁶⁴ and every graph in memory.
    fn validate(&self) -> Result<(), ZooError> {
        let (image, length) =
            (self.image.unwrap_or(1), self.length.unwrap_or(1).saturating_add(self.target.unwrap_or(0)));
        let (width, layers) = (self.width.unwrap_or(1), self.layers.unwrap_or(1));
        let checks = [
            ("batch", Some(self.batch), 1 << 20),
            ("image size", self.image, 1 << 14),
            ("number of classes", self.classes, 1 << 20),
            ("sequence length", self.length, 1 << 14),
            ("target length", self.target, 1 << 14),
            ("vocabulary", self.vocabulary, 1 << 22),
            ("width", self.width, 1 << 15),
            ("number of layers", self.layers, 1 << 10),
            (
                "number of pixels in a batch",
                Some(self.batch.saturating_mul(image).saturating_mul(image)),
                1 << 36,
            ),
            ("number of tokens in a batch", Some(self.batch.saturating_mul(length)), 1 << 28),
            ("number of steps, all layers counted,", Some(length.saturating_mul(layers)), 1 << 17),
            ("size of the token table", Some(width.saturating_mul(self.vocabulary.unwrap_or(1))), 1 << 34),
        ];
        for (what, value, most) in checks {
            if let Some(value) = value.filter(|value| !(1..=most).contains(value)) {
                return Err(ZooError::Option {
                    what,
                    value: value.to_string(),
                    range: format!("1..={most}"),
                });
            }
        }
        if let Some(rate) = self.learning_rate.filter(|rate| !(rate.is_finite() && *rate > 0.0)) {
            let range = "a positive number".to_owned();
            return Err(ZooError::Option { what: "learning rate", value: rate.to_string(), range });
        }
        Ok(())
    }

    /// The optimizer and its learning rate, where the network's own are `kind` and `rate`.
    fn optimizer(&self, kind: OptimizerKind, rate: f32) -> Optimizer {
        self.optimizer.unwrap_or(kind).with_rate(self.learning_rate_or(kind, rate))
    }

    /// The learning rate. The network's own rate is for its own optimizer.
    fn learning_rate_or(&self, kind: OptimizerKind, rate: f32) -> f32 {
        let chosen = self.optimizer.unwrap_or(kind);
        let default = if chosen == kind { rate } else { chosen.learning_rate() };
        self.learning_rate.unwrap_or(default)
    }
}

/// The kind of an optimizer, without its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OptimizerKind {
    /// Stochastic gradient descent with momentum 0.9 and weight decay 5·10⁻⁴.
    Sgd,
    /// Adam with β = (0.9, 0.999), ε = 10⁻⁸ and no weight decay.
    Adam,
}

impl OptimizerKind {
    /// The name from which it is parsed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sgd => "sgd",
            Self::Adam => "adam",
        }
    }

    const fn learning_rate(self) -> f32 {
        match self {
            Self::Sgd => 0.01,
            Self::Adam => 1e-3,
        }
    }

    const fn with_rate(self, learning_rate: f32) -> Optimizer {
        match self {
            Self::Sgd => Optimizer::Sgd(Sgd { learning_rate, momentum: 0.9, weight_decay: 5e-4 }),
            Self::Adam => {
                Optimizer::Adam(Adam { learning_rate, betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.0 })
            }
        }
    }
}

impl FromStr for OptimizerKind {
    type Err = ZooError;

    fn from_str(name: &str) -> Result<Self, ZooError> {
        match name {
            "sgd" => Ok(Self::Sgd),
            "adam" => Ok(Self::Adam),
            _ => Err(ZooError::Option {
                what: "optimizer",
                value: name.to_owned(),
                range: "sgd or adam".to_owned(),
            }),
        }
    }
}

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
    "unet",
    "kmeans",
    "lstm",
    "seq2seq",
    "gpt",
    "gpt2",
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
        "unet" => unet::build(name, options),
        "kmeans" => kmeans::build(name, options),
        "inception-v3" => inception::build(name, options),
        "inception-resnet-v2" => inception_resnet::build(name, options),
        seq2seq::NAME => seq2seq::build(name, options),
        "lstm" => lstm::build(name, options),
        "gpt" => gpt::build(name, &gpt::SMALL, options),
        "gpt2" => gpt::build(name, &gpt::GPT2, options),
        _ => match name.split_once("resnet").and_then(|(kind, depth)| Some((kind, depth.parse().ok()?))) {
            Some(("", depth)) => resnet::build(name, &resnet_depth(name, depth, options)?, options),
            Some((resnet::STOCHASTIC, depth)) => {
                resnet::stochastic(name, &resnet_depth(name, depth, options)?, options)
            }
            _ => return Err(unknown(name)),
        },
    };
    Ok(graph?)
}

fn unknown(name: &str) -> ZooError {
    ZooError::Unknown { name: name.to_owned() }
}

fn resnet_depth(name: &str, depth: usize, options: &Options) -> Result<resnet::Depth, ZooError> {
    let published = resnet::Depth::of(depth).ok_or_else(|| unknown(name))?;
    Ok(match options.width {
        Some(width) => published.with_width(width),
        None => published,
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
        let labels = (options.mode == Mode::Training)
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

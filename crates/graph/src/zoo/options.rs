//! The parameters of a network, with a setter for each.

use std::str::FromStr;

use super::ZooError;
use crate::autodiff::Optimizer;
use crate::builder::Mode;
use crate::op::{Adam, Sgd};

/// The parameters of a network. `None` means the network's own default.
///
/// ```
/// use elbowroom_graph::zoo::Options;
///
/// let options = Options::new(32).image(224).classes(10);
/// assert_eq!(options.image, Some(224));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
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
    /// Columns of the hidden state of a language model or of a vision transformer; channels of U-Net and of the diffusion model at the full size,
    /// and of the first stage of ResNet and ConvNeXt; columns of a point of k-means.
    pub width: Option<usize>,
    /// Layers of a language model or of a vision transformer.
    pub layers: Option<usize>,
    /// Selects the random structure, for networks whose structure changes from iteration to iteration.
    pub draw: Option<u64>,
    /// The optimizer.
    pub optimizer: Option<OptimizerKind>,
    /// Step size of the optimizer.
    pub learning_rate: Option<f32>,
    /// Weight decay of the optimizer: of SGD added to the gradient, of Adam decoupled from it.
    pub weight_decay: Option<f32>,
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
            weight_decay: None,
        }
    }

    /// Sets the samples in a batch.
    #[must_use]
    pub fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// Builds a training iteration, or the forward part alone.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Sets the height and width of the images.
    #[must_use]
    pub fn image(self, image: impl Into<Option<usize>>) -> Self {
        Self { image: image.into(), ..self }
    }

    /// Sets the number of classes.
    #[must_use]
    pub fn classes(self, classes: impl Into<Option<usize>>) -> Self {
        Self { classes: classes.into(), ..self }
    }

    /// Sets the tokens in a sequence.
    #[must_use]
    pub fn length(self, length: impl Into<Option<usize>>) -> Self {
        Self { length: length.into(), ..self }
    }

    /// Sets the tokens in the target of a translation.
    #[must_use]
    pub fn target(self, target: impl Into<Option<usize>>) -> Self {
        Self { target: target.into(), ..self }
    }

    /// Sets the number of different tokens.
    #[must_use]
    pub fn vocabulary(self, vocabulary: impl Into<Option<usize>>) -> Self {
        Self { vocabulary: vocabulary.into(), ..self }
    }

    /// Sets the columns or channels that [`width`](Self#structfield.width) describes.
    #[must_use]
    pub fn width(self, width: impl Into<Option<usize>>) -> Self {
        Self { width: width.into(), ..self }
    }

    /// Sets the layers of a language model.
    #[must_use]
    pub fn layers(self, layers: impl Into<Option<usize>>) -> Self {
        Self { layers: layers.into(), ..self }
    }

    /// Selects the random structure.
    #[must_use]
    pub fn draw(self, draw: impl Into<Option<u64>>) -> Self {
        Self { draw: draw.into(), ..self }
    }

    /// Sets the optimizer.
    #[must_use]
    pub fn optimizer(self, optimizer: impl Into<Option<OptimizerKind>>) -> Self {
        Self { optimizer: optimizer.into(), ..self }
    }

    /// Sets the step size of the optimizer.
    #[must_use]
    pub fn learning_rate(self, learning_rate: impl Into<Option<f32>>) -> Self {
        Self { learning_rate: learning_rate.into(), ..self }
    }

    /// Sets the weight decay of the optimizer.
    #[must_use]
    pub fn weight_decay(self, weight_decay: impl Into<Option<f32>>) -> Self {
        Self { weight_decay: weight_decay.into(), ..self }
    }

    /// Rejects options beyond generous bounds that keep every product of extents below 2⁶⁴ and every graph in memory.
    ///
    /// # Errors
    /// [`ZooError::Option`] names the option and its range.
    pub fn validate(&self) -> Result<(), ZooError> {
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
        if let Some(decay) = self.weight_decay.filter(|decay| !(decay.is_finite() && *decay >= 0.0)) {
            let range = "zero or a positive number".to_owned();
            return Err(ZooError::Option { what: "weight decay", value: decay.to_string(), range });
        }
        Ok(())
    }

    /// The optimizer and its learning rate, where the network's own are `kind` and `rate`.
    pub fn optimizer_or(&self, kind: OptimizerKind, rate: f32) -> Optimizer {
        let mut optimizer = self.optimizer.unwrap_or(kind).with_rate(self.learning_rate_or(kind, rate));
        if let Some(decay) = self.weight_decay {
            match &mut optimizer {
                Optimizer::Sgd(sgd) => sgd.weight_decay = decay,
                Optimizer::Adam(adam) => adam.weight_decay = decay,
            }
        }
        optimizer
    }

    /// The learning rate. The network's own rate is for its own optimizer.
    pub fn learning_rate_or(&self, kind: OptimizerKind, rate: f32) -> f32 {
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

    /// The weight decay that it has by default.
    pub const fn default_weight_decay(self) -> f32 {
        match self {
            Self::Sgd => 5e-4,
            Self::Adam => 0.0,
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

//! Layers, as networks are described by them: ops together with their parameters, statistics and initial values.

mod grouped;
mod steps;
mod transformer;

pub use grouped::TransposedLayer;

use std::ops::Range;

use elbowroom_ir::TensorId;

use crate::builder::{BuildError, Builder, Mode, Var};
use crate::graph::Role;
use crate::init::Init;
use crate::op::{
    Algorithm, Channels, Classification, Conv, Function, Heads, Lookup, Mask, OpKind, Places, Pool, Product,
    Response, Window,
};

/// Initial values of the weight of a convolution or a linear layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WeightInit {
    /// Normal with variance 2 / (outputs · window): He et al., 2015, over the fan-out, as torchvision's ResNet and VGG.
    KaimingFanOut,
    /// Normal with variance 2 / (inputs · window): the same over the fan-in, which preserves the scale of activations where layers get
    /// narrower and no normalization follows.
    KaimingFanIn,
    /// Uniform within 1 / √fan-in, bias alike: PyTorch's default.
    FanInUniform,
    /// Normal with this standard deviation, bias zero.
    Normal(f32),
    /// Uniform within this bound, bias alike.
    Uniform(f32),
}

impl WeightInit {
    fn weight(self, fan_in: usize, fan_out: usize, stream: u32) -> Init {
        match self {
            Self::KaimingFanOut => Init::Normal { std: (2.0 / fan_out as f32).sqrt(), stream },
            Self::KaimingFanIn => Init::Normal { std: (2.0 / fan_in as f32).sqrt(), stream },
            Self::FanInUniform => Init::Uniform { bound: 1.0 / (fan_in as f32).sqrt(), stream },
            Self::Normal(std) => Init::Normal { std, stream },
            Self::Uniform(bound) => Init::Uniform { bound, stream },
        }
    }

    fn bias(self, fan_in: usize, stream: u32) -> Init {
        match self {
            Self::KaimingFanOut | Self::KaimingFanIn | Self::Normal(_) => Init::Constant(0.0),
            Self::FanInUniform => Init::Uniform { bound: 1.0 / (fan_in as f32).sqrt(), stream },
            Self::Uniform(bound) => Init::Uniform { bound, stream },
        }
    }
}

/// Parameters of a convolution layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvLayer {
    /// Output channels.
    pub channels: usize,
    /// Its window.
    pub window: Window,
    /// Whether it has a bias.
    pub bias: bool,
    /// Initial values of its weight.
    pub init: WeightInit,
}

impl ConvLayer {
    /// A convolution before a batch normalization: no bias, He's initial values.
    pub const fn plain(channels: usize, window: Window) -> Self {
        Self { channels, window, bias: false, init: WeightInit::KaimingFanOut }
    }
}

/// Weight and bias of a linear layer or a convolution, which several nodes may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearWeights {
    /// `[outputs, inputs]`, or `[outputs, inputs, height, width]` of a convolution's window.
    pub weight: Var,
    /// `[outputs]`
    pub bias: Option<Var>,
}

impl LinearWeights {
    fn operands(&self, x: Var) -> Vec<TensorId> {
        [Some(x), Some(self.weight), self.bias].into_iter().flatten().map(|value| value.id).collect()
    }
}

/// Parameters and statistics of a batch normalization, each `[channels]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormWeights {
    /// γ
    pub gamma: Var,
    /// β
    pub beta: Var,
    /// The running mean.
    pub mean: Var,
    /// The running variance.
    pub variance: Var,
}

const BATCH_NORM_MOMENTUM: f32 = 0.1;
/// Default ε of normalizations.
pub const EPSILON: f32 = 1e-5;

impl Builder {
    /// A trained tensor.
    pub fn weight(&mut self, name: impl Into<String>, shape: impl Into<crate::Shape>, init: Init) -> Var {
        self.persistent(name, shape, Role::Weight, init)
    }

    /// Convolution of `x [batch, channels, height, width]`; its weight is `name.weight`, its bias `name.bias`.
    pub fn conv2d(&mut self, name: &str, x: Var, layer: ConvLayer) -> Result<Var, BuildError> {
        let weights = self.conv_weights(name, x.dim(1), layer);
        self.conv2d_with(name, x, weights, layer.window)
    }

    /// The weights of a convolution without the op: for a layer that this graph may leave out.
    pub fn conv_weights(&mut self, name: &str, in_channels: usize, layer: ConvLayer) -> LinearWeights {
        let ConvLayer { channels, window, bias, init } = layer;
        let (fan_in, fan_out) = (in_channels * window.area(), channels * window.area());
        let weight = init.weight(fan_in, fan_out, self.init_stream());
        let shape = [channels, in_channels, window.kernel[0], window.kernel[1]];
        let weight = self.weight(format!("{name}.weight"), shape, weight);
        let bias = bias.then(|| {
            let init = init.bias(fan_in, self.init_stream());
            self.weight(format!("{name}.bias"), [channels], init)
        });
        LinearWeights { weight, bias }
    }

    /// Convolution with existing weights.
    pub fn conv2d_with(
        &mut self,
        name: &str,
        x: Var,
        weights: LinearWeights,
        window: Window,
    ) -> Result<Var, BuildError> {
        let in_size = [x.dim(2), x.dim(3)];
        let conv = Conv {
            batch: x.dim(0),
            in_channels: x.dim(1),
            in_size,
            out_channels: weights.weight.dim(0),
            out_size: window.output(in_size).ok_or_else(|| no_fit(name, window, in_size))?,
            window,
            algorithm: Algorithm::default(),
        };
        self.push1(name, OpKind::Conv2d { conv, bias: weights.bias.is_some() }, &weights.operands(x))
    }

    /// Batch normalization of `x [batch, channels, …]`: `name.weight`, `name.bias`, `name.running_mean`, `name.running_var`. In training
    /// the statistics are updated by an operation of their own.
    pub fn batch_norm(&mut self, name: &str, x: Var, epsilon: f32) -> Result<Var, BuildError> {
        let weights = self.norm_weights(name, x.dim(1));
        self.batch_norm_with(name, x, weights, epsilon)
    }

    /// Parameters and statistics of a batch normalization without the op.
    pub fn norm_weights(&mut self, name: &str, channels: usize) -> NormWeights {
        let mut make = |suffix: &str, role, value| {
            self.persistent(format!("{name}.{suffix}"), [channels], role, Init::Constant(value))
        };
        NormWeights {
            gamma: make("weight", Role::Weight, 1.0),
            beta: make("bias", Role::Weight, 0.0),
            mean: make("running_mean", Role::Statistic, 0.0),
            variance: make("running_var", Role::Statistic, 1.0),
        }
    }

    /// Batch normalization with existing parameters.
    pub fn batch_norm_with(
        &mut self,
        name: &str,
        x: Var,
        weights: NormWeights,
        epsilon: f32,
    ) -> Result<Var, BuildError> {
        let (batch, per) = (x.dim(0), x.dim(1));
        let channels = Channels { batch, channels: per, spatial: x.shape.len() / (batch * per).max(1) };
        let NormWeights { gamma, beta, mean, variance } = weights;
        let y = if self.mode() == Mode::Training {
            let kind = OpKind::BatchNorm { channels, epsilon };
            let made = self.push(name, kind, &[x.id, gamma.id, beta.id])?;
            let update = OpKind::RunningUpdate {
                channels: per,
                count: channels.per_channel(),
                momentum: BATCH_NORM_MOMENTUM,
            };
            self.push(format!("{name}.update"), update, &[made[1].id, made[2].id, mean.id, variance.id])?;
            made[0]
        } else {
            let operands = [x.id, gamma.id, beta.id, mean.id, variance.id];
            self.push1(name, OpKind::BatchNormInference { channels, epsilon }, &operands)?
        };
        Ok(Var { id: y.id, shape: x.shape })
    }

    /// An elementwise function.
    pub fn map(&mut self, name: &str, x: Var, function: Function) -> Result<Var, BuildError> {
        let y = self.push1(name, OpKind::Map { len: x.shape.len(), function }, &[x.id])?;
        Ok(Var { id: y.id, shape: x.shape })
    }

    /// `max(x, 0)`
    pub fn relu(&mut self, name: &str, x: Var) -> Result<Var, BuildError> {
        self.map(name, x, Function::Relu)
    }

    /// Dropout with this probability in `0..1`; the identity in inference and at probability 0.
    pub fn dropout(&mut self, name: &str, x: Var, probability: f32) -> Result<Var, BuildError> {
        if !(0.0..1.0).contains(&probability) {
            let why = format!("a dropout probability lies in 0..1, and {probability} does not");
            return Err(BuildError::Extents { node: name.to_owned(), why });
        }
        if self.mode() != Mode::Training || probability == 0.0 {
            return Ok(x);
        }
        let mask = Mask::new(x.shape.len(), probability, self.mask_stream());
        let y = self.push1(name, OpKind::Dropout(mask), &[x.id])?;
        Ok(Var { id: y.id, shape: x.shape })
    }

    /// The sum of two tensors of the same size.
    pub fn add(&mut self, name: &str, a: Var, b: Var) -> Result<Var, BuildError> {
        let y = self.push1(name, OpKind::Add { len: a.shape.len() }, &[a.id, b.id])?;
        Ok(Var { id: y.id, shape: a.shape })
    }

    /// A tensor times a constant.
    pub fn scale(&mut self, name: &str, x: Var, factor: f32) -> Result<Var, BuildError> {
        let y = self.push1(name, OpKind::Scale { len: x.shape.len(), factor }, &[x.id])?;
        Ok(Var { id: y.id, shape: x.shape })
    }

    /// Maximum pooling of `x [batch, channels, height, width]`.
    pub fn max_pool(&mut self, name: &str, x: Var, window: Window) -> Result<Var, BuildError> {
        let pool = pool(name, x, window, window.output([x.dim(2), x.dim(3)]))?;
        self.max_pool_to(name, x, pool)
    }

    /// Maximum pooling whose output size is rounded up.
    pub fn max_pool_ceil(&mut self, name: &str, x: Var, window: Window) -> Result<Var, BuildError> {
        let pool = pool(name, x, window, window.output_ceil([x.dim(2), x.dim(3)]))?;
        self.max_pool_to(name, x, pool)
    }

    fn max_pool_to(&mut self, name: &str, x: Var, pool: Pool) -> Result<Var, BuildError> {
        let y = self.push1(name, OpKind::MaxPool(pool), &[x.id])?;
        Ok(images(y, x, pool.out_size))
    }

    /// Average pooling of `x [batch, channels, height, width]`; padding counts in the divisor, as PyTorch's default.
    pub fn average_pool(&mut self, name: &str, x: Var, window: Window) -> Result<Var, BuildError> {
        let pool = pool(name, x, window, window.output([x.dim(2), x.dim(3)]))?;
        let y = self.push1(name, OpKind::AveragePool { pool, count_padding: true }, &[x.id])?;
        Ok(images(y, x, pool.out_size))
    }

    /// Average pooling that counts only elements of the input in the divisor.
    pub fn average_pool_inside(&mut self, name: &str, x: Var, window: Window) -> Result<Var, BuildError> {
        let pool = pool(name, x, window, window.output([x.dim(2), x.dim(3)]))?;
        let y = self.push1(name, OpKind::AveragePool { pool, count_padding: false }, &[x.id])?;
        Ok(images(y, x, pool.out_size))
    }

    /// Local response normalization of `x [batch, channels, height, width]` over `size` neighbouring channels.
    pub fn response_norm(
        &mut self,
        name: &str,
        x: Var,
        size: usize,
        [k, alpha, beta]: [f32; 3],
    ) -> Result<Var, BuildError> {
        let (batch, channels) = (x.dim(0), x.dim(1));
        let channels = Channels { batch, channels, spatial: x.dim(2) * x.dim(3) };
        let response = Response { channels, size, k, alpha, beta };
        let y = self.push1(name, OpKind::ResponseNorm(response), &[x.id])?;
        Ok(Var { id: y.id, shape: x.shape })
    }

    /// Transposed convolution of `x [batch, channels, height, width]`, with a bias: every element of `x` contributes to a window, so the
    /// result has `stride · (size − 1) + kernel − 2·padding` rows and columns. Its weight is `[in, out, height, width]`.
    pub fn conv_transpose2d(&mut self, name: &str, x: Var, layer: ConvLayer) -> Result<Var, BuildError> {
        let ConvLayer { channels, window, bias, init } = layer;
        let (in_size, in_channels) = ([x.dim(2), x.dim(3)], x.dim(1));
        let mut out_size = [0; 2];
        for (axis, out) in out_size.iter_mut().enumerate() {
            let spread = window.stride[axis] * in_size[axis].saturating_sub(1) + window.kernel[axis];
            *out = spread.saturating_sub(2 * window.padding[axis]);
        }
        // The convolution that this one transposes goes from the result to x.
        let (batch, in_size) = (x.dim(0), out_size);
        let conv = Conv {
            batch,
            in_channels: channels,
            in_size,
            out_channels: in_channels,
            out_size: [x.dim(2), x.dim(3)],
            window,
            algorithm: Algorithm::default(),
        };
        if window.output(in_size) != Some(conv.out_size) {
            return Err(no_fit(name, window, in_size));
        }
        let (fan_in, fan_out) = (in_channels * window.area(), channels * window.area());
        let weight = init.weight(fan_in, fan_out, self.init_stream());
        let weight = self.weight(format!("{name}.weight"), conv.w(), weight);
        let mut y = self.push1(name, OpKind::Conv2dGradInput(conv), &[x.id, weight.id])?;
        if bias {
            let init = init.bias(fan_in, self.init_stream());
            let bias = self.weight(format!("{name}.bias"), [channels], init);
            let extents = Channels { batch, channels, spatial: in_size[0] * in_size[1] };
            y = self.push1(format!("{name}.add-bias"), OpKind::AddChannel(extents), &[y.id, bias.id])?;
        }
        Ok(Var { id: y.id, shape: conv.x() })
    }

    /// `x [batch, channels, height, width]` with the channels innermost: `[batch, height, width, channels]`.
    pub fn channels_last(&mut self, name: &str, x: Var) -> Result<Var, BuildError> {
        let (batch, channels, [height, width]) = (x.dim(0), x.dim(1), [x.dim(2), x.dim(3)]);
        let kind = OpKind::Transpose { batch, rows: channels, columns: height * width, inner: 1 };
        let y = self.push1(name, kind, &[x.id])?;
        Ok(Var { id: y.id, shape: [batch, height, width, channels].into() })
    }

    /// The mean of every plane of `x [batch, channels, height, width]`: `[batch, channels, 1, 1]`.
    pub fn global_average_pool(&mut self, name: &str, x: Var) -> Result<Var, BuildError> {
        let size = [x.dim(2), x.dim(3)];
        self.average_pool(name, x, Window { kernel: size, stride: [1, 1], padding: [0, 0] })
    }

    /// Weights for [`linear`](Self::linear): `name.weight` and, if `bias`, `name.bias`.
    pub fn linear_weights(
        &mut self,
        name: &str,
        [inputs, outputs]: [usize; 2],
        bias: bool,
        init: WeightInit,
    ) -> LinearWeights {
        let weight = init.weight(inputs, outputs, self.init_stream());
        let weight = self.weight(format!("{name}.weight"), [outputs, inputs], weight);
        let bias = bias.then(|| {
            let init = init.bias(inputs, self.init_stream());
            self.weight(format!("{name}.bias"), [outputs], init)
        });
        LinearWeights { weight, bias }
    }

    /// `x·wᵀ + b` for every row of `x`, whose last extents together are the weight's inputs.
    pub fn linear(&mut self, name: &str, x: Var, weights: LinearWeights) -> Result<Var, BuildError> {
        let (outputs, inputs) = (weights.weight.dim(0), weights.weight.dim(1));
        let product = Product { rows: x.shape.len() / inputs.max(1), inputs, outputs };
        self.push1(name, OpKind::Linear { product, bias: weights.bias.is_some() }, &weights.operands(x))
    }

    /// The rows of `table` given by ids: `[rows, width]`.
    pub fn embedding(&mut self, name: &str, ids: Var, table: Var, part: Part) -> Result<Var, BuildError> {
        let rows = part.rows.unwrap_or(ids.shape.len());
        let (vocabulary, width) = (table.dim(0), table.dim(1));
        let lookup = Lookup { rows, places: part.places, first: 0, vocabulary, width };
        self.push1(name, OpKind::Embedding(lookup), &[ids.id, table.id])
    }

    /// Self-attention of `qkv [batch, tokens, 3·width]` with `heads` heads: `[batch, tokens, width]`.
    pub fn attention(&mut self, name: &str, qkv: Var, heads: usize, causal: bool) -> Result<Var, BuildError> {
        let width = qkv.dim(2) / (3 * heads).max(1);
        self.push1(
            name,
            OpKind::Attention(Heads { batch: qkv.dim(0), tokens: qkv.dim(1), heads, width, causal }),
            &[qkv.id],
        )
    }

    /// `scale` times the sum over the rows of `logits [.., classes]` of the cross entropy with their labels. In evaluation the sum itself, and
    /// the rows that are classified correctly are counted.
    pub fn cross_entropy(
        &mut self,
        name: &str,
        [logits, labels]: [Var; 2],
        part: Part,
        scale: f32,
    ) -> Result<Var, BuildError> {
        let classes = logits.shape.dims().last().copied().unwrap_or(1);
        let rows = logits.shape.len() / classes.max(1);
        let evaluates = self.mode() == Mode::Evaluation;
        let scale = if evaluates { 1.0 } else { scale };
        let loss = Classification { rows, classes, places: part.places, scale };
        if evaluates {
            let hits = self.push1(format!("{name}.hits"), OpKind::Hits(loss), &[logits.id, labels.id])?;
            self.hits.push(hits);
        }
        self.push1(name, OpKind::CrossEntropy(loss), &[logits.id, labels.id])
    }

    /// Concatenates tensors `[batch, cᵢ, …]` along their second extent, in which alone they may differ.
    pub fn concat(&mut self, name: &str, parts: &[Var]) -> Result<Var, BuildError> {
        let Some(first) = parts.first() else {
            return Err(BuildError::Extents {
                node: name.to_owned(),
                why: "nothing to concatenate".to_owned(),
            });
        };
        let mut dims = first.shape.dims().to_vec();
        if parts.iter().any(|p| p.dim(0) != dims[0] || p.shape.dims()[2..] != dims[2..]) {
            let shapes: Vec<String> = parts.iter().map(|part| part.shape.to_string()).collect();
            let why = format!("{} differ in more than their channels", shapes.join(", "));
            return Err(BuildError::Extents { node: name.to_owned(), why });
        }
        dims[1] = parts.iter().map(|part| part.dim(1)).sum();
        let widths = parts.iter().map(|part| part.shape.len() / dims[0].max(1)).collect();
        let operands: Vec<_> = parts.iter().map(|part| part.id).collect();
        let y = self.push1(name, OpKind::Concat { outer: dims[0], widths }, &operands)?;
        Ok(Var { id: y.id, shape: crate::Shape::new(&dims) })
    }
}

/// The ids or labels that an op reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which.
    pub places: Places,
    /// How many; all if `None`.
    pub rows: Option<usize>,
}

impl Part {
    /// All of them.
    pub const ALL: Self = Self { places: Places::ALL, rows: None };

    /// Those of some steps of `batch` sequences `[batch, length]`, step after step.
    pub fn steps(steps: &Range<usize>, [batch, length]: [usize; 2]) -> Self {
        Self { places: Places::steps(steps.start, [batch, length]), rows: Some(batch * steps.len()) }
    }
}

fn images(y: Var, x: Var, size: [usize; 2]) -> Var {
    Var { id: y.id, shape: [x.dim(0), x.dim(1), size[0], size[1]].into() }
}

fn no_fit(name: &str, window: Window, input: [usize; 2]) -> BuildError {
    BuildError::Window { node: name.to_owned(), kernel: window.kernel, input, padding: window.padding }
}

fn pool(name: &str, x: Var, window: Window, out_size: Option<[usize; 2]>) -> Result<Pool, BuildError> {
    let in_size = [x.dim(2), x.dim(3)];
    let out_size = out_size.ok_or_else(|| no_fit(name, window, in_size))?;
    Ok(Pool { planes: x.dim(0) * x.dim(1), in_size, out_size, window })
}

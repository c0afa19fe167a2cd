//! The layers. Each takes the extents of its input from the tensor that it is given.

use elbowroom_graph::init::Init;
use elbowroom_graph::layers::{ConvLayer, EPSILON, Part, WeightInit};
use elbowroom_graph::op::{Function, OpKind, Window};
use elbowroom_graph::{BuildError, Builder, Shape, Var};

use super::{Layer, expect_extents, join, refuse};

/// `x·wᵀ + b` over the last extent of `x [batch, …, inputs]`: `[batch, …, outputs]`. Parameters: `weight`, `bias`.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    outputs: usize,
    bias: bool,
    init: WeightInit,
}

impl Linear {
    /// A layer with this many outputs, a bias and PyTorch's initial values.
    pub fn new(outputs: usize) -> Self {
        Self { outputs, bias: true, init: WeightInit::FanInUniform }
    }

    /// Leaves the bias out.
    pub fn no_bias(self) -> Self {
        Self { bias: false, ..self }
    }

    /// Sets the initial values.
    pub fn init(self, init: WeightInit) -> Self {
        Self { init, ..self }
    }
}

impl Layer for Linear {
    fn forward(&self, b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
        let mut extents = x.shape.dims().to_vec();
        let Some(last) = extents.last_mut().filter(|_| x.shape.dims().len() > 1) else {
            return Err(refuse(
                name,
                format!("a linear layer takes [batch, …, inputs], and this is {}", x.shape),
            ));
        };
        let weights = b.linear_weights(name, [*last, self.outputs], self.bias, self.init);
        *last = self.outputs;
        let y = b.linear(name, x, weights)?;
        Ok(Var { id: y.id, shape: Shape::new(&extents) })
    }
}

/// A convolution of `x [batch, channels, height, width]`. Parameters: `weight`, `bias`.
#[derive(Clone, Copy, Debug)]
pub struct Conv2d {
    layer: ConvLayer,
}

impl Conv2d {
    /// A convolution with this many output channels and a square window: stride 1, no padding, a bias, PyTorch's initial values.
    pub fn new(channels: usize, kernel: usize) -> Self {
        let window = Window::square(kernel, 1, 0);
        Self { layer: ConvLayer { channels, window, bias: true, init: WeightInit::FanInUniform } }
    }

    /// Sets the window with its stride and padding, which need not be square.
    pub fn window(mut self, window: Window) -> Self {
        self.layer.window = window;
        self
    }

    /// Sets the stride in both directions.
    pub fn stride(mut self, stride: usize) -> Self {
        self.layer.window.stride = [stride; 2];
        self
    }

    /// Sets the rows and columns of zeros on every side.
    pub fn padding(mut self, padding: usize) -> Self {
        self.layer.window.padding = [padding; 2];
        self
    }

    /// Leaves the bias out, as before a batch normalization.
    pub fn no_bias(mut self) -> Self {
        self.layer.bias = false;
        self
    }

    /// Sets the initial values.
    pub fn init(mut self, init: WeightInit) -> Self {
        self.layer.init = init;
        self
    }
}

impl Layer for Conv2d {
    fn forward(&self, b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
        expect_images(name, "a convolution", x, self.layer.window)?;
        b.conv2d(name, x, self.layer)
    }
}

/// A transposed convolution of `x [batch, channels, height, width]`, which enlarges images. Parameters: `weight`, `bias`.
#[derive(Clone, Copy, Debug)]
pub struct ConvTranspose2d {
    layer: ConvLayer,
}

impl ConvTranspose2d {
    /// A layer with this many output channels that enlarges images this many times, without overlap.
    pub fn new(channels: usize, factor: usize) -> Self {
        let window = Window::square(factor, factor, 0);
        Self { layer: ConvLayer { channels, window, bias: true, init: WeightInit::FanInUniform } }
    }

    /// Sets the window with its stride and padding.
    pub fn window(mut self, window: Window) -> Self {
        self.layer.window = window;
        self
    }
}

impl Layer for ConvTranspose2d {
    fn forward(&self, b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
        expect_images(name, "a transposed convolution", x, self.layer.window)?;
        b.conv_transpose2d(name, x, self.layer)
    }
}

/// Batch normalization of `x [batch, channels, …]`. Parameters: `weight`, `bias`; statistics: `running_mean`, `running_var`.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchNorm;

impl Layer for BatchNorm {
    fn forward(&self, b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
        if x.shape.dims().len() < 2 {
            return Err(refuse(
                name,
                format!("a batch normalization takes [batch, channels, …], and this is {}", x.shape),
            ));
        }
        b.batch_norm(name, x, EPSILON)
    }
}

/// Layer normalization over the last extent. Parameters: `weight`, `bias`.
#[derive(Clone, Copy, Debug, Default)]
pub struct LayerNorm;

impl Layer for LayerNorm {
    fn forward(&self, b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
        b.layer_norm(name, x)
    }
}

/// An elementwise function: [`Activation::RELU`], [`GELU`](Self::GELU), [`TANH`](Self::TANH), [`SIGMOID`](Self::SIGMOID).
#[derive(Clone, Copy, Debug)]
pub struct Activation(pub Function);

impl Activation {
    /// `max(x, 0)`
    pub const RELU: Self = Self(Function::Relu);
    /// GPT-2's form of the Gaussian error linear unit.
    pub const GELU: Self = Self(Function::Gelu);
    /// `tanh x`
    pub const TANH: Self = Self(Function::Tanh);
    /// `1 / (1 + e^−x)`
    pub const SIGMOID: Self = Self(Function::Sigmoid);
}

impl Layer for Activation {
    fn forward(&self, b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
        b.map(name, x, self.0)
    }
}

/// Dropout with a probability in `0..1`; the identity outside of training.
#[derive(Clone, Copy, Debug)]
pub struct Dropout(pub f32);

impl Layer for Dropout {
    fn forward(&self, b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
        b.dropout(name, x, self.0)
    }
}

/// What a pooling takes from each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pooled {
    Maximum,
    Average,
    /// The average over the whole image.
    All,
}

/// Pooling of `x [batch, channels, height, width]`.
#[derive(Clone, Copy, Debug)]
pub struct Pool2d {
    window: Window,
    pooled: Pooled,
}

impl Pool2d {
    /// The maximum of square windows side by side.
    pub fn maximum(kernel: usize) -> Self {
        Self { window: Window::square(kernel, kernel, 0), pooled: Pooled::Maximum }
    }

    /// The average of square windows side by side; padding counts in the divisor.
    pub fn average(kernel: usize) -> Self {
        Self { window: Window::square(kernel, kernel, 0), pooled: Pooled::Average }
    }

    /// The average of every channel: `[batch, channels, 1, 1]`.
    pub fn global_average() -> Self {
        Self { window: Window::square(1, 1, 0), pooled: Pooled::All }
    }

    /// Sets the window with its stride and padding.
    pub fn window(self, window: Window) -> Self {
        Self { window, ..self }
    }
}

impl Layer for Pool2d {
    fn forward(&self, b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
        expect_images(name, "a pooling", x, self.window)?;
        match self.pooled {
            Pooled::Maximum => b.max_pool(name, x, self.window),
            Pooled::Average => b.average_pool(name, x, self.window),
            Pooled::All => b.global_average_pool(name, x),
        }
    }
}

/// Merges all extents but the first: `[batch, …]` becomes `[batch, numbers]`. Computes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flatten;

impl Layer for Flatten {
    fn forward(&self, _: &mut Builder, _: &str, x: Var) -> Result<Var, BuildError> {
        Ok(x.rows())
    }
}

/// The rows of a table for tokens `[batch, length]`: `[batch, length, width]`. Parameter: `weight [vocabulary, width]`.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    vocabulary: usize,
    width: usize,
    std: f32,
}

impl Embedding {
    /// A table for this many tokens with rows of this width; its initial values are normal with a deviation of 1, as in PyTorch.
    pub fn new(vocabulary: usize, width: usize) -> Self {
        Self { vocabulary, width, std: 1.0 }
    }

    /// Sets the standard deviation of the initial values.
    pub fn std(self, std: f32) -> Self {
        Self { std, ..self }
    }
}

impl Layer for Embedding {
    fn forward(&self, b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
        expect_extents(name, "an embedding", x, "[batch, length]", 2)?;
        let init = Init::Normal { std: self.std, stream: b.init_stream() };
        let table = b.weight(format!("{name}.weight"), [self.vocabulary, self.width], init);
        let y = b.embedding(name, x, table, Part::ALL)?;
        Ok(Var { id: y.id, shape: [x.dim(0), x.dim(1), self.width].into() })
    }
}

/// Adds a learned row to every position of `x [batch, length, width]`. Parameter: `weight [length, width]`.
#[derive(Clone, Copy, Debug)]
pub struct Positions {
    /// Standard deviation of the initial values.
    pub std: f32,
}

impl Layer for Positions {
    fn forward(&self, b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
        expect_extents(name, "positions", x, "[batch, length, width]", 3)?;
        let init = Init::Normal { std: self.std, stream: b.init_stream() };
        let rows = b.weight(format!("{name}.weight"), [x.dim(1), x.dim(2)], init);
        let kind = OpKind::AddRow { outer: x.dim(0), inner: x.dim(1) * x.dim(2) };
        let y = b.push1(name, kind, &[x.id, rows.id])?;
        Ok(Var { id: y.id, shape: x.shape })
    }
}

/// Self-attention over `x [batch, tokens, width]` with its projections. Parameters: `qkv.weight`, `qkv.bias`, `out.weight`, `out.bias`.
#[derive(Clone, Copy, Debug)]
pub struct SelfAttention {
    heads: usize,
    causal: bool,
}

impl SelfAttention {
    /// Attention with this many heads, of which the width is a multiple.
    pub fn new(heads: usize) -> Self {
        Self { heads, causal: false }
    }

    /// Lets a token see only those before it and itself.
    pub fn causal(self) -> Self {
        Self { causal: true, ..self }
    }
}

impl Layer for SelfAttention {
    fn forward(&self, b: &mut Builder, name: &str, x: Var) -> Result<Var, BuildError> {
        expect_extents(name, "attention", x, "[batch, tokens, width]", 3)?;
        let width = x.dim(2);
        if self.heads == 0 || !width.is_multiple_of(self.heads) {
            let why = format!("a width of {width} cannot be divided among {} heads", self.heads);
            return Err(refuse(name, why));
        }
        let qkv = Linear::new(3 * width).forward(b, &join(name, "qkv"), x)?;
        let y = b.attention(name, qkv, self.heads, self.causal)?;
        Linear::new(width).forward(b, &join(name, "out"), Var { id: y.id, shape: x.shape })
    }
}

/// Refuses what is no batch of images, and windows that no loop could move.
fn expect_images(name: &str, what: &str, x: Var, window: Window) -> Result<(), BuildError> {
    if window.stride.contains(&0) || window.kernel.contains(&0) {
        return Err(refuse(name, format!("{what} needs a window and a stride of at least 1")));
    }
    expect_extents(name, what, x, "[batch, channels, height, width]", 4)
}

//! What ops have besides extents: elementwise functions, the masks of dropout, and the parameters of updates.

use crate::philox::philox;

/// An elementwise function of one argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// `max(x, 0)`; derivative from `y`: `y > 0 ? 1 : 0`.
    Relu,
    /// `½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`, the form of GPT-2; derivative from `x`.
    Gelu,
    /// `tanh x`; derivative from `y`: `1 − y²`.
    Tanh,
    /// `1 / (1 + e^−x)`; derivative from `y`: `y·(1 − y)`.
    Sigmoid,
    /// `min(max(x, 0), 6)`; derivative from `y`: `0 < y < 6 ? 1 : 0`.
    Relu6,
    /// `x / (1 + e^−x)`, also called swish; derivative from `x`.
    Silu,
    /// `½·x·(1 + erf(x / √2))`, the form of BERT, of vision transformers and of ConvNeXt; derivative from `x`.
    GeluExact,
    /// `min(max(x, least), most)`; derivative from `y`: `least < y < most ? 1 : 0`.
    Clamp {
        /// The smallest result.
        least: f32,
        /// The largest result.
        most: f32,
    },
    /// `x > 0 ? x : α·(eˣ − 1)`; derivative from `y`: `y > 0 ? 1 : y + α` (Clevert et al., 2016).
    Elu {
        /// α, above zero.
        alpha: f32,
    },
    /// `min(max(x + 3, 0), 6) / 6`; derivative from `y`: `0 < y < 1 ? ⅙ : 0` (Howard et al., 2019, Section 5.2).
    HardSigmoid,
    /// `x · min(max(x + 3, 0), 6) / 6`; derivative from `x`: 0 below −3, 1 above 3, `x / 3 + ½` from −3 to 3 (Howard et al., 2019).
    HardSwish,
    /// `x > 0 ? x : slope · x`; derivative from `y`: `y > 0 ? 1 : slope` (Maas et al., 2013).
    LeakyRelu {
        /// The derivative where x is negative, which is not negative itself.
        slope: f32,
    },
    /// `|x|`; derivative from `x`: its sign, 0 at 0.
    Abs,
    /// `eˣ`; derivative from `y`: `y`.
    Exp,
    /// `ln x`; derivative from `x`: `1 / x`.
    Log,
    /// `1 / x`; derivative from `y`: `−y²`.
    Reciprocal,
    /// `ln(1 + eˣ)`; derivative from `x`: `1 / (1 + e^−x)`.
    Softplus,
    /// `√x`; derivative from `y`: `½ / y`, but 0 at 0, so that the norm of zeros has a gradient.
    Sqrt,
    /// `x > bound ? 1 : 0`; its derivative is 0.
    Step {
        /// The largest x with the value 0.
        bound: f32,
    },
}

impl Function {
    /// Whether the derivative is computed from `y`; otherwise it is computed from `x`.
    pub const fn grad_from_output(self) -> bool {
        !matches!(
            self,
            Self::Abs
                | Self::Gelu
                | Self::GeluExact
                | Self::HardSwish
                | Self::Log
                | Self::Silu
                | Self::Softplus
        )
    }
}

/// A random mask: element `i` is dropped when `u(i) < threshold`, where `u(i)` is word `i mod 4` of
/// [`philox`]`(counter = [i / 4, stream, iteration mod 2³², iteration / 2³²], key = [seed mod 2³², seed / 2³²])`.
/// Seed and iteration come from the run; [`dropped`](Mask::dropped) computes four at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mask {
    /// Number of elements.
    pub len: usize,
    /// Probability of being dropped times 2³², rounded down.
    pub threshold: u32,
    /// `1 / (1 − probability)`, by which the kept elements are multiplied.
    pub scale: f32,
    /// Which random sequence: different for each dropout of a graph.
    pub stream: u32,
}

impl Mask {
    /// The mask of a dropout with this probability, which lies in `0..1`.
    pub fn new(len: usize, probability: f32, stream: u32) -> Self {
        let threshold = (f64::from(probability) * 2f64.powi(32)) as u32;
        Self { len, threshold, scale: 1.0 / (1.0 - probability), stream }
    }

    /// Whether elements `4·block .. 4·block + 4` are dropped.
    pub fn dropped(&self, block: u32, seed: u64, iteration: u64) -> [bool; 4] {
        philox(
            [block, self.stream, iteration as u32, (iteration >> 32) as u32],
            [seed as u32, (seed >> 32) as u32],
        )
        .map(|word| word < self.threshold)
    }
}

/// Stochastic gradient descent with momentum and weight decay, as PyTorch's `SGD` with dampening 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// η, times the [rate](crate::OpKind::SgdStep) of the iteration.
    pub learning_rate: f32,
    /// µ; at 0 there is no momentum tensor.
    pub momentum: f32,
    /// λ, added to the gradient: `g + λ·w`.
    pub weight_decay: f32,
}

/// Adam (Kingma and Ba, 2015, Algorithm 1), with decoupled weight decay (Loshchilov and Hutter, 2019).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// η
    pub learning_rate: f32,
    /// Decay rates of the first and second moment.
    pub betas: [f32; 2],
    /// ε, added to the root.
    pub epsilon: f32,
    /// λ: the weight is first multiplied by `1 − η·λ`. Zero gives plain Adam.
    pub weight_decay: f32,
}

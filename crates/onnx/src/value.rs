//! What an import knows of every result: numbers, weights of the file, tensors of the graph, and expressions that become one op with what follows.

use elbowroom_graph::op::Function;
use elbowroom_ir::TensorId;

use crate::constant::Constant;
use crate::view::View;

/// A result of a node, or an input of the network.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Known numbers.
    Constant(Constant),
    /// A tensor of the file that no op has read yet.
    Weight(Stored),
    /// A tensor of the graph.
    Tensor(Tensor),
    /// An expression that is no op yet.
    Pending(Pending),
    /// Tensors one after another.
    Sequence(Vec<Tensor>),
}

/// A tensor of the file, with its axes exchanged or not.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub name: String,
    /// Extents as the file has them, or as a reshape gives them.
    pub dims: Vec<usize>,
    /// Whether rows and columns are exchanged.
    pub transposed: bool,
    /// Its element, if it has one alone.
    pub single: Option<f64>,
    /// Whether training leaves it as it is.
    pub fixed: bool,
}

impl Stored {
    /// Extents as its readers see them.
    pub fn seen(&self) -> Vec<usize> {
        let mut dims = self.dims.clone();
        if self.transposed {
            dims.reverse();
        }
        dims
    }
}

/// A tensor of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub id: TensorId,
    pub view: View,
    /// Whether its elements are classes or tokens.
    pub classes: bool,
}

impl Tensor {
    pub fn dims(&self) -> Vec<usize> {
        self.view.dims()
    }
}

/// `factor` with the probability `kept`, and zero otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Mask {
    pub dims: Vec<usize>,
    pub kept: f64,
    pub factor: f64,
}

/// An expression that is no op yet.
#[derive(Clone, Debug, PartialEq)]
pub enum Pending {
    /// `factor · x`
    Scaled { x: Tensor, factor: f64 },
    /// `factor · x³`
    Cube { x: Tensor, factor: f64 },
    /// `factor · (x + 0.044715 · x³)`
    GeluArgument { x: Tensor, factor: f64 },
    /// What GELU adds to one: `erf(x / √2)`, or in its other form `tanh(√(2/π) · (x + 0.044715 · x³))`.
    GeluCurve { x: Tensor, form: Function },
    /// `factor · (1 + curve)`
    GeluGate { x: Tensor, form: Function, factor: f64 },
    /// `factor · gelu(x)`
    ScaledGelu { x: Tensor, form: Function, factor: f64 },
    /// `σ(x)`
    Sigmoid { x: Tensor },
    /// Whether `x > bound`, or whether it is not.
    Compared { x: Tensor, bound: f32, is_above: bool },
    /// Random numbers from 0 to 1.
    Random { dims: Vec<usize> },
    /// What random numbers keep.
    Mask(Mask),
    /// `x·wᵀ`, which may get a bias.
    Product { x: Tensor, weight: Stored },
    /// Scores of attention.
    Scores(Scores),
}

/// `factor · q·kᵀ`, plus the causal mask if `causal`, and of that the softmax over the keys if `normalized`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    pub q: Tensor,
    pub k: Tensor,
    pub factor: f64,
    pub causal: bool,
    pub normalized: bool,
}

impl Pending {
    /// Extents of its result.
    pub fn dims(&self) -> Vec<usize> {
        let with_last = |mut dims: Vec<usize>, last: Option<usize>| {
            dims.pop();
            dims.extend(last);
            dims
        };
        match self {
            Self::Scaled { x, .. }
            | Self::Cube { x, .. }
            | Self::GeluArgument { x, .. }
            | Self::GeluCurve { x, .. }
            | Self::GeluGate { x, .. }
            | Self::ScaledGelu { x, .. }
            | Self::Compared { x, .. }
            | Self::Sigmoid { x } => x.dims(),
            Self::Random { dims } | Self::Mask(Mask { dims, .. }) => dims.clone(),
            Self::Product { x, weight } => with_last(x.dims(), weight.seen().last().copied()),
            Self::Scores(Scores { q, k, .. }) => with_last(q.dims(), k.dims().iter().nth_back(1).copied()),
        }
    }

    /// What it is, for people.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Scaled { .. } => "a scaled tensor",
            Self::Cube { .. } => "a power",
            Self::GeluArgument { .. }
            | Self::GeluCurve { .. }
            | Self::GeluGate { .. }
            | Self::ScaledGelu { .. } => "a part of GELU",
            Self::Sigmoid { .. } => "a sigmoid",
            Self::Compared { .. } => "a comparison",
            Self::Random { .. } => "random numbers that nothing is compared with",
            Self::Mask(_) => "a random mask that multiplies no tensor",
            Self::Product { .. } => "a product with a weight",
            Self::Scores(_) => "a product of two tensors",
        }
    }
}

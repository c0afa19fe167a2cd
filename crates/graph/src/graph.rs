//! A graph: the operations of one iteration in their order, the tensors between them, and what persists.

use elbowroom_ir::trace::Phase;
use elbowroom_ir::{Bytes, OpId, StorageId, Table, TensorId};

use crate::init::Init;
use crate::op::OpKind;
use crate::shape::{DType, Shape};

/// One iteration of one network at fixed shapes. Node `i` is op `i` of [`Graph::trace`], tensor `i` is its tensor `i`, and so for
/// storages: the numbering is the same.
///
/// Made by [`Builder`](crate::Builder) only, which keeps this true: nodes read tensors made by earlier nodes or persistent ones, and
/// their operands have the shapes and types that their kind says.
#[derive(Clone, Debug)]
pub struct Graph {
    /// For people: `resnet18 batch 64`.
    pub name: String,
    /// Operations, in an order in which they can run.
    pub nodes: Table<OpId, Node>,
    /// Tensors.
    pub values: Table<TensorId, Value>,
    /// Bytes of every storage.
    pub storages: Table<StorageId, Bytes>,
    /// Parameters, optimizer state and running statistics.
    pub persistent: Vec<Parameter>,
    /// What the host gives each iteration.
    pub inputs: Vec<InputSpec>,
    /// What the host gets each iteration.
    pub outputs: Vec<OutputSpec>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// For people: `layer1.0.conv1`, `layer1.0.conv1.grad-weight`.
    pub name: String,
    /// What it computes.
    pub kind: OpKind,
    /// Tensors read, in the order that the kind says.
    pub inputs: Vec<TensorId>,
    /// Tensors made, in the order that the kind says.
    pub outputs: Vec<TensorId>,
    /// Forward, backward or update.
    pub phase: Phase,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// For people.
    pub name: String,
    /// Its extents, as its producer sees them; a reader may see others with as many elements.
    pub shape: Shape,
    /// The type of its elements.
    pub dtype: DType,
    /// The bytes that hold it: its own, except that an output which mutates an input lies where that input lay.
    pub storage: StorageId,
}

impl Value {
    /// Its size.
    pub fn bytes(&self) -> Bytes {
        self.shape.bytes(self.dtype)
    }
}

/// A tensor that outlives the iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name in checkpoints: `layer1.0.conv1.weight`, `layer1.0.conv1.weight.momentum`, `bn1.running_mean`.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// The tensor when the iteration begins.
    pub begin: TensorId,
    /// The tensor when it ends; `begin` itself if nothing changes it.
    pub end: TensorId,
    /// Its tensor before the first iteration.
    pub init: Init,
}

/// What a persistent tensor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Trained.
    Weight,
    /// Kept by the optimizer beside a weight.
    Optimizer,
    /// A running statistic.
    Statistic,
}

/// A tensor that the host gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSpec {
    /// Its name: `images`, `labels`, `tokens`.
    pub name: String,
    /// The tensor.
    pub value: TensorId,
    /// What it may contain.
    pub content: Content,
}

/// What an input may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// `f32`, about zero mean and unit variance: images.
    Real,
    /// `i32` in `0..classes`: labels and tokens.
    Class {
        /// Number of classes.
        classes: usize,
    },
}

/// A tensor that the host gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputSpec {
    /// Its name: `loss`, `logits`.
    pub name: String,
    /// The tensor.
    pub value: TensorId,
}

//! A graph: the ops of one iteration in order, the tensors between them, and the persistent tensors.

use std::ops::Range;

use elbowroom_ir::trace::Phase;
use elbowroom_ir::{Bytes, OpId, StorageId, Table, TensorId};

use crate::builder::BuildError;
use crate::init::Init;
use crate::op::OpKind;
use crate::shape::{DType, Shape};

/// One iteration of one network at fixed shapes. Nodes, tensors and storages have the same numbers as the ops, tensors and storages of
/// [`Graph::trace`].
///
/// Only a [`Builder`](crate::Builder) makes graphs. It guarantees that nodes read tensors of earlier nodes or persistent ones, and that
/// operands have the shapes and types that their kind requires.
#[derive(Clone, Debug)]
pub struct Graph {
    /// For people: `resnet18 batch 64`.
    pub name: String,
    /// Operations, in an order in which they can run.
    pub nodes: Table<OpId, Node>,
    /// Tensors.
    pub tensors: Table<TensorId, GraphTensor>,
    /// Bytes of every storage.
    pub storages: Table<StorageId, Bytes>,
    /// Parameters, optimizer state and running statistics.
    pub persistent: Vec<Parameter>,
    /// Tensors that the host provides in each iteration.
    pub inputs: Vec<InputSpec>,
    /// Tensors that the host receives in each iteration.
    pub outputs: Vec<OutputSpec>,
}

impl Graph {
    /// The persistent tensors as users and files know them, those in tiles as one, in order.
    pub fn wholes(&self) -> Vec<Whole> {
        let mut wholes: Vec<Whole> = Vec::new();
        for (position, parameter) in self.persistent.iter().enumerate() {
            let GraphTensor { shape, dtype, .. } = self.tensors[parameter.begin];
            let (name, shape, start) = match &parameter.tile {
                Some(tile) => (&tile.of, tile.shape, tile.start),
                None => (&parameter.name, shape, 0),
            };
            match wholes.last_mut() {
                Some(last) if start > 0 && last.name == *name => last.tiles.end = position + 1,
                _ => wholes.push(Whole {
                    name: name.clone(),
                    role: parameter.role,
                    shape,
                    dtype,
                    tiles: position..position + 1,
                }),
            }
        }
        wholes
    }

    /// The same graph with the persistent tensors of another one, in their order, so that both can run in one session. Persistent tensors
    /// that this graph does not use stay as they are.
    ///
    /// # Errors
    /// [`BuildError::Extents`] if this graph has a persistent tensor that `other` lacks or has in another shape.
    pub fn with_persistent_of(mut self, other: &Self) -> Result<Self, BuildError> {
        let mut own = std::mem::take(&mut self.persistent);
        for theirs in &other.persistent {
            let tensor = &other.tensors[theirs.begin];
            let found = own.iter().position(|parameter| {
                parameter.name == theirs.name && self.tensors[parameter.begin].shape == tensor.shape
            });
            let parameter = match found {
                Some(at) => own.swap_remove(at),
                None => {
                    let storage = self.storages.push(other.storages[tensor.storage]);
                    let id = self.tensors.push(GraphTensor { storage, ..tensor.clone() });
                    Parameter { begin: id, end: id, ..theirs.clone() }
                }
            };
            self.persistent.push(parameter);
        }
        match own.first() {
            None => Ok(self),
            Some(Parameter { name, begin, .. }) => Err(BuildError::Extents {
                node: name.clone(),
                why: format!("{} has no such parameter of shape {}", other.name, self.tensors[*begin].shape),
            }),
        }
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// For people: `layer1.0.conv1`, `layer1.0.conv1.grad-weight`.
    pub name: String,
    /// What it computes.
    pub kind: OpKind,
    /// Tensors read, in the order that the kind defines.
    pub inputs: Vec<TensorId>,
    /// Tensors written, in the order that the kind defines.
    pub outputs: Vec<TensorId>,
    /// Forward, backward or update.
    pub phase: Phase,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphTensor {
    /// For people.
    pub name: String,
    /// Its extents, as its producer writes them; a reader may use others with the same number of elements.
    pub shape: Shape,
    /// The type of its elements.
    pub dtype: DType,
    /// Its storage: its own, except that an output which mutates an input shares the input's.
    pub storage: StorageId,
}

impl GraphTensor {
    /// Its size, in bytes.
    pub fn bytes(&self) -> Bytes {
        self.shape.bytes(self.dtype)
    }
}

/// A tensor that outlives the iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name in checkpoints: `layer1.0.conv1.weight`, `layer1.0.conv1.weight.momentum`, `bn1.running_mean`.
    pub name: String,
    /// Its purpose.
    pub role: Role,
    /// The tensor when the iteration begins.
    pub begin: TensorId,
    /// The tensor when it ends; `begin` itself if nothing changes it.
    pub end: TensorId,
    /// Its contents before the first iteration; of a tile, those of the whole tensor.
    pub init: Init,
    /// What it is a tile of, if it is one.
    pub tile: Option<Tile>,
}

impl Parameter {
    /// Writes its elements before the first iteration, from `start` on, into `part`. Compiled along with its caller.
    #[inline(always)]
    pub fn fill(&self, seed: u64, start: usize, part: &mut [f32]) {
        self.init.fill(seed, self.tile.as_ref().map_or(0, |tile| tile.start) + start, part);
    }
}

/// A persistent tensor that holds some rows of a larger one, by which users and files know it ([`Graph::tiled`]). The tiles of a tensor
/// follow each other in [`Graph::persistent`], from its first row to its last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Name of the larger tensor.
    pub of: String,
    /// Extents of the larger tensor.
    pub shape: Shape,
    /// Elements of the larger tensor before the tile.
    pub start: usize,
}

/// A persistent tensor as users and files know it, in one piece or in tiles.
#[derive(Clone, Debug, PartialEq)]
pub struct Whole {
    /// Its name in checkpoints.
    pub name: String,
    /// Its purpose.
    pub role: Role,
    /// Its extents.
    pub shape: Shape,
    /// The type of its elements.
    pub dtype: DType,
    /// Positions in [`Graph::persistent`]: of itself, or of its tiles.
    pub tiles: Range<usize>,
}

impl Whole {
    /// Its size, in bytes.
    pub fn bytes(&self) -> usize {
        self.shape.len() * self.dtype.size()
    }
}

/// The purpose of a persistent tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Trained.
    Weight,
    /// Optimizer state that belongs to a weight.
    Optimizer,
    /// A running statistic.
    Statistic,
}

/// A tensor that the host provides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSpec {
    /// Its name: `images`, `labels`, `tokens`.
    pub name: String,
    /// The tensor.
    pub tensor: TensorId,
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

/// A tensor that the host receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputSpec {
    /// Its name: `loss`, `logits`.
    pub name: String,
    /// The tensor.
    pub tensor: TensorId,
}

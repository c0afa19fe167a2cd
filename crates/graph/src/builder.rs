//! Builds a graph op by op and checks operands against the op set's signatures.
//!
//! Layers (convolutions with their weights, normalizations with their statistics) are in [`crate::layers`].

use elbowroom_ir::trace::Phase;
use elbowroom_ir::{Bytes, Id, OpId, StorageId, Table, TensorId};

use crate::graph::{Content, Graph, GraphTensor, InputSpec, Node, OutputSpec, Parameter, Role};
use crate::init::Init;
use crate::op::OpKind;
use crate::shape::{DType, Shape};

/// A tensor, with a shape that may differ from its producer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Var {
    /// The tensor.
    pub id: TensorId,
    /// The extents under which it is read.
    pub shape: Shape,
}

impl Var {
    /// The tensor as rows: the first extent is kept, the others are merged.
    pub fn rows(self) -> Self {
        let rows = self.shape.dims().first().copied().unwrap_or(1);
        Self { id: self.id, shape: [rows, self.shape.len() / rows.max(1)].into() }
    }

    /// Extent of a dimension; 1 past the last.
    pub fn dim(&self, axis: usize) -> usize {
        self.shape.dims().get(axis).copied().unwrap_or(1)
    }
}

/// Why an op cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// An operation has more or fewer operands than its kind says.
    #[error("`{node}` is a {kind} with {found} inputs, but it takes {expected}")]
    Arity {
        /// The operation.
        node: String,
        /// The name of its kind.
        kind: &'static str,
        /// Inputs it takes.
        expected: usize,
        /// Inputs it was given.
        found: usize,
    },
    /// An operand has the wrong number or type of elements.
    #[error(
        "`{node}` cannot read `{value}` as its input {position}: it is {found}, and this takes {expected}"
    )]
    Operand {
        /// The operation.
        node: String,
        /// Which of its inputs.
        position: usize,
        /// The tensor.
        value: String,
        /// Elements and type of the tensor.
        found: String,
        /// Elements and type that the op requires.
        expected: String,
    },
    /// A tensor was overwritten in place before this read.
    #[error("`{node}` reads `{value}`, which was overwritten before")]
    Overwritten {
        /// The operation.
        node: String,
        /// The tensor.
        value: String,
    },
    /// A window is larger than its padded input.
    #[error(
        "`{node}`: a window of {kernel:?} does not fit into {input:?} with padding {padding:?}; the images are too small for this network"
    )]
    Window {
        /// The operation.
        node: String,
        /// Height and width of the window.
        kernel: [usize; 2],
        /// Height and width of the input.
        input: [usize; 2],
        /// Rows and columns of padding on each side.
        padding: [usize; 2],
    },
    /// Extents are inconsistent.
    #[error("`{node}`: {why}")]
    Extents {
        /// The operation.
        node: String,
        /// What is wrong.
        why: String,
    },
    /// A gradient is required through an op that has no derivative.
    #[error("`{node}` is a {kind}, which has no derivative")]
    NotDifferentiable {
        /// The operation.
        node: String,
        /// The name of its kind.
        kind: &'static str,
    },
}

/// The purpose of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Forward, backward and update: batch statistics and active dropout.
    Training,
    /// Forward only: running statistics, no dropout, no changes to parameters.
    Inference,
    /// As inference, with labels: the sum of the losses and the number of rows that are classified correctly.
    Evaluation,
}

/// What the names of a part of the batch end in: nothing for the first.
pub(crate) fn part_suffix(part: usize) -> String {
    if part == 0 { String::new() } else { format!(".part{part}") }
}

/// A graph under construction.
#[derive(Debug)]
pub struct Builder {
    pub(crate) graph: Graph,
    pub(crate) phase: Phase,
    mode: Mode,
    /// The current tensor of every storage.
    holds: Table<StorageId, TensorId>,
    /// Which persistent tensor a storage holds, if any.
    owner: Vec<Option<usize>>,
    masks: u32,
    /// In evaluation, the number of correct rows of every loss so far.
    pub(crate) hits: Vec<Var>,
}

impl Builder {
    /// An empty graph; the name is for people.
    pub fn new(name: impl Into<String>, mode: Mode) -> Self {
        Self {
            graph: Graph {
                name: name.into(),
                nodes: Table::new(),
                tensors: Table::new(),
                storages: Table::new(),
                persistent: Vec::new(),
                inputs: Vec::new(),
                outputs: Vec::new(),
            },
            phase: Phase::Forward,
            mode,
            holds: Table::new(),
            owner: Vec::new(),
            masks: 0,
            hits: Vec::new(),
        }
    }

    /// The purpose of the graph.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Adds a tensor that the host provides in every iteration. Inputs of one name are parts of one batch; the ops of all but the first are
    /// named `NAME.part1` and so on.
    pub fn input(&mut self, name: &str, shape: impl Into<Shape>, content: Content) -> Var {
        let shape = shape.into();
        let dtype = match content {
            Content::Real => DType::F32,
            Content::Class { .. } => DType::I32,
        };
        let part = self.graph.inputs.iter().filter(|input| input.name == name).count();
        let own = format!("{name}{}", part_suffix(part));
        let tensor = self.fresh(own.clone(), shape, dtype);
        let slot = self.graph.inputs.len();
        self.graph.inputs.push(InputSpec { name: name.to_owned(), tensor, content });
        self.node(own, OpKind::Input { slot }, Vec::new(), vec![tensor]);
        Var { id: tensor, shape }
    }

    /// Passes a tensor to the host in every iteration.
    pub fn output(&mut self, name: &str, value: Var) {
        let slot = self.graph.outputs.len();
        self.graph.outputs.push(OutputSpec { name: name.to_owned(), tensor: value.id });
        self.node(format!("{name}.output"), OpKind::Output { slot }, vec![value.id], Vec::new());
    }

    /// Adds a persistent tensor.
    pub fn persistent(
        &mut self,
        name: impl Into<String>,
        shape: impl Into<Shape>,
        role: Role,
        init: Init,
    ) -> Var {
        let (name, shape) = (name.into(), shape.into());
        let id = self.fresh(name.clone(), shape, DType::F32);
        let storage = self.graph.tensors[id].storage;
        self.owner[storage.index()] = Some(self.graph.persistent.len());
        self.graph.persistent.push(Parameter { name, role, begin: id, end: id, init, tile: None });
        Var { id, shape }
    }

    /// A stream of random words that no other initial value of this graph uses.
    pub fn init_stream(&self) -> u32 {
        self.graph.persistent.len() as u32
    }

    /// A stream of random words that no other mask of this graph uses.
    pub(crate) fn mask_stream(&mut self) -> u32 {
        self.masks += 1;
        self.masks - 1
    }

    /// Appends an op and returns its outputs.
    ///
    /// # Errors
    /// An operand does not match the op's signature, or has been overwritten.
    pub fn push(
        &mut self,
        name: impl Into<String>,
        kind: OpKind,
        inputs: &[TensorId],
    ) -> Result<Vec<Var>, BuildError> {
        let name = name.into();
        let signature = kind.signature();
        if signature.inputs.len() != inputs.len() {
            let expected = signature.inputs.len();
            return Err(BuildError::Arity { node: name, kind: kind.name(), expected, found: inputs.len() });
        }
        for (position, (&id, &(size, dtype))) in inputs.iter().zip(&signature.inputs).enumerate() {
            let value = &self.graph.tensors[id];
            if value.dtype != dtype || !size.admits(value.shape.len()) {
                return Err(BuildError::Operand {
                    node: name,
                    position,
                    value: value.name.clone(),
                    found: format!("{} {:?}", value.shape, value.dtype),
                    expected: format!("{size:?} {dtype:?}"),
                });
            }
            if self.holds[value.storage] != id {
                return Err(BuildError::Overwritten { node: name, value: value.name.clone() });
            }
        }
        let mutations = kind.mutations();
        let suffixes = kind.output_suffixes();
        let mut outputs = Vec::with_capacity(signature.outputs.len());
        for (position, &(shape, dtype)) in signature.outputs.iter().enumerate() {
            let full = match suffixes.get(position) {
                Some(&suffix) if !suffix.is_empty() => format!("{name}.{suffix}"),
                _ => name.clone(),
            };
            let mutated = mutations.iter().find(|&&(_, output)| output == position);
            let id = match mutated {
                Some(&(input, _)) => self.successor(inputs[input]),
                None => self.fresh(full, shape, dtype),
            };
            outputs.push(Var { id, shape });
        }
        self.node(name, kind, inputs.to_vec(), outputs.iter().map(|output| output.id).collect());
        Ok(outputs)
    }

    /// Appends an op and returns its first output.
    pub fn push1(
        &mut self,
        name: impl Into<String>,
        kind: OpKind,
        inputs: &[TensorId],
    ) -> Result<Var, BuildError> {
        let name = name.into();
        let outputs = self.push(name.clone(), kind, inputs)?;
        outputs
            .first()
            .copied()
            .ok_or_else(|| BuildError::Extents { node: name, why: "it makes nothing".to_owned() })
    }

    /// The finished graph.
    pub(crate) fn finish(self) -> Graph {
        self.graph
    }

    /// Completes a graph for inference: passes these tensors to the host under these names.
    pub fn finish_inference(mut self, outputs: &[(&str, Var)]) -> Graph {
        for &(name, value) in outputs {
            self.output(name, value);
        }
        self.graph
    }

    fn node(&mut self, name: String, kind: OpKind, inputs: Vec<TensorId>, outputs: Vec<TensorId>) -> OpId {
        self.graph.nodes.push(Node { name, kind, inputs, outputs, phase: self.phase })
    }

    fn fresh(&mut self, name: String, shape: Shape, dtype: DType) -> TensorId {
        let storage = self.graph.storages.push(shape.bytes(dtype).max(Bytes(1)));
        let id = self.graph.tensors.push(GraphTensor { name, shape, dtype, storage });
        self.holds.push(id);
        self.owner.push(None);
        id
    }

    /// The tensor that overwrites `old` in place.
    fn successor(&mut self, old: TensorId) -> TensorId {
        let value = self.graph.tensors[old].clone();
        let storage = value.storage;
        let new = self.graph.tensors.push(value);
        self.holds[storage] = new;
        if let Some(owner) = self.owner[storage.index()] {
            self.graph.persistent[owner].end = new;
        }
        new
    }
}

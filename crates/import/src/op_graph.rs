//! Turns a graph of ops with one result each into a trace; shared by the formats of measured, Checkmate and chain-like graphs.

use std::collections::BTreeSet;

use elbowroom_ir::trace::{Again, Op, Phase, Storage, Tensor, TraceData, Work};
use elbowroom_ir::{Bytes, Nanos, OpId, TensorId};

/// One op with one result.
#[derive(Clone, Debug)]
pub struct OpNode {
    /// For people.
    pub name: String,
    /// The name of the operation; may be empty.
    pub kind: String,
    /// Forward or backward.
    pub phase: Phase,
    /// Size of the result; an op without bytes has no result tensor.
    pub bytes: u64,
    /// Workspace, in bytes.
    pub workspace: u64,
    /// Duration.
    pub nanos: Nanos,
    /// Indices of the nodes whose results it reads.
    pub reads: Vec<usize>,
}

/// The result of an op, or a tensor that no op writes. A result without bytes is no tensor of the trace, but an op that reads it
/// follows the op that makes it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Value {
    /// Its tensor; `None` without bytes.
    pub tensor: Option<TensorId>,
    /// The op that makes it.
    pub maker: Option<OpId>,
}

impl Value {
    /// A tensor that no op writes, or whose op does not matter because it has bytes.
    pub fn of(tensor: TensorId) -> Self {
        Self { tensor: Some(tensor), maker: None }
    }
}

/// What an op that reads these values has to follow in addition to the ops that write the tensors among them.
pub fn after(inputs: &[Value]) -> Vec<OpId> {
    let makers = |has_bytes: bool| {
        let values = inputs.iter().filter(move |value| value.tensor.is_some() == has_bytes);
        values.filter_map(|value| value.maker)
    };
    let read: BTreeSet<OpId> = makers(true).collect();
    makers(false).filter(|maker| !read.contains(maker)).collect::<BTreeSet<_>>().into_iter().collect()
}

/// A trace under construction. Op `k` is the `k`-th node added.
#[derive(Default)]
pub struct OpGraph {
    /// The trace's parts so far.
    pub data: TraceData,
    /// A duration for every op.
    pub nanos: Vec<Nanos>,
}

impl OpGraph {
    /// Adds a tensor of a size that is not zero.
    pub fn value(&mut self, name: String, bytes: u64) -> TensorId {
        let storage = self.data.storages.push(Storage { bytes: Bytes(bytes) });
        self.data.tensors.push(Tensor { name, storage })
    }

    /// Adds an op that may be recomputed, with its inputs and outputs.
    pub fn op(&mut self, node: &OpNode, inputs: &[Value], outputs: Vec<TensorId>) -> OpId {
        self.push(
            Op {
                name: node.name.clone(),
                kind: node.kind.clone(),
                phase: node.phase,
                again: Again::Pure,
                reads: inputs.iter().filter_map(|value| value.tensor).collect(),
                outputs,
                mutates: Vec::new(),
                may_reuse: Vec::new(),
                after: after(inputs),
                workspace: Bytes(node.workspace),
                work: Work::default(),
                line: String::new(),
            },
            node.nanos,
        )
    }

    /// Adds an op unchanged.
    pub fn push(&mut self, op: Op, nanos: Nanos) -> OpId {
        self.nanos.push(nanos);
        self.data.ops.push(op)
    }

    /// Adds nodes in an order in which every node follows its inputs; returns what each makes.
    pub fn nodes(&mut self, nodes: &[OpNode], order: &[usize]) -> Vec<Value> {
        let mut made = vec![Value::default(); nodes.len()];
        for &index in order {
            let node = &nodes[index];
            let inputs: Vec<Value> = node.reads.iter().map(|&n| made[n]).collect();
            let tensor = (node.bytes > 0).then(|| self.value(node.name.clone(), node.bytes));
            made[index] = Value { tensor, maker: Some(self.op(node, &inputs, tensor.into_iter().collect())) };
        }
        made
    }
}

/// An order in which every node follows its inputs, as close as possible to the preferred one; or a node on a cycle.
pub fn topological(nodes: &[OpNode], preferred: &[usize]) -> Result<Vec<usize>, usize> {
    let mut place = vec![usize::MAX; nodes.len()];
    preferred.iter().enumerate().for_each(|(p, &node)| place[node] = p);
    let mut waiting = vec![0usize; nodes.len()];
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        for &read in &node.reads {
            waiting[index] += 1;
            readers[read].push(index);
        }
    }
    let mut ready: BTreeSet<(usize, usize)> =
        (0..nodes.len()).filter(|&n| waiting[n] == 0).map(|n| (place[n], n)).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some((_, node)) = ready.pop_first() {
        order.push(node);
        for &reader in &readers[node] {
            waiting[reader] -= 1;
            if waiting[reader] == 0 {
                ready.insert((place[reader], reader));
            }
        }
    }
    if order.len() == nodes.len() {
        Ok(order)
    } else {
        Err((0..nodes.len()).find(|&n| waiting[n] > 0).unwrap_or_default())
    }
}

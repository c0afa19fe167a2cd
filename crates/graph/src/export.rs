//! Derives the trace of a graph: the same ops and tensors under the same numbers, reduced to what planners need.

use elbowroom_ir::trace::{Mutation, Op, Persistent, Reuse, Storage, Tensor, Trace, TraceData, TraceError};
use elbowroom_ir::{Bytes, OpId, Table};

use crate::graph::Graph;
use crate::op::Algorithm;

impl Graph {
    /// The trace of one iteration. `workspace` returns the bytes that the device's kernel for a node needs.
    ///
    /// # Errors
    /// The sum of sizes exceeds what a trace may hold.
    pub fn trace(&self, workspace: &dyn Fn(&Self, OpId) -> Bytes) -> Result<Trace, TraceError> {
        // The algorithm of a convolution is part of its op's kind, so a plan holds for one choice of algorithms.
        let ops: Table<OpId, Op> = self.nodes.ids().map(|id| self.op(id, workspace(self, id))).collect();
        let mut persistent: Vec<Persistent> =
            self.persistent.iter().map(|p| Persistent { begin: p.begin, end: p.end }).collect();
        persistent.sort_by_key(|pair| pair.begin);
        Trace::new(TraceData {
            name: self.name.clone(),
            ops,
            tensors: self
                .tensors
                .values()
                .map(|value| Tensor { name: value.name.clone(), storage: value.storage })
                .collect(),
            storages: self.storages.values().map(|&bytes| Storage { bytes }).collect(),
            persistent,
        })
    }

    fn op(&self, id: OpId, workspace: Bytes) -> Op {
        let node = &self.nodes[id];
        let kind = match node.kind.conv().map(|conv| conv.algorithm) {
            None | Some(Algorithm::Tiled) => node.kind.name().to_owned(),
            Some(algorithm) => format!("{}-{}", node.kind.name(), algorithm.name()),
        };
        Op {
            name: node.name.clone(),
            kind,
            phase: node.phase,
            again: node.kind.again(),
            reads: node.inputs.clone(),
            outputs: node.outputs.clone(),
            mutates: node
                .kind
                .mutations()
                .into_iter()
                .map(|(old, new)| Mutation { old: node.inputs[old], new: node.outputs[new] })
                .collect(),
            may_reuse: node
                .kind
                .reusable()
                .iter()
                .map(|reuse| Reuse { input: node.inputs[reuse.input], output: node.outputs[reuse.output] })
                .collect(),
            after: Vec::new(),
            workspace,
            work: self.work(id),
            line: String::new(),
        }
    }
}

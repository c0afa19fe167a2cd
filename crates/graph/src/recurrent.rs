//! Recurrent products: those that the steps of an LSTM add to the parts of a product over several steps.
//!
//! The sum of both has one gradient, and the gradients of all steps are joined for the product over several steps anyway. The gradients to the
//! weight and the bias of the recurrent product are then one product and one sum over all these rows instead of one for each step.

use std::collections::HashMap;

use elbowroom_ir::{Id, OpId};

use crate::graph::Graph;
use crate::op::{OpKind, Product};

/// The recurrent products of a graph.
#[derive(Debug, Default)]
pub(crate) struct Recurrent {
    /// For each op that splits a product over several steps, the recurrent products that belong to its parts.
    pub steps: HashMap<OpId, Vec<OpId>>,
    /// For each recurrent product, that op.
    pub split: HashMap<OpId, OpId>,
}

impl Recurrent {
    /// Finds those of the forward ops. A split whose operand needs no gradient is none of theirs.
    pub fn of(graph: &Graph, needed: &[bool]) -> Self {
        let mut producers = vec![None; graph.tensors.len()];
        let mut readers = vec![Vec::new(); graph.tensors.len()];
        for (id, node) in graph.nodes.iter() {
            node.outputs.iter().for_each(|output| producers[output.index()] = Some(id));
            node.inputs.iter().for_each(|input| readers[input.index()].push(id));
        }
        let mut found = Self::default();
        for (split, node) in graph.nodes.iter() {
            let OpKind::Split { outer: 1, .. } = node.kind else { continue };
            if !needed[node.inputs[0].index()] {
                continue;
            }
            let steps = node.outputs.iter().map(|part| {
                let [cell] = readers[part.index()][..] else { return None };
                let (cell, is_cell) =
                    (&graph.nodes[cell], matches!(graph.nodes[cell].kind, OpKind::LstmCell { .. }));
                let [from_input, from_state, _] = cell.inputs[..] else { return None };
                let alone = readers[from_state.index()].len() == 1;
                producers[from_state.index()].filter(|_| is_cell && from_input == *part && alone)
            });
            let Some(steps) = steps.collect::<Option<Vec<OpId>>>() else { continue };
            if graph.one_layer(&steps).is_some() && !steps.iter().any(|step| found.split.contains_key(step)) {
                found.split.extend(steps.iter().map(|&step| (step, split)));
                found.steps.insert(split, steps);
            }
        }
        found
    }
}

impl Graph {
    /// The product of all rows, if these ops are products of one layer.
    pub(crate) fn one_layer(&self, ops: &[OpId]) -> Option<Product> {
        let (first, rest) = ops.split_first()?;
        let first = &self.nodes[*first];
        let OpKind::Linear { product, .. } = first.kind else { return None };
        let like_first = |op: &OpId| {
            let node = &self.nodes[*op];
            node.kind == first.kind && node.inputs[1..] == first.inputs[1..]
        };
        rest.iter().all(like_first).then_some(Product { rows: product.rows * ops.len(), ..product })
    }
}

//! The same iteration in another precision: activations and their gradients in bf16, everything that is summed up over a batch or over
//! iterations in `f32`.
//!
//! | `f32` | bf16 |
//! | --- | --- |
//! | weights, optimizer state, running statistics | activations |
//! | gradients of weights | gradients of activations |
//! | means, deviations, sums of exponentials; losses, and any single number | |
//! | what the host gives and receives | |
//!
//! Ops, tensors and their numbers stay as they are: only sizes change, and the kinds of ops say which operands are bf16
//! ([`OpKind::Mixed`]). Products take weights as their nearest bf16 numbers (mixed precision with master weights: Micikevicius et al., 2018).

use std::str::FromStr;

use elbowroom_ir::trace::Phase;
use elbowroom_ir::{Bytes, Table, TensorId};

use crate::builder::BuildError;
use crate::graph::{Graph, Node};
use crate::mixed::Mixed;
use crate::op::OpKind;
use crate::shape::DType;

/// How activations and their gradients are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// 32-bit floats.
    #[default]
    F32,
    /// bfloat16; weights, sums and statistics in 32-bit floats.
    Bf16,
}

impl Precision {
    /// All.
    pub const ALL: [Self; 2] = [Self::F32, Self::Bf16];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|precision| precision.name() == name);
        found.ok_or_else(|| format!("`{name}` is no precision: give f32 or bf16"))
    }
}

impl Graph {
    /// This iteration in a precision; this graph is in `f32`.
    ///
    /// # Errors
    /// [`BuildError::Extents`] for bf16 if the network is not trained by gradients (k-means), or if weights are in tiles.
    pub fn in_precision(&self, precision: Precision) -> Result<Self, BuildError> {
        let mut graph = self.clone();
        if precision == Precision::F32 {
            return Ok(graph);
        }
        let refuse = |why: &str| Err(BuildError::Extents { node: self.name.clone(), why: why.to_owned() });
        if self
            .nodes
            .values()
            .any(|node| matches!(node.kind, OpKind::Nearest { .. } | OpKind::CentroidUpdate { .. }))
        {
            return refuse("only networks that are trained by gradients can be computed in bf16");
        }
        if self.persistent.iter().any(|parameter| parameter.tile.is_some()) {
            return refuse("weights in tiles cannot be computed in bf16");
        }
        for tensor in self.bf16_tensors() {
            let tensor = &mut graph.tensors[tensor];
            tensor.dtype = DType::Bf16;
            graph.storages[tensor.storage] = tensor.bytes().max(Bytes(1));
        }
        for (id, node) in self.nodes.iter() {
            let types =
                |ids: &[TensorId]| -> Vec<DType> { ids.iter().map(|&id| graph.tensors[id].dtype).collect() };
            let (inputs, outputs) = (types(&node.inputs), types(&node.outputs));
            let has_bf16 = inputs.iter().chain(&outputs).any(|&dtype| dtype == DType::Bf16);
            if has_bf16 || Mixed::is_product(&node.kind) {
                let mixed = Mixed { kind: node.kind.clone(), inputs, outputs };
                graph.nodes[id].kind = OpKind::Mixed(Box::new(mixed));
            }
        }
        graph.name = format!("{} in bf16", self.name);
        Ok(graph)
    }

    /// The precision of this iteration.
    pub fn precision(&self) -> Precision {
        let is_bf16 = self.tensors.values().any(|tensor| tensor.dtype == DType::Bf16);
        if is_bf16 { Precision::Bf16 } else { Precision::F32 }
    }

    /// The tensors that are bf16 in that precision. Tensors of one storage have one type.
    fn bf16_tensors(&self) -> Vec<TensorId> {
        let mut keep = Table::filled(self.storages.len(), false);
        let parameters = self.persistent.iter().map(|parameter| parameter.begin);
        let given = self.inputs.iter().map(|input| input.tensor);
        let received = self.outputs.iter().map(|output| output.tensor);
        for tensor in parameters.chain(given).chain(received) {
            keep[self.tensors[tensor].storage] = true;
        }
        for tensor in self.tensors.values() {
            if tensor.dtype != DType::F32 || tensor.shape.len() <= 1 {
                keep[tensor.storage] = true;
            }
        }
        // From the updates back through the ops that join gradients of a weight.
        let nodes: Vec<&Node> = self.nodes.values().collect();
        for node in nodes.into_iter().rev() {
            for &output in sums(&node.kind) {
                keep[self.tensors[node.outputs[output]].storage] = true;
            }
            let is_update = matches!(node.kind, OpKind::SgdStep { .. } | OpKind::AdamStep { .. });
            let joins = matches!(
                node.kind,
                OpKind::Add { .. }
                    | OpKind::Accumulate { .. }
                    | OpKind::Scale { .. }
                    | OpKind::ScaleBy { .. }
            );
            let kept = node.outputs.iter().any(|&output| keep[self.tensors[output].storage]);
            let is_of_weights =
                node.phase == Phase::Update || (joins && node.phase == Phase::Backward && kept);
            if is_update || is_of_weights {
                node.inputs.iter().for_each(|&input| keep[self.tensors[input].storage] = true);
            }
        }
        self.tensors.ids().filter(|&id| !keep[self.tensors[id].storage]).collect()
    }
}

/// Outputs that are sums over a batch, or statistics of rows, groups or channels.
const fn sums(kind: &OpKind) -> &'static [usize] {
    match kind {
        OpKind::Conv2dGradWeight(_)
        | OpKind::GroupedConv2dGradWeight(_)
        | OpKind::LinearGradWeight { .. }
        | OpKind::EmbeddingGrad { .. }
        | OpKind::BiasGrad(_)
        | OpKind::MulChannelGrad(_)
        | OpKind::RowSquares { .. } => &[0],
        OpKind::BatchNorm { .. }
        | OpKind::BatchNormGrad { .. }
        | OpKind::LayerNorm { .. }
        | OpKind::LayerNormGrad { .. }
        | OpKind::GroupNorm { .. }
        | OpKind::GroupNormGrad(_) => &[1, 2],
        OpKind::RmsNorm { .. }
        | OpKind::RmsNormGrad { .. }
        | OpKind::Attention(_)
        | OpKind::CrossAttention(_)
        | OpKind::CrossEntropy(_) => &[1],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zoo::{self, Options};

    #[test]
    fn activations_are_bf16_and_everything_that_is_added_up_is_not() {
        for name in
            ["resnet20", "gpt", "lstm", "densenet121", "mobilenet-v2", "llama", "diffusion", "vit-b-16"]
        {
            let graph = zoo::build(name, &Options::new(2)).unwrap();
            let bf16 = graph.in_precision(Precision::Bf16).unwrap();
            assert_eq!((graph.precision(), bf16.precision()), (Precision::F32, Precision::Bf16));
            assert_eq!(graph.in_precision(Precision::F32).unwrap().nodes, graph.nodes);
            let dtype = |id: TensorId| bf16.tensors[id].dtype;
            for parameter in &bf16.persistent {
                assert_eq!([parameter.begin, parameter.end].map(dtype), [DType::F32; 2], "{name}");
            }
            let mut updates = 0;
            for (id, node) in bf16.nodes.iter() {
                if node.phase == Phase::Update {
                    assert!(node.inputs.iter().all(|&input| dtype(input) == DType::F32), "{}", node.name);
                    updates += 1;
                }
                // The kinds alone show the types of the tensors.
                let signature = node.kind.signature();
                if !matches!(node.kind, OpKind::Input { .. } | OpKind::Output { .. }) {
                    let inputs = node.inputs.iter().zip(&signature.inputs);
                    assert!(
                        inputs.into_iter().all(|(&input, &(_, own))| dtype(input) == own),
                        "{}",
                        node.name
                    );
                    let outputs = node.outputs.iter().zip(&signature.outputs);
                    assert!(
                        outputs.into_iter().all(|(&output, &(_, own))| dtype(output) == own),
                        "{}",
                        node.name
                    );
                }
                let (halves, whole) = (bf16.work(id), graph.work(id));
                assert_eq!((halves.flops + halves.half_flops, whole.half_flops), (whole.flops, 0));
                let multiplies = matches!(&node.kind, OpKind::Mixed(mixed) if Mixed::is_product(&mixed.kind));
                assert!(!multiplies || halves.flops == 0, "{}", node.name);
                assert!(bf16.work(id).moved <= graph.work(id).moved);
            }
            assert!(updates > 4, "{name}");
            let bytes = |graph: &Graph, dtype: DType| -> u64 {
                graph
                    .tensors
                    .values()
                    .filter(|tensor| tensor.dtype == dtype)
                    .map(|tensor| tensor.bytes().get())
                    .sum()
            };
            let (narrow, wide) = (2 * bytes(&bf16, DType::Bf16), bytes(&graph, DType::F32));
            let weights: u64 = graph.persistent.iter().map(|p| graph.tensors[p.begin].bytes().get()).sum();
            // Weights with their gradients, state and updates are about four times the weights at most.
            assert!(2 * narrow + 10 * weights > wide, "{name}: {narrow} of {wide} bytes are bf16");
            assert!(bf16.trace(&|_, _| Bytes::ZERO).is_ok());
        }
    }

    #[test]
    fn what_has_no_gradients_is_refused_as_are_tiles() {
        let kmeans = zoo::build("kmeans", &Options::new(64)).unwrap();
        assert!(kmeans.in_precision(Precision::Bf16).is_err());
        let mut tiling = crate::Tiling::default();
        let gpt = zoo::build("gpt", &Options::new(1)).unwrap();
        tiling.insert(gpt.tileable()[0].name.clone(), 8);
        assert!(gpt.tiled(&tiling).unwrap().in_precision(Precision::Bf16).is_err());
        assert!(gpt.in_precision(Precision::Bf16).unwrap().tileable().is_empty());
        assert!("fp16".parse::<Precision>().is_err() && "bf16".parse() == Ok(Precision::Bf16));
    }
}

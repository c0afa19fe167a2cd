//! The work of an op, for cost models: floating-point operations and bytes moved.

use elbowroom_ir::trace::Work;
use elbowroom_ir::{Bytes, OpId};

use crate::graph::Graph;
use crate::mixed::Mixed;
use crate::op::{Function, OpKind};

/// Floating-point operations counted for an exponential, a logarithm, a root or a hyperbolic tangent.
const TRANSCENDENTAL: u64 = 8;

impl Graph {
    /// The work of a node. A multiply-add counts as two operations. Every operand is moved once, except that a lookup accesses only the
    /// rows it names. A kernel may move more, which the graph does not know.
    pub fn work(&self, op: OpId) -> Work {
        let node = &self.nodes[op];
        let size = |&value: &elbowroom_ir::TensorId| self.tensors[value].bytes();
        let all = node.inputs.iter().chain(&node.outputs).map(size).sum::<Bytes>();
        // Bytes of an element of an input or an output.
        let read = |input: usize| self.tensors[node.inputs[input]].dtype.size();
        let written = node.outputs.first().map_or(0, |&output| self.tensors[output].dtype.size());
        let moved = match node.kind.formula() {
            OpKind::Embedding(lookup) | OpKind::EmbeddingTile(lookup) => {
                Bytes(((read(1) + written) * lookup.rows * lookup.width + 4 * lookup.rows) as u64)
            }
            OpKind::EmbeddingGrad { lookup, accumulate: true } => {
                Bytes(((read(1) + 2 * written) * lookup.rows * lookup.width + 4 * lookup.rows) as u64)
            }
            OpKind::Slice { outer, width, .. } => Bytes(((read(0) + written) * outer * width) as u64),
            _ => all,
        };
        let flops = node.kind.flops();
        let halves = matches!(&node.kind, OpKind::Mixed(mixed) if Mixed::is_product(&mixed.kind) || is_attention(&mixed.kind));
        let (flops, half_flops) = if halves { (0, flops) } else { (flops, 0) };
        Work { flops, half_flops, moved }
    }
}

/// Whether most of an op's arithmetic is in products of its inputs, all of which are stored in 16 bits in a mixed op.
fn is_attention(kind: &OpKind) -> bool {
    matches!(
        kind,
        OpKind::Attention(_)
            | OpKind::AttentionGrad(_)
            | OpKind::CrossAttention(_)
            | OpKind::CrossAttentionGrad(_)
    )
}

impl OpKind {
    /// Floating-point operations; a multiply-add counts as two.
    pub fn flops(&self) -> u64 {
        let elements = |count: usize, each: u64| count as u64 * each;
        match self {
            Self::Input { .. } | Self::Output { .. } | Self::Fill { .. } | Self::Indices { .. } => 0,
            Self::Transpose { .. } => 0,
            Self::Embedding(_) | Self::EmbeddingTile(_) => 0,
            Self::Concat { .. } | Self::Split { .. } | Self::Slice { .. } | Self::Pad { .. } => 0,
            Self::Mul { len } => elements(*len, 1),
            Self::MulChannel(channels) => elements(channels.len(), 1),
            Self::MulChannelGrad(channels) => elements(channels.len(), 2),
            Self::SquaredError { len, .. } | Self::SquaredErrorGrad { len, .. } => elements(*len, 3),
            Self::GroupedConv2d { conv, .. }
            | Self::GroupedConv2dGradInput(conv)
            | Self::GroupedConv2dGradWeight(conv) => 2 * conv.multiply_adds(),
            Self::GroupNorm { groups, .. } => elements(groups.channels.len(), 6),
            Self::GroupNormGrad(groups) => elements(groups.channels.len(), 12),
            Self::RmsNorm { rows, width, .. } => elements(rows * width, 4),
            Self::RmsNormGrad { rows, width } => elements(rows * width, 10),
            Self::CrossAttention(extents) => extents.pairs() * (4 * extents.width as u64 + TRANSCENDENTAL),
            Self::CrossAttentionGrad(extents) => {
                extents.pairs() * (10 * extents.width as u64 + TRANSCENDENTAL)
            }
            // Two multiply-adds each; cosine and sine are shared by all heads and sequences.
            Self::Rotary(rotation) => elements(rotation.x().len(), 3),
            // The words' ten rounds and a root, a logarithm, a sine and a cosine, for two elements.
            Self::Noise { len, .. } => elements(*len, 16 + 2 * TRANSCENDENTAL),
            Self::RandomSteps { rows, .. } => elements(*rows, 16),
            Self::Diffuse(diffusion) => elements(diffusion.batch * diffusion.size, 3),
            Self::Sinusoid { rows, width } => elements(rows * width, TRANSCENDENTAL),
            Self::Add { len } | Self::Accumulate { len } | Self::Scale { len, .. } => elements(*len, 1),
            Self::ScaleBy { len } => elements(*len, 1),
            Self::ClipFactor { .. } => elements(1, TRANSCENDENTAL),
            Self::AddRow { outer, inner } => elements(outer * inner, 1),
            Self::AddChannel(channels) => elements(channels.len(), 1),
            Self::Sum { len, .. } => elements(*len, 1),
            Self::ResponseNorm(response) => elements(response.channels.len(), 2 * response.size as u64 + 8),
            Self::ResponseNormGrad(response) => elements(response.channels.len(), 12 * response.size as u64),
            Self::RowSquares { rows, width } => elements(rows * width, 2),
            Self::Nearest { rows, clusters } => elements(rows * clusters, 3),
            Self::CentroidUpdate { clusters, width, .. } => elements(clusters * width, 1),
            Self::Map { len, function } | Self::MapGrad { len, function } => elements(
                *len,
                match function {
                    Function::Relu
                    | Function::Relu6
                    | Function::LeakyRelu { .. }
                    | Function::Clamp { .. }
                    | Function::Abs
                    | Function::Step { .. } => 1,
                    Function::Reciprocal => 2,
                    Function::HardSigmoid | Function::HardSwish => 4,
                    Function::Elu { .. }
                    | Function::Gelu
                    | Function::GeluExact
                    | Function::Sigmoid
                    | Function::Silu
                    | Function::Exp
                    | Function::Log
                    | Function::Softplus
                    | Function::Sqrt
                    | Function::Tanh => TRANSCENDENTAL,
                },
            ),
            // The mask's ten rounds, for four elements.
            Self::Dropout(mask) => elements(mask.len, 16),
            Self::Conv2d { conv, .. }
            | Self::Conv2dGradInput(conv)
            | Self::Conv2dGradInputTile { conv, .. }
            | Self::Conv2dGradWeight(conv) => 2 * conv.multiply_adds(),
            Self::BiasGrad(channels) => elements(channels.len(), 1),
            Self::BatchNorm { channels, .. } => elements(channels.len(), 6),
            Self::BatchNormGrad { channels, .. } => elements(channels.len(), 9),
            Self::BatchNormInference { channels, .. } => elements(channels.len(), 2),
            Self::RunningUpdate { channels, .. } => elements(*channels, 6),
            Self::LayerNorm { rows, width, .. } => elements(rows * width, 6),
            Self::LayerNormGrad { rows, width } => elements(rows * width, 12),
            Self::MaxPool(pool) | Self::AveragePool { pool, .. } | Self::AveragePoolGrad { pool, .. } => {
                elements(pool.y().len(), pool.window.area() as u64)
            }
            Self::MaxPoolGrad(pool) => elements(pool.y().len(), 1),
            Self::Linear { product, .. }
            | Self::LinearGradInput(product)
            | Self::LinearGradInputTile { product, .. }
            | Self::LinearGradWeight { product, .. } => {
                elements(product.rows * product.inputs, 2 * product.outputs as u64)
            }
            Self::BatchedProduct(products) => elements(products.y().len(), 2 * products.depth as u64),
            Self::Softmax { rows, width } => elements(rows * width, TRANSCENDENTAL + 2),
            Self::SoftmaxGrad { rows, width } => elements(rows * width, 4),
            Self::EmbeddingGrad { lookup, .. } => elements(lookup.rows * lookup.width, 1),
            Self::LstmCell { batch, hidden } => elements(batch * hidden, 5 * TRANSCENDENTAL + 8),
            Self::LstmCellGrad { batch, hidden, .. } => elements(batch * hidden, TRANSCENDENTAL + 24),
            // Two products of [tokens, width] by [width, tokens] in each head forward, five backward; half of each where causal.
            Self::Attention(heads) => heads.pairs() * (4 * heads.width as u64 + TRANSCENDENTAL),
            Self::AttentionGrad(heads) => heads.pairs() * (10 * heads.width as u64 + TRANSCENDENTAL),
            Self::Hits(loss) => elements(loss.rows * loss.classes, 1),
            Self::CrossEntropy(loss) | Self::CrossEntropyGrad(loss) => {
                elements(loss.rows * loss.classes, TRANSCENDENTAL + 2)
            }
            Self::SgdStep { len, .. } => elements(*len, 6),
            Self::AdamStep { len, .. } => elements(*len, 12 + TRANSCENDENTAL),
            Self::Mixed(mixed) => mixed.kind.flops(),
        }
    }
}

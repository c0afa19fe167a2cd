//! The operands of every op: how many elements it reads, and the shapes of its results. All shape inference is here.

use crate::op::{OpKind, Response};
use crate::shape::{DType, Shape};

use DType::{F32, I32, U8};

/// Operands and results of an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Elements of every input, and their type.
    pub inputs: Vec<(Size, DType)>,
    /// Shape of every output, and the type of its elements.
    pub outputs: Vec<(Shape, DType)>,
}

/// The number of elements of an input. Its shape is irrelevant: the extents are in the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Exactly this many.
    Exactly(usize),
    /// At least this many: the op reads a part.
    AtLeast(usize),
}

impl Size {
    /// Whether a tensor of `len` elements is acceptable.
    pub const fn admits(self, len: usize) -> bool {
        match self {
            Self::Exactly(wanted) => wanted == len,
            Self::AtLeast(wanted) => wanted <= len,
        }
    }
}

/// All operands `f32`, inputs by their exact lengths.
fn floats(inputs: &[usize], outputs: &[&[usize]]) -> Signature {
    Signature {
        inputs: inputs.iter().map(|&len| (Size::Exactly(len), F32)).collect(),
        outputs: outputs.iter().map(|dims| (Shape::new(dims), F32)).collect(),
    }
}

impl OpKind {
    /// The op's operands and results. The output of [`OpKind::Input`] and the input of [`OpKind::Output`] are missing, because the slot
    /// determines their shape and type.
    pub fn signature(&self) -> Signature {
        match *self {
            Self::Input { .. } | Self::Output { .. } => floats(&[], &[]),
            Self::Fill { len, .. } => floats(&[], &[&[len]]),
            Self::Indices { ref ids } => {
                Signature { inputs: Vec::new(), outputs: vec![([ids.len()].into(), I32)] }
            }
            Self::Add { len } | Self::Mul { len } | Self::Accumulate { len } | Self::MapGrad { len, .. } => {
                floats(&[len, len], &[&[len]])
            }
            Self::Scale { len, .. } | Self::Map { len, .. } => floats(&[len], &[&[len]]),
            Self::ScaleBy { len } => floats(&[len, 1], &[&[len]]),
            Self::ClipFactor { .. } => floats(&[1], &[&[]]),
            Self::AddRow { outer, inner } => floats(&[outer * inner, inner], &[&[outer, inner]]),
            Self::AddChannel(c) | Self::MulChannel(c) => {
                floats(&[c.len(), c.channels], &[&[c.batch, c.channels, c.spatial]])
            }
            Self::Sum { len, .. } => floats(&[len], &[&[]]),
            Self::Dropout(mask) => floats(&[mask.len], &[&[mask.len]]),

            Self::Conv2d { conv, bias } => {
                let operands = [conv.x().len(), conv.w().len(), conv.out_channels];
                floats(&operands[..2 + usize::from(bias)], &[conv.y().dims()])
            }
            Self::Conv2dGradInput(conv) => floats(&[conv.y().len(), conv.w().len()], &[conv.x().dims()]),
            Self::Conv2dGradInputTile { conv, .. } => {
                floats(&[conv.y().len(), conv.w().len(), conv.x().len()], &[conv.x().dims()])
            }
            Self::Conv2dGradWeight(conv) => floats(&[conv.x().len(), conv.y().len()], &[conv.w().dims()]),
            Self::GroupedConv2d { conv, bias } => {
                let operands = [conv.conv.x().len(), conv.w().len(), conv.conv.out_channels];
                floats(&operands[..2 + usize::from(bias)], &[conv.conv.y().dims()])
            }
            Self::GroupedConv2dGradInput(conv) => {
                floats(&[conv.conv.y().len(), conv.w().len()], &[conv.conv.x().dims()])
            }
            Self::GroupedConv2dGradWeight(conv) => {
                floats(&[conv.conv.x().len(), conv.conv.y().len()], &[conv.w().dims()])
            }
            Self::MulChannelGrad(c) => floats(&[c.len(); 2], &[&[c.channels]]),
            Self::BiasGrad(c) => floats(&[c.len()], &[&[c.channels]]),

            Self::BatchNorm { channels: c, .. } => {
                let per = c.channels;
                floats(&[c.len(), per, per], &[&[c.batch, per, c.spatial], &[per], &[per]])
            }
            Self::BatchNormGrad { channels: c, .. } => {
                let per = c.channels;
                floats(&[c.len(), c.len(), per, per, per], &[&[c.batch, per, c.spatial], &[per], &[per]])
            }
            Self::RunningUpdate { channels, .. } => floats(&[channels; 4], &[&[channels], &[channels]]),
            Self::BatchNormInference { channels: c, .. } => {
                let per = c.channels;
                floats(&[c.len(), per, per, per, per], &[&[c.batch, per, c.spatial]])
            }
            Self::LayerNorm { rows, width, .. } => {
                floats(&[rows * width, width, width], &[&[rows, width], &[rows], &[rows]])
            }
            Self::LayerNormGrad { rows, width } => {
                let len = rows * width;
                floats(&[len, len, rows, rows, width], &[&[rows, width], &[width], &[width]])
            }

            Self::GroupNorm { groups, .. } => {
                let c = groups.channels;
                let statistics: &[usize] = &[c.batch, groups.groups];
                let y: &[usize] = &[c.batch, c.channels, c.spatial];
                floats(&[c.len(), c.channels, c.channels], &[y, statistics, statistics])
            }
            Self::GroupNormGrad(groups) => {
                let (c, per) = (groups.channels, groups.channels.channels);
                let operands = [c.len(), c.len(), groups.count(), groups.count(), per];
                floats(&operands, &[&[c.batch, per, c.spatial], &[per], &[per]])
            }
            Self::RmsNorm { rows, width, .. } => floats(&[rows * width, width], &[&[rows, width], &[rows]]),
            Self::RmsNormGrad { rows, width } => {
                let len = rows * width;
                floats(&[len, len, rows, width], &[&[rows, width], &[width]])
            }

            Self::ResponseNorm(Response { channels: c, .. }) => {
                let shape = [c.batch, c.channels, c.spatial];
                floats(&[c.len()], &[&shape, &shape])
            }
            Self::ResponseNormGrad(Response { channels: c, .. }) => {
                floats(&[c.len(); 3], &[&[c.batch, c.channels, c.spatial]])
            }

            Self::MaxPool(pool) => {
                let mut signature = floats(&[pool.x().len()], &[pool.y().dims()]);
                signature.outputs.push((pool.y(), U8));
                signature
            }
            Self::MaxPoolGrad(pool) => {
                let mut signature = floats(&[pool.y().len()], &[pool.x().dims()]);
                signature.inputs.push((Size::Exactly(pool.y().len()), U8));
                signature
            }
            Self::AveragePool { pool, .. } => floats(&[pool.x().len()], &[pool.y().dims()]),
            Self::AveragePoolGrad { pool, .. } => floats(&[pool.y().len()], &[pool.x().dims()]),

            Self::Linear { product: p, bias } => {
                let operands = [p.x().len(), p.w().len(), p.outputs];
                floats(&operands[..2 + usize::from(bias)], &[p.y().dims()])
            }
            Self::LinearGradInput(p) => floats(&[p.y().len(), p.w().len()], &[p.x().dims()]),
            Self::LinearGradInputTile { product: p, .. } => {
                floats(&[p.y().len(), p.w().len(), p.x().len()], &[p.x().dims()])
            }
            Self::LinearGradWeight { product: p, accumulate } => {
                let operands = [p.x().len(), p.y().len(), p.w().len()];
                floats(&operands[..2 + usize::from(accumulate)], &[p.w().dims()])
            }

            Self::BatchedProduct(p) => floats(&[p.a().len(), p.b().len()], &[p.y().dims()]),
            Self::Softmax { rows, width } => floats(&[rows * width], &[&[rows, width]]),
            Self::SoftmaxGrad { rows, width } => floats(&[rows * width; 2], &[&[rows, width]]),

            Self::Embedding(lookup) => Signature {
                inputs: vec![
                    (Size::AtLeast(lookup.span()), I32),
                    (Size::Exactly(lookup.vocabulary * lookup.width), F32),
                ],
                outputs: vec![([lookup.rows, lookup.width].into(), F32)],
            },
            Self::EmbeddingTile(lookup) => {
                let mut signature = Self::Embedding(lookup).signature();
                signature.inputs.push((Size::Exactly(lookup.rows * lookup.width), F32));
                signature
            }
            Self::EmbeddingGrad { lookup, accumulate } => {
                let table = [lookup.vocabulary, lookup.width];
                let operands = [lookup.rows * lookup.width, table[0] * table[1]];
                let mut signature = floats(&operands[..1 + usize::from(accumulate)], &[&table]);
                signature.inputs.insert(0, (Size::AtLeast(lookup.span()), I32));
                signature
            }

            Self::LstmCell { batch, hidden } => {
                let (state, gates) = (batch * hidden, 4 * batch * hidden);
                floats(&[gates, gates, state], &[&[batch, hidden], &[batch, hidden], &[batch, 4 * hidden]])
            }
            Self::LstmCellGrad { batch, hidden, carry } => {
                let state = batch * hidden;
                let operands = [4 * state, state, state, state, state];
                floats(&operands[..4 + usize::from(carry)], &[&[batch, 4 * hidden], &[batch, hidden]])
            }

            Self::Attention(heads) => floats(&[heads.qkv().len()], &[heads.y().dims(), heads.lse().dims()]),
            Self::AttentionGrad(heads) => {
                let (y, lse) = (heads.y().len(), heads.lse().len());
                floats(&[heads.qkv().len(), y, lse, y], &[heads.qkv().dims()])
            }

            Self::CrossAttention(extents) => {
                let (q, k) = (extents.q(), extents.k().len());
                floats(&[q.len(), k, k], &[q.dims(), extents.lse().dims()])
            }
            Self::CrossAttentionGrad(extents) => {
                let (q, k) = (extents.q(), extents.k());
                let operands = [q.len(), k.len(), k.len(), q.len(), extents.lse().len(), q.len()];
                floats(&operands, &[q.dims(), k.dims(), k.dims()])
            }
            Self::Rotary(rotation) => floats(&[rotation.x().len()], &[rotation.x().dims()]),
            Self::SquaredError { len, .. } => floats(&[len, len], &[&[]]),
            Self::SquaredErrorGrad { len, .. } => floats(&[len, len, 1], &[&[len]]),

            Self::CrossEntropy(loss) => {
                let mut signature = floats(&[loss.rows * loss.classes], &[&[], &[loss.rows]]);
                signature.inputs.push((Size::AtLeast(loss.span()), I32));
                signature
            }
            Self::Hits(loss) => {
                let mut signature = floats(&[loss.rows * loss.classes], &[&[]]);
                signature.inputs.push((Size::AtLeast(loss.span()), I32));
                signature
            }
            Self::CrossEntropyGrad(loss) => {
                let mut signature =
                    floats(&[loss.rows * loss.classes, loss.rows, 1], &[&[loss.rows, loss.classes]]);
                signature.inputs.insert(1, (Size::AtLeast(loss.span()), I32));
                signature
            }

            Self::Concat { outer, ref widths } => {
                let operands: Vec<usize> = widths.iter().map(|width| outer * width).collect();
                floats(&operands, &[&[outer, widths.iter().sum()]])
            }
            Self::Split { outer, ref widths } => Signature {
                inputs: vec![(Size::Exactly(outer * widths.iter().sum::<usize>()), F32)],
                outputs: widths.iter().map(|&width| ([outer, width].into(), F32)).collect(),
            },
            Self::Noise { len, .. } => floats(&[], &[&[len]]),
            Self::RandomSteps { rows, .. } => {
                Signature { inputs: Vec::new(), outputs: vec![([rows].into(), I32)] }
            }
            Self::Diffuse(diffusion) => {
                let len = diffusion.batch * diffusion.size;
                let mut signature = floats(&[len, len], &[&[diffusion.batch, diffusion.size]]);
                signature.inputs.push((Size::Exactly(diffusion.batch), I32));
                signature
            }
            Self::Sinusoid { rows, width } => Signature {
                inputs: vec![(Size::Exactly(rows), I32)],
                outputs: vec![([rows, width].into(), F32)],
            },
            Self::Slice { outer, total, width, .. } => floats(&[outer * total], &[&[outer, width]]),
            Self::Pad { outer, total, width, .. } => floats(&[outer * width], &[&[outer, total]]),

            Self::Transpose { batch, rows, columns, inner } => {
                floats(&[batch * rows * columns * inner], &[&[batch, columns, rows, inner]])
            }

            Self::RowSquares { rows, width } => floats(&[rows * width], &[&[rows]]),
            Self::Nearest { rows, clusters } => {
                let mut signature = floats(&[rows * clusters, clusters], &[&[rows]]);
                signature.outputs.insert(0, ([rows].into(), I32));
                signature
            }
            Self::CentroidUpdate { ref parts, clusters, width } => {
                let mut signature = floats(&[clusters * width; 2], &[&[clusters, width]]);
                signature.inputs.extend(parts.iter().map(|&rows| (Size::Exactly(rows), I32)));
                signature
            }

            Self::SgdStep { len, sgd } => {
                let states = usize::from(sgd.momentum != 0.0);
                floats(&[len; 3][..2 + states], &[&[len] as &[usize], &[len]][..1 + states])
            }
            Self::AdamStep { len, .. } => floats(&[len; 4], &[&[len], &[len], &[len]]),
            Self::Mixed(ref mixed) => mixed.signature(),
        }
    }

    /// Suffixes that distinguish the names of several outputs; the first is empty if that output has the op's own name.
    pub fn output_suffixes(&self) -> &'static [&'static str] {
        match self {
            Self::Mixed(mixed) => mixed.kind.output_suffixes(),
            Self::BatchNorm { .. } => &["", "mean", "variance"],
            Self::LayerNorm { .. } | Self::GroupNorm { .. } => &["", "mean", "inverse-std"],
            Self::RmsNorm { .. } => &["", "inverse-rms"],
            Self::BatchNormGrad { .. } | Self::LayerNormGrad { .. } | Self::GroupNormGrad(_) => {
                &["", "weight", "bias"]
            }
            Self::RmsNormGrad { .. } => &["", "weight"],
            Self::CrossAttentionGrad(_) => &["q", "k", "v"],
            Self::MaxPool(_) => &["", "argmax"],
            Self::ResponseNorm(_) => &["", "scale"],
            Self::Nearest { .. } => &["", "gap"],
            Self::LstmCell { .. } => &["", "cell", "gates"],
            Self::LstmCellGrad { .. } => &["gates", "cell"],
            Self::Attention(_) | Self::CrossAttention(_) | Self::CrossEntropy(_) => &["", "lse"],
            _ => &[],
        }
    }
}

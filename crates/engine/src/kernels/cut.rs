//! Into which independent parts an op can be cut: parts of its batch, its rows, its channels, its groups.
//!
//! A part is an op of the same kind with a smaller extent. Of every operand it reads or writes a slab, or all of it, or it adds to it. What
//! a part computes are the bits of the whole op, except for sums over what was cut, which are sums over the parts, in order.

use elbowroom_graph::OpKind;
use elbowroom_graph::op::{
    Channels, Classification, Conv, Diffusion, GroupedConv, Groups, Heads, Pool, Queries, Response, Rotation,
};

use super::convolution::area;

/// What a part of an op accesses of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// All of it.
    Whole,
    /// Of `[outer, units, inner]` elements those of its units.
    Slab {
        /// Outer extent.
        outer: usize,
        /// Elements of one unit.
        inner: usize,
    },
    /// All of it: the results of the parts are added up.
    Sum,
}

/// Inputs, or outputs, of an op that can be cut, at most.
pub const MOST: usize = 6;

/// An op of `units` units that can be computed in parts.
#[derive(Clone, Copy)]
pub struct Cut {
    /// Number of units.
    pub units: usize,
    /// What a part reads of each input; of operands that the op does not have, all.
    pub reads: [Span; MOST],
    /// What a part writes of each output.
    pub writes: [Span; MOST],
}

/// Units that lie one after the other.
const fn slab(inner: usize) -> Span {
    Span::Slab { outer: 1, inner }
}

use Span::{Sum, Whole};

/// The op over this many of its units; with `adds`, it adds to the result of the parts before, in place.
pub fn part(kind: &OpKind, units: usize, adds: bool) -> OpKind {
    let mut part = kind.clone();
    match &mut part {
        OpKind::Fill { len, .. }
        | OpKind::Add { len }
        | OpKind::Mul { len }
        | OpKind::Accumulate { len }
        | OpKind::Scale { len, .. }
        | OpKind::ScaleBy { len }
        | OpKind::Map { len, .. }
        | OpKind::MapGrad { len, .. }
        | OpKind::SquaredError { len, .. }
        | OpKind::SquaredErrorGrad { len, .. }
        | OpKind::Sum { len, .. } => *len = units,
        OpKind::AddRow { outer, .. } => *outer = units,
        OpKind::AddChannel(c) | OpKind::MulChannel(c) if c.batch > 1 => c.batch = units,
        OpKind::AddChannel(c)
        | OpKind::MulChannel(c)
        | OpKind::MulChannelGrad(c)
        | OpKind::BiasGrad(c)
        | OpKind::BatchNorm { channels: c, .. }
        | OpKind::BatchNormGrad { channels: c, .. } => c.channels = units,
        OpKind::BatchNormInference { channels: c, .. } => c.batch = units,
        OpKind::LayerNorm { rows, .. }
        | OpKind::LayerNormGrad { rows, .. }
        | OpKind::RmsNorm { rows, .. }
        | OpKind::RmsNormGrad { rows, .. }
        | OpKind::Softmax { rows, .. }
        | OpKind::SoftmaxGrad { rows, .. }
        | OpKind::Sinusoid { rows, .. } => *rows = units,
        OpKind::GroupNorm { groups, .. } | OpKind::GroupNormGrad(groups) => groups.channels.batch = units,
        OpKind::ResponseNorm(response) | OpKind::ResponseNormGrad(response) => {
            response.channels.batch = units
        }
        OpKind::MaxPool(pool)
        | OpKind::MaxPoolGrad(pool)
        | OpKind::AveragePool { pool, .. }
        | OpKind::AveragePoolGrad { pool, .. } => pool.planes = units,
        OpKind::Conv2d { conv, .. } | OpKind::Conv2dGradInput(conv) | OpKind::Conv2dGradWeight(conv) => {
            conv.batch = units;
        }
        OpKind::GroupedConv2d { conv: grouped, .. }
        | OpKind::GroupedConv2dGradInput(grouped)
        | OpKind::GroupedConv2dGradWeight(grouped) => {
            let GroupedConv { conv, groups, .. } = grouped;
            (conv.in_channels, conv.out_channels) =
                (conv.in_channels / *groups * units, conv.out_channels / *groups * units);
            *groups = units;
        }
        OpKind::Linear { product, .. } | OpKind::LinearGradInput(product) => product.rows = units,
        OpKind::LinearGradWeight { product, accumulate } => {
            product.rows = units;
            *accumulate |= adds;
        }
        OpKind::BatchedProduct(products) => products.batch = units,
        OpKind::LstmCell { batch, .. }
        | OpKind::LstmCellGrad { batch, .. }
        | OpKind::Transpose { batch, .. } => *batch = units,
        OpKind::Attention(heads) | OpKind::AttentionGrad(heads) => heads.batch = units,
        OpKind::CrossAttention(extents) | OpKind::CrossAttentionGrad(extents) => extents.batch = units,
        OpKind::Rotary(rotation) => rotation.batch = units,
        OpKind::Diffuse(diffusion) => diffusion.batch = units,
        OpKind::CrossEntropy(loss) | OpKind::CrossEntropyGrad(loss) | OpKind::Hits(loss) => loss.rows = units,
        _ => {}
    }
    part
}

impl Cut {
    fn new(units: usize, reads: &[Span], writes: &[Span]) -> Option<Self> {
        let all = |spans: &[Span]| {
            let mut all = [Whole; MOST];
            all[..spans.len()].copy_from_slice(spans);
            all
        };
        Some(Self { units, reads: all(reads), writes: all(writes) })
    }

    /// The parts of an op; `None` if it has none.
    pub fn of(kind: &OpKind) -> Option<Self> {
        let one = slab(1);
        match *kind {
            OpKind::Fill { len, .. } => Self::new(len, &[], &[one]),
            OpKind::Scale { len, .. } | OpKind::Map { len, .. } => Self::new(len, &[one], &[one]),
            OpKind::Add { len }
            | OpKind::Mul { len }
            | OpKind::Accumulate { len }
            | OpKind::MapGrad { len, .. } => Self::new(len, &[one; 2], &[one]),
            OpKind::ScaleBy { len } => Self::new(len, &[one, Whole], &[one]),
            OpKind::SquaredError { len, .. } => Self::new(len, &[one; 2], &[Sum]),
            OpKind::SquaredErrorGrad { len, .. } => Self::new(len, &[one, one, Whole], &[one]),
            OpKind::Sum { len, .. } => Self::new(len, &[one], &[Sum]),
            OpKind::AddRow { outer, inner } => Self::new(outer, &[slab(inner), Whole], &[slab(inner)]),
            // By image, or by channel where there is one image.
            OpKind::AddChannel(c) | OpKind::MulChannel(c) if c.batch > 1 => {
                let x = slab(c.channels * c.spatial);
                Self::new(c.batch, &[x, Whole], &[x])
            }
            OpKind::AddChannel(c) | OpKind::MulChannel(c) => {
                Self::new(c.channels, &[slab(c.spatial), one], &[slab(c.spatial)])
            }
            OpKind::MulChannelGrad(c) => Self::new(c.channels, &[across(c); 2], &[one]),
            OpKind::BiasGrad(c) => Self::new(c.channels, &[across(c)], &[one]),
            OpKind::BatchNorm { channels: c, .. } => {
                Self::new(c.channels, &[across(c), one, one], &[across(c), one, one])
            }
            OpKind::BatchNormGrad { channels: c, .. } => {
                let x = across(c);
                Self::new(c.channels, &[x, x, one, one, one], &[x, one, one])
            }
            OpKind::BatchNormInference { channels: c, .. } => {
                let x = slab(c.channels * c.spatial);
                Self::new(c.batch, &[x, Whole, Whole, Whole, Whole], &[x])
            }
            OpKind::LayerNorm { rows, width, .. } => {
                Self::new(rows, &[slab(width), Whole, Whole], &[slab(width), one, one])
            }
            OpKind::LayerNormGrad { rows, width } => {
                let x = slab(width);
                Self::new(rows, &[x, x, one, one, Whole], &[x, Sum, Sum])
            }
            OpKind::RmsNorm { rows, width, .. } => {
                Self::new(rows, &[slab(width), Whole], &[slab(width), one])
            }
            OpKind::RmsNormGrad { rows, width } => {
                let x = slab(width);
                Self::new(rows, &[x, x, one, Whole], &[x, Sum])
            }
            OpKind::GroupNorm { groups, .. } => {
                let (x, of_group) = images(groups);
                Self::new(groups.channels.batch, &[x, Whole, Whole], &[x, of_group, of_group])
            }
            OpKind::GroupNormGrad(groups) => {
                let (x, of_group) = images(groups);
                Self::new(groups.channels.batch, &[x, x, of_group, of_group, Whole], &[x, Sum, Sum])
            }
            OpKind::ResponseNorm(Response { channels: c, .. }) => {
                let x = slab(c.channels * c.spatial);
                Self::new(c.batch, &[x], &[x; 2])
            }
            OpKind::ResponseNormGrad(Response { channels: c, .. }) => {
                let x = slab(c.channels * c.spatial);
                Self::new(c.batch, &[x; 3], &[x])
            }
            OpKind::MaxPool(ref pool) => {
                let [x, y] = planes(pool);
                Self::new(pool.planes, &[x], &[y, y])
            }
            OpKind::MaxPoolGrad(ref pool) => {
                let [x, y] = planes(pool);
                Self::new(pool.planes, &[y, y], &[x])
            }
            OpKind::AveragePool { ref pool, .. } => {
                let [x, y] = planes(pool);
                Self::new(pool.planes, &[x], &[y])
            }
            OpKind::AveragePoolGrad { ref pool, .. } => {
                let [x, y] = planes(pool);
                Self::new(pool.planes, &[y], &[x])
            }
            OpKind::Conv2d { ref conv, .. } => {
                let [x, y] = of_images(conv);
                Self::new(conv.batch, &[x, Whole, Whole], &[y])
            }
            OpKind::Conv2dGradInput(ref conv) => {
                let [x, y] = of_images(conv);
                Self::new(conv.batch, &[y, Whole], &[x])
            }
            OpKind::Conv2dGradWeight(ref conv) => Self::new(conv.batch, &of_images(conv), &[Sum]),
            OpKind::GroupedConv2d { ref conv, .. } => {
                let [x, w, y] = of_groups(conv);
                Self::new(conv.groups, &[x, w, slab(conv.conv.out_channels / conv.groups)], &[y])
            }
            OpKind::GroupedConv2dGradInput(ref conv) => {
                let [x, w, y] = of_groups(conv);
                Self::new(conv.groups, &[y, w], &[x])
            }
            OpKind::GroupedConv2dGradWeight(ref conv) => {
                let [x, w, y] = of_groups(conv);
                Self::new(conv.groups, &[x, y], &[w])
            }
            OpKind::Linear { product: p, .. } => {
                Self::new(p.rows, &[slab(p.inputs), Whole, Whole], &[slab(p.outputs)])
            }
            OpKind::LinearGradInput(p) => Self::new(p.rows, &[slab(p.outputs), Whole], &[slab(p.inputs)]),
            // Every part goes on with the sum.
            OpKind::LinearGradWeight { product: p, .. } => {
                Self::new(p.rows, &[slab(p.inputs), slab(p.outputs), Whole], &[Whole])
            }
            OpKind::BatchedProduct(p) => {
                let [a, b, y] = [p.rows * p.depth, p.depth * p.columns, p.rows * p.columns].map(slab);
                Self::new(p.batch, &[a, b], &[y])
            }
            OpKind::Softmax { rows, width } => Self::new(rows, &[slab(width)], &[slab(width)]),
            OpKind::SoftmaxGrad { rows, width } => Self::new(rows, &[slab(width); 2], &[slab(width)]),
            OpKind::LstmCell { batch, hidden } => {
                let (gates, state) = (slab(4 * hidden), slab(hidden));
                Self::new(batch, &[gates, gates, state], &[state, state, gates])
            }
            OpKind::LstmCellGrad { batch, hidden, .. } => {
                let (gates, state) = (slab(4 * hidden), slab(hidden));
                Self::new(batch, &[gates, state, state, state, state], &[gates, state])
            }
            OpKind::Attention(heads) => {
                let [qkv, y, lse] = sequences(heads);
                Self::new(heads.batch, &[qkv], &[y, lse])
            }
            OpKind::AttentionGrad(heads) => {
                let [qkv, y, lse] = sequences(heads);
                Self::new(heads.batch, &[qkv, y, lse, y], &[qkv])
            }
            OpKind::CrossAttention(extents) => {
                let [q, k, lse] = queries(extents);
                Self::new(extents.batch, &[q, k, k], &[q, lse])
            }
            OpKind::CrossAttentionGrad(extents) => {
                let [q, k, lse] = queries(extents);
                Self::new(extents.batch, &[q, k, k, q, lse, q], &[q, k, k])
            }
            OpKind::Rotary(Rotation { batch, tokens, heads, width, .. }) => {
                let x = slab(tokens * heads * width);
                Self::new(batch, &[x], &[x])
            }
            OpKind::Diffuse(Diffusion { batch, size, .. }) => {
                Self::new(batch, &[slab(size), slab(size), one], &[slab(size)])
            }
            OpKind::Sinusoid { rows, width } => Self::new(rows, &[one], &[slab(width)]),
            OpKind::CrossEntropy(ref loss) if in_order(loss) => {
                Self::new(loss.rows, &[slab(loss.classes), one], &[Sum, one])
            }
            OpKind::CrossEntropyGrad(ref loss) if in_order(loss) => {
                let x = slab(loss.classes);
                Self::new(loss.rows, &[x, one, one, Whole], &[x])
            }
            OpKind::Hits(ref loss) if in_order(loss) => {
                Self::new(loss.rows, &[slab(loss.classes), one], &[Sum])
            }
            OpKind::Transpose { batch, rows, columns, inner } => {
                let x = slab(rows * columns * inner);
                Self::new(batch, &[x], &[x])
            }
            _ => None,
        }
    }
}

/// The elements of some channels of all images.
const fn across(c: Channels) -> Span {
    Span::Slab { outer: c.batch, inner: c.spatial }
}

/// The images of a group normalization, and their statistics.
const fn images(groups: Groups) -> (Span, Span) {
    (slab(groups.channels.channels * groups.channels.spatial), slab(groups.groups))
}

/// The images of a convolution, and those that it makes.
fn of_images(conv: &Conv) -> [Span; 2] {
    [slab(conv.in_channels * area(conv.in_size)), slab(conv.out_channels * area(conv.out_size))]
}

/// The images of a convolution in groups, its weights, and the images that it makes.
fn of_groups(grouped: &GroupedConv) -> [Span; 3] {
    let GroupedConv { conv, groups, .. } = grouped;
    let (inputs, outputs) = (conv.in_channels / groups, conv.out_channels / groups);
    let of_images = |inner| Span::Slab { outer: conv.batch, inner };
    [
        of_images(inputs * area(conv.in_size)),
        slab(outputs * inputs * conv.window.area()),
        of_images(outputs * area(conv.out_size)),
    ]
}

/// The planes of a pooling: of its input and of its output.
const fn planes(pool: &Pool) -> [Span; 2] {
    [slab(area(pool.in_size)), slab(area(pool.out_size))]
}

/// The sequences of an attention: queries, keys and values, the result, and its sums.
const fn sequences(heads: Heads) -> [Span; 3] {
    let y = heads.tokens * heads.heads * heads.width;
    [slab(3 * y), slab(y), slab(heads.heads * heads.tokens)]
}

/// The sequences of an attention: queries, keys, and its sums.
const fn queries(e: Queries) -> [Span; 3] {
    let (q, k) = (e.queries * e.heads * e.width, e.keys * e.shared * e.width);
    [slab(q), slab(k), slab(e.heads * e.queries)]
}

/// Whether row `r` has label `r`.
const fn in_order(loss: &Classification) -> bool {
    loss.places.offset == 0 && loss.places.stride == 1 && loss.places.each >= loss.rows
}

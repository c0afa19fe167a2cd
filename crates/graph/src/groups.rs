//! Extents of ops that work in groups of channels, rows or samples: grouped convolutions, group normalization, attention whose heads share keys,
//! rotary positions and diffusion.

use crate::extents::{Channels, Conv, Window};
use crate::shape::Shape;

/// Extents of a convolution in groups, with a distance between the taps of its windows. `w` is `[out_channels, in_channels / groups, kernel]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupedConv {
    /// Extents of all groups together. The algorithm has no effect.
    pub conv: Conv,
    /// Number of groups, a divisor of both numbers of channels.
    pub groups: usize,
    /// Distance between neighbouring taps of a window, as `[height, width]`; 1 where they touch.
    pub dilation: [usize; 2],
}

impl GroupedConv {
    /// `[out_channels, in_channels / groups, height, width]` of the window.
    pub fn w(&self) -> Shape {
        let [height, width] = self.conv.window.kernel;
        [self.conv.out_channels, self.conv.in_channels / self.groups.max(1), height, width].into()
    }

    /// The window that a dilated one spans: output sizes follow from it.
    pub fn span(window: Window, dilation: [usize; 2]) -> Window {
        let spread = |axis: usize| {
            let taps = window.kernel[axis].saturating_sub(1);
            taps.saturating_mul(dilation[axis]).saturating_add(usize::from(window.kernel[axis] > 0))
        };
        Window { kernel: [spread(0), spread(1)], ..window }
    }

    /// Multiply-adds of one pass over all of it.
    pub const fn multiply_adds(&self) -> u64 {
        self.conv.multiply_adds() / self.groups as u64
    }
}

/// Extents of a group normalization over `[batch, channels, spatial]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Groups {
    /// Extents of the operand.
    pub channels: Channels,
    /// Number of groups, a divisor of the channels.
    pub groups: usize,
}

impl Groups {
    /// Number of groups in the whole batch, each with a mean.
    pub const fn count(&self) -> usize {
        self.channels.batch * self.groups
    }

    /// Elements of one group.
    pub const fn len(&self) -> usize {
        self.channels.channels / self.groups * self.channels.spatial
    }

    /// Whether groups have no elements.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Extents of attention with queries, keys and values of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Queries {
    /// Sequences.
    pub batch: usize,
    /// Queries of a sequence.
    pub queries: usize,
    /// Keys and values of a sequence.
    pub keys: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of keys and values, a divisor of the heads: neighbouring heads share one.
    pub shared: usize,
    /// Columns of one head.
    pub width: usize,
    /// Whether query `i` attends only to keys `j ≤ i`.
    pub causal: bool,
}

impl Queries {
    /// `[batch, queries, heads·width]` of the queries and of the result.
    pub fn q(&self) -> Shape {
        [self.batch, self.queries, self.heads * self.width].into()
    }

    /// `[batch, keys, shared·width]` of the keys and of the values.
    pub fn k(&self) -> Shape {
        [self.batch, self.keys, self.shared * self.width].into()
    }

    /// `[batch, heads, queries]`
    pub fn lse(&self) -> Shape {
        [self.batch, self.heads, self.queries].into()
    }

    /// Number of pairs (query, key) that are evaluated, over all heads and sequences.
    pub const fn pairs(&self) -> u64 {
        let all = if self.causal {
            let both = if self.queries < self.keys { self.queries } else { self.keys };
            both * (both + 1) / 2 + (self.queries - both) * self.keys
        } else {
            self.queries * self.keys
        };
        (self.batch * self.heads * all) as u64
    }
}

/// Extents of a rotation of `[batch, tokens, heads·width]` by positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotation {
    /// Sequences.
    pub batch: usize,
    /// Length of a sequence.
    pub tokens: usize,
    /// Heads.
    pub heads: usize,
    /// Columns of one head, an even number.
    pub width: usize,
    /// The base of the angles, 10,000 in most models.
    pub base: f32,
    /// Whether it turns back.
    pub back: bool,
}

impl Rotation {
    /// `[batch, tokens, heads·width]`
    pub fn x(&self) -> Shape {
        [self.batch, self.tokens, self.heads * self.width].into()
    }

    /// Cosine and sine of the angle by which pair `i` turns at a token.
    pub fn turn(&self, token: usize, i: usize) -> [f32; 2] {
        let angle = token as f64 * f64::from(self.base).powf(-2.0 * i as f64 / self.width as f64);
        let sine = if self.back { -angle.sin() } else { angle.sin() };
        [angle.cos() as f32, sine as f32]
    }
}

/// The steps of a diffusion with noise that grows linearly (Ho et al., 2020, section 4), and the extents of what is diffused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Diffusion {
    /// Samples.
    pub batch: usize,
    /// Elements of a sample.
    pub size: usize,
    /// Number of steps; at least one.
    pub steps: usize,
}

impl Diffusion {
    /// `√ᾱ_t` and `√(1 − ᾱ_t)`, where `ᾱ_t = Π_{s ≤ t} (1 − β_s)` and β rises linearly from 10⁻⁴ to 0.02. A step outside `0..steps` counts as the
    /// nearest one inside.
    pub fn weights(&self, step: i32) -> [f32; 2] {
        let last = self.steps.saturating_sub(1);
        let step = usize::try_from(step).unwrap_or(0).min(last);
        let beta = |s: usize| 1e-4 + (0.02 - 1e-4) * s as f64 / last.max(1) as f64;
        let kept: f64 = (0..=step).map(|s| 1.0 - beta(s)).product();
        [kept.sqrt() as f32, (1.0 - kept).sqrt() as f32]
    }
}

//! Convolutions that see one input channel per output channel, plane by plane.
//!
//! A plane is copied with its padding, cut by the residues of its rows and columns to the stride. Within one residue a tap of the window is a
//! fixed distance in memory: along all lines at once, the convolution is a sum of shifted copies, one long loop for each tap. Positions behind
//! the end of a line are computed too and thrown away, which costs less than beginning a loop for every line.

use elbowroom_graph::op::GroupedConv;
use rayon::ThreadPool;

use super::convolution::area;
use super::grouped::{each_slot, slots};
use super::isa::vectorized;
use super::parallel::Shared;
use super::reduce::Sums;

/// Elements of a result that are summed over all taps while they stay in registers or in the nearest cache.
const BLOCK: usize = 64;

/// The padded plane of a convolution, cut by residues.
#[derive(Clone, Copy)]
struct Layout {
    padding: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    kernel: [usize; 2],
    /// Height and width of a plane of the input and of the result.
    input: [usize; 2],
    output: [usize; 2],
    /// Lines and columns of one residue.
    lines: usize,
    pitch: usize,
}

impl Layout {
    fn of(grouped: &GroupedConv) -> Self {
        let conv = grouped.conv;
        // What any window covers, and what of the input lies behind: both have a place.
        let extent = |axis: usize| {
            let reach = (conv.window.kernel[axis].max(1) - 1) * grouped.dilation[axis];
            let covered = (conv.out_size[axis].max(1) - 1) * conv.window.stride[axis] + reach + 1;
            covered.max(conv.in_size[axis] + conv.window.padding[axis]).div_ceil(conv.window.stride[axis])
        };
        Self {
            padding: conv.window.padding,
            stride: conv.window.stride,
            dilation: grouped.dilation,
            kernel: conv.window.kernel,
            input: conv.in_size,
            output: conv.out_size,
            lines: extent(0),
            pitch: extent(1),
        }
    }

    /// Floats of one residue. The last window reaches over the end of the last line.
    fn residue(&self) -> usize {
        self.lines * self.pitch + self.margin()
    }

    /// Floats of a cut plane.
    fn cut(&self) -> usize {
        area(self.stride) * self.residue()
    }

    /// The farthest tap, within one residue.
    fn margin(&self) -> usize {
        let farthest =
            [0, 1].map(|axis| (self.kernel[axis].max(1) - 1) * self.dilation[axis] / self.stride[axis]);
        farthest[0] * self.pitch + farthest[1]
    }

    /// Positions of the result with those behind the ends of lines.
    fn positions(&self) -> usize {
        self.output[0] * self.pitch
    }

    /// For each tap in order its residue, as where it starts in the cut plane, and its distance in it.
    #[inline(always)]
    fn tap(&self, tap: usize) -> (usize, usize) {
        let at = [tap / self.kernel[1] * self.dilation[0], tap % self.kernel[1] * self.dilation[1]];
        let residue = at[0] % self.stride[0] * self.stride[1] + at[1] % self.stride[1];
        (residue * self.residue(), at[0] / self.stride[0] * self.pitch + at[1] / self.stride[1])
    }

    /// Calls `f(line, start, residue's first column, columns)` for every part of an input line that lies in one residue: its elements start
    /// at `start` in the cut plane, and are every `stride`-th of the line.
    #[inline(always)]
    fn lines(&self, mut f: impl FnMut(usize, usize, usize)) {
        for line in 0..self.input[0] {
            let row = line + self.padding[0];
            for across in 0..self.stride[1] {
                // The first column of this residue.
                let first = (across + self.stride[1] - self.padding[1] % self.stride[1]) % self.stride[1];
                let column = (first + self.padding[1]) / self.stride[1];
                let residue = (row % self.stride[0]) * self.stride[1] + across;
                f(line, residue * self.residue() + row / self.stride[0] * self.pitch + column, first);
            }
        }
    }

    /// Cuts a plane of the input.
    #[inline(always)]
    fn cut_plane(&self, plane: &[f32], to: &mut [f32]) {
        to.fill(0.0);
        let (width, stride) = (self.input[1], self.stride[1]);
        self.lines(
            #[inline(always)]
            |line, start, first| {
                let from = &plane[line * width..(line + 1) * width];
                if stride == 1 {
                    to[start..start + width].copy_from_slice(from);
                } else if first < width {
                    for (to, &x) in to[start..].iter_mut().zip(from[first..].iter().step_by(stride)) {
                        *to = x;
                    }
                }
            },
        );
    }

    /// Puts a cut plane together again.
    #[inline(always)]
    fn join_plane(&self, from: &[f32], plane: &mut [f32]) {
        let (width, stride) = (self.input[1], self.stride[1]);
        self.lines(
            #[inline(always)]
            |line, start, first| {
                let to = &mut plane[line * width..(line + 1) * width];
                if stride == 1 {
                    to.copy_from_slice(&from[start..start + width]);
                } else if first < width {
                    for (x, &from) in to[first..].iter_mut().step_by(stride).zip(&from[start..]) {
                        *x = from;
                    }
                }
            },
        );
    }

    /// Copies a plane of the result with zeros behind the ends of its lines.
    #[inline(always)]
    fn spread(&self, plane: &[f32], to: &mut [f32]) {
        to.fill(0.0);
        for (to, line) in to.chunks_exact_mut(self.pitch).zip(plane.chunks_exact(self.output[1].max(1))) {
            to[..line.len()].copy_from_slice(line);
        }
    }
}

/// Output channels of one input channel.
fn multiplier(grouped: &GroupedConv) -> usize {
    grouped.conv.out_channels / grouped.groups.max(1)
}

/// Floats of scratch of [`forward`].
pub fn scratch(grouped: &GroupedConv) -> usize {
    let layout = Layout::of(grouped);
    slots(grouped.conv.batch * grouped.groups) * (layout.cut() + layout.positions())
}

/// Floats of scratch of [`grad_input`].
pub fn grad_input_scratch(grouped: &GroupedConv) -> usize {
    let layout = Layout::of(grouped);
    slots(grouped.conv.batch * grouped.groups) * (layout.cut() + behind(&layout))
}

/// Floats of scratch of [`grad_weight`].
pub fn grad_weight_scratch(grouped: &GroupedConv) -> usize {
    let layout = Layout::of(grouped);
    slots(grouped.groups) * (layout.cut() + layout.positions())
}

/// Floats of a plane of the result's gradient with zeros on both sides, as far as taps reach.
fn behind(layout: &Layout) -> usize {
    layout.margin() + layout.residue().max(layout.positions())
}

/// # Safety
/// `y` can be written for all planes of the result.
pub unsafe fn forward(
    pool: &ThreadPool,
    grouped: &GroupedConv,
    (x, w, bias): (&[f32], &[f32], Option<&[f32]>),
    y: Shared<f32>,
    scratch: &mut [f32],
) {
    let (layout, conv) = (Layout::of(grouped), grouped.conv);
    let (many, taps) = (multiplier(grouped), conv.window.area());
    let (in_plane, out_plane) = (area(conv.in_size), area(conv.out_size));
    let len = layout.cut() + layout.positions();
    each_slot(pool, conv.batch * grouped.groups, scratch, len, |index, scratch| {
        let (cut, sums) = scratch.split_at_mut(layout.cut());
        vectorized(
            #[inline(always)]
            || {
                layout.cut_plane(&x[index * in_plane..][..in_plane], cut);
                for k in 0..many {
                    let channel = index % grouped.groups * many + k;
                    let weights = &w[channel * taps..][..taps];
                    let first = bias.map_or(0.0, |bias| bias[channel]);
                    shifted(&layout, weights, first, cut, sums);
                    let at = (index / grouped.groups * conv.out_channels + channel) * out_plane;
                    // SAFETY: every task has its own planes.
                    let y = unsafe { y.slice(at, out_plane) };
                    for (y, sums) in
                        y.chunks_exact_mut(conv.out_size[1].max(1)).zip(sums.chunks(layout.pitch))
                    {
                        y.copy_from_slice(&sums[..y.len()]);
                    }
                }
            },
        );
    });
}

/// `held[k] += weight · from[k]`, as far as `from` reaches.
#[inline(always)]
fn add_scaled(held: &mut [f32; BLOCK], weight: f32, from: &[f32]) {
    for (held, &x) in held.iter_mut().zip(from) {
        *held += weight * x;
    }
}

/// [`add_scaled`] for a block of which the last one of a plane may lack elements. With a length that the compiler knows, the sums stay in
/// registers.
#[inline(always)]
fn add_block(held: &mut [f32; BLOCK], weight: f32, from: &[f32]) {
    match from.first_chunk::<BLOCK>() {
        Some(block) => add_scaled(held, weight, block),
        None => add_scaled(held, weight, from),
    }
}

/// `sums[k] = first + Σ_taps weight · cut[k + distance of the tap]`.
#[inline(always)]
fn shifted(layout: &Layout, weights: &[f32], first: f32, cut: &[f32], sums: &mut [f32]) {
    for (block, sums) in sums.chunks_mut(BLOCK).enumerate() {
        let mut held = [first; BLOCK];
        let at = block * BLOCK;
        for (tap, &weight) in weights.iter().enumerate() {
            let (residue, distance) = layout.tap(tap);
            let from = &cut[residue + distance + at..];
            add_block(&mut held, weight, from);
        }
        sums.copy_from_slice(&held[..sums.len()]);
    }
}

/// # Safety
/// `dx` can be written for all planes of the input.
pub unsafe fn grad_input(
    pool: &ThreadPool,
    grouped: &GroupedConv,
    (dy, w): (&[f32], &[f32]),
    dx: Shared<f32>,
    scratch: &mut [f32],
) {
    let (layout, conv) = (Layout::of(grouped), grouped.conv);
    let (many, taps) = (multiplier(grouped), conv.window.area());
    let (in_plane, out_plane) = (area(conv.in_size), area(conv.out_size));
    let (margin, residue) = (layout.margin(), layout.residue());
    let len = layout.cut() + behind(&layout);
    each_slot(pool, conv.batch * grouped.groups, scratch, len, |index, scratch| {
        let (cut, spread) = scratch.split_at_mut(layout.cut());
        vectorized(
            #[inline(always)]
            || {
                cut.fill(0.0);
                for k in 0..many {
                    let channel = index % grouped.groups * many + k;
                    let weights = &w[channel * taps..][..taps];
                    let at = (index / grouped.groups * conv.out_channels + channel) * out_plane;
                    spread[..margin].fill(0.0);
                    layout.spread(&dy[at..][..out_plane], &mut spread[margin..]);
                    for (of, sums) in cut.chunks_exact_mut(residue).enumerate() {
                        gathered(&layout, of * residue, weights, spread, sums);
                    }
                }
                // SAFETY: every task has its own planes.
                layout.join_plane(cut, unsafe { dx.slice(index * in_plane, in_plane) });
            },
        );
    });
}

/// `sums[m] += Σ weight · spread[margin + m − distance]` over the taps of one residue.
#[inline(always)]
fn gathered(layout: &Layout, residue: usize, weights: &[f32], spread: &[f32], sums: &mut [f32]) {
    let margin = layout.margin();
    for (block, sums) in sums.chunks_mut(BLOCK).enumerate() {
        let mut held = [0.0f32; BLOCK];
        held[..sums.len()].copy_from_slice(sums);
        for (tap, &weight) in weights.iter().enumerate() {
            let (of, distance) = layout.tap(tap);
            if of != residue {
                continue;
            }
            let from = &spread[(margin + block * BLOCK - distance).min(spread.len())..];
            add_block(&mut held, weight, from);
        }
        sums.copy_from_slice(&held[..sums.len()]);
    }
}

/// # Safety
/// `dw` can be written for all weights.
pub unsafe fn grad_weight(
    pool: &ThreadPool,
    grouped: &GroupedConv,
    (x, dy): (&[f32], &[f32]),
    dw: Shared<f32>,
    scratch: &mut [f32],
) {
    let (layout, conv) = (Layout::of(grouped), grouped.conv);
    let (many, taps) = (multiplier(grouped), conv.window.area());
    let (in_plane, out_plane) = (area(conv.in_size), area(conv.out_size));
    let positions = layout.positions();
    let len = layout.cut() + positions;
    each_slot(pool, grouped.groups, scratch, len, |group, scratch| {
        let (cut, spread) = scratch.split_at_mut(layout.cut());
        // SAFETY: every task has its own group.
        let dw = unsafe { dw.slice(group * many * taps, many * taps) };
        dw.fill(0.0);
        vectorized(
            #[inline(always)]
            || {
                for image in 0..conv.batch {
                    let plane = (image * grouped.groups + group) * in_plane;
                    layout.cut_plane(&x[plane..][..in_plane], cut);
                    for k in 0..many {
                        let at = (image * conv.out_channels + group * many + k) * out_plane;
                        layout.spread(&dy[at..][..out_plane], spread);
                        for (tap, dw) in dw[k * taps..][..taps].iter_mut().enumerate() {
                            let (residue, distance) = layout.tap(tap);
                            let mut sums = Sums::<1>::new();
                            let from = &cut[residue + distance..];
                            let len = positions.min(from.len());
                            sums.add2(&spread[..len], &from[..len], |dy, x| [dy * x]);
                            *dw += sums.total()[0] as f32;
                        }
                    }
                }
            },
        );
    });
}

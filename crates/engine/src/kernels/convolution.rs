//! Convolutions and their gradients: matrix products whose operands are packed straight from the images.
//!
//! The gradient to the input is a convolution of `dy` with reversed weights. With a stride, input positions of different residues see
//! different taps, so every residue is a product of its own, with no multiplications by the zeros between strides.

use elbowroom_graph::OpKind;
use elbowroom_graph::op::{Algorithm, Conv};
use rayon::ThreadPool;

use super::Operands;
use super::direct::{self, Direct};
use super::number::{Factor, Number};
use super::pack::Strided;
use super::parallel::{Shared, chunks};
use super::product::{Extents, Initial, ScratchLevel, Target, product};
use super::shared_taps::weight_sums;
use super::windows::{Planes, Reversed, Windows};
use super::winograd;

pub const fn area(size: [usize; 2]) -> usize {
    size[0] * size[1]
}

/// How much scratch the product may use.
const fn scratch_level(conv: &Conv) -> ScratchLevel {
    match conv.algorithm {
        Algorithm::Lean | Algorithm::WinogradLean => ScratchLevel::Reduced,
        Algorithm::Tiled | Algorithm::Direct | Algorithm::Winograd => ScratchLevel::Full,
    }
}

pub const fn extents(conv: &Conv) -> Extents {
    Extents {
        rows: conv.out_channels,
        columns: conv.batch * area(conv.out_size),
        depth: conv.in_channels * conv.window.area(),
        whole_depth: conv.in_channels * conv.window.area(),
        scratch_level: scratch_level(conv),
    }
}

pub const fn grad_weight_extents(conv: &Conv) -> Extents {
    Extents {
        rows: conv.out_channels,
        columns: conv.in_channels * conv.window.area(),
        depth: conv.batch * area(conv.out_size),
        whole_depth: conv.batch * area(conv.out_size),
        scratch_level: scratch_level(conv),
    }
}

/// Whether there is a kernel for an operation's algorithm.
pub fn computes(kind: &OpKind) -> bool {
    if let OpKind::Mixed(mixed) = kind {
        return computes(&mixed.kind);
    }
    kind.conv().is_some_and(|conv| match conv.algorithm {
        Algorithm::Tiled | Algorithm::Lean => true,
        _ if matches!(kind, OpKind::Conv2dGradInputTile { .. }) => false,
        Algorithm::Winograd | Algorithm::WinogradLean => conv.suits_winograd(),
        Algorithm::Direct => {
            // Only where lines follow each other in both is the width of a line that of a whole plane.
            let plain = conv.window.area() == 1 && conv.window.padding == [0, 0];
            let width = match kind {
                OpKind::Conv2d { .. } => conv.out_size,
                OpKind::Conv2dGradInput(_) => conv.in_size,
                _ => return false,
            };
            let width = if plain { area(width) } else { width[1] };
            conv.window.stride == [1, 1]
                && direct::lines(width).is_some()
                && direct::supports_taps(conv.window.area())
        }
    })
}

/// Floats of scratch of [`forward`].
pub fn scratch(conv: &Conv) -> usize {
    match conv.algorithm {
        Algorithm::Tiled | Algorithm::Lean => extents(conv).scratch(),
        Algorithm::Direct => 0,
        Algorithm::Winograd | Algorithm::WinogradLean => winograd::scratch(conv),
    }
}

/// Floats of scratch of [`grad_weight`].
pub fn grad_weight_scratch(conv: &Conv) -> usize {
    match conv.algorithm {
        Algorithm::Winograd | Algorithm::WinogradLean => winograd::grad_weight_scratch(conv),
        _ => grad_weight_extents(conv).scratch(),
    }
}

/// Floats of scratch of [`grad_input`].
pub fn grad_input_scratch(conv: &Conv) -> usize {
    grad_input_tile_scratch(conv, conv.out_channels)
}

/// Floats of scratch of [`grad_input_tile`], for a tile of a weight with `whole` output channels.
pub fn grad_input_tile_scratch(conv: &Conv, whole: usize) -> usize {
    match conv.algorithm {
        Algorithm::Tiled | Algorithm::Lean => {
            residues(conv, [1, 1]).map(|residue| residue.extents(conv, whole).scratch()).max().unwrap_or(0)
        }
        Algorithm::Direct => 0,
        Algorithm::Winograd | Algorithm::WinogradLean => winograd::grad_input_scratch(conv),
    }
}

/// The output channels, or a multiple of them, with which every sum of [`grad_input`] begins a new part.
pub fn grad_input_grain(conv: &Conv) -> usize {
    let grain = |residue: Residue| {
        let taps = area(residue.taps);
        let grain = residue.extents(conv, conv.out_channels).grain();
        grain / gcd(grain, taps)
    };
    let reached = residues(conv, [1, 1]).filter(|residue| area(residue.taps) > 0);
    reached.map(grain).fold(1, super::common_multiple)
}

/// The greatest common divisor of two numbers above zero.
pub const fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The windows of a convolution whose taps are `dilation` apart.
pub fn windows<'a, T: Number>(conv: &Conv, dilation: [usize; 2], x: &'a [T]) -> Windows<'a, T> {
    Windows {
        images: x,
        channels: conv.in_channels,
        size: conv.in_size,
        positions: conv.out_size,
        taps: conv.window.kernel,
        start: conv.window.padding.map(|padding| -(padding as isize)),
        stride: conv.window.stride,
        step: dilation.map(|distance| distance as isize),
    }
    .joined()
}

/// # Safety
/// As [`super::run`].
pub unsafe fn forward<T: Factor>(o: &Operands<'_>, pool: &ThreadPool, conv: &Conv, bias: bool) {
    if !conv.algorithm.has_usual_bits() {
        // SAFETY: the caller's promise.
        return unsafe { winograd::forward::<T>(o, pool, conv, bias) };
    }
    if conv.algorithm == Algorithm::Direct {
        // SAFETY: the result is apart from all operands.
        return unsafe {
            let taps = conv.window.area();
            let direct = Direct {
                rows: conv.out_channels,
                windows: windows(conv, [1, 1], o.read::<f32>(0, conv.x().len())),
                weights: o.read(1, conv.w().len()),
                row_step: conv.in_channels * taps,
                channel_step: taps,
                bias: bias.then(|| o.read(2, conv.out_channels)),
            };
            direct.run(pool, Shared::new(o.target(0, conv.y().len())))
        };
    }
    let extents = extents(conv);
    let plane = area(conv.out_size);
    // SAFETY: the result is apart from all operands.
    unsafe {
        let x = windows(conv, [1, 1], o.read::<T>(0, conv.x().len()));
        let w = Strided { data: o.read::<f32>(1, conv.w().len()), line_step: extents.depth, depth_step: 1 };
        let w = T::weight(w);
        let initial = if bias { Initial::Rows(o.read(2, conv.out_channels)) } else { Initial::Zero };
        let y = Target::planes(Shared::new(o.target(0, conv.y().len())), conv.out_channels * plane, plane);
        product(Some(pool), extents, (&w, &x), initial, y, o.scratch(extents.scratch()));
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad_weight<T: Factor>(o: &Operands<'_>, pool: &ThreadPool, conv: &Conv) {
    if !conv.algorithm.has_usual_bits() {
        // SAFETY: the caller's promise.
        return unsafe { winograd::grad_weight::<T>(o, pool, conv) };
    }
    let extents = grad_weight_extents(conv);
    // SAFETY: the result is apart from all operands.
    unsafe {
        let x = windows(conv, [1, 1], o.read::<T>(0, conv.x().len()));
        let images = o.read::<T>(1, conv.y().len());
        let dy = Planes { images, channels: conv.out_channels, plane: area(conv.out_size) };
        let dw = Shared::new(o.target(0, conv.w().len()));
        weight_sums(pool, extents, (&dy, x), dw, o.scratch(extents.scratch()));
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad_input<T: Factor>(o: &Operands<'_>, pool: &ThreadPool, conv: &Conv) {
    if !conv.algorithm.has_usual_bits() {
        // SAFETY: the caller's promise.
        return unsafe { winograd::grad_input::<T>(o, pool, conv) };
    }
    // SAFETY: the result is apart from all operands.
    unsafe {
        let w = o.read(1, conv.w().len());
        let dx = Shared::new(o.target(0, conv.x().len()));
        if conv.algorithm == Algorithm::Direct {
            let taps = conv.window.area();
            let direct = Direct {
                rows: conv.in_channels,
                // At a stride of one all positions are of one residue.
                windows: Residue::new(conv, [1, 1], [0, 0]).windows(conv, o.read(0, conv.y().len())),
                weights: w,
                row_step: taps,
                channel_step: conv.in_channels * taps,
                bias: None,
            };
            return direct.run(pool, dx);
        }
        // Positions that no tap reaches are zero; where there are such, all are zeroed first, line after line.
        if leaves_gaps(conv, [1, 1]) {
            let len = conv.x().len();
            chunks(pool, len, |start, len| dx.slice(start, len).fill(0.0));
        }
        let dy = o.read::<T>(0, conv.y().len());
        let scratch = o.scratch(grad_input_scratch(conv));
        sums(Some(pool), (conv, [1, 1]), None, (dy, w), dx, scratch);
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad_input_tile(o: &Operands<'_>, pool: &ThreadPool, conv: &Conv, whole: usize) {
    // SAFETY: the result is the sum so far, which only the products touch.
    unsafe {
        let (dy, w) = (o.read::<f32>(0, conv.y().len()), o.read(1, conv.w().len()));
        let dx = Shared::new(o.target(0, conv.x().len()));
        let scratch = o.scratch(grad_input_tile_scratch(conv, whole));
        sums(Some(pool), (conv, [1, 1]), Some(whole), (dy, w), dx, scratch);
    }
}

/// Whether there are input positions that no tap reaches.
pub fn leaves_gaps(conv: &Conv, dilation: [usize; 2]) -> bool {
    residues(conv, dilation).any(|residue| area(residue.taps) == 0)
}

/// The gradient to the input of a convolution whose taps are `dilation` apart, residue by residue. With `continues`, the convolution has some
/// output channels of one with as many as that, and goes on with the sums of those before.
///
/// # Safety
/// As [`product`], for all of `dx`.
pub unsafe fn sums<T: Factor>(
    pool: Option<&ThreadPool>,
    (conv, dilation): (&Conv, [usize; 2]),
    continues: Option<usize>,
    (dy, w): (&[T], &[f32]),
    dx: Shared<f32>,
    scratch: &mut [f32],
) {
    for residue in residues(conv, dilation).filter(|residue| area(residue.taps) > 0) {
        let w = T::weight(residue.weights(conv, w));
        let operands = (&w, &residue.windows(conv, dy));
        let extents = residue.extents(conv, continues.unwrap_or(conv.out_channels));
        let initial = if continues.is_some() { extents.continued() } else { Initial::Zero };
        let target = residue.target(conv, dx);
        // SAFETY: the caller's promise.
        unsafe { product(pool, extents, operands, initial, target, scratch) };
    }
}

/// The input positions `stride · p + residue`, and the taps that reach them, along both axes.
pub struct Residue {
    residue: [usize; 2],
    /// Number of positions.
    positions: [usize; 2],
    /// First tap and number of taps, and the distance between them.
    first: [usize; 2],
    taps: [usize; 2],
    apart: [usize; 2],
    /// Where the first tap lies in `dy` at position 0, and how far each next one lies before it.
    start: [isize; 2],
    step: [isize; 2],
}

/// Residues along both axes that have positions.
pub fn residues(conv: &Conv, dilation: [usize; 2]) -> impl Iterator<Item = Residue> {
    let [down, across] = conv.window.stride;
    (0..down)
        .flat_map(move |y| (0..across).map(move |x| Residue::new(conv, dilation, [y, x])))
        .filter(|residue| area(residue.positions) > 0)
}

impl Residue {
    fn new(conv: &Conv, dilation: [usize; 2], residue: [usize; 2]) -> Self {
        // `position · stride + padding − tap · dilation` must be a multiple of the stride: every `apart`-th tap, if any.
        let axes = [0, 1].map(|axis| {
            let (stride, dilation, kernel) =
                (conv.window.stride[axis], dilation[axis], conv.window.kernel[axis]);
            let from = residue[axis] + conv.window.padding[axis];
            let common = gcd(stride, dilation);
            let apart = stride / common;
            let positions = conv.in_size[axis].saturating_sub(residue[axis]).div_ceil(stride);
            let meets = |&tap: &usize| (from as isize - (tap * dilation) as isize) % stride as isize == 0;
            let first = (0..apart.min(kernel)).find(meets);
            let taps = first.map_or(0, |first| (kernel - first).div_ceil(apart));
            let first = first.unwrap_or(0);
            let start = (from as isize - (first * dilation) as isize) / stride as isize;
            (positions, first, taps, apart, start, -((dilation / common) as isize))
        });
        Self {
            residue,
            positions: axes.map(|axis| axis.0),
            first: axes.map(|axis| axis.1),
            taps: axes.map(|axis| axis.2),
            apart: axes.map(|axis| axis.3),
            start: axes.map(|axis| axis.4),
            step: axes.map(|axis| axis.5),
        }
    }

    /// Extents for a weight with `whole` output channels, of which `conv` may have some.
    pub fn extents(&self, conv: &Conv, whole: usize) -> Extents {
        Extents {
            rows: conv.in_channels,
            columns: conv.batch * area(self.positions),
            depth: conv.out_channels * area(self.taps),
            whole_depth: whole * area(self.taps),
            scratch_level: scratch_level(conv),
        }
    }

    fn weights<'a>(&self, conv: &Conv, weights: &'a [f32]) -> Reversed<'a> {
        Reversed {
            weights,
            inputs: conv.in_channels,
            kernel: conv.window.kernel,
            first: self.first,
            stride: self.apart,
            taps: self.taps,
        }
    }

    fn windows<'a, T: Number>(&self, conv: &Conv, dy: &'a [T]) -> Windows<'a, T> {
        Windows {
            images: dy,
            channels: conv.out_channels,
            size: conv.out_size,
            positions: self.positions,
            taps: self.taps,
            start: self.start,
            stride: [1, 1],
            step: self.step,
        }
        .joined()
    }

    fn target(&self, conv: &Conv, dx: Shared<f32>) -> Target {
        let (plane, width) = (area(conv.in_size), conv.in_size[1]);
        if conv.window.stride == [1, 1] {
            return Target::planes(dx, conv.in_channels * plane, plane);
        }
        let [down, across] = conv.window.stride;
        Target {
            // SAFETY: the first position of the residue lies in the image.
            start: Shared::new(unsafe { dx.add(self.residue[0] * width + self.residue[1]) }),
            row_step: plane,
            size: self.positions,
            steps: [conv.in_channels * plane, down * width, across],
        }
    }
}

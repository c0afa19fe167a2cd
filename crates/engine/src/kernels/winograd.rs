//! Convolutions of 3×3 windows at a stride of one with fewer multiplications: Winograd's minimal filtering F(2×2, 3×3), after Lavin and
//! Gray (*Fast algorithms for convolutional neural networks*, 2015, section 4.1).
//!
//! The output is cut into *tiles* of 2×2; each depends on a patch of 4×4. With the paper's matrices, `Y = Aᵀ[(G·g·Gᵀ) ⊙ (Bᵀ·d·B)]A`:
//! sixteen matrix products, one for each element of a patch, replace one product that is nine times as deep and four times as wide: 16
//! multiplications instead of 36. The gradient to the input is the same pass over `dy` with rotated weights. The gradient to the weights is
//! the transposed map: `dg = Gᵀ[Σ_tiles (A·dy·Aᵀ) ⊙ (Bᵀ·d·B)]G`.
//!
//! Lines of tiles are processed a few at a time; their number depends on extents alone, so that patches and products fit into the workspace
//! together with the transformed weights. The order of sums over tiles and channels depends on extents alone, too.

use elbowroom_graph::op::Conv;
use rayon::ThreadPool;

use super::Operands;
use super::pack::Strided;
use super::parallel::{Shared, each};
use super::product::{Extents, Initial, Target, product};

mod tiles;
mod transforms;

use tiles::{PATCH_ELEMENTS, Tiling, TransformedTiles};
use transforms::{Images, collect, collect_weights, spread, transform, transform_weights};

/// Whether this algorithm can compute a convolution.
pub fn computes(conv: &Conv) -> bool {
    conv.window.kernel == [3, 3]
        && conv.window.stride == [1, 1]
        && conv.window.padding.iter().all(|&p| p <= 2)
}

/// Channels on both sides of a pass from inputs to outputs, and its tiles.
struct WinogradPass {
    inputs: usize,
    outputs: usize,
    tiling: Tiling,
    positions: [usize; 2],
}

impl WinogradPass {
    fn forward(conv: &Conv) -> Self {
        Self::new(conv, conv.in_channels, conv.out_channels, conv.out_size)
    }

    fn backward(conv: &Conv) -> Self {
        Self::new(conv, conv.out_channels, conv.in_channels, conv.in_size)
    }

    fn new(conv: &Conv, inputs: usize, outputs: usize, positions: [usize; 2]) -> Self {
        Self { inputs, outputs, tiling: Tiling::new(conv.batch, positions, inputs + outputs), positions }
    }

    /// Extents of the product of one patch element.
    fn element(&self, tiles: usize) -> Extents {
        Extents::new(self.outputs, tiles, self.inputs)
    }

    /// Floats of the weights, of the patches, of the products, and of the scratch of all products.
    fn parts(&self) -> [usize; 4] {
        let width = self.tiling.width();
        let scratch = self.tiling.scratch(|tiles| self.element(tiles));
        [
            TransformedTiles::len(self.outputs, self.inputs),
            TransformedTiles::len(self.inputs, width),
            TransformedTiles::len(self.outputs, width),
            PATCH_ELEMENTS * scratch,
        ]
    }

    /// The pass over some images with transformed weights.
    ///
    /// # Safety
    /// `target` holds `[batch, outputs, positions]`, which nothing else touches; the parts of the scratch are as [`Self::parts`] says.
    unsafe fn run(
        &self,
        pool: &ThreadPool,
        images: Images<'_>,
        bias: Option<&[f32]>,
        target: Shared<f32>,
        weights: TransformedTiles,
        [patches, products, scratch]: [&mut [f32]; 3],
    ) {
        let (tiling, width) = (self.tiling, self.tiling.width());
        let per_product = scratch.len() / PATCH_ELEMENTS;
        let patches = TransformedTiles::new(patches, self.inputs, width);
        let products = TransformedTiles::new(products, self.outputs, width);
        let scratch = Shared::new(scratch.as_mut_ptr());
        for lines in tiling.parts() {
            let tiles = lines.len() * tiling.tiles[1];
            // SAFETY: tasks have channels, spots and scratch of their own; one kind of task follows the other.
            unsafe {
                each(pool, self.inputs, |channel| transform(images, tiling, lines.clone(), channel, patches));
                each(pool, PATCH_ELEMENTS, |at| {
                    let left = Strided { data: weights.matrix(at), line_step: self.inputs, depth_step: 1 };
                    let right = Strided { data: patches.matrix(at), line_step: 1, depth_step: width };
                    let target = Target::matrix(Shared::new(products.row(at, 0)), width);
                    let scratch = scratch.slice(at * per_product, per_product);
                    product(None, self.element(tiles), (&left, &right), Initial::Zero, target, scratch);
                });
                each(pool, self.outputs, |channel| {
                    let channel = (channel, bias.map_or(0.0, |bias| bias[channel]));
                    let target = (target, self.outputs, self.positions);
                    collect(tiling, lines.clone(), channel, products, target);
                });
            }
        }
    }
}

/// Floats of scratch of [`forward`].
pub fn scratch(conv: &Conv) -> usize {
    WinogradPass::forward(conv).parts().iter().sum()
}

/// Floats of scratch of [`grad_input`].
pub fn grad_input_scratch(conv: &Conv) -> usize {
    WinogradPass::backward(conv).parts().iter().sum()
}

/// Cuts scratch into parts of these lengths.
fn cut<const N: usize>(mut scratch: &mut [f32], lens: [usize; N]) -> [&mut [f32]; N] {
    lens.map(|len| {
        let (part, rest) = std::mem::take(&mut scratch).split_at_mut(len);
        scratch = rest;
        part
    })
}

/// # Safety
/// As [`super::run`].
pub unsafe fn forward(o: &Operands<'_>, pool: &ThreadPool, conv: &Conv, bias: bool) {
    let pass = WinogradPass::forward(conv);
    let (inputs, outputs) = (pass.inputs, pass.outputs);
    // SAFETY: the result is apart from all operands.
    unsafe {
        let (x, w) = (o.read(0, conv.x().len()), o.read(1, conv.w().len()));
        let bias: Option<&[f32]> = bias.then(|| o.read(2, outputs));
        let [weights, rest @ ..] = cut(o.scratch(scratch(conv)), pass.parts());
        let weights = TransformedTiles::new(weights, outputs, inputs);
        each(pool, outputs, |output| {
            let nine = |input: usize| 9 * (output * inputs + input);
            transform_weights(output, weights, false, nine, w);
        });
        let start = conv.window.padding.map(|padding| -(padding as isize));
        let images = Images { data: x, channels: inputs, size: conv.in_size, start };
        pass.run(pool, images, bias, Shared::new(o.target(0, conv.y().len())), weights, rest);
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad_input(o: &Operands<'_>, pool: &ThreadPool, conv: &Conv) {
    let pass = WinogradPass::backward(conv);
    let (inputs, outputs) = (pass.inputs, pass.outputs);
    // SAFETY: the result is apart from all operands.
    unsafe {
        let (dy, w) = (o.read(0, conv.y().len()), o.read(1, conv.w().len()));
        let [weights, rest @ ..] = cut(o.scratch(grad_input_scratch(conv)), pass.parts());
        let weights = TransformedTiles::new(weights, outputs, inputs);
        each(pool, outputs, |output| {
            let nine = |input: usize| 9 * (input * outputs + output);
            transform_weights(output, weights, true, nine, w);
        });
        // Position q sees dy from q + padding − 2 to q + padding.
        let start = conv.window.padding.map(|padding| padding as isize - 2);
        let images = Images { data: dy, channels: inputs, size: conv.out_size, start };
        pass.run(pool, images, None, Shared::new(o.target(0, conv.x().len())), weights, rest);
    }
}

/// Extents of the product of one patch element in [`grad_weight`].
fn grad_weight_spot(conv: &Conv, tiles: usize) -> Extents {
    Extents::new(conv.out_channels, conv.in_channels, tiles)
}

/// The tiles of [`grad_weight`], and floats of its sums, of the patches of `x`, of the tiles of `dy`, and of the scratch of all products.
fn grad_weight_parts(conv: &Conv) -> (Tiling, [usize; 4]) {
    let (inputs, outputs) = (conv.in_channels, conv.out_channels);
    let tiling = Tiling::new(conv.batch, conv.out_size, inputs + outputs);
    let scratch = tiling.scratch(|tiles| grad_weight_spot(conv, tiles));
    let width = tiling.width();
    let lens = [
        TransformedTiles::len(outputs, inputs),
        TransformedTiles::len(inputs, width),
        TransformedTiles::len(outputs, width),
        PATCH_ELEMENTS * scratch,
    ];
    (tiling, lens)
}

/// Floats of scratch of [`grad_weight`].
pub fn grad_weight_scratch(conv: &Conv) -> usize {
    grad_weight_parts(conv).1.iter().sum()
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad_weight(o: &Operands<'_>, pool: &ThreadPool, conv: &Conv) {
    let (tiling, lens) = grad_weight_parts(conv);
    let (inputs, outputs, width) = (conv.in_channels, conv.out_channels, tiling.width());
    // SAFETY: the result is apart from all operands; tasks have channels, spots and scratch of their own, and one kind of task follows
    // the other.
    unsafe {
        let (x, dy) = (o.read(0, conv.x().len()), o.read(1, conv.y().len()));
        let target = Shared::new(o.target(0, conv.w().len()));
        let [sums, patches, tiles_of_dy, scratch] = cut(o.scratch(lens.iter().sum()), lens);
        let sums = TransformedTiles::new(sums, outputs, inputs);
        let patches = TransformedTiles::new(patches, inputs, width);
        let tiles_of_dy = TransformedTiles::new(tiles_of_dy, outputs, width);
        let (scratch, per_product) = (Shared::new(scratch.as_mut_ptr()), lens[3] / PATCH_ELEMENTS);
        let start = conv.window.padding.map(|padding| -(padding as isize));
        let images = Images { data: x, channels: inputs, size: conv.in_size, start };
        let results = Images { data: dy, channels: outputs, size: conv.out_size, start: [0, 0] };
        for lines in tiling.parts() {
            each(pool, inputs + outputs, |channel| {
                if channel < inputs {
                    transform(images, tiling, lines.clone(), channel, patches);
                } else {
                    spread(results, tiling, lines.clone(), channel - inputs, tiles_of_dy);
                }
            });
            let extents = grad_weight_spot(conv, lines.len() * tiling.tiles[1]);
            let initial = if lines.start == 0 { Initial::Zero } else { Initial::Keep };
            each(pool, PATCH_ELEMENTS, |at| {
                let left = Strided { data: tiles_of_dy.matrix(at), line_step: width, depth_step: 1 };
                let right = Strided { data: patches.matrix(at), line_step: width, depth_step: 1 };
                let target = Target::matrix(Shared::new(sums.row(at, 0)), inputs);
                let scratch = scratch.slice(at * per_product, per_product);
                product(None, extents, (&left, &right), initial, target, scratch);
            });
        }
        each(pool, outputs, |output| {
            collect_weights(output, sums, target.slice(output * inputs * 9, inputs * 9));
        });
    }
}

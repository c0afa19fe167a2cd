//! Convolutions of 3×3 windows at a stride of one with fewer multiplications: Winograd's minimal filtering F(2×2, 3×3), after Lavin and
//! Gray (*Fast algorithms for convolutional neural networks*, 2015, section 4.1).
//!
//! The output is cut into *tiles* of 2×2; each depends on a patch of 4×4. With the paper's matrices, `Y = Aᵀ[(G·g·Gᵀ) ⊙ (Bᵀ·d·B)]A`:
//! sixteen matrix products, one for each element of a patch, replace one product that is nine times as deep and four times as wide: 16
//! multiplications instead of 36. The gradient to the input is the same [`pass`] over `dy` with reversed weights. The gradient to the
//! weights is the transposed map: `dg = Gᵀ[Σ_tiles (A·dy·Aᵀ) ⊙ (Bᵀ·d·B)]G` ([`weight_sums`]).
//!
//! Transformed numbers are written as the tiles of the matrix product read them ([`super::tile`]), in one of three [`forms`]: a *part* of the tiles
//! of all images at a time, which is used while it is in cache. A product is one chain of multiply-adds over the inputs, or over the tiles of a
//! part, so that its bits do not depend on how many parts, inputs or outputs are taken together.

use elbowroom_graph::op::{Algorithm, Conv};
use rayon::ThreadPool;

use super::Operands;
use super::number::Number;
use super::parallel::Shared;
use super::tile::Tiles;

mod forms;
mod pass;
mod tiles;
mod transforms;
mod weight_sums;

use forms::Computation;
use pass::{Pass, PassCut};
use transforms::{Images, Weights};
use weight_sums::{WeightSums, WeightSumsCut};

/// Floats that are kept together; as pairs of bf16 numbers they take half of the memory.
#[derive(Clone, Copy)]
struct Kept {
    /// Of transformed weights, or of their sums, unless one panel has more.
    weights: usize,
    /// Of transformed images, unless one part has more.
    images: usize,
    /// Of transformed images where weights are transformed anew for the next ones.
    more_images: usize,
}

impl Kept {
    /// What an algorithm keeps. The bits do not depend on it.
    const fn by(conv: &Conv) -> Self {
        match conv.algorithm {
            Algorithm::WinogradLean => Self { weights: 1 << 17, images: 1 << 17, more_images: 1 << 17 },
            _ => Self { weights: 1 << 20, images: 1 << 19, more_images: 1 << 21 },
        }
    }
}

/// Channels that one task transforms.
const TASK: usize = 64;

/// Floats of scratch of [`forward`].
pub fn scratch(conv: &Conv) -> usize {
    PassCut::forward(conv).scratch()
}

/// Floats of scratch of [`grad_input`].
pub fn grad_input_scratch(conv: &Conv) -> usize {
    PassCut::backward(conv).scratch()
}

/// Floats of scratch of [`grad_weight`].
pub fn grad_weight_scratch(conv: &Conv) -> usize {
    WeightSumsCut::new(conv).scratch()
}

/// The fastest tiles for products of transformed numbers.
fn tiles<T: Number>() -> &'static Tiles {
    let pairs = if T::IS_BF16 { Tiles::of_gaining_pairs() } else { None };
    pairs.unwrap_or_else(Tiles::detect)
}

/// Images of `x` whose position 0 of the results has its patch where the padding begins.
fn inputs<'a, T>(conv: &Conv, x: &'a [T]) -> Images<'a, T> {
    let start = conv.window.padding.map(|padding| -(padding as isize));
    Images { data: x, channels: conv.in_channels, size: conv.in_size, start }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn forward<T: Number>(o: &Operands<'_>, pool: &ThreadPool, conv: &Conv, bias: bool) {
    let (inner, outer) = (conv.in_channels, conv.out_channels);
    // SAFETY: the result is apart from all operands, and the scratch as large as declared.
    unsafe {
        let (x, w) = (o.read::<T>(0, conv.x().len()), o.read(1, conv.w().len()));
        let weights = Weights { data: w, extents: [outer, inner], steps: [9 * inner, 9], reversed: false };
        let pass = Pass {
            kernels: tiles::<T>(),
            cut: PassCut::forward(conv),
            images: inputs(conv, x),
            weights,
            bias: bias.then(|| o.read(2, outer)),
            results: Shared::new(o.target(0, conv.y().len())),
            scratch: Shared::new(o.scratch(scratch(conv)).as_mut_ptr()),
        };
        pass.compute(pool);
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad_input<T: Number>(o: &Operands<'_>, pool: &ThreadPool, conv: &Conv) {
    let (inner, outer) = (conv.out_channels, conv.in_channels);
    // SAFETY: as in `forward`.
    unsafe {
        let (dy, w) = (o.read::<T>(0, conv.y().len()), o.read(1, conv.w().len()));
        // Position q sees dy from q + padding − 2 to q + padding.
        let start = conv.window.padding.map(|padding| padding as isize - 2);
        let pass = Pass {
            kernels: tiles::<T>(),
            cut: PassCut::backward(conv),
            images: Images { data: dy, channels: inner, size: conv.out_size, start },
            weights: Weights { data: w, extents: [outer, inner], steps: [9, 9 * outer], reversed: true },
            bias: None,
            results: Shared::new(o.target(0, conv.x().len())),
            scratch: Shared::new(o.scratch(grad_input_scratch(conv)).as_mut_ptr()),
        };
        pass.compute(pool);
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad_weight<T: Number>(o: &Operands<'_>, pool: &ThreadPool, conv: &Conv) {
    // SAFETY: as in `forward`.
    unsafe {
        let (x, dy) = (o.read::<T>(0, conv.x().len()), o.read::<T>(1, conv.y().len()));
        let sums = WeightSums {
            kernels: tiles::<T>(),
            cut: WeightSumsCut::new(conv),
            images: inputs(conv, x),
            results: Images { data: dy, channels: conv.out_channels, size: conv.out_size, start: [0, 0] },
            dw: Shared::new(o.target(0, conv.w().len())),
            scratch: Shared::new(o.scratch(grad_weight_scratch(conv)).as_mut_ptr()),
        };
        sums.compute(pool);
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_graph::op::Window;

    use super::*;
    use crate::kernels::bf16::Bf16;
    use crate::kernels::isa::Isa;

    fn numbers(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
    }

    /// The bits of `y` and of `dw`, from images of this type.
    fn computed_by<T: Number>(
        kernels: &'static Tiles,
        conv: &Conv,
        number: impl Fn(f32) -> T,
    ) -> [Vec<u32>; 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("threads start");
        let [x, w, dy] = [conv.x(), conv.w(), conv.y()].map(|shape| numbers(shape.len(), shape.len()));
        let [x, dy] = [x, dy].map(|numbers| numbers.into_iter().map(&number).collect::<Vec<T>>());
        let (mut y, mut dw) = (vec![0.0f32; dy.len()], vec![0.0f32; w.len()]);
        // What was there before does not show.
        let mut of_pass = vec![f32::NAN; scratch(conv)];
        let mut of_sums = vec![f32::NAN; grad_weight_scratch(conv)];
        let (inner, outer) = (conv.in_channels, conv.out_channels);
        let pass = Pass {
            kernels,
            cut: PassCut::forward(conv),
            images: inputs(conv, &x),
            weights: Weights { data: &w, extents: [outer, inner], steps: [9 * inner, 9], reversed: false },
            bias: None,
            results: Shared::new(y.as_mut_ptr()),
            scratch: Shared::new(of_pass.as_mut_ptr()),
        };
        let sums = WeightSums {
            kernels,
            cut: WeightSumsCut::new(conv),
            images: inputs(conv, &x),
            results: Images { data: &dy, channels: outer, size: conv.out_size, start: [0, 0] },
            dw: Shared::new(dw.as_mut_ptr()),
            scratch: Shared::new(of_sums.as_mut_ptr()),
        };
        // SAFETY: results and scratch are as large as they must be.
        unsafe {
            pass.compute(&pool);
            sums.compute(&pool);
        }
        [y, dw].map(|numbers| numbers.into_iter().map(f32::to_bits).collect())
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let window = Window::square(3, 1, 1);
        let sets = [Isa::Baseline, Isa::Avx2, Isa::Avx512].into_iter().filter(|&isa| isa <= Isa::detect());
        // Tiles of three lines, an odd number of them, so that a pair may have one of the next line.
        for (batch, [in_channels, out_channels], in_size) in [(2, [37, 50], [9, 11]), (3, [16, 33], [5, 6])] {
            let (out_size, algorithm) = (in_size, Algorithm::Winograd);
            let conv = Conv { batch, in_channels, in_size, out_channels, out_size, window, algorithm };
            let floats = computed_by(Tiles::detect(), &conv, |x| x);
            let rounded = computed_by(Tiles::detect(), &conv, Bf16::nearest);
            assert!(floats.iter().chain(&rounded).flatten().all(|&bits| f32::from_bits(bits).is_finite()));
            assert!(floats[0] != rounded[0] && floats[1] != rounded[1]);
            for tiles in sets.clone().map(Tiles::of) {
                assert!(computed_by(tiles, &conv, |x| x) == floats, "{} columns", tiles.columns);
                assert!(computed_by(tiles, &conv, Bf16::nearest) == rounded, "{} columns", tiles.columns);
            }
            if let Some(pairs) = Tiles::of_pairs() {
                assert!(computed_by(pairs, &conv, Bf16::nearest) == rounded, "pairs");
            }
        }
    }
}

//! The gradient to the weights: for each element of a patch a matrix of sums over all tiles, part after part.

use std::ops::Range;

use elbowroom_graph::op::Conv;
use rayon::ThreadPool;

use super::super::number::Number;
use super::super::parallel::{Shared, each};
use super::super::product::even_part;
use super::super::tile::{EvenRows, Merge, Tiles};
use super::forms::{Computation, Form};
use super::tiles::{Matrices, PANEL, PART, PATCH_ELEMENTS, Tiling, pieces};
use super::transforms::{Images, LANES, Rows, collect_weights, pixels, spread, transform};
use super::{Kept, TASK};

/// Outputs whose sums one task adds to.
const STRIP: usize = 32;

/// How the gradient to the weights is cut: a function of its extents.
pub struct WeightSumsCut {
    inputs: usize,
    outputs: usize,
    tiling: Tiling,
    kept: Kept,
}

impl WeightSumsCut {
    /// The cut of a convolution's.
    pub fn new(conv: &Conv) -> Self {
        let tiling = Tiling::new(conv.batch, conv.out_size);
        Self { inputs: conv.in_channels, outputs: conv.out_channels, tiling, kept: Kept::by(conv) }
    }

    /// Inputs, with those that fill the last panel.
    const fn width(&self) -> usize {
        self.inputs.next_multiple_of(PANEL)
    }

    /// Outputs whose sums are kept together, with those that fill the last vector.
    fn height(&self) -> usize {
        let fitting = self.kept.weights / (PATCH_ELEMENTS * self.width());
        even_part(self.outputs, fitting.max(LANES), LANES)
    }

    /// Floats of the sums, of the patches of a part, and of the tiles of a part.
    fn lens(&self) -> [usize; 3] {
        let (width, height) = (self.width(), self.height());
        [width * height, width * PART, height * PART].map(Matrices::floats)
    }

    /// Slots for the patches and tiles of parts.
    fn slots(&self) -> usize {
        let [_, patches, tiles] = self.lens();
        even_part(self.tiling.parts(), (self.kept.images / (patches + tiles)).max(1), 1)
    }

    /// Floats of scratch.
    pub fn scratch(&self) -> usize {
        let [sums, patches, tiles] = self.lens();
        sums + self.slots() * (patches + tiles)
    }
}

/// The operands of a gradient to the weights.
pub struct WeightSums<'a, T> {
    /// Those of the matrix product.
    pub kernels: &'static Tiles,
    /// How it is cut.
    pub cut: WeightSumsCut,
    /// `x`.
    pub images: Images<'a, T>,
    /// `dy`.
    pub results: Images<'a, T>,
    /// `[outputs, inputs, 3, 3]`.
    pub dw: Shared<f32>,
    /// As many floats as the cut says.
    pub scratch: Shared<f32>,
}

impl<T: Number> Computation for WeightSums<'_, T> {
    type Number = T;

    fn tiles(&self) -> &'static Tiles {
        self.kernels
    }

    unsafe fn compute_by<F: Form>(&self, pool: &ThreadPool) {
        if self.kernels.block_rows == 8 {
            // SAFETY: the caller's promise.
            unsafe { self.compute_by_rows::<F, 8>(pool) }
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.compute_by_rows::<F, 4>(pool) }
        }
    }
}

impl<T: Number> WeightSums<'_, T> {
    /// [`compute`](Self::compute) by tiles of the matrix product with `ROWS` rows.
    ///
    /// # Safety
    /// As [`compute_by`](Self::compute_by).
    unsafe fn compute_by_rows<F: Form, const ROWS: usize>(&self, pool: &ThreadPool) {
        let (cut, width, sums) = (&self.cut, self.cut.width(), self.sums());
        for outputs in pieces(0..cut.outputs, cut.height()) {
            let height = outputs.len().next_multiple_of(LANES);
            let [patch_tasks, tile_tasks] = [width, height].map(|channels| channels.div_ceil(TASK));
            for parts in pieces(0..cut.tiling.parts(), cut.slots()) {
                each(pool, parts.len() * (patch_tasks + tile_tasks), |task| {
                    let (slot, task) = (task % parts.len(), task / parts.len());
                    let part = parts.start + slot;
                    let channels = |task: usize, all: usize| task * TASK..all.min((task + 1) * TASK);
                    // SAFETY: these channels of the slot are this task's.
                    unsafe {
                        match task.checked_sub(patch_tasks) {
                            None => self.transform::<F>(part, slot, channels(task, width)),
                            Some(task) => {
                                self.spread::<F, ROWS>(part, slot, outputs.start, channels(task, height))
                            }
                        }
                    }
                });
                let strips = height.div_ceil(STRIP);
                each(pool, PATCH_ELEMENTS * strips, |task| {
                    let strip = task % strips * STRIP;
                    // SAFETY: these sums are this task's; slots are only read now.
                    unsafe { self.add::<F, ROWS>(&parts, task / strips, strip..height.min(strip + STRIP)) };
                });
            }
            each(pool, outputs.len(), |row| {
                let len = 9 * cut.inputs;
                // SAFETY: the weights of an output are one task's; the sums are only read now.
                unsafe {
                    collect_weights(sums, row * width, self.dw.slice((outputs.start + row) * len, len));
                }
            });
        }
    }

    /// The sums: a row for each output.
    fn sums(&self) -> Matrices {
        Matrices::new(self.scratch, self.cut.width() * self.cut.height())
    }

    /// The patches and tiles in each slot.
    fn slots(&self) -> impl Fn(usize) -> [Matrices; 2] {
        let ([sums, patches, tiles], scratch) = (self.cut.lens(), self.scratch);
        let channels = [self.cut.width(), self.cut.height()];
        move |slot| {
            let start = sums + slot * (patches + tiles);
            [(start, channels[0]), (start + patches, channels[1])].map(|(start, channels)| {
                // SAFETY: slots lie in the scratch.
                let start = unsafe { scratch.add(start) };
                Matrices::new(Shared::new(start), channels * PART)
            })
        }
    }

    /// Transforms the patches of some inputs.
    ///
    /// # Safety
    /// Nothing else touches these channels of the slot.
    unsafe fn transform<F: Form>(&self, part: usize, slot: usize, inputs: Range<usize>) {
        let (mut pixels, [patches, _]) = (pixels(), self.slots()(slot));
        self.cut.tiling.visit(part, (inputs, LANES), |runs, channel| {
            // SAFETY: the caller's promise.
            unsafe { transform::<F, Rows<PANEL>>(&self.images, runs, channel, patches, &mut pixels) };
        });
    }

    /// Transforms the tiles of some outputs, which are counted from `output` on.
    ///
    /// # Safety
    /// Nothing else touches these channels of the slot.
    unsafe fn spread<F: Form, const ROWS: usize>(
        &self,
        part: usize,
        slot: usize,
        output: usize,
        rows: Range<usize>,
    ) {
        let (mut pixels, [_, tiles]) = (pixels(), self.slots()(slot));
        self.cut.tiling.visit(part, (rows, LANES), |runs, row| {
            // SAFETY: the caller's promise.
            unsafe { spread::<F, Rows<ROWS>>(&self.results, runs, (output + row, row), tiles, &mut pixels) };
        });
    }

    /// Adds the products of some parts to some rows of the sums of an element.
    ///
    /// # Safety
    /// The slots are filled; nothing else touches these sums.
    unsafe fn add<F: Form, const ROWS: usize>(
        &self,
        parts: &Range<usize>,
        element: usize,
        rows: Range<usize>,
    ) {
        let (width, sums, kernels) = (self.cut.width(), self.sums(), self.kernels);
        let (tile, slots) = (kernels.by_rows[ROWS - 1], self.slots());
        for column in (0..width).step_by(PANEL) {
            for row in rows.clone().step_by(ROWS) {
                for (slot, part) in parts.clone().enumerate() {
                    let [patches, tiles] = slots(slot);
                    let depth = self.cut.tiling.part(part).len().div_ceil(F::NUMBERS);
                    let merge = if part == 0 { Merge::Write } else { Merge::Add };
                    for at in (0..PANEL).step_by(kernels.columns) {
                        // SAFETY: the caller's promise.
                        unsafe {
                            let a = tiles.at(element, row * (PART / F::NUMBERS)).cast_const();
                            let b =
                                EvenRows::new(patches.at(element, column * (PART / F::NUMBERS) + at), PANEL);
                            let c = sums.at(element, row * width + column + at);
                            tile(depth, a, b, (c, width), merge);
                        }
                    }
                }
            }
        }
    }
}

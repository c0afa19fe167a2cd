//! A pass over images: from `x` to `y`, or from `dy` to `dx`.

use std::mem::MaybeUninit;
use std::ops::Range;

use elbowroom_graph::op::Conv;
use rayon::ThreadPool;

use super::super::number::Number;
use super::super::parallel::{Shared, each};
use super::super::product::even_part;
use super::super::tile::{BLOCK_DEPTH, BlockedColumns, EvenRows, Merge, Tiles};
use super::forms::{Computation, Form};
use super::tiles::{Matrices, PANEL, PART, PATCH_ELEMENTS, Tiling, pieces};
use super::transforms::{
    Blocks, Images, LANES, Results, Weights, collect, pixels, transform, transform_weights,
};
use super::{Kept, TASK};

/// Elements of the weights of a panel that a second-level cache keeps while the tiles of a part are multiplied with them.
const CACHED: usize = 1 << 16;

/// How a pass is cut: a function of its extents.
pub struct PassCut {
    inputs: usize,
    outputs: usize,
    positions: [usize; 2],
    tiling: Tiling,
    kept: Kept,
}

impl PassCut {
    /// From `x` to `y`.
    pub fn forward(conv: &Conv) -> Self {
        Self::new(conv, [conv.in_channels, conv.out_channels], conv.out_size)
    }

    /// From `dy` to `dx`.
    pub fn backward(conv: &Conv) -> Self {
        Self::new(conv, [conv.out_channels, conv.in_channels], conv.in_size)
    }

    fn new(conv: &Conv, [inputs, outputs]: [usize; 2], positions: [usize; 2]) -> Self {
        Self { inputs, outputs, positions, tiling: Tiling::new(conv.batch, positions), kept: Kept::by(conv) }
    }

    /// Inputs, with those that fill the last vector.
    const fn depth(&self) -> usize {
        self.inputs.next_multiple_of(LANES)
    }

    /// Panels of outputs.
    const fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// Floats of the weights of a panel.
    const fn panel_len(&self) -> usize {
        PATCH_ELEMENTS * self.depth() * PANEL
    }

    /// Floats of the patches of a part.
    const fn part_len(&self) -> usize {
        Matrices::floats(self.depth() * PART)
    }

    /// Slots for the weights of panels.
    fn panel_slots(&self) -> usize {
        even_part(self.panels(), (self.kept.weights / self.panel_len()).max(1), 1)
    }

    /// Whether all weights are kept, so that they are transformed once.
    fn keeps_weights(&self) -> bool {
        self.panel_slots() >= self.panels()
    }

    /// Slots for the patches of parts. A power of two, so that two or four threads get the same
    /// number, unless there are fewer parts.
    fn part_slots(&self) -> usize {
        let floats = if self.keeps_weights() { self.kept.images } else { self.kept.more_images };
        let fitting = (floats / (PATCH_ELEMENTS * self.depth() * PART)).max(1);
        (1 << fitting.ilog2()).min(self.tiling.parts())
    }

    /// Floats of scratch.
    pub fn scratch(&self) -> usize {
        self.panel_slots() * self.panel_len() + self.part_slots() * self.part_len()
    }
}

/// The operands of a pass.
pub struct Pass<'a, T> {
    /// Those of the matrix product.
    pub kernels: &'static Tiles,
    /// How it is cut.
    pub cut: PassCut,
    /// The images that it reads.
    pub images: Images<'a, T>,
    /// The weights, from its inputs to its outputs.
    pub weights: Weights<'a>,
    /// One number for each output.
    pub bias: Option<&'a [f32]>,
    /// `[batch, outputs, positions]`.
    pub results: Shared<f32>,
    /// As many floats as the cut says.
    pub scratch: Shared<f32>,
}

/// A part of the tiles or a panel of outputs, and the slot where its transform lies.
#[derive(Clone, Copy)]
struct Placed {
    number: usize,
    slot: usize,
}

impl<T: Number> Computation for Pass<'_, T> {
    type Number = T;

    fn tiles(&self) -> &'static Tiles {
        self.kernels
    }

    unsafe fn compute_by<F: Form>(&self, pool: &ThreadPool) {
        let cut = &self.cut;
        let (panels, parts, slots) = (cut.panels(), cut.tiling.parts(), cut.part_slots());
        let transform_weights = |panels: Range<usize>| {
            // SAFETY: every panel has a slot of its own.
            each(pool, panels.len(), |slot| unsafe {
                self.transform_weights::<F>(Placed { number: panels.start + slot, slot });
            });
        };
        if cut.keeps_weights() {
            transform_weights(0..panels);
        }
        if cut.keeps_weights() && pool.current_num_threads() <= slots {
            // A task transforms a part and multiplies it at once, while it is in its thread's cache.
            each(pool, slots, |slot| {
                for number in slot * parts / slots..(slot + 1) * parts / slots {
                    let part = Placed { number, slot };
                    // SAFETY: the slot and the results at these tiles are this task's.
                    unsafe {
                        self.transform::<F>(part, 0..cut.depth());
                        (0..panels)
                            .for_each(|number| self.multiply::<F>(part, Placed { number, slot: number }));
                    }
                }
            });
            return;
        }
        let groups = cut.depth().div_ceil(TASK);
        for parts in pieces(0..parts, slots) {
            let part = |slot: usize| Placed { number: parts.start + slot, slot };
            each(pool, parts.len() * groups, |task| {
                let group = task % groups * TASK;
                // SAFETY: these channels of the slot are this task's.
                unsafe { self.transform::<F>(part(task / groups), group..cut.depth().min(group + TASK)) };
            });
            for panels in pieces(0..panels, cut.panel_slots()) {
                if !cut.keeps_weights() {
                    transform_weights(panels.clone());
                }
                each(pool, parts.len() * panels.len(), |task| {
                    let slot = task % panels.len();
                    // SAFETY: these outputs at these tiles are this task's; slots are only read now.
                    unsafe {
                        self.multiply::<F>(
                            part(task / panels.len()),
                            Placed { number: panels.start + slot, slot },
                        );
                    }
                });
            }
        }
    }
}

impl<T: Number> Pass<'_, T> {
    /// Where the weights of a panel go.
    fn weights_of(&self, slot: usize) -> *mut f32 {
        // SAFETY: slots lie in the scratch.
        unsafe { self.scratch.add(slot * self.cut.panel_len()) }
    }

    /// Where the patches of a part go.
    fn patches_of(&self, slot: usize) -> Matrices {
        let weights = self.cut.panel_slots() * self.cut.panel_len();
        // SAFETY: slots lie in the scratch.
        let start = unsafe { self.scratch.add(weights + slot * self.cut.part_len()) };
        Matrices::new(Shared::new(start), self.cut.depth() * PART)
    }

    /// # Safety
    /// Nothing else touches the slot.
    unsafe fn transform_weights<F: Form>(&self, panel: Placed) {
        let to = self.weights_of(panel.slot);
        // SAFETY: the caller's promise.
        unsafe { transform_weights::<F>(self.weights, panel.number * PANEL, self.cut.depth(), to) };
    }

    /// Transforms some channels of the patches of a part.
    ///
    /// # Safety
    /// Nothing else touches these channels of the slot.
    unsafe fn transform<F: Form>(&self, part: Placed, channels: Range<usize>) {
        let (mut pixels, patches) = (pixels(), self.patches_of(part.slot));
        self.cut.tiling.visit(part.number, (channels, LANES), |runs, channel| {
            // SAFETY: the caller's promise.
            unsafe { transform::<F, Blocks>(&self.images, runs, channel, patches, &mut pixels) };
        });
    }

    /// Multiplies the patches of a part with the weights of a panel of outputs, and transforms the products to results.
    ///
    /// # Safety
    /// Both slots are filled; nothing else touches these outputs at these tiles.
    unsafe fn multiply<F: Form>(&self, part: Placed, panel: Placed) {
        let (cut, kernels) = (&self.cut, self.kernels);
        // In elements.
        let (depth, panel_len) = (cut.depth() / F::NUMBERS, cut.panel_len() / F::NUMBERS);
        let (patches, weights) = (self.patches_of(part.slot), self.weights_of(panel.slot));
        let results = Results { data: self.results, channels: cut.outputs, positions: cut.positions };
        // The products of a few tiles stay in the nearest cache, but the weights are read once for each few.
        let together = if panel_len <= CACHED { kernels.block_rows } else { PANEL };
        let mut products = MaybeUninit::<[f32; PATCH_ELEMENTS * PANEL * PANEL]>::uninit();
        let (products, step) = (products.as_mut_ptr().cast::<f32>(), together * PANEL);
        let mut pixels = pixels();
        for (first, tiles) in cut.tiling.panels(part.number, together) {
            // SAFETY: the caller's promise. Rows of products behind the last tile are not read.
            unsafe {
                for element in 0..PATCH_ELEMENTS {
                    for row in (0..tiles.len()).step_by(kernels.block_rows) {
                        let start = patches.at(element, (first + row) * BLOCK_DEPTH);
                        let a = BlockedColumns { start, step: PART * BLOCK_DEPTH };
                        for column in (0..PANEL).step_by(kernels.columns) {
                            let b = EvenRows::new(weights.add(element * depth * PANEL + column), PANEL);
                            let c = products.add(element * step + row * PANEL + column);
                            (kernels.by_blocks)(depth, a, b, (c, PANEL), Merge::Write);
                        }
                    }
                }
                let runs = cut.tiling.runs(tiles);
                let outputs = panel.number * PANEL..cut.outputs.min((panel.number + 1) * PANEL);
                for channel in outputs.step_by(LANES) {
                    let products = (products.add(channel % PANEL).cast_const(), step);
                    collect(&runs, products, results, (channel, self.bias), &mut pixels);
                }
            }
        }
    }
}

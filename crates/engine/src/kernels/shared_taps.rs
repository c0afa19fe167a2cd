//! Gradients of the weights of a convolution: images are transposed once for all taps of its window.
//!
//! `dw[output, channel, tap] = Σ dy[output, position] · x[channel, position seen by tap]` is a matrix product whose shared dimension is positions.
//! [`Taps`] packs an element of an image for every tap that sees it, nine times in a 3×3 window. Here the lines that a part of the positions sees
//! are transposed once, to *rows* of the channels of one pixel, with rows of zeros between lines and between images. Every tap
//! multiplies the same rows: the position with the offset *o* is row *o* for the first tap, and row *o + s* for a tap that lies *s* rows behind.
//!
//! ```text
//! rows       0 │ line 0 of image 0 │ 0 │ line 1 of image 0 │ 0 │ …
//! tap (0, 0) ├─ positions ─────┤   ├─ positions ─────┤
//! tap (0, 1)   ├─ positions ─────┤   ├─ positions ─────┤
//! ```
//!
//! For tiles that take pairs of bf16 numbers, a row has the pairs of a pixel and the next that the same tap sees, so that there is a row for every
//! pair.
//!
//! **Bits.** They are those of the product: the same parts of the positions, in the same order, with zeros outside images.
//!
//! **Workspace.** It is the product's: what are panels there holds rows here. Sums of one tap lie side by side in `dw` until all are complete; then
//! each output's are brought into their order.

use std::ops::Range;

use rayon::ThreadPool;

#[cfg(target_arch = "x86_64")]
use super::bf16::Bf16;
use super::matrix_unit::Registers;
use super::number::Number;
#[cfg(target_arch = "x86_64")]
use super::pack::transpose8;
use super::pack::{GROUP, transpose, transpose_group};
use super::parallel::{Shared, each_with};
use super::product::{DEPTH, Extents, Initial, PackedBlock, Target, even_part, product_by};
use super::tile::{ListedRows, Merge, Tiles};
use super::windows::{Planes, Taps, Windows};

/// Positions for each output from which transposing lines once saves more than it takes to bring sums into their order. Measured on the convolutions
/// of ResNet-18 at 32 × 32 and 224 × 224: from 12 on no gradient takes longer than by panels, at 2 and less some do.
const WORTH_ORDERING: usize = 4;

/// The gradient of weights `[outputs, channels, taps]` to `dw`.
///
/// # Safety
/// As [`product_by`], for all of `dw`.
pub unsafe fn weight_sums<T: Number>(
    pool: &ThreadPool,
    extents: Extents,
    (dy, x): (&Planes<'_, T>, Windows<'_, T>),
    dw: Shared<f32>,
    scratch: &mut [f32],
) {
    // SAFETY: the caller's promise.
    unsafe { weight_sums_by(extents.tiles(T::IS_BF16), pool, extents, (dy, x), dw, scratch) };
}

/// [`weight_sums`] by given tiles where taps share lines; those for pairs are for images that are bf16.
///
/// # Safety
/// As [`product_by`], for all of `dw`.
unsafe fn weight_sums_by<T: Number>(
    tiles: &'static Tiles,
    pool: &ThreadPool,
    extents: Extents,
    (dy, x): (&Planes<'_, T>, Windows<'_, T>),
    dw: Shared<f32>,
    scratch: &mut [f32],
) {
    // SAFETY: the caller's promise.
    unsafe {
        match Transposed::new(tiles, extents, x, scratch.len()) {
            Some(transposed) => transposed.sums(pool, dy, dw, scratch),
            None => {
                let target = Target::matrix(dw, extents.columns);
                product_by(tiles, Some(pool), extents, (dy, &Taps(x)), Initial::Zero, target, scratch);
            }
        }
    }
}

/// Images whose lines are transposed, some channels at a time.
struct Transposed<'a, T> {
    tiles: &'static Tiles,
    extents: Extents,
    x: Windows<'a, T>,
    /// Lines of zeros above every image, and rows of zeros before every line.
    zeros: [usize; 2],
    /// Number of slots, and the rows that one can hold.
    slots: usize,
    rows: usize,
}

impl<'a, T: Number> Transposed<'a, T> {
    /// `None` if nothing is gained, or there is too little scratch.
    fn new(tiles: &'static Tiles, extents: Extents, x: Windows<'a, T>, scratch: usize) -> Option<Self> {
        let taps = x.taps[0] * x.taps[1];
        let pays = taps > 1 && extents.depth >= WORTH_ORDERING * extents.rows.max(1);
        if !pays || !x.channels.is_multiple_of(tiles.columns) {
            return None;
        }
        let part = extents.part().min(extents.depth);
        // Both positions of a pair lie on one line.
        let whole_pairs =
            x.positions[1].is_multiple_of(2) && (part.is_multiple_of(2) || part == extents.depth);
        if tiles.takes_pairs && !whole_pairs {
            return None;
        }
        let zeros = [0, 1].map(|axis| {
            let reach = (x.positions[axis] - 1) * x.stride[axis] + (x.taps[axis] - 1) * x.step[axis] as usize;
            let behind = reach as isize + x.start[axis] - (x.size[axis] - 1) as isize;
            behind.max(-x.start[axis]).max(0) as usize
        });
        let mut transposed = Self { tiles, extents, x, zeros, slots: 0, rows: 0 };
        // The most lines of positions, and images, on which a part can lie.
        let reached = |len: usize, size: usize| (len + size - 2) / size + 1;
        let [height, width] = x.positions;
        let lines = reached(part, width);
        let images = reached(lines, height);
        let between_images = (x.size[0] + zeros[0]).saturating_sub(height * x.stride[0]);
        let lines =
            (lines - 1) * x.stride[0] + (images - 1) * between_images + transposed.lines(0..x.taps[0]);
        transposed.rows = lines * transposed.line() + zeros[1];
        let blocks = extents.blocks();
        let slots_len = scratch - blocks.rows * blocks.depth;
        transposed.slots = slots_len / (transposed.rows * tiles.columns);
        let fits = transposed.slots > 0 && transposed.rows <= part * taps && extents.columns <= slots_len;
        fits.then_some(transposed)
    }

    /// Taps of the window.
    const fn taps(&self) -> usize {
        self.x.taps[0] * self.x.taps[1]
    }

    /// Rows from line to line.
    const fn line(&self) -> usize {
        self.zeros[1] + self.x.size[1]
    }

    /// Lines that one line of positions sees by these lines of taps.
    fn lines(&self, taps: Range<usize>) -> usize {
        (taps.len() - 1) * self.x.step[0] as usize + 1
    }

    /// The line, counted through all images with the zeros above each, that a position sees by a line of taps, and the row on it.
    fn place(&self, position: usize, tap: usize) -> [usize; 2] {
        let [height, width] = self.x.positions;
        let (image, y, x) = (position / width / height, position / width % height, position % width);
        let seen = |axis: usize, at: usize| {
            (self.zeros[axis] + at * self.x.stride[axis]).wrapping_add_signed(self.x.start[axis])
        };
        let line = seen(0, y) + tap * self.x.step[0] as usize;
        [image * (self.zeros[0] + self.x.size[0]) + line, seen(1, x)]
    }

    /// # Safety
    /// As [`weight_sums`].
    unsafe fn sums(&self, pool: &ThreadPool, dy: &Planes<'_, T>, dw: Shared<f32>, scratch: &mut [f32]) {
        let (extents, tiles) = (self.extents, self.tiles);
        let pool = extents.shared(Some(pool));
        let blocks = extents.blocks();
        let (packed, slots) = scratch.split_at_mut(blocks.rows * blocks.depth);
        let packed = Shared::new(packed.as_mut_ptr());
        let (slots_len, slots) = (slots.len(), Shared::new(slots.as_mut_ptr()));

        let parts = self.x.channels / tiles.columns;
        let together = self.taps_together(parts, pool.map_or(1, ThreadPool::current_num_threads));
        let tasks = parts * (self.taps() / together);
        let active = self.slots.min(tasks);
        for row in (0..extents.rows).step_by(blocks.rows) {
            let rows = blocks.rows.min(extents.rows - row);
            let height = even_part(rows, tiles.by_listed_rows.len(), 1);
            for start in (0..extents.depth).step_by(blocks.depth) {
                let depth = blocks.depth.min(extents.depth - start);
                let block = PackedBlock { row, rows, column: 0, start, depth, inner: blocks.inner, height };
                // SAFETY: packed memory is written first and then only read; every task at a time has its own slot, and its own sums.
                unsafe {
                    block.pack(tiles, pool, dy, packed);
                    each_with(pool, active, |at| {
                        let slot = slots.slice(at * self.rows * tiles.columns, self.rows * tiles.columns);
                        for task in (at..tasks).step_by(active) {
                            let (first, channel) = (task / parts * together, task % parts * tiles.columns);
                            self.multiply(&block, packed, (channel, first..first + together), slot, dw);
                        }
                    });
                }
            }
        }
        let columns = extents.columns;
        let active = (slots_len / columns).min(extents.rows);
        each_with(pool, active, |at| {
            for row in (at..extents.rows).step_by(active) {
                // SAFETY: every task has its own part of the scratch, and its own rows.
                unsafe {
                    let (sums, row) = (slots.slice(at * columns, columns), dw.slice(row * columns, columns));
                    sums.copy_from_slice(row);
                    transpose(sums, self.x.channels, self.taps(), self.taps(), row);
                }
            }
        });
    }

    /// Taps for which a task transposes lines: all, those on a line, or one, so that there is work for all threads.
    fn taps_together(&self, parts: usize, threads: usize) -> usize {
        let shared = |&together: &usize| {
            let tasks = parts * (self.taps() / together);
            tasks.is_multiple_of(threads) || tasks >= 4 * threads
        };
        [self.taps(), self.x.taps[1]].into_iter().find(shared).unwrap_or(1)
    }

    /// Multiplies a packed block with a panel of channels by some taps.
    ///
    /// # Safety
    /// `packed` holds the block; nothing else touches the slot, or these sums.
    unsafe fn multiply(
        &self,
        block: &PackedBlock,
        packed: Shared<f32>,
        (channel, taps): (usize, Range<usize>),
        slot: &mut [f32],
        dw: Shared<f32>,
    ) {
        let (tiles, width) = (self.tiles, self.x.taps[1]);
        let tap_lines = taps.start / width..(taps.end - 1) / width + 1;
        let mut offsets = [0u32; DEPTH];
        let mut registers = Registers::default();
        for (start, len) in block.parts() {
            let first = block.start + start;
            let [line, _] = self.place(first, tap_lines.start);
            let [last, _] = self.place(first + len - 1, tap_lines.start);
            self.transpose_lines(line..last + self.lines(tap_lines.clone()), channel, slot);
            let steps = if tiles.takes_pairs { 2 } else { 1 };
            for (position, offset) in (first..first + len).step_by(steps).zip(&mut offsets) {
                let [y, x] = self.place(position, tap_lines.start);
                *offset = (((y - line) * self.line() + x) * tiles.columns) as u32;
            }
            // Rows that the other factor's zeros meet.
            let positions = len.div_ceil(steps);
            offsets[positions..tiles.panel_rows(len).max(positions)].fill(0);
            let merge = if first == 0 { Merge::Write } else { Merge::Add };
            for tap in taps.clone() {
                let (down, across) = (tap / width - tap_lines.start, tap % width);
                let [down, across] = [down * self.x.step[0] as usize, across * self.x.step[1] as usize];
                let start_of_tap = (down * self.line() + across) * tiles.columns;
                for panel in 0..block.panels() {
                    let rows = block.panel(panel);
                    tiles.set_up(&mut registers, rows.len());
                    // SAFETY: the caller's promise; offsets of all taps lie in the slot.
                    unsafe {
                        let a = packed.add(block.place(tiles, (start, len), rows.start));
                        let b =
                            ListedRows { start: slot.as_ptr().add(start_of_tap), offsets: offsets.as_ptr() };
                        let row = (block.row + rows.start) * self.extents.columns;
                        let c = (dw.add(row + tap * self.x.channels + channel), self.extents.columns);
                        tiles.by_listed_rows[rows.len() - 1](tiles.panel_rows(len), a, b, c, merge);
                    }
                }
            }
        }
    }

    /// Transposes lines of a panel of channels, with the zeros before each and behind the last.
    fn transpose_lines(&self, lines: Range<usize>, channel: usize, slot: &mut [f32]) {
        let [height, width] = self.x.size;
        let (columns, line_len) = (self.tiles.columns, self.line() * self.tiles.columns);
        let slot = &mut slot[..lines.len() * line_len + self.zeros[1] * columns];
        let plane = height * width;
        let in_image = |line: usize| (line % (self.zeros[0] + height)).checked_sub(self.zeros[0]);
        for (line, rows) in lines.clone().zip(slot.chunks_mut(line_len)) {
            let zeros = if in_image(line).is_some() { self.zeros[1] * columns } else { rows.len() };
            rows[..zeros].fill(0.0);
        }
        slot[lines.len() * line_len..].fill(0.0);
        // The lines of a channel lie behind each other.
        for group in (0..columns).step_by(GROUP) {
            for (line, rows) in lines.clone().zip(slot.chunks_exact_mut(line_len)) {
                let Some(y) = in_image(line) else { continue };
                let image = line / (self.zeros[0] + height);
                let start = (image * self.x.channels + channel + group) * plane + y * width;
                let from: [&[T]; GROUP] =
                    std::array::from_fn(|i| &self.x.images[start + i * plane..][..width]);
                #[cfg(target_arch = "x86_64")]
                if self.tiles.takes_pairs
                    && let Some(from) = narrow(&from)
                {
                    let [zeros, apart] = [self.zeros[1], self.x.stride[1]];
                    // SAFETY: a processor that takes pairs has AVX-512.
                    unsafe { transpose_pairs(&from, zeros, apart, &mut rows[group..], columns) };
                    continue;
                }
                transpose_group(&from, width, &mut rows[self.zeros[1] * columns + group..], columns);
            }
        }
    }
}

/// Lines, if they are of bf16 numbers.
#[cfg(target_arch = "x86_64")]
fn narrow<'l, T: Number>(lines: &[&'l [T]; GROUP]) -> Option<[&'l [Bf16]; GROUP]> {
    let mut narrow: [&[Bf16]; GROUP] = [&[]; GROUP];
    for (narrow, line) in narrow.iter_mut().zip(lines) {
        *narrow = T::narrow(line)?;
    }
    Some(narrow)
}

/// Transposes lines of one length with zeros before each: row `r` has pairs of the elements `r − zeros` and `r − zeros + apart` of each line, or of
/// zeros where it has none.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
fn transpose_pairs(lines: &[&[Bf16]; GROUP], zeros: usize, apart: usize, out: &mut [f32], width: usize) {
    use std::arch::x86_64::*;
    let len = lines[0].len();
    assert!(lines.iter().all(|line| line.len() == len));
    // The lanes of eight elements from `first` on that the lines have.
    let mask = |first: isize| {
        let inside = |bound: isize| (bound - first).clamp(0, GROUP as isize) as u32;
        (((1u32 << inside(len as isize)) - 1) & !((1 << inside(0)) - 1)) as u8
    };
    for start in (0..zeros + len).step_by(GROUP) {
        let first = start as isize - zeros as isize;
        let second = first + apart as isize;
        let masks = [mask(first), mask(second)];
        let block: [__m256; GROUP] = std::array::from_fn(|i| {
            let line = lines[i].as_ptr();
            // SAFETY: lanes under the masks lie in the line.
            let [earlier, later] = unsafe {
                [
                    _mm_maskz_loadu_epi16(masks[0], line.wrapping_offset(first).cast()),
                    _mm_maskz_loadu_epi16(masks[1], line.wrapping_offset(second).cast()),
                ]
            };
            let earlier = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(earlier));
            _mm256_castsi256_ps(_mm256_or_si256(earlier, _mm256_cvtepu16_epi32(later)))
        });
        for (row, pairs) in (start..zeros + len).zip(transpose8(block)) {
            let row = &mut out[row * width..][..GROUP];
            // SAFETY: the slice is as long as the vector.
            unsafe { _mm256_storeu_ps(row.as_mut_ptr(), pairs) };
        }
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_graph::op::{Algorithm, Conv, Window};

    use super::*;
    use crate::kernels::bf16::Bf16;
    use crate::kernels::convolution::windows;
    use crate::kernels::matrix_unit;
    use crate::kernels::product::ScratchLevel;

    /// Computes gradients both ways on one thread, two and seven, and says whether lines were transposed.
    fn check<T: Number>(
        tiles: &'static Tiles,
        x: Windows<'_, T>,
        dy: &[T],
        outputs: usize,
        scratch_level: ScratchLevel,
    ) -> bool {
        let positions = x.positions[0] * x.positions[1];
        let depth = dy.len() / outputs;
        let extents =
            Extents { scratch_level, ..Extents::new(outputs, x.channels * x.taps[0] * x.taps[1], depth) };
        let dy = Planes { images: dy, channels: outputs, plane: positions };
        let bits = |dw: Vec<f32>| dw.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let run = |threads: usize, shares: bool| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads start");
            let mut scratch = vec![f32::NAN; extents.scratch()];
            let mut dw = vec![f32::NAN; outputs * extents.columns];
            let target = Shared::new(dw.as_mut_ptr());
            // SAFETY: `dw` is all of the result.
            unsafe {
                if shares {
                    weight_sums_by(tiles, &pool, extents, (&dy, x), target, &mut scratch);
                } else {
                    let target = Target::matrix(target, extents.columns);
                    let pool = Some(&pool);
                    product_by(tiles, pool, extents, (&dy, &Taps(x)), Initial::Zero, target, &mut scratch);
                }
            }
            bits(dw)
        };
        let expected = run(1, false);
        for threads in [1, 2, 7] {
            assert!(run(threads, true) == expected, "{:?} {:?} {threads} threads", x.size, x.positions);
        }
        Transposed::new(tiles, extents, x, extents.scratch()).is_some()
    }

    #[test]
    fn sums_have_the_bits_of_a_product() {
        let number = |at: usize| ((at * 7919 + at / 7) % 2003) as f32 / 1001.5 - 1.0;
        for (batch, channels, outputs, size, taps, [stride, step, padding], shares) in [
            // Lines of all lengths, parts that end on a line, between two, and between images.
            (4, 32, 13, [32, 32], [3, 3], [1, 1, 1], true),
            (3, 64, 70, [20, 14], [3, 3], [1, 1, 1], true),
            (5, 96, 7, [9, 11], [3, 3], [1, 1, 1], true),
            (40, 64, 40, [4, 4], [3, 3], [1, 1, 1], true),
            (130, 32, 24, [2, 2], [3, 3], [1, 1, 1], true),
            (300, 32, 5, [1, 1], [3, 3], [1, 1, 1], true),
            // No zeros, many of them, and windows that are no squares.
            (2, 32, 9, [20, 20], [3, 3], [1, 1, 0], true),
            (2, 32, 9, [12, 12], [5, 5], [1, 1, 4], true),
            (2, 64, 9, [16, 17], [1, 7], [1, 1, 3], true),
            // Strides, whose last positions may leave lines out, and distances between taps.
            (3, 64, 33, [16, 16], [3, 3], [2, 1, 1], true),
            (3, 32, 33, [17, 15], [3, 3], [2, 1, 1], true),
            (2, 32, 9, [23, 23], [4, 4], [3, 1, 1], true),
            (2, 32, 12, [18, 19], [3, 3], [1, 2, 2], true),
            // More rows than a block has, and a product for one thread.
            (6, 32, 530, [16, 24], [3, 3], [1, 1, 1], true),
            (1, 32, 1, [4, 3], [3, 3], [1, 1, 1], true),
            // Nothing to gain, and channels that do not fill a tile.
            (2, 32, 33, [8, 8], [3, 3], [1, 1, 1], false),
            (2, 32, 9, [8, 8], [1, 1], [1, 1, 0], false),
            (2, 33, 9, [8, 8], [3, 3], [1, 1, 1], false),
        ] {
            let positions = [0, 1].map(|axis| {
                let padding = if taps[axis] == 1 { 0 } else { padding };
                (size[axis] + 2 * padding - (taps[axis] - 1) * step - 1) / stride + 1
            });
            let conv = Conv {
                batch,
                in_channels: channels,
                in_size: size,
                out_channels: outputs,
                out_size: positions,
                window: Window {
                    kernel: taps,
                    stride: [stride; 2],
                    padding: taps.map(|taps| if taps == 1 { 0 } else { padding }),
                },
                algorithm: Algorithm::Tiled,
            };
            let x: Vec<f32> = (0..batch * channels * size[0] * size[1]).map(number).collect();
            let dy: Vec<f32> =
                (0..batch * outputs * positions[0] * positions[1]).map(|at| number(at + 5)).collect();
            let seen = windows(&conv, [step; 2], &x);
            let floats = Tiles::detect();
            let shared = check(floats, seen, &dy, outputs, ScratchLevel::Full);
            assert_eq!(shared, shares, "{size:?} {taps:?}");
            check(floats, seen, &dy, outputs, ScratchLevel::Reduced);
            let narrow = |x: &[f32]| x.iter().map(|&x| Bf16::nearest(x)).collect::<Vec<_>>();
            let (x, dy) = (narrow(&x), narrow(&dy));
            let unit = Tiles::of_matrix_unit()
                .filter(|_| batch * positions[0] * positions[1] >= matrix_unit::LEAST_DEPTH);
            for tiles in [Some(floats), Tiles::of_pairs(), unit].into_iter().flatten() {
                let shared = check(tiles, windows(&conv, [step; 2], &x), &dy, outputs, ScratchLevel::Full);
                let whole_pairs = positions[1].is_multiple_of(2);
                assert_eq!(shared, shares && (whole_pairs || !tiles.takes_pairs), "{size:?} {taps:?}");
            }
        }
    }
}

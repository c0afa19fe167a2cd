//! Panels of windows as pairs of bf16 numbers, for processors with AVX-512: rows are put together from loads under masks, which hide what
//! lies outside the images, and then interleaved or transposed in registers.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{PositionRun, Taps, WIDEST, Windows};
use crate::kernels::bf16::Bf16;
use crate::kernels::isa::{Isa, prefetch};
use crate::kernels::number::Number;
use crate::kernels::pack::transpose8;
use crate::kernels::pairs::{Pair, low_bits};

/// Loads of all taps of a panel of positions at most.
const CAPACITY: usize = 192;
/// Taps of a window at most: 8×8.
const MOST_TAPS: usize = 64;
/// Lines, and pairs, that are transposed together.
const BLOCK: usize = 8;
/// Positions of a block.
const POSITIONS: usize = 2 * BLOCK;
/// Lines of images on which a block lies at most, if lines have three positions or more.
const MOST_SEGMENTS: usize = 7;

/// The load of some columns of a row of a panel.
#[derive(Clone, Copy, Default)]
struct TapLoad {
    /// Where column 0 would lie in channel 0.
    from: isize,
    /// The elements that it loads, from there on.
    mask: u64,
}

/// Bits with a distance between them: of a stride of two, every second one.
const fn spread(mask: u32, stride: usize) -> u64 {
    let mut bits = mask as u64;
    if stride == 2 {
        bits = (bits | bits << 16) & 0x0000_FFFF_0000_FFFF;
        bits = (bits | bits << 8) & 0x00FF_00FF_00FF_00FF;
        bits = (bits | bits << 4) & 0x0F0F_0F0F_0F0F_0F0F;
        bits = (bits | bits << 2) & 0x3333_3333_3333_3333;
        bits = (bits | bits << 1) & 0x5555_5555_5555_5555;
    }
    bits
}

/// The bits `low .. high` of 32 or fewer.
const fn bits(low: usize, high: usize) -> u32 {
    (((1u64 << (high - low)) - 1) << low) as u32
}

impl<T: Number> Windows<'_, T> {
    /// Packs a panel of pairs, if it is one vector of bf16 numbers wide and its positions are neighbours or every second one; returns whether
    /// it has.
    pub(super) fn pack_pairs_masked(
        &self,
        runs: &[PositionRun],
        depth: Range<usize>,
        width: usize,
        out: &mut [Pair],
    ) -> bool {
        let Some(images) = T::narrow(self.images) else { return false };
        let fits = self.taps[0] * self.taps[1] * runs.len() <= CAPACITY;
        if !fits || width != WIDEST || Isa::detect() != Isa::Avx512 {
            return false;
        }
        // SAFETY: the processor has AVX-512.
        unsafe {
            match self.stride[1] {
                1 => self.pack_rows::<1>(images, runs, depth, out),
                2 => self.pack_rows::<2>(images, runs, depth, out),
                _ => return false,
            }
        }
        true
    }

    /// The same for a stride.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn pack_rows<const STRIDE: usize>(
        &self,
        images: &[Bf16],
        runs: &[PositionRun],
        depth: Range<usize>,
        out: &mut [Pair],
    ) {
        /// Channels between a load and its hint.
        const AHEAD: usize = 6;
        let plane = self.size[0] * self.size[1];
        let taps = self.taps[0] * self.taps[1];
        let mut loads = [TapLoad::default(); CAPACITY];
        let mut starts = [0; CAPACITY + 1];
        let mut count = 0;
        for tap in 0..taps {
            let first = count;
            for copy in
                runs.iter().filter_map(|&run| self.copy(run, [tap / self.taps[1], tap % self.taps[1]]))
            {
                let mask = spread(bits(copy.at, copy.at + copy.len), STRIDE);
                let from = copy.from as isize - (copy.at * STRIDE) as isize;
                match loads[first..count].last_mut() {
                    // Where positions are as many as columns, one line continues in the next.
                    Some(before) if before.from == from => before.mask |= mask,
                    _ => {
                        loads[count] = TapLoad { from, mask };
                        count += 1;
                    }
                }
            }
            starts[tap + 1] = count;
        }
        // Of every pair the lower half is the later one, which the second operand of a permutation has.
        let [first_half, second_half] = [0, 16].map(|first| {
            let places: [u16; 32] = std::array::from_fn(|i| first + (i / 2) as u16 + [32, 0][i % 2]);
            // SAFETY: an array of a vector's size.
            unsafe { _mm512_loadu_si512(places.as_ptr().cast()) }
        });

        let (mut channel, mut tap) = (depth.start / taps, depth.start % taps);
        let mut image = images.as_ptr().wrapping_add(channel * plane);
        let mut earlier = _mm512_setzero_si512();
        let mut rows = out[..depth.len().div_ceil(2) * WIDEST].chunks_exact_mut(WIDEST);
        for k in 0..depth.len() {
            // Planes may be pages apart, where no processor foresees the next one. A hint may point anywhere.
            if tap.is_multiple_of(self.taps[1]) {
                for load in &loads[starts[tap]..starts[tap + 1]] {
                    let line = image.wrapping_add(AHEAD * plane).wrapping_offset(load.from);
                    prefetch::<_MM_HINT_T0, _>(line);
                    prefetch::<_MM_HINT_T0, _>(line.wrapping_add(WIDEST * STRIDE - 1));
                }
            }
            let mut halves = [_mm512_setzero_si512(); STRIDE];
            for load in &loads[starts[tap]..starts[tap + 1]] {
                for (half, lanes) in halves.iter_mut().enumerate() {
                    let from = image.wrapping_offset(load.from).wrapping_add(half * WIDEST);
                    let mask = (load.mask >> (half * WIDEST)) as u32;
                    // SAFETY: elements under the mask lie within the images; others are not touched.
                    *lanes = unsafe { _mm512_mask_loadu_epi16(*lanes, mask, from.cast()) };
                }
            }
            let row = match STRIDE {
                1 => halves[0],
                // The even elements of both halves.
                _ => {
                    let [low, high] = [0, STRIDE - 1].map(|half| _mm512_cvtepi32_epi16(halves[half]));
                    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
                }
            };
            tap += 1;
            if tap == taps {
                (channel, tap) = (channel + 1, 0);
                image = images.as_ptr().wrapping_add(channel * plane);
            }
            let is_last = k + 1 == depth.len();
            if k % 2 == 0 && !is_last {
                earlier = row;
                continue;
            }
            let pair = if k % 2 == 0 { [row, _mm512_setzero_si512()] } else { [earlier, row] };
            let Some(to) = rows.next() else { return };
            // SAFETY: a row is two vectors.
            unsafe {
                let to = to.as_mut_ptr().cast::<__m512i>();
                _mm512_storeu_si512(to, _mm512_permutex2var_epi16(pair[0], first_half, pair[1]));
                _mm512_storeu_si512(to.add(1), _mm512_permutex2var_epi16(pair[0], second_half, pair[1]));
            }
        }
    }
}

/// Positions of a block on lines of images that one load reaches for a tap.
#[derive(Clone, Copy)]
struct Segment {
    /// Where the first position of the block would see tap 0 in channel 0.
    base: isize,
    /// The elements that each tap loads, from there on.
    masks: [u32; MOST_TAPS],
}

impl<T: Number> Taps<'_, T> {
    /// Packs a panel of pairs, if positions are neighbours or every second one; returns whether it has.
    pub(super) fn pack_pairs_masked(
        &self,
        lines: Range<usize>,
        depth: Range<usize>,
        width: usize,
        out: &mut [Pair],
    ) -> bool {
        let windows = &self.0;
        let Some(images) = T::narrow(windows.images) else { return false };
        let fits = windows.taps[0] * windows.taps[1] <= MOST_TAPS && windows.positions[1] >= 3;
        if !fits || lines.is_empty() || Isa::detect() != Isa::Avx512 {
            return false;
        }
        // SAFETY: the processor has AVX-512.
        unsafe {
            match windows.stride[1] {
                1 => self.pack_blocks_of_pairs::<1>(images, lines, depth, width, out),
                2 => self.pack_blocks_of_pairs::<2>(images, lines, depth, width, out),
                _ => return false,
            }
        }
        true
    }

    /// The same for a stride, by blocks of eight lines and eight pairs. Where lines are fewer than eight, the last one stands for others, which are
    /// not stored.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
    fn pack_blocks_of_pairs<const STRIDE: usize>(
        &self,
        images: &[Bf16],
        lines: Range<usize>,
        depth: Range<usize>,
        width: usize,
        out: &mut [Pair],
    ) {
        let windows = &self.0;
        let [height, columns] = windows.positions;
        let taps = windows.taps[0] * windows.taps[1];
        let plane = windows.size[0] * windows.size[1];
        let line_width = windows.size[1] as isize;
        // The positions along an axis at which each tap lies inside, and what it adds to a place.
        let reach = |axis: usize| {
            let mut all: [Range<usize>; MOST_TAPS] = std::array::from_fn(|_| 0..0);
            for (tap, reached) in all[..windows.taps[axis]].iter_mut().enumerate() {
                let offset = windows.start[axis] + tap as isize * windows.step[axis];
                let stride = windows.stride[axis] as isize;
                let up = |bound: isize| {
                    (bound + stride - 1).div_euclid(stride).clamp(0, windows.positions[axis] as isize)
                        as usize
                };
                *reached = up(-offset)..up(windows.size[axis] as isize - offset);
            }
            all
        };
        let (rows_reach, columns_reach) = (reach(0), reach(1));
        let mut sources = [(0usize, 0isize); WIDEST];
        for (source, line) in sources.iter_mut().zip(lines.clone()) {
            let (channel, tap) = (line / taps, line % taps);
            let [i, j] = [tap / windows.taps[1], tap % windows.taps[1]].map(|at| at as isize);
            let offset = i * windows.step[0] * line_width + j * windows.step[1];
            *source = (tap, (channel * plane) as isize + offset);
        }
        let sources = &sources[..lines.len()];
        let rows = &mut out[..depth.len().div_ceil(2) * width];
        if sources.len() < width {
            rows.chunks_exact_mut(width).for_each(|row| row[sources.len()..].fill(0));
        }
        let mut segments = [Segment { base: 0, masks: [0; MOST_TAPS] }; MOST_SEGMENTS];
        for (block, rows) in rows.chunks_mut(BLOCK * width).enumerate() {
            let start = depth.start + block * POSITIONS;
            let len = POSITIONS.min(depth.end - start);
            let (mut count, mut done) = (0, 0);
            while done < len {
                let (line, x) = ((start + done) / columns, (start + done) % columns);
                let (image, y) = (line / height, line % height);
                let part = (columns - x).min(len - done);
                let base = (image * windows.channels * plane) as isize
                    + (windows.start[0] + (y * windows.stride[0]) as isize) * line_width
                    + windows.start[1]
                    + (x * STRIDE) as isize
                    - (done * STRIDE) as isize;
                // Where positions are as many as columns, one line continues in the next.
                if count == 0 || segments[count - 1].base != base {
                    segments[count].base = base;
                    segments[count].masks[..taps].fill(0);
                    count += 1;
                }
                let masks = &mut segments[count - 1].masks;
                for j in 0..windows.taps[1] {
                    let low = columns_reach[j].start.max(x);
                    let high = columns_reach[j].end.min(x + part);
                    if low < high {
                        let mask = spread(bits(low - x + done, high - x + done), STRIDE) as u32;
                        for i in (0..windows.taps[0]).filter(|&i| rows_reach[i].contains(&y)) {
                            masks[i * windows.taps[1] + j] |= mask;
                        }
                    }
                }
                done += part;
            }
            let segments = &segments[..count];
            for (group, sources) in sources.chunks(BLOCK).enumerate() {
                let pairs: [__m256; BLOCK] = std::array::from_fn(|i| {
                    let (tap, offset) = sources[i.min(sources.len() - 1)];
                    let mut lanes = _mm512_setzero_si512();
                    for segment in segments {
                        let from = images.as_ptr().wrapping_offset(segment.base + offset);
                        // SAFETY: elements under the mask lie within the images; others are not touched.
                        lanes = unsafe { _mm512_mask_loadu_epi16(lanes, segment.masks[tap], from.cast()) };
                    }
                    let pairs = match STRIDE {
                        1 => _mm512_castsi512_si256(lanes),
                        _ => _mm512_cvtepi32_epi16(lanes),
                    };
                    _mm256_castsi256_ps(_mm256_rol_epi32::<16>(pairs))
                });
                for (row, pairs) in rows.chunks_exact_mut(width).zip(transpose8(pairs)) {
                    let row = &mut row[group * BLOCK..][..sources.len()];
                    // SAFETY: the row has as many elements as the mask has bits.
                    unsafe {
                        let to = row.as_mut_ptr().cast();
                        match sources.len() {
                            BLOCK => _mm256_storeu_ps(to, pairs),
                            members => _mm256_mask_storeu_ps(to, low_bits(members) as u8, pairs),
                        }
                    }
                }
            }
        }
    }
}

//! Convolutions at a stride of one without any workspace: weights and images are read in place.
//!
//! Positions of the result are one dimension, over all images, cut into vectors of sixteen. A vector may lie on several lines; for every tap
//! it is then put together from as many loads, each under a mask that leaves out what lies outside the image. Two vectors and a few
//! channels are a tile of the result, kept in registers while the shared dimension runs by.
//!
//! ```text
//! positions   line 0 ├────────┤ line 1 ├────────┤ line 2 ├───
//! vectors            ├── 0 ───────┼─── 1 ───────┼─── 2 ──
//! loads of 1               0: ────┘└─── 1 ──────┘
//! ```
//!
//! **Bits.** Every element is the same sum as in [`super::product`]: one chain of fused multiply-adds for each part of the shared
//! dimension, parts added in order to the initial value. Positions outside an image are multiplied as zeros, because infinities and the
//! sign of zero would reveal their omission.
//!
//! Gradients of weights are not here: their sums run over positions, and vectors along positions would sum in another order, while vectors
//! along taps would have to be gathered.

use rayon::ThreadPool;

use super::isa::Isa;
#[cfg(target_arch = "x86_64")]
use super::isa::prefetch;
use super::parallel::{Shared, each};
use super::product::{WORTH_SHARING, even_part};
use super::windows::Windows;

/// Positions of a vector.
const LANES: usize = 16;
/// Loads of a vector at most.
const LOADS: usize = 4;
/// Taps of a window at most: 7×7.
const TAPS: usize = 49;
/// Bytes of weights that stay in a second-level cache while positions run by.
const CACHED: usize = 256 << 10;
/// Tasks at most.
const TASKS: usize = 16;

/// A convolution `y[row] = Σ w[row, channel, tap] · window[channel, tap]` of windows at a stride of one.
pub struct Direct<'a> {
    /// Channels of the result.
    pub rows: usize,
    /// The windows.
    pub windows: Windows<'a>,
    /// The weights: those of a row and a channel lie side by side.
    pub weights: &'a [f32],
    /// Distance between the weights of neighbouring rows.
    pub row_step: usize,
    /// Distance between the weights of neighbouring channels of the image.
    pub channel_step: usize,
    /// The initial value of each row; zero if `None`.
    pub bias: Option<&'a [f32]>,
}

/// The number of lines on which a vector of positions of an image of this width can lie, if [`Direct`] supports it.
pub const fn lines(width: usize) -> Option<usize> {
    match width {
        _ if width.is_multiple_of(LANES) => Some(1),
        8 | LANES.. => Some(2),
        4.. => Some(LOADS),
        _ => None,
    }
}

/// Whether [`Direct`] supports this number of taps.
pub const fn supports_taps(taps: usize) -> bool {
    taps <= TAPS
}

/// Consecutive lanes of a vector, and the offset at which lane 0 would lie.
#[derive(Clone, Copy, Default)]
struct LaneMask {
    from: isize,
    mask: u16,
}

/// The lanes that two vectors of positions read for one tap, or write; `N` parts each.
type Pair<const N: usize> = [[LaneMask; N]; 2];

/// The lanes `at .. at + len`.
const fn mask(at: usize, len: usize) -> u16 {
    (((1u32 << len) - 1) << at) as u16
}

/// One part of the shared dimension for one tile: `rows` rows from `weights` and `to` on.
struct TilePart<'a, const N: usize> {
    images: *const f32,
    plane: usize,
    weights: *const f32,
    row_step: usize,
    channel_step: usize,
    depth: std::ops::Range<usize>,
    taps: &'a [Pair<N>],
    to: *mut f32,
    to_step: usize,
    places: &'a Pair<N>,
    base: Base<'a>,
}

/// The value to which the sums of a part are added.
#[derive(Clone, Copy)]
enum Base<'a> {
    Zero,
    Keep,
    Rows(&'a [f32]),
}

/// Computes a part of a tile.
///
/// # Safety
/// All that is under the masks of `taps` can be read, and of `places` be written, for every row; nothing else touches the latter. The
/// processor has the instructions.
type DirectTileFn<const N: usize> = unsafe fn(&TilePart<'_, N>);

impl<const N: usize> TilePart<'_, N> {
    /// Runs through the pairs of channel and tap: image, weights and taps of those that share a channel.
    #[inline(always)]
    fn channels(&self, mut each: impl FnMut(*const f32, *const f32, &[Pair<N>])) {
        let all = self.taps.len();
        let (mut k, mut channel, mut tap) =
            (self.depth.start, self.depth.start / all, self.depth.start % all);
        while k < self.depth.end {
            let count = (all - tap).min(self.depth.end - k);
            let image = self.images.wrapping_add(channel * self.plane);
            let weights = self.weights.wrapping_add(channel * self.channel_step + tap);
            each(image, weights, &self.taps[tap..tap + count]);
            (k, channel, tap) = (k + count, channel + 1, 0);
        }
    }

    /// Writes the sums, or adds them to what they are added to. Masked stores would take a hundred cycles where a line is not at hand.
    ///
    /// # Safety
    /// As [`DirectTileFn`].
    #[inline(always)]
    unsafe fn write<const R: usize>(&self, sums: &[[[f32; LANES]; 2]; R]) {
        for (r, sums) in sums.iter().enumerate() {
            let row = self.to.wrapping_add(r * self.to_step);
            for (sums, places) in sums.iter().zip(self.places) {
                for place in places.iter().filter(|place| place.mask != 0) {
                    let (at, len) = (place.mask.trailing_zeros() as usize, place.mask.count_ones() as usize);
                    // SAFETY: what lies under a mask is the tile's own.
                    let to = unsafe {
                        std::slice::from_raw_parts_mut(row.wrapping_offset(place.from + at as isize), len)
                    };
                    match <&mut [f32; LANES]>::try_from(&mut *to) {
                        Ok(to) => self.base.add(r, to, sums),
                        Err(_) => self.base.add(r, to, &sums[at..at + len]),
                    }
                }
            }
        }
    }
}

impl Base<'_> {
    /// Writes sums of row `r`.
    #[inline(always)]
    fn add(self, r: usize, to: &mut [f32], sums: &[f32]) {
        let sums = to.iter_mut().zip(sums);
        match self {
            Self::Zero => sums.for_each(|(to, &sum)| *to = sum),
            Self::Keep => sums.for_each(|(to, &sum)| *to += sum),
            Self::Rows(bias) => sums.for_each(|(to, &sum)| *to = bias[r] + sum),
        }
    }
}

/// Tiles of `R` rows as plain arrays.
///
/// # Safety
/// As [`DirectTileFn`].
#[cfg(not(target_arch = "aarch64"))]
#[inline(always)]
unsafe fn plain<const R: usize, const N: usize>(part: &TilePart<'_, N>) {
    let mut sums = [[[0.0f32; LANES]; 2]; R];
    part.channels(|image, weights, taps| {
        for (t, tap) in taps.iter().enumerate() {
            let mut x = [[0.0f32; LANES]; 2];
            for (x, loads) in x.iter_mut().zip(tap) {
                for load in loads.iter().filter(|load| load.mask != 0) {
                    let (at, len) = (load.mask.trailing_zeros() as usize, load.mask.count_ones() as usize);
                    let from = image.wrapping_offset(load.from + at as isize);
                    // SAFETY: what lies under a mask is in the image.
                    x[at..at + len].copy_from_slice(unsafe { std::slice::from_raw_parts(from, len) });
                }
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the tile's weights.
                let w = unsafe { *weights.add(r * part.row_step + t) };
                for (sums, x) in sums.iter_mut().zip(&x) {
                    for (sum, &x) in sums.iter_mut().zip(x) {
                        *sum = w.mul_add(x, *sum);
                    }
                }
            }
        }
    });
    // SAFETY: the caller's promise.
    unsafe { part.write(&sums) }
}

/// # Safety
/// As [`DirectTileFn`].
#[cfg(not(target_arch = "aarch64"))]
unsafe fn baseline<const R: usize, const N: usize>(part: &TilePart<'_, N>) {
    // SAFETY: the caller's promise.
    unsafe { plain::<R, N>(part) }
}

/// # Safety
/// As [`DirectTileFn`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<const R: usize, const N: usize>(part: &TilePart<'_, N>) {
    // SAFETY: the caller's promise.
    unsafe { plain::<R, N>(part) }
}

/// # Safety
/// As [`DirectTileFn`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512<const R: usize, const N: usize>(part: &TilePart<'_, N>) {
    use std::arch::x86_64::*;
    /// # Safety
    /// What lies under the masks can be read. The processor has AVX-512.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn load<const N: usize>(start: *const f32, lanes: &[LaneMask; N]) -> __m512 {
        // SAFETY: masked lanes are not touched, the others are the caller's promise.
        unsafe {
            let mut x = _mm512_maskz_loadu_ps(lanes[0].mask, start.wrapping_offset(lanes[0].from));
            for lanes in &lanes[1..] {
                x = _mm512_mask_loadu_ps(x, lanes.mask, start.wrapping_offset(lanes.from));
            }
            x
        }
    }
    let mut sums = [[_mm512_setzero_ps(); 2]; R];
    for r in 0..R {
        // What is written arrives while the sums run; its rows are too far apart for the processor to foresee.
        for places in part.places {
            let row = part.to.wrapping_add(r * part.to_step);
            prefetch::<_MM_HINT_ET0, _>(row.wrapping_offset(places[0].from));
        }
    }
    let taps = part.taps;
    let (first, mut tap) = (part.depth.start / taps.len(), part.depth.start % taps.len());
    let mut image = part.images.wrapping_add(first * part.plane);
    let mut weights = part.weights.wrapping_add(first * part.channel_step + tap);
    // Rows lie at a few starting points, one or two distances from them: so their addresses fit into registers.
    let step = part.row_step;
    let starts = [0, 3 * step, 6 * step, 9 * step];
    let mut left_over = part.depth.len();
    while left_over > 0 {
        let count = (taps.len() - tap).min(left_over);
        let mut w = weights;
        // SAFETY: that many taps exist; what lies under the masks is in the image; the weights are the tile's.
        unsafe {
            for [left, right] in taps.get_unchecked(tap..tap + count) {
                let (left, right) = (load(image, left), load(image, right));
                for r in 0..R {
                    let w = _mm512_set1_ps(*w.wrapping_add(starts[r / 3]).add(r % 3 * step));
                    sums[r][0] = _mm512_fmadd_ps(w, left, sums[r][0]);
                    sums[r][1] = _mm512_fmadd_ps(w, right, sums[r][1]);
                }
                w = w.wrapping_add(1);
            }
        }
        image = image.wrapping_add(part.plane);
        weights = weights.wrapping_add(part.channel_step).wrapping_sub(tap);
        (tap, left_over) = (0, left_over - count);
    }
    let mut done = [[[0.0f32; LANES]; 2]; R];
    for r in 0..R {
        // SAFETY: sixteen floats each.
        unsafe {
            _mm512_storeu_ps(done[r][0].as_mut_ptr(), sums[r][0]);
            _mm512_storeu_ps(done[r][1].as_mut_ptr(), sums[r][1]);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { part.write(&done) }
}

/// The compiler makes single multiply-adds of [`plain`] here, not vectors. One vector of positions is computed after the other: 24 of 32 registers
/// hold the sums of six rows, four hold positions, and weights are broadcast.
///
/// # Safety
/// As [`DirectTileFn`].
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn neon<const R: usize, const N: usize>(part: &TilePart<'_, N>) {
    use std::arch::aarch64::*;
    const QUARTERS: usize = LANES / 4;
    let mut done = [[[0.0f32; LANES]; 2]; R];
    for v in 0..2 {
        let mut sums = [[vdupq_n_f32(0.0); QUARTERS]; R];
        part.channels(|image, weights, taps| {
            let mut weights = weights;
            for tap in taps {
                let loads = &tap[v];
                let mut lanes = [0.0f32; LANES];
                let from = if loads[0].mask == u16::MAX {
                    image.wrapping_offset(loads[0].from)
                } else {
                    for load in loads.iter().filter(|load| load.mask != 0) {
                        let (at, len) =
                            (load.mask.trailing_zeros() as usize, load.mask.count_ones() as usize);
                        let from = image.wrapping_offset(load.from + at as isize);
                        // SAFETY: what lies under a mask is in the image.
                        (0..len).for_each(|i| lanes[at + i] = unsafe { *from.add(i) });
                    }
                    lanes.as_ptr()
                };
                // SAFETY: sixteen floats of the image, which lie under a whole mask, or those of `lanes`; the tile's weights.
                unsafe {
                    let x: [float32x4_t; QUARTERS] = std::array::from_fn(|q| vld1q_f32(from.add(4 * q)));
                    for r in 0..R {
                        let w = *weights.add(r * part.row_step);
                        for q in 0..QUARTERS {
                            sums[r][q] = vfmaq_n_f32(sums[r][q], x[q], w);
                        }
                    }
                }
                weights = weights.wrapping_add(1);
            }
        });
        for r in 0..R {
            for q in 0..QUARTERS {
                // SAFETY: four floats of sixteen.
                unsafe { vst1q_f32(done[r][v].as_mut_ptr().add(4 * q), sums[r][q]) };
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { part.write(&done) }
}

/// The tiles of an instruction set: `[r − 1]` computes `r` rows.
fn tiles<const N: usize>(isa: Isa) -> &'static [DirectTileFn<N>] {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &[
            avx512::<1, N>,
            avx512::<2, N>,
            avx512::<3, N>,
            avx512::<4, N>,
            avx512::<5, N>,
            avx512::<6, N>,
            avx512::<7, N>,
            avx512::<8, N>,
            avx512::<9, N>,
            avx512::<10, N>,
            avx512::<11, N>,
            avx512::<12, N>,
        ],
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &[avx2::<1, N>, avx2::<2, N>, avx2::<3, N>],
        #[cfg(target_arch = "aarch64")]
        _ => &[neon::<1, N>, neon::<2, N>, neon::<3, N>, neon::<4, N>, neon::<5, N>, neon::<6, N>],
        #[cfg(not(target_arch = "aarch64"))]
        _ => &[baseline::<1, N>, baseline::<2, N>, baseline::<3, N>],
    }
}

impl Direct<'_> {
    /// Computes the convolution into planes `[images, rows, positions]` at `to`.
    ///
    /// # Safety
    /// The planes belong to this call alone.
    pub unsafe fn run(&self, pool: &ThreadPool, to: Shared<f32>) {
        // SAFETY: the caller's promise.
        unsafe { self.run_with(Isa::detect(), pool, to) }
    }

    /// # Safety
    /// As [`Self::run`]; the processor has the instructions.
    unsafe fn run_with(&self, isa: Isa, pool: &ThreadPool, to: Shared<f32>) {
        // SAFETY: the caller's promise.
        unsafe {
            match lines(self.windows.positions[1]) {
                Some(1) => self.by_tiles::<1>(tiles(isa), pool, to),
                Some(2) => self.by_tiles::<2>(tiles(isa), pool, to),
                _ => self.by_tiles::<LOADS>(tiles(isa), pool, to),
            }
        }
    }

    /// Pairs of channel and tap.
    fn depth(&self) -> usize {
        self.windows.channels * self.windows.taps[0] * self.windows.taps[1]
    }

    /// # Safety
    /// As [`Self::run`]; the processor has the instructions of the tiles.
    unsafe fn by_tiles<const N: usize>(&self, tiles: &[DirectTileFn<N>], pool: &ThreadPool, to: Shared<f32>) {
        let windows = &self.windows;
        let [height, width] = windows.positions;
        let image = windows.channels * windows.size[0] * windows.size[1];
        let images = windows.images.len() / image.max(1);
        let positions = images * height * width;
        let rows_at_once = even_part(self.rows, tiles.len(), 1);
        let panels = self.rows.div_ceil(rows_at_once);
        // As many panels at a time as stay in cache with their weights.
        let together = (CACHED / (rows_at_once * self.depth() * size_of::<f32>()).max(1)).clamp(1, panels);
        let pairs = positions.div_ceil(2 * LANES);
        let shared = self.rows * positions * self.depth() >= WORTH_SHARING;
        let across = if shared { pairs.min(TASKS) } else { 1 };
        // Tasks that share positions assemble the same vectors, which takes little time compared with several panels.
        let down = if shared { (TASKS / across).min(panels) } else { 1 };
        let share = |all: usize, of: usize, at: usize| at * all / of..(at + 1) * all / of;
        each(pool, across * down, |task| {
            let (my_pairs, my_panels) =
                (share(pairs, across, task % across), share(panels, down, task / across));
            let mut taps = [[[LaneMask::default(); N]; 2]; TAPS];
            let taps = &mut taps[..windows.taps[0] * windows.taps[1]];
            for first in my_panels.clone().step_by(together) {
                for pair in my_pairs.clone() {
                    let places = self.locate(pair, positions, taps);
                    for panel in first..(first + together).min(my_panels.end) {
                        let row = panel * rows_at_once;
                        let rows = rows_at_once.min(self.rows - row);
                        // SAFETY: every task has its own positions and rows.
                        unsafe { self.tile(tiles[rows - 1], row, taps, &places, to) };
                    }
                }
            }
        });
    }

    /// Computes one tile, all parts of the shared dimension one after the other.
    ///
    /// # Safety
    /// As [`DirectTileFn`].
    unsafe fn tile<const N: usize>(
        &self,
        tile: DirectTileFn<N>,
        row: usize,
        taps: &[Pair<N>],
        places: &Pair<N>,
        to: Shared<f32>,
    ) {
        let windows = &self.windows;
        let to_step = windows.positions[0] * windows.positions[1];
        let (depth, inner) = (self.depth(), super::product::Extents::new(0, 0, self.depth()).part());
        for start in (0..depth).step_by(inner) {
            let base = match self.bias {
                _ if start > 0 => Base::Keep,
                Some(bias) => Base::Rows(&bias[row..]),
                None => Base::Zero,
            };
            // SAFETY: the caller's promise; the weights of a row lie within all weights.
            unsafe {
                tile(&TilePart {
                    images: windows.images.as_ptr(),
                    plane: windows.size[0] * windows.size[1],
                    weights: self.weights.as_ptr().add(row * self.row_step),
                    row_step: self.row_step,
                    channel_step: self.channel_step,
                    depth: start..(start + inner).min(depth),
                    taps,
                    to: to.add(row * to_step),
                    to_step,
                    places,
                    base,
                });
            }
        }
    }

    /// Where two vectors of positions are written, and what they read for every tap.
    fn locate<const N: usize>(&self, pair: usize, positions: usize, taps: &mut [Pair<N>]) -> Pair<N> {
        let windows = &self.windows;
        let [height, width] = windows.positions;
        let mut places = [[LaneMask::default(); N]; 2];
        for vector in 0..2 {
            let start = (2 * pair + vector) * LANES;
            let end = (start + LANES).min(positions);
            let mut at = start;
            for part in 0..N {
                if at >= end {
                    places[vector][part] = LaneMask::default();
                    taps.iter_mut().for_each(|tap| tap[vector][part] = LaneMask::default());
                    continue;
                }
                let (line, first) = (at / width, at % width);
                let (image, line) = (line / height, line % height);
                let (lane, len) = (at - start, (width - first).min(end - at));
                let to = (image * self.rows * height + line) * width + first;
                places[vector][part] = LaneMask { from: to as isize - lane as isize, mask: mask(lane, len) };
                for (tap, lanes) in taps.iter_mut().enumerate() {
                    let tap = [tap / windows.taps[1], tap % windows.taps[1]];
                    lanes[vector][part] = self.seen(image, [line, first], (lane, len), tap);
                }
                at += len;
            }
        }
        places
    }

    /// What a tap sees from some positions on one line: the rest lies outside and is zero.
    fn seen(
        &self,
        image: usize,
        first: [usize; 2],
        (lane, len): (usize, usize),
        tap: [usize; 2],
    ) -> LaneMask {
        let windows = &self.windows;
        let [row, column] = [0, 1]
            .map(|axis| windows.start[axis] + first[axis] as isize + tap[axis] as isize * windows.step[axis]);
        let [height, width] = windows.size.map(|size| size as isize);
        let low = (-column).clamp(0, len as isize);
        let high = (width - column).clamp(low, len as isize);
        if !(0..height).contains(&row) || low == high {
            return LaneMask::default();
        }
        let start = (image * windows.channels * windows.size[0]) as isize * width + row * width + column;
        LaneMask { from: start - lane as isize, mask: mask(lane + low as usize, (high - low) as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sums one by one, for one image; parts of the depth as the product cuts them.
    fn slowly(direct: &Direct<'_>) -> Vec<f32> {
        let windows = &direct.windows;
        let ([height, width], [rows, columns]) = (windows.size, windows.positions);
        let (taps, depth) = (windows.taps[0] * windows.taps[1], direct.depth());
        let inner = super::super::product::Extents::new(0, 0, depth).part();
        let mut out = Vec::new();
        for row in 0..direct.rows {
            for (y, x) in (0..rows).flat_map(|y| (0..columns).map(move |x| (y, x))) {
                let term = |k: usize, sum: f32| {
                    let (channel, tap) = (k / taps, k % taps);
                    let place = [(y, tap / windows.taps[1]), (x, tap % windows.taps[1])];
                    let [i, j] = [0, 1].map(|axis| {
                        let (at, tap) = place[axis];
                        windows.start[axis] + at as isize + tap as isize * windows.step[axis]
                    });
                    let inside = (0..height as isize).contains(&i) && (0..width as isize).contains(&j);
                    let at = || channel * height * width + i as usize * width + j as usize;
                    let x = if inside { windows.images[at()] } else { 0.0 };
                    direct.weights[row * direct.row_step + channel * direct.channel_step + tap]
                        .mul_add(x, sum)
                };
                let mut sum = direct.bias.map(|bias| bias[row]);
                for start in (0..depth).step_by(inner) {
                    let part = (start..depth.min(start + inner)).fold(0.0, |sum, k| term(k, sum));
                    sum = Some(sum.map_or(part, |sum| sum + part));
                }
                out.extend(sum);
            }
        }
        out
    }

    #[test]
    fn every_instruction_set_sums_in_the_same_order() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("threads start");
        for (channels, rows, size, taps, start, step) in [
            (3, 5, [7, 4], [3, 3], [-1, -1], 1),
            (2, 13, [5, 5], [2, 4], [0, -2], 1),
            (40, 26, [4, 8], [3, 3], [1, 1], -1),
            (3, 2, [3, 16], [7, 7], [-3, -3], 1),
            (70, 3, [2, 32], [1, 5], [0, 2], -1),
            (300, 14, [1, 21], [1, 1], [0, 0], 1),
        ] {
            let numbers =
                |len: usize, by: usize| (0..len).map(|i| ((i * by % 2003) as f32 - 1001.0) / 777.0).collect();
            let images: Vec<f32> = numbers(channels * size[0] * size[1], 7919);
            let area = taps[0] * taps[1];
            let weights: Vec<f32> = numbers(rows * channels * area, 104_729);
            let bias: Vec<f32> = numbers(rows, 31);
            for bias in [None, Some(&bias[..])] {
                let direct = Direct {
                    rows,
                    windows: Windows {
                        images: &images,
                        channels,
                        size,
                        positions: size,
                        taps,
                        start,
                        stride: [1, 1],
                        step: [step, step],
                    },
                    weights: &weights,
                    row_step: if step > 0 { channels * area } else { area },
                    channel_step: if step > 0 { area } else { rows * area },
                    bias,
                };
                let expected = slowly(&direct);
                for isa in [Isa::Baseline, Isa::Avx2, Isa::Avx512] {
                    if isa > Isa::detect() {
                        continue;
                    }
                    let mut out = vec![f32::NAN; expected.len()];
                    // SAFETY: the planes are this call's; the processor has the instructions.
                    unsafe { direct.run_with(isa, &pool, Shared::new(out.as_mut_ptr())) };
                    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&out), bits(&expected), "{isa:?}, {channels} channels of {size:?}");
                }
            }
        }
    }
}

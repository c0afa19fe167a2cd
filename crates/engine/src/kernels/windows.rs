//! The windows of images as a matrix that is never stored (`im2col`, Chellapilla, Puri and Simard, 2006, one panel at a time).
//!
//! Positions of the window, over all images, are one dimension; the other is pairs of channel and tap. Either can be the lines of an
//! operand: positions for a convolution ([`Windows`]), taps for the gradient of its weights ([`Taps`]).

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::isa::{Isa, prefetch};
use super::number::Number;
use super::pack::{Panels, pack_pairs_by_rows};
use super::pairs::{self, Pair};

#[cfg(target_arch = "x86_64")]
mod paired;

/// Panels are at most this wide.
const WIDEST: usize = super::tile::MAX_COLUMNS;

/// The windows of images. Along each axis, tap `i` of the window at position `p` lies at `start + p · stride + i · step` in the image, and
/// is zero where that lies outside.
#[derive(Clone, Copy)]
pub struct Windows<'a, T = f32> {
    /// `[images, channels, size]`
    pub images: &'a [T],
    /// Channels of an image.
    pub channels: usize,
    /// Height and width of an image.
    pub size: [usize; 2],
    /// Positions of the window.
    pub positions: [usize; 2],
    /// Taps of the window.
    pub taps: [usize; 2],
    /// Where tap 0 at position 0 lies.
    pub start: [isize; 2],
    /// Distance between positions.
    pub stride: [usize; 2],
    /// Distance between taps.
    pub step: [isize; 2],
}

/// Neighbouring positions on one line of one image.
#[derive(Clone, Copy, Default)]
struct PositionRun {
    /// Index of the first in the panel.
    at: usize,
    /// Number of positions.
    len: usize,
    /// The image.
    image: usize,
    /// The line.
    line: usize,
    /// The first position on the line.
    first: usize,
}

/// A part of a run that lies inside the image for some tap.
#[derive(Clone, Copy, Default)]
struct TapSpan {
    /// Index of the first in the panel.
    at: usize,
    /// Number of elements.
    len: usize,
    /// Where they start in channel 0 of their image.
    from: usize,
}

impl<'a, T: Number> Windows<'a, T> {
    /// The same windows, with lines of images joined where a window is a single element and takes all of them.
    pub fn joined(self) -> Self {
        let plain = self.taps == [1, 1] && self.stride == [1, 1] && self.start == [0, 0];
        if plain && self.positions == self.size {
            let whole = [1, self.size[0] * self.size[1]];
            return Self { size: whole, positions: whole, ..self };
        }
        self
    }

    /// The runs of a range of positions.
    fn runs(&self, positions: Range<usize>) -> impl Iterator<Item = PositionRun> + use<T> {
        let [height, width] = self.positions;
        let (start, mut next) = (positions.start, positions.start);
        std::iter::from_fn(move || {
            (next < positions.end).then(|| {
                let (line, first) = (next / width, next % width);
                let len = (width - first).min(positions.end - next);
                let run =
                    PositionRun { at: next - start, len, image: line / height, line: line % height, first };
                next += len;
                run
            })
        })
    }

    /// The runs of a panel.
    fn runs_of<'r>(&self, lines: Range<usize>, runs: &'r mut [PositionRun; WIDEST]) -> &'r [PositionRun] {
        let mut count = 0;
        for run in self.runs(lines) {
            runs[count] = run;
            count += 1;
        }
        &runs[..count]
    }

    /// What a tap sees of a run; the rest of the run lies outside and is zero.
    fn copy(&self, run: PositionRun, [i, j]: [usize; 2]) -> Option<TapSpan> {
        let row = self.start[0] + (run.line * self.stride[0]) as isize + i as isize * self.step[0];
        if row < 0 || row >= self.size[0] as isize {
            return None;
        }
        // Positions q with 0 ≤ offset + q · stride < width.
        let offset = self.start[1] + j as isize * self.step[1];
        let stride = self.stride[1] as isize;
        let reach = |bound: isize| if stride == 1 { bound } else { (bound + stride - 1).div_euclid(stride) };
        let low = reach(-offset).max(run.first as isize);
        let high = reach(self.size[1] as isize - offset).min((run.first + run.len) as isize);
        (low < high).then(|| TapSpan {
            at: run.at + (low as usize - run.first),
            len: (high - low) as usize,
            from: run.image * self.channels * self.size[0] * self.size[1]
                + row as usize * self.size[1]
                + (offset + low * stride) as usize,
        })
    }

    /// The taps with the channels that a range of (channel, tap) pairs has for them.
    fn channels_of(
        &self,
        pairs: &Range<usize>,
    ) -> impl Iterator<Item = ([usize; 2], usize, Range<usize>)> + use<'a, T> {
        let (taps, pairs, width) = (self.taps[0] * self.taps[1], pairs.clone(), self.taps[1]);
        (0..taps).map(move |tap| {
            let first = (pairs.start + taps - 1 - tap) / taps;
            let last = (pairs.end + taps - 1 - tap) / taps;
            ([tap / width, tap % width], tap, first..last)
        })
    }
}

impl<T: Number> Panels for Windows<'_, T> {
    const IS_BF16: bool = T::IS_BF16;

    fn pack_pairs(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [Pair]) {
        #[cfg(target_arch = "x86_64")]
        {
            let mut runs = [PositionRun::default(); WIDEST];
            let runs = self.runs_of(lines.clone(), &mut runs);
            if self.pack_pairs_masked(runs, depth.clone(), width, out) {
                return;
            }
        }
        pack_pairs_by_rows(self, lines, depth, width, out);
    }

    fn pack(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [f32]) {
        let mut runs = [PositionRun::default(); WIDEST];
        let runs = self.runs_of(lines, &mut runs);
        #[cfg(target_arch = "x86_64")]
        if self.stride[1] == 1 && width == 2 * LANES && Isa::detect() == Isa::Avx512 {
            // SAFETY: the processor has AVX-512.
            unsafe { self.pack_masked(runs, depth, out) };
            return;
        }
        self.pack_plainly(runs, depth, width, out);
    }
}

/// Floats of a vector of AVX-512.
#[cfg(target_arch = "x86_64")]
const LANES: usize = 16;

/// The load of some lanes of half a row.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Default)]
struct MaskedLoad {
    /// Where lane 0 would lie in channel 0.
    from: isize,
    /// The tap.
    tap: u32,
    /// Which lanes.
    mask: u16,
    /// Which half of the tap's row.
    half: u8,
    /// Whether it is the last of its half row, which is then stored.
    last: bool,
    /// Whether it is among the first to see its line of the image.
    ahead: bool,
}

impl<T: Number> Windows<'_, T> {
    fn pack_plainly(&self, runs: &[PositionRun], depth: Range<usize>, width: usize, out: &mut [f32]) {
        let plane = self.size[0] * self.size[1];
        let taps = self.taps[0] * self.taps[1];
        for (place, tap, channels) in self.channels_of(&depth) {
            let mut copies = [TapSpan::default(); WIDEST];
            let (mut count, mut covered) = (0, 0);
            for copy in runs.iter().filter_map(|&run| self.copy(run, place)) {
                copies[count] = copy;
                count += 1;
                covered += copy.len;
            }
            for channel in channels {
                let k = channel * taps + tap - depth.start;
                let row = &mut out[k * width..(k + 1) * width];
                if covered < width {
                    row.fill(0.0);
                }
                for copy in &copies[..count] {
                    let from = copy.from + channel * plane;
                    let to = &mut row[copy.at..copy.at + copy.len];
                    if self.stride[1] == 1 {
                        T::widen(&self.images[from..from + copy.len], to);
                    } else {
                        for (to, from) in
                            to.iter_mut().zip(self.images[from..].iter().step_by(self.stride[1]))
                        {
                            *to = from.float();
                        }
                    }
                }
            }
        }
    }

    /// The same for panels two vectors wide and a stride of one: every copy is a load of one vector under a mask, so that short lines
    /// and the zeros around images cost nothing. All taps of a channel come together, while its lines are in the nearest cache.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn pack_masked(&self, runs: &[PositionRun], depth: Range<usize>, out: &mut [f32]) {
        const CAPACITY: usize = 160;
        let taps = self.taps[0] * self.taps[1];
        let mut loads = [MaskedLoad::default(); CAPACITY];
        let mut count = 0;
        for tap in 0..taps {
            let place = [tap / self.taps[1], tap % self.taps[1]];
            let ahead = place[1] == 0;
            let nothing = |half: usize| MaskedLoad {
                half: half as u8,
                tap: tap as u32,
                last: true,
                ..MaskedLoad::default()
            };
            // The half row that the last load belongs to.
            let mut reached = None;
            for copy in runs.iter().filter_map(|&run| self.copy(run, place)) {
                for half in copy.at / LANES..(copy.at + copy.len).div_ceil(LANES) {
                    let low = copy.at.max(half * LANES);
                    let high = (copy.at + copy.len).min((half + 1) * LANES);
                    let mask = (((1u32 << (high - low)) - 1) << (low - half * LANES)) as u16;
                    let from = (copy.from + half * LANES) as isize - copy.at as isize;
                    if reached == Some(half) {
                        let before = &mut loads[count - 1];
                        // Where positions are as many as columns, one line continues in the next.
                        if before.from == from {
                            before.mask |= mask;
                            continue;
                        }
                        before.last = false;
                    } else if half == 1 && reached.is_none() {
                        loads[count] = nothing(0);
                        count += 1;
                    }
                    loads[count] = MaskedLoad { mask, from, ahead, ..nothing(half) };
                    count += 1;
                    reached = Some(half);
                }
            }
            // A half without any load is zero: a load of no lanes.
            for half in reached.map_or(0, |half| half + 1)..2 {
                loads[count] = nothing(half);
                count += 1;
            }
            if tap + 1 == taps || count + 2 * LANES + 2 > CAPACITY {
                // SAFETY: lanes under the masks lie within the images.
                unsafe { self.load_channels(&loads[..count], depth.clone(), out) };
                count = 0;
            }
        }
    }

    /// Runs loads for every channel of a range of (channel, tap) pairs.
    ///
    /// # Safety
    /// Lanes under the masks lie within the images, for all channels.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn load_channels(&self, loads: &[MaskedLoad], depth: Range<usize>, out: &mut [f32]) {
        use std::arch::x86_64::*;
        /// Channels between a load and its hint.
        const AHEAD: usize = 6;
        let plane = self.size[0] * self.size[1];
        let taps = self.taps[0] * self.taps[1];
        let mut hints = [0; WIDEST];
        let mut hint_count = 0;
        for load in loads.iter().filter(|load| load.ahead).take(WIDEST) {
            hints[hint_count] = load.from;
            hint_count += 1;
        }
        // Then the loads of a channel fill its rows without gaps.
        let simple = loads.iter().all(|load| load.last);
        for channel in depth.start / taps..depth.end.div_ceil(taps) {
            let images = self.images.as_ptr().wrapping_add(channel * plane);
            // The first and the last channel may lack taps at the ends of the range.
            let seen = depth.start.saturating_sub(channel * taps)..depth.end - channel * taps;
            let row = (channel * taps) as isize - depth.start as isize;
            // Planes may be pages apart, where no processor foresees the next one.
            for &from in &hints[..hint_count] {
                let line = images.wrapping_add(AHEAD * plane).wrapping_offset(from);
                prefetch::<_MM_HINT_T0, _>(line);
                prefetch::<_MM_HINT_T0, _>(line.wrapping_add(LANES - 1));
            }
            let part = if seen.start == 0 && seen.end >= taps {
                loads
            } else {
                let place = |tap: usize| loads.partition_point(|load| (load.tap as usize) < tap);
                &loads[place(seen.start)..place(seen.end)]
            };
            if simple {
                let first = row + part.first().map_or(0, |load| load.tap as isize);
                let out = &mut out[first as usize * 2 * LANES..][..part.len() * LANES];
                for (i, load) in part.iter().enumerate() {
                    // SAFETY: the caller's promise; the slice holds a vector for each load.
                    unsafe {
                        let zeros = _mm512_setzero_ps();
                        let lanes = T::some_of_sixteen(zeros, load.mask, images.wrapping_offset(load.from));
                        _mm512_storeu_ps(out.as_mut_ptr().add(i * LANES), lanes);
                    }
                }
                continue;
            }
            let mut lanes = _mm512_setzero_ps();
            for load in part {
                // SAFETY: the caller's promise; lanes outside the mask are not touched.
                lanes = unsafe { T::some_of_sixteen(lanes, load.mask, images.wrapping_offset(load.from)) };
                if load.last {
                    let at = ((row + load.tap as isize) * 2 + load.half as isize) as usize * LANES;
                    let half = &mut out[at..at + LANES];
                    // SAFETY: the slice is one vector long.
                    unsafe { _mm512_storeu_ps(half.as_mut_ptr(), lanes) };
                    lanes = _mm512_setzero_ps();
                }
            }
        }
    }
}

/// The same matrix with pairs of channel and tap as lines, and positions as the shared dimension.
#[derive(Clone, Copy)]
pub struct Taps<'a, T = f32>(pub Windows<'a, T>);

impl<T: Number> Panels for Taps<'_, T> {
    const IS_BF16: bool = T::IS_BF16;

    fn pack_pairs(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [Pair]) {
        #[cfg(target_arch = "x86_64")]
        if self.pack_pairs_masked(lines.clone(), depth.clone(), width, out) {
            return;
        }
        pack_pairs_by_rows(self, lines, depth, width, out);
    }

    fn pack(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [f32]) {
        // Lines that are packed in blocks.
        #[cfg(target_arch = "x86_64")]
        let done = if self.blocks() { lines.len() / BLOCK * BLOCK } else { 0 };
        #[cfg(not(target_arch = "x86_64"))]
        let done = 0;
        #[cfg(target_arch = "x86_64")]
        if done > 0 {
            let whole = lines.start..lines.start + done;
            // SAFETY: the processor has AVX-512.
            unsafe { self.pack_blocks(whole, depth.clone(), out, width) };
        }
        if done < width {
            out.chunks_exact_mut(width).for_each(|row| row[done..].fill(0.0));
            self.pack_rest(lines.start + done..lines.end, depth, &mut out[done..], width);
        }
    }
}

/// Lines and positions that are transposed together.
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 8;
/// Windows with more taps are packed line by line.
#[cfg(target_arch = "x86_64")]
const MOST_TAPS: usize = 32;

/// A tap, seen from any position.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Default)]
struct Tap {
    /// Lines and columns of positions at which it is inside.
    inside: [Range<usize>; 2],
    /// What it adds to a position's place in its plane.
    offset: isize,
}

/// Whether no pair of a range of positions belongs to two images.
fn pairs_stay_in_images(plane: usize, depth: &Range<usize>) -> bool {
    plane.is_multiple_of(2) && depth.start.is_multiple_of(2)
}

#[cfg(target_arch = "x86_64")]
impl<T: Number> Taps<'_, T> {
    /// Whether neighbouring positions are neighbours in memory, from line to line, so that they can be transposed by blocks.
    fn blocks(&self) -> bool {
        let windows = &self.0;
        windows.stride == [1, 1]
            && windows.positions[1] == windows.size[1]
            && windows.taps[0] * windows.taps[1] <= MOST_TAPS
            && Isa::detect() == Isa::Avx512
    }

    fn tap(&self, tap: usize) -> Tap {
        let windows = &self.0;
        let offset = |axis: usize| {
            let tap = if axis == 0 { tap / windows.taps[1] } else { tap % windows.taps[1] };
            windows.start[axis] + tap as isize * windows.step[axis]
        };
        let inside = |axis: usize| {
            let clamp = |x: isize| x.clamp(0, windows.positions[axis] as isize) as usize;
            clamp(-offset(axis))..clamp(windows.size[axis] as isize - offset(axis))
        };
        Tap { inside: [inside(0), inside(1)], offset: offset(0) * windows.size[1] as isize + offset(1) }
    }

    /// Packs a multiple of eight lines, at most a panel, by blocks of eight positions, loaded under masks that hide what lies outside.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
    fn pack_blocks(&self, lines: Range<usize>, depth: Range<usize>, out: &mut [f32], width: usize) {
        use std::arch::x86_64::{__m256, _mm256_storeu_ps};
        let windows = &self.0;
        let count = windows.taps[0] * windows.taps[1];
        let plane = windows.size[0] * windows.size[1];
        let [height, columns] = windows.positions;
        let mut taps: [Tap; MOST_TAPS] = Default::default();
        for (index, tap) in taps[..count].iter_mut().enumerate() {
            *tap = self.tap(index);
        }
        let mut sources = [(0usize, 0isize); WIDEST];
        for (source, line) in sources.iter_mut().zip(lines.clone()) {
            let (channel, tap) = (line / count, line % count);
            *source = (tap, (channel * plane) as isize + taps[tap].offset);
        }
        let sources = &sources[..lines.len()];
        let mut at = depth.start;
        while at < depth.end {
            let (image, first) = (at / (height * columns), at % (height * columns));
            let len = (height * columns - first).min(depth.end - at);
            let start = windows.images.as_ptr().wrapping_add(image * windows.channels * plane);
            for k in (0..len / BLOCK * BLOCK).step_by(BLOCK) {
                let mut masks = [0u8; MOST_TAPS];
                let mut done = 0;
                while done < BLOCK {
                    let (y, x) = ((first + k + done) / columns, (first + k + done) % columns);
                    let part = (columns - x).min(BLOCK - done);
                    for (mask, tap) in masks.iter_mut().zip(&taps[..count]) {
                        let (low, high) = (tap.inside[1].start.max(x), tap.inside[1].end.min(x + part));
                        if tap.inside[0].contains(&y) && low < high {
                            *mask |= (((1u32 << (high - low)) - 1) << (low - x + done)) as u8;
                        }
                    }
                    done += part;
                }
                let rows = &mut out[(at - depth.start + k) * width..];
                assert!(rows.len() >= (BLOCK - 1) * width + sources.len());
                for (group, sources) in sources.chunks_exact(BLOCK).enumerate() {
                    let block: [__m256; BLOCK] = std::array::from_fn(|i| {
                        let (tap, offset) = sources[i];
                        let from = start.wrapping_offset(offset + (first + k) as isize);
                        // SAFETY: positions under the mask lie within the plane; others are not touched.
                        unsafe { T::some_of_eight(masks[tap], from) }
                    });
                    for (i, row) in super::pack::transpose8(block).into_iter().enumerate() {
                        // SAFETY: `sources.len()` columns of eight rows, as asserted above.
                        unsafe { _mm256_storeu_ps(rows.as_mut_ptr().add(i * width + group * BLOCK), row) };
                    }
                }
            }
            let rest = len / BLOCK * BLOCK;
            if rest < len {
                let part = &mut out[(at - depth.start + rest) * width..][..(len - rest) * width];
                part.chunks_exact_mut(width).for_each(|row| row[..lines.len()].fill(0.0));
                self.pack_rest(lines.clone(), at + rest..at + len, part, width);
            }
            at += len;
        }
    }
}

impl<T: Number> Taps<'_, T> {
    /// Packs any lines one by one over zeros.
    fn pack_rest(&self, lines: Range<usize>, depth: Range<usize>, out: &mut [f32], width: usize) {
        let windows = &self.0;
        let plane = windows.size[0] * windows.size[1];
        let taps = windows.taps[0] * windows.taps[1];
        for run in windows.runs(depth) {
            for (place, tap, channels) in windows.channels_of(&lines) {
                let Some(copy) = windows.copy(run, place) else { continue };
                for channel in channels {
                    let from =
                        windows.images[copy.from + channel * plane..].iter().step_by(windows.stride[1]);
                    let rows = out[copy.at * width..].chunks_mut(width).take(copy.len);
                    for (row, &x) in rows.zip(from) {
                        row[channel * taps + tap - lines.start] = x.float();
                    }
                }
            }
        }
    }
}

/// Planes of images as lines, over all images: the element at (channel, position) where positions count through the images.
#[derive(Clone, Copy)]
pub struct Planes<'a, T = f32> {
    /// `[images, channels, plane]`
    pub images: &'a [T],
    /// Channels of an image.
    pub channels: usize,
    /// Elements of a plane.
    pub plane: usize,
}

impl<T: Number> Panels for Planes<'_, T> {
    const IS_BF16: bool = T::IS_BF16;

    fn pack_pairs(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [Pair]) {
        if !pairs_stay_in_images(self.plane, &depth) {
            return pack_pairs_by_rows(self, lines, depth, width, out);
        }
        let mut at = depth.start;
        while at < depth.end {
            let (image, first) = (at / self.plane, at % self.plane);
            let len = (self.plane - first).min(depth.end - at);
            let data = &self.images[(image * self.channels + lines.start) * self.plane + first..];
            let out = &mut out[(at - depth.start) / 2 * width..];
            pairs::transpose(data, self.plane, lines.len(), len, width, out);
            at += len;
        }
    }

    fn pack(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [f32]) {
        let mut at = depth.start;
        while at < depth.end {
            let (image, first) = (at / self.plane, at % self.plane);
            let len = (self.plane - first).min(depth.end - at);
            let data = &self.images[(image * self.channels + lines.start) * self.plane + first..];
            let part = &mut out[(at - depth.start) * width..(at - depth.start + len) * width];
            super::pack::transpose(data, self.plane, lines.len(), width, part);
            at += len;
        }
    }
}

/// The weights of a convolution as its gradient to the input needs them: lines are input channels, the shared dimension runs over
/// output channels and the taps that reach one residue of positions.
#[derive(Clone, Copy)]
pub struct Reversed<'a> {
    /// `[outputs, inputs, kernel]`
    pub weights: &'a [f32],
    /// Input channels.
    pub inputs: usize,
    /// The whole window.
    pub kernel: [usize; 2],
    /// Its first tap that counts.
    pub first: [usize; 2],
    /// Distance between taps that count.
    pub stride: [usize; 2],
    /// Number of taps that count.
    pub taps: [usize; 2],
}

impl Panels for Reversed<'_> {
    const IS_BF16: bool = false;

    fn pack(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [f32]) {
        let taps = self.taps[0] * self.taps[1];
        let area = self.kernel[0] * self.kernel[1];
        if taps == area {
            // All taps count: one output channel after the other, they are a matrix of input channels and taps.
            let mut at = depth.start;
            while at < depth.end {
                let (output, tap) = (at / taps, at % taps);
                let len = (taps - tap).min(depth.end - at);
                let part = &mut out[(at - depth.start) * width..][..len * width];
                let start = (output * self.inputs + lines.start) * area + tap;
                super::pack::transpose(&self.weights[start..], area, lines.len(), width, part);
                at += len;
            }
            return;
        }
        for (k, row) in depth.zip(out.chunks_exact_mut(width)) {
            let (output, tap) = (k / taps, k % taps);
            let i = self.first[0] + tap / self.taps[1] * self.stride[0];
            let j = self.first[1] + tap % self.taps[1] * self.stride[1];
            let start = (output * self.inputs + lines.start) * area + i * self.kernel[1] + j;
            let (to, rest) = row.split_at_mut(lines.len());
            for (to, from) in to.iter_mut().zip(self.weights[start..].iter().step_by(area)) {
                *to = *from;
            }
            rest.fill(0.0);
        }
    }
}

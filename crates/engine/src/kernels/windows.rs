//! The windows of images as a matrix that is never stored (`im2col`, Chellapilla, Puri and Simard, 2006, one panel at a time).
//!
//! Positions of the window, over all images, are one dimension; the other is pairs of channel and tap. Either can be the lines of an
//! operand: positions for a convolution ([`Windows`]), taps for the gradient of its weights ([`Taps`]).

use std::ops::Range;

use super::isa::Isa;
use super::pack::{GROUP, Panels, transpose_group};

/// Panels are at most this wide.
const WIDEST: usize = super::tile::MAX_COLUMNS;

/// The windows of images. Along each axis, tap `i` of the window at position `p` lies at `start + p · stride + i · step` in the image, and
/// is zero where that lies outside.
#[derive(Clone, Copy)]
pub struct Windows<'a> {
    /// `[images, channels, size]`
    pub images: &'a [f32],
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
struct Run {
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
struct Copy {
    /// Index of the first in the panel.
    at: usize,
    /// Number of elements.
    len: usize,
    /// Where they start in channel 0 of their image.
    from: usize,
}

impl<'a> Windows<'a> {
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
    fn runs(&self, positions: Range<usize>) -> impl Iterator<Item = Run> + use<> {
        let [height, width] = self.positions;
        let (start, mut next) = (positions.start, positions.start);
        std::iter::from_fn(move || {
            (next < positions.end).then(|| {
                let (line, first) = (next / width, next % width);
                let len = (width - first).min(positions.end - next);
                let run = Run { at: next - start, len, image: line / height, line: line % height, first };
                next += len;
                run
            })
        })
    }

    /// What a tap sees of a run; the rest of the run lies outside and is zero.
    fn copy(&self, run: Run, [i, j]: [usize; 2]) -> Option<Copy> {
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
        (low < high).then(|| Copy {
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
    ) -> impl Iterator<Item = ([usize; 2], usize, Range<usize>)> + use<'a> {
        let (taps, pairs, width) = (self.taps[0] * self.taps[1], pairs.clone(), self.taps[1]);
        (0..taps).map(move |tap| {
            let first = (pairs.start + taps - 1 - tap) / taps;
            let last = (pairs.end + taps - 1 - tap) / taps;
            ([tap / width, tap % width], tap, first..last)
        })
    }
}

impl Panels for Windows<'_> {
    fn pack(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [f32]) {
        let mut runs = [Run::default(); WIDEST];
        let mut run_count = 0;
        for run in self.runs(lines) {
            runs[run_count] = run;
            run_count += 1;
        }
        let runs = &runs[..run_count];
        let taps = self.taps[0] * self.taps[1];
        for (place, tap, channels) in self.channels_of(&depth) {
            let mut copies = [Copy::default(); WIDEST];
            let mut copy_count = 0;
            for copy in runs.iter().filter_map(|&run| self.copy(run, place)) {
                copies[copy_count] = copy;
                copy_count += 1;
            }
            let copies = &copies[..copy_count];
            let first = channels.start * taps + tap - depth.start;
            let rows = Rows { first, step: taps, width, channels };
            #[cfg(target_arch = "x86_64")]
            if self.stride[1] == 1 && width == 2 * LANES && Isa::detect() == Isa::Avx512 {
                // SAFETY: the processor has AVX-512.
                unsafe { self.copy_masked(copies, rows, out) };
                continue;
            }
            self.copy_plainly(copies, rows, out);
        }
    }
}

/// Rows of a panel that one tap fills: one for each channel, `step` apart.
struct Rows {
    first: usize,
    step: usize,
    width: usize,
    channels: Range<usize>,
}

impl Rows {
    /// Every channel with the start of its row.
    fn each(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (first, step, width, start) = (self.first, self.step, self.width, self.channels.start);
        self.channels.clone().map(move |channel| (channel, (first + (channel - start) * step) * width))
    }
}

/// Floats of a vector of AVX-512.
#[cfg(target_arch = "x86_64")]
const LANES: usize = 16;

impl Windows<'_> {
    fn copy_plainly(&self, copies: &[Copy], rows: Rows, out: &mut [f32]) {
        let plane = self.size[0] * self.size[1];
        let covered: usize = copies.iter().map(|copy| copy.len).sum();
        for (channel, at) in rows.each() {
            let row = &mut out[at..at + rows.width];
            if covered < rows.width {
                row.fill(0.0);
            }
            for copy in copies {
                let from = copy.from + channel * plane;
                let to = &mut row[copy.at..copy.at + copy.len];
                if self.stride[1] == 1 {
                    to.copy_from_slice(&self.images[from..from + copy.len]);
                } else {
                    for (to, from) in to.iter_mut().zip(self.images[from..].iter().step_by(self.stride[1])) {
                        *to = *from;
                    }
                }
            }
        }
    }

    /// The same for panels two vectors wide and a stride of one: every copy is a load of one vector under a mask, so that short lines
    /// and the zeros around images cost nothing.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    fn copy_masked(&self, copies: &[Copy], rows: Rows, out: &mut [f32]) {
        use std::arch::x86_64::{_mm512_mask_loadu_ps, _mm512_setzero_ps, _mm512_storeu_ps};
        let plane = self.size[0] * self.size[1];
        // Loads of each half: which lanes, and where lane 0 would lie in channel 0.
        let mut loads = [[(0u16, 0isize); WIDEST]; 2];
        let mut counts = [0; 2];
        for copy in copies {
            for half in 0..2 {
                let low = copy.at.max(half * LANES);
                let high = (copy.at + copy.len).min((half + 1) * LANES);
                if low < high {
                    let mask = (((1u32 << (high - low)) - 1) << (low - half * LANES)) as u16;
                    loads[half][counts[half]] =
                        (mask, (copy.from + half * LANES) as isize - copy.at as isize);
                    counts[half] += 1;
                }
            }
            let last = copy.from + (rows.channels.end.max(1) - 1) * plane + copy.len;
            assert!(last <= self.images.len(), "a window lies within its image");
        }
        for (channel, at) in rows.each() {
            let row = &mut out[at..at + 2 * LANES];
            for half in 0..2 {
                let mut lanes = _mm512_setzero_ps();
                for &(mask, from) in &loads[half][..counts[half]] {
                    let from = self.images.as_ptr().wrapping_offset(from + (channel * plane) as isize);
                    // SAFETY: lanes under the mask lie within the images, as asserted above; others are not touched.
                    lanes = unsafe { _mm512_mask_loadu_ps(lanes, mask, from) };
                }
                // SAFETY: half of a row of two vectors.
                unsafe { _mm512_storeu_ps(row.as_mut_ptr().add(half * LANES), lanes) };
            }
        }
    }
}

/// The same matrix with pairs of channel and tap as lines, and positions as the shared dimension.
#[derive(Clone, Copy)]
pub struct Taps<'a>(pub Windows<'a>);

impl Panels for Taps<'_> {
    fn pack(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [f32]) {
        let windows = &self.0;
        // Then neighbouring positions are neighbours in memory, from line to line.
        let continuous =
            windows.stride == [1, 1] && windows.step == [1, 1] && windows.positions[1] == windows.size[1];
        let mut done = lines.start;
        while continuous && done + GROUP <= lines.end {
            self.pack_group(done, depth.clone(), &mut out[done - lines.start..], width);
            done += GROUP;
        }
        if done < lines.start + width {
            let rest = done - lines.start;
            out.chunks_exact_mut(width).for_each(|row| row[rest..].fill(0.0));
            self.pack_rest(done..lines.end, depth, &mut out[rest..], width);
        }
    }
}

impl Taps<'_> {
    /// Packs eight lines over positions that are continuous: parts of planes are transposed as they lie, and zeros written over what lies
    /// outside.
    fn pack_group(&self, line: usize, depth: Range<usize>, out: &mut [f32], width: usize) {
        let windows = &self.0;
        let taps = windows.taps[0] * windows.taps[1];
        let plane = windows.size[0] * windows.size[1];
        let [height, columns] = windows.positions;
        let places: [([usize; 2], usize); GROUP] = std::array::from_fn(|i| {
            let (channel, tap) = ((line + i) / taps, (line + i) % taps);
            ([tap / windows.taps[1], tap % windows.taps[1]], channel)
        });
        let mut at = depth.start;
        while at < depth.end {
            let (image, first) = (at / (height * columns), at % (height * columns));
            let len = (height * columns - first).min(depth.end - at);
            let part = &mut out[(at - depth.start) * width..];
            // Where position 0 of the image would lie; what comes before the first image or after the last is missing.
            let starts = places.map(|([i, j], channel)| {
                let tap = (windows.start[0] + i as isize) * windows.size[1] as isize
                    + windows.start[1]
                    + j as isize;
                ((image * windows.channels + channel) * plane + first) as isize + tap
            });
            let inside = |&start: &isize| start >= 0 && start as usize + len <= windows.images.len();
            if starts.iter().all(inside) {
                let sources = starts.map(|start| &windows.images[start as usize..][..len]);
                transpose_group(&sources, len, part, width);
            } else {
                for (i, &start) in starts.iter().enumerate() {
                    for k in 0..len {
                        let x = usize::try_from(start + k as isize)
                            .ok()
                            .and_then(|from| windows.images.get(from));
                        part[k * width + i] = x.copied().unwrap_or(0.0);
                    }
                }
            }
            for run in windows.runs(at..at + len) {
                for (i, &(place, _)) in places.iter().enumerate() {
                    let (low, high) =
                        windows.copy(run, place).map_or((0, 0), |copy| (copy.at, copy.at + copy.len));
                    let shown = if low < high { low..high } else { run.at..run.at };
                    (run.at..shown.start)
                        .chain(shown.end..run.at + run.len)
                        .for_each(|k| part[k * width + i] = 0.0);
                }
            }
            at += len;
        }
    }

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
                        row[channel * taps + tap - lines.start] = x;
                    }
                }
            }
        }
    }
}

/// Planes of images as lines, over all images: the element at (channel, position) where positions count through the images.
#[derive(Clone, Copy)]
pub struct Planes<'a> {
    /// `[images, channels, plane]`
    pub images: &'a [f32],
    /// Channels of an image.
    pub channels: usize,
    /// Elements of a plane.
    pub plane: usize,
}

impl Panels for Planes<'_> {
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
    fn pack(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [f32]) {
        let taps = self.taps[0] * self.taps[1];
        let area = self.kernel[0] * self.kernel[1];
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

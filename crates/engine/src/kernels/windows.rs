//! The windows of images as a matrix that is never stored (`im2col`, Chellapilla, Puri and Simard, 2006, one panel at a time).
//!
//! Positions of the window, over all images, are one dimension; the other is pairs of channel and tap. Either can be the lines of an
//! operand: positions for a convolution ([`Windows`]), taps for the gradient of its weights ([`Taps`]).

use std::ops::Range;

use super::pack::Panels;

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
        let count = lines.len();
        let mut runs = [Run::default(); WIDEST];
        let mut run_count = 0;
        for run in self.runs(lines) {
            runs[run_count] = run;
            run_count += 1;
        }
        let plane = self.size[0] * self.size[1];
        let taps = self.taps[0] * self.taps[1];
        for (place, tap, channels) in self.channels_of(&depth) {
            let mut copies = [Copy::default(); WIDEST];
            let mut copy_count = 0;
            let mut covered = 0;
            for copy in runs[..run_count].iter().filter_map(|&run| self.copy(run, place)) {
                copies[copy_count] = copy;
                copy_count += 1;
                covered += copy.len;
            }
            let copies = &copies[..copy_count];
            for channel in channels {
                let k = channel * taps + tap - depth.start;
                let row = &mut out[k * width..(k + 1) * width];
                if covered < width {
                    row.fill(0.0);
                }
                for copy in copies {
                    let from = copy.from + channel * plane;
                    let to = &mut row[copy.at..copy.at + copy.len];
                    if self.stride[1] == 1 {
                        to.copy_from_slice(&self.images[from..from + copy.len]);
                    } else {
                        for (to, from) in
                            to.iter_mut().zip(self.images[from..].iter().step_by(self.stride[1]))
                        {
                            *to = *from;
                        }
                    }
                }
            }
        }
        debug_assert!(count <= width);
    }
}

/// The same matrix with pairs of channel and tap as lines, and positions as the shared dimension.
#[derive(Clone, Copy)]
pub struct Taps<'a>(pub Windows<'a>);

impl Panels for Taps<'_> {
    fn pack(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [f32]) {
        let windows = &self.0;
        let plane = windows.size[0] * windows.size[1];
        let taps = windows.taps[0] * windows.taps[1];
        out.fill(0.0);
        for run in windows.runs(depth.clone()) {
            for (place, tap, channels) in windows.channels_of(&lines) {
                let Some(copy) = windows.copy(run, place) else { continue };
                for channel in channels {
                    let i = channel * taps + tap - lines.start;
                    let from =
                        windows.images[copy.from + channel * plane..].iter().step_by(windows.stride[1]);
                    let rows = out[copy.at * width..(copy.at + copy.len) * width].chunks_exact_mut(width);
                    for (row, &x) in rows.zip(from) {
                        row[i] = x;
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

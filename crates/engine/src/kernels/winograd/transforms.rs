//! The transforms around the products: `Bᵀ·d·B` of patches, `A·dy·Aᵀ` of tiles, `Aᵀ·m·A` of products, `G·g·Gᵀ` of weights and `Gᵀ·s·G` of
//! their sums. Vectors run over channels, so that tiles need not be neighbours; pixels are transposed for that, of which a tile has a quarter of
//! what its transform has.

use super::super::isa::vectorized;
use super::super::number::Number;
use super::super::pack::{GROUP, transpose, transpose_lines};
use super::super::parallel::Shared;
use super::super::tile::BLOCK_DEPTH;
use super::forms::{Element, Form};
use super::tiles::{Matrices, PANEL, PART, PATCH_ELEMENTS, TileRun, copy_few};

/// Channels that are transformed together.
pub const LANES: usize = 16;

/// One number of each channel.
pub type Vector = [f32; LANES];

/// Rows of pixels of the patches, or tiles, of a run: a buffer.
pub type Pixels<const ROWS: usize> = [[Vector; 2 * PANEL + 2]; ROWS];

/// An empty buffer.
pub const fn pixels<const ROWS: usize>() -> Pixels<ROWS> {
    [[[0.0; LANES]; 2 * PANEL + 2]; ROWS]
}

/// Images, `[batch, channels, size]`, and where position 0 of the results has its patch.
#[derive(Clone, Copy)]
pub struct Images<'a, T> {
    /// The elements.
    pub data: &'a [T],
    /// Channels of an image.
    pub channels: usize,
    /// Height and width.
    pub size: [usize; 2],
    /// Where the patch of position 0 begins.
    pub start: [isize; 2],
}

impl<T: Number> Images<'_, T> {
    /// Reads `len` columns of the rows of a run's patches, for [`LANES`] channels from `channel` on: zeros outside the image and behind the
    /// last channel.
    fn read<const ROWS: usize>(&self, run: &TileRun, channel: usize, len: usize, pixels: &mut Pixels<ROWS>) {
        let [height, width] = self.size;
        let count = LANES.min(self.channels.saturating_sub(channel));
        let from = 2 * run.first as isize + self.start[1];
        let low = (-from).clamp(0, len as isize) as usize;
        let high = (width as isize - from).clamp(low as isize, len as isize) as usize;
        for (i, row) in pixels.iter_mut().enumerate() {
            let y = (2 * run.line + i) as isize + self.start[0];
            if count == 0 || y < 0 || y >= height as isize || low == high {
                row[..len].fill([0.0; LANES]);
                continue;
            }
            row[..low].fill([0.0; LANES]);
            row[high..len].fill([0.0; LANES]);
            let plane = (run.image * self.channels + channel) * height * width;
            let start = plane + y as usize * width + (from + low as isize) as usize;
            transpose(&self.data[start..], height * width, count, LANES, row[low..high].as_flattened_mut());
        }
    }
}

/// Vectors of a tile, one for each element of a patch.
type Vectors = [Vector; PATCH_ELEMENTS];

/// How the vectors of a tile are written to panels.
pub trait Layout {
    /// Writes them, for [`LANES`] channels from `channel` on, at number `tile` of a part.
    ///
    /// # Safety
    /// The places can be written; the processor has the instructions of the form.
    unsafe fn put<F: Form>(vectors: &Vectors, channel: usize, tile: usize, to: Matrices);
}

/// Writes elements that have their numbers in place `place`: to those of the first place the others are added.
///
/// # Safety
/// They can be written, and have values.
#[inline(always)]
unsafe fn add_elements<F: Form>(elements: &[Element], place: usize, to: *mut Element) {
    let kept = if place == 0 { 0 } else { Element::MAX };
    for (lane, &new) in elements.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let to = to.add(lane);
            to.write(if F::NUMBERS == 1 { new } else { to.read() & kept | new });
        }
    }
}

/// Blocks of A: the product runs along the channels, of which a block has [`BLOCK_DEPTH`] elements for each tile of a part.
pub enum Blocks {}

impl Layout for Blocks {
    #[inline(always)]
    unsafe fn put<F: Form>(vectors: &Vectors, channel: usize, tile: usize, to: Matrices) {
        let at = channel / F::NUMBERS;
        let place = (at / BLOCK_DEPTH * PART + tile) * BLOCK_DEPTH + at % BLOCK_DEPTH;
        for (element, vector) in vectors.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { F::write(vector, to.at(element, place).cast()) };
        }
    }
}

/// Panels of `WIDTH` channels: the product runs along the tiles, for which a panel has rows of `WIDTH` elements.
pub enum Rows<const WIDTH: usize> {}

impl<const WIDTH: usize> Layout for Rows<WIDTH> {
    #[inline(always)]
    unsafe fn put<F: Form>(vectors: &Vectors, channel: usize, tile: usize, to: Matrices) {
        let (row, place) = (tile / F::NUMBERS, tile % F::NUMBERS);
        let piece = WIDTH.min(LANES);
        for (element, vector) in vectors.iter().enumerate() {
            // SAFETY: the caller's promise.
            let elements = unsafe { F::elements(vector, place) };
            for first in (0..LANES).step_by(piece) {
                let channel = channel + first;
                let start = (channel / WIDTH * (PART / F::NUMBERS) + row) * WIDTH + channel % WIDTH;
                // SAFETY: the caller's promise.
                unsafe {
                    add_elements::<F>(&elements[first..first + piece], place, to.at(element, start).cast());
                }
            }
        }
    }
}

/// `Bᵀ·d·B` of the patches of [`LANES`] channels from `channel` on. The runs are those of some tiles, the first of which is number `tile` of its
/// part.
///
/// # Safety
/// `patches` has panels for all channels, and nothing else touches these channels at these tiles; the processor has the instructions of the form.
pub unsafe fn transform<F: Form, L: Layout>(
    images: &Images<'_, impl Number>,
    (runs, tile): (&[TileRun], usize),
    channel: usize,
    patches: Matrices,
    pixels: &mut Pixels<4>,
) {
    for run in runs {
        let columns = 2 * run.count + 2;
        images.read(run, channel, columns, pixels);
        // SAFETY: the caller's promise.
        unsafe {
            F::vectorized(
                #[inline(always)]
                || {
                    // Columns first, in place: neighbouring patches share half of them.
                    let [a, b, c, d] = pixels.each_mut().map(|row| row[..columns].as_flattened_mut());
                    for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
                        (*a, *b, *c, *d) = (*a - *c, *b + *c, *c - *b, *b - *d);
                    }
                    for at in 0..run.count {
                        let w = pixels
                            .each_ref()
                            .map(|row| row[2 * at..].first_chunk::<4>().expect("four columns"));
                        let mut v = [[0.0; LANES]; PATCH_ELEMENTS];
                        for x in 0..LANES {
                            for i in 0..4 {
                                let [a, b, c, d] = [w[i][0][x], w[i][1][x], w[i][2][x], w[i][3][x]];
                                v[4 * i][x] = a - c;
                                v[4 * i + 1][x] = b + c;
                                v[4 * i + 2][x] = c - b;
                                v[4 * i + 3][x] = b - d;
                            }
                        }
                        L::put::<F>(&v, channel, tile + run.at + at, patches);
                    }
                },
            );
        }
    }
}

/// `A·dy·Aᵀ` of the tiles of [`LANES`] channels from `channel` on, as [`transform`] of patches; their panels begin at `place`.
///
/// # Safety
/// As [`transform`].
pub unsafe fn spread<F: Form, L: Layout>(
    images: &Images<'_, impl Number>,
    (runs, tile): (&[TileRun], usize),
    (channel, place): (usize, usize),
    tiles: Matrices,
    pixels: &mut Pixels<2>,
) {
    for run in runs {
        images.read(run, channel, 2 * run.count, pixels);
        // SAFETY: the caller's promise.
        unsafe {
            F::vectorized(
                #[inline(always)]
                || {
                    for at in 0..run.count {
                        let d = pixels
                            .each_ref()
                            .map(|row| row[2 * at..].first_chunk::<2>().expect("two columns"));
                        let mut v = [[0.0; LANES]; PATCH_ELEMENTS];
                        for x in 0..LANES {
                            let [a, b, c, d] = [d[0][0][x], d[0][1][x], d[1][0][x], d[1][1][x]];
                            let rows = [[a, b], [a + c, b + d], [a - c, b - d], [-c, -d]];
                            for i in 0..4 {
                                let [left, right] = rows[i];
                                v[4 * i][x] = left;
                                v[4 * i + 1][x] = left + right;
                                v[4 * i + 2][x] = left - right;
                                v[4 * i + 3][x] = -right;
                            }
                        }
                        L::put::<F>(&v, place, tile + run.at + at, tiles);
                    }
                },
            );
        }
    }
}

/// Results, `[batch, channels, positions]`.
#[derive(Clone, Copy)]
pub struct Results {
    /// The elements.
    pub data: Shared<f32>,
    /// Channels of an image.
    pub channels: usize,
    /// Height and width.
    pub positions: [usize; 2],
}

/// `Aᵀ·m·A` of some tiles, plus a bias, for up to [`LANES`] channels from `channel` on. `products` has a matrix for each element, `step` floats
/// behind the one before, of a row of [`PANEL`] floats for each tile, which begins with these channels.
///
/// # Safety
/// The products are there; nothing else touches these channels of the results at these tiles.
pub unsafe fn collect(
    runs: &[TileRun],
    (products, step): (*const f32, usize),
    results: Results,
    (channel, bias): (usize, Option<&[f32]>),
    pixels: &mut Pixels<2>,
) {
    let [height, across] = results.positions;
    let count = LANES.min(results.channels - channel);
    let mut plus = [0.0; LANES];
    if let Some(bias) = bias {
        plus[..count].copy_from_slice(&bias[channel..channel + count]);
    }
    for run in runs {
        vectorized(
            #[inline(always)]
            || {
                for at in 0..run.count {
                    // SAFETY: the caller's promise.
                    let m: [&Vector; PATCH_ELEMENTS] = unsafe {
                        let row = products.add((run.at + at) * PANEL);
                        std::array::from_fn(|element| &*row.add(element * step).cast())
                    };
                    let mut y = [[0.0; LANES]; 4];
                    for x in 0..LANES {
                        let (mut top, mut bottom) = ([0.0; 4], [0.0; 4]);
                        for j in 0..4 {
                            let [a, b, c, d] = [m[j][x], m[4 + j][x], m[8 + j][x], m[12 + j][x]];
                            (top[j], bottom[j]) = (a + b + c, b - c - d);
                        }
                        y[0][x] = top[0] + top[1] + top[2] + plus[x];
                        y[1][x] = top[1] - top[2] - top[3] + plus[x];
                        y[2][x] = bottom[0] + bottom[1] + bottom[2] + plus[x];
                        y[3][x] = bottom[1] - bottom[2] - bottom[3] + plus[x];
                    }
                    [pixels[0][2 * at], pixels[0][2 * at + 1], pixels[1][2 * at], pixels[1][2 * at + 1]] = y;
                }
            },
        );
        let len = (2 * run.count).min(across - 2 * run.first);
        let plane = height * across;
        for (y, row) in (2 * run.line..height).zip(&*pixels) {
            let start = (run.image * results.channels + channel) * plane + y * across + 2 * run.first;
            // SAFETY: the pixels lie in the image, and are this task's alone.
            unsafe {
                let to = results.data.add(start);
                if len < GROUP {
                    for (x, pixel) in row[..len].iter().enumerate() {
                        for (lane, &number) in pixel[..count].iter().enumerate() {
                            *to.add(lane * plane + x) = number;
                        }
                    }
                    continue;
                }
                // The last group begins where it ends with the last pixel.
                for first in (0..len).step_by(GROUP).map(|first| first.min(len - GROUP)) {
                    let lines: [*const f32; GROUP] = std::array::from_fn(|x| row[first + x].as_ptr());
                    transpose_lines(lines, count, to.add(first), plane);
                }
            }
        }
    }
}

/// Inputs whose weights are transformed together.
const INPUTS: usize = 32;

/// Weights of 3×3 from inputs to outputs.
#[derive(Clone, Copy)]
pub struct Weights<'a> {
    /// The elements.
    pub data: &'a [f32],
    /// Numbers of outputs and inputs.
    pub extents: [usize; 2],
    /// Distance between the nine of neighbouring outputs, and of neighbouring inputs: one of them is nine.
    pub steps: [usize; 2],
    /// Whether the nine are reversed.
    pub reversed: bool,
}

/// `G·g·Gᵀ` of the weights to [`PANEL`] outputs from `output` on: a matrix for each element of a patch, of rows of that many elements along `depth`
/// inputs. Behind the last output and the last input they are zero.
///
/// # Safety
/// `panel` holds `16 · depth · PANEL` elements, which nothing else touches; the processor has the instructions of the form.
pub unsafe fn transform_weights<F: Form>(weights: Weights<'_>, output: usize, depth: usize, panel: *mut f32) {
    let Weights { data, extents: [outputs, inputs], steps: [output_step, input_step], reversed } = weights;
    // Nine vectors for each of some inputs.
    let mut taps = [[[0.0f32; LANES]; 9]; INPUTS];
    for first in (0..PANEL).step_by(LANES) {
        let count = LANES.min(outputs.saturating_sub(output + first));
        for input in (0..depth).step_by(INPUTS) {
            let filled = if count == 0 { 0 } else { INPUTS.min(inputs.saturating_sub(input)) };
            let from = |input: usize| &data[(output + first) * output_step + input * input_step..];
            if input_step == 9 && filled > 0 {
                let out = taps[..filled].as_flattened_mut().as_flattened_mut();
                transpose(from(input), output_step, count, LANES, out);
            } else {
                for (at, taps) in taps[..filled].iter_mut().enumerate() {
                    transpose(from(input + at), output_step, count, LANES, taps.as_flattened_mut());
                }
            }
            taps[filled..].fill([[0.0; LANES]; 9]);
            // SAFETY: the caller's promise.
            unsafe {
                F::vectorized(
                    #[inline(always)]
                    || {
                        for (at, taps) in taps[..INPUTS.min(depth - input)].iter().enumerate() {
                            let mut u = [[0.0; LANES]; PATCH_ELEMENTS];
                            for x in 0..LANES {
                                // Columns first: three become four.
                                let columns = [0, 1, 2].map(|j| {
                                    let [a, b, d] = [j, 3 + j, 6 + j]
                                        .map(|tap| taps[if reversed { 8 - tap } else { tap }][x]);
                                    [a, 0.5 * (a + b + d), 0.5 * (a - b + d), d]
                                });
                                for i in 0..4 {
                                    let [a, b, d] = columns.map(|column| column[i]);
                                    u[4 * i][x] = a;
                                    u[4 * i + 1][x] = 0.5 * (a + b + d);
                                    u[4 * i + 2][x] = 0.5 * (a - b + d);
                                    u[4 * i + 3][x] = d;
                                }
                            }
                            let (row, place) = ((input + at) / F::NUMBERS, (input + at) % F::NUMBERS);
                            for (element, u) in u.iter().enumerate() {
                                let row = panel.add((element * depth / F::NUMBERS + row) * PANEL + first);
                                add_elements::<F>(&F::elements(u, place), place, row.cast());
                            }
                        }
                    },
                );
            }
        }
    }
}

/// `Gᵀ·s·G` of the sums from all inputs to one output, which begin at `row` in each matrix: nine numbers for each pair.
///
/// # Safety
/// Nothing writes the row meanwhile.
pub unsafe fn collect_weights(sums: Matrices, row: usize, dw: &mut [f32]) {
    for (block, dw) in dw.chunks_mut(9 * LANES).enumerate() {
        let (first, count) = (block * LANES, dw.len() / 9);
        vectorized(
            #[inline(always)]
            || {
                let mut s = [[0.0f32; LANES]; PATCH_ELEMENTS];
                for (element, s) in s.iter_mut().enumerate() {
                    // SAFETY: the caller's promise.
                    unsafe { copy_few(sums.at(element, row + first), s.as_mut_ptr(), count) };
                }
                let mut g = [[0.0f32; LANES]; 9];
                for x in 0..LANES {
                    // Rows first: four become three.
                    let mut r = [[0.0; 4]; 3];
                    for i in 0..4 {
                        let [a, b, c, d] = [s[4 * i][x], s[4 * i + 1][x], s[4 * i + 2][x], s[4 * i + 3][x]];
                        let (sum, difference) = (0.5 * (b + c), 0.5 * (b - c));
                        [r[0][i], r[1][i], r[2][i]] = [a + sum, difference, sum + d];
                    }
                    for j in 0..3 {
                        let [a, b, c, d] = r[j];
                        let (sum, difference) = (0.5 * (b + c), 0.5 * (b - c));
                        [g[j][x], g[3 + j][x], g[6 + j][x]] = [a + sum, difference, sum + d];
                    }
                }
                for (x, dw) in dw.as_chunks_mut::<9>().0.iter_mut().enumerate() {
                    for (dw, g) in dw.iter_mut().zip(&g) {
                        *dw = g[x];
                    }
                }
            },
        );
    }
}

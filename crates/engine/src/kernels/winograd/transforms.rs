//! The transforms around the products: `Bᵀ·d·B` of patches, `A·dy·Aᵀ` of tiles, `Aᵀ·m·A` of products, `G·g·Gᵀ` of weights and `Gᵀ·s·G` of
//! their sums. Loops run over whole segments or blocks of a length that the compiler knows.

use std::ops::Range;

use super::super::isa::vectorized;
use super::super::parallel::Shared;
use super::tiles::{PATCH_ELEMENTS, SEGMENT, SegmentWalk, TileRun, Tiling, TransformedTiles, copy_few};

/// Columns of the patches of a segment.
const SPAN: usize = 2 * SEGMENT + 2;

/// Images, `[batch, channels, size]`, and where position 0 of the results has its patch.
#[derive(Clone, Copy)]
pub struct Images<'a> {
    /// The elements.
    pub data: &'a [f32],
    /// Channels of an image.
    pub channels: usize,
    /// Height and width.
    pub size: [usize; 2],
    /// Where the patch of position 0 begins.
    pub start: [isize; 2],
}

/// Reads `len` columns from `from` on of a row of an image, zeros outside.
#[inline(always)]
fn read_row(images: &Images<'_>, plane: usize, row: isize, from: isize, out: &mut [f32]) {
    let [height, width] = images.size;
    if row < 0 || row >= height as isize {
        out.fill(0.0);
        return;
    }
    let data = &images.data[plane + row as usize * width..][..width];
    let low = (-from).clamp(0, out.len() as isize) as usize;
    let high = (width as isize - from).clamp(low as isize, out.len() as isize) as usize;
    // Zeros at the ends are few.
    out[..low].iter_mut().for_each(|x| *x = 0.0);
    out[high..].iter_mut().for_each(|x| *x = 0.0);
    if low < high {
        let start = (from + low as isize) as usize;
        let (from, to) = (&data[start..start + high - low], &mut out[low..high]);
        // SAFETY: both are as long.
        unsafe { copy_few(from.as_ptr(), to.as_mut_ptr(), to.len()) };
    }
}

/// `Bᵀ·d·B` of the patches of one channel on some lines of tiles.
///
/// # Safety
/// `patches` has a row for each channel, and nothing else touches the channel's.
pub unsafe fn transform(
    images: Images<'_>,
    tiling: Tiling,
    lines: Range<usize>,
    channel: usize,
    patches: TransformedTiles,
) {
    let mut runs = [TileRun::default(); SEGMENT];
    let mut walk = SegmentWalk::new(tiling, &lines, 1);
    let mut d = [[0.0f32; SPAN]; 4];
    while let Some(runs) = walk.segment(&mut runs) {
        vectorized(
            #[inline(always)]
            || {
                for run in runs {
                    let plane = (run.image * images.channels + channel) * images.size[0] * images.size[1];
                    let from = 2 * run.first as isize + images.start[1];
                    for (i, row) in d.iter_mut().enumerate() {
                        let y = (2 * run.line + i) as isize + images.start[0];
                        read_row(&images, plane, y, from, &mut row[2 * run.slot..][..2 * run.count + 2]);
                    }
                }
                let mut v = [[0.0f32; SPAN]; 4];
                for x in 0..SPAN {
                    v[0][x] = d[0][x] - d[2][x];
                    v[1][x] = d[1][x] + d[2][x];
                    v[2][x] = d[2][x] - d[1][x];
                    v[3][x] = d[1][x] - d[3][x];
                }
                for (i, v) in v.iter().enumerate() {
                    let mut rows = [[0.0f32; SEGMENT]; 4];
                    for x in 0..SEGMENT {
                        let [a, b, c, d] = [v[2 * x], v[2 * x + 1], v[2 * x + 2], v[2 * x + 3]];
                        rows[0][x] = a - c;
                        rows[1][x] = b + c;
                        rows[2][x] = c - b;
                        rows[3][x] = b - d;
                    }
                    // SAFETY: the caller's promise.
                    unsafe { put(&rows, runs, patches, 4 * i, channel) };
                }
            },
        );
    }
}

/// `A·dy·Aᵀ` of the tiles of one channel on some lines.
///
/// # Safety
/// As [`transform`].
pub unsafe fn spread(
    images: Images<'_>,
    tiling: Tiling,
    lines: Range<usize>,
    channel: usize,
    spread: TransformedTiles,
) {
    let mut runs = [TileRun::default(); SEGMENT];
    let mut walk = SegmentWalk::new(tiling, &lines, 0);
    let mut d = [[0.0f32; 2 * SEGMENT]; 2];
    while let Some(runs) = walk.segment(&mut runs) {
        vectorized(
            #[inline(always)]
            || {
                for run in runs {
                    let plane = (run.image * images.channels + channel) * images.size[0] * images.size[1];
                    for (i, row) in d.iter_mut().enumerate() {
                        let y = (2 * run.line + i) as isize;
                        let from = 2 * run.first as isize;
                        read_row(&images, plane, y, from, &mut row[2 * run.slot..][..2 * run.count]);
                    }
                }
                let mut v = [[0.0f32; 2 * SEGMENT]; 4];
                for x in 0..2 * SEGMENT {
                    v[0][x] = d[0][x];
                    v[1][x] = d[0][x] + d[1][x];
                    v[2][x] = d[0][x] - d[1][x];
                    v[3][x] = -d[1][x];
                }
                for (i, v) in v.iter().enumerate() {
                    let mut rows = [[0.0f32; SEGMENT]; 4];
                    for x in 0..SEGMENT {
                        let [a, b] = [v[2 * x], v[2 * x + 1]];
                        rows[0][x] = a;
                        rows[1][x] = a + b;
                        rows[2][x] = a - b;
                        rows[3][x] = -b;
                    }
                    // SAFETY: the caller's promise.
                    unsafe { put(&rows, runs, spread, 4 * i, channel) };
                }
            },
        );
    }
}

/// Writes four spots of a segment of one channel.
///
/// # Safety
/// The places of the runs can be written.
#[inline(always)]
unsafe fn put(
    rows: &[[f32; SEGMENT]; 4],
    runs: &[TileRun],
    to: TransformedTiles,
    element: usize,
    channel: usize,
) {
    for (j, row) in rows.iter().enumerate() {
        for run in runs {
            let from = &row[run.slot..][..run.count];
            // SAFETY: the caller's promise.
            unsafe { copy_few(from.as_ptr(), to.row(element + j, channel).add(run.at), run.count) };
        }
    }
}

/// `Aᵀ·m·A` of the products of one channel, plus a bias, to the `positions` of images.
///
/// # Safety
/// `target` holds `[batch, channels, positions]`, and nothing else touches the channel's, or writes its products.
pub unsafe fn collect(
    tiling: Tiling,
    lines: Range<usize>,
    (channel, bias): (usize, f32),
    products: TransformedTiles,
    (target, channels, [height, across]): (Shared<f32>, usize, [usize; 2]),
) {
    let mut runs = [TileRun::default(); SEGMENT];
    let mut walk = SegmentWalk::new(tiling, &lines, 0);
    let mut m = [[0.0f32; SEGMENT]; PATCH_ELEMENTS];
    while let Some(runs) = walk.segment(&mut runs) {
        let last = runs[runs.len() - 1];
        let count = last.slot + last.count;
        let mut pairs = [[0.0f32; 2 * SEGMENT]; 2];
        vectorized(
            #[inline(always)]
            || {
                for (element, m) in m.iter_mut().enumerate() {
                    // SAFETY: the caller's promise; a segment's tiles are neighbours.
                    unsafe {
                        let from = products.row(element, channel).add(runs[0].at);
                        copy_few(from, m.as_mut_ptr(), count);
                    }
                }
                let (mut top, mut bottom) = ([[0.0f32; SEGMENT]; 4], [[0.0f32; SEGMENT]; 4]);
                for j in 0..4 {
                    for x in 0..SEGMENT {
                        top[j][x] = m[j][x] + m[4 + j][x] + m[8 + j][x];
                        bottom[j][x] = m[4 + j][x] - m[8 + j][x] - m[12 + j][x];
                    }
                }
                for (pairs, half) in pairs.iter_mut().zip([&top, &bottom]) {
                    for x in 0..SEGMENT {
                        pairs[2 * x] = half[0][x] + half[1][x] + half[2][x] + bias;
                        pairs[2 * x + 1] = half[1][x] - half[2][x] - half[3][x] + bias;
                    }
                }
                for run in runs {
                    let plane = (run.image * channels + channel) * height * across;
                    let len = (2 * run.count).min(across - 2 * run.first);
                    for (y, pairs) in (2 * run.line..height.min(2 * run.line + 2)).zip(&pairs) {
                        // SAFETY: the line lies in the image, and the channel is this task's alone.
                        unsafe {
                            let row = target.add(plane + y * across + 2 * run.first);
                            copy_few(pairs[2 * run.slot..][..len].as_ptr(), row, len);
                        }
                    }
                }
            },
        );
    }
}

/// Pairs of channels whose weights are transformed together.
const BLOCK: usize = 16;

/// `G·g·Gᵀ` of the weights from all inputs to one output; `nine(input)` is where the nine of a pair begin, and `turned` reverses them.
///
/// # Safety
/// `weights` has a row for each output, as wide as there are inputs, and nothing else touches the output's.
pub unsafe fn transform_weights(
    output: usize,
    weights: TransformedTiles,
    turned: bool,
    nine: impl Fn(usize) -> usize,
    from: &[f32],
) {
    let inputs = weights.width();
    for first in (0..inputs).step_by(BLOCK) {
        let count = BLOCK.min(inputs - first);
        vectorized(
            #[inline(always)]
            || {
                let mut g = [[0.0f32; BLOCK]; 9];
                for x in 0..count {
                    let taps = &from[nine(first + x)..][..9];
                    for (tap, g) in g.iter_mut().enumerate() {
                        g[x] = taps[if turned { 8 - tap } else { tap }];
                    }
                }
                // Columns first: three become four.
                let mut c = [[[0.0f32; BLOCK]; 3]; 4];
                for j in 0..3 {
                    for x in 0..BLOCK {
                        let [a, b, d] = [g[j][x], g[3 + j][x], g[6 + j][x]];
                        c[0][j][x] = a;
                        c[1][j][x] = 0.5 * (a + b + d);
                        c[2][j][x] = 0.5 * (a - b + d);
                        c[3][j][x] = d;
                    }
                }
                for (i, [a, b, d]) in c.iter().enumerate() {
                    let mut rows = [[0.0f32; BLOCK]; 4];
                    for x in 0..BLOCK {
                        rows[0][x] = a[x];
                        rows[1][x] = 0.5 * (a[x] + b[x] + d[x]);
                        rows[2][x] = 0.5 * (a[x] - b[x] + d[x]);
                        rows[3][x] = d[x];
                    }
                    for (j, row) in rows.iter().enumerate() {
                        // SAFETY: the caller's promise.
                        unsafe { copy_few(row.as_ptr(), weights.row(4 * i + j, output).add(first), count) };
                    }
                }
            },
        );
    }
}

/// `Gᵀ·s·G` of the sums from all inputs to one output: nine numbers for each pair.
///
/// # Safety
/// `sums` has a row for each output, and nothing writes the output's meanwhile.
pub unsafe fn collect_weights(output: usize, sums: TransformedTiles, dw: &mut [f32]) {
    for (block, dw) in dw.chunks_mut(9 * BLOCK).enumerate() {
        let (first, count) = (block * BLOCK, dw.len() / 9);
        vectorized(
            #[inline(always)]
            || {
                let mut s = [[0.0f32; BLOCK]; PATCH_ELEMENTS];
                for (element, s) in s.iter_mut().enumerate() {
                    // SAFETY: the caller's promise.
                    unsafe { copy_few(sums.row(element, output).add(first), s.as_mut_ptr(), count) };
                }
                // Rows first: four become three.
                let mut r = [[[0.0f32; BLOCK]; 4]; 3];
                for i in 0..4 {
                    for x in 0..BLOCK {
                        let (sum, difference) =
                            (s[4 * i + 1][x] + s[4 * i + 2][x], s[4 * i + 1][x] - s[4 * i + 2][x]);
                        r[0][i][x] = s[4 * i][x] + 0.5 * sum;
                        r[1][i][x] = 0.5 * difference;
                        r[2][i][x] = 0.5 * sum + s[4 * i + 3][x];
                    }
                }
                let mut g = [[0.0f32; BLOCK]; 9];
                for (j, [a, b, c, d]) in r.iter().enumerate() {
                    for x in 0..BLOCK {
                        let (sum, difference) = (b[x] + c[x], b[x] - c[x]);
                        g[j][x] = a[x] + 0.5 * sum;
                        g[3 + j][x] = 0.5 * difference;
                        g[6 + j][x] = 0.5 * sum + d[x];
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

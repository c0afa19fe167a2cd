//! Operands of a matrix product as *panels*: a few lines of a matrix, their shared dimension outermost, so that a tile reads them in
//! order. What has lines and a depth can be an operand; the matrix itself need not exist (see [`super::windows`]).

use std::ops::Range;

use super::bf16;
#[cfg(target_arch = "x86_64")]
use super::isa::Isa;
use super::isa::vectorized;
use super::matrix_unit;
use super::number::Number;
use super::pairs::{self, Pair};
use super::tile::{Ahead, MAX_COLUMNS};

/// A matrix of *lines* (rows of A, columns of B), each as long as the shared dimension, the *depth*.
pub trait Panels: Sync {
    /// Whether every element is a bf16 number.
    const IS_BF16: bool;

    /// Writes `out[k · width + i] = lines[first + i][depth.start + k]` for every `i` of the range, and zeros for the rest of `width`.
    fn pack(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [f32]);

    /// Where the panel of these lines already lies as it would be packed, except that its rows are further apart: all of its floats from
    /// the first on, and the distance between rows.
    fn unpacked(&self, lines: Range<usize>, depth: Range<usize>) -> Option<(&[f32], usize)> {
        let _ = (lines, depth);
        None
    }

    /// Where one of several shares of a panel lies, if that is known before it is packed: `share` is its number and how many there are.
    fn ahead(&self, lines: Range<usize>, depth: Range<usize>, share: [usize; 2]) -> Option<Ahead> {
        let _ = (lines, depth, share);
        None
    }

    /// Writes the elements as [`pack`](Self::pack) does, two of a line at a time: `out[k · width + i]` has the nearest bf16 numbers of
    /// `lines[first + i][depth.start + 2 k]` and of the next, or of zero behind the last.
    fn pack_pairs(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [Pair]) {
        pack_pairs_by_rows(self, lines, depth, width, out);
    }

    /// Writes pairs of the lines, of a part of the depth, as the [matrix unit](super::matrix_unit) takes a panel of A.
    fn pack_lines(&self, lines: Range<usize>, depth: Range<usize>, out: &mut [Pair]) {
        matrix_unit::pack_by_rows(self, lines, depth, out);
    }
}

/// Rows of floats that are rounded at a time: they stay in the nearest cache until they are joined.
const TOGETHER: usize = 64;

/// Packs pairs of any panel: some rows of floats, which are then joined.
pub fn pack_pairs_by_rows<P: Panels + ?Sized>(
    panels: &P,
    lines: Range<usize>,
    depth: Range<usize>,
    width: usize,
    out: &mut [Pair],
) {
    let mut floats = [0.0; TOGETHER * MAX_COLUMNS];
    for start in depth.clone().step_by(TOGETHER) {
        let part = start..(start + TOGETHER).min(depth.end);
        let rows = 0..part.len();
        panels.pack(lines.clone(), part, width, &mut floats[..rows.len() * width]);
        let out = &mut out[(start - depth.start) / 2 * width..];
        pairs::interleave(|k| &floats[k * width..][..width], rows, width, out);
    }
}

/// The `f32` numbers of a weight as the nearest bf16 numbers.
pub struct Rounded<P>(pub P);

impl<P: Panels> Panels for Rounded<P> {
    const IS_BF16: bool = true;

    fn pack(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [f32]) {
        let len = depth.len() * width;
        self.0.pack(lines, depth, width, out);
        bf16::round(&mut out[..len]);
    }

    fn pack_pairs(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [Pair]) {
        self.0.pack_pairs(lines, depth, width, out);
    }

    fn pack_lines(&self, lines: Range<usize>, depth: Range<usize>, out: &mut [Pair]) {
        self.0.pack_lines(lines, depth, out);
    }

    fn ahead(&self, lines: Range<usize>, depth: Range<usize>, share: [usize; 2]) -> Option<Ahead> {
        self.0.ahead(lines, depth, share)
    }
}

/// A matrix in memory: the element at (line, depth) is `data[line · line_step + depth · depth_step]`.
#[derive(Clone, Copy)]
pub struct Strided<'a, T = f32> {
    /// From the first element to the last one or beyond.
    pub data: &'a [T],
    /// Distance between neighbouring lines.
    pub line_step: usize,
    /// Distance between neighbours on one line.
    pub depth_step: usize,
}

impl<T: Number> Panels for Strided<'_, T> {
    const IS_BF16: bool = T::IS_BF16;

    fn pack(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [f32]) {
        let count = lines.len();
        if self.depth_step == 1 {
            let data = &self.data[lines.start * self.line_step + depth.start..];
            transpose(data, self.line_step, count, width, &mut out[..depth.len() * width]);
            return;
        }
        if let (1, Some(data), Some(copy)) = (self.line_step, T::floats(self.data), row_copy(count))
            && count == width
        {
            let data = data.get(depth.start * self.depth_step + lines.start..).unwrap_or_default();
            return copy(data, self.depth_step, &mut out[..depth.len() * width]);
        }
        for (k, row) in depth.zip(out.chunks_exact_mut(width)) {
            let start = k * self.depth_step + lines.start * self.line_step;
            if self.line_step == 1 {
                T::widen(&self.data[start..start + count], &mut row[..count]);
            } else {
                for (i, to) in row[..count].iter_mut().enumerate() {
                    *to = self.data[start + i * self.line_step].float();
                }
            }
            row[count..].fill(0.0);
        }
    }

    fn unpacked(&self, lines: Range<usize>, depth: Range<usize>) -> Option<(&[f32], usize)> {
        if self.line_step != 1 || depth.is_empty() {
            return None;
        }
        let first = depth.start * self.depth_step + lines.start;
        let last = (depth.end - 1) * self.depth_step + lines.end;
        self.data.get(first..last).and_then(T::floats).map(|panel| (panel, self.depth_step))
    }

    fn ahead(&self, lines: Range<usize>, depth: Range<usize>, [share, shares]: [usize; 2]) -> Option<Ahead> {
        if lines.is_empty() {
            return None;
        }
        let first = |range: &Range<usize>| range.start + share * range.len() / shares;
        // A pair of each row, or all pairs of one line.
        let (line, k, step) = if self.line_step == 1 {
            (lines.start, first(&depth), self.depth_step * size_of::<T>())
        } else {
            (first(&lines), depth.start, Ahead::PAIR)
        };
        let start = self.data.as_ptr().wrapping_add(line * self.line_step + k * self.depth_step);
        Some(Ahead { start: start.cast(), step })
    }

    fn pack_pairs(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [Pair]) {
        if self.depth_step == 1 {
            let data = &self.data[lines.start * self.line_step + depth.start..];
            pairs::transpose(data, self.line_step, lines.len(), depth.len(), width, out);
        } else if self.line_step == 1 {
            let row = |k: usize| &self.data[k * self.depth_step + lines.start..][..lines.len()];
            pairs::interleave(row, depth, width, out);
        } else {
            pack_pairs_by_rows(self, lines, depth, width, out);
        }
    }

    fn pack_lines(&self, lines: Range<usize>, depth: Range<usize>, out: &mut [Pair]) {
        if self.depth_step != 1 {
            return matrix_unit::pack_by_rows(self, lines, depth, out);
        }
        let (first, len) = (lines.start, depth.len());
        let line = |i: usize| &self.data[(first + i) * self.line_step + depth.start..][..len];
        matrix_unit::join_lines(line, lines.len(), out);
    }
}

/// [`copy_rows`] for panels of this width, if many have it: those of B, and those of A, which are cut evenly.
fn row_copy(width: usize) -> Option<CopyRows> {
    Some(match width {
        6 => copy_rows::<6>,
        8 => copy_rows::<8>,
        9 => copy_rows::<9>,
        10 => copy_rows::<10>,
        11 => copy_rows::<11>,
        12 => copy_rows::<12>,
        16 => copy_rows::<16>,
        32 => copy_rows::<32>,
        _ => return None,
    })
}

type CopyRows = fn(data: &[f32], step: usize, out: &mut [f32]);

/// Fills `out` with rows that are `step` apart, without a call for each.
fn copy_rows<const WIDTH: usize>(data: &[f32], step: usize, out: &mut [f32]) {
    vectorized(
        #[inline(always)]
        || {
            for (k, row) in out.chunks_exact_mut(WIDTH).enumerate() {
                row.copy_from_slice(&data[k * step..][..WIDTH]);
            }
        },
    );
}

/// Writes `out[k · width + i] = data[i · step + k]` for `i < count`, and zeros for the rest of `width`; `out` says how many `k`.
pub fn transpose<T: Number>(data: &[T], step: usize, count: usize, width: usize, out: &mut [f32]) {
    let depth = out.len() / width;
    if depth == 0 || count == 0 {
        out.fill(0.0);
        return;
    }
    assert!(count <= width && data.len() >= (count - 1) * step + depth, "a panel lies within its matrix");
    if count < GROUP {
        for i in 0..count {
            let line = &data[i * step..][..depth];
            for (row, &x) in out.chunks_exact_mut(width).zip(line) {
                row[i] = x.float();
            }
        }
    } else {
        // The last group begins where it ends with the last line; what it shares with the one before it is written twice.
        for first in (0..count).step_by(GROUP).map(|first| first.min(count - GROUP)) {
            let lines = std::array::from_fn(|i| &data[(first + i) * step..][..depth]);
            transpose_group(&lines, depth, &mut out[first..], width);
        }
    }
    if count < width {
        for row in out.chunks_exact_mut(width) {
            row[count..].fill(0.0);
        }
    }
}

/// Lines that are transposed together.
pub const GROUP: usize = 8;

/// Writes `out[k · width + i] = lines[i][k]` for `k < depth`.
pub fn transpose_group<T: Number>(lines: &[&[T]; GROUP], depth: usize, out: &mut [f32], width: usize) {
    if depth == 0 {
        return;
    }
    assert!(lines.iter().all(|line| line.len() >= depth) && out.len() >= (depth - 1) * width + GROUP);
    // SAFETY: the assertion above.
    unsafe { transpose_lines(lines.map(<[T]>::as_ptr), depth, out.as_mut_ptr(), width) };
}

/// [`transpose_group`] to memory that others may use between the rows.
///
/// # Safety
/// Every line has `depth` numbers; `depth` rows of [`GROUP`] floats, `width` apart, can be written at `to`.
pub unsafe fn transpose_lines<T: Number>(lines: [*const T; GROUP], depth: usize, to: *mut f32, width: usize) {
    #[cfg(target_arch = "x86_64")]
    if Isa::detect() >= Isa::Avx2 {
        // SAFETY: the caller's promise; AVX2 is there.
        unsafe { transpose_blocks(lines, depth, to, width) };
        return;
    }
    for k in 0..depth {
        for (i, line) in lines.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { *to.add(k * width + i) = (*line.add(k)).float() };
        }
    }
}

/// A block of 8 × 8, transposed in registers.
///
/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
pub fn transpose8(rows: [std::arch::x86_64::__m256; 8]) -> [std::arch::x86_64::__m256; 8] {
    use std::arch::x86_64::*;
    let [r0, r1, r2, r3, r4, r5, r6, r7] = rows;
    let pair = |a, b| (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let ((a0, a1), (a2, a3), (a4, a5), (a6, a7)) = (pair(r0, r1), pair(r2, r3), pair(r4, r5), pair(r6, r7));
    let four = |a, b| (_mm256_shuffle_ps::<0x44>(a, b), _mm256_shuffle_ps::<0xEE>(a, b));
    let ((b0, b1), (b2, b3), (b4, b5), (b6, b7)) = (four(a0, a2), four(a1, a3), four(a4, a6), four(a5, a7));
    let low = |a, b| _mm256_permute2f128_ps::<0x20>(a, b);
    let high = |a, b| _mm256_permute2f128_ps::<0x31>(a, b);
    [
        low(b0, b4),
        low(b1, b5),
        low(b2, b6),
        low(b3, b7),
        high(b0, b4),
        high(b1, b5),
        high(b2, b6),
        high(b3, b7),
    ]
}

/// [`transpose_lines`] by blocks of eight lines and four columns in registers.
///
/// # Safety
/// As [`transpose_lines`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn transpose_blocks<T: Number>(lines: [*const T; GROUP], depth: usize, to: *mut f32, width: usize) {
    use std::arch::x86_64::*;
    let mut k = 0;
    let [l0, l1, l2, l3, l4, l5, l6, l7] = lines;
    while k + 4 <= depth {
        // SAFETY: the caller's promise, for columns k .. k + 4.
        unsafe {
            // Lines 0 to 3 in the lower halves, 4 to 7 in the upper ones, so that no later step crosses halves.
            let two = |low: *const T, high: *const T| {
                _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(T::four(low.add(k))), T::four(high.add(k)))
            };
            let (r0, r1, r2, r3) = (two(l0, l4), two(l1, l5), two(l2, l6), two(l3, l7));
            let (a0, a1) = (_mm256_unpacklo_ps(r0, r1), _mm256_unpackhi_ps(r0, r1));
            let (a2, a3) = (_mm256_unpacklo_ps(r2, r3), _mm256_unpackhi_ps(r2, r3));
            let to = to.add(k * width);
            _mm256_storeu_ps(to, _mm256_shuffle_ps::<0x44>(a0, a2));
            _mm256_storeu_ps(to.add(width), _mm256_shuffle_ps::<0xEE>(a0, a2));
            _mm256_storeu_ps(to.add(2 * width), _mm256_shuffle_ps::<0x44>(a1, a3));
            _mm256_storeu_ps(to.add(3 * width), _mm256_shuffle_ps::<0xEE>(a1, a3));
        }
        k += 4;
    }
    for k in k..depth {
        for (i, line) in lines.into_iter().enumerate() {
            // SAFETY: as above, for column k.
            unsafe { *to.add(k * width + i) = (*line.add(k)).float() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_moves_every_element_to_its_place() {
        let data: Vec<f32> = (0..40 * 37).map(|i| i as f32).collect();
        for (line_step, depth_step) in [(37, 1), (1, 37), (2, 40)] {
            let matrix = Strided { data: &data, line_step, depth_step };
            for (first, count, width, start, depth) in [
                (0, 12, 12, 0, 19),
                (2, 32, 32, 3, 8),
                (3, 8, 16, 5, 16),
                (2, 15, 32, 1, 9),
                (1, 1, 7, 2, 3),
                (4, 3, 4, 0, 0),
            ] {
                let mut out = vec![f32::NAN; depth * width];
                matrix.pack(first..first + count, start..start + depth, width, &mut out);
                for k in 0..depth {
                    for i in 0..width {
                        let expected = if i < count {
                            data[(first + i) * line_step + (start + k) * depth_step]
                        } else {
                            0.0
                        };
                        assert_eq!(out[k * width + i], expected, "{line_step} {depth_step} {count} {k} {i}");
                    }
                }
            }
        }
    }
}

//! Operands of a matrix product as *panels*: a few lines of a matrix, their shared dimension outermost, so that a tile reads them in
//! order. What has lines and a depth can be an operand; the matrix itself need not exist (see [`super::windows`]).

use std::ops::Range;

use super::bf16;
#[cfg(target_arch = "x86_64")]
use super::isa::Isa;

/// A matrix of *lines* (rows of A, columns of B), each as long as the shared dimension, the *depth*.
pub trait Panels: Sync {
    /// Writes `out[k · width + i] = lines[first + i][depth.start + k]` for every `i` of the range, and zeros for the rest of `width`.
    fn pack(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [f32]);

    /// Where the panel of these lines already lies as it would be packed, except that its rows are further apart: all of its floats from
    /// the first on, and the distance between rows.
    fn unpacked(&self, lines: Range<usize>, depth: Range<usize>) -> Option<(&[f32], usize)> {
        let _ = (lines, depth);
        None
    }
}

/// A weight, taken as it is or as its nearest bf16 numbers.
pub struct Weight<P> {
    /// The weight.
    pub panels: P,
    /// Whether every element is rounded.
    pub rounds: bool,
}

impl<P: Panels> Panels for Weight<P> {
    fn pack(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [f32]) {
        let len = depth.len() * width;
        self.panels.pack(lines, depth, width, out);
        if self.rounds {
            bf16::round(&mut out[..len]);
        }
    }

    fn unpacked(&self, lines: Range<usize>, depth: Range<usize>) -> Option<(&[f32], usize)> {
        if self.rounds { None } else { self.panels.unpacked(lines, depth) }
    }
}

/// A matrix in memory: the element at (line, depth) is `data[line · line_step + depth · depth_step]`.
#[derive(Clone, Copy)]
pub struct Strided<'a> {
    /// From the first element to the last one or beyond.
    pub data: &'a [f32],
    /// Distance between neighbouring lines.
    pub line_step: usize,
    /// Distance between neighbours on one line.
    pub depth_step: usize,
}

impl Panels for Strided<'_> {
    fn pack(&self, lines: Range<usize>, depth: Range<usize>, width: usize, out: &mut [f32]) {
        let count = lines.len();
        if self.depth_step == 1 {
            let data = &self.data[lines.start * self.line_step + depth.start..];
            transpose(data, self.line_step, count, width, &mut out[..depth.len() * width]);
            return;
        }
        for (k, row) in depth.zip(out.chunks_exact_mut(width)) {
            let start = k * self.depth_step + lines.start * self.line_step;
            if self.line_step == 1 {
                row[..count].copy_from_slice(&self.data[start..start + count]);
            } else {
                for (i, to) in row[..count].iter_mut().enumerate() {
                    *to = self.data[start + i * self.line_step];
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
        self.data.get(first..last).map(|panel| (panel, self.depth_step))
    }
}

/// Writes `out[k · width + i] = data[i · step + k]` for `i < count`, and zeros for the rest of `width`; `out` says how many `k`.
pub fn transpose(data: &[f32], step: usize, count: usize, width: usize, out: &mut [f32]) {
    let depth = out.len() / width;
    if depth == 0 || count == 0 {
        out.fill(0.0);
        return;
    }
    assert!(count <= width && data.len() >= (count - 1) * step + depth, "a panel lies within its matrix");
    let mut done = 0;
    while done + GROUP <= count {
        let lines = std::array::from_fn(|i| &data[(done + i) * step..][..depth]);
        transpose_group(&lines, depth, &mut out[done..], width);
        done += GROUP;
    }
    while done + 4 <= count {
        let line = |i: usize| &data[(done + i) * step..][..depth];
        let lines = [line(0), line(1), line(2), line(3)];
        for (k, row) in out.chunks_exact_mut(width).enumerate() {
            row[done..done + 4].copy_from_slice(&[lines[0][k], lines[1][k], lines[2][k], lines[3][k]]);
        }
        done += 4;
    }
    for i in done..count {
        let line = &data[i * step..][..depth];
        for (row, &x) in out.chunks_exact_mut(width).zip(line) {
            row[i] = x;
        }
    }
    if count < width {
        for row in out.chunks_exact_mut(width) {
            row[count..].fill(0.0);
        }
    }
}

/// Lines that are transposed together.
const GROUP: usize = 8;

/// Writes `out[k · width + i] = lines[i][k]` for `k < depth`.
fn transpose_group(lines: &[&[f32]; GROUP], depth: usize, out: &mut [f32], width: usize) {
    if depth == 0 {
        return;
    }
    assert!(lines.iter().all(|line| line.len() >= depth) && out.len() >= (depth - 1) * width + GROUP);
    #[cfg(target_arch = "x86_64")]
    if Isa::detect() >= Isa::Avx2 {
        // SAFETY: the assertion above; AVX2 is there.
        unsafe { transpose_blocks(lines.map(<[f32]>::as_ptr), depth, out.as_mut_ptr(), width) };
        return;
    }
    for k in 0..depth {
        for (i, line) in lines.iter().enumerate() {
            out[k * width + i] = line[k];
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

/// [`transpose_group`] by blocks of 8 × 8 in registers.
///
/// # Safety
/// Every line has `depth` floats; `depth` rows of eight floats, `width` apart, can be written at `to`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn transpose_blocks(lines: [*const f32; GROUP], depth: usize, to: *mut f32, width: usize) {
    use std::arch::x86_64::*;
    let mut k = 0;
    while k + 8 <= depth {
        let block: [__m256; 8] = std::array::from_fn(|i| {
            // SAFETY: the caller's promise, for columns k .. k + 8.
            unsafe { _mm256_loadu_ps(lines[i].add(k)) }
        });
        for (i, row) in transpose8(block).into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { _mm256_storeu_ps(to.add((k + i) * width), row) };
        }
        k += 8;
    }
    while k + 4 <= depth {
        // SAFETY: the caller's promise, for columns k .. k + 4.
        unsafe {
            for half in [0, 4] {
                let [mut a, mut b, mut c, mut d] = [0, 1, 2, 3].map(|i| _mm_loadu_ps(lines[half + i].add(k)));
                _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
                for (i, row) in [a, b, c, d].into_iter().enumerate() {
                    _mm_storeu_ps(to.add((k + i) * width + half), row);
                }
            }
        }
        k += 4;
    }
    for k in k..depth {
        for (i, line) in lines.into_iter().enumerate() {
            // SAFETY: the caller's promise, for column k.
            unsafe { *to.add(k * width + i) = *line.add(k) };
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
            for (first, count, width, start, depth) in
                [(0, 12, 12, 0, 19), (3, 8, 16, 5, 16), (2, 15, 32, 1, 9), (1, 1, 7, 2, 3), (4, 3, 4, 0, 0)]
            {
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

//! Panels of bf16 numbers for processors that multiply pairs of them (AVX-512 BF16): two neighbours along the shared dimension are one
//! element of a panel, which has half as many bytes as one of `f32`.
//!
//! The earlier one is in the upper half, which the processor adds first: so a sum runs through the shared dimension in the order in which
//! single multiply-adds do, and has their bits (products of two bf16 numbers are exact in `f32`). One thing differs: numbers below 2⁻¹²⁶ count
//! as zero, as factors and as sums. So Intel's manual defines `VDPBF16PS`, and so an AMD processor computed two million random cases; an Intel
//! processor (Emerald Rapids) passes the tests.

use std::ops::Range;

use super::bf16::Bf16;
#[cfg(target_arch = "x86_64")]
use super::isa::Isa;
use super::isa::vectorized;
use super::number::Number;

/// Two neighbours on a line.
pub type Pair = u32;

/// A pair of neighbours.
#[inline(always)]
pub const fn join(earlier: Bf16, later: Bf16) -> Pair {
    (earlier.0 as u32) << 16 | later.0 as u32
}

/// Joins the rows of a range by twos, rounded, each `width` long with its zeros; the last may be alone.
pub fn interleave<'a, T: Number + 'a>(
    row: impl Fn(usize) -> &'a [T],
    rows: Range<usize>,
    width: usize,
    out: &mut [Pair],
) {
    vectorized(
        #[inline(always)]
        || {
            for (k, out) in rows.clone().step_by(2).zip(out.chunks_exact_mut(width)) {
                let earlier = row(k);
                let later = if k + 1 < rows.end { row(k + 1) } else { &[] };
                if later.is_empty() {
                    out.iter_mut().zip(earlier).for_each(|(to, &x)| *to = join(x.nearest(), Bf16(0)));
                } else {
                    for ((to, &x), &y) in out.iter_mut().zip(earlier).zip(later) {
                        *to = join(x.nearest(), y.nearest());
                    }
                }
                out[earlier.len()..].fill(0);
            }
        },
    );
}

/// Writes `out[k · width + i]`, the elements 2 k and 2 k + 1 of line `i < count`, rounded, where line `i` is `data[i · step ..][.. depth]`; zeros
/// where there are none.
pub fn transpose<T: Number>(
    data: &[T],
    step: usize,
    count: usize,
    depth: usize,
    width: usize,
    out: &mut [Pair],
) {
    let rows = depth.div_ceil(2);
    let out = &mut out[..rows * width];
    if rows == 0 || count == 0 {
        return out.fill(0);
    }
    assert!(count <= width && data.len() >= (count - 1) * step + depth, "a panel lies within its matrix");
    if count < width {
        out.chunks_exact_mut(width).for_each(|row| row[count..].fill(0));
    }
    #[cfg(target_arch = "x86_64")]
    if Isa::detect() == Isa::Avx512 {
        // SAFETY: the assertion above; AVX-512 is there.
        return unsafe { transpose_blocks(data, step, count, depth, width, out) };
    }
    for i in 0..count {
        let line = &data[i * step..][..depth];
        for (row, two) in out.chunks_exact_mut(width).zip(line.chunks(2)) {
            row[i] = join(two[0].nearest(), two.get(1).map_or(Bf16(0), |x| x.nearest()));
        }
    }
}

/// Lines, and pairs, that are transposed together.
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 8;

/// [`transpose`] by blocks of eight lines and eight pairs in registers.
///
/// # Safety
/// All lines lie in `data`, all rows in `out`; the processor has AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2")]
unsafe fn transpose_blocks<T: Number>(
    data: &[T],
    step: usize,
    count: usize,
    depth: usize,
    width: usize,
    out: &mut [Pair],
) {
    use std::arch::x86_64::*;
    for first in (0..count).step_by(BLOCK) {
        let members = BLOCK.min(count - first);
        // Where there are fewer lines, the last one stands for the others.
        let lines: [*const T; BLOCK] =
            std::array::from_fn(|i| data.as_ptr().wrapping_add((first + i.min(members - 1)) * step));
        for (block, rows) in out.chunks_mut(BLOCK * width).enumerate() {
            let k = block * 2 * BLOCK;
            let mask = low_bits(depth - k);
            let block: [__m256; BLOCK] = std::array::from_fn(|i| {
                // SAFETY: elements k .. of the line, as many as it has.
                let pairs = unsafe { T::nearest_of_sixteen(mask, lines[i].wrapping_add(k)) };
                _mm256_castsi256_ps(_mm256_rol_epi32::<16>(pairs))
            });
            let turned = super::pack::transpose8(block);
            for (row, pairs) in rows.chunks_exact_mut(width).zip(turned) {
                let row = &mut row[first..first + members];
                // SAFETY: the row has as many elements as the mask has bits.
                unsafe {
                    let to = row.as_mut_ptr().cast();
                    match members {
                        BLOCK => _mm256_storeu_ps(to, pairs),
                        _ => _mm256_mask_storeu_ps(to, low_bits(members) as u8, pairs),
                    }
                }
            }
        }
    }
}

/// As many of the lowest bits as this, or all.
#[cfg(target_arch = "x86_64")]
pub const fn low_bits(count: usize) -> u16 {
    if count >= 16 { u16::MAX } else { (1 << count) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_lie_where_a_panel_has_them() {
        // Of all kinds, also subnormal ones and some that are no numbers.
        let wide: Vec<f32> = (0..1600u32).map(|i| f32::from_bits(i.wrapping_mul(0x9E37_79B9))).collect();
        let data: Vec<Bf16> = wide.iter().map(|&x| Bf16::nearest(x)).collect();
        for (step, count, depth, width) in [
            (40, 12, 40, 12),
            (37, 8, 33, 8),
            (41, 5, 17, 7),
            (40, 32, 1, 32),
            (40, 1, 16, 4),
            (3, 3, 0, 3),
            (40, 0, 4, 2),
        ] {
            let pair = |k: usize, at: &dyn Fn(usize) -> Bf16| {
                join(at(2 * k), if 2 * k + 1 < depth { at(2 * k + 1) } else { Bf16(0) })
            };
            let mut out = vec![u32::MAX; depth.div_ceil(2) * width];
            transpose(&data, step, count, depth, width, &mut out);
            let mut rounded = vec![u32::MAX; out.len()];
            transpose(&wide, step, count, depth, width, &mut rounded);
            assert_eq!(out, rounded, "rounded and transposed {step} {count} {depth} {width}");
            for (index, &found) in out.iter().enumerate() {
                let (k, i) = (index / width, index % width);
                let expected = if i < count { pair(k, &|k| data[i * step + k]) } else { 0 };
                assert_eq!(found, expected, "transposed {step} {count} {depth} {width}: {k} {i}");
            }
            if count == 0 {
                continue;
            }
            // The same lines across.
            out.fill(u32::MAX);
            interleave(|k| &data[k * 33..][..count], 0..depth, width, &mut out);
            for (index, &found) in out.iter().enumerate() {
                let (k, i) = (index / width, index % width);
                let expected = if i < count { pair(k, &|k| data[k * 33 + i]) } else { 0 };
                assert_eq!(found, expected, "interleaved {count} {depth} {width}: {k} {i}");
            }
            rounded.fill(u32::MAX);
            interleave(|k| &wide[k * 33..][..count], 0..depth, width, &mut rounded);
            assert_eq!(out, rounded, "rounded and interleaved {count} {depth} {width}");
        }
    }
}

//! The innermost part of the matrix product: one tile of the result, kept in registers while the shared dimension runs by.
//!
//! `C[r][j] (+)= Σ_k A[k][r] · B[k][j]`, where a packed panel of A has one row of `R` floats per `k`, and B a row of `columns` floats,
//! packed or where it lies. Every element is one chain of fused multiply-adds in ascending `k`, whatever the tile's shape and the processor, so that
//! the bits of a product do not depend on how it is cut into tiles, nor on the machine.

mod operands;

use std::ops::Range;

pub use operands::{Ahead, BLOCK_DEPTH, BlockedColumns, Columns, EvenRows, ListedRows, Rows};

use super::isa::Isa;
#[cfg(target_arch = "x86_64")]
use super::isa::prefetch;
use super::matrix_unit::{self, Registers};
use super::pack::Panels;
use super::pairs::Pair;

/// What a tile does with the elements of C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Writes the sums.
    Write,
    /// Adds the sums.
    Add,
    /// Begins the sums with them and writes the sums: each chain goes on where an earlier tile ended it.
    Continue,
}

/// Multiplies panels: `(k, a, b, (c, row stride of c), what to do with c)`.
///
/// # Safety
/// `a` holds `k · R` floats, `b` has `k` rows of `columns`, and `R` rows of `columns` floats can be written at `c` (and read, unless they are
/// only written).
pub type TileFn<B, A = *const f32> = unsafe fn(usize, A, B, (*mut f32, usize), Merge);

/// The most rows of any processor's tile.
pub const MAX_ROWS: usize = 32;
/// The most columns of any processor's tile.
pub const MAX_COLUMNS: usize = 32;

/// The tiles of one instruction set.
pub struct Tiles {
    /// Columns of every tile.
    pub columns: usize,
    /// Whether the elements of panels are pairs of bf16 numbers ([`super::pairs`]); otherwise they are floats.
    pub takes_pairs: bool,
    /// Whether they are those of the [matrix unit](matrix_unit), which is [set up](Self::set_up) before they are used.
    pub by_matrix_unit: bool,
    /// `by_rows[r − 1]` computes a tile of `r` rows.
    pub by_rows: &'static [TileFn<EvenRows>],
    /// The same, where the rows of B lie anywhere.
    pub by_listed_rows: &'static [TileFn<ListedRows>],
    /// Rows of tiles whose A lies in blocks, a power of two.
    pub block_rows: usize,
    /// The tile of that many rows; that of vectors where there is a matrix unit.
    pub by_blocks: TileFn<EvenRows, BlockedColumns>,
}

/// The tiles of one row to `$r` rows.
macro_rules! tiles_of {
    ($tile:path, $rows:ty, $($r:literal)*) => { &[$({ use $tile as tile; tile::<$r, $rows> }),*] };
    (32, $tile:path, $rows:ty) => {
        tiles_of!($tile, $rows, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32)
    };
    (12, $tile:ident, $rows:ty) => { tiles_of!($tile, $rows, 1 2 3 4 5 6 7 8 9 10 11 12) };
    (6, $tile:ident, $rows:ty) => { tiles_of!($tile, $rows, 1 2 3 4 5 6) };
}

impl Tiles {
    /// The tiles for this processor.
    pub fn detect() -> &'static Self {
        Self::of(Isa::detect())
    }

    /// The tiles for pairs of bf16 numbers, if this processor has instructions for them.
    pub fn of_pairs() -> Option<&'static Self> {
        #[cfg(target_arch = "x86_64")]
        if Isa::multiplies_pairs() {
            return Some(&AVX512_BF16);
        }
        None
    }

    /// The same, if products take less time by pairs than by multiply-adds of widened numbers.
    pub fn of_gaining_pairs() -> Option<&'static Self> {
        if Isa::gains_from_pairs() { Self::of_pairs() } else { None }
    }

    /// The tiles of the matrix unit for pairs of bf16 numbers, if this process may use one.
    pub fn of_matrix_unit() -> Option<&'static Self> {
        #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
        if matrix_unit::is_usable() {
            return Some(&AMX_BF16);
        }
        None
    }

    /// Prepares the thread for tiles of this many rows.
    #[inline]
    pub fn set_up(&self, registers: &mut Registers, rows: usize) {
        if self.by_matrix_unit {
            // SAFETY: such tiles are given out only if the unit is usable.
            unsafe { registers.shape(rows) };
        }
    }

    /// Packs a panel of A, of as many lines as its tile has rows.
    pub fn pack_rows<P: Panels>(
        &self,
        panels: &P,
        lines: Range<usize>,
        depth: Range<usize>,
        out: &mut [f32],
    ) {
        if self.by_matrix_unit {
            return panels.pack_lines(lines, depth, pairs(out));
        }
        let width = lines.len();
        self.pack(panels, lines, depth, width, out);
    }

    /// Packs a panel, whose rows are `width` elements.
    pub fn pack<P: Panels>(
        &self,
        panels: &P,
        lines: Range<usize>,
        depth: Range<usize>,
        width: usize,
        out: &mut [f32],
    ) {
        if !self.takes_pairs {
            return panels.pack(lines, depth, width, out);
        }
        let (rows, zeros) = out.split_at_mut(depth.len().div_ceil(2) * width);
        panels.pack_pairs(lines, depth, width, pairs(rows));
        if self.by_matrix_unit {
            zeros.fill(0.0);
        }
    }

    /// Rows of a panel of some depth.
    pub const fn panel_rows(&self, depth: usize) -> usize {
        if self.by_matrix_unit {
            matrix_unit::panel_rows(depth)
        } else if self.takes_pairs {
            depth.div_ceil(2)
        } else {
            depth
        }
    }

    /// The tiles of an instruction set, which the processor must have.
    pub fn of(isa: Isa) -> &'static Self {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &AVX512,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &AVX2,
            _ => &BASELINE,
        }
    }
}

/// Memory for floats as memory for pairs.
fn pairs(floats: &mut [f32]) -> &mut [Pair] {
    // SAFETY: elements of one size and alignment, for which every bit pattern is valid.
    unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), floats.len()) }
}

/// Sixteen columns as plain arrays, for processors without fused multiply-adds: a slow but exact function is called.
#[cfg(not(target_arch = "aarch64"))]
static BASELINE: Tiles = Tiles {
    columns: 16,
    takes_pairs: false,
    by_matrix_unit: false,
    by_rows: tiles_of!(6, plain, EvenRows),
    by_listed_rows: tiles_of!(6, plain, ListedRows),
    block_rows: 4,
    by_blocks: plain::<4, EvenRows>,
};

/// # Safety
/// As [`TileFn`].
#[cfg(not(target_arch = "aarch64"))]
unsafe fn plain<const R: usize, B: Rows>(
    k: usize,
    a: impl Columns,
    b: B,
    (c, stride): (*mut f32, usize),
    merge: Merge,
) {
    let mut sums = [[0.0f32; 16]; R];
    if merge == Merge::Continue {
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller gives `R` rows of 16 floats.
            *sums = unsafe { *c.add(r * stride).cast::<[f32; 16]>() };
        }
    }
    for at in 0..k {
        // SAFETY: the caller gives `k` rows of each panel.
        let (a, step, b) = unsafe { (a.column::<R>(at), a.step(), &*b.row(at).cast::<[f32; 16]>()) };
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: as above.
            let x = unsafe { *a.add(r * step) };
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = x.mul_add(*b, *sum);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        // SAFETY: the caller gives `R` rows of 16 floats.
        let row = unsafe { &mut *c.add(r * stride).cast::<[f32; 16]>() };
        for j in 0..16 {
            row[j] = if merge == Merge::Add { row[j] + sums[j] } else { sums[j] };
        }
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! vector_tile {
    ($name:ident, $arch:ident, $features:literal, $lanes:literal, $vectors:literal, $zero:expr, $load:ident, $store:ident, $set:ident, $fma:expr, $plus:ident) => {
        /// # Safety
        /// As [`TileFn`]; the processor has the features.
        #[target_feature(enable = $features)]
        unsafe fn $name<const R: usize, B: Rows>(
            k: usize,
            a: impl Columns,
            b: B,
            (c, stride): (*mut f32, usize),
            merge: Merge,
        ) {
            use std::arch::$arch::*;
            let mut sums = [[$zero; $vectors]; R];
            // The tile of C arrives while the sums run; its rows are too far apart for the processor to foresee. Hints touch nothing.
            #[cfg(target_arch = "x86_64")]
            for r in 0..R {
                for line in (0..$vectors * $lanes).step_by(16) {
                    prefetch::<_MM_HINT_ET0, _>(c.wrapping_add(r * stride + line));
                }
            }
            if merge == Merge::Continue {
                for r in 0..R {
                    for v in 0..$vectors {
                        // SAFETY: the caller gives `R` rows of that many vectors.
                        sums[r][v] = unsafe { $load(c.add(r * stride + v * $lanes)) };
                    }
                }
            }
            for at in 0..k {
                b.ask_ahead(at);
                // SAFETY: the caller gives `k` rows of each panel.
                unsafe {
                    let b = b.row(at);
                    let mut row = [$zero; $vectors];
                    for v in 0..$vectors {
                        row[v] = $load(b.add(v * $lanes));
                    }
                    let (a, step) = (a.column::<R>(at), a.step());
                    for r in 0..R {
                        let x = $set(*a.add(r * step));
                        for v in 0..$vectors {
                            sums[r][v] = $fma(x, row[v], sums[r][v]);
                        }
                    }
                }
            }
            for r in 0..R {
                for v in 0..$vectors {
                    // SAFETY: the caller gives `R` rows of that many vectors.
                    unsafe {
                        let to = c.add(r * stride + v * $lanes);
                        let sum = if merge == Merge::Add { $plus($load(to), sums[r][v]) } else { sums[r][v] };
                        $store(to, sum);
                    }
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
vector_tile!(
    avx512,
    x86_64,
    "avx512f",
    16,
    2,
    _mm512_setzero_ps(),
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_set1_ps,
    _mm512_fmadd_ps,
    _mm512_add_ps
);
#[cfg(target_arch = "x86_64")]
vector_tile!(
    avx512_bf16,
    x86_64,
    "avx512f,avx512bf16",
    16,
    2,
    _mm512_setzero_ps(),
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_set1_ps,
    |x: __m512, row: __m512, sum: __m512| {
        // Vectors of one size; the elements of panels are pairs.
        let [x, row]: [__m512bh; 2] = std::mem::transmute([x, row]);
        _mm512_dpbf16_ps(sum, x, row)
    },
    _mm512_add_ps
);
#[cfg(target_arch = "x86_64")]
vector_tile!(
    avx2,
    x86_64,
    "avx2,fma",
    8,
    2,
    _mm256_setzero_ps(),
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_set1_ps,
    _mm256_fmadd_ps,
    _mm256_add_ps
);

// The compiler makes single multiply-adds of `plain` here, not vectors.
#[cfg(target_arch = "aarch64")]
vector_tile!(
    neon,
    aarch64,
    "neon",
    4,
    4,
    vdupq_n_f32(0.0),
    vld1q_f32,
    vst1q_f32,
    vdupq_n_f32,
    |x, b, sum| vfmaq_f32(sum, x, b),
    vaddq_f32
);

/// 24 of 32 registers hold sums, four hold a row of B, and A is broadcast.
#[cfg(target_arch = "aarch64")]
static BASELINE: Tiles = Tiles {
    columns: 16,
    takes_pairs: false,
    by_matrix_unit: false,
    by_rows: tiles_of!(6, neon, EvenRows),
    by_listed_rows: tiles_of!(6, neon, ListedRows),
    block_rows: 4,
    by_blocks: neon::<4, EvenRows>,
};

/// 24 of 32 registers hold sums, two hold a row of B, and A is broadcast from memory.
#[cfg(target_arch = "x86_64")]
static AVX512: Tiles = Tiles {
    columns: 32,
    takes_pairs: false,
    by_matrix_unit: false,
    by_rows: tiles_of!(12, avx512, EvenRows),
    by_listed_rows: tiles_of!(12, avx512, ListedRows),
    block_rows: 8,
    by_blocks: avx512::<8, EvenRows>,
};

/// As [`AVX512`], on pairs.
#[cfg(target_arch = "x86_64")]
static AVX512_BF16: Tiles = Tiles {
    columns: 32,
    takes_pairs: true,
    by_matrix_unit: false,
    by_rows: tiles_of!(12, avx512_bf16, EvenRows),
    by_listed_rows: tiles_of!(12, avx512_bf16, ListedRows),
    block_rows: 8,
    by_blocks: avx512_bf16::<8, EvenRows>,
};

/// As [`AVX512_BF16`], by the matrix unit.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
static AMX_BF16: Tiles = Tiles {
    columns: 32,
    takes_pairs: true,
    by_matrix_unit: true,
    by_rows: tiles_of!(32, matrix_unit::tile, EvenRows),
    by_listed_rows: tiles_of!(32, matrix_unit::tile, ListedRows),
    block_rows: 8,
    by_blocks: avx512_bf16::<8, EvenRows>,
};

/// 12 of 16 registers hold sums.
#[cfg(target_arch = "x86_64")]
static AVX2: Tiles = Tiles {
    columns: 16,
    takes_pairs: false,
    by_matrix_unit: false,
    by_rows: tiles_of!(6, avx2, EvenRows),
    by_listed_rows: tiles_of!(6, avx2, ListedRows),
    block_rows: 4,
    by_blocks: avx2::<4, EvenRows>,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::bf16::Bf16;
    use crate::kernels::pairs::join;

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let k = 37;
        let a: Vec<f32> = (0..k * MAX_ROWS).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0).collect();
        let b: Vec<f32> = (0..k * MAX_COLUMNS).map(|i| ((i * 53 % 97) as f32 - 48.0) / 11.0).collect();
        for isa in [Isa::Baseline, Isa::Avx2, Isa::Avx512].into_iter().filter(|&isa| isa <= Isa::detect()) {
            let tiles = Tiles::of(isa);
            assert!(tiles.by_rows.len() <= MAX_ROWS && tiles.columns <= MAX_COLUMNS);
            assert_eq!(tiles.by_rows.len(), tiles.by_listed_rows.len());
            // Listed rows come in another order.
            let place = |at: usize| (at * 5) % k;
            let offsets: Vec<u32> = (0..k).map(|at| (place(at) * tiles.columns) as u32).collect();
            blocks_give_the_bits_of_packed_panels(tiles, k, &a, &b);
            for rows in 1..=tiles.by_rows.len() {
                let cases =
                    [Merge::Write, Merge::Add, Merge::Continue].map(|merge| [(merge, false), (merge, true)]);
                for (merge, listed) in cases.into_iter().flatten() {
                    let mut c = vec![0.5f32; rows * tiles.columns];
                    // SAFETY: the panels and the tile have the required sizes.
                    unsafe {
                        let c = (c.as_mut_ptr(), tiles.columns);
                        match listed {
                            false => {
                                let b = EvenRows::new(b.as_ptr(), tiles.columns);
                                tiles.by_rows[rows - 1](k, a.as_ptr(), b, c, merge);
                            }
                            true => {
                                let b = ListedRows { start: b.as_ptr(), offsets: offsets.as_ptr() };
                                tiles.by_listed_rows[rows - 1](k, a.as_ptr(), b, c, merge);
                            }
                        }
                    }
                    for r in 0..rows {
                        for j in 0..tiles.columns {
                            let first = if merge == Merge::Continue { 0.5f32 } else { 0.0 };
                            let chain = (0..k).fold(first, |sum, at| {
                                let row = if listed { place(at) } else { at };
                                a[at * rows + r].mul_add(b[row * tiles.columns + j], sum)
                            });
                            let expected = if merge == Merge::Add { 0.5 + chain } else { chain };
                            assert_eq!(
                                c[r * tiles.columns + j].to_bits(),
                                expected.to_bits(),
                                "{isa:?} {rows} rows {merge:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    /// A panel of A in blocks, of which the last one is filled in part, against the same panel packed.
    fn blocks_give_the_bits_of_packed_panels(tiles: &Tiles, k: usize, a: &[f32], b: &[f32]) {
        let rows = tiles.block_rows;
        assert!(rows.is_power_of_two() && rows <= tiles.by_rows.len());
        // A few floats between blocks.
        let step = rows * BLOCK_DEPTH + 3;
        let mut blocks = vec![f32::NAN; k.div_ceil(BLOCK_DEPTH) * step];
        for (at, column) in a.chunks_exact(rows).take(k).enumerate() {
            for (row, &x) in column.iter().enumerate() {
                blocks[at / BLOCK_DEPTH * step + row * BLOCK_DEPTH + at % BLOCK_DEPTH] = x;
            }
        }
        let mut c = [vec![0.5f32; rows * tiles.columns], vec![0.5f32; rows * tiles.columns]];
        let [packed, blocked] = c.each_mut().map(|c| (c.as_mut_ptr(), tiles.columns));
        let b = EvenRows::new(b.as_ptr(), tiles.columns);
        let columns = BlockedColumns { start: blocks.as_ptr(), step };
        // SAFETY: the panels and the tiles have the required sizes.
        unsafe {
            tiles.by_rows[rows - 1](k, a.as_ptr(), b, packed, Merge::Add);
            (tiles.by_blocks)(k, columns, b, blocked, Merge::Add);
        }
        assert_eq!(c[0], c[1]);
        assert!(c[0].iter().all(|x| x.is_finite()));
    }

    /// What pairs differ in from single multiply-adds, where a processor has instructions for them: numbers below the least normal one.
    #[test]
    fn pairs_are_added_in_order_and_small_numbers_count_as_zero() {
        let Some(tiles) = Tiles::of_pairs() else { return };
        let one = |pairs: &[Pair], with: Pair| {
            let (a, b) = (pairs.to_vec(), vec![with; pairs.len() * tiles.columns]);
            let mut c = vec![f32::NAN; tiles.columns];
            // SAFETY: panels and tile have the required sizes.
            unsafe {
                let b = EvenRows::new(b.as_ptr().cast(), tiles.columns);
                tiles.by_rows[0](
                    pairs.len(),
                    a.as_ptr().cast(),
                    b,
                    (c.as_mut_ptr(), tiles.columns),
                    Merge::Write,
                );
            }
            assert!(c.iter().all(|x| x.to_bits() == c[0].to_bits()));
            c[0]
        };
        let narrow = |x: f32| Bf16::nearest(x);
        let ones = join(narrow(1.0), narrow(1.0));
        // 2²⁴ + 1 is 2²⁴: one at a time is lost behind it, and not before it.
        let large = 16_777_216.0;
        assert_eq!(one(&[join(narrow(large), narrow(1.0)), join(narrow(1.0), narrow(0.0))], ones), large);
        assert_eq!(
            one(&[join(narrow(1.0), narrow(1.0)), join(narrow(large), narrow(0.0))], ones),
            large + 2.0
        );
        // Factors and sums below 2⁻¹²⁶.
        let small = join(Bf16(0x0040), narrow(0.0));
        assert_eq!(one(&[small], join(narrow(1e30), narrow(0.0))), 0.0);
        assert_eq!(one(&[join(narrow(1e-20), narrow(0.0))], join(narrow(1e-20), narrow(0.0))), 0.0);
        assert!(one(&[join(narrow(f32::NAN), narrow(0.0))], ones).is_nan());
        assert_eq!(one(&[join(narrow(1e38), narrow(1e38))], join(narrow(100.0), narrow(1.0))), f32::INFINITY);
    }
}

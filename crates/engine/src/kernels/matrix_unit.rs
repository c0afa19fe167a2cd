//! Products of pairs of bf16 numbers by the matrix unit of a processor (AMX), which multiplies 16 × 16 tiles: what Intel's processors since Sapphire
//! Rapids have in place of fast vector instructions for them.
//!
//! A tile register holds 16 rows of 64 bytes. A tile of C has up to 32 rows and 32 columns, in four registers:
//!
//! ```text
//!                      B: 16 pairs deep, 32 columns
//!                      ┌ 6 ───────┬ 7 ───────┐
//! A: 16 pairs deep     └──────────┴──────────┘
//! ┌ 4 ┐ rows 0 to 15   ┌ 0 ───────┬ 1 ───────┐
//! ├ 5 ┤ rows 16 to 31  ├ 2 ───────┼ 3 ───────┤  C
//! └───┘                └──────────┴──────────┘
//! ```
//!
//! **Panels.** Their depth is filled up with zeros to a multiple of 16 pairs. A panel of B has one row of columns for each pair, as for other tiles;
//! one of A has, for each 16 pairs, its rows, each with 16 pairs side by side.
//!
//! **Bits.** The unit adds the products of 32 neighbours along the shared dimension in two chains from zero, those of even and those of odd
//! places, and then both chains' sum to what C holds; numbers below 2⁻¹²⁶ count as zero, as factors and as sums (Intel's manual, `TDPBF16PS`). So an
//! element is another sum than in a product of floats, but always the same one: it begins with what C holds, blocks of 32 begin where a part of
//! the depth does, and one follows the other through all parts.

use std::ops::Range;

use super::bf16::Bf16;
use super::isa::vectorized;
use super::number::Number;
use super::pack::{Panels, transpose};
use super::pairs::{Pair, join};
use super::product::DEPTH;
use super::tile::MAX_ROWS;

/// Pairs in one row of a tile of A.
pub const PAIRS: usize = 16;
/// The least depth for which panels filled up with zeros take no more memory than panels of floats.
pub const LEAST_DEPTH: usize = 16;

/// Rows of a panel of some depth.
pub const fn panel_rows(depth: usize) -> usize {
    depth.div_ceil(2 * PAIRS) * PAIRS
}

/// Writes `width` lines of one length as a panel of A.
pub fn join_lines<'l, T: Number + 'l>(line: impl Fn(usize) -> &'l [T], width: usize, out: &mut [Pair]) {
    vectorized(
        #[inline(always)]
        || {
            for i in 0..width {
                let mut rows = out.chunks_exact_mut(PAIRS).skip(i).step_by(width);
                for (numbers, row) in line(i).chunks(2 * PAIRS).zip(&mut rows) {
                    if numbers.len() == 2 * PAIRS {
                        for (pair, two) in row.iter_mut().zip(numbers.chunks_exact(2)) {
                            *pair = join(two[0].nearest(), two[1].nearest());
                        }
                    } else {
                        row.fill(0);
                        for (pair, two) in row.iter_mut().zip(numbers.chunks(2)) {
                            *pair = join(two[0].nearest(), two.get(1).map_or(Bf16(0), |x| x.nearest()));
                        }
                    }
                }
            }
        },
    );
}

/// Writes lines as a panel of A, of panels that pack one row of all lines after another.
pub fn pack_by_rows<P: Panels + ?Sized>(
    panels: &P,
    lines: Range<usize>,
    depth: Range<usize>,
    out: &mut [Pair],
) {
    let (width, count) = (lines.len(), depth.len().div_ceil(2));
    let mut rows = [0; panel_rows(DEPTH) * MAX_ROWS];
    let rows = &mut rows[..panel_rows(depth.len()) * width];
    panels.pack_pairs(lines, depth, width, &mut rows[..count * width]);
    let (rows, out): (&[f32], &mut [f32]) = (bytemuck::cast_slice(rows), bytemuck::cast_slice_mut(out));
    for (rows, out) in rows.chunks_exact(PAIRS * width).zip(out.chunks_exact_mut(PAIRS * width)) {
        transpose(rows, width, PAIRS, PAIRS, out);
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
pub use unit::{Registers, is_usable, tile};

/// Stands for the registers of a matrix unit where there is none.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
#[derive(Default)]
pub struct Registers;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
impl Registers {
    /// There are none to shape.
    ///
    /// # Safety
    /// Nothing is required.
    pub unsafe fn shape(&mut self, _: usize) {}
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod unit {
    use std::arch::asm;
    use std::sync::LazyLock;

    use super::PAIRS;
    use crate::kernels::isa::{Isa, prefetch};
    use crate::kernels::tile::{Ahead, MAX_COLUMNS, MAX_ROWS, Merge, Rows};

    /// Bytes of a row of a register.
    const ROW: usize = 64;
    /// The most rows of a panel of B.
    const MOST: usize = super::panel_rows(super::DEPTH);

    /// Whether this process may use the processor's matrix unit: the first call asks the kernel, which keeps its registers for every thread from
    /// then on.
    pub fn is_usable() -> bool {
        /// `ARCH_REQ_XCOMP_PERM`, and the number of the registers' state.
        const ASK: libc::c_long = 0x1023;
        const TILE_DATA: libc::c_long = 18;
        /// Bits of leaf 7: `AMX-BF16` and `AMX-TILE`.
        const FEATURES: u32 = 1 << 22 | 1 << 24;
        static USABLE: LazyLock<bool> = LazyLock::new(|| {
            // SAFETY: every processor with AVX-512 has the leaf.
            #[allow(unused_unsafe, reason = "safe in later versions of the compiler")]
            let features = || unsafe { std::arch::x86_64::__cpuid_count(7, 0) }.edx;
            // SAFETY: changes only what the process may use.
            let ask = || unsafe { libc::syscall(libc::SYS_arch_prctl, ASK, TILE_DATA) };
            Isa::detect() == Isa::Avx512 && features() & FEATURES == FEATURES && ask() == 0
        });
        *USABLE
    }

    /// The shapes of the registers (palette 1).
    #[repr(C, align(64))]
    struct Shapes {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    impl Shapes {
        /// For a tile of C with this many rows.
        const fn new(rows: usize) -> Self {
            let [upper, lower] = if rows > 16 { [16, (rows - 16) as u8] } else { [rows as u8, 0] };
            let mut shapes =
                Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
            let all = [upper, upper, lower, lower, upper, lower, 16, 16];
            let mut at = 0;
            while at < all.len() {
                shapes.rows[at] = all[at];
                shapes.row_bytes[at] = if all[at] > 0 { ROW as u16 } else { 0 };
                at += 1;
            }
            shapes
        }
    }

    static SHAPES: [Shapes; MAX_ROWS] = {
        let mut all = [const { Shapes::new(1) }; MAX_ROWS];
        let mut at = 0;
        while at < MAX_ROWS {
            all[at] = Shapes::new(at + 1);
            at += 1;
        }
        all
    };

    /// The registers of this thread, in use. Nothing else runs on the thread meanwhile that uses them: the compiler does not.
    #[derive(Default)]
    pub struct Registers {
        /// The rows of a tile of C for which they are shaped; zero at first.
        rows: usize,
    }

    impl Registers {
        /// Shapes them for tiles of C with this many rows, from 1 to [`MAX_ROWS`]. That takes as long as half of a tile, so it is done once for many.
        ///
        /// # Safety
        /// [`is_usable`].
        #[inline]
        pub unsafe fn shape(&mut self, rows: usize) {
            if self.rows != rows {
                self.rows = rows;
                // SAFETY: the process may use them; the shapes are valid ones.
                unsafe {
                    asm!("ldtilecfg [{}]", in(reg) &SHAPES[rows - 1], options(nostack, preserves_flags, readonly));
                }
            }
        }
    }

    impl Drop for Registers {
        fn drop(&mut self) {
            if self.rows > 0 {
                // SAFETY: they are in use.
                unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
            }
        }
    }

    /// A tile of `R` rows, as a [`TileFn`](crate::kernels::tile::TileFn).
    ///
    /// # Safety
    /// As a `TileFn` for panels in this module's order, whose depth is at most that of a part; [`Registers`] are shaped for `R` rows.
    pub unsafe fn tile<const R: usize, B: Rows>(
        k: usize,
        a: *const f32,
        b: B,
        (c, stride): (*mut f32, usize),
        merge: Merge,
    ) {
        debug_assert!(k.is_multiple_of(PAIRS) && k <= MOST);
        (0..k).step_by(Ahead::ROWS).for_each(|row| b.ask_ahead(row));
        // The next tile of C mostly lies below; it arrives while this one is computed. Hints touch nothing.
        for line in (R..2 * R).flat_map(|r| [0, 16].map(|column| r * stride + column)) {
            prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }, _>(c.wrapping_add(line));
        }
        // SAFETY: the caller's promise; what is gathered has all rows.
        unsafe {
            match b.even() {
                Some(b) => multiply(R, k, a, b, (c, stride), merge != Merge::Write),
                None => {
                    let mut gathered = Aligned([0.0; MOST * MAX_COLUMNS]);
                    gather(b, &mut gathered.0[..k * MAX_COLUMNS]);
                    let b = (gathered.0.as_ptr(), MAX_COLUMNS);
                    multiply(R, k, a, b, (c, stride), merge != Merge::Write);
                }
            }
        }
    }

    /// Aligned to cache lines, so that a row of a register lies in one.
    #[repr(C, align(64))]
    struct Aligned<const N: usize>([f32; N]);

    /// Copies rows side by side.
    ///
    /// # Safety
    /// There are as many rows as the slice has room for.
    unsafe fn gather<B: Rows>(b: B, to: &mut [f32]) {
        for (at, to) in to.chunks_exact_mut(MAX_COLUMNS).enumerate() {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(b.row(at), to.as_mut_ptr(), MAX_COLUMNS) };
        }
    }

    /// Writes the sums, which begin with what C holds if it `continues`, and else with zeros.
    ///
    /// # Safety
    /// As [`tile`], for rows of B at equal distances.
    unsafe fn multiply(
        rows: usize,
        k: usize,
        a: *const f32,
        (b, b_step): (*const f32, usize),
        (c, c_step): (*mut f32, usize),
        continues: bool,
    ) {
        let (b_bytes, c_bytes) = (b_step * size_of::<f32>(), c_step * size_of::<f32>());
        macro_rules! with_registers {
            ($zero:expr, $load:expr, $multiply:expr, $store:expr, $($clobbered:tt)*) => {
                asm!(
                    $zero,
                    "test {continues:e}, {continues:e}",
                    "jz 2f",
                    $load,
                    "2:",
                    "test {blocks}, {blocks}",
                    "jz 4f",
                    "3:",
                    $multiply,
                    "add {a}, {a_block}",
                    "add {b}, {b_block}",
                    "dec {blocks}",
                    "jnz 3b",
                    "4:",
                    $store,
                    continues = in(reg) u32::from(continues),
                    blocks = inout(reg) k / PAIRS => _,
                    a = inout(reg) a => _,
                    a_row = in(reg) ROW,
                    a_block = in(reg) rows * ROW,
                    b = inout(reg) b => _,
                    b_row = in(reg) b_bytes,
                    b_block = in(reg) PAIRS * b_bytes,
                    c = in(reg) c,
                    c_lower = in(reg) c.wrapping_add(16 * c_step),
                    c_row = in(reg) c_bytes,
                    $(out($clobbered) _,)*
                    options(nostack),
                )
            };
        }
        // SAFETY: the caller's promise: registers of A end with the panel's rows, those of C with the tile's.
        unsafe {
            if rows > 16 {
                with_registers!(
                    "tilezero tmm0
                    tilezero tmm1
                    tilezero tmm2
                    tilezero tmm3",
                    "tileloadd tmm0, [{c} + {c_row}*1]
                    tileloadd tmm1, [{c} + {c_row}*1 + 64]
                    tileloadd tmm2, [{c_lower} + {c_row}*1]
                    tileloadd tmm3, [{c_lower} + {c_row}*1 + 64]",
                    "tileloadd tmm4, [{a} + {a_row}*1]
                    tileloadd tmm6, [{b} + {b_row}*1]
                    tileloadd tmm7, [{b} + {b_row}*1 + 64]
                    tileloadd tmm5, [{a} + {a_row}*1 + 1024]
                    tdpbf16ps tmm0, tmm4, tmm6
                    tdpbf16ps tmm1, tmm4, tmm7
                    tdpbf16ps tmm2, tmm5, tmm6
                    tdpbf16ps tmm3, tmm5, tmm7",
                    "tilestored [{c} + {c_row}*1], tmm0
                    tilestored [{c} + {c_row}*1 + 64], tmm1
                    tilestored [{c_lower} + {c_row}*1], tmm2
                    tilestored [{c_lower} + {c_row}*1 + 64], tmm3",
                    "tmm0" "tmm1" "tmm2" "tmm3" "tmm4" "tmm5" "tmm6" "tmm7"
                );
            } else {
                with_registers!(
                    "tilezero tmm0
                    tilezero tmm1",
                    "tileloadd tmm0, [{c} + {c_row}*1]
                    tileloadd tmm1, [{c} + {c_row}*1 + 64]",
                    "tileloadd tmm4, [{a} + {a_row}*1]
                    tileloadd tmm6, [{b} + {b_row}*1]
                    tileloadd tmm7, [{b} + {b_row}*1 + 64]
                    tdpbf16ps tmm0, tmm4, tmm6
                    tdpbf16ps tmm1, tmm4, tmm7",
                    "tilestored [{c} + {c_row}*1], tmm0
                    tilestored [{c} + {c_row}*1 + 64], tmm1
                    /* {c_lower} */",
                    "tmm0" "tmm1" "tmm4" "tmm6" "tmm7"
                );
            }
        }
    }
}

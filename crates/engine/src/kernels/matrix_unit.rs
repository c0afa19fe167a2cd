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
//! one of A has, for each 16 pairs, its rows, each with 16 pairs side by side ([`join_lines`]).
//!
//! **Bits.** The unit adds the products of 32 neighbours along the shared dimension in two chains from zero, those of even and those of odd
//! places, and then both chains' sum to what C holds; numbers below 2⁻¹²⁶ count as zero, as factors and as sums (Intel's manual, `TDPBF16PS`). So an
//! element is a sum of other parts than in a product of floats, always the same ones: blocks of 32 begin where a part of the depth does.

use super::pairs::Pair;

/// Pairs in one row of a tile of A.
pub const PAIRS: usize = 16;
/// The least depth for which panels filled up with zeros take no more memory than panels of floats.
pub const LEAST_DEPTH: usize = 16;

/// Rows of a panel of some depth.
pub const fn panel_rows(depth: usize) -> usize {
    depth.div_ceil(2 * PAIRS) * PAIRS
}

/// Brings a panel of `width` lines, with one row of pairs of all lines for each two neighbours, into the order of a panel of A.
pub fn join_lines(rows: &[Pair], width: usize, out: &mut [f32]) {
    let floats: &[f32] = bytemuck::cast_slice(rows);
    for (rows, out) in floats.chunks_exact(PAIRS * width).zip(out.chunks_exact_mut(PAIRS * width)) {
        super::pack::transpose(rows, width, PAIRS, PAIRS, out);
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
pub use unit::{is_usable, tile};

/// Whether this process may use a matrix unit.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
pub const fn is_usable() -> bool {
    false
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod unit {
    use std::arch::asm;
    use std::sync::LazyLock;

    use super::PAIRS;
    use crate::kernels::isa::Isa;
    use crate::kernels::tile::{Ahead, MAX_COLUMNS, MAX_ROWS, Merge, Rows};

    /// Bytes of a row of a register.
    const ROW: usize = 64;
    /// The most rows of a panel.
    const DEPTH: usize = super::panel_rows(crate::kernels::product::DEPTH);

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

    /// A tile of `R` rows, as a [`TileFn`](crate::kernels::tile::TileFn).
    ///
    /// # Safety
    /// As a `TileFn` for panels in this module's order, whose depth is at most that of a part; [`is_usable`].
    pub unsafe fn tile<const R: usize, B: Rows>(
        k: usize,
        a: *const f32,
        b: B,
        (c, stride): (*mut f32, usize),
        merge: Merge,
    ) {
        debug_assert!(k.is_multiple_of(PAIRS) && k <= DEPTH);
        (0..k).step_by(Ahead::ROWS).for_each(|row| b.ask_ahead(row));
        // SAFETY: the caller's promise; what is gathered or summed up apart has all rows and columns.
        unsafe {
            match b.even() {
                Some(b) => multiply_into(R, k, a, b, (c, stride), merge),
                None => {
                    let mut gathered = Aligned([0.0; DEPTH * MAX_COLUMNS]);
                    gather(b, &mut gathered.0[..k * MAX_COLUMNS]);
                    multiply_into(R, k, a, (gathered.0.as_ptr(), MAX_COLUMNS), (c, stride), merge);
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

    /// # Safety
    /// As [`tile`], for rows of B at equal distances.
    unsafe fn multiply_into(
        rows: usize,
        k: usize,
        a: *const f32,
        b: (*const f32, usize),
        (c, stride): (*mut f32, usize),
        merge: Merge,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if merge != Merge::Add {
                return multiply(rows, k, a, b, (c, stride), merge == Merge::Continue);
            }
            let mut sums = Aligned([0.0; MAX_ROWS * MAX_COLUMNS]);
            multiply(rows, k, a, b, (sums.0.as_mut_ptr(), MAX_COLUMNS), false);
            for (r, sums) in sums.0.chunks_exact(MAX_COLUMNS).take(rows).enumerate() {
                add(c.add(r * stride), sums);
            }
        }
    }

    /// # Safety
    /// As many floats as `sums` has, a multiple of 16, can be read and written at `c`; the processor has AVX-512.
    #[target_feature(enable = "avx512f")]
    unsafe fn add(c: *mut f32, sums: &[f32]) {
        use std::arch::x86_64::*;
        for (at, sums) in sums.chunks_exact(16).enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let c = c.add(16 * at);
                _mm512_storeu_ps(c, _mm512_add_ps(_mm512_loadu_ps(c), _mm512_loadu_ps(sums.as_ptr())));
            }
        }
    }

    /// Writes the sums, which begin with what C holds if it `continues`.
    ///
    /// # Safety
    /// As [`multiply_into`].
    unsafe fn multiply(
        rows: usize,
        k: usize,
        a: *const f32,
        (b, b_step): (*const f32, usize),
        (c, c_step): (*mut f32, usize),
        continues: bool,
    ) {
        let shapes = &SHAPES[rows - 1];
        let (b_bytes, c_bytes) = (b_step * size_of::<f32>(), c_step * size_of::<f32>());
        // The registers are set up and given up within one block, so that nothing else can touch them meanwhile. Zeroed when they are set up.
        macro_rules! with_registers {
            ($load:expr, $multiply:expr, $store:expr, $($clobbered:tt)*) => {
                asm!(
                    "ldtilecfg [{shapes}]",
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
                    "tilerelease",
                    shapes = in(reg) shapes,
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

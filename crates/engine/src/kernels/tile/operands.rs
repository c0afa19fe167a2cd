//! Where a tile of the matrix product finds its operands: panels of A and of B, packed or where they lie.

#[cfg(target_arch = "x86_64")]
use super::super::isa::prefetch;

/// Where the elements of a panel of A lie: those that are multiplied with one row of B have equal distances.
pub trait Columns: Copy {
    /// The address of the first element of column `k` of a panel of `R` rows.
    ///
    /// # Safety
    /// There is such a column.
    unsafe fn column<const R: usize>(self, k: usize) -> *const f32;

    /// The distance between neighbours of a column.
    fn step(self) -> usize;
}

/// A packed panel.
impl Columns for *const f32 {
    #[inline(always)]
    unsafe fn column<const R: usize>(self, k: usize) -> *const f32 {
        // SAFETY: the caller's promise.
        unsafe { self.add(k * R) }
    }

    #[inline(always)]
    fn step(self) -> usize {
        1
    }
}

/// Blocks of [`BLOCK_DEPTH`] columns, which have as many floats for each row.
#[derive(Clone, Copy)]
pub struct BlockedColumns {
    /// The first block.
    pub start: *const f32,
    /// The distance between blocks.
    pub step: usize,
}

/// Columns of a block.
pub const BLOCK_DEPTH: usize = 16;

impl Columns for BlockedColumns {
    #[inline(always)]
    unsafe fn column<const R: usize>(self, k: usize) -> *const f32 {
        // SAFETY: the caller's promise.
        unsafe { self.start.add(k / BLOCK_DEPTH * self.step + k % BLOCK_DEPTH) }
    }

    #[inline(always)]
    fn step(self) -> usize {
        BLOCK_DEPTH
    }
}

/// Where the rows of a panel of B lie.
pub trait Rows: Copy {
    /// The address of row `k`.
    ///
    /// # Safety
    /// There is such a row.
    unsafe fn row(self, k: usize) -> *const f32;

    /// The first row and the distance between neighbours, if that is the same for all.
    #[inline(always)]
    #[cfg_attr(
        not(all(target_arch = "x86_64", target_os = "linux", not(miri))),
        allow(dead_code, reason = "asked by the matrix unit")
    )]
    fn even(self) -> Option<(*const f32, usize)> {
        None
    }

    /// Asks for a part of what is read after the tile; called at every row.
    #[inline(always)]
    fn ask_ahead(self, k: usize) {
        let _ = k;
    }
}

/// Rows at equal distances.
#[derive(Clone, Copy)]
pub struct EvenRows {
    /// The first row.
    pub start: *const f32,
    /// The distance between neighbours.
    pub step: usize,
    /// What is read after the tile.
    pub ahead: Ahead,
}

/// Memory that is read later, by pairs of cache lines.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no hints there"))]
pub struct Ahead {
    /// The first pair.
    pub start: *const u8,
    /// Bytes between neighbouring pairs.
    pub step: usize,
}

impl Ahead {
    /// Rows of a tile for each pair. Pairs that are asked for all at once wait for each other in the processor's fill buffers.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no hints there"))]
    pub const ROWS: usize = 16;
    /// Bytes of a pair of lines.
    pub const PAIR: usize = 128;
}

impl EvenRows {
    /// Rows after which nothing is read that is known now.
    pub fn new(start: *const f32, step: usize) -> Self {
        // The first row is in cache, so that asking for it costs nothing.
        Self { start, step, ahead: Ahead { start: start.cast(), step: 0 } }
    }
}

impl Rows for EvenRows {
    #[inline(always)]
    unsafe fn row(self, k: usize) -> *const f32 {
        // SAFETY: the caller's promise.
        unsafe { self.start.add(k * self.step) }
    }

    #[inline(always)]
    fn even(self) -> Option<(*const f32, usize)> {
        Some((self.start, self.step))
    }

    #[inline(always)]
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "no hints there"))]
    fn ask_ahead(self, k: usize) {
        #[cfg(target_arch = "x86_64")]
        if k.is_multiple_of(Ahead::ROWS) {
            use std::arch::x86_64::_MM_HINT_T1;
            let pair = self.ahead.start.wrapping_add(k / Ahead::ROWS * self.ahead.step);
            prefetch::<_MM_HINT_T1, _>(pair);
            prefetch::<_MM_HINT_T1, _>(pair.wrapping_add(Ahead::PAIR / 2));
        }
    }
}

/// Rows anywhere.
#[derive(Clone, Copy)]
pub struct ListedRows {
    /// From where offsets count.
    pub start: *const f32,
    /// The offset of every row.
    pub offsets: *const u32,
}

impl Rows for ListedRows {
    #[inline(always)]
    unsafe fn row(self, k: usize) -> *const f32 {
        // SAFETY: the caller's promise.
        unsafe { self.start.add(*self.offsets.add(k) as usize) }
    }
}

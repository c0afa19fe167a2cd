//! The matrix product: `C (+)= A · B` over operands that can be packed, with all scratch from the caller.
//!
//! The blocking is that of Goto and van de Geijn (*Anatomy of high-performance matrix multiplication*, ACM TOMS 2008). We implement it
//! ourselves because the `gemm` crate allocates its packing buffers itself, outside the byte limit, and because convolutions pack their
//! windows straight from the images, which requires control of the loops around the tile ([`super::tile`]).
//!
//! A block of A (at most 512 KiB) is packed first; then tasks share the columns of C, and each packs the panel of B that it is about to
//! use into a slot of its own, small enough for the nearest cache. Tasks are cut by extents alone, at most [`SLOTS`] at a time, so
//! that the workspace does not depend on the number of threads; nor do the bits: an element of C is a sum over blocks of depth, in
//! order, of one chain of fused multiply-adds each.

mod target;

use std::ops::Range;

use rayon::ThreadPool;

use self::target::{ColumnSpan, TilePlace};
pub use self::target::{Initial, Target};
use super::matrix_unit::{self, Registers};
use super::pack::Panels;
use super::parallel::{Shared, each_with};
use super::tile::{EvenRows, MAX_COLUMNS, MAX_ROWS, Tiles};

/// Tasks that run at the same time at most; each owns a packed panel of B.
const SLOTS: usize = 16;
/// Depth of a panel: a panel of B (32 KiB) and one of A fit into 48 KiB of first-level cache.
pub const DEPTH: usize = 256;
/// Rows of a packed block of A.
const ROWS: usize = 512;
/// Floats of a packed block of A, which stays in a second-level cache.
const PACKED: usize = 1 << 17;
/// Columns that are finished before the next block of depth, where depth has several: they stay in cache.
const COLUMNS: usize = 4096;
/// Rows of a packed block are a multiple of this: the sizes of a block, and so the workspace, are the same for all tiles.
const ROW_UNIT: usize = 12;
/// A panel of B that fewer tiles than this read is not packed.
const FEW: usize = 3;
/// Blocks of A with fewer floats are packed by one thread.
const SMALL: usize = 1 << 15;
/// Products with fewer multiply-adds run on one thread, because waking another one would take longer.
pub const WORTH_SHARING: usize = 1 << 17;

/// Extents of a product: `C [rows, columns]`, shared dimension `depth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents {
    /// Rows of A and C.
    pub rows: usize,
    /// Columns of B and C.
    pub columns: usize,
    /// Columns of A, rows of B.
    pub depth: usize,
    /// The depth of a larger product that this one continues, whose parts are this one's too; otherwise its own depth.
    pub whole_depth: usize,
    /// How much scratch it may use.
    pub scratch_level: ScratchLevel,
}

/// How much scratch a product uses. This determines the sizes of blocks of rows and columns, never the parts of the depth, so the bits do
/// not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScratchLevel {
    /// Blocks as large as the caches permit, and panels for 16 threads.
    #[default]
    Full,
    /// Blocks of an eighth of that, and panels for four threads.
    Reduced,
}

/// How a product is cut: a function of its extents.
pub struct Blocks {
    /// Rows of a packed block of A.
    pub rows: usize,
    /// Depth of a packed block of A, a multiple of `inner` unless it is all.
    pub depth: usize,
    /// Depth of one panel.
    pub inner: usize,
    /// Columns between two packings of A.
    columns: usize,
    /// Tasks over the columns of a block, and over its rows.
    tasks: [usize; 2],
}

/// `total` in as few equal parts of at most `most` as possible, rounded up to a multiple of `unit`.
pub fn even_part(total: usize, most: usize, unit: usize) -> usize {
    let parts = total.div_ceil(most).max(1);
    total.div_ceil(parts).next_multiple_of(unit).max(unit)
}

impl Extents {
    /// Extents with [`ScratchLevel::Full`].
    pub const fn new(rows: usize, columns: usize, depth: usize) -> Self {
        Self { rows, columns, depth, whole_depth: depth, scratch_level: ScratchLevel::Full }
    }

    /// Depth of one part: an element is a sum over parts, in order, of one chain each.
    pub fn part(self) -> usize {
        even_part(self.whole_depth, DEPTH, 1)
    }

    /// The least depth at which a product can be interrupted and [continued](Self::continued) with the same bits, or a multiple of it: that of
    /// a part, or any if there is only one.
    pub fn grain(self) -> usize {
        if self.is_one_part() { 1 } else { self.part() }
    }

    /// How a product that continues a larger one begins.
    pub fn continued<'a>(self) -> Initial<'a> {
        if self.is_one_part() { Initial::Continue } else { Initial::Keep }
    }

    /// The fastest tiles for factors that are both bf16 numbers, or not.
    pub fn tiles(self, bf16: bool) -> &'static Tiles {
        // What is multiplied in pieces could begin a block of the matrix unit anywhere.
        let suits_unit = self.depth >= matrix_unit::LEAST_DEPTH && self.depth == self.whole_depth;
        let unit = || if suits_unit { Tiles::of_matrix_unit() } else { None };
        let found = if bf16 { unit().or_else(Tiles::of_gaining_pairs) } else { None };
        found.unwrap_or_else(Tiles::detect)
    }

    fn is_one_part(self) -> bool {
        self.whole_depth <= self.part()
    }

    /// The pool, if there is one and the product is large enough for several threads.
    pub fn shared(self, pool: Option<&ThreadPool>) -> Option<&ThreadPool> {
        pool.filter(|_| self.rows * self.columns * self.depth.max(1) >= WORTH_SHARING)
    }

    /// How the product is cut.
    pub fn blocks(self) -> Blocks {
        let (most_rows, most_packed, slots) = match self.scratch_level {
            ScratchLevel::Full => (ROWS, PACKED, SLOTS),
            ScratchLevel::Reduced => (ROWS / 8, PACKED / 8, SLOTS / 4),
        };
        let inner = self.part();
        let rows = even_part(self.rows, most_rows, ROW_UNIT);
        let depth = ((most_packed / (rows * inner)).max(1) * inner).min(self.depth.max(1));
        let columns =
            if depth >= self.depth { self.columns } else { even_part(self.columns, COLUMNS, MAX_COLUMNS) };
        let across = columns.div_ceil(MAX_COLUMNS).clamp(1, slots);
        // Tasks that share columns pack the same panels, which pays off only over many rows.
        let down = (slots / across).min(rows.min(self.rows).div_ceil(8 * ROW_UNIT)).max(1);
        Blocks { rows, depth, inner, columns, tasks: [across, down] }
    }

    /// Rows of a packed block of A for these tiles. Pairs take half of the memory, so that blocks have twice as many, and each panel of B is packed half
    /// as often.
    fn block_rows(self, tiles: &Tiles, blocks: &Blocks) -> usize {
        if !tiles.takes_pairs {
            return blocks.rows;
        }
        let (whole, rest) = (blocks.depth / blocks.inner, blocks.depth % blocks.inner);
        let of_row = whole * tiles.panel_rows(blocks.inner) + tiles.panel_rows(rest);
        even_part(self.rows, (blocks.rows * blocks.depth / of_row).max(1), 1)
    }

    /// Floats of scratch that [`product`] needs with a pool.
    pub fn scratch(self) -> usize {
        let blocks = self.blocks();
        blocks.rows * blocks.depth + blocks.tasks[0] * blocks.tasks[1] * blocks.inner * MAX_COLUMNS
    }

    /// Floats of scratch that [`product`] needs without a pool.
    pub fn scratch_alone(self) -> usize {
        let blocks = self.blocks();
        blocks.rows * blocks.depth + blocks.inner * MAX_COLUMNS
    }
}

/// Computes `C = initial + A · B`. Without a pool it runs on this thread alone; the bits are the same.
///
/// Factors that are both bf16 are multiplied by pairs where the processor gains from it ([`Extents::tiles`]): the sums have the bits of
/// single multiply-adds, except that numbers below the least normal one count as zero. A matrix unit sums in
/// [another order](super::matrix_unit).
///
/// # Safety
/// `target` covers memory for every element of C, which nothing else touches meanwhile, and which holds initialized floats if
/// `initial` keeps them.
pub unsafe fn product<A: Panels, B: Panels>(
    pool: Option<&ThreadPool>,
    extents: Extents,
    (a, b): (&A, &B),
    initial: Initial<'_>,
    target: Target,
    scratch: &mut [f32],
) {
    let tiles = extents.tiles(A::IS_BF16 && B::IS_BF16);
    // SAFETY: the caller's promise.
    unsafe { product_by(tiles, pool, extents, (a, b), initial, target, scratch) };
}

/// [`product`] by given tiles; those for pairs are for factors that are bf16.
///
/// # Safety
/// As [`product`].
pub(super) unsafe fn product_by<A: Panels, B: Panels>(
    tiles: &Tiles,
    pool: Option<&ThreadPool>,
    extents: Extents,
    (a, b): (&A, &B),
    initial: Initial<'_>,
    target: Target,
    scratch: &mut [f32],
) {
    if extents.rows == 0 || extents.columns == 0 {
        return;
    }
    let blocks = extents.blocks();
    let pool = extents.shared(pool);
    let tasks = if pool.is_some() { blocks.tasks } else { [1, 1] };
    let (packed, slots) = scratch.split_at_mut(blocks.rows * blocks.depth);
    let slot_len = blocks.inner * MAX_COLUMNS;
    assert!(slots.len() >= tasks[0] * tasks[1] * slot_len, "scratch as large as declared");
    let packed_start = Shared::new(packed.as_mut_ptr());
    let slots = Shared::new(slots.as_mut_ptr());

    let block_rows = extents.block_rows(tiles, &blocks);
    for row in (0..extents.rows).step_by(block_rows) {
        let rows = block_rows.min(extents.rows - row);
        let height = even_part(rows, tiles.by_rows.len(), 1);
        for column in (0..extents.columns).step_by(blocks.columns) {
            let columns = blocks.columns.min(extents.columns - column);
            // A depth of zero still has one block: it writes the initial values.
            for start in (0..extents.depth.max(1)).step_by(blocks.depth) {
                let depth = blocks.depth.min(extents.depth - start);
                let block = PackedBlock { row, rows, column, start, depth, inner: blocks.inner, height };
                if column == 0 || blocks.depth < extents.depth {
                    // SAFETY: nothing reads the packed memory now.
                    unsafe { block.pack(tiles, pool, a, packed_start) };
                }
                // Equal shares of panels, which differ by one at most.
                let share = |all: usize, of: usize, at: usize| at * all / of..(at + 1) * all / of;
                let (panels, wide) = (block.panels(), columns.div_ceil(MAX_COLUMNS));
                each_with(pool, tasks[0] * tasks[1], |task| {
                    let (across, down) = (task % tasks[0], task / tasks[0]);
                    let mine = share(wide, tasks[0], across);
                    let mine = mine.start * MAX_COLUMNS..(mine.end * MAX_COLUMNS).min(columns);
                    let my_panels = share(panels, tasks[1], down);
                    // SAFETY: every task has its own slot and its own rectangle of C; packed A is only read now.
                    let slot = unsafe { slots.slice(task * slot_len, slot_len) };
                    for at in mine.clone().step_by(tiles.columns) {
                        // SAFETY: as above.
                        unsafe {
                            let part = (at..mine.end, my_panels.clone());
                            block.multiply(tiles, packed_start, b, part, slot, initial, target);
                        }
                    }
                });
            }
        }
    }
}

/// One packed block of A against some columns of B.
pub struct PackedBlock {
    /// The first row.
    pub row: usize,
    /// Number of rows.
    pub rows: usize,
    /// The first column.
    pub column: usize,
    /// Where its depth begins.
    pub start: usize,
    /// Its depth.
    pub depth: usize,
    /// Depth of one part.
    pub inner: usize,
    /// Rows of a panel; the last one may have fewer.
    pub height: usize,
}

impl PackedBlock {
    /// Number of panels.
    pub const fn panels(&self) -> usize {
        self.rows.div_ceil(self.height)
    }

    /// The rows of a panel, counted from the block's first.
    pub fn panel(&self, panel: usize) -> Range<usize> {
        let first = panel * self.height;
        first..self.rows.min(first + self.height)
    }

    /// The parts of the depth, relative to the block: (start, length).
    pub fn parts(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (depth, inner) = (self.depth, self.inner);
        (0..depth.max(1)).step_by(inner).map(move |start| (start, inner.min(depth - start)))
    }

    /// Where the panel of rows `first ..` of the part from `start` on begins: behind all rows of the parts before, and those before of its own.
    pub const fn place(&self, tiles: &Tiles, (start, len): (usize, usize), first: usize) -> usize {
        start / self.inner * tiles.panel_rows(self.inner) * self.rows + first * tiles.panel_rows(len)
    }

    /// Packs all panels of A.
    ///
    /// # Safety
    /// `packed` holds `rows · depth` floats, which nothing else touches.
    pub unsafe fn pack<A: Panels>(
        &self,
        tiles: &Tiles,
        pool: Option<&ThreadPool>,
        a: &A,
        packed: Shared<f32>,
    ) {
        let panels = self.panels();
        let parts = if self.rows * self.depth < SMALL { 1 } else { SLOTS };
        let together = panels.div_ceil(parts);
        each_with(pool, panels.div_ceil(together), |task| {
            for panel in task * together..((task + 1) * together).min(panels) {
                // SAFETY: every panel of the block has its own part of the packed memory.
                unsafe { self.pack_rows(tiles, a, panel, packed) };
            }
        });
    }

    /// Packs one panel of A for all parts of the depth.
    ///
    /// # Safety
    /// `packed` holds `rows · depth` floats; nothing else touches the panel's.
    unsafe fn pack_rows<A: Panels>(&self, tiles: &Tiles, a: &A, panel: usize, packed: Shared<f32>) {
        let Range { start: first, end } = self.panel(panel);
        let count = end - first;
        for (start, len) in self.parts() {
            // SAFETY: the panel's own floats.
            let out = unsafe {
                packed.slice(self.place(tiles, (start, len), first), count * tiles.panel_rows(len))
            };
            let depth = self.start + start..self.start + start + len;
            tiles.pack_rows(a, self.row + first..self.row + first + count, depth, out);
        }
    }

    /// Multiplies some panels of A with `count` columns from `at` on.
    ///
    /// # Safety
    /// `packed` holds the packed block, `slot` a panel of B; nothing else touches these elements of C.
    #[allow(clippy::too_many_arguments)]
    unsafe fn multiply<B: Panels>(
        &self,
        tiles: &Tiles,
        packed: Shared<f32>,
        operand: &B,
        (columns, panels): (Range<usize>, Range<usize>),
        slot: &mut [f32],
        initial: Initial<'_>,
        target: Target,
    ) {
        let count = tiles.columns.min(columns.len());
        let column = self.column + columns.start;
        let end = self.column + columns.end;
        let (lines, next_lines) =
            (column..column + count, column + count..end.min(column + count + tiles.columns));
        let mut spans = [ColumnSpan::default(); MAX_COLUMNS];
        let span_count = target.spans(column, count, &mut spans);
        let spans = &spans[..span_count];
        let mut sums = [0.0f32; MAX_ROWS * MAX_COLUMNS];
        let mut registers = Registers::default();
        let depth_of = |(start, len): (usize, usize)| self.start + start..self.start + start + len;
        let mut parts = self.parts().peekable();
        while let Some((start, len)) = parts.next() {
            let depth = depth_of((start, len));
            // What is packed next: another part of these columns, or the first part of the next ones.
            let (next_lines, next_depth) = match parts.peek() {
                Some(&part) => (lines.clone(), depth_of(part)),
                None => (next_lines.clone(), depth_of((0, self.inner.min(self.depth)))),
            };
            let initial = if depth.start == 0 { initial } else { Initial::Keep };
            let goes_on = match initial {
                Initial::Zero => false,
                Initial::Continue => true,
                _ => tiles.by_matrix_unit,
            };
            // A panel that only a few tiles read is not worth packing if it can be read where it lies.
            let whole = panels.len() <= FEW && count == tiles.columns && !tiles.takes_pairs;
            let mut b = match operand.unpacked(lines.clone(), depth.clone()).filter(|_| whole) {
                Some((panel, step)) => EvenRows::new(panel.as_ptr(), step),
                None => {
                    let slot = &mut slot[..tiles.panel_rows(len) * tiles.columns];
                    tiles.pack(operand, lines.clone(), depth, tiles.columns, slot);
                    EvenRows::new(slot.as_ptr(), tiles.columns)
                }
            };
            for (at, panel) in panels.clone().enumerate() {
                if let Some(ahead) = operand.ahead(next_lines.clone(), next_depth.clone(), [at, panels.len()])
                {
                    b.ahead = ahead;
                }
                let Range { start: first, end } = self.panel(panel);
                let rows = end - first;
                let tile = tiles.by_rows[rows - 1];
                tiles.set_up(&mut registers, rows);
                let place = TilePlace { target, row: self.row + first, rows, column, spans };
                // SAFETY: the panels were packed above and by `pack_rows`; the elements of C are this call's alone.
                unsafe {
                    let a = packed.add(self.place(tiles, (start, len), first));
                    place.compute(tiles.columns, (initial, goes_on), &mut sums, |c, merge| {
                        tile(tiles.panel_rows(len), a, b, c, merge);
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::bf16::Bf16;
    use crate::kernels::pack::{Rounded, Strided};

    fn numbers(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
    }

    fn pool(threads: usize) -> ThreadPool {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads start")
    }

    /// Computes one product with every layout, checks it against `f64` and for equal bits, and returns its largest error.
    fn check(extents: Extents, transposed: [bool; 2], initial: Initial<'_>) {
        let Extents { rows, columns, depth, .. } = extents;
        let (a, b) = (numbers(rows * depth, 1), numbers(depth * columns, 2));
        let left = match transposed[0] {
            false => Strided { data: &a, line_step: depth, depth_step: 1 },
            true => Strided { data: &a, line_step: 1, depth_step: rows },
        };
        let right = match transposed[1] {
            false => Strided { data: &b, line_step: 1, depth_step: columns },
            true => Strided { data: &b, line_step: depth, depth_step: 1 },
        };
        let before = numbers(rows * columns, 3);
        let mut results = Vec::new();
        for threads in [None, Some(1), Some(2)] {
            let mut c = before.clone();
            let pool = threads.map(pool);
            let len = if pool.is_some() { extents.scratch() } else { extents.scratch_alone() };
            let mut scratch = vec![f32::NAN; len];
            let target = Target::matrix(Shared::new(c.as_mut_ptr()), columns);
            // SAFETY: `c` is the whole of C.
            unsafe { product(pool.as_ref(), extents, (&left, &right), initial, target, &mut scratch) };
            results.push(c);
        }
        for r in 0..rows {
            for j in 0..columns {
                let mut sum = match initial {
                    Initial::Zero => 0.0,
                    Initial::Keep | Initial::Continue => f64::from(before[r * columns + j]),
                    Initial::Rows(bias) => f64::from(bias[r]),
                    Initial::Columns(bias) => f64::from(bias[j]),
                };
                for k in 0..depth {
                    let x = left.data[r * left.line_step + k * left.depth_step];
                    let y = right.data[j * right.line_step + k * right.depth_step];
                    sum += f64::from(x) * f64::from(y);
                }
                let c = results[0][r * columns + j];
                assert!(
                    (f64::from(c) - sum).abs() < 1e-5 * (depth as f64 + 1.0),
                    "{extents:?} at {r}, {j}: {c} for {sum}"
                );
            }
        }
        let bits = |c: &[f32]| c.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(
            results[1..].iter().all(|c| bits(c) == bits(&results[0])),
            "{extents:?}: threads change bits"
        );
    }

    #[test]
    fn products_are_right_at_all_extents_and_layouts() {
        let bias = numbers(700, 4);
        for (rows, columns, depth) in [
            (1, 1, 1),
            (3, 5, 7),
            (12, 32, 256),
            (13, 33, 257),
            (64, 100, 300),
            (530, 70, 30),
            (5, 600, 0),
            (100, 40, 1100),
        ] {
            let extents = Extents::new(rows, columns, depth);
            for transposed in [[false, false], [true, false], [false, true], [true, true]] {
                check(extents, transposed, Initial::Zero);
            }
            check(extents, [false, false], Initial::Keep);
            check(extents, [false, true], Initial::Rows(&bias));
            check(extents, [false, true], Initial::Columns(&bias));
        }
    }

    /// Two matrices of bf16 numbers, the second one also as numbers that are rounded on the way, and both as floats.
    struct Narrow {
        extents: Extents,
        a: Vec<Bf16>,
        b: Vec<Bf16>,
        weight: Vec<f32>,
        /// Distances between lines, and between neighbours on one, of both.
        steps: [(usize, usize); 2],
    }

    impl Narrow {
        fn new([rows, columns, depth]: [usize; 3], transposed: [bool; 2]) -> Self {
            let narrow = |floats: &[f32]| floats.iter().map(|&x| Bf16::nearest(x)).collect::<Vec<_>>();
            let (a, weight) = (numbers(rows * depth, 1), numbers(depth * columns, 2));
            let steps = |across: bool, lines: usize| if across { (1, lines) } else { (depth, 1) };
            Self {
                extents: Extents::new(rows, columns, depth),
                a: narrow(&a),
                b: narrow(&weight),
                weight,
                steps: [steps(transposed[0], rows), steps(transposed[1], columns)],
            }
        }

        fn matrix<'a, T>(&self, data: &'a [T], at: usize) -> Strided<'a, T> {
            let (line_step, depth_step) = self.steps[at];
            Strided { data, line_step, depth_step }
        }

        /// The bits of the product by some tiles, added to an initial value, which all layouts of the result share.
        fn bits(&self, tiles: &Tiles, initial: Initial<'_>) -> Vec<u32> {
            let rounded = Rounded(self.matrix(&self.weight, 1));
            let found = self.product(tiles, &self.matrix(&self.b, 1), initial, 1);
            let message = || format!("{:?} {:?} {}", self.extents, self.steps, tiles.by_matrix_unit);
            assert!(self.product(tiles, &rounded, initial, 1) == found, "rounded: {}", message());
            assert!(self.product(tiles, &rounded, initial, 2) == found, "apart: {}", message());
            found
        }

        /// Neighbours on a row of C are `step` apart.
        fn product<B: Panels>(&self, tiles: &Tiles, b: &B, initial: Initial<'_>, step: usize) -> Vec<u32> {
            let Extents { rows, columns, .. } = self.extents;
            let mut c = vec![f32::NAN; rows * columns * step];
            c.iter_mut().step_by(step).zip(numbers(rows * columns, 3)).for_each(|(c, x)| *c = x);
            let start = Shared::new(c.as_mut_ptr());
            let target =
                Target { steps: [0, 0, step], size: [1, columns], ..Target::matrix(start, columns * step) };
            let mut scratch = vec![f32::NAN; self.extents.scratch_alone()];
            let factors = (&self.matrix(&self.a, 0), b);
            // SAFETY: `c` is the whole of C.
            unsafe { product_by(tiles, None, self.extents, factors, initial, target, &mut scratch) };
            c.iter().step_by(step).map(|x| x.to_bits()).collect()
        }

        /// The bits of the product of floats.
        fn bits_in_f32(&self) -> Vec<u32> {
            let [a, b] = [&self.a, &self.b].map(|x| x.iter().map(|x| x.float()).collect::<Vec<_>>());
            let wide = Self { a: Vec::new(), b: Vec::new(), weight: Vec::new(), ..*self };
            let mut c = vec![f32::NAN; self.extents.rows * self.extents.columns];
            let target = Target::matrix(Shared::new(c.as_mut_ptr()), self.extents.columns);
            let mut scratch = vec![f32::NAN; self.extents.scratch_alone()];
            let factors = (&wide.matrix(&a, 0), &wide.matrix(&b, 1));
            // SAFETY: `c` is the whole of C.
            unsafe { product(None, self.extents, factors, Initial::Zero, target, &mut scratch) };
            c.iter().map(|x| x.to_bits()).collect()
        }

        /// What the matrix unit adds to an initial value: blocks of 32 neighbours in two chains each, block after block, part after part.
        fn bits_by_unit(&self, initial: Initial<'_>) -> Vec<u32> {
            let Extents { rows, columns, depth, .. } = self.extents;
            let part = self.extents.part();
            let before = numbers(rows * columns, 3);
            let element = |i: usize, j: usize| {
                let factor = |k: usize, at: usize, line: usize, data: &[Bf16]| {
                    data[line * self.steps[at].0 + k * self.steps[at].1].float()
                };
                let chain = |places: Range<usize>| {
                    places.step_by(2).fold(0.0f32, |sum, k| {
                        factor(k, 0, i, &self.a).mul_add(factor(k, 1, j, &self.b), sum)
                    })
                };
                let blocks = (0..depth).step_by(part).flat_map(|start| {
                    let end = (start + part).min(depth);
                    (start..end).step_by(32).map(move |at| at..(at + 32).min(end))
                });
                let first = match initial {
                    Initial::Zero => 0.0,
                    Initial::Keep | Initial::Continue => before[i * columns + j],
                    Initial::Rows(bias) => bias[i],
                    Initial::Columns(bias) => bias[j],
                };
                blocks.fold(first, |sum, block| {
                    sum + (chain(block.clone()) + chain(block.start + 1..block.end))
                })
            };
            (0..rows * columns).map(|at| element(at / columns, at % columns).to_bits()).collect()
        }
    }

    const LAYOUTS: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];

    #[test]
    fn factors_in_bf16_have_the_bits_of_their_products_in_f32() {
        for extents in [
            [1, 1, 1],
            [12, 32, 8],
            [13, 33, 147],
            [7, 100, 300],
            [530, 70, 31],
            [1100, 33, 301],
            [100, 40, 1101],
            [5, 9, 0],
        ] {
            for transposed in LAYOUTS {
                let narrow = Narrow::new(extents, transposed);
                let expected = narrow.bits_in_f32();
                for tiles in [Some(Tiles::detect()), Tiles::of_pairs()].into_iter().flatten() {
                    assert!(narrow.bits(tiles, Initial::Zero) == expected, "{extents:?} {transposed:?}");
                }
            }
        }
    }

    #[test]
    fn the_matrix_unit_sums_blocks_in_its_own_order() {
        let Some(tiles) = Tiles::of_matrix_unit() else { return };
        let bias = numbers(1100, 4);
        // Rows of one register and of two, and depths that fill blocks, or whose last part does not fill one.
        for extents in [
            [32, 64, 16],
            [1, 40, 257],
            [13, 33, 147],
            [16, 32, 64],
            [33, 31, 17],
            [530, 70, 31],
            [1100, 33, 301],
            [70, 96, 512],
            [100, 40, 1101],
            [31, 32, 2561],
        ] {
            for transposed in LAYOUTS {
                let narrow = Narrow::new(extents, transposed);
                let initials = [Initial::Zero, Initial::Keep, Initial::Rows(&bias), Initial::Columns(&bias)];
                for (at, initial) in initials.into_iter().enumerate() {
                    let expected = narrow.bits_by_unit(initial);
                    assert!(narrow.bits(tiles, initial) == expected, "{extents:?} {transposed:?} {at}");
                }
            }
        }
    }

    /// Computes a product at once, and in pieces of some depth: the bits are equal.
    fn check_in_pieces([rows, columns, depth]: [usize; 3], piece: usize, strided: bool) {
        let whole = Extents::new(rows, columns, depth);
        assert_eq!(piece % whole.grain(), 0, "{whole:?} is not interrupted there");
        let (a, b) = (numbers(rows * depth, 1), numbers(depth * columns, 2));
        // Every second element of C belongs to something else.
        let step = if strided { 2 } else { 1 };
        let run = |piece: usize| {
            let mut c = vec![7.0f32; rows * columns * step];
            let target = match strided {
                false => Target::matrix(Shared::new(c.as_mut_ptr()), columns),
                true => Target {
                    start: Shared::new(c.as_mut_ptr()),
                    row_step: columns * step,
                    size: [1, columns],
                    steps: [0, 0, step],
                },
            };
            for start in (0..depth).step_by(piece) {
                let len = piece.min(depth - start);
                let extents = Extents { whole_depth: depth, ..Extents::new(rows, columns, len) };
                let left = Strided { data: &a[start..], line_step: depth, depth_step: 1 };
                let right = Strided { data: &b[start * columns..], line_step: 1, depth_step: columns };
                let initial = if start == 0 { Initial::Zero } else { extents.continued() };
                let mut scratch = vec![f32::NAN; extents.scratch_alone()];
                // SAFETY: `c` is the whole of C, which the first piece has written.
                unsafe { product(None, extents, (&left, &right), initial, target, &mut scratch) };
            }
            c.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        assert!(run(piece) == run(depth), "{whole:?} in pieces of {piece}");
    }

    #[test]
    fn a_product_in_pieces_has_the_same_bits() {
        for strided in [false, true] {
            // One part, which any depth interrupts.
            for (depth, piece) in [(1, 1), (7, 3), (200, 1), (256, 100), (255, 254)] {
                check_in_pieces([13, 70, depth], piece, strided);
            }
            check_in_pieces([13, 70, 1100], 440, strided);
        }
    }

    #[test]
    fn a_deep_product_over_many_columns_takes_several_blocks() {
        check(Extents::new(520, 4200, 530), [false, true], Initial::Keep);
    }
}

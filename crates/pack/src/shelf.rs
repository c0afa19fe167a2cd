//! Placing items one after another, each into a hole among those already placed: what all greedy packers share.
//!
//! The items placed near a given one are found without a list of conflicting pairs. Time is covered by windows of several widths, each twice over, so that
//! every item lies within one window that is not much wider than itself:
//!
//! ```text
//! width 2W  ├───┤───┤───┤───┤───┤      A window lists the placed items that overlap it, by offset. A scan of that list from
//!             ├───┤───┤───┤───┤        below meets what is alive beside the item in order, and little else.
//! width 16W ├───────────────┤───
//! ```

use crate::instance::{Instance, Span};

/// Which hole an item goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hole {
    /// The lowest that is large enough.
    Lowest,
    /// The smallest that is large enough, the lowest among equals; above everything only if there is no other.
    Smallest,
}

/// Half the width of the narrowest windows, in sections, as a power of two.
const NARROWEST: u32 = 8;
/// How many times wider the windows of the next level are, as a power of two.
const WIDER: u32 = 3;
/// Rows of a chunk before it is cut in two.
const CHUNK: usize = 128;

/// A placed item with all that most scans ask about it, so that they read one stretch of memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    offset: u64,
    end: u64,
    item: u32,
    lo: u32,
    hi: u32,
}

/// Rows in ascending order, in chunks, so that putting one in between moves few others.
#[derive(Clone, Default)]
struct Rows {
    chunks: Vec<Vec<Row>>,
}

impl Rows {
    fn insert(&mut self, row: Row) {
        let at = self.chunks.partition_point(|chunk| chunk[0] < row).saturating_sub(1);
        let Some(chunk) = self.chunks.get_mut(at) else {
            self.chunks.push(vec![row]);
            return;
        };
        chunk.insert(chunk.partition_point(|other| *other < row), row);
        if chunk.len() > CHUNK {
            let rest = chunk.split_off(CHUNK / 2);
            self.chunks.insert(at + 1, rest);
        }
    }
}

/// Windows of one width: number k covers the sections from k << `half` up to (k + 2) << `half`.
struct Level {
    half: u32,
    windows: Vec<Rows>,
}

impl Level {
    /// The window whose first half an item begins in.
    fn home(&self, span: Span) -> usize {
        (span.lo >> self.half) as usize
    }

    /// Whether an item lies within its home, wherever it begins.
    fn holds(&self, span: Span) -> bool {
        span.hi - span.lo <= 1 << self.half
    }
}

/// Items already placed, by offset.
pub(crate) struct Shelf<'a> {
    instance: &'a Instance,
    hole: Hole,
    /// From narrow to wide; the last one holds every item.
    levels: Vec<Level>,
    offsets: Vec<u64>,
}

impl<'a> Shelf<'a> {
    /// A shelf that holds the fixed items.
    pub(crate) fn new(instance: &'a Instance, hole: Hole) -> Self {
        let free = instance.items.iter().filter(|item| item.fixed.is_none());
        let widest = free.map(|item| item.hull.hi - item.hull.lo).max().unwrap_or(1);
        let mut levels: Vec<Level> = Vec::new();
        while levels.last().is_none_or(|level| level.half < 31 && 1 << level.half < widest) {
            let half = (NARROWEST + WIDER * levels.len() as u32).min(31);
            let windows = vec![Rows::default(); (instance.sections() >> half) + 1];
            levels.push(Level { half, windows });
        }
        let mut shelf = Self { instance, hole, levels, offsets: vec![0; instance.len()] };
        for (i, item) in instance.items.iter().enumerate() {
            if let Some(offset) = item.fixed {
                shelf.insert(i, offset);
            }
        }
        shelf
    }

    fn insert(&mut self, item: usize, offset: u64) {
        let Span { lo, hi } = self.instance.items[item].hull;
        let row = Row { offset, end: offset + self.instance.items[item].size, item: item as u32, lo, hi };
        for level in &mut self.levels {
            let first = (lo >> level.half).saturating_sub(1) as usize;
            let last = ((hi - 1) >> level.half) as usize;
            level.windows[first..=last].iter_mut().for_each(|window| window.insert(row));
        }
        self.offsets[item] = offset;
    }

    /// The rows that hold everything alive beside an item.
    fn beside(&self, span: Span) -> &[Vec<Row>] {
        let level = self.levels.iter().find(|level| level.holds(span)).or(self.levels.last());
        level.map_or(&[], |level| &level.windows[level.home(span)].chunks)
    }

    /// Places an item that is not fixed, and returns its offset.
    pub(crate) fn place(&mut self, item: usize) -> u64 {
        let size = self.instance.items[item].size;
        let hull = self.instance.items[item].hull;
        // The bytes below `top` are examined; `best` is the smallest hole seen so far as (slack, offset).
        let mut top = 0u64;
        let mut best: Option<(u64, u64)> = None;
        for &Row { offset, end, item: other, lo, hi } in self.beside(hull).iter().flatten() {
            let apart = hi <= hull.lo || hull.hi <= lo || end <= top;
            if apart || (self.instance.any_gaps && !self.instance.conflict(item, other as usize)) {
                continue;
            }
            let start = self.instance.align_up(item, top);
            if start + size <= offset {
                let slack = offset - top - size;
                if best.is_none_or(|(least, _)| slack < least) {
                    best = Some((slack, start));
                }
                if self.hole == Hole::Lowest {
                    break;
                }
            }
            top = end;
        }
        let offset = best.map_or_else(|| self.instance.align_up(item, top), |(_, start)| start);
        self.insert(item, offset);
        offset
    }

    /// Places an item at its highest free offset below a ceiling and returns that, or `None` if there is none.
    pub(crate) fn hang(&mut self, item: usize, ceiling: u64) -> Option<u64> {
        let (bytes, size) = (self.instance.items[item].bytes, self.instance.items[item].size);
        let (hull, align) = (self.instance.items[item].hull, self.instance.items[item].align);
        // The bytes from `bottom` on are examined. What is rounded up of the topmost item need not lie below the ceiling.
        let mut highest = ceiling.checked_sub(bytes)? / align * align;
        for &Row { offset, end, item: other, lo, hi } in self.beside(hull).iter().flatten().rev() {
            let apart = hi <= hull.lo || hull.hi <= lo || offset >= highest + size;
            if apart || (self.instance.any_gaps && !self.instance.conflict(item, other as usize)) {
                continue;
            }
            if end > highest {
                highest = offset.checked_sub(size)? / align * align;
            }
        }
        self.insert(item, highest);
        Some(highest)
    }

    /// The offsets of all items.
    pub(crate) fn into_offsets(self) -> Vec<u64> {
        self.offsets
    }
}

/// Places all items that are not fixed in the given order.
pub(crate) fn place_in_order(
    instance: &Instance,
    order: impl IntoIterator<Item = u32>,
    hole: Hole,
) -> Vec<u64> {
    place_while(instance, order, hole, |_, _| true).unwrap_or_default()
}

/// The same as long as every item with its offset pleases; `None` at the first that does not.
pub(crate) fn place_while(
    instance: &Instance,
    order: impl IntoIterator<Item = u32>,
    hole: Hole,
    mut pleases: impl FnMut(usize, u64) -> bool,
) -> Option<Vec<u64>> {
    let mut shelf = Shelf::new(instance, hole);
    for item in order {
        let item = item as usize;
        if instance.items[item].fixed.is_none() {
            let offset = shelf.place(item);
            if !pleases(item, offset) {
                return None;
            }
        }
    }
    Some(shelf.into_offsets())
}

/// All items, sorted by a key; equal keys stay in order of their ids.
pub(crate) fn order_by<K: Ord>(instance: &Instance, key: impl Fn(usize) -> K) -> Vec<u32> {
    let mut order: Vec<u32> = (0..instance.len() as u32).collect();
    order.sort_by_cached_key(|&item| key(item as usize));
    order
}

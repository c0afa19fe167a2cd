//! Placing items one after another, each into a hole among those already placed: what all greedy packers share.

use crate::instance::{Instance, Span};

/// Which hole an item goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hole {
    /// The lowest that is large enough.
    Lowest,
    /// The smallest that is large enough, the lowest among equals; above everything only if there is no other.
    Smallest,
}

/// Items already placed, by offset.
pub(crate) struct Shelf<'a> {
    instance: &'a Instance,
    hole: Hole,
    /// Placed items, ascending. A scan from below meets conflicts in order, so no list of conflicting pairs is ever built.
    placed: Vec<Row>,
    offsets: Vec<u64>,
}

/// A placed item with all that most scans ask about it, so that they read one stretch of memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    offset: u64,
    end: u64,
    item: u32,
    lo: u32,
    hi: u32,
}

impl<'a> Shelf<'a> {
    /// A shelf that holds the fixed items.
    pub(crate) fn new(instance: &'a Instance, hole: Hole) -> Self {
        let mut shelf = Self {
            instance,
            hole,
            placed: Vec::with_capacity(instance.len()),
            offsets: vec![0; instance.len()],
        };
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
        let at = self.placed.partition_point(|placed| *placed < row);
        self.placed.insert(at, row);
        self.offsets[item] = offset;
    }

    /// Places an item that is not fixed, and returns its offset.
    pub(crate) fn place(&mut self, item: usize) -> u64 {
        let size = self.instance.items[item].size;
        let hull = self.instance.items[item].hull;
        // The bytes below `top` are examined; `best` is the smallest hole seen so far as (slack, offset).
        let mut top = 0u64;
        let mut best: Option<(u64, u64)> = None;
        for &Row { offset, end, item: other, lo, hi } in &self.placed {
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
        for &Row { offset, end, item: other, lo, hi } in self.placed.iter().rev() {
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

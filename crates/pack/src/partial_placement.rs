//! A placement under construction, into which items are inserted one after another: what all greedy packers share.
//!
//! The placed items near a new one are found without a list of conflicting pairs. Time is covered by buckets of several widths, each width
//! twice with an offset of half a bucket, so that every item lies within one bucket that is not much wider than the item:
//!
//! ```text
//! width 2W  ├───┤───┤───┤───┤───┤      A bucket lists the placed items that overlap it, by offset. A scan of that list from
//!             ├───┤───┤───┤───┤        below meets the items that conflict with the new one in order, and few others.
//! width 16W ├───────────────┤───
//! ```
//!
//! Placed items with the same lifetime that touch each other are one row: the parameters of a network, which are alive all the time, would
//! otherwise be met one by one in every scan.

use crate::instance::{Instance, Span};
use crate::outwards::{FreedAt, Matching};

/// Which hole an item is placed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// First-fit: the lowest hole that is large enough.
    First,
    /// Best-fit: the smallest hole that is large enough, the lowest among equals; above all items only if there is none.
    Best,
}

/// Half the width of the narrowest buckets, in sections, as an exponent of two.
const NARROWEST: u32 = 8;
/// How many times wider the buckets of the next level are, as an exponent of two.
const WIDER: u32 = 3;
/// The most rows of a chunk.
const CHUNK: usize = 128;

/// A placed item, or several that are alive at the same time and touch, with the numbers that scans read, so that a scan reads contiguous
/// memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    offset: u64,
    end: u64,
    /// One of them.
    item: u32,
    lo: u32,
    hi: u32,
    /// Whether it has gaps: then it is a row of its own, because others with this hull may conflict with other items.
    gaps: bool,
}

impl Row {
    /// Whether another row begins where this one ends and conflicts with the same items.
    fn touches(&self, above: &Self) -> bool {
        self.end == above.offset && (self.lo, self.hi) == (above.lo, above.hi) && !self.gaps && !above.gaps
    }
}

/// Rows in ascending order, in chunks, so that an insertion moves few rows.
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
        let above = chunk.partition_point(|other| *other < row);
        let joins_above = chunk.get(above).is_some_and(|other| row.touches(other));
        if let Some(below) = above.checked_sub(1)
            && chunk[below].touches(&row)
        {
            chunk[below].end = if joins_above { chunk.remove(above).end } else { row.end };
            return;
        }
        if joins_above {
            chunk[above].offset = row.offset;
            return;
        }
        chunk.insert(above, row);
        if chunk.len() > CHUNK {
            let rest = chunk.split_off(CHUNK / 2);
            self.chunks.insert(at + 1, rest);
        }
    }
}

/// Windows of one width: number k covers the sections from k << `half` up to (k + 2) << `half`.
struct Buckets {
    half: u32,
    buckets: Vec<Rows>,
}

impl Buckets {
    /// The bucket in whose first half an item starts.
    fn bucket_of(&self, span: Span) -> usize {
        (span.lo >> self.half) as usize
    }

    /// Whether an item of this length lies within its bucket, wherever it starts.
    fn holds(&self, span: Span) -> bool {
        span.hi - span.lo <= 1 << self.half
    }
}

/// The placed items.
pub(crate) struct PartialPlacement<'a> {
    instance: &'a Instance,
    fit: Fit,
    /// From narrow to wide; an item of any length lies within a bucket of the last level.
    levels: Vec<Buckets>,
    offsets: Vec<u64>,
}

impl<'a> PartialPlacement<'a> {
    /// A placement of the fixed items.
    pub(crate) fn new(instance: &'a Instance, fit: Fit) -> Self {
        let free = instance.items.iter().filter(|item| item.fixed.is_none());
        let widest = free.map(|item| item.hull.hi - item.hull.lo).max().unwrap_or(1);
        let mut levels: Vec<Buckets> = Vec::new();
        while levels.last().is_none_or(|level| level.half < 31 && 1 << level.half < widest) {
            let half = (NARROWEST + WIDER * levels.len() as u32).min(31);
            let buckets = vec![Rows::default(); (instance.sections() >> half) + 1];
            levels.push(Buckets { half, buckets });
        }
        let mut placement = Self { instance, fit, levels, offsets: vec![0; instance.len()] };
        for (i, item) in instance.items.iter().enumerate() {
            if let Some(offset) = item.fixed {
                placement.insert(i, offset);
            }
        }
        placement
    }

    fn insert(&mut self, item: usize, offset: u64) {
        let Span { lo, hi } = self.instance.items[item].hull;
        let end = offset + self.instance.items[item].size;
        let gaps = self.instance.spans(item).len() > 1;
        let row = Row { offset, end, item: item as u32, lo, hi, gaps };
        for level in &mut self.levels {
            let first = (lo >> level.half).saturating_sub(1) as usize;
            let last = ((hi - 1) >> level.half) as usize;
            level.buckets[first..=last].iter_mut().for_each(|bucket| bucket.insert(row));
        }
        self.offsets[item] = offset;
    }

    /// Rows that include all placed items that conflict with an item.
    fn near(&self, span: Span) -> &[Vec<Row>] {
        let level = self.levels.iter().find(|level| level.holds(span)).or(self.levels.last());
        level.map_or(&[], |level| &level.buckets[level.bucket_of(span)].chunks)
    }

    /// Places an item that is not fixed, by the rule of this placement. Returns its offset.
    pub(crate) fn place(&mut self, item: usize) -> u64 {
        let offset = self.next_offset(item);
        self.insert(item, offset);
        offset
    }

    /// The same, but only if the item then ends at or below a ceiling.
    pub(crate) fn place_within(&mut self, item: usize, ceiling: u64) -> Option<u64> {
        let offset = self.next_offset(item);
        let fits = offset + self.instance.items[item].bytes <= ceiling;
        fits.then(|| self.insert(item, offset))?;
        Some(offset)
    }

    /// Places an item at an offset, if no placed item is in the way.
    pub(crate) fn place_at(&mut self, item: usize, offset: u64) -> bool {
        let hull = self.instance.items[item].hull;
        let end = offset + self.instance.items[item].size;
        let free = self.near(hull).iter().flatten().all(|row| {
            row.hi <= hull.lo
                || hull.hi <= row.lo
                || row.end <= offset
                || end <= row.offset
                || (self.instance.any_gaps && !self.instance.conflict(item, row.item as usize))
        });
        if free {
            self.insert(item, offset);
        }
        free
    }

    /// The offset that the rule of this placement gives an item.
    fn next_offset(&self, item: usize) -> u64 {
        let placed = &self.instance.items[item];
        let (size, hull) = (placed.size, placed.hull);
        // The bytes below `top` are examined; `best` is the smallest hole so far as (slack, offset).
        let mut top = 0u64;
        let mut best: Option<(u64, u64)> = None;
        for &Row { offset, end, item: other, lo, hi, .. } in self.near(hull).iter().flatten() {
            let apart = hi <= hull.lo || hull.hi <= lo || end <= top;
            if apart || (self.instance.any_gaps && !self.instance.conflict(item, other as usize)) {
                continue;
            }
            let start = placed.align_up(top);
            if start + size <= offset {
                let slack = offset - top - size;
                if best.is_none_or(|(least, _)| slack < least) {
                    best = Some((slack, start));
                }
                if self.fit == Fit::First {
                    break;
                }
            }
            top = end;
        }
        best.map_or_else(|| placed.align_up(top), |(_, start)| start)
    }

    /// Places an item in the hole with the lowest cost of a matching, of those to the right or to the left of the peak; above all others if
    /// there is no hole below the goal. Returns its offset.
    pub(crate) fn place_matching(&mut self, item: usize, matching: &Matching, right: bool, goal: u64) -> u64 {
        let placed = &self.instance.items[item];
        let hull = placed.hull;
        let freed = |lo: u32, hi: u32| if right { FreedAt::from(hi) } else { -FreedAt::from(lo) };
        let own = (placed, freed(hull.lo, hull.hi));
        let (mut top, mut below) = (0u64, None);
        let (mut least, mut best) = (f64::INFINITY, None);
        let mut look = |start: u64, end: u64, neighbours: [Option<FreedAt>; 2]| {
            if let Some((cost, offset)) = matching.seat(own, (start, end), || neighbours, goal, least) {
                (least, best) = (cost, Some(offset));
            }
        };
        for &Row { offset, end, item: other, lo, hi, .. } in self.near(hull).iter().flatten() {
            let apart = hi <= hull.lo || hull.hi <= lo || end <= top;
            if apart || (self.instance.any_gaps && !self.instance.conflict(item, other as usize)) {
                continue;
            }
            if offset > top {
                look(top, offset, [below, Some(freed(lo, hi))]);
            }
            (top, below) = (end, Some(freed(lo, hi)));
        }
        look(top, u64::MAX, [below, None]);
        let offset = best.unwrap_or_else(|| placed.align_up(top));
        self.insert(item, offset);
        offset
    }

    /// Places an item at its highest free offset below a ceiling. Returns the offset, or `None` if there is none.
    pub(crate) fn place_below(&mut self, item: usize, ceiling: u64) -> Option<u64> {
        let (bytes, size) = (self.instance.items[item].bytes, self.instance.items[item].size);
        let (hull, align) = (self.instance.items[item].hull, self.instance.items[item].align);
        // `highest` is the highest offset that the rows examined so far leave. Only the bytes of an item must lie below the ceiling, not
        // its rounded size.
        let mut highest = ceiling.checked_sub(bytes)? / align * align;
        for &Row { offset, end, item: other, lo, hi, .. } in self.near(hull).iter().flatten().rev() {
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
    fit: Fit,
) -> Vec<u64> {
    place_in_order_while(instance, order, fit, |_, _| true).unwrap_or_default()
}

/// The same, while `accept` returns true for every item and its offset; else `None`.
pub(crate) fn place_in_order_while(
    instance: &Instance,
    order: impl IntoIterator<Item = u32>,
    fit: Fit,
    accept: impl FnMut(usize, u64) -> bool,
) -> Option<Vec<u64>> {
    place_each_while(instance, order, fit, PartialPlacement::place, accept)
}

/// The same with another rule, which returns the offset of each item.
pub(crate) fn place_each_while<'a>(
    instance: &'a Instance,
    order: impl IntoIterator<Item = u32>,
    fit: Fit,
    mut place: impl FnMut(&mut PartialPlacement<'a>, usize) -> u64,
    mut accept: impl FnMut(usize, u64) -> bool,
) -> Option<Vec<u64>> {
    let mut placement = PartialPlacement::new(instance, fit);
    for item in order {
        let item = item as usize;
        if instance.items[item].fixed.is_none() {
            let offset = place(&mut placement, item);
            if !accept(item, offset) {
                return None;
            }
        }
    }
    Some(placement.into_offsets())
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::packing::{Block, Interval, Problem};
    use elbowroom_ir::{Bytes, Table};

    use super::*;
    use crate::greedy::size_order;
    use crate::random::Random;

    /// First-fit and best-fit from their definitions: the holes are those between the placed items that conflict.
    fn by_definition(instance: &Instance, order: &[u32], fit: Fit) -> Vec<u64> {
        let mut placed: Vec<(u64, u64, usize)> = Vec::new();
        let mut offsets = vec![0; instance.len()];
        for &item in order {
            let item = item as usize;
            let mut around: Vec<_> =
                placed.iter().filter(|&&(.., other)| instance.conflict(item, other)).copied().collect();
            around.sort_unstable();
            let size = instance.items[item].size;
            let (mut top, mut holes) = (0, Vec::new());
            for (offset, end, _) in around.into_iter().chain([(u64::MAX, u64::MAX, 0)]) {
                let start = instance.items[item].align_up(top);
                if start + size <= offset {
                    let above_all = offset == u64::MAX;
                    holes.push((above_all, if fit == Fit::First { 0 } else { offset - top - size }, start));
                }
                top = end.max(top);
            }
            let &(.., start) = holes.iter().min().unwrap();
            offsets[item] = start;
            placed.push((start, start + size, item));
        }
        offsets
    }

    #[test]
    fn items_alive_at_the_same_time_are_joined_and_nothing_is_placed_elsewhere() {
        let mut random = Random::new(0, 0);
        let mut joined = 0;
        for round in 0..200 {
            let len = 2 + random.below(80);
            let mut block = || {
                // Like a training: much that is alive all the time, and the rest for a while, some of it with a gap.
                let start = random.below(40) as u64;
                let end = start + 1 + random.below(12) as u64;
                let size = Bytes(1 + random.below(24) as u64);
                let mut block =
                    if random.below(2) == 0 { Block::new(0, 60, size) } else { Block::new(start, end, size) };
                block.align = Bytes([1, 1, 4][random.below(3)]);
                if round % 3 == 2 && random.below(4) == 0 {
                    block.alive = vec![Interval::new(0, 2), Interval::new(50, 60)];
                }
                block
            };
            let blocks: Table<_, _> = (0..len).map(|_| block()).collect();
            let instance = Instance::new(&Problem { blocks, capacity: None }).unwrap();
            let order = size_order(&instance);
            for fit in [Fit::First, Fit::Best] {
                let mut placement = PartialPlacement::new(&instance, fit);
                for &item in &order {
                    placement.place(item as usize);
                }
                let rows: usize = placement.levels[0].buckets[0].chunks.iter().map(Vec::len).sum();
                joined += usize::from(rows < len);
                assert_eq!(placement.into_offsets(), by_definition(&instance, &order, fit), "round {round}");
            }
        }
        assert!(joined > 300, "{joined}");
    }
}

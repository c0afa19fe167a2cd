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

use crate::instance::{Instance, Span};

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

/// A placed item with the numbers that scans read, so that a scan reads contiguous memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    offset: u64,
    end: u64,
    item: u32,
    lo: u32,
    hi: u32,
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
        chunk.insert(chunk.partition_point(|other| *other < row), row);
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
        let row = Row { offset, end: offset + self.instance.items[item].size, item: item as u32, lo, hi };
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
        let size = self.instance.items[item].size;
        let hull = self.instance.items[item].hull;
        // The bytes below `top` are examined; `best` is the smallest hole so far as (slack, offset).
        let mut top = 0u64;
        let mut best: Option<(u64, u64)> = None;
        for &Row { offset, end, item: other, lo, hi } in self.near(hull).iter().flatten() {
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
                if self.fit == Fit::First {
                    break;
                }
            }
            top = end;
        }
        best.map_or_else(|| self.instance.align_up(item, top), |(_, start)| start)
    }

    /// Places an item at its highest free offset below a ceiling. Returns the offset, or `None` if there is none.
    pub(crate) fn place_below(&mut self, item: usize, ceiling: u64) -> Option<u64> {
        let (bytes, size) = (self.instance.items[item].bytes, self.instance.items[item].size);
        let (hull, align) = (self.instance.items[item].hull, self.instance.items[item].align);
        // `highest` is the highest offset that the rows examined so far leave. Only the bytes of an item must lie below the ceiling, not
        // its rounded size.
        let mut highest = ceiling.checked_sub(bytes)? / align * align;
        for &Row { offset, end, item: other, lo, hi } in self.near(hull).iter().flatten().rev() {
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
    mut accept: impl FnMut(usize, u64) -> bool,
) -> Option<Vec<u64>> {
    let mut placement = PartialPlacement::new(instance, fit);
    for item in order {
        let item = item as usize;
        if instance.items[item].fixed.is_none() {
            let offset = placement.place(item);
            if !accept(item, offset) {
                return None;
            }
        }
    }
    Some(placement.into_offsets())
}

/// All items, sorted by a key; items of equal keys in order of their ids.
pub(crate) fn order_by<K: Ord>(instance: &Instance, key: impl Fn(usize) -> K) -> Vec<u32> {
    let mut order: Vec<u32> = (0..instance.len() as u32).collect();
    order.sort_by_cached_key(|&item| key(item as usize));
    order
}

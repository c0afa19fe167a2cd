//! Ejection chains (Glover 1996): items that end above a ceiling are inserted below it, and the items that they displace are inserted again.
//!
//! The largest unplaced item takes the tightest hole below the ceiling. If there is none, it takes the offset at which it displaces the fewest
//! bytes, weighted by the root of their number of sections, because long-lived items are harder to place again. The weight of an
//! item also grows each time that it is displaced (guided local search, Voudouris and Tsang 1999).
//!
//! One step looks only at the items that are alive together with one item. Thousands of steps therefore cost less than constructing a
//! placement, and a few hundred cost the same in a problem of any length.

use std::collections::BinaryHeap;

use crate::instance::{Instance, Span};
use crate::overlap::OverlapIndex;
use crate::random::Random;

/// The most offsets tried for one item.
const MOST_OFFSETS: usize = 128;

/// Up to this many items, all placed items are kept in one sorted list; above, the overlapping ones are looked up and sorted.
const MOST_SORTED: usize = 50_000;

/// The weight of displacing a byte that has left its home already, where one that is at home weighs 1.
const AWAY: f64 = 0.1;

/// A placed item: its offset and end, itself, and its first and last section.
type Row = (u64, u64, u32, Span);

/// The placed items, from which those that overlap an item in time are found in order of their offsets.
enum Placed<'a> {
    Sorted(Vec<Row>),
    Indexed(&'a OverlapIndex, Vec<bool>),
}

struct EjectionChain<'a> {
    instance: &'a Instance,
    ceiling: u64,
    placed: Placed<'a>,
    /// Items without an offset, the largest on top.
    unplaced: BinaryHeap<(u64, u32)>,
    penalty: Vec<u32>,
    /// Offsets at which items should stay if they can, by item; empty if there are none.
    homes: &'a [Option<u64>],
    offsets: Vec<u64>,
    /// Placed items that conflict with the item of this step, as (offset, end, item), ascending.
    rows: Vec<(u64, u64, u32)>,
    /// For each row, the highest end of this row and those before it.
    tops: Vec<u64>,
}

impl EjectionChain<'_> {
    fn row(&self, item: u32) -> Row {
        let (items, offset) = (&self.instance.items, self.offsets[item as usize]);
        (offset, offset + items[item as usize].size, item, items[item as usize].hull)
    }

    fn eject(&mut self, item: u32) {
        let row = self.row(item);
        match &mut self.placed {
            Placed::Sorted(rows) => {
                if let Ok(at) = rows.binary_search_by_key(&(row.0, item), |row| (row.0, row.2)) {
                    rows.remove(at);
                }
            }
            Placed::Indexed(_, placed) => placed[item as usize] = false,
        }
        self.unplaced.push((self.instance.items[item as usize].size, item));
    }

    fn insert(&mut self, item: u32, offset: u64) {
        self.offsets[item as usize] = offset;
        let row = self.row(item);
        match &mut self.placed {
            Placed::Sorted(rows) => {
                let at = rows.partition_point(|other| (other.0, other.2) < (offset, item));
                rows.insert(at, row);
            }
            Placed::Indexed(_, placed) => placed[item as usize] = true,
        }
    }

    /// Collects the placed items that conflict with an item.
    fn collect_conflicts(&mut self, item: u32) {
        let (instance, hull) = (self.instance, self.instance.items[item as usize].hull);
        let (rows, offsets) = (&mut self.rows, &self.offsets);
        rows.clear();
        let apart = |other: u32| instance.any_gaps && !instance.conflict(item as usize, other as usize);
        match &self.placed {
            Placed::Sorted(list) => {
                let conflicting = list.iter().filter(|row| row.3.overlaps(hull) && !apart(row.2));
                rows.extend(conflicting.map(|row| (row.0, row.1, row.2)));
            }
            Placed::Indexed(overlaps, placed) => {
                overlaps.each_in(hull, |other| {
                    let at = other as usize;
                    if placed[at] && !apart(other) {
                        rows.push((offsets[at], offsets[at] + instance.items[at].size, other));
                    }
                });
                rows.sort_unstable();
            }
        }
        let mut top = 0;
        self.tops.clear();
        self.tops.extend(rows.iter().map(|row| {
            top = row.1.max(top);
            top
        }));
    }

    /// The start of the tightest hole below the ceiling; the lowest of equal ones.
    fn tightest_hole(&self, item: usize) -> Option<u64> {
        let (instance, size) = (self.instance, self.instance.items[item].size);
        let mut top = 0;
        let mut best: Option<(u64, u64)> = None;
        let ceiling = (self.ceiling, self.ceiling, 0);
        for &(offset, end, _) in self.rows.iter().chain([&ceiling]) {
            let start = instance.items[item].align_up(top);
            // The topmost item may use less than its rounded size: only its own bytes must lie below the ceiling.
            let taken = if offset == self.ceiling { instance.items[item].bytes } else { size };
            if start + taken <= offset && best.is_none_or(|(slack, _)| offset - start - taken < slack) {
                best = Some((offset - start - taken, start));
            }
            top = top.max(end);
        }
        best.map(|(_, start)| start)
    }

    /// The offset at which the displaced items have the lowest weight; `None` if every offset displaces a fixed item.
    fn cheapest_offset(&self, item: usize, random: &mut Random) -> Option<u64> {
        let instance = self.instance;
        let size = instance.items[item].size;
        let highest = self.ceiling - instance.items[item].bytes;
        let mut offsets: Vec<u64> = vec![0];
        offsets.extend(self.rows.iter().map(|row| instance.items[item].align_up(row.1)));
        offsets.extend(
            self.rows
                .iter()
                .filter_map(|row| row.0.checked_sub(size))
                .map(|at| at / instance.items[item].align * instance.items[item].align),
        );
        offsets.retain(|&offset| offset <= highest);
        // Long-lived items conflict with thousands of others; a sample of the offsets is enough.
        for at in 0..offsets.len().min(MOST_OFFSETS) {
            let other = at + random.below(offsets.len() - at);
            offsets.swap(at, other);
        }
        offsets.truncate(MOST_OFFSETS);
        let mut best: Option<(f64, u64)> = None;
        for offset in offsets {
            let noise = 0.8 + 0.4 * random.unit();
            let limit = best.map_or(f64::INFINITY, |(least, _)| least);
            let mut cost = 0.0;
            let first = self.tops.partition_point(|&top| top <= offset);
            for &(start, end, other) in &self.rows[first..] {
                if start >= offset + size || cost >= limit {
                    break;
                }
                if end > offset {
                    let displaced = &instance.items[other as usize];
                    let bytes = self.weight(other) * f64::from(self.penalty[other as usize]);
                    cost += if displaced.fixed.is_some() { f64::INFINITY } else { noise * bytes };
                }
            }
            if cost < limit {
                best = Some((cost, offset));
            }
        }
        best.map(|(_, offset)| offset)
    }

    /// What it costs to displace an item for the first time. Where items have homes, what counts is the bytes that leave theirs.
    fn weight(&self, item: u32) -> f64 {
        let (at, item) = (item as usize, &self.instance.items[item as usize]);
        if self.homes.is_empty() {
            return item.size as f64 * f64::from(item.hull.hi - item.hull.lo).sqrt();
        }
        let at_home = self.homes[at] == Some(self.offsets[at]);
        item.size as f64 * if at_home { 1.0 } else { AWAY }
    }

    /// The home of an item, if no placed item is there.
    fn home(&self, item: usize) -> Option<u64> {
        let home = (*self.homes.get(item)?)?;
        let end = home + self.instance.items[item].size;
        let ends_below = home + self.instance.items[item].bytes <= self.ceiling;
        (ends_below && !self.rows.iter().any(|&(start, stop, _)| start < end && home < stop)).then_some(home)
    }

    /// Places one item, displacing others if there is no hole; false if fixed items leave no offset for it.
    fn step(&mut self, item: u32, random: &mut Random) -> bool {
        self.collect_conflicts(item);
        let at = item as usize;
        let hole = self.home(at).or_else(|| self.tightest_hole(at));
        let Some(offset) = hole.or_else(|| self.cheapest_offset(at, random)) else {
            return false;
        };
        let end = offset + self.instance.items[at].size;
        for at in 0..self.rows.len() {
            let row = self.rows[at];
            if row.0 < end && row.1 > offset {
                self.eject(row.2);
                self.penalty[row.2 as usize] += 1;
            }
        }
        self.insert(item, offset);
        true
    }
}

/// Changes a placement so that every item ends below the ceiling. `None` if that takes more than `steps` steps, or is impossible.
pub(crate) fn eject_above(
    instance: &Instance,
    overlaps: &OverlapIndex,
    offsets: &[u64],
    ceiling: u64,
    steps: u32,
    random: &mut Random,
    stop: &dyn Fn() -> bool,
) -> Option<Vec<u64>> {
    let above = |&i: &u32| offsets[i as usize] + instance.items[i as usize].bytes > ceiling;
    let unplaced: Vec<u32> = (0..instance.len() as u32).filter(above).collect();
    // Constructing a new placement is faster than this many chains.
    if unplaced.len() > 8 * steps as usize {
        return None;
    }
    // Enough steps for every item that has to move.
    let steps = steps.max(2 * unplaced.len() as u32);
    let request = Request { instance, overlaps, ceiling, homes: &[], steps };
    request.place(offsets, unplaced, random, stop)
}

/// Items to be placed below a ceiling among others, which may be displaced.
pub(crate) struct Request<'a> {
    pub(crate) instance: &'a Instance,
    pub(crate) overlaps: &'a OverlapIndex,
    pub(crate) ceiling: u64,
    /// Offsets at which items should stay if they can, by item; empty if there are none.
    pub(crate) homes: &'a [Option<u64>],
    pub(crate) steps: u32,
}

impl Request<'_> {
    /// The offsets after the `unplaced` items are placed; `None` if that takes too many steps, or is impossible.
    pub(crate) fn place(
        &self,
        offsets: &[u64],
        unplaced: Vec<u32>,
        random: &mut Random,
        stop: &dyn Fn() -> bool,
    ) -> Option<Vec<u64>> {
        let &Self { instance, overlaps, ceiling, homes, steps } = self;
        if unplaced.iter().any(|&i| instance.items[i as usize].bytes > ceiling) {
            return None;
        }
        let mut chain = EjectionChain {
            instance,
            ceiling,
            placed: Placed::Indexed(overlaps, vec![true; instance.len()]),
            unplaced: BinaryHeap::new(),
            penalty: vec![1; instance.len()],
            homes,
            offsets: offsets.to_vec(),
            rows: Vec::new(),
            tops: Vec::new(),
        };
        if instance.len() <= MOST_SORTED {
            let mut rows: Vec<Row> = (0..instance.len() as u32).map(|i| chain.row(i)).collect();
            rows.sort_unstable_by_key(|row| (row.0, row.2));
            chain.placed = Placed::Sorted(rows);
        }
        unplaced.into_iter().for_each(|item| chain.eject(item));
        for step in 0..steps {
            let Some((_, item)) = chain.unplaced.pop() else { return Some(chain.offsets) };
            if step % 8 == 7 && stop() {
                return None;
            }
            if !chain.step(item, random) {
                return None;
            }
        }
        None
    }
}

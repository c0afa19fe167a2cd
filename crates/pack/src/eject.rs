//! Ejection chains: what ends above a ceiling is pushed in below it, and what it displaces looks for another place in turn.
//!
//! The largest waiting item takes the tightest hole under the ceiling. Where there is none, it takes the offset at which it displaces the fewest
//! bytes (weighted by the root of their sections, as long-lived items are harder to place again), every item counted more dearly each time that it was displaced (guided local search, Voudouris and Tsang 1999); those wait again.
//! One step looks at the items alive beside a single one, so that thousands of steps cost less than placing everything anew, and a few hundred cost
//! the same in a problem of any length.

use std::collections::BinaryHeap;

use crate::beside::Beside;
use crate::instance::{Instance, Span};
use crate::random::Random;

/// Offsets tried for one item.
const MOST_TRIED: usize = 128;

/// Up to this many items, all placed ones stand in one list; beyond, those beside an item are looked up and sorted.
const MOST_LISTED: usize = 50_000;

/// A placed item: its offset and end, itself, and its first and last section.
type Row = (u64, u64, u32, Span);

/// The placed items, so that those beside one can be found in order of their offsets.
enum Placed<'a> {
    Listed(Vec<Row>),
    LookedUp(&'a Beside, Vec<bool>),
}

struct Chain<'a> {
    instance: &'a Instance,
    ceiling: u64,
    placed: Placed<'a>,
    /// Items without a place, the largest on top.
    waiting: BinaryHeap<(u64, u32)>,
    dear: Vec<u32>,
    offsets: Vec<u64>,
    /// Placed items alive beside the one of this step as (offset, end, item), ascending.
    rows: Vec<(u64, u64, u32)>,
    /// Highest end of each row and those before it.
    tops: Vec<u64>,
}

impl Chain<'_> {
    fn row(&self, item: u32) -> Row {
        let (items, offset) = (&self.instance.items, self.offsets[item as usize]);
        (offset, offset + items[item as usize].size, item, items[item as usize].hull)
    }

    fn wait(&mut self, item: u32) {
        let row = self.row(item);
        match &mut self.placed {
            Placed::Listed(rows) => {
                if let Ok(at) = rows.binary_search_by_key(&(row.0, item), |row| (row.0, row.2)) {
                    rows.remove(at);
                }
            }
            Placed::LookedUp(_, placed) => placed[item as usize] = false,
        }
        self.waiting.push((self.instance.items[item as usize].size, item));
    }

    fn put(&mut self, item: u32, offset: u64) {
        self.offsets[item as usize] = offset;
        let row = self.row(item);
        match &mut self.placed {
            Placed::Listed(rows) => {
                let at = rows.partition_point(|other| (other.0, other.2) < (offset, item));
                rows.insert(at, row);
            }
            Placed::LookedUp(_, placed) => placed[item as usize] = true,
        }
    }

    /// Gathers the placed items beside one.
    fn gather(&mut self, item: u32) {
        let (instance, hull) = (self.instance, self.instance.items[item as usize].hull);
        let (rows, offsets) = (&mut self.rows, &self.offsets);
        rows.clear();
        let apart = |other: u32| instance.any_gaps && !instance.conflict(item as usize, other as usize);
        match &self.placed {
            Placed::Listed(list) => {
                let beside = list.iter().filter(|row| row.3.overlaps(hull) && !apart(row.2));
                rows.extend(beside.map(|row| (row.0, row.1, row.2)));
            }
            Placed::LookedUp(beside, placed) => {
                beside.each(hull, |other| {
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

    /// The start of the tightest hole under the ceiling, the lowest of equal ones.
    fn hole(&self, item: usize) -> Option<u64> {
        let (instance, size) = (self.instance, self.instance.items[item].size);
        let mut top = 0;
        let mut best: Option<(u64, u64)> = None;
        let ceiling = (self.ceiling, self.ceiling, 0);
        for &(offset, end, _) in self.rows.iter().chain([&ceiling]) {
            let start = instance.align_up(item, top);
            // Above everything only the stated bytes count, not those rounded up.
            let taken = if offset == self.ceiling { instance.items[item].bytes } else { size };
            if start + taken <= offset && best.is_none_or(|(slack, _)| offset - start - taken < slack) {
                best = Some((offset - start - taken, start));
            }
            top = top.max(end);
        }
        best.map(|(_, start)| start)
    }

    /// The offset at which the item displaces least, if there is one where it displaces no fixed item.
    fn cheapest(&self, item: usize, random: &mut Random) -> Option<u64> {
        let instance = self.instance;
        let size = instance.items[item].size;
        let highest = self.ceiling - instance.items[item].bytes;
        let mut offsets: Vec<u64> = vec![0];
        offsets.extend(self.rows.iter().map(|row| instance.align_up(item, row.1)));
        offsets.extend(
            self.rows
                .iter()
                .filter_map(|row| row.0.checked_sub(size))
                .map(|at| at / instance.items[item].align * instance.items[item].align),
        );
        offsets.retain(|&offset| offset <= highest);
        // Long-lived items meet thousands of others; a sample of the offsets is enough for them.
        for at in 0..offsets.len().min(MOST_TRIED) {
            let other = at + random.below(offsets.len() - at);
            offsets.swap(at, other);
        }
        offsets.truncate(MOST_TRIED);
        let mut best: Option<(f64, u64)> = None;
        for offset in offsets {
            let luck = 0.8 + 0.4 * random.unit();
            let limit = best.map_or(f64::INFINITY, |(least, _)| least);
            let mut cost = 0.0;
            let first = self.tops.partition_point(|&top| top <= offset);
            for &(start, end, other) in &self.rows[first..] {
                if start >= offset + size || cost >= limit {
                    break;
                }
                if end > offset {
                    let displaced = &instance.items[other as usize];
                    let width = f64::from(displaced.hull.hi - displaced.hull.lo);
                    let bytes = displaced.size as f64 * width.sqrt() * f64::from(self.dear[other as usize]);
                    cost += if displaced.fixed.is_some() { f64::INFINITY } else { luck * bytes };
                }
            }
            if cost < limit {
                best = Some((cost, offset));
            }
        }
        best.map(|(_, offset)| offset)
    }

    /// Places one waiting item, displacing others if it must; false if fixed items leave it no room at all.
    fn step(&mut self, item: u32, random: &mut Random) -> bool {
        self.gather(item);
        let at = item as usize;
        let Some(offset) = self.hole(at).or_else(|| self.cheapest(at, random)) else { return false };
        let end = offset + self.instance.items[at].size;
        for at in 0..self.rows.len() {
            let row = self.rows[at];
            if row.0 < end && row.1 > offset {
                self.wait(row.2);
                self.dear[row.2 as usize] += 1;
            }
        }
        self.put(item, offset);
        true
    }
}

/// Offsets under the ceiling, found from others within a number of steps.
pub(crate) fn repair(
    instance: &Instance,
    beside: &Beside,
    offsets: &[u64],
    ceiling: u64,
    steps: u32,
    random: &mut Random,
    stop: &dyn Fn() -> bool,
) -> Option<Vec<u64>> {
    let above = |&i: &u32| offsets[i as usize] + instance.items[i as usize].bytes > ceiling;
    let waiting: Vec<u32> = (0..instance.len() as u32).filter(above).collect();
    // So much that another order is the better way.
    let too_many = waiting.len() > 8 * steps as usize;
    if too_many || waiting.iter().any(|&i| instance.items[i as usize].bytes > ceiling) {
        return None;
    }
    let mut chain = Chain {
        instance,
        ceiling,
        placed: Placed::LookedUp(beside, vec![true; instance.len()]),
        waiting: BinaryHeap::new(),
        dear: vec![1; instance.len()],
        offsets: offsets.to_vec(),
        rows: Vec::new(),
        tops: Vec::new(),
    };
    if instance.len() <= MOST_LISTED {
        let mut rows: Vec<Row> = (0..instance.len() as u32).map(|i| chain.row(i)).collect();
        rows.sort_unstable_by_key(|row| (row.0, row.2));
        chain.placed = Placed::Listed(rows);
    }
    // What waits at first should at least find its holes.
    let steps = steps.max(2 * waiting.len() as u32);
    waiting.into_iter().for_each(|item| chain.wait(item));
    for step in 0..steps {
        let Some((_, item)) = chain.waiting.pop() else { return Some(chain.offsets) };
        if step % 8 == 7 && stop() {
            return None;
        }
        if !chain.step(item, random) {
            return None;
        }
    }
    None
}

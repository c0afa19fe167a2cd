//! Ejection chains: what ends above a ceiling is pushed in below it, and what it displaces looks for another place in turn.
//!
//! The largest waiting item takes the tightest hole under the ceiling. Where there is none, it takes the offset at which it displaces the fewest
//! bytes (weighted by the root of their sections, as long-lived items are harder to place again), every item counted more dearly each time that it was displaced (guided local search, Voudouris and Tsang 1999); those wait again.
//! One step looks at the items alive beside a single one, so that thousands of steps cost less than placing everything anew.

use crate::instance::Instance;
use crate::random::Random;

/// Offsets tried for one item.
const MOST_TRIED: usize = 128;

struct Chain<'a> {
    instance: &'a Instance,
    ceiling: u64,
    /// Placed items as (offset, end, item), ascending.
    placed: Vec<(u64, u64, u32)>,
    waiting: Vec<u32>,
    dear: Vec<u64>,
    offsets: Vec<u64>,
}

impl Chain<'_> {
    fn insert(&mut self, item: usize, offset: u64) {
        let row = (offset, offset + self.instance.items[item].size, item as u32);
        let at = self.placed.partition_point(|placed| *placed < row);
        self.placed.insert(at, row);
        self.offsets[item] = offset;
    }

    fn remove(&mut self, row: (u64, u64, u32)) {
        if let Ok(at) = self.placed.binary_search(&row) {
            self.placed.remove(at);
        }
    }

    /// Places one waiting item, displacing others if it must; false if fixed items leave it no room at all.
    fn step(&mut self, item: usize, random: &mut Random) -> bool {
        let instance = self.instance;
        let (size, hull) = (instance.items[item].size, instance.items[item].hull);
        let beside = |row: &&(u64, u64, u32)| {
            instance.items[row.2 as usize].hull.overlaps(hull) && instance.conflict(item, row.2 as usize)
        };
        let beside: Vec<(u64, u64, u32)> = self.placed.iter().filter(beside).copied().collect();
        let highest = self.ceiling - instance.items[item].bytes;
        let mut offsets: Vec<u64> = vec![0];
        offsets.extend(beside.iter().map(|row| instance.align_up(item, row.1)));
        offsets.extend(
            beside
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
            for &(start, end, other) in &beside {
                if start >= offset + size || cost >= limit {
                    break;
                }
                if end > offset {
                    let displaced = &instance.items[other as usize];
                    let width = f64::from(displaced.hull.hi - displaced.hull.lo);
                    let bytes = displaced.size as f64 * width.sqrt() * self.dear[other as usize] as f64;
                    cost += if displaced.fixed.is_some() { f64::INFINITY } else { luck * bytes };
                }
            }
            if cost < limit {
                best = Some((cost, offset));
            }
        }
        let Some((_, offset)) = best else { return false };
        for row in beside {
            if row.0 < offset + size && row.1 > offset {
                self.remove(row);
                self.waiting.push(row.2);
                self.dear[row.2 as usize] += 1;
            }
        }
        self.insert(item, offset);
        true
    }
}

/// Offsets under the ceiling, found from others within a number of steps.
pub(crate) fn repair(
    instance: &Instance,
    offsets: &[u64],
    ceiling: u64,
    steps: u32,
    random: &mut Random,
    stop: &dyn Fn() -> bool,
) -> Option<Vec<u64>> {
    let mut chain = Chain {
        instance,
        ceiling,
        placed: Vec::with_capacity(instance.len()),
        waiting: Vec::new(),
        dear: vec![1; instance.len()],
        offsets: offsets.to_vec(),
    };
    for (i, item) in instance.items.iter().enumerate() {
        if item.bytes > ceiling {
            return None;
        }
        if offsets[i] + item.bytes <= ceiling {
            chain.placed.push((offsets[i], offsets[i] + item.size, i as u32));
        } else {
            chain.waiting.push(i as u32);
        }
    }
    chain.placed.sort_unstable();
    for step in 0..steps {
        let largest =
            (0..chain.waiting.len()).max_by_key(|&at| instance.items[chain.waiting[at] as usize].size);
        let Some(largest) = largest else { return Some(chain.offsets) };
        if step % 8 == 7 && stop() {
            return None;
        }
        let item = chain.waiting.swap_remove(largest);
        if !chain.step(item as usize, random) {
            return None;
        }
    }
    None
}

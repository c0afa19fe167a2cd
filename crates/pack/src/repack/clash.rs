//! Which of the blocks that should keep their offsets cannot both do so.

use std::collections::BTreeMap;
use std::ops::Bound;

use elbowroom_ir::packing::{Block, Interval};
use elbowroom_ir::{BufferId, Id, Table};

/// Pairs that are listed at most. Beyond, the smaller block of a pair moves at once.
const MOST_PAIRS: usize = 1 << 20;

/// The pairs whose offsets are illegal together, and blocks that must move because the pairs are too many to list.
#[derive(Debug, Default)]
pub(super) struct Clashes {
    pub(super) pairs: Vec<(BufferId, BufferId)>,
    pub(super) movers: Vec<BufferId>,
}

/// The first and last position at which a block occupies bytes.
pub(super) fn hull(block: &Block) -> Interval {
    let parts = block.parts().map(|(during, ..)| during);
    let hull = parts.reduce(|a, b| Interval::new(a.start.min(b.start), a.end.max(b.end)));
    hull.unwrap_or(Interval::new(0, 0))
}

/// Whether two blocks at two offsets share bytes or pass each other: the difference of the offsets must lie outside the hull of the
/// differences that are illegal at some position.
fn illegal(a: &Block, x: u64, b: &Block, y: u64) -> bool {
    let mut hull: Option<(i128, i128)> = None;
    for (during, p, q) in a.parts().filter(|(_, p, q)| p < q) {
        for (other, r, s) in b.parts().filter(|(_, r, s)| r < s) {
            if during.overlaps(other) {
                let (low, high) = (i128::from(r) - i128::from(q), i128::from(s) - i128::from(p));
                hull = Some(hull.map_or((low, high), |(l, h)| (l.min(low), h.max(high))));
            }
        }
    }
    let difference = i128::from(x) - i128::from(y);
    hull.is_some_and(|(low, high)| low < difference && difference < high)
}

/// The clashes among the blocks that have an offset, by one sweep over time. `pinned` blocks never move.
pub(super) fn clashes(
    blocks: &Table<BufferId, Block>,
    offsets: &[Option<u64>],
    pinned: impl Fn(BufferId) -> bool,
) -> Clashes {
    let mut events: Vec<(u64, bool, BufferId)> = Vec::new();
    let mut largest = 0;
    for (id, block) in blocks.iter() {
        if offsets[id.index()].is_some() && !block.size.is_zero() {
            let hull = hull(block);
            events.push((hull.start, true, id));
            events.push((hull.end, false, id));
            largest = largest.max(block.size.get());
        }
    }
    // Ends come before starts at equal positions.
    events.sort_unstable();
    let mut found = Clashes::default();
    // The blocks that are alive, by offset; and those of them with windows, which may pass others without sharing bytes.
    let mut alive: BTreeMap<(u64, BufferId), u64> = BTreeMap::new();
    let mut windowed: BTreeMap<BufferId, u64> = BTreeMap::new();
    let mut near = Vec::new();
    for (_, starts, id) in events {
        let block = &blocks[id];
        let offset = offsets[id.index()].unwrap_or_default();
        if !starts {
            alive.remove(&(offset, id));
            windowed.remove(&id);
            continue;
        }
        near.clear();
        if block.windows.is_empty() {
            let from = (Bound::Excluded((offset.saturating_sub(largest), BufferId(0))), Bound::Unbounded);
            let from = if offset < largest { (Bound::Unbounded, Bound::Unbounded) } else { from };
            let end = offset.saturating_add(block.size.get());
            let below = alive.range(from).take_while(|((first, _), _)| *first < end);
            near.extend(below.filter(|(_, last)| **last > offset).map(|(&(first, other), _)| (other, first)));
            near.extend(windowed.iter().map(|(&other, &first)| (other, first)));
            near.sort_unstable();
            near.dedup();
        } else {
            near.extend(alive.keys().map(|&(first, other)| (other, first)));
        }
        let mut stays = true;
        for &(other, first) in &near {
            if !illegal(block, offset, &blocks[other], first) {
                continue;
            }
            if found.pairs.len() < MOST_PAIRS || (pinned(id) && pinned(other)) {
                found.pairs.push((other, id));
            } else if !pinned(id) && (pinned(other) || block.size <= blocks[other].size) {
                stays = false;
            } else {
                found.movers.push(other);
                alive.remove(&(first, other));
                windowed.remove(&other);
            }
        }
        if stays {
            alive.insert((offset, id), offset.saturating_add(block.size.get()));
            if !block.windows.is_empty() {
                windowed.insert(id, offset);
            }
        } else {
            found.movers.push(id);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::Bytes;

    use super::*;

    #[test]
    fn pairs_that_share_bytes_are_found_once() {
        let blocks: Table<BufferId, Block> = [(0, 4, 10), (2, 6, 10), (4, 8, 10), (0, 8, 1)]
            .map(|(s, e, n)| Block::new(s, e, Bytes(n)))
            .to_vec()
            .into();
        let at = [Some(0), Some(5), Some(0), Some(9)];
        let mut pairs = clashes(&blocks, &at, |_| false).pairs;
        pairs.iter_mut().for_each(|pair| *pair = (pair.0.min(pair.1), pair.0.max(pair.1)));
        pairs.sort_unstable();
        assert_eq!(pairs, [(0, 1), (0, 3), (1, 2), (1, 3), (2, 3)].map(|(a, b)| (BufferId(a), BufferId(b))));
    }
}

//! Placing items one after another, each into a hole among those already placed: what all greedy packers share.

use crate::instance::Instance;

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
    /// Placed items as (offset, end, item), ascending by offset. A scan from below meets conflicts in order, so no list of
    /// conflicting pairs is ever built.
    placed: Vec<(u64, u64, u32)>,
    offsets: Vec<u64>,
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
        let row = (offset, offset + self.instance.items[item].size, item as u32);
        let at = self.placed.partition_point(|placed| *placed < row);
        self.placed.insert(at, row);
        self.offsets[item] = offset;
    }

    /// Places an item that is not fixed.
    pub(crate) fn place(&mut self, item: usize) {
        let size = self.instance.items[item].size;
        let hull = self.instance.items[item].hull;
        // The bytes below `top` are examined; `best` is the smallest hole seen so far as (slack, offset).
        let mut top = 0u64;
        let mut best: Option<(u64, u64)> = None;
        for &(offset, end, other) in &self.placed {
            if end <= top
                || !self.instance.items[other as usize].hull.overlaps(hull)
                || !self.instance.conflict(item, other as usize)
            {
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
    let mut shelf = Shelf::new(instance, hole);
    for item in order {
        if instance.items[item as usize].fixed.is_none() {
            shelf.place(item as usize);
        }
    }
    shelf.into_offsets()
}

/// All items, sorted by a key; equal keys stay in order of their ids.
pub(crate) fn order_by<K: Ord>(instance: &Instance, key: impl Fn(usize) -> K) -> Vec<u32> {
    let mut order: Vec<u32> = (0..instance.len() as u32).collect();
    order.sort_by_cached_key(|&item| key(item as usize));
    order
}

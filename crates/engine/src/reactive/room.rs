//! Placement on demand: blocks come and go in one range of bytes, and are moved together when the free bytes lie scattered.

use std::collections::{BTreeMap, BTreeSet};

use elbowroom_ir::TensorId;

/// What lies at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    /// A multiple of the alignment.
    len: usize,
    /// The value that it holds; none for scratch.
    owner: Option<TensorId>,
}

/// A block to be moved down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shift {
    pub owner: Option<TensorId>,
    pub from: usize,
    pub to: usize,
    pub len: usize,
}

/// Blocks in `0 .. capacity`, none of which overlap.
#[derive(Debug)]
pub(super) struct Room {
    capacity: usize,
    align: usize,
    blocks: BTreeMap<usize, Block>,
    /// Size and offset of every hole.
    holes: BTreeSet<(usize, usize)>,
    taken: usize,
}

impl Room {
    /// An empty range, its end rounded down to the alignment.
    pub fn new(capacity: usize, align: usize) -> Self {
        let capacity = capacity - capacity % align;
        let holes = (capacity > 0).then_some((capacity, 0)).into_iter().collect();
        Self { capacity, align, blocks: BTreeMap::new(), holes, taken: 0 }
    }

    /// Bytes that a block of this size takes.
    pub const fn rounded(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.align)
    }

    /// Bytes that all blocks together may take.
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes that no block takes.
    pub const fn free(&self) -> usize {
        self.capacity - self.taken
    }

    /// The values that have blocks, from the lowest up.
    pub fn owners(&self) -> impl Iterator<Item = TensorId> + '_ {
        self.blocks.values().filter_map(|block| block.owner)
    }

    /// Takes the smallest hole that is large enough, the lowest of several.
    pub fn take(&mut self, bytes: usize, owner: Option<TensorId>) -> Option<usize> {
        let len = self.rounded(bytes);
        let &(_, offset) = self.holes.range((len, 0)..).next()?;
        self.put(offset, Block { len, owner });
        Some(offset)
    }

    /// Takes these bytes, if they are free.
    pub fn take_at(&mut self, offset: usize, bytes: usize, owner: Option<TensorId>) -> bool {
        let len = self.rounded(bytes);
        let below = self.blocks.range(..offset + len).next_back();
        let free =
            offset + len <= self.capacity && below.is_none_or(|(&start, block)| start + block.len <= offset);
        if free {
            self.put(offset, Block { len, owner });
        }
        free
    }

    /// The bytes around an offset that no other block takes: where they start and end.
    fn around(&self, offset: usize) -> (usize, usize) {
        let below = self.blocks.range(..offset).next_back().map_or(0, |(&start, block)| start + block.len);
        (below, self.blocks.range(offset + 1..).next().map_or(self.capacity, |(&start, _)| start))
    }

    fn put(&mut self, offset: usize, block: Block) {
        let ((start, end), above) = (self.around(offset), offset + block.len);
        self.holes.remove(&(end - start, start));
        self.holes
            .extend([(offset - start, start), (end - above, above)].into_iter().filter(|hole| hole.0 > 0));
        self.taken += block.len;
        self.blocks.insert(offset, block);
    }

    /// Gives a block back.
    pub fn give(&mut self, offset: usize) {
        if let Some(block) = self.blocks.remove(&offset) {
            let ((start, end), above) = (self.around(offset), offset + block.len);
            self.holes.remove(&(offset - start, start));
            self.holes.remove(&(end - above, above));
            self.holes.insert((end - start, start));
            self.taken -= block.len;
        }
    }

    /// A block goes to another value, of which it keeps so many bytes.
    pub fn hand_over(&mut self, offset: usize, bytes: usize, owner: TensorId) {
        self.give(offset);
        self.put(offset, Block { len: self.rounded(bytes), owner: Some(owner) });
    }

    /// Bytes that [`gather`](Self::gather) would move to make a hole of this size; none if so many are not free.
    pub fn effort(&self, bytes: usize) -> Option<usize> {
        let blocks: Vec<(usize, Block)> =
            self.blocks.iter().map(|(&offset, &block)| (offset, block)).collect();
        self.cheapest(self.rounded(bytes), &blocks).map(|(between, ..)| between)
    }

    /// Neighbouring holes that are large enough together, with the fewest bytes between them: how many these are, the first hole and the
    /// last. Hole i lies below block i; the last one below the end.
    fn cheapest(&self, wanted: usize, blocks: &[(usize, Block)]) -> Option<(usize, usize, usize)> {
        let holes: Vec<usize> = self.gaps().collect();
        let (mut first, mut free, mut between) = (0, 0, 0);
        let mut best: Option<(usize, usize, usize)> = None;
        for last in 0..holes.len() {
            free += holes[last];
            if let Some(previous) = last.checked_sub(1) {
                between += blocks[previous].1.len;
            }
            while first < last && free - holes[first] >= wanted {
                free -= holes[first];
                between -= blocks[first].1.len;
                first += 1;
            }
            if free >= wanted && best.is_none_or(|(least, ..)| between < least) {
                best = Some((between, first, last));
            }
        }
        best
    }

    /// Moves blocks down until a hole of this size is there, and says which: those between neighbouring holes that are large enough
    /// together, with the fewest bytes between them. To be moved in this order. Nothing if so many bytes are not free.
    pub fn gather(&mut self, bytes: usize) -> Vec<Shift> {
        let blocks: Vec<(usize, Block)> =
            self.blocks.iter().map(|(&offset, &block)| (offset, block)).collect();
        let best = self.cheapest(self.rounded(bytes), &blocks);
        let Some((_, first, last)) = best else { return Vec::new() };
        let mut to = first.checked_sub(1).map_or(0, |below| blocks[below].0 + blocks[below].1.len);
        let mut shifts = Vec::new();
        for &(from, block) in &blocks[first..last] {
            if from != to {
                self.blocks.remove(&from);
                self.blocks.insert(to, block);
                shifts.push(Shift { owner: block.owner, from, to, len: block.len });
            }
            to += block.len;
        }
        let starts = std::iter::once(0).chain(self.blocks.iter().map(|(&offset, block)| offset + block.len));
        self.holes = self.gaps().zip(starts).filter(|hole| hole.0 > 0).collect();
        shifts
    }

    /// Size of the hole below every block and of the one below the end, empty ones included.
    fn gaps(&self) -> impl Iterator<Item = usize> + '_ {
        let ends = self.blocks.iter().map(|(&start, block)| (start, block.len)).chain([(self.capacity, 0)]);
        ends.scan(0, |below, (start, len)| {
            let gap = start - *below;
            *below = start + len;
            Some(gap)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_ir::Id;

    fn value(index: usize) -> Option<TensorId> {
        Some(TensorId::new(index))
    }

    #[test]
    fn holes_are_used_again_and_gathered_where_least_lies_between() {
        let mut room = Room::new(1003, 8);
        assert_eq!(room.free(), 1000);
        let offsets: Vec<usize> =
            [100, 40, 200, 8, 56].iter().zip(0..).map(|(&b, i)| room.take(b, value(i)).unwrap()).collect();
        assert_eq!(offsets, [0, 104, 144, 344, 352]);
        room.give(104);
        room.give(344);
        // The smaller hole suffices.
        assert_eq!(room.take(7, value(5)), Some(344));
        room.give(344);
        room.take(592, value(6)).unwrap();
        assert_eq!((room.free(), room.take(48, value(7))), (48, None));
        assert_eq!((room.effort(8), room.effort(48), room.effort(49)), (Some(0), Some(200), None));
        // 40 + 8 bytes are free on both sides of the 200.
        let shifts = room.gather(48);
        assert_eq!(shifts, [Shift { owner: value(2), from: 144, to: 104, len: 200 }]);
        assert_eq!(room.take(48, value(7)), Some(304));
        assert_eq!(room.gather(1), []);
        assert!(!room.take_at(296, 8, None) && room.take(8, None).is_none());
        room.give(104);
        assert!(!room.take_at(300, 8, None) && room.take_at(296, 8, None) && room.take_at(104, 192, None));
        room.hand_over(104, 10, TensorId::new(9));
        assert_eq!(room.free(), 192 - 16);
        assert_eq!(room.owners().last(), value(6));
    }

    #[test]
    fn whatever_comes_and_goes_nothing_overlaps_and_what_is_free_can_be_had() {
        let mut state = 1u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut room = Room::new(4096, 16);
        let mut held: Vec<usize> = Vec::new();
        let mut gathered = 0;
        for _ in 0..3000 {
            if draw(3) > 0 {
                let bytes = 1 + draw(400);
                let offset = match room.take(bytes, None) {
                    None if room.free() >= room.rounded(bytes) => {
                        for shift in room.gather(bytes) {
                            assert!(shift.to < shift.from);
                            let held = held.iter_mut().find(|held| **held == shift.from).unwrap();
                            *held = shift.to;
                        }
                        gathered += 1;
                        Some(room.take(bytes, None).expect("so much was free"))
                    }
                    offset => offset,
                };
                held.extend(offset);
            } else if !held.is_empty() {
                let index = draw(held.len());
                room.give(held.swap_remove(index));
            }
            let mut end = 0;
            for (&offset, block) in &room.blocks {
                assert!(offset >= end && offset % 16 == 0);
                end = offset + block.len;
            }
            assert!(end <= 4096 && room.blocks.len() == held.len());
            assert_eq!(room.taken, room.blocks.values().map(|block| block.len).sum());
            assert_eq!(room.free(), room.holes.iter().map(|hole| hole.0).sum());
            assert_eq!(room.holes.len(), room.gaps().filter(|&gap| gap > 0).count());
        }
        assert!(gathered > 20);
    }
}

//! The allocator of dynamic execution: best fit in one range of bytes, with compaction if the free bytes are fragmented.

use std::collections::{BTreeMap, BTreeSet};

use elbowroom_ir::TensorId;

/// An allocated block; the key of the map is its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ArenaBlock {
    /// Size in bytes, a multiple of the alignment.
    len: usize,
    /// The tensor in it; `None` for a workspace.
    owner: Option<TensorId>,
}

/// A block that compaction moves towards lower offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shift {
    pub owner: Option<TensorId>,
    pub from: usize,
    pub to: usize,
    pub len: usize,
}

/// Blocks in `0 .. capacity` that do not overlap.
#[derive(Debug)]
pub(super) struct DynamicAllocator {
    capacity: usize,
    align: usize,
    blocks: BTreeMap<usize, ArenaBlock>,
    /// Size and offset of every hole.
    holes: BTreeSet<(usize, usize)>,
    used: usize,
}

impl DynamicAllocator {
    /// An empty range; its end is rounded down to the alignment.
    pub fn new(capacity: usize, align: usize) -> Self {
        let capacity = capacity - capacity % align;
        let holes = (capacity > 0).then_some((capacity, 0)).into_iter().collect();
        Self { capacity, align, blocks: BTreeMap::new(), holes, used: 0 }
    }

    /// Bytes that a block of this size occupies.
    pub const fn rounded(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.align)
    }

    /// Size of the range, in bytes.
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes in no block.
    pub const fn free_bytes(&self) -> usize {
        self.capacity - self.used
    }

    /// The tensors that have blocks, in order of offsets.
    pub fn owners(&self) -> impl Iterator<Item = TensorId> + '_ {
        self.blocks.values().filter_map(|block| block.owner)
    }

    /// Allocates in the smallest hole that is large enough, at the lowest offset among equals (best fit). `None` if there is no such hole.
    pub fn allocate(&mut self, bytes: usize, owner: Option<TensorId>) -> Option<usize> {
        let len = self.rounded(bytes);
        let &(_, offset) = self.holes.range((len, 0)..).next()?;
        self.insert(offset, ArenaBlock { len, owner });
        Some(offset)
    }

    /// Allocates at a given offset. Returns false if those bytes are not free.
    pub fn allocate_at(&mut self, offset: usize, bytes: usize, owner: Option<TensorId>) -> bool {
        let len = self.rounded(bytes);
        let below = self.blocks.range(..offset + len).next_back();
        let free =
            offset + len <= self.capacity && below.is_none_or(|(&start, block)| start + block.len <= offset);
        if free {
            self.insert(offset, ArenaBlock { len, owner });
        }
        free
    }

    /// The free range around an offset: from the end of the block below to the start of the block above.
    fn around(&self, offset: usize) -> (usize, usize) {
        let below = self.blocks.range(..offset).next_back().map_or(0, |(&start, block)| start + block.len);
        (below, self.blocks.range(offset + 1..).next().map_or(self.capacity, |(&start, _)| start))
    }

    fn insert(&mut self, offset: usize, block: ArenaBlock) {
        let ((start, end), above) = (self.around(offset), offset + block.len);
        self.holes.remove(&(end - start, start));
        self.holes
            .extend([(offset - start, start), (end - above, above)].into_iter().filter(|hole| hole.0 > 0));
        self.used += block.len;
        self.blocks.insert(offset, block);
    }

    /// Frees the block at this offset.
    pub fn free(&mut self, offset: usize) {
        if let Some(block) = self.blocks.remove(&offset) {
            let ((start, end), above) = (self.around(offset), offset + block.len);
            self.holes.remove(&(offset - start, start));
            self.holes.remove(&(end - above, above));
            self.holes.insert((end - start, start));
            self.used -= block.len;
        }
    }

    /// Gives a block to another tensor and shrinks it to that tensor's size.
    pub fn reassign(&mut self, offset: usize, bytes: usize, owner: TensorId) {
        self.free(offset);
        self.insert(offset, ArenaBlock { len: self.rounded(bytes), owner: Some(owner) });
    }

    /// Bytes that [`compact`](Self::compact) would move to make a hole of this size; `None` if fewer bytes are free.
    pub fn compaction_bytes(&self, bytes: usize) -> Option<usize> {
        let blocks: Vec<(usize, ArenaBlock)> =
            self.blocks.iter().map(|(&offset, &block)| (offset, block)).collect();
        self.cheapest(self.rounded(bytes), &blocks).map(|(between, ..)| between)
    }

    /// The consecutive holes that are large enough together and have the fewest bytes between them: those bytes, the first hole and the
    /// last. Hole i lies below block i; the last hole lies below the end of the range.
    fn cheapest(&self, wanted: usize, blocks: &[(usize, ArenaBlock)]) -> Option<(usize, usize, usize)> {
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

    /// Moves blocks to lower offsets until there is a hole of this size, and returns the moves in the order in which they must be made.
    /// Chooses consecutive holes that are large enough together and have the fewest bytes between them. Returns no moves if fewer bytes are
    /// free.
    pub fn compact(&mut self, bytes: usize) -> Vec<Shift> {
        let blocks: Vec<(usize, ArenaBlock)> =
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

    /// The size of the hole below every block and below the end, empty holes included.
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
        let mut arena = DynamicAllocator::new(1003, 8);
        assert_eq!(arena.free_bytes(), 1000);
        let offsets: Vec<usize> = [100, 40, 200, 8, 56]
            .iter()
            .zip(0..)
            .map(|(&b, i)| arena.allocate(b, value(i)).unwrap())
            .collect();
        assert_eq!(offsets, [0, 104, 144, 344, 352]);
        arena.free(104);
        arena.free(344);
        // The smaller hole suffices.
        assert_eq!(arena.allocate(7, value(5)), Some(344));
        arena.free(344);
        arena.allocate(592, value(6)).unwrap();
        assert_eq!((arena.free_bytes(), arena.allocate(48, value(7))), (48, None));
        assert_eq!(
            (arena.compaction_bytes(8), arena.compaction_bytes(48), arena.compaction_bytes(49)),
            (Some(0), Some(200), None)
        );
        // 40 + 8 bytes are free on both sides of the 200.
        let shifts = arena.compact(48);
        assert_eq!(shifts, [Shift { owner: value(2), from: 144, to: 104, len: 200 }]);
        assert_eq!(arena.allocate(48, value(7)), Some(304));
        assert_eq!(arena.compact(1), []);
        assert!(!arena.allocate_at(296, 8, None) && arena.allocate(8, None).is_none());
        arena.free(104);
        assert!(
            !arena.allocate_at(300, 8, None)
                && arena.allocate_at(296, 8, None)
                && arena.allocate_at(104, 192, None)
        );
        arena.reassign(104, 10, TensorId::new(9));
        assert_eq!(arena.free_bytes(), 192 - 16);
        assert_eq!(arena.owners().last(), value(6));
    }

    #[test]
    fn whatever_comes_and_goes_nothing_overlaps_and_what_is_free_can_be_had() {
        let mut state = 1u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut arena = DynamicAllocator::new(4096, 16);
        let mut held: Vec<usize> = Vec::new();
        let mut gathered = 0;
        for _ in 0..3000 {
            if draw(3) > 0 {
                let bytes = 1 + draw(400);
                let offset = match arena.allocate(bytes, None) {
                    None if arena.free_bytes() >= arena.rounded(bytes) => {
                        for shift in arena.compact(bytes) {
                            assert!(shift.to < shift.from);
                            let held = held.iter_mut().find(|held| **held == shift.from).unwrap();
                            *held = shift.to;
                        }
                        gathered += 1;
                        Some(arena.allocate(bytes, None).expect("so much was free"))
                    }
                    offset => offset,
                };
                held.extend(offset);
            } else if !held.is_empty() {
                let index = draw(held.len());
                arena.free(held.swap_remove(index));
            }
            let mut end = 0;
            for (&offset, block) in &arena.blocks {
                assert!(offset >= end && offset % 16 == 0);
                end = offset + block.len;
            }
            assert!(end <= 4096 && arena.blocks.len() == held.len());
            assert_eq!(arena.used, arena.blocks.values().map(|block| block.len).sum());
            assert_eq!(arena.free_bytes(), arena.holes.iter().map(|hole| hole.0).sum());
            assert_eq!(arena.holes.len(), arena.gaps().filter(|&gap| gap > 0).count());
        }
        assert!(gathered > 20);
    }
}

//! The allocator of dynamic execution: best fit in one range of bytes, with compaction if the free bytes are fragmented.

use std::collections::BTreeSet;

use elbowroom_ir::TensorId;

/// An allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ArenaBlock {
    offset: usize,
    /// Size in bytes, a multiple of the alignment.
    len: usize,
    /// The tensor in it; `None` for a workspace.
    owner: Option<TensorId>,
}

impl ArenaBlock {
    const fn end(&self) -> usize {
        self.offset + self.len
    }
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
    /// In order of offsets. A vector, because each choice of a tensor to remove walks through all of them, which a tree makes many times
    /// slower, and an insertion moves less than a choice reads.
    blocks: Vec<ArenaBlock>,
    /// Size and offset of every hole.
    holes: BTreeSet<(usize, usize)>,
    used: usize,
}

impl DynamicAllocator {
    /// An empty range; its end is rounded down to the alignment.
    pub fn new(capacity: usize, align: usize) -> Self {
        let capacity = capacity - capacity % align;
        let holes = (capacity > 0).then_some((capacity, 0)).into_iter().collect();
        Self { capacity, align, blocks: Vec::new(), holes, used: 0 }
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
        self.blocks.iter().filter_map(|block| block.owner)
    }

    /// Allocates in the smallest hole that is large enough, at the lowest offset among equals (best fit). `None` if there is no such hole.
    pub fn allocate(&mut self, bytes: usize, owner: Option<TensorId>) -> Option<usize> {
        let len = self.rounded(bytes);
        let &(_, offset) = self.holes.range((len, 0)..).next()?;
        self.insert(ArenaBlock { offset, len, owner });
        Some(offset)
    }

    /// Allocates at a given offset. Returns false if those bytes are not free.
    pub fn allocate_at(&mut self, offset: usize, bytes: usize, owner: Option<TensorId>) -> bool {
        let block = ArenaBlock { offset, len: self.rounded(bytes), owner };
        let free = block.end() <= self.capacity && self.gap(self.index_at(block.end())).0 <= offset;
        if free {
            self.insert(block);
        }
        free
    }

    /// Index of the first block at or above an offset.
    fn index_at(&self, offset: usize) -> usize {
        self.blocks.partition_point(|block| block.offset < offset)
    }

    /// The range from the end of the block below this one to its start. Below the index behind the last block lies the rest of the range.
    fn gap(&self, index: usize) -> (usize, usize) {
        let below = index.checked_sub(1).map_or(0, |below| self.blocks[below].end());
        (below, self.blocks.get(index).map_or(self.capacity, |block| block.offset))
    }

    fn insert(&mut self, block: ArenaBlock) {
        let index = self.index_at(block.offset);
        let (start, end) = self.gap(index);
        self.holes.remove(&(end - start, start));
        let rest = [(block.offset - start, start), (end - block.end(), block.end())];
        self.holes.extend(rest.into_iter().filter(|hole| hole.0 > 0));
        self.used += block.len;
        self.blocks.insert(index, block);
    }

    /// Frees the block at this offset.
    pub fn free(&mut self, offset: usize) {
        let index = self.index_at(offset);
        if self.blocks.get(index).is_some_and(|block| block.offset == offset) {
            let block = self.blocks.remove(index);
            let (start, end) = self.gap(index);
            self.holes.remove(&(offset - start, start));
            self.holes.remove(&(end - block.end(), block.end()));
            self.holes.insert((end - start, start));
            self.used -= block.len;
        }
    }

    /// Gives a block to another tensor and shrinks it to that tensor's size.
    pub fn reassign(&mut self, offset: usize, bytes: usize, owner: TensorId) {
        self.free(offset);
        self.insert(ArenaBlock { offset, len: self.rounded(bytes), owner: Some(owner) });
    }

    /// Bytes that [`compact`](Self::compact) would move to make a hole of this size; `None` if fewer bytes are free.
    pub fn compaction_bytes(&self, bytes: usize) -> Option<usize> {
        self.cheapest(self.rounded(bytes)).map(|(between, ..)| between)
    }

    /// The consecutive holes that are large enough together and have the fewest bytes between them: those bytes, the first hole and the
    /// last. Hole i lies below block i; the last hole lies below the end of the range.
    fn cheapest(&self, wanted: usize) -> Option<(usize, usize, usize)> {
        let hole = |index: usize| {
            let (start, end) = self.gap(index);
            end - start
        };
        let (mut first, mut free, mut between) = (0, 0, 0);
        let mut best: Option<(usize, usize, usize)> = None;
        for last in 0..=self.blocks.len() {
            free += hole(last);
            if let Some(previous) = last.checked_sub(1) {
                between += self.blocks[previous].len;
            }
            while first < last && free - hole(first) >= wanted {
                free -= hole(first);
                between -= self.blocks[first].len;
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
        let Some((_, first, last)) = self.cheapest(self.rounded(bytes)) else { return Vec::new() };
        let (mut to, _) = self.gap(first);
        let mut shifts = Vec::new();
        for block in &mut self.blocks[first..last] {
            let &mut ArenaBlock { offset: from, len, owner } = block;
            if from != to {
                block.offset = to;
                shifts.push(Shift { owner, from, to, len });
            }
            to += len;
        }
        let gaps = (0..=self.blocks.len()).map(|index| self.gap(index));
        self.holes = gaps.map(|(start, end)| (end - start, start)).filter(|hole| hole.0 > 0).collect();
        shifts
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
            for block in &arena.blocks {
                assert!(block.offset >= end && block.offset % 16 == 0);
                end = block.end();
            }
            assert!(end <= 4096 && arena.blocks.len() == held.len());
            assert_eq!(arena.used, arena.blocks.iter().map(|block| block.len).sum());
            assert_eq!(arena.free_bytes(), arena.holes.iter().map(|hole| hole.0).sum());
            let gaps: BTreeSet<_> = (0..=arena.blocks.len()).map(|index| arena.gap(index)).collect();
            let holes = arena.holes.iter().map(|&(len, start)| (start, start + len)).collect();
            assert_eq!(gaps.into_iter().filter(|gap| gap.0 < gap.1).collect::<BTreeSet<_>>(), holes);
        }
        assert!(gathered > 20);
    }
}

//! PyTorch's caching allocator for CUDA, simulated from its published source (`c10/cuda/CUDACachingAllocator.cpp`, default settings, one
//! stream): the baseline for planned memory.
//!
//! Sizes are rounded up to 512 bytes. Requests of up to 1 MiB are served from segments of 2 MiB; others from segments of 20 MiB or, from 10
//! MiB on, from segments of their own size rounded up to 2 MiB. The allocator takes the smallest sufficient free block, at the lowest
//! address among equals, and splits off the rest if it has at least 512 bytes (small) or more than 1 MiB (large). A freed block is merged
//! with free neighbours in its segment. Segments are never freed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

const ROUND: u64 = 512;
const SMALL: u64 = 1 << 20;
const SMALL_SEGMENT: u64 = 2 << 20;
const LARGE_SEGMENT: u64 = 20 << 20;
const OWN_SEGMENT: u64 = 10 << 20;
const ROUND_SEGMENT: u64 = 2 << 20;

#[derive(Clone, Copy, Debug)]
struct CachedBlock {
    size: u64,
    segment: u64,
    small: bool,
    free: bool,
}

/// The state of the allocator. Addresses are fictitious.
#[derive(Clone, Debug, Default)]
pub struct CachingAllocator {
    /// All blocks by address; a segment's blocks are neighbours.
    blocks: BTreeMap<u64, CachedBlock>,
    /// Free blocks of the pool for small and the pool for large requests, by size and address.
    free: [BTreeSet<(u64, u64)>; 2],
    /// Bytes requested, by address of the block.
    requested: HashMap<u64, u64>,
    next_segment: u64,
    reserved: u64,
    allocated: u64,
    peak_allocated: u64,
    live: u64,
    peak_live: u64,
}

impl CachingAllocator {
    /// An allocator without segments.
    pub fn new() -> Self {
        Self { next_segment: 1 << 40, ..Self::default() }
    }

    /// Allocates a block of at least `size` bytes and returns its address.
    pub fn allocate(&mut self, size: u64) -> u64 {
        let rounded = size.max(1).next_multiple_of(ROUND);
        let small = rounded <= SMALL;
        let pool = usize::from(!small);
        let found = self.free[pool].range((rounded, 0)..).next().copied();
        let (found, address) = found.unwrap_or_else(|| self.segment(rounded, small));
        self.free[pool].remove(&(found, address));
        let rest = found - rounded;
        let splits = if small { rest >= ROUND } else { rest > SMALL };
        let segment = self.blocks[&address].segment;
        let taken = if splits { rounded } else { found };
        self.blocks.insert(address, CachedBlock { size: taken, segment, small, free: false });
        if splits {
            self.blocks.insert(address + taken, CachedBlock { size: rest, segment, small, free: true });
            self.free[pool].insert((rest, address + taken));
        }
        self.requested.insert(address, size);
        self.allocated += taken;
        self.peak_allocated = self.peak_allocated.max(self.allocated);
        self.live += size;
        self.peak_live = self.peak_live.max(self.live);
        address
    }

    /// A new segment for a request, as one free block: its size and address.
    fn segment(&mut self, rounded: u64, small: bool) -> (u64, u64) {
        let size = match rounded {
            _ if small => SMALL_SEGMENT,
            ..OWN_SEGMENT => LARGE_SEGMENT,
            _ => rounded.next_multiple_of(ROUND_SEGMENT),
        };
        let address = self.next_segment;
        self.next_segment += size + ROUND_SEGMENT;
        self.reserved += size;
        self.blocks.insert(address, CachedBlock { size, segment: address, small, free: true });
        (size, address)
    }

    /// Frees a block. Has no effect if no live block begins at the address.
    pub fn free(&mut self, address: u64) {
        let Some(requested) = self.requested.remove(&address) else { return };
        self.live -= requested;
        let mut block = self.blocks[&address];
        self.allocated -= block.size;
        let pool = usize::from(!block.small);
        let mut start = address;
        if let Some((&after, &next)) = self.blocks.range(address + 1..).next()
            && next.free
            && next.segment == block.segment
        {
            self.blocks.remove(&after);
            self.free[pool].remove(&(next.size, after));
            block.size += next.size;
        }
        if let Some((&before, &previous)) = self.blocks.range(..address).next_back()
            && previous.free
            && previous.segment == block.segment
        {
            self.blocks.remove(&address);
            self.free[pool].remove(&(previous.size, before));
            block.size += previous.size;
            start = before;
        }
        block.free = true;
        self.blocks.insert(start, block);
        self.free[pool].insert((block.size, start));
    }

    /// Bytes of all segments, that is, the device memory that the allocator occupies.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Maximum of the sum of block sizes in use, as PyTorch counts it: rounded, including remainders that were not split off.
    pub fn peak_allocated(&self) -> u64 {
        self.peak_allocated
    }

    /// Maximum of the sum of requested bytes.
    pub fn peak_live(&self) -> u64 {
        self.peak_live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_as_published() {
        let reserved = |size: u64| {
            let mut allocator = CachingAllocator::new();
            allocator.allocate(size);
            allocator.reserved()
        };
        assert_eq!(reserved(1), 2 << 20);
        assert_eq!(reserved(1 << 20), 2 << 20);
        assert_eq!(reserved((1 << 20) + 1), 20 << 20);
        assert_eq!(reserved((10 << 20) - 512), 20 << 20);
        assert_eq!(reserved((10 << 20) + 1), 12 << 20);
    }

    #[test]
    fn freed_neighbours_merge_and_serve_again() {
        let mut allocator = CachingAllocator::new();
        let blocks: Vec<u64> = (0..4).map(|_| allocator.allocate(512 << 10)).collect();
        assert_eq!((allocator.reserved(), allocator.peak_allocated()), (2 << 20, 2 << 20));
        for block in [blocks[1], blocks[3], blocks[2], blocks[0]] {
            allocator.free(block);
        }
        assert_eq!(allocator.free[0].len(), 1);
        assert_eq!(allocator.allocate(1 << 20), blocks[0]);
        assert_eq!(allocator.reserved(), 2 << 20);
        allocator.free(123);
    }

    #[test]
    fn a_large_block_is_split_only_if_much_remains() {
        let mut allocator = CachingAllocator::new();
        let block = allocator.allocate(20 << 20);
        allocator.free(block);
        allocator.allocate((19 << 20) + (512 << 10));
        assert_eq!(allocator.peak_allocated(), 20 << 20, "half a MiB is not split off");
        assert_eq!(allocator.peak_live(), 20 << 20);
    }
}

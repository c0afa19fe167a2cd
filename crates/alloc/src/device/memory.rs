//! The device's memory: the location of each block's contents, and dynamic eviction.
//!
//! Contents always survive: before a block's bytes are used for another block, they are copied to the host unless an equal copy exists. A
//! plan therefore determines only how much is copied and when, never what an operation reads.

use std::collections::BTreeMap;

use super::{ALIGN, BlockHandle, DeviceError, DeviceStats};

/// The location of a block's contents. Without either copy it holds zeros.
#[derive(Debug, Default)]
struct Contents {
    bytes: usize,
    /// Offset on the device.
    device: Option<usize>,
    /// The host copy. If the block is on the device as well, both are equal.
    host: Option<Box<[u8]>>,
    /// The time at which an operation last used it.
    used: u64,
}

/// A fixed number of bytes, and the blocks on the device and on the host.
pub(super) struct DeviceMemory {
    /// The device, plus the bytes needed to align its start. Pages are committed by the first write.
    bytes: Box<[u8]>,
    /// The index in `bytes` at which the device begins.
    start: usize,
    limit: usize,
    blocks: BTreeMap<BlockHandle, Contents>,
    /// Blocks on the device by offset; they do not overlap.
    resident: BTreeMap<usize, BlockHandle>,
    clock: u64,
    height: usize,
}

fn aligned(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX)
}

impl DeviceMemory {
    pub fn new(limit: usize) -> Self {
        let bytes = vec![0; limit + ALIGN - 1].into_boxed_slice();
        let start = bytes.as_ptr().align_offset(ALIGN).min(ALIGN - 1);
        Self {
            bytes,
            start,
            // The remainder below a whole alignment unit is unusable.
            limit: limit / ALIGN * ALIGN,
            blocks: BTreeMap::new(),
            resident: BTreeMap::new(),
            clock: 0,
            height: 0,
        }
    }

    /// Usable bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The largest end of any block that was ever on the device.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Adds a block of zeros, which is not yet on the device.
    pub fn add(&mut self, block: BlockHandle, bytes: usize) {
        self.blocks.insert(block, Contents { bytes, ..Contents::default() });
    }

    pub fn remove(&mut self, block: BlockHandle) {
        self.release_device_bytes(block);
        self.blocks.remove(&block);
    }

    fn range(&mut self, offset: usize, bytes: usize) -> &mut [u8] {
        &mut self.bytes[self.start + offset..][..bytes]
    }

    /// Frees a block's device bytes without a copy.
    fn release_device_bytes(&mut self, block: BlockHandle) {
        if let Some(offset) = self.blocks.get_mut(&block).and_then(|contents| contents.device.take()) {
            self.resident.remove(&offset);
        }
    }

    /// Copies a block to the host unless an equal copy exists or the block is not on the device.
    pub fn copy_to_host(&mut self, block: BlockHandle, stats: &mut DeviceStats) {
        let Some(&Contents { bytes, device: Some(offset), host: None, .. }) = self.blocks.get(&block) else {
            return;
        };
        let copy: Box<[u8]> = self.range(offset, bytes).into();
        stats.to_host += bytes as u64;
        if let Some(contents) = self.blocks.get_mut(&block) {
            contents.host = Some(copy);
        }
    }

    /// Copies a block to the host, if necessary, and frees its device bytes.
    fn offload(&mut self, block: BlockHandle, stats: &mut DeviceStats) {
        self.copy_to_host(block, stats);
        self.release_device_bytes(block);
    }

    /// Discards a block's host copy if the block is on the device.
    pub fn drop_host_copy(&mut self, block: BlockHandle) {
        if let Some(contents) = self.blocks.get_mut(&block).filter(|contents| contents.device.is_some()) {
            contents.host = None;
        }
    }

    /// Places a block at an offset and offloads the blocks that overlap with it. Has no effect if the range exceeds the device.
    pub fn place(&mut self, block: BlockHandle, offset: usize, stats: &mut DeviceStats) {
        let Some(&Contents { bytes, device, .. }) = self.blocks.get(&block) else { return };
        if device == Some(offset) || offset.checked_add(bytes).is_none_or(|end| end > self.limit) {
            return;
        }
        self.offload(block, stats);
        while let Some((&before, &other)) = self.resident.range(..offset + bytes).next_back() {
            if before + self.blocks.get(&other).map_or(0, |contents| contents.bytes) <= offset {
                break;
            }
            self.offload(other, stats);
        }
        let copy = self.blocks.get_mut(&block).and_then(|contents| {
            contents.device = Some(offset);
            contents.host.take()
        });
        self.resident.insert(offset, block);
        self.height = self.height.max(offset + bytes);
        match &copy {
            Some(copy) => {
                stats.to_device += bytes as u64;
                self.range(offset, bytes).copy_from_slice(copy);
            }
            None => self.range(offset, bytes).fill(0),
        }
        if let Some(contents) = self.blocks.get_mut(&block) {
            contents.host = copy;
        }
    }

    /// The lowest offset with this many free bytes.
    fn gap(&self, bytes: usize) -> Option<usize> {
        let mut free_from = 0;
        for (&offset, block) in &self.resident {
            if offset >= free_from + aligned(bytes) {
                break;
            }
            free_from = offset + self.blocks.get(block).map_or(0, |contents| aligned(contents.bytes));
        }
        (free_from + aligned(bytes) <= self.limit).then_some(free_from)
    }

    /// Whether all of the given blocks are on the device.
    pub fn has_all(&self, blocks: &[BlockHandle]) -> bool {
        let there = |block| self.blocks.get(block).is_some_and(|contents| contents.device.is_some());
        blocks.iter().all(there)
    }

    /// Prefetches the given blocks; offloads the least recently used other blocks as necessary (Zhang, section V).
    pub fn make_resident(
        &mut self,
        wanted: &[BlockHandle],
        stats: &mut DeviceStats,
    ) -> Result<(), DeviceError> {
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let sizes = wanted.iter().filter_map(|block| self.blocks.get(block));
        let needed = sizes.map(|contents| aligned(contents.bytes)).fold(0, usize::saturating_add);
        if needed > self.limit {
            return Err(DeviceError::TooSmall { needed, limit: self.limit });
        }
        // A second round is needed if the blocks had to be compacted, which offloads some of them; then all fit, one behind the other.
        while !self.has_all(&wanted) {
            for &block in &wanted {
                let Some(&Contents { bytes, device: None, .. }) = self.blocks.get(&block) else { continue };
                let offset = loop {
                    if let Some(offset) = self.gap(bytes) {
                        break offset;
                    }
                    let others = self.resident.values().copied().filter(|other| !wanted.contains(other));
                    match others
                        .min_by_key(|other| self.blocks.get(other).map_or(0, |contents| contents.used))
                    {
                        Some(other) => self.offload(other, stats),
                        // Only the operation's own blocks are left, with holes between them.
                        None => wanted.iter().for_each(|&other| self.offload(other, stats)),
                    }
                };
                self.place(block, offset, stats);
            }
        }
        Ok(())
    }

    /// Runs an operation on blocks that are all on the device. Each written block is named once and is not among those read. Written blocks
    /// lose their host copies, even if the operation panics.
    pub fn run(
        &mut self,
        operation: impl FnOnce(&[&[u8]], &mut [&mut [u8]]),
        reads: &[BlockHandle],
        writes: &[BlockHandle],
    ) {
        self.clock += 1;
        // The range of each block by offset, and whether it is written.
        let mut ranges: BTreeMap<usize, (usize, BlockHandle, bool)> = BTreeMap::new();
        for (block, written) in reads.iter().map(|b| (b, false)).chain(writes.iter().map(|b| (b, true))) {
            let Some(contents) = self.blocks.get_mut(block) else { return };
            contents.used = self.clock;
            if written {
                contents.host = None;
            }
            let Some(offset) = contents.device else { return };
            ranges.insert(offset, (contents.bytes, *block, written));
        }
        let mut rest = &mut self.bytes[self.start..];
        let mut taken = 0;
        let (mut read, mut written) = (BTreeMap::new(), BTreeMap::new());
        for (offset, (bytes, block, writes)) in ranges {
            let (range, after) = rest.split_at_mut(offset - taken).1.split_at_mut(bytes);
            if writes {
                written.insert(block, range);
            } else {
                read.insert(block, &*range);
            }
            (rest, taken) = (after, offset + bytes);
        }
        let read: Vec<&[u8]> = reads.iter().filter_map(|block| read.get(block).copied()).collect();
        let mut written: Vec<&mut [u8]> = writes.iter().filter_map(|block| written.remove(block)).collect();
        operation(&read, &mut written);
    }
}

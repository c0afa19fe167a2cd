//! The device's memory: the location of each block's contents, and dynamic eviction.
//!
//! Contents always survive: before a block's bytes are used for another block, they are copied to the host unless an equal copy exists. A
//! plan therefore determines only how much is copied and when, never what an operation reads.
//!
//! All of this is issued, not done: a block counts as on the host once its copy has been issued. What uses bytes later waits for the tasks
//! that still use them ([`Order`]).

use std::collections::BTreeMap;
use std::ffi::c_void;

use super::accelerator::{Accelerator, AcceleratorError, Queue};
use super::order::{Order, Remains, Uses, later};
use super::tier::{HostTier, Slot};
use super::{ALIGN, BlockHandle, DeviceError, DeviceStats};

/// The location of a block's contents. Without either copy it holds zeros.
#[derive(Debug, Default)]
struct Contents {
    bytes: usize,
    /// Offset on the device.
    device: Option<usize>,
    /// The tasks that use its bytes on the device.
    uses: Uses,
    /// The host copy. If the block is on the device as well, both are equal.
    host: Option<Slot>,
    /// The time at which an operation last used it.
    used: u64,
}

/// A fixed number of bytes, and the blocks on the device and on the host.
pub(super) struct DeviceMemory<A: Accelerator> {
    pub order: Order<A>,
    /// The address at which the device's bytes begin, and how many are reserved.
    base: usize,
    reserved: usize,
    limit: usize,
    blocks: BTreeMap<BlockHandle, Contents>,
    /// Blocks on the device by offset; they do not overlap.
    resident: BTreeMap<usize, BlockHandle>,
    /// What left the device while tasks used it, by offset.
    remains: Remains,
    tier: HostTier,
    clock: u64,
    height: usize,
}

/// An operation's events: before and behind it.
pub(super) type Timing<A> = (<A as Accelerator>::Event, <A as Accelerator>::Event);

fn aligned(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX)
}

impl<A: Accelerator> DeviceMemory<A> {
    pub fn new(accelerator: A, bytes: usize) -> Result<Self, AcceleratorError> {
        // The remainder below a whole alignment unit is unusable.
        let limit = bytes / ALIGN * ALIGN;
        let reserved = limit.max(ALIGN);
        let base = accelerator.reserve(reserved)?;
        Ok(Self {
            order: Order::new(accelerator),
            base,
            reserved,
            limit,
            blocks: BTreeMap::new(),
            resident: BTreeMap::new(),
            remains: Remains::default(),
            tier: HostTier::default(),
            clock: 0,
            height: 0,
        })
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
        if let Some(slot) = self.blocks.remove(&block).and_then(|contents| contents.host) {
            self.tier.give(slot);
        }
    }

    /// Frees a block's device bytes without a copy.
    fn release_device_bytes(&mut self, block: BlockHandle) {
        let Some(contents) = self.blocks.get_mut(&block) else { return };
        if let Some(offset) = contents.device.take() {
            self.resident.remove(&offset);
            let uses = std::mem::take(&mut contents.uses);
            self.remains.add(offset, offset + contents.bytes, uses.any);
        }
    }

    /// Copies a block to the host unless an equal copy exists or the block is not on the device.
    pub fn copy_to_host(
        &mut self,
        block: BlockHandle,
        stats: &mut DeviceStats,
    ) -> Result<(), AcceleratorError> {
        let Some(contents) = self.blocks.get_mut(&block) else { return Ok(()) };
        let (Some(offset), None) = (contents.device, &contents.host) else { return Ok(()) };
        let mut slot = self.tier.take(contents.bytes, &mut self.order)?;
        let after = later(contents.uses.written, slot.uses.any);
        let position = self.order.begin(Queue::ToHost, after)?;
        // SAFETY: the block's bytes and the slot's are reserved, and both are as long as the copy; it waits for what wrote the first and
        // used the second, and what uses them later waits for it.
        unsafe {
            let from = self.base + offset;
            self.order.accelerator.to_host(Queue::ToHost, from, slot.address, contents.bytes)?;
        }
        contents.uses.read(Queue::ToHost, position);
        slot.uses.write(Queue::ToHost, position);
        stats.to_host += contents.bytes as u64;
        contents.host = Some(slot);
        self.order.mark(Queue::ToHost)
    }

    /// Copies a block to the host, if necessary, and frees its device bytes.
    fn offload(&mut self, block: BlockHandle, stats: &mut DeviceStats) -> Result<(), AcceleratorError> {
        self.copy_to_host(block, stats)?;
        self.release_device_bytes(block);
        Ok(())
    }

    /// Discards a block's host copy if the block is on the device.
    pub fn drop_host_copy(&mut self, block: BlockHandle) {
        if let Some(contents) = self.blocks.get_mut(&block).filter(|contents| contents.device.is_some())
            && let Some(slot) = contents.host.take()
        {
            self.tier.give(slot);
        }
    }

    /// Places a block at an offset and offloads the blocks that overlap with it. Has no effect if the range exceeds the device.
    pub fn place(
        &mut self,
        block: BlockHandle,
        offset: usize,
        stats: &mut DeviceStats,
    ) -> Result<(), AcceleratorError> {
        let Some(&Contents { bytes, device, .. }) = self.blocks.get(&block) else { return Ok(()) };
        if device == Some(offset) || offset.checked_add(bytes).is_none_or(|end| end > self.limit) {
            return Ok(());
        }
        self.offload(block, stats)?;
        while let Some((&before, &other)) = self.resident.range(..offset + bytes).next_back() {
            if before + self.blocks.get(&other).map_or(0, |contents| contents.bytes) <= offset {
                break;
            }
            self.offload(other, stats)?;
        }
        let mut after = self.remains.take(offset, offset + bytes, &self.order);
        let Some(contents) = self.blocks.get_mut(&block) else { return Ok(()) };
        let to = self.base + offset;
        let queue = if contents.host.is_some() { Queue::ToDevice } else { Queue::Compute };
        if let Some(slot) = &contents.host {
            after = later(after, slot.uses.written);
        }
        let position = self.order.begin(queue, after)?;
        let accelerator = &self.order.accelerator;
        match &mut contents.host {
            Some(slot) => {
                // SAFETY: the bytes are within the device, the slot is as long as the block, and the copy waits for what wrote the slot and
                // for what used the bytes; what uses either later waits for it.
                unsafe { accelerator.to_device(queue, slot.address, to, bytes)? };
                slot.uses.read(queue, position);
                stats.to_device += bytes as u64;
            }
            // SAFETY: as above.
            None => unsafe { accelerator.fill(queue, to, bytes)? },
        }
        contents.device = Some(offset);
        contents.uses.write(queue, position);
        self.resident.insert(offset, block);
        self.height = self.height.max(offset + bytes);
        self.order.mark(queue)
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
                        Some(other) => self.offload(other, stats)?,
                        // Only the operation's own blocks are left, with holes between them.
                        None => wanted.iter().try_for_each(|&other| self.offload(other, stats))?,
                    }
                };
                self.place(block, offset, stats)?;
            }
        }
        Ok(())
    }

    /// Issues an operation on blocks that are all on the device, given their addresses and the queue's handle. Each written block is named
    /// once and is not among those read. Written blocks lose their host copies, even if the operation panics. The events are those before
    /// and behind the operation, if it is `timed`.
    pub fn run<R>(
        &mut self,
        operation: impl FnOnce(&A, &[usize], &[usize], *mut c_void) -> R,
        reads: &[BlockHandle],
        writes: &[BlockHandle],
        timed: bool,
    ) -> Result<(R, Option<Timing<A>>), AcceleratorError> {
        self.clock += 1;
        let mut after = [0; 3];
        for (block, is_written) in reads.iter().map(|b| (b, false)).chain(writes.iter().map(|b| (b, true))) {
            if let Some(contents) = self.blocks.get_mut(block) {
                contents.used = self.clock;
                let uses = if is_written { contents.uses.any } else { contents.uses.written };
                after = later(after, uses);
            }
        }
        let position = self.order.begin(Queue::Compute, after)?;
        for (block, is_written) in reads.iter().map(|b| (b, false)).chain(writes.iter().map(|b| (b, true))) {
            let Some(contents) = self.blocks.get_mut(block) else { continue };
            if is_written {
                contents.uses.write(Queue::Compute, position);
                self.drop_host_copy(*block);
            } else {
                contents.uses.read(Queue::Compute, position);
            }
        }
        let start = if timed { Some(self.event_now()?) } else { None };
        let address = |block: &BlockHandle| {
            self.blocks.get(block).and_then(|contents| contents.device).map_or(0, |offset| self.base + offset)
        };
        let (read, written): (Vec<usize>, Vec<usize>) =
            (reads.iter().map(address).collect(), writes.iter().map(address).collect());
        let accelerator = &self.order.accelerator;
        let outcome = operation(accelerator, &read, &written, accelerator.handle(Queue::Compute));
        let timing = match start {
            Some(start) => Some((start, self.event_now()?)),
            None => None,
        };
        self.order.mark(Queue::Compute)?;
        Ok((outcome, timing))
    }

    fn event_now(&mut self) -> Result<A::Event, AcceleratorError> {
        let mut event = self.order.event()?;
        self.order.accelerator.record(Queue::Compute, &mut event)?;
        Ok(event)
    }

    /// A slot of the host for a transfer of the program's.
    pub fn staging(&mut self, bytes: usize) -> Result<Slot, AcceleratorError> {
        self.tier.take(bytes, &mut self.order)
    }

    /// Takes a slot back, which no task uses any more.
    pub fn end_staging(&mut self, slot: Slot) {
        self.tier.give(slot);
    }
}

impl<A: Accelerator> Drop for DeviceMemory<A> {
    fn drop(&mut self) {
        if self.order.finish().is_err() {
            // The device is lost, and with it the knowledge which bytes it still uses: they are left to it.
            return;
        }
        for slot in std::mem::take(&mut self.blocks).into_values().filter_map(|contents| contents.host) {
            self.tier.give(slot);
        }
        self.tier.release_all(&self.order);
        // SAFETY: reserved in `new`, and every task has ended.
        unsafe { self.order.accelerator.release(self.base, self.reserved) };
    }
}

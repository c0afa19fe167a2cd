//! The host's memory for copies of blocks, kept and used again.

use std::collections::BTreeMap;

use super::ALIGN;
use super::accelerator::{Accelerator, AcceleratorError};
use super::order::{Order, Uses};

/// Bytes of the host that copies of the device may use.
#[derive(Debug)]
pub(super) struct Slot {
    pub address: usize,
    pub bytes: usize,
    pub uses: Uses,
}

/// Slots that hold nothing.
#[derive(Debug, Default)]
pub(super) struct HostTier {
    free: BTreeMap<usize, Vec<Slot>>,
}

impl HostTier {
    /// A slot of at least `bytes` bytes; a free one if it is at most twice as large.
    pub fn take<A: Accelerator>(
        &mut self,
        bytes: usize,
        order: &mut Order<A>,
    ) -> Result<Slot, AcceleratorError> {
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGN).unwrap_or(bytes);
        if let Some((&size, slots)) = self.free.range_mut(bytes..=bytes.saturating_mul(2)).next()
            && let Some(slot) = slots.pop()
        {
            if slots.is_empty() {
                self.free.remove(&size);
            }
            return Ok(slot);
        }
        let reserved = match order.accelerator.reserve_host(bytes) {
            Err(AcceleratorError::OutOfMemory { .. }) if !self.free.is_empty() => {
                // Free slots of other sizes may occupy the missing bytes.
                order.finish()?;
                self.release_all(order);
                order.accelerator.reserve_host(bytes)
            }
            reserved => reserved,
        };
        Ok(Slot { address: reserved?, bytes, uses: Uses::default() })
    }

    /// Takes a slot back. Tasks may still use it.
    pub fn give(&mut self, slot: Slot) {
        self.free.entry(slot.bytes).or_default().push(slot);
    }

    /// Releases all free slots. No task may use them any more.
    pub fn release_all<A: Accelerator>(&mut self, order: &Order<A>) {
        for slot in std::mem::take(&mut self.free).into_values().flatten() {
            // SAFETY: reserved by `take`. No block has a free slot, and no task uses it.
            unsafe { order.accelerator.release_host(slot.address, slot.bytes) };
        }
    }
}

//! Recorded blocks by address, in a table that uses no other allocator: it changes under a lock, and a fork handler of the other allocator
//! may hold that allocator's locks when ours waits for this one.

use super::band::BandSequence;
use crate::pages::{PageVec, Zeroable};
use crate::request::{RequestTime, Ticket};

/// A block in 16 bytes.
#[derive(Clone, Copy)]
struct TrackedBlock {
    /// The address, of which the lowest 4 bits are zero, in the lower 44 bits; above it the lowest bits of the ticket. 0 for none.
    address_and_ticket: u64,
    owner: *const BandSequence,
}

const NONE: TrackedBlock = TrackedBlock { address_and_ticket: 0, owner: std::ptr::null() };

/// Bits of an address without the lowest 4, and bits of a ticket: more than a record has requests, so that they tell its tickets apart.
const ADDRESS_BITS: u32 = 44;
const TICKET_BITS: u32 = 64 - ADDRESS_BITS;

impl TrackedBlock {
    /// `None` if the address has other bits.
    fn new(address: usize, owner: *const BandSequence, ticket: Ticket) -> Option<Self> {
        let kept = address as u64 >> 4;
        let fits = address != 0 && address.is_multiple_of(16) && kept >> ADDRESS_BITS == 0;
        fits.then_some(Self { address_and_ticket: kept | ticket.0 << ADDRESS_BITS, owner })
    }

    /// 0 for none.
    fn address(self) -> usize {
        ((self.address_and_ticket & ((1 << ADDRESS_BITS) - 1)) << 4) as usize
    }
}

/// The latest ticket before a time whose lowest bits are these.
fn latest_ticket(bits: u64, now: RequestTime) -> Ticket {
    let age = now.0.wrapping_sub(bits) & ((1 << TICKET_BITS) - 1);
    Ticket(now.0.saturating_sub(age))
}

// SAFETY: zero bytes are `NONE`.
unsafe impl Zeroable for TrackedBlock {}

/// Open addressing with linear probing, at most three quarters full. A removed block is replaced by a later one of its cluster.
pub(super) struct TrackedBlocks {
    slots: PageVec<TrackedBlock>,
    len: usize,
}

impl TrackedBlocks {
    pub const fn new() -> Self {
        Self { slots: PageVec::new(), len: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn preferred(&self, address: usize) -> usize {
        let hash = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        hash as usize & (self.slots.len() - 1)
    }

    /// Where an address is, or would be inserted. The table must have an empty slot.
    fn find(&self, address: usize) -> usize {
        let mut at = self.preferred(address);
        while !matches!(self.slots[at].address(), occupied if occupied == 0 || occupied == address) {
            at = (at + 1) & (self.slots.len() - 1);
        }
        at
    }

    /// Adds a block, in place of another one at the same address. Returns whether there was none. A block that the system has no memory for
    /// is not tracked.
    pub fn insert(&mut self, address: usize, owner: *const BandSequence, ticket: Ticket) -> bool {
        let Some(block) = TrackedBlock::new(address, owner, ticket) else { return false };
        if 4 * (self.len + 1) > 3 * self.slots.len() && self.grow().is_none() {
            return false;
        }
        let at = self.find(address);
        let is_new = self.slots[at].address() == 0;
        self.slots[at] = block;
        self.len += usize::from(is_new);
        is_new
    }

    fn grow(&mut self) -> Option<()> {
        let slots = PageVec::zeroed((2 * self.slots.len()).max(1 << 7))?;
        let old = std::mem::replace(&mut self.slots, slots);
        for &block in old.iter().filter(|block| block.address() != 0) {
            let at = self.find(block.address());
            self.slots[at] = block;
        }
        Some(())
    }

    /// Removes a block. Returns its owner and its ticket, which is among the latest before `now(owner)`.
    pub fn remove(
        &mut self,
        address: usize,
        now: impl FnOnce(*const BandSequence) -> RequestTime,
    ) -> Option<(*const BandSequence, Ticket)> {
        if self.len == 0 || address == 0 {
            return None;
        }
        let at = self.find(address);
        let block = self.slots[at];
        if block.address() == 0 {
            return None;
        }
        self.remove_at(at);
        Some((block.owner, latest_ticket(block.address_and_ticket >> ADDRESS_BITS, now(block.owner))))
    }

    fn remove_at(&mut self, mut hole: usize) {
        let mask = self.slots.len() - 1;
        let mut next = (hole + 1) & mask;
        while self.slots[next].address() != 0 {
            let preferred = self.preferred(self.slots[next].address());
            // A block may move to the hole if the hole is not before its preferred slot.
            if (next.wrapping_sub(preferred) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
            next = (next + 1) & mask;
        }
        self.slots[hole] = NONE;
        self.len -= 1;
    }

    /// Removes the blocks of an owner, and calls a function with the address of each.
    pub fn remove_all_of(&mut self, owner: *const BandSequence, mut removed: impl FnMut(usize)) {
        let mut at = 0;
        while at < self.slots.len() {
            let block = self.slots[at];
            if block.address() != 0 && std::ptr::eq(block.owner, owner) {
                removed(block.address());
                self.remove_at(at);
            } else {
                at += 1;
            }
        }
        if self.len == 0 {
            self.slots = PageVec::new();
        }
    }
}

impl std::fmt::Debug for TrackedBlocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TrackedBlocks({})", self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_ticket_is_found_again_from_its_lowest_bits() {
        for ticket in [0, 1, (1 << 20) - 1, 1 << 20, (7 << 20) + 5] {
            for later in [0, 1, 131_072, (1 << 20) - 1] {
                let now = RequestTime(ticket + later);
                assert_eq!(latest_ticket(ticket & ((1 << TICKET_BITS) - 1), now), Ticket(ticket), "{later}");
            }
        }
    }

    #[test]
    fn an_address_that_no_system_gives_out_is_not_tracked() {
        let mut table = TrackedBlocks::new();
        for address in [0, 8, 1 << 48, usize::MAX - 15] {
            assert!(!table.insert(address, std::ptr::null(), Ticket(1)), "{address}");
            assert_eq!(table.remove(address, |_| RequestTime(2)), None);
        }
        assert!(table.insert((1 << 48) - 16, std::ptr::null(), Ticket(1)));
    }

    #[test]
    fn the_table_equals_an_ordered_map() {
        let owners = [16usize, 32].map(std::ptr::without_provenance::<BandSequence>);
        let (mut table, mut oracle) = (TrackedBlocks::new(), BTreeMap::new());
        let mut seed = 1u64;
        for i in 0..if cfg!(miri) { 3_000 } else { 200_000u64 } {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let address = 16 * (1 + (seed >> 33) as usize % 4_000);
            match (seed >> 20) % 4 {
                0 | 1 => {
                    let owner = owners[(seed >> 24) as usize % 2];
                    let is_new = oracle.insert(address, (owner, Ticket(i))).is_none();
                    assert_eq!(table.insert(address, owner, Ticket(i)), is_new);
                }
                _ => assert_eq!(table.remove(address, |_| RequestTime(i)), oracle.remove(&address)),
            }
            assert_eq!(table.len, oracle.len());
        }
        let mut removed = Vec::new();
        table.remove_all_of(owners[0], |address| removed.push(address));
        removed.sort_unstable();
        let expected = oracle.iter().filter(|(_, block)| block.0 == owners[0]).map(|(&address, _)| address);
        assert!(expected.eq(removed));
        oracle.retain(|_, block| block.0 != owners[0]);
        for (address, block) in oracle {
            assert_eq!(table.remove(address, |_| RequestTime(200_000)), Some(block));
        }
        assert_eq!(table.remove(16, |_| RequestTime(0)), None);
    }
}

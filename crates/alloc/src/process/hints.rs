//! A counting filter over the addresses of recorded blocks: a free of any other block needs no lock, except for collisions of hashes.

use std::sync::atomic::{AtomicU8, Ordering};

/// A power of two. Together the counts take one page.
const LEN: usize = 1 << 12;

/// A count that reaches this no longer says how many blocks there are: it stays until the table is cleared.
const STUCK: u8 = u8::MAX;

/// For each hash, the number of recorded blocks whose address has it. Written under the process's lock, read without: a thread that frees a
/// block received its address from the thread that allocated it, and with it this count.
#[derive(Debug)]
pub(super) struct Hints([AtomicU8; LEN]);

impl Hints {
    pub const fn new() -> Self {
        Self([const { AtomicU8::new(0) }; LEN])
    }

    /// Blocks begin at multiples of 16.
    fn count(&self, address: usize) -> &AtomicU8 {
        &self.0[(address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize
            >> (usize::BITS - LEN.trailing_zeros())]
    }

    /// Whether a recorded block may begin at an address.
    #[inline]
    pub fn may_contain(&self, address: usize) -> bool {
        self.count(address).load(Ordering::Relaxed) > 0
    }

    /// The caller holds the lock, here and below.
    pub fn add(&self, address: usize) {
        let count = self.count(address);
        count.store(count.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    }

    /// Removes an address that was added.
    pub fn remove(&self, address: usize) {
        let count = self.count(address);
        match count.load(Ordering::Relaxed) {
            STUCK => {}
            blocks => count.store(blocks - 1, Ordering::Relaxed),
        }
    }

    /// Forgets all addresses; no block is recorded.
    pub fn clear(&self) {
        self.0.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_was_added_is_never_missed() {
        let hints = Hints::new();
        let addresses: Vec<usize> = (1..=300 * LEN).map(|i| 16 * i).collect();
        // More than 255 blocks per hash on average: counts get stuck, and none wraps around.
        addresses.iter().for_each(|&address| hints.add(address));
        let (kept, freed) = addresses.split_at(LEN / 64);
        freed.iter().for_each(|&address| hints.remove(address));
        assert!(kept.iter().all(|&address| hints.may_contain(address)));
        assert!(freed.iter().all(|&address| hints.may_contain(address)), "these counts were stuck");
        hints.clear();
        assert!(!addresses.iter().any(|&address| hints.may_contain(address)));
    }

    #[test]
    fn an_address_that_was_removed_is_forgotten() {
        let hints = Hints::new();
        for round in 0..1_000 {
            hints.add(16 * round);
            hints.add(16 * round + 64);
            hints.remove(16 * round);
            assert!(hints.may_contain(16 * round + 64) && !hints.may_contain(16 * round));
            hints.remove(16 * round + 64);
        }
        assert!((0..2_000).all(|i| !hints.may_contain(16 * i)));
    }
}

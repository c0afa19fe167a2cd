//! A planned range of memory, in which every thread can look up and release blocks.
//!
//! Each offset at which a slot begins has a *cell*: the request whose block is live there, or none. Two slots that begin at one offset are
//! never alive together, so one cell is enough for both. Only the thread that owns the sequence occupies cells; any thread may release one.
//! Releasing is one atomic exchange; occupying takes one load for each slot that held the bytes before.

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicU32, Ordering};

use crate::layout::Layout;

/// No live block.
const VACANT: u32 = 0;

/// A planned range of memory.
#[derive(Debug)]
pub struct Arena {
    base: usize,
    bytes: usize,
    /// For each offset where a slot begins, the position of the live block's request plus 1, or [`VACANT`].
    cells: Box<[AtomicU32]>,
    /// Bytes of each request's slot.
    slot_bytes: Box<[usize]>,
    /// Open addressing: offsets, at most half full, each with its cell.
    index: Box<[(usize, u32)]>,
    /// Shift that maps a hash to a position in `index`.
    shift: u32,
}

/// The result of releasing an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// A block began there and is now free.
    Freed,
    /// The address lies in a planned range, but no live block begins there: it was freed twice or never allocated.
    Nothing,
    /// The address lies in no planned range.
    Elsewhere,
}

const EMPTY: usize = usize::MAX;

impl Arena {
    /// The arena of a layout, and the cell of each of its requests (0 for requests without a slot).
    pub fn new(base: usize, layout: &Layout) -> (Self, Vec<u32>) {
        let mut offsets: Vec<usize> = layout.slots.iter().flatten().map(|slot| slot.offset).collect();
        offsets.sort_unstable();
        offsets.dedup();
        let capacity = (2 * offsets.len()).next_power_of_two().max(2);
        let mut index = vec![(EMPTY, 0); capacity].into_boxed_slice();
        let shift = 64 - capacity.trailing_zeros();
        for (cell, &offset) in offsets.iter().enumerate() {
            let mut probe = hash(offset, shift);
            while index[probe].0 != EMPTY {
                probe = (probe + 1) & (capacity - 1);
            }
            index[probe] = (offset, cell as u32);
        }
        let cell = |offset: usize| offsets.binary_search(&offset).unwrap_or_default() as u32;
        let cells = layout.slots.iter().map(|slot| slot.map_or(0, |slot| cell(slot.offset))).collect();
        let arena = Self {
            base,
            bytes: layout.arena_bytes,
            cells: offsets.iter().map(|_| AtomicU32::new(VACANT)).collect(),
            slot_bytes: layout.slots.iter().map(|slot| slot.map_or(0, |slot| slot.bytes)).collect(),
            index,
            shift,
        };
        (arena, cells)
    }

    /// First address.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The cell of an offset at which a slot begins.
    fn cell(&self, address: usize) -> Option<&AtomicU32> {
        let offset = address.wrapping_sub(self.base);
        let mut probe = hash(offset, self.shift);
        loop {
            let (known, cell) = self.index[probe];
            if known == offset {
                return Some(&self.cells[cell as usize]);
            }
            if known == EMPTY {
                return None;
            }
            probe = (probe + 1) & (self.index.len() - 1);
        }
    }

    /// Frees the block that begins at an address within the arena. Callable from any thread.
    pub fn release(&self, address: usize) -> Release {
        // A thread that finds the cell vacant may write to the bytes; this thread's accesses to them must happen before.
        match self.cell(address).map(|cell| cell.swap(VACANT, Ordering::AcqRel)) {
            Some(holder) if holder != VACANT => Release::Freed,
            _ => Release::Nothing,
        }
    }

    /// Usable bytes at an address at which a live block begins.
    pub fn capacity(&self, address: usize) -> Option<usize> {
        let holder = self.cell(address)?.load(Ordering::Relaxed);
        holder.checked_sub(1).map(|request| self.slot_bytes[request as usize])
    }

    /// Whether the block of a request is alive in its cell.
    pub(crate) fn is_live(&self, cell: u32, request: u32) -> bool {
        self.cells[cell as usize].load(Ordering::Acquire) == request + 1
    }

    /// Marks the block of a request as live. Only the sequence's owner calls this, after checking that the bytes are free.
    pub(crate) fn occupy(&self, cell: u32, request: u32) {
        self.cells[cell as usize].store(request + 1, Ordering::Release);
    }

    /// Whether no block is live in it.
    pub fn is_empty(&self) -> bool {
        self.cells.iter().all(|cell| cell.load(Ordering::Acquire) == VACANT)
    }

    /// The ranges of live blocks as (offset, length), in ascending order.
    pub fn occupied(&self) -> Vec<(usize, usize)> {
        let mut occupied: Vec<(usize, usize)> = self
            .index
            .iter()
            .filter(|&&(offset, _)| offset != EMPTY)
            .filter_map(|&(offset, cell)| {
                let holder = self.cells[cell as usize].load(Ordering::Acquire);
                holder.checked_sub(1).map(|request| (offset, self.slot_bytes[request as usize]))
            })
            .collect();
        occupied.sort_unstable();
        occupied
    }
}

fn hash(offset: usize, shift: u32) -> usize {
    ((offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) as usize
}

/// Explores every interleaving of two or three threads: `RUSTFLAGS="--cfg loom" cargo test -p elbowroom-alloc --lib loom`.
#[cfg(all(loom, test))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    use super::*;
    use crate::layout::Slot;

    /// Two requests whose slots share all their bytes, so that each is the other's predecessor.
    fn shared() -> (Arena, Vec<u32>) {
        let slot = Some(Slot { offset: 0, bytes: 64 });
        let layout = Layout {
            slots: vec![slot, slot],
            predecessors: vec![vec![1], vec![0]],
            arena_bytes: 64,
            peak_live: 64,
            align: 64,
        };
        Arena::new(4096, &layout)
    }

    #[test]
    fn bytes_are_given_out_again_only_after_all_that_their_last_holder_did() {
        loom::model(|| {
            let (arena, cells) = shared();
            let (arena, bytes) = (Arc::new(arena), Arc::new(UnsafeCell::new(0u64)));
            arena.occupy(cells[0], 0);
            let other = {
                let (arena, bytes) = (arena.clone(), bytes.clone());
                loom::thread::spawn(move || {
                    // SAFETY: the block is this thread's until it releases it; loom reports any access beside this one.
                    bytes.with_mut(|bytes| unsafe { *bytes = 1 });
                    assert_eq!(arena.release(4096), Release::Freed);
                })
            };
            // As a replay does before it serves a slot: check the previous holder.
            if !arena.is_live(cells[0], 0) {
                arena.occupy(cells[1], 1);
                // SAFETY: the bytes are the second request's now.
                bytes.with_mut(|bytes| unsafe {
                    assert_eq!(*bytes, 1);
                    *bytes = 2;
                });
                assert!(arena.is_live(cells[1], 1));
            }
            other.join().unwrap();
        });
    }

    #[test]
    fn of_two_who_free_one_block_one_has_freed_it() {
        loom::model(|| {
            let (arena, cells) = shared();
            let arena = Arc::new(arena);
            arena.occupy(cells[0], 0);
            let other = {
                let arena = arena.clone();
                loom::thread::spawn(move || arena.release(4096))
            };
            let results = [arena.release(4096), other.join().unwrap()];
            assert_eq!(results.iter().filter(|&&result| result == Release::Freed).count(), 1);
            assert!(arena.is_empty());
        });
    }
}

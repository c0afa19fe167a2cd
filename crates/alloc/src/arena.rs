//! A planned range of memory, in which every thread can look up and release blocks.
//!
//! Each offset at which a slot begins has a *cell*: the request whose block is live there, or none. Two slots that begin at one offset are
//! never alive together, so one cell is enough for both. Only the thread that owns the sequence occupies cells; any thread may release one.
//! Releasing is one atomic exchange; occupying takes one load for each slot that held the bytes before.

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicU32, Ordering, fence};

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
    /// The offset of each cell, in ascending order.
    offsets: Box<[usize]>,
    /// Whether pages may be discarded by a thread other than the owner: one of the states below.
    state: AtomicU32,
    /// Live blocks when free pages were last discarded, if no slot has been served since.
    discarded_with: AtomicU32,
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

/// Slots have been served since the last look.
const ACTIVE: u32 = 0;
/// No slot has been served since the last look, or the arena was idle and holds live blocks.
const CANDIDATE: u32 = 1;
/// Free pages are being discarded: the owner serves nothing.
const FROZEN: u32 = 2;
/// Idle, and without live blocks and pages.
const DISCARDED: u32 = 3;
/// The owner is about to release the range.
const RETIRED: u32 = 4;

/// No count: the free pages may hold something.
const UNKNOWN: u32 = u32::MAX;

/// What became of an attempt to serve a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occupied {
    Yes,
    /// No: its free pages are being discarded.
    Frozen,
    /// No: it was idle, and from now on it is not.
    Woken,
}

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
            state: AtomicU32::new(ACTIVE),
            discarded_with: AtomicU32::new(UNKNOWN),
            offsets: offsets.into(),
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

    /// Marks the block of a request as live, unless another thread is discarding free pages. Only the sequence's owner calls this, after
    /// checking that the bytes are free.
    ///
    /// A fence separates the store to the cell from the load of the state, and another one the change of the state to `FROZEN` from the loads
    /// of the cells: either the owner sees `FROZEN`, or the other thread sees the live block.
    #[inline]
    pub(crate) fn occupy(&self, cell: u32, request: u32) -> Occupied {
        self.cells[cell as usize].store(request + 1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::Acquire) == ACTIVE { Occupied::Yes } else { self.occupy_idle(cell) }
    }

    #[cold]
    fn occupy_idle(&self, cell: u32) -> Occupied {
        let change = |from| self.state.compare_exchange(from, ACTIVE, Ordering::SeqCst, Ordering::SeqCst);
        let answer = match change(CANDIDATE) {
            Ok(_) | Err(ACTIVE) => return Occupied::Yes,
            Err(DISCARDED) if change(DISCARDED).is_ok() => Occupied::Woken,
            Err(_) => Occupied::Frozen,
        };
        self.cells[cell as usize].store(VACANT, Ordering::Release);
        answer
    }

    /// If no slot has been served since the last call, calls a function with each range of free bytes, as (address, length), which no other
    /// thread makes live meanwhile. Returns whether the arena must be looked at again.
    pub(crate) fn discard_if_idle(&self, discard: impl FnMut(usize, usize)) -> bool {
        let change =
            |from, to| self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        match self.state.load(Ordering::SeqCst) {
            ACTIVE => {
                self.discarded_with.store(UNKNOWN, Ordering::Relaxed);
                change(ACTIVE, CANDIDATE);
                true
            }
            CANDIDATE if change(CANDIDATE, FROZEN) => {
                let live =
                    self.cells.iter().filter(|cell| cell.load(Ordering::SeqCst) != VACANT).count() as u32;
                if self.discarded_with.swap(live, Ordering::Relaxed) != live {
                    self.for_each_free_range(discard);
                }
                self.state.store(if live == 0 { DISCARDED } else { CANDIDATE }, Ordering::SeqCst);
                live > 0
            }
            state => state != DISCARDED && state != RETIRED,
        }
    }

    /// Calls a function with each range of free bytes, as (address, length). The caller knows that none of them becomes live meanwhile.
    pub(crate) fn for_each_free_range(&self, mut action: impl FnMut(usize, usize)) {
        let mut free_from = 0;
        for (cell, &offset) in self.cells.iter().zip(&self.offsets) {
            if let Some(request) = cell.load(Ordering::Acquire).checked_sub(1) {
                if offset > free_from {
                    action(self.base + free_from, offset - free_from);
                }
                free_from = free_from.max(offset + self.slot_bytes[request as usize]);
            }
        }
        if self.bytes > free_from {
            action(self.base + free_from, self.bytes - free_from);
        }
    }

    /// In a child process, where no thread discards pages: the next request wakes the arena.
    pub(crate) fn set_idle(&self) {
        if self.state.load(Ordering::SeqCst) != RETIRED {
            self.state.store(DISCARDED, Ordering::SeqCst);
        }
    }

    /// Whether slots have been served since the last look.
    pub(crate) fn is_active(&self) -> bool {
        self.state.load(Ordering::SeqCst) == ACTIVE
    }

    /// Waits until no other thread discards pages, and prevents that from then on. The owner calls this before it releases the range.
    pub(crate) fn retire(&self) {
        loop {
            let state = self.state.load(Ordering::SeqCst);
            let retire = || self.state.compare_exchange(state, RETIRED, Ordering::SeqCst, Ordering::SeqCst);
            if state != FROZEN && retire().is_ok() {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Whether no block is live in it.
    pub fn is_empty(&self) -> bool {
        self.cells.iter().all(|cell| cell.load(Ordering::Acquire) == VACANT)
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
            assert_eq!(arena.occupy(cells[0], 0), Occupied::Yes);
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
                assert_eq!(arena.occupy(cells[1], 1), Occupied::Yes);
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
    fn pages_are_never_discarded_under_a_block_that_becomes_live() {
        loom::model(|| {
            let (arena, cells) = shared();
            let (arena, bytes) = (Arc::new(arena), Arc::new(UnsafeCell::new(0u64)));
            // The first look only makes the arena a candidate.
            assert!(arena.discard_if_idle(|_, _| unreachable!()));
            let other = {
                let (arena, bytes) = (arena.clone(), bytes.clone());
                loom::thread::spawn(move || {
                    arena.discard_if_idle(|_, _| {
                        // SAFETY: no block is live; loom reports any simultaneous access.
                        bytes.with_mut(|bytes| unsafe { *bytes = 0 });
                    });
                })
            };
            if arena.occupy(cells[0], 0) == Occupied::Yes {
                // SAFETY: the bytes are the request's.
                bytes.with_mut(|bytes| unsafe { *bytes = 1 });
            }
            other.join().unwrap();
        });
    }

    #[test]
    fn of_two_who_free_one_block_one_has_freed_it() {
        loom::model(|| {
            let (arena, cells) = shared();
            let arena = Arc::new(arena);
            assert_eq!(arena.occupy(cells[0], 0), Occupied::Yes);
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

//! All arenas of a process, so that any thread can ask whose an address is without a lock.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::arena::{Arena, Release};

/// Most arenas at one time. A program has one or two for each thread that allocates much.
const MAX_ARENAS: usize = 256;

/// An arena with the one that was added previous it.
#[derive(Debug)]
struct ArenaNode {
    arena: Arena,
    previous: *mut ArenaNode,
}

/// The arenas in use. Nothing here takes a lock, so that a process may fork at any moment. Arenas that left are all until the directory
/// goes, because a thread may still be looking at them. They are few: sequences plan again ever more rarely.
#[derive(Debug)]
pub struct Directory {
    entries: [AtomicPtr<ArenaNode>; MAX_ARENAS],
    /// Places from here on have never been used.
    used: AtomicUsize,
    /// All arenas lie between these addresses.
    lowest: AtomicUsize,
    highest: AtomicUsize,
    /// Every arena that was ever here, the latest first.
    all: AtomicPtr<ArenaNode>,
}

// SAFETY: nodes are shared between threads by shared reference only, until the directory is dropped, and an `Arena` is `Sync`. Nodes are
// dropped by whoever drops the directory, and an `Arena` is `Send`.
unsafe impl Sync for Directory {}
// SAFETY: as above.
unsafe impl Send for Directory {}

/// The id of an arena in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaId(usize);

impl Default for Directory {
    fn default() -> Self {
        Self::new()
    }
}

impl Directory {
    /// A directory without arenas.
    pub const fn new() -> Self {
        Self {
            entries: [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_ARENAS],
            used: AtomicUsize::new(0),
            lowest: AtomicUsize::new(usize::MAX),
            highest: AtomicUsize::new(0),
            all: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Adds an arena; `None` if there is no id for it.
    pub fn add(&self, arena: Arena) -> Option<ArenaId> {
        if self.entries.iter().all(|id| !id.load(Ordering::Relaxed).is_null()) {
            return None;
        }
        self.lowest.fetch_min(arena.base(), Ordering::Release);
        self.highest.fetch_max(arena.base() + arena.bytes(), Ordering::Release);
        let mut previous = self.all.load(Ordering::Acquire);
        let node = Box::into_raw(Box::new(ArenaNode { arena, previous }));
        while let Err(latest) = self.all.compare_exchange(previous, node, Ordering::AcqRel, Ordering::Acquire)
        {
            previous = latest;
            // SAFETY: until the exchange succeeds, only this thread knows the node.
            unsafe { (*node).previous = latest };
        }
        let id = self.entries.iter().position(|id| {
            let null = std::ptr::null_mut();
            id.compare_exchange(null, node, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        self.used.fetch_max(id + 1, Ordering::Release);
        Some(ArenaId(id))
    }

    /// Takes an arena out: its addresses are no longer ours.
    pub fn remove(&self, id: ArenaId) {
        self.entries[id.0].store(std::ptr::null_mut(), Ordering::Release);
    }

    /// The arena of a id; `None` once it was removed.
    #[inline]
    pub fn get(&self, id: ArenaId) -> Option<&Arena> {
        let node = self.entries[id.0].load(Ordering::Acquire);
        // SAFETY: the pointer is null or came from `Box::into_raw` in `add`. The box is freed only with the directory, and since the node
        // was published nobody writes to it.
        unsafe { node.as_ref() }.map(|node| &node.arena)
    }

    /// The arena in which an address lies.
    #[inline]
    pub fn find(&self, address: usize) -> Option<&Arena> {
        if address < self.lowest.load(Ordering::Relaxed) || address >= self.highest.load(Ordering::Relaxed) {
            return None;
        }
        let used = self.used.load(Ordering::Acquire);
        (0..used).filter_map(|id| self.get(ArenaId(id))).find(|arena| arena.contains(address))
    }

    /// Frees the block that begins at an address, if a planned range has it.
    #[inline]
    pub fn release(&self, address: usize) -> Release {
        self.find(address).map_or(Release::Elsewhere, |arena| arena.release(address))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let mut node = *self.all.get_mut();
        while !node.is_null() {
            // SAFETY: each node came from `Box::into_raw` in `add`, is in this list once, and nobody can reach the directory any more.
            node = unsafe { Box::from_raw(node) }.previous;
        }
    }
}

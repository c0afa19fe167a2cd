//! All arenas of a process. Any thread can find the arena of an address without a lock.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::arena::{Arena, Release};

/// Maximum number of arenas. A program has one or two per thread that allocates much.
const MAX_ARENAS: usize = 256;

/// An arena, linked to the one that was added before it.
#[derive(Debug)]
struct ArenaNode {
    arena: Arena,
    previous: *mut ArenaNode,
}

/// The arenas in use. No operation takes a lock, so a process may fork at any time. A removed arena is kept until the directory is dropped,
/// because another thread may still be reading it. There are few, because sequences plan again at growing intervals.
#[derive(Debug)]
pub struct Directory {
    entries: [AtomicPtr<ArenaNode>; MAX_ARENAS],
    /// Entries from this index on have never been used.
    used: AtomicUsize,
    /// All arenas lie between these addresses.
    lowest: AtomicUsize,
    highest: AtomicUsize,
    /// Every arena ever added, the latest first.
    all: AtomicPtr<ArenaNode>,
}

// SAFETY: nodes are shared between threads by shared reference only, until the directory is dropped, and an `Arena` is `Sync`. Nodes are
// dropped by whoever drops the directory, and an `Arena` is `Send`.
unsafe impl Sync for Directory {}
// SAFETY: as above.
unsafe impl Send for Directory {}

/// The index of an arena in its directory.
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

    /// Adds an arena; `None` if the directory is full.
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

    /// Removes an arena; its addresses are unknown from then on.
    pub fn remove(&self, id: ArenaId) {
        self.entries[id.0].store(std::ptr::null_mut(), Ordering::Release);
    }

    /// The arena with an id; `None` once it has been removed.
    #[inline]
    pub fn get(&self, id: ArenaId) -> Option<&Arena> {
        let node = self.entries[id.0].load(Ordering::Acquire);
        // SAFETY: the pointer is null or came from `Box::into_raw` in `add`. The box is freed only with the directory, and since the node
        // was published nothing writes to it.
        unsafe { node.as_ref() }.map(|node| &node.arena)
    }

    /// The arena that contains an address.
    #[inline]
    pub fn find(&self, address: usize) -> Option<&Arena> {
        if address < self.lowest.load(Ordering::Relaxed) || address >= self.highest.load(Ordering::Relaxed) {
            return None;
        }
        let used = self.used.load(Ordering::Acquire);
        (0..used).filter_map(|id| self.get(ArenaId(id))).find(|arena| arena.contains(address))
    }

    /// Frees the block that begins at an address, if the address lies in a planned range.
    #[inline]
    pub fn release(&self, address: usize) -> Release {
        self.find(address).map_or(Release::Elsewhere, |arena| arena.release(address))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let mut node = *self.all.get_mut();
        while !node.is_null() {
            // SAFETY: each node came from `Box::into_raw` in `add`, is in this list once, and the directory is unreachable.
            node = unsafe { Box::from_raw(node) }.previous;
        }
    }
}

//! All arenas of a process, so that any thread can ask whose an address is without a lock.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::arena::{Arena, Release};

/// Most arenas at one time. A program has one or two for each thread that allocates much.
const MOST: usize = 256;

/// An arena with the one that was added before it.
#[derive(Debug)]
struct Node {
    arena: Arena,
    before: *mut Node,
}

/// The arenas in use. Nothing here takes a lock, so that a process may fork at any moment. Arenas that left are kept until the directory
/// goes, because a thread may still be looking at them. They are few: sequences plan again ever more rarely.
#[derive(Debug)]
pub struct Directory {
    places: [AtomicPtr<Node>; MOST],
    /// Places from here on have never been used.
    used: AtomicUsize,
    /// All arenas lie between these addresses.
    lowest: AtomicUsize,
    highest: AtomicUsize,
    /// Every arena that was ever here, the latest first.
    kept: AtomicPtr<Node>,
}

// SAFETY: nodes are shared between threads by shared reference only, until the directory is dropped, and an `Arena` is `Sync`. Nodes are
// dropped by whoever drops the directory, and an `Arena` is `Send`.
unsafe impl Sync for Directory {}
// SAFETY: as above.
unsafe impl Send for Directory {}

/// The place of an arena in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(usize);

impl Default for Directory {
    fn default() -> Self {
        Self::new()
    }
}

impl Directory {
    /// A directory without arenas.
    pub const fn new() -> Self {
        Self {
            places: [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST],
            used: AtomicUsize::new(0),
            lowest: AtomicUsize::new(usize::MAX),
            highest: AtomicUsize::new(0),
            kept: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Adds an arena; `None` if there is no place for it.
    pub fn add(&self, arena: Arena) -> Option<Place> {
        if self.places.iter().all(|place| !place.load(Ordering::Relaxed).is_null()) {
            return None;
        }
        self.lowest.fetch_min(arena.base(), Ordering::Release);
        self.highest.fetch_max(arena.base() + arena.bytes(), Ordering::Release);
        let mut before = self.kept.load(Ordering::Acquire);
        let node = Box::into_raw(Box::new(Node { arena, before }));
        while let Err(latest) = self.kept.compare_exchange(before, node, Ordering::AcqRel, Ordering::Acquire)
        {
            before = latest;
            // SAFETY: until the exchange succeeds, only this thread knows the node.
            unsafe { (*node).before = latest };
        }
        let place = self.places.iter().position(|place| {
            let null = std::ptr::null_mut();
            place.compare_exchange(null, node, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        self.used.fetch_max(place + 1, Ordering::Release);
        Some(Place(place))
    }

    /// Takes an arena out: its addresses are no longer ours.
    pub fn remove(&self, place: Place) {
        self.places[place.0].store(std::ptr::null_mut(), Ordering::Release);
    }

    /// The arena of a place; `None` once it was removed.
    #[inline]
    pub fn get(&self, place: Place) -> Option<&Arena> {
        let node = self.places[place.0].load(Ordering::Acquire);
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
        (0..used).filter_map(|place| self.get(Place(place))).find(|arena| arena.contains(address))
    }

    /// Frees the block that begins at an address, if a planned range has it.
    #[inline]
    pub fn release(&self, address: usize) -> Release {
        self.find(address).map_or(Release::Elsewhere, |arena| arena.release(address))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let mut node = *self.kept.get_mut();
        while !node.is_null() {
            // SAFETY: each node came from `Box::into_raw` in `add`, is in this list once, and nobody can reach the directory any more.
            node = unsafe { Box::from_raw(node) }.before;
        }
    }
}

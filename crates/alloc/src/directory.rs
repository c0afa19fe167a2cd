//! All arenas of a process, so that any thread can ask whose an address is without a lock.

use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::arena::{Arena, Release};

/// Most arenas at one time. A program has one or two for each thread that allocates much.
const MOST: usize = 256;

/// The arenas in use. Looking up takes no lock; arenas that left are kept until the directory goes, because a thread may still be
/// looking at them. They are few: sequences plan again ever more rarely.
#[derive(Debug)]
pub struct Directory {
    places: [AtomicPtr<Arena>; MOST],
    /// Places from here on have never been used.
    used: AtomicUsize,
    /// All arenas lie between these addresses.
    lowest: AtomicUsize,
    highest: AtomicUsize,
    /// Every arena that was ever here.
    kept: Mutex<Vec<AtomicPtr<Arena>>>,
}

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
            kept: Mutex::new(Vec::new()),
        }
    }

    /// Adds an arena; gives it back if there is no place.
    pub fn add(&self, arena: Arena) -> Result<Place, Arena> {
        let mut kept = self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(place) = self.places.iter().position(|place| place.load(Ordering::Relaxed).is_null()) else {
            return Err(arena);
        };
        self.lowest.fetch_min(arena.base(), Ordering::Release);
        self.highest.fetch_max(arena.base() + arena.bytes(), Ordering::Release);
        let arena = Box::into_raw(Box::new(arena));
        kept.push(AtomicPtr::new(arena));
        self.places[place].store(arena, Ordering::Release);
        self.used.fetch_max(place + 1, Ordering::Release);
        Ok(Place(place))
    }

    /// Takes an arena out: its addresses are no longer ours.
    pub fn remove(&self, place: Place) {
        self.places[place.0].store(std::ptr::null_mut(), Ordering::Release);
    }

    /// The arena of a place; `None` once it was removed.
    pub fn get(&self, place: Place) -> Option<&Arena> {
        let arena = self.places[place.0].load(Ordering::Acquire);
        // SAFETY: the pointer is null or came from `Box::into_raw` in `add`; the box is freed only with the directory, and nobody has a
        // mutable reference to it.
        unsafe { arena.as_ref() }
    }

    /// The arena in which an address lies.
    pub fn find(&self, address: usize) -> Option<&Arena> {
        if address < self.lowest.load(Ordering::Relaxed) || address >= self.highest.load(Ordering::Relaxed) {
            return None;
        }
        let used = self.used.load(Ordering::Acquire);
        (0..used).filter_map(|place| self.get(Place(place))).find(|arena| arena.contains(address))
    }

    /// Frees the block that begins at an address, if a planned range has it.
    pub fn release(&self, address: usize) -> Release {
        self.find(address).map_or(Release::Elsewhere, |arena| arena.release(address))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let kept = self.kept.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for arena in kept.drain(..) {
            // SAFETY: each pointer came from `Box::into_raw` in `add`, is in this list once, and nobody can reach the directory any more.
            drop(unsafe { Box::from_raw(arena.into_inner()) });
        }
    }
}

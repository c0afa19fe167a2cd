//! All arenas of a process. Any thread can find the arena of an address without a lock.

use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use crate::arena::{Arena, Release};

/// Maximum number of arenas. A program has one or two per thread that allocates much.
const MAX_ARENAS: usize = 256;

/// An arena, linked to the one that was added before it.
#[derive(Debug)]
struct ArenaNode {
    arena: Arena,
    previous: *mut ArenaNode,
}

/// The arenas at one time, in ascending order of their addresses, linked to the list that it replaced.
#[derive(Debug)]
struct SortedArenas {
    /// First address, address behind the last, and the arena.
    ranges: Box<[(usize, usize, *mut ArenaNode)]>,
    previous: *mut SortedArenas,
}

/// The arenas in use. No operation takes a lock, so a process may fork at any time. A search takes logarithmic time. A removed arena and a
/// replaced list are kept until the directory is dropped, because another thread may still be reading them. There are few, because
/// sequences plan again at growing intervals.
#[derive(Debug)]
pub struct Directory {
    entries: [AtomicPtr<ArenaNode>; MAX_ARENAS],
    /// The arenas of `entries`, sorted.
    sorted: AtomicPtr<SortedArenas>,
    /// All arenas lie between these addresses.
    lowest: AtomicUsize,
    highest: AtomicUsize,
    /// Every arena ever added, the latest first.
    all: AtomicPtr<ArenaNode>,
    /// Whether an idle arena is in use again.
    woken: AtomicBool,
}

// SAFETY: nodes are shared between threads by shared reference only, until the directory is dropped, and an `Arena` is `Sync`. Nodes are
// dropped with the directory, on any thread, and an `Arena` is `Send`.
unsafe impl Sync for Directory {}
// SAFETY: as above.
unsafe impl Send for Directory {}

/// The index of an arena in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArenaId(usize);

/// A shared reference to a directory that always refers to the same one: `&Directory`, `Rc<Directory>` or `Arc<Directory>`.
pub trait SharedDirectory: Deref<Target = Directory> + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for &Directory {}
impl SharedDirectory for &Directory {}
impl sealed::Sealed for Rc<Directory> {}
impl SharedDirectory for Rc<Directory> {}
impl sealed::Sealed for Arc<Directory> {}
impl SharedDirectory for Arc<Directory> {}

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
            sorted: AtomicPtr::new(std::ptr::null_mut()),
            lowest: AtomicUsize::new(usize::MAX),
            highest: AtomicUsize::new(0),
            all: AtomicPtr::new(std::ptr::null_mut()),
            woken: AtomicBool::new(false),
        }
    }

    /// Adds an arena; `None` if the directory is full, or another of its arenas shares an address with this one, as ranges of two memories may
    /// do: an address tells which block is freed.
    pub(crate) fn add(&self, arena: Arena) -> Option<ArenaId> {
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
        // SAFETY: nodes are freed only with the directory, and since the node was published nothing writes to it.
        let arena = unsafe { &(*node).arena };
        let (base, end) = (arena.base(), arena.base() + arena.bytes());
        let is_apart = Cell::new(false);
        self.replace_sorted(|ranges| {
            let (before, after) = ranges.split_at(ranges.partition_point(|&(start, ..)| start < base));
            let at = before.len();
            let begins_free = before.last().is_none_or(|&(_, other, _)| other <= base);
            is_apart.set(begins_free && after.first().is_none_or(|&(start, ..)| end <= start));
            if is_apart.get() {
                ranges.insert(at, (base, end, node));
            }
        });
        if !is_apart.get() {
            self.entries[id].store(std::ptr::null_mut(), Ordering::Release);
            return None;
        }
        Some(ArenaId(id))
    }

    /// Removes an arena; its addresses are unknown from then on.
    pub(crate) fn remove(&self, id: ArenaId) {
        let node = self.entries[id.0].swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !node.is_null() {
            self.replace_sorted(|ranges| ranges.retain(|&(.., other)| other != node));
        }
    }

    /// Replaces the sorted list by a changed copy.
    fn replace_sorted(&self, change: impl Fn(&mut Vec<(usize, usize, *mut ArenaNode)>)) {
        let mut previous = self.sorted.load(Ordering::Acquire);
        loop {
            // SAFETY: the pointer is null or came from `Box::into_raw` below. The box is freed only with the directory, and since the list
            // was published nothing writes to it.
            let mut ranges = unsafe { previous.as_ref() }.map_or(Vec::new(), |sorted| sorted.ranges.to_vec());
            change(&mut ranges);
            let new = Box::into_raw(Box::new(SortedArenas { ranges: ranges.into(), previous }));
            match self.sorted.compare_exchange(previous, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(latest) => {
                    // SAFETY: the exchange failed, so only this thread knows the new list.
                    drop(unsafe { Box::from_raw(new) });
                    previous = latest;
                }
            }
        }
    }

    /// The arena with an id; `None` once it has been removed.
    #[inline]
    pub(crate) fn get(&self, id: ArenaId) -> Option<&Arena> {
        let node = self.entries[id.0].load(Ordering::Acquire);
        // SAFETY: the pointer is null or came from `Box::into_raw` in `add`. The box is freed only with the directory, and since the node
        // was published nothing writes to it.
        unsafe { node.as_ref() }.map(|node| &node.arena)
    }

    /// All arenas, in ascending order of their addresses.
    pub(crate) fn arenas(&self) -> impl Iterator<Item = &Arena> {
        // SAFETY: as in `replace_sorted`.
        let sorted = unsafe { self.sorted.load(Ordering::Acquire).as_ref() };
        // SAFETY: as in `get`; the list holds no null pointers.
        sorted.into_iter().flat_map(|sorted| &sorted.ranges).map(|&(.., node)| unsafe { &(*node).arena })
    }

    /// Records that an idle arena is in use again.
    pub(crate) fn wake(&self) {
        self.woken.store(true, Ordering::Relaxed);
    }

    /// Returns whether an idle arena is in use again, once.
    #[inline]
    pub(crate) fn take_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::Relaxed)
    }

    /// Whether an address lies between the first byte of the lowest arena so far and the last byte of the highest. All other addresses lie in
    /// none.
    #[inline]
    pub(crate) fn spans(&self, address: usize) -> bool {
        address >= self.lowest.load(Ordering::Relaxed) && address < self.highest.load(Ordering::Relaxed)
    }

    /// The arena that contains an address.
    #[inline]
    pub(crate) fn find(&self, address: usize) -> Option<&Arena> {
        if !self.spans(address) {
            return None;
        }
        // SAFETY: as in `replace_sorted`.
        let ranges = &unsafe { self.sorted.load(Ordering::Acquire).as_ref() }?.ranges;
        let behind = ranges.partition_point(|&(start, ..)| start <= address);
        let &(_, end, node) = ranges.get(behind.checked_sub(1)?)?;
        // SAFETY: as in `get`; the list holds no null pointers.
        (address < end).then(|| unsafe { &(*node).arena })
    }

    /// Usable bytes of a block: `None` if the address lies in no planned range, 0 if it does and no live block begins there.
    #[inline]
    pub fn capacity(&self, address: usize) -> Option<usize> {
        self.find(address).map(|arena| arena.capacity(address).unwrap_or(0))
    }

    /// Frees the block that begins at an address, if the address lies in a planned range.
    ///
    /// ```compile_fail,E0133
    /// elbowroom_alloc::Directory::new().release(4096);
    /// ```
    ///
    /// # Safety
    /// If a block begins at the address, nothing uses its bytes any more.
    #[inline]
    pub unsafe fn release(&self, address: usize) -> Release {
        self.find(address).map_or(Release::Elsewhere, |arena| arena.release(address))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let mut sorted = *self.sorted.get_mut();
        while !sorted.is_null() {
            // SAFETY: each list came from `Box::into_raw`, is linked once, and the directory is unreachable.
            sorted = unsafe { Box::from_raw(sorted) }.previous;
        }
        let mut node = *self.all.get_mut();
        while !node.is_null() {
            // SAFETY: each node came from `Box::into_raw` in `add`, is in this list once, and the directory is unreachable.
            node = unsafe { Box::from_raw(node) }.previous;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Layout, Slot};

    fn arena(base: usize, bytes: usize) -> Arena {
        let slot = Some(Slot { offset: 0, bytes });
        let layout = Layout {
            slots: vec![slot],
            predecessors: vec![vec![0]],
            arena_bytes: bytes,
            peak_live: bytes,
            align: 64,
        };
        Arena::new(base, &layout).0
    }

    #[test]
    fn an_arena_that_shares_an_address_with_another_one_is_refused() {
        let directory = Directory::new();
        let id = directory.add(arena(8192, 8192)).unwrap();
        for (base, bytes) in [(8192, 8192), (4096, 4097), (16383, 64), (4096, 1 << 16), (12288, 64)] {
            assert!(directory.add(arena(base, bytes)).is_none(), "{base} {bytes}");
        }
        assert_eq!(directory.arenas().count(), 1);
        assert!(directory.add(arena(4096, 4096)).is_some() && directory.add(arena(16384, 64)).is_some());
        directory.remove(id);
        assert!(directory.add(arena(12288, 64)).is_some(), "its addresses are free again");
        let places = 2 * MAX_ARENAS;
        (0..places).for_each(|_| assert!(directory.add(arena(12288, 64)).is_none()));
        assert!(directory.add(arena(1 << 20, 64)).is_some(), "no entry is left of a refused arena");
    }

    #[test]
    fn every_address_is_found_in_its_arena_alone() {
        let directory = Directory::new();
        let bases: Vec<usize> = (0..100).map(|i| 4096 * (1 + 3 * (i * 37 % 100))).collect();
        let ids: Vec<ArenaId> =
            bases.iter().map(|&base| directory.add(arena(base, 4096 + base % 8192 / 2)).unwrap()).collect();
        let check = |expected: &dyn Fn(usize) -> bool| {
            for (at, &base) in bases.iter().enumerate() {
                let bytes = 4096 + base % 8192 / 2;
                for (address, inside) in
                    [(base - 1, false), (base, true), (base + bytes - 1, true), (base + bytes, false)]
                {
                    let found = directory.find(address).map(Arena::base);
                    assert_eq!(found, (inside && expected(at)).then_some(base), "{address}");
                }
            }
        };
        check(&|_| true);
        ids.iter().step_by(2).for_each(|&id| directory.remove(id));
        check(&|at| at % 2 == 1);
    }
}

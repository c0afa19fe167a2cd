//! Growable arrays in pages of their own: what the allocator records neither uses nor fragments the heap that it describes, needs no other
//! allocator's locks, and returns to the system at once when it is dropped.

use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A growable array of plain values in anonymous pages.
pub(crate) struct PageVec<T: Copy> {
    start: NonNull<T>,
    len: usize,
    /// Elements that fit the mapping; 0 without one.
    capacity: usize,
}

// SAFETY: the pages are the array's own, and access follows the borrow of the array.
unsafe impl<T: Copy + Send> Send for PageVec<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Sync> Sync for PageVec<T> {}

/// Bytes of the first mapping. Pages are committed by the first write, so an unused part costs address space only.
const FIRST: usize = 64 << 10;

/// A type of which a value of zero bytes is one.
///
/// # Safety
/// A value may consist of zero bytes.
pub(crate) unsafe trait Zeroable: Copy {}

// SAFETY: zero is a number.
unsafe impl Zeroable for u32 {}
// SAFETY: as above.
unsafe impl Zeroable for u64 {}

impl<T: Zeroable> PageVec<T> {
    /// An array of `len` values of zero bytes; `None` if the system has no memory. Its pages are committed when they are first written.
    pub fn zeroed(len: usize) -> Option<Self> {
        let mut new = Self::new();
        new.grow(len)?;
        // The pages of a new mapping are zero.
        new.len = len;
        Some(new)
    }
}

impl<T: Copy> PageVec<T> {
    pub const fn new() -> Self {
        Self { start: NonNull::dangling(), len: 0, capacity: 0 }
    }

    /// Appends a value; `None`, without an effect, if the system has no memory.
    #[inline]
    pub fn push(&mut self, value: T) -> Option<()> {
        if self.len == self.capacity {
            self.grow((2 * self.len).max(FIRST / size_of::<T>()))?;
        }
        // SAFETY: below the capacity.
        unsafe { self.start.add(self.len).write(value) };
        self.len += 1;
        Some(())
    }

    /// Removes all values. Keeps the pages.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    #[cold]
    fn grow(&mut self, capacity: usize) -> Option<()> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= 4096) };
        if capacity == 0 {
            return Some(());
        }
        let bytes = capacity.checked_mul(size_of::<T>())?.checked_next_multiple_of(FIRST)?;
        let new = match self.mapped_bytes() {
            0 => map(bytes)?,
            // SAFETY: the mapping was made here with this length, and the array is borrowed.
            old => unsafe { remap(self.start.cast(), old, bytes)? },
        };
        (self.start, self.capacity) = (new.cast(), bytes / size_of::<T>());
        Some(())
    }

    /// Bytes of the mapping.
    fn mapped_bytes(&self) -> usize {
        (self.capacity * size_of::<T>()).next_multiple_of(FIRST)
    }

    fn unmap(&mut self) {
        if self.capacity > 0 {
            // SAFETY: the mapping was made by `grow` with this length, and nothing refers to it any more.
            unsafe { unmap(self.start.cast(), self.mapped_bytes()) };
        }
    }
}

impl<T: Copy> Drop for PageVec<T> {
    fn drop(&mut self) {
        self.unmap();
    }
}

impl<T: Copy> Deref for PageVec<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the first `len` elements have been written.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy> DerefMut for PageVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the first `len` elements have been written.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy> Clone for PageVec<T> {
    fn clone(&self) -> Self {
        let mut new = Self::new();
        if new.grow(self.len).is_some() {
            // SAFETY: the new mapping has room for `len` elements.
            unsafe { new.start.copy_from_nonoverlapping(self.start, self.len) };
            new.len = self.len;
        }
        new
    }
}

impl<T: Copy> std::fmt::Debug for PageVec<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageVec({})", self.len)
    }
}

/// Pages for values that are never dropped, so that these lie between none of the program's blocks.
#[derive(Debug)]
pub(crate) struct Forever {
    /// Behind the latest value; null before there is one.
    free: AtomicPtr<u8>,
}

const PAGE: usize = 4096;

impl Forever {
    pub const fn new() -> Self {
        Self { free: AtomicPtr::new(null_mut()) }
    }

    /// Puts a value in its place for good; `None`, and the value is dropped, if the system has no memory.
    pub fn place<T>(&self, value: T) -> Option<&'static mut T> {
        const { assert!(size_of::<T>() < PAGE && align_of::<T>() <= 64) };
        let bytes = size_of::<T>().next_multiple_of(64);
        // Before a thread writes into a page, it must have seen that another thread mapped it.
        let mut free = self.free.load(Ordering::Acquire);
        loop {
            // A full page ends where another one begins, which may be of any use.
            let used = free.addr() % PAGE;
            let new = if used == 0 || used + bytes > PAGE { Some(map(PAGE)?) } else { None };
            let at = new.map_or(free, NonNull::as_ptr);
            match self.free.compare_exchange(
                free,
                at.wrapping_add(bytes),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    let at = at.cast::<T>();
                    // SAFETY: the exchange gave these bytes, which lie in a page of this value, to this call alone. No bytes are
                    // given back, so that an equal address means an equal state.
                    unsafe {
                        at.write(value);
                        return Some(&mut *at);
                    }
                }
                Err(latest) => {
                    if let Some(new) = new {
                        // SAFETY: mapped above, and not used.
                        unsafe { unmap(new, PAGE) };
                    }
                    free = latest;
                }
            }
        }
    }
}

#[cfg(not(miri))]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the system's choice.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }.ok()?;
    NonNull::new(start.cast())
}

/// # Safety
/// The range came from [`map`] or [`remap`] with this length and is unused.
#[cfg(not(miri))]
unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { rustix::mm::munmap(start.as_ptr().cast(), bytes) };
}

/// Miri has no such calls of the system.
#[cfg(miri)]
fn layout(bytes: usize) -> Option<std::alloc::Layout> {
    std::alloc::Layout::from_size_align(bytes, 4096).ok()
}

#[cfg(miri)]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: the length is not zero.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout(bytes)?) })
}

/// # Safety
/// The range came from [`map`] or [`remap`] with this length and is unused.
#[cfg(miri)]
unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    if let Some(layout) = layout(bytes) {
        // SAFETY: the caller's promise.
        unsafe { std::alloc::dealloc(start.as_ptr(), layout) };
    }
}

/// Makes a mapping longer, at another address if need be. Linux moves its pages, so that none is held twice.
///
/// # Safety
/// The range came from [`map`] or this function with this length, and nothing refers to it.
#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
unsafe fn remap(start: NonNull<u8>, old: usize, bytes: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{MremapFlags, mremap};
    // SAFETY: the caller's promise.
    let new = unsafe { mremap(start.as_ptr().cast(), old, bytes, MremapFlags::MAYMOVE) }.ok()?;
    NonNull::new(new.cast())
}

/// Makes a mapping longer: another one, to which the bytes are copied. Miri and other systems have no call for it.
///
/// # Safety
/// The range came from [`map`] or this function with this length, and nothing refers to it.
#[cfg(not(all(any(target_os = "linux", target_os = "android"), not(miri))))]
unsafe fn remap(start: NonNull<u8>, old: usize, bytes: usize) -> Option<NonNull<u8>> {
    let new = map(bytes)?;
    // SAFETY: both ranges have this length, and the new one was made above; the caller's promise.
    unsafe {
        new.copy_from_nonoverlapping(start, old.min(bytes));
        unmap(start, old);
    }
    Some(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_stay_share_pages_and_no_bytes() {
        static PLACES: Forever = Forever::new();
        let threads = (0..4u64).map(|thread| {
            std::thread::spawn(move || {
                (0..100).map(|i| PLACES.place([thread * 100 + i; 150]).unwrap()).collect()
            })
        });
        let all: Vec<Vec<&mut [u64; 150]>> =
            threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect();
        let mut pages: Vec<usize> =
            all.iter().flatten().map(|place| std::ptr::from_ref(&**place).addr() / PAGE).collect();
        assert!(all.iter().flatten().enumerate().all(|(i, place)| **place == [i as u64; 150]));
        pages.sort_unstable();
        pages.dedup();
        assert!((134..=140).contains(&pages.len()), "three to a page, {}", pages.len());
    }

    #[test]
    fn values_survive_growth() {
        let mut array = PageVec::new();
        let many = if cfg!(miri) { 10_000 } else { 300_000u64 };
        (0..many).for_each(|i| array.push(i).unwrap());
        assert!(array.iter().copied().eq(0..many));
        let copy = array.clone();
        array.clear();
        assert!(array.is_empty() && copy.len() as u64 == many);
        assert_eq!(*PageVec::<u32>::zeroed(3).unwrap(), [0, 0, 0]);
        assert!(PageVec::<u64>::zeroed(usize::MAX).is_none());
        // Miri ends where a system would refuse.
        assert!(cfg!(miri) || PageVec::<u64>::zeroed(1 << 58).is_none());
    }
}

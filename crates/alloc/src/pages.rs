//! Growable arrays in pages of their own: what the allocator records neither uses nor fragments the heap that it describes, needs no other
//! allocator's locks, and returns to the system at once when it is dropped.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

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

impl<T: Copy> PageVec<T> {
    pub const fn new() -> Self {
        Self { start: NonNull::dangling(), len: 0, capacity: 0 }
    }

    /// An array of `len` copies of a value; `None` if the system has no memory.
    pub fn filled(len: usize, value: T) -> Option<Self> {
        let mut new = Self::new();
        new.grow(len)?;
        for at in 0..len {
            // SAFETY: below the capacity.
            unsafe { new.start.add(at).write(value) };
        }
        new.len = len;
        Some(new)
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
        let new = map(bytes)?.cast::<T>();
        // SAFETY: both mappings have room for `len` elements, and the new one was made above.
        unsafe { new.copy_from_nonoverlapping(self.start, self.len) };
        self.unmap();
        (self.start, self.capacity) = (new, bytes / size_of::<T>());
        Some(())
    }

    fn unmap(&mut self) {
        if self.capacity > 0 {
            let bytes = (self.capacity * size_of::<T>()).next_multiple_of(FIRST);
            // SAFETY: the mapping was made by `grow` with this length, and nothing refers to it any more.
            unsafe { unmap(self.start.cast(), bytes) };
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

#[cfg(not(miri))]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the system's choice.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }.ok()?;
    NonNull::new(start.cast())
}

/// # Safety
/// The range came from [`map`] with this length and is unused.
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
/// The range came from [`map`] with this length and is unused.
#[cfg(miri)]
unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    if let Some(layout) = layout(bytes) {
        // SAFETY: the caller's promise.
        unsafe { std::alloc::dealloc(start.as_ptr(), layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_growth() {
        let mut array = PageVec::new();
        let many = if cfg!(miri) { 10_000 } else { 300_000u64 };
        (0..many).for_each(|i| array.push(i).unwrap());
        assert!(array.iter().copied().eq(0..many));
        let copy = array.clone();
        array.clear();
        assert!(array.is_empty() && copy.len() as u64 == many);
        assert_eq!(*PageVec::filled(3, 7u32).unwrap(), [7, 7, 7]);
        assert!(PageVec::<u64>::filled(usize::MAX, 0).is_none());
        // Miri ends where a system would refuse.
        assert!(cfg!(miri) || PageVec::<u64>::filled(1 << 58, 0).is_none());
    }
}

//! The arena: one mapping of exactly the limit, followed by a guard page.
//!
//! ```text
//! 0              arena size        limit   end of page
//! ├─ placement ─┤├─── pattern ─────┤├──────┤├─ guard page ─┤
//! ```
//!
//! Pages are committed by the first write to them, so resident memory counts only what a plan uses. The base is aligned to a page.

use std::ptr::NonNull;

use elbowroom_ir::Bytes;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::error::EngineError;

/// A range of the arena: `offset .. offset + len`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First byte.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
}

impl Extent {
    /// The offset behind its last byte.
    pub const fn end(self) -> usize {
        self.offset + self.len
    }

    /// The part that starts at byte `skip` and has at most `len` bytes.
    pub fn part(self, skip: usize, len: usize) -> Self {
        let skip = skip.min(self.len);
        Self { offset: self.offset + skip, len: len.min(self.len - skip) }
    }
}

/// Byte `i` of the pattern that detects writes above the plan's arena size. It varies within every word, so that no fill value looks like
/// it.
const fn pattern(i: usize) -> u8 {
    (i as u32).wrapping_mul(0x9E37_79B1).to_be_bytes()[0] ^ 0xA5
}

/// At most this many bytes are filled. A limit may be far above the arena size, and filling commits pages.
const PAINTED: usize = 256 << 20;

/// Memory of a fixed size at a fixed address.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    mapped: usize,
    limit: usize,
}

// SAFETY: the mapping belongs to the arena alone and lives until the arena is dropped; callers that make slices of it promise that they do
// not conflict.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves `limit` bytes, rounded up to pages, and a guard page behind them.
    ///
    /// # Errors
    /// The operating system refuses the mapping.
    pub fn new(limit: Bytes) -> Result<Self, EngineError> {
        let failed = |source: rustix::io::Errno| EngineError::Arena { limit, source: source.into() };
        let page = rustix::param::page_size();
        let limit = usize::try_from(limit.get()).map_err(|_| failed(rustix::io::Errno::NOMEM))?;
        let usable =
            limit.max(1).checked_next_multiple_of(page).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        let mapped = usable.checked_add(page).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a fresh anonymous mapping at an address of the system's choice.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, access, flags) }.map_err(failed)?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        let arena = Self { base, mapped, limit };
        // SAFETY: the last page of the mapping, of which no slice exists.
        unsafe { mprotect(base.as_ptr().add(usable).cast(), page, MprotectFlags::empty()) }
            .map_err(failed)?;
        Ok(arena)
    }

    /// Bytes that may be used.
    pub fn limit(&self) -> Bytes {
        Bytes(self.limit as u64)
    }

    /// The address of a range.
    ///
    /// # Panics
    /// The range exceeds the limit. Plans are proved, so this would be a defect.
    pub fn pointer(&self, extent: Extent) -> *mut u8 {
        let fits = extent.offset.checked_add(extent.len).is_some_and(|end| end <= self.limit);
        assert!(fits, "{extent:?} is not within the {} bytes of the arena", self.limit);
        // SAFETY: the range lies in the mapping.
        unsafe { self.base.as_ptr().add(extent.offset) }
    }

    /// A range, for reading.
    ///
    /// # Safety
    /// Nothing writes to the range while the slice lives.
    pub unsafe fn bytes(&self, extent: Extent) -> &[u8] {
        // SAFETY: `pointer` has checked the range, anonymous memory is initialized, and the caller prevents writes.
        unsafe { std::slice::from_raw_parts(self.pointer(extent), extent.len) }
    }

    /// A range, for writing.
    ///
    /// # Safety
    /// Nothing else reads or writes the range while the slice lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller promises that ranges handed out at the same time are disjoint"
    )]
    pub unsafe fn bytes_mut(&self, extent: Extent) -> &mut [u8] {
        // SAFETY: as in `bytes`, and the caller prevents all other accesses.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(extent), extent.len) }
    }

    /// The range from `from` to the limit, at most [`PAINTED`] bytes.
    fn above(&self, from: Bytes) -> Extent {
        let offset = usize::try_from(from.get()).unwrap_or(usize::MAX).min(self.limit);
        Extent { offset, len: PAINTED.min(self.limit - offset) }
    }

    /// Fills the bytes from `from` on with the pattern, up to the limit and at most [`PAINTED`] bytes.
    ///
    /// # Safety
    /// Nothing uses these bytes during the call.
    pub unsafe fn paint(&self, from: Bytes) {
        let range = self.above(from);
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.bytes_mut(range) };
        bytes.iter_mut().zip(range.offset..).for_each(|(byte, i)| *byte = pattern(i));
    }

    /// The offset of the first byte from `from` on that does not hold the pattern, or `None` if all do.
    ///
    /// # Safety
    /// Nothing writes these bytes during the call.
    pub unsafe fn first_overwritten(&self, from: Bytes) -> Option<Bytes> {
        let range = self.above(from);
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.bytes(range) };
        let stain = bytes.iter().zip(range.offset..).find(|&(&byte, i)| byte != pattern(i));
        stain.map(|(_, i)| Bytes(i as u64))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is the arena's own, and no slice of it exists any more. A failure would leak it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_shows_every_stain_above_a_height() {
        let arena = Arena::new(Bytes(10_000)).unwrap();
        assert_eq!(arena.limit(), Bytes(10_000));
        assert_eq!(arena.pointer(Extent { offset: 0, len: 1 }) as usize % 4096, 0);
        // SAFETY: this thread alone uses the arena.
        unsafe {
            arena.paint(Bytes(100));
            assert_eq!(arena.first_overwritten(Bytes(100)), None);
            arena.bytes_mut(Extent { offset: 0, len: 100 }).fill(7);
            assert_eq!(arena.first_overwritten(Bytes(100)), None, "below the height everything is allowed");
            for at in [100, 5_000, 9_999] {
                arena.bytes_mut(Extent { offset: at, len: 1 })[0] ^= 1;
                assert_eq!(arena.first_overwritten(Bytes(100)), Some(Bytes(at as u64)));
                arena.bytes_mut(Extent { offset: at, len: 1 })[0] ^= 1;
            }
            assert_eq!(arena.first_overwritten(Bytes(10_000)), None);
        }
    }

    #[test]
    fn ranges_past_the_limit_are_refused_before_anything_is_touched() {
        let arena = Arena::new(Bytes(100)).unwrap();
        for (offset, len) in [(0, 101), (100, 1), (usize::MAX, 2)] {
            let outcome = std::panic::catch_unwind(|| arena.pointer(Extent { offset, len }));
            assert!(outcome.is_err(), "{offset} {len}");
        }
        arena.pointer(Extent { offset: 100, len: 0 });
    }

    #[test]
    fn a_generous_limit_is_not_painted_as_a_whole() {
        let arena = Arena::new(Bytes(1 << 32)).unwrap();
        assert_eq!(arena.above(Bytes(100)), Extent { offset: 100, len: PAINTED });
        assert_eq!(arena.above(Bytes((1 << 32) - 7)).len, 7);
        assert_eq!(arena.above(Bytes(1 << 40)).len, 0);
    }

    #[test]
    fn an_arena_larger_than_any_memory_is_an_error() {
        let error = Arena::new(Bytes(1 << 62)).unwrap_err();
        assert!(error.to_string().contains("arena"), "{error}");
    }
}

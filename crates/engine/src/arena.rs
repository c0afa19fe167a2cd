//! The arena: one mapping of exactly the limit, followed by a guard page.
//!
//! ```text
//! 0              arena size   2 MiB boundary     limit   end of page
//! ├─ placement ─┤├─ pattern ─┤├─ never touched ─┤├──────┤├─ guard page ─┤
//! ```
//!
//! Pages are committed by the first access to them, so resident memory counts only what a plan uses. The bytes above the plan's arena size
//! are guarded in two ways: those up to the next boundary of a huge page, which the system may commit together with the plan's last bytes,
//! hold a pattern; the pages above are returned to the system, and its page map, where there is one, tells whether one has been accessed since. The
//! base is aligned to a page. What differs between systems is in [`crate::system`].

use std::ptr::NonNull;

use elbowroom_ir::Bytes;
use rayon::prelude::*;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

use crate::error::EngineError;
use crate::system::{Pages, first_committed};

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

/// Size of a huge page, the most that the system commits at one access.
const HUGE_PAGE: usize = 2 << 20;
/// Pages of the arena can be read and written.
const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
/// They are the process's own, and take memory when they are first accessed.
const FRESH: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);
/// Bytes that a thread commits at a time.
const COMMITTED: usize = 8 * HUGE_PAGE;

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
        // SAFETY: a fresh anonymous mapping at an address of the system's choice.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, ACCESS, FRESH) }.map_err(failed)?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        let arena = Self { base, mapped, limit };
        // Kernels walk through megabytes at a time: with huge pages they wait less for translations of addresses. This is advice: where the
        // system refuses it, pages have the usual size.
        // SAFETY: no pages are returned.
        unsafe { arena.advise(Extent { offset: 0, len: limit }, Pages::Huge) };
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

    /// The bytes from `from` to the limit: those up to the next boundary of a huge page, and the rest.
    fn above(&self, from: Bytes) -> [Extent; 2] {
        let from = usize::try_from(from.get()).unwrap_or(usize::MAX).min(self.limit);
        let base = self.base.as_ptr() as usize;
        // The base is a multiple of a page, and so is the boundary.
        let boundary = (base + from).next_multiple_of(HUGE_PAGE).saturating_sub(base).min(self.limit);
        let range = |start: usize, end: usize| Extent { offset: start, len: end - start };
        [range(from, boundary), range(boundary, self.limit)]
    }

    /// Guards the bytes from `from` on: fills those up to the next boundary of a huge page with the pattern and returns the rest to the
    /// system.
    ///
    /// # Safety
    /// Nothing uses these bytes during the call, and nothing relies on their contents.
    pub unsafe fn guard(&self, from: Bytes) {
        let [near, far] = self.above(from);
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.bytes_mut(near) };
        bytes.iter_mut().zip(near.offset..).for_each(|(byte, i)| *byte = pattern(i));
        if far.len > 0 {
            // SAFETY: the caller's promise; the range starts at a boundary of a page.
            let returned = unsafe { self.advise(far, Pages::Return) };
            if !returned {
                // SAFETY: as above.
                unsafe { self.renew(far) };
            }
        }
    }

    /// Advises the system about the pages of a range that starts at a page, and says whether it took the advice.
    ///
    /// # Safety
    /// If the pages are returned, nothing uses these bytes during the call, and nothing relies on their contents.
    unsafe fn advise(&self, range: Extent, pages: Pages) -> bool {
        // SAFETY: the pages are the arena's own; the rest is the caller's promise.
        pages
            .advice()
            .is_some_and(|advice| unsafe { madvise(self.pointer(range).cast(), range.len, advice).is_ok() })
    }

    /// Returns the pages of a range to the system by mapping new ones over them. If that is refused, they stay, with what they hold.
    ///
    /// # Safety
    /// The range starts at a page. Nothing uses these bytes during the call, and nothing relies on their contents.
    unsafe fn renew(&self, range: Extent) {
        // SAFETY: the range, whose last page belongs to the arena as a whole, lies in the mapping, and the caller promises the rest.
        let _ =
            unsafe { mmap_anonymous(self.pointer(range).cast(), range.len, ACCESS, FRESH | MapFlags::FIXED) };
    }

    /// The offset of the first byte from `from` on that does not hold the pattern, or of the first page above that has been accessed since
    /// [`guard`](Self::guard); `None` if there is neither. Where the system does not report its page map, the pages above count as
    /// untouched.
    ///
    /// # Safety
    /// Nothing writes these bytes during the call.
    pub unsafe fn first_overwritten(&self, from: Bytes) -> Option<Bytes> {
        let [near, far] = self.above(from);
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.bytes(near) };
        let stain = bytes.iter().zip(near.offset..).find(|&(&byte, i)| byte != pattern(i)).map(|(_, i)| i);
        let touched = || {
            let page = first_committed(self.pointer(far) as usize, far.len).ok()??;
            Some(far.offset + page)
        };
        stain.or_else(touched).map(|offset| Bytes(offset as u64))
    }

    /// Commits the pages of the first bytes without changing these, on the threads of a pool, so that no op pays for it.
    ///
    /// # Safety
    /// Nothing uses these bytes during the call.
    pub unsafe fn commit(&self, bytes: Bytes, pool: &rayon::ThreadPool) {
        let len = usize::try_from(bytes.get()).unwrap_or(usize::MAX).min(self.limit);
        pool.install(|| {
            (0..len.div_ceil(COMMITTED)).into_par_iter().for_each(|index| {
                let part = Extent { offset: 0, len }.part(index * COMMITTED, COMMITTED);
                // SAFETY: the caller's promise; the parts are disjoint.
                unsafe { self.commit_part(part) };
            });
        });
    }

    /// Commits the pages of a range that starts at a page.
    ///
    /// # Safety
    /// Nothing uses these bytes during the call.
    unsafe fn commit_part(&self, part: Extent) {
        // One call for all pages, where the system knows it (Linux 5.14). A read before the write, as below, has two faults for each page.
        // SAFETY: no pages are returned.
        if unsafe { self.advise(part, Pages::Commit) } {
            return;
        }
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.bytes_mut(part) };
        for byte in bytes.iter_mut().step_by(rustix::param::page_size()) {
            // Volatile, because the compiler would otherwise omit a write that changes nothing.
            // SAFETY: the reference is valid for both.
            unsafe { std::ptr::write_volatile(byte, std::ptr::read_volatile(byte)) };
        }
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
            arena.guard(Bytes(100));
            assert_eq!(arena.first_overwritten(Bytes(100)), None);
            arena.bytes_mut(Extent { offset: 0, len: 100 }).fill(7);
            assert_eq!(arena.first_overwritten(Bytes(100)), None, "below the height everything is allowed");
            for at in [100, 4_000] {
                arena.bytes_mut(Extent { offset: at, len: 1 })[0] ^= 1;
                assert_eq!(arena.first_overwritten(Bytes(100)), Some(Bytes(at as u64)));
                arena.bytes_mut(Extent { offset: at, len: 1 })[0] ^= 1;
            }
            assert_eq!(arena.first_overwritten(Bytes(10_000)), None);
        }
    }

    #[test]
    fn every_write_above_a_height_is_found_without_touching_what_lies_there() {
        let limit = 64 << 20;
        let arena = Arena::new(Bytes(limit)).unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let committed = |from: usize| {
            let range = Extent { offset: from, len: limit as usize - from };
            first_committed(arena.pointer(range) as usize, range.len).unwrap()
        };
        let height = 3 << 20;
        // SAFETY: this thread alone uses the arena.
        unsafe {
            arena.bytes_mut(Extent { offset: 0, len: limit as usize }).fill(7);
            arena.guard(Bytes(height));
            assert_eq!(arena.first_overwritten(Bytes(height)), None);
            assert_eq!(committed(height as usize + HUGE_PAGE), None, "what was written before is returned");
            // Zeros, which the returned pages would read as, too.
            for (at, byte) in [(limit - 1, 0), (limit / 2, 9), (height + 2 * HUGE_PAGE as u64, 0)] {
                arena.bytes_mut(Extent { offset: at as usize, len: 1 })[0] = byte;
                let found = arena.first_overwritten(Bytes(height)).unwrap().get();
                // Huge pages report their first byte.
                assert!(found <= at && at - found < HUGE_PAGE as u64, "{found} for {at}");
            }
            arena.commit(Bytes(height), &pool);
            assert_eq!(arena.bytes(Extent { offset: 0, len: 10 }), [7; 10]);
        }
    }

    #[test]
    fn pages_are_returned_where_the_system_takes_no_advice() {
        let arena = Arena::new(Bytes(8 << 20)).unwrap();
        let (all, half) = (Extent { offset: 0, len: 8 << 20 }, Extent { offset: 4 << 20, len: 4 << 20 });
        // SAFETY: this thread alone uses the arena.
        unsafe {
            arena.bytes_mut(all).fill(7);
            arena.renew(half);
            assert_eq!(arena.bytes(Extent { len: 4 << 20, ..all }).iter().position(|&byte| byte != 7), None);
            if let Ok(committed) = first_committed(arena.pointer(half) as usize, half.len) {
                assert_eq!(committed, None);
            }
            assert_eq!(arena.bytes(half).iter().position(|&byte| byte != 0), None);
            arena.bytes_mut(half).fill(9);
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
    fn an_arena_larger_than_any_memory_is_an_error() {
        let error = Arena::new(Bytes(1 << 62)).unwrap_err();
        assert!(error.to_string().contains("arena"), "{error}");
    }
}

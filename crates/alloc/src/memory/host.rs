//! Memory of this process.

use std::ffi::c_void;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::{Backing, OutOfMemory};

/// Anonymous pages, committed by the first write; large ranges use huge pages where the system supports them.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMemory;

/// The size of a huge page on common machines. A wrong value only costs speed.
const HUGE: usize = 2 << 20;

const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const FRESH: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

// SAFETY: every range is a mapping of its own, readable and writable.
unsafe impl Backing for HostMemory {
    fn reserve(&self, bytes: usize, align: usize) -> Result<usize, OutOfMemory> {
        let failed = |why: rustix::io::Errno| OutOfMemory::new(bytes, why);
        if !align.is_power_of_two() {
            return Err(OutOfMemory::new(bytes, "the alignment is no power of two"));
        }
        let page = rustix::param::page_size();
        let len = rounded(bytes, page).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        let align = if len >= 2 * HUGE { align.max(HUGE) } else { align.max(page) };
        let mapped = len.checked_add(align - page).ok_or_else(|| failed(rustix::io::Errno::NOMEM))?;
        // SAFETY: a fresh anonymous mapping at an address of the system's choice.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, ACCESS, FRESH) }.map_err(failed)?;
        let base = (start as usize).next_multiple_of(align);
        let (front, back) = (base - start as usize, start as usize + mapped - (base + len));
        if front > 0 {
            // SAFETY: whole pages at the beginning of the new mapping, to which no pointer exists yet. Failure leaves them reserved.
            let _ = unsafe { munmap(start, front) };
        }
        if back > 0 {
            // SAFETY: whole pages at its end, likewise.
            let _ = unsafe { munmap((base + len) as *mut _, back) };
        }
        if len >= 2 * HUGE {
            // SAFETY: the mapping is ours.
            unsafe { prefer_huge(base as *mut _, len) };
        }
        Ok(base)
    }

    unsafe fn release(&self, address: usize, bytes: usize, _: usize) {
        if let Some(len) = rounded(bytes, rustix::param::page_size()) {
            // SAFETY: the range was reserved by `reserve` with this length, and the caller gives it back: it is unused.
            let _ = unsafe { munmap(address as *mut _, len) };
        }
    }

    unsafe fn discard(&self, address: usize, bytes: usize) {
        let page = rustix::param::page_size();
        let (Some(start), Some(end)) =
            (address.checked_next_multiple_of(page), address.checked_add(bytes).map(|end| end / page * page))
        else {
            return;
        };
        if start < end {
            // SAFETY: whole pages within a reserved range, on whose contents nothing relies.
            unsafe { return_pages(start as *mut _, end - start) };
        }
    }
}

/// Asks for huge pages. Without them nothing changes but the speed.
///
/// # Safety
/// The range is mapped.
unsafe fn prefer_huge(start: *mut c_void, len: usize) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    // SAFETY: the caller's promise.
    let _ = unsafe { rustix::mm::madvise(start, len, rustix::mm::Advice::LinuxHugepage) };
    let _ = (start, len);
}

/// Returns whole pages to the system. They read as zeros afterwards.
///
/// # Safety
/// The range is mapped as [`FRESH`], nothing uses it during the call, and nothing relies on its contents.
unsafe fn return_pages(start: *mut c_void, len: usize) {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    // SAFETY: the caller's promise.
    let _ = unsafe { rustix::mm::madvise(start, len, rustix::mm::Advice::LinuxDontNeed) };
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    // SAFETY: the caller's promise.
    unsafe {
        renew(start, len);
    }
}

/// Returns whole pages to the system by mapping new ones over them, where it takes no advice to do so. If it refuses, they stay.
///
/// # Safety
/// As for [`return_pages`].
#[cfg(any(test, not(any(target_os = "linux", target_os = "android"))))]
unsafe fn renew(start: *mut c_void, len: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { mmap_anonymous(start, len, ACCESS, FRESH | MapFlags::FIXED) };
}

fn rounded(bytes: usize, page: usize) -> Option<usize> {
    bytes.max(1).checked_next_multiple_of(page).filter(|&len| len < isize::MAX as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such calls of the system")]
    fn ranges_are_aligned_zero_and_writable_to_their_end() {
        for (bytes, align) in [(1, 64), (5000, 4096), (100_000, 1 << 20), (9 << 20, 64)] {
            let base = HostMemory.reserve(bytes, align).unwrap();
            assert_eq!(base % align, 0);
            // SAFETY: the range is ours alone until it is released.
            let range = unsafe { std::slice::from_raw_parts_mut(base as *mut u8, bytes) };
            assert!(range.iter().all(|&byte| byte == 0));
            range.fill(7);
            // SAFETY: the range is ours, and its contents are of no use any more.
            unsafe { HostMemory.discard(base, bytes) };
            assert_eq!(range[0], if bytes >= 4096 { 0 } else { 7 }, "whole pages are given back");
            // SAFETY: reserved above, and not used below.
            unsafe { HostMemory.release(base, bytes, align) };
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such calls of the system")]
    fn new_pages_over_a_range_are_zero_and_leave_what_lies_beside_them() {
        let page = rustix::param::page_size();
        let base = HostMemory.reserve(3 * page, page).unwrap();
        // SAFETY: the range is ours alone until it is released.
        let range = unsafe { std::slice::from_raw_parts_mut(base as *mut u8, 3 * page) };
        range.fill(7);
        // SAFETY: the second page is ours, and its contents are of no use any more.
        unsafe { renew((base + page) as *mut _, page) };
        assert!(range[..page].iter().chain(&range[2 * page..]).all(|&byte| byte == 7));
        assert!(range[page..2 * page].iter().all(|&byte| byte == 0));
        range[page] = 1;
        // SAFETY: reserved above, and not used below.
        unsafe { HostMemory.release(base, 3 * page, page) };
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such calls of the system")]
    fn more_than_there_is_is_an_error() {
        assert!(HostMemory.reserve(usize::MAX, 64).is_err());
        assert!(HostMemory.reserve(1 << 60, 64).is_err());
    }

    /// An alignment of 5,000 bytes once unmapped pages behind the new mapping.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such calls of the system")]
    fn an_alignment_that_is_no_power_of_two_is_an_error() {
        for align in [0, 3, 5_000, 6 << 20] {
            assert!(HostMemory.reserve(9 << 20, align).is_err(), "{align}");
        }
    }
}

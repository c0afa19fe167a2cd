//! The end of a thread's heap in the C library.
//!
//! glibc's `malloc_trim` returns the pages of free blocks, but those at a heap's end only for the main heap. The heap of another thread keeps
//! 128 KiB there, and more once large blocks were freed, even when the thread has ended. Blocks cut off the end reach these pages.

use std::ptr::null_mut;

use crate::next;

/// Bytes of a block. From 128 KiB on glibc maps a block of its own instead of cutting it off a heap.
const BLOCK: usize = 120 << 10;

/// Blocks at most, so that a thread ends in a bounded time: 4 MB.
const BLOCKS: usize = 32;

/// Returns the pages at the end of this thread's heap to the system, and those of free blocks that the heap hands out before its end.
pub extern "C" fn discard() {
    let mut blocks = [null_mut(); BLOCKS];
    for block in &mut blocks {
        *block = next::malloc(BLOCK).cast::<u8>();
        // SAFETY: the block has this many bytes, and only this function uses it before it frees it.
        if block.is_null() || !unsafe { discard_pages(*block, BLOCK) } {
            break;
        }
    }
    for block in blocks {
        // SAFETY: null, or a block of the loop above.
        unsafe { next::free(block.cast()) };
    }
}

/// Returns the whole pages in a block to the system. Returns whether there was one in memory.
///
/// # Safety
/// The block is the caller's, and nothing relies on its contents.
#[cfg(target_os = "linux")]
unsafe fn discard_pages(block: *mut u8, bytes: usize) -> bool {
    const SMALLEST_PAGE: usize = 4 << 10;
    // SAFETY: a call of the C library.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(SMALLEST_PAGE);
    let skipped = block.align_offset(page);
    let len = bytes.saturating_sub(skipped) / page * page;
    let mut resident = [0u8; BLOCK / SMALLEST_PAGE];
    // SAFETY: whole pages within the block; the array has a place for each.
    unsafe {
        let start = block.add(skipped).cast();
        libc::mincore(start, len, resident.as_mut_ptr()) == 0
            && resident.iter().any(|byte| byte & 1 == 1)
            && libc::madvise(start, len, libc::MADV_DONTNEED) == 0
    }
}

/// There is no such heap here.
#[cfg(not(target_os = "linux"))]
unsafe fn discard_pages(_block: *mut u8, _bytes: usize) -> bool {
    false
}

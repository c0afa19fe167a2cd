//! The global allocator for Rust programs.

use std::alloc::{GlobalAlloc, Layout, System};

use super::PROCESS;
use crate::arena::Release;
use crate::request::Request;

/// A global allocator that serves large requests from a plan once the program repeats itself, and all others from another allocator.
///
/// ```
/// use elbowroom_alloc::Planned;
///
/// #[global_allocator]
/// static ALLOCATOR: Planned = Planned::system();
/// # fn main() {}
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Planned<A = System> {
    inner: A,
    /// Returns the free memory of the inner allocator to the system.
    trim: Option<extern "C" fn()>,
}

/// With a plan, large requests no longer reach libc, so its free pages are of little use.
extern "C" fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: the C library's function of this type; any number of bytes may be left at the top.
        unsafe { malloc_trim(0) };
    }
}

impl Planned {
    /// Uses the system's allocator as fallback.
    pub const fn system() -> Self {
        Self { inner: System, trim: Some(trim) }
    }
}

impl<A> Planned<A> {
    /// Uses another allocator as fallback.
    pub const fn over(inner: A) -> Self {
        Self { inner, trim: None }
    }

    /// Before a large request goes to the inner allocator: registers the release of its free pages for the first plan.
    fn prepare(&self, size: usize) {
        if let Some(trim) = self.trim.filter(|_| size >= PROCESS.threshold()) {
            PROCESS.on_plan(trim);
        }
    }
}

// SAFETY: a block is either the inner allocator's, and goes back to it with the layout that it was asked for with, or a planned one: at
// least as large and as aligned as asked, and disjoint from all live blocks, as `replay` argues.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Planned<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PROCESS.allocate(Request::new(layout.size(), layout.align()), || {
            self.prepare(layout.size());
            // SAFETY: the caller's promise about the layout.
            unsafe { self.inner.alloc(layout) }
        })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let mut is_zero = false;
        let block = PROCESS.allocate(Request::new(layout.size(), layout.align()), || {
            is_zero = true;
            self.prepare(layout.size());
            // SAFETY: the caller's promise about the layout.
            unsafe { self.inner.alloc_zeroed(layout) }
        });
        if !is_zero {
            // SAFETY: a planned block of at least this size, which no other code uses.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller gives the block up.
        if unsafe { PROCESS.release(block as usize) } == Release::Elsewhere {
            // SAFETY: the block is the inner allocator's, with this layout.
            unsafe { self.inner.dealloc(block, layout) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match PROCESS.capacity(block as usize) {
            Some(capacity) if size <= capacity && size >= capacity / 2 => block,
            None => {
                // A block that the inner allocator moves becomes another, unrecorded block.
                // SAFETY: not a planned block.
                unsafe { PROCESS.release(block as usize) };
                // SAFETY: the block is the inner allocator's, with this layout; the caller's promise about the size.
                unsafe { self.inner.realloc(block, layout, size) }
            }
            Some(_) => {
                // SAFETY: the caller promises that the size, rounded up to the alignment, is a layout's.
                let new = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
                if !new.is_null() {
                    // SAFETY: two live blocks, which do not overlap, of at least this many bytes.
                    unsafe { new.copy_from_nonoverlapping(block, size.min(layout.size())) };
                    // SAFETY: the caller gives the block up.
                    unsafe { self.dealloc(block, layout) };
                }
                new
            }
        }
    }
}

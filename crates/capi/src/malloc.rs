//! `malloc` and its family.
//!
//! Functions that are missing here (`valloc`, `pvalloc`) come from the next allocator, which also frees their blocks. A planned address
//! that is freed twice or was never allocated is counted and otherwise ignored; all other foreign addresses go to the next allocator.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use elbowroom_alloc::{PROCESS, Release, Request};

use crate::{heap_end, next, own};

/// The alignment of `malloc`, in bytes.
const ALIGN: usize = 16;

/// Prepares the library when it is loaded, in the only thread. No request does it, because requests arrive under locks of the C library.
extern "C" fn load() {
    next::look_up_all();
    own::register();
    PROCESS.on_plan(next::trim);
    PROCESS.on_thread_end(heap_end::discard);
    PROCESS.on_watch(crate::watch::start);
}

/// The dynamic linker calls the functions of this section when it loads the library.
#[cfg(target_os = "linux")]
#[used]
// SAFETY: the section holds pointers to functions without arguments.
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

fn request(size: usize, align: usize, next: impl FnOnce() -> *mut c_void) -> *mut c_void {
    PROCESS.allocate(Request::new(size, align), || next().cast()).cast()
}

/// See the C library.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    request(size, ALIGN, move || next::malloc(size))
}

/// See the C library.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return next::calloc(count, size) };
    let mut is_zero = false;
    let block = request(bytes, ALIGN, || {
        is_zero = true;
        next::calloc(count, size)
    });
    if !is_zero {
        // SAFETY: a planned block of at least this many bytes, which belongs to this call.
        unsafe { block.cast::<u8>().write_bytes(0, bytes) };
    }
    block
}

/// See the C library.
///
/// # Safety
/// The block is null, or one of this library's or the next allocator's that lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: the caller gives the block up.
    if unsafe { PROCESS.release(block as usize) } == Release::Elsewhere {
        // SAFETY: the caller's promise.
        unsafe { next::free(block) };
    }
}

/// See the C library.
///
/// # Safety
/// The block is null, or one of this library's or the next allocator's that lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        return malloc(size);
    }
    match PROCESS.capacity(block as usize) {
        None => {
            // A block that the next allocator moves becomes another, unrecorded block.
            // SAFETY: not a planned block.
            unsafe { PROCESS.release(block as usize) };
            // SAFETY: the caller's promise.
            unsafe { next::realloc(block, size) }
        }
        Some(capacity) if size <= capacity && size >= capacity / 2 => block,
        Some(_) if size == 0 => {
            // SAFETY: the caller's promise.
            unsafe { free(block) };
            null_mut()
        }
        Some(capacity) => {
            let new = malloc(size);
            if !new.is_null() {
                // SAFETY: two living blocks, which do not overlap, of at least this many bytes.
                unsafe { new.copy_from_nonoverlapping(block, size.min(capacity)) };
                // SAFETY: the caller's promise.
                unsafe { free(block) };
            }
            new
        }
    }
}

/// See the C library.
///
/// # Safety
/// The block is null, or one of this library's or the next allocator's that lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's promise.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => {
            // SAFETY: the place of this thread's error number.
            unsafe { *libc::__errno_location() = libc::ENOMEM };
            null_mut()
        }
    }
}

/// See the C library.
///
/// # Safety
/// A pointer may be written to `out`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let mut error = 0;
    let block = request(size, align, || {
        let mut block = null_mut();
        error = next::posix_memalign(&mut block, align, size);
        if error == 0 { block } else { null_mut() }
    });
    if error == 0 {
        // SAFETY: the caller's promise.
        unsafe { *out = block };
    }
    error
}

/// See the C library.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        return next::memalign(align, size);
    }
    request(size, align.max(ALIGN), move || next::memalign(align, size))
}

/// See the C library.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    memalign(align, size)
}

/// See the C library.
///
/// # Safety
/// The block is null, or one of this library's or the next allocator's that lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    if block.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    PROCESS.capacity(block as usize).unwrap_or_else(|| unsafe { next::malloc_usable_size(block) })
}

//! Pools of any memory that the caller can reserve and release in ranges.

use std::ffi::c_void;
use std::ptr::null_mut;

use elbowroom_alloc::{Backing, OutOfMemory, Pool, Release, Request, Settings};

use crate::process::CStats;

/// Returns the address of a range of `bytes` bytes at a multiple of `align`, or null.
pub type Reserve = unsafe extern "C" fn(context: *mut c_void, bytes: usize, align: usize) -> *mut c_void;
/// Releases a range.
pub type GiveBack = unsafe extern "C" fn(context: *mut c_void, address: *mut c_void, bytes: usize);

/// Memory behind two functions of the caller.
#[derive(Clone, Copy)]
struct Foreign {
    reserve: Reserve,
    give_back: GiveBack,
    context: *mut c_void,
}

// SAFETY: the header asks for functions that any thread may call with the context.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

// SAFETY: the header's contract.
unsafe impl Backing for Foreign {
    fn reserve(&self, bytes: usize, align: usize) -> Result<usize, OutOfMemory> {
        // SAFETY: the header's contract.
        let address = unsafe { (self.reserve)(self.context, bytes, align) } as usize;
        if address == 0 || !address.is_multiple_of(align) {
            return Err(OutOfMemory::new(bytes, "the program's function gave none"));
        }
        Ok(address)
    }
    unsafe fn release(&self, address: usize, bytes: usize, _: usize) {
        // SAFETY: the header's contract; the range came from `reserve`.
        unsafe { (self.give_back)(self.context, address as *mut c_void, bytes) };
    }
}

/// `struct elbowroom_pool` of the header.
pub struct CPool(Pool<Foreign>);

/// A pool over two functions, whose blocks start and end at multiples of `granule`; null if that is no power of two.
///
/// # Safety
/// Both functions do what the header says, with this context, on any thread, until the pool is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_pool_new(
    reserve: Reserve,
    give_back: GiveBack,
    context: *mut c_void,
    granule: usize,
) -> *mut CPool {
    if !granule.is_power_of_two() {
        return null_mut();
    }
    let settings = Settings::default().granule(granule);
    Box::into_raw(Box::new(CPool(Pool::new(Foreign { reserve, give_back, context }, settings))))
}

/// Frees a pool with all its blocks.
///
/// # Safety
/// The pool is null or came from `elbowroom_pool_new`, and neither it nor its blocks are used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_pool_free(pool: *mut CPool) {
    if !pool.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(pool) });
    }
}

/// A block for a queue; null if there is no memory or `align` is no power of two.
///
/// # Safety
/// The pool came from `elbowroom_pool_new` and lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_pool_take(
    pool: *const CPool,
    queue: u64,
    size: usize,
    align: usize,
) -> *mut c_void {
    if !align.is_power_of_two() {
        return null_mut();
    }
    // SAFETY: the caller's promise.
    let pool = unsafe { &(*pool).0 };
    pool.allocate(queue, Request::new(size, align)).map_or(null_mut(), |address| address as *mut c_void)
}

/// Gives a block back: 0, or 1 if no block begins there.
///
/// # Safety
/// The pool came from `elbowroom_pool_new` and lives, and nothing uses the block any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_pool_give(pool: *const CPool, block: *mut c_void) -> i32 {
    // SAFETY: the caller's promise.
    let release = unsafe { (*pool).0.free(block as usize) };
    i32::from(release != Release::Freed)
}

/// An iteration of a queue begins here.
///
/// # Safety
/// The pool came from `elbowroom_pool_new` and lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_pool_mark_iteration(pool: *const CPool, queue: u64) {
    // SAFETY: the caller's promise.
    unsafe { &(*pool).0 }.mark_iteration(queue);
}

/// Excludes the following requests of a queue from the iteration until `elbowroom_pool_resume`.
///
/// # Safety
/// The pool came from `elbowroom_pool_new` and lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_pool_interrupt(pool: *const CPool, queue: u64) {
    // SAFETY: the caller's promise.
    unsafe { &(*pool).0 }.interrupt(queue);
}

/// Ends an interruption.
///
/// # Safety
/// The pool came from `elbowroom_pool_new` and lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_pool_resume(pool: *const CPool, queue: u64) {
    // SAFETY: the caller's promise.
    unsafe { &(*pool).0 }.resume(queue);
}

/// Counts of a pool so far.
///
/// # Safety
/// The pool came from `elbowroom_pool_new` and lives; a `struct elbowroom_stats` may be written to `out`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_pool_stats(pool: *const CPool, out: *mut CStats) {
    // SAFETY: the caller's promise.
    let stats = CStats::new(&unsafe { &(*pool).0 }.stats().0);
    // SAFETY: the caller's promise.
    unsafe { *out = stats };
}

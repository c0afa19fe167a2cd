//! PyTorch's pluggable CUDA allocator: `torch.cuda.memory.CUDAPluggableAllocator(path, "elbowroom_cuda_alloc", "elbowroom_cuda_free")`.
//!
//! Each stream of each device is a sequence of its own. Only the stream that requested a block reuses its bytes, and its operations are
//! ordered, so a block may be freed while an operation that uses it is still in progress.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};

use elbowroom_alloc::{Cuda, CudaError, CudaMemory, Pool, Request, Settings};

use crate::process::CStats;

/// The granule of PyTorch's own allocator, in bytes.
const GRANULE: usize = 512;

fn cuda() -> &'static Result<Cuda, CudaError> {
    static CUDA: OnceLock<Result<Cuda, CudaError>> = OnceLock::new();
    CUDA.get_or_init(Cuda::open)
}

/// The pool of a device; `None` if there is no such device.
fn pool(device: c_int) -> Option<Arc<Pool<CudaMemory>>> {
    static POOLS: Mutex<BTreeMap<c_int, Arc<Pool<CudaMemory>>>> = Mutex::new(BTreeMap::new());
    let mut pools = POOLS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(pool) = pools.get(&device) {
        return Some(pool.clone());
    }
    let memory = cuda().as_ref().ok()?.device(device).ok()?;
    let settings = Settings::default().granule(GRANULE);
    Some(pools.entry(device).or_insert_with(|| Arc::new(Pool::new(memory, settings))).clone())
}

/// Allocates a block of a device for a stream; null on failure, see `elbowroom_cuda_error`.
#[unsafe(no_mangle)]
pub extern "C" fn elbowroom_cuda_alloc(size: isize, device: c_int, stream: *mut c_void) -> *mut c_void {
    let Some(size) = usize::try_from(size).ok().filter(|&size| size > 0) else { return null_mut() };
    let Some(pool) = pool(device) else { return null_mut() };
    let block = pool.allocate(stream as u64, Request::new(size, GRANULE));
    block.map_or(null_mut(), |address| address as *mut c_void)
}

/// Frees a block. Other addresses have no effect.
///
/// # Safety
/// Nothing uses the block any more, except operations that its stream has in progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_cuda_free(
    block: *mut c_void,
    _size: isize,
    device: c_int,
    _stream: *mut c_void,
) {
    if let Some(pool) = pool(device).filter(|_| !block.is_null()) {
        // SAFETY: the caller's promise.
        unsafe { pool.free(block as usize) };
    }
}

/// Why CUDA memory is not available, as a static string; null if there is a driver.
#[unsafe(no_mangle)]
pub extern "C" fn elbowroom_cuda_error() -> *const c_char {
    static TEXT: OnceLock<Option<CString>> = OnceLock::new();
    let text =
        TEXT.get_or_init(|| cuda().as_ref().err().and_then(|error| CString::new(error.to_string()).ok()));
    text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr())
}

/// Counts of a device so far; zeros where there is none.
///
/// # Safety
/// A `struct elbowroom_stats` may be written to `out`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_cuda_stats(device: c_int, out: *mut CStats) {
    let stats = pool(device).map_or_else(CStats::default, |pool| CStats::new(&pool.stats().0));
    // SAFETY: the caller's promise.
    unsafe { *out = stats };
}

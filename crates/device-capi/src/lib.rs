//! The device of blocks as a C library, declared in `include/elbowroom_device.h`: a framework creates blocks and states what each operation reads
//! and writes; together the blocks may exceed the device. Once an iteration has repeated, AutoSwap or another planner decides when blocks are
//! offloaded and prefetched, and where they lie ([`elbowroom::alloc::device`]).
//!
//! ```sh
//! cargo build --release -p elbowroom-device-capi
//! cc framework.c -I crates/device-capi/include -L target/release -lelbowroom_device_c
//! ```
//!
//! This is a crate of its own because `elbowroom-capi` defines `malloc` and contains no planner.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use elbowroom::alloc::Cuda;
use elbowroom::alloc::device::{
    AcceleratorError, BlockHandle, CudaAccelerator, Device, DeviceError, DeviceStats, HostAccelerator,
    SwapPlanner,
};
use elbowroom::blocks::Swap;

const OK: c_int = 0;
const REJECTED: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const FAILED: c_int = 3;
const FAULT: c_int = 4;

/// An operation of the program: given its context, the stream, and the addresses of the blocks that it reads and writes.
pub type Operation = unsafe extern "C" fn(
    context: *mut c_void,
    stream: *mut c_void,
    reads: *const usize,
    writes: *const usize,
);

/// `struct elbowroom_device` of the header.
pub enum CDevice {
    /// On memory of the host.
    Host(Device<HostAccelerator>),
    /// On a CUDA device.
    Cuda(Device<CudaAccelerator>),
}

/// `struct elbowroom_device_stats` of the header.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CDeviceStats {
    dynamic: u64,
    planned: u64,
    to_host: u64,
    to_device: u64,
    plans: u64,
    abandoned: u64,
    device_bytes: u64,
    peak_live: u64,
    waits: u64,
}

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Keeps a sentence for [`elbowroom_device_error`].
fn remember(sentence: &str) {
    let text = sentence.split('\0').next().unwrap_or("");
    ERROR.with(|error| *error.borrow_mut() = CString::new(text).unwrap_or_default());
}

/// The header's number of an outcome; keeps the sentence of an error.
fn code(outcome: std::thread::Result<Result<(), DeviceError>>) -> c_int {
    match outcome {
        Ok(Ok(())) => OK,
        Ok(Err(error)) => {
            remember(&error.to_string());
            match error {
                DeviceError::Accelerator(AcceleratorError::OutOfMemory { .. }) => OUT_OF_MEMORY,
                DeviceError::Accelerator(_) => FAILED,
                _ => REJECTED,
            }
        }
        Err(_) => {
            remember("a fault of elbowroom: please report it");
            FAULT
        }
    }
}

/// Runs a call on the device, whichever it is.
fn with<R>(
    device: &mut CDevice,
    host: impl FnOnce(&mut Device<HostAccelerator>) -> R,
    cuda: impl FnOnce(&mut Device<CudaAccelerator>) -> R,
) -> R {
    match device {
        CDevice::Host(device) => host(device),
        CDevice::Cuda(device) => cuda(device),
    }
}

/// The planner of a name: AutoSwap for null, none for "none".
///
/// # Safety
/// The name is null or a string that ends with zero.
unsafe fn planner(
    name: *const c_char,
    rates: Option<(u64, u64)>,
) -> Result<Option<Box<dyn SwapPlanner>>, String> {
    let swap = if name.is_null() {
        Swap::default()
    } else {
        // SAFETY: the caller's promise.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        if name == "none" {
            return Ok(None);
        }
        Swap::with(&name).ok_or_else(|| format!("there is no planner `{name}`"))?
    };
    let swap = match rates {
        Some((to_host, to_device)) => swap.link(to_host, to_device, false),
        None => swap,
    };
    Ok(Some(Box::new(swap)))
}

fn made(outcome: std::thread::Result<Result<CDevice, String>>) -> *mut CDevice {
    match outcome {
        Ok(Ok(device)) => Box::into_raw(Box::new(device)),
        Ok(Err(error)) => {
            remember(&error);
            null_mut()
        }
        Err(_) => {
            remember("a fault of elbowroom: please report it");
            null_mut()
        }
    }
}

/// A device of `limit` bytes of the host.
///
/// # Safety
/// `planner_name` is null or a string that ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_device_on_host(limit: usize, planner_name: *const c_char) -> *mut CDevice {
    made(catch_unwind(|| {
        // SAFETY: the caller's promise.
        let planner = unsafe { planner(planner_name, None) }?;
        let device = Device::on(HostAccelerator, limit, planner).map_err(|error| error.to_string())?;
        Ok(CDevice::Host(device))
    }))
}

/// A device of `limit` bytes of a CUDA device, which are reserved at once.
///
/// # Safety
/// `planner_name` is null or a string that ends with zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_device_on_cuda(
    ordinal: c_int,
    limit: usize,
    planner_name: *const c_char,
    to_host_rate: u64,
    to_device_rate: u64,
) -> *mut CDevice {
    made(catch_unwind(|| {
        // SAFETY: the caller's promise.
        let planner = unsafe { planner(planner_name, Some((to_host_rate, to_device_rate))) }?;
        let accelerator = Cuda::open().and_then(|cuda| cuda.device(ordinal)).and_then(CudaAccelerator::new);
        let accelerator = accelerator.map_err(|error| error.to_string())?;
        let device = Device::on(accelerator, limit, planner).map_err(|error| error.to_string())?;
        Ok(CDevice::Cuda(device))
    }))
}

/// Frees a device with all its blocks, once everything issued has ended.
///
/// # Safety
/// The device is null or was made by one of the functions above, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_device_free(device: *mut CDevice) {
    if !device.is_null() {
        // SAFETY: the caller's promise.
        let device = unsafe { Box::from_raw(device) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(device)));
    }
}

/// A new block of zeros.
///
/// # Safety
/// The device lives, and no other thread uses it during the call. The same holds for all functions below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_device_malloc(device: *mut CDevice, bytes: usize) -> u64 {
    // SAFETY: the caller's promise.
    let device = unsafe { &mut *device };
    let block = catch_unwind(AssertUnwindSafe(|| with(device, |d| d.malloc(bytes), |d| d.malloc(bytes))));
    block.map_or(u64::MAX, BlockHandle::number)
}

/// Frees a block.
///
/// # Safety
/// As [`elbowroom_device_malloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_device_release(device: *mut CDevice, block: u64) -> c_int {
    // SAFETY: the caller's promise.
    let device = unsafe { &mut *device };
    let block = BlockHandle::from_number(block);
    code(catch_unwind(AssertUnwindSafe(|| with(device, |d| d.free(block), |d| d.free(block)))))
}

/// The blocks of a C array.
///
/// # Safety
/// The array has this many numbers, or none.
unsafe fn blocks(array: *const u64, count: usize) -> Vec<BlockHandle> {
    if array.is_null() || count == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    let numbers = unsafe { std::slice::from_raw_parts(array, count) };
    numbers.iter().map(|&number| BlockHandle::from_number(number)).collect()
}

/// Issues an operation.
///
/// # Safety
/// As [`elbowroom_device_malloc`]; the arrays have as many numbers as stated; the operation reads and writes, on its stream, only the blocks
/// that it is declared to, and does not call this device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_device_exec(
    device: *mut CDevice,
    operation: Operation,
    context: *mut c_void,
    reads: *const u64,
    read_count: usize,
    writes: *const u64,
    write_count: usize,
) -> c_int {
    // SAFETY: the caller's promises.
    let (device, reads, writes) =
        unsafe { (&mut *device, blocks(reads, read_count), blocks(writes, write_count)) };
    let call = |reads: &[usize], writes: &[usize], stream: *mut c_void| {
        // SAFETY: the caller's promise.
        unsafe { operation(context, stream, reads.as_ptr(), writes.as_ptr()) }
    };
    code(catch_unwind(AssertUnwindSafe(|| {
        with(
            device,
            // SAFETY: the caller's promise.
            |d| unsafe { d.launch(call, &reads, &writes) },
            // SAFETY: the caller's promise.
            |d| unsafe { d.launch(call, &reads, &writes) },
        )
    })))
}

/// Writes a block from the host, as an operation.
///
/// # Safety
/// As [`elbowroom_device_malloc`]; the bytes are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_device_upload(
    device: *mut CDevice,
    block: u64,
    contents: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let device = unsafe { &mut *device };
    // No slice begins at null, and no block is empty.
    let contents = if contents.is_null() {
        &[]
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(contents.cast::<u8>(), bytes) }
    };
    let block = BlockHandle::from_number(block);
    code(catch_unwind(AssertUnwindSafe(|| {
        with(device, |d| d.upload(block, contents), |d| d.upload(block, contents))
    })))
}

/// Reads a block to the host, as an operation, and waits for it.
///
/// # Safety
/// As [`elbowroom_device_malloc`]; the bytes are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_device_download(
    device: *mut CDevice,
    block: u64,
    contents: *mut c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let device = unsafe { &mut *device };
    let contents = if contents.is_null() {
        &mut []
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(contents.cast::<u8>(), bytes) }
    };
    let block = BlockHandle::from_number(block);
    code(catch_unwind(AssertUnwindSafe(|| match device {
        CDevice::Host(device) => device.download(block, contents),
        CDevice::Cuda(device) => device.download(block, contents),
    })))
}

/// Waits until everything issued has ended.
///
/// # Safety
/// As [`elbowroom_device_malloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_device_synchronize(device: *mut CDevice) -> c_int {
    // SAFETY: the caller's promise.
    let device = unsafe { &mut *device };
    code(catch_unwind(AssertUnwindSafe(|| with(device, Device::synchronize, Device::synchronize))))
}

/// Counts of a device so far.
///
/// # Safety
/// As [`elbowroom_device_malloc`]; a `struct elbowroom_device_stats` may be written to `out`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn elbowroom_device_stats(device: *mut CDevice, out: *mut CDeviceStats) {
    // SAFETY: the caller's promise.
    let stats: DeviceStats = with(unsafe { &mut *device }, |d| d.stats(), |d| d.stats());
    let stats = CDeviceStats {
        dynamic: stats.dynamic,
        planned: stats.planned,
        to_host: stats.to_host,
        to_device: stats.to_device,
        plans: stats.plans,
        abandoned: stats.abandoned,
        device_bytes: stats.device_bytes as u64,
        peak_live: stats.peak_live as u64,
        waits: stats.waits,
    };
    // SAFETY: the caller's promise.
    unsafe { *out = stats };
}

/// Why the latest call of this thread failed, as a sentence; valid until its next failing call.
#[unsafe(no_mangle)]
pub extern "C" fn elbowroom_device_error() -> *const c_char {
    ERROR.with(|error| error.borrow().as_ptr())
}

//! Memory of a CUDA device. The driver is loaded at run time: this crate builds and runs without CUDA.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use libloading::Library;

use super::{Backing, OutOfMemory};

pub(crate) type Status = c_uint;
pub(crate) type CudaContext = *mut c_void;
pub(crate) type CudaStream = *mut c_void;
pub(crate) type CudaEvent = *mut c_void;
pub(crate) type DeviceAddress = u64;

pub(crate) const SUCCESS: Status = 0;
const OUT_OF_MEMORY: Status = 2;
pub(crate) const NOT_READY: Status = 600;

/// Names of the driver's library, by platform; the first one that opens is used.
const NAMES: [&str; 3] = ["libcuda.so.1", "libcuda.so", "nvcuda.dll"];

/// Why CUDA memory is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The machine has no driver.
    #[error("there is no CUDA driver on this machine ({0})")]
    NoDriver(String),
    /// The library is not the driver, or is too old.
    #[error("the CUDA driver has no function {0}")]
    NoFunction(&'static str),
    /// The driver refused a call.
    #[error("the CUDA driver refused to {what}: {why}")]
    Refused {
        /// The call.
        what: &'static str,
        /// The driver's message.
        why: String,
        /// The driver's number of the error, a `CUresult`.
        code: u32,
    },
}

impl CudaError {
    /// Whether only memory is missing: the device goes on.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Refused { code: OUT_OF_MEMORY, .. })
    }
}

/// The driver's functions that are used. The library stays loaded as long as this value lives.
pub(crate) struct Driver {
    init: unsafe extern "C" fn(c_uint) -> Status,
    device_get: unsafe extern "C" fn(*mut c_int, c_int) -> Status,
    retain: unsafe extern "C" fn(*mut CudaContext, c_int) -> Status,
    push: unsafe extern "C" fn(CudaContext) -> Status,
    pop: unsafe extern "C" fn(*mut CudaContext) -> Status,
    alloc: unsafe extern "C" fn(*mut DeviceAddress, usize) -> Status,
    free: unsafe extern "C" fn(DeviceAddress) -> Status,
    pub host_alloc: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> Status,
    pub host_free: unsafe extern "C" fn(*mut c_void) -> Status,
    pub fill: unsafe extern "C" fn(DeviceAddress, u8, usize, CudaStream) -> Status,
    pub to_device: unsafe extern "C" fn(DeviceAddress, *const c_void, usize, CudaStream) -> Status,
    pub to_host: unsafe extern "C" fn(*mut c_void, DeviceAddress, usize, CudaStream) -> Status,
    pub stream_create: unsafe extern "C" fn(*mut CudaStream, c_uint) -> Status,
    pub stream_destroy: unsafe extern "C" fn(CudaStream) -> Status,
    pub stream_wait: unsafe extern "C" fn(CudaStream, CudaEvent, c_uint) -> Status,
    pub event_create: unsafe extern "C" fn(*mut CudaEvent, c_uint) -> Status,
    pub event_destroy: unsafe extern "C" fn(CudaEvent) -> Status,
    pub event_record: unsafe extern "C" fn(CudaEvent, CudaStream) -> Status,
    pub event_query: unsafe extern "C" fn(CudaEvent) -> Status,
    pub event_synchronize: unsafe extern "C" fn(CudaEvent) -> Status,
    pub event_elapsed: unsafe extern "C" fn(*mut f32, CudaEvent, CudaEvent) -> Status,
    error_string: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
    _library: Library,
}

/// The driver, loaded and initialized.
#[derive(Clone)]
pub struct Cuda {
    driver: Arc<Driver>,
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cuda")
    }
}

impl Driver {
    fn check(&self, what: &'static str, status: Status) -> Result<(), CudaError> {
        if status == SUCCESS {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the driver writes a pointer to a constant string, or leaves it null.
        unsafe { (self.error_string)(status, &mut text) };
        let why = if text.is_null() {
            format!("error {status}")
        } else {
            // SAFETY: a constant string of the driver, ended by zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(CudaError::Refused { what, why, code: status })
    }
}

impl Cuda {
    /// Loads and initializes the driver.
    ///
    /// # Errors
    /// There is no driver, it is too old, or it refuses to start.
    pub fn open() -> Result<Self, CudaError> {
        let mut reason = String::new();
        let library = NAMES.iter().find_map(|name| {
            // SAFETY: opening the driver runs its initializers, which have no requirements on the process.
            unsafe { Library::new(name) }.map_err(|error| reason = error.to_string()).ok()
        });
        let library = library.ok_or_else(|| CudaError::NoDriver(reason.trim().to_owned()))?;
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the type of the field that it goes to is the function's in the driver's published interface.
                let symbol = unsafe { library.get(concat!($name, "\0").as_bytes()) };
                *symbol.map_err(|_| CudaError::NoFunction($name))?
            }};
        }
        let driver = Driver {
            init: function!("cuInit"),
            device_get: function!("cuDeviceGet"),
            retain: function!("cuDevicePrimaryCtxRetain"),
            push: function!("cuCtxPushCurrent_v2"),
            pop: function!("cuCtxPopCurrent_v2"),
            alloc: function!("cuMemAlloc_v2"),
            free: function!("cuMemFree_v2"),
            host_alloc: function!("cuMemHostAlloc"),
            host_free: function!("cuMemFreeHost"),
            fill: function!("cuMemsetD8Async"),
            to_device: function!("cuMemcpyHtoDAsync_v2"),
            to_host: function!("cuMemcpyDtoHAsync_v2"),
            stream_create: function!("cuStreamCreate"),
            stream_destroy: function!("cuStreamDestroy_v2"),
            stream_wait: function!("cuStreamWaitEvent"),
            event_create: function!("cuEventCreate"),
            event_destroy: function!("cuEventDestroy_v2"),
            event_record: function!("cuEventRecord"),
            event_query: function!("cuEventQuery"),
            event_synchronize: function!("cuEventSynchronize"),
            event_elapsed: function!("cuEventElapsedTime"),
            error_string: function!("cuGetErrorString"),
            _library: library,
        };
        // SAFETY: the driver's first call; its flags must be 0.
        driver.check("start", unsafe { (driver.init)(0) })?;
        Ok(Self { driver: Arc::new(driver) })
    }

    /// The memory of a device, in the primary context, which frameworks use, too.
    ///
    /// # Errors
    /// There is no such device, or the driver refuses.
    pub fn device(&self, ordinal: i32) -> Result<CudaMemory, CudaError> {
        let driver = &self.driver;
        let mut device: c_int = 0;
        // SAFETY: the driver writes a device's handle.
        driver.check("find the device", unsafe { (driver.device_get)(&mut device, ordinal) })?;
        let mut context: CudaContext = std::ptr::null_mut();
        // SAFETY: the driver writes the handle of the device's primary context. It is retained as long as the process lives, as
        // frameworks do.
        driver.check("make the device ready", unsafe { (driver.retain)(&mut context, device) })?;
        Ok(CudaMemory { driver: driver.clone(), context })
    }
}

/// Memory of one CUDA device, with device addresses. Reserving and releasing a range may synchronize with the device, so both should be
/// rare.
#[derive(Clone)]
pub struct CudaMemory {
    driver: Arc<Driver>,
    context: CudaContext,
}

// SAFETY: the driver may be called from any thread; the context is made current around each call.
unsafe impl Send for CudaMemory {}
// SAFETY: as above.
unsafe impl Sync for CudaMemory {}

impl std::fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CudaMemory")
    }
}

impl CudaMemory {
    /// A new range of the device.
    pub(crate) fn take(&self, bytes: usize) -> Result<usize, CudaError> {
        let mut address: DeviceAddress = 0;
        // SAFETY: the driver writes the address of a new range.
        self.within("give memory", |driver| unsafe { (driver.alloc)(&mut address, bytes) })?;
        Ok(address as usize)
    }

    /// Runs a call of the driver in the device's context.
    pub(crate) fn within(
        &self,
        what: &'static str,
        call: impl FnOnce(&Driver) -> Status,
    ) -> Result<(), CudaError> {
        // SAFETY: the context is retained; it is taken off again below.
        self.driver.check("take up the device", unsafe { (self.driver.push)(self.context) })?;
        let outcome = self.driver.check(what, call(&self.driver));
        let mut context: CudaContext = std::ptr::null_mut();
        // SAFETY: takes off the context that was put on above.
        unsafe { (self.driver.pop)(&mut context) };
        outcome
    }
}

// SAFETY: every range is an allocation of the driver's, of the device that the context belongs to.
unsafe impl Backing for CudaMemory {
    fn reserve(&self, bytes: usize, align: usize) -> Result<usize, OutOfMemory> {
        if !align.is_power_of_two() {
            return Err(OutOfMemory::new(bytes, "the alignment is no power of two"));
        }
        let address = self.take(bytes.max(1)).map_err(|error| OutOfMemory::new(bytes, error))?;
        if !address.is_multiple_of(align) {
            // SAFETY: reserved above, and known to nothing else.
            unsafe { self.release(address, bytes, align) };
            return Err(OutOfMemory::new(bytes, format_args!("the driver does not align to {align} bytes")));
        }
        Ok(address)
    }

    unsafe fn release(&self, address: usize, _: usize, _: usize) {
        // SAFETY: the address came from `reserve`, and the caller gives it back. While a process ends the driver may refuse; there is
        // nothing left to free then.
        let _ = self.within("take memory back", |driver| unsafe { (driver.free)(address as DeviceAddress) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs everywhere: with a driver memory can be had, without one the reason is said.
    #[test]
    #[cfg_attr(miri, ignore = "Miri loads no library")]
    fn the_driver_gives_memory_or_is_said_to_be_absent() {
        let cuda = match Cuda::open() {
            Ok(cuda) => cuda,
            Err(error) => {
                println!("no CUDA here: {error}");
                assert!(error.to_string().contains("CUDA driver"), "{error}");
                return;
            }
        };
        let memory = match cuda.device(0) {
            Ok(memory) => memory,
            Err(error) => return println!("no CUDA device here: {error}"),
        };
        let address = memory.reserve(1 << 20, 512).unwrap();
        assert!(address != 0 && address % 512 == 0);
        // SAFETY: reserved above, and unused.
        unsafe { memory.release(address, 1 << 20, 512) };
        assert!(memory.reserve(1 << 60, 512).is_err());
        assert!(cuda.device(10_000).is_err());
    }
}

//! A CUDA device: three streams of one context, and its events.

use std::ffi::c_void;
use std::ptr::null_mut;

use super::accelerator::{Accelerator, AcceleratorError, Queue};
use crate::memory::{
    Backing, CudaDriver, CudaError, CudaEvent, CudaMemory, CudaStatus, CudaStream, DeviceAddress, NOT_READY,
    SUCCESS,
};

/// `CU_STREAM_NON_BLOCKING`: the streams do not wait for the legacy default stream.
const NON_BLOCKING: u32 = 1;
/// `CU_MEMHOSTALLOC_PORTABLE`: all contexts take the memory as page-locked.
const PORTABLE: u32 = 1;

/// A CUDA device as an [`Accelerator`]: its own stream for operations, and one for the copies of each direction. Copies on the host are
/// page-locked.
///
/// ```no_run
/// use elbowroom_alloc::Cuda;
/// use elbowroom_alloc::device::{CudaAccelerator, Device};
///
/// let accelerator = CudaAccelerator::new(Cuda::open()?.device(0)?)?;
/// let mut device = Device::on(accelerator, 1 << 30, None)?;
/// let block = device.malloc(1 << 20);
/// // SAFETY: an operation that does nothing.
/// unsafe { device.launch(|_, writes, _stream| println!("{:#x}", writes[0]), &[], &[block])? };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CudaAccelerator {
    memory: CudaMemory,
    streams: [CudaStream; 3],
}

// SAFETY: streams and events may be used by any thread; `CudaMemory` makes the context current around each call.
unsafe impl Send for CudaAccelerator {}

fn failed(error: CudaError) -> AcceleratorError {
    AcceleratorError::Failed(error.to_string())
}

/// The error of a request for memory: only a lack of memory leaves the device usable.
fn no_memory(what: impl FnOnce() -> String, error: CudaError) -> AcceleratorError {
    if error.is_out_of_memory() {
        AcceleratorError::OutOfMemory { what: what(), why: error.to_string() }
    } else {
        failed(error)
    }
}

impl CudaAccelerator {
    /// Creates the streams on a device.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn new(memory: CudaMemory) -> Result<Self, CudaError> {
        let mut made = Self { memory, streams: [null_mut(); 3] };
        for at in 0..made.streams.len() {
            let mut stream = null_mut();
            // SAFETY: the driver writes a new stream's handle.
            made.memory.within("create a stream", |driver| unsafe {
                (driver.stream_create)(&mut stream, NON_BLOCKING)
            })?;
            made.streams[at] = stream;
        }
        Ok(made)
    }

    fn stream(&self, queue: Queue) -> CudaStream {
        self.streams[queue as usize]
    }

    /// Runs a call of the driver after whose failure the device is not used again.
    fn call(
        &self,
        what: &'static str,
        call: impl FnOnce(&CudaDriver) -> CudaStatus,
    ) -> Result<(), AcceleratorError> {
        self.memory.within(what, call).map_err(failed)
    }
}

impl Drop for CudaAccelerator {
    fn drop(&mut self) {
        for stream in self.streams.into_iter().filter(|stream| !stream.is_null()) {
            // SAFETY: created in `new` and destroyed here only. A device that is lost may refuse; nothing is left to free then.
            let _ =
                self.memory.within("destroy a stream", |driver| unsafe { (driver.stream_destroy)(stream) });
        }
    }
}

/// An event of the driver.
#[derive(Debug)]
pub struct Mark(CudaEvent);

// SAFETY: the driver's contract for memory, streams and events. Each call has the device's context.
unsafe impl Accelerator for CudaAccelerator {
    type Event = Mark;

    fn reserve(&self, bytes: usize) -> Result<usize, AcceleratorError> {
        let taken = self.memory.take(bytes.max(1));
        taken.map_err(|error| no_memory(|| format!("reserve {bytes} bytes of the device"), error))
    }

    unsafe fn release(&self, address: usize, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { Backing::release(&self.memory, address, bytes, 1) };
    }

    fn reserve_host(&self, bytes: usize) -> Result<usize, AcceleratorError> {
        let mut address = null_mut();
        // SAFETY: the driver writes the address of a new range.
        let taken = self.memory.within("give page-locked memory", |driver| unsafe {
            (driver.host_alloc)(&mut address, bytes.max(1), PORTABLE)
        });
        taken.map_err(|error| no_memory(|| format!("reserve {bytes} bytes of the host"), error))?;
        Ok(address.expose_provenance())
    }

    unsafe fn release_host(&self, address: usize, _: usize) {
        // SAFETY: the caller's promise. A device that is lost may refuse; nothing can be freed then.
        let _ = self.memory.within("take page-locked memory back", |driver| unsafe {
            (driver.host_free)(std::ptr::with_exposed_provenance_mut(address))
        });
    }

    fn handle(&self, queue: Queue) -> *mut c_void {
        self.stream(queue)
    }

    unsafe fn fill(&self, queue: Queue, address: usize, bytes: usize) -> Result<(), AcceleratorError> {
        // SAFETY: the caller's promise.
        self.call("fill memory", |driver| unsafe {
            (driver.fill)(address as DeviceAddress, 0, bytes, self.stream(queue))
        })
    }

    unsafe fn to_host(
        &self,
        queue: Queue,
        from: usize,
        to: usize,
        bytes: usize,
    ) -> Result<(), AcceleratorError> {
        let to = std::ptr::with_exposed_provenance_mut(to);
        // SAFETY: the caller's promise.
        self.call("copy to the host", |driver| unsafe {
            (driver.to_host)(to, from as DeviceAddress, bytes, self.stream(queue))
        })
    }

    unsafe fn to_device(
        &self,
        queue: Queue,
        from: usize,
        to: usize,
        bytes: usize,
    ) -> Result<(), AcceleratorError> {
        let from = std::ptr::with_exposed_provenance(from);
        // SAFETY: the caller's promise.
        self.call("copy to the device", |driver| unsafe {
            (driver.to_device)(to as DeviceAddress, from, bytes, self.stream(queue))
        })
    }

    fn event(&self) -> Result<Mark, AcceleratorError> {
        let mut event = null_mut();
        // SAFETY: the driver writes a new event's handle. Flags of 0: the event keeps its time.
        self.call("create an event", |driver| unsafe { (driver.event_create)(&mut event, 0) })?;
        Ok(Mark(event))
    }

    fn drop_event(&self, Mark(event): Mark) {
        // SAFETY: made by `event`, and given away by its owner. A device that is lost may refuse; nothing is left to free then.
        let _ = self.call("destroy an event", |driver| unsafe { (driver.event_destroy)(event) });
    }

    fn record(&self, queue: Queue, event: &mut Mark) -> Result<(), AcceleratorError> {
        let (event, stream) = (event.0, self.stream(queue));
        // SAFETY: a live event and stream of this context.
        self.call("record an event", |driver| unsafe { (driver.event_record)(event, stream) })
    }

    fn wait(&self, queue: Queue, event: &Mark) -> Result<(), AcceleratorError> {
        let stream = self.stream(queue);
        // SAFETY: a live event and stream of this context. The driver takes the event as it is recorded now.
        self.call("wait for an event", |driver| unsafe { (driver.stream_wait)(stream, event.0, 0) })
    }

    fn is_done(&self, event: &Mark) -> Result<bool, AcceleratorError> {
        let mut is_done = true;
        self.call("query an event", |driver| {
            // SAFETY: a live event of this context.
            let status = unsafe { (driver.event_query)(event.0) };
            is_done = status != NOT_READY;
            if is_done { status } else { SUCCESS }
        })?;
        Ok(is_done)
    }

    fn synchronize(&self, event: &Mark) -> Result<(), AcceleratorError> {
        // SAFETY: a live event of this context.
        self.call("wait for the device", |driver| unsafe { (driver.event_synchronize)(event.0) })
    }

    fn nanos(&self, start: &Mark, end: &Mark) -> Result<u64, AcceleratorError> {
        let mut millis = 0f32;
        // SAFETY: two live events of this context, which keep their times; the driver writes a number.
        self.call("read the time between two events", |driver| unsafe {
            (driver.event_elapsed)(&mut millis, start.0, end.0)
        })?;
        Ok((f64::from(millis.max(0.0)) * 1e6) as u64)
    }
}

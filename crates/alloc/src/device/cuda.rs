//! A CUDA device: three streams of one context, and its events.

use std::ffi::c_void;
use std::ptr::null_mut;

use super::accelerator::{Accelerator, AcceleratorError, Queue};
use crate::memory::{Backing, CudaError, CudaEvent, CudaMemory, CudaStream, DeviceAddress, NOT_READY};

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
}

impl Drop for CudaAccelerator {
    fn drop(&mut self) {
        for stream in self.streams.into_iter().filter(|stream| !stream.is_null()) {
            // SAFETY: created in `new`, and nobody else destroys it. A device that is lost may refuse; nothing is left to free then.
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
        self.memory.take(bytes.max(1)).map_err(|error| {
            let what = format!("reserve {bytes} bytes of the device");
            match error.is_out_of_memory() {
                true => AcceleratorError::OutOfMemory { what, why: error.to_string() },
                false => failed(error),
            }
        })
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
        match taken {
            Ok(()) => Ok(address.expose_provenance()),
            Err(error) if error.is_out_of_memory() => Err(AcceleratorError::OutOfMemory {
                what: format!("reserve {bytes} bytes of the host"),
                why: error.to_string(),
            }),
            Err(error) => Err(failed(error)),
        }
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
        let call = self.memory.within("fill memory", |driver| unsafe {
            (driver.fill)(address as DeviceAddress, 0, bytes, self.stream(queue))
        });
        call.map_err(failed)
    }

    unsafe fn to_host(
        &self,
        queue: Queue,
        from: usize,
        to: usize,
        bytes: usize,
    ) -> Result<(), AcceleratorError> {
        // SAFETY: the caller's promise.
        let call = self.memory.within("copy to the host", |driver| unsafe {
            let to = std::ptr::with_exposed_provenance_mut(to);
            (driver.to_host)(to, from as DeviceAddress, bytes, self.stream(queue))
        });
        call.map_err(failed)
    }

    unsafe fn to_device(
        &self,
        queue: Queue,
        from: usize,
        to: usize,
        bytes: usize,
    ) -> Result<(), AcceleratorError> {
        // SAFETY: the caller's promise.
        let call = self.memory.within("copy to the device", |driver| unsafe {
            let from = std::ptr::with_exposed_provenance(from);
            (driver.to_device)(to as DeviceAddress, from, bytes, self.stream(queue))
        });
        call.map_err(failed)
    }

    fn event(&self) -> Result<Mark, AcceleratorError> {
        let mut event = null_mut();
        // SAFETY: the driver writes a new event's handle. Flags of 0: the event keeps its time.
        let made =
            self.memory.within("create an event", |driver| unsafe { (driver.event_create)(&mut event, 0) });
        made.map(|()| Mark(event)).map_err(failed)
    }

    fn drop_event(&self, Mark(event): Mark) {
        // SAFETY: made by `event`, and given away by its owner.
        let _ = self.memory.within("destroy an event", |driver| unsafe { (driver.event_destroy)(event) });
    }

    fn record(&self, queue: Queue, event: &mut Mark) -> Result<(), AcceleratorError> {
        let (event, stream) = (event.0, self.stream(queue));
        // SAFETY: a live event and stream of this context.
        let call =
            self.memory.within("record an event", |driver| unsafe { (driver.event_record)(event, stream) });
        call.map_err(failed)
    }

    fn wait(&self, queue: Queue, event: &Mark) -> Result<(), AcceleratorError> {
        // SAFETY: a live event and stream of this context. The driver takes the event as it is recorded now.
        let call = self.memory.within("wait for an event", |driver| unsafe {
            (driver.stream_wait)(self.stream(queue), event.0, 0)
        });
        call.map_err(failed)
    }

    fn is_done(&self, event: &Mark) -> Result<bool, AcceleratorError> {
        let mut done = true;
        let call = self.memory.within("query an event", |driver| {
            // SAFETY: a live event of this context.
            let status = unsafe { (driver.event_query)(event.0) };
            done = status != NOT_READY;
            if done { status } else { 0 }
        });
        call.map(|()| done).map_err(failed)
    }

    fn synchronize(&self, event: &Mark) -> Result<(), AcceleratorError> {
        // SAFETY: a live event of this context.
        let call = self
            .memory
            .within("wait for the device", |driver| unsafe { (driver.event_synchronize)(event.0) });
        call.map_err(failed)
    }

    fn nanos(&self, start: &Mark, end: &Mark) -> Result<u64, AcceleratorError> {
        let mut millis = 0f32;
        // SAFETY: two live events of this context, which keep their times; the driver writes a number.
        let call = self.memory.within("read the time between two events", |driver| unsafe {
            (driver.event_elapsed)(&mut millis, start.0, end.0)
        });
        call.map(|()| (f64::from(millis.max(0.0)) * 1e6) as u64).map_err(failed)
    }
}

//! What a device offers: memory, three queues, and events that order them.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::c_void;
use std::fmt::Debug;
use std::time::Instant;

use super::ALIGN;

/// A queue of a device: its tasks run in the order in which they were issued. Tasks of different queues run in any order, or at the same
/// time, unless an event orders them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// Operations of the program, and the zeros of new blocks.
    Compute,
    /// Copies from the device to the host.
    ToHost,
    /// Copies from the host to the device.
    ToDevice,
}

impl Queue {
    /// All queues, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Compute, Self::ToHost, Self::ToDevice];
}

/// Why a device refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcceleratorError {
    /// There is no memory left, on the device or on the host.
    #[error("cannot {what}: out of memory ({why})")]
    OutOfMemory {
        /// What was asked for.
        what: String,
        /// The driver's message.
        why: String,
    },
    /// Anything else. What the device has in progress is unknown, so that it is not used again.
    #[error("the device failed: {0}")]
    Failed(String),
}

/// Memory of a device and of its host, three queues, and events.
///
/// Calls that issue a task return at once. The bytes that a task uses must stay as they are until the task has ended, which an event that
/// was recorded behind it tells.
///
/// # Safety
/// Ranges of [`reserve`](Self::reserve) and [`reserve_host`](Self::reserve_host) share no byte with any other range in use until they are
/// released. Tasks of one queue run in order, tasks behind a [`wait`](Self::wait) begin after the event, and [`is_done`](Self::is_done) and
/// [`synchronize`](Self::synchronize) tell the end of all tasks before the event's last record.
pub unsafe trait Accelerator {
    /// A point in a queue. Recorded any number of times; the last record counts.
    type Event: Debug;

    /// Reserves bytes of the device, aligned to [`ALIGN`].
    ///
    /// # Errors
    /// The device has none, or fails.
    fn reserve(&self, bytes: usize) -> Result<usize, AcceleratorError>;

    /// Releases bytes of the device.
    ///
    /// # Safety
    /// They came from `reserve` with this size, and no task uses them any more.
    unsafe fn release(&self, address: usize, bytes: usize);

    /// Reserves bytes of the host that this process may read and write and that copies of the device may use.
    ///
    /// # Errors
    /// The host has none, or the device fails.
    fn reserve_host(&self, bytes: usize) -> Result<usize, AcceleratorError>;

    /// Releases bytes of the host.
    ///
    /// # Safety
    /// They came from `reserve_host` with this size, and no task uses them any more.
    unsafe fn release_host(&self, address: usize, bytes: usize);

    /// The queue as the device's own handle, such as a `CUstream`; null where there is none.
    fn handle(&self, queue: Queue) -> *mut c_void;

    /// Issues a task that fills bytes of the device with zeros.
    ///
    /// # Errors
    /// The device fails.
    ///
    /// # Safety
    /// The bytes lie in a reserved range, and no task that is not ordered with this one uses them.
    unsafe fn fill(&self, queue: Queue, address: usize, bytes: usize) -> Result<(), AcceleratorError>;

    /// Issues a copy from the device to the host.
    ///
    /// # Errors
    /// The device fails.
    ///
    /// # Safety
    /// Both ranges are reserved, and no task that is not ordered with this one writes the first or uses the second.
    unsafe fn to_host(
        &self,
        queue: Queue,
        from: usize,
        to: usize,
        bytes: usize,
    ) -> Result<(), AcceleratorError>;

    /// Issues a copy from the host to the device.
    ///
    /// # Errors
    /// The device fails.
    ///
    /// # Safety
    /// As [`to_host`](Self::to_host).
    unsafe fn to_device(
        &self,
        queue: Queue,
        from: usize,
        to: usize,
        bytes: usize,
    ) -> Result<(), AcceleratorError>;

    /// A new event.
    ///
    /// # Errors
    /// The device fails.
    fn event(&self) -> Result<Self::Event, AcceleratorError>;

    /// Frees an event. Tasks that wait for it are not affected.
    fn drop_event(&self, event: Self::Event);

    /// Records an event behind all tasks that the queue has so far.
    ///
    /// # Errors
    /// The device fails.
    fn record(&self, queue: Queue, event: &mut Self::Event) -> Result<(), AcceleratorError>;

    /// Makes all further tasks of a queue wait for an event as it is recorded now.
    ///
    /// # Errors
    /// The device fails.
    fn wait(&self, queue: Queue, event: &Self::Event) -> Result<(), AcceleratorError>;

    /// Whether all tasks before an event have ended.
    ///
    /// # Errors
    /// The device fails.
    fn is_done(&self, event: &Self::Event) -> Result<bool, AcceleratorError>;

    /// Waits for all tasks before an event.
    ///
    /// # Errors
    /// The device fails.
    fn synchronize(&self, event: &Self::Event) -> Result<(), AcceleratorError>;

    /// Nanoseconds between two events that are done.
    ///
    /// # Errors
    /// The device fails.
    fn nanos(&self, start: &Self::Event, end: &Self::Event) -> Result<u64, AcceleratorError>;
}

/// The host as a device: each task ends before the call that issues it returns.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostAccelerator;

/// The layout of a range. Sizes near the end of the address space are refused before.
fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), ALIGN).ok()
}

impl HostAccelerator {
    fn allocate(bytes: usize) -> Result<usize, AcceleratorError> {
        let none = || AcceleratorError::OutOfMemory {
            what: format!("reserve {bytes} bytes"),
            why: "the host has no more".to_owned(),
        };
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout(bytes).ok_or_else(none)?) };
        if start.is_null() { Err(none()) } else { Ok(start.expose_provenance()) }
    }

    /// Ends the process where the memory cannot be had, as a `Vec` would.
    pub(super) fn out_of_memory(bytes: usize) -> ! {
        handle_alloc_error(layout(bytes).unwrap_or(Layout::new::<u8>()))
    }
}

// SAFETY: ranges are the global allocator's, and every task has ended when its call returns.
unsafe impl Accelerator for HostAccelerator {
    type Event = Option<Instant>;

    fn reserve(&self, bytes: usize) -> Result<usize, AcceleratorError> {
        Self::allocate(bytes)
    }

    unsafe fn release(&self, address: usize, bytes: usize) {
        if let Some(layout) = layout(bytes) {
            // SAFETY: allocated with this layout, and unused (the caller's promise).
            unsafe { dealloc(std::ptr::with_exposed_provenance_mut(address), layout) };
        }
    }

    fn reserve_host(&self, bytes: usize) -> Result<usize, AcceleratorError> {
        Self::allocate(bytes)
    }

    unsafe fn release_host(&self, address: usize, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.release(address, bytes) };
    }

    fn handle(&self, _: Queue) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn fill(&self, _: Queue, address: usize, bytes: usize) -> Result<(), AcceleratorError> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::write_bytes(std::ptr::with_exposed_provenance_mut::<u8>(address), 0, bytes) };
        Ok(())
    }

    unsafe fn to_host(&self, _: Queue, from: usize, to: usize, bytes: usize) -> Result<(), AcceleratorError> {
        let (from, to) =
            (std::ptr::with_exposed_provenance::<u8>(from), std::ptr::with_exposed_provenance_mut::<u8>(to));
        // SAFETY: two reserved ranges (the caller's promise), which share no byte.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        Ok(())
    }

    unsafe fn to_device(
        &self,
        queue: Queue,
        from: usize,
        to: usize,
        bytes: usize,
    ) -> Result<(), AcceleratorError> {
        // SAFETY: the caller's promise.
        unsafe { self.to_host(queue, from, to, bytes) }
    }

    fn event(&self) -> Result<Self::Event, AcceleratorError> {
        Ok(None)
    }

    fn drop_event(&self, _: Self::Event) {}

    fn record(&self, _: Queue, event: &mut Self::Event) -> Result<(), AcceleratorError> {
        *event = Some(Instant::now());
        Ok(())
    }

    fn wait(&self, _: Queue, _: &Self::Event) -> Result<(), AcceleratorError> {
        Ok(())
    }

    fn is_done(&self, _: &Self::Event) -> Result<bool, AcceleratorError> {
        Ok(true)
    }

    fn synchronize(&self, _: &Self::Event) -> Result<(), AcceleratorError> {
        Ok(())
    }

    fn nanos(&self, start: &Self::Event, end: &Self::Event) -> Result<u64, AcceleratorError> {
        let between = start.zip(*end).map(|(start, end)| end.saturating_duration_since(start));
        Ok(between.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

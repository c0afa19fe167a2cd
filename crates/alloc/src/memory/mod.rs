//! Sources of planned ranges: the host, a CUDA device, or any other implementation of [`Backing`].

mod cuda;
mod host;

use std::fmt;

pub use cuda::{Cuda, CudaError, CudaMemory};
pub(crate) use cuda::{
    CudaEvent, CudaStream, DeviceAddress, Driver as CudaDriver, NOT_READY, SUCCESS, Status as CudaStatus,
};
pub use host::HostMemory;

/// A kind of memory. Addresses are numbers; this process may dereference only the host's.
///
/// # Safety
/// A range that [`reserve`](Self::reserve) returns is usable for any purpose, to its full length, until it is released, and shares no
/// byte with any other range in use. [`release`](Self::release) and [`discard`](Self::discard) do not panic.
pub unsafe trait Backing {
    /// Reserves a new range of at least `bytes` bytes whose first address is a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// The memory cannot be had.
    fn reserve(&self, bytes: usize, align: usize) -> Result<usize, OutOfMemory>;

    /// Releases a range, given the length and alignment with which it was reserved.
    ///
    /// ```compile_fail,E0133
    /// use elbowroom_alloc::{Backing, HostMemory};
    ///
    /// let block = vec![0u8; 1 << 20];
    /// HostMemory.release(block.as_ptr() as usize, 1 << 20, 64);
    /// ```
    ///
    /// # Safety
    /// The range came from `reserve` with this length and alignment, has not been released since, and nothing uses its bytes any more.
    unsafe fn release(&self, address: usize, bytes: usize, align: usize);

    /// Declares that a part of a range holds no data, so that its pages can be returned to the system. May do nothing.
    ///
    /// ```compile_fail,E0133
    /// use elbowroom_alloc::{Backing, HostMemory};
    ///
    /// let block = vec![1u8; 1 << 20];
    /// HostMemory.discard(block.as_ptr() as usize, 1 << 20);
    /// ```
    ///
    /// # Safety
    /// The part lies in a range that is reserved, and nothing relies on the contents of its bytes: they may change.
    unsafe fn discard(&self, address: usize, bytes: usize) {
        let _ = (address, bytes);
    }
}

/// A range could not be reserved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot reserve {bytes} bytes: {why}")]
pub struct OutOfMemory {
    /// Bytes requested.
    pub bytes: usize,
    /// The system's or driver's message.
    pub why: String,
}

impl OutOfMemory {
    /// The error for a range of `bytes` bytes.
    pub fn new(bytes: usize, why: impl fmt::Display) -> Self {
        Self { bytes, why: why.to_string() }
    }
}

// SAFETY: the promise of the memory referred to.
unsafe impl<B: Backing + ?Sized> Backing for &B {
    fn reserve(&self, bytes: usize, align: usize) -> Result<usize, OutOfMemory> {
        (**self).reserve(bytes, align)
    }
    unsafe fn release(&self, address: usize, bytes: usize, align: usize) {
        // SAFETY: the caller's promise.
        unsafe { (**self).release(address, bytes, align) };
    }
    unsafe fn discard(&self, address: usize, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { (**self).discard(address, bytes) };
    }
}

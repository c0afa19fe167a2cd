//! Sources of planned ranges: the host, a CUDA device, or any other implementation of [`Backing`].

mod cuda;
mod host;

use std::fmt;

pub use cuda::{Cuda, CudaError, CudaMemory};
pub use host::HostMemory;

/// A kind of memory. Addresses are numbers; this process may dereference only the host's.
pub trait Backing {
    /// Reserves a new range of at least `bytes` bytes whose first address is a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// The memory cannot be had.
    fn reserve(&self, bytes: usize, align: usize) -> Result<usize, OutOfMemory>;

    /// Releases a range, given the length and alignment with which it was reserved.
    fn release(&self, address: usize, bytes: usize, align: usize);

    /// Declares that a part of a range holds no data, so that its pages can be returned to the system. May do nothing.
    fn discard(&self, address: usize, bytes: usize) {
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

impl<B: Backing + ?Sized> Backing for &B {
    fn reserve(&self, bytes: usize, align: usize) -> Result<usize, OutOfMemory> {
        (**self).reserve(bytes, align)
    }
    fn release(&self, address: usize, bytes: usize, align: usize) {
        (**self).release(address, bytes, align);
    }
    fn discard(&self, address: usize, bytes: usize) {
        (**self).discard(address, bytes);
    }
}

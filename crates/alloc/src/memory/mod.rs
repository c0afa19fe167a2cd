//! Where planned ranges come from: the host, a CUDA device, or whatever else implements [`Backing`].

mod cuda;
mod host;

use std::fmt;

pub use cuda::{Cuda, CudaError, CudaMemory};
pub use host::HostMemory;

/// A kind of memory. Addresses are numbers: only the host's may be dereferenced by this process.
pub trait Backing {
    /// A new range of at least `bytes` bytes whose first address is a multiple of `align`, a power of two.
    fn reserve(&self, bytes: usize, align: usize) -> Result<usize, OutOfMemory>;

    /// Gives back a range with the length and alignment with which it was reserved.
    fn release(&self, address: usize, bytes: usize, align: usize);

    /// Says that a part of a range holds nothing of value now, so that its pages may be lent to others. May do nothing.
    fn discard(&self, address: usize, bytes: usize) {
        let _ = (address, bytes);
    }
}

/// A range that could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes could not be reserved: {why}")]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub bytes: usize,
    /// What the system or driver said.
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

//! A request for memory, and the number that identifies a recorded request.

/// A request: size and alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Bytes requested.
    pub size: usize,
    /// Required alignment of the address in bytes: a power of two.
    pub align: usize,
}

impl Request {
    /// A request of `size` bytes at a multiple of `align`.
    pub const fn new(size: usize, align: usize) -> Self {
        Self { size, align }
    }

    /// The request as one number, for hashing sequences of requests. Different requests almost always have different numbers; where
    /// equality matters, the requests themselves are compared.
    pub(crate) const fn token(self) -> u64 {
        let mixed = (self.size as u64 ^ ((self.align as u64) << 48)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 29)
    }

    /// The size of a slot for this request, in bytes: at least one granule. `None` if it exceeds the address space.
    pub(crate) fn rounded(self, granule: usize) -> Option<usize> {
        self.size.max(1).checked_next_multiple_of(granule).filter(|&bytes| bytes < 1 << 56)
    }
}

/// The number of a recorded request within its [`Sequence`](crate::Sequence), by which its free is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A time of a sequence: the number of requests before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestTime(pub u64);

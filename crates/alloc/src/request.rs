//! One request for memory, and the number under which a request is remembered.

/// A request: how many bytes, and what its address must be a multiple of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Bytes asked for.
    pub size: usize,
    /// Required alignment of the address in bytes: a power of two.
    pub align: usize,
}

impl Request {
    /// A request of `size` bytes at a multiple of `align`.
    pub const fn new(size: usize, align: usize) -> Self {
        Self { size, align }
    }

    /// The request as one number, for hashing sequences of requests. Different requests have different numbers in practice; whoever
    /// relies on equality compares the requests themselves.
    pub(crate) const fn token(self) -> u64 {
        let mixed = (self.size as u64 ^ ((self.align as u64) << 48)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 29)
    }

    /// The bytes that a slot for this request takes in an arena of this granule, at least one granule; `None` past the address space.
    pub(crate) fn rounded(self, granule: usize) -> Option<usize> {
        self.size.max(1).checked_next_multiple_of(granule).filter(|&bytes| bytes < 1 << 56)
    }
}

/// The number of a recorded request within its [`Sequence`](crate::Sequence): whoever frees the block names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A moment of a sequence: how many requests it had made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestTime(pub u64);

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

    /// The token in half as many bits, for a record that holds many.
    pub(crate) const fn short_token(self) -> u32 {
        short(self.token())
    }

    /// The size of a slot for this request, in bytes: at least one granule. `None` if it exceeds the address space.
    pub(crate) fn rounded(self, granule: usize) -> Option<usize> {
        self.size.max(1).checked_next_multiple_of(granule).filter(|&bytes| bytes < 1 << 56)
    }
}

/// A number that identifies something, in half as many bits.
pub(crate) const fn short(token: u64) -> u32 {
    (token.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
}

/// The number of a recorded request within its [`Sequence`](crate::Sequence), by which its free is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A time of a sequence: the number of requests before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestTime(pub u64);

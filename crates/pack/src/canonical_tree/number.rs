//! The integers of the search.

/// An integer. `i32` is faster, and sufficient for most instances once sizes are divided by their greatest common divisor.
pub(crate) trait Number: Copy + Ord + Default + std::ops::Add<Output = Self> {
    /// Above every end, and the sum of two does not overflow.
    const TOP: Self;
    fn from_u64(value: u64) -> Self;
    fn to_u64(self) -> u64;
    /// The next multiple of `align`.
    fn up_to(self, align: Self) -> Self;
}

macro_rules! number {
    ($type:ty) => {
        impl Number for $type {
            const TOP: Self = Self::MAX / 2;
            fn from_u64(value: u64) -> Self {
                value as Self
            }
            fn to_u64(self) -> u64 {
                self as u64
            }
            fn up_to(self, align: Self) -> Self {
                (self + align - 1) / align * align
            }
        }
    };
}
number!(i32);
number!(i64);

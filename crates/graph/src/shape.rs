//! Shapes and element types of tensors.

use std::fmt;

use elbowroom_ir::Bytes;

/// Maximum number of dimensions.
pub const MAX_RANK: usize = 5;

/// The type of a tensor's elements. All are stored in the machine's byte order, densely, the last dimension fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit floats; the only type with derivatives.
    F32,
    /// The upper halves of 32-bit floats (bfloat16): activations and their gradients of a graph [in that precision](crate::Precision).
    Bf16,
    /// 32-bit signed integers: labels and tokens.
    I32,
    /// Bytes: positions inside a pooling window.
    U8,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }
}

/// The extents of a tensor, outermost first. The empty shape is a scalar: one element.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    extents: [usize; MAX_RANK],
    rank: usize,
}

impl Shape {
    /// One element, no dimensions.
    pub const SCALAR: Self = Self { extents: [1; MAX_RANK], rank: 0 };

    /// The shape of the given extents, which number at most [`MAX_RANK`].
    pub fn new(extents: &[usize]) -> Self {
        assert!(extents.len() <= MAX_RANK, "no operation makes a tensor of {} dimensions", extents.len());
        let mut shape = Self::SCALAR;
        shape.extents[..extents.len()].copy_from_slice(extents);
        shape.rank = extents.len();
        shape
    }

    /// The extents, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.extents[..self.rank]
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.dims().iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of a dense tensor of this shape.
    pub fn bytes(&self, dtype: DType) -> Bytes {
        Bytes((self.len() * dtype.size()) as u64)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(extents: [usize; N]) -> Self {
        Self::new(&extents)
    }
}

impl fmt::Display for Shape {
    /// `[64, 3, 32, 32]`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

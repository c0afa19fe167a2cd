//! Extents of operations: windows, images, rows and heads, with the shapes that they make.

use crate::shape::Shape;

/// The window of a convolution or a pooling, as `[height, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Extent of the window.
    pub kernel: [usize; 2],
    /// Distance between neighbouring windows.
    pub stride: [usize; 2],
    /// Rows and columns added on *both* sides of the input. Zeros for a convolution; excluded from the window for a pooling.
    pub padding: [usize; 2],
}

impl Window {
    /// A square window.
    pub const fn square(kernel: usize, stride: usize, padding: usize) -> Self {
        Self { kernel: [kernel; 2], stride: [stride; 2], padding: [padding; 2] }
    }

    /// Elements of one window.
    pub const fn area(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Output size over an input of this size: `⌊(in + 2·padding − kernel) / stride⌋ + 1`, or `None` if the window does not fit.
    pub fn output(&self, input: [usize; 2]) -> Option<[usize; 2]> {
        self.output_rounded(input, false)
    }

    /// As [`output`](Self::output), but the quotient is rounded up, except that no window starts in the padding behind the input.
    pub fn output_ceil(&self, input: [usize; 2]) -> Option<[usize; 2]> {
        self.output_rounded(input, true)
    }

    fn output_rounded(&self, input: [usize; 2], up: bool) -> Option<[usize; 2]> {
        let mut output = [0; 2];
        for axis in 0..2 {
            let (padding, stride) = (self.padding[axis], self.stride[axis]);
            let span = (input[axis] + 2 * padding).checked_sub(self.kernel[axis])?;
            let rounded = if up { span.div_ceil(stride) } else { span / stride };
            let last_inside = if up { (input[axis] + padding).checked_sub(1)? / stride } else { rounded };
            output[axis] = rounded.min(last_inside) + 1;
        }
        Some(output)
    }
}

/// The algorithm that a kernel uses for a convolution or one of its gradients. The result is the same up to rounding; workspace and speed
/// differ. The device determines which algorithms exist for an op and what they need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// A matrix product over windows that are packed panel by panel (`im2col` in tiles).
    #[default]
    Tiled,
    /// [`Self::Tiled`] in smaller tiles, with a fraction of its workspace.
    Lean,
    /// The sums of [`Self::Tiled`], with weights and images read in place: no workspace. For forward passes and gradients to the input at a
    /// stride of one.
    Direct,
    /// Winograd's minimal filtering F(2×2, 3×3) (Lavin and Gray, *Fast algorithms for convolutional neural networks*, 2015): fewer
    /// multiplications and more workspace, for windows of 3×3 at a stride of one.
    Winograd,
    /// [`Self::Winograd`] with a fraction of its workspace, to the same bits.
    WinogradLean,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Tiled, Self::Lean, Self::Direct, Self::Winograd, Self::WinogradLean];

    /// Whether it sums in the order of the default algorithm, so that its results are bit-exact with it.
    pub const fn has_usual_bits(self) -> bool {
        !matches!(self, Self::Winograd | Self::WinogradLean)
    }

    /// Whether its results are bit-exact with another's.
    pub const fn has_bits_of(self, other: Self) -> bool {
        self.has_usual_bits() == other.has_usual_bits()
    }

    /// A short name, as reports print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tiled => "tiled",
            Self::Lean => "lean",
            Self::Direct => "direct",
            Self::Winograd => "winograd",
            Self::WinogradLean => "winograd-lean",
        }
    }
}

/// Extents of a convolution: `x [batch, in_channels, in_size]`, `w [out_channels, in_channels, kernel]`,
/// `y [batch, out_channels, out_size]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv {
    /// Images.
    pub batch: usize,
    /// Channels of `x`.
    pub in_channels: usize,
    /// Height and width of `x`.
    pub in_size: [usize; 2],
    /// Channels of `y`.
    pub out_channels: usize,
    /// Height and width of `y`.
    pub out_size: [usize; 2],
    /// The window.
    pub window: Window,
    /// How it is computed.
    pub algorithm: Algorithm,
}

impl Conv {
    /// Whether [`Algorithm::Winograd`] can compute it: windows of 3×3 at a stride of one, with at most two pixels of padding.
    pub const fn suits_winograd(&self) -> bool {
        let Window { kernel: [3, 3], stride: [1, 1], padding: [down, across] } = self.window else {
            return false;
        };
        down <= 2 && across <= 2
    }

    /// Multiply-adds of one pass over all of it.
    pub const fn multiply_adds(&self) -> u64 {
        (self.batch * self.out_channels * self.out_size[0] * self.out_size[1]) as u64
            * (self.in_channels * self.window.area()) as u64
    }
}

/// Extents of a pooling: `x [planes, in_size]`, `y [planes, out_size]`, where planes = batch · channels. The last windows may reach
/// over the end of the input (rounding up); as with padding, what is outside does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    /// Batch times channels.
    pub planes: usize,
    /// Height and width of `x`.
    pub in_size: [usize; 2],
    /// Height and width of `y`.
    pub out_size: [usize; 2],
    /// The window.
    pub window: Window,
}

/// Extents of a per-channel operation over `[batch, channels, spatial]`; spatial = height · width, or 1 for rows of features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Channels {
    /// Outermost extent.
    pub batch: usize,
    /// The extent that statistics and parameters have.
    pub channels: usize,
    /// Innermost extent.
    pub spatial: usize,
}

impl Channels {
    /// Number of elements.
    pub const fn len(&self) -> usize {
        self.batch * self.channels * self.spatial
    }

    /// Whether there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements of one channel.
    pub const fn per_channel(&self) -> usize {
        self.batch * self.spatial
    }
}

/// Local response normalization (Krizhevsky et al., 2012): over `size` neighbouring channels, an odd number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Response {
    /// Extents.
    pub channels: Channels,
    /// Channels in a neighbourhood, the channel itself in its middle.
    pub size: usize,
    /// k, added to the squares.
    pub k: f32,
    /// α, the factor of every square. (Not divided by the size, as some libraries do.)
    pub alpha: f32,
    /// β, the exponent.
    pub beta: f32,
}

impl Response {
    /// The channels next to a channel, itself included.
    pub fn neighbours(&self, channel: usize) -> std::ops::Range<usize> {
        let reach = self.size / 2;
        channel.saturating_sub(reach)..(channel + reach + 1).min(self.channels.channels)
    }
}

/// Extents of a product: `x [rows, inputs]`, `w [outputs, inputs]`, `y [rows, outputs]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// Rows of `x` and `y`.
    pub rows: usize,
    /// Columns of `x` and `w`.
    pub inputs: usize,
    /// Rows of `w`, columns of `y`.
    pub outputs: usize,
}

/// Extents of one product for each member of a batch: `a [batch, rows, depth]`, `b [batch, depth, columns]`, `y [batch, rows, columns]`, where
/// the two last extents of `a`, of `b` or of both may be exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Products {
    /// Number of products.
    pub batch: usize,
    /// Rows of a product.
    pub rows: usize,
    /// Columns of a product.
    pub columns: usize,
    /// Terms of each sum.
    pub depth: usize,
    /// Whether `a` is stored as `[batch, depth, rows]`, and `b` as `[batch, columns, depth]`.
    pub transposed: [bool; 2],
}

/// Extents of an embedding: `ids i32 [any]`, of which row `r` reads the one at `offset + r·stride`; `table [vocabulary, width]`, whose first
/// row has the id `first`; `y [rows, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lookup {
    /// Ids that are read.
    pub rows: usize,
    /// Which ids these are.
    pub places: Places,
    /// The id of the table's first row: zero unless the table is a tile of a larger one.
    pub first: usize,
    /// Rows of the table.
    pub vocabulary: usize,
    /// Columns of the table.
    pub width: usize,
}

/// Extents of self-attention over `qkv [batch, tokens, 3·heads·width]`: each row has the queries of all heads, then the keys, then the
/// values; head `h` owns columns `h·width .. (h+1)·width` of each third.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Sequences.
    pub batch: usize,
    /// Length of a sequence.
    pub tokens: usize,
    /// Heads.
    pub heads: usize,
    /// Columns of one head.
    pub width: usize,
    /// Whether token `i` attends only to tokens `j ≤ i`.
    pub causal: bool,
}

/// Extents and weight of a classification loss: `logits [rows, classes]`, `labels i32 [any]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Classification {
    /// Rows of the logits.
    pub rows: usize,
    /// Columns of the logits.
    pub classes: usize,
    /// Which label each row reads.
    pub places: Places,
    /// Factor of the sum over rows: `1 / rows` for a mean.
    pub scale: f32,
}

/// Which ids or labels the rows of an op read: row `r` the one at `offset + (r mod each)·stride + ⌊r / each⌋`. Of sequences `[batch, length]`,
/// these are all steps in order ([`Places::ALL`]), or neighbouring steps one after the other ([`Places::steps`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Places {
    /// What the first row reads.
    pub offset: usize,
    /// Distance between what neighbouring rows read: 1, or the length of a sequence where they are one step of all sequences.
    pub stride: usize,
    /// Rows of one step, at least one. The next step reads what lies behind.
    pub each: usize,
}

impl Places {
    /// All in order.
    pub const ALL: Self = Self { offset: 0, stride: 1, each: usize::MAX };

    /// The steps from `first` on of `batch` sequences `[batch, length]`.
    pub const fn steps(first: usize, [batch, length]: [usize; 2]) -> Self {
        Self { offset: first, stride: length, each: if batch == 0 { 1 } else { batch } }
    }

    /// What a row reads.
    pub const fn of(&self, row: usize) -> usize {
        self.offset + row % self.each * self.stride + row / self.each
    }

    /// Numbers up to the last one that one of the first rows reads.
    pub const fn span(&self, rows: usize) -> usize {
        let last = rows.saturating_sub(1);
        let (across, steps) = if last < self.each { (last, 0) } else { (self.each - 1, last / self.each) };
        self.offset + across * self.stride + steps + 1
    }
}

impl Lookup {
    /// Ids up to the last one read.
    pub const fn span(&self) -> usize {
        self.places.span(self.rows)
    }
}

impl Classification {
    /// Labels up to the last one read.
    pub const fn span(&self) -> usize {
        self.places.span(self.rows)
    }
}

impl Conv {
    /// `[batch, in_channels, height, width]`
    pub fn x(&self) -> Shape {
        [self.batch, self.in_channels, self.in_size[0], self.in_size[1]].into()
    }

    /// `[out_channels, in_channels, height, width]` of the window.
    pub fn w(&self) -> Shape {
        [self.out_channels, self.in_channels, self.window.kernel[0], self.window.kernel[1]].into()
    }

    /// `[batch, out_channels, height, width]`
    pub fn y(&self) -> Shape {
        [self.batch, self.out_channels, self.out_size[0], self.out_size[1]].into()
    }
}

impl Pool {
    /// `[planes, height, width]`
    pub fn x(&self) -> Shape {
        [self.planes, self.in_size[0], self.in_size[1]].into()
    }

    /// `[planes, height, width]`
    pub fn y(&self) -> Shape {
        [self.planes, self.out_size[0], self.out_size[1]].into()
    }
}

impl Products {
    /// Shape of the first factor.
    pub fn a(&self) -> Shape {
        match self.transposed[0] {
            false => [self.batch, self.rows, self.depth].into(),
            true => [self.batch, self.depth, self.rows].into(),
        }
    }

    /// Shape of the second factor.
    pub fn b(&self) -> Shape {
        match self.transposed[1] {
            false => [self.batch, self.depth, self.columns].into(),
            true => [self.batch, self.columns, self.depth].into(),
        }
    }

    /// Shape of the results.
    pub fn y(&self) -> Shape {
        [self.batch, self.rows, self.columns].into()
    }

    /// The products that make the gradient of the first factor (`false`) or of the second (`true`), and whether their first factor is the gradient
    /// of `y`; the other one is the other factor of these products. From `da = dy·bᵀ` and `db = aᵀ·dy`, each transposed where the factor is.
    pub const fn gradient(&self, of_second: bool) -> (Self, bool) {
        let Self { batch, rows, columns, depth, transposed: [a, b] } = *self;
        match (of_second, a, b) {
            (false, false, _) => {
                (Self { batch, rows, columns: depth, depth: columns, transposed: [false, !b] }, true)
            }
            (false, true, _) => {
                (Self { batch, rows: depth, columns: rows, depth: columns, transposed: [b, true] }, false)
            }
            (true, _, false) => {
                (Self { batch, rows: depth, columns, depth: rows, transposed: [!a, false] }, false)
            }
            (true, _, true) => {
                (Self { batch, rows: columns, columns: depth, depth: rows, transposed: [true, a] }, true)
            }
        }
    }
}

impl Product {
    /// `[rows, inputs]`
    pub fn x(&self) -> Shape {
        [self.rows, self.inputs].into()
    }

    /// `[outputs, inputs]`
    pub fn w(&self) -> Shape {
        [self.outputs, self.inputs].into()
    }

    /// `[rows, outputs]`
    pub fn y(&self) -> Shape {
        [self.rows, self.outputs].into()
    }
}

impl Heads {
    /// `[batch, tokens, 3·heads·width]`
    pub fn qkv(&self) -> Shape {
        [self.batch, self.tokens, 3 * self.heads * self.width].into()
    }

    /// `[batch, tokens, heads·width]`
    pub fn y(&self) -> Shape {
        [self.batch, self.tokens, self.heads * self.width].into()
    }

    /// `[batch, heads, tokens]`
    pub fn lse(&self) -> Shape {
        [self.batch, self.heads, self.tokens].into()
    }
}

impl Heads {
    /// Number of pairs (query, key) that are evaluated, over all heads and sequences.
    pub const fn pairs(&self) -> u64 {
        let square =
            if self.causal { self.tokens * (self.tokens + 1) / 2 } else { self.tokens * self.tokens };
        (self.batch * self.heads * square) as u64
    }
}

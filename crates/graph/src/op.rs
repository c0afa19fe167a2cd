//! The op set: operands, results and formula of every op.
//!
//! An op is destination-passing: it reads whole tensors and writes whole tensors, each dense and at a given address. Its kind has all
//! extents, so a kernel inspects no shapes and a reshape costs nothing: [`OpKind::Linear`] reads a tensor of shape `[N, C, H, W]` as `N`
//! rows of `C·H·W`. Operands are listed below in order: `(inputs) → (outputs)`. Elements are `f32` unless a type is given. All layouts are
//! row-major; images are `[batch, channels, height, width]`.
//!
//! An output that *mutates* an input lies at the input's address ([`OpKind::mutations`]); the kernel updates it in place. An output that
//! *may reuse* an input ([`crate::inplace`]) lies at the input's address if the schedule chose so, otherwise apart from it; the kernel must
//! be correct in both cases. No other output overlaps any input or output.
//!
//! The order of sums depends on the extents alone. Where a formula leaves the order open, the kernel chooses one.

use std::sync::Arc;

use elbowroom_ir::trace::Again;

pub use crate::extents::{
    Algorithm, Channels, Classification, Conv, Heads, Lookup, Places, Pool, Product, Products, Response,
    Window,
};
pub use crate::groups::{Diffusion, GroupedConv, Groups, Queries, Rotation};
pub use crate::mixed::Mixed;
pub use crate::parameters::{Adam, Function, Mask, Sgd};

/// The computation of an op.
#[derive(Clone, Debug, PartialEq)]
pub enum OpKind {
    /// `() → (batch)`: input `slot` of [`Graph::inputs`](crate::Graph::inputs), from the host, which keeps it for the iteration.
    Input {
        /// Index into [`Graph::inputs`](crate::Graph::inputs).
        slot: usize,
    },
    /// `(tensor) → ()`: passes the tensor to the host as output `slot` of [`Graph::outputs`](crate::Graph::outputs).
    Output {
        /// Index into [`Graph::outputs`](crate::Graph::outputs).
        slot: usize,
    },
    /// `() → (y [len])`: `y = value` everywhere.
    Fill {
        /// Number of elements.
        len: usize,
        /// The value of every element.
        value: f32,
    },

    /// `() → (ids i32 [len])`: numbers that are known when the graph is built, by which an [`Embedding`](Self::Embedding) takes rows of a tensor.
    Indices {
        /// The numbers.
        ids: Arc<[i32]>,
    },

    /// `(a [len], b [len]) → (y [len])`: `y = a + b`.
    Add {
        /// Number of elements.
        len: usize,
    },
    /// `(a [len], b [len]) → (y [len])`: `y = a · b`, element by element. It is its own derivative: `da = dy · b`.
    Mul {
        /// Number of elements.
        len: usize,
    },
    /// `(x [batch, channels, spatial], w [channels]) → (y)`: `y[n, c, s] = x[n, c, s] · w[c]`: a scale for each channel; for each plane of each
    /// image, where batch is 1; for each column, where spatial is 1. The derivative to `x` is the same op.
    MulChannel(Channels),
    /// `(dy, x) → (dw [channels])`: `dw[c] = Σ_{n, s} dy[n, c, s] · x[n, c, s]`: the gradient of [`Self::MulChannel`] to `w`.
    MulChannelGrad(Channels),
    /// `(x [len]) → (y [len])`: `y = factor · x`.
    Scale {
        /// Number of elements.
        len: usize,
        /// The factor.
        factor: f32,
    },
    /// `(x [len], s []) → (y [len])`: `y = s · x`: a gradient that is clipped.
    ScaleBy {
        /// Number of elements.
        len: usize,
    },
    /// `(q []) → (s [])`: `s = min(1, max_norm / (√q + 10⁻⁶))`, where q is the sum of the squares of all gradients; computed in `f64`. A q that is
    /// no number gives no number.
    ClipFactor {
        /// The largest norm.
        max_norm: f32,
    },
    /// `(a [outer, inner], b [inner]) → (y [outer, inner])`: `y[o, i] = a[o, i] + b[i]`: position embeddings.
    AddRow {
        /// Rows of `a`.
        outer: usize,
        /// Columns of `a`.
        inner: usize,
    },
    /// `(x [batch, channels, spatial], b [channels]) → (y)`: `y[n, c, s] = x[n, c, s] + b[c]`: the bias of a transposed convolution.
    AddChannel(Channels),
    /// `(x [len]) → (y [])`: `y = factor · Σ x`.
    Sum {
        /// Number of elements.
        len: usize,
        /// The factor: `1 / len` for a mean.
        factor: f32,
    },
    /// `(acc [len], x [len]) → (acc′ [len])`: `acc′ = acc + x`; acc′ mutates acc. Joins the gradients of a shared weight.
    Accumulate {
        /// Number of elements.
        len: usize,
    },
    /// `(x [len]) → (y [len])`: `y = f(x)`.
    Map {
        /// Number of elements.
        len: usize,
        /// f
        function: Function,
    },
    /// `(dy [len], s [len]) → (dx [len])`: `dx = dy · f′`, where `s` is `y` if [`Function::grad_from_output`], else `x`.
    MapGrad {
        /// Number of elements.
        len: usize,
        /// f
        function: Function,
    },
    /// `(x [len]) → (y [len])`: `y = dropped ? 0 : scale · x`, with the mask of [`Mask`]. It is its own derivative: the gradient is
    /// the same operation with the same mask, on `dy`.
    Dropout(Mask),

    /// `(x, w, b [out_channels] if bias) → (y)`:
    /// `y[n, o, p, q] = b[o] + Σ_{c, i, j} x[n, c, p·stride + i − padding, q·stride + j − padding] · w[o, c, i, j]`, where `x` is zero
    /// outside its size. (Cross-correlation, as everywhere.)
    Conv2d {
        /// Extents.
        conv: Conv,
        /// Whether there is a bias.
        bias: bool,
    },
    /// `(dy, w) → (dx)`: the gradient of [`Self::Conv2d`] to `x`. It is a transposed convolution too, from `dy` to `dx`.
    Conv2dGradInput(Conv),
    /// `(dy, w, acc like x) → (dx)`: what a tile of the weight adds to the gradient to `x`; dx mutates acc. `conv` has the tile's output
    /// channels, of `whole`. The tile begins where one of the parts begins into which the kernel cuts the sum over all output channels, so
    /// that tiles in ascending order add up to the bits of [`Self::Conv2dGradInput`].
    Conv2dGradInputTile {
        /// Extents of the tile.
        conv: Conv,
        /// Output channels of the whole weight.
        whole: usize,
    },
    /// `(x, dy) → (dw)`: the gradient of [`Self::Conv2d`] to `w`.
    Conv2dGradWeight(Conv),
    /// `(x, w, b [out_channels] if bias) → (y)`: [`Self::Conv2d`] in groups of channels, with a distance between the taps of a window: output
    /// channel `o` of group `g` sees the input channels of group `g`, and tap `(i, j)` lies at `p·stride + i·dilation − padding`. With as
    /// many groups as input channels it is a depthwise convolution.
    GroupedConv2d {
        /// Extents.
        conv: GroupedConv,
        /// Whether there is a bias.
        bias: bool,
    },
    /// `(dy, w) → (dx)`: the gradient of [`Self::GroupedConv2d`] to `x`; the transposed convolution in groups.
    GroupedConv2dGradInput(GroupedConv),
    /// `(x, dy) → (dw)`: the gradient of [`Self::GroupedConv2d`] to `w`.
    GroupedConv2dGradWeight(GroupedConv),
    /// `(dy [batch, channels, spatial]) → (db [channels])`: `db[c] = Σ_{n, s} dy[n, c, s]`: the gradient of every bias, those of
    /// [`Self::Linear`] and [`Self::AddRow`] included (spatial = 1).
    BiasGrad(Channels),

    /// `(x, γ [channels], β [channels]) → (y, mean [channels], variance [channels])` with the batch's own statistics:
    /// `mean[c] = Σ x / m`, `variance[c] = Σ (x − mean[c])² / m` with `m = batch · spatial`,
    /// `y = γ[c]·(x − mean[c]) / √(variance[c] + ε) + β[c]`.
    BatchNorm {
        /// Extents.
        channels: Channels,
        /// ε
        epsilon: f32,
    },
    /// `(dy, x, mean, variance, γ) → (dx, dγ [channels], dβ [channels])`. With `r = 1/√(variance + ε)`, `x̂ = (x − mean)·r`:
    /// `dβ = Σ dy`, `dγ = Σ dy·x̂`, `dx = γ·r·(dy − dβ/m − x̂·dγ/m)`.
    BatchNormGrad {
        /// Extents.
        channels: Channels,
        /// ε
        epsilon: f32,
    },
    /// `(mean, variance, running_mean, running_variance) → (running_mean′, running_variance′)`, all `[channels]`; the outputs mutate
    /// the last two inputs. `running_mean′ = (1 − momentum)·running_mean + momentum·mean`, and with the unbiased variance
    /// `running_variance′ = (1 − momentum)·running_variance + momentum·variance·m/(m − 1)` (`m/(m − 1)` is 1 where m is 1).
    RunningUpdate {
        /// Number of channels.
        channels: usize,
        /// Elements per channel, m.
        count: usize,
        /// Weight of the new statistics.
        momentum: f32,
    },
    /// `(x, γ, β, running_mean, running_variance) → (y)`: `y = γ·(x − running_mean) / √(running_variance + ε) + β`, per channel.
    BatchNormInference {
        /// Extents.
        channels: Channels,
        /// ε
        epsilon: f32,
    },
    /// `(x [rows, width], γ [width], β [width]) → (y [rows, width], mean [rows], inverse_std [rows])`: normalizes every row:
    /// `inverse_std = 1/√(Σ (x − mean)²/width + ε)`, `y = γ·(x − mean)·inverse_std + β`.
    LayerNorm {
        /// Number of rows.
        rows: usize,
        /// Columns.
        width: usize,
        /// ε
        epsilon: f32,
    },
    /// `(dy [rows, width], x [rows, width], mean, inverse_std, γ) → (dx [rows, width], dγ [width], dβ [width])`. With
    /// `x̂ = (x − mean)·inverse_std` and `g = dy·γ`: `dβ = Σ_rows dy`, `dγ = Σ_rows dy·x̂`,
    /// `dx = inverse_std·(g − Σ_w g/width − x̂·Σ_w (g·x̂)/width)`.
    LayerNormGrad {
        /// Number of rows.
        rows: usize,
        /// Columns.
        width: usize,
    },

    /// `(x [batch, channels, spatial], γ [channels], β [channels]) → (y, mean [batch, groups], inverse_std [batch, groups])`: normalizes the
    /// channels of every group of every image together: `y = γ[c]·(x − mean)·inverse_std + β[c]` (Wu and He, 2018).
    GroupNorm {
        /// Extents.
        groups: Groups,
        /// ε
        epsilon: f32,
    },
    /// `(dy, x, mean, inverse_std, γ) → (dx, dγ [channels], dβ [channels])`. With `x̂ = (x − mean)·inverse_std`, `g = dy·γ[c]` and m elements
    /// in a group: `dβ = Σ dy`, `dγ = Σ dy·x̂`, `dx = inverse_std·(g − Σ g/m − x̂·Σ (g·x̂)/m)`.
    GroupNormGrad(Groups),
    /// `(x [rows, width], γ [width]) → (y [rows, width], inverse_rms [rows])`: `inverse_rms = 1/√(Σ x²/width + ε)`, `y = γ·x·inverse_rms` (Zhang and
    /// Sennrich, 2019).
    RmsNorm {
        /// Number of rows.
        rows: usize,
        /// Columns.
        width: usize,
        /// ε
        epsilon: f32,
    },
    /// `(dy [rows, width], x, inverse_rms, γ) → (dx, dγ [width])`. With `x̂ = x·inverse_rms` and `g = dy·γ`: `dγ = Σ_rows dy·x̂`,
    /// `dx = inverse_rms·(g − x̂·Σ_w (g·x̂)/width)`.
    RmsNormGrad {
        /// Number of rows.
        rows: usize,
        /// Columns.
        width: usize,
    },

    /// `(x [batch, channels, spatial]) → (y like x, scale like x)`: `scale[n, c, s] = k + α·Σ x[n, c′, s]²` over the
    /// [neighbours](Response::neighbours) c′ of c, `y = x·scale^−β`.
    ResponseNorm(Response),
    /// `(dy, x, scale) → (dx)`: `dx[c] = dy[c]·scale[c]^−β − 2·α·β·x[c]·Σ dy[c′]·x[c′]·scale[c′]^(−β−1)` over the neighbours c′ of c.
    ResponseNormGrad(Response),

    /// `(x) → (y, argmax u8 like y)`: the largest element of each window, and where in the window it is: `i·kernel[1] + j`, the
    /// first in row-major order among equals. Windows have at most 256 elements.
    MaxPool(Pool),
    /// `(dy, argmax u8) → (dx)`: every `dx` is the sum of the `dy` whose argmax it is.
    MaxPoolGrad(Pool),
    /// `(x) → (y)`: the sum of each window divided by its number of elements: of those that exist, or, with `count_padding`, of all
    /// in the window that lie on the input or its padding. A window as large as the input is global average pooling.
    AveragePool {
        /// Extents.
        pool: Pool,
        /// Whether padding counts in the divisor.
        count_padding: bool,
    },
    /// `(dy) → (dx)`: the gradient of [`Self::AveragePool`].
    AveragePoolGrad {
        /// Extents.
        pool: Pool,
        /// Whether padding counts in the divisor.
        count_padding: bool,
    },

    /// `(x, w, b [outputs] if bias) → (y)`: `y[r, o] = b[o] + Σ_i x[r, i]·w[o, i]`.
    Linear {
        /// Extents.
        product: Product,
        /// Whether there is a bias.
        bias: bool,
    },
    /// `(dy, w) → (dx)`: `dx[r, i] = Σ_o dy[r, o]·w[o, i]`.
    LinearGradInput(Product),
    /// `(dy, w, acc like x) → (dx)`: what a tile of the weight adds to the gradient to `x`; dx mutates acc. `product` has the tile's outputs,
    /// of `whole`. The tile begins where one of the parts begins into which the kernel cuts the sum over all outputs, so that tiles in
    /// ascending order add up to the bits of [`Self::LinearGradInput`].
    LinearGradInputTile {
        /// Extents of the tile.
        product: Product,
        /// Outputs of the whole weight.
        whole: usize,
    },
    /// `(x, dy, acc like w if accumulate) → (dw)`: `dw[o, i] = acc[o, i] + Σ_r dy[r, o]·x[r, i]`; with `accumulate`, dw mutates acc,
    /// otherwise acc is zero.
    LinearGradWeight {
        /// Extents.
        product: Product,
        /// Whether the product is added to an earlier gradient of the same weight.
        accumulate: bool,
    },

    /// `(a, b) → (y [batch, rows, columns])`: `y[n] = a[n]·b[n]`, one matrix product for each member of a batch; of both factors either may be
    /// transposed. The gradients to both are [the same op](Products::gradient).
    BatchedProduct(Products),
    /// `(x [rows, width]) → (y)`: `y[r, i] = e^{x[r, i]} / Σ_j e^{x[r, j]}`.
    Softmax {
        /// Number of rows.
        rows: usize,
        /// Columns.
        width: usize,
    },
    /// `(dy [rows, width], y) → (dx)`: `dx[r, i] = y[r, i]·(dy[r, i] − Σ_j dy[r, j]·y[r, j])`.
    SoftmaxGrad {
        /// Number of rows.
        rows: usize,
        /// Columns.
        width: usize,
    },

    /// `(ids i32, table) → (y)`: `y[r, :] = table[ids[places(r)] − first, :]`; zeros for an id outside `first..first + vocabulary`.
    Embedding(Lookup),
    /// `(ids i32, table, y [rows, width]) → (y′)`: as [`Self::Embedding`], but y′ mutates y, and rows stay as they are whose ids lie outside
    /// the table: a lookup in the next tile of a table.
    EmbeddingTile(Lookup),
    /// `(ids i32, dy [rows, width], acc like table if accumulate) → (dtable)`: `dtable[v, :] = acc[v, :] + Σ_{r: ids[places(r)] =
    /// first + v} dy[r, :]`, summed in ascending r; with `accumulate`, dtable mutates acc, otherwise acc is zero.
    EmbeddingGrad {
        /// Extents.
        lookup: Lookup,
        /// Whether the sum is added to an earlier gradient of the same table.
        accumulate: bool,
    },

    /// The pointwise part of an LSTM step (Hochreiter and Schmidhuber, 1997, with forget gates):
    /// `(a [batch, 4·hidden], b [batch, 4·hidden], c [batch, hidden]) → (h [batch, hidden], c′ [batch, hidden], gates [batch, 4·hidden])`.
    /// Each row of `a + b` has four parts of `hidden` columns in PyTorch's order; `gates` holds them after their functions:
    /// `i = σ(·)`, `f = σ(·)`, `g = tanh(·)`, `o = σ(·)`. `c′ = f·c + i·g`, `h = o·tanh c′`.
    LstmCell {
        /// Rows.
        batch: usize,
        /// Columns of the state.
        hidden: usize,
    },
    /// `(gates, c, c′, dh, dc′ if carry) → (d [batch, 4·hidden], dc [batch, hidden])`: `d` is the gradient to `a` and to `b` alike. With
    /// `t = tanh c′` and `e = dh·o·(1 − t²) + dc′`: `dc = e·f`, and the parts of `d` are `e·g·i·(1 − i)`, `e·c·f·(1 − f)`,
    /// `e·i·(1 − g²)`, `dh·t·o·(1 − o)`. Without `carry`, dc′ is zero.
    LstmCellGrad {
        /// Rows.
        batch: usize,
        /// Columns of the state.
        hidden: usize,
        /// Whether a gradient to `c′` comes in.
        carry: bool,
    },

    /// `(qkv) → (y [batch, tokens, heads·width], lse [batch, heads, tokens])`. Per head: `s[i, j] = q_i·k_j / √width`, for `j ≤ i` only
    /// if causal; `lse[i] = ln Σ_j e^{s[i, j]}`; `y_i = Σ_j e^{s[i, j] − lse[i]}·v_j`. The probabilities are never stored.
    Attention(Heads),
    /// `(qkv, y, lse, dy) → (dqkv)`: with `p[i, j] = e^{s[i, j] − lse[i]}` and `δ_i = dy_i·y_i` (one head's columns):
    /// `dv_j = Σ_i p[i, j]·dy_i`, `ds[i, j] = p[i, j]·(dy_i·v_j − δ_i)/√width`, `dq_i = Σ_j ds[i, j]·k_j`, `dk_j = Σ_i ds[i, j]·q_i`
    /// (Dao et al., 2022, Algorithm 4).
    AttentionGrad(Heads),

    /// `(q [batch, queries, heads·width], k [batch, keys, shared·width], v like k) → (y like q, lse [batch, heads, queries])`: as
    /// [`Self::Attention`], with queries, keys and values of their own; `heads / shared` heads of queries share one of keys and values (Ainslie et
    /// al., 2023).
    CrossAttention(Queries),
    /// `(q, k, v, y, lse, dy) → (dq, dk, dv)`: the gradient of [`Self::CrossAttention`], as [`Self::AttentionGrad`].
    CrossAttentionGrad(Queries),
    /// `(x [batch, tokens, heads·width]) → (y)`: turns columns `i` and `i + width/2` of every head at token `t` by the angle
    /// `t·base^(−2i/width)` (Su et al., 2021, in the form of LLaMA). The gradient turns back.
    Rotary(Rotation),

    /// `(a [len], b [len]) → (loss [])`: `loss = factor·Σ (a − b)²`.
    SquaredError {
        /// Number of elements.
        len: usize,
        /// The factor: `1 / len` for a mean.
        factor: f32,
    },
    /// `(a, b, dloss []) → (da [len])`: `da = 2·factor·dloss·(a − b)`; the gradient to `b` with both exchanged.
    SquaredErrorGrad {
        /// Number of elements.
        len: usize,
        /// The factor of the loss.
        factor: f32,
    },

    /// `(logits, labels i32) → (loss [], lse [rows])`: `lse[r] = ln Σ_c e^{logits[r, c]}`,
    /// `loss = scale · Σ_r (lse[r] − logits[r, labels[places(r)]])`. A row whose label is outside `0..classes` counts for nothing.
    CrossEntropy(Classification),
    /// `(logits, labels i32, lse, dloss []) → (dlogits)`: `dlogits[r, c] = dloss·scale·(e^{logits[r, c] − lse[r]} − [c = label])`; zero
    /// in a row whose label is outside `0..classes`.
    CrossEntropyGrad(Classification),
    /// `(logits, labels i32) → (hits [])`: the number of rows whose largest logit is that of their label; of several largest ones the first
    /// counts. A row whose label is outside `0..classes` is none of them. The scale has no effect.
    Hits(Classification),

    /// `(x₀ [outer, w₀], x₁ [outer, w₁], …) → (y [outer, Σ wᵢ])`: rows side by side. For channels: outer = batch, wᵢ = cᵢ·h·w.
    Concat {
        /// Rows.
        outer: usize,
        /// Columns of every input.
        widths: Vec<usize>,
    },
    /// `(x [outer, Σ wᵢ]) → (y₀ [outer, w₀], y₁ [outer, w₁], …)`: parts of rows: the reverse of [`Self::Concat`].
    Split {
        /// Rows.
        outer: usize,
        /// Columns of every output.
        widths: Vec<usize>,
    },
    /// `(x [outer, total]) → (y [outer, width])`: `y[o, j] = x[o, start + j]`: the gradient of [`Self::Concat`] to one input.
    Slice {
        /// Rows.
        outer: usize,
        /// Columns of x.
        total: usize,
        /// First column taken.
        start: usize,
        /// Columns of y.
        width: usize,
    },
    /// `(x [outer, width]) → (y [outer, total])`: `y[o, start + j] = x[o, j]`, zero elsewhere: the gradient of [`Self::Slice`].
    Pad {
        /// Rows.
        outer: usize,
        /// Columns of y.
        total: usize,
        /// First column filled.
        start: usize,
        /// Columns of x.
        width: usize,
    },

    /// `(x [batch, rows, columns, inner]) → (y [batch, columns, rows, inner])`: `y[n, j, i, :] = x[n, i, j, :]`: its own derivative, the other
    /// way round. Every permutation of axes is a few of these.
    Transpose {
        /// Outermost extent.
        batch: usize,
        /// Rows of x.
        rows: usize,
        /// Columns of x.
        columns: usize,
        /// Innermost extent, which stays together; 1 for matrices of single numbers.
        inner: usize,
    },

    /// `() → (e [len])`: independent draws from the standard normal distribution, from the random words of a stream, of the run's seed and of the
    /// iteration (Box and Muller, 1958).
    Noise {
        /// Number of elements.
        len: usize,
        /// Which random sequence.
        stream: u32,
    },
    /// `() → (t i32 [rows])`: independent uniform draws from `0..steps`: element `i` is `⌊word·steps / 2³²⌋` of the words of [`Self::Noise`].
    RandomSteps {
        /// Number of elements.
        rows: usize,
        /// Number of steps.
        steps: usize,
        /// Which random sequence.
        stream: u32,
    },
    /// `(x [batch, size], e [batch, size], t i32 [batch]) → (y)`: `y = √ᾱ_t·x + √(1 − ᾱ_t)·e`: the images x after t + 1 steps of diffusion (Ho et
    /// al., 2020, equation 4).
    Diffuse(Diffusion),
    /// `(t i32 [rows]) → (y [rows, width])`: `y[r, i] = cos(t·10000^(−i/h))` for `i < h = width / 2`, and the sine of the same angle in column
    /// `h + i`: the embedding of a time step.
    Sinusoid {
        /// Number of time steps.
        rows: usize,
        /// Columns, an even number.
        width: usize,
    },

    /// `(x [rows, width]) → (q [rows])`: `q[r] = Σ_i x[r, i]²`.
    RowSquares {
        /// Number of rows.
        rows: usize,
        /// Columns.
        width: usize,
    },
    /// `(products [rows, clusters], squares [clusters]) → (nearest i32 [rows], gap [rows])`: with `products = x·cᵀ` and `squares = |c|²`,
    /// `gap[r] = min_k (squares[k] − 2·products[r, k])`, which is the squared distance to the nearest centroid less `|x|²`, and `nearest[r]`
    /// is its k, the first among equals.
    Nearest {
        /// Points.
        rows: usize,
        /// Centroids.
        clusters: usize,
    },
    /// `(sums [clusters, width], c [clusters, width], nearest i32 [parts[0]], …) → (c′)`: `c′[k] = sums[k] / |{r: nearest[r] = k}|`, counted over
    /// all parts; c′ mutates c, which stays as it is where no point is nearest (Lloyd, 1982).
    CentroidUpdate {
        /// Points of each part.
        parts: Vec<usize>,
        /// Centroids.
        clusters: usize,
        /// Columns.
        width: usize,
    },

    /// `(w, g, m if momentum ≠ 0) → (w′, m′ if momentum ≠ 0)`, all `[len]`; w′ mutates w, m′ mutates m. `d = g + λ·w`,
    /// `m′ = µ·m + d`, `w′ = w − η·m′` (`w − η·d` without momentum). Here and in Adam, η is the learning rate times a factor that every
    /// iteration has besides its number, 1 by default: a schedule changes it, and the plan stays.
    SgdStep {
        /// Number of elements.
        len: usize,
        /// Parameters of the method.
        sgd: Sgd,
    },
    /// `(w, g, m, v) → (w′, m′, v′)`, all `[len]`; the outputs mutate w, m and v. With `t = iteration + 1`:
    /// `m′ = β₁·m + (1 − β₁)·g`, `v′ = β₂·v + (1 − β₂)·g²`,
    /// `w′ = w·(1 − η·λ) − η·(m′/(1 − β₁ᵗ)) / (√(v′/(1 − β₂ᵗ)) + ε)`. The powers are computed in `f64` by `powi`.
    AdamStep {
        /// Number of elements.
        len: usize,
        /// Parameters of the method.
        adam: Adam,
    },

    /// Another op on operands of which some are [`DType::Bf16`](crate::DType::Bf16) in place of `f32`: it computes what that op computes on the
    /// same numbers as `f32`, with sums in `f32`, and rounds every result that is `bf16` to the nearest, ties to even.
    Mixed(Box<Mixed>),
}

impl OpKind {
    /// The op without its types: what [`Mixed`](Self::Mixed) computes, any other op itself.
    pub fn formula(&self) -> &Self {
        match self {
            Self::Mixed(mixed) => &mixed.kind,
            kind => kind,
        }
    }

    /// Pairs (input, output) of operand positions at which the output is the input, updated in place.
    pub fn mutations(&self) -> Vec<(usize, usize)> {
        match self {
            Self::Accumulate { .. } => vec![(0, 0)],
            Self::LinearGradWeight { accumulate: true, .. }
            | Self::EmbeddingGrad { accumulate: true, .. } => vec![(2, 0)],
            Self::CentroidUpdate { .. } => vec![(1, 0)],
            Self::LinearGradInputTile { .. } | Self::Conv2dGradInputTile { .. } | Self::EmbeddingTile(_) => {
                vec![(2, 0)]
            }
            Self::RunningUpdate { .. } => vec![(2, 0), (3, 1)],
            Self::SgdStep { sgd, .. } if sgd.momentum == 0.0 => vec![(0, 0)],
            Self::SgdStep { .. } => vec![(0, 0), (2, 1)],
            Self::AdamStep { .. } => vec![(0, 0), (2, 1), (3, 2)],
            Self::Mixed(mixed) => mixed.kind.mutations(),
            _ => Vec::new(),
        }
    }

    /// Whether the op may be recomputed in the same iteration.
    pub fn again(&self) -> Again {
        match self {
            Self::Dropout(mask) => Again::Rng { stream: u64::from(mask.stream) },
            Self::Noise { stream, .. } | Self::RandomSteps { stream, .. } => {
                Again::Rng { stream: u64::from(*stream) }
            }
            Self::Output { .. } => Again::Never,
            Self::Mixed(mixed) => mixed.kind.again(),
            _ if !self.mutations().is_empty() => Again::Never,
            _ => Again::Pure,
        }
    }

    /// The convolution that the op computes, or whose gradient it computes.
    pub fn conv(&self) -> Option<&Conv> {
        match self {
            Self::Mixed(mixed) => mixed.kind.conv(),
            Self::Conv2d { conv, .. }
            | Self::Conv2dGradInput(conv)
            | Self::Conv2dGradInputTile { conv, .. }
            | Self::Conv2dGradWeight(conv) => Some(conv),
            _ => None,
        }
    }

    /// The same op, computed by another algorithm; `None` if there is no choice.
    pub fn computed_by(&self, algorithm: Algorithm) -> Option<Self> {
        if let Self::Mixed(mixed) = self {
            return Some(mixed.with(mixed.kind.computed_by(algorithm)?));
        }
        let conv = Conv { algorithm, ..*self.conv()? };
        Some(match *self {
            Self::Conv2d { bias, .. } => Self::Conv2d { conv, bias },
            Self::Conv2dGradInput(_) => Self::Conv2dGradInput(conv),
            Self::Conv2dGradInputTile { whole, .. } => Self::Conv2dGradInputTile { conv, whole },
            _ => Self::Conv2dGradWeight(conv),
        })
    }
}

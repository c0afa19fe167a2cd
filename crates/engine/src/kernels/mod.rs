//! The operations of [`elbowroom_graph::op`], computed at given addresses.
//!
//! [`run`] computes one operation: it reads its operands, writes every byte of its results, and uses no other memory than the
//! workspace whose size [`workspace`] declares; it allocates nothing. Both are functions of the operation's kind, which carries all
//! extents.
//!
//! **Addresses.** Operands are ranges of bytes, each at least as large as the kind requires and aligned to its elements (4 bytes); the
//! workspace is aligned to 4 bytes, and faster at 64. A result that mutates an operand lies at its address. A result that may reuse
//! an operand lies at its address or apart from it. Nothing else overlaps.
//!
//! **Kinds.** The extents of a kind belong together, and there is a kernel for its algorithm. Fields are public, so every safe function here
//! checks that before a kernel runs.
//!
//! **Types.** Kernels are written for `f32`. An op with bf16 operands ([`OpKind::Mixed`]) runs the same kernel on widened numbers (`mixed.rs`);
//! products pack bf16 factors as they are, and multiply pairs of them if the processor can, by its matrix unit (`matrix_unit.rs`) or its
//! vector units (`pairs.rs`).
//!
//! **Bits.** A result depends on the operands alone (and on seed and iteration, for random ones): not on threads, addresses or what the
//! workspace held. Work is cut by extents; sums are trees or chains fixed by extents; elementwise loops round the same way at every
//! vector width because they never contract, and the matrix product always does. So they are equal on all processors as well, with one
//! exception: in products of bf16 numbers, processors with AVX-512 BF16 take numbers below 2⁻¹²⁶ as zero, and matrix units have an order of
//! their own.

mod attention;
mod batch_norm;
mod batched;
mod bf16;
mod cluster;
mod convolution;
mod cut;
mod depthwise;
mod diffusion;
mod direct;
mod dropout;
mod elementwise;
mod embedding;
mod group_norm;
mod grouped;
pub mod heap;
mod isa;
mod layer_norm;
mod linear;
mod loss;
mod lstm;
mod math;
mod matrix_unit;
mod mixed;
mod moves;
mod number;
mod optimizer;
pub mod owned;
mod pack;
mod pairs;
mod parallel;
mod pooling;
mod product;
mod reduce;
mod response;
mod rms_norm;
mod rotary;
mod rows;
mod shared_taps;
mod softmax;
mod sound;
mod squared_error;
mod tile;
mod windows;
mod winograd;

use elbowroom_graph::op::{Adam, Algorithm, Conv, Sgd};
use elbowroom_graph::{DType, Graph, Mixed, OpKind, Tileable};
use elbowroom_ir::{Bytes, OpId};
use rayon::ThreadPool;

pub use bf16::Bf16;
pub(crate) use isa::vectorized;
pub(crate) use sound::graph_fault;

/// Inputs of a kernel apart from its operands. They change from iteration to iteration, not from op to op.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Threads for large ops. Running the whole iteration inside the pool saves a switch of threads per op.
    pub pool: &'a ThreadPool,
    /// Seed of the run.
    pub seed: u64,
    /// Number of the iteration, from zero.
    pub iteration: u64,
    /// The factor of every learning rate: 1 without a schedule.
    pub rate: f32,
    /// The bytes of every input slot of the graph.
    pub inputs: &'a [&'a [u8]],
    /// Receives the bytes of an output slot.
    pub outputs: &'a (dyn Fn(usize, &[u8]) + Sync),
}

/// The operands of one operation, as its kind lists them.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    /// What is read.
    pub reads: &'a [*const [u8]],
    /// What is written.
    pub writes: &'a [*mut [u8]],
    /// Scratch memory of [`workspace`] bytes.
    pub workspace: *mut [u8],
    /// Whether a kernel that packs factors of products finds them in bf16, and takes those that are not, like weights, as the nearest bf16 numbers.
    pub factors_are_bf16: bool,
}

impl<'a> Operands<'a> {
    /// Elements of an operand that is not overwritten while the slice lives.
    ///
    /// # Safety
    /// The contract of [`run`]; no result that this kernel writes meanwhile reuses the operand.
    unsafe fn read<T: Element>(&self, position: usize, len: usize) -> &'a [T] {
        // SAFETY: `source` checked size and alignment; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(self.source(position, len), len) }
    }

    /// Elements of a result that lies apart from every operand that is still read.
    ///
    /// # Safety
    /// The contract of [`run`]; no operand that is read meanwhile lies at the same address.
    unsafe fn write<T: Element>(&self, position: usize, len: usize) -> &'a mut [T] {
        // SAFETY: `target` checked size and alignment; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts_mut(self.target(position, len), len) }
    }

    /// The workspace as `len` floats.
    ///
    /// # Safety
    /// The contract of [`run`]; called once.
    unsafe fn scratch(&self, len: usize) -> &'a mut [f32] {
        let start = self.workspace.cast::<f32>();
        check::<f32>(start, self.workspace.len(), len);
        // SAFETY: checked above; the workspace belongs to this operation alone.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// The address of an operand of `len` elements.
    fn source<T: Element>(&self, position: usize, len: usize) -> *const T {
        let operand = self.reads[position];
        check::<T>(operand.cast(), operand.len(), len);
        operand.cast()
    }

    /// The address of a result of `len` elements.
    fn target<T: Element>(&self, position: usize, len: usize) -> *mut T {
        let result = self.writes[position];
        check::<T>(result.cast::<T>(), result.len(), len);
        result.cast()
    }
}

/// Types for which every bit pattern is valid.
trait Element: Copy + Send + Sync {}
impl Element for f32 {}
impl Element for i32 {}
impl Element for Bf16 {}
impl Element for u8 {}

fn check<T>(start: *const T, bytes: usize, len: usize) {
    let fits = len.checked_mul(size_of::<T>()).is_some_and(|needed| bytes >= needed);
    assert!(fits, "an operand of {bytes} bytes should hold {len} elements");
    assert!(len == 0 || (!start.is_null() && start.is_aligned()), "operands are aligned to their elements");
}

/// Panics if an operand has fewer elements of a type than `len`, or is not aligned to them.
fn check_typed(dtype: DType, operand: *const [u8], len: usize) {
    match dtype {
        DType::F32 => check::<f32>(operand.cast(), operand.len(), len),
        DType::I32 => check::<i32>(operand.cast(), operand.len(), len),
        DType::Bf16 => check::<Bf16>(operand.cast(), operand.len(), len),
        DType::U8 => check::<u8>(operand.cast(), operand.len(), len),
    }
}

/// Workspace that [`run`] needs for an op, in bytes.
pub fn workspace(kind: &OpKind) -> Bytes {
    let floats = match *kind {
        OpKind::Mixed(ref mixed) if moves::moves(mixed) => 0,
        OpKind::Mixed(ref mixed) => return mixed::workspace(mixed),
        OpKind::Conv2d { conv, .. } => convolution::scratch(&conv),
        OpKind::Conv2dGradInput(conv) => convolution::grad_input_scratch(&conv),
        OpKind::Conv2dGradInputTile { conv, whole } => convolution::grad_input_tile_scratch(&conv, whole),
        OpKind::Conv2dGradWeight(conv) => convolution::grad_weight_scratch(&conv),
        OpKind::Linear { product, .. } => linear::extents(product).scratch(),
        OpKind::LinearGradInput(product) => linear::grad_input_extents(product).scratch(),
        OpKind::LinearGradInputTile { product, whole } => {
            linear::grad_input_tile_extents(product, whole).scratch()
        }
        OpKind::LinearGradWeight { product, .. } => linear::grad_weight_extents(product).scratch(),
        OpKind::BatchedProduct(ref products) => batched::scratch(products),
        OpKind::GroupedConv2d { ref conv, .. } => grouped::scratch(conv),
        OpKind::GroupedConv2dGradInput(ref conv) => grouped::grad_input_scratch(conv),
        OpKind::GroupedConv2dGradWeight(ref conv) => grouped::grad_weight_scratch(conv),
        OpKind::Attention(heads) => attention::scratch(heads.into()),
        OpKind::AttentionGrad(heads) => attention::grad_scratch(heads.into()),
        OpKind::CrossAttention(extents) => attention::scratch(extents.into()),
        OpKind::CrossAttentionGrad(extents) => attention::grad_scratch(extents.into()),
        _ => 0,
    };
    Bytes((floats * size_of::<f32>()) as u64)
}

/// Whether an op multiplies bf16 numbers, and this process does so in a matrix unit, where sums have another order than elsewhere. Those of few
/// neighbours do not run there.
pub fn uses_matrix_unit(kind: &OpKind) -> bool {
    let OpKind::Mixed(mixed) = kind else { return false };
    let is_transformed = kind.conv().is_some_and(|conv| !conv.algorithm.has_usual_bits());
    !is_transformed && !bf16_factors(mixed).is_empty() && has_matrix_unit()
}

/// Whether this process multiplies bf16 numbers in a matrix unit (AMX), where that is worth it; Winograd's convolutions do not.
pub fn has_matrix_unit() -> bool {
    tile::Tiles::of_matrix_unit().is_some()
}

/// The operands that the kernel of an op takes as bf16 numbers and converts when it packs them; none if it takes all in `f32`.
fn bf16_factors(mixed: &Mixed) -> &'static [usize] {
    let converts = |conv: &Conv| conv.algorithm != Algorithm::Direct;
    let factors: &[usize] = match &mixed.kind {
        // The other factor is a weight, which is packed from `f32`.
        OpKind::Linear { .. } | OpKind::LinearGradInput(_) => &[0],
        OpKind::LinearGradWeight { .. } | OpKind::BatchedProduct(_) => &[0, 1],
        OpKind::Conv2d { conv, .. } | OpKind::Conv2dGradInput(conv) if converts(conv) => &[0],
        OpKind::Conv2dGradWeight(conv) if converts(conv) => &[0, 1],
        OpKind::Attention(_) => &[0],
        OpKind::AttentionGrad(_) => &[0, 1, 3],
        OpKind::CrossAttention(_) => &[0, 1, 2],
        OpKind::CrossAttentionGrad(_) => &[0, 1, 2, 3, 5],
        _ => &[],
    };
    // Factors of products count as bf16 numbers, however they are stored.
    let can_be_taken = |&at: &usize| Mixed::is_product(&mixed.kind) || mixed.inputs[at] == DType::Bf16;
    if factors.iter().all(can_be_taken) { factors } else { &[] }
}

/// The algorithms for an op for which there are kernels, the default first; empty if there is no choice.
pub fn algorithms(kind: &OpKind) -> impl Iterator<Item = Algorithm> + use<'_> {
    let computes =
        |&algorithm: &Algorithm| kind.computed_by(algorithm).is_some_and(|kind| convolution::computes(&kind));
    Algorithm::ALL.into_iter().filter(computes)
}

/// The rows of which every tile of a weight, but its last one, must have a multiple, so that no bit of a result changes: wherever a tile begins,
/// every op that sums over the rows of the weight begins a new part of its sum. As many as the weight has, or more, if it cannot be cut.
pub fn tile_grain(graph: &Graph, weight: &Tileable) -> usize {
    let grain = |&op: &OpId| match &graph.nodes[op].kind {
        OpKind::LinearGradInput(product) => linear::grad_input_extents(*product).grain(),
        OpKind::Conv2dGradInput(conv) => convolution::grad_input_grain(conv),
        _ => 1,
    };
    weight.sums.iter().map(grain).fold(1, common_multiple)
}

/// The least common multiple of two numbers above zero.
const fn common_multiple(a: usize, b: usize) -> usize {
    a / convolution::gcd(a, b) * b
}

/// What is found out about an op before it runs, so that nothing is allocated when it does. Ops with operands of several types have such.
pub struct Prepared(Option<Box<mixed::Layout>>);

impl Prepared {
    /// Prepares an op.
    pub fn new(kind: &OpKind) -> Self {
        match kind {
            OpKind::Mixed(mixed) if !moves::moves(mixed) => Self(Some(Box::new(mixed::Layout::of(mixed)))),
            _ => Self(None),
        }
    }
}

/// As [`run`], for an op that was prepared: allocates nothing.
///
/// # Safety
/// As [`run`]; the op is the prepared one.
pub unsafe fn run_prepared(kind: &OpKind, prepared: &Prepared, o: &Operands<'_>, context: &Context<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match (kind, &prepared.0) {
            (OpKind::Mixed(mixed), Some(layout)) => mixed::run(mixed, layout, o, context),
            (OpKind::Mixed(mixed), None) => moves::run(mixed, o, context.pool),
            _ => run(kind, o, context),
        }
    }
}

/// Computes one op. Of an op with operands of several types, this [prepares](Prepared) it, which allocates.
///
/// # Safety
/// The kind is one of a graph that a [`Builder`](elbowroom_graph::Builder) has made. The operands are those that the kind lists, as the module's
/// documentation requires: valid ranges that nothing else writes (or, for results and workspace, reads) during the call, and that overlap only
/// where the kind mutates or may reuse.
pub unsafe fn run(kind: &OpKind, operands: &Operands<'_>, context: &Context<'_>) {
    let (o, pool) = (operands, context.pool);
    // SAFETY: every kernel has the contract of this function.
    unsafe {
        match *kind {
            OpKind::Linear { product, bias } if o.factors_are_bf16 => {
                linear::forward::<Bf16>(o, pool, product, bias)
            }
            OpKind::LinearGradInput(product) if o.factors_are_bf16 => {
                linear::grad_input::<Bf16>(o, pool, product);
            }
            OpKind::LinearGradWeight { product, accumulate } if o.factors_are_bf16 => {
                linear::grad_weight::<Bf16>(o, pool, product, accumulate);
            }
            OpKind::Conv2d { conv, bias } if o.factors_are_bf16 => {
                convolution::forward::<Bf16>(o, pool, &conv, bias)
            }
            OpKind::Conv2dGradInput(conv) if o.factors_are_bf16 => {
                convolution::grad_input::<Bf16>(o, pool, &conv);
            }
            OpKind::Conv2dGradWeight(conv) if o.factors_are_bf16 => {
                convolution::grad_weight::<Bf16>(o, pool, &conv);
            }
            OpKind::BatchedProduct(ref products) if o.factors_are_bf16 => {
                batched::product::<Bf16>(o, pool, products);
            }
            OpKind::Attention(heads) if o.factors_are_bf16 => {
                attention::forward::<Bf16>(o, pool, heads.into());
            }
            OpKind::AttentionGrad(heads) if o.factors_are_bf16 => {
                attention::grad::<Bf16>(o, pool, heads.into());
            }
            OpKind::CrossAttention(extents) if o.factors_are_bf16 => {
                attention::forward::<Bf16>(o, pool, extents.into());
            }
            OpKind::CrossAttentionGrad(extents) if o.factors_are_bf16 => {
                attention::grad::<Bf16>(o, pool, extents.into());
            }
            OpKind::Mixed(_) => run_prepared(kind, &Prepared::new(kind), o, context),
            OpKind::Input { slot } => rows::input(o, context.inputs[slot]),
            OpKind::Output { slot } => rows::output(o, slot, context.outputs),
            OpKind::Fill { len, value } => elementwise::fill(o, pool, len, value),
            OpKind::Indices { ref ids } => rows::indices(o, ids),
            OpKind::Add { len } => elementwise::add(o, pool, len),
            OpKind::Scale { len, factor } => elementwise::scale(o, pool, len, factor),
            OpKind::ScaleBy { len } => elementwise::scale_by(o, pool, len),
            OpKind::ClipFactor { max_norm } => optimizer::clip_factor(o, max_norm),
            OpKind::AddRow { outer, inner } => elementwise::add_row(o, pool, outer, inner),
            OpKind::AddChannel(channels) => elementwise::add_channel(o, pool, channels),
            OpKind::Sum { len, factor } => cluster::sum(o, pool, len, factor),
            OpKind::Accumulate { len } => elementwise::accumulate(o, pool, len),
            OpKind::Map { len, function } => elementwise::map(o, pool, len, function),
            OpKind::MapGrad { len, function } => elementwise::map_grad(o, pool, len, function),
            OpKind::Dropout(mask) => dropout::dropout(o, context, mask),
            OpKind::Conv2d { conv, bias } => convolution::forward::<f32>(o, pool, &conv, bias),
            OpKind::Conv2dGradInput(conv) => convolution::grad_input::<f32>(o, pool, &conv),
            OpKind::Conv2dGradInputTile { conv, whole } => {
                convolution::grad_input_tile(o, pool, &conv, whole)
            }
            OpKind::Conv2dGradWeight(conv) => convolution::grad_weight::<f32>(o, pool, &conv),
            OpKind::BiasGrad(channels) => batch_norm::bias_grad(o, pool, channels),
            OpKind::BatchNorm { channels, epsilon } => batch_norm::forward(o, pool, channels, epsilon),
            OpKind::BatchNormGrad { channels, epsilon } => batch_norm::grad(o, pool, channels, epsilon),
            OpKind::RunningUpdate { channels, count, momentum } => {
                batch_norm::running_update(o, channels, count, momentum);
            }
            OpKind::BatchNormInference { channels, epsilon } => {
                batch_norm::inference(o, pool, channels, epsilon)
            }
            OpKind::LayerNorm { rows, width, epsilon } => {
                layer_norm::forward(o, pool, [rows, width], epsilon)
            }
            OpKind::LayerNormGrad { rows, width } => layer_norm::grad(o, pool, [rows, width]),
            OpKind::ResponseNorm(response) => response::forward(o, pool, response),
            OpKind::ResponseNormGrad(response) => response::grad(o, pool, response),
            OpKind::MaxPool(ref extents) => pooling::max(o, pool, extents),
            OpKind::MaxPoolGrad(ref extents) => pooling::max_grad(o, pool, extents),
            OpKind::AveragePool { pool: ref extents, count_padding } => {
                pooling::average(o, pool, extents, count_padding);
            }
            OpKind::AveragePoolGrad { pool: ref extents, count_padding } => {
                pooling::average_grad(o, pool, extents, count_padding);
            }
            OpKind::Linear { product, bias } => linear::forward::<f32>(o, pool, product, bias),
            OpKind::LinearGradInput(product) => linear::grad_input::<f32>(o, pool, product),
            OpKind::LinearGradInputTile { product, whole } => {
                linear::grad_input_tile(o, pool, product, whole)
            }
            OpKind::LinearGradWeight { product, accumulate } => {
                linear::grad_weight::<f32>(o, pool, product, accumulate)
            }
            OpKind::BatchedProduct(ref products) => batched::product::<f32>(o, pool, products),
            OpKind::Softmax { rows, width } => softmax::forward(o, pool, [rows, width]),
            OpKind::SoftmaxGrad { rows, width } => softmax::grad(o, pool, [rows, width]),
            OpKind::Embedding(lookup) => embedding::forward(o, pool, lookup, embedding::Outside::Zero),
            OpKind::EmbeddingTile(lookup) => embedding::forward(o, pool, lookup, embedding::Outside::Keep),
            OpKind::EmbeddingGrad { lookup, accumulate } => embedding::grad(o, pool, lookup, accumulate),
            OpKind::LstmCell { batch, hidden } => lstm::forward(o, pool, [batch, hidden]),
            OpKind::LstmCellGrad { batch, hidden, carry } => lstm::grad(o, pool, [batch, hidden], carry),
            OpKind::Attention(heads) => attention::forward::<f32>(o, pool, heads.into()),
            OpKind::AttentionGrad(heads) => attention::grad::<f32>(o, pool, heads.into()),
            OpKind::CrossAttention(extents) => attention::forward::<f32>(o, pool, extents.into()),
            OpKind::CrossAttentionGrad(extents) => attention::grad::<f32>(o, pool, extents.into()),
            OpKind::Rotary(rotation) => rotary::rotate(o, pool, rotation),
            OpKind::SquaredError { len, factor } => squared_error::forward(o, pool, len, factor),
            OpKind::SquaredErrorGrad { len, factor } => squared_error::grad(o, pool, len, factor),
            OpKind::Split { outer, ref widths } => rows::split(o, pool, outer, widths),
            OpKind::Noise { len, stream } => diffusion::noise(o, context, len, stream),
            OpKind::RandomSteps { rows, steps, stream } => {
                diffusion::random_steps(o, context, [rows, steps], stream);
            }
            OpKind::Diffuse(extents) => diffusion::diffuse(o, pool, extents),
            OpKind::Sinusoid { rows, width } => diffusion::sinusoid(o, pool, [rows, width]),
            OpKind::Mul { len } => elementwise::mul(o, pool, len),
            OpKind::MulChannel(channels) => elementwise::mul_channel(o, pool, channels),
            OpKind::MulChannelGrad(channels) => batch_norm::mul_channel_grad(o, pool, channels),
            OpKind::GroupedConv2d { ref conv, bias } => grouped::forward(o, pool, conv, bias),
            OpKind::GroupedConv2dGradInput(ref conv) => grouped::grad_input(o, pool, conv),
            OpKind::GroupedConv2dGradWeight(ref conv) => grouped::grad_weight(o, pool, conv),
            OpKind::GroupNorm { groups, epsilon } => group_norm::forward(o, pool, groups, epsilon),
            OpKind::GroupNormGrad(groups) => group_norm::grad(o, pool, groups),
            OpKind::RmsNorm { rows, width, epsilon } => rms_norm::forward(o, pool, [rows, width], epsilon),
            OpKind::RmsNormGrad { rows, width } => rms_norm::grad(o, pool, [rows, width]),
            OpKind::CrossEntropy(loss) => loss::forward(o, pool, loss),
            OpKind::CrossEntropyGrad(loss) => loss::grad(o, pool, loss),
            OpKind::Hits(loss) => loss::hits(o, pool, loss),
            OpKind::Concat { outer, ref widths } => rows::concat(o, pool, outer, widths),
            OpKind::Slice { outer, total, start, width } => {
                rows::slice(o, pool, outer, total, start..start + width)
            }
            OpKind::Pad { outer, total, start, width } => {
                rows::pad(o, pool, outer, total, start..start + width)
            }
            OpKind::Transpose { batch, rows, columns, inner } => {
                rows::permute::<f32>(o, pool, batch, [rows, columns], inner);
            }
            OpKind::RowSquares { rows, width } => cluster::row_squares(o, pool, [rows, width]),
            OpKind::Nearest { rows, clusters } => cluster::nearest(o, pool, [rows, clusters]),
            OpKind::CentroidUpdate { ref parts, clusters, width } => {
                cluster::centroid_update(o, pool, parts, [clusters, width]);
            }
            OpKind::SgdStep { len, sgd } => {
                let learning_rate = sgd.learning_rate * context.rate;
                optimizer::sgd(o, pool, len, Sgd { learning_rate, ..sgd });
            }
            OpKind::AdamStep { len, adam } => {
                let learning_rate = adam.learning_rate * context.rate;
                optimizer::adam(o, pool, len, Adam { learning_rate, ..adam }, context.iteration);
            }
        }
    }
}

//! Derivatives: reverse accumulation over the forward ops, with the update of every parameter as early as possible.
//!
//! **Order.** Backward ops come in the reverse order of their forward ops. Of one op, gradients to parameters come before the gradient to
//! its input: they need the saved input, which can then be released before the next gradient is computed.
//!
//! **Summation.** A tensor that is read several times has several contributions to its gradient. Those of a parameter accumulate in place
//! (Chen et al., 2016, Section 5.3), fused into the product or the lookup if the op supports it. Those of an intermediate tensor are added
//! by a pure [`OpKind::Add`], because the first contribution may be the same tensor that another path still needs (both branches of a
//! residual sum share one gradient). The addition may run in place; a schedule decides. The weight of a recurrent product has one contribution
//! for several steps (`recurrent.rs`).
//!
//! **Updates** run as soon as the gradient of the parameter is complete and nothing reads the old tensor any more, which is after the
//! backward op of its first use. A gradient then lives for one layer instead of until the end, which saves as many bytes as the model has
//! parameters. Recomputation is not affected: a forward op is recomputed only for backward ops that come after it in the forward order, and
//! these precede the update.

use elbowroom_ir::trace::Phase;
use elbowroom_ir::{Id, OpId, TensorId};

use crate::builder::{BuildError, Builder, Mode, Var};
use crate::graph::{Graph, Node, Role};
use crate::init::Init;
use crate::op::{Adam, Channels, Function, OpKind, Product, Rotation, Sgd};
use crate::recurrent::Recurrent;

/// Name of the op that makes the derivative of the loss to itself.
pub(crate) const SEED: &str = "loss.seed";

/// How parameters are updated from their gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Stochastic gradient descent.
    Sgd(Sgd),
    /// Adam.
    Adam(Adam),
}

impl Builder {
    /// Completes the graph of a training iteration: the loss as an output, its derivatives to all weights, and the updates. In evaluation
    /// there are no derivatives and no updates; the outputs are the loss and, as `hits`, the number of rows that were classified correctly.
    ///
    /// # Errors
    /// An op between the loss and a weight has no derivative.
    pub fn finish_training(mut self, loss: Var, optimizer: Optimizer) -> Result<Graph, BuildError> {
        if loss.shape.len() != 1 {
            let why = format!("a loss is one number, and this has shape {}", loss.shape);
            return Err(BuildError::Extents { node: "loss".to_owned(), why });
        }
        self.output("loss", loss);
        if self.mode() == Mode::Evaluation {
            let hits = std::mem::take(&mut self.hits);
            let Some((&first, rest)) = hits.split_first() else { return Ok(self.graph) };
            let mut sum = first;
            for (index, &more) in rest.iter().enumerate() {
                sum = self.add(&format!("hits.sum{}", index + 1), sum, more)?;
            }
            self.output("hits", sum);
            return Ok(self.graph);
        }
        let forward = self.graph.nodes.len();
        let mut backward = Backward::new(&mut self, optimizer);
        backward.seed(loss)?;
        for index in (0..forward).rev() {
            backward.differentiate(OpId::new(index))?;
            backward.update_due(index)?;
        }
        Ok(self.graph)
    }
}

/// The gradient of one tensor so far.
#[derive(Clone, Copy, Debug)]
struct Gradient {
    value: TensorId,
    /// Whether nothing else reads `value`, so that it may be overwritten in place.
    owned: bool,
    /// Number of contributions in it.
    parts: usize,
}

struct Backward<'a> {
    builder: &'a mut Builder,
    optimizer: Optimizer,
    /// For each tensor, whether the loss may depend on a weight through it.
    needed: Vec<bool>,
    gradients: Vec<Option<Gradient>>,
    /// For each persistent tensor, the optimizer state that belongs to it.
    states: Vec<Vec<TensorId>>,
    /// For each forward op, the weights whose gradient is complete behind its derivative, as positions in the list of persistent tensors: their
    /// first use.
    due: Vec<Vec<usize>>,
    recurrent: Recurrent,
}

impl<'a> Backward<'a> {
    fn new(builder: &'a mut Builder, optimizer: Optimizer) -> Self {
        let graph = &builder.graph;
        let mut needed = vec![false; graph.tensors.len()];
        for parameter in graph.persistent.iter().filter(|parameter| parameter.role == Role::Weight) {
            needed[parameter.begin.index()] = true;
        }
        for node in graph.nodes.values() {
            if node.inputs.iter().any(|input| needed[input.index()]) {
                for output in &node.outputs {
                    needed[output.index()] = true;
                }
            }
        }
        let recurrent = Recurrent::of(graph, &needed);
        let mut first_use: Vec<Option<usize>> = vec![None; graph.tensors.len()];
        for (id, node) in graph.nodes.iter() {
            let used = recurrent.split.get(&id).copied().unwrap_or(id).min(id).index();
            for input in &node.inputs {
                let first = first_use[input.index()].get_or_insert(used);
                *first = used.min(*first);
            }
        }
        let mut due = vec![Vec::new(); graph.nodes.len()];
        for (position, parameter) in graph.persistent.iter().enumerate() {
            if let Some(first) = first_use[parameter.begin.index()].filter(|_| parameter.role == Role::Weight)
            {
                due[first].push(position);
            }
        }
        let gradients = vec![None; graph.tensors.len()];
        let states = optimizer_states(builder, optimizer);
        Self { builder, optimizer, needed, gradients, states, due, recurrent }
    }

    fn seed(&mut self, loss: Var) -> Result<(), BuildError> {
        self.builder.phase = Phase::Backward;
        let one = self.builder.push1(SEED, OpKind::Fill { len: 1, value: 1.0 }, &[])?;
        self.gradients[loss.id.index()] = Some(Gradient { value: one.id, owned: true, parts: 1 });
        Ok(())
    }

    fn needs(&self, value: TensorId) -> bool {
        self.needed[value.index()]
    }

    fn gradient(&self, value: TensorId) -> Option<TensorId> {
        self.gradients[value.index()].map(|gradient| gradient.value)
    }

    /// Adds an op's contribution to the gradient of `to`.
    fn contribute(&mut self, to: TensorId, value: TensorId, owned: bool) -> Result<(), BuildError> {
        if !self.needs(to) {
            return Ok(());
        }
        let Some(earlier) = self.gradients[to.index()] else {
            self.gradients[to.index()] = Some(Gradient { value, owned, parts: 1 });
            return Ok(());
        };
        let target = &self.builder.graph.tensors[to];
        let (name, len) = (format!("{}.join-grad{}", target.name, earlier.parts), target.shape.len());
        let in_place = earlier.owned && self.is_parameter(to);
        let kind = if in_place { OpKind::Accumulate { len } } else { OpKind::Add { len } };
        let sum = self.builder.push1(name, kind, &[earlier.value, value])?;
        self.gradients[to.index()] = Some(Gradient { value: sum.id, owned: true, parts: earlier.parts + 1 });
        Ok(())
    }

    fn is_parameter(&self, value: TensorId) -> bool {
        self.builder.graph.persistent.iter().any(|parameter| parameter.begin == value)
    }

    /// Emits an op whose outputs are contributions to the gradients of `targets`, in order.
    fn emit(
        &mut self,
        node: &Node,
        suffix: &str,
        kind: OpKind,
        inputs: &[TensorId],
        targets: &[TensorId],
    ) -> Result<(), BuildError> {
        if !targets.iter().any(|&target| self.needs(target)) {
            return Ok(());
        }
        let outputs = self.builder.push(format!("{}.{suffix}", node.name), kind, inputs)?;
        for (output, &target) in outputs.iter().zip(targets) {
            self.contribute(target, output.id, true)?;
        }
        Ok(())
    }

    /// As [`emit`](Self::emit), for an op that can add to an earlier gradient of its parameter in place.
    fn emit_accumulating(
        &mut self,
        node: &Node,
        suffix: &str,
        kind: impl Fn(bool) -> OpKind,
        inputs: &[TensorId],
        target: TensorId,
    ) -> Result<(), BuildError> {
        let earlier =
            self.gradients[target.index()].filter(|gradient| gradient.owned && self.is_parameter(target));
        let Some(earlier) = earlier else {
            return self.emit(node, suffix, kind(false), inputs, &[target]);
        };
        let mut operands = inputs.to_vec();
        operands.push(earlier.value);
        let sum = self.builder.push1(format!("{}.{suffix}", node.name), kind(true), &operands)?;
        self.gradients[target.index()] =
            Some(Gradient { value: sum.id, owned: true, parts: earlier.parts + 1 });
        Ok(())
    }

    /// Emits the gradient ops of one forward op. All derivatives are defined here.
    fn differentiate(&mut self, id: OpId) -> Result<(), BuildError> {
        self.builder.phase = Phase::Backward;
        let node = self.builder.graph.nodes[id].clone();
        let from: Vec<Option<TensorId>> = node.outputs.iter().map(|&output| self.gradient(output)).collect();
        if from.iter().all(Option::is_none) || !node.outputs.iter().any(|&output| self.needs(output)) {
            return Ok(());
        }
        let (x, y) = (&node.inputs, &node.outputs);
        if let OpKind::LstmCell { batch, hidden } = node.kind {
            return self.lstm_cell(&node, from[0], from[1], [batch, hidden]);
        }
        if let OpKind::Split { outer, ref widths } = node.kind {
            return self.split(id, &node, &from, outer, widths);
        }
        // All others are differentiated with respect to their first output; the rest are statistics.
        let Some(dy) = from[0] else {
            return Ok(());
        };
        match node.kind.clone() {
            OpKind::Add { .. } => {
                self.contribute(x[0], dy, false)?;
                self.contribute(x[1], dy, false)
            }
            OpKind::Mul { .. } => {
                self.emit(&node, "grad0", node.kind.clone(), &[dy, x[1]], &x[..1])?;
                self.emit(&node, "grad1", node.kind.clone(), &[dy, x[0]], &x[1..])
            }
            OpKind::MulChannel(channels) => {
                self.emit(&node, "grad-weight", OpKind::MulChannelGrad(channels), &[dy, x[0]], &x[1..])?;
                self.emit(&node, "grad-input", node.kind.clone(), &[dy, x[1]], &x[..1])
            }
            OpKind::SquaredError { len, factor } => {
                let kind = OpKind::SquaredErrorGrad { len, factor };
                self.emit(&node, "grad0", kind.clone(), &[x[0], x[1], dy], &x[..1])?;
                self.emit(&node, "grad1", kind, &[x[1], x[0], dy], &x[1..])
            }
            OpKind::Scale { .. } => self.emit(&node, "grad", node.kind.clone(), &[dy], &x[..1]),
            OpKind::AddRow { outer, inner } => {
                let sum = Channels { batch: outer, channels: inner, spatial: 1 };
                self.emit(&node, "grad-row", OpKind::BiasGrad(sum), &[dy], &x[1..])?;
                self.contribute(x[0], dy, false)
            }
            OpKind::AddChannel(channels) => {
                self.emit(&node, "grad-bias", OpKind::BiasGrad(channels), &[dy], &x[1..])?;
                self.contribute(x[0], dy, false)
            }
            // Nothing depends on what a step compares.
            OpKind::Map { function: Function::Step { .. }, .. } => Ok(()),
            OpKind::Map { len, function } => {
                let saved = if function.grad_from_output() { y[0] } else { x[0] };
                self.emit(&node, "grad", OpKind::MapGrad { len, function }, &[dy, saved], x)
            }
            OpKind::Dropout(_) => self.emit(&node, "grad", node.kind.clone(), &[dy], x),
            OpKind::Conv2d { conv, bias } => {
                if bias {
                    let spatial = conv.out_size[0] * conv.out_size[1];
                    let sum = Channels { batch: conv.batch, channels: conv.out_channels, spatial };
                    self.emit(&node, "grad-bias", OpKind::BiasGrad(sum), &[dy], &x[2..])?;
                }
                self.emit(&node, "grad-weight", OpKind::Conv2dGradWeight(conv), &[x[0], dy], &x[1..2])?;
                self.emit(&node, "grad-input", OpKind::Conv2dGradInput(conv), &[dy, x[1]], &x[..1])
            }
            // A transposed convolution: what is its output here is the input of the convolution that it transposes.
            OpKind::Conv2dGradInput(conv) => {
                self.emit(&node, "grad-weight", OpKind::Conv2dGradWeight(conv), &[dy, x[0]], &x[1..])?;
                self.emit(&node, "grad-input", OpKind::Conv2d { conv, bias: false }, &[dy, x[1]], &x[..1])
            }
            OpKind::GroupedConv2d { conv, bias } => {
                if bias {
                    let spatial = conv.conv.out_size[0] * conv.conv.out_size[1];
                    let sum = Channels { batch: conv.conv.batch, channels: conv.conv.out_channels, spatial };
                    self.emit(&node, "grad-bias", OpKind::BiasGrad(sum), &[dy], &x[2..])?;
                }
                let weight = OpKind::GroupedConv2dGradWeight(conv);
                self.emit(&node, "grad-weight", weight, &[x[0], dy], &x[1..2])?;
                self.emit(&node, "grad-input", OpKind::GroupedConv2dGradInput(conv), &[dy, x[1]], &x[..1])
            }
            OpKind::GroupedConv2dGradInput(conv) => {
                self.emit(&node, "grad-weight", OpKind::GroupedConv2dGradWeight(conv), &[dy, x[0]], &x[1..])?;
                let back = OpKind::GroupedConv2d { conv, bias: false };
                self.emit(&node, "grad-input", back, &[dy, x[1]], &x[..1])
            }
            OpKind::GroupNorm { groups, .. } => {
                let operands = [dy, x[0], y[1], y[2], x[1]];
                self.emit(&node, "grad", OpKind::GroupNormGrad(groups), &operands, x)
            }
            OpKind::RmsNorm { rows, width, .. } => {
                let operands = [dy, x[0], y[1], x[1]];
                self.emit(&node, "grad", OpKind::RmsNormGrad { rows, width }, &operands, x)
            }
            OpKind::CrossAttention(extents) => {
                let operands = [x[0], x[1], x[2], y[0], y[1], dy];
                self.emit(&node, "grad", OpKind::CrossAttentionGrad(extents), &operands, x)
            }
            OpKind::Rotary(rotation) => {
                let back = OpKind::Rotary(Rotation { back: !rotation.back, ..rotation });
                self.emit(&node, "grad", back, &[dy], x)
            }
            OpKind::ResponseNorm(response) => {
                self.emit(&node, "grad", OpKind::ResponseNormGrad(response), &[dy, x[0], y[1]], x)
            }
            OpKind::BatchNorm { channels, epsilon } => {
                let operands = [dy, x[0], y[1], y[2], x[1]];
                self.emit(&node, "grad", OpKind::BatchNormGrad { channels, epsilon }, &operands, x)
            }
            OpKind::LayerNorm { rows, width, .. } => {
                let operands = [dy, x[0], y[1], y[2], x[1]];
                self.emit(&node, "grad", OpKind::LayerNormGrad { rows, width }, &operands, x)
            }
            OpKind::MaxPool(pool) => self.emit(&node, "grad", OpKind::MaxPoolGrad(pool), &[dy, y[1]], x),
            OpKind::AveragePool { pool, count_padding } => {
                self.emit(&node, "grad", OpKind::AveragePoolGrad { pool, count_padding }, &[dy], x)
            }
            OpKind::Linear { product, .. } => {
                if !self.recurrent.split.contains_key(&id) {
                    self.linear_weights(&node, product, [x[0], dy])?;
                }
                self.emit(&node, "grad-input", OpKind::LinearGradInput(product), &[dy, x[1]], &x[..1])
            }
            OpKind::BatchedProduct(products) => {
                for (of, suffix) in ["grad0", "grad1"].into_iter().enumerate() {
                    let (gradient, begins_with_dy) = products.gradient(of == 1);
                    let other = x[1 - of];
                    let factors = if begins_with_dy { [dy, other] } else { [other, dy] };
                    self.emit(&node, suffix, OpKind::BatchedProduct(gradient), &factors, &x[of..=of])?;
                }
                Ok(())
            }
            OpKind::Softmax { rows, width } => {
                self.emit(&node, "grad", OpKind::SoftmaxGrad { rows, width }, &[dy, y[0]], x)
            }
            OpKind::Embedding(lookup) => {
                let kind = |accumulate| OpKind::EmbeddingGrad { lookup, accumulate };
                self.emit_accumulating(&node, "grad", kind, &[x[0], dy], x[1])
            }
            OpKind::Attention(heads) => {
                self.emit(&node, "grad", OpKind::AttentionGrad(heads), &[x[0], y[0], y[1], dy], x)
            }
            OpKind::CrossEntropy(loss) => {
                self.emit(&node, "grad", OpKind::CrossEntropyGrad(loss), &[x[0], x[1], y[1], dy], &x[..1])
            }
            OpKind::Concat { outer, widths } => {
                let total = widths.iter().sum();
                let mut start = 0;
                for (part, &width) in widths.iter().enumerate() {
                    let kind = OpKind::Slice { outer, total, start, width };
                    self.emit(&node, &format!("grad{part}"), kind, &[dy], &x[part..=part])?;
                    start += width;
                }
                Ok(())
            }
            OpKind::Slice { outer, total, start, width } => {
                self.emit(&node, "grad", OpKind::Pad { outer, total, start, width }, &[dy], x)
            }
            OpKind::Pad { outer, total, start, width } => {
                self.emit(&node, "grad", OpKind::Slice { outer, total, start, width }, &[dy], x)
            }
            OpKind::Transpose { batch, rows, columns, inner } => {
                let back = OpKind::Transpose { batch, rows: columns, columns: rows, inner };
                self.emit(&node, "grad", back, &[dy], x)
            }
            _ => Err(BuildError::NotDifferentiable { node: node.name.clone(), kind: node.kind.name() }),
        }
    }

    /// The gradients to the weight and the bias of a layer from rows of its input and of the gradient to its output.
    fn linear_weights(
        &mut self,
        node: &Node,
        product: Product,
        [x, dy]: [TensorId; 2],
    ) -> Result<(), BuildError> {
        let sum = Channels { batch: product.rows, channels: product.outputs, spatial: 1 };
        if node.inputs.len() > 2 {
            self.emit(node, "grad-bias", OpKind::BiasGrad(sum), &[dy], &node.inputs[2..])?;
        }
        let kind = |accumulate| OpKind::LinearGradWeight { product, accumulate };
        self.emit_accumulating(node, "grad-weight", kind, &[x, dy], node.inputs[1])
    }

    /// The gradient of a tensor that was split: its parts side by side, zeros for parts that no op used. The recurrent
    /// products that belong to the parts have the same gradient.
    fn split(
        &mut self,
        id: OpId,
        node: &Node,
        from: &[Option<TensorId>],
        outer: usize,
        widths: &[usize],
    ) -> Result<(), BuildError> {
        if !self.needs(node.inputs[0]) {
            return Ok(());
        }
        let mut parts = Vec::with_capacity(from.len());
        for (part, (gradient, &width)) in from.iter().zip(widths).enumerate() {
            parts.push(match gradient {
                Some(gradient) => *gradient,
                None => {
                    let zeros = OpKind::Fill { len: outer * width, value: 0.0 };
                    self.builder.push1(format!("{}.no-grad{part}", node.name), zeros, &[])?.id
                }
            });
        }
        let kind = OpKind::Concat { outer, widths: widths.to_vec() };
        let dy = self.builder.push1(format!("{}.grad", node.name), kind, &parts)?.id;
        let steps = self.recurrent.steps.get(&id).cloned().unwrap_or_default();
        if let (Some(product), Some(&first)) = (self.builder.graph.one_layer(&steps), steps.first()) {
            let xs: Vec<TensorId> =
                steps.iter().map(|&step| self.builder.graph.nodes[step].inputs[0]).collect();
            let widths = vec![product.rows / steps.len() * product.inputs; steps.len()];
            let first = self.builder.graph.nodes[first].clone();
            let joined = format!("{}.steps", first.name);
            let x = self.builder.push1(joined, OpKind::Concat { outer: 1, widths }, &xs)?.id;
            self.linear_weights(&first, product, [x, dy])?;
        }
        self.contribute(node.inputs[0], dy, true)
    }

    fn lstm_cell(
        &mut self,
        node: &Node,
        dh: Option<TensorId>,
        dc: Option<TensorId>,
        [batch, hidden]: [usize; 2],
    ) -> Result<(), BuildError> {
        let (x, y) = (&node.inputs, &node.outputs);
        let dh = match dh {
            Some(dh) => dh,
            // A state whose output nobody uses still passes the cell's gradient on.
            None => {
                let zeros = OpKind::Fill { len: batch * hidden, value: 0.0 };
                self.builder.push1(format!("{}.no-grad", node.name), zeros, &[])?.id
            }
        };
        let mut operands = vec![y[2], x[2], y[1], dh];
        operands.extend(dc);
        let kind = OpKind::LstmCellGrad { batch, hidden, carry: dc.is_some() };
        let made = self.builder.push(format!("{}.grad", node.name), kind, &operands)?;
        self.contribute(x[0], made[0].id, false)?;
        self.contribute(x[1], made[0].id, false)?;
        self.contribute(x[2], made[1].id, true)
    }

    /// Emits the updates of all weights whose first use is this forward op.
    fn update_due(&mut self, index: usize) -> Result<(), BuildError> {
        self.builder.phase = Phase::Update;
        for position in std::mem::take(&mut self.due[index]) {
            let parameter = &self.builder.graph.persistent[position];
            let (name, weight) = (parameter.name.clone(), parameter.begin);
            let Some(gradient) = self.gradient(weight) else {
                continue;
            };
            let len = self.builder.graph.tensors[weight].shape.len();
            let kind = match self.optimizer {
                Optimizer::Sgd(sgd) => OpKind::SgdStep { len, sgd },
                Optimizer::Adam(adam) => OpKind::AdamStep { len, adam },
            };
            let mut operands = vec![weight, gradient];
            operands.extend(&self.states[position]);
            self.builder.push(format!("{name}.step"), kind, &operands)?;
        }
        Ok(())
    }
}

/// Creates the optimizer state of every weight, including weights that this graph does not use, so that all structures of a network have
/// the same persistent tensors.
fn optimizer_states(builder: &mut Builder, optimizer: Optimizer) -> Vec<Vec<TensorId>> {
    let suffixes: &[&str] = match optimizer {
        Optimizer::Sgd(sgd) if sgd.momentum == 0.0 => &[],
        Optimizer::Sgd(_) => &["momentum"],
        Optimizer::Adam(_) => &["moment1", "moment2"],
    };
    let parameters = builder.graph.persistent.clone();
    let states = parameters.iter().map(|parameter| {
        let suffixes = if parameter.role == Role::Weight { suffixes } else { &[] };
        let shape = builder.graph.tensors[parameter.begin].shape;
        let state = |suffix: &&str| {
            let name = format!("{}.{suffix}", parameter.name);
            builder.persistent(name, shape, Role::Optimizer, Init::Constant(0.0)).id
        };
        suffixes.iter().map(state).collect()
    });
    states.collect()
}

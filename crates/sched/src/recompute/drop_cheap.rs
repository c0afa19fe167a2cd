//! `drop-cheap`: Chen et al., section 4.2. Evicts the results of low-cost operations and keeps those that take long to compute: *we can always
//! keep the result of convolution, but drop the result of the batch normalization, activation function and pooling*.
//!
//! An op is cheap by its kind. Kinds are words like `batch-norm`, `relu` or `aten::max_pool2d`; an op whose kind has one of the words of
//! [`CHEAP`] as a part is cheap, whatever it costs. Everything else is kept, so that no convolution and no product is recomputed. As in the paper
//! the pass is unconditional: it evicts cheap results even where everything would fit, because a user who names a pass wants that pass.
//! [`drop-cheap-cost`](super::drop_cheap_cost) decides by the cost of a byte instead.

use elbowroom_ir::Id;
use elbowroom_ir::OpId;
use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};
use elbowroom_ir::trace::Trace;

use crate::policy::Policy;
use crate::recompute::answer;
use crate::recompute::cuts::Cuts;
use crate::recompute::mirror::Mirrors;
use crate::recompute::repeats::base;

/// Words of the kinds of cheap ops, without `-` and `_`: normalization, activation functions and pooling, the three of section 4.2, and
/// dropout, which came with activation functions in the networks of the time.
pub const CHEAP: [&str; 17] = [
    "batchnorm",
    "layernorm",
    "groupnorm",
    "instancenorm",
    "responsenorm",
    "bn",
    "relu",
    "gelu",
    "silu",
    "swish",
    "elu",
    "tanh",
    "sigmoid",
    "hardtanh",
    "hardswish",
    "pool",
    "dropout",
];

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct DropCheap;

impl Planner for DropCheap {
    fn name(&self) -> &'static str {
        "drop-cheap"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, _: &dyn Observer) -> Outcome<Schedule> {
        if !request.freedom.recompute {
            return answer(request, Some(&Policy::prompt(request.trace)), 1);
        }
        answer(request, Some(&mirrors(request.trace).policy(request.trace)), 1)
    }
}

/// Whether ops of a kind are cheap by section 4.2.
///
/// ```
/// use elbowroom_sched::recompute::drop_cheap::is_cheap;
/// assert!(["batch-norm", "relu", "aten::max_pool2d", "BatchNormalization", "dropout"].into_iter().all(is_cheap));
/// assert!(!["conv2d", "linear", "aten::convolution", "lstm-cell", "relu-grad", "matmul"].into_iter().any(is_cheap));
/// ```
pub fn is_cheap(kind: &str) -> bool {
    let kind: String = kind.chars().filter(|c| c.is_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect();
    // Fused ops (a convolution with its activation) are as expensive as their most expensive part.
    let expensive =
        ["conv", "linear", "matmul", "addmm", "gemm", "lstm", "gru", "attention", "grad", "backward"];
    CHEAP.iter().any(|word| kind.contains(word)) && !expensive.iter().any(|word| kind.contains(word))
}

/// A count of one for every result of a cheap forward op.
pub fn mirrors(trace: &Trace) -> Mirrors {
    let (_, backward_start) = base(trace);
    let cuts = Cuts::of(trace, backward_start);
    let mut mirrors = Mirrors::none(trace);
    for &(value, made, _) in &cuts.forward {
        if is_cheap(trace.ops()[OpId::new(made as usize)].kind.as_str()) {
            mirrors.mark(value, 1);
        }
    }
    mirrors
}

//! The fewest bytes in which any plan can run.
//!
//! While an op runs, its operands, results and workspace are on the device. So is every tensor that is needed before and after it and cannot be
//! restored in between: without offload, the persistent tensors, and those whose producers may not be recomputed.

use std::cmp::Reverse;

use elbowroom_ir::planning::Freedom;
use elbowroom_ir::trace::{Again, Trace};
use elbowroom_ir::{Bytes, OpId, TensorId};

use super::needs::{Needs, early, own_bytes};

/// Bytes that are on the device together in every plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Floor {
    /// The op during which they are.
    pub op: OpId,
    /// Bytes of its operands, results and workspace, each rounded up to the alignment. Outputs that it may write over an input count as zero.
    pub own: Bytes,
    /// Other tensors, which cannot leave the device meanwhile.
    pub held: Vec<TensorId>,
    /// All of them together, each rounded up to the alignment.
    pub bytes: Bytes,
}

impl Floor {
    /// The fewest bytes of arena in which any plan can run. Every tensor is rounded up to the alignment, but whichever lies highest: the arena
    /// ends where its own bytes end.
    pub fn arena(&self, trace: &Trace, align: Bytes) -> Bytes {
        let op = &trace.ops()[self.op];
        let tensors = op.reads.iter().chain(&op.outputs).chain(&self.held).map(|&value| trace.bytes(value));
        let padding = tensors.chain([op.workspace]).map(|bytes| bytes.align_up(align).saturating_sub(bytes));
        self.bytes.saturating_sub(padding.max().unwrap_or_default())
    }
}

/// The floor of a trace: no plan that makes permitted decisions only fits into fewer bytes. `None` for a trace without ops.
pub fn floor(trace: &Trace, freedom: Freedom, align: Bytes) -> Option<Floor> {
    let needs = Needs::of(trace);
    let aligned = |value: TensorId| trace.bytes(value).align_up(align);
    let held = |value: TensorId| !freedom.offload && !recomputable(trace, freedom, value);
    let size = |value: TensorId| if held(value) { aligned(value).get() } else { 0 };
    let demands = needs.demands(trace, align, &size).into_iter();
    let (bytes, Reverse(op), with_idle) = demands
        .map(|demand| {
            let alone = own_bytes(trace, &trace.ops()[demand.op], align, &|_| false);
            // In another order of the ops, other tensors are idle during this one, and other ops are the last to read its inputs.
            let with_idle = if freedom.reorder { 0 } else { demand.own + demand.idle };
            (alone.max(with_idle) + demand.persistent, Reverse(demand.op), with_idle > alone)
        })
        .max()?;
    let idle = needs.idle(trace, op).filter(|_| with_idle && !early(&trace.ops()[op]));
    let mut held: Vec<TensorId> =
        idle.chain(needs.untouched(trace, op)).filter(|&value| held(value)).collect();
    held.sort_unstable();
    let own = Bytes(bytes).saturating_sub(held.iter().map(|&value| aligned(value)).sum());
    Some(Floor { op, own, held, bytes: Bytes(bytes) })
}

fn recomputable(trace: &Trace, freedom: Freedom, value: TensorId) -> bool {
    let producer = trace.producer(value).map(|op| &trace.ops()[op]);
    freedom.recompute && producer.is_some_and(|op| op.again != Again::Never)
}

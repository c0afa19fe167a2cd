//! How planners say no: with a proof, or without.

use elbowroom_ir::planning::Request;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Infeasible, Outcome, StopReason};
use elbowroom_ir::trace::{Op, Trace};
use elbowroom_ir::{Bytes, TensorId};

/// The answer when nothing was found at the limit: infeasible if a single op cannot run within it, else given up, with the least load
/// at which something was found.
pub(crate) fn refusal(request: &Request<'_>, best: Option<Bytes>, evaluations: u64) -> Outcome<Schedule> {
    let stop = match impossible_op(request) {
        Some(proof) => StopReason::Infeasible(Box::new(proof)),
        None => StopReason::GaveUp { best },
    };
    Outcome { best: None, evaluations, stop }
}

/// An op whose inputs, outputs and workspace exceed the load limit by themselves: a proof that no schedule exists. Every output that
/// the op may write over an input is taken to need no bytes of its own.
pub fn impossible_op(request: &Request<'_>) -> Option<Infeasible> {
    let limit = request.load_limit;
    let needs = |op: &Op| least_bytes(request.trace, op, request.machine.align);
    let (id, op) = request.trace.ops().iter().max_by_key(|(_, op)| needs(op))?;
    let needed = needs(op);
    (needed > limit).then(|| {
        let mut values: Vec<TensorId> = op.reads.iter().chain(&op.outputs).copied().collect();
        values.sort_unstable();
        values.dedup();
        Infeasible::Op { op: id, values, needed, limit }
    })
}

/// The fewest bytes with which an op can run.
pub(crate) fn least_bytes(trace: &Trace, op: &Op, align: Bytes) -> Bytes {
    let mut inputs = op.reads.clone();
    inputs.sort_unstable();
    inputs.dedup();
    let inputs = inputs.iter().map(|&value| trace.bytes(value).align_up(align));
    let own = |value: &&TensorId| {
        op.overwrites(**value).is_none() && !op.may_reuse.iter().any(|pair| pair.output == **value)
    };
    let outputs = op.outputs.iter().filter(own).map(|&value| trace.bytes(value).align_up(align));
    inputs.chain(outputs).sum::<Bytes>() + op.workspace.align_up(align)
}

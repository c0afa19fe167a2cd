//! The answer of a planner that found no schedule: infeasible with a proof, or given up.

use elbowroom_ir::planning::Request;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Infeasible, Outcome, StopReason};
use elbowroom_ir::{Bytes, TensorId};
use elbowroom_sim::bound::{Floor, floor};

/// The answer when nothing was found at the limit: infeasible if a single op cannot run within it, else given up, with the least live memory
/// at which something was found.
pub fn refusal(request: &Request<'_>, best: Option<Bytes>, evaluations: u64) -> Outcome<Schedule> {
    let stop = match impossible_op(request) {
        Some(proof) => StopReason::Infeasible(Box::new(proof)),
        None => StopReason::GaveUp { best },
    };
    Outcome { best: None, evaluations, stop }
}

/// An op that exceeds the live memory limit with its inputs, outputs, workspace and what cannot leave the device meanwhile: a proof that no
/// schedule exists.
pub fn impossible_op(request: &Request<'_>) -> Option<Infeasible> {
    let limit = request.live_limit;
    let align = request.machine.align;
    let floor = floor(request.trace, request.freedom, align)?;
    // The limit is on bytes that are rounded up to the alignment; the arena needs those of the highest buffer only, which is above it, too.
    let needed = floor.arena(request.trace, align);
    let Floor { op: id, held, bytes, .. } = floor;
    let op = &request.trace.ops()[id];
    (bytes > limit).then(|| {
        let mut tensors: Vec<TensorId> = op.reads.iter().chain(&op.outputs).copied().collect();
        tensors.sort_unstable();
        tensors.dedup();
        Infeasible::Op { op: id, tensors, held, needed, limit }
    })
}

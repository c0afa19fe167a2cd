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
    proof(request, request.live_limit, |floor| floor.bytes)
}

/// The same for an arena of `limit` bytes: no schedule has a placement in it. Live memory counts buffers rounded up to the alignment, but the
/// arena ends where the bytes of its highest buffer end.
pub fn impossible_in_arena(request: &Request<'_>, limit: Bytes) -> Option<Infeasible> {
    proof(request, limit, |floor| floor.arena(request.trace, request.machine.align))
}

/// The proof if the bytes that count of the floor exceed the limit.
fn proof(request: &Request<'_>, limit: Bytes, bytes: impl Fn(&Floor) -> Bytes) -> Option<Infeasible> {
    let floor = floor(request.trace, request.freedom, request.machine.align)?;
    let needed = bytes(&floor);
    let Floor { op: id, held, .. } = floor;
    let op = &request.trace.ops()[id];
    (needed > limit).then(|| {
        let mut tensors: Vec<TensorId> = op.reads.iter().chain(&op.outputs).copied().collect();
        tensors.sort_unstable();
        tensors.dedup();
        Infeasible::Op { op: id, tensors, held, needed, limit }
    })
}

//! Another order of the ops, if dependencies permit one and the caller allows it.
//!
//! An op may run anywhere after the ops that make its inputs and those that it has to follow, before the ops that read its outputs or have
//! to follow it, and, if it overwrites a tensor, after all other ops that read that tensor. Nothing else constrains it: ops that draw random
//! numbers name their state, and the checker compares contents, not orders. Ops are moved one at a time to the latest or the earliest such
//! place, as long as this lowers the sum over the sequence of the live memory above the limit.

use elbowroom_ir::planning::Request;
use elbowroom_ir::{Id, OpId};

/// Longer traces keep their order: every move is weighed on the whole of it.
const LONGEST: usize = 4_000;
/// Rounds over all ops.
const ROUNDS: usize = 4;

/// An order in which at most as much exceeds the limit, if every tensor is kept, as in the given one.
pub(crate) fn relaxed(request: &Request<'_>, order: &[OpId]) -> Vec<OpId> {
    let trace = request.trace;
    let mut order = order.to_vec();
    // A tensor whose end moves into another storage's buffer must find that free, which is a matter of order too.
    let moves = trace.persistent().iter().any(|pair| trace.storage(pair.begin) != trace.storage(pair.end));
    if moves || order.len() > LONGEST {
        return order;
    }
    let mut profile = Profile::new(request);
    let bonds = Bonds::new(request);
    let mut excess = profile.excess(&order);
    for _ in 0..ROUNDS {
        let before = excess;
        for later in [true, false] {
            for step in 0..order.len() {
                if excess == 0 {
                    return order;
                }
                let from = if later { order.len() - 1 - step } else { step };
                let to = bonds.furthest(&order, from, later);
                shift(&mut order, from, to);
                let after = if from == to { excess } else { profile.excess(&order) };
                if after < excess {
                    excess = after;
                } else {
                    shift(&mut order, to, from);
                }
            }
        }
        if excess == before {
            break;
        }
    }
    order
}

/// Moves one op to another place, and those between by one.
fn shift(order: &mut [OpId], from: usize, to: usize) {
    if from < to {
        order[from..=to].rotate_left(1);
    } else {
        order[to..=from].rotate_right(1);
    }
}

/// Which ops must run before which.
struct Bonds {
    before: Vec<Vec<OpId>>,
    after: Vec<Vec<OpId>>,
}

impl Bonds {
    fn new(request: &Request<'_>) -> Self {
        let trace = request.trace;
        let mut before: Vec<Vec<OpId>> = vec![Vec::new(); trace.ops().len()];
        let mut after = before.clone();
        for (id, op) in trace.ops().iter() {
            let makers = op.reads.iter().filter_map(|&value| trace.producer(value));
            let readers = op.mutates.iter().flat_map(|mutation| trace.users(mutation.old)).copied();
            let followed = op.after.iter().copied();
            for other in makers.chain(readers).chain(followed).filter(|&other| other != id) {
                before[id.index()].push(other);
                after[other.index()].push(id);
            }
        }
        Self { before, after }
    }

    /// The last, or the first, place to which the op of a place can move.
    fn furthest(&self, order: &[OpId], from: usize, later: bool) -> usize {
        let op = order[from].index();
        if later {
            let next = order[from + 1..].iter().position(|other| self.after[op].contains(other));
            next.map_or(order.len() - 1, |steps| from + steps)
        } else {
            let next = order[..from].iter().rposition(|other| self.before[op].contains(other));
            next.map_or(0, |place| place + 1)
        }
    }
}

/// The live memory along a sequence without repeats in which every tensor is kept and no buffer is reused.
struct Profile<'a> {
    request: &'a Request<'a>,
    begins: Vec<bool>,
    ends: Vec<bool>,
    place: Vec<usize>,
    change: Vec<i64>,
}

impl<'a> Profile<'a> {
    fn new(request: &'a Request<'a>) -> Self {
        let trace = request.trace;
        let mut begins = vec![false; trace.tensors().len()];
        let mut ends = begins.clone();
        for pair in trace.persistent() {
            (begins[pair.begin.index()], ends[pair.end.index()]) = (true, true);
        }
        let (place, change) = (vec![0; trace.ops().len()], vec![0; trace.ops().len() + 1]);
        Self { request, begins, ends, place, change }
    }

    /// Bytes over the limit, summed over the places of an order.
    fn excess(&mut self, order: &[OpId]) -> u128 {
        let Self { request, begins, ends, place, change } = self;
        let (trace, align) = (request.trace, request.machine.align);
        for (at, op) in order.iter().enumerate() {
            place[op.index()] = at;
        }
        change.fill(0);
        for value in trace.tensors().ids() {
            let made = trace.producer(value).map(|op| place[op.index()]);
            let Some(from) = made.or(begins[value.index()].then_some(0)) else { continue };
            let used = trace.users(value).iter().map(|op| place[op.index()]).max();
            let to = if ends[value.index()] { order.len() - 1 } else { used.unwrap_or(from).max(from) };
            let bytes = trace.bytes(value).align_up(align).get() as i64;
            change[from] += bytes;
            change[to + 1] -= bytes;
        }
        let (mut live_bytes, limit) = (0i64, request.live_limit.get() as i64);
        let mut excess = 0;
        for (op, change) in order.iter().zip(change.iter()) {
            live_bytes += change;
            let scratch = trace.ops()[*op].workspace.align_up(align).get() as i64;
            excess += (live_bytes + scratch).saturating_sub(limit).max(0) as u128;
        }
        excess
    }
}

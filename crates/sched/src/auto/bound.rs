//! A lower bound on the iteration time where ops may be run again.
//!
//! While an op runs for the first time, its operands are there, and there is room for so much beside them. Of the values that were made
//! before and are read by a later op for the first time, those for which there is no room must come back afterwards: fetched, for which
//! the link has only the time from then to the end (and, unless the host has a copy anyway, left by then), or made again, for which
//! their maker runs once more. The cheapest choice, if values could be away in part, is a fractional knapsack: what the link can carry
//! within a time is carried, the rest is made again, cheapest bytes first. No schedule that runs ops for the first time in the trace's
//! order (update ops aside, which may run earlier) is shorter, at any op, than the time at which that fits.

use elbowroom_ir::planning::Request;
use elbowroom_ir::trace::{Again, Phase};
use elbowroom_ir::{Bytes, Id, Nanos, OpId, TensorId};

use crate::verdict::least_bytes;

/// A time below which there is no iteration within the request's limit; at least the sum of all op times.
pub fn lower_bound(request: &Request<'_>) -> Nanos {
    let trace = request.trace;
    let total = request.costs.total().get();
    let time = |op: OpId| request.costs.nanos.get(op).map_or(0, |time| time.get());
    let early = |op: OpId| trace.ops()[op].phase == Phase::Update;
    // Per value: from where it is there, and until where it is needed.
    let mut persists = vec![false; trace.tensors().len()];
    for pair in trace.persistent() {
        persists[pair.begin.index()] = true;
        persists[pair.end.index()] = true;
    }
    let mut begins: Vec<Vec<TensorId>> = vec![Vec::new(); trace.ops().len()];
    let mut ends = begins.clone();
    let mut needed: Vec<TensorId> = Vec::new();
    for value in trace.tensors().ids() {
        // A value that persists may be overwritten on its way, and may be on the host all along: its bytes are not counted.
        let Some(maker) = trace.producer(value).filter(|_| !persists[value.index()]) else { continue };
        let last = trace.users(value).iter().rev().copied().find(|&op| !early(op) && op > maker);
        if let (Some(last), false) = (last, early(maker)) {
            begins[maker.index()].push(value);
            ends[last.index()].push(value);
        }
    }

    let regular: u64 = trace.ops().ids().filter(|&op| !early(op)).map(time).sum();
    let mut best = total;
    let mut largest = 0;
    let mut before = 0;
    for (id, op) in trace.ops().iter() {
        for value in &ends[id.index()] {
            needed.retain(|other| other != value);
        }
        if !early(id) {
            let own = least_bytes(trace, op, request.machine.align);
            let room = request.load_limit.saturating_sub(own);
            let idle = needed.iter().copied().filter(|value| !op.reads.contains(value));
            let sum: Bytes = idle.clone().map(|value| trace.bytes(value)).sum();
            let excess = sum.saturating_sub(room).get();
            // Where much less is missing than elsewhere, nothing new is learnt.
            if excess > largest / 16 * 15 {
                largest = largest.max(excess);
                let moment = Moment { before, after: regular - before };
                best = best.max(at_op(request, idle, excess, moment, total, &time));
            }
            before += time(id);
        }
        needed.extend(&begins[id.index()]);
    }
    Nanos(best)
}

/// Time of the ops that run before an op, and of it and those that run after it.
#[derive(Clone, Copy)]
struct Moment {
    before: u64,
    after: u64,
}

/// The bound at one op: so many bytes of the idle values must be away.
fn at_op(
    request: &Request<'_>,
    idle: impl Iterator<Item = TensorId>,
    excess: u64,
    moment: Moment,
    total: u64,
    time: &dyn Fn(OpId) -> u64,
) -> u64 {
    // Bytes that running an op again brings back, by op.
    let mut makers: Vec<(OpId, u64)> = Vec::new();
    for value in idle {
        let Some(maker) = request.trace.producer(value) else { continue };
        if request.freedom.recompute && request.trace.ops()[maker].again != Again::Never {
            makers.push((maker, request.trace.bytes(value).get()));
        }
    }
    makers.sort_unstable();
    makers.dedup_by(|next, first| {
        let same = next.0 == first.0;
        first.1 += if same { next.1 } else { 0 };
        same
    });
    let mut makers: Vec<(u64, u64)> = makers.into_iter().map(|(op, bytes)| (time(op), bytes)).collect();
    makers.sort_unstable_by(|a, b| {
        (u128::from(a.0) * u128::from(b.1)).cmp(&(u128::from(b.0) * u128::from(a.1)))
    });
    // Time to make so many bytes again, rounded down; `None` if they are more than can be made.
    let again = |mut bytes: u64| {
        let mut sum = 0u64;
        for &(time, brings) in &makers {
            if bytes == 0 {
                break;
            }
            let part = bytes.min(brings);
            sum += (u128::from(time) * u128::from(part) / u128::from(brings.max(1))) as u64;
            bytes -= part;
        }
        (bytes == 0).then_some(sum)
    };
    // Bytes that can have left by then and come back from then on, if the iteration takes so long.
    let machine = request.machine;
    let carried = |iteration: u64| {
        if !request.freedom.offload {
            return 0;
        }
        let bytes = |time: u64, rate: u64| (u128::from(time) * u128::from(rate) / 1_000_000_000 + 1) as u64;
        let out = bytes(iteration - moment.after, machine.to_host.rate);
        out.min(bytes(iteration - moment.before, machine.to_device.rate))
    };
    let fits = |iteration: u64| {
        again(excess.saturating_sub(carried(iteration))).is_some_and(|extra| total + extra <= iteration)
    };
    let (mut low, mut high) = (total, total);
    if fits(low) {
        return total;
    }
    while !fits(high) {
        if high >= 1 << 60 {
            return total;
        }
        low = high;
        high = high.saturating_mul(2).max(1);
    }
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(middle) { high = middle } else { low = middle }
    }
    high
}

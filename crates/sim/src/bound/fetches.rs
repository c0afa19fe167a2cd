//! A bound for persistent tensors that never change and have to be fetched: parameters of a network without updates in its iteration.
//!
//! While an op runs, its operands and results are on the device, and only the remaining memory can hold other tensors. An unchanged persistent
//! tensor that is not there has to be copied to the device before the next op that reads it, and no op makes it. From the end of op j to the
//! start of a later op i at least the bytes of all such tensors that the ops after j up to i read, less what remained beside op j, are copied,
//! one after the other. With the ops between, which run one after the other as well, this gives the earliest start of every op in the order of
//! first runs:
//!
//! ```text
//! start(i) ≥ max( end(i − 1),  max over j < i:  end(j) + (bytes read in (j, i] − room beside j) ÷ rate )
//! ```
//!
//! Iterations follow each other, so that the time from the end of an op to its end in the next iteration is the iteration time: the bound begins
//! behind an op with many operands, often the last one, and goes around to it.

use elbowroom_ir::planning::Request;
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Id, OpId};

use super::GIGA;
use super::needs::{early, own_bytes};

/// Ops behind which the bound begins, and ops behind which copies are counted: those with the most operands.
const AROUND: usize = 2;
const WITHIN: usize = 16;

/// A lower bound of the iteration time; 0 if nothing has to be fetched, or other orders are permitted.
pub(super) fn bound(request: &Request<'_>) -> u64 {
    let trace = request.trace;
    let mut unchanged = vec![false; trace.tensors().len()];
    for pair in trace.persistent().iter().filter(|pair| pair.begin == pair.end) {
        unchanged[pair.begin.index()] = true;
    }
    if !request.freedom.offload || request.freedom.reorder || !unchanged.contains(&true) {
        return 0;
    }
    let mut largest: Vec<(u64, OpId)> = trace
        .ops()
        .iter()
        .map(|(id, op)| (own_bytes(trace, op, request.machine.align, &|_| false), id))
        .collect();
    largest.sort_unstable_by(|a, b| b.cmp(a));
    largest.truncate(WITHIN);
    let around = largest.iter().take(AROUND);
    around
        .map(|&(own, op)| Round { request, unchanged: &unchanged, largest: &largest }.time(op, own))
        .max()
        .unwrap_or(0)
}

/// One round, from the end of an op to its end in the next iteration.
struct Round<'a> {
    request: &'a Request<'a>,
    unchanged: &'a [bool],
    /// Ops with the most operands, with the bytes of these.
    largest: &'a [(u64, OpId)],
}

/// Copies since an op.
struct Since {
    end: u64,
    /// Bytes beside the op that are not its own.
    room: u64,
    /// Tensors that have been on the device since then, and the bytes of those that are not operands of the op.
    seen: Vec<bool>,
    bytes: u64,
}

impl Round<'_> {
    fn time(&self, first: OpId, own: u64) -> u64 {
        let trace = self.request.trace;
        let duration = |op: OpId| self.request.costs.nanos.get(op).map_or(0, |time| time.get());
        let rate = u128::from(self.request.machine.to_device.rate.max(1));
        let mut open = vec![self.since(first, own, 0)];
        let mut end = 0u64;
        for op in between(trace, first) {
            for since in &mut open {
                for &value in &trace.ops()[op].reads {
                    if self.unchanged[value.index()]
                        && !std::mem::replace(&mut since.seen[value.index()], true)
                    {
                        since.bytes += trace.bytes(value).get();
                    }
                }
                let copied = u128::from(since.bytes.saturating_sub(since.room)) * GIGA / rate;
                end = end.max(since.end.saturating_add(u64::try_from(copied).unwrap_or(u64::MAX)));
            }
            end = end.saturating_add(duration(op));
            if let Some(&(own, _)) = self.largest.iter().find(|&&(_, other)| other == op) {
                open.push(self.since(op, own, end));
            }
        }
        match early(&trace.ops()[first]) {
            true => end.saturating_add(duration(first)),
            false => end,
        }
    }

    fn since(&self, op: OpId, own: u64, end: u64) -> Since {
        let trace = self.request.trace;
        let mut seen = vec![false; self.unchanged.len()];
        trace.ops()[op].reads.iter().for_each(|value| seen[value.index()] = true);
        Since { end, room: self.request.live_limit.get().saturating_sub(own), seen, bytes: 0 }
    }
}

/// The ops that certainly run in this order between an op and itself in the next iteration, itself included unless it may run early: then it comes
/// last, and of the others those up to its operands' makers certainly run before it.
fn between(trace: &Trace, first: OpId) -> Vec<OpId> {
    let regular = trace.ops().iter().filter(|(_, op)| !early(op)).map(|(id, _)| id);
    if early(&trace.ops()[first]) {
        let makers = trace.ops()[first].reads.iter().filter_map(|&value| trace.producer(value));
        let last = makers.filter(|&maker| !early(&trace.ops()[maker])).max();
        return regular.filter(|&op| last.is_some_and(|last| op <= last)).collect();
    }
    let (before, after): (Vec<OpId>, Vec<OpId>) = regular.partition(|&op| op <= first);
    after.into_iter().chain(before).collect()
}

//! A lower bound of the iteration time.
//!
//! While an op runs for the first time, its operands and results are on the device, and only the remaining memory is available for other
//! tensors. Of the tensors that are needed both before and after the op, those that do not fit must be restored afterwards:
//!
//! - by prefetching: a tensor that the iteration computed must be offloaded before the op starts and prefetched after it ends, and only
//!   these two time windows are available to the link. A persistent tensor may be on the host all along, but must be prefetched once per
//!   iteration.
//! - or by recomputing, if the request permits it: its producer runs once more.
//!
//! If tensors could be removed in part, the cheapest choice would be a fractional knapsack: offload as much as the link can carry within a
//! time, and recompute the rest, cheapest bytes first. The bound is the maximum, over the ops, of the shortest times for which that works.
//!
//! The bound includes two known ones. If only offload is permitted and all tensors are computed within the iteration, the windows before
//! and after an op are together no longer than the iteration; this gives Proposition 3 of Beaumont et al.: 2 × (peak − limit) ÷ rate
//! ([`proposition_3`]). If all missing tensors are persistent, it gives (peak − limit) ÷ host→device rate.
//!
//! It holds for schedules that run ops for the first time in the trace's order, except that update ops may run as early as possible.
//! Tensors to be restored count at their true sizes, because an aligned buffer has no more bytes to copy. Tensors on the device count at
//! their aligned sizes, as in live memory, and every permitted reuse of an input is assumed to happen.

use std::cmp::Reverse;

use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::Request;
use elbowroom_ir::trace::{Again, Op, Phase, Trace};
use elbowroom_ir::{Bytes, Id, Nanos, OpId, StorageId, TensorId};

/// Maximum number of ops examined: those with the most missing bytes.
const MAX_TIGHT_OPS: usize = 64;
/// Upper bound of the times that are distinguished (36 years).
const LONGEST: u64 = 1 << 60;
/// The link's bytes are counted in billionths, so that nothing is lost to rounding.
const GIGA: u128 = 1_000_000_000;

/// A lower bound of the iteration time within the request's limit; at least the sum of all op times. It is that sum if the request permits
/// neither offload nor recomputation, or permits another order of the ops.
pub fn lower_bound(request: &Request<'_>) -> Nanos {
    let total = request.costs.total().get();
    if request.freedom.reorder {
        return Nanos(total);
    }
    let needs = Needs::of(request.trace);
    let mut tight_ops = tight_ops(request, &needs);
    tight_ops.sort_by_key(|tight| Reverse(tight.excess));
    let best = tight_ops
        .iter()
        .take(MAX_TIGHT_OPS)
        .fold(total, |best, tight| best.max(tight.shortest(request, &needs, total, best)));
    Nanos(best)
}

/// Beaumont et al., Proposition 3, as published: max(Σ op times, (peak − limit) ÷ rate to the host + (peak − limit) ÷ rate back). For
/// comparison with published ratios; [`lower_bound`] is at least as large.
pub fn proposition_3(total: Nanos, peak: Bytes, limit: Bytes, machine: &Machine) -> Nanos {
    let excess = u128::from(peak.saturating_sub(limit).get()) * GIGA;
    let (out, back) = (u128::from(machine.to_host.rate.max(1)), u128::from(machine.to_device.rate.max(1)));
    // A single division if the rates are equal, so that only one rounding occurs.
    let link = if out == back { 2 * excess / out } else { excess / out + excess / back };
    total.max(Nanos(u64::try_from(link).unwrap_or(u64::MAX)))
}

/// The op that needs the most memory by itself, and the bytes that must be resident together for it: operands, results and workspace, each
/// rounded up to the alignment. No plan fits into less. Outputs that the op may write over an input count as zero.
pub fn largest_op(trace: &Trace, align: Bytes) -> Option<(OpId, Bytes)> {
    let needs = trace.ops().iter().map(|(id, op)| (id, least_bytes(trace, op, align)));
    needs.max_by_key(|&(id, bytes)| (bytes, Reverse(id)))
}

/// The fewest bytes with which an op can run.
fn least_bytes(trace: &Trace, op: &Op, align: Bytes) -> Bytes {
    let inputs = distinct(&op.reads).into_iter().map(|value| trace.bytes(value).align_up(align));
    let own = |value: &&TensorId| {
        op.overwrites(**value).is_none() && !op.may_reuse.iter().any(|pair| pair.output == **value)
    };
    let outputs = op.outputs.iter().filter(own).map(|&value| trace.bytes(value).align_up(align));
    inputs.chain(outputs).sum::<Bytes>() + op.workspace.align_up(align)
}

fn distinct(values: &[TensorId]) -> Vec<TensorId> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    values
}

/// Whether an op may run as soon as possible: update ops need not wait for their position in the trace.
fn early(op: &Op) -> bool {
    op.phase == Phase::Update
}

/// When each tensor is needed.
struct Needs {
    /// For every tensor that the iteration computes and discards: its producer and its last reader, which run in any case. The tensor is
    /// needed at every op in between.
    spans: Vec<Option<(usize, usize)>>,
    /// Storages of the persistent tensors that are needed throughout, begin and end, with their size in bytes.
    persistent: Vec<([StorageId; 2], u64)>,
}

impl Needs {
    fn of(trace: &Trace) -> Self {
        let mut persists = vec![false; trace.storages().len()];
        for pair in trace.persistent() {
            persists[trace.storage(pair.begin).index()] = true;
            persists[trace.storage(pair.end).index()] = true;
        }
        let span = |value: TensorId| {
            let maker = trace.producer(value).filter(|_| !persists[trace.storage(value).index()])?;
            let last = trace.users(value).iter().rev().copied().find(|&op| !early(&trace.ops()[op]))?;
            (!early(&trace.ops()[maker]) && last > maker).then_some((maker.index(), last.index()))
        };
        let needed =
            trace.persistent().iter().filter(|pair| follows(trace, pair.end, pair.begin)).map(|pair| {
                ([trace.storage(pair.begin), trace.storage(pair.end)], trace.bytes(pair.begin).get())
            });
        Self { spans: trace.tensors().ids().map(span).collect(), persistent: needed.collect() }
    }

    /// Tensors needed both before and after an op but not while it runs.
    fn idle<'a>(&'a self, trace: &'a Trace, id: OpId) -> impl Iterator<Item = TensorId> + 'a {
        let (op, at) = (&trace.ops()[id], id.index());
        let between = move |value: &TensorId| {
            self.spans[value.index()].is_some_and(|(maker, last)| maker < at && at < last)
        };
        let away = move |value: &TensorId| !op.reads.contains(value) || may_overwrite(op, *value);
        trace.tensors().ids().filter(between).filter(away)
    }
}

/// Whether a persistent tensor is needed from the start until its successor exists: an op reads it, and the successor is the tensor itself,
/// is computed from it, or lies in its storage.
fn follows(trace: &Trace, end: TensorId, begin: TensorId) -> bool {
    let mut value = end;
    loop {
        if value == begin {
            return !trace.users(begin).is_empty();
        }
        let Some(maker) = trace.producer(value).map(|op| &trace.ops()[op]) else { return false };
        if maker.reads.contains(&begin) {
            return true;
        }
        let Some(old) = maker.overwrites(value) else { return false };
        value = old;
    }
}

/// Whether an op may write a result over this operand.
fn may_overwrite(op: &Op, input: TensorId) -> bool {
    op.may_reuse.iter().any(|pair| pair.input == input)
}

/// An op that, with all tensors needed then, exceeds the limit.
struct TightOp {
    op: OpId,
    /// Bytes that must be absent while it runs.
    excess: u64,
    /// Persistent bytes that may be among them.
    persistent: u64,
    /// Time of the ops that run before it in any case, of itself, and of those that run after it.
    before: u64,
    time: u64,
    after: u64,
}

/// The ops at which bytes must be absent, in the trace's order.
fn tight_ops(request: &Request<'_>, needs: &Needs) -> Vec<TightOp> {
    let Request { trace, costs, .. } = *request;
    let align = request.machine.align;
    let time = |op: OpId| costs.nanos.get(op).map_or(0, |time| time.get());
    let aligned = |value: TensorId| trace.bytes(value).align_up(align).get();
    let mut made: Vec<Vec<TensorId>> = vec![Vec::new(); trace.ops().len()];
    let mut ends = made.clone();
    for (value, span) in trace.tensors().ids().zip(&needs.spans) {
        if let Some((maker, last)) = *span {
            made[maker].push(value);
            ends[last].push(value);
        }
    }
    let persistent: u64 = needs.persistent.iter().map(|&(_, bytes)| bytes).sum();
    let mut by_storage = vec![Vec::new(); trace.storages().len()];
    for (index, (storages, _)) in needs.persistent.iter().enumerate() {
        storages.iter().for_each(|storage| by_storage[storage.index()].push(index));
    }
    let regular: u64 = trace.ops().iter().filter(|(_, op)| !early(op)).map(|(id, _)| time(id)).sum();

    let mut tight_ops = Vec::new();
    let (mut live, mut before) = (0u64, 0u64);
    for (id, op) in trace.ops().iter() {
        let reads = distinct(&op.reads);
        let needed_later = |value: TensorId| {
            needs.spans[value.index()].is_some_and(|(_, last)| last > id.index()) && !early(op)
        };
        let leaves = |value: &TensorId| needed_later(*value) && may_overwrite(op, *value);
        // The op's own bytes, less those of operands that it may overwrite because they are not needed any more.
        let operands: u64 = reads.iter().filter(|value| !leaves(value)).map(|&value| aligned(value)).sum();
        let fresh = op.outputs.iter().copied().filter(|&value| op.overwrites(value).is_none());
        let results: u64 = fresh.clone().map(aligned).sum();
        let over_dying = |value: &TensorId| {
            op.may_reuse.iter().any(|pair| pair.output == *value && !needed_later(pair.input))
        };
        let saved: u64 = fresh.filter(over_dying).map(aligned).sum();
        let dying = reads.iter().filter(|&&value| may_overwrite(op, value) && !needed_later(value));
        let saved = saved.min(dying.map(|&value| aligned(value)).sum());
        let own = operands + results - saved + op.workspace.align_up(align).get();

        let mut touched: Vec<usize> = Vec::new();
        for &value in op.reads.iter().chain(&op.outputs) {
            touched.extend(&by_storage[trace.storage(value).index()]);
        }
        touched.sort_unstable();
        touched.dedup();
        let persistent = persistent - touched.iter().map(|&index| needs.persistent[index].1).sum::<u64>();
        let stays = |value: &&TensorId| {
            needs.spans[value.index()].is_some_and(|(maker, _)| maker < id.index()) && !leaves(value)
        };
        let read: u64 = reads.iter().filter(stays).map(|&value| trace.bytes(value).get()).sum();
        // Tensors needed by regular ops may already have been discarded when an update op runs.
        let idle = if early(op) { 0 } else { live - read };
        let excess = (idle + persistent + own).saturating_sub(request.live_limit.get());
        let own_time = if early(op) { 0 } else { time(id) };
        if excess > 0 {
            let (before, after) = if early(op) { (0, 0) } else { (before, regular - before - own_time) };
            tight_ops.push(TightOp { op: id, excess, persistent, before, time: time(id), after });
        }
        before += own_time;
        live += made[id.index()].iter().map(|&value| trace.bytes(value).get()).sum::<u64>();
        live -= ends[id.index()].iter().map(|&value| trace.bytes(value).get()).sum::<u64>();
    }
    tight_ops
}

impl TightOp {
    /// The shortest time, at least `least`, within which the absent bytes can be restored.
    fn shortest(&self, request: &Request<'_>, needs: &Needs, total: u64, least: u64) -> u64 {
        let excess = u128::from(self.excess) * GIGA;
        let carried = |iteration: u64| self.carried(request, iteration);
        if carried(least) >= excess {
            return least;
        }
        let recomputations = Recomputations::of(request, needs, self.op);
        let fits = |iteration: u64| {
            let rest = excess.saturating_sub(carried(iteration));
            recomputations.time(rest).is_some_and(|extra| total.saturating_add(extra) <= iteration)
        };
        if fits(least) {
            return least;
        }
        let (mut low, mut high) = (least, least.max(1));
        while !fits(high) {
            if high >= LONGEST {
                // Nothing that the request permits helps: no bound.
                return least;
            }
            (low, high) = (high, high.saturating_mul(2));
        }
        while high - low > 1 {
            let middle = low.midpoint(high);
            if fits(middle) { high = middle } else { low = middle }
        }
        high
    }

    /// The maximum of bytes, in billionths, that can be absent while the op runs and be copied back in an iteration of this length.
    fn carried(&self, request: &Request<'_>, iteration: u64) -> u128 {
        if !request.freedom.offload {
            return 0;
        }
        let (out, back) = (request.machine.to_host.rate, request.machine.to_device.rate);
        let both = (u128::from(out) * u128::from(back)).div_ceil(u128::from(out) + u128::from(back));
        let within = |time: u64, rate: u128| u128::from(time) * rate;
        let around = iteration.saturating_sub(self.time);
        // Offloaded before the op and prefetched after it. The op starts after the ops before it, and the ops after it follow.
        let made = within(around.saturating_sub(self.after), out.into())
            .min(within(around.saturating_sub(self.before), back.into()))
            .min(within(around, both));
        let persistent = (u128::from(self.persistent) * GIGA).min(within(around, back.into()));
        let all = within(around, back.into());
        if !request.machine.shared_link {
            return all.min(made + persistent);
        }
        // On a shared link, prefetches take time from offloads; persistent bytes need not be offloaded.
        let left = around.saturating_sub(u64::try_from(persistent / u128::from(back)).unwrap_or(u64::MAX));
        all.min(persistent + made.min(within(left, both)))
    }
}

/// Ops that may restore idle tensors by recomputation, cheapest bytes first: time and bytes.
struct Recomputations(Vec<(u64, u64)>);

impl Recomputations {
    fn of(request: &Request<'_>, needs: &Needs, op: OpId) -> Self {
        let trace = request.trace;
        if !request.freedom.recompute {
            return Self(Vec::new());
        }
        let maker = |value: TensorId| {
            let maker = trace.producer(value)?;
            (trace.ops()[maker].again != Again::Never).then(|| (maker, trace.bytes(value).get()))
        };
        let mut recomputations: Vec<(OpId, u64)> = needs.idle(trace, op).filter_map(maker).collect();
        recomputations.sort_unstable();
        recomputations.dedup_by(|next, first| {
            let same = next.0 == first.0;
            first.1 += if same { next.1 } else { 0 };
            same
        });
        let time = |op: OpId| request.costs.nanos.get(op).map_or(0, |time| time.get());
        let mut recomputations: Vec<(u64, u64)> =
            recomputations.into_iter().map(|(op, bytes)| (time(op), bytes)).collect();
        recomputations.sort_unstable_by(|a, b| {
            (u128::from(a.0) * u128::from(b.1)).cmp(&(u128::from(b.0) * u128::from(a.1)))
        });
        Self(recomputations)
    }

    /// Time to recompute this many billionths of bytes, rounded down; `None` if they exceed what can be recomputed.
    fn time(&self, mut bytes: u128) -> Option<u64> {
        let mut sum = 0u64;
        for &(time, brings) in &self.0 {
            if bytes == 0 {
                break;
            }
            let all = u128::from(brings) * GIGA;
            let part = bytes.min(all);
            let share = u128::from(time) * (part / GIGA) / u128::from(brings.max(1));
            sum = sum.saturating_add(if part == all { time } else { share as u64 });
            bytes -= part;
        }
        (bytes == 0).then_some(sum)
    }
}

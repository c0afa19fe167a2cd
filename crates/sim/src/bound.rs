//! An iteration time below which no schedule can be.
//!
//! While an op runs for the first time, what it reads and makes is there, and there is room for so much beside it. Of the values that
//! the iteration needs both before and after it, those for which there is no room must come back:
//!
//! - fetched. A value that the iteration made must have left before the op begins and comes back after it ends, and the link has only
//!   these two times. A persistent value may be on the host all along, but must be fetched once in every iteration.
//! - or made again, if the request allows it: its maker runs once more.
//!
//! The cheapest choice, if values could be away in part, is a fractional knapsack: what the link can carry within a time is carried, the
//! rest is made again, cheapest bytes first. The bound is the largest, over the ops, of the shortest times for which that works.
//!
//! Two known bounds are contained in it. Where only offload is allowed and all values are made within the iteration, the window before
//! and the window after an op are together no longer than the iteration, which is Beaumont et al., Proposition 3: 2 × (peak − limit) ÷
//! rate ([`proposition_3`]). Where all missing values are persistent, it is (peak − limit) ÷ host→device rate.
//!
//! It holds for schedules that run ops for the first time in the trace's order, except that update ops may run as early as they can.
//! Sizes of values that must come back are true sizes (an aligned buffer holds no more to copy); what is there beside them is
//! aligned, as the load counts it, and every permitted reuse of a dying input is taken to happen.

use std::cmp::Reverse;

use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::Request;
use elbowroom_ir::trace::{Again, Op, Phase, Trace};
use elbowroom_ir::{Bytes, Id, Nanos, OpId, StorageId, TensorId};

/// Ops looked at closely: those at which most is missing.
const MOMENTS: usize = 64;
/// Times beyond this one (36 years) are not told apart.
const LONGEST: u64 = 1 << 60;
/// The link's account is kept in billionths of bytes, so that nothing is lost to rounding.
const GIGA: u128 = 1_000_000_000;

/// A time below which there is no iteration within the request's limit; at least the sum of all op times. Where the request allows
/// nothing that would help, and where it allows another order of the ops, it is that sum.
pub fn lower_bound(request: &Request<'_>) -> Nanos {
    let total = request.costs.total().get();
    if request.freedom.reorder {
        return Nanos(total);
    }
    let needs = Needs::of(request.trace);
    let mut moments = moments(request, &needs);
    moments.sort_by_key(|moment| Reverse(moment.excess));
    let best = moments
        .iter()
        .take(MOMENTS)
        .fold(total, |best, moment| best.max(moment.shortest(request, &needs, total, best)));
    Nanos(best)
}

/// Beaumont et al., Proposition 3, as published: max(Σ op times, (peak − limit) ÷ rate to the host + (peak − limit) ÷ rate back). For
/// ratios beside published ones; [`lower_bound`] says the same or more.
pub fn proposition_3(total: Nanos, peak: Bytes, limit: Bytes, machine: &Machine) -> Nanos {
    let excess = u128::from(peak.saturating_sub(limit).get()) * GIGA;
    let (out, back) = (u128::from(machine.to_host.rate.max(1)), u128::from(machine.to_device.rate.max(1)));
    // One division at equal rates, so that nothing is lost to rounding twice.
    let link = if out == back { 2 * excess / out } else { excess / out + excess / back };
    total.max(Nanos(u64::try_from(link).unwrap_or(u64::MAX)))
}

/// The op that needs most by itself, with what must be resident together for it: operands, results and workspace, each rounded up to
/// the alignment. Less is no limit for any plan. Every output that the op may write over an input is taken to need no bytes of its own.
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

/// Update ops may run as soon as they can: what they read need not wait for their place in the trace.
fn early(op: &Op) -> bool {
    op.phase == Phase::Update
}

/// Which values are needed when.
struct Needs {
    /// For every value that the iteration makes and does not keep: its maker, and the last op after it that reads it in any case. The
    /// value is needed at every op in between.
    spans: Vec<Option<(usize, usize)>>,
    /// Storages of the persistent values that are needed throughout, begin and end, with their size.
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

    /// Values needed both before and after an op that need not be there while it runs.
    fn idle<'a>(&'a self, trace: &'a Trace, id: OpId) -> impl Iterator<Item = TensorId> + 'a {
        let (op, at) = (&trace.ops()[id], id.index());
        let between = move |value: &TensorId| {
            self.spans[value.index()].is_some_and(|(maker, last)| maker < at && at < last)
        };
        let away = move |value: &TensorId| !op.reads.contains(value) || gives_way(op, *value);
        trace.tensors().ids().filter(between).filter(away)
    }
}

/// Whether a persistent value is needed from the beginning until its successor exists: some op reads it, and the successor is itself, is
/// made from it, or lies in its storage.
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

/// Whether an op may write a result over one of its operands.
fn gives_way(op: &Op, input: TensorId) -> bool {
    op.may_reuse.iter().any(|pair| pair.input == input)
}

/// An op at which more is needed than the limit allows.
struct Moment {
    op: OpId,
    /// Bytes that must be away while it runs.
    excess: u64,
    /// Persistent bytes that may be among them.
    persistent: u64,
    /// Time of the ops that run before it in any case, of itself, and of those that run after it.
    before: u64,
    time: u64,
    after: u64,
}

/// The ops at which something must be away, in the trace's order.
fn moments(request: &Request<'_>, needs: &Needs) -> Vec<Moment> {
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

    let mut moments = Vec::new();
    let (mut live, mut before) = (0u64, 0u64);
    for (id, op) in trace.ops().iter() {
        let reads = distinct(&op.reads);
        let needed_later = |value: TensorId| {
            needs.spans[value.index()].is_some_and(|(_, last)| last > id.index()) && !early(op)
        };
        let leaves = |value: &TensorId| needed_later(*value) && gives_way(op, *value);
        // What the op needs by itself, less what it may write over operands that nobody needs any more.
        let operands: u64 = reads.iter().filter(|value| !leaves(value)).map(|&value| aligned(value)).sum();
        let fresh = op.outputs.iter().copied().filter(|&value| op.overwrites(value).is_none());
        let results: u64 = fresh.clone().map(aligned).sum();
        let over_dying = |value: &TensorId| {
            op.may_reuse.iter().any(|pair| pair.output == *value && !needed_later(pair.input))
        };
        let saved: u64 = fresh.filter(over_dying).map(aligned).sum();
        let dying = reads.iter().filter(|&&value| gives_way(op, value) && !needed_later(value));
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
        // Values needed by regular ops may be gone when an update op runs.
        let idle = if early(op) { 0 } else { live - read };
        let excess = (idle + persistent + own).saturating_sub(request.load_limit.get());
        let own_time = if early(op) { 0 } else { time(id) };
        if excess > 0 {
            let (before, after) = if early(op) { (0, 0) } else { (before, regular - before - own_time) };
            moments.push(Moment { op: id, excess, persistent, before, time: time(id), after });
        }
        before += own_time;
        live += made[id.index()].iter().map(|&value| trace.bytes(value).get()).sum::<u64>();
        live -= ends[id.index()].iter().map(|&value| trace.bytes(value).get()).sum::<u64>();
    }
    moments
}

impl Moment {
    /// The shortest time, no less than `least`, in which what must be away can come back.
    fn shortest(&self, request: &Request<'_>, needs: &Needs, total: u64, least: u64) -> u64 {
        let excess = u128::from(self.excess) * GIGA;
        let carried = |iteration: u64| self.carried(request, iteration);
        if carried(least) >= excess {
            return least;
        }
        let makers = Makers::of(request, needs, self.op);
        let fits = |iteration: u64| {
            let rest = excess.saturating_sub(carried(iteration));
            makers.time(rest).is_some_and(|extra| total.saturating_add(extra) <= iteration)
        };
        if fits(least) {
            return least;
        }
        let (mut low, mut high) = (least, least.max(1));
        while !fits(high) {
            if high >= LONGEST {
                // Nothing that is allowed helps: no statement.
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

    /// Most bytes, in billionths, that can be away while the op runs and come back over the link in an iteration of this length.
    fn carried(&self, request: &Request<'_>, iteration: u64) -> u128 {
        if !request.freedom.offload {
            return 0;
        }
        let (out, back) = (request.machine.to_host.rate, request.machine.to_device.rate);
        let both = (u128::from(out) * u128::from(back)).div_ceil(u128::from(out) + u128::from(back));
        let within = |time: u64, rate: u128| u128::from(time) * rate;
        let around = iteration.saturating_sub(self.time);
        // Left before the op, and back after it; it begins when some ops are done, and after it others run.
        let made = within(around.saturating_sub(self.after), out.into())
            .min(within(around.saturating_sub(self.before), back.into()))
            .min(within(around, both));
        let persistent = (u128::from(self.persistent) * GIGA).min(within(around, back.into()));
        let all = within(around, back.into());
        if !request.machine.shared_link {
            return all.min(made + persistent);
        }
        // On a shared link what comes back takes its time from what leaves; persistent bytes need not leave.
        let left = around.saturating_sub(u64::try_from(persistent / u128::from(back)).unwrap_or(u64::MAX));
        all.min(persistent + made.min(within(left, both)))
    }
}

/// Ops that may bring idle values back by running again, cheapest bytes first: time and bytes.
struct Makers(Vec<(u64, u64)>);

impl Makers {
    fn of(request: &Request<'_>, needs: &Needs, op: OpId) -> Self {
        let trace = request.trace;
        if !request.freedom.recompute {
            return Self(Vec::new());
        }
        let maker = |value: TensorId| {
            let maker = trace.producer(value)?;
            (trace.ops()[maker].again != Again::Never).then(|| (maker, trace.bytes(value).get()))
        };
        let mut makers: Vec<(OpId, u64)> = needs.idle(trace, op).filter_map(maker).collect();
        makers.sort_unstable();
        makers.dedup_by(|next, first| {
            let same = next.0 == first.0;
            first.1 += if same { next.1 } else { 0 };
            same
        });
        let time = |op: OpId| request.costs.nanos.get(op).map_or(0, |time| time.get());
        let mut makers: Vec<(u64, u64)> = makers.into_iter().map(|(op, bytes)| (time(op), bytes)).collect();
        makers.sort_unstable_by(|a, b| {
            (u128::from(a.0) * u128::from(b.1)).cmp(&(u128::from(b.0) * u128::from(a.1)))
        });
        Self(makers)
    }

    /// Time to make so many billionths of bytes again, rounded down; `None` if they are more than can be made.
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

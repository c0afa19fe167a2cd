//! A lower bound of the iteration time.
//!
//! While an op runs for the first time, its operands and results are on the device, and only the remaining memory is available for other
//! tensors. Of the tensors that are needed both before and after the op, those that do not fit must be restored afterwards:
//!
//! - by prefetching: a tensor that the iteration computed must be offloaded before the op starts and prefetched after it ends, and only
//!   these two time windows are available to the link. A persistent tensor may be on the host all along, but must be prefetched once per
//!   iteration.
//! - or by recomputing, if the request permits it: its producer runs once more, with inputs that were there while the op ran, or were on the host,
//!   or are recomputed in turn.
//!
//! For an iteration time, the link carries so many bytes, and the rest needs so much recomputation: closures of the graph (`bound/closure.rs`) give a lower
//! bound of that, first as if a part of an op could run again for a part of its result, then, by branch and bound as far as the work permits, for
//! whole ops. The bound is the maximum, over the ops, of the shortest times for which both together suffice.
//!
//! The bound includes two known ones. If only offload is permitted and all tensors are computed within the iteration, the windows before
//! and after an op are together no longer than the iteration; this gives Proposition 3 of Beaumont et al.: 2 × (peak − limit) ÷ rate
//! ([`proposition_3`]). If all missing tensors are persistent, it gives (peak − limit) ÷ host→device rate.
//!
//! Parameters that never change are bounded in another way as well, over several ops together (`fetches`).
//!
//! It holds for schedules that run ops for the first time in the trace's order, except that update ops may run as early as possible. If other
//! orders are permitted, a tensor is certainly needed before and after an op only if ops that it depends on make it and ops that depend on it read it.
//! Tensors to be restored count at their true sizes, because an aligned buffer has no more bytes to copy. Tensors on the device count at
//! their aligned sizes, as in live memory, and every permitted reuse of an input is assumed to happen.

mod closure;
mod fetches;
mod floor;
mod flow;
mod needs;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::Request;
use elbowroom_ir::{Bytes, Id, Nanos, OpId, TensorId};

use self::closure::{Closures, Frontier};
pub use self::floor::{Floor, floor};
use self::needs::{AnyOrder, Demand, Needs, early, own_bytes};

/// Maximum number of ops examined: those with the most missing bytes.
const MAX_TIGHT_OPS: usize = 64;
/// How much work a bound may take: edges of networks, counted once for each [`Frontier`]. The first is some milliseconds, the second some tenths
/// of a second.
const QUICK: usize = 200_000;
const THOROUGH: usize = 1_000_000;
/// Seconds of a search for which the second is worth its time.
const WORTH_IT: f64 = 5.0;
/// Upper bound of the times that are distinguished (36 years).
const LONGEST: u64 = 1 << 60;
/// The link's bytes are counted in billionths, so that nothing is lost to rounding.
const GIGA: u128 = 1_000_000_000;

/// A lower bound of the iteration time within the request's limit; at least the sum of all op times, and that sum if the request permits
/// neither offload nor recomputation.
pub fn lower_bound(request: &Request<'_>) -> Nanos {
    bound_with(request, QUICK)
}

/// As [`lower_bound`], and at least that, with more work; less of it where a search took at most some `time`.
pub fn thorough_bound(request: &Request<'_>, time: Option<Duration>) -> Nanos {
    let effort = time.map_or(THOROUGH, |time| (THOROUGH as f64 * time.as_secs_f64() / WORTH_IT) as usize);
    bound_with(request, effort.clamp(QUICK, THOROUGH))
}

fn bound_with(request: &Request<'_>, effort: usize) -> Nanos {
    let total = request.costs.total().get();
    // Parts of ops, then, with what remains, whole ops; those first of which parts promise most.
    let (relaxed, mut left) = relaxed(request, effort);
    let mut best = relaxed.first().map_or(total, |&(time, ..)| time).max(total);
    for (_, tight, closures) in &relaxed {
        let nodes = left / 4 / closures.size().max(1);
        if nodes < 3 {
            break;
        }
        let (bound, nodes) = tight.whole(request, closures, total, best, nodes);
        best = best.max(bound);
        left -= nodes * closures.size();
    }
    Nanos(best.max(fetches::bound(request)))
}

/// The ops at which something must be absent, with the times for which parts of ops that run again suffice, the longest first; and what is
/// left of the work.
fn relaxed(request: &Request<'_>, effort: usize) -> (Vec<(u64, TightOp, Closures)>, usize) {
    let total = request.costs.total().get();
    let needs = Needs::of(request.trace);
    let mut left = effort;
    let mut relaxed: Vec<(u64, TightOp, Closures)> = Vec::new();
    for tight in tight_ops(request, &needs) {
        let closures = Closures::of(request, &needs, tight.op, &tight.idle);
        let time = tight.shortest(request, &mut Frontier::of(&closures), total, total);
        left = left.saturating_sub(closures.size());
        relaxed.extend(time.map(|time| (time, tight, closures)));
        if left < effort / 2 {
            break;
        }
    }
    relaxed.sort_by_key(|&(time, ..)| Reverse(time));
    (relaxed, left)
}

/// What the bound recomputes: a solution of the problem in which memory is scarce at one op only, and in which a link carries any bytes for
/// which it has time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relaxation {
    /// The op at which the bound is largest.
    pub at: OpId,
    /// The ops that run again after it, in the trace's order.
    pub again: Vec<OpId>,
}

/// The solution of the relaxation behind [`lower_bound`], with less work; `None` if no op needs more than there is, or nothing that the request
/// permits helps.
pub fn relaxation(request: &Request<'_>) -> Option<Relaxation> {
    let (relaxed, _) = relaxed(request, QUICK / 2);
    let &(time, ref tight, ref closures) = relaxed.first()?;
    let absent = tight.absent(request, time);
    let mut frontier = Frontier::of(closures);
    frontier.time(absent)?;
    let mut again = frontier.again(absent);
    again.sort_unstable();
    Some(Relaxation { at: tight.op, again })
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

/// An op that, with all tensors needed then, exceeds the limit.
struct TightOp {
    op: OpId,
    /// Tensors that the iteration computed and needs later, but not then.
    idle: Vec<TensorId>,
    /// Bytes that must be absent while it runs.
    excess: u64,
    /// Persistent bytes that may be among them.
    persistent: u64,
    /// Time of the ops that run before it in any case, of itself, and of those that run after it.
    before: u64,
    time: u64,
    after: u64,
}

/// The ops at which the most bytes must be absent, those with the most first. If the ops may take another order, these are found among the ops that
/// need the most in the trace's order.
fn tight_ops(request: &Request<'_>, needs: &Needs) -> Vec<TightOp> {
    let Request { trace, costs, machine, .. } = *request;
    let limit = request.live_limit.get();
    let time = |op: OpId| costs.nanos.get(op).map_or(0, |time| time.get());
    let mut demands = needs.demands(trace, machine.align, &|value| trace.bytes(value).get());
    demands.retain(|demand| demand.total() > limit);
    demands.sort_by_key(|demand| Reverse(demand.total()));
    demands.truncate(MAX_TIGHT_OPS);
    let all = |ops: &dyn Fn(OpId) -> bool| {
        let regular = trace.ops().iter().filter(|&(id, op)| !early(op) && ops(id));
        regular.map(|(id, _)| time(id)).sum()
    };
    let tight = |demand: Demand| {
        let (op, persistent) = (demand.op, demand.persistent);
        let tight =
            TightOp { op, idle: Vec::new(), excess: 0, persistent, before: 0, time: time(op), after: 0 };
        if early(&trace.ops()[op]) {
            return TightOp { excess: demand.own + persistent - limit, ..tight };
        }
        if !request.freedom.reorder {
            let idle = needs.idle(trace, op).collect();
            let (before, after) = (all(&|other| other < op), all(&|other| other > op));
            return TightOp { idle, excess: demand.total() - limit, before, after, ..tight };
        }
        let AnyOrder { idle, before, after } = needs.in_any_order(trace, op);
        let bytes: u64 = idle.iter().map(|&value| trace.bytes(value).get()).sum();
        let own = own_bytes(trace, &trace.ops()[op], machine.align, &|value| {
            trace.users(value).iter().any(|user| after[user.index()])
        });
        let excess = (own + bytes + persistent).saturating_sub(limit);
        let (before, after) = (all(&|other| before[other.index()]), all(&|other| after[other.index()]));
        TightOp { idle, excess, before, after, ..tight }
    };
    let mut tight_ops: Vec<TightOp> =
        demands.into_iter().map(tight).filter(|tight| tight.excess > 0).collect();
    tight_ops.sort_by_key(|tight| Reverse(tight.excess));
    tight_ops
}

impl TightOp {
    /// The shortest time, at least `least`, within which the absent bytes can be restored if a part of an op may run again; `None` if nothing that
    /// the request permits restores them.
    fn shortest(
        &self,
        request: &Request<'_>,
        frontier: &mut Frontier<'_>,
        total: u64,
        least: u64,
    ) -> Option<u64> {
        // The time of all ops and of the recomputation that an iteration of this length needs. A longer iteration has more time for copies and
        // needs no more recomputation.
        let mut takes = |iteration: u64| {
            let extra = frontier.time(self.absent(request, iteration));
            extra.map(|extra| total.saturating_add(extra))
        };
        let (mut low, mut high) = (least, least);
        loop {
            match takes(high) {
                Some(time) if time <= high => break,
                Some(time) => {
                    (low, high) = (high, time);
                    break;
                }
                None if high >= LONGEST => return None,
                None => (low, high) = (high, high.max(1).saturating_mul(2)),
            }
        }
        // The time at one length is a lower bound for shorter iterations and an upper bound for longer ones.
        while high - low > 1 {
            let middle = low.midpoint(high);
            match takes(middle) {
                Some(time) if time <= middle => (low, high) = (low.max(time.saturating_sub(1)), middle),
                Some(time) => (low, high) = (middle, high.min(time)),
                None => low = middle,
            }
        }
        Some(high)
    }

    /// The shortest time, at least `least`, if ops run again as a whole, by branch and bound; less if that takes more than `nodes` nodes. Also
    /// returns their number.
    fn whole<'a>(
        &self,
        request: &Request<'_>,
        closures: &'a Closures,
        total: u64,
        least: u64,
        nodes: usize,
    ) -> (u64, usize) {
        let mut made = 0;
        let mut open = BTreeMap::new();
        let mut add = |open: &mut BTreeMap<_, _>, mut frontier: Frontier<'a>, least| {
            if let Some(time) = self.shortest(request, &mut frontier, total, least) {
                open.insert((time, made), frontier);
            }
            made += 1;
            made
        };
        let mut count = add(&mut open, Frontier::of(closures), least);
        while let Some(((time, _), frontier)) = open.pop_first() {
            let absent = self.absent(request, time);
            let attained = frontier.attained(absent).is_some_and(|extra| total + extra <= time);
            let undecided = frontier.undecided(absent).filter(|_| !attained && count + 2 <= nodes);
            let Some(op) = undecided else { return (time, count) };
            for again in [false, true] {
                let mut settled = frontier.settled.clone();
                settled[op] = Some(again);
                count = add(&mut open, Frontier::new(closures, settled), time);
            }
        }
        (least, count)
    }

    /// Billionths of bytes that must be absent while the op runs, and that no copies within an iteration of this length bring back.
    fn absent(&self, request: &Request<'_>, iteration: u64) -> u128 {
        (u128::from(self.excess) * GIGA).saturating_sub(self.carried(request, iteration))
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

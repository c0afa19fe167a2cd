//! The value of Algorithm 1 of Beaumont et al. (section 5) as a lower bound on the iteration time of offload alone.
//!
//! The algorithm is exact for copies that may be interrupted, which is a relaxation of copies that may not. Its value therefore bounds every
//! plan of a chain that recomputes nothing, and it is at least Proposition 3's. It is computed without slots: in bytes, on every set of
//! activations. If a layer has more states than `STATES`, states that are close to each other are merged into one that is at least as good as
//! each of them, so that the value can only become smaller.
//!
//! A trace counts as a chain if its tensors are *nested*: those that the forward phase makes for the backward phase are last read forward in the
//! order in which they are made, and first read backward in the reverse order. Chains of [`Chain`](crate::chain::Chain), imported profiles and
//! networks without branches are nested. Each op becomes a layer of its own, and other tensors count only while an op uses them.

use elbowroom_ir::planning::Request;
use elbowroom_ir::trace::{Phase, Trace};
use elbowroom_ir::{Id, Nanos, OpId, TensorId};

use crate::chain::relaxation::Units;

/// States per layer above which close ones are merged.
const STATES: usize = 20_000;
/// Less than any memory: the need of a layer whose op belongs to the other phase.
const NOTHING: i64 = i64::MIN / 16;
const GIGA: u128 = 1_000_000_000;

/// A lower bound on the iteration time, at least the sum of the op times. `None` if the trace is not nested, if the request permits more than
/// offload, or if no set of tensors fits.
pub fn relaxed_bound(request: &Request<'_>) -> Option<Nanos> {
    let (units, rate) = offload_alone(request)?;
    iteration(request, units.least_idle(STATES, request.machine.shared_link)?, rate)
}

/// The iteration time of the best schedule that offloads activations whole or in part, with copies that stop at any byte: Beaumont et al., theorem
/// 2. At most [`relaxed_bound`], so that no plan of whole tensors is faster; [`eager`](crate::offload::eager) on activations in
/// [`pieces`](super::pieces) approaches it. `None` as there.
pub fn partial_optimum(request: &Request<'_>) -> Option<Nanos> {
    let (units, rate) = offload_alone(request)?;
    iteration(request, units.partial_idle(request.machine.shared_link)?, rate)
}

/// The chain of a request that permits offload alone, and the rate of its link.
fn offload_alone(request: &Request<'_>) -> Option<(Units, u128)> {
    let freedom = request.freedom;
    if !freedom.offload || freedom.recompute || freedom.reorder {
        return None;
    }
    // One rate for both directions: the higher one.
    let rate = u128::from(request.machine.to_host.rate.max(request.machine.to_device.rate).max(1));
    Some((nested(request, rate)?, rate))
}

/// The sum of the op times and this much idle time of the link, in bytes.
fn iteration(request: &Request<'_>, idle: i64, rate: u128) -> Option<Nanos> {
    let idle = u64::try_from(u128::try_from(idle).ok()? * GIGA / rate).ok()?;
    Some(request.costs.total() + Nanos(idle))
}

/// A tensor that the forward phase makes for the backward phase.
struct Stashed {
    bytes: i64,
    tensor: TensorId,
    /// Place of the op that makes it, of the last forward op and of the first backward op that touch it.
    made: usize,
    last: usize,
    first: usize,
}

/// The tensors that go from the forward to the backward phase, in nested order.
fn stashed(trace: &Trace, turn: usize) -> Option<Vec<Stashed>> {
    let mut touched: Vec<Vec<usize>> = vec![Vec::new(); trace.tensors().len()];
    for (place, op) in trace.ops().values().enumerate() {
        for tensor in op.outputs.iter().chain(&op.reads) {
            touched[tensor.index()].push(place);
        }
    }
    let mut all = Vec::new();
    for tensor in trace.tensors().ids() {
        let places = &touched[tensor.index()];
        let split = places.partition_point(|&place| place < turn);
        if split == 0 || split == places.len() {
            continue;
        }
        let (made, last, first) = (places[0], places[split - 1], places[split]);
        all.push(Stashed {
            bytes: i64::try_from(trace.bytes(tensor).get()).ok()?,
            tensor,
            made,
            last,
            first,
        });
    }
    all.sort_by_key(|one| (one.last, one.made, std::cmp::Reverse(one.first)));
    let nested = all.windows(2).all(|two| two[1].made >= two[0].last && two[1].first <= two[0].first);
    nested.then_some(all)
}

/// A trace in bytes, an op per layer.
fn nested(request: &Request<'_>, rate: u128) -> Option<Units> {
    let trace = request.trace;
    let rewrites = |id: OpId| !trace.ops()[id].mutates.is_empty() || !trace.ops()[id].may_reuse.is_empty();
    let shared = trace.storages().len() != trace.tensors().len();
    if !trace.persistent().is_empty() || shared || trace.ops().ids().any(rewrites) {
        return None;
    }
    let ops = trace.ops().len();
    let turn = trace.ops().values().position(|op| op.phase != Phase::Forward)?;
    let stashed = stashed(trace, turn)?;
    // True sizes, although live memory counts aligned ones: the smaller of the two everywhere keeps the bound a bound.
    let own: Vec<i64> = trace
        .ops()
        .values()
        .map(|op| {
            let mut used: Vec<TensorId> = op.reads.iter().chain(&op.outputs).copied().collect();
            used.sort_unstable();
            used.dedup();
            let bytes = used.into_iter().map(|tensor| trace.bytes(tensor).get()).sum::<u64>();
            i64::try_from(bytes + op.workspace.get()).unwrap_or(i64::MAX / 16)
        })
        .collect();
    let time = |place: usize| {
        let nanos = request.costs.nanos.get(OpId::new(place)).map_or(0, |nanos| nanos.get());
        i64::try_from((u128::from(nanos) * rate).div_ceil(GIGA)).unwrap_or(i64::MAX / 16)
    };
    let mut layers = Layers::default();
    let (mut forward, mut backward) = (0, ops);
    for one in &stashed {
        // Ops before the tensor exists, and backward ops after the first that needs it, are layers of their own.
        while forward < turn && forward <= one.made.min(one.last) {
            layers.push(0, Some((own[forward], time(forward))), None);
            forward += 1;
        }
        while backward > one.first + 1 {
            backward -= 1;
            layers.push(0, None, Some((own[backward], time(backward))));
        }
        let ahead = (forward <= one.last).then(|| (own[forward], time(forward)));
        let back = (backward > one.first).then(|| (own[one.first], time(one.first)));
        layers.push(one.bytes, ahead, back);
        forward += usize::from(ahead.is_some());
        backward -= usize::from(back.is_some());
        while forward <= one.last {
            let op = &trace.ops()[OpId::new(forward)];
            let twice = op.reads.contains(&one.tensor) || op.outputs.contains(&one.tensor);
            layers.push(0, Some((own[forward] - if twice { one.bytes } else { 0 }, time(forward))), None);
            forward += 1;
        }
    }
    let need = |place: usize| Some((own[place], time(place)));
    (forward..turn).for_each(|place| layers.push(0, need(place), None));
    (turn..backward).rev().for_each(|place| layers.push(0, None, need(place)));
    let memory = request.live_limit.align_up(request.machine.align).get();
    Some(layers.units(i64::try_from(memory).ok()?))
}

/// The bytes and the time of an op, in the bytes that the link copies meanwhile.
type Need = Option<(i64, i64)>;

/// Layers as they are found: the activation, the forward op and the backward op of each.
#[derive(Default)]
struct Layers(Vec<(i64, Need, Need)>);

impl Layers {
    fn push(&mut self, activation: i64, forward: Need, backward: Need) {
        self.0.push((activation, forward, backward));
    }

    /// As [`Units`], whose needs count what an op uses beyond the activations of its layer and the next.
    fn units(&self, memory: i64) -> Units {
        let count = self.0.len();
        let activation = |i: usize| self.0.get(i).map_or(0, |layer| layer.0);
        let beyond = |i: usize, need: Need| {
            need.map_or(NOTHING, |(bytes, _)| bytes - activation(i) - activation(i + 1))
        };
        let time = |need: Need| need.map_or(0, |(_, time)| time);
        let layers = || self.0.iter().enumerate();
        Units {
            memory,
            activations: (0..=count).map(activation).collect(),
            gradients: vec![0; count + 1],
            extras: layers().map(|(i, &(_, ahead, back))| (beyond(i, ahead), beyond(i, back))).collect(),
            times: layers().map(|(_, &(_, ahead, back))| (time(ahead), time(back))).collect(),
        }
    }
}

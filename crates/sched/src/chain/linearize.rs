//! Beaumont et al., section 6.1: turns any trace into a chain of layers, so that planners for chains run on it.
//!
//! The forward phase is cut after every op from which a single tensor goes on to later forward ops; persistent tensors and tiny ones, such
//! as labels, do not count. Between two cuts lies a layer. The tensors that a layer makes for the backward phase are its *stash*: the x_{i+1}
//! of the chain, offloaded and prefetched together. A backward op belongs to the layer whose stash it reads first.
//!
//! Sizes are chosen so that the chain has the live memory of the trace: exF and exB are the amount by which the largest live memory of a
//! layer's ops exceeds the stashes, persistent tensors and gradients included, and every y is zero. If the forward phase never narrows to
//! one tensor (a U-Net between its first and last block, a recurrent network), layers would be few and large; such layers are divided further
//! at any op, and several tensors cross the cut.

use elbowroom_ir::planning::Request;
use elbowroom_ir::{Bytes, Id, Nanos, OpId, TensorId};

use crate::chain::{Chain, Layer};
use crate::lower::analysis::PolicyError;
use crate::lower::live_memory;
use crate::policy::{Gap, GapAction, Policy, SequenceIndex, Touches, backward_start};
use crate::recompute::cuts::tiny;

/// A layer in terms of the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Its forward ops, as places of the trace's own order.
    pub places: std::ops::Range<SequenceIndex>,
    /// Tensors made here and read by the backward phase.
    pub stash: Vec<TensorId>,
}

/// A trace as a chain.
#[derive(Clone, Debug)]
pub struct Linear {
    /// The chain. Its x_0 is empty, and x_{i+1} is the stash of group i.
    pub chain: Chain,
    /// The layers in terms of the trace.
    pub groups: Vec<Group>,
    /// The policy that keeps everything, in the order that places refer to: [`Policy::prompt`]. Up to the first backward op it is the trace's.
    pub keep: Policy,
    /// Its touches.
    pub touches: Touches,
    /// The first backward place.
    pub backward_start: SequenceIndex,
    /// The live memory at every place if everything stays.
    pub live_bytes: Vec<u64>,
}

/// Layers that stash more than two parts in this many are divided further.
const PIECES: u64 = 64;

impl Linear {
    /// Cuts a trace. Fails only if keeping everything contradicts the trace.
    pub fn of(request: &Request<'_>) -> Result<Self, PolicyError> {
        let trace = request.trace;
        let keep = Policy::prompt(trace);
        let touches = Touches::of(trace, &keep.sequence);
        let live_bytes = live_memory(request, &keep)?;
        let backward_start = backward_start(trace, &keep.sequence);
        let busiest = || (0..trace.ops().len()).max_by_key(|&place| live_bytes[place]).unwrap_or(0);
        let backward_start = backward_start.unwrap_or_else(busiest) as SequenceIndex;

        let mut persistent = vec![false; trace.tensors().len()];
        for pair in trace.persistent() {
            persistent[pair.begin.index()] = true;
            persistent[pair.end.index()] = true;
        }
        let stash: Vec<(TensorId, SequenceIndex)> = trace
            .tensors()
            .ids()
            .filter(|value| !persistent[value.index()])
            .filter_map(|value| {
                let touched = touches.of_value(value);
                let made = touched.first().filter(|touch| touch.made && touch.place < backward_start)?;
                touched.last().filter(|touch| touch.place >= backward_start)?;
                Some((value, made.place))
            })
            .collect();
        let mut stashed = vec![0; backward_start as usize];
        for &(value, place) in &stash {
            stashed[place as usize] += trace.bytes(value).get();
        }
        let mut groups = divide(cut(request, &touches, backward_start), &stashed);
        let mut stashed_in = vec![None; trace.tensors().len()];
        for (value, place) in stash {
            let group = groups.partition_point(|group| group.places.end <= place);
            groups[group].stash.push(value);
            stashed_in[value.index()] = Some(group);
        }
        let chain = measure(request, &groups, &stashed_in, (&keep.sequence, backward_start), &live_bytes);
        Ok(Self { keep, touches, chain, groups, backward_start, live_bytes })
    }

    /// The gap in which a stashed tensor is not needed: from its last forward use to its first backward use.
    pub fn turn_gap(&self, value: TensorId) -> Option<Gap> {
        let touched = self.touches.of_value(value);
        let split = touched.partition_point(|touch| touch.place < self.backward_start);
        let before = touched.get(split.checked_sub(1)?)?;
        touched.get(split).map(|_| Gap::after(value, before.place))
    }

    /// The places at which layers begin, ascending: each forward layer at its first op, each backward layer at the first op that reads its
    /// stash.
    pub fn layer_starts(&self) -> Vec<SequenceIndex> {
        let forward = self.groups.iter().map(|group| group.places.start);
        let needed = |group: &Group| {
            let touches = group.stash.iter().flat_map(|&value| self.touches.of_value(value));
            touches.map(|touch| touch.place).filter(|&place| place >= self.backward_start).min()
        };
        let mut starts: Vec<SequenceIndex> = forward.chain(self.groups.iter().filter_map(needed)).collect();
        starts.sort_unstable();
        starts.dedup();
        starts
    }

    /// Carries a chain's set of activations to offload back to the trace: the stash of each of these groups is away on the host.
    pub fn offload(&self, policy: &mut Policy, groups: impl IntoIterator<Item = usize>) {
        for group in groups {
            for &value in &self.groups[group].stash {
                if let Some(gap) = self.turn_gap(value) {
                    policy.set(gap, GapAction::Offload);
                }
            }
        }
    }
}

/// The forward places, cut where at most one tensor crosses.
fn cut(request: &Request<'_>, touches: &Touches, backward_start: SequenceIndex) -> Vec<Group> {
    let trace = request.trace;
    let forward = |value: TensorId| {
        let touched = touches.of_value(value);
        let until = touched.partition_point(|touch| touch.place < backward_start);
        let first = touched.first().filter(|touch| touch.made && touch.place < backward_start)?;
        Some((first.place, touched[until - 1].place))
    };
    let made_forward = trace.tensors().ids().filter(|&value| forward(value).is_some());
    let tiny = tiny(made_forward.map(|value| trace.bytes(value).get()));
    let mut change = vec![0i64; backward_start as usize + 1];
    for value in trace.tensors().ids() {
        let Some((made, last)) = forward(value) else { continue };
        if last > made && trace.bytes(value).get() > tiny {
            change[made as usize] += 1;
            change[last as usize] -= 1;
        }
    }
    let mut groups = Vec::new();
    let (mut crossing, mut start) = (0, 0);
    for place in 0..backward_start {
        crossing += change[place as usize];
        if crossing <= 1 || place + 1 == backward_start {
            groups.push(Group { places: start..place + 1, ..Group::default() });
            start = place + 1;
        }
    }
    groups
}

/// Divides large layers at any op, into pieces whose stashes are about `1/PIECES` of all.
fn divide(groups: Vec<Group>, stashed: &[u64]) -> Vec<Group> {
    let piece = stashed.iter().sum::<u64>() / PIECES;
    let mut divided = Vec::with_capacity(groups.len());
    for group in groups {
        let (mut start, mut sum) = (group.places.start, 0);
        let whole: u64 = stashed[group.places.start as usize..group.places.end as usize].iter().sum();
        for place in group.places.clone() {
            sum += stashed[place as usize];
            if place + 1 == group.places.end || (whole > 2 * piece && sum >= piece) {
                divided.push(Group { places: start..place + 1, stash: Vec::new() });
                (start, sum) = (place + 1, 0);
            }
        }
    }
    divided
}

/// The numbers of the chain.
fn measure(
    request: &Request<'_>,
    groups: &[Group],
    stashed_in: &[Option<usize>],
    (sequence, backward_start): (&[OpId], SequenceIndex),
    live_bytes: &[u64],
) -> Chain {
    let trace = request.trace;
    let size = |value: &TensorId| trace.bytes(*value).align_up(request.machine.align);
    let mut chain = Chain {
        layers: vec![Layer::default(); groups.len()],
        activations: std::iter::once(Bytes::ZERO)
            .chain(groups.iter().map(|group| group.stash.iter().map(size).sum()))
            .collect(),
        gradients: vec![Bytes::ZERO; groups.len() + 1],
    };
    let mut kept = Bytes::ZERO;
    let kept: Vec<Bytes> = (1..chain.activations.len())
        .map(|i| {
            kept += chain.activations[i];
            kept
        })
        .collect();
    let mut backward = groups.len().saturating_sub(1);
    for (place, &id) in sequence.iter().enumerate() {
        let op = &trace.ops()[id];
        let nanos = request.costs.nanos.get(id).copied().unwrap_or(Nanos::ZERO);
        if place < backward_start as usize {
            let group = groups.partition_point(|group| group.places.end <= place as SequenceIndex);
            let layer = &mut chain.layers[group];
            layer.forward += nanos;
            let extra = Bytes(live_bytes[place]).saturating_sub(kept[group]);
            layer.forward_extra = layer.forward_extra.max(extra);
        } else if !groups.is_empty() {
            let first = op.reads.iter().filter_map(|value| stashed_in[value.index()]).max();
            backward = backward.min(first.unwrap_or(backward));
            let layer = &mut chain.layers[backward];
            layer.backward += nanos;
            let extra = Bytes(live_bytes[place]).saturating_sub(kept[backward]);
            layer.backward_extra = layer.backward_extra.max(extra);
        }
    }
    chain
}

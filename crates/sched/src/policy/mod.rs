//! The decisions of a planner, without anything that follows from them.
//!
//! A policy names *gaps*. In the sequence of ops in the order in which they run, recomputed ops included, every tensor is touched at some
//! places: written, or read. A gap lies between two consecutive touches of one tensor; the first gap of a tensor that exists when the
//! iteration begins starts at the beginning. The tensor is kept in every gap for which the policy has no action:
//!
//! ```text
//! sequence   0:F0   1:F1   2:F2   3:F0   4:B2   5:B1          F0 is recomputed at 3, because x1 was evicted
//! x1        made───used............made──────────used        gap after 1: evict
//! x2               made──used───────────────────  used       gap after 2: offload, prefetched before 5
//! ```
//!
//! [`lower`](crate::lower()) turns a policy into a schedule. Where a decision has a usual answer (order of copies, start of a prefetch) the
//! policy names the rule, or gives its own answer.

use std::collections::{BTreeMap, BTreeSet};

use elbowroom_ir::trace::{Persistent, Phase, Trace};
use elbowroom_ir::{Id, OpId, TensorId};

/// An index into the sequence of ops of a [`Policy`]. Comments call the op and the moment at this index a *place*.
pub type SequenceIndex = u32;

/// The stretch between two consecutive touches of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gap {
    /// The tensor.
    pub value: TensorId,
    /// The place of the earlier touch; `None` for the gap from the beginning of the iteration to the first touch.
    pub after: Option<SequenceIndex>,
}

impl Gap {
    /// The gap of a tensor after the op at a place of the sequence.
    pub const fn after(value: TensorId, place: SequenceIndex) -> Self {
        Self { value, after: Some(place) }
    }
}

/// How a tensor leaves the device in a gap. Without an action it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GapAction {
    /// With a copy on the host. Nothing is copied if there is a valid copy already, or if the copy would never be prefetched.
    Offload,
    /// Without a copy: before the next touch an op recomputes the tensor, or an earlier copy is prefetched.
    Evict,
}

/// A part of the iteration in which a tensor can be offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offloadable {
    /// The gap of a tensor.
    Gap(Gap),
    /// The persistent tensor of this index, from its last access to its first in the next iteration.
    Persistent(usize),
}

impl Offloadable {
    /// Offloads it in a policy.
    pub fn offload(self, policy: &mut Policy) {
        match self {
            Self::Gap(gap) => policy.set(gap, GapAction::Offload),
            Self::Persistent(index) => policy.boundaries[index] = Boundary::Host,
        }
    }
}

/// Where a persistent tensor is between two iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Boundary {
    /// On the device.
    Device,
    /// On the host; it comes before its first use and, if it changed, goes back after its last.
    Host,
    /// On both, so that it can be evicted and prefetched without being offloaded first. Costs an offload if it changed.
    Both,
}

/// Which outputs take the buffer of an input that dies there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reuses {
    /// Every one that the trace permits. The first permitted pair of an op wins a contested input.
    Every,
    /// None.
    Never,
    /// Those of these outputs that can.
    Only(BTreeSet<TensorId>),
}

/// When the bytes of a tensor that nothing needs any more are released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Releases {
    /// After its last use.
    LastUse,
    /// At the end of the iteration: no bytes are used twice, except by outputs that take the buffer of a dying input.
    End,
}

/// Which copy goes first when several could.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyOrder {
    /// Offloads: the tensor whose gap begins first. Prefetches: the tensor that is needed first.
    Unconstrained,
    /// As listed; gaps that are not listed come after, in unconstrained order. An offload waits for the ones before it, even for those whose
    /// tensors do not exist yet, unless an op needs its bytes; a prefetch goes before those that do not fit yet.
    Listed(Vec<Gap>),
}

/// When a prefetch may start, apart from its host copy being there and its bytes being free. Whatever the rule, a prefetch reserves its bytes
/// only when every op between then and its use still has room (so compute never starves), and it is started at the latest when its tensor
/// is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchRule {
    /// As soon as memory permits; a tensor that is needed earlier is served first, but does not hold up others.
    Eager,
    /// As soon as memory permits, strictly in order, and not before every offload is on its way. On a chain this takes the same time as
    /// Beaumont's evaluator, which lays the backward phase out as late as possible and joins it to the forward phase with the least gap.
    AfterOffloads,
    /// Not earlier than this many ops before the use, in order.
    Lead(u32),
    /// Not earlier than the beginning of the layer that is this many of [`Policy::layers`] before the layer of the use, in order.
    LeadLayers(u32),
    /// Not earlier than needed for no op to wait, one copy after the other, were ops to run without a break (Zhang et al., section IV-E).
    /// A tensor that is prefetched late delays no other copy and occupies no memory early.
    JustInTime,
}

/// What a planner decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The ops, in the order in which they run. The first occurrence of an op computes, the others recompute.
    pub sequence: Vec<OpId>,
    /// The gaps in which a tensor is away; in all others it stays.
    pub gaps: BTreeMap<Gap, GapAction>,
    /// Where each persistent tensor is between iterations, in the trace's order.
    pub boundaries: Vec<Boundary>,
    /// Reuse of dying inputs.
    pub reuses: Reuses,
    /// When residencies end that no copy ends.
    pub releases: Releases,
    /// Order of offloads.
    pub offloads: CopyOrder,
    /// Offloads that start at the earliest when the op at a place is next, unless an op needs their bytes before. On a shared link a prefetch
    /// can go first, which otherwise waits for every offload whose tensor exists.
    pub held: BTreeMap<Gap, SequenceIndex>,
    /// Order of prefetches.
    pub prefetches: CopyOrder,
    /// When prefetches may start.
    pub prefetch: PrefetchRule,
    /// For [`PrefetchRule::LeadLayers`]: the places at which layers begin, ascending. No other rule reads them.
    pub layers: Vec<SequenceIndex>,
}

/// Of layers that begin at these places, the beginning of the one that is `lead` layers before that of a place; zero if there are fewer.
pub(crate) fn layers_before(layers: &[SequenceIndex], place: SequenceIndex, lead: u32) -> SequenceIndex {
    let begun = layers.partition_point(|&start| start <= place);
    begun.checked_sub(1 + lead as usize).map_or(0, |layer| layers[layer])
}

impl Policy {
    /// Every op once, in the trace's order; everything stays; every permitted reuse. A persistent tensor whose end is written to fresh
    /// bytes while its beginning is still being read cannot end where it began, so it lives on the host.
    pub fn keep(trace: &Trace) -> Self {
        let uses = storage_uses(trace);
        Self {
            sequence: trace.ops().ids().collect(),
            gaps: BTreeMap::new(),
            boundaries: trace.persistent().iter().map(|pair| natural_boundary(trace, &uses, pair)).collect(),
            reuses: Reuses::Every,
            releases: Releases::LastUse,
            offloads: CopyOrder::Unconstrained,
            held: BTreeMap::new(),
            prefetches: CopyOrder::Unconstrained,
            prefetch: PrefetchRule::Eager,
            layers: Vec::new(),
        }
    }

    /// The same, but every op of the update phase runs as soon as its inputs exist and no later op needs the tensors that it overwrites:
    /// in most traces, right after its gradient. Every tensor is the same, and gradients do not wait for the end of the iteration together.
    pub fn prompt(trace: &Trace) -> Self {
        let mut policy = Self::keep(trace);
        let backward_start = backward_start(trace, &policy.sequence).unwrap_or(trace.ops().len());
        // An end that moves into the buffer of another storage has to wait until that is free: such ops keep their place.
        let mut moves = vec![false; trace.storages().len()];
        for pair in trace.persistent() {
            let (from, to) = (trace.storage(pair.begin), trace.storage(pair.end));
            moves[to.index()] |= from != to;
        }
        // An update op takes the number of the op after which it may run, and comes behind it.
        let mut after: Vec<usize> = Vec::with_capacity(trace.ops().len());
        for (id, op) in trace.ops().iter() {
            let moves = |value: &TensorId| moves[trace.storage(*value).index()];
            if op.phase != Phase::Update || op.outputs.iter().any(moves) {
                after.push(id.index());
                continue;
            }
            let makers = op.reads.iter().filter_map(|&value| trace.producer(value));
            let readers = op.mutates.iter().flat_map(|mutation| trace.users(mutation.old)).copied();
            let before = makers.chain(readers).chain(op.after.iter().copied());
            let needed = before.filter(|&other| other < id).map(|other| after[other.index()]);
            after.push(needed.max().unwrap_or(0).max(backward_start).min(id.index()));
        }
        // What waits for no gradient (the decay of a weight) comes right before what needs it: until then, ops that read the old tensor can
        // recomputed.
        let mut overwriter = vec![None; trace.tensors().len()];
        let mut followers = vec![Vec::new(); trace.ops().len()];
        for (id, op) in trace.ops().iter() {
            op.mutates.iter().for_each(|mutation| overwriter[mutation.old.index()] = Some(id));
            op.after.iter().for_each(|other| followers[other.index()].push(id));
        }
        for (id, op) in trace.ops().iter().rev() {
            if id.index() > backward_start && after[id.index()] <= backward_start {
                let users = op.outputs.iter().flat_map(|&value| trace.users(value)).copied();
                let overwriters = op.reads.iter().filter_map(|value| overwriter[value.index()]);
                let followers = followers[id.index()].iter().copied();
                let later = users.chain(overwriters).chain(followers).filter(|&other| other > id);
                // Behind an op of another phase it would be too late: that op keeps its place.
                let place = |other: OpId| match trace.ops()[other].phase {
                    Phase::Update => after[other.index()],
                    _ => after[other.index()] - 1,
                };
                let first = later.map(place).min();
                after[id.index()] = first.unwrap_or(id.index());
            }
        }
        policy.sequence.sort_by_key(|op| {
            let update = trace.ops()[*op].phase == Phase::Update;
            (after[op.index()], update, *op)
        });
        policy
    }

    /// Sets the action of a gap.
    pub fn set(&mut self, gap: Gap, action: GapAction) {
        self.gaps.insert(gap, action);
    }
}

/// The place of the first backward op in a sequence; without any, of the first that is not forward.
pub fn backward_start(trace: &Trace, sequence: &[OpId]) -> Option<usize> {
    let first =
        |wanted: &dyn Fn(Phase) -> bool| sequence.iter().position(|&op| wanted(trace.ops()[op].phase));
    first(&|phase| phase == Phase::Backward).or_else(|| first(&|phase| phase != Phase::Forward))
}

/// When a storage is in use along the trace.
#[derive(Clone, Copy, Default)]
struct StorageUse {
    /// The first op that makes one of its tensors; `None` if the first is there at the beginning.
    opens: Option<OpId>,
    /// The last op that touches any of its tensors.
    last: Option<OpId>,
    /// Whether one of its tensors must be there at the end.
    lasts: bool,
}

fn storage_uses(trace: &Trace) -> Vec<StorageUse> {
    let mut uses = vec![StorageUse::default(); trace.storages().len()];
    for value in trace.tensors().ids() {
        let slot = &mut uses[trace.storage(value).index()];
        slot.last = slot.last.max(trace.producer(value)).max(trace.users(value).last().copied());
    }
    // The first tensor of a storage is the one that overwrites no other.
    for (id, op) in trace.ops().iter() {
        for &output in op.outputs.iter().filter(|&&output| op.overwrites(output).is_none()) {
            uses[trace.storage(output).index()].opens = Some(id);
        }
    }
    for pair in trace.persistent() {
        uses[trace.storage(pair.end).index()].lasts = true;
    }
    uses
}

/// On the device, if the end can be in the buffer of the beginning: in its storage, written over it, or made when that is over.
fn natural_boundary(trace: &Trace, uses: &[StorageUse], pair: &Persistent) -> Boundary {
    let (from, to) = (trace.storage(pair.begin), trace.storage(pair.end));
    if from == to {
        return Boundary::Device;
    }
    // What no op makes is another persistent tensor's beginning, and has a buffer of its own.
    let StorageUse { last, lasts, .. } = uses[from.index()];
    let Some(opens) = uses[to.index()].opens.filter(|_| !lasts) else { return Boundary::Host };
    let op = &trace.ops()[opens];
    let reused = op.overwritten_by(pair.begin).is_none()
        && op.may_reuse.iter().any(|reuse| {
            reuse.input == pair.begin
                && trace.storage(reuse.output) == to
                && trace.producer(reuse.output) == Some(opens)
        });
    if last < Some(opens) || (last == Some(opens) && reused) { Boundary::Device } else { Boundary::Host }
}

/// The tensors that every op touches, each once, and whether it makes them: for those who list the touches along many sequences.
#[derive(Clone, Debug)]
pub(crate) struct Operands {
    starts: Vec<u32>,
    operands: Vec<(u32, bool)>,
}

impl Operands {
    /// Those of the ops of a trace.
    pub(crate) fn of(trace: &Trace) -> Self {
        let (mut starts, mut operands) = (vec![0], Vec::new());
        let mut last = vec![None; trace.tensors().len()];
        for (id, op) in trace.ops().iter() {
            let outputs = op.outputs.iter().map(|value| (value, true));
            for (value, made) in outputs.chain(op.reads.iter().map(|value| (value, false))) {
                if last[value.index()].replace(id) != Some(id) {
                    operands.push((value.0, made));
                }
            }
            starts.push(operands.len() as u32);
        }
        Self { starts, operands }
    }

    fn at(&self, op: OpId) -> &[(u32, bool)] {
        &self.operands[self.starts[op.index()] as usize..self.starts[op.index() + 1] as usize]
    }
}

/// Where every tensor is touched along a sequence: the frame in which gaps are named.
#[derive(Clone, Debug, Default)]
pub struct Touches {
    first: Vec<u32>,
    touches: Vec<Touch>,
}

/// One touch of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The place in the sequence.
    pub place: SequenceIndex,
    /// Whether the op there makes the tensor; otherwise it reads it.
    pub made: bool,
}

impl Touches {
    /// Lists the touches of all tensors along a sequence. Linear in the operands of its ops.
    pub fn of(trace: &Trace, sequence: &[OpId]) -> Self {
        let mut touches = Self::default();
        touches.renew(&Operands::of(trace), trace.tensors().len(), sequence);
        touches
    }

    /// Makes it that of another sequence of the same trace, without its operands and its `values` being counted again.
    pub(crate) fn renew(&mut self, operands: &Operands, values: usize, sequence: &[OpId]) {
        let Self { first, touches } = self;
        // Shifted by one tensor, so that the index at which its next touch is written becomes the index at which its touches end.
        first.clear();
        first.resize(values + 2, 0);
        for &op in sequence {
            for &(value, _) in operands.at(op) {
                first[value as usize + 2] += 1;
            }
        }
        for value in 0..values {
            first[value + 2] += first[value + 1];
        }
        touches.clear();
        touches.resize(first[values + 1] as usize, Touch { place: 0, made: false });
        for (place, &op) in (0..).zip(sequence) {
            for &(value, made) in operands.at(op) {
                let next = &mut first[value as usize + 1];
                touches[*next as usize] = Touch { place, made };
                *next += 1;
            }
        }
        first.pop();
    }

    /// The touches of one tensor, in order.
    pub fn of_value(&self, value: TensorId) -> &[Touch] {
        &self.touches[self.first[value.index()] as usize..self.first[value.index() + 1] as usize]
    }

    /// The gaps of one tensor between two touches: the gap with the place at which it ends.
    pub fn gaps(&self, value: TensorId) -> impl Iterator<Item = (Gap, Touch)> + '_ {
        self.of_value(value).windows(2).map(move |pair| (Gap::after(value, pair[0].place), pair[1]))
    }

    /// Numbers of the touches of one tensor: every touch of every tensor has one.
    pub(crate) fn numbers(&self, value: TensorId) -> std::ops::Range<u32> {
        self.first[value.index()]..self.first[value.index() + 1]
    }

    /// The touch of a number.
    pub(crate) fn at(&self, number: u32) -> Touch {
        self.touches[number as usize]
    }

    /// The number of the touch of a tensor at a place.
    pub(crate) fn number(&self, value: TensorId, place: SequenceIndex) -> Option<u32> {
        let index = self.of_value(value).binary_search_by_key(&place, |touch| touch.place).ok()?;
        Some(self.first[value.index()] + index as u32)
    }

    /// How many touches there are.
    pub(crate) fn len(&self) -> usize {
        self.touches.len()
    }

    /// The first touch after a place, if there is one.
    pub fn next(&self, value: TensorId, place: SequenceIndex) -> Option<Touch> {
        let touches = self.of_value(value);
        touches.get(touches.partition_point(|touch| touch.place <= place)).copied()
    }
}

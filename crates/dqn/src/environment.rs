//! The environment: an iteration, the decisions that can be taken in it, and the cost of each by exact simulation.
//!
//! A *candidate* is a gap of a tensor during which the live memory exceeds the limit. It is decided once, at the access before the gap: the
//! tensor is kept, offloaded, or evicted and recomputed. A persistent tensor can also be offloaded from its last access in one iteration to
//! its first in the next; these candidates are decided first.
//!
//! The reward of an action is the simulated iteration time before it minus that after it. While decisions are pending the plan does not
//! fit, and the simulation enforces the limit only at the places where the plan so far meets it (see [`evaluate_unfinished`]). When the plan
//! fits everywhere the episode ends. A plan that does not fit after the last decision pays, for the missing bytes, the time to copy them out
//! and back.

use std::collections::HashMap;
use std::rc::Rc;

use elbowroom_ir::planning::Request;
use elbowroom_ir::{Bytes, Id, OpId, TensorId};

use crate::network::Sight;
use crate::nodes::{Kind, Nodes};
use crate::progress::OutOfReach;
use crate::settings::Settings;
use elbowroom_sched::PolicyError;
use elbowroom_sched::lower::{evaluate_unfinished, live_memory};
use elbowroom_sched::offload::autoswap;
use elbowroom_sched::policy::{Boundary, Offloadable, Policy, SequenceIndex, Touches, backward_start};
use elbowroom_sched::recompute::evictions::{EvictionPolicies, Evictions, by_stage};
use elbowroom_sched::recompute::repeats::fixed_ops;

/// What can be done about a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// It stays.
    Keep,
    /// It is offloaded and is restored.
    Offload,
    /// It is evicted, and recomputed when it is needed.
    Recompute,
}

impl Action {
    /// All actions.
    pub const ALL: [Self; 3] = [Self::Keep, Self::Offload, Self::Recompute];
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub part: Offloadable,
    pub value: TensorId,
    pub bytes: u64,
    /// The touches around the gap, as places of a policy that keeps everything.
    pub from: Option<SequenceIndex>,
    pub until: SequenceIndex,
    /// The node of the last access, which represents offloading.
    pub node: u32,
    /// The node that represents removing, if it can be removed.
    pub remove: Option<u32>,
    pub offload: bool,
}

/// A plan whose later decisions are pending.
#[derive(Clone, Debug)]
pub(crate) struct PartialPlan {
    /// Simulated iteration time, with the price of what is missing if `settled`.
    pub time: u64,
    /// Live memory per op in the order in which they run first: the largest while it or repeats just before it run.
    pub(crate) live_bytes: Vec<u64>,
    /// The most that any place needs above the limit.
    pub missing: u64,
    /// Whether the plan can be made at all.
    pub(crate) possible: bool,
}

/// See the [module](self).
pub(crate) struct Environment<'a> {
    pub request: &'a Request<'a>,
    pub keep: Policy,
    pub candidates: Vec<Candidate>,
    /// Why no decisions meet the limit; `None` if some may.
    pub out_of_reach: Option<OutOfReach>,
    pub nodes: Nodes,
    /// Rows of [`FEATURES`](crate::nodes::FEATURES) per node.
    pub features: Vec<f32>,
    /// Nanoseconds that count as one in rewards: what it takes to copy out and back all that is too much.
    pub unit: f64,
    /// Whether a candidate may stay only if it looks as if the others suffice.
    pub mask: bool,
    /// Price of a missing byte, in copies out and back.
    shortfall: f32,
    /// Plans simulated.
    pub simulated: u64,
    evictions: EvictionPolicies,
    known: HashMap<Box<[Action]>, Rc<PartialPlan>>,
}

/// Plans remembered at most.
const KNOWN: usize = 1 << 14;

impl<'a> Environment<'a> {
    /// The environment of a request. Where the candidates of at least the usual size cannot make up the excess, and no size is set, there are
    /// candidates of every size.
    pub(crate) fn new(request: &'a Request<'a>, settings: &Settings) -> Result<Self, PolicyError> {
        if settings.least != Bytes::ZERO {
            return Self::with_candidates(request, settings, settings.least);
        }
        let live_bytes = live_memory(request, &Policy::prompt(request.trace))?;
        let usual = autoswap::threshold(live_bytes.into_iter().max().map_or(Bytes::ZERO, Bytes));
        let environment = Self::with_candidates(request, settings, usual)?;
        if environment.out_of_reach.is_some() {
            return Self::with_candidates(request, settings, Bytes(1));
        }
        Ok(environment)
    }

    fn with_candidates(
        request: &'a Request<'a>,
        settings: &Settings,
        least: Bytes,
    ) -> Result<Self, PolicyError> {
        let trace = request.trace;
        let keep = Policy::prompt(trace);
        let touches = Touches::of(trace, &keep.sequence);
        let live_bytes = live_memory(request, &keep)?;
        let highest = live_bytes.iter().copied().max().unwrap_or(0);
        let over = highest.saturating_sub(request.live_limit.get());
        let machine = request.machine;
        let copy =
            |bytes: u64| (machine.to_host.time(Bytes(bytes)) + machine.to_device.time(Bytes(bytes))).get();
        let nodes = Nodes::of(request, &keep, &touches, least);
        let mut this = Self {
            nodes: if settings.sums { nodes.with_sums() } else { nodes },
            evictions: EvictionPolicies::new(trace, &keep.sequence, touches.clone()),
            request,
            keep,
            candidates: Vec::new(),
            out_of_reach: None,
            features: Vec::new(),
            unit: (copy(over) as f64).max(1.0),
            mask: settings.mask,
            shortfall: settings.shortfall,
            simulated: 0,
            known: HashMap::new(),
        };
        this.find(&touches, &live_bytes, least);
        let (candidates, missing_of_all) = (this.candidates.len(), this.missing(live_bytes.clone()));
        this.thin(settings.decisions);
        let missing = this.missing(live_bytes);
        this.out_of_reach = (missing > Bytes::ZERO).then_some(OutOfReach {
            limit: request.live_limit,
            decisions: this.candidates.len(),
            missing,
            candidates,
            missing_of_all,
        });
        this.describe(&touches, over);
        Ok(this)
    }

    /// Finds the candidates, in the order in which they are decided about.
    fn find(&mut self, touches: &Touches, live_bytes: &[u64], least: Bytes) {
        let Request { trace, freedom, .. } = *self.request;
        let limit = self.request.live_limit.get();
        let places = self.keep.sequence.len();
        let backward_start = backward_start(trace, &self.keep.sequence).unwrap_or(places) as SequenceIndex;
        let fixed = fixed_ops(trace);
        // Places above the limit before each place, so that whether a stretch has any is one subtraction.
        let mut above = vec![0u32; places + 1];
        for place in 0..places {
            above[place + 1] = above[place] + u32::from(live_bytes[place] > limit);
        }
        let any =
            |from: SequenceIndex, to: SequenceIndex| from < to && above[to as usize] > above[from as usize];
        let mut first = vec![None; trace.tensors().len()];
        let mut at: HashMap<(TensorId, SequenceIndex), u32> = HashMap::new();
        for (index, node) in (0u32..).zip(&self.nodes.nodes) {
            match node.kind {
                Kind::Malloc => first[node.value.index()] = Some(index),
                Kind::Write | Kind::Read => {
                    at.insert((node.value, node.place), index);
                }
                Kind::Free => {}
            }
        }
        for value in trace.tensors().ids().filter(|&value| trace.bytes(value) >= least) {
            let maker = trace.producer(value).filter(|op| op.0 < backward_start && !fixed[op.index()]);
            for (gap, next) in touches.gaps(value) {
                let Some(from) = gap.after.filter(|&from| from < backward_start && any(from + 1, next.place))
                else {
                    continue;
                };
                let Some(&node) = at.get(&(value, from)) else { continue };
                let again = maker.filter(|_| freedom.recompute && next.place >= backward_start);
                self.candidates.push(Candidate {
                    part: Offloadable::Gap(gap),
                    value,
                    bytes: trace.bytes(value).get(),
                    from: Some(from),
                    until: next.place,
                    node,
                    remove: again.and(first[value.index()]),
                    offload: freedom.offload,
                });
            }
        }
        for (index, pair) in trace.persistent().iter().enumerate() {
            let opens =
                touches.of_value(pair.begin).first().map_or(places as SequenceIndex, |touch| touch.place);
            let last = touches.of_value(pair.end).last().map(|touch| touch.place);
            let covers = any(0, opens) || last.is_some_and(|last| any(last + 1, places as SequenceIndex));
            let node = last.and_then(|last| at.get(&(pair.end, last)).copied());
            let Some(node) = node.filter(|_| covers && trace.bytes(pair.begin) >= least) else { continue };
            if freedom.offload && self.keep.boundaries[index] == Boundary::Device {
                self.candidates.push(Candidate {
                    part: Offloadable::Persistent(index),
                    value: pair.end,
                    bytes: trace.bytes(pair.begin).get(),
                    from: last,
                    until: opens,
                    node,
                    remove: None,
                    offload: true,
                });
            }
        }
        self.candidates.retain(|candidate| candidate.offload || candidate.remove.is_some());
        self.sort();
    }

    fn sort(&mut self) {
        self.candidates.sort_by_key(|candidate| match candidate.part {
            Offloadable::Persistent(index) => (0, index as u32, candidate.value),
            Offloadable::Gap(gap) => (1, gap.after.unwrap_or(0), candidate.value),
        });
    }

    /// Keeps the largest candidates.
    fn thin(&mut self, most: usize) {
        self.candidates.sort_by_key(|candidate| (std::cmp::Reverse(candidate.bytes), candidate.value));
        self.candidates.truncate(most);
        self.sort();
    }

    /// The six features of section 4.4.1, each in a unit of its own, so that they are about one on every trace: sizes by what a candidate
    /// must contribute on average, times of copies and recompute by the mean copy, the time until the next use by the iteration; and of
    /// each the logarithm of one more, since sizes and times spread widely. The action is 1 for offloading, −1 for removing. Whether it is
    /// valid is filled in state by state.
    fn describe(&mut self, touches: &Touches, over: u64) {
        let Request { trace, costs, machine, .. } = *self.request;
        let count = self.candidates.len().max(1) as f64;
        let share = (over as f64 / count).max(1.0);
        let copy =
            |bytes: u64| (machine.to_host.time(Bytes(bytes)) + machine.to_device.time(Bytes(bytes))).get();
        let mean = (self.candidates.iter().map(|c| copy(c.bytes)).sum::<u64>() as f64 / count).max(1.0);
        let total = (costs.total().get() as f64).max(1.0);
        let mut next = vec![None; self.nodes.len()];
        for members in &self.nodes.groups {
            for pair in members.windows(2) {
                next[pair[0] as usize] = Some(self.nodes.nodes[pair[1] as usize].time);
            }
        }
        let mut action = vec![0f32; self.nodes.len()];
        for candidate in &self.candidates {
            action[candidate.node as usize] = 1.0;
            if let Some(remove) = candidate.remove {
                action[remove as usize] = -1.0;
            }
        }
        let again: Vec<u64> =
            trace.tensors().ids().map(|value| self.recompute_time(value, touches)).collect();
        let rows = self.nodes.nodes.iter().zip(next).zip(action);
        self.features = rows
            .flat_map(|((node, next), action)| {
                let bytes = trace.bytes(node.value).get();
                let until = next.map_or(0, |next| next - node.time);
                let units = [
                    bytes as f64 / share,
                    copy(bytes) as f64 / mean,
                    again[node.value.index()] as f64 / mean,
                    until as f64 / total,
                ];
                let [size, copies, again, until] = units.map(|x| (x as f32).ln_1p());
                [size, copies, again, until, action, 0.0]
            })
            .collect::<Vec<f32>>();
    }

    /// Time to recompute a tensor from what the backward phase reads.
    fn recompute_time(&self, value: TensorId, touches: &Touches) -> u64 {
        let trace = self.request.trace;
        let mut seen: Vec<OpId> = Vec::new();
        let mut todo = vec![value];
        let mut time = 0;
        while let Some(value) = todo.pop() {
            let Some(op) = trace.producer(value) else { continue };
            if touches.of_value(value).is_empty() || seen.contains(&op) {
                continue;
            }
            seen.push(op);
            time += self.request.costs.nanos.get(op).map_or(0, |nanos| nanos.get());
            todo.extend(trace.ops()[op].reads.iter().filter(|&&read| self.evictions.passes(read)));
        }
        time
    }

    /// The policy of some decisions about the first candidates; the others stay.
    pub(crate) fn policy(&self, decisions: &[Action]) -> Policy {
        let decided = |wanted| self.candidates.iter().zip(decisions).filter(move |pair| *pair.1 == wanted);
        let evicted = decided(Action::Recompute).map(|(candidate, _)| candidate.value).collect();
        let (mut offloaded, mut wraps) = (Vec::new(), Vec::new());
        for (candidate, _) in decided(Action::Offload) {
            match candidate.part {
                Offloadable::Gap(gap) => {
                    offloaded.extend(gap.after.map(|from| (candidate.value, from, candidate.until)))
                }
                Offloadable::Persistent(index) => wraps.push(index),
            }
        }
        let mut policy = self.evictions.policy(self.request, &Evictions { evicted, offloaded });
        wraps.into_iter().for_each(|index| policy.boundaries[index] = Boundary::Host);
        policy
    }

    /// What a network of this many rounds sees.
    pub(crate) fn sight(&self, rounds: usize) -> Sight<'_> {
        Sight { nodes: &self.nodes, features: &self.features, rounds }
    }

    /// What a plan costs.
    pub(crate) fn standing(&mut self, decisions: &[Action]) -> Rc<PartialPlan> {
        let length = decisions.iter().rposition(|&action| action != Action::Keep).map_or(0, |last| last + 1);
        let key = &decisions[..length];
        if let Some(known) = self.known.get(key) {
            return known.clone();
        }
        self.simulated += 1;
        let standing = Rc::new(self.simulate(key));
        if self.known.len() >= KNOWN {
            self.known.clear();
        }
        self.known.insert(key.into(), standing.clone());
        standing
    }

    fn simulate(&self, decisions: &[Action]) -> PartialPlan {
        let policy = self.policy(decisions);
        let limit = self.request.live_limit.get();
        let Ok(unfinished) = evaluate_unfinished(self.request, &policy) else {
            return PartialPlan {
                time: u64::MAX,
                live_bytes: Vec::new(),
                missing: u64::MAX,
                possible: false,
            };
        };
        let live_bytes = by_stage(self.request.trace, &policy.sequence, &unfinished.live_bytes);
        let highest = unfinished.live_bytes.iter().copied().max().unwrap_or(0);
        let missing = highest.saturating_sub(limit);
        PartialPlan { time: unfinished.iteration.get(), live_bytes, missing, possible: true }
    }

    /// Bytes above the limit where the live memory is highest with every candidate removed from it.
    fn missing(&self, mut live_bytes: Vec<u64>) -> Bytes {
        for candidate in &self.candidates {
            candidate.cover(&mut live_bytes, |live, bytes| *live = live.saturating_sub(bytes));
        }
        Bytes(live_bytes.into_iter().max().unwrap_or(0)).saturating_sub(self.request.live_limit)
    }

    /// What bytes that are still missing at the end cost.
    pub(crate) fn price(&self, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let machine = self.request.machine;
        let copies = machine.to_host.time(Bytes(bytes)) + machine.to_device.time(Bytes(bytes));
        (copies.get() as f64 * f64::from(self.shortfall)) as u64
    }
}

impl Candidate {
    /// Visits the places during which it can be away.
    pub(crate) fn cover(&self, live_bytes: &mut [u64], mut change: impl FnMut(&mut u64, u64)) {
        let places = live_bytes.len();
        let after = self.from.map_or(0, |place| place as usize + 1).min(places);
        let until = (self.until as usize).min(places);
        let ranges = match self.part {
            Offloadable::Gap(_) => [after..until.max(after), 0..0],
            Offloadable::Persistent(_) => [0..until, after..places],
        };
        for place in ranges.into_iter().flatten() {
            change(&mut live_bytes[place], self.bytes);
        }
    }
}

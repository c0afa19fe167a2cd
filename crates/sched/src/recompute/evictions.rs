//! From a set of evicted and offloaded tensors to a policy: evicted tensors are recomputed when they are needed, together with the evicted
//! tensors that they are made of. Shared by [`supernn`](crate::mixed::supernn) and `dqn`.
//!
//! An evicted tensor may be needed for another one before it is needed for itself. It is then kept until its own use if memory suffices all
//! that time; else it is evicted at once and recomputed (or prefetched) once more. SuperNeurons calls these speed-centric and memory-centric
//! recomputation; here the choice is made per tensor, for those that are used soonest first.
//!
//! ```text
//! evicted     b, c                       chain x → b → c → d, backward d' c' b'
//! memory      ... d'  (b c) c'  b'       b is kept from its first recompute
//! too little  ... d'  (b c) c'  (b) b'   b is evicted, and recomputed once more
//! ```

use elbowroom_ir::planning::Request;
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Id, OpId, TensorId};

use crate::lower::live_memory;
use crate::policy::{Gap, GapAction, Policy, SequenceIndex, Touches, backward_start};
use crate::recompute::repeats::{Writer, fixed_ops, policy, settle};

/// What is known before any decision.
#[derive(Clone, Debug)]
pub struct EvictionPolicies {
    /// Every op once, in order.
    order: Vec<OpId>,
    /// The first place of the backward phase.
    backward_start: SequenceIndex,
    /// Where each tensor is touched along that order.
    touches: Touches,
    /// Ops that must not be recomputed.
    fixed: Vec<bool>,
    /// Forward results that the backward phase does not read: if they are needed again, they are recomputed.
    passing: Vec<bool>,
}

/// What has been decided.
#[derive(Clone, Debug, Default)]
pub struct Evictions {
    /// Tensors that are removed.
    pub evicted: Vec<TensorId>,
    /// Tensors that leave, with the place of their last access before and that of the next after.
    pub offloaded: Vec<(TensorId, SequenceIndex, SequenceIndex)>,
}

/// Live memory per place of the order, to which what stays is added.
struct SpareMemory {
    live_bytes: Vec<u64>,
    limit: u64,
}

impl SpareMemory {
    /// Reserves bytes between two places, both exclusive, if they are spare there.
    fn take(&mut self, after: SequenceIndex, until: SequenceIndex, bytes: u64) -> bool {
        let between = &mut self.live_bytes[after as usize + 1..until.max(after + 1) as usize];
        let enough = between.iter().all(|live_bytes| live_bytes.saturating_add(bytes) <= self.limit);
        if enough {
            between.iter_mut().for_each(|live_bytes| *live_bytes += bytes);
        }
        enough
    }
}

impl EvictionPolicies {
    /// Looks at a trace that runs in this order.
    pub fn new(trace: &Trace, order: &[OpId], touches: Touches) -> Self {
        let backward_start = backward_start(trace, order).unwrap_or(order.len()) as SequenceIndex;
        let fixed = fixed_ops(trace);
        let mut passing = vec![false; trace.tensors().len()];
        let mut lasting = passing.clone();
        trace.persistent().iter().for_each(|pair| lasting[pair.end.index()] = true);
        for value in trace.tensors().ids().filter(|value| !lasting[value.index()]) {
            let forward = trace.producer(value).is_some_and(|op| op.0 < backward_start && !fixed[op.index()]);
            let read = touches.of_value(value).iter().any(|touch| touch.place >= backward_start);
            passing[value.index()] = forward && !read;
        }
        Self { order: order.to_vec(), backward_start, touches, fixed, passing }
    }

    /// Whether a tensor is made only to make others in the forward phase.
    pub fn passes(&self, value: TensorId) -> bool {
        self.passing[value.index()]
    }

    /// The policy of some decisions.
    pub fn policy(&self, request: &Request<'_>, decided: &Evictions) -> Policy {
        let (lean, useful) = self.with_spare(request, decided, None);
        if !useful {
            return lean;
        }
        let Ok(live_bytes) = live_memory(request, &lean) else { return lean };
        let live_bytes = by_stage(request.trace, &lean.sequence, &live_bytes);
        self.with_spare(request, decided, Some(live_bytes)).0
    }

    /// The policy that keeps tensors in this spare memory, and whether spare memory is useful for any tensor.
    fn with_spare(
        &self,
        request: &Request<'_>,
        decided: &Evictions,
        live_bytes: Option<Vec<u64>>,
    ) -> (Policy, bool) {
        let trace = request.trace;
        let limit = request.live_limit.get();
        let mut gone = self.passing.clone();
        decided.evicted.iter().for_each(|value| gone[value.index()] = true);
        let mut fixed = self.fixed.clone();
        let useful = std::cell::Cell::new(false);
        let room = std::cell::RefCell::new(None);
        let sequence = settle(trace, &mut fixed, &|writer| {
            let mut stages = Stages {
                evictions: self,
                trace,
                gone: &gone,
                there: vec![true; gone.len()],
                made: Vec::new(),
            };
            *room.borrow_mut() = live_bytes.clone().map(|live_bytes| SpareMemory { live_bytes, limit });
            for (value, there) in stages.there.iter_mut().enumerate() {
                *there = !gone[value];
            }
            for (place, &op) in (0..).zip(&self.order) {
                if place < self.backward_start {
                    writer.run(op);
                    continue;
                }
                for &value in &trace.ops()[op].reads {
                    stages.need(writer, value);
                }
                writer.run(op);
                useful.set(stages.leave(place, op, room.borrow_mut().as_mut()) || useful.get());
            }
        });
        let mut policy = policy(trace, sequence);
        let mut room = room.into_inner();
        useful.set(self.send(trace, &mut policy, decided, room.as_mut()) || useful.get());
        (policy, useful.get())
    }

    /// Offloads the decided tensors. A tensor that is prefetched to recompute another one is kept after that if memory suffices, else it is
    /// evicted again, for which it needs no second copy. Returns whether spare memory was needed.
    fn send(
        &self,
        trace: &Trace,
        policy: &mut Policy,
        decided: &Evictions,
        mut room: Option<&mut SpareMemory>,
    ) -> bool {
        let mut useful = false;
        let repeats = policy.sequence.len() > self.order.len();
        let along = repeats.then(|| (Touches::of(trace, &policy.sequence), stages(trace, &policy.sequence)));
        for &(value, from, until) in &decided.offloaded {
            policy.set(Gap::after(value, from), GapAction::Offload);
            let Some((touches, stages)) = &along else { continue };
            let touched = touches.of_value(value);
            let first = touched.partition_point(|touch| touch.place <= from);
            for touch in &touched[first..] {
                let stage = stages[touch.place as usize];
                if stage >= until {
                    break;
                }
                useful = true;
                let bytes = trace.bytes(value).get();
                if !room.as_mut().is_some_and(|room| room.take(stage, until, bytes)) {
                    policy.set(Gap::after(value, touch.place), GapAction::Offload);
                }
            }
        }
        useful
    }
}

/// The place in the original order to which each place of a sequence with repeats belongs: that of the next op to run for the first time.
fn stages(trace: &Trace, sequence: &[OpId]) -> Vec<SequenceIndex> {
    let mut ran = vec![false; trace.ops().len()];
    let mut stage = 0;
    let stages = sequence.iter().map(|op| {
        let first = !std::mem::replace(&mut ran[op.index()], true);
        stage += SequenceIndex::from(first);
        stage - SequenceIndex::from(first)
    });
    stages.collect()
}

/// The largest live memory of every stage.
pub fn by_stage(trace: &Trace, sequence: &[OpId], live_bytes: &[u64]) -> Vec<u64> {
    let mut largest = vec![0; trace.ops().len()];
    for (stage, &live_bytes) in stages(trace, sequence).into_iter().zip(live_bytes) {
        let slot: &mut u64 = &mut largest[(stage as usize).min(trace.ops().len() - 1)];
        *slot = (*slot).max(live_bytes);
    }
    largest
}

/// Goes through the backward phase, knowing which tensors are there.
struct Stages<'a> {
    evictions: &'a EvictionPolicies,
    trace: &'a Trace,
    /// Tensors that are not kept for the backward phase.
    gone: &'a [bool],
    there: Vec<bool>,
    /// Tensors recomputed since the last op that ran for the first time.
    made: Vec<TensorId>,
}

impl Stages<'_> {
    /// Recomputes a tensor that is not on the device, after the tensors that it is made of.
    fn need(&mut self, writer: &mut Writer<'_>, value: TensorId) {
        let mut todo: Vec<(OpId, usize)> =
            self.missing(writer, value).map(|op| (op, 0)).into_iter().collect();
        while let Some((op, next)) = todo.last_mut() {
            let op = *op;
            let row = &self.trace.ops()[op];
            if let Some(&read) = row.reads.get(*next) {
                *next += 1;
                todo.extend(self.missing(writer, read).map(|op| (op, 0)));
                continue;
            }
            todo.pop();
            if row.outputs.iter().any(|output| !self.there[output.index()]) {
                writer.recompute(op);
                for &output in row.outputs.iter().filter(|output| self.gone[output.index()]) {
                    self.there[output.index()] = true;
                    self.made.push(output);
                }
            }
        }
    }

    /// The op that must run for a tensor to be there.
    fn missing(&self, writer: &Writer<'_>, value: TensorId) -> Option<OpId> {
        let absent = !self.there[value.index()];
        self.trace
            .producer(value)
            .filter(|&op| absent && op.0 < self.evictions.backward_start && !writer.is_fixed(op))
    }

    /// After an op ran for the first time: recomputed tensors that are used later stay if memory is spare, and are evicted otherwise. Returns whether
    /// spare memory was needed.
    fn leave(&mut self, place: SequenceIndex, op: OpId, mut room: Option<&mut SpareMemory>) -> bool {
        let mut useful = false;
        let reads = self.trace.ops()[op].reads.iter().filter(|read| self.gone[read.index()]);
        self.made.extend(reads);
        let next = |value: &TensorId| self.evictions.touches.next(*value, place).map(|touch| touch.place);
        let mut leaving: Vec<(SequenceIndex, TensorId)> =
            self.made.drain(..).map(|value| (next(&value).unwrap_or(SequenceIndex::MAX), value)).collect();
        leaving.sort_unstable();
        leaving.dedup();
        for (next, value) in leaving {
            let stays = next != SequenceIndex::MAX && {
                useful |= next > place + 1;
                let bytes = self.trace.bytes(value).get();
                next == place + 1 || room.as_mut().is_some_and(|room| room.take(place, next, bytes))
            };
            self.there[value.index()] = stays;
        }
        useful
    }
}

//! Everything that follows from a policy before any time is known: the residency of every operand, where each residency begins and ends, and
//! which copies must be made.
//!
//! One pass over the sequence. A residency ends after the last op that uses it; if its tensor is offloaded, after that copy too. An in-place
//! mutation continues its residency, and a chosen reuse passes the residency of a dying input on to the output.

use elbowroom_ir::machine::Machine;
use elbowroom_ir::schedule::Buffer;
use elbowroom_ir::trace::{Again, Op, Trace};
use elbowroom_ir::{Bytes, Id, OpId, TensorId};

use crate::lower::program::{Close, Offload, Open, Prefetch, Program, Residency};
use crate::policy::{Boundary, Gap, GapAction, Policy, Releases, Reuses, SequenceIndex, Touch, Touches};

/// Why a policy contradicts itself or its trace. None of these depends on a limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// An op is missing from the sequence.
    #[error("the policy never runs {0}")]
    Missing(OpId),
    /// The sequence names an op that the trace does not have.
    #[error("the policy runs {0}, which the trace does not have")]
    Unknown(OpId),
    /// An op runs twice that must run once.
    #[error("the policy runs {0} again, which must run once only")]
    Again(OpId),
    /// The policy does not have one boundary for each persistent tensor.
    #[error("the policy has {boundaries} boundaries for {persistent} persistent tensors")]
    Boundaries {
        /// Boundaries in the policy.
        boundaries: usize,
        /// Persistent tensors of the trace.
        persistent: usize,
    },
    /// A tensor is read when it is nowhere.
    #[error(
        "at place {place}, {op} reads {value}, which was dropped, has no host copy and was not recomputed"
    )]
    Absent {
        /// Place in the sequence.
        place: SequenceIndex,
        /// The op.
        op: OpId,
        /// The tensor.
        value: TensorId,
    },
    /// An op runs before one that it has to follow.
    #[error("at place {place}, {op} runs before {other}, which it has to follow")]
    TooEarly {
        /// Place in the sequence.
        place: SequenceIndex,
        /// The op.
        op: OpId,
        /// The op that it has to follow.
        other: OpId,
    },
    /// A tensor is overwritten in place while it is still needed from there.
    #[error("at place {place}, {op} overwrites {value}, which is needed later and has no host copy by then")]
    Overwritten {
        /// Place in the sequence.
        place: SequenceIndex,
        /// The op.
        op: OpId,
        /// The tensor.
        value: TensorId,
    },
    /// The tensor of a boundary is not there at the end.
    #[error("{0} should be on the device when the iteration ends, but was dropped")]
    Left(TensorId),
    /// The tensor of a boundary cannot end where it began.
    #[error("{0} cannot end in the buffer of its beginning, which is still in use when it is made")]
    HomeTaken(TensorId),
}

/// What is known of one tensor during the pass.
#[derive(Clone, Copy, Default)]
struct TensorState {
    residency: Option<u32>,
    /// Where it was made, or `None` if it was there.
    made: Option<SequenceIndex>,
    host: HostCopy,
    left: Option<u32>,
    gone: Option<SequenceIndex>,
    /// The last prefetch of its host copy.
    prefetch: Option<u32>,
    /// The number of its next touch, and that behind its last.
    next: u32,
    end: u32,
    /// Index of the persistent pair that it begins or ends, plus one.
    begins: u32,
    ends: u32,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum HostCopy {
    #[default]
    None,
    Boundary,
    Offload(u32),
}

pub(crate) fn analyse(trace: &Trace, machine: &Machine, policy: &Policy) -> Result<Program, PolicyError> {
    sound(trace, policy)?;
    let touches = Touches::of(trace, &policy.sequence);
    let mut actions = vec![None; touches.len()];
    for (&gap, &how) in &policy.gaps {
        if let Some(after) = gap.after.filter(|_| gap.value.index() < trace.tensors().len()) {
            let touched = touches.of_value(gap.value);
            if let Ok(index) = touched.binary_search_by_key(&after, |touch| touch.place) {
                actions[touches.numbers(gap.value).start as usize + index] = Some(how);
            }
        }
    }
    analyse_gaps(trace, machine, policy, &touches, &actions)
}

/// The same for a policy whose sequence is known to be sound, whose touches are known, and whose `actions` give,
/// per touch, the action of the gap that begins there. The policy's own list of gaps between touches is ignored.
pub(crate) fn analyse_gaps(
    trace: &Trace,
    machine: &Machine,
    policy: &Policy,
    touches: &Touches,
    actions: &[Option<GapAction>],
) -> Result<Program, PolicyError> {
    let mut states = vec![TensorState::default(); trace.tensors().len()];
    for (value, state) in trace.tensors().ids().zip(&mut states) {
        (state.next, state.end) = (touches.numbers(value).start, touches.numbers(value).end);
    }
    let mut pass = AnalysisPass {
        trace,
        policy,
        touches,
        align: machine.align,
        program: Program::with_capacity(policy.sequence.len(), touches.len()),
        states,
        actions,
        bound: vec![None; trace.storages().len()],
        taken: Vec::new(),
    };
    pass.begin();
    for place in 0..policy.sequence.len() {
        pass.place(place as SequenceIndex)?;
    }
    pass.end()?;
    if policy.releases == Releases::End {
        pass.program.close_at_the_end(policy.sequence.len());
    }
    Ok(pass.program)
}

fn sound(trace: &Trace, policy: &Policy) -> Result<(), PolicyError> {
    let mut seen = vec![false; trace.ops().len()];
    for (place, &op) in (0..).zip(&policy.sequence) {
        let row = trace.ops().get(op).ok_or(PolicyError::Unknown(op))?;
        if let Some(&other) = row.after.iter().find(|other| !seen[other.index()]) {
            return Err(PolicyError::TooEarly { place, op, other });
        }
        if std::mem::replace(&mut seen[op.index()], true) && row.again == Again::Never {
            return Err(PolicyError::Again(op));
        }
    }
    if let Some(missing) = seen.iter().position(|seen| !seen) {
        return Err(PolicyError::Missing(OpId::new(missing)));
    }
    let (boundaries, persistent) = (policy.boundaries.len(), trace.persistent().len());
    if boundaries != persistent {
        return Err(PolicyError::Boundaries { boundaries, persistent });
    }
    Ok(())
}

struct AnalysisPass<'a> {
    trace: &'a Trace,
    policy: &'a Policy,
    touches: &'a Touches,
    /// Per touch: the action of the gap that begins there.
    actions: &'a [Option<GapAction>],
    align: Bytes,
    program: Program,
    states: Vec<TensorState>,
    /// Per storage: the persistent tensor that ends there, if its device home is another storage's.
    bound: Vec<Option<u32>>,
    /// Residencies handed over at the current place.
    taken: Vec<u32>,
}

impl AnalysisPass<'_> {
    fn state(&mut self, value: TensorId) -> &mut TensorState {
        &mut self.states[value.index()]
    }

    fn open(&mut self, value: TensorId, open: Open) -> u32 {
        let bytes = self.trace.bytes(value);
        let buffer = self.program.buffers.push(Buffer { bytes });
        let bytes = bytes.align_up(self.align).get();
        let close = Close::Never;
        self.program.residencies.push(Residency { value, buffer, bytes, open, close, follows: None });
        (self.program.residencies.len() - 1) as u32
    }

    fn close(&mut self, value: TensorId, residency: u32, close: Close, place: Option<SequenceIndex>) {
        self.program.residencies[residency as usize].close = close;
        let state = self.state(value);
        state.residency = None;
        state.left = Some(residency);
        state.gone = place;
    }

    fn boundary(&self, pair: u32) -> Option<Boundary> {
        pair.checked_sub(1).map(|pair| self.policy.boundaries[pair as usize])
    }

    fn begin(&mut self) {
        for (index, pair) in self.trace.persistent().iter().enumerate() {
            self.state(pair.begin).begins = index as u32 + 1;
            self.state(pair.end).ends = index as u32 + 1;
            let boundary = self.policy.boundaries[index];
            let mut at_boundary = None;
            if boundary != Boundary::Host {
                let residency = self.open(pair.begin, Open::Boundary);
                self.state(pair.begin).residency = Some(residency);
                at_boundary = Some(residency);
            }
            if boundary != Boundary::Device {
                self.state(pair.begin).host = HostCopy::Boundary;
            }
            let (begin, end) = (self.trace.storage(pair.begin), self.trace.storage(pair.end));
            if at_boundary.is_some() && begin != end {
                self.bound[end.index()] = Some(index as u32);
            }
            self.program.at_boundaries.push(at_boundary);
        }
        for pair in self.trace.persistent() {
            if self.state(pair.begin).residency.is_some() {
                self.settle(pair.begin, None);
            }
        }
    }

    /// Notes that a place touches a tensor.
    fn touch(&mut self, value: TensorId, place: SequenceIndex) {
        let state = &mut self.states[value.index()];
        if state.next < state.end && self.touches.at(state.next).place == place {
            state.next += 1;
        }
    }

    /// The next touch of a tensor, if there is one.
    fn next(&self, value: TensorId) -> Option<Touch> {
        let state = &self.states[value.index()];
        (state.next < state.end).then(|| self.touches.at(state.next))
    }

    /// The action of a tensor's gap that begins after a place, its latest touch.
    fn actions(&self, value: TensorId, place: Option<SequenceIndex>) -> Option<GapAction> {
        match place {
            Some(_) => self.actions[self.states[value.index()].next as usize - 1],
            None => self.policy.gaps.get(&Gap { value, after: None }).copied(),
        }
    }

    /// Whether anything needs the tensor on the device again: a touch, or the boundary.
    fn needed_later(&self, value: TensorId) -> bool {
        let boundary = self.boundary(self.states[value.index()].ends);
        self.next(value).is_some() || matches!(boundary, Some(Boundary::Device | Boundary::Both))
    }

    /// Whether the tensor gives up its residency after a place without an offload.
    fn gives_up(&self, value: TensorId, place: SequenceIndex) -> bool {
        let state = &self.states[value.index()];
        let copied = state.host != HostCopy::None;
        if !self.needed_later(value) {
            return state.ends == 0 || copied;
        }
        match self.actions(value, Some(place)) {
            Some(GapAction::Evict) => true,
            Some(GapAction::Offload) => copied,
            None => false,
        }
    }

    /// Applies the policy to the gap of a resident tensor that begins after a place.
    fn settle(&mut self, value: TensorId, place: Option<SequenceIndex>) {
        let state = &self.states[value.index()];
        let Some(residency) = state.residency else { return };
        let copied = state.host != HostCopy::None;
        let gap = Gap { value, after: place };
        let actions = if self.needed_later(value) {
            self.actions(value, place)
        } else if state.ends != 0 {
            Some(GapAction::Offload)
        } else {
            Some(GapAction::Evict)
        };
        let both = self.next(value).is_none() && self.boundary(state.ends) == Some(Boundary::Both);
        match actions {
            Some(GapAction::Offload) if !copied => {
                let copy = self.offload(gap, residency, true);
                self.close(value, residency, Close::Offload(copy), place);
            }
            Some(_) => self.close(value, residency, Close::After(place), place),
            None if both && !copied => {
                self.offload(gap, residency, false);
            }
            None => {}
        }
    }

    fn offload(&mut self, gap: Gap, residency: u32, closes: bool) -> u32 {
        let copy = self.program.offloads.len() as u32;
        let state = self.state(gap.value);
        state.host = HostCopy::Offload(copy);
        let made = state.made;
        self.program.offloads.push(Offload { gap, residency, made, wanted: false, closes });
        copy
    }

    fn prefetch(&mut self, value: TensorId, needed: SequenceIndex) -> Option<u32> {
        let state = self.states[value.index()];
        match state.host {
            HostCopy::None => return None,
            HostCopy::Boundary => {}
            HostCopy::Offload(copy) => self.program.offloads[copy as usize].wanted = true,
        }
        let copy = self.program.prefetches.len() as u32;
        let residency = self.open(value, Open::Prefetch(copy));
        let gap = Gap { value, after: state.gone };
        self.program.prefetches.push(Prefetch { gap, residency, needed, left: state.left, last: false });
        let state = self.state(value);
        state.residency = Some(residency);
        state.left = None;
        state.prefetch = Some(copy);
        Some(residency)
    }

    fn place(&mut self, place: SequenceIndex) -> Result<(), PolicyError> {
        let trace = self.trace;
        let id = self.policy.sequence[place as usize];
        let op = &trace.ops()[id];
        self.taken.clear();
        self.program.operand_starts.push(self.program.operands.len() as u32);
        for &value in &op.reads {
            self.touch(value, place);
            let residency = match self.states[value.index()].residency {
                Some(residency) => residency,
                None => self.prefetch(value, place).ok_or(PolicyError::Absent { place, op: id, value })?,
            };
            self.program.operands.push(residency);
        }
        let outputs = self.program.operands.len();
        for &value in &op.outputs {
            let residency = self.destination(place, id, op, value)?;
            self.program.operands.push(residency);
        }
        // Overwritten inputs are dead; the policy decides about the others and the outputs.
        for (index, &value) in op.reads.iter().enumerate() {
            let residency = self.program.operands[outputs - op.reads.len() + index];
            if self.states[value.index()].residency != Some(residency) {
                continue;
            }
            if self.taken.contains(&residency) {
                let state = self.state(value);
                state.residency = None;
                state.left = None;
                state.gone = Some(place);
            } else if !op.outputs.contains(&value) {
                self.settle(value, Some(place));
            }
        }
        for (index, &value) in op.outputs.iter().enumerate() {
            let residency = self.program.operands[outputs + index];
            self.touch(value, place);
            if self.states[value.index()].residency.is_some() {
                // It is still here from an earlier run: the new copy is not wanted.
                self.program.residencies[residency as usize].close = Close::After(Some(place));
                self.settle(value, Some(place));
                continue;
            }
            let state = self.state(value);
            state.residency = Some(residency);
            state.made = Some(place);
            self.settle(value, Some(place));
        }
        let workspace =
            (!op.workspace.is_zero()).then(|| self.program.buffers.push(Buffer { bytes: op.workspace }));
        self.program.workspaces.push(workspace);
        Ok(())
    }

    /// The residency to which an op writes an output.
    fn destination(
        &mut self,
        place: SequenceIndex,
        id: OpId,
        op: &Op,
        output: TensorId,
    ) -> Result<u32, PolicyError> {
        if let Some(old) = op.overwrites(output) {
            let state = self.states[old.index()];
            let lost = PolicyError::Overwritten { place, op: id, value: old };
            let residency = state.residency.filter(|r| !self.taken.contains(r)).ok_or(lost.clone())?;
            let next = self.next(old);
            if next.is_some_and(|touch| !touch.made) && !self.gives_up(old, place) {
                return Err(lost);
            }
            self.taken.push(residency);
            return Ok(residency);
        }
        for pair in op.may_reuse.iter().filter(|pair| pair.output == output) {
            let Some(residency) = self.states[pair.input.index()].residency else { continue };
            if self.chosen(output, residency)
                && op.overwritten_by(pair.input).is_none()
                && !op.outputs.contains(&pair.input)
                && !self.taken.contains(&residency)
                && self.gives_up(pair.input, place)
                && self.home_allows(residency, output)
            {
                self.taken.push(residency);
                return Ok(residency);
            }
        }
        Ok(self.open(output, Open::Op(place)))
    }

    /// Whether the policy lets an output take over a residency. Taking a larger one would keep bytes that are not needed, so
    /// [`Reuses::Every`] does not.
    fn chosen(&self, output: TensorId, residency: u32) -> bool {
        match &self.policy.reuses {
            Reuses::Every => {
                let bytes = self.trace.bytes(output).align_up(self.align).get();
                self.program.residencies[residency as usize].bytes == bytes
            }
            Reuses::Never => false,
            Reuses::Only(outputs) => outputs.contains(&output),
        }
    }

    /// A home buffer is taken over by the tensor that must end there and by no other, and that tensor takes over no other buffer.
    fn home_allows(&self, residency: u32, output: TensorId) -> bool {
        match self.bound[self.trace.storage(output).index()] {
            Some(pair) => self.program.at_boundaries[pair as usize] == Some(residency),
            None => self.program.residencies[residency as usize].open != Open::Boundary,
        }
    }

    fn end(&mut self) -> Result<(), PolicyError> {
        let end = self.policy.sequence.len() as SequenceIndex;
        for (index, pair) in self.trace.persistent().iter().enumerate() {
            let boundary = self.policy.boundaries[index];
            if boundary != Boundary::Device {
                match self.states[pair.end.index()].host {
                    HostCopy::Offload(copy) => self.program.offloads[copy as usize].wanted = true,
                    HostCopy::Boundary => {}
                    HostCopy::None => return Err(PolicyError::Left(pair.end)),
                }
            }
            let Some(at_boundary) = self.program.at_boundaries[index] else { continue };
            let residency = match self.states[pair.end.index()].residency {
                Some(residency) => residency,
                None => self.prefetch(pair.end, end).ok_or(PolicyError::Left(pair.end))?,
            };
            if residency != at_boundary {
                self.return_home(pair.end, at_boundary, residency)?;
            }
        }
        self.program.operand_starts.push(self.program.operands.len() as u32);
        for copy in 0..self.program.offloads.len() {
            let Offload { gap, residency, wanted, closes, .. } = self.program.offloads[copy];
            if !wanted && closes {
                self.program.residencies[residency as usize].close = Close::After(gap.after);
            }
        }
        for value in self.trace.tensors().ids() {
            let state = self.states[value.index()];
            let kept = matches!(self.boundary(state.ends), Some(Boundary::Host | Boundary::Both));
            match (state.host, state.prefetch) {
                (HostCopy::None, _) => {}
                _ if kept => {}
                (_, Some(prefetch)) => self.program.prefetches[prefetch as usize].last = true,
                (HostCopy::Boundary, None) => self.program.stale.push(value),
                (HostCopy::Offload(_), None) => {}
            }
        }
        Ok(())
    }

    /// Binds the last residency of a persistent tensor to the buffer of its first.
    fn return_home(&mut self, end: TensorId, at_boundary: u32, residency: u32) -> Result<(), PolicyError> {
        let left = match self.program.residencies[at_boundary as usize].close {
            Close::Never => return Err(PolicyError::HomeTaken(end)),
            Close::After(place) => place,
            Close::Offload(copy) => self.program.offloads[copy as usize].gap.after,
        };
        let opens = match self.program.residencies[residency as usize].open {
            Open::Boundary => None,
            Open::Op(place) => Some(place),
            Open::Prefetch(copy) => Some(self.program.prefetches[copy as usize].needed),
        };
        if left >= opens {
            return Err(PolicyError::HomeTaken(end));
        }
        let buffer = self.program.residencies[at_boundary as usize].buffer;
        let row = &mut self.program.residencies[residency as usize];
        row.buffer = buffer;
        row.follows = Some(at_boundary);
        Ok(())
    }
}

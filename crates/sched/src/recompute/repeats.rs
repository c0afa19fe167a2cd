//! From a sequence of ops with repeats to a policy: a tensor that is recomputed is evicted after its last use before that. Checkmate's program
//! counts in the same way, and no policy with the same sequence has less live memory at any place.

use elbowroom_ir::order::runs_once;
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Id, Nanos, OpId, Table};

use crate::policy::{GapAction, Policy, SequenceIndex, Touches, backward_start};

/// The policy of a sequence: whatever is recomputed is evicted before, and everything else stays while it is needed.
pub fn policy(trace: &Trace, sequence: Vec<OpId>) -> Policy {
    let mut policy = Policy::keep(trace);
    let touches = Touches::of(trace, &sequence);
    for value in trace.tensors().ids() {
        for (gap, _) in touches.gaps(value).filter(|(_, touch)| touch.made) {
            policy.set(gap, GapAction::Evict);
        }
    }
    policy.sequence = sequence;
    policy
}

/// Time that a sequence spends on recompute.
pub fn recompute_time(nanos: &Table<OpId, Nanos>, sequence: &[OpId]) -> Nanos {
    let whole: Nanos = sequence.iter().filter_map(|&op| nanos.get(op)).sum();
    whole.saturating_sub(nanos.values().sum())
}

/// The order that planners start from, with its first backward place: [`Policy::prompt`]. Up to that place it is the trace's own, so that
/// places and numbers of ops are the same there.
pub fn base(trace: &Trace) -> (Vec<OpId>, SequenceIndex) {
    let sequence = Policy::prompt(trace).sequence;
    let backward_start = backward_start(trace, &sequence).unwrap_or(sequence.len());
    (sequence, backward_start as SequenceIndex)
}

/// A sequence under construction. It records which ops can still be recomputed: an op cannot once one of its inputs was overwritten.
#[derive(Debug)]
pub struct Writer<'a> {
    trace: &'a Trace,
    sequence: Vec<OpId>,
    overwritten: Vec<bool>,
    /// Ops that are never recomputed.
    fixed: &'a mut [bool],
    refused: bool,
}

impl<'a> Writer<'a> {
    /// Begins an empty sequence. Where an op should be recomputed but cannot, it becomes one of `fixed`.
    pub fn new(trace: &'a Trace, fixed: &'a mut [bool]) -> Self {
        let overwritten = vec![false; trace.tensors().len()];
        Self { trace, sequence: Vec::with_capacity(trace.ops().len()), overwritten, fixed, refused: false }
    }

    /// Whether an op must not be recomputed.
    pub fn is_fixed(&self, op: OpId) -> bool {
        self.fixed[op.index()]
    }

    /// Appends an op for the first time.
    pub fn run(&mut self, op: OpId) {
        for mutation in &self.trace.ops()[op].mutates {
            self.overwritten[mutation.old.index()] = true;
        }
        self.sequence.push(op);
    }

    /// Appends an op once more.
    pub fn recompute(&mut self, op: OpId) {
        if self.trace.ops()[op].reads.iter().any(|read| self.overwritten[read.index()]) {
            self.fixed[op.index()] = true;
            self.refused = true;
        } else {
            self.sequence.push(op);
        }
    }

    /// The sequence, or `None` if an op could not be recomputed: then the plan is to be made once more with what is fixed now.
    pub fn finish(self) -> Option<Vec<OpId>> {
        (!self.refused).then_some(self.sequence)
    }
}

/// The ops that the trace forbids to recompute.
pub fn fixed_ops(trace: &Trace) -> Vec<bool> {
    runs_once(trace).as_slice().to_vec()
}

/// Writes a sequence; as often as an op turns out to be unable to recompute, once more without that. Ends, since more is fixed each time.
pub fn settle(trace: &Trace, fixed: &mut [bool], write: &dyn Fn(&mut Writer<'_>)) -> Vec<OpId> {
    loop {
        let mut writer = Writer::new(trace, fixed);
        write(&mut writer);
        if let Some(sequence) = writer.finish() {
            return sequence;
        }
    }
}

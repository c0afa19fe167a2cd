//! Recompute of a forward segment, shared by the planners that evict whole segments (Chen et al., sections 4.2 and 4.3): which tensors are
//! evicted after the forward phase, which ops are recomputed before the backward phase of the segment, and where.
//!
//! A segment is a run of layers. Tensors that later forward ops read are kept. Every other tensor of the segment that can be recomputed is
//! evicted, and its ops are recomputed, in order, just before the first backward op that needs any of them. An op can be recomputed if the
//! trace permits it and no tensor that it reads has been overwritten by then.

use std::ops::Range;

use elbowroom_ir::trace::{Again, Trace};
use elbowroom_ir::{Id, Nanos, OpId, TensorId};

use crate::chain::linearize::Linear;
use crate::policy::{Gap, GapAction, Policy, SequenceIndex, Touches};

/// What recomputing one segment takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rerun {
    /// Tensors that are given up after the forward phase and recomputed.
    pub dropped: Vec<TensorId>,
    /// The ops to recompute, in order.
    pub ops: Vec<OpId>,
    /// The place before which they run.
    pub before: SequenceIndex,
}

impl Rerun {
    /// Time that it takes.
    pub fn time(&self, nanos: &elbowroom_ir::Table<OpId, Nanos>) -> Nanos {
        self.ops.iter().filter_map(|&op| nanos.get(op)).sum()
    }
}

/// Works out reruns on one trace.
#[derive(Debug)]
pub struct Segmenter<'a> {
    trace: &'a Trace,
    linear: &'a Linear,
    lasting: Vec<bool>,
    /// The place at which each tensor is overwritten.
    overwritten: Vec<SequenceIndex>,
}

impl<'a> Segmenter<'a> {
    /// Prepares for a trace and its layers.
    pub fn new(trace: &'a Trace, linear: &'a Linear) -> Self {
        let mut lasting = vec![false; trace.tensors().len()];
        for pair in trace.persistent() {
            lasting[pair.begin.index()] = true;
            lasting[pair.end.index()] = true;
        }
        let mut overwritten = vec![SequenceIndex::MAX; trace.tensors().len()];
        for (place, &op) in (0..).zip(&linear.keep.sequence) {
            for mutation in &trace.ops()[op].mutates {
                overwritten[mutation.old.index()] = place;
            }
        }
        Self { trace, linear, lasting, overwritten }
    }

    /// The rerun of a run of layers; `None` if nothing can be evicted.
    pub fn rerun(&self, layers: Range<usize>) -> Option<Rerun> {
        let groups = self.linear.groups.get(layers)?;
        let (start, end) = (groups.first()?.places.start, groups.last()?.places.end);
        let handed_on = |value: TensorId| self.last_forward(value).is_some_and(|place| place >= end);
        let stash = || groups.iter().flat_map(|group| &group.stash).copied().filter(|&v| !handed_on(v));
        let before = stash().filter_map(|value| self.first_backward(value)).min()?;

        // Which ops can be recomputed: forward over the segment, since an op's inputs are made before it.
        let inside = |value: TensorId| {
            let made = self.trace.producer(value)?.0;
            (start <= made && made < end).then(|| (made - start) as usize)
        };
        let mut can = vec![false; (end - start) as usize];
        for place in start..end {
            let op = &self.trace.ops()[OpId(place)];
            can[(place - start) as usize] = op.again != Again::Never
                && !op.outputs.iter().any(|value| self.lasting[value.index()])
                && op.reads.iter().all(|&value| {
                    let remade = !handed_on(value) && inside(value).is_some_and(|made| can[made]);
                    remade || self.overwritten[value.index()] >= before
                });
        }

        // Which of them must: backward from what is evicted.
        let mut must = vec![false; can.len()];
        for made in stash().filter_map(inside).filter(|&made| can[made]) {
            must[made] = true;
        }
        for index in (0..must.len()).rev().filter(|&index| can[index]) {
            if must[index] {
                for &value in &self.trace.ops()[OpId(start + index as SequenceIndex)].reads {
                    if let Some(made) = inside(value).filter(|&made| can[made] && !handed_on(value)) {
                        must[made] = true;
                    }
                }
            }
        }
        let ops: Vec<OpId> = (start..end).filter(|&p| must[(p - start) as usize]).map(OpId).collect();
        let made = ops.iter().flat_map(|&op| &self.trace.ops()[op].outputs).copied();
        let dropped: Vec<TensorId> = made.filter(|&value| !handed_on(value)).collect();
        (!ops.is_empty()).then_some(Rerun { dropped, ops, before })
    }

    fn first_backward(&self, value: TensorId) -> Option<SequenceIndex> {
        let touched = self.linear.touches.of_value(value);
        let split = touched.partition_point(|touch| touch.place < self.linear.backward_start);
        touched.get(split).map(|touch| touch.place)
    }

    /// A policy that keeps everything but recomputes these segments.
    pub fn policy(&self, reruns: &[&Rerun]) -> Policy {
        let mut policy = self.linear.keep.clone();
        let mut order: Vec<&Rerun> = reruns.to_vec();
        order.sort_by_key(|rerun| (rerun.before, rerun.ops.first().copied()));
        let mut sequence = Vec::with_capacity(policy.sequence.len());
        let mut next = order.iter().peekable();
        for (place, &op) in (0..).zip(&policy.sequence) {
            while let Some(rerun) = next.next_if(|rerun| rerun.before <= place) {
                sequence.extend_from_slice(&rerun.ops);
            }
            sequence.push(op);
        }
        policy.sequence = sequence;
        // Places before the first backward op are the same in both orders.
        for &value in reruns.iter().flat_map(|rerun| &rerun.dropped) {
            if let Some(place) = self.last_forward(value) {
                policy.set(Gap::after(value, place), GapAction::Evict);
            }
        }
        policy
    }

    /// Adds to a policy of [`policy`](Self::policy): what each of these runs of layers hands on is offloaded until it is needed
    /// again.
    pub fn offload_handed_on(&self, policy: &mut Policy, runs: &[Range<usize>]) {
        let touches = Touches::of(self.trace, &policy.sequence);
        let groups = |run: &Range<usize>| self.linear.groups.get(run.clone()).unwrap_or_default();
        for places in runs.iter().filter_map(|run| {
            let groups = groups(run);
            Some(groups.first()?.places.start..groups.last()?.places.end)
        }) {
            for &value in places.clone().flat_map(|place| &self.trace.ops()[OpId(place)].outputs) {
                if let Some(last) = self.last_forward(value)
                    && last >= places.end
                    && !self.lasting[value.index()]
                    && touches.next(value, last).is_some()
                {
                    policy.gaps.entry(Gap::after(value, last)).or_insert(GapAction::Offload);
                }
            }
        }
    }

    /// The last place before the first backward op that touches a tensor.
    fn last_forward(&self, value: TensorId) -> Option<SequenceIndex> {
        let touched = self.linear.touches.of_value(value);
        let split = touched.partition_point(|touch| touch.place < self.linear.backward_start);
        Some(touched.get(split.checked_sub(1)?)?.place)
    }
}

//! From the decisions of a search to a policy: the sequence of ops; every tensor evicted in each gap that ends with a recompute, and offloaded
//! in each gap that ends with a prefetch; a persistent tensor that is prefetched for its first use is on the host between iterations.

use elbowroom_ir::planning::Request;
use elbowroom_ir::{Id, TensorId};

use super::instance::{Instance, NONE};
use crate::lower::evaluate_within;
use crate::policy::{Boundary, Gap, GapAction, Operands, Policy, PrefetchRule, SequenceIndex, Touches};

/// What a search decides. *Stage* t is op t of the trace with the repeats just before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decisions {
    /// Ops recomputed, as (stage, op), ascending.
    pub repeats: Vec<(u32, u32)>,
    /// Tensors away with a copy on the host before a use, as (tensor, stage, op), ascending.
    pub prefetches: Vec<(u32, u32, u32)>,
    /// When prefetches may start.
    pub rule: PrefetchRule,
}

impl Decisions {
    /// Every tensor stays.
    pub(crate) const KEEP: Self =
        Self { repeats: Vec::new(), prefetches: Vec::new(), rule: PrefetchRule::Eager };
}

/// A policy in the making, for searches that judge many: its tables are made once, and its gaps are listed by touch.
#[derive(Clone, Debug)]
pub(crate) struct PolicyDraft {
    /// Sequence, boundaries and rule of the decisions; its own list of gaps is empty.
    policy: Policy,
    operands: Operands,
    touches: Touches,
    actions: Vec<Option<GapAction>>,
    /// Boundaries of the tensors that are never offloaded across the iteration's end, in the trace's order.
    boundaries: Vec<Boundary>,
    /// Number of the persistent tensor that begins as a tensor.
    pairs: Vec<u32>,
    /// Index of every run, by stage and op, ascending.
    runs: Vec<((u32, u32), SequenceIndex)>,
}

impl PolicyDraft {
    pub(crate) fn new(request: &Request<'_>) -> Self {
        let policy = Policy::keep(request.trace);
        let mut pairs = vec![NONE; request.trace.tensors().len()];
        for (number, pair) in (0..).zip(request.trace.persistent()) {
            pairs[pair.begin.index()] = number;
        }
        let (operands, touches) = (Operands::of(request.trace), Touches::default());
        let boundaries = policy.boundaries.clone();
        Self { policy, operands, touches, actions: Vec::new(), boundaries, pairs, runs: Vec::new() }
    }

    /// Makes it the policy of some decisions about an instance of this request.
    pub(crate) fn set(&mut self, request: &Request<'_>, inst: &Instance, decisions: &Decisions) {
        let Self { policy, operands, touches, actions, boundaries, pairs, runs } = self;
        policy.prefetch = decisions.rule;
        policy.sequence.clear();
        policy.boundaries.clone_from(boundaries);
        runs.clear();
        let mut again = decisions.repeats.iter().peekable();
        for (index, &op) in (0u32..).zip(&inst.order) {
            while let Some(&(stage, repeat)) = again.next_if(|&&(stage, _)| stage == index) {
                runs.push(((stage, repeat), policy.sequence.len() as SequenceIndex));
                policy.sequence.push(inst.order[repeat as usize]);
            }
            runs.push(((index, index), policy.sequence.len() as SequenceIndex));
            policy.sequence.push(op);
        }
        touches.renew(operands, pairs.len(), &policy.sequence);
        actions.clear();
        actions.resize(touches.len(), None);
        for value in (0..request.trace.tensors().len()).map(TensorId::new) {
            let numbers = touches.numbers(value);
            for number in numbers.start + 1..numbers.end {
                if touches.at(number).made {
                    actions[number as usize - 1] = Some(GapAction::Evict);
                }
            }
        }
        for &(value, stage, op) in &decisions.prefetches {
            let Ok(run) = runs.binary_search_by_key(&(stage, op), |&(run, _)| run) else { continue };
            let numbers = touches.numbers(TensorId(value));
            let Some(number) = touches.number(TensorId(value), runs[run].1) else { continue };
            let boundary = policy.boundaries.get_mut(pairs[value as usize] as usize);
            match boundary {
                Some(boundary) if number == numbers.start => *boundary = Boundary::Host,
                // What never changes need not be copied every time: the host has it anyway.
                Some(boundary) if inst.is_constant(value) && *boundary == Boundary::Device => {
                    *boundary = Boundary::Both;
                }
                _ => {}
            }
            if number > numbers.start && !touches.at(number).made {
                actions[number as usize - 1] = Some(GapAction::Offload);
            }
        }
    }

    /// The exact iteration time, if there is a schedule and it takes no longer than `worst`.
    pub(crate) fn time_within(&self, request: &Request<'_>, worst: u64) -> Option<u64> {
        let evaluated = evaluate_within(request, &self.policy, &self.touches, &self.actions, worst);
        evaluated.ok().flatten().map(|(time, _)| time.get())
    }

    /// The policy by itself.
    pub(crate) fn into_policy(mut self) -> Policy {
        for value in (0..self.pairs.len()).map(TensorId::new) {
            for number in self.touches.numbers(value) {
                if let Some(actions) = self.actions[number as usize] {
                    self.policy.set(Gap::after(value, self.touches.at(number).place), actions);
                }
            }
        }
        self.policy
    }
}

/// The policy of some decisions about an instance of a request.
pub(crate) fn policy(request: &Request<'_>, inst: &Instance, decisions: &Decisions) -> Policy {
    let mut draft = PolicyDraft::new(request);
    draft.set(request, inst, decisions);
    draft.into_policy()
}

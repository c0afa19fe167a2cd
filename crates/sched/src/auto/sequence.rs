//! From what a search decides to a policy: the sequence; every value dropped in each gap at whose end it is made again, and offloaded in
//! each gap at whose end it is fetched.

use elbowroom_ir::planning::Request;
use elbowroom_ir::{Id, OpId, TensorId};

use crate::policy::{Away, FetchRule, Place, Policy, Touches};

/// What a search decides. *Stage* t is op t of the trace with the repeats just before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decisions {
    /// Ops run again, as (stage, op), ascending.
    pub repeats: Vec<(u32, u32)>,
    /// Values away with a copy on the host before a use, as (value, stage, op), ascending.
    pub fetches: Vec<(u32, u32, u32)>,
    /// When fetches may start.
    pub rule: FetchRule,
}

/// The policy of some decisions about ops that run first in this order.
pub(crate) fn policy(request: &Request<'_>, order: &[OpId], decisions: &Decisions) -> Policy {
    let mut policy = Policy::keep(request.trace);
    policy.fetch = decisions.rule;
    policy.sequence.clear();
    let mut runs: Vec<((u32, u32), Place)> = Vec::new();
    let mut again = decisions.repeats.iter().peekable();
    for (index, &op) in (0u32..).zip(order) {
        while let Some(&(stage, repeat)) = again.next_if(|&&(stage, _)| stage == index) {
            runs.push(((stage, repeat), policy.sequence.len() as Place));
            policy.sequence.push(order[repeat as usize]);
        }
        runs.push(((index, index), policy.sequence.len() as Place));
        policy.sequence.push(op);
    }
    let place = |stage: u32, op: u32| {
        runs.binary_search_by_key(&(stage, op), |&(run, _)| run).ok().map(|index| runs[index].1)
    };
    let fetches = decisions.fetches.iter();
    let mut fetches: Vec<(u32, Place)> =
        fetches.filter_map(|&(value, stage, op)| Some((value, place(stage, op)?))).collect();
    fetches.sort_unstable();

    let touches = Touches::of(request.trace, &policy.sequence);
    for value in (0..request.trace.tensors().len()).map(TensorId::new) {
        for (gap, end) in touches.gaps(value) {
            if end.made {
                policy.send(gap, Away::Drop);
            } else if fetches.binary_search(&(value.0, end.place)).is_ok() {
                policy.send(gap, Away::Offload);
            }
        }
    }
    policy
}

//! From the schedule of a fixed rule to the decisions that come closest to it, so that the rule can be replayed as an episode.
//!
//! A tensor that is prefetched before its next access was offloaded; one that is recomputed without a prefetch was evicted; a persistent
//! tensor without a buffer at the boundary was offloaded between iterations. Where copies begin, and which recomputed tensors are kept on the
//! way to others, are no decisions, so an imitation may take more or less time than the rule's own schedule, which is kept as well (see the
//! module `rules`).

use elbowroom_ir::Id;
use elbowroom_ir::schedule::{Action as Act, Schedule};

use crate::environment::{Action, Environment};
use crate::episode::Decide;
use elbowroom_sched::policy::{Offloadable, SequenceIndex};

/// The decisions that come closest to a schedule, one per candidate.
pub(crate) fn decisions(environment: &Environment<'_>, schedule: &Schedule) -> Vec<Action> {
    let trace = environment.request.trace;
    let mut place_of = vec![0 as SequenceIndex; trace.ops().len()];
    for (place, op) in (0..).zip(&environment.keep.sequence) {
        place_of[op.index()] = place;
    }
    // Of every value: the last places that ran before it came back, and whether it was recomputed.
    let mut back: Vec<Vec<SequenceIndex>> = vec![Vec::new(); trace.tensors().len()];
    let mut again = vec![false; trace.tensors().len()];
    let mut place = 0;
    for step in schedule.steps.values() {
        match &step.action {
            Act::Compute(launch) => place = place_of[launch.op.index()],
            Act::Recompute(launch) => {
                trace.ops()[launch.op].outputs.iter().for_each(|output| again[output.index()] = true);
            }
            Act::Prefetch { tensor: value, .. } => back[value.index()].push(place),
            _ => {}
        }
    }
    let decide = |candidate: &crate::environment::Candidate| {
        let returns = &back[candidate.value.index()];
        let came_back = match candidate.part {
            Offloadable::Gap(gap) => {
                let from = gap.after.unwrap_or(0);
                returns.iter().any(|place| (from..candidate.until).contains(place))
            }
            Offloadable::Persistent(index) => {
                schedule.boundary.get(index).is_some_and(|at_boundary| at_boundary.device.is_none())
            }
        };
        if came_back && candidate.offload {
            Action::Offload
        } else if again[candidate.value.index()] && candidate.remove.is_some() {
            Action::Recompute
        } else {
            Action::Keep
        }
    };
    environment.candidates.iter().map(decide).collect()
}

/// Takes given decisions, and where one is not valid another that is.
pub(crate) struct Script(pub Vec<Action>);

impl Decide for Script {
    fn decide(&mut self, _: &Environment<'_>, decisions: &[Action], valid: [bool; 3]) -> Action {
        let wanted = self.0.get(decisions.len()).copied().unwrap_or(Action::Keep);
        let order = [wanted, Action::Keep, Action::Offload, Action::Recompute];
        order.into_iter().find(|&action| valid[action as usize]).unwrap_or(Action::Keep)
    }
}

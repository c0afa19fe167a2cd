//! From a schedule that a fixed rule made to the decisions that come closest to it, so that the rule's way can be played as an episode.
//!
//! What comes back from the host before its next access was offloaded; what is run again and did not come back was removed; a persistent
//! value without a buffer at the boundary left between iterations. Where copies begin and what stays on the way to another value is not
//! a decision, so an imitation may be shorter or longer than the rule's own plan; that is kept beside it (see the module `rules`).

use elbowroom_ir::Id;
use elbowroom_ir::schedule::{Action as Act, Schedule};

use crate::environment::{Action, Environment, Leave};
use crate::episode::Decide;
use elbowroom_sched::policy::Place;

/// The decisions that come closest to a schedule, one per candidate.
pub(crate) fn decisions(environment: &Environment<'_>, schedule: &Schedule) -> Vec<Action> {
    let trace = environment.request.trace;
    let mut place_of = vec![0 as Place; trace.ops().len()];
    for (place, op) in (0..).zip(&environment.keep.sequence) {
        place_of[op.index()] = place;
    }
    // Of every value: the last places that ran before it came back, and whether it was made again.
    let mut back: Vec<Vec<Place>> = vec![Vec::new(); trace.tensors().len()];
    let mut again = vec![false; trace.tensors().len()];
    let mut place = 0;
    for step in schedule.steps.values() {
        match &step.action {
            Act::Compute(launch) => place = place_of[launch.op.index()],
            Act::Recompute(launch) => {
                trace.ops()[launch.op].outputs.iter().for_each(|output| again[output.index()] = true);
            }
            Act::Prefetch { value, .. } => back[value.index()].push(place),
            _ => {}
        }
    }
    let decide = |candidate: &crate::environment::Candidate| {
        let returns = &back[candidate.value.index()];
        let came_back = match candidate.leave {
            Leave::Gap(gap) => {
                let from = gap.after.unwrap_or(0);
                returns.iter().any(|place| (from..candidate.until).contains(place))
            }
            Leave::Wrap(index) => schedule.boundary.get(index).is_some_and(|home| home.device.is_none()),
        };
        if came_back && candidate.offload {
            Action::Offload
        } else if again[candidate.value.index()] && candidate.remove.is_some() {
            Action::Remove
        } else {
            Action::Nothing
        }
    };
    environment.candidates.iter().map(decide).collect()
}

/// Takes given decisions, and where one is not valid another that is.
pub(crate) struct Script(pub Vec<Action>);

impl Decide for Script {
    fn decide(&mut self, _: &Environment<'_>, decisions: &[Action], valid: [bool; 3]) -> Action {
        let wanted = self.0.get(decisions.len()).copied().unwrap_or(Action::Nothing);
        let order = [wanted, Action::Nothing, Action::Offload, Action::Remove];
        order.into_iter().find(|&action| valid[action as usize]).unwrap_or(Action::Nothing)
    }
}

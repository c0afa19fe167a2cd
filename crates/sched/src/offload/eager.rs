//! `eager`: Beaumont et al., section 4.1 and theorem 2. Offloads the first bytes of all activations, as few as make up for the excess over the
//! limit: the schedule is eager (the activations that are made first leave) and ordered (they come back in reverse), and the last one
//! leaves in part.
//!
//! A plan offloads tensors, so that *in part* means some tensors of a layer here, where [`greedy`](super::greedy) takes whole layers. On a trace whose
//! activations are in [`pieces`](crate::chain::pieces), its schedules approach the optimum of theorem 2, whose value is
//! [`partial_optimum`](crate::chain::bound::partial_optimum), as pieces become smaller.

use elbowroom_ir::TensorId;
use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};

use crate::chain::linearize::Linear;
use crate::chain::ordered::offer_fewest;
use crate::policy::{GapAction, Policy, PrefetchRule};
use crate::search::Search;
use crate::verdict::refusal;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Eager;

impl Planner for Eager {
    fn name(&self) -> &'static str {
        "eager"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let Ok(linear) = Linear::of(request) else { return refusal(request, None, 0) };
        let search = Search::new(request, budget, observer);
        let mut tensors: Vec<TensorId> = Vec::new();
        if request.freedom.offload {
            for group in &linear.groups {
                let mut stash = group.stash.clone();
                stash.sort_unstable_by_key(|&tensor| (request.trace.producer(tensor), tensor));
                tensors.extend(stash);
            }
        }
        let policy = |count: usize| {
            let mut policy = Policy { prefetch: PrefetchRule::AfterOffloads, ..linear.keep.clone() };
            for gap in tensors[..count].iter().filter_map(|&tensor| linear.turn_gap(tensor)) {
                policy.set(gap, GapAction::Offload);
            }
            policy
        };
        offer_fewest(search, 0..=tensors.len(), policy)
    }
}

//! `greedy`: Beaumont et al., section 4.2. Offloads the first k activations, with the smallest k whose sizes add up to the excess of the peak
//! over the limit: offloads as early as possible in order, prefetches as late as possible in reverse order, one phase after the other.
//! Optimal if tensors could be offloaded in part (theorem 2).
//!
//! On a trace that is no chain, activations are the stashes of its layers, and k grows until the schedule fits.

use elbowroom_ir::Bytes;
use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};

use crate::chain::linearize::Linear;
use crate::chain::ordered::offer_fewest;
use crate::policy::{Policy, PrefetchRule};
use crate::search::Search;
use crate::verdict::refusal;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Greedy;

impl Planner for Greedy {
    fn name(&self) -> &'static str {
        "greedy"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let Ok(linear) = Linear::of(request) else { return refusal(request, None, 0) };
        let search = Search::new(request, budget, observer);
        let policy = |k: usize| {
            let mut policy = Policy { prefetch: PrefetchRule::AfterOffloads, ..linear.keep.clone() };
            linear.offload(&mut policy, 0..k);
            policy
        };

        let excess = linear.chain.peak().saturating_sub(request.live_limit);
        let mut offloaded = Bytes::ZERO;
        let all = if request.freedom.offload { linear.groups.len() } else { 0 };
        let mut k = 0;
        while offloaded < excess && k < all {
            k += 1;
            offloaded += linear.chain.activations[k];
        }
        offer_fewest(search, k..=all, policy)
    }
}

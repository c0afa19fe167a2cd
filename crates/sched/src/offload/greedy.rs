//! `greedy`: Beaumont et al., section 4.2. Offloads the first k activations, with the smallest k whose sizes add up to the excess of the peak
//! over the limit: offloads as early as possible in order, prefetches as late as possible in reverse order, one phase after the other.
//! Optimal if tensors could be offloaded in part (theorem 2).
//!
//! On a trace that is no chain, activations are the stashes of its layers, and k grows until the schedule fits.

use elbowroom_ir::Bytes;
use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

use crate::chain::linearize::Linear;
use crate::chain::ordered::lower_ordered;
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
        let mut search = Search::new(request, budget, observer);
        let policy = |k: usize| {
            let mut policy = Policy { prefetch: PrefetchRule::AfterOffloads, ..linear.keep.clone() };
            linear.offload(&mut policy, 0..k);
            policy
        };

        let excess = linear.chain.peak().saturating_sub(request.live_limit);
        let mut offloaded = Bytes::ZERO;
        let mut k = 0;
        if request.freedom.offload {
            while offloaded < excess && k < linear.groups.len() {
                k += 1;
                offloaded += linear.chain.activations[k];
            }
        }
        let mut stop = StopReason::Finished;
        loop {
            // The first selection is always tried.
            if search.evaluations() > 0 && search.interrupted() {
                stop = StopReason::Interrupted;
                break;
            }
            let policy = policy(k);
            search.count();
            let Some(live_bytes) = search.least_live(&policy) else { break };
            if live_bytes <= request.live_limit
                && let Ok(lowered) = lower_ordered(request, policy)
            {
                search.offer(lowered);
                break;
            }
            if k >= linear.groups.len() || !request.freedom.offload {
                break;
            }
            k += 1;
        }
        search.finish(stop)
    }
}

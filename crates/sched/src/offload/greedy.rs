//! `greedy`: Beaumont et al., section 4.2. Offloads the first k activations, k the least for which they make up what the peak exceeds
//! the limit by; offloads as soon as possible in order, fetches as late as they may be made in reverse order, one phase after the other.
//! Optimal if values could be offloaded in part (theorem 2).
//!
//! On a trace that is no chain, activations are the stashes of its layers, and k grows until the schedule fits.

use elbowroom_ir::Bytes;
use elbowroom_ir::planning::{Request, Scheduler};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};

use crate::chain::linearize::Linear;
use crate::lower::{least_load, lower};
use crate::policy::{FetchRule, Policy};
use crate::verdict::refusal;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Greedy;

impl Scheduler for Greedy {
    fn name(&self) -> &'static str {
        "greedy"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, _: &dyn Observer) -> Outcome<Schedule> {
        let Ok(linear) = Linear::of(request) else { return refusal(request, None, 0) };
        let policy = |k: usize| {
            let mut policy = Policy { fetch: FetchRule::AfterOffloads, ..linear.keep.clone() };
            linear.offload(&mut policy, 0..k);
            policy
        };

        let excess = linear.chain.peak().saturating_sub(request.load_limit);
        let mut offloaded = Bytes::ZERO;
        let mut k = 0;
        if request.freedom.offload {
            while offloaded < excess && k < linear.groups.len() {
                k += 1;
                offloaded += linear.chain.activations[k];
            }
        }
        let mut best: Option<Bytes> = None;
        let mut evaluations = 0;
        loop {
            let policy = policy(k);
            evaluations += 1;
            let Ok((load, _)) = least_load(request, &policy) else { break };
            best = Some(best.map_or(load, |best| best.min(load)));
            if load <= request.load_limit
                && let Ok(mut lowered) = lower(request, &policy)
            {
                if !request.machine.shared_link {
                    // With a lane for each direction nothing is lost when fetches do not wait for the last offload.
                    let eager = Policy { fetch: FetchRule::Eager, ..policy };
                    match lower(request, &eager) {
                        Ok(eager) if eager.iteration < lowered.iteration => lowered = eager,
                        _ => {}
                    }
                }
                return Outcome { evaluations, ..Outcome::finished(lowered.schedule) };
            }
            if k >= linear.groups.len() || !request.freedom.offload {
                break;
            }
            k += 1;
        }
        refusal(request, best, evaluations)
    }
}

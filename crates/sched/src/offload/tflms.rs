//! `tflms`: the baseline of Beaumont et al., section 6.1, after TensorFlow Large Model Support. Two parameters: the number of activations to
//! offload, the first ones, and the number of layers before its use at which an activation is prefetched; every pair is tried. TensorFlow's
//! tool rewrites a graph without regard to memory and cannot delay a forward op, so parameters with which a forward op would have to wait are
//! refused. The shortest of the other schedules is kept.

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::{Schedule, Stream};
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_ir::{Nanos, OpId};
use elbowroom_sim::simulate;

use crate::chain::linearize::Linear;
use crate::lower::{Lowered, lower};
use crate::policy::{Policy, PrefetchRule};
use crate::search::Search;
use crate::verdict::refusal;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Tflms;

impl Planner for Tflms {
    fn name(&self) -> &'static str {
        "tflms"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let Ok(linear) = Linear::of(request) else { return refusal(request, None, 0) };
        let mut search = Search::new(request, budget, observer);
        let mut stop = StopReason::Finished;
        let layers = linear.layer_starts();
        let groups = if request.freedom.offload { linear.groups.len() } else { 0 };
        'search: for count in 0..=groups {
            let mut policy = Policy { layers: layers.clone(), ..linear.keep.clone() };
            linear.offload(&mut policy, 0..count);
            if search.interrupted() {
                stop = StopReason::Interrupted;
                break;
            }
            if search.least_live(&policy).is_none_or(|live_bytes| live_bytes > request.live_limit) {
                continue;
            }
            // No lead matters if nothing is prefetched.
            let leads = if count == 0 { 0..=0 } else { 0..=layers.len() as u32 };
            for lead in leads {
                if let Some(reason) = search.stopped() {
                    stop = reason;
                    break 'search;
                }
                search.count();
                policy.prefetch = PrefetchRule::LeadLayers(lead);
                let Ok(lowered) = lower(request, &policy) else { continue };
                // Without a lead, nothing is prefetched before the first backward op. A lead only adds copies and memory to the forward phase.
                if lead == 0 && !forward_never_waits(request, &linear, &lowered) {
                    break;
                }
                if search.improves(&lowered) && forward_never_waits(request, &linear, &lowered) {
                    search.offer(lowered);
                }
            }
            if search.optimal() {
                stop = StopReason::Optimal;
                break;
            }
        }
        search.finish(stop)
    }
}

/// Whether the ops before the first backward op run one right after the other.
fn forward_never_waits(request: &Request<'_>, linear: &Linear, lowered: &Lowered) -> bool {
    let Ok(timeline) = simulate(request.trace, request.costs, request.machine, &lowered.schedule) else {
        return false;
    };
    let busy: Nanos =
        (0..linear.backward_start).filter_map(|place| request.costs.nanos.get(OpId(place))).sum();
    let compute = timeline.spans.iter().filter(|span| span.stream == Stream::Compute);
    compute.take(linear.backward_start as usize).last().is_none_or(|span| span.end == busy)
}

#[cfg(test)]
mod tests {
    use crate::policy::layers_before;

    #[test]
    fn a_lead_counts_layers_whatever_their_ops() {
        let layers = [0, 3, 7, 12];
        let before = |place, lead| layers_before(&layers, place, lead);
        assert_eq!([before(8, 0), before(8, 1), before(12, 2), before(11, 2), before(2, 5)], [7, 3, 3, 0, 0]);
    }
}

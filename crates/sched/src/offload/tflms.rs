//! `tflms`: the baseline of Beaumont et al., section 6.1, after TensorFlow Large Model Support. Two parameters: the number of activations to
//! offload, the first ones, and the number of ops before its use at which an activation is prefetched. TensorFlow's tool rewrites a graph
//! without regard to memory and cannot delay a forward op, so parameters with which a forward op would have to wait are refused. The
//! shortest of the other schedules is kept.

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::{Schedule, Stream};
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_ir::{Nanos, OpId};
use elbowroom_sim::simulate;

use crate::chain::linearize::Linear;
use crate::lower::{Lowered, lower};
use crate::policy::PrefetchRule;
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
        let groups = if request.freedom.offload { linear.groups.len() } else { 0 };
        'search: for count in 0..=groups {
            let mut policy = linear.keep.clone();
            linear.offload(&mut policy, 0..count);
            if search.interrupted() {
                stop = StopReason::Interrupted;
                break;
            }
            if search.least_live(&policy).is_none_or(|live_bytes| live_bytes > request.live_limit) {
                continue;
            }
            for lead in leads(request.trace.ops().len() as u32) {
                if let Some(reason) = search.stopped() {
                    stop = reason;
                    break 'search;
                }
                search.count();
                policy.prefetch = PrefetchRule::Lead(lead);
                if let Ok(lowered) = lower(request, &policy)
                    && search.improves(&lowered)
                    && forward_never_waits(request, &linear, &lowered)
                {
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

/// 1, 2, 3, 5, 8, … up to the number of ops.
fn leads(ops: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some((1u32, 2u32)), |&(a, b)| Some((b, a.saturating_add(b))))
        .map(|(a, _)| a)
        .take_while(move |&lead| lead <= ops)
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

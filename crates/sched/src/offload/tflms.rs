//! `tflms`: the baseline of Beaumont et al., section 6.1, after TensorFlow Large Model Support. Two parameters: how many activations
//! leave, the first ones, and how many ops before its use an activation is fetched. It rewrites a graph and knows no memory, so it cannot
//! hold a forward op back until there is room: settings in which one would have to wait are refused. Of all others the shortest wins.

use elbowroom_ir::planning::{Request, Scheduler};
use elbowroom_ir::schedule::{Lane, Schedule};
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_ir::{Bytes, Nanos, OpId};
use elbowroom_sim::simulate;

use crate::chain::linearize::Linear;
use crate::lower::{Lowered, least_load, lower};
use crate::policy::FetchRule;
use crate::verdict::refusal;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Tflms;

impl Scheduler for Tflms {
    fn name(&self) -> &'static str {
        "tflms"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let started = std::time::Instant::now();
        let Ok(linear) = Linear::of(request) else { return refusal(request, None, 0) };
        let total = request.costs.total();
        let mut best: Option<Lowered> = None;
        let mut least: Option<Bytes> = None;
        let mut evaluations = 0;
        let mut stop = StopReason::Finished;
        let groups = if request.freedom.offload { linear.groups.len() } else { 0 };
        'search: for count in 0..=groups {
            let mut policy = linear.keep.clone();
            linear.offload(&mut policy, 0..count);
            let Ok((load, _)) = least_load(request, &policy) else { continue };
            least = Some(least.map_or(load, |least| least.min(load)));
            if load > request.load_limit {
                continue;
            }
            for lead in leads(request.trace.ops().len() as u32) {
                let reason = budget.exhausted(evaluations, started);
                let reason = if observer.interrupted() { Some(StopReason::Interrupted) } else { reason };
                if let Some(reason) = reason {
                    stop = reason;
                    break 'search;
                }
                evaluations += 1;
                policy.fetch = FetchRule::Lead(lead);
                if let Ok(lowered) = lower(request, &policy)
                    && best.as_ref().is_none_or(|best| lowered.iteration < best.iteration)
                    && forward_never_waits(request, &linear, &lowered)
                {
                    observer.improved(lowered.iteration.get(), total.get());
                    best = Some(lowered);
                }
            }
            if best.as_ref().is_some_and(|best| best.iteration == total) {
                stop = StopReason::Optimal;
                break;
            }
        }
        match best {
            Some(lowered) => Outcome { best: Some(lowered.schedule), evaluations, stop },
            None => refusal(request, least, evaluations),
        }
    }
}

/// 1, 2, 3, 5, 8, … up to the number of ops.
fn leads(ops: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some((1u32, 2u32)), |&(a, b)| Some((b, a.saturating_add(b))))
        .map(|(a, _)| a)
        .take_while(move |&lead| lead <= ops)
}

/// Whether the ops before the turn run one right after the other.
fn forward_never_waits(request: &Request<'_>, linear: &Linear, lowered: &Lowered) -> bool {
    let Ok(timeline) = simulate(request.trace, request.costs, request.machine, &lowered.schedule) else {
        return false;
    };
    let busy: Nanos = (0..linear.turn).filter_map(|place| request.costs.nanos.get(OpId(place))).sum();
    let compute = timeline.spans.iter().filter(|span| span.lane == Lane::Compute);
    compute.take(linear.turn as usize).last().is_none_or(|span| span.end == busy)
}

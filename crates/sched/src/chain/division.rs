//! Division of a chain into segments that are recomputed: Chen et al. (*Training deep nets with sublinear memory cost*, 2016), section 4.2.
//! The layers are divided into segments of about equal stash. The tensors that a segment hands to the next one are kept; all others are
//! evicted and recomputed in the backward phase. With √n segments of n equal layers memory is O(√n).
//!
//! For every number of segments, the search finds the fewest leading segments that must be recomputed to meet the limit, and keeps the
//! fastest of these schedules. Shared by [`sqrt`](crate::recompute::sqrt) and [`mixed`](crate::mixed::segments).

use std::ops::Range;

use elbowroom_ir::Nanos;
use elbowroom_ir::planning::Request;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

use crate::chain::linearize::Linear;
use crate::chain::segments::{Rerun, Segmenter};
use crate::lower::lower;
use crate::policy::Policy;
use crate::search::Search;
use crate::verdict::refusal;

/// More divisions than this are not tried; they are spread evenly over the possible numbers of segments.
const DIVISIONS: usize = 48;

/// Tries the divisions one after another. With `offload`, what the recomputed segments hand on is offloaded.
pub(crate) fn divide(
    request: &Request<'_>,
    offload: bool,
    budget: &Budget,
    observer: &dyn Observer,
) -> Outcome<Schedule> {
    let Ok(linear) = Linear::of(request) else { return refusal(request, None, 0) };
    let keep = &linear.keep;
    let mut divisions = Divisions { search: Search::new(request, budget, observer), recompute: Nanos::ZERO };
    if !offload && divisions.fits(keep) {
        divisions.take(keep, Nanos::ZERO);
    }
    let mut stop = StopReason::Finished;
    if divisions.search.best().is_none() && request.freedom.recompute {
        let segmenter = Segmenter::new(request.trace, &linear);
        let layers = linear.groups.len();
        let step = layers.div_ceil(DIVISIONS).max(1);
        for segments in (1..=layers).step_by(step) {
            if let Some(reason) = divisions.search.stopped() {
                stop = reason;
                break;
            }
            divisions.division(&segmenter, &even(&linear, segments), offload);
        }
    }
    divisions.search.finish(stop)
}

/// Divides the layers into runs of about equal stash; at most `segments` of them.
fn even(linear: &Linear, segments: usize) -> Vec<Range<usize>> {
    let stashes = &linear.chain.activations[1..];
    let total: u64 = stashes.iter().map(|bytes| bytes.get()).sum();
    let mut runs = Vec::with_capacity(segments);
    let (mut start, mut sum) = (0, 0u128);
    for (index, bytes) in stashes.iter().enumerate() {
        sum += u128::from(bytes.get());
        let due = sum * segments as u128 >= u128::from(total) * (runs.len() as u128 + 1);
        if (due && runs.len() + 1 < segments) || index + 1 == stashes.len() {
            runs.push(start..index + 1);
            start = index + 1;
        }
    }
    runs
}

struct Divisions<'a> {
    search: Search<'a>,
    /// The time that the best schedule spends on recompute.
    recompute: Nanos,
}

impl Divisions<'_> {
    fn fits(&mut self, policy: &Policy) -> bool {
        self.search.count();
        let limit = self.search.request.live_limit;
        self.search.least_live(policy).is_some_and(|live_bytes| live_bytes <= limit)
    }

    fn take(&mut self, policy: &Policy, recompute: Nanos) {
        self.search.count();
        if let Ok(lowered) = lower(self.search.request, policy)
            && self.search.offer(lowered)
        {
            self.recompute = recompute;
        }
    }

    /// Searches for the fewest first segments of a division that must be recomputed.
    fn division(&mut self, segmenter: &Segmenter<'_>, runs: &[Range<usize>], offload: bool) {
        let reruns: Vec<Option<Rerun>> = runs.iter().map(|run| segmenter.rerun(run.clone())).collect();
        let policy = |first: usize| {
            let chosen: Vec<&Rerun> = reruns[..first].iter().flatten().collect();
            let mut policy = segmenter.policy(&chosen);
            if offload {
                segmenter.offload_handed_on(&mut policy, &runs[..first]);
            }
            policy
        };
        if !self.fits(&policy(runs.len())) {
            return;
        }
        // Recomputing more segments need not need less, but nearly always does: the search ends at a number that fits in any case.
        let (mut too_few, mut enough) = (0, runs.len());
        while too_few + 1 < enough {
            let middle = too_few.midpoint(enough);
            if self.fits(&policy(middle)) {
                enough = middle;
            } else {
                too_few = middle;
            }
        }
        let nanos = &self.search.request.costs.nanos;
        let recompute: Nanos = reruns[..enough].iter().flatten().map(|rerun| rerun.time(nanos)).sum();
        // Lowering costs more than asking what fits. Recompute alone takes at least this long; skip what cannot be better.
        if self.search.best().is_none() || offload || recompute < self.recompute {
            self.take(&policy(enough), recompute);
        }
    }
}

//! Division of a chain into segments that are recomputed: Chen et al. (*Training deep nets with sublinear memory cost*, 2016), section 4.2.
//! The layers are divided into segments of about equal stash; only what a segment hands on stays, the rest is dropped and made again in the
//! backward phase. With √n segments of n equal layers memory is O(√n).
//!
//! The number of segments is chosen by what fits: for every number, the fewest first segments that must be recomputed, and of those the
//! one that takes least time. Shared by [`sqrt`](crate::recompute::sqrt) and [`mixed`](crate::mixed::segments).

use std::ops::Range;

use elbowroom_ir::planning::Request;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_ir::{Bytes, Nanos};

use crate::chain::linearize::Linear;
use crate::chain::segments::{Rerun, Segmenter};
use crate::lower::{Lowered, least_load, lower};
use crate::policy::Policy;
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
    let started = std::time::Instant::now();
    let Ok(linear) = Linear::of(request) else { return refusal(request, None, 0) };
    let keep = &linear.keep;
    let mut search = Search { request, best_load: None, evaluations: 0, best: None };
    if !offload && search.fits(keep) {
        search.take(keep, Nanos::ZERO);
    }
    let mut stop = StopReason::Finished;
    if search.best.is_none() && request.freedom.recompute {
        let segmenter = Segmenter::new(request.trace, &linear);
        let layers = linear.groups.len();
        let step = layers.div_ceil(DIVISIONS).max(1);
        for segments in (1..=layers).step_by(step) {
            let reason = budget.exhausted(search.evaluations, started);
            let reason = if observer.interrupted() { Some(StopReason::Interrupted) } else { reason };
            if let Some(reason) = reason {
                stop = reason;
                break;
            }
            search.division(&segmenter, &even(&linear, segments), offload);
            observer.progress(search.evaluations);
        }
    }
    match search.best {
        Some((lowered, _)) => Outcome { best: Some(lowered.schedule), evaluations: search.evaluations, stop },
        None => refusal(request, search.best_load, search.evaluations),
    }
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

struct Search<'a> {
    request: &'a Request<'a>,
    best_load: Option<Bytes>,
    evaluations: u64,
    /// The shortest schedule, with the time that it spends on recompute.
    best: Option<(Lowered, Nanos)>,
}

impl Search<'_> {
    fn fits(&mut self, policy: &Policy) -> bool {
        self.evaluations += 1;
        let Ok((load, _)) = least_load(self.request, policy) else { return false };
        self.best_load = Some(self.best_load.map_or(load, |best| best.min(load)));
        load <= self.request.load_limit
    }

    fn take(&mut self, policy: &Policy, recompute: Nanos) {
        self.evaluations += 1;
        if let Ok(lowered) = lower(self.request, policy)
            && self.best.as_ref().is_none_or(|(best, _)| lowered.iteration < best.iteration)
        {
            self.best = Some((lowered, recompute));
        }
    }

    /// Looks for the fewest first segments of a division that must be recomputed.
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
        let nanos = &self.request.costs.nanos;
        let recompute: Nanos = reruns[..enough].iter().flatten().map(|rerun| rerun.time(nanos)).sum();
        // Lowering costs more than asking what fits. Recompute alone takes at least this long; skip what cannot be better.
        if self.best.as_ref().is_none_or(|&(_, best)| offload || recompute < best) {
            self.take(&policy(enough), recompute);
        }
    }
}

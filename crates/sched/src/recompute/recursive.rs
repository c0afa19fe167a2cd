//! `recursive`: Chen et al., section 4.3. The layers are divided into k + 1 parts, between which k tensors are kept; every part is recomputed
//! when its backward phase begins, and divided in the same way. Memory obeys g(n) = k + g(n / (k + 1)), that is k · log_{k+1} n. In terms of
//! [mirror counts](crate::recompute::mirror), a tensor that is kept between the parts at depth d has count d.
//!
//! The last part of a division needs no further copy: its backward phase follows its forward phase. Several k are tried; the fastest
//! schedule that fits is kept.

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Bytes, Nanos};

use crate::policy::{Policy, SequenceIndex};
use crate::recompute::cuts::Cuts;
use crate::recompute::mirror::Mirrors;
use crate::recompute::repeats::{base, recompute_time};
use crate::recompute::{answer, interrupted, least_bytes};
use crate::verdict::refusal;

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recursive {
    /// The numbers of cuts per division that are tried.
    pub cuts: &'static [usize],
}

impl Recursive {
    /// One to sixteen cuts.
    pub const DEFAULT: Self = Self { cuts: &[1, 2, 4, 8, 16] };
}

impl Default for Recursive {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Planner for Recursive {
    fn name(&self) -> &'static str {
        "recursive"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let keep = Policy::prompt(request.trace);
        let fits = least_bytes(request, &keep).is_some_and(|live_bytes| live_bytes <= request.live_limit);
        if fits || !request.freedom.recompute {
            return answer(request, Some(&keep), 1);
        }
        let trace = request.trace;
        let (_, backward_start) = base(trace);
        let cuts = Cuts::of(trace, backward_start);
        let mut least: Option<Bytes> = None;
        let mut best: Option<(Nanos, Policy)> = None;
        let mut evaluations = 1;
        for candidates in [cuts.single(), cuts.narrow()] {
            for &k in self.cuts {
                if observer.interrupted() {
                    return match best {
                        Some((_, policy)) => interrupted(request, Some(&policy), evaluations),
                        None => refusal(request, least, evaluations),
                    };
                }
                let policy = mirrors(trace, &cuts, &candidates, k).policy(trace);
                evaluations += 1;
                let Some(live_bytes) = least_bytes(request, &policy) else { continue };
                least = Some(least.map_or(live_bytes, |least| least.min(live_bytes)));
                let time = recompute_time(&request.costs.nanos, &policy.sequence);
                if live_bytes <= request.live_limit
                    && best.as_ref().is_none_or(|&(fastest, _)| time < fastest)
                {
                    best = Some((time, policy));
                }
            }
        }
        match best {
            Some((_, policy)) => answer(request, Some(&policy), evaluations),
            None => refusal(request, least, evaluations),
        }
    }
}

/// The counts of a recursive division with k cuts at every depth.
pub fn mirrors(trace: &Trace, cuts: &Cuts, candidates: &[SequenceIndex], k: usize) -> Mirrors {
    // The last place of every layer.
    let mut ends = candidates.to_vec();
    ends.extend(cuts.backward_start.checked_sub(1).filter(|last| ends.last() != Some(last)));
    // Per layer: its own depth, and that of the cut after it.
    let mut depths = vec![(0, u32::MAX); ends.len()];
    let mut todo = vec![(0, ends.len(), 0)];
    while let Some((from, until, depth)) = todo.pop() {
        let layers = until - from;
        if layers <= 1 {
            depths[from..until].iter_mut().for_each(|(own, _)| *own = depth);
            continue;
        }
        let parts = (k.max(1) + 1).min(layers);
        for part in 0..parts {
            let (start, end) = (from + layers * part / parts, from + layers * (part + 1) / parts);
            if part + 1 < parts {
                depths[end - 1].1 = depth;
                todo.push((start, end, depth + 1));
            } else {
                todo.push((start, end, depth));
            }
        }
    }
    let mut mirrors = Mirrors::none(trace);
    for &(value, made, read) in &cuts.forward {
        let layer = ends.partition_point(|&end| end < made);
        let crossed = depths[layer..].iter().zip(&ends[layer..]).take_while(|&(_, &end)| end < read);
        let depth = crossed.map(|(&(_, cut), _)| cut).chain([depths[layer].0]).min();
        mirrors.mark(value, depth.unwrap_or(0));
    }
    mirrors
}

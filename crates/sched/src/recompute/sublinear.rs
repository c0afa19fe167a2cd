//! `sublinear`: Chen et al., Algorithm 3. Cuts the forward phase whenever more than a budget b has been made since the last cut. Tensors that
//! cross a cut are kept; all others are recomputed once, segment by segment.
//!
//! With x the bytes kept and y those of the largest segment when every candidate is cut (b = 0), budgets are searched on two grids:
//! around √(xy), as in the paper, and around √(xy/2), as its released tool does, six steps each from 1/√2 to √2 of that. Candidates
//! are the places where a single tensor crosses, and all local minima of the bytes that cross (recurrent networks have no other). The plan
//! with the least exact peak is kept, whether or not the limit requires it, as in the paper: a user who names a pass wants that pass; `auto`
//! recomputes only as much as the limit requires.

use elbowroom_ir::Bytes;
use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};
use elbowroom_ir::trace::Trace;

use crate::policy::{Policy, SequenceIndex};
use crate::recompute::cuts::Cuts;
use crate::recompute::mirror::Mirrors;
use crate::recompute::repeats::base;
use crate::recompute::{answer, interrupted, least_bytes};

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Sublinear;

impl Planner for Sublinear {
    fn name(&self) -> &'static str {
        "sublinear"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let keep = Policy::prompt(request.trace);
        if !request.freedom.recompute {
            return answer(request, Some(&keep), 1);
        }
        let trace = request.trace;
        let (_, backward_start) = base(trace);
        let cuts = Cuts::of(trace, backward_start);
        let mut best: Option<(Bytes, Policy)> =
            least_bytes(request, &keep).map(|live_bytes| (live_bytes, keep));
        let (mut evaluations, mut tried) = (1, Vec::new());
        for candidates in [cuts.single(), cuts.narrow()] {
            for budget in budgets(trace, &cuts, &candidates) {
                if observer.interrupted() {
                    return interrupted(request, best.as_ref().map(|(_, policy)| policy), evaluations);
                }
                let chosen = divide(&cuts, &candidates, budget);
                if tried.contains(&chosen) {
                    continue;
                }
                let policy = mirrors(trace, &cuts, &chosen).policy(trace);
                tried.push(chosen);
                evaluations += 1;
                if let Some(live_bytes) = least_bytes(request, &policy)
                    && best.as_ref().is_none_or(|&(least, _)| live_bytes < least)
                {
                    best = Some((live_bytes, policy));
                }
            }
        }
        answer(request, best.as_ref().map(|(_, policy)| policy), evaluations)
    }
}

/// Algorithm 3: the candidates at which more than the budget has been made since the last cut.
pub fn divide(cuts: &Cuts, candidates: &[SequenceIndex], budget: u64) -> Vec<SequenceIndex> {
    let (mut chosen, mut made, mut next) = (Vec::new(), 0, 0);
    for &place in candidates {
        made += cuts.stash[next as usize..=place as usize].iter().sum::<u64>();
        next = place + 1;
        if made > budget {
            chosen.push(place);
            made = 0;
        }
    }
    chosen
}

/// Counts of one for every forward tensor that crosses none of the cuts. What is made after the last cut is needed at once and stays.
pub fn mirrors(trace: &Trace, cuts: &Cuts, chosen: &[SequenceIndex]) -> Mirrors {
    let mut mirrors = Mirrors::none(trace);
    let last = chosen.last().map_or(0, |&place| place + 1);
    for &(value, made, read) in &cuts.forward {
        let next = chosen.partition_point(|&cut| cut < made);
        let crosses = chosen.get(next).is_some_and(|&cut| cut < read);
        if made < last && !crosses {
            mirrors.mark(value, 1);
        }
    }
    mirrors
}

/// Both grids.
fn budgets(trace: &Trace, cuts: &Cuts, candidates: &[SequenceIndex]) -> Vec<u64> {
    let every = divide(cuts, candidates, 0);
    let (mut kept, mut largest, mut next) = (0u64, 0, 0);
    for place in every.into_iter().chain(cuts.backward_start.checked_sub(1)) {
        if next <= place {
            largest = largest.max(cuts.stash[next as usize..=place as usize].iter().sum::<u64>());
            // A tensor that crosses several cuts is kept once.
            let new =
                cuts.forward.iter().filter(|&&(_, made, read)| next <= made && made <= place && place < read);
            kept += new.map(|&(value, ..)| trace.bytes(value).get()).sum::<u64>();
            next = place + 1;
        }
    }
    let product = kept as f64 * largest as f64;
    let around =
        |centre: f64| (0..6).map(move |step| (centre * 2f64.powf(f64::from(step) / 5.0 - 0.5)) as u64);
    around(product.sqrt()).chain(around((product / 2.0).sqrt())).collect()
}

//! `bo` and `bo-margin`: Zhang et al., section IV-C. One score that is a weighted sum of the four of [`autoswap`], each standardized;
//! the weights, between −1 and 1, are tuned by Bayesian optimization with a Gaussian process and expected improvement, and the objective
//! is the simulated iteration time. `bo` begins with random weights and updates them about 30 times, as the paper does.
//!
//! `bo-margin` differs in two ways. The first four points are the four scores alone, ranked exactly as their own planners rank them and
//! tried whatever the budget, so the result is never worse than the best of them at the same limit on live memory. And a fifth
//! number is tuned: how far below the limit the selection goes on. Tensors that are offloaded early free memory where copies in progress would
//! delay an op.
//!
//! With a packer (SmartPool, in the paper's combined approach) the objective is the time of a schedule that can be packed: each set of
//! weights lowers the live memory until its schedule can be packed ([`packed`](mod@crate::offload::autoswap::packed)). The observer is told the
//! weights that were chosen and the evaluations at which the best schedule changed.

use elbowroom_ir::Bytes;
use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

use crate::lower::Lowered;
use crate::offload::autoswap::gaussian::Process;
use crate::offload::autoswap::packed::packed;
use crate::offload::autoswap::{self, AutoSwap, Candidate, Score, keep_shorter};
use crate::policy::PrefetchRule;
use crate::search::Search;
use crate::verdict::refusal;

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bo {
    /// Weights tried in all.
    pub evaluations: u64,
    /// Random weights among the first points, after the four scores alone if they are tried.
    pub random: u64,
    /// Points at which expected improvement is compared before each evaluation.
    pub proposals: usize,
    /// Whether the four scores alone come first, and the margin is tuned with the weights.
    pub margin: bool,
    /// Tensors smaller than this are not offloaded; [`threshold`](autoswap::threshold) if there is none.
    pub least: Option<Bytes>,
}

impl Bo {
    /// `bo-margin`: 40 evaluations, the four scores among them.
    pub const DEFAULT: Self =
        Self { evaluations: 40, random: 8, proposals: 1_000, margin: true, least: None };

    /// `bo`: random weights, updated 30 times as in the paper.
    pub const PAPER: Self = Self { evaluations: 31, random: 1, margin: false, ..Self::DEFAULT };
}

impl Default for Bo {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Four weights, and the margin: −1 for none, 1 for [`MARGIN`].
type Weights = [f64; 5];

/// Each score alone.
const CORNERS: u64 = Score::ALL.len() as u64;

/// The largest margin, as a share of the limit.
const MARGIN: f64 = 0.3;

impl Planner for Bo {
    fn name(&self) -> &'static str {
        if self.margin { "bo-margin" } else { "bo" }
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let least = if request.freedom.offload { self.least } else { Some(Bytes::MAX) };
        let corners = if self.margin { CORNERS } else { 0 };
        // Tried whatever the budget.
        let always = corners.max(1);
        let mut convergence = Convergence::default();
        let Ok(swap) = AutoSwap::new(request, least) else { return refusal(request, None, 0) };
        let swap = swap.until(observer);
        let total = request.costs.total();
        let mut random = Random(budget.seed ^ 0x6a09_e667_f3bc_c908);
        let mut tried: Vec<Weights> = Vec::new();
        let mut times: Vec<f64> = Vec::new();
        let mut search = Search::new(request, budget, observer);
        let mut unpacked: Option<Lowered> = None;
        let mut stop = StopReason::Finished;
        for evaluation in 0..self.evaluations.max(always) {
            let reason = search.stopped();
            let reason = reason.filter(|why| evaluation >= always || *why == StopReason::Interrupted);
            if let Some(reason) = reason {
                stop = reason;
                break;
            }
            let mut weights = if evaluation < corners {
                let mut one = [0.0, 0.0, 0.0, 0.0, -1.0];
                one[evaluation as usize] = 1.0;
                one
            } else if evaluation < corners + self.random {
                random.weights()
            } else {
                self.propose(&tried, &times, &mut random)
            };
            if !self.margin {
                weights[4] = -1.0;
            }
            let rank = |candidates: &[Candidate]| {
                if evaluation < corners {
                    // Standardized scores may round to ties that the scores themselves do not have.
                    autoswap::ranking(candidates, |candidate| candidate.scores[evaluation as usize])
                } else {
                    weighed(candidates, &weights)
                }
            };
            search.count();
            tried.push(weights);
            let margin = MARGIN * (weights[4] + 1.0) / 2.0;
            let select = |limit: Bytes, prefetch: PrefetchRule| {
                let target = Bytes((limit.get() as f64 * (1.0 - margin)) as u64);
                swap.select(&rank, limit, target, prefetch)
            };
            match select(request.live_limit, PrefetchRule::Eager) {
                Ok(lowered) => {
                    // Lower live memory hardly ever makes an iteration shorter, so that only what would be the best is packed.
                    if evaluation >= always && !search.improves(&lowered) {
                        times.push(lowered.iteration.get() as f64);
                        continue;
                    }
                    match packed(&mut search, lowered, select) {
                        Ok(lowered) => {
                            times.push(lowered.iteration.get() as f64);
                            if search.offer(lowered) {
                                convergence.improved(evaluation + 1, &weights);
                            }
                        }
                        Err(lowered) => {
                            // Worse than most that can be packed, and better than what exceeds the limit.
                            times.push((lowered.iteration + total).get() as f64);
                            keep_shorter(&mut unpacked, lowered);
                        }
                    }
                }
                Err(live_bytes) => {
                    // Worse than anything that fits, the more so the more is missing.
                    let missing = live_bytes.ratio(request.live_limit).max(1.0);
                    times.push(4.0 * total.get() as f64 * missing);
                    search.reached(live_bytes);
                }
            }
            if search.optimal() {
                stop = StopReason::Optimal;
                break;
            }
        }
        if let Some(said) = convergence.said(self.margin) {
            observer.origin(&said);
        }
        search.finish_or(unpacked, stop)
    }
}

/// The weights of the best schedule, and the evaluations that found a better one.
#[derive(Default)]
struct Convergence {
    improved: Vec<u64>,
    weights: Weights,
}

impl Convergence {
    fn improved(&mut self, evaluation: u64, weights: &Weights) {
        self.improved.push(evaluation);
        self.weights = *weights;
    }

    /// In words; nothing if there is no schedule.
    fn said(&self, margin: bool) -> Option<String> {
        let last = self.improved.last()?;
        let [doa, aoa, wdoa, swdoa, below] = self.weights;
        let mut said = format!(
            "weights {doa:+.2} DOA {aoa:+.2} AOA {wdoa:+.2} WDOA {swdoa:+.2} SWDOA of evaluation {last}"
        );
        if margin {
            said += &format!(", {:.1} % below the limit", 100.0 * MARGIN * (below + 1.0) / 2.0);
        }
        let earlier: Vec<String> =
            self.improved[..self.improved.len() - 1].iter().map(u64::to_string).collect();
        if !earlier.is_empty() {
            said += &format!(" (better ones before: {})", earlier.join(" "));
        }
        Some(said)
    }
}

impl Bo {
    /// The point of greatest expected improvement among random ones, some of them near the best so far.
    fn propose(&self, tried: &[Weights], times: &[f64], random: &mut Random) -> Weights {
        let Some(process) = Process::fit(tried, times) else { return random.weights() };
        let best = (0..times.len()).min_by(|&a, &b| times[a].total_cmp(&times[b])).unwrap_or(0);
        let mut chosen = (f64::NEG_INFINITY, tried[best]);
        for proposal in 0..self.proposals {
            let mut point = random.weights();
            if proposal % 4 == 0 {
                for (coordinate, near) in point.iter_mut().zip(tried[best]) {
                    *coordinate = (near + 0.2 * *coordinate).clamp(-1.0, 1.0);
                }
            }
            let gain = process.expected_improvement(&point, times[best]);
            if gain > chosen.0 {
                chosen = (gain, point);
            }
        }
        chosen.1
    }
}

/// Candidates by the falling weighted sum of their scores, each score with mean 0 and deviation 1.
fn weighed(candidates: &[Candidate], weights: &Weights) -> Vec<usize> {
    let count = candidates.len().max(1) as f64;
    let mut sums = vec![0.0; candidates.len()];
    for (score, weight) in weights[..4].iter().enumerate() {
        let of = |candidate: &Candidate| candidate.scores[score];
        let mean = candidates.iter().map(of).sum::<f64>() / count;
        let variance = candidates.iter().map(|candidate| (of(candidate) - mean).powi(2)).sum::<f64>() / count;
        let deviation = if variance > 0.0 { variance.sqrt() } else { 1.0 };
        for (sum, candidate) in sums.iter_mut().zip(candidates) {
            *sum += weight * (of(candidate) - mean) / deviation;
        }
    }
    let mut ranking: Vec<usize> = (0..candidates.len()).collect();
    ranking.sort_by(|&a, &b| f64::total_cmp(&sums[b], &sums[a]));
    ranking
}

/// SplitMix64 (G. Steele, D. Lea and C. Flood, OOPSLA 2014): the same numbers for a seed on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn weights(&mut self) -> Weights {
        std::array::from_fn(|_| (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0)
    }
}

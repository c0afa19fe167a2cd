//! `bo`: Zhang et al., section IV-C. One score that is a weighted sum of the four of [`autoswap`], each standardized;
//! the weights, between −1 and 1, are tuned by Bayesian optimization with a Gaussian process and expected improvement, and the objective
//! is the simulated iteration time. The first four points are the four scores alone, ranked exactly as their own planners rank them and
//! tried whatever the budget, so the result is never worse than the best of them at the same limit on live memory.
//!
//! With a packer (SmartPool, in the paper's combined approach) the objective is the time of a schedule that can be packed: each set of
//! weights lowers the live memory until its schedule can be packed ([`packed`](mod@crate::offload::autoswap::packed)). Beyond the paper a fifth
//! number is tuned: how far below the limit the selection goes on. Tensors that are offloaded early free memory where copies in progress would
//! delay an op.

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
    /// Weights tried in all, the four scores included; the paper takes about 30.
    pub evaluations: u64,
    /// Random weights among the first points, after the four scores alone.
    pub random: u64,
    /// Points at which expected improvement is compared before each evaluation.
    pub proposals: usize,
}

impl Bo {
    /// 40 evaluations.
    pub const DEFAULT: Self = Self { evaluations: 40, random: 8, proposals: 1_000 };
}

impl Default for Bo {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Four weights, and the margin: −1 for none, 1 for [`MARGIN`].
type Weights = [f64; 5];

/// The first points: each score alone.
const CORNERS: u64 = Score::ALL.len() as u64;

/// The largest margin, as a share of the limit.
const MARGIN: f64 = 0.3;

impl Planner for Bo {
    fn name(&self) -> &'static str {
        "bo"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let least = (!request.freedom.offload).then_some(Bytes::MAX);
        let Ok(swap) = AutoSwap::new(request, least) else { return refusal(request, None, 0) };
        let swap = swap.until(observer);
        let total = request.costs.total();
        let mut random = Random(budget.seed ^ 0x6a09_e667_f3bc_c908);
        let mut tried: Vec<Weights> = Vec::new();
        let mut times: Vec<f64> = Vec::new();
        let mut search = Search::new(request, budget, observer);
        let mut unpacked: Option<Lowered> = None;
        let mut stop = StopReason::Finished;
        for evaluation in 0..self.evaluations.max(CORNERS) {
            let reason = search.stopped();
            let reason = reason.filter(|why| evaluation >= CORNERS || *why == StopReason::Interrupted);
            if let Some(reason) = reason {
                stop = reason;
                break;
            }
            let weights = if evaluation < CORNERS {
                let mut one = [0.0, 0.0, 0.0, 0.0, -1.0];
                one[evaluation as usize] = 1.0;
                one
            } else if evaluation < CORNERS + self.random {
                random.weights()
            } else {
                self.propose(&tried, &times, &mut random)
            };
            let rank = |candidates: &[Candidate]| {
                if evaluation < CORNERS {
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
                    if evaluation >= CORNERS && !search.improves(&lowered) {
                        times.push(lowered.iteration.get() as f64);
                        continue;
                    }
                    match packed(&mut search, lowered, select) {
                        Ok(lowered) => {
                            times.push(lowered.iteration.get() as f64);
                            search.offer(lowered);
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
        search.finish_or(unpacked, stop)
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

//! `doa`, `aoa`, `wdoa`, `swdoa` and `autoswap`: AutoSwap of Zhang et al., section IV.
//!
//! Candidates are pairs of consecutive accesses to one tensor that straddle the peak of the live memory, those that wrap over the iteration's
//! end included; tensors smaller than a threshold are ignored. A score ranks the candidates, and the highest are offloaded until the live
//! memory meets the limit (IV-D). Each is offloaded after its first access and prefetched before its second (IV-E), and ops wait for memory
//! that is not free yet. The four scores (IV-B), with Δ the time of a copy:
//!
//! | score | meaning |
//! | --- | --- |
//! | DOA | duration of absence: time between the accesses − Δout − Δin |
//! | AOA | area of absence: DOA × size; if DOA is negative, DOA ÷ size |
//! | WDOA | integral of the live memory over the time between the accesses |
//! | SWDOA | the same, with live memory, peak and all remaining scores computed anew after each pick |
//!
//! `autoswap` keeps the best schedule of the four; [`bo`] and `bo-margin` tune a combination of the scores. Prefetches start as
//! early as memory permits and, as in the paper, just in time. With a packer, the limit is lowered until the schedule can be packed
//! (`packed`); every schedule that is packed is an evaluation.
//!
//! The live memory that remains when all candidates are offloaded is the paper's load_min. Below it, "variables not only from the candidate
//! variables" must be offloaded, some of them more than once (section VI-B.1): candidates are then computed anew at the place of the current
//! peak, and ranked by the same score, until every place fits.

pub mod bo;
mod gaussian;
pub mod packed;

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, Silent, StopReason};
use elbowroom_ir::{Bytes, OpId};

use crate::lower::analysis::PolicyError;
use crate::lower::{Lowered, least_live, live_memory, lower};
use crate::offload::autoswap::packed::packed;
use crate::policy::{Boundary, Offloadable, Policy, PrefetchRule, SequenceIndex, Touches};
use crate::search::Search;
use crate::verdict::refusal;

/// A priority score of section IV-B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Duration of absence.
    Doa,
    /// Area of absence.
    Aoa,
    /// Weighted duration of absence.
    Wdoa,
    /// Submodular weighted duration of absence.
    Swdoa,
}

impl Score {
    /// All four, in the order of [`Candidate::scores`].
    pub const ALL: [Self; 4] = [Self::Doa, Self::Aoa, Self::Wdoa, Self::Swdoa];
}

/// Two consecutive accesses that straddle the peak.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    part: Offloadable,
    bytes: u64,
    /// Places of the accesses; for one that wraps, the later access comes first in the order.
    from: Option<SequenceIndex>,
    until: Option<SequenceIndex>,
    /// DOA, AOA, WDOA, SWDOA.
    pub scores: [f64; 4],
}

/// The candidates of one trace at one limit: what straddles the peak when everything stays.
pub struct AutoSwap<'a> {
    request: &'a Request<'a>,
    observer: &'a dyn Observer,
    keep: Policy,
    touches: Touches,
    live_bytes: Vec<u64>,
    least: Bytes,
    /// Candidates with their scores.
    pub candidates: Vec<Candidate>,
}

/// Tensors smaller than this are not candidates: 1 MiB as in the paper, or a 256th of the live memory where that is less, so that small networks
/// have candidates too (the smallest network of the paper has a live memory of 389 MB).
pub fn threshold(live_bytes: Bytes) -> Bytes {
    Bytes(live_bytes.get() / 256).min(Bytes(1 << 20))
}

/// Live memory over places and time, with sums up to each place.
struct Areas {
    /// Time at which each place starts; one more for the end.
    starts: Vec<f64>,
    sums: Vec<f64>,
}

impl Areas {
    fn new(request: &Request<'_>, live_bytes: &[u64], sequence: &[OpId]) -> Self {
        let (mut starts, mut sums) = (vec![0.0], vec![0.0]);
        for (place, (&op, &live_bytes)) in sequence.iter().zip(live_bytes).enumerate() {
            let time = request.costs.nanos.get(op).map_or(0, |nanos| nanos.get()) as f64;
            starts.push(starts[place] + time);
            sums.push(sums[place] + time * live_bytes as f64);
        }
        Self { starts, sums }
    }

    /// Time and area between two accesses: from the end of the one to the start of the other, over the end of the iteration if they wrap.
    fn between(&self, from: Option<SequenceIndex>, until: Option<SequenceIndex>, wraps: bool) -> (f64, f64) {
        let end = self.starts.len() - 1;
        let after = from.map_or(0, |place| place as usize + 1);
        let before = until.map_or(end, |place| place as usize);
        let over = |values: &[f64]| {
            if wraps {
                (values[end] - values[after]) + values[before]
            } else {
                values[before] - values[after]
            }
        };
        (over(&self.starts), over(&self.sums))
    }
}

impl<'a> AutoSwap<'a> {
    /// Finds and scores the candidates of at least a size; by default of [`threshold`].
    pub fn new(request: &'a Request<'a>, least: Option<Bytes>) -> Result<Self, PolicyError> {
        let keep = Policy::prompt(request.trace);
        let live_bytes = live_memory(request, &keep)?;
        let highest = live_bytes.iter().copied().max().unwrap_or(0);
        let least = least.unwrap_or_else(|| threshold(Bytes(highest)));
        let places = keep.sequence.len();
        let peak = (0..places).rev().max_by_key(|&place| live_bytes[place]).unwrap_or(0) as SequenceIndex;
        let touches = Touches::of(request.trace, &keep.sequence);
        let mut this =
            Self { request, observer: &Silent, keep, touches, live_bytes, least, candidates: Vec::new() };
        this.candidates = this.candidates_at(peak, least, &this.keep, &this.live_bytes);
        Ok(this)
    }

    /// The same, whose selections end without a schedule when the observer interrupts.
    pub fn until(self, observer: &'a dyn Observer) -> Self {
        Self { observer, ..self }
    }

    /// The paper's load_min: the least live memory with every candidate offloaded and copies that take no time.
    ///
    /// # Errors
    ///
    /// [`PolicyError`] if offloading them together contradicts the trace.
    pub fn load_min(&self) -> Result<Bytes, PolicyError> {
        let mut policy = self.keep.clone();
        for candidate in &self.candidates {
            candidate.offload(&mut policy);
        }
        least_live(self.request, &policy).map(|(live_bytes, _)| live_bytes)
    }

    /// What can be offloaded at a place beyond what a policy offloads, of at least a size, with scores under a profile of live memory.
    fn candidates_at(
        &self,
        peak: SequenceIndex,
        least: Bytes,
        policy: &Policy,
        live_bytes: &[u64],
    ) -> Vec<Candidate> {
        let trace = self.request.trace;
        let mut candidates = Vec::new();
        let mut add = |part, bytes: Bytes, from, until| {
            candidates.push(Candidate { part, bytes: bytes.get(), from, until, scores: [0.0; 4] });
        };
        for value in trace.tensors().ids().filter(|&value| trace.bytes(value) >= least) {
            for (gap, next) in self.touches.gaps(value) {
                if gap.after < Some(peak) && peak < next.place && !policy.gaps.contains_key(&gap) {
                    add(Offloadable::Gap(gap), trace.bytes(value), gap.after, Some(next.place));
                }
            }
        }
        for (index, pair) in trace.persistent().iter().enumerate() {
            let first = self.touches.of_value(pair.begin).first().map(|touch| touch.place);
            let last = self.touches.of_value(pair.end).last().map(|touch| touch.place);
            let straddles = first.is_none_or(|first| peak < first) || last.is_none_or(|last| last < peak);
            if straddles && trace.bytes(pair.begin) >= least && policy.boundaries[index] == Boundary::Device {
                add(Offloadable::Persistent(index), trace.bytes(pair.begin), last, first);
            }
        }
        self.score(&mut candidates, live_bytes);
        candidates
    }

    fn score(&self, candidates: &mut [Candidate], live_bytes: &[u64]) {
        let sequence = &self.keep.sequence;
        let areas = Areas::new(self.request, live_bytes, sequence);
        let machine = self.request.machine;
        for candidate in &mut *candidates {
            let (time, area) = candidate.between(&areas);
            let bytes = Bytes(candidate.bytes);
            let copies = machine.to_host.time(bytes) + machine.to_device.time(bytes);
            let doa = time - copies.get() as f64;
            let size = candidate.bytes as f64;
            let aoa = if doa < 0.0 { doa / size } else { doa * size };
            candidate.scores = [doa, aoa, area, 0.0];
        }
        // Pick by pick, with the live memory that is left by the picks before.
        let mut live_bytes = live_bytes.to_vec();
        let mut left: Vec<usize> = (0..candidates.len()).collect();
        while !left.is_empty() {
            let areas = Areas::new(self.request, &live_bytes, sequence);
            let area = |index: usize| candidates[index].between(&areas).1;
            let best = (0..left.len())
                .max_by(|&a, &b| area(left[a]).total_cmp(&area(left[b])).then(left[b].cmp(&left[a])));
            let Some(best) = best else { break };
            let index = left.swap_remove(best);
            candidates[index].scores[3] = area(index);
            candidates[index].relieve(&mut live_bytes);
        }
    }

    /// Offloads candidates in the order of a ranking until the live memory is at most a target (in the paper, the limit), and lowers the
    /// policy (IV-D, IV-E). If the candidates do not reach the target, the limit will do; if they do not reach that either, candidates
    /// elsewhere follow, ranked in the same way. Without a schedule, returns the least live memory that was reached.
    pub fn select(
        &self,
        rank: &Ranking<'_>,
        limit: Bytes,
        target: Bytes,
        prefetch: PrefetchRule,
    ) -> Result<Lowered, Bytes> {
        let request = &Request { live_limit: limit, ..*self.request };
        let mut policy = Policy { prefetch, ..self.keep.clone() };
        let mut live_bytes = self.live_bytes.clone();
        let mut least = live_bytes.iter().copied().max().map_or(Bytes::ZERO, Bytes);
        for next in rank(&self.candidates) {
            // The estimate ignores that a tensor that is being offloaded cannot pass its buffer on; the analysis of the policy does not.
            if live_bytes.iter().all(|&live_bytes| live_bytes <= target.get().min(limit.get())) {
                let Ok((live_bytes, _)) = least_live(request, &policy) else { return Err(least) };
                least = least.min(live_bytes);
                if live_bytes <= limit {
                    return lower(request, &policy).map_err(|_| least);
                }
            }
            let candidate = &self.candidates[next];
            candidate.relieve(&mut live_bytes);
            candidate.offload(&mut policy);
        }
        self.elsewhere(request, rank, policy, least)
    }

    /// Goes on below load_min: at the highest place, as many candidates as it takes there, and so on until every place fits.
    fn elsewhere(
        &self,
        request: &Request<'_>,
        rank: &Ranking<'_>,
        mut policy: Policy,
        mut least: Bytes,
    ) -> Result<Lowered, Bytes> {
        let limit = request.live_limit;
        loop {
            let Ok(mut live_bytes) = live_memory(request, &policy) else { return Err(least) };
            let Some(peak) = (0..live_bytes.len()).rev().max_by_key(|&place| live_bytes[place]) else {
                return Err(least);
            };
            least = least.min(Bytes(live_bytes[peak]));
            if self.observer.interrupted() {
                return Err(least);
            }
            if live_bytes[peak] <= limit.get() {
                return lower(request, &policy).map_err(|_| least);
            }
            let mut candidates = self.candidates_at(peak as SequenceIndex, self.least, &policy, &live_bytes);
            if candidates.is_empty() && self.least < Bytes::MAX {
                candidates = self.candidates_at(peak as SequenceIndex, Bytes(1), &policy, &live_bytes);
            }
            if candidates.is_empty() {
                return Err(least);
            }
            for next in rank(&candidates) {
                if live_bytes[peak] <= limit.get() {
                    break;
                }
                candidates[next].relieve(&mut live_bytes);
                candidates[next].offload(&mut policy);
            }
        }
    }
}

/// An order of candidates, the first to leave first, by their numbers.
pub type Ranking<'a> = dyn Fn(&[Candidate]) -> Vec<usize> + 'a;

/// Candidates by falling score; ties by number.
pub fn ranking(candidates: &[Candidate], score: impl Fn(&Candidate) -> f64) -> Vec<usize> {
    let mut ranking: Vec<usize> = (0..candidates.len()).collect();
    ranking.sort_by(|&a, &b| score(&candidates[b]).total_cmp(&score(&candidates[a])));
    ranking
}

impl Candidate {
    fn offload(&self, policy: &mut Policy) {
        self.part.offload(policy);
    }

    fn wraps(&self) -> bool {
        matches!(self.part, Offloadable::Persistent(_))
    }

    fn between(&self, areas: &Areas) -> (f64, f64) {
        areas.between(self.from, self.until, self.wraps())
    }

    /// Takes its bytes off the live memory of the places at which it is away.
    fn relieve(&self, live_bytes: &mut [u64]) {
        let after = self.from.map_or(0, |place| place as usize + 1);
        let before = self.until.map_or(live_bytes.len(), |place| place as usize);
        let (first, second) =
            if self.wraps() { (0..before, after..live_bytes.len()) } else { (after..before, 0..0) };
        for place in first.chain(second) {
            live_bytes[place] = live_bytes[place].saturating_sub(self.bytes);
        }
    }
}

/// The planner of one score.
#[derive(Clone, Copy, Debug)]
pub struct ByScore(pub Score);

impl Planner for ByScore {
    fn name(&self) -> &'static str {
        match self.0 {
            Score::Doa => "doa",
            Score::Aoa => "aoa",
            Score::Wdoa => "wdoa",
            Score::Swdoa => "swdoa",
        }
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        best_of(request, &[self.0], None, budget, observer)
    }
}

/// The planner that takes the best of the four scores.
#[derive(Clone, Copy, Debug, Default)]
pub struct BestScore;

impl Planner for BestScore {
    fn name(&self) -> &'static str {
        "autoswap"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        best_of(request, &Score::ALL, None, budget, observer)
    }
}

/// A planner of scores with a threshold of its own in place of [`threshold`].
#[derive(Clone, Copy, Debug)]
struct WithThreshold {
    name: &'static str,
    scores: &'static [Score],
    least: Bytes,
}

impl Planner for WithThreshold {
    fn name(&self) -> &'static str {
        self.name
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        best_of(request, self.scores, Some(self.least), budget, observer)
    }
}

/// The planner of a name of this module whose candidates are tensors of at least this size: `doa`, `aoa`, `wdoa`, `swdoa`, `autoswap`, `bo` or
/// `bo-margin`. Zhang et al., section IV-A: *variables smaller than a threshold are filtered*, 1 MiB there.
pub fn with_threshold(name: &str, least: Bytes) -> Option<Box<dyn Planner>> {
    const ALONE: [&[Score]; 4] = [&[Score::Doa], &[Score::Aoa], &[Score::Wdoa], &[Score::Swdoa]];
    for bo in [bo::Bo::PAPER, bo::Bo::DEFAULT] {
        if bo.name() == name {
            return Some(Box::new(bo::Bo { least: Some(least), ..bo }));
        }
    }
    let alone = ALONE.map(|scores| (ByScore(scores[0]).name(), scores));
    let (name, scores) =
        alone.into_iter().chain([(BestScore.name(), &Score::ALL[..])]).find(|(known, _)| *known == name)?;
    Some(Box::new(WithThreshold { name, scores, least }))
}

fn best_of(
    request: &Request<'_>,
    scores: &[Score],
    least: Option<Bytes>,
    budget: &Budget,
    observer: &dyn Observer,
) -> Outcome<Schedule> {
    let least = if request.freedom.offload { least } else { Some(Bytes::MAX) };
    let Ok(swap) = AutoSwap::new(request, least) else { return refusal(request, None, 0) };
    let swap = swap.until(observer);
    let mut search = Search::new(request, budget, observer);
    // The best of the schedules that no round could pack within the limit: the answer if none could be packed.
    let mut unpacked: Option<Lowered> = None;
    let mut stop = StopReason::Finished;
    for &score in scores {
        // The first score is always tried.
        if search.evaluations() > 0
            && let Some(reason) = search.stopped()
        {
            stop = reason;
            break;
        }
        search.count();
        let rank =
            |candidates: &[Candidate]| ranking(candidates, |candidate| candidate.scores[score as usize]);
        let select = |limit: Bytes, prefetch: PrefetchRule| swap.select(&rank, limit, limit, prefetch);
        match select(request.live_limit, PrefetchRule::Eager) {
            Ok(lowered) => match packed(&mut search, lowered, select) {
                Ok(lowered) => _ = search.offer(lowered),
                Err(lowered) => keep_shorter(&mut unpacked, lowered),
            },
            Err(live_bytes) => search.reached(live_bytes),
        }
    }
    if search.interrupted() {
        stop = StopReason::Interrupted;
    }
    let shortest = search.best().or(unpacked.as_ref());
    let optimal = shortest.is_some_and(|lowered| lowered.iteration == request.costs.total());
    search.finish_or(unpacked, if optimal { StopReason::Optimal } else { stop })
}

/// Keeps a schedule if it is shorter than the one that is kept.
fn keep_shorter(kept: &mut Option<Lowered>, lowered: Lowered) {
    if kept.as_ref().is_none_or(|kept| lowered.iteration < kept.iteration) {
        *kept = Some(lowered);
    }
}

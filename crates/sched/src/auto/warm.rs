//! Warm starts: the schedules of other planners, as decisions from which the search continues, and the best of them as a fallback.

use std::ops::RangeInclusive;
use std::time::Instant;

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::{Action, Schedule};
use elbowroom_ir::search::{Budget, InterruptOnly, Observer, StopReason};
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Bytes, Id, Nanos, OpId};

use super::Auto;
use super::instance::{Instance, NONE};
use super::mincut::Mincut;
use super::relief::{Means, relieved};
use super::search::{can_fit_alone, side_by_side};
use super::sequence::{Decisions, policy};
use super::stream::{self, Stream};
use crate::deadline::Until;
use crate::keep::Keep;
use crate::lower::{Lowered, least_live, lower};
use crate::mixed::pofo::Pofo;
use crate::mixed::segments::Mixed;
use crate::offload::autoswap::BestScore;
use crate::offload::autoswap::bo::Bo;
use crate::offload::dynprog::DynProg;
use crate::offload::floor::Floor;
use crate::offload::greedy::Greedy;
use crate::policy::{Policy, PrefetchRule};
use crate::portfolio::{Entries, Entry, Portfolio};
use crate::recompute::dtr::Dtr;
use crate::recompute::rotor::Rotor;
use crate::recompute::sublinear::Sublinear;

/// Traces of more ops than this are long: an evaluation takes so much time that the search hardly changes what it starts from, so that a better
/// start is worth more than the time it takes.
pub(crate) const LONG: usize = 6_000;
/// The planners, one for each idea, the quickest first, and for which numbers of ops: on longer traces some of them take longer than the
/// search, and on shorter ones the search finds at once what the others do. Numbers of ops and not times, so that evaluations reproduce a
/// search.
static PLANNERS: [(&dyn Planner, RangeInclusive<usize>); 14] = [
    (&Sublinear, 0..=usize::MAX),
    (&Mixed, 0..=usize::MAX),
    (&Greedy, 0..=usize::MAX),
    (&DynProg::DEFAULT, 0..=LONG),
    (&Floor, 0..=usize::MAX),
    (&Mincut::ALONE, 0..=LONG),
    (&Mincut::WITH_LINK, 0..=TAKES_LONG),
    (&Mincut::WITH_LINK_BRIEFLY, TAKES_LONG + 1..=LONG),
    (&Dtr::BRIEF, 0..=6_000),
    (&BestScore, 0..=4_000),
    (&Rotor::COARSE, 0..=800),
    (&Bo::DEFAULT, 0..=800),
    (&Rotor::DEFAULT, LONG + 1..=usize::MAX),
    (&Pofo::COARSE, LONG + 1..=usize::MAX),
];
/// Those that only recompute, which takes long and finds nothing where parameters must leave.
const RECOMPUTE_ONLY: [&str; 3] = ["sublinear", "dtr", "rotor"];
/// Those that only offload and take long, which finds nothing good where a link is much too slow. The quick ones always run: they find something
/// at almost every limit.
const OFFLOAD_ONLY: [&str; 3] = ["dynprog", "autoswap", "bo-margin"];
/// Streamed parameters, where these are much of the trace.
static STREAMS: [Stream; Stream::EACH.len()] = Stream::EACH;
/// Traces of more ops than this get only [`FEW_STREAMS`] of these ways, and fewer of `mincut`: one takes up to half a second at 4,000 ops.
const TAKES_LONG: usize = 2_000;
const FEW_STREAMS: usize = 4;
/// On traces of more ops than this none of them where a limit has become lower: they take longer than the rest of such a search.
const TAKES_LONG_TO_REPAIR: usize = 1_000;
/// Evaluations of each: the search does better with the time.
const EVALUATIONS: u64 = 32;

/// Changes that may be tried to relieve a known schedule within a lower limit: fewer than from nothing, since only a few tensors must leave.
const CHANGES_TO_REPAIR: usize = 10_000;

/// A sequence to start from.
pub(crate) struct WarmStart {
    /// Exact iteration time.
    pub time: u64,
    /// What made it: a planner's name, or [`EARLIER`].
    pub by: &'static str,
    /// Its schedule, if that keeps to the limit whatever its placement.
    pub schedule: Option<Schedule>,
    /// The same as decisions, except for what decisions cannot express.
    pub decisions: Decisions,
}

/// The planners whose schedules are warm starts for a trace.
pub(crate) fn peers(trace: &Trace) -> impl Iterator<Item = &'static dyn Planner> {
    planners(trace).chain(streams(trace))
}

/// Those of them that are worth their time for a request.
fn worthwhile(request: &Request<'_>) -> Vec<&'static dyn Planner> {
    let streams = stream::worth_trying_at(request).then(|| streams(request.trace));
    let needless: &[&str] = match can_fit_alone(request) {
        false => &RECOMPUTE_ONLY,
        true if request.freedom.recompute && link_is_slow(request) => &OFFLOAD_ONLY,
        true => &[],
    };
    let planners = planners(request.trace).filter(|planner| !needless.contains(&planner.name()));
    planners.chain(streams.into_iter().flatten()).collect()
}

/// Whether to prefetch what exceeds the limit takes longer than the whole iteration without a limit.
fn link_is_slow(request: &Request<'_>) -> bool {
    let peak = least_live(request, &Policy::prompt(request.trace)).map_or(Bytes::ZERO, |(peak, _)| peak);
    request.machine.to_device.time(peak.saturating_sub(request.live_limit)) > request.costs.total()
}

fn planners(trace: &Trace) -> impl Iterator<Item = &'static dyn Planner> {
    let ops = trace.ops().len();
    PLANNERS.iter().filter(move |(_, lengths)| lengths.contains(&ops)).map(|&(planner, _)| planner)
}

fn streams(trace: &Trace) -> impl Iterator<Item = &'static dyn Planner> {
    let ops = trace.ops().len();
    let most = match ops {
        _ if ops > LONG || !stream::worth_trying(trace) => 0,
        _ if ops > TAKES_LONG => FEW_STREAMS,
        _ => STREAMS.len(),
    };
    STREAMS.iter().take(most).map(|planner| planner as &dyn Planner)
}

/// The origin of a schedule that the caller knew.
pub(crate) const EARLIER: &str = "an earlier plan";

/// What the planners of the warm starts found.
#[derive(Default)]
pub(crate) struct Starts {
    /// Their schedules, in the order of the planners. A schedule that reaches the bound is the last.
    pub found: Vec<Entry>,
    /// Planners that answered.
    pub answers: u64,
    /// Whether the budget ended before all had answered, so that nothing is left for a search.
    pub cut: Option<StopReason>,
}

/// Runs the [`peers`] until the budget ends: the time, or as many planners as there are evaluations.
pub(crate) fn starts(request: &Request<'_>, bound: u64, budget: &Budget, observer: &dyn Observer) -> Starts {
    let start = Instant::now();
    let all = worthwhile(request);
    let most = budget.evaluations.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let watch = Until::new(observer, budget.time.and_then(|time| start.checked_add(time)));
    let planners = all.iter().take(most).copied().collect();
    let Entries { found, answers, interrupted, .. } =
        ask(planners, request, Some(Nanos(bound)), budget, &watch);
    let reached = found.last().is_some_and(|entry| entry.time.get() <= bound);
    let cut = match interrupted {
        true if observer.interrupted() => Some(StopReason::Interrupted),
        true => Some(StopReason::Time),
        false => (most < all.len() && !reached).then_some(StopReason::Evaluations),
    };
    Starts { found, answers: answers as u64, cut }
}

/// What planners find with [`EVALUATIONS`] each; none is asked once a schedule reaches the bound. The search changes every start, so that none of
/// them need be packed.
fn ask(
    planners: Vec<&'static dyn Planner>,
    request: &Request<'_>,
    bound: Option<Nanos>,
    budget: &Budget,
    observer: &dyn Observer,
) -> Entries {
    // Each may have all threads: the one that takes longest, `mincut` with a link, is among the last, when others are idle.
    let each = Budget { evaluations: Some(EVALUATIONS), time: None, ..budget.clone() };
    let portfolio = Portfolio { planners, budget: each, threads: budget.threads, bound };
    portfolio.run(&Request { packer: None, ..*request }, &InterruptOnly(observer))
}

/// Starts for a search that goes on within a lower limit than that of what is known; `None` if it was interrupted before all of them were made.
pub(crate) fn for_lower_limit(
    request: &Request<'_>,
    inst: &Instance,
    known: &[WarmStart],
    budget: &Budget,
    observer: &dyn Observer,
) -> Option<Vec<WarmStart>> {
    if inst.ops.len() > LONG {
        return Some(Vec::new());
    }
    let mut starts = relieved_all(request, inst, known, budget, observer);
    let quick = inst.ops.len() <= TAKES_LONG_TO_REPAIR && stream::worth_trying_at(request);
    let planners = quick.then(|| streams(request.trace)).into_iter().flatten().collect();
    let entries = ask(planners, request, None, budget, observer);
    starts.extend(entries.found.iter().map(|entry| WarmStart::fitting(inst, entry)));
    (!entries.interrupted && !observer.interrupted()).then_some(starts)
}

/// The known schedules, relieved until they keep to the limit: near the limit of before a few tensors must leave.
fn relieved_all(
    request: &Request<'_>,
    inst: &Instance,
    known: &[WarmStart],
    budget: &Budget,
    observer: &dyn Observer,
) -> Vec<WarmStart> {
    let means = match request.freedom.offload {
        true => Means::with_link(10),
        false => Means::ALONE,
    };
    let means = Means { changes: CHANGES_TO_REPAIR, ..means };
    let mut all: Vec<(&Decisions, Option<Lowered>)> =
        known.iter().map(|known| (&known.decisions, None)).collect();
    side_by_side(&mut all, budget.threads, &|_, (decisions, lowered)| {
        *lowered = relieved(request, inst, decisions, means, &|| observer.interrupted());
    });
    let found = all.into_iter().filter_map(|(_, lowered)| lowered);
    found.map(|lowered| WarmStart::searched(inst, lowered)).collect()
}

impl WarmStart {
    /// A schedule that keeps to the limit.
    pub(crate) fn fitting(inst: &Instance, entry: &Entry) -> Self {
        let Entry { planner, time, schedule } = entry;
        let (time, by) = (time.get(), planner.name());
        Self { time, by, decisions: decisions(inst, schedule), schedule: Some(schedule.clone()) }
    }

    /// A schedule of the search itself that keeps to the limit.
    fn searched(inst: &Instance, Lowered { schedule, iteration, .. }: Lowered) -> Self {
        let decisions = decisions(inst, &schedule);
        Self { time: iteration.get(), by: Auto.name(), schedule: Some(schedule), decisions }
    }

    /// A schedule made for whatever limit and placement: what it decides, in the instance's order, if it can be simulated.
    pub(crate) fn known(
        request: &Request<'_>,
        inst: &Instance,
        schedule: &Schedule,
        by: &'static str,
    ) -> Option<Self> {
        let predicted = elbowroom_sim::simulate(request.trace, request.costs, request.machine, schedule);
        let time = predicted.ok()?.iteration.get();
        let decisions = decisions(inst, schedule);
        Some(match lower(request, &policy(request, inst, &decisions)) {
            Ok(lowered) => {
                Self { time: lowered.iteration.get(), by, schedule: Some(lowered.schedule), decisions }
            }
            Err(_) => Self { time, by, schedule: None, decisions },
        })
    }

    /// The instance's order with every tensor kept, if that fits.
    pub(crate) fn kept(request: &Request<'_>, inst: &Instance) -> Option<Self> {
        let decisions = Decisions::KEEP;
        let lowered = lower(request, &policy(request, inst, &decisions)).ok()?;
        let by = Keep.name();
        Some(Self { time: lowered.iteration.get(), by, schedule: Some(lowered.schedule), decisions })
    }
}

/// What a schedule decides: which ops are recomputed before which op, and for which runs it prefetches tensors.
fn decisions(inst: &Instance, schedule: &Schedule) -> Decisions {
    let mut number = vec![NONE; inst.ops.len()];
    for (index, op) in (0u32..).zip(&inst.order) {
        number[op.index()] = index;
    }
    let number = |op: OpId| number[op.index()];
    // The stage of a run is the next op that runs for the first time.
    let mut stages = vec![NONE; schedule.steps.len()];
    let mut stage = NONE;
    for (id, step) in schedule.steps.iter().rev() {
        if let Action::Compute(launch) = &step.action {
            stage = number(launch.op);
        }
        stages[id.index()] = stage;
    }
    let mut repeats = Vec::new();
    let mut prefetches = Vec::new();
    // Prefetched and not read since, by tensor.
    let mut pending = vec![false; inst.values.len()];
    for (id, step) in schedule.steps.iter() {
        let stage = stages[id.index()];
        match &step.action {
            Action::Recompute(launch) if stage != NONE => repeats.push((stage, number(launch.op))),
            Action::Prefetch { tensor, .. } => pending[tensor.index()] = true,
            _ => {}
        }
        if let Some(launch) = step.action.launch()
            && stage != NONE
        {
            let op = number(launch.op);
            for &value in &inst.ops[op as usize].reads {
                if std::mem::take(&mut pending[value as usize]) {
                    prefetches.push((value, stage, op));
                }
            }
        }
    }
    repeats.sort_unstable();
    repeats.dedup();
    prefetches.sort_unstable();
    prefetches.dedup();
    Decisions { repeats, prefetches, rule: PrefetchRule::Eager }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planners_that_are_left_out_are_named_as_they_are_called() {
        let known = |name: &&str| PLANNERS.iter().any(|(planner, _)| planner.name() == *name);
        assert!(RECOMPUTE_ONLY.iter().chain(&OFFLOAD_ONLY).all(known));
    }
}

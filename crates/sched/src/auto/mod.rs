//! `auto`: the joint planner, the default. Searches, until its budget ends and on any trace, for the gaps in which tensors are kept, offloaded
//! or evicted.
//!
//! - `instance`: the request in flat tables.
//! - `order`: another order of the ops, if the caller allows it.
//! - `state`: a sequence with recomputed ops and its live memory, evaluated incrementally and exactly.
//! - `moves`: reversible changes of a state.
//! - `groups`: persistent tensors that move together.
//! - `anneal`: a walk over recompute alone; the evaluation of the state is exact.
//! - `window`: a few recomputed ops at a time, solved exactly.
//! - `joint`: a walk over recompute and copies, judged by the exact iteration time.
//! - `search`: several walks in parallel, with the same result on any number of threads.
//! - `copies`: the order of the copies, once the sets are decided.
//! - `warm`: warm starts, and the best of them as a fallback.
//! - `relief`: another fallback, greedy, where none of these is good.
//! - [`mincut`]: a planner of its own, and a warm start: what the lower bound recomputes.
//! - [`stream`]: a planner of its own, and a warm start: parameters that are streamed.
//! - `sequence`: from decisions to a policy.
//!
//! An evaluation is one move of one walk; a descent over orders of copies is not counted. A budget with fewer evaluations than there are warm
//! starts makes that many warm starts and no move: this reproduces a search whose time ended among them.

mod anneal;
mod copies;
mod groups;
mod instance;
mod joint;
pub mod mincut;
mod moves;
mod order;
mod relief;
mod search;
mod sequence;
mod state;
pub mod stream;
mod warm;
mod window;

use std::time::Instant;

use elbowroom_ir::planning::{Known, Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Bytes, OpId};
use elbowroom_sim::bound::lower_bound;

use crate::keep::Keep;
use crate::lower::{least_live, lower};
use crate::policy::Policy;
use crate::portfolio::Entry;
use crate::verdict::impossible_op;
use instance::Instance;
use mincut::Mincut;
use search::SearchResult;
use sequence::Decisions;
use warm::{EARLIER, Starts, WarmStart};

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Auto;

impl Planner for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn peers(&self, trace: &Trace) -> Vec<&'static dyn Planner> {
        warm::peers(trace).collect()
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        self.schedule_from(request, Known::default(), budget, observer)
    }

    fn schedule_from(
        &self,
        request: &Request<'_>,
        known: Known<'_>,
        budget: &Budget,
        observer: &dyn Observer,
    ) -> Outcome<Schedule> {
        search_from(request, known, budget, observer)
    }
}

/// The phases of the planner. A bound that is known is not computed: that of a deep network takes as long as a whole short round.
fn search_from(
    request: &Request<'_>,
    Known { schedules: known, bound, horizon }: Known<'_>,
    budget: &Budget,
    observer: &dyn Observer,
) -> Outcome<Schedule> {
    let start = Instant::now();
    if let Some(proof) = impossible_op(request) {
        return Outcome { best: None, evaluations: 1, stop: StopReason::Infeasible(Box::new(proof)) };
    }
    let plain = Policy::prompt(request.trace);
    let least = least_live(request, &plain).ok().map(|(live_bytes, _)| live_bytes);
    let bound = bound.unwrap_or_else(|| lower_bound(request)).get();
    if let Ok(lowered) = lower(request, &plain)
        && lowered.iteration.get() <= bound
    {
        observer.origin(Keep.name());
        return Outcome { best: Some(lowered.schedule), evaluations: 1, stop: StopReason::Optimal };
    }
    let relaxed = request.freedom.reorder.then(|| order::relaxed(request, &plain.sequence));
    let relaxed = relaxed.filter(|relaxed| *relaxed != plain.sequence);
    // A search that goes on is one of several: those without the freedom to reorder keep the trace's order.
    let (order, relaxed) = match relaxed {
        Some(relaxed) if horizon.is_some() => (relaxed, None),
        relaxed => (plain.sequence, relaxed),
    };
    let Starts { found: starts, answers, cut } = match horizon {
        Some(_) => Starts::default(),
        None => warm::starts(request, bound, budget, observer),
    };
    let inst = Instance::new(request, order);
    let mut warm: Vec<WarmStart> = starts.iter().map(|entry| WarmStart::fitting(&inst, entry)).collect();
    let known = known.iter().filter_map(|schedule| WarmStart::known(request, &inst, schedule, EARLIER));
    warm.extend(known);
    // A search that goes on knows starts, but perhaps none for a limit that has become lower.
    if horizon.is_some() && warm.iter().all(|warm| warm.schedule.is_none()) {
        let Some(starts) = warm::for_lower_limit(request, &inst, &warm, budget, observer) else {
            // No number of evaluations repeats a search without some of its starts.
            return Outcome { best: None, evaluations: 0, stop: StopReason::Interrupted };
        };
        warm.extend(starts);
    }
    // What the starts took counts too.
    let left = budget.time.map(|time| time.saturating_sub(start.elapsed()));
    let time = left.map(|left| if relaxed.is_some() { left / 2 } else { left });
    let share = Budget { time, ..budget.clone() };
    let phase = Phase { horizon, bound, answers, cut };
    let mut found = in_order(request, &inst, warm, phase, &share, observer);
    if let Some(order) = relaxed {
        found = found.or_in_order(request, order, &starts, (horizon, bound), budget, observer);
    }
    found.into_outcome(least, observer)
}

/// A schedule with its iteration time and what found it.
struct Found {
    time: u64,
    schedule: Schedule,
    by: &'static str,
}

/// What was found for the orders tried so far.
struct OrderResult {
    found: Option<Found>,
    evaluations: u64,
    stop: StopReason,
    /// Whether the budget ended among the warm starts.
    cut: bool,
}

/// What a search with the ops in one order is told.
struct Phase {
    /// The evaluations of a search that goes on.
    horizon: Option<u64>,
    /// No iteration can be shorter.
    bound: u64,
    /// Planners of the warm starts that answered, and whether the budget ended before all had.
    answers: u64,
    cut: Option<StopReason>,
}

/// Searches with the ops in the order of an instance.
fn in_order(
    request: &Request<'_>,
    inst: &Instance,
    mut warm: Vec<WarmStart>,
    Phase { horizon, bound, answers, cut }: Phase,
    budget: &Budget,
    observer: &dyn Observer,
) -> OrderResult {
    warm.sort_by_key(|warm| warm.time);
    let mut fallback = warm
        .iter()
        .find_map(|warm| Some(Found { time: warm.time, schedule: warm.schedule.clone()?, by: warm.by }));
    let good = warm.iter().any(|warm| {
        warm.by != Mincut::DEFAULT.name() && warm.schedule.is_some() && warm.time / 3 < inst.total / 2
    });
    if !good && cut.is_none() && horizon.is_none() {
        // Neither is what `mincut` relieves better everywhere than what is relieved from nothing, nor the other way round. No start for the
        // walks: around it they found slower schedules than around nothing.
        let relieved = relief::schedule(request, inst);
        fallback = fallback.into_iter().chain(relieved).min_by_key(|found| found.time);
    }
    if let Some(fallback) = &fallback {
        observer.improved(fallback.time, bound);
    }
    let SearchResult { best, joint, evaluations, stop } = match &fallback {
        Some(fallback) if fallback.time <= bound => {
            SearchResult::without_search(answers.max(1), StopReason::Optimal)
        }
        _ => match &cut {
            Some(stop) => SearchResult::without_search(answers, stop.clone()),
            None => search::search(request, inst, &warm, (horizon, bound), budget, observer),
        },
    };
    // Another set of copies may have the better order.
    let found = best.iter().chain(&joint).map(|(_, decisions)| decisions);
    let found: Vec<&Decisions> = match best {
        Some(_) => found.chain(warm.iter().map(|warm| &warm.decisions)).collect(),
        None => Vec::new(),
    };
    let left = copies::evaluations(evaluations, inst.ops.len());
    let ordered = in_best_order(request, inst, &found, bound, left);
    let searched = ordered.and_then(|policy| {
        let lowered = lower(request, &policy).ok()?;
        let time = lowered.iteration.get();
        // What the search did not improve on is the warm start's.
        let equal = fallback.as_ref().filter(|fallback| fallback.time <= time);
        let by = equal.map_or(Auto.name(), |fallback| fallback.by);
        Some(Found { time, schedule: lowered.schedule, by })
    });
    let found = searched.into_iter().chain(fallback).min_by_key(|found| found.time);
    OrderResult { found, evaluations: evaluations.max(answers), stop, cut: cut.is_some() }
}

/// The policy of the decisions that are the fastest with the best order of their copies. `found` begins with the fastest in the order of
/// their ops.
fn in_best_order(
    request: &Request<'_>,
    inst: &Instance,
    found: &[&Decisions],
    bound: u64,
    mut left: u64,
) -> Option<Policy> {
    let mut best: Option<(u64, Policy)> = None;
    for (index, decisions) in found.iter().enumerate() {
        let proved = best.as_ref().is_some_and(|(time, _)| *time <= bound);
        if index > 0 && (proved || left == 0) {
            break;
        }
        if found[..index].contains(decisions) {
            continue;
        }
        let ordered =
            copies::reordered(request, sequence::policy(request, inst, decisions), bound, &mut left);
        if let Some((time, policy)) = ordered
            && best.as_ref().is_none_or(|(shortest, _)| time < *shortest)
        {
            best = Some((time, policy));
        }
    }
    let (time, policy) = best?;
    let annealed = copies::annealed(request, &policy, (time, bound), &mut left);
    Some(annealed.map_or(policy, |(_, annealed)| annealed))
}

impl OrderResult {
    /// Searches with the ops in another order too, as many evaluations as with the first, and keeps the better: so the freedom to reorder
    /// never makes a plan worse.
    fn or_in_order(
        self,
        request: &Request<'_>,
        order: Vec<OpId>,
        starts: &[Entry],
        (horizon, bound): (Option<u64>, u64),
        budget: &Budget,
        observer: &dyn Observer,
    ) -> Self {
        if self.cut || matches!(self.stop, StopReason::Optimal | StopReason::Interrupted) {
            return self;
        }
        let inst = Instance::new(request, order);
        let own = self.found.iter().map(|found| (&found.schedule, found.by));
        let schedules = own.chain(starts.iter().map(|entry| (&entry.schedule, entry.planner.name())));
        let mut warm: Vec<WarmStart> =
            schedules.filter_map(|(schedule, by)| WarmStart::known(request, &inst, schedule, by)).collect();
        warm.extend(WarmStart::kept(request, &inst));
        let budget = Budget { evaluations: Some(self.evaluations), time: None, ..budget.clone() };
        let phase = Phase { horizon, bound, answers: 0, cut: None };
        let other = in_order(request, &inst, warm, phase, &budget, observer);
        let stop = match other.stop {
            StopReason::Evaluations => self.stop,
            stop => stop,
        };
        let found = self.found.into_iter().chain(other.found).min_by_key(|found| found.time);
        Self { found, evaluations: self.evaluations, stop, cut: false }
    }

    /// The answer for a limit at which no op proves that there is no schedule.
    fn into_outcome(self, least: Option<Bytes>, observer: &dyn Observer) -> Outcome<Schedule> {
        let Self { found, evaluations, stop, .. } = self;
        match found {
            Some(Found { schedule, by, .. }) => {
                observer.origin(by);
                Outcome { best: Some(schedule), evaluations, stop }
            }
            None => Outcome { best: None, evaluations, stop: StopReason::GaveUp { best: least } },
        }
    }
}

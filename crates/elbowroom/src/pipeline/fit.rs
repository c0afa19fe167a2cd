//! A schedule with a placement that fits: planners promise live memory, the pipeline promises arena size.
//!
//! Each round packs the schedule of the planner. If the arena size exceeds the limit, the next round lowers the limit on live memory and
//! plans again. Planners whose schedules are never slower than those of their peers could lose that property in packing, because a peer's
//! schedule may fit where their own does not. So if the first schedule does not fit, the peers run as well, each down to the live memory at
//! which it fits, and the fastest schedule of all is taken. As soon as a schedule that fits reaches the lower bound on the iteration time, nothing
//! else is searched.
//!
//! Under a time limit, planners that continue from what others found make a [`series`] of rounds instead. In both, the clock ends planning in a
//! round, packing, and the searches of peers. Each stop is recorded in [`Evaluations`], which reproduce the plan: a search that was stopped
//! without a record contributes nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use elbowroom_ir::Nanos;
use elbowroom_ir::packing::{Packer, Placement};
use elbowroom_ir::planning::Planner;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, InterruptOnly, Observer, StopReason};
use elbowroom_pack::BestFit;
use elbowroom_sched::auto::mincut::Mincut;
use elbowroom_sched::deadline::Until;
use elbowroom_sched::lower::waits;
use elbowroom_sched::offload::floor::Floor;
use elbowroom_sched::recompute::sublinear::Sublinear;

use super::clock::Clock;
use super::descent::Descent;
use super::evaluations::Evaluations;
use super::series::series;
use super::{AT_ONCE, Method, PlanError, Rounds, Task, bound_of_ops, simulate};

/// A schedule with a placement that fits the limit, not yet checked.
pub(super) struct Fitted {
    pub schedule: Schedule,
    pub placement: Placement,
    pub stop: StopReason,
    /// The planner that found the schedule, or the part of it that it named.
    pub found_by: String,
    /// Whether the recorded evaluations reproduce it.
    pub reproducible: bool,
}

impl Fitted {
    /// The iteration time of the plan, which has fewer waits than the schedule: only those that this placement needs.
    pub(super) fn time(&self, task: &Task) -> Nanos {
        let mut schedule = self.schedule.clone();
        waits::thin(&mut schedule, &self.placement);
        simulate(task, &schedule).iteration
    }
}

/// Returns a schedule with a placement that fits, and the evaluations that reproduce it. The `known` schedules are warm starts if the planner
/// takes any. If the first schedule does not fit, the result is the fastest of the planner's later rounds, its short search, and the searches
/// of its peers, time permitting. With [`Rounds::AtOnce`], no searches follow the rounds.
pub(super) fn fit(
    task: &Task,
    method: &Method<'_>,
    known: &[&Schedule],
    observer: &dyn Observer,
) -> (Result<Fitted, PlanError>, Evaluations) {
    let clock = Clock::start(method);
    let mut recorded = Evaluations::default();
    let bound = bound_of_ops(task);
    if continues(task, method, clock) {
        let safe = clock.time.and_then(|_| safe_plan(task, method, clock, observer));
        let (found, recorded) = series(task, method, clock, known, bound, observer);
        return faster_or_safe(task, found, safe, recorded);
    }
    let mut descent = Descent::new(task, method, clock, known, Some(bound));
    descent.first = true;
    // Before the rounds, which may use up all the time.
    let safe = match clock.time {
        Some(_) => safe_plan(task, method, clock, observer),
        None => None,
    };
    let mut best = descent.run(observer);
    let mut cut = descent.cut;
    recorded.rounds = descent.rounds;
    let in_one_round = best.is_ok() && recorded.rounds.len() == 1;
    let impossible = matches!(best, Err(PlanError::Infeasible { .. }));
    let reached = |best: &Result<Fitted, _>| best.as_ref().is_ok_and(|best| best.time(task) <= bound);
    if in_one_round || impossible || matches!(method.rounds, Rounds::AtOnce) || reached(&best) {
        return or_safe(best, safe, recorded);
    }
    let most = match &method.rounds {
        Rounds::Recorded(given) => given.peer_searches,
        _ => None,
    };
    let each = match &method.rounds {
        Rounds::Recorded(given) => given.peer_evaluations,
        _ => method.budget.evaluations,
    };
    let each = each.map_or(AT_ONCE, |evaluations| evaluations.min(AT_ONCE));
    // A single number without this would be read as the budget of these searches too.
    recorded.peer_evaluations = (each < AT_ONCE || recorded.rounds.len() == 1).then_some(each);
    let mut finished = 0;
    for other in peer_searches(task, method, &recorded, best.is_ok(), !known.is_empty()) {
        let watch = Until::new(observer, clock.end_of_all());
        if most.is_some_and(|most| finished >= most) || watch.interrupted() {
            cut |= watch.cut();
            break;
        }
        let PeerSearch { planner, evaluations, rounds } = other;
        let budget = Budget { evaluations: Some(evaluations), time: None, ..method.budget.clone() };
        let quick = Method { planner, budget, rounds, ..method.clone() };
        let clock = Clock::start(&quick);
        let mut descent = Descent::new(task, &quick, clock, &[], Some(bound));
        descent.sparing = method.rounds == Rounds::Sparing;
        let found = descent.run(&InterruptOnly(&watch));
        if watch.cut() {
            cut = true;
            break;
        }
        finished += 1;
        if let Ok(other) = found
            && best.as_ref().map_or(true, |best| other.time(task) < best.time(task))
        {
            // The search as a whole ended as the planner's own rounds did, unless this settles it.
            let stop = match &best {
                Ok(own) if other.stop != StopReason::Optimal => own.stop.clone(),
                _ => other.stop,
            };
            best = Ok(Fitted { stop, ..other });
        }
        if reached(&best) {
            break;
        }
    }
    recorded.peer_searches = if cut { Some(finished) } else { most };
    if method.rounds == Rounds::Sparing {
        best = best.map(|best| Fitted { reproducible: false, ..best });
    }
    // A record without a plan of its own stands for the safe one.
    let safe = safe.or_else(|| match (&best, most) {
        (Err(PlanError::GaveUp { .. }), Some(_)) => safe_plan(task, method, clock, observer),
        _ => None,
    });
    or_safe(best, safe, recorded)
}

/// Whether the rounds are a [`series`]: under a time limit alone, for a planner that continues from what others found, or where the record is of
/// one. A series chooses the evaluations of its rounds, so that it cannot keep to a budget of evaluations.
fn continues(task: &Task, method: &Method<'_>, clock: Clock) -> bool {
    match &method.rounds {
        Rounds::Recorded(recorded) => recorded.continued,
        Rounds::AsNeeded => {
            let by_time_alone = clock.time.is_some() && method.budget.evaluations.is_none();
            by_time_alone && !method.planner.peers(&task.trace).is_empty()
        }
        Rounds::AtOnce | Rounds::Sparing => false,
    }
}

/// The rounds' plan, or the safe one if that is faster.
fn faster_or_safe(
    task: &Task,
    found: Result<Fitted, PlanError>,
    safe: Option<Fitted>,
    recorded: Evaluations,
) -> (Result<Fitted, PlanError>, Evaluations) {
    match (found, safe) {
        (Ok(found), Some(safe)) if safe.time(task) < found.time(task) => (Ok(safe), Evaluations::at_once()),
        (found, safe) => or_safe(found, safe, recorded),
    }
}

/// A short search of one planner.
pub(super) fn at_once(task: &Task, method: &Method<'_>, observer: &dyn Observer) -> Option<Fitted> {
    Descent::new(task, method, Clock::start(method), &[], None).run(observer).ok()
}

/// Under a time limit: a plan that is found at once, for a planner that is never slower than its peers but may not come to an end in time. It is
/// the faster of two with a quick packer, `floor` and `mincut`'s first way (`sublinear` where a trace is too long for that), or where neither
/// fits the first that a short search of a peer finds in half of the time. The second may take three quarters: where it takes as long, the trace is
/// so long that no search gets far in what is left. A search that the clock ends gives none, so that it is the same for
/// every time limit that suffices, and a record without a plan of its own reproduces it.
fn safe_plan(task: &Task, method: &Method<'_>, clock: Clock, observer: &dyn Observer) -> Option<Fitted> {
    let peers = method.planner.peers(&task.trace);
    let named = |name| peers.iter().copied().find(|peer| peer.name() == name);
    let floor = named(Floor.name())?;
    let again = named(Mincut::DEFAULT.name()).or_else(|| named(Sublinear.name()));
    let cut = AtomicBool::new(false);
    let found = |planner, packer: &dyn Packer, evaluations, quarters| {
        let budget = Budget { evaluations: Some(evaluations), time: None, ..method.budget.clone() };
        let quick = Method { planner, packer, budget, rounds: Rounds::AtOnce, placed: Vec::new() };
        let watch = Until::new(observer, clock.end_of_safe(quarters));
        let found = if watch.interrupted() { None } else { at_once(task, &quick, &InterruptOnly(&watch)) };
        let whole = !watch.cut() && !observer.interrupted();
        cut.fetch_or(!whole, Ordering::Relaxed);
        found.filter(|_| whole)
    };
    let copies = || found(floor, &BestFit, 1, 2);
    let repeats = || again.and_then(|again| found(again, &BestFit, 1, 3));
    let both = match method.budget.threads {
        0..=1 => [copies(), repeats()],
        _ => std::thread::scope(|scope| {
            let repeats = scope.spawn(repeats);
            [copies(), repeats.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))]
        }),
    };
    let safe = both.into_iter().flatten().min_by_key(|fitted| fitted.time(task));
    // With more time the other one might have been faster.
    let reproducible = !cut.load(Ordering::Relaxed);
    let safe = safe.map(|fitted| Fitted { reproducible, ..fitted });
    let safe = safe.or_else(|| peers.iter().find_map(|&peer| found(peer, method.packer, AT_ONCE, 2)));
    safe.map(|fitted| Fitted { stop: StopReason::Time, ..fitted })
}

/// The safe plan where nothing else was found. It is made before everything else and does not depend on the clock, so that a record of
/// nothing else reproduces it.
fn or_safe(
    best: Result<Fitted, PlanError>,
    safe: Option<Fitted>,
    recorded: Evaluations,
) -> (Result<Fitted, PlanError>, Evaluations) {
    match (best, safe) {
        (Err(PlanError::GaveUp { .. }), Some(safe)) => (Ok(safe), Evaluations::at_once()),
        (best, _) => (best, recorded),
    }
}

/// A short search with another planner, or with other rounds.
struct PeerSearch<'a> {
    planner: &'a dyn Planner,
    evaluations: u64,
    rounds: Rounds,
}

/// The searches that follow if the first schedule does not fit, in order. If no plan `is_found` yet, its peers and the planner with short
/// packing attempts come first; then all of them with longer attempts.
fn peer_searches<'a>(
    task: &Task,
    method: &Method<'a>,
    recorded: &Evaluations,
    is_found: bool,
    started_from_known: bool,
) -> Vec<PeerSearch<'a>> {
    let most = recorded.rounds.iter().map(|round| round.planner).max().unwrap_or_default();
    let own =
        PeerSearch { planner: method.planner, evaluations: most.min(AT_ONCE), rounds: Rounds::AsNeeded };
    let each = recorded.peer_evaluations.unwrap_or(AT_ONCE);
    let rounds = if method.rounds == Rounds::Sparing { Rounds::Sparing } else { Rounds::AsNeeded };
    let peer = |planner| PeerSearch { planner, evaluations: each, rounds: rounds.clone() };
    let peers = method.planner.peers(&task.trace).into_iter().map(peer);
    let all: Vec<PeerSearch<'a>> = std::iter::once(own).chain(peers).collect();
    // While there is no plan, the quick planners come before the search.
    let at_once = all[1..].iter().chain(&all[..1]).filter(|_| !is_found);
    let at_once: Vec<PeerSearch<'a>> =
        at_once.map(|other| PeerSearch { rounds: Rounds::AtOnce, ..*other }).collect();
    // A budget of at most AT_ONCE evaluations made the rounds that have just failed identical to the short search.
    let same = matches!(method.rounds, Rounds::AsNeeded | Rounds::Sparing)
        && method.budget.evaluations.is_some_and(|evaluations| evaluations <= AT_ONCE)
        && method.budget.time.is_none()
        && !started_from_known;
    at_once.into_iter().chain(all.into_iter().skip(usize::from(same))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use elbowroom_graph::zoo::Options;
    use elbowroom_ir::packing::Problem;
    use elbowroom_ir::planning::{Costs, Freedom};
    use elbowroom_ir::search::{Outcome, Silent};
    use elbowroom_ir::{ActionId, Bytes};
    use elbowroom_sched::auto::Auto;
    use elbowroom_sched::keep::Keep;
    use elbowroom_sched::offload::dynprog::DynProg;
    use elbowroom_sched::offload::greedy::Greedy;
    use elbowroom_sim::cost::Roofline;
    use elbowroom_sim::liveness;

    use super::*;
    use crate::pipeline::request;

    #[test]
    fn the_safe_plan_is_compared_without_the_waits_that_its_placement_drops() {
        let graph = elbowroom_graph::zoo::build("resnet20", &Options::new(8)).unwrap();
        let machine = elbowroom_sim::presets::machine("gtx1080ti").unwrap();
        let trace = elbowroom_engine::trace(&graph).unwrap();
        let costs = Costs::estimate(&trace, &Roofline::new(&machine));
        let task = Task { trace: Arc::new(trace), costs, machine, freedom: Freedom::ALL, pins: None };
        let keep = Keep.schedule(&request(&task, Bytes(u64::MAX)), &Budget::default(), &Silent).best.unwrap();
        let peak = liveness::problem(&keep, &task.machine).peak_live();
        let fitted = |schedule: &Schedule, placement| Fitted {
            schedule: schedule.clone(),
            placement,
            stop: StopReason::Finished,
            found_by: String::new(),
            reproducible: true,
        };
        // Packed tightly, buffers share bytes and copies wait; far apart they share none.
        let both = |(planner, percent): (&dyn Planner, u64)| {
            let request = request(&task, Bytes(peak.get() / 100 * percent));
            let schedule = planner.schedule(&request, &Budget::evaluations(100), &Silent).best?;
            let problem = liveness::problem(&schedule, &task.machine);
            let tight = BestFit.pack(&problem, &Budget::default(), &Silent).best?;
            let mut top = Bytes::ZERO;
            let apart = problem.blocks.values().map(|block| {
                let offset = top;
                top += block.size.align_up(task.machine.align);
                offset
            });
            let apart = Placement::new(&problem, apart.collect());
            Some([fitted(&schedule, tight), fitted(&schedule, apart)])
        };
        let planners: [&dyn Planner; 3] = [&Greedy, &Floor, &DynProg::DEFAULT];
        let mut pairs =
            planners.into_iter().flat_map(|p| [(p, 30), (p, 40), (p, 55), (p, 70)]).filter_map(both);
        let pair = pairs.find(|[tight, apart]| apart.time(&task) < tight.time(&task));
        let [found, mut safe] = pair.expect("a schedule that waits for bytes");
        // The safe schedule has a wait for every action before, on top of those that it needs.
        let ids: Vec<ActionId> = safe.schedule.steps.ids().collect();
        for ((_, step), before) in safe.schedule.steps.iter_mut().skip(1).zip(ids) {
            step.waits.push(before);
        }
        assert!(simulate(&task, &safe.schedule).iteration > simulate(&task, &found.schedule).iteration);
        let time = safe.time(&task);
        let (taken, _) = faster_or_safe(&task, Ok(found), Some(safe), Evaluations::default());
        assert_eq!(taken.ok().map(|taken| taken.time(&task)), Some(time));
    }

    #[test]
    fn the_safe_plan_of_a_long_iteration_recomputes_where_the_link_is_slow() {
        let graph = elbowroom_graph::zoo::build("resnet602", &Options::new(32)).unwrap();
        let machine = elbowroom_sim::presets::machine("v100").unwrap();
        let task = Task::estimate(&graph, &machine, Freedom::ALL).unwrap();
        assert!(!Auto.peers(&task.trace).iter().any(|peer| peer.name() == Mincut::DEFAULT.name()));
        let peak = crate::pipeline::unconstrained(&task, &BestFit, &Silent).unwrap().height();
        let task = task.with_memory(Bytes(peak.get() / 2));
        for threads in [1, 2] {
            let budget = Budget { threads, ..Budget::default() };
            let method = Method {
                rounds: Rounds::Recorded(Evaluations::at_once()),
                ..Method::new(&Auto, &BestFit, budget)
            };
            let (fitted, _) = fit(&task, &method, &[], &Silent);
            assert_eq!(fitted.map(|fitted| fitted.found_by).ok().as_deref(), Some("sublinear"));
        }
    }

    /// Places as `best-fit` does, and all of it as high as the capacity permits.
    struct Lifted;

    impl Packer for Lifted {
        fn name(&self) -> &'static str {
            "lifted"
        }

        fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
            let mut outcome = BestFit.pack(problem, budget, observer);
            if let (Some(placement), Some(capacity)) = (&mut outcome.best, problem.capacity) {
                let room = capacity.saturating_sub(placement.height);
                placement.offsets.iter_mut().for_each(|(_, offset)| *offset += room);
                placement.height += room;
            }
            outcome
        }
    }

    #[test]
    fn a_limit_between_two_multiples_of_the_alignment_is_kept_by_any_placement() {
        let graph = elbowroom_graph::zoo::build("resnet20", &Options::new(8)).unwrap();
        let machine = elbowroom_sim::presets::machine("gtx1080ti").unwrap();
        let task = Task::estimate(&graph, &machine, Freedom::ALL).unwrap();
        let keep = Keep.schedule(&request(&task, Bytes(u64::MAX)), &Budget::default(), &Silent).best.unwrap();
        let packed =
            BestFit.pack(&liveness::problem(&keep, &machine), &Budget::default(), &Silent).best.unwrap();
        for above in [1, machine.align.get() - 1] {
            let task = task.with_memory(packed.height.align_up(machine.align) + Bytes(above));
            let method = Method::new(&Keep, &Lifted, Budget::evaluations(1));
            let (fitted, record) = fit(&task, &method, &[], &Silent);
            assert!(fitted.is_ok_and(|fitted| fitted.placement.height <= task.machine.memory));
            assert_eq!(record.rounds.len(), 1);
        }
    }
}

//! The evaluations that a plan records reproduce it to the byte and on any number of threads: also after several rounds, after placements or
//! rounds that the clock ended, and where another planner's plan was taken in the end.
//!
//! What a clock allows differs from run to run, so nothing is counted where one runs: whatever plan comes of it must be reproducible. Every
//! kind of record is also made without a clock, from evaluations that stand in this file, and those are counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use elbowroom::engine;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::import;
use elbowroom::ir::Bytes;
use elbowroom::ir::packing::{Packer, Placement, Problem};
use elbowroom::ir::planning::{Costs, Freedom, Planner, Request};
use elbowroom::ir::schedule::Schedule;
use elbowroom::ir::search::{Budget, Observer, Outcome, Silent, StopReason};
use elbowroom::ir::text::{File, PlanFile};
use elbowroom::ir::trace::Trace;
use elbowroom::pipeline::{self, Evaluations, Method, PlanError, Planned, Rounds, Task};
use elbowroom::sim::cost::Roofline;
use elbowroom::{registry, sim};

#[path = "../../../golden/shared.rs"]
mod shared;
use shared::shared;

/// The packer `auto`, except for problems that fill more than nine tenths of the capacity: those it attempts in vain, with a pause after
/// every evaluation, and reports a slightly lower height after each.
struct Futile(Duration);

/// For runs that a clock ends.
const SLOW: Futile = Futile(Duration::from_millis(1));
/// For runs of counted evaluations.
const QUICK: Futile = Futile(Duration::ZERO);

impl Packer for Futile {
    fn name(&self) -> &'static str {
        "futile"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        let wasted = problem.peak_live().get() / 9 * 10;
        match problem.capacity {
            Some(capacity) if wasted > capacity.get() => {
                let most = budget.evaluations.unwrap_or(u64::MAX).min(400);
                let mut evaluations = 0;
                while evaluations < most && !observer.interrupted() {
                    std::thread::sleep(self.0);
                    evaluations += 1;
                }
                let best = Bytes((wasted - evaluations * (wasted / 20_000)).max(capacity.get() + 1));
                Outcome { best: None, evaluations, stop: StopReason::GaveUp { best: Some(best) } }
            }
            _ => auto().pack(problem, budget, observer),
        }
    }
}

fn auto() -> &'static dyn Packer {
    registry::packer("auto").unwrap()
}

fn network(model: &str, batch: usize) -> Task {
    let graph = zoo::build(model, &Options::new(batch).image(32)).unwrap();
    let machine = sim::presets::machine("cpu").unwrap();
    let trace = engine::trace(&graph).unwrap();
    let costs = Costs::estimate(&trace, &Roofline::new(&machine));
    Task { trace: Arc::new(trace), costs, machine, freedom: Freedom::ALL, pins: None }
}

/// A task and how it is planned at a share of its unconstrained peak.
struct Case<'a> {
    task: &'a Task,
    planner: &'a str,
    packer: &'a dyn Packer,
    percent: u64,
    budget: Budget,
}

impl Case<'_> {
    fn plan(&self, rounds: Rounds, threads: usize) -> Result<Planned, PlanError> {
        let unconstrained = pipeline::unconstrained(self.task, auto(), &Silent)?.height();
        let task = self.task.with_memory(Bytes(unconstrained.get() / 100 * self.percent));
        let budget = Budget { threads, ..self.budget.clone() };
        let method =
            Method { rounds, ..Method::new(registry::planner(self.planner).unwrap(), self.packer, budget) };
        pipeline::plan(&task, &method, &Silent)
    }

    /// Plans, and plans again from the evaluations that the first plan recorded; returns those, or `None` if there was no plan.
    fn reproduce(&self, rounds: Rounds) -> Option<Evaluations> {
        let first = match self.plan(rounds, 2) {
            Ok(planned) => planned,
            Err(PlanError::Illegal(fault)) => panic!("{fault}"),
            Err(_) => return None,
        };
        // Where the clock stopped what counts no evaluations, there is no record, and the plan says so.
        if !first.reproducible {
            return None;
        }
        let recorded = first.evaluations.to_string();
        let what = format!(
            "{} at {} % by {} and {}: {recorded}",
            self.task.trace.name(),
            self.percent,
            self.planner,
            self.packer.name()
        );
        // As the command reads it: a single number is for every round there may be.
        let read: Evaluations = recorded.parse().unwrap();
        assert_eq!(read, first.evaluations, "{what}");
        let (rounds, budget) = match read.single() {
            Some(number) => {
                (Rounds::AsNeeded, Budget { seed: self.budget.seed, ..Budget::evaluations(number) })
            }
            None => (Rounds::Recorded(read), self.budget.clone()),
        };
        let again = |threads| {
            let case = Case { budget: budget.clone(), ..*self };
            let second = case.plan(rounds.clone(), threads).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(text(&first), text(&second), "{what}");
            assert_eq!(first.evaluations, second.evaluations, "{what}");
        };
        std::thread::scope(|scope| {
            scope.spawn(|| again(1));
            again(3);
        });
        println!("{what}");
        Some(first.evaluations)
    }
}

/// The plan as it is written to a file.
fn text(planned: &Planned) -> String {
    let machine = planned.plan.machine().clone();
    File::Plan(Box::new(PlanFile { machine, plan: planned.plan.plan().clone() })).to_string()
}

fn within(millis: u64, seed: u64) -> Budget {
    Budget { seed, ..Budget::time(Duration::from_millis(millis)) }
}

#[test]
fn rounds_that_the_clock_cuts_short_are_reproduced() {
    let task = network("resnet18", 8);
    for (percent, seed) in [(100, 0), (85, 1), (70, 2), (55, 3), (45, 4)] {
        // Less than planning the first round takes, little, and enough for all rounds.
        for millis in [0, 60, 400] {
            let budget = within(millis, seed);
            Case { task: &task, planner: "auto", packer: &SLOW, percent, budget }.reproduce(Rounds::AsNeeded);
        }
    }
}

#[test]
fn every_kind_of_record_is_reproduced() {
    let task = network("resnet18", 8);
    let (mut several, mut placings, mut others, mut continued) = (0, 0, 0, 0);
    for (percent, seed) in [(100, 0), (85, 1), (70, 2), (55, 3), (45, 4)] {
        // Without a clock there are as many rounds as it takes; placements after the first do a share of the work, and say so.
        let budget = Budget { seed, ..Budget::evaluations(300) };
        let case = Case { task: &task, planner: "auto", packer: &QUICK, percent, budget };
        let counted = case.reproduce(Rounds::AsNeeded).unwrap();
        // The budget holds for the first placement too, which the record states if more work would have been done without it.
        let by_budget = counted.rounds[0].packer.is_none_or(|packer| packer == 300);
        assert!(counted.peer_searches.is_none() && by_budget, "{counted}");
        several += usize::from(counted.rounds.len() > 1);
        // What a clock would have recorded.
        for record in ["300/2,200/1,100", "300/5,40/5,40/5,40/5", "300/3+2", "20/1,10/1+4"] {
            let Some(recorded) = case.reproduce(Rounds::Recorded(record.parse().unwrap())) else { continue };
            placings += usize::from(recorded.rounds.iter().any(|round| round.packer.is_some()));
            others += usize::from(recorded.peer_searches.is_some());
        }
        // What a clock would have recorded of a series: the rounds up to the one that found the plan, or none and some searches of peers.
        for record in ["300-", "300-200-100-400-300", "4-", "300-20-20-20-20-20-20-20+2", "5-5-5-5-5-5+1"] {
            let Some(recorded) = case.reproduce(Rounds::Recorded(record.parse().unwrap())) else { continue };
            continued += usize::from(recorded.continued && recorded.rounds.len() > 1);
        }
    }
    assert!(several > 0 && placings > 0 && others > 0, "{several}, {placings}, {others}");
    assert!(continued > 0, "a later round of a series finds a plan");
}

#[test]
fn rounds_that_are_appended_to_a_series_make_no_plan_slower() {
    let task = network("resnet18", 8);
    let mut faster = 0;
    for (percent, seed) in [(85, 1), (70, 2), (55, 3), (45, 4)] {
        let budget = Budget { seed, ..Budget::evaluations(1) };
        let case = Case { task: &task, planner: "auto", packer: &QUICK, percent, budget };
        let mut before = None;
        for rounds in 1..=10 {
            // As under a time limit, which does not know how long the rounds will be: the last one is the shortest.
            let record = "400-".repeat(rounds) + "30";
            let Ok(planned) = case.plan(Rounds::Recorded(record.parse().unwrap()), 1) else { continue };
            let time = planned.predicted.iteration;
            // A short last round of the shorter series is no round of the longer one, and may by chance have found more.
            let short = planned.evaluations.rounds.len() == rounds + 1;
            assert!(before.is_none_or(|before| time <= before), "{percent} % after {rounds} rounds");
            faster += usize::from(before.is_some_and(|before| time < before));
            before = if short { before } else { Some(time) };
        }
        assert!(before.is_some(), "{percent} %");
    }
    assert!(faster > 0, "some round improves on the first");
}

#[test]
fn plans_that_meet_a_bound_are_placed_as_patiently_again() {
    for (model, batch) in [("resnet18", 8), ("resnet50", 2), ("lstm", 8)] {
        let task = network(model, batch);
        for percent in [100, 99] {
            let case = Case { task: &task, planner: "auto", packer: auto(), percent, budget: within(100, 0) };
            case.reproduce(Rounds::AsNeeded);
        }
        let budget = Budget::evaluations(400);
        let counted = Case { task: &task, planner: "auto", packer: auto(), percent: 100, budget };
        assert!(counted.reproduce(Rounds::AsNeeded).is_some(), "{model}");
    }
}

/// Another planner for this many calls. After that it finds nothing and has no end.
struct Ending {
    planner: &'static dyn Planner,
    calls: u64,
    made: AtomicU64,
}

impl Planner for Ending {
    fn name(&self) -> &'static str {
        self.planner.name()
    }

    fn peers(&self, trace: &Trace) -> Vec<&'static dyn Planner> {
        self.planner.peers(trace)
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        if self.made.fetch_add(1, Ordering::Relaxed) < self.calls {
            return self.planner.schedule(request, budget, observer);
        }
        let started = Instant::now();
        while !observer.interrupted() && started.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Outcome { best: None, evaluations: 1, stop: StopReason::GaveUp { best: None } }
    }
}

#[test]
fn what_reproduces_the_plan_is_known_where_the_clock_ended_the_search_for_the_smallest_limit() {
    let task = network("resnet20", 8);
    let kept = pipeline::unconstrained(&task, auto(), &Silent).unwrap();
    let unconstrained = kept.height();
    let (mut below, mut quick) = (0, 0);
    for (planner, calls) in [("greedy", 1), ("greedy", 4), ("sublinear", 3), ("auto", 0), ("auto", 2)] {
        let planner = registry::planner(planner).unwrap();
        // Long enough for the calls on a busy machine: what comes after them only waits for the end.
        let budget = Budget { seed: 7, ..Budget::time(Duration::from_secs(8)) };
        let ending = Ending { planner, calls, made: AtomicU64::new(0) };
        let method = Method::new(&ending, auto(), budget.clone()).placed([kept.plan.clone()]);
        let first = pipeline::smallest(&task, &method, unconstrained, &Silent).unwrap();
        let what = format!("{} after {calls} calls: {}", planner.name(), first.evaluations);
        assert!(!first.reproducible && first.reproducible_at_limit, "{what}");
        let limit = first.plan.machine().memory;
        below += usize::from(limit < unconstrained);
        // As the command reads it.
        let rounds = Rounds::Recorded(first.evaluations.to_string().parse().unwrap());
        for threads in [1, 3] {
            let budget = Budget { threads, time: None, ..budget.clone() };
            let method = Method::new(planner, auto(), budget).placed([kept.plan.clone()]);
            let method = Method { rounds: rounds.clone(), ..method };
            let again = |limit: Bytes| pipeline::plan(&task.with_memory(limit), &method, &Silent);
            let second = again(limit).unwrap();
            assert_eq!(text(&first), text(&second), "{what}");
            assert_eq!(first.evaluations, second.evaluations, "{what}");
            assert!(second.reproducible, "{what}");
            if first.evaluations.quick.is_some() {
                let smallest = pipeline::smallest(&task, &method, unconstrained, &Silent).unwrap();
                assert_eq!(text(&first), text(&smallest), "{what}");
                let less = again(limit - task.machine.align);
                assert!(
                    matches!(less, Err(PlanError::GaveUp { .. } | PlanError::Infeasible { .. })),
                    "{what}"
                );
                quick += 1;
            }
        }
        println!("{what}, {limit}");
    }
    assert!(below > 1 && quick >= 6, "{below}, {quick}");
}

/// Planners that only keep every tensor on the device, so that none of the limits suffices; `marked` does because nothing is marked.
const WITHOUT_PLAN: [&str; 5] = ["keep", "none", "inplace", "sharing", "marked"];

#[test]
fn every_planner_records_what_reproduces_its_plan() {
    let task = network("resnet20", 8);
    let best_fit = registry::packer("best-fit").unwrap();
    let mut without_plan = Vec::new();
    for planner in registry::planners() {
        let case = Case { task: &task, planner, packer: &SLOW, percent: 70, budget: within(40, 1) };
        case.reproduce(Rounds::AsNeeded);
        let counted = |percent, packer| {
            let case =
                Case { percent, packer, budget: Budget { seed: 1, ..Budget::evaluations(30) }, ..case };
            case.reproduce(Rounds::AsNeeded).is_some()
        };
        let plans = [counted(90, best_fit), counted(50, &QUICK)];
        if plans == [false, false] {
            without_plan.push(planner);
        }
    }
    assert_eq!(without_plan, WITHOUT_PLAN);
}

#[test]
#[ignore = "needs the shared data"]
fn plans_of_recorded_iterations_are_reproduced() {
    let data = shared("data");
    let reproduced = |&(file, percent, evaluations): &(&str, u64, u64)| {
        let bytes = std::fs::read(data.join(file)).unwrap();
        let imported = import::import(&bytes, file, &import::Options::default()).unwrap();
        let machine = sim::presets::machine("cpu").unwrap();
        let task = Task {
            trace: Arc::new(imported.trace),
            costs: imported.costs,
            machine,
            freedom: Freedom { reorder: percent == 35, ..Freedom::ALL },
            pins: None,
        };
        let case = Case { task: &task, planner: "auto", packer: auto(), percent, budget: within(700, 1) };
        case.reproduce(Rounds::AsNeeded);
        let counted = Case { budget: Budget { seed: 1, ..Budget::evaluations(evaluations) }, ..case };
        assert!(counted.reproduce(Rounds::AsNeeded).is_some(), "{file} at {percent} %");
    };
    let cases = [
        ("recorded/unet-6-8000000000.0.json", 30, 1_000),
        ("recorded/resnet32-56-9000000000.0.json", 30, 1_000),
        ("recorded/tv_densenet121-84-10000000000.0.json", 30, 1_000),
        ("graphs/monet_p100/un_11.json", 30, 1_000),
        ("traces/unet_joint.jsonl.gz", 30, 4_000),
        ("traces/unet_joint.jsonl.gz", 35, 1_000),
        ("traces/resnet50_joint.jsonl.gz", 25, 1_000),
    ];
    let [first, second] = [0, 1].map(|half| cases.iter().skip(half).step_by(2));
    std::thread::scope(|scope| {
        scope.spawn(|| second.for_each(reproduced));
        first.for_each(reproduced);
    });
}

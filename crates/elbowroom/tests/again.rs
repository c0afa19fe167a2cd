//! What a plan within a time tells makes the same plan again, to the byte and on any number of threads, also where it took several rounds,
//! where the clock ended placements or later rounds, and where another planner's plan was taken in the end.

use std::sync::Arc;
use std::time::Duration;

use elbowroom::engine;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::import;
use elbowroom::ir::Bytes;
use elbowroom::ir::packing::{Packer, Placement, Problem};
use elbowroom::ir::planning::{Costs, Freedom};
use elbowroom::ir::search::{Budget, Observer, Outcome, Silent, StopReason};
use elbowroom::ir::text::{File, PlanFile};
use elbowroom::pipeline::{self, Evaluations, Method, PlanError, Planned, Rounds, Task};
use elbowroom::sim::cost::Roofline;
use elbowroom::{registry, sim};

#[path = "../../../golden/shared.rs"]
mod shared;
use shared::shared;

/// The packer `auto`, but for what fills more than nine tenths of a limit: that it tries to place for a millisecond an evaluation, each a
/// little lower, and in vain.
struct Slow;

impl Packer for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        let wasted = problem.peak_live().get() / 9 * 10;
        match problem.capacity {
            Some(capacity) if wasted > capacity.get() => {
                let most = budget.evaluations.unwrap_or(u64::MAX).min(400);
                let mut evaluations = 0;
                while evaluations < most && !observer.interrupted() {
                    std::thread::sleep(Duration::from_millis(1));
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
    let graph = zoo::build(model, &Options { image: Some(32), ..Options::new(batch) }).unwrap();
    let machine = sim::presets::machine("cpu").unwrap();
    let trace = engine::trace(&graph).unwrap();
    let costs = Costs::estimate(&trace, &Roofline::new(&machine));
    Task { trace: Arc::new(trace), costs, machine, freedom: Freedom::ALL }
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

    /// Plans within the time and by what that told; the latter, if there was a plan.
    fn twice(&self) -> Option<Evaluations> {
        let first = match self.plan(Rounds::AsNeeded, 2) {
            Ok(planned) => planned,
            Err(PlanError::Illegal(fault)) => panic!("{fault}"),
            Err(_) => return None,
        };
        let told = first.evaluations.to_string();
        let what = format!(
            "{} at {} % by {} and {}: {told}",
            self.task.trace.name(),
            self.percent,
            self.planner,
            self.packer.name()
        );
        // As the command reads it: a single number is for every round there may be.
        let read: Evaluations = told.parse().unwrap();
        assert_eq!(read, first.evaluations, "{what}");
        let (rounds, budget) = match read.single() {
            Some(number) => {
                (Rounds::AsNeeded, Budget { seed: self.budget.seed, ..Budget::evaluations(number) })
            }
            None => (Rounds::Again(read), self.budget.clone()),
        };
        for threads in [1, 3] {
            let case = Case { budget: budget.clone(), ..*self };
            let second = case.plan(rounds.clone(), threads).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(text(&first), text(&second), "{what}");
            assert_eq!(first.evaluations, second.evaluations, "{what}");
        }
        println!("{what}, {:.3?}", first.planning);
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
fn several_rounds_and_what_the_clock_cuts_short() {
    let task = network("resnet18", 8);
    let (mut several, mut placings, mut others, mut counted) = (0, 0, 0, 0);
    for (percent, seed) in [(100, 0), (85, 1), (70, 2), (55, 3), (45, 4)] {
        // Less than planning the first round takes, little, and enough for all rounds.
        for millis in [0, 60, 400] {
            let case =
                Case { task: &task, planner: "auto", packer: &Slow, percent, budget: within(millis, seed) };
            let Some(told) = case.twice() else { continue };
            several += usize::from(told.rounds.len() > 1);
            placings += usize::from(told.rounds.iter().any(|round| round.packer.is_some()));
            others += usize::from(told.others.is_some());
        }
        // Without a clock the rounds are as many as it takes; placements of all but the first do a share of the work, and say so.
        let budget = Budget { seed, ..Budget::evaluations(300) };
        let told = Case { task: &task, planner: "auto", packer: &Slow, percent, budget }.twice().unwrap();
        counted += usize::from(told.rounds.len() > 1);
        assert!(told.others.is_none() && told.rounds[0].packer.is_none(), "{told}");
    }
    assert!(counted > 0);
    assert!(several > 0 && placings > 0 && others > 0, "{several}, {placings}, {others}");
}

#[test]
fn plans_that_a_bound_ends_are_placed_as_patiently_again() {
    for (model, batch) in [("resnet18", 8), ("resnet50", 2), ("lstm", 8)] {
        let task = network(model, batch);
        for percent in [100, 99] {
            let case = Case { task: &task, planner: "auto", packer: auto(), percent, budget: within(100, 0) };
            case.twice();
        }
    }
}

#[test]
fn every_planner_tells_what_makes_its_plan_again() {
    let task = network("resnet20", 8);
    for planner in registry::planners() {
        let mut plans = 0;
        for (percent, packer) in [(90, auto()), (70, &Slow), (50, &Slow)] {
            let case = Case { task: &task, planner, packer, percent, budget: within(40, 1) };
            plans += usize::from(case.twice().is_some());
        }
        println!("{planner}: {plans}");
    }
}

#[test]
#[ignore = "needs the shared data"]
fn recorded_iterations() {
    let data = shared("data");
    let mut several = 0;
    for (file, percent) in [
        ("recorded/unet-6-8000000000.0.json", 30),
        ("recorded/resnet32-56-9000000000.0.json", 30),
        ("recorded/tv_densenet121-84-10000000000.0.json", 30),
        ("graphs/monet_p100/un_11.json", 30),
        ("traces/unet_joint.jsonl.gz", 30),
        ("traces/unet_joint.jsonl.gz", 35),
        ("traces/resnet50_joint.jsonl.gz", 25),
    ] {
        let bytes = std::fs::read(data.join(file)).unwrap();
        let imported = import::import(&bytes, file, &import::Options::default()).unwrap();
        let machine = sim::presets::machine("cpu").unwrap();
        let task = Task {
            trace: Arc::new(imported.trace),
            costs: imported.costs,
            machine,
            freedom: Freedom { reorder: percent == 35, ..Freedom::ALL },
        };
        let case = Case { task: &task, planner: "auto", packer: auto(), percent, budget: within(700, 1) };
        several += usize::from(case.twice().is_some_and(|told| told.single().is_none()));
        if percent == 30 && file.starts_with("traces") {
            Case { budget: Budget::evaluations(4_000), ..case }.twice().unwrap();
        }
    }
    assert!(several > 0, "some do not fit at once");
}

//! A time limit is kept by every part of planning, and what one sum proves takes no search.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use elbowroom::algorithms::AlgorithmChoice;
use elbowroom::engine;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::Bytes;
use elbowroom::ir::planning::{Costs, Freedom, Planner, Request};
use elbowroom::ir::schedule::Schedule;
use elbowroom::ir::search::{Budget, Observer, Outcome, Silent, StopReason};
use elbowroom::network::Model;
use elbowroom::pipeline::{self, Method, PlanError, Task};
use elbowroom::sim::cost::Roofline;
use elbowroom::size::MemorySpec;
use elbowroom::train::{Iteration, TrainObserver, Training};
use elbowroom::{registry, sim};

/// Searches without an end of its own, until it is interrupted or this time is over, which is a fault.
struct Endless {
    faults: AtomicU64,
    calls: AtomicU64,
}

const PATIENCE: Duration = Duration::from_secs(30);

impl Planner for Endless {
    fn name(&self) -> &'static str {
        "endless"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let started = Instant::now();
        let keep = registry::planner("keep").unwrap().schedule(request, &Budget::default(), &Silent);
        if keep.best.is_some() {
            return keep;
        }
        while !observer.interrupted() && started.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.faults.fetch_add(u64::from(!observer.interrupted()), Ordering::Relaxed);
        Outcome { best: None, evaluations: 1, stop: StopReason::GaveUp { best: None } }
    }
}

fn task(model: &str) -> Task {
    let graph = zoo::build(model, &Options::new(2).image(16)).unwrap();
    let machine = sim::presets::machine("cpu").unwrap();
    let trace = engine::trace(&graph).unwrap();
    let costs = Costs::estimate(&trace, &Roofline::new(&machine));
    Task { trace: Arc::new(trace), costs, machine, freedom: Freedom::ALL }
}

fn endless() -> Endless {
    Endless { faults: AtomicU64::new(0), calls: AtomicU64::new(0) }
}

#[test]
fn a_planner_without_an_end_is_interrupted() {
    let (task, planner) = (task("resnet20"), endless());
    let packer = registry::packer("auto").unwrap();
    let method = Method::new(&planner, packer, Budget::time(Duration::from_millis(50)));
    let peak = pipeline::unconstrained(&task, packer, &Silent).unwrap().height();
    let half = task.with_memory(Bytes(peak.get() / 2));
    assert!(matches!(pipeline::plan(&half, &method, &Silent), Err(PlanError::GaveUp { .. })));
    assert!(matches!(pipeline::plan_schedule(&half, &method, &[], &Silent), Err(PlanError::GaveUp { .. })));
    // The limit that is left is the one at which nothing has to leave.
    let smallest = pipeline::smallest(&task, &method, peak, &Silent).unwrap();
    assert_eq!((smallest.height(), smallest.plan.machine().memory), (peak, peak));
    assert!(!smallest.reproducible, "the clock ended the bisection");
    assert_eq!(planner.faults.into_inner(), 0, "the planner was not interrupted");
}

#[test]
fn what_one_sum_proves_takes_no_search() {
    let (task, planner) = (task("resnet20"), endless());
    let method = Method::new(&planner, registry::packer("auto").unwrap(), Budget::default());
    let small = task.with_memory(Bytes(1 << 10));
    assert!(matches!(pipeline::plan(&small, &method, &Silent), Err(PlanError::Infeasible { .. })));
    assert!(matches!(
        pipeline::plan_schedule(&small, &method, &[], &Silent),
        Err(PlanError::Infeasible { .. })
    ));
    assert_eq!(planner.calls.into_inner(), 0);
}

#[test]
fn without_time_there_is_a_plan_that_its_record_reproduces() {
    let task = task("resnet20");
    let packer = registry::packer("auto").unwrap();
    let peak = pipeline::unconstrained(&task, packer, &Silent).unwrap().height();
    let task = task.with_memory(Bytes(peak.get() / 10 * 8));
    let auto = registry::planner("auto").unwrap();
    let method = Method::new(auto, packer, Budget::time(Duration::from_millis(400)));
    let planned = pipeline::plan(&task, &method, &Silent).unwrap();
    assert!(planned.height() <= task.machine.memory);
}

#[test]
fn a_limit_that_holds_every_tensor_costs_nothing() {
    let graph = zoo::build("lstm", &Options::new(8)).unwrap();
    let machine = sim::presets::machine("cpu").unwrap();
    let trace = engine::trace(&graph).unwrap();
    let costs = Costs::estimate(&trace, &Roofline::new(&machine));
    let task = Task { trace: Arc::new(trace), costs, machine, freedom: Freedom::ALL };
    let packer = registry::packer("auto").unwrap();
    let kept = pipeline::unconstrained(&task, packer, &Silent).unwrap();
    let (peak, live) = (kept.height(), kept.predicted.peak_live);
    for planner in ["auto", "keep"] {
        let planner = registry::planner(planner).unwrap();
        let method = Method::new(planner, packer, Budget::evaluations(50)).placed([kept.plan.clone()]);
        let planned = pipeline::plan(&task.with_memory(peak), &method, &Silent).unwrap();
        assert_eq!(planned.predicted.iteration, task.costs.total(), "{}", planner.name());
        assert_eq!(planned.predicted.traffic.to_host, Bytes::ZERO, "{}", planner.name());
        let scheduled = pipeline::plan_schedule(&task.with_memory(live), &method, &[], &Silent).unwrap();
        assert_eq!(scheduled.predicted.iteration, task.costs.total(), "{}", planner.name());
    }
}

/// `auto` until an iteration has been executed, and from then on a search without an end.
struct EndlessLater<'a> {
    trained: &'a AtomicU64,
    faults: &'a AtomicU64,
}

impl Planner for EndlessLater<'_> {
    fn name(&self) -> &'static str {
        "endless-later"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        if self.trained.load(Ordering::Relaxed) == 0 {
            return registry::planner("auto").unwrap().schedule(request, budget, observer);
        }
        let started = Instant::now();
        while !observer.interrupted() && started.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.faults.fetch_add(u64::from(!observer.interrupted()), Ordering::Relaxed);
        Outcome { best: None, evaluations: 1, stop: StopReason::GaveUp { best: None } }
    }
}

/// Counts the iterations.
struct Count<'a>(&'a AtomicU64);

impl Observer for Count<'_> {}

impl TrainObserver for Count<'_> {
    fn iteration(&self, _: &Iteration) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn planning_takes_no_longer_than_a_share_of_the_training_that_is_left() {
    let (trained, faults) = (AtomicU64::new(0), AtomicU64::new(0));
    let planner = EndlessLater { trained: &trained, faults: &faults };
    let network = Model::new("resnet20", Options::new(2).image(16)).unwrap();
    let half: MemorySpec = "60%".parse().unwrap();
    // An hour, which a training of a second does not deserve.
    let training = Training::new(network, half)
        .planner(&planner)
        .algorithms(AlgorithmChoice::AsBuilt)
        .time(Duration::from_secs(3600))
        .iterations(4);
    let report = training.run_observed(&Count(&trained)).unwrap();
    assert_eq!(report.execution.planned_iterations, 3, "by the plan for estimated durations");
    assert_eq!(faults.into_inner(), 0, "planning took longer than the training");
}

/// Interrupts its own search when it has found a schedule, as a user does who has waited long enough.
struct Interrupts<'a>(&'a Stop);

/// What a user sets with Ctrl-C.
#[derive(Default)]
struct Stop(AtomicBool);

impl Observer for Stop {
    fn interrupted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Planner for Interrupts<'_> {
    fn name(&self) -> &'static str {
        "interrupts"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, _: &dyn Observer) -> Outcome<Schedule> {
        let floor = registry::planner("floor").unwrap().schedule(request, &Budget::default(), &Silent);
        self.0.0.store(true, Ordering::Relaxed);
        Outcome { stop: StopReason::Interrupted, ..floor }
    }
}

#[test]
fn what_an_interrupted_search_has_found_is_placed() {
    let task = task("resnet20");
    let packer = registry::packer("auto").unwrap();
    let peak = pipeline::unconstrained(&task, packer, &Silent).unwrap().height();
    let task = task.with_memory(Bytes(peak.get() / 10 * 7));
    let stop = Stop::default();
    let planner = Interrupts(&stop);
    let planned = pipeline::plan(&task, &Method::new(&planner, packer, Budget::default()), &stop).unwrap();
    assert!(planned.height() <= task.machine.memory);
    assert_eq!(planned.stop, StopReason::Interrupted);
    assert!(!planned.reproducible);
}

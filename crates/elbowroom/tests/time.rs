//! A time limit is kept by every part of planning, and what one sum proves takes no search.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use elbowroom::algorithms::{AlgorithmChoice, Conditions};
use elbowroom::engine;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::Bytes;
use elbowroom::ir::packing::{Packer, Placement, Problem};
use elbowroom::ir::planning::{Costs, Freedom, Planner, Request};
use elbowroom::ir::schedule::Schedule;
use elbowroom::ir::search::{Budget, Goal, Observer, Outcome, Silent, StopReason};
use elbowroom::ir::trace::Trace;
use elbowroom::largest::largest;
use elbowroom::network::Model;
use elbowroom::pipeline::{self, Method, PlanError, Rounds, Task};
use elbowroom::sim::cost::Roofline;
use elbowroom::size::MemorySpec;
use elbowroom::tiles::TileChoice;
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
    Task { trace: Arc::new(trace), costs, machine, freedom: Freedom::ALL, pins: None }
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

/// Places nothing and ends when it is interrupted.
struct SlowPacker;

impl Packer for SlowPacker {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn pack(&self, _: &Problem, _: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        let started = Instant::now();
        while !observer.interrupted() && started.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        Outcome { best: None, evaluations: 1, stop: StopReason::Interrupted }
    }
}

#[test]
fn a_small_limit_is_found_while_the_packer_is_slow() {
    let task = task("resnet20");
    let peak = pipeline::unconstrained(&task, registry::packer("auto").unwrap(), &Silent).unwrap().height();
    let planner = registry::planner("auto").unwrap();
    let method = Method::new(planner, &SlowPacker, Budget::time(Duration::from_secs(4)));
    let smallest = pipeline::smallest(&task, &method, peak, &Silent).unwrap();
    let (op, bound) = pipeline::largest_op(&task);
    let limit = smallest.plan.machine().memory;
    assert!(limit.ratio(bound) < 1.5, "{limit} is far above the {bound} of {op}; the peak is {peak}");
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

/// Counts the rounds that a planner begins.
#[derive(Default)]
struct Rounded(AtomicU64);

impl Observer for Rounded {
    fn begins(&self, _: &Goal<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The time may be over before planning begins, because a large trace takes long to read. 128 rounds followed, each without a search.
#[test]
fn behind_the_end_of_the_time_one_round_is_made() {
    let task = task("resnet20");
    let packer = registry::packer("auto").unwrap();
    let peak = pipeline::unconstrained(&task, packer, &Silent).unwrap().height();
    let third = task.with_memory(Bytes(peak.get() / 3));
    let auto = registry::planner("auto").unwrap();
    let method = Method::new(auto, packer, Budget::time(Duration::ZERO));
    let rounds = Rounded::default();
    assert!(matches!(pipeline::plan(&third, &method, &rounds), Err(PlanError::GaveUp { .. })));
    assert_eq!(rounds.0.into_inner(), 1);
}

#[test]
fn a_limit_that_holds_every_tensor_costs_nothing() {
    let graph = zoo::build("lstm", &Options::new(8)).unwrap();
    let machine = sim::presets::machine("cpu").unwrap();
    let trace = engine::trace(&graph).unwrap();
    let costs = Costs::estimate(&trace, &Roofline::new(&machine));
    let task = Task { trace: Arc::new(trace), costs, machine, freedom: Freedom::ALL, pins: None };
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

#[test]
fn short_searches_keep_to_the_time_too() {
    let (task, planner) = (task("resnet20"), endless());
    let packer = registry::packer("auto").unwrap();
    let method = Method::new(&planner, packer, Budget::time(Duration::from_millis(50)));
    let peak = pipeline::unconstrained(&task, packer, &Silent).unwrap().height();
    // As the choice of algorithms plans.
    let half = task.with_memory(Bytes(peak.get() / 2));
    assert!(pipeline::plan_at_once(&half, &method, &Silent).unwrap().is_err());
    let network = Model::new("resnet20", Options::new(1).image(16)).unwrap();
    let conditions = Conditions {
        memory: MemorySpec::Absolute(peak),
        machine: &task.machine,
        method: &method,
        freedom: Freedom::ALL,
        iterations: 1,
        threads: 1,
        algorithms: AlgorithmChoice::AsBuilt,
    };
    let largest = largest(&network, &conditions, TileChoice::Auto, &Silent).unwrap();
    assert!((1..=2).contains(&largest.samples), "the peak is that of two samples, and nothing leaves");
    assert_eq!(planner.faults.into_inner(), 0, "the planner was not interrupted");
}

/// Gives up, so that its peer is asked.
struct GivesUp;

/// Remembers the largest number of evaluations that it was granted.
struct Granted(AtomicU64);

static GRANTED: Granted = Granted(AtomicU64::new(0));

impl Planner for GivesUp {
    fn name(&self) -> &'static str {
        "gives-up"
    }
    fn schedule(&self, _: &Request<'_>, _: &Budget, _: &dyn Observer) -> Outcome<Schedule> {
        Outcome { best: None, evaluations: 7, stop: StopReason::GaveUp { best: None } }
    }
    fn peers(&self, _: &Trace) -> Vec<&'static dyn Planner> {
        vec![&GRANTED]
    }
}

impl Planner for Granted {
    fn name(&self) -> &'static str {
        "granted"
    }
    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        self.0.fetch_max(budget.evaluations.unwrap_or(u64::MAX), Ordering::Relaxed);
        registry::planner("floor").unwrap().schedule(request, budget, observer)
    }
}

#[test]
fn peers_search_no_longer_than_the_budget_allows_and_the_record_says_so() {
    let task = task("resnet20");
    let packer = registry::packer("auto").unwrap();
    let peak = pipeline::unconstrained(&task, packer, &Silent).unwrap().height();
    let task = task.with_memory(Bytes(peak.get() / 10 * 7));
    let method = Method::new(&GivesUp, packer, Budget::evaluations(20));
    let first = pipeline::plan(&task, &method, &Silent).unwrap();
    assert_eq!(GRANTED.0.swap(0, Ordering::Relaxed), 20);
    let recorded = first.evaluations.to_string();
    assert_eq!(recorded, "7~20");
    let budget = Budget { evaluations: None, ..method.budget.clone() };
    let rounds = Rounds::Recorded(recorded.parse().unwrap());
    let again = pipeline::plan(&task, &Method { rounds, budget, ..method.clone() }, &Silent).unwrap();
    assert_eq!(GRANTED.0.swap(0, Ordering::Relaxed), 20);
    assert_eq!(again.plan.plan(), first.plan.plan());
    // A larger budget does not make these searches longer.
    let plenty = Method { budget: Budget::evaluations(5_000), ..method };
    let planned = pipeline::plan(&task, &plenty, &Silent).unwrap();
    assert_eq!(
        (GRANTED.0.swap(0, Ordering::Relaxed), planned.evaluations.to_string().as_str()),
        (256, "7~256")
    );
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

/// Finds nothing, and remembers what it was asked: memory, live limit, link and evaluations.
#[derive(Default)]
struct Asked(Mutex<Vec<[u64; 4]>>);

impl Planner for Asked {
    fn name(&self) -> &'static str {
        "asked"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, _: &dyn Observer) -> Outcome<Schedule> {
        let machine = request.machine;
        let [memory, live] = [machine.memory, request.live_limit].map(Bytes::get);
        self.0.lock().unwrap().push([memory, live, machine.to_host.rate, budget.evaluations.unwrap_or(0)]);
        Outcome { best: None, evaluations: 1, stop: StopReason::GaveUp { best: None } }
    }
}

#[test]
fn a_training_that_is_refused_repeats_no_search() {
    for training in [
        |training: Training<'static>| training.evaluations(20),
        |training: Training<'static>| training.time(Duration::from_secs(3600)),
    ] {
        let asked: &'static Asked = Box::leak(Box::default());
        let network = Model::new("resnet20", Options::new(2).image(16)).unwrap();
        let half: MemorySpec = "50%".parse().unwrap();
        // Offload alone, which a training tries last, needs more host memory.
        let settings = Training::new(network, half).planner(asked).host_memory(Bytes(1 << 16));
        training(settings.algorithms(AlgorithmChoice::AsBuilt)).run().unwrap_err();
        let mut calls = asked.0.lock().unwrap().clone();
        let all = calls.len();
        calls.sort_unstable();
        calls.dedup();
        assert!(all >= 10, "the limit and smaller ones, by two links: {all}");
        assert_eq!(calls.len(), all, "a search was repeated");
    }
}

#[test]
fn the_smallest_limit_of_a_training_is_found_within_a_share_of_it() {
    let planner: &'static Endless = Box::leak(Box::new(endless()));
    let network = Model::new("resnet20", Options::new(2).image(16)).unwrap();
    let training = Training::new(network, "min".parse::<MemorySpec>().unwrap())
        .planner(planner)
        .time(Duration::from_secs(3600))
        .iterations(2);
    let report = training.run().unwrap();
    assert_eq!(planner.faults.load(Ordering::Relaxed), 0, "the bisection was not interrupted");
    assert!(planner.calls.load(Ordering::Relaxed) > 1, "a smaller limit was tried");
    assert_eq!(report.measured_peak_bytes, report.plan.limit_bytes);
}

/// Needs half of the memory that it is allowed, and counts the searches for which it got a packer and those for which it did not.
#[derive(Default)]
struct Packs([AtomicU64; 2]);

static PACKS: Packs = Packs([AtomicU64::new(0), AtomicU64::new(0)]);

impl Planner for Packs {
    fn name(&self) -> &'static str {
        "packs"
    }
    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        self.0[usize::from(request.packer.is_some())].fetch_add(1, Ordering::Relaxed);
        registry::planner("floor").unwrap().schedule(request, budget, observer)
    }
}

/// Gives up, so that its peer that packs is asked.
struct GivesUpToo;

impl Planner for GivesUpToo {
    fn name(&self) -> &'static str {
        "gives-up-too"
    }
    fn schedule(&self, _: &Request<'_>, _: &Budget, _: &dyn Observer) -> Outcome<Schedule> {
        Outcome { best: None, evaluations: 7, stop: StopReason::GaveUp { best: None } }
    }
    fn peers(&self, _: &Trace) -> Vec<&'static dyn Planner> {
        vec![&PACKS]
    }
}

#[test]
fn peers_do_not_pack_every_candidate_while_a_training_waits() {
    let task = task("resnet20");
    let packer = registry::packer("auto").unwrap();
    let peak = pipeline::unconstrained(&task, packer, &Silent).unwrap().height();
    let task = task.with_memory(Bytes(peak.get() / 10 * 7));
    let searches = |rounds: Rounds| {
        let method = Method { rounds, ..Method::new(&GivesUpToo, packer, Budget::evaluations(20)) };
        let planned = pipeline::plan(&task, &method, &Silent).unwrap();
        (planned.reproducible, PACKS.0.each_ref().map(|count| count.swap(0, Ordering::Relaxed) > 0))
    };
    assert_eq!(searches(Rounds::AsNeeded), (true, [false, true]));
    assert_eq!(searches(Rounds::Sparing), (false, [true, false]));
}

/// Finds the schedule that keeps every tensor.
struct Keeps;

/// Counts the searches.
struct Searches(AtomicU64);

static SEARCHES: Searches = Searches(AtomicU64::new(0));

impl Planner for Keeps {
    fn name(&self) -> &'static str {
        "keeps"
    }
    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let roomy = Request { live_limit: request.machine.memory, ..*request };
        registry::planner("keep").unwrap().schedule(&roomy, budget, observer)
    }
    fn peers(&self, _: &Trace) -> Vec<&'static dyn Planner> {
        vec![&SEARCHES]
    }
}

impl Planner for Searches {
    fn name(&self) -> &'static str {
        "searches"
    }
    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        self.0.fetch_add(1, Ordering::Relaxed);
        registry::planner("floor").unwrap().schedule(request, budget, observer)
    }
}

/// Refuses what it is to pack with the budget of its first call, by one alignment: the first attempt of a plan is longer than the later ones.
struct RefusesFirst(OnceLock<Option<u64>>);

impl Packer for RefusesFirst {
    fn name(&self) -> &'static str {
        "refuses-first"
    }
    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        if *self.0.get_or_init(|| budget.evaluations) != budget.evaluations {
            return registry::packer("auto").unwrap().pack(problem, budget, observer);
        }
        let best = problem.capacity.map(|capacity| capacity + Bytes(64));
        Outcome { best: None, evaluations: 1, stop: StopReason::GaveUp { best } }
    }
}

#[test]
fn nothing_is_searched_once_a_plan_reaches_the_bound() {
    let task = task("resnet20");
    let packer = registry::packer("auto").unwrap();
    let peak = pipeline::unconstrained(&task, packer, &Silent).unwrap().height();
    let task = task.with_memory(Bytes(peak.get() + 4096));
    let packer = RefusesFirst(OnceLock::new());
    let method = Method::new(&Keeps, &packer, Budget::evaluations(1_000));
    let planned = pipeline::plan(&task, &method, &Silent).unwrap();
    assert_eq!(planned.predicted.iteration, task.costs.total());
    assert_eq!(planned.evaluations.rounds.len(), 2, "the first schedule was not packed");
    assert_eq!(SEARCHES.0.load(Ordering::Relaxed), 0, "no peer can be faster");
}

#[test]
fn a_training_within_its_unconstrained_peak_moves_nothing() {
    for (name, options) in [("lstm", Options::new(8)), ("resnet20", Options::new(2).image(16))] {
        let network = Model::new(name, options).unwrap();
        let all: MemorySpec = "100%".parse().unwrap();
        let report = Training::new(network, all).evaluations(20).iterations(3).run().unwrap();
        assert_eq!(report.plan.to_host_bytes, Bytes::ZERO, "{name}");
        assert_eq!(report.plan.to_device_bytes, Bytes::ZERO, "{name}");
        assert_eq!(report.measured_recomputed_ops, 0, "{name}");
    }
}

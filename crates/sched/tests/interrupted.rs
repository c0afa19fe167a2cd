//! Every planner that decides more than once asks its observer whether to go on, and ends soon after it was told to end.

use std::sync::atomic::{AtomicU64, Ordering};

use elbowroom_graph::zoo::{self, Options};
use elbowroom_ir::Bytes;
use elbowroom_ir::planning::{Costs, Freedom, Request};
use elbowroom_ir::search::{Budget, Observer, Silent};
use elbowroom_sched::PLANNERS;
use elbowroom_sched::lower::live_memory;
use elbowroom_sched::policy::Policy;
use elbowroom_sim::cost::Roofline;
use elbowroom_sim::presets;

/// Interrupts at once, and counts how often it was asked.
#[derive(Default)]
struct Stop(AtomicU64);

impl Observer for Stop {
    fn interrupted(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// Planners that lower a handful of policies at most.
const IMMEDIATE: [&str; 6] = ["keep", "none", "inplace", "sharing", "drop-cheap", "drop-cheap-cost"];

/// How often a planner may ask after it was told to end: a few loops inside each other, and the planners of a portfolio.
const MOST: u64 = 300;

#[test]
fn every_planner_ends_when_it_is_interrupted() {
    let graph = zoo::build("resnet56", &Options::new(4)).unwrap();
    let machine = presets::machine("v100").unwrap();
    let trace = graph.trace(&|_, _| Bytes::ZERO).unwrap();
    let costs = Costs::estimate(&trace, &Roofline::new(&machine));
    let request = Request {
        trace: &trace,
        costs: &costs,
        machine: &machine,
        live_limit: Bytes(u64::MAX),
        freedom: Freedom::ALL,
        packer: None,
        pins: None,
    };
    let peak = live_memory(&request, &Policy::keep(&trace)).unwrap().into_iter().max().unwrap();
    let request = Request { live_limit: Bytes(peak / 2), ..request };
    let budget = Budget { evaluations: None, time: None, ..Budget::default() };
    for planner in PLANNERS.iter().filter(|planner| !IMMEDIATE.contains(&planner.name())) {
        let stop = Stop::default();
        let outcome = planner.schedule(&request, &budget, &stop);
        let asked = stop.0.into_inner();
        // One that decided by its first policy had nothing to ask.
        assert!(asked > 0 || outcome.evaluations <= 2, "{} never asked", planner.name());
        assert!(asked < MOST, "{} asked {asked} times", planner.name());
        assert!(outcome.evaluations < 100, "{} made {} evaluations", planner.name(), outcome.evaluations);
    }
    let whole = PLANNERS[0].schedule(&request, &budget, &Silent);
    assert!(whole.best.is_none(), "half of the peak is too little to keep everything");
}

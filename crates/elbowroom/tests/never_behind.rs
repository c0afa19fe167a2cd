//! `auto` is never slower than a planner among its warm starts, even if its own schedules fit by live memory but cannot be packed: the packer
//! of this test needs more bytes, the more the schedule keeps.

use std::sync::Arc;

use elbowroom::compare::{self, Comparison};
use elbowroom::engine;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::Bytes;
use elbowroom::ir::packing::{Packer, Placement, Problem};
use elbowroom::ir::planning::{Costs, Freedom, Planner};
use elbowroom::ir::search::{Budget, Observer, Outcome, Silent, StopReason};
use elbowroom::pipeline::{self, Method, Task};
use elbowroom::sim::cost::Roofline;
use elbowroom::{registry, sim};

/// The packer `auto`, which refuses whatever fills more than nine tenths of a limit.
struct Wasteful;

impl Packer for Wasteful {
    fn name(&self) -> &'static str {
        "wasteful"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        let wasted = Bytes(problem.peak_live().get() / 9 * 10);
        match problem.capacity {
            Some(capacity) if wasted > capacity => {
                Outcome { best: None, evaluations: 1, stop: StopReason::GaveUp { best: Some(wasted) } }
            }
            _ => registry::packer("auto").unwrap().pack(problem, budget, observer),
        }
    }
}

fn task() -> Task {
    let graph = zoo::build("resnet18", &Options::new(8).image(32)).unwrap();
    let machine = sim::presets::machine("cpu").unwrap();
    let trace = engine::trace(&graph).unwrap();
    let costs = Costs::estimate(&trace, &Roofline::new(&machine));
    Task { trace: Arc::new(trace), costs, machine, freedom: Freedom::ALL, pins: None }
}

#[test]
fn auto_is_never_behind_a_peer_that_has_a_place() {
    let task = task();
    let unconstrained =
        pipeline::unconstrained(&task, registry::packer("auto").unwrap(), &Silent).unwrap().height();
    let auto = registry::planner("auto").unwrap();
    let mut compared = 0;
    for share in [0.8, 0.65] {
        let limited = task.with_memory(Bytes((unconstrained.get() as f64 * share) as u64));
        let time = |planner: &dyn Planner| {
            let method = Method::new(planner, &Wasteful, Budget::evaluations(300));
            pipeline::plan(&limited, &method, &Silent).ok().map(|planned| planned.predicted.iteration)
        };
        let ours = time(auto);
        for peer in auto.peers(&task.trace) {
            let Some(theirs) = time(peer) else { continue };
            let ours = ours.expect("what a peer has found, auto has found");
            assert!(ours <= theirs, "{share}: {ours} by auto, {theirs} by {}", peer.name());
            compared += 1;
        }
    }
    assert!(compared > 0, "some peer finds a plan");
}

#[test]
fn in_a_comparison_auto_is_never_behind_anybody() {
    let task = task();
    let unconstrained =
        pipeline::unconstrained(&task, registry::packer("auto").unwrap(), &Silent).unwrap().height();
    let names = ["auto", "greedy", "dtr", "vdnn", "autoswap", "sublinear"];
    let planners: Vec<&dyn Planner> = names.iter().map(|name| registry::planner(name).unwrap()).collect();
    for by_live_memory in [false, true] {
        let comparison = Comparison {
            task: &task,
            planners: &planners,
            packer: &Wasteful,
            budget: Budget::evaluations(8),
            limits: &[Bytes(unconstrained.get() / 10 * 7)],
            by_live_memory,
            unconstrained,
            alone: false,
        };
        let rows = compare::compare(&comparison, &Silent, |_, _| {}).unwrap();
        let (auto, others) = rows.split_last().expect("there is a row for each planner");
        assert_eq!(auto.planner, "auto");
        let best = others.iter().filter_map(|row| row.iteration_ns).min().expect("somebody finds a plan");
        assert!(auto.iteration_ns.is_some_and(|time| time <= best), "{auto:?} behind {best}");
    }
}

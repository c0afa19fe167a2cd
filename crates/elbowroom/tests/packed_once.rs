//! While one plan is made, no problem is packed twice within the same budget: AutoSwap's four scores select the same schedules, and `auto`
//! asks it as a warm start and as a peer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use elbowroom::engine;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::Bytes;
use elbowroom::ir::packing::{Packer, Placement, Problem};
use elbowroom::ir::planning::{Costs, Freedom};
use elbowroom::ir::search::{Budget, Observer, Outcome, Silent};
use elbowroom::pipeline::{self, Method, Task};
use elbowroom::sim::cost::Roofline;
use elbowroom::{registry, sim};

/// The packer `auto`, with a list of what it was asked.
#[derive(Default)]
struct Listening(Mutex<BTreeMap<String, u64>>);

impl Packer for Listening {
    fn name(&self) -> &'static str {
        "listening"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        *self.0.lock().unwrap().entry(format!("{problem:?} {budget:?}")).or_default() += 1;
        registry::packer("auto").unwrap().pack(problem, budget, observer)
    }
}

#[test]
fn a_problem_is_packed_once_while_a_plan_is_made() {
    let mut made = 0;
    for (network, options, share) in [
        ("resnet20", Options::new(1).image(8).width(4), 60),
        ("densenet121", Options::new(1).image(32), 60),
        ("unet", Options::new(1).image(32), 50),
    ] {
        let graph = zoo::build(network, &options).unwrap();
        let machine = sim::presets::machine("cpu").unwrap();
        let trace = engine::trace(&graph).unwrap();
        let costs = Costs::estimate(&trace, &Roofline::new(&machine));
        let task = Task { trace: Arc::new(trace), costs, machine, freedom: Freedom::ALL, pins: None };
        let unconstrained =
            pipeline::unconstrained(&task, registry::packer("auto").unwrap(), &Silent).unwrap().height();
        let packer = Listening::default();
        let method = Method::new(registry::planner("auto").unwrap(), &packer, Budget::evaluations(3));
        let limited = task.with_memory(Bytes(unconstrained.get() * share / 100));
        let planned = pipeline::plan(&limited, &method, &Silent);
        let asked = packer.0.into_inner().unwrap();
        made += asked.len();
        let most = asked.values().max().copied().unwrap_or(0);
        assert!(
            most <= 1,
            "{network}: a problem was packed {most} times ({:?})",
            planned.map(|made| made.evaluations)
        );
    }
    assert!(made > 5, "{made} problems");
}

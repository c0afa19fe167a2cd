//! Zhang et al., Fig. 10 and 11: AutoSwap and SmartPool together need at most 40 % of what a pool needs that does not know the future, at
//! an overhead of at most 15 %.

use std::sync::Arc;

use elbowroom::engine;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::Bytes;
use elbowroom::ir::planning::{Costs, Freedom};
use elbowroom::ir::search::{Budget, Silent};
use elbowroom::pipeline::{self, Method, Task};
use elbowroom::sim::cost::Roofline;
use elbowroom::{registry, sim};

#[test]
fn forty_percent_of_the_pool_at_fifteen_percent_overhead() {
    for name in ["vgg11", "vgg16", "resnet18"] {
        let graph = zoo::build(name, &Options::new(100).image(32)).unwrap();
        let trace = Arc::new(engine::trace(&graph).unwrap());
        let machine = sim::presets::machine("gtx1080ti").unwrap();
        let costs = Costs::estimate(&trace, &Roofline::new(&machine));
        let task =
            Task { trace, costs, machine, freedom: Freedom { recompute: false, ..Freedom::ALL }, pins: None };
        let pool = registry::packer("pool").unwrap();
        let footprint = pipeline::unconstrained(&task, pool, &Silent).unwrap().height();
        let limited = task.with_memory(Bytes(footprint.get() * 40 / 100));
        for packer in ["smartpool-best", "smartpool-first"] {
            let method = Method::new(
                registry::planner("bo-margin").unwrap(),
                registry::packer(packer).unwrap(),
                // `bo` ends by itself; every schedule that it packs is an evaluation.
                Budget::evaluations(1_000),
            );
            let planned = pipeline::plan(&limited, &method, &Silent).unwrap();
            let overhead = planned.predicted.iteration.ratio(task.costs.total()) - 1.0;
            assert!(overhead <= 0.15, "{name} with {packer}: {overhead:.3}");
            assert!(planned.predicted.recomputed == 0);
        }
    }
}

//! The smallest limit for which a plan is found, against the bound from the largest single op: its operands, results and workspace must
//! be resident together, whatever is planned.

use std::sync::Arc;

use elbowroom::engine;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::planning::{Costs, Freedom};
use elbowroom::ir::search::{Budget, Silent};
use elbowroom::pipeline::{self, Method, PlanError, Task};
use elbowroom::sim::cost::Roofline;
use elbowroom::{registry, sim};

/// How far the smallest limit may be above the bound. What keeps it above: values around an op that an op next to it needs as well, the
/// holes between them, and the step of half a percent with which it is sought.
const FACTOR: f64 = 1.25;

#[test]
fn the_smallest_limit_is_near_what_the_largest_op_needs() {
    for (model, batch) in [("resnet18", 24), ("gpt", 4), ("kmeans", 2_000)] {
        let graph = zoo::build(model, &Options::new(batch)).unwrap();
        let machine = sim::presets::machine("cpu").unwrap();
        let trace = engine::trace(&graph).unwrap();
        let costs = Costs::estimate(&trace, &Roofline::new(&machine));
        let task = Task { trace: Arc::new(trace), costs, machine, freedom: Freedom::ALL };
        let (scheduler, packer) = (registry::scheduler("auto").unwrap(), registry::packer("auto").unwrap());
        let method = Method::new(scheduler, packer, Budget::default()).at_once();
        let natural = pipeline::natural(&task, method.packer, &Silent).unwrap().height();
        let limit = natural.align_up(task.machine.align);
        let smallest = pipeline::smallest(&task, &method, limit, &Silent).unwrap().plan.machine().memory;
        let (op, bound) = pipeline::largest_op(&task);
        assert!(smallest >= bound, "{model}: {smallest} is less than {op} needs, {bound}");
        let factor = smallest.ratio(bound);
        println!("{model}: {smallest} is {factor:.3} × the {bound} of {op}; natural {natural}");
        assert!(factor <= FACTOR, "{model}: {smallest} is {factor:.3} × the {bound} of {op}");

        // Less than the bound, which is a multiple of the alignment, is refused with a proof.
        let below = task.with_memory(bound - task.machine.align);
        assert!(matches!(pipeline::plan(&below, &method, &Silent), Err(PlanError::Infeasible { .. })));
    }
}

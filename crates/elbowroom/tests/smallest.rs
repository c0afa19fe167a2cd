//! The smallest limit for which a plan is found, against the bound from the largest single op: its operands, results and workspace must
//! be resident together, whatever is planned.

use std::sync::Arc;

use elbowroom::algorithms::AlgorithmChoice;
use elbowroom::engine;
use elbowroom::graph::Graph;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::Bytes;
use elbowroom::ir::machine::Channel;
use elbowroom::ir::planning::{Costs, Freedom, Planner, Request};
use elbowroom::ir::schedule::Schedule;
use elbowroom::ir::search::{Budget, Observer, Outcome, Silent, StopReason};
use elbowroom::pipeline::{self, Method, PlanError, Task};
use elbowroom::report::TrainReport;
use elbowroom::sim::cost::Roofline;
use elbowroom::size::MemorySpec;
use elbowroom::train::Training;
use elbowroom::{registry, sim};

mod support;

use support::{Quiet, method};

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
        let task = Task { trace: Arc::new(trace), costs, machine, freedom: Freedom::ALL, pins: None };
        let (planner, packer) = (registry::planner("auto").unwrap(), registry::packer("auto").unwrap());
        let method = Method::new(planner, packer, Budget::default()).at_once();
        let unconstrained = pipeline::unconstrained(&task, method.packer, &Silent).unwrap().height();
        let limit = unconstrained.align_up(task.machine.align);
        let smallest = pipeline::smallest(&task, &method, limit, &Silent).unwrap().plan.machine().memory;
        let (op, bound) = pipeline::largest_op(&task);
        assert!(smallest >= bound, "{model}: {smallest} is less than {op} needs, {bound}");
        let factor = smallest.ratio(bound);
        println!("{model}: {smallest} is {factor:.3} × the {bound} of {op}; natural {unconstrained}");
        assert!(factor <= FACTOR, "{model}: {smallest} is {factor:.3} × the {bound} of {op}");

        // Less than the bound, which is a multiple of the alignment, is refused with a proof.
        let below = task.with_memory(bound - task.machine.align);
        assert!(matches!(pipeline::plan(&below, &method, &Silent), Err(PlanError::Infeasible { .. })));
    }
}

/// `auto`, but between a third and two thirds of this many bytes it finds nothing unless it has something to start from.
struct Fussy(Bytes);

impl Planner for Fussy {
    fn name(&self) -> &'static str {
        "fussy"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let third = self.0.get() / 3;
        if (third..2 * third).contains(&request.machine.memory.get()) {
            return Outcome { best: None, evaluations: 1, stop: StopReason::GaveUp { best: None } };
        }
        registry::planner("auto").unwrap().schedule(request, budget, observer)
    }
}

/// Two verified iterations at half of the unconstrained peak, on the machine of the presets.
fn trained_at_half(graph: Arc<Graph>, planner: &dyn Planner) -> TrainReport {
    let half: MemorySpec = "50%".parse().unwrap();
    let training = Training::new(graph, half)
        .machine(sim::presets::machine("cpu").unwrap())
        .method(Method { planner, ..method() })
        .algorithms(AlgorithmChoice::AsBuilt)
        .iterations(2)
        .threads(1)
        .verify(true);
    let report = training.run_observed(&Quiet).unwrap();
    assert_eq!(report.verified, Some(true));
    assert_eq!(report.measured_peak_bytes, report.plan.predicted_peak_bytes);
    report
}

#[test]
fn a_plan_for_less_serves_where_none_is_found() {
    let graph = Arc::new(zoo::build("resnet18", &Options::new(8).width(8)).unwrap());
    let machine = sim::presets::machine("cpu").unwrap();
    let trace = engine::trace(&graph).unwrap();
    let costs = Costs::estimate(&trace, &Roofline::new(&machine));
    let task = Task { trace: Arc::new(trace), costs, machine, freedom: Freedom::ALL, pins: None };
    let unconstrained = pipeline::unconstrained(&task, method().packer, &Silent).unwrap().height();
    let report = trained_at_half(graph, &Fussy(unconstrained));
    assert_eq!(report.plan.limit_bytes, Bytes(unconstrained.get() / 2));
    assert!(report.measured_peak_bytes <= Bytes(unconstrained.get() / 3), "by a plan for less");
}

/// `auto`, but only for this link.
struct OnlyFor(Channel);

impl Planner for OnlyFor {
    fn name(&self) -> &'static str {
        "only-for"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        if request.machine.to_host != self.0 {
            return Outcome { best: None, evaluations: 1, stop: StopReason::GaveUp { best: None } };
        }
        registry::planner("auto").unwrap().schedule(request, budget, observer)
    }
}

#[test]
fn a_plan_for_the_described_link_serves_where_none_is_found_for_the_measured_one() {
    let graph = Arc::new(zoo::build("resnet18", &Options::new(8).width(8)).unwrap());
    let described = sim::presets::machine("cpu").unwrap();
    let report = trained_at_half(graph, &OnlyFor(described.to_host));
    let used = report.measured_peak_bytes.ratio(report.plan.limit_bytes);
    assert!(used > 0.8, "a plan for this limit and not for less: {used}");
}

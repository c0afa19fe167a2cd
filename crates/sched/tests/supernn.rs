//! The rules of SuperNeurons on a residual network: which ops are offloaded, which are recomputed, and how small the limit may be.

use std::sync::Arc;

use elbowroom_graph::zoo::{self, Options};
use elbowroom_ir::Bytes;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::{Costs, Freedom, Planner, Request};
use elbowroom_ir::schedule::Action;
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_ir::trace::Trace;
use elbowroom_sched::lower;
use elbowroom_sched::mixed::supernn::SuperNn;
use elbowroom_sched::policy::Policy;
use elbowroom_sim::cost::Roofline;
use elbowroom_sim::presets;

/// A network on a GTX 1080 Ti.
struct Case {
    trace: Arc<Trace>,
    costs: Costs,
    machine: Machine,
    peak: Bytes,
}

impl Case {
    fn new(name: &str, batch: usize) -> Self {
        let machine = presets::machine("gtx1080ti").unwrap();
        let options = Options::new(batch).image(32);
        let trace = zoo::build(name, &options).unwrap().trace(&|_, _| Bytes::ZERO).unwrap();
        let costs = Costs::estimate(&trace, &Roofline::new(&machine));
        let mut case = Self { trace: Arc::new(trace), costs, machine, peak: Bytes(1 << 50) };
        case.peak = lower(&case.request(1.0, Freedom::ALL), &Policy::prompt(&case.trace)).unwrap().peak;
        case
    }

    fn request(&self, share: f64, freedom: Freedom) -> Request<'_> {
        let live_limit = Bytes((self.peak.get() as f64 * share) as u64);
        let Self { trace, costs, machine, .. } = self;
        Request { trace, costs, machine, live_limit, freedom, packer: None, pins: None }
    }
}

#[test]
fn supernn_offloads_convolutions_and_makes_cheap_layers_again() {
    let case = Case::new("resnet18", 128);
    let budget = Budget { evaluations: None, time: None, seed: 0, threads: 1 };
    let plan = |share, offload, recompute| {
        let request = case.request(share, Freedom { offload, recompute, ..Freedom::ALL });
        SuperNn.schedule(&request, &budget, &Silent).best
    };
    let mut moved = 0;
    for step in plan(0.6, true, false).unwrap().steps.values() {
        if let Action::Offload { tensor: value, .. } = step.action {
            let op = case.trace.producer(value).unwrap();
            assert_eq!(case.trace.ops()[op].kind, "conv2d");
            moved += 1;
        }
    }
    let mut again = 0;
    for step in plan(0.75, false, true).unwrap().steps.values() {
        if let Action::Recompute(launch) = &step.action {
            let kind = &case.trace.ops()[launch.op].kind;
            assert!(
                ["relu", "batch-norm", "max-pool", "average-pool", "add"].contains(&kind.as_str()),
                "{kind}"
            );
            again += 1;
        }
    }
    assert!(moved > 0 && again > 0);
    // Both together reach further than either.
    let least = |offload, recompute| {
        (10..100)
            .rev()
            .take_while(|&share| plan(f64::from(share) / 100.0, offload, recompute).is_some())
            .last()
    };
    let (both, copies, repeats) = (least(true, true), least(true, false), least(false, true));
    assert!(both < copies && both < repeats, "{both:?} {copies:?} {repeats:?}");
}

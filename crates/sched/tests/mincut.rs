//! `mincut`, and what `auto` gains from it: deep networks have so many decisions that a short search hardly changes what it starts from.

use elbowroom_graph::zoo::{self, Options};
use elbowroom_ir::Bytes;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::{Costs, Freedom, Planner, Request};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_ir::trace::Trace;
use elbowroom_sched::auto::Auto;
use elbowroom_sched::auto::mincut::Mincut;
use elbowroom_sched::lower::least_live;
use elbowroom_sched::policy::Policy;
use elbowroom_sim::bound::{lower_bound, relaxation};
use elbowroom_sim::cost::Roofline;
use elbowroom_sim::{presets, simulate};

/// Evaluations of a short search.
const SHORT: u64 = 5_000;

/// A network without workspaces, with costs by the machine's roofline.
fn traced(name: &str, options: Options, machine: &Machine) -> (Trace, Costs) {
    let trace = zoo::build(name, &options).unwrap().trace(&|_, _| Bytes::ZERO).unwrap();
    let costs = Costs::estimate(&trace, &Roofline::new(machine));
    (trace, costs)
}

#[test]
fn deep_networks_come_near_the_bound_at_once() {
    let machine = presets::machine("a100").unwrap();
    for (name, batch, percent) in [("resnet152", 64, 40), ("resnet101", 64, 30), ("densenet121", 64, 40)] {
        let (trace, costs) = traced(name, Options::new(batch).image(224), &machine);
        let (trace, costs, machine) = (&trace, &costs, &machine);
        for offload in [false, true] {
            let freedom = Freedom { offload, recompute: true, reorder: false };
            let request =
                |live_limit| Request { trace, costs, machine, live_limit, freedom, packer: None, pins: None };
            let (peak, _) = least_live(&request(Bytes(u64::MAX >> 1)), &Policy::prompt(trace)).unwrap();
            let request = request(Bytes(peak.get() * percent / 100));
            let time = |planner: &dyn Planner, evaluations| {
                let found = planner.schedule(&request, &Budget::evaluations(evaluations), &Silent).best;
                let timeline = simulate(trace, costs, machine, &found.expect("there is a schedule")).unwrap();
                assert!(timeline.peak_live <= request.live_limit);
                timeline.iteration.get()
            };
            let (total, bound) = (costs.total().get(), lower_bound(&request).get());
            let (mincut, auto) = (time(&Mincut::DEFAULT, 100), time(&Auto, SHORT));
            assert!(bound <= auto && auto <= mincut, "{name} {percent} {offload}");
            let above = |time: u64| (time - bound) as f64 / total as f64;
            assert!(
                above(auto) < 0.035,
                "{name} at {percent} %, {offload}: {:.4} above the bound",
                above(auto)
            );
        }
    }
}

#[test]
fn copies_help_a_deep_network_at_every_limit() {
    let machine = presets::machine("a100").unwrap();
    let (trace, costs) = traced("resnet152", Options::new(64).image(224), &machine);
    let (trace, costs, machine) = (&trace, &costs, &machine);
    let request = |live_limit, offload| {
        let freedom = Freedom { offload, recompute: true, reorder: false };
        Request { trace, costs, machine, live_limit, freedom, packer: None, pins: None }
    };
    let (peak, _) = least_live(&request(Bytes(u64::MAX >> 1), true), &Policy::prompt(trace)).unwrap();
    for percent in [20, 25, 30, 35, 40] {
        let [alone, linked] = [false, true].map(|offload| {
            let request = request(Bytes(peak.get() * percent / 100), offload);
            let found = Mincut::DEFAULT.schedule(&request, &Budget::evaluations(100), &Silent).best;
            simulate(trace, costs, machine, &found.expect("there is a schedule")).unwrap().iteration
        });
        assert!(linked < alone, "at {percent} %: {linked} with a link, {alone} without");
    }
}

#[test]
fn the_relaxation_names_ops_that_may_run_again_and_had_run_before() {
    let machine = presets::machine("a100").unwrap();
    let (trace, costs) = traced("resnet18", Options::new(8).image(64), &machine);
    let request = |live_limit, freedom| Request {
        trace: &trace,
        costs: &costs,
        machine: &machine,
        live_limit,
        freedom,
        packer: None,
        pins: None,
    };
    let alone = Freedom { offload: false, recompute: true, reorder: false };
    let (peak, _) = least_live(&request(Bytes(u64::MAX >> 1), alone), &Policy::prompt(&trace)).unwrap();
    assert_eq!(relaxation(&request(peak, alone)), None, "everything fits");
    let half = Bytes(peak.get() / 2);
    let found = relaxation(&request(half, alone)).expect("half of it does not");
    assert!(!found.again.is_empty() && found.again.is_sorted());
    assert!(found.again.iter().all(|&op| op < found.at), "what runs again ran before");
    let nanos: u64 = found.again.iter().map(|&op| costs.nanos[op].get()).sum();
    let bound = lower_bound(&request(half, alone)).get() - costs.total().get();
    assert!(nanos * 10 >= bound * 9, "whole ops take {nanos} ns, parts of them {bound} ns at least");
    let link = relaxation(&request(half, Freedom { offload: true, ..alone })).map(|found| found.again);
    assert!(link.is_none_or(|link| link.len() <= found.again.len()), "a link takes part of the load");
}

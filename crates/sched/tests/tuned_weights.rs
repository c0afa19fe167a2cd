//! `bo` against the four scores it weighs: never worse than the best of them at the same live memory, on any trace and with any budget; and what
//! all five do with values that outlive the iteration.

use std::sync::Arc;

use arbtest::arbitrary::Unstructured;
use arbtest::arbtest;
use elbowroom_graph::zoo::{self, OptimizerKind, Options};
use elbowroom_ir::check::check_schedule;
use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::planning::{Costs, Freedom, Request};
use elbowroom_ir::schedule::{Action, Schedule};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{Bytes, Nanos, OpId};
use elbowroom_sched::chain::{Chain, Layer};
use elbowroom_sched::lower::{least_live, lower};
use elbowroom_sched::policy::Policy;
use elbowroom_sim::cost::Roofline;
use elbowroom_sim::{presets, simulate};

const SCORES: [&str; 4] = ["doa", "aoa", "wdoa", "swdoa"];

fn network(name: &str, options: &Options) -> (Trace, Costs, Machine) {
    let graph = zoo::build(name, options).unwrap();
    let trace = graph.trace(&|_, _: OpId| Bytes::ZERO).unwrap();
    let machine = presets::machine("gtx1080ti").unwrap();
    let costs = Costs::estimate(&trace, &Roofline::new(&machine));
    (trace, costs, machine)
}

fn request<'a>(trace: &'a Trace, costs: &'a Costs, machine: &'a Machine) -> Request<'a> {
    Request {
        trace,
        costs,
        machine,
        live_limit: Bytes(1 << 50),
        freedom: Freedom::ALL,
        packer: None,
        pins: None,
    }
}

/// A planner's schedule and its simulated iteration time.
fn planned(request: &Request<'_>, planner: &str, budget: &Budget) -> Option<(Schedule, Nanos)> {
    let schedule = elbowroom_sched::planner(planner).unwrap().schedule(request, budget, &Silent).best?;
    let timeline = simulate(request.trace, request.costs, request.machine, &schedule).unwrap();
    assert!(timeline.peak_live <= request.live_limit);
    Some((schedule, timeline.iteration))
}

/// Whether the best score found a plan, and whether the tuned weights found a shorter one. They may not find a longer one.
fn compare(request: &Request<'_>, budget: &Budget) -> (bool, bool) {
    let time = |planner| planned(request, planner, budget).map(|(_, time)| time);
    let best = SCORES.into_iter().filter_map(time).min();
    let tuned = time("bo-margin");
    match (best, tuned) {
        (Some(best), Some(tuned)) => assert!(tuned <= best, "{tuned} after {best} at {}", request.live_limit),
        (Some(best), None) => panic!("nothing after {best} at {}", request.live_limit),
        (None, _) => {}
    }
    (best.is_some(), tuned < best)
}

#[test]
fn tuning_never_loses_to_a_score_on_networks() {
    let (mut served, mut gained) = (0, 0);
    for (name, batch) in [("vgg16", 32), ("resnet18", 16), ("unet", 2), ("densenet121", 2), ("gpt", 4)] {
        let (trace, costs, machine) = network(name, &Options::new(batch));
        let mut request = request(&trace, &costs, &machine);
        let peak = lower(&request, &Policy::keep(&trace)).unwrap().peak;
        for percent in [95, 85, 75, 65, 55, 45] {
            request.live_limit = Bytes(peak.get() * percent / 100);
            // One evaluation leaves no room for tuning, and still every score is tried.
            for budget in [Budget::evaluations(1), Budget { seed: percent, ..Budget::evaluations(16) }] {
                let (found, better) = compare(&request, &budget);
                served += usize::from(found);
                gained += usize::from(better);
            }
        }
    }
    assert!(served > 20 && gained > 5, "{served} {gained}");
}

#[test]
fn tuning_never_loses_to_a_score_on_random_chains() {
    let mut served = 0;
    let mut case = |u: &mut Unstructured<'_>| {
        let layers: usize = u.int_in_range(2..=20)?;
        let mut chain = Chain { layers: vec![], activations: vec![], gradients: vec![] };
        for layer in 0..=layers {
            chain.activations.push(Bytes(u.int_in_range(0..=40)?));
            chain.gradients.push(Bytes(u.int_in_range(0..=10)?));
            if layer < layers {
                chain.layers.push(Layer {
                    forward: Nanos(u.int_in_range(0..=30)?),
                    backward: Nanos(u.int_in_range(0..=30)?),
                    forward_extra: Bytes(u.int_in_range(0..=10)?),
                    backward_extra: Bytes(u.int_in_range(0..=10)?),
                });
            }
        }
        let link =
            Channel { latency: Nanos(u.int_in_range(0..=2)?), rate: *u.choose(&[1, 3])? * 1_000_000_000 };
        let machine = Machine {
            align: Bytes(1),
            to_host: link,
            to_device: link,
            shared_link: u.arbitrary()?,
            ..presets::machine("gtx1080ti").unwrap()
        };
        let Ok(traced) = chain.to_trace("random") else { return Ok(()) };
        let mut request = request(&traced.trace, &traced.costs, &machine);
        let peak = lower(&request, &Policy::keep(&traced.trace)).unwrap().peak;
        request.live_limit = Bytes(peak.get() * u.int_in_range(5..=9)? / 10);
        let budget = Budget { seed: u.int_in_range(0..=9)?, ..Budget::evaluations(u.int_in_range(1..=20)?) };
        served += usize::from(compare(&request, &budget).0);
        Ok(())
    };
    // A fixed list of cases: the same ones on every machine.
    for seed in 0..40u64 {
        arbtest(&mut case).seed(seed << 32 | 2_048).run();
    }
    assert!(served > 20, "{served}");
}

#[test]
fn persistent_values_leave_over_the_end_of_the_iteration() {
    // Adam's two moments of every parameter rest from one update to the next.
    let options = Options::new(2).optimizer(OptimizerKind::Adam);
    let (trace, costs, machine) = network("gpt", &options);
    let mut request = request(&trace, &costs, &machine);
    let keep = least_live(&request, &Policy::keep(&trace)).unwrap().0;
    request.live_limit = Bytes(keep.get() * 7 / 10);
    for planner in ["doa", "aoa", "wdoa", "swdoa", "autoswap", "bo", "bo-margin"] {
        let (schedule, _) = planned(&request, planner, &Budget::evaluations(12)).unwrap();
        let actions = schedule
            .boundary
            .iter()
            .zip(trace.persistent())
            .filter(|(at_boundary, _)| at_boundary.device.is_none());
        let actions: Vec<_> = actions.map(|(_, pair)| *pair).collect();
        assert!(!actions.is_empty(), "{planner}");
        for pair in &actions {
            // It begins on the host, and what it has become is there again at the end.
            let prefetches = |value| {
                let named =
                    |action: &Action| matches!(action, Action::Prefetch { tensor: v, .. } if *v == value);
                schedule.steps.values().any(|step| named(&step.action))
            };
            let stored = |value| {
                let named =
                    |action: &Action| matches!(action, Action::Offload { tensor: v, .. } if *v == value);
                schedule.steps.values().any(|step| named(&step.action))
            };
            assert!(prefetches(pair.begin), "{planner}");
            assert!(pair.begin == pair.end || stored(pair.end), "{planner}");
        }
        check_schedule(Arc::new(trace.clone()), machine.clone(), schedule, request.live_limit)
            .unwrap_or_else(|illegal| panic!("{planner}: {illegal}"));
    }
}

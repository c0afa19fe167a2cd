//! Lowering and simulating a policy on a chain of 10,000 ops: the inner loop of every search.

use divan::Bencher;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::{Freedom, Request};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sched::chain::linearize::Linear;
use elbowroom_sched::chain::{Chain, Layer};
use elbowroom_sched::lower::{evaluate, least_live};
use elbowroom_sched::policy::{Policy, PrefetchRule};
use elbowroom_sched::{lower, planner};
use elbowroom_sim::{presets, simulate};

fn main() {
    divan::main();
}

fn chain(layers: usize) -> Chain {
    let mut state = 1u64;
    let mut random = move |from: u64, to: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        from + (state >> 33) % (to - from)
    };
    Chain {
        layers: (0..layers)
            .map(|_| Layer {
                forward: Nanos(random(50_000, 900_000)),
                backward: Nanos(random(100_000, 1_800_000)),
                forward_extra: Bytes(random(0, 4 << 20)),
                backward_extra: Bytes(random(0, 8 << 20)),
            })
            .collect(),
        activations: (0..=layers).map(|_| Bytes(random(1 << 20, 64 << 20))).collect(),
        gradients: (0..=layers).map(|_| Bytes(random(1 << 20, 64 << 20))).collect(),
    }
}

/// What is timed: one step of planning on 10,000 ops, half of the activations offloaded.
fn on_half(bencher: Bencher<'_, '_>, timed: impl Fn(&Request<'_>, &Policy)) {
    let chain = chain(5_000);
    let traced = chain.to_trace("bench").unwrap();
    let machine = Machine { host_memory: Bytes(1 << 50), ..presets::machine("v100").unwrap() };
    let request = Request {
        trace: &traced.trace,
        costs: &traced.costs,
        machine: &machine,
        live_limit: Bytes(chain.peak().get() * 6 / 10),
        freedom: Freedom::ALL,
        packer: None,
        pins: None,
    };
    let mut policy = Policy { prefetch: PrefetchRule::AfterOffloads, ..Policy::keep(&traced.trace) };
    let linear = Linear::of(&request).unwrap();
    linear.offload(&mut policy, 0..2_600);
    bencher.bench_local(|| timed(&request, &policy));
}

#[divan::bench]
fn least_live_of_a_policy(bencher: Bencher<'_, '_>) {
    on_half(bencher, |request, policy| {
        divan::black_box(least_live(request, policy).unwrap());
    });
}

#[divan::bench]
fn evaluate_a_policy(bencher: Bencher<'_, '_>) {
    on_half(bencher, |request, policy| {
        divan::black_box(evaluate(request, policy).unwrap());
    });
}

#[divan::bench]
fn lower_a_policy(bencher: Bencher<'_, '_>) {
    on_half(bencher, |request, policy| {
        divan::black_box(lower(request, policy).unwrap());
    });
}

#[divan::bench]
fn lower_and_simulate(bencher: Bencher<'_, '_>) {
    on_half(bencher, |request, policy| {
        let lowered = lower(request, policy).unwrap();
        divan::black_box(simulate(request.trace, request.costs, request.machine, &lowered.schedule).unwrap());
    });
}

#[divan::bench(args = ["keep", "greedy", "sqrt", "mixed", "floor"], sample_count = 3, sample_size = 1)]
fn plan(bencher: Bencher<'_, '_>, name: &str) {
    on_half(bencher, |request, _| {
        divan::black_box(planner(name).unwrap().schedule(request, &Budget::default(), &Silent));
    });
}

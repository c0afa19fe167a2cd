//! The four scores of AutoSwap on a chain small enough to work out by hand.

use std::sync::atomic::{AtomicU64, Ordering};

use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::planning::{Freedom, Request};
use elbowroom_ir::schedule::Stream;
use elbowroom_ir::search::{Budget, Observer, Outcome, Silent, StopReason};
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sched::chain::{Chain, ChainTrace, Layer};
use elbowroom_sched::offload::autoswap::{AutoSwap, Candidate, ranking};
use elbowroom_sched::planner;
use elbowroom_sched::policy::PrefetchRule;
use elbowroom_sim::{presets, simulate};

const MIB: u64 = 1 << 20;

/// Three layers of 100 µs forward and 200 µs backward; activations of 4, 2, 1 and 1 MiB; no gradients.
fn chain() -> ChainTrace {
    let layer = Layer { forward: Nanos(100_000), backward: Nanos(200_000), ..Layer::default() };
    let chain = Chain {
        layers: vec![layer; 3],
        activations: [4, 2, 1, 1].map(|mib| Bytes(mib * MIB)).to_vec(),
        gradients: vec![Bytes::ZERO; 4],
    };
    chain.to_trace("by hand").unwrap()
}

/// One MiB takes `micros` µs in either direction.
fn machine(micros: u64) -> Machine {
    let link = Channel { latency: Nanos::ZERO, rate: MIB * 1_000_000 / micros };
    Machine { to_host: link, to_device: link, align: Bytes(1), ..presets::machine("gtx1080ti").unwrap() }
}

fn request<'a>(traced: &'a ChainTrace, machine: &'a Machine, limit: u64) -> Request<'a> {
    Request {
        trace: &traced.trace,
        costs: &traced.costs,
        machine,
        live_limit: Bytes(limit),
        freedom: Freedom::ALL,
        packer: None,
        pins: None,
    }
}

#[test]
fn scores_are_those_of_the_paper() {
    let traced = chain();
    let machine = machine(10);
    let request = request(&traced, &machine, 8 * MIB);
    let swap = AutoSwap::new(&request, Some(Bytes(MIB))).unwrap();
    // The peak, 8 MiB, is first reached by F2 and last by B2; x_0 rests between F0 and B0, x_1 between F1 and B1, and x_2 between F2
    // and B2 only, which the last place of the peak does not separate.
    assert_eq!(swap.candidates.len(), 2);
    let [x0, x1] = [swap.candidates[0].scores, swap.candidates[1].scores];
    let micros = 1e3;
    // From the end of F0 (100 µs) to the start of B0 (700 µs), less 2 × 40 µs.
    assert_eq!(x0[0], (600.0 - 80.0) * micros);
    assert_eq!(x1[0], (300.0 - 40.0) * micros);
    assert_eq!(x0[1], x0[0] * (4 * MIB) as f64);
    // The live memory: 7 MiB in F1, 8 in F2 and B2, 7 in B1.
    let mib = MIB as f64 * micros;
    assert_eq!(x0[2], (7.0 * 100.0 + 8.0 * 300.0 + 7.0 * 200.0) * mib);
    assert_eq!(x1[2], (8.0 * 300.0) * mib);
    // While x_0 is on the host, 4 MiB stay in use.
    assert_eq!(x0[3], x0[2]);
    assert_eq!(x1[3], (4.0 * 300.0) * mib);
}

#[test]
fn negative_areas_favour_large_values() {
    let traced = chain();
    let machine = machine(200);
    let request = request(&traced, &machine, 8 * MIB);
    let swap = AutoSwap::new(&request, Some(Bytes(MIB))).unwrap();
    let [x0, x1] = [swap.candidates[0].scores, swap.candidates[1].scores];
    assert!(x0[0] < 0.0 && x1[0] < 0.0);
    assert!((x0[1] - x0[0] / (4 * MIB) as f64).abs() < 1e-12);
    assert!((x1[1] - x1[0] / (2 * MIB) as f64).abs() < 1e-12);
}

#[test]
fn small_values_are_passed_over_and_the_limit_decides_how_many_leave() {
    let traced = chain();
    let machine = machine(10);
    let mut request = request(&traced, &machine, 8 * MIB);
    assert!(AutoSwap::new(&request, Some(Bytes(5 * MIB))).unwrap().candidates.is_empty());
    for (limit, bytes) in [(8, 0), (6, 4), (4, 4)] {
        request.live_limit = Bytes(limit * MIB);
        let outcome = planner("wdoa").unwrap().schedule(&request, &Budget::default(), &Silent);
        let found = outcome.best.map(|schedule| {
            simulate(&traced.trace, &traced.costs, &machine, &schedule).unwrap().traffic.to_host.get() / MIB
        });
        if limit >= 6 {
            assert_eq!(found, Some(bytes), "{limit}");
        } else {
            // F0 needs x_0 and x_1 together.
            assert_eq!((found, outcome.stop.name()), (None, "infeasible"));
        }
    }
}

#[test]
fn what_comes_back_just_in_time_delays_nobody() {
    let traced = chain();
    let machine = machine(10);
    let request = request(&traced, &machine, 8 * MIB);
    let swap = AutoSwap::new(&request, Some(Bytes(MIB))).unwrap();
    let rank = |candidates: &[Candidate]| ranking(candidates, |candidate| candidate.scores[2]);
    // x_0 is offloaded, and its bytes are free for the prefetch at any time.
    let prefetched = |rule| {
        let lowered = swap.select(&rank, Bytes(8 * MIB), Bytes(6 * MIB), rule).unwrap();
        assert_eq!(lowered.iteration, traced.costs.total());
        let timeline = simulate(&traced.trace, &traced.costs, &machine, &lowered.schedule).unwrap();
        timeline.spans.iter().find(|span| span.stream == Stream::ToDevice).map(|span| span.start)
    };
    // Its copy takes 40 µs and is needed at 700 µs; the op that runs at 660 µs, B1, begins at 500 µs.
    assert_eq!(prefetched(PrefetchRule::JustInTime), Some(Nanos(500_000)));
    assert!(prefetched(PrefetchRule::Eager) < Some(Nanos(300_000)));
}

/// Refuses everything by a byte, and counts.
#[derive(Default)]
struct Refuses(AtomicU64);

impl Packer for Refuses {
    fn name(&self) -> &'static str {
        "refuses"
    }

    fn pack(&self, problem: &Problem, _: &Budget, _: &dyn Observer) -> Outcome<Placement> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let best = problem.capacity.map(|capacity| capacity + Bytes(1));
        Outcome { best: None, evaluations: 1, stop: StopReason::GaveUp { best } }
    }
}

/// Every schedule that is packed is an evaluation, so that few evaluations take little time.
#[test]
fn evaluations_bound_how_often_candidates_are_packed() {
    let traced = chain();
    let machine = machine(10);
    for name in ["autoswap", "doa", "bo"] {
        let packed = |budget: &Budget| {
            let packer = Refuses::default();
            let request = Request { packer: Some(&packer), ..request(&traced, &machine, 7 * MIB) };
            let outcome = planner(name).unwrap().schedule(&request, budget, &Silent);
            (packer.0.into_inner(), outcome.evaluations, outcome.best)
        };
        let (all, evaluations, best) = packed(&Budget::evaluations(1_000_000));
        assert!(all > 3 && evaluations >= all, "{name}: {all} packed, {evaluations} evaluations");
        // `bo` tries its first four points whatever the budget.
        let more = if name == "bo" { 3 } else { 0 };
        for most in [1, 2, 3] {
            let (few, evaluations, _) = packed(&Budget::evaluations(most));
            assert!(few <= most + more, "{name}: {few} packed within {most} evaluations");
            assert!(evaluations <= most + more, "{name}: {evaluations} of {most} evaluations");
        }
        // The number that was counted gives the same again.
        assert_eq!(packed(&Budget::evaluations(evaluations)), (all, evaluations, best), "{name}");
    }
}

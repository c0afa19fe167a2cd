//! Every recompute planner on whole training iterations, parameters and updates among the gradients: proved legal, within the limit.

use std::collections::BTreeMap;
use std::sync::Arc;

use arbtest::arbitrary::Unstructured;
use arbtest::arbtest;
use elbowroom_graph::zoo;
use elbowroom_import::{Options, import};
use elbowroom_ir::check::check_schedule;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::{CostSource, Costs, Freedom, Request};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_ir::text::File;
use elbowroom_ir::trace::{Phase, Trace};
use elbowroom_ir::{Bytes, Id, Nanos, Table};
use elbowroom_sched::chain::{Chain, ChainTrace, Layer};
use elbowroom_sched::lower;
use elbowroom_sched::lower::least_live;
use elbowroom_sched::policy::Policy;
use elbowroom_sched::recompute::cuts::Cuts;
use elbowroom_sched::recompute::mirror::Mirrors;
use elbowroom_sched::recompute::{drop_cheap, drop_cheap_cost, recursive, repeats};
use elbowroom_sim::cost::Roofline;
use elbowroom_sim::{presets, simulate};

#[path = "../../../golden/shared.rs"]
mod shared;
use shared::shared;

/// Planners that recompute as much as the limit requires; the others decide without the limit.
const SEARCHING: [&str; 5] = ["sqrt", "sublinear", "recursive", "rotor", "dtr"];

const PLANNERS: [&str; 9] =
    ["sqrt", "sublinear", "recursive", "rotor", "dtr", "drop-cheap", "sharing", "inplace", "none"];

#[test]
#[ignore = "needs the shared data"]
fn captured_iterations() {
    let machine = Machine { align: Bytes(512), ..presets::machine("h100").unwrap() };
    // Of the language model's peak, 98 % are parameters and a softmax with its gradient, which must be there together.
    for (name, percents) in [
        ("resnet50", &[101, 60][..]),
        ("mobilenet_v2", &[60]),
        ("densenet121", &[60]),
        ("unet", &[80]),
        ("gpt2s", &[80, 60]),
        ("lstm_lm", &[101, 99]),
    ] {
        let bytes = std::fs::read(shared(&format!("data/traces/{name}_eager.jsonl.gz"))).unwrap();
        let imported = import(&bytes, name, &Options::default()).unwrap();
        let trace = Arc::new(imported.trace);
        for &percent in percents {
            let limit = Bytes(imported.notes.peak.get() / 100 * percent);
            let request = Request {
                trace: &trace,
                costs: &imported.costs,
                machine: &machine,
                live_limit: limit,
                freedom: Freedom { offload: false, recompute: true, ..Freedom::ALL },
                packer: None,
                pins: None,
            };
            print!("{name} at {percent} %:");
            for planner in PLANNERS {
                let outcome = elbowroom_sched::planner(planner).unwrap().schedule(
                    &request,
                    &Budget::default(),
                    &Silent,
                );
                let Some(schedule) = outcome.best else {
                    print!("  {planner} {}", outcome.stop.name());
                    // What releases nothing needs the sum of all tensors.
                    let whole = ["none", "inplace"].contains(&planner);
                    assert!(whole || (percent < 100 && !SEARCHING.contains(&planner)), "{name} {planner}");
                    continue;
                };
                let timeline = simulate(&trace, &imported.costs, &machine, &schedule).unwrap();
                assert!(timeline.peak_live <= limit, "{name} {planner}");
                check_schedule(trace.clone(), machine.clone(), schedule, limit).unwrap();
                let share = timeline.iteration.get() as f64 / imported.costs.total().get() as f64;
                print!("  {planner} {:.1} %", 100.0 * (share - 1.0));
            }
            println!();
        }
    }
}

#[test]
fn cheap_results_are_dropped_and_convolutions_are_kept() {
    let graph = zoo::build("resnet50", &zoo::Options::new(32).image(224)).unwrap();
    let trace = graph.trace(&|_, _| Bytes::ZERO).unwrap();
    let machine = presets::machine("v100").unwrap();
    let costs = Costs::estimate(&trace, &Roofline::new(&machine));
    let request = Request {
        trace: &trace,
        costs: &costs,
        machine: &machine,
        live_limit: Bytes(1 << 60),
        freedom: Freedom::ALL,
        packer: None,
        pins: None,
    };
    // By kind, as section 4.2 says: no convolution and no product is recomputed, whatever it costs.
    let mut kinds = BTreeMap::new();
    for op in trace.ops().values().filter(|op| op.phase == Phase::Forward) {
        *kinds.entry(op.kind.as_str()).or_insert(0) += 1;
    }
    let runs = repeated(&trace, &drop_cheap::mirrors(&trace).policy(&trace));
    println!("{kinds:?} {runs:?}");
    assert!(runs.keys().all(|kind| drop_cheap::is_cheap(kind)), "{runs:?}");
    assert!(runs["batch-norm"] * 4 > kinds["batch-norm"] * 3 && runs["relu"] * 4 > kinds["relu"] * 3);
    // By cost: a few small convolutions are cheap for their bytes.
    let runs = repeated(&trace, &drop_cheap_cost::mirrors(&request, 2).policy(&trace));
    assert!((1..kinds["conv2d"] / 4).contains(&runs["conv2d"]), "{runs:?}");
}

/// How many ops of each kind are recomputed.
fn repeated<'a>(trace: &'a Trace, policy: &Policy) -> BTreeMap<&'a str, i32> {
    let mut seen = vec![false; trace.ops().len()];
    let mut again = BTreeMap::new();
    for &op in &policy.sequence {
        if std::mem::replace(&mut seen[op.index()], true) {
            *again.entry(trace.ops()[op].kind.as_str()).or_insert(0) += 1;
        }
    }
    again
}

#[test]
fn the_three_allocations_of_figure_1_differ() {
    let machine = Machine { align: Bytes(1), ..presets::machine("v100").unwrap() };
    let trace = Arc::new(figure_1());
    let costs = Costs { nanos: Table::filled(trace.ops().len(), Nanos(1)), source: CostSource::Recorded };
    let request = Request {
        trace: &trace,
        costs: &costs,
        machine: &machine,
        live_limit: Bytes(1 << 30),
        freedom: Freedom::ALL,
        packer: None,
        pins: None,
    };
    let peak = |planner: &str| {
        let planner = elbowroom_sched::planner(planner).unwrap();
        let schedule = planner.schedule(&request, &Budget::default(), &Silent).best.unwrap();
        check_schedule(trace.clone(), machine.clone(), schedule.clone(), request.live_limit).unwrap();
        simulate(&trace, &costs, &machine, &schedule).unwrap().peak_live.get()
    };
    assert_eq!(["none", "inplace", "sharing"].map(peak), [9_000, 6_000, 4_000]);
}

/// The two-layer network of Figure 1, every result of 1,000 bytes. Sigmoid, softmax and the sigmoid's gradient may be computed in place.
fn figure_1() -> Trace {
    let text = include_str!("../../reproduce/src/chen_figure_1.txt");
    match text.parse() {
        Ok(File::Trace(file)) => file.trace,
        other => panic!("{other:?}"),
    }
}

/// A chain of equal layers, with the values between them.
fn chain(layers: usize) -> ChainTrace {
    let layer = Layer { forward: Nanos(2), backward: Nanos(3), ..Layer::default() };
    let sizes = vec![Bytes(4); layers + 1];
    let chain = Chain { layers: vec![layer; layers], activations: sizes.clone(), gradients: sizes };
    chain.to_trace("chain").unwrap()
}

#[test]
fn mirror_counts_are_what_the_user_says() {
    let chain = chain(8);
    let x = |i: usize| chain.activations[i].unwrap();
    let runs = |mirrors: &Mirrors, layer: usize| {
        let made = chain.trace.producer(x(layer + 1)).unwrap();
        mirrors.sequence(&chain.trace).into_iter().filter(|&op| op == made).count()
    };
    let mut mirrors = Mirrors::none(&chain.trace);
    assert!((0..8).all(|layer| runs(&mirrors, layer) == 1));
    // x_1 to x_3 once, from x_0; x_5 to x_7 twice: x_6 first on the way to x_7, then for its own gradient.
    (1..=3).for_each(|i| mirrors.mark(x(i), 1));
    assert_eq!([0, 1, 2, 3, 4].map(|layer| runs(&mirrors, layer)), [2, 2, 2, 1, 1]);
    mirrors.mark(x(5), 2);
    mirrors.mark(x(6), 2);
    mirrors.mark(x(7), 1);
    assert_eq!([3, 4, 5, 6, 7].map(|layer| runs(&mirrors, layer)), [1, 3, 3, 2, 1]);
}

#[test]
fn recursion_needs_logarithmic_memory() {
    let peak = |layers: usize| {
        let chain = chain(layers);
        let (_, backward_start) = repeats::base(&chain.trace);
        let cuts = Cuts::of(&chain.trace, backward_start);
        let policy = recursive::mirrors(&chain.trace, &cuts, &cuts.single(), 1).policy(&chain.trace);
        let machine = Machine { align: Bytes(1), ..presets::machine("v100").unwrap() };
        let request = Request {
            trace: &chain.trace,
            costs: &chain.costs,
            machine: &machine,
            live_limit: Bytes(1 << 40),
            freedom: Freedom::ALL,
            packer: None,
            pins: None,
        };
        least_live(&request, &policy).unwrap().0.get() / 4
    };
    let peaks: Vec<u64> = [16, 32, 64, 128, 256, 512, 1024].map(peak).to_vec();
    println!("{peaks:?}");
    // Twice the layers, one value more.
    assert!(peaks.windows(2).all(|pair| pair[1] - pair[0] == 1), "{peaks:?}");
}

#[test]
fn updates_among_gradients() {
    let machine = presets::machine("v100").unwrap();
    let lstm = zoo::Options::new(16).length(192).width(256).layers(2);
    for (name, options, percent) in
        [("resnet110", zoo::Options::new(16), 40), ("lstm", lstm, 80), ("gpt", zoo::Options::new(4), 80)]
    {
        let graph = zoo::build(name, &options).unwrap();
        let trace = Arc::new(graph.trace(&|_, _| Bytes::ZERO).unwrap());
        let costs = Costs::estimate(&trace, &Roofline::new(&machine));
        let mut request = Request {
            trace: &trace,
            costs: &costs,
            machine: &machine,
            live_limit: Bytes(1 << 60),
            freedom: Freedom { offload: false, recompute: true, ..Freedom::ALL },
            packer: None,
            pins: None,
        };
        let (keep, _) = least_live(&request, &Policy::prompt(&trace)).unwrap();
        request.live_limit = Bytes(keep.get() / 100 * percent);
        print!("{name} at {percent} %:");
        for planner in SEARCHING {
            let outcome =
                elbowroom_sched::planner(planner).unwrap().schedule(&request, &Budget::default(), &Silent);
            let schedule = outcome.best.unwrap_or_else(|| panic!("{name} {planner}: {:?}", outcome.stop));
            let timeline = simulate(&trace, &costs, &machine, &schedule).unwrap();
            check_schedule(trace.clone(), machine.clone(), schedule, request.live_limit).unwrap();
            let share = timeline.iteration.get() as f64 / costs.total().get() as f64;
            print!("  {planner} {:.1} %", 100.0 * (share - 1.0));
        }
        println!();
    }
}

#[test]
fn any_mirror_counts_make_a_legal_schedule() {
    let machine = Machine { align: Bytes(1), ..presets::machine("v100").unwrap() };
    let mut case = |u: &mut Unstructured<'_>| {
        let trace = Arc::new(elbowroom_ir::arbitrary::trace(u)?);
        let costs = Costs { nanos: Table::filled(trace.ops().len(), Nanos(1)), source: CostSource::Recorded };
        let mut mirrors = Mirrors::none(&trace);
        for value in trace.tensors().ids() {
            mirrors.mark(value, u.int_in_range(0..=3)?);
        }
        let request = Request {
            trace: &trace,
            costs: &costs,
            machine: &machine,
            live_limit: Bytes(1 << 40),
            freedom: Freedom::ALL,
            packer: None,
            pins: None,
        };
        let policy = mirrors.policy(&trace);
        for op in trace.ops().ids() {
            let runs = policy.sequence.iter().filter(|&&other| other == op).count();
            let most = trace.ops()[op].outputs.iter().map(|&value| mirrors.count(value)).max().unwrap_or(0);
            assert!((1..=1 + most as usize).contains(&runs));
        }
        // A home may be needed by a repeat when its end is made; such a plan is refused, never wrong.
        if let Ok(lowered) = lower(&request, &policy) {
            check_schedule(trace.clone(), machine.clone(), lowered.schedule, request.live_limit).unwrap();
        }
        Ok(())
    };
    for seed in 0..100u64 {
        arbtest(&mut case).seed(seed << 32 | 2_048).run();
    }
}

//! `auto` against optima: the golden joint cases are met, it is the same on any number of threads, and a time limit is reported as a
//! number of evaluations that gives the same plan again.

use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::planning::{Freedom, Request, Scheduler};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Outcome, Silent};
use elbowroom_ir::trace::{Again, Trace};
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sched::auto::Auto;
use elbowroom_sched::chain::{Chain, ChainTrace, Layer};
use elbowroom_sim::bound::lower_bound;
use elbowroom_sim::simulate;
use serde_json::Value;

/// Times and sizes are scaled, so that every fraction (denominators 1, 2, 3) is whole.
const SCALE: u64 = 6;

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() * SCALE).collect()
}

/// A fraction like `83/2`, scaled; `None` for a case that the reference skipped.
fn time(value: &Value) -> Option<u64> {
    let text = value.as_str().filter(|text| *text != "skipped")?;
    let (over, under) = text.split_once('/').unwrap_or((text, "1"));
    Some(over.parse::<u64>().unwrap() * SCALE / under.parse::<u64>().unwrap())
}

/// A golden chain as a trace. Its input is not made again: it may only be copied.
fn chain(instance: &Value) -> ChainTrace {
    let [forward, backward, forward_extra, backward_extra] =
        ["uF", "uB", "exF", "exB"].map(|key| numbers(&instance[key]));
    let layers = (0..forward.len()).map(|i| Layer {
        forward: Nanos(forward[i]),
        backward: Nanos(backward[i]),
        forward_extra: Bytes(forward_extra[i]),
        backward_extra: Bytes(backward_extra[i]),
    });
    let chain = Chain {
        layers: layers.collect(),
        activations: numbers(&instance["x"]).into_iter().map(Bytes).collect(),
        gradients: numbers(&instance["y"]).into_iter().map(Bytes).collect(),
    };
    let mut chain = chain.to_trace("golden").unwrap();
    let mut data = chain.trace.data().clone();
    for (_, op) in data.ops.iter_mut().filter(|(_, op)| op.name == "input") {
        op.again = Again::Never;
    }
    chain.trace = Trace::new(data).unwrap();
    chain
}

fn machine(memory: u64, rate: u64, shared_link: bool) -> Machine {
    let link = Channel::with_rate(rate * 1_000_000_000);
    Machine {
        name: "golden".into(),
        memory: Bytes(memory),
        align: Bytes(1),
        host_memory: Bytes(1 << 50),
        to_host: link,
        to_device: link,
        shared_link,
        flops_per_second: 1,
        bytes_per_second: 1,
        launch: Nanos::ZERO,
    }
}

fn plan(
    chain: &ChainTrace,
    machine: &Machine,
    freedom: Freedom,
    budget: &Budget,
) -> (Option<u64>, Outcome<Schedule>) {
    let request = Request {
        trace: &chain.trace,
        costs: &chain.costs,
        machine,
        load_limit: machine.memory,
        freedom,
        packer: None,
    };
    let outcome = Auto.schedule(&request, budget, &Silent);
    let time = outcome.best.as_ref().map(|schedule| {
        let timeline = simulate(&chain.trace, &chain.costs, machine, schedule).unwrap();
        assert!(timeline.peak_load <= machine.memory);
        timeline.iteration.get()
    });
    (time, outcome)
}

#[test]
fn golden_joint_optima_are_met() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/golden/chain_joint.json");
    let Ok(text) = std::fs::read_to_string(path) else { return eprintln!("skipped: {path} is not there") };
    let json: Value = serde_json::from_str(&text).unwrap();
    let cases = json["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 30);
    let (mut met, mut all, mut tight) = (0, 0, 0);
    for case in cases {
        let instance = &case["instance"];
        let chain = chain(instance);
        let memory = instance["M"].as_u64().unwrap() * SCALE;
        let rate = instance["beta"].as_u64().unwrap();
        for (shared, joint, offload) in
            [(true, "joint_half", "offload_half"), (false, "joint_full", "offload_full")]
        {
            let machine = machine(memory, rate, shared);
            let Some(optimum) = time(&case[joint]) else { continue };
            let request = Request {
                trace: &chain.trace,
                costs: &chain.costs,
                machine: &machine,
                load_limit: machine.memory,
                freedom: Freedom::ALL,
                packer: None,
            };
            let bound = lower_bound(&request).get();
            assert!(bound <= optimum, "{}: bound {bound} above {optimum}", case["id"]);
            tight += usize::from(bound > chain.costs.total().get());
            let (found, _) = plan(&chain, &machine, Freedom::ALL, &Budget::evaluations(20_000));
            let found = found.expect("there is a plan");
            assert!(found >= optimum, "{}: {found} below {optimum}", case["id"]);
            for alone in [time(&case[offload]), time(&case["recompute_only"])].into_iter().flatten() {
                assert!(found <= alone, "{}: {found} above {alone}", case["id"]);
            }
            met += usize::from(found == optimum);
            all += 1;
        }
    }
    assert!(met * 100 >= all * 95, "{met} of {all}");
    assert!(tight > 0, "the bound never says more than the sum of op times");
}

/// A chain on which there is something to search.
fn long_chain() -> ChainTrace {
    let layers = (0..12u64).map(|i| Layer {
        forward: Nanos(40 + 13 * (i * i % 7)),
        backward: Nanos(70 + 11 * (i * 5 % 9)),
        ..Layer::default()
    });
    let chain = Chain {
        layers: layers.collect(),
        activations: (0..13u64).map(|i| Bytes(30 + 17 * (i * i * 3 % 11))).collect(),
        gradients: (0..13u64).map(|i| Bytes(10 + 3 * (i % 4))).collect(),
    };
    chain.to_trace("long").unwrap()
}

#[test]
fn threads_change_nothing_and_a_time_limit_is_a_number_of_evaluations() {
    let chain = long_chain();
    let machine = machine(700, 1, true);
    for freedom in [Freedom::ALL, Freedom { offload: false, recompute: true }] {
        let limited = Budget { threads: 2, seed: 3, ..Budget::time(std::time::Duration::from_millis(80)) };
        let (time, first) = plan(&chain, &machine, freedom, &limited);
        assert!(first.evaluations > 0 && time.is_some());
        for threads in [1, 3] {
            let again = Budget { threads, seed: 3, ..Budget::evaluations(first.evaluations) };
            let (_, second) = plan(&chain, &machine, freedom, &again);
            assert_eq!(first.best, second.best, "{} evaluations", first.evaluations);
            assert_eq!(first.evaluations, second.evaluations);
        }
    }
}

#[test]
fn joint_is_never_worse_than_either_alone() {
    let chain = long_chain();
    for memory in [500, 700, 900] {
        let machine = machine(memory, 2, true);
        let time = |offload, recompute| {
            let budget = Budget::evaluations(20_000);
            plan(&chain, &machine, Freedom { offload, recompute }, &budget).0.unwrap_or(u64::MAX)
        };
        assert!(time(true, true) <= time(true, false).min(time(false, true)), "{memory}");
    }
}

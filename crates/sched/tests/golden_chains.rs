//! The golden chains of Beaumont's problem: exact no-offload times, lower bounds, greedy times, and the replay of optimal schedules.
//! Times and sizes are scaled by six, so that every fraction (denominators 1, 2, 3) is a whole number of nanoseconds.

use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::planning::{Freedom, Request};
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sched::chain::{Chain, ChainTrace, Layer};
use elbowroom_sched::lower;
use elbowroom_sched::policy::{Away, FetchRule, Policy, Touches};
use elbowroom_sim::bound::Bound;
use elbowroom_sim::simulate;
use serde_json::Value;

const SCALE: u64 = 6;

fn cases() -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/golden/chain_offload.json");
    let Ok(text) = std::fs::read_to_string(path) else {
        eprintln!("skipped: {path} is not there");
        return Vec::new();
    };
    let json: Value = serde_json::from_str(&text).unwrap();
    let cases = json["cases"].as_array().unwrap().clone();
    assert_eq!(cases.len(), 50);
    cases
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() * SCALE).collect()
}

/// A fraction like `83/2`, scaled.
fn time(value: &Value) -> Nanos {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let (over, under) = text.split_once('/').unwrap_or((&text, "1"));
    let (over, under): (u64, u64) = (over.parse().unwrap(), under.parse().unwrap());
    assert_eq!(over * SCALE % under, 0, "{text} is not a whole number of sixths");
    Nanos(over * SCALE / under)
}

fn chain(instance: &Value) -> Chain {
    let [forward, backward, forward_extra, backward_extra] =
        ["uF", "uB", "exF", "exB"].map(|key| numbers(&instance[key]));
    let layers = (0..forward.len()).map(|i| Layer {
        forward: Nanos(forward[i]),
        backward: Nanos(backward[i]),
        forward_extra: Bytes(forward_extra[i]),
        backward_extra: Bytes(backward_extra[i]),
    });
    Chain {
        layers: layers.collect(),
        activations: numbers(&instance["x"]).into_iter().map(Bytes).collect(),
        gradients: numbers(&instance["y"]).into_iter().map(Bytes).collect(),
    }
}

fn machine(instance: &Value, shared_link: bool) -> Machine {
    let link = Channel::with_rate(instance["beta"].as_u64().unwrap() * 1_000_000_000);
    Machine {
        name: "golden".into(),
        memory: Bytes(instance["M"].as_u64().unwrap() * SCALE),
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

fn request<'a>(chain: &'a ChainTrace, machine: &'a Machine, limit: Bytes) -> Request<'a> {
    Request {
        trace: &chain.trace,
        costs: &chain.costs,
        machine,
        load_limit: limit,
        freedom: Freedom::ALL,
        packer: None,
    }
}

/// Offloads these activations, each after its forward use until its backward use.
fn offload(chain: &ChainTrace, set: impl IntoIterator<Item = usize>) -> Policy {
    let mut policy = Policy::keep(&chain.trace);
    policy.fetch = FetchRule::AfterOffloads;
    let touches = Touches::of(&chain.trace, &policy.sequence);
    for i in set {
        let value = chain.activations[i].unwrap();
        let (gap, _) = touches.gaps(value).find(|(gap, _)| gap.after == Some(i as u32 + 1)).unwrap();
        policy.send(gap, Away::Offload);
    }
    policy
}

#[test]
fn peaks_bounds_and_unlimited_times() {
    for case in cases() {
        let chain = chain(&case["instance"]);
        let machine = machine(&case["instance"], true);
        assert_eq!(chain.peak(), Bytes(case["Mpeak"].as_u64().unwrap() * SCALE), "{}", case["id"]);
        assert_eq!(chain.floor(), Bytes(case["mem_floor"].as_u64().unwrap() * SCALE), "{}", case["id"]);
        let bound = Bound::BothWays.time(chain.total(), chain.peak(), machine.memory, &machine);
        assert_eq!(bound, time(&case["LB"]), "{}", case["id"]);

        let traced = chain.to_trace("golden").unwrap();
        let request = request(&traced, &machine, chain.peak());
        let lowered = lower(&request, &Policy::keep(&traced.trace)).unwrap();
        assert_eq!(lowered.iteration, time(&case["no_offload_time"]), "{}", case["id"]);
        assert_eq!(lowered.peak, chain.peak(), "{}", case["id"]);
        let timeline = simulate(&traced.trace, &traced.costs, &machine, &lowered.schedule).unwrap();
        assert_eq!((timeline.iteration, timeline.peak_load), (lowered.iteration, lowered.peak));
    }
}

#[test]
fn greedy_and_best_sets_take_the_golden_time() {
    for case in cases() {
        let chain = chain(&case["instance"]);
        let traced = chain.to_trace("golden").unwrap();
        let machine = machine(&case["instance"], true);
        let request = request(&traced, &machine, machine.memory);
        for (set, makespan) in [
            (&case["greedy"]["set"], &case["greedy"]["makespan"]),
            (&case["best_ordered_subset"]["set"], &case["best_ordered_subset"]["makespan"]),
            (&case["dynprog"]["one_optimal_set"], &case["dynprog"]["nowait_makespan_of_that_set"]),
        ] {
            let set = set.as_array().unwrap().iter().map(|i| i.as_u64().unwrap() as usize);
            let lowered = lower(&request, &offload(&traced, set)).unwrap();
            assert_eq!(lowered.iteration, time(makespan), "{} {case}", case["id"]);
            assert!(lowered.peak <= machine.memory);
            let timeline = simulate(&traced.trace, &traced.costs, &machine, &lowered.schedule).unwrap();
            assert_eq!((timeline.iteration, timeline.peak_load), (lowered.iteration, lowered.peak));
        }
    }
}

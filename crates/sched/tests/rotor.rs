//! `rotor` against its golden cases and its published figures on recorded chains.

use elbowroom_import::{Chain, Options, import};
use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::{Freedom, Planner, Request};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sched::recompute::profile::Profile;
use elbowroom_sched::recompute::rotor::{Optimum, Rotor};
use elbowroom_sim::{presets, simulate};

#[path = "../../../golden/mod.rs"]
mod golden;
#[path = "../../../golden/shared.rs"]
mod shared;
use shared::shared;
mod rotor_cases;
use rotor_cases::profile;

#[test]
fn every_golden_time_is_met() {
    let golden = golden::json("chain_recompute_rotor_model.json");
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 75);
    for case in cases {
        let instance = &case["instance"];
        let profile = profile(instance);
        let memory = instance["M"].as_u64().unwrap() as usize;
        let found = Optimum::of(&profile, memory, &Silent).unwrap().time(memory).map(|time| time.get());
        assert_eq!(found, case["rotor_persistent"].as_u64(), "{instance}");
        if let (Some(found), Some(exact)) = (found, case["exact"].as_u64()) {
            assert!(found >= exact, "{instance}");
        }
    }
}

#[test]
fn homogeneous_chains_are_met() {
    let golden = golden::json("rotor_homogeneous.json");
    let cases = golden.as_array().unwrap();
    assert_eq!(cases.len(), 18);
    for case in cases {
        let n = case["n"].as_u64().unwrap() as usize;
        let slots = case["slots"].as_u64().unwrap() as usize;
        let profile = Profile {
            forward: vec![Nanos(1); n],
            backward: vec![Nanos(2); n],
            plain: vec![1; n + 1],
            saved: vec![1; n + 1],
            forward_extra: vec![0; n],
            backward_extra: vec![0; n],
        };
        let found = Optimum::of(&profile, slots, &Silent).unwrap().time(slots).map(|time| time.get() as f64);
        assert_eq!(found, case["makespan"].as_f64(), "{n} {slots}");
    }
}

fn recorded(name: &str) -> Profile {
    let path = shared(&format!("data/chains/{name}.json"));
    let chain = Chain::read(&std::fs::read(path).unwrap(), name).unwrap();
    let sizes = |list: &[Bytes]| list.iter().map(|bytes| bytes.get()).collect();
    Profile {
        plain: sizes(&chain.x),
        saved: sizes(&chain.saved),
        forward_extra: sizes(&chain.forward_extra),
        backward_extra: sizes(&chain.backward_extra),
        forward: chain.forward,
        backward: chain.backward,
    }
}

/// Percent that recompute adds at 70, 50 and 30 % of the chain's peak, with 500 slots.
const FIGURES: [(&str, [f64; 3]); 3] = [
    ("p100_resnet50_184", [7.8, 12.5, 21.3]),
    ("p100_mobilenet_v2_272", [6.5, 10.8, 19.4]),
    ("titanv_resnet32-56-9000000000.0", [9.6, 16.0, 23.5]),
];

#[test]
#[ignore = "needs the shared data"]
fn published_overheads_are_met() {
    for (name, published) in FIGURES {
        let profile = recorded(name);
        for (percent, published) in [70, 50, 30].into_iter().zip(published) {
            let limit = profile.peak() * percent / 100;
            let slotted = profile.in_slots(limit.div_ceil(500));
            let time = Optimum::of(&slotted, 500, &Silent).unwrap().time(500).unwrap();
            let overhead = 100.0 * (time.get() as f64 / profile.total().get() as f64 - 1.0);
            println!("{name} at {percent} %: {overhead:.2} %, published {published} %");
            assert!((overhead - published).abs() < 0.5, "{name} at {percent} %: {overhead}");
        }
    }
}

/// Overhead of a planner's real schedule on a recorded iteration, in percent.
fn scheduled(place: &str, percent: u64, planner: &str) -> f64 {
    let imported = import(&std::fs::read(shared(place)).unwrap(), place, &Options::default()).unwrap();
    let machine = Machine { align: Bytes(1), ..presets::machine("v100").unwrap() };
    let limit = Bytes(imported.notes.peak.get() / 100 * percent);
    let request = Request {
        trace: &imported.trace,
        costs: &imported.costs,
        machine: &machine,
        live_limit: limit,
        freedom: Freedom::ALL,
        packer: None,
        pins: None,
    };
    let outcome = elbowroom_sched::planner(planner).unwrap().schedule(&request, &Budget::default(), &Silent);
    let what = format!("{place} at {percent} % {planner}");
    let schedule = outcome.best.unwrap_or_else(|| panic!("{what}: {:?}", outcome.stop));
    let timeline = simulate(&imported.trace, &imported.costs, &machine, &schedule).unwrap();
    assert!(timeline.peak_live <= limit);
    let overhead = 100.0 * (timeline.iteration.get() as f64 / imported.costs.total().get() as f64 - 1.0);
    println!("{what}: {overhead:.2} %");
    overhead
}

#[test]
#[ignore = "needs the shared data"]
fn schedules_of_real_iterations_fit() {
    assert_eq!(elbowroom_sched::planner("rotor").map(|rotor| rotor.name()), Some(Rotor::DEFAULT.name()));
    for (place, most) in [
        ("data/traces/resnet50_eager.jsonl.gz", [4.0, 8.0, 17.0]),
        ("data/recorded/resnet32-56-9000000000.0.json", [5.0, 10.0, 17.0]),
    ] {
        for (percent, most) in [90, 70, 50].into_iter().zip(most) {
            let overhead = scheduled(place, percent, "rotor");
            assert!(overhead < most, "{place} at {percent} %: {overhead}");
        }
    }
}

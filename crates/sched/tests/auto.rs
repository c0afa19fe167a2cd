//! `auto` against optima: the golden joint cases are met, it is the same on any number of threads, and an interrupted search reports a
//! number of evaluations that gives the same plan again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use elbowroom_ir::check::check_schedule;
use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::planning::{CostSource, Costs, Freedom, Known, Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, Silent, StopReason};
use elbowroom_ir::trace::{Again, Op, Persistent, Phase, Storage, Tensor, Trace, TraceData, Work};
use elbowroom_ir::{Bytes, Nanos, TensorId};
use elbowroom_sched::auto::Auto;
use elbowroom_sched::chain::{Chain, ChainTrace, Layer};
use elbowroom_sched::keep::Keep;
use elbowroom_sched::mixed::pofo::Pofo;
use elbowroom_sched::offload::floor::Floor;
use elbowroom_sched::recompute::rotor::Rotor;
use elbowroom_sched::recompute::sublinear::Sublinear;
use elbowroom_sim::bound::lower_bound;
use elbowroom_sim::simulate;
use serde_json::Value;

#[path = "../../../golden/mod.rs"]
mod golden;

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

/// A golden chain as a trace. Its input is not recomputed: it may only be copied.
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
        half_flops_per_second: None,
        bytes_per_second: 1,
        launch: Nanos::ZERO,
    }
}

fn request<'a>(chain: &'a ChainTrace, machine: &'a Machine, freedom: Freedom) -> Request<'a> {
    let ChainTrace { trace, costs, .. } = chain;
    Request { trace, costs, machine, live_limit: machine.memory, freedom, packer: None, pins: None }
}

fn plan(
    chain: &ChainTrace,
    machine: &Machine,
    freedom: Freedom,
    budget: &Budget,
) -> (Option<u64>, Outcome<Schedule>) {
    let request = request(chain, machine, freedom);
    let outcome = Auto.schedule(&request, budget, &Silent);
    let time = outcome.best.as_ref().map(|schedule| {
        let timeline = simulate(&chain.trace, &chain.costs, machine, schedule).unwrap();
        assert!(timeline.peak_live <= machine.memory);
        timeline.iteration.get()
    });
    (time, outcome)
}

#[test]
fn golden_joint_optima_are_met() {
    let json = golden::json("chain_joint.json");
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
            let request = request(&chain, &machine, Freedom::ALL);
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
    assert!(tight > 0, "the bound never exceeds the sum of op times");
}

/// A chain on which there is something to search.
fn long_chain() -> ChainTrace {
    chain_of(12)
}

fn chain_of(layers: u64) -> ChainTrace {
    let each = (0..layers).map(|i| Layer {
        forward: Nanos(40 + 13 * (i * i % 7)),
        backward: Nanos(70 + 11 * (i * 5 % 9)),
        ..Layer::default()
    });
    let chain = Chain {
        layers: each.collect(),
        activations: (0..=layers).map(|i| Bytes(30 + 17 * (i * i * 3 % 11))).collect(),
        gradients: (0..=layers).map(|i| Bytes(10 + 3 * (i % 4))).collect(),
    };
    chain.to_trace("long").unwrap()
}

/// Interrupts after a number of checks: a clock that is the same on every machine.
struct After(AtomicU64);

impl Observer for After {
    fn interrupted(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }
}

#[test]
fn threads_change_nothing_and_an_interrupted_search_is_a_number_of_evaluations() {
    let chain = long_chain();
    let machine = machine(700, 1, true);
    for freedom in [Freedom::ALL, Freedom { offload: false, recompute: true, ..Freedom::ALL }] {
        for checks in [500, 1_000] {
            let request = request(&chain, &machine, freedom);
            let endless = Budget { evaluations: None, time: None, threads: 2, seed: 3 };
            let first = Auto.schedule(&request, &endless, &After(AtomicU64::new(checks)));
            assert_eq!(first.stop, StopReason::Interrupted);
            assert!(first.evaluations > 0 && first.best.is_some(), "after {checks}");
            for threads in [1, 3] {
                let again = Budget { threads, seed: 3, ..Budget::evaluations(first.evaluations) };
                let second = Auto.schedule(&request, &again, &Silent);
                assert_eq!(first.best, second.best, "{} evaluations", first.evaluations);
                assert_eq!(first.evaluations, second.evaluations);
            }
        }
    }
}

#[test]
fn a_very_long_chain_is_planned_as_fast_as_by_the_planners_for_chains() {
    let chain = chain_of(3_200);
    assert!(chain.trace.ops().len() > 6_000, "{}", chain.trace.ops().len());
    let machine = machine(60_000, 1, true);
    let alone = Freedom { offload: false, ..Freedom::ALL };
    let request = request(&chain, &machine, alone);
    let time = |planner: &dyn Planner, budget: &Budget| {
        let schedule = planner.schedule(&request, budget, &Silent).best.unwrap();
        simulate(&chain.trace, &chain.costs, &machine, &schedule).unwrap().iteration
    };
    // No more evaluations than there are warm starts: on such a chain a search has time for a few only.
    let auto = time(&Auto, &Budget::evaluations(6));
    for planner in [&Sublinear as &dyn Planner, &Rotor::DEFAULT, &Pofo::COARSE] {
        assert!(auto <= time(planner, &Budget::evaluations(32)), "{}", planner.name());
    }
}

#[test]
fn joint_is_never_worse_than_either_alone() {
    let chain = long_chain();
    for memory in [500, 700, 900] {
        let machine = machine(memory, 2, true);
        let time = |offload, recompute| {
            let budget = Budget::evaluations(20_000);
            plan(&chain, &machine, Freedom { offload, recompute, ..Freedom::ALL }, &budget)
                .0
                .unwrap_or(u64::MAX)
        };
        assert!(time(true, true) <= time(true, false).min(time(false, true)), "{memory}");
    }
}

#[test]
fn the_freedom_to_reorder_never_makes_a_plan_worse() {
    // Three chains from one input that meet at the end: they may run in any order, or in turn.
    let mut ops: Vec<(String, Vec<u32>, u64)> = vec![("input".into(), vec![], 10)];
    for chain in 0..3u32 {
        for link in 0..4u32 {
            let read = if link == 0 { 0 } else { ops.len() as u32 - 1 };
            ops.push((format!("{chain}.{link}"), vec![read], 20 + u64::from(17 * (chain + 2 * link) % 40)));
        }
    }
    ops.push(("end".into(), vec![4, 8, 12, 2, 6, 10], 10));
    let named: Vec<(&str, &[u32], u64)> =
        ops.iter().map(|(name, reads, bytes)| (name.as_str(), reads.as_slice(), *bytes)).collect();
    let trace = trace(&[], &named);
    let mut found = 0;
    for limit in [285, 300, 320, 350] {
        let plain = checked(&Auto, &trace, 10, limit, Freedom::ALL);
        let reordered = checked(&Auto, &trace, 10, limit, Freedom { reorder: true, ..Freedom::ALL });
        let Some((plain, _)) = plain else { continue };
        let (reordered, _) = reordered.expect("what fits without the freedom fits with it");
        assert!(reordered <= plain, "{limit}: {reordered} with the freedom, {plain} without");
        found += 1;
    }
    assert!(found > 0, "there is a plan at some limit");
}

#[test]
fn a_search_starts_from_what_it_is_told() {
    let chain = long_chain();
    let mut helped = 0;
    for (memory, rate) in [(450, 1), (500, 1), (500, 2), (600, 1), (700, 1), (700, 2), (800, 1)] {
        let machine = machine(memory, rate, true);
        let request = request(&chain, &machine, Freedom::ALL);
        let (Some(long), outcome) = plan(&chain, &machine, Freedom::ALL, &Budget::evaluations(40_000)) else {
            continue;
        };
        let (Some(short), _) = plan(&chain, &machine, Freedom::ALL, &Budget::evaluations(16)) else {
            continue;
        };
        let known = outcome.best.unwrap();
        let warm = Auto
            .schedule_from(&request, Known::schedules(&[&known]), &Budget::evaluations(16), &Silent)
            .best
            .unwrap();
        let warm = simulate(&chain.trace, &chain.costs, &machine, &warm).unwrap().iteration.get();
        assert!(warm <= short, "{memory}: {warm} with a warm start of {long}, but {short} without");
        helped += usize::from(warm < short);
    }
    assert!(helped > 0, "the warm start never helps");
}

#[test]
fn a_search_that_goes_on_ends_at_the_bound_that_it_is_told() {
    let chain = long_chain();
    let machine = machine(500, 1, true);
    let request = request(&chain, &machine, Freedom::ALL);
    let (_, outcome) = plan(&chain, &machine, Freedom::ALL, &Budget::evaluations(1_000));
    let known = outcome.best.unwrap();
    let bound = simulate(&chain.trace, &chain.costs, &machine, &known).unwrap().iteration;
    let budget = Budget::evaluations(10_000);
    let go_on = |bound: Nanos| {
        let known = Known { schedules: &[&known], bound: Some(bound), horizon: Some(10_000) };
        Auto.schedule_from(&request, known, &budget, &Silent)
    };
    assert_eq!(go_on(bound).stop, StopReason::Optimal);
    assert_eq!(go_on(Nanos::ZERO).stop, StopReason::Evaluations, "no other bound is computed");
}

#[test]
fn a_search_that_goes_on_and_is_interrupted_among_its_starts_has_no_plan() {
    struct Impatient;
    impl Observer for Impatient {
        fn interrupted(&self) -> bool {
            true
        }
    }
    // What a short trace is given as new starts, a long one relieves.
    for chain in [long_chain(), chain_of(1_010)] {
        let budget = Budget::evaluations(100);
        let all = machine(u64::MAX >> 1, 1, true);
        let live = |schedule: &Schedule| {
            simulate(&chain.trace, &chain.costs, &all, schedule).unwrap().peak_live.get()
        };
        let found = |planner: &dyn Planner, memory| {
            let machine = machine(memory, 1, true);
            planner.schedule(&request(&chain, &machine, Freedom::ALL), &budget, &Silent).best.unwrap()
        };
        let known = found(&Sublinear, live(&found(&Keep, u64::MAX >> 1)) / 2);
        let lower = machine(live(&known) * 97 / 100, 1, true);
        let request = request(&chain, &lower, Freedom::ALL);
        let known = [&known];
        let known = Known { schedules: &known, bound: Some(Nanos::ZERO), horizon: Some(100) };
        let go_on = |observer: &dyn Observer| Auto.schedule_from(&request, known, &budget, observer);
        let found = go_on(&Silent).best.expect("a schedule within the lower limit");
        assert!(live(&found) <= lower.memory.get());
        let Outcome { best, evaluations, stop } = go_on(&Impatient);
        assert_eq!(
            (best, evaluations, stop),
            (None, 0, StopReason::Interrupted),
            "no number of evaluations repeats it"
        );
    }
}

/// A trace op by op: (name, reads, bytes of what it makes). Values are numbered in the order in which they are made, those of `persistent`
/// bytes, which no op changes, first.
fn trace(persistent: &[u64], ops: &[(&str, &[u32], u64)]) -> Trace {
    let mut data = TraceData::default();
    let value = |data: &mut TraceData, name: String, bytes| {
        let storage = data.storages.push(Storage { bytes: Bytes(bytes) });
        data.tensors.push(Tensor { name, storage })
    };
    for (number, &bytes) in persistent.iter().enumerate() {
        let weight = value(&mut data, format!("w{number}"), bytes);
        data.persistent.push(Persistent { begin: weight, end: weight });
    }
    for &(name, reads, bytes) in ops {
        let output = value(&mut data, format!("{name}.out"), bytes);
        data.ops.push(Op {
            name: name.into(),
            kind: String::new(),
            phase: Phase::Forward,
            again: Again::Never,
            reads: reads.iter().copied().map(TensorId).collect(),
            outputs: vec![output],
            mutates: vec![],
            may_reuse: vec![],
            after: vec![],
            workspace: Bytes::ZERO,
            work: Work::default(),
            line: String::new(),
        });
    }
    Trace::new(data).unwrap()
}

/// Plans a trace whose ops take so long each; checks the schedule and returns it with its iteration time.
fn checked(
    planner: &dyn Planner,
    trace: &Trace,
    op: u64,
    limit: u64,
    freedom: Freedom,
) -> Option<(u64, Schedule)> {
    let costs = Costs { nanos: vec![Nanos(op); trace.ops().len()].into(), source: CostSource::Recorded };
    let machine = machine(limit, 1, false);
    let live_limit = machine.memory;
    let request =
        Request { trace, costs: &costs, machine: &machine, live_limit, freedom, packer: None, pins: None };
    let schedule = planner.schedule(&request, &Budget::evaluations(20_000), &Silent).best?;
    let proved = check_schedule(Arc::new(trace.clone()), machine.clone(), schedule.clone(), live_limit);
    assert!(proved.is_ok(), "{proved:?}");
    Some((simulate(trace, &costs, &machine, &schedule).unwrap().iteration.get(), schedule))
}

#[test]
fn what_persists_leaves_across_the_iterations_end() {
    // w0 is needed first and last, w1 in between; their copies take as long as five ops each.
    let ops: [(&str, &[u32], u64); 11] = [
        ("a", &[0], 1),
        ("b", &[1, 2], 40),
        ("c", &[1, 3], 1),
        ("d", &[1, 4], 60),
        ("e", &[1, 5], 1),
        ("f", &[1, 6], 1),
        ("g", &[1, 7], 1),
        ("h", &[1, 8], 1),
        ("i", &[1, 9], 1),
        ("j", &[1, 10], 1),
        ("k", &[0, 11], 1),
    ];
    let trace = trace(&[50, 50], &ops);
    // On the host for good, w0 need not be copied there first.
    let (time, schedule) = checked(&Auto, &trace, 10, 120, Freedom::ALL).expect("there is a plan");
    assert_eq!(time, 110);
    assert!(schedule.boundary[0].host);
    let (copied, _) = checked(&Floor, &trace, 10, 120, Freedom::ALL).expect("there is a plan");
    assert!(copied > 110, "{copied}");
}

#[test]
fn another_order_saves_what_no_repeat_or_copy_may() {
    // What `early` makes is only used at the end.
    let ops: [(&str, &[u32], u64); 6] = [
        ("input", &[], 10),
        ("early", &[0], 100),
        ("a", &[0], 100),
        ("b", &[2], 100),
        ("c", &[3], 10),
        ("end", &[1, 4], 10),
    ];
    let trace = trace(&[], &ops);
    let kept = Freedom { offload: false, recompute: false, reorder: false };
    assert!(checked(&Auto, &trace, 10, 250, kept).is_none());
    let (time, _) =
        checked(&Auto, &trace, 10, 250, Freedom { reorder: true, ..kept }).expect("there is a plan");
    assert_eq!(time, 60);
}

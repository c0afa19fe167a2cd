//! The golden chains of Beaumont's problem: exact no-offload times, lower bounds, greedy times, and the replay of optimal schedules.
//! Times and sizes are scaled by six, so that every fraction (denominators 1, 2, 3) is a whole number of nanoseconds.

use std::cmp::Reverse;
use std::sync::Arc;

use elbowroom_ir::check::check_schedule;
use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::planning::{Freedom, Request};
use elbowroom_ir::schedule::{Action, Buffer, Launch, Schedule, Step};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{BufferId, Bytes, Id, Nanos, OpId, Table, TensorId};
use elbowroom_sched::chain::bound::{partial_optimum, relaxed_bound};
use elbowroom_sched::chain::linearize::Linear;
use elbowroom_sched::chain::pieces::in_pieces;
use elbowroom_sched::chain::relaxation::{Effort, Units};
use elbowroom_sched::chain::{Chain, ChainTrace, Layer};
use elbowroom_sched::policy::{CopyOrder, GapAction, Policy, PrefetchRule, Touches};
use elbowroom_sched::{lower, planner, waits};
use elbowroom_sim::bound::{lower_bound, proposition_3};
use elbowroom_sim::simulate;
use serde_json::Value;

#[path = "../../../golden/mod.rs"]
mod golden;

const SCALE: u64 = 6;

fn cases() -> Vec<Value> {
    let cases = golden::json("chain_offload.json")["cases"].as_array().unwrap().clone();
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
        half_flops_per_second: None,
        bytes_per_second: 1,
        launch: Nanos::ZERO,
    }
}

fn request<'a>(chain: &'a ChainTrace, machine: &'a Machine, limit: Bytes) -> Request<'a> {
    Request {
        trace: &chain.trace,
        costs: &chain.costs,
        machine,
        live_limit: limit,
        freedom: Freedom::ALL,
        packer: None,
        pins: None,
    }
}

/// Offloads these activations, each after its forward use until its backward use.
fn offload(chain: &ChainTrace, set: impl IntoIterator<Item = usize>) -> Policy {
    let mut policy = Policy::keep(&chain.trace);
    policy.prefetch = PrefetchRule::AfterOffloads;
    let touches = Touches::of(&chain.trace, &policy.sequence);
    for i in set {
        let value = chain.activations[i].unwrap();
        let (gap, _) = touches.gaps(value).find(|(gap, _)| gap.after == Some(i as u32 + 1)).unwrap();
        policy.set(gap, GapAction::Offload);
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
        let published = proposition_3(chain.total(), chain.peak(), machine.memory, &machine);
        assert_eq!(published, time(&case["LB"]), "{}", case["id"]);

        // If only offloading is allowed, our bound is at least as high, and still a bound, on either kind of link.
        let traced = chain.to_trace("golden").unwrap();
        for (shared, optimum) in [(true, "exact_half_duplex"), (false, "exact_full_duplex")] {
            let machine = self::machine(&case["instance"], shared);
            let freedom = Freedom { offload: true, recompute: false, ..Freedom::ALL };
            let bound = lower_bound(&Request { freedom, ..request(&traced, &machine, machine.memory) });
            assert!(published <= bound && bound <= time(&case[optimum]), "{} {shared} {bound}", case["id"]);
        }

        let request = request(&traced, &machine, chain.peak());
        let lowered = lower(&request, &Policy::keep(&traced.trace)).unwrap();
        assert_eq!(lowered.iteration, time(&case["no_offload_time"]), "{}", case["id"]);
        assert_eq!(lowered.peak, chain.peak(), "{}", case["id"]);
        let timeline = simulate(&traced.trace, &traced.costs, &machine, &lowered.schedule).unwrap();
        assert_eq!((timeline.iteration, timeline.peak_live), (lowered.iteration, lowered.peak));
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
            assert_eq!((timeline.iteration, timeline.peak_live), (lowered.iteration, lowered.peak));
        }
    }
}

#[test]
fn the_greedy_planner_takes_the_golden_time_through_the_linearizer() {
    for case in cases() {
        let traced = chain(&case["instance"]).to_trace("golden").unwrap();
        let machine = machine(&case["instance"], true);
        let request = request(&traced, &machine, machine.memory);
        let linear = Linear::of(&request).unwrap();
        assert_eq!(linear.chain.peak(), chain(&case["instance"]).peak(), "{}", case["id"]);
        let greedy = planner("greedy").unwrap().schedule(&request, &Budget::default(), &Silent);
        let schedule = greedy.best.unwrap();
        let timeline = simulate(&traced.trace, &traced.costs, &machine, &schedule).unwrap();
        assert_eq!(timeline.iteration, time(&case["greedy"]["makespan"]), "{}", case["id"]);
        assert!(timeline.peak_live <= machine.memory);
    }
}

fn units(instance: &Value) -> Units {
    let list = |key: &str| -> Vec<i64> {
        instance[key].as_array().unwrap().iter().map(|v| v.as_i64().unwrap()).collect()
    };
    let beta = instance["beta"].as_i64().unwrap();
    Units {
        memory: instance["M"].as_i64().unwrap(),
        activations: list("x"),
        gradients: list("y"),
        extras: list("exF").into_iter().zip(list("exB")).collect(),
        times: list("uF")
            .into_iter()
            .map(|u| u * beta)
            .zip(list("uB").into_iter().map(|u| u * beta))
            .collect(),
    }
}

#[test]
fn the_relaxation_has_the_golden_value() {
    for case in cases() {
        let solutions = units(&case["instance"]).solve(&Effort::EXACT);
        let idle = solutions[0].idle as u64 * SCALE / case["instance"]["beta"].as_u64().unwrap();
        let value = time(&case["no_offload_time"]) + Nanos(idle);
        assert_eq!(value, time(&case["dynprog"]["fractional_value"]), "{} {case}", case["id"]);
        // The chain of relations that the golden file states.
        let [exact, subset, greedy] = [
            &case["exact_half_duplex"],
            &case["best_ordered_subset"]["makespan"],
            &case["greedy"]["makespan"],
        ]
        .map(time);
        assert!(time(&case["LB"]) <= value && value <= exact && exact <= subset && subset <= greedy);
    }
}

#[test]
fn the_relaxed_bound_is_the_golden_value_and_below_every_optimum() {
    for case in cases() {
        let traced = chain(&case["instance"]).to_trace("golden").unwrap();
        let freedom = Freedom { recompute: false, ..Freedom::ALL };
        let bound = |shared| {
            let machine = machine(&case["instance"], shared);
            relaxed_bound(&Request { freedom, ..request(&traced, &machine, machine.memory) }).unwrap()
        };
        assert_eq!(bound(true), time(&case["dynprog"]["fractional_value"]), "{}", case["id"]);
        assert!(bound(false) <= time(&case["exact_full_duplex"]), "{}", case["id"]);
        let machine = machine(&case["instance"], true);
        assert_eq!(relaxed_bound(&request(&traced, &machine, machine.memory)), None, "recomputes");
    }
}

#[test]
fn activations_in_pieces_approach_the_optimum_of_partial_offload() {
    // By the size of the pieces in units of the golden sizes: the mean of eager's time ÷ theorem 2's, and the chains on which it beats greedy.
    // Pieces of one unit suffice, because the excess is whole units; smaller ones would round the time of every copy up.
    let mut means = Vec::new();
    for units in [8, 3, 1] {
        let (mut sum, mut better) = (0.0, 0);
        for case in cases() {
            let traced = chain(&case["instance"]).to_trace("golden").unwrap();
            let machine = machine(&case["instance"], true);
            let freedom = Freedom { recompute: false, ..Freedom::ALL };
            let whole = Request { freedom, ..request(&traced, &machine, machine.memory) };
            let optimum = partial_optimum(&whole).unwrap();
            assert!(optimum <= relaxed_bound(&whole).unwrap(), "{}", case["id"]);
            assert!(optimum >= time(&case["LB"]), "{}", case["id"]);
            let trace = in_pieces(&traced.trace, Bytes(SCALE * units)).unwrap();
            let cut = Request { trace: &trace, ..whole };
            let outcome = planner("eager").unwrap().schedule(&cut, &Budget::default(), &Silent);
            let timeline = simulate(&trace, &traced.costs, &machine, &outcome.best.unwrap()).unwrap();
            assert!(timeline.peak_live <= machine.memory && timeline.iteration >= optimum, "{}", case["id"]);
            sum += timeline.iteration.get() as f64 / optimum.get() as f64;
            better += usize::from(timeline.iteration < time(&case["greedy"]["makespan"]));
        }
        means.push((sum / cases().len() as f64, better));
    }
    println!("{means:?}");
    assert!(means[1].0 < means[0].0 && means[2] == (1.0, 37), "{means:?}");
}

#[test]
fn slotted_dynprog_lies_between_the_exact_optimum_and_the_best_subset() {
    for case in cases() {
        let traced = chain(&case["instance"]).to_trace("golden").unwrap();
        let machine = machine(&case["instance"], true);
        let request = request(&traced, &machine, machine.memory);
        let outcome = planner("dynprog").unwrap().schedule(&request, &Budget::default(), &Silent);
        let timeline = simulate(&traced.trace, &traced.costs, &machine, &outcome.best.unwrap()).unwrap();
        let subset = time(&case["best_ordered_subset"]["makespan"]);
        assert!(timeline.iteration >= time(&case["exact_half_duplex"]), "{}", case["id"]);
        assert!(timeline.iteration.get() * 100 <= subset.get() * 105, "{}", case["id"]);
    }
}

/// Turns a golden event list into a schedule: actions in order of their times, and at equal times in the order of the list, so that
/// what ends goes before what starts.
struct Import<'a> {
    trace: &'a Trace,
    buffers: Table<BufferId, Buffer>,
    /// The buffer that holds each value.
    held: Vec<Option<BufferId>>,
    steps: Vec<(Nanos, usize, Action)>,
    event: usize,
}

impl Import<'_> {
    fn of(case: &Value, traced: &ChainTrace) -> Schedule {
        let layers = chain(&case["instance"]).layers;
        let n = layers.len();
        let (x, y) = (&traced.activations, &traced.gradients);
        let held = vec![None; traced.trace.tensors().len()];
        let mut import =
            Import { trace: &traced.trace, buffers: Table::new(), held, steps: Vec::new(), event: 0 };
        for event in case["exact_half_schedule"].as_array().unwrap() {
            let (at, i) = (time(&event[0]), event[2].as_u64().unwrap() as usize);
            import.event += 1;
            match event[1].as_str().unwrap() {
                "F" => {
                    if i == 0 {
                        import.launch(0, at, at, &[]);
                    }
                    import.launch(i + 1, at, at + layers[i].forward, &[]);
                }
                "B" => {
                    let done = at + layers[i].backward;
                    if i == n - 1 {
                        import.launch(n + 1, at, at, &[]);
                    }
                    import.launch(2 * n + 1 - i, at, done, &[x[i + 1], y[i + 1]]);
                    if i == 0 {
                        import.launch(2 * n + 2, done, done, &[y[0], x[0]]);
                    }
                }
                "out" => {
                    let value = x[i].unwrap();
                    import.push(
                        at,
                        Action::Offload { tensor: value, from: import.held[value.index()].unwrap() },
                    );
                }
                "drop" => import.release(x[i].unwrap(), at),
                "in" => {
                    let value = x[i].unwrap();
                    let to = import.take(value);
                    import.push(at, Action::Prefetch { tensor: value, to });
                    import.push(at, Action::HostRelease { tensor: value });
                }
                other => panic!("{other}"),
            }
        }
        // An optimal schedule may make a copy that are never prefetched.
        let is_prefetched = |value| {
            let prefetch = |(_, _, action): &(_, _, Action)| matches!(action, Action::Prefetch { tensor: v, .. } if *v == value);
            import.steps.iter().any(prefetch)
        };
        let unread: Vec<TensorId> = import
            .steps
            .iter()
            .filter_map(|(_, _, action)| match action {
                Action::Offload { tensor: value, .. } if !is_prefetched(*value) => Some(*value),
                _ => None,
            })
            .collect();
        for value in unread {
            import.push(Nanos::MAX, Action::HostRelease { tensor: value });
        }
        import.steps.sort_by_key(|&(at, event, _)| (at, event));
        let steps = import.steps.into_iter().map(|(_, _, action)| Step { action, waits: Vec::new() });
        let mut schedule = Schedule { buffers: import.buffers, steps: steps.collect(), boundary: Vec::new() };
        waits::conservative(&mut schedule);
        schedule
    }

    fn push(&mut self, at: Nanos, action: Action) {
        self.steps.push((at, self.event, action));
    }

    fn take(&mut self, value: TensorId) -> BufferId {
        let buffer = self.buffers.push(Buffer { bytes: self.trace.bytes(value) });
        self.held[value.index()] = Some(buffer);
        buffer
    }

    fn release(&mut self, value: TensorId, at: Nanos) {
        let buffer = self.held[value.index()].unwrap();
        self.push(at, Action::Release { buffer });
    }

    fn launch(&mut self, op: usize, at: Nanos, end: Nanos, dead: &[Option<TensorId>]) {
        let id = OpId::new(op);
        let op = &self.trace.ops()[id];
        let reads = op.reads.iter().map(|value| self.held[value.index()].unwrap()).collect();
        let writes = op.outputs.iter().map(|&value| self.take(value)).collect();
        self.push(at, Action::Compute(Launch { op: id, reads, writes, workspace: None }));
        let unread = op.outputs.iter().copied().filter(|&value| self.trace.users(value).is_empty());
        for value in unread.chain(dead.iter().flatten().copied()) {
            self.release(value, end);
        }
    }
}

#[test]
fn exact_schedules_replay_to_their_stated_times() {
    for case in cases() {
        let chain = chain(&case["instance"]);
        let traced = chain.to_trace("golden").unwrap();
        let machine = machine(&case["instance"], true);
        let schedule = Import::of(&case, &traced);
        let timeline = simulate(&traced.trace, &traced.costs, &machine, &schedule).unwrap();
        assert_eq!(timeline.iteration, time(&case["exact_half_duplex"]), "{}", case["id"]);
        assert!(timeline.peak_live <= machine.memory, "{}", case["id"]);
        let trace = Arc::new(traced.trace.clone());
        check_schedule(trace, machine.clone(), schedule, machine.memory)
            .unwrap_or_else(|illegal| panic!("{}: {illegal}", case["id"]));
    }
}

#[test]
fn auto_finds_the_exact_optimum_of_each() {
    for case in cases() {
        let traced = chain(&case["instance"]).to_trace("golden").unwrap();
        for (shared, optimum) in [(true, "exact_half_duplex"), (false, "exact_full_duplex")] {
            let machine = machine(&case["instance"], shared);
            let freedom = Freedom { offload: true, recompute: false, ..Freedom::ALL };
            let request = Request { freedom, ..request(&traced, &machine, machine.memory) };
            let outcome = planner("auto").unwrap().schedule(&request, &Budget::evaluations(2_000), &Silent);
            let timeline = simulate(&traced.trace, &traced.costs, &machine, &outcome.best.unwrap()).unwrap();
            assert_eq!(timeline.iteration, time(&case[optimum]), "{} shared: {shared}", case["id"]);
        }
    }
}

#[test]
fn offloads_in_another_order_than_that_of_the_ops_can_be_faster() {
    let case = cases().into_iter().find(|case| case["id"] == "off032").unwrap();
    let traced = chain(&case["instance"]).to_trace("golden").unwrap();
    let machine = machine(&case["instance"], false);
    let request = request(&traced, &machine, machine.memory);
    let mut policy = offload(&traced, [0, 1]);
    policy.prefetch = PrefetchRule::Eager;
    let unconstrained = lower(&request, &policy).unwrap();
    let mut gaps: Vec<_> = policy.gaps.keys().copied().collect();
    gaps.sort_by_key(|gap| Reverse(gap.after));
    // The link is idle until x_1 exists, so that x_1 leaves before x_0.
    policy.offloads = CopyOrder::Listed(gaps);
    let listed = lower(&request, &policy).unwrap();
    assert_eq!(listed.iteration, time(&case["exact_full_duplex"]));
    assert!(listed.iteration < unconstrained.iteration);
    let timeline = simulate(&traced.trace, &traced.costs, &machine, &listed.schedule).unwrap();
    assert_eq!((timeline.iteration, timeline.peak_live), (listed.iteration, listed.peak));
}

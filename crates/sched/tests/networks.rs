//! Planners on a trace shaped like a real training iteration: a residual network with normalization, dropout and momentum, whose updates
//! come at the end.

use std::sync::Arc;

use elbowroom_ir::check::check_schedule;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::{CostSource, Costs, Freedom, Request};
use elbowroom_ir::schedule::{Action, Schedule};
use elbowroom_ir::search::{Budget, Infeasible, Silent, StopReason};
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::trace::{
    Again, Mutation, Op, Persistent, Phase, Reuse, Storage, Tensor, Trace, TraceData, Work,
};
use elbowroom_ir::{Bytes, Nanos, TensorId};
use elbowroom_sched::chain::linearize::Linear;
use elbowroom_sched::chain::pieces::in_pieces;
use elbowroom_sched::explain::{Restore, gap_costs};
use elbowroom_sched::lower::{least_live, live_memory};
use elbowroom_sched::policy::Policy;
use elbowroom_sched::verdict::impossible_op;
use elbowroom_sched::{PLANNERS, lower};
use elbowroom_sim::bound::floor;
use elbowroom_sim::{presets, simulate};

const MIB: u64 = 1 << 20;

/// Makes a trace op by op.
#[derive(Default)]
struct Draft {
    data: TraceData,
    nanos: Vec<Nanos>,
}

impl Draft {
    fn value(&mut self, name: &str, bytes: u64) -> TensorId {
        let storage = self.data.storages.push(Storage { bytes: Bytes(bytes) });
        self.data.tensors.push(Tensor { name: name.to_owned(), storage })
    }

    fn op(
        &mut self,
        name: &str,
        phase: Phase,
        reads: &[TensorId],
        outputs: &[TensorId],
        micros: u64,
    ) -> &mut Op {
        let op = Op {
            name: name.to_owned(),
            kind: String::new(),
            phase,
            again: Again::Pure,
            reads: reads.to_vec(),
            outputs: outputs.to_vec(),
            mutates: vec![],
            may_reuse: vec![],
            after: vec![],
            workspace: Bytes::ZERO,
            work: Work::default(),
            line: String::new(),
        };
        let id = self.data.ops.push(op);
        self.nanos.push(Nanos(micros * 1_000));
        &mut self.data.ops[id]
    }

    /// A persistent value that an op overwrites at the end; returns beginning and end.
    fn state(&mut self, name: &str, bytes: u64) -> (TensorId, TensorId) {
        let begin = self.value(name, bytes);
        let storage = self.data.tensors[begin].storage;
        let end = self.data.tensors.push(Tensor { name: format!("{name}'"), storage });
        self.data.persistent.push(Persistent { begin, end });
        (begin, end)
    }
}

struct Block {
    weight: (TensorId, TensorId),
    momentum: (TensorId, TensorId),
    input: TensorId,
    product: TensorId,
    normal: TensorId,
    statistics: TensorId,
}

/// `blocks` residual blocks on activations of `mib` MiB.
fn residual(blocks: usize, mib: u64) -> (Trace, Costs) {
    let mut draft = Draft::default();
    let size = mib * MIB;
    let images = draft.value("images", size);
    let labels = draft.value("labels", 4096);
    draft.op("input", Phase::Forward, &[], &[images, labels], 0);
    let mut x = images;
    let mut built: Vec<Block> = Vec::new();
    for i in 0..blocks {
        let weight = draft.state(&format!("w{i}"), MIB);
        let momentum = draft.state(&format!("m{i}"), MIB);
        let running = draft.state(&format!("r{i}"), 1024);
        let product = draft.value(&format!("product{i}"), size);
        draft.op("product", Phase::Forward, &[x, weight.0], &[product], 900).workspace = Bytes(MIB);
        let normal = draft.value(&format!("normal{i}"), size);
        let statistics = draft.value(&format!("statistics{i}"), 2048);
        draft.op("normal", Phase::Forward, &[product], &[normal, statistics], 200);
        let running_update = draft.op("running", Phase::Forward, &[running.0, statistics], &[running.1], 5);
        running_update.again = Again::Never;
        running_update.mutates.push(Mutation { old: running.0, new: running.1 });
        let dropped = draft.value(&format!("dropped{i}"), size);
        let dropout = draft.op("dropout", Phase::Forward, &[normal], &[dropped], 100);
        dropout.again = Again::Rng { stream: i as u64 };
        let sum = draft.value(&format!("sum{i}"), size);
        let add = draft.op("add", Phase::Forward, &[x, dropped], &[sum], 150);
        add.may_reuse.push(Reuse { input: dropped, output: sum });
        built.push(Block { weight, momentum, input: x, product, normal, statistics });
        x = sum;
    }
    let mut gradient = draft.value("loss.grad", size);
    draft.op("loss", Phase::Backward, &[x, labels], &[gradient], 100);
    let mut updates = Vec::new();
    for (i, block) in built.iter().enumerate().rev() {
        let before = draft.value(&format!("normal{i}.grad"), size);
        let masked = draft.op("dropout.grad", Phase::Backward, &[gradient, block.normal], &[before], 100);
        masked.again = Again::Rng { stream: i as u64 };
        let inner = draft.value(&format!("product{i}.grad"), size);
        let reads = [before, block.product, block.statistics];
        draft.op("normal.grad", Phase::Backward, &reads, &[inner], 400).may_reuse =
            vec![Reuse { input: before, output: inner }];
        let of_weight = draft.value(&format!("w{i}.grad"), MIB);
        draft.op("weight.grad", Phase::Backward, &[block.input, inner], &[of_weight], 900);
        let through = draft.value(&format!("x{i}.grad.inner"), size);
        draft.op("input.grad", Phase::Backward, &[inner, block.weight.0], &[through], 900);
        let sum = draft.value(&format!("x{i}.grad"), size);
        draft.op("add", Phase::Backward, &[gradient, through], &[sum], 150).may_reuse =
            vec![Reuse { input: gradient, output: sum }, Reuse { input: through, output: sum }];
        gradient = sum;
        updates.push((block.weight, block.momentum, of_weight));
    }
    for (weight, momentum, of_weight) in updates {
        let reads = [weight.0, momentum.0, of_weight];
        let step = draft.op("step", Phase::Update, &reads, &[weight.1, momentum.1], 50);
        step.again = Again::Never;
        step.mutates =
            vec![Mutation { old: weight.0, new: weight.1 }, Mutation { old: momentum.0, new: momentum.1 }];
    }
    draft.data.persistent.sort_by_key(|pair| pair.begin);
    let costs = Costs { nanos: draft.nanos.into(), source: CostSource::Recorded };
    (Trace::new(draft.data).unwrap(), costs)
}

fn machine() -> Machine {
    presets::machine("gtx1080ti").unwrap()
}

fn request<'a>(trace: &'a Trace, costs: &'a Costs, machine: &'a Machine, limit: Bytes) -> Request<'a> {
    Request { trace, costs, machine, live_limit: limit, freedom: Freedom::ALL, packer: None, pins: None }
}

/// Plans, proves the schedule and returns what it does.
fn planned(request: &Request<'_>, planner: &str) -> Result<Timeline, StopReason> {
    let outcome =
        elbowroom_sched::planner(planner).unwrap().schedule(request, &Budget::evaluations(2_000), &Silent);
    let Some(schedule) = outcome.best else { return Err(outcome.stop) };
    let timeline = simulate(request.trace, request.costs, request.machine, &schedule).unwrap();
    explained(request, planner, &schedule, &timeline);
    let trace = Arc::new(request.trace.clone());
    check_schedule(trace, request.machine.clone(), schedule, request.live_limit)
        .unwrap_or_else(|illegal| panic!("{planner}: {illegal}"));
    Ok(timeline)
}

/// For every planner: each prefetch and each recomputed op belongs to a gap, and the costs of all gaps add up to the time spent.
fn explained(request: &Request<'_>, planner: &str, schedule: &Schedule, timeline: &Timeline) {
    let Request { trace, costs, machine, .. } = *request;
    let gap_costs = gap_costs(trace, costs, machine, schedule, timeline);
    let cost = |how: Restore| gap_costs.iter().filter(|a| a.how == how).map(|a| a.cost).sum::<Nanos>();
    let prefetches = schedule.steps.values().filter(|step| matches!(step.action, Action::Prefetch { .. }));
    assert_eq!(
        gap_costs.iter().filter(|a| a.how == Restore::Prefetched).count(),
        prefetches.count(),
        "{planner}"
    );
    assert_eq!(cost(Restore::Recomputed), timeline.recompute_time, "{planner}");
    let copying = schedule.steps.values().map(|step| match step.action {
        Action::Offload { tensor: value, .. } => machine.to_host.time(trace.bytes(value)),
        Action::Prefetch { tensor: value, .. } => machine.to_device.time(trace.bytes(value)),
        _ => Nanos::ZERO,
    });
    assert_eq!(cost(Restore::Prefetched), copying.sum(), "{planner}");
    assert!(gap_costs.iter().all(|a| a.from <= a.to && a.time() <= timeline.iteration), "{planner}");
    assert!(gap_costs.is_sorted_by_key(|a| std::cmp::Reverse(a.saved())), "{planner}");
}

fn keep_peak(request: &Request<'_>) -> u64 {
    least_live(request, &Policy::keep(request.trace)).unwrap().0.get()
}

#[test]
fn the_network_becomes_a_chain_with_the_same_peak() {
    let (trace, costs) = residual(8, 16);
    let machine = machine();
    let request = request(&trace, &costs, &machine, Bytes(1 << 40));
    let linear = Linear::of(&request).unwrap();
    assert!(linear.groups.len() >= 8, "{}", linear.groups.len());
    assert_eq!(linear.chain.peak().get(), *linear.live_bytes.iter().max().unwrap());
    assert_eq!(linear.chain.total(), costs.total());
    let stashed: usize = linear.groups.iter().map(|group| group.stash.len()).sum();
    // Per block: product, normal and statistics; the sums but the last are inputs of weight gradients, the last is read by the loss.
    assert_eq!(stashed, 8 * 4 + 2);
}

const OFFLOADING: [&str; 12] = [
    "greedy",
    "eager",
    "dynprog",
    "vdnn",
    "doa",
    "aoa",
    "wdoa",
    "swdoa",
    "autoswap",
    "bo",
    "bo-margin",
    "floor",
];

#[test]
fn every_planner_does_its_own_thing_within_the_limit() {
    let (trace, costs) = residual(12, 16);
    let machine = machine();
    let mut request = request(&trace, &costs, &machine, Bytes(1 << 40));
    let peak = keep_peak(&request);
    request.live_limit = Bytes(peak * 7 / 10);
    for planner in PLANNERS {
        let name = planner.name();
        match (name, planned(&request, name)) {
            ("keep", result) => {
                assert_eq!(result, Err(StopReason::GaveUp { best: Some(Bytes(peak)) }));
            }
            ("sqrt", Ok(timeline)) => {
                assert!(timeline.recomputed > 0 && timeline.traffic.to_host.is_zero());
            }
            ("mixed", Ok(timeline)) => {
                assert!(timeline.recomputed > 0 && !timeline.traffic.to_host.is_zero());
            }
            // It cannot hold a forward op back, and may have nothing to offer.
            ("tflms", Err(stop)) => assert_eq!(stop.name(), "gave-up"),
            (name, result) if OFFLOADING.contains(&name) => {
                let timeline = result.unwrap();
                assert!(timeline.recomputed == 0 && !timeline.traffic.to_host.is_zero(), "{name}");
            }
            // Whatever a planner does, `planned` has proved it.
            _ => {}
        }
    }
}

#[test]
fn what_may_not_be_decided_is_not() {
    let (trace, costs) = residual(8, 16);
    let machine = machine();
    let mut request = request(&trace, &costs, &machine, Bytes(1 << 40));
    request.live_limit = Bytes(keep_peak(&request) * 8 / 10);
    for planner in PLANNERS {
        for freedom in [
            Freedom { offload: false, recompute: true, ..Freedom::ALL },
            Freedom { offload: true, recompute: false, ..Freedom::ALL },
        ] {
            request.freedom = freedom;
            if let Ok(timeline) = planned(&request, planner.name()) {
                assert!(freedom.offload || timeline.traffic.to_host.is_zero(), "{}", planner.name());
                assert!(freedom.recompute || timeline.recomputed == 0, "{}", planner.name());
            }
        }
    }
}

#[test]
fn the_floor_is_what_the_largest_op_needs() {
    let (trace, costs) = residual(6, 16);
    let machine = machine();
    let mut request = request(&trace, &costs, &machine, Bytes(1));
    let Some(Infeasible::Op { needed, tensors, .. }) = impossible_op(&request) else { panic!() };
    assert!(!tensors.is_empty());
    request.live_limit = needed;
    let timeline = planned(&request, "floor").unwrap();
    assert_eq!(timeline.peak_live, needed);
    request.live_limit = Bytes(needed.get() - 1);
    assert!(matches!(planned(&request, "floor"), Err(StopReason::Infeasible(_))));
}

#[test]
fn without_offload_what_persists_is_part_of_the_floor() {
    let (trace, costs) = residual(6, 16);
    let machine = machine();
    let mut request = request(&trace, &costs, &machine, Bytes(1));
    let floor_with = |offload, recompute| {
        floor(&trace, Freedom { offload, recompute, reorder: false }, machine.align).unwrap()
    };
    let (all, recompute, none) = (floor_with(true, true), floor_with(false, true), floor_with(false, false));
    assert!(all.bytes < recompute.bytes && recompute.bytes < none.bytes);
    // Where nothing may leave and nothing may be recomputed, the earliest updates need exactly the floor.
    let kept = live_memory(&request, &Policy::prompt(&trace)).unwrap();
    assert_eq!(kept.into_iter().max().map(Bytes), Some(none.bytes));
    // A limit one byte below is refused at once, with what is held named.
    request.freedom.offload = false;
    request.live_limit = Bytes(recompute.bytes.get() - 1);
    for name in ["auto", "dtr", "sublinear", "rotor"] {
        let Err(StopReason::Infeasible(proof)) = planned(&request, name) else { panic!("{name}") };
        let Infeasible::Op { held, needed, .. } = *proof else { panic!("{name}") };
        assert!(needed == recompute.bytes && !held.is_empty(), "{name}");
    }
}

#[test]
fn prompt_updates_free_gradients_early_and_cost_nothing() {
    let (trace, costs) = residual(10, 2);
    let machine = machine();
    let request = request(&trace, &costs, &machine, Bytes(1 << 40));
    let policies = [Policy::keep(&trace), Policy::prompt(&trace)];
    let [late, prompt] = policies.each_ref().map(|policy| lower(&request, policy).unwrap());
    assert_eq!(late.iteration, prompt.iteration);
    assert!(prompt.peak <= late.peak);
    // At the last backward op the gradients of all weights are there, or none.
    let [late, prompt] = policies.map(|policy| {
        let backward = |op: &elbowroom_ir::OpId| trace.ops()[*op].phase == Phase::Backward;
        let last = policy.sequence.iter().rposition(backward).unwrap();
        live_memory(&request, &policy).unwrap()[last]
    });
    assert_eq!(late - prompt, 10 * MIB);
}

#[test]
fn what_exceeds_the_host_is_not_followed_by_larger_offloads() {
    let (trace, costs) = residual(64, 16);
    let machine = Machine { host_memory: Bytes(64 * MIB), ..machine() };
    let mut request = request(&trace, &costs, &machine, Bytes(1 << 40));
    request.live_limit = Bytes(keep_peak(&request) * 6 / 10);
    for name in ["greedy", "eager"] {
        let planner = PLANNERS.iter().find(|planner| planner.name() == name).unwrap();
        let outcome = planner.schedule(&request, &Budget::default(), &Silent);
        assert!(outcome.best.is_none(), "{name}");
        assert!(outcome.evaluations < 16, "{name}: {}", outcome.evaluations);
    }
}

#[test]
fn a_network_in_pieces_needs_the_same_memory_and_offloads_parts() {
    let (trace, costs) = residual(8, 16);
    let machine = machine();
    let cut = in_pieces(&trace, Bytes(3 * MIB)).unwrap();
    assert_eq!(cut.ops().len(), trace.ops().len());
    let total = |trace: &Trace| trace.storages().values().map(|storage| storage.bytes).sum::<Bytes>();
    assert_eq!(total(&cut), total(&trace));
    assert!(cut.tensors().ids().all(|tensor| cut.bytes(tensor) <= Bytes(3 * MIB)));
    let whole = request(&trace, &costs, &machine, Bytes(1 << 40));
    let pieces = Request { trace: &cut, ..whole };
    let peak = keep_peak(&whole);
    assert_eq!(keep_peak(&pieces), peak);
    // Half a tensor is too much: the first bytes of the first one suffice.
    let limit = Bytes(peak - 8 * MIB);
    let [of_whole, of_pieces] = [whole, pieces]
        .map(|request| planned(&Request { live_limit: limit, ..request }, "eager").unwrap().traffic.to_host);
    assert_eq!((of_whole, of_pieces), (Bytes(16 * MIB), Bytes(9 * MIB)));
    for planner in PLANNERS {
        // Legal, whatever it does.
        let _ = planned(&Request { live_limit: Bytes(peak * 8 / 10), ..pieces }, planner.name());
    }
}

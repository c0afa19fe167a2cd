//! The checker on plans of real size: a chain of 3,000 ops whose activations are all offloaded and prefetched, and a step of one optimizer op
//! over as many parameters as a plan can be expected to have.

use std::sync::Arc;
use std::time::Duration;

use elbowroom_ir::check::{check, check_schedule};
use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::packing::Placement;
use elbowroom_ir::plan::Plan;
use elbowroom_ir::schedule::{Action, BoundaryState, Buffer, Launch, Schedule, Step};
use elbowroom_ir::text::{PlanFile, TraceFile};
use elbowroom_ir::trace::{Again, Mutation, Op, Persistent, Phase, Storage, Tensor, Trace, TraceData, Work};
use elbowroom_ir::{ActionId, BufferId, Bytes, Nanos, OpId, Table, TensorId};

const LAYERS: u32 = 1_500;
const SIZE: Bytes = Bytes(64);

fn chain() -> Trace {
    let mut data = TraceData { name: "chain".to_owned(), ..TraceData::default() };
    let mut op = |phase, reads: Vec<TensorId>| {
        let storage = data.storages.push(Storage { bytes: SIZE });
        let output = data.tensors.push(Tensor { name: "value".to_owned(), storage });
        data.ops.push(Op {
            name: "op".to_owned(),
            kind: "linear".to_owned(),
            phase,
            again: Again::Pure,
            reads,
            outputs: vec![output],
            mutates: Vec::new(),
            may_reuse: Vec::new(),
            after: Vec::new(),
            workspace: Bytes::ZERO,
            work: Work::default(),
            line: String::new(),
        });
        output
    };
    let mut last = op(Phase::Forward, Vec::new());
    for _ in 1..LAYERS {
        last = op(Phase::Forward, vec![last]);
    }
    for layer in (0..LAYERS).rev() {
        last = op(Phase::Backward, vec![TensorId(layer), last]);
    }
    Trace::new(data).expect("a chain")
}

/// Buffers in slots of the arena that go around.
struct Draft {
    schedule: Schedule,
    offsets: Table<BufferId, Bytes>,
    /// Buffers with the steps that touched them, by slot: who comes next waits.
    slots: Vec<Vec<ActionId>>,
}

impl Draft {
    fn buffer(&mut self, slot: usize) -> BufferId {
        self.offsets.push(SIZE * slot as u64);
        self.schedule.buffers.push(Buffer { bytes: SIZE })
    }

    fn step(&mut self, action: Action, waits: Vec<ActionId>) -> ActionId {
        self.schedule.steps.push(Step { action, waits })
    }
}

fn offload_everything() -> (Schedule, Placement) {
    let slots = 8;
    let mut draft =
        Draft { schedule: Schedule::default(), offsets: Table::new(), slots: vec![Vec::new(); slots] };
    let mut held: Option<(BufferId, usize)> = None;
    let mut offloads = Vec::new();
    // Activations go around slots 0 to 3; each is offloaded when its successor exists.
    for layer in 0..LAYERS {
        let slot = layer as usize % 4;
        let buffer = draft.buffer(slot);
        let waits = std::mem::take(&mut draft.slots[slot]);
        let reads = held.iter().map(|&(buffer, _)| buffer).collect();
        let launch = Launch { op: OpId(layer), reads, writes: vec![buffer], workspace: None };
        let compute = draft.step(Action::Compute(launch), waits);
        if let Some((last, last_slot)) = held {
            draft.slots[last_slot].push(compute);
            draft.step(Action::Release { buffer: last }, Vec::new());
        }
        let offload = draft.step(Action::Offload { tensor: TensorId(layer), from: buffer }, vec![compute]);
        draft.slots[slot].push(offload);
        offloads.push(offload);
        held = Some((buffer, slot));
    }
    // The last activation stays as the first gradient's input; prefetches go to slots 4 and 5, gradients use 6 and 7 in turn.
    let Some((mut gradient, first_slot)) = held else { return Default::default() };
    let mut gradient_slot = first_slot;
    for (turn, layer) in (0..LAYERS).rev().enumerate() {
        let slot = 4 + turn % 2;
        let copy = draft.buffer(slot);
        let mut waits = std::mem::take(&mut draft.slots[slot]);
        waits.push(offloads[layer as usize]);
        let prefetch = draft.step(Action::Prefetch { tensor: TensorId(layer), to: copy }, waits);
        let output_slot = 6 + turn % 2;
        let output = draft.buffer(output_slot);
        let op = OpId(LAYERS + turn as u32);
        let launch = Launch { op, reads: vec![copy, gradient], writes: vec![output], workspace: None };
        let compute = draft.step(Action::Compute(launch), vec![prefetch]);
        draft.slots[slot].push(compute);
        for buffer in [copy, gradient] {
            draft.step(Action::Release { buffer }, Vec::new());
        }
        draft.step(Action::HostRelease { tensor: TensorId(layer) }, Vec::new());
        draft.slots[gradient_slot].push(compute);
        (gradient, gradient_slot) = (output, output_slot);
    }
    draft.step(Action::Release { buffer: gradient }, Vec::new());
    (draft.schedule, Placement { offsets: draft.offsets, height: SIZE * slots as u64 })
}

fn machine(memory: Bytes) -> Machine {
    Machine {
        name: "small".to_owned(),
        memory,
        align: Bytes(64),
        host_memory: SIZE * u64::from(LAYERS),
        to_host: Channel::with_rate(1 << 30),
        to_device: Channel::with_rate(1 << 30),
        shared_link: false,
        flops_per_second: 1 << 40,
        half_flops_per_second: None,
        bytes_per_second: 1 << 40,
        launch: Nanos(1),
    }
}

/// `parameters` parameters, an op for the gradient of each, and one op that updates them all. Twice as many buffers are alive before it.
fn update(parameters: u32) -> (Trace, Schedule, Placement) {
    let mut data = TraceData { name: "update".to_owned(), ..TraceData::default() };
    let mut schedule = Schedule::default();
    let (mut buffers, mut offsets) = (Table::new(), Table::new());
    let mut tensor = |data: &mut TraceData| {
        let storage = data.storages.push(Storage { bytes: SIZE });
        offsets.push(SIZE * offsets.len() as u64);
        buffers.push(Buffer { bytes: SIZE });
        data.tensors.push(Tensor { name: String::new(), storage })
    };
    let weights: Vec<TensorId> = (0..parameters).map(|_| tensor(&mut data)).collect();
    let gradients: Vec<TensorId> = (0..parameters).map(|_| tensor(&mut data)).collect();
    let updated = data.storages.ids().take(weights.len()).collect::<Vec<_>>();
    let updated: Vec<TensorId> = updated
        .into_iter()
        .map(|storage| data.tensors.push(Tensor { name: String::new(), storage }))
        .collect();
    let op = |again, reads: Vec<TensorId>, outputs: Vec<TensorId>, mutates: Vec<Mutation>| Op {
        name: String::new(),
        kind: String::new(),
        phase: Phase::Update,
        again,
        reads,
        outputs,
        mutates,
        may_reuse: Vec::new(),
        after: Vec::new(),
        workspace: Bytes::ZERO,
        work: Work::default(),
        line: String::new(),
    };
    let buffer = |tensor: &TensorId| BufferId(tensor.0);
    let mut launch = |op, reads: &[TensorId], writes: &[TensorId]| {
        let (reads, writes) = (reads.iter().map(buffer).collect(), writes.iter().map(buffer).collect());
        let action = Action::Compute(Launch { op, reads, writes, workspace: None });
        schedule.steps.push(Step { action, waits: Vec::new() });
    };
    for (&weight, &gradient) in weights.iter().zip(&gradients) {
        let id = data.ops.push(op(Again::Pure, vec![weight], vec![gradient], Vec::new()));
        launch(id, &[weight], &[gradient]);
    }
    let mutates = weights.iter().zip(&updated).map(|(&old, &new)| Mutation { old, new }).collect();
    let all = [weights.clone(), gradients.clone()].concat();
    let id = data.ops.push(op(Again::Never, all.clone(), updated.clone(), mutates));
    launch(id, &all, &weights);
    for gradient in &gradients {
        let action = Action::Release { buffer: buffer(gradient) };
        schedule.steps.push(Step { action, waits: Vec::new() });
    }
    data.persistent = weights.iter().zip(&updated).map(|(&begin, &end)| Persistent { begin, end }).collect();
    schedule.boundary = weights.iter().map(|weight| BoundaryState::device(buffer(weight))).collect();
    schedule.buffers = buffers;
    let height = SIZE * offsets.len() as u64;
    (Trace::new(data).expect("a step"), schedule, Placement { offsets, height })
}

/// Processor time of this thread so far, which other programs on the machine do not lengthen.
fn processor_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux accounts for threads");
    Duration::from_nanos(times.split(' ').next().and_then(|time| time.parse().ok()).expect("a number"))
}

/// Everything that looks at a plan before it runs has to stay far from quadratic: in the number of live buffers, and in the tensors of one op.
#[test]
fn a_hundred_thousand_live_buffers_take_seconds_at_most() {
    let started = processor_time();
    let (trace, schedule, placement) = update(50_000);
    let trace = Arc::new(trace);
    let height = placement.height;
    let plan = Plan { trace: trace.fingerprint(), schedule: schedule.clone(), placement };
    let checked = check(trace.clone(), machine(height), plan).unwrap_or_else(|illegal| panic!("{illegal}"));
    assert_eq!(checked.peak_live(), height);
    check_schedule(trace, machine(height), schedule, height).unwrap_or_else(|illegal| panic!("{illegal}"));
    // Comparing every two live buffers takes more than 20 s.
    let took = processor_time() - started;
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_plan_of_ten_thousand_actions_is_checked() {
    let trace = Arc::new(chain());
    let (schedule, placement) = offload_everything();
    assert!(schedule.steps.len() > 10_000);
    let machine = machine(placement.height);
    let plan = Plan { trace: trace.fingerprint(), schedule: schedule.clone(), placement };
    let text = PlanFile::new(plan.clone(), machine.clone()).expect("a machine").to_string();
    assert_eq!(text.parse::<PlanFile>().expect("what was printed").plan, plan);
    let checked = check(trace.clone(), machine.clone(), plan).unwrap_or_else(|illegal| panic!("{illegal}"));
    assert_eq!(checked.peak_live(), SIZE * 3);
    let without = check_schedule(trace.clone(), machine, schedule, SIZE * 3);
    // The waits are those of this placement, so they do not do for every one.
    assert!(without.is_err());
    let text = TraceFile::new((*trace).clone(), None, None).expect("a trace").to_string();
    assert_eq!(text.parse::<TraceFile>().expect("what was printed").trace, *trace);
}

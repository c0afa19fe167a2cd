//! Parameters that must leave the device: networks whose parameters and gradients are most of what is alive, at limits that both together
//! exceed. Their plans recompute most activations and have some parameters on the host for a part of the iteration.

use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::planning::{CostSource, Costs, Freedom, Planner, Request};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_ir::trace::{Again, Mutation, Op, Persistent, Phase, Storage, Tensor, Trace, TraceData, Work};
use elbowroom_ir::{Bytes, Nanos, TensorId};
use elbowroom_sched::auto::Auto;
use elbowroom_sched::offload::floor::Floor;
use elbowroom_sim::bound::floor;
use elbowroom_sim::simulate;

/// Blocks of a network; a block has two layers with a parameter each.
struct Network {
    blocks: usize,
    /// Bytes of a parameter, and of an activation.
    parameter: u64,
    activation: u64,
    /// Whether parameters are updated behind their gradients; otherwise gradients stay until the end.
    updates: bool,
}

struct Builder {
    data: TraceData,
    nanos: Vec<Nanos>,
}

impl Builder {
    fn tensor(&mut self, name: String, bytes: u64) -> TensorId {
        let storage = self.data.storages.push(Storage { bytes: Bytes(bytes) });
        self.data.tensors.push(Tensor { name, storage })
    }

    fn op(&mut self, kind: &str, phase: Phase, nanos: u64, reads: &[TensorId], outputs: &[TensorId]) {
        let again = if phase == Phase::Update { Again::Never } else { Again::Pure };
        self.data.ops.push(Op {
            name: format!("{kind} {}", self.nanos.len()),
            kind: kind.into(),
            phase,
            again,
            reads: reads.to_vec(),
            outputs: outputs.to_vec(),
            mutates: Vec::new(),
            may_reuse: Vec::new(),
            after: Vec::new(),
            workspace: Bytes::ZERO,
            work: Work::default(),
            line: String::new(),
        });
        self.nanos.push(Nanos(nanos));
    }

    /// Overwrites a parameter.
    fn update(&mut self, parameter: TensorId, gradient: TensorId) -> TensorId {
        let old = self.data.tensors[parameter].clone();
        let new = self.data.tensors.push(old);
        self.op("update", Phase::Update, 200, &[parameter, gradient], &[new]);
        let Some((_, op)) = self.data.ops.iter_mut().next_back() else { unreachable!("just pushed") };
        op.mutates.push(Mutation { old: parameter, new });
        new
    }
}

/// The trace with its durations, and the bytes of its parameters.
fn trace(network: &Network) -> (Trace, Costs, u64) {
    let mut build = Builder { data: TraceData::default(), nanos: Vec::new() };
    let layers = 2 * network.blocks;
    let parameters: Vec<TensorId> =
        (0..layers).map(|layer| build.tensor(format!("w{layer}"), network.parameter)).collect();
    let mut input = build.tensor("input".into(), network.activation);
    build.op("input", Phase::Forward, 10, &[], &[input]);
    let mut forward = Vec::new();
    for (layer, &parameter) in parameters.iter().enumerate() {
        let product = build.tensor(format!("y{layer}"), network.activation);
        let output = build.tensor(format!("x{layer}"), network.activation);
        build.op("matmul", Phase::Forward, 1_000, &[input, parameter], &[product]);
        build.op("act", Phase::Forward, 60, &[product], &[output]);
        forward.push((input, product));
        input = output;
    }
    let mut gradient = build.tensor("dloss".into(), network.activation);
    build.op("loss", Phase::Backward, 60, &[input], &[gradient]);
    let mut ends = parameters.clone();
    let mut gradients = Vec::new();
    for layer in (0..layers).rev() {
        let (input, product) = forward[layer];
        let before = build.tensor(format!("dy{layer}"), network.activation);
        build.op("act_backward", Phase::Backward, 60, &[product, gradient], &[before]);
        let weight = build.tensor(format!("dw{layer}"), network.parameter);
        build.op("weight_gradient", Phase::Backward, 1_000, &[input, before], &[weight]);
        gradient = build.tensor(format!("dx{layer}"), network.activation);
        build.op("matmul_backward", Phase::Backward, 1_000, &[before, parameters[layer]], &[gradient]);
        if network.updates {
            ends[layer] = build.update(parameters[layer], weight);
        } else {
            gradients.push(weight);
        }
    }
    build.op("end", Phase::Update, 0, &gradients, &[]);
    build.data.persistent =
        parameters.iter().zip(&ends).map(|(&begin, &end)| Persistent { begin, end }).collect();
    let costs = Costs { nanos: build.nanos.into_iter().collect(), source: CostSource::Recorded };
    (Trace::new(build.data).unwrap(), costs, layers as u64 * network.parameter)
}

fn machine(rate: u64) -> Machine {
    let link = Channel::with_rate(rate);
    Machine {
        name: "any".into(),
        memory: Bytes(1 << 50),
        align: Bytes(1),
        host_memory: Bytes(1 << 50),
        to_host: link,
        to_device: link,
        shared_link: false,
        flops_per_second: 1,
        bytes_per_second: 1,
        launch: Nanos::ZERO,
    }
}

/// The overhead of `auto` at a share of the bytes of the parameters, and that of offload alone.
fn overheads(network: &Network, share: f64) -> [f64; 2] {
    let (trace, costs, parameters) = trace(network);
    // All parameters take two thirds of the iteration to copy one way.
    let machine = machine(parameters * 1_500_000_000 / costs.total().get());
    let live_limit = Bytes((parameters as f64 * share) as u64);
    let request = Request {
        trace: &trace,
        costs: &costs,
        machine: &machine,
        live_limit,
        freedom: Freedom::ALL,
        packer: None,
        pins: None,
    };
    let alone = Freedom { offload: false, ..Freedom::ALL };
    let least = floor(&trace, alone, machine.align).unwrap().bytes;
    assert!(least > live_limit, "parameters must leave: {least} are needed without a link, of {live_limit}");
    [&Auto as &dyn Planner, &Floor].map(|planner| {
        let outcome = planner.schedule(&request, &Budget::evaluations(60_000), &Silent);
        let schedule = outcome.best.expect("there is a plan");
        let timeline = simulate(&trace, &costs, &machine, &schedule).unwrap();
        assert!(timeline.peak_live <= live_limit);
        timeline.iteration.get() as f64 / costs.total().get() as f64 - 1.0
    })
}

#[test]
fn parameters_leave_while_activations_are_recomputed() {
    let network = Network { blocks: 32, parameter: 900, activation: 1_700, updates: false };
    let [auto, offload] = overheads(&network, 1.7);
    assert!(offload > 2.0, "offload alone is no answer here: {offload}");
    assert!(auto < 0.15, "{auto}");
}

#[test]
fn parameters_that_change_leave_too() {
    let network = Network { blocks: 32, parameter: 900, activation: 1_700, updates: true };
    let [auto, offload] = overheads(&network, 0.9);
    assert!(offload > 3.0, "offload alone is no answer here: {offload}");
    assert!(auto < 0.6, "{auto}");
}

//! Small networks that use most kinds of ops, batches for them, and trainings to be compared.
#![allow(dead_code, reason = "every test binary uses a part of this")]

use std::sync::Arc;

use arbitrary::Unstructured;
use elbowroom_engine::{Digest, EngineError, Interpreter, Session, SessionOptions, reserved_host_bytes};
use elbowroom_graph::layers::{ConvLayer, LinearWeights, Part, WeightInit};
use elbowroom_graph::op::{Adam, Function, Sgd, Window};
use elbowroom_graph::{Builder, Content, Graph, Init, Mode, Optimizer};
use elbowroom_ir::Bytes;
use elbowroom_ir::check::{CheckedPlan, check};
use elbowroom_ir::machine::Machine;
use elbowroom_ir::plan::Plan;
use elbowroom_ir::schedule::{Action, Stream};
use elbowroom_ir::trace::Trace;

/// Seed of all trainings here.
pub const SEED: u64 = 7;

/// A residual block with batch normalization and dropout, pooled and classified; momentum and weight decay.
pub fn convnet() -> Graph {
    convnet_of(4, 8)
}

/// The same for this number of images, rows and columns.
pub fn convnet_of(batch: usize, size: usize) -> Graph {
    let mut b = Builder::new("convnet", Mode::Training);
    let x = b.input("images", [batch, 3, size, size], Content::Real);
    let labels = b.input("labels", [batch], Content::Class { classes: 5 });
    let window = Window::square(3, 1, 1);
    let x = b.conv2d("conv1", x, ConvLayer::plain(8, window)).unwrap();
    let x = b.batch_norm("bn1", x, 1e-5).unwrap();
    let x = b.relu("relu1", x).unwrap();
    let y = b.conv2d("conv2", x, ConvLayer::plain(8, window)).unwrap();
    let y = b.batch_norm("bn2", y, 1e-5).unwrap();
    let y = b.dropout("dropout", y, 0.3).unwrap();
    let x = b.add("add", x, y).unwrap();
    let x = b.relu("relu2", x).unwrap();
    let x = b.max_pool("pool", x, Window::square(2, 2, 0)).unwrap();
    let x = b.global_average_pool("average", x).unwrap();
    let weights = b.linear_weights("fc", [8, 5], true, WeightInit::FanInUniform);
    let x = b.linear("fc", x, weights).unwrap();
    let loss = b.cross_entropy("loss", [x, labels], Part::ALL, 1.0 / batch as f32).unwrap();
    let sgd = Sgd { learning_rate: 0.1, momentum: 0.9, weight_decay: 1e-3 };
    b.finish_training(loss, Optimizer::Sgd(sgd)).unwrap()
}

/// One block of a transformer whose output weight is its embedding; Adam.
pub fn transformer() -> Graph {
    let (batch, tokens, width, vocabulary) = (2, 6, 8, 11);
    let mut b = Builder::new("transformer", Mode::Training);
    let ids = b.input("tokens", [batch, tokens], Content::Class { classes: vocabulary });
    let labels = b.input("next", [batch, tokens], Content::Class { classes: vocabulary });
    let init = Init::Normal { std: 0.3, stream: b.init_stream() };
    let table = b.weight("embedding", [vocabulary, width], init);
    let x = b.embedding("embed", ids, table, Part::ALL).unwrap();
    let y = b.layer_norm("ln1", x).unwrap();
    let weights = b.linear_weights("qkv", [width, 3 * width], true, WeightInit::Normal(0.2));
    let mut qkv = b.linear("qkv", y, weights).unwrap();
    qkv.shape = [batch, tokens, 3 * width].into();
    let y = b.attention("attention", qkv, 2, true).unwrap();
    let y = b.dropout("dropout", y, 0.1).unwrap();
    let x = b.add("add1", x, y).unwrap();
    let y = b.layer_norm("ln2", x).unwrap();
    let weights = b.linear_weights("up", [width, 2 * width], true, WeightInit::Normal(0.2));
    let y = b.linear("up", y, weights).unwrap();
    let y = b.map("gelu", y, Function::Gelu).unwrap();
    let weights = b.linear_weights("down", [2 * width, width], true, WeightInit::Normal(0.2));
    let y = b.linear("down", y, weights).unwrap();
    let x = b.add("add2", x, y).unwrap();
    let tied = LinearWeights { weight: table, bias: None };
    let logits = b.linear("logits", x, tied).unwrap();
    let loss = b.cross_entropy("loss", [logits, labels], Part::ALL, 1.0 / 12.0).unwrap();
    let adam = Adam { learning_rate: 0.01, betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.01 };
    b.finish_training(loss, Optimizer::Adam(adam)).unwrap()
}

/// The trace of a graph as the engine runs it.
pub fn trace(graph: &Graph) -> Arc<Trace> {
    Arc::new(elbowroom_engine::trace(graph).unwrap())
}

/// The batch of an iteration for one input slot.
pub fn batch(content: Content, slot: usize, iteration: u64, bytes: &mut [u8]) {
    for (index, word) in bytes.chunks_exact_mut(4).enumerate() {
        let mixed = (index as u64 + 1_000 * iteration + 77 * slot as u64)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(31)
            .wrapping_mul(0xD6E8_FEB8_6659_FD93);
        match content {
            Content::Real => word.copy_from_slice(&((mixed >> 40) as f32 / 4e6 - 2.0).to_ne_bytes()),
            Content::Class { classes } => {
                word.copy_from_slice(&(((mixed >> 40) % classes as u64) as i32).to_ne_bytes());
            }
        }
    }
}

/// Fills all inputs with the batch of an iteration.
pub fn fill(session: &mut Session, iteration: u64) {
    let graph = session.graph().clone();
    for (slot, input) in graph.inputs.iter().enumerate() {
        session.fill_input(slot, |bytes| batch(input.content, slot, iteration, bytes));
    }
}

/// The bytes of all inputs in the batch of an iteration.
pub fn inputs(graph: &Graph, iteration: u64) -> Vec<Vec<u8>> {
    let bytes = |(slot, input): (usize, &elbowroom_graph::InputSpec)| {
        let mut bytes = vec![0; graph.tensors[input.tensor].bytes().get() as usize];
        batch(input.content, slot, iteration, &mut bytes);
        bytes
    };
    graph.inputs.iter().enumerate().map(bytes).collect()
}

/// The result of the oracle.
pub fn interpret(graph: &Graph, iterations: u64) -> Outcome {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let mut oracle = Interpreter::new(graph, SEED);
    let mut losses = Vec::new();
    for iteration in 0..iterations {
        let inputs = inputs(graph, iteration);
        let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let outputs = oracle.run(&pool, &inputs).unwrap();
        losses.push(u32::from_ne_bytes(outputs[0][..4].try_into().unwrap()));
    }
    let digest = |position: usize| {
        let bytes: Vec<u8> =
            oracle.persistent(position).iter().flat_map(|value| value.to_ne_bytes()).collect();
        Digest::of(&bytes)
    };
    Outcome { losses, digests: (0..graph.persistent.len()).map(digest).collect() }
}

/// The result of a training.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    pub losses: Vec<u32>,
    pub digests: Vec<Digest>,
}

/// Proves a plan and runs it.
pub fn run(
    graph: &Arc<Graph>,
    trace: &Arc<Trace>,
    machine: Machine,
    plan: Plan,
    options: SessionOptions,
    iterations: u64,
) -> Result<(Outcome, Session), EngineError> {
    let checked = check(trace.clone(), machine, plan).expect("the plan is legal");
    run_checked(graph, Arc::new(checked), options, iterations)
}

/// The same plan on a machine with all the host memory that a session reserves for it: each host copy lies in one range of bytes, which takes
/// more than their sum, the figure that the checker limits.
fn with_host_memory(plan: &CheckedPlan) -> Arc<CheckedPlan> {
    let host_memory = plan.machine().host_memory.max(reserved_host_bytes(plan));
    let machine = Machine { host_memory, ..plan.machine().clone() };
    Arc::new(check(plan.trace().clone(), machine, plan.plan().clone()).expect("more host memory is no harm"))
}

/// Runs a proved plan, with as much host memory as it takes.
pub fn run_checked(
    graph: &Arc<Graph>,
    plan: Arc<CheckedPlan>,
    options: SessionOptions,
    iterations: u64,
) -> Result<(Outcome, Session), EngineError> {
    let mut session = Session::new(graph.clone(), with_host_memory(&plan), options)?;
    let mut losses = Vec::new();
    for iteration in 0..iterations {
        fill(&mut session, iteration);
        session.run_iteration(iteration)?;
        losses.push(session.output(0)[0].to_bits());
    }
    let digests = session.digests()?;
    Ok((Outcome { losses, digests }, session))
}

/// A legal plan that the processor can run, drawn from data that a number determines.
pub fn drawn(trace: &Trace, number: u64, wanted: impl Fn(&Plan) -> bool) -> (Machine, Plan) {
    let mut state = number.wrapping_add(0x1234_5678_9ABC_DEF1);
    for _ in 0..200 {
        let mut byte = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        let bytes: Vec<u8> = (0..1 << 17).map(|_| byte()).collect();
        let (machine, plan) = elbowroom_ir::arbitrary::plan(&mut Unstructured::new(&bytes), trace).unwrap();
        if machine.align.get() % 4 == 0 && wanted(&plan) {
            // A session reserves more on the host than the sum that the checker limits.
            return (Machine { host_memory: Bytes(1 << 40), ..machine }, plan);
        }
    }
    panic!("no such plan was drawn");
}

/// Counts the actions of a plan that run on a stream, and its recomputations.
pub fn counts(plan: &Plan) -> ([usize; 3], usize) {
    let actions = || plan.schedule.steps.values().map(|step| &step.action);
    let on = |stream: Stream| actions().filter(|action| action.stream() == Some(stream)).count();
    (Stream::ALL.map(on), actions().filter(|action| matches!(action, Action::Recompute(_))).count())
}

/// Options with a number of threads.
pub fn threads(threads: usize) -> SessionOptions {
    SessionOptions::default().threads(threads).seed(SEED)
}

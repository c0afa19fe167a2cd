//! Networks of today against PyTorch in double precision: three losses of SGD, and the gradients of all parameters in the first iteration; and their
//! losses in bf16 against PyTorch's. `data/torch_losses.py` computed the tables with torchvision's and Hugging Face's modules; weights and inputs
//! follow the same formulas here.

use std::collections::BTreeMap;

use elbowroom_engine::Interpreter;
use elbowroom_engine::kernels::uses_matrix_unit;
use elbowroom_graph::op::{Mask, OpKind};
use elbowroom_graph::zoo::{self, OptimizerKind, Options};
use elbowroom_graph::{Content, Graph, Precision, Role};

const TABLE: &str = include_str!("data/torch_losses.txt");
const BF16_TABLE: &str = include_str!("data/torch_losses_bf16.txt");
const SEED: u64 = 77;
const CLASSES: usize = 10;
const WEIGHT_DECAY: f64 = 5e-4;

/// Numbers in −1..1 that look random.
fn values(name: &str, count: usize) -> impl Iterator<Item = f64> {
    let hash = |h: u64, byte: u8| (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let start = name.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
    (0..count as u64).map(move |i| {
        let x = start.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((x ^ (x >> 32)) >> 40) as f64 / f64::from(1 << 23) - 1.0
    })
}

fn weight(name: &str, shape: &[usize]) -> Vec<f32> {
    let fan_in: usize = shape[1..].iter().product();
    let scaled = |u: f64| match (shape.len(), name.ends_with("weight")) {
        (1, true) => 1.0 + 0.2 * u,
        (1, false) => 0.1 * u,
        _ => u * (3.0 / fan_in as f64).sqrt(),
    };
    values(name, shape.iter().product()).map(|u| scaled(u) as f32).collect()
}

fn inputs(graph: &Graph) -> Vec<Vec<u8>> {
    let input = |spec: &elbowroom_graph::InputSpec| -> Vec<u8> {
        let numbers = values(&spec.name, graph.tensors[spec.tensor].shape.len());
        match spec.content {
            Content::Real => numbers.flat_map(|x| (x as f32).to_ne_bytes()).collect(),
            Content::Class { classes } => {
                numbers.flat_map(|x| (((x + 1.0) / 2.0 * classes as f64) as i32).to_ne_bytes()).collect()
            }
        }
    };
    graph.inputs.iter().map(input).collect()
}

fn float(bytes: &[u8]) -> f64 {
    f64::from(f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// A network without dropout, trained by SGD.
fn network(name: &str, options: &Options) -> Graph {
    let options = options.clone().optimizer(OptimizerKind::Sgd).learning_rate(0.01);
    let mut graph = zoo::build(name, &options).expect("the network can be built");
    for op in graph.nodes.ids() {
        if let OpKind::Dropout(mask) = &mut graph.nodes[op].kind {
            *mask = Mask { threshold: 0, scale: 1.0, ..*mask };
        }
    }
    graph
}

/// Gives the parameters their weights, which it returns by name.
fn set_weights<'g>(graph: &'g Graph, interpreter: &mut Interpreter<'_>) -> BTreeMap<&'g str, Vec<f32>> {
    let mut begin = BTreeMap::new();
    for (position, parameter) in graph.persistent.iter().enumerate().filter(|(_, p)| p.role == Role::Weight) {
        let weight = weight(&parameter.name, graph.tensors[parameter.begin].shape.dims());
        interpreter.persistent_mut(position).copy_from_slice(&weight);
        begin.insert(parameter.name.as_str(), weight);
    }
    begin
}

/// Compares the losses of a network in bf16 with PyTorch's, with a bound of their relative difference for each of three iterations: where sums have
/// the order of products in f32, and that of a matrix unit.
fn check_bf16(name: &str, options: &Options, bounds: [[f64; 3]; 2]) {
    let graph = network(name, options).in_precision(Precision::Bf16).expect("the network has bf16");
    let bounds = bounds[usize::from(graph.nodes.values().any(|node| uses_matrix_unit(&node.kind)))];
    let lines = BF16_TABLE.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let expected: Vec<f64> =
        lines.filter(|fields| fields[0] == name).map(|fields| fields[3].parse().expect("a number")).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("threads start");
    let inputs = inputs(&graph);
    let borrowed: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let mut interpreter = Interpreter::new(&graph, SEED);
    set_weights(&graph, &mut interpreter);
    let found: Vec<f64> = bounds
        .iter()
        .map(|_| float(&interpreter.run(&pool, &borrowed).expect("the inputs fit")[0]))
        .collect();
    assert_eq!(expected.len(), bounds.len(), "{name}");
    let near = |((found, expected), bound): ((&f64, &f64), f64)| (found - expected).abs() <= bound * expected;
    assert!(
        found.iter().zip(&expected).zip(bounds).all(near),
        "{name}: losses are {found:?}, not {expected:?}"
    );
}

/// Compares a network with its lines of the table, with these bounds of the relative errors of gradients and of losses after updates.
fn check(name: &str, options: &Options, [error, later]: [f64; 2]) {
    let graph = network(name, options);
    let lines = TABLE.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let lines: Vec<_> = lines.filter(|fields| fields[0] == name).collect();
    let number = |text: &str| text.parse::<f64>().expect("a number");
    let losses: Vec<f64> = lines.iter().filter(|f| f[1] == "loss").map(|f| number(f[3])).collect();
    let gradients = lines.iter().filter(|fields| fields[1] != "loss");
    let mut gradients: BTreeMap<&str, [f64; 2]> =
        gradients.map(|fields| (fields[1], [number(fields[2]), number(fields[3])])).collect();
    let total = gradients.values().map(|[norm, _]| norm * norm).sum::<f64>().sqrt();

    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("threads start");
    let inputs = inputs(&graph);
    let borrowed: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let mut interpreter = Interpreter::new(&graph, SEED);
    let begin = set_weights(&graph, &mut interpreter);
    for (iteration, &expected) in losses.iter().enumerate() {
        let outputs = interpreter.run(&pool, &borrowed).expect("the inputs fit");
        let found = float(&outputs[0]);
        assert!(
            (found - expected).abs() < if iteration == 0 { 1e-5 } else { later } * expected.max(1.0),
            "{name}: loss {iteration} is {found}, not {expected}"
        );
        if iteration > 0 {
            continue;
        }
        for (position, parameter) in graph.persistent.iter().enumerate() {
            let Some(weight) = parameter.name.strip_suffix(".momentum") else { continue };
            let Some([norm, probe]) = gradients.remove(weight) else {
                panic!("{name}: PyTorch has no parameter {weight}")
            };
            // After the first step the momentum is g + λ·w.
            let momentum = interpreter.persistent(position).iter().zip(&begin[weight]);
            let gradient: Vec<f64> =
                momentum.map(|(&m, &w)| f64::from(m) - WEIGHT_DECAY * f64::from(w)).collect();
            let found = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
            let probed: f64 = gradient
                .iter()
                .zip(values(&format!("{weight}.probe"), gradient.len()))
                .map(|(g, u)| g * u)
                .sum();
            let allowed = error * norm + 1e-6 * total;
            assert!(
                (found - norm).abs() < allowed,
                "{name}: gradient of {weight} has norm {found}, not {norm}"
            );
            assert!((probed - probe).abs() < allowed, "{name}: gradient of {weight}: {probed}, not {probe}");
        }
        assert!(gradients.is_empty(), "{name}: parameters that only PyTorch has: {:?}", gradients.keys());
    }
    assert_eq!(losses.len(), 3, "{name}");
}

fn images(batch: usize) -> Options {
    Options::new(batch).image(96).classes(CLASSES)
}

#[test]
fn convolutional_networks() {
    // Rounding moves some elements over the kinks of ReLU6, at which the gradient jumps: from its own double precision, PyTorch's single is 3.5e-3
    // away in gradients and 4.6e-2 in the third loss.
    check("mobilenet-v2", &images(6), [1e-2, 5e-2]);
    check("efficientnet-b0", &images(6), [1e-3, 2e-4]);
    check("convnext-tiny", &images(2).width(24), [1e-3, 2e-4]);
}

#[test]
fn transformers() {
    check("vit-b-16", &images(2).width(128).layers(2), [1e-3, 2e-4]);
    check("llama", &Options::new(2).length(20).vocabulary(50).width(256).layers(2), [1e-3, 2e-4]);
}

#[test]
fn a_diffusion_model() {
    check("diffusion", &Options::new(2).image(16).width(16), [1e-3, 2e-4]);
}

/// Bounds are two to four times what was found: PyTorch sums and rounds in another order, and rounds biases as well. Numbers that are cut off instead
/// of rounded are outside. The losses of MobileNet in a matrix unit are nearer to those in double precision than PyTorch's in bf16 are, which are 8 % below
/// them in the third iteration. Of ViT's second losses, PyTorch's in bf16 is 0.95 % below that in double precision, ours are 0.75 % (in a matrix unit)
/// and 0.89 % above it.
#[test]
fn losses_in_bf16() {
    check_bf16("mobilenet-v2", &images(6), [[0.025, 0.02, 0.1], [0.025, 0.07, 0.2]]);
    check_bf16("efficientnet-b0", &images(6), [[2e-3, 2e-3, 5e-3], [4e-3, 7e-3, 0.02]]);
    check_bf16("convnext-tiny", &images(2).width(24), [[0.015, 2e-3, 0.03], [4e-3, 0.03, 0.05]]);
    check_bf16("vit-b-16", &images(2).width(128).layers(2), [[2e-3, 0.04, 0.02], [1e-3, 0.04, 0.01]]);
    let llama = Options::new(2).length(20).vocabulary(50).width(256).layers(2);
    check_bf16("llama", &llama, [[2e-3, 1e-3, 1e-3], [2e-3, 5e-4, 5e-4]]);
    check_bf16("diffusion", &Options::new(2).image(16).width(16), [[2e-3, 1.5e-3, 1e-3], [1e-3, 1e-3, 5e-4]]);
}

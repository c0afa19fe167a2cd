//! Gradients of whole graphs against finite differences: the interpreter computes them with the kernels in `f32`; the differences come
//! from the forward operations' slow twins in `f64`.

mod twin;

use std::collections::HashMap;

use elbowroom_engine::Interpreter;
use elbowroom_engine::kernels::algorithms;
use elbowroom_graph::layers::{ConvLayer, EPSILON, Part, TransposedLayer, WeightInit};
use elbowroom_graph::op::{Algorithm, Function, OpKind, Sgd, Window};
use elbowroom_graph::zoo::{self, OptimizerKind, Options};
use elbowroom_graph::{BuildError, Builder, Content, Graph, Mode, Optimizer, Role, Var};
use elbowroom_ir::TensorId;
use elbowroom_ir::trace::Phase;

const SEED: u64 = 77;
const WEIGHT_DECAY: f32 = 5e-4;

/// Bytes of every input, from a fixed sequence.
fn inputs(graph: &Graph) -> Vec<Vec<u8>> {
    let mut state = 12345u32;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let mut input = |spec: &elbowroom_graph::InputSpec| -> Vec<u8> {
        let len = graph.tensors[spec.tensor].shape.len();
        (0..len)
            .flat_map(|_| match spec.content {
                Content::Real => (next() as f32 / (1 << 23) as f32 - 1.0).to_ne_bytes(),
                Content::Class { classes } => (next() as i32 % classes as i32).to_ne_bytes(),
            })
            .collect()
    };
    graph.inputs.iter().map(&mut input).collect()
}

/// The loss in `f64`, with these values for the persistent ones.
fn loss(graph: &Graph, inputs: &[Vec<u8>], persistent: &[Vec<f64>]) -> f64 {
    let mut values: HashMap<TensorId, Vec<f64>> = HashMap::new();
    for (parameter, numbers) in graph.persistent.iter().zip(persistent) {
        values.insert(parameter.begin, numbers.clone());
    }
    for node in graph.nodes.values().filter(|node| node.phase == Phase::Forward) {
        let made = match node.kind {
            OpKind::Input { slot } => vec![numbers(&inputs[slot], graph.inputs[slot].content)],
            _ => {
                let operands: Vec<&[f64]> =
                    node.inputs.iter().map(|input| values[input].as_slice()).collect();
                twin::twin(&node.kind, &operands, SEED, 0)
            }
        };
        values.extend(node.outputs.iter().copied().zip(made));
    }
    values[&graph.outputs[0].tensor][0]
}

fn numbers(bytes: &[u8], content: Content) -> Vec<f64> {
    let (words, _) = bytes.as_chunks::<4>();
    words
        .iter()
        .map(|&word| match content {
            Content::Real => f64::from(f32::from_ne_bytes(word)),
            Content::Class { .. } => f64::from(i32::from_ne_bytes(word)),
        })
        .collect()
}

/// Compares the gradient of several elements of every weight with the difference quotient of the loss.
fn check(graph: &Graph) {
    let inputs = inputs(graph);
    let borrowed: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let mut bits = Vec::new();
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads start");
        let mut interpreter = Interpreter::new(graph, SEED);
        // Zeros and ones, with which biases and scales begin, hide mistakes.
        for (position, parameter) in
            graph.persistent.iter().enumerate().filter(|(_, p)| p.role == Role::Weight)
        {
            for (i, x) in interpreter.persistent_mut(position).iter_mut().enumerate() {
                *x += 0.1 * ((i * 7 + parameter.name.len() * 5) % 11) as f32 / 11.0;
            }
        }
        let before: Vec<Vec<f64>> = (0..graph.persistent.len())
            .map(|position| interpreter.persistent(position).iter().map(|&x| f64::from(x)).collect())
            .collect();
        let outputs = interpreter.run(&pool, &borrowed).expect("the inputs fit");
        if threads == 1 {
            compare(graph, &inputs, &before, &interpreter, numbers(&outputs[0], Content::Real)[0]);
        }
        let state = (0..graph.persistent.len()).flat_map(|position| interpreter.persistent(position));
        bits.push(state.map(|x| x.to_bits()).collect::<Vec<_>>());
    }
    assert!(bits[0] == bits[1], "{}: threads change bits", graph.name);
}

fn compare(graph: &Graph, inputs: &[Vec<u8>], before: &[Vec<f64>], after: &Interpreter<'_>, found: f64) {
    let expected = loss(graph, inputs, before);
    assert!(
        (found - expected).abs() < 1e-5 * expected.abs().max(1.0),
        "{}: loss {found}, not {expected}",
        graph.name
    );
    let mut compared = 0;
    for (position, parameter) in graph.persistent.iter().enumerate().filter(|(_, p)| p.role == Role::Weight) {
        // After the first step the momentum is g + λ·w.
        let momentum = format!("{}.momentum", parameter.name);
        let state =
            graph.persistent.iter().position(|p| p.name == momentum).expect("every weight has a momentum");
        let gradient =
            |i: usize| f64::from(after.persistent(state)[i]) - f64::from(WEIGHT_DECAY) * before[position][i];
        let len = before[position].len();
        let largest = (0..len).map(|i| gradient(i).abs()).fold(1e-4, f64::max);
        for i in (0..len).step_by(len.div_ceil(5)) {
            let quotient = [1e-5, -1e-5].map(|step| {
                let mut moved = before.to_vec();
                moved[position][i] += step;
                loss(graph, inputs, &moved)
            });
            let slope = (quotient[0] - quotient[1]) / 2e-5;
            let error = (gradient(i) - slope).abs();
            assert!(
                error < 2e-5 + 1e-3 * slope.abs() + 1e-4 * largest,
                "{}: gradient of {}[{i}] is {}, the difference quotient {slope}",
                graph.name,
                parameter.name,
                gradient(i)
            );
            compared += 1;
        }
    }
    assert!(compared > 0, "{}: nothing to compare", graph.name);
}

fn sgd() -> Optimizer {
    Optimizer::Sgd(Sgd { learning_rate: 0.1, momentum: 0.9, weight_decay: WEIGHT_DECAY })
}

/// A classifier of small images whose body is given.
fn classifier(name: &str, body: impl Fn(&mut Builder, Var) -> Result<Var, BuildError>) -> Graph {
    let build = || {
        let mut b = Builder::new(name, Mode::Training);
        let images = b.input("images", [3, 2, 8, 8], Content::Real);
        let labels = b.input("labels", [3], Content::Class { classes: 4 });
        let window = Window::square(3, 1, 1);
        let stem = ConvLayer { channels: 4, window, bias: true, init: WeightInit::FanInUniform };
        let x = b.conv2d("stem", images, stem)?;
        let x = body(&mut b, x)?;
        let x = x.rows();
        let head = b.linear_weights("head", [x.dim(1), 4], true, WeightInit::FanInUniform);
        let logits = b.linear("head", x, head)?;
        let loss = b.cross_entropy("loss", [logits, labels], Part::ALL, 1.0 / 3.0)?;
        b.finish_training(loss, sgd())
    };
    build().expect("the graph is well formed")
}

fn layer(channels: usize, window: Window, bias: bool) -> ConvLayer {
    ConvLayer { channels, window, bias, init: WeightInit::FanInUniform }
}

#[test]
fn convolutions_of_all_sorts() {
    check(&classifier("strided", |b, x| b.conv2d("a", x, layer(5, Window::square(3, 2, 1), true))));
    check(&classifier("pointwise", |b, x| b.conv2d("a", x, layer(5, Window::square(1, 1, 0), false))));
    check(&classifier("pointwise strided", |b, x| {
        b.conv2d("a", x, layer(5, Window::square(1, 2, 0), false))
    }));
    let long = Window { kernel: [1, 5], stride: [1, 2], padding: [0, 2] };
    check(&classifier("long", move |b, x| b.conv2d("a", x, layer(3, long, true))));
}

/// The same graph with every convolution computed by Winograd's algorithm where it can be.
fn by_winograd(mut graph: Graph) -> Graph {
    let mut changed = 0;
    for op in graph.nodes.ids() {
        let kind = &graph.nodes[op].kind;
        if algorithms(kind).any(|algorithm| algorithm == Algorithm::Winograd) {
            graph.nodes[op].kind = kind.computed_by(Algorithm::Winograd).expect("a convolution");
            changed += 1;
        }
    }
    assert!(changed > 3, "{}: Winograd's algorithm is used", graph.name);
    graph
}

#[test]
fn convolutions_by_winograd() {
    for (name, padding) in [("filtered", 1), ("filtered without padding", 0)] {
        check(&by_winograd(classifier(name, move |b, x| {
            let x = b.conv2d("a", x, layer(5, Window::square(3, 1, padding), true))?;
            let x = b.map("tanh", x, Function::Tanh)?;
            b.conv2d("b", x, layer(3, Window::square(3, 1, 1), false))
        })));
    }
}

#[test]
fn normalizations_and_poolings() {
    check(&classifier("batch norm", |b, x| {
        let x = b.batch_norm("bn", x, EPSILON)?;
        let x = b.relu("relu", x)?;
        b.max_pool("pool", x, Window::square(3, 2, 1))
    }));
    check(&classifier("average", |b, x| {
        let x = b.average_pool("pool", x, Window::square(3, 2, 1))?;
        b.map("sigmoid", x, Function::Sigmoid)
    }));
    check(&classifier("ceil", |b, x| {
        let x = b.max_pool_ceil("pool", x, Window::square(3, 2, 0))?;
        b.map("gelu", x, Function::Gelu)
    }));
    check(&classifier("global", |b, x| {
        let x = b.layer_norm("norm", x)?;
        let x = b.map("tanh", x, Function::Tanh)?;
        b.global_average_pool("pool", x)
    }));
}

#[test]
fn branches_and_dropout() {
    check(&classifier("residual", |b, x| {
        let y = b.conv2d("a", x, layer(4, Window::square(3, 1, 1), false))?;
        let y = b.dropout("drop", y, 0.4)?;
        let y = b.scale("scale", y, 0.7)?;
        let sum = b.add("sum", x, y)?;
        b.add("twice", sum, y)
    }));
    check(&classifier("side by side", |b, x| {
        let y = b.conv2d("a", x, layer(3, Window::square(1, 1, 0), true))?;
        let both = b.concat("both", &[y, x, y])?;
        let (outer, total) = (3, both.shape.len() / 3);
        let part = b.push1("part", OpKind::Slice { outer, total, start: 100, width: 320 }, &[both.id])?;
        b.push1("padded", OpKind::Pad { outer, total: 400, start: 30, width: 320 }, &[part.id])
    }));
}

/// Ops that layers of today are made of, each between a convolution and a linear layer.
#[test]
fn convolutions_in_groups() {
    let conv = |b: &mut Builder, x: Var, channels: usize, window: Window, [groups, dilation]: [usize; 2]| {
        b.grouped_conv2d("a", x, layer(channels, window, true), groups, [dilation; 2])
    };
    for (name, channels, window, form) in [
        ("depthwise", 4, Window::square(3, 1, 1), [4, 1]),
        ("depthwise, strided", 8, Window::square(3, 2, 1), [4, 1]),
        ("grouped", 6, Window::square(3, 1, 1), [2, 1]),
        ("dilated", 5, Window::square(3, 1, 2), [1, 2]),
        ("dilated and strided", 3, Window::square(3, 2, 2), [1, 2]),
    ] {
        check(&classifier(name, move |b, x| {
            let x = conv(b, x, channels, window, form)?;
            b.map("silu", x, Function::Silu)
        }));
    }
    for function in [
        Function::HardSigmoid,
        Function::HardSwish,
        Function::LeakyRelu { slope: 0.2 },
        Function::Clamp { least: -0.5, most: 0.7 },
        Function::Elu { alpha: 0.8 },
    ] {
        check(&classifier("hard", move |b, x| {
            let x = conv(b, x, 4, Window::square(3, 1, 1), [1, 1])?;
            b.map("function", x, function)
        }));
    }
    for (name, groups, extra) in [("transposed in groups", 2, 0), ("transposed with one more line", 1, 1)] {
        check(&classifier(name, move |b, x| {
            let up = TransposedLayer {
                layer: layer(4, Window::square(3, 2, 1), true),
                groups,
                dilation: [1, 1],
                extra: [extra; 2],
            };
            let x = b.grouped_conv_transpose2d("up", x, up)?;
            b.map("relu6", x, Function::Relu6)
        }));
    }
}

#[test]
fn products_and_normalizations_of_today() {
    check(&classifier("gated", |b, x| {
        let gate = b.global_average_pool("pool", x)?;
        let gate = b.map("gate", gate, Function::Sigmoid)?;
        let x = b.scale_planes("scaled", x, gate)?;
        let y = b.map("gelu", x, Function::GeluExact)?;
        b.mul("product", x, y)
    }));
    check(&classifier("group norm", |b, x| {
        let x = b.group_norm("norm", x, 2, EPSILON)?;
        b.map("tanh", x, Function::Tanh)
    }));
    check(&classifier("root mean square", |b, x| {
        let x = b.channels_last("turned", x)?;
        let x = b.rms_norm("norm", x, EPSILON)?;
        b.scale_columns("scale", x, 0.5)
    }));
    check(&classifier("square", |b, x| b.mul("square", x, x)));
    check(&classifier("parts", |b, x| {
        let parts = b.split("parts", x.rows(), &[100, 56, 100])?;
        let y = b.add("sum", parts[0], parts[2])?;
        b.map("tanh", y, Function::Tanh)
    }));
}

#[test]
fn attention_with_separate_operands() {
    check(&classifier("attention", |b, x| {
        // 64 tokens of four columns; 16 keys of two heads, shared by four.
        let tokens = b.channels_last("tokens", x)?;
        let tokens = Var { shape: [3, 16, 16].into(), ..tokens };
        let project = |b: &mut Builder, name: &str, outputs: usize| {
            let weights = b.linear_weights(name, [16, outputs], true, WeightInit::FanInUniform);
            let y = b.linear(name, tokens, weights)?;
            Ok(Var { shape: [3, 16, outputs].into(), ..y })
        };
        let [q, k, v] = [("q", 16), ("k", 8), ("v", 8)].map(|(name, outputs)| project(b, name, outputs));
        let q = b.rotary("q.turned", q?, 4, 10_000.0)?;
        let k = b.rotary("k.turned", k?, 2, 10_000.0)?;
        b.cross_attention("attention", [q, k, v?], [4, 2], true)
    }));
}

#[test]
fn attention_in_parts() {
    for (name, transposed) in [
        ("rows by columns", [false, false]),
        ("columns by columns", [true, false]),
        ("rows by rows", [false, true]),
        ("columns by rows", [true, true]),
    ] {
        check(&classifier(name, move |b, x| {
            // Four matrices of eight rows for each of three images.
            let matrix = |flipped: bool| if flipped { [3, 4, 5, 8] } else { [3, 4, 8, 5] };
            let mut project = |name: &str, dims: [usize; 4]| {
                let weights =
                    b.linear_weights(name, [x.shape.len() / 3, 160], true, WeightInit::FanInUniform);
                let y = b.linear(name, x.rows(), weights)?;
                Ok(Var { shape: dims.into(), ..y })
            };
            let q = project("q", matrix(transposed[0]))?;
            let k = project("k", matrix(!transposed[1]))?;
            let scores = b.batched_product("scores", [q, k], transposed)?;
            let p = b.softmax("softmax", scores)?;
            let p = b.dropout("drop", p, 0.3)?;
            let v = b.map("v", k, Function::Tanh)?;
            b.batched_product("values", [p, v], [transposed[0], !transposed[1]])
        }));
    }
}

#[test]
fn functions_of_positive_numbers() {
    for function in [Function::Exp, Function::Log, Function::Reciprocal, Function::Softplus, Function::Sqrt] {
        check(&classifier("positive", move |b, x| {
            let x = b.map("abs", x, Function::Abs)?;
            let x = b.map("exp", x, Function::Exp)?;
            b.map("function", x, function)
        }));
    }
}

#[test]
fn squared_errors() {
    let build = || {
        let mut b = Builder::new("regression", Mode::Training);
        let x = b.input("points", [5, 6], Content::Real);
        let y = b.input("targets", [5, 4], Content::Real);
        let [w, v] = ["a", "b"].map(|name| b.linear_weights(name, [6, 4], true, WeightInit::FanInUniform));
        let first = b.linear("a", x, w)?;
        let second = b.linear("b", x, v)?;
        let near = b.squared_error("near", first, y, 0.05)?;
        // Both operands have a gradient.
        let apart = b.squared_error("apart", first, second, 0.02)?;
        let loss = b.add("loss", near, apart)?;
        b.finish_training(loss, sgd())
    };
    check(&build().expect("the graph is well formed"));
}

#[test]
fn language_models() {
    let options = Options::new(3).length(5).vocabulary(7).width(12).layers(2).optimizer(OptimizerKind::Sgd);
    check(&zoo::build("lstm", &options).expect("the network can be built"));
    // Two blocks of steps, whose gradients to the weights are added up, and a step alone.
    for (batch, length) in [(130, 3), (256, 2)] {
        let options = options.clone().batch(batch).length(length).width(3).layers(2);
        check(&zoo::build("lstm", &options).expect("the network can be built"));
    }
    // A head of the transformer is 64 wide.
    let options = options.batch(2).width(64).layers(1);
    check(&zoo::build("gpt", &options).expect("the network can be built"));
}

#[test]
fn upward_convolutions_and_neighbouring_channels() {
    check(&classifier("transposed", |b, x| {
        b.conv_transpose2d("up", x, layer(3, Window::square(2, 2, 0), true))
    }));
    check(&classifier("transposed, overlapping", |b, x| {
        let x = b.conv_transpose2d("up", x, layer(3, Window::square(3, 2, 1), false))?;
        b.map("tanh", x, Function::Tanh)
    }));
    check(&classifier("response", |b, x| {
        let x = b.response_norm("norm", x, 3, [1.0, 0.5, 0.75])?;
        let x = b.channels_last("turned", x)?;
        b.map("gelu", x, Function::Gelu)
    }));
}

#[test]
fn encoder_and_decoder() {
    let options = Options::new(3).length(3).target(2).vocabulary(7).width(6).optimizer(OptimizerKind::Sgd);
    check(&zoo::build("seq2seq", &options).expect("the network can be built"));
    let options = Options::new(1).image(16).width(2);
    check(&zoo::build("unet", &options).expect("the network can be built"));
}

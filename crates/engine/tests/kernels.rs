//! Every kernel against its slow twin: results, in place and apart, and equal bits on one thread and two.

mod mixed;
mod twin;

use elbowroom_engine::kernels::owned::{Memory, run_owned};
use elbowroom_engine::kernels::{Bf16, Context, algorithms, workspace};
use elbowroom_graph::op::{
    Adam, Algorithm, Channels, Classification, Conv, Diffusion, Function, GroupedConv, Groups, Heads, Lookup,
    Mask, Places, Pool, Product, Products, Queries, Response, Rotation, Sgd, Window,
};
use elbowroom_graph::signature::Size;
use elbowroom_graph::{DType, Mixed, OpKind};
use rayon::ThreadPool;

const SEED: u64 = 0x1234_5678_9abc_def0;
const ITERATION: u64 = 4;

/// A number in −1..1 that looks random.
fn number(index: usize, stream: usize) -> f64 {
    let bits = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (stream as u64 + 7).wrapping_mul(0xd1b5_4a32_d192_ed03);
    let bits = (bits ^ (bits >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    f64::from((bits >> 40) as u32) / f64::from(1u32 << 23) - 1.0
}

/// Operands of a kind: floats around zero, integers within (and a few beyond) what they name, and what later kernels expect of earlier ones.
fn operands(kind: &OpKind) -> Vec<Vec<f64>> {
    let mut operands: Vec<Vec<f64>> = Vec::new();
    for (position, (size, dtype)) in kind.signature().inputs.into_iter().enumerate() {
        let len = match size {
            Size::Exactly(len) => len,
            Size::AtLeast(len) => len + 3,
        };
        let numbers = (0..len).map(|i| {
            let x = number(i, position);
            match (kind, dtype, position) {
                (OpKind::MaxPoolGrad(pool), DType::U8, _) => inside(pool, i, x),
                (
                    OpKind::Embedding(l) | OpKind::EmbeddingTile(l) | OpKind::EmbeddingGrad { lookup: l, .. },
                    DType::I32,
                    _,
                ) => (x * ((l.first + l.vocabulary) as f64 + 1.0)).floor(),
                (OpKind::CrossEntropy(l) | OpKind::CrossEntropyGrad(l) | OpKind::Hits(l), DType::I32, _) => {
                    ((x + 0.9) / 1.7 * l.classes as f64).floor()
                }
                (OpKind::CentroidUpdate { clusters, .. }, DType::I32, _) => {
                    (x.abs() * *clusters as f64).floor()
                }
                (OpKind::Diffuse(diffusion), DType::I32, _) => (x * (diffusion.steps as f64 + 2.0)).floor(),
                (OpKind::Sinusoid { .. }, _, _) => (x.abs() * 1000.0).floor(),
                (OpKind::GroupNormGrad(_), _, 3) | (OpKind::RmsNormGrad { .. }, _, 2) => x.abs() + 0.5,
                (OpKind::Map { function, .. } | OpKind::MapGrad { function, .. }, _, _)
                    if matches!(function, Function::Relu6 | Function::HardSigmoid | Function::HardSwish) =>
                {
                    9.0 * x
                }
                (OpKind::Map { function, .. }, _, _) | (OpKind::MapGrad { function, .. }, _, 1)
                    if matches!(function, Function::Log | Function::Reciprocal | Function::Sqrt) =>
                {
                    2.0 * x.abs() + 0.1
                }
                (OpKind::ResponseNormGrad(_), _, 2) => x.abs() + 1.0,
                (OpKind::ClipFactor { .. }, _, 0) => x.abs(),
                // Variances and second moments.
                (OpKind::BatchNormGrad { .. }, _, 3) | (OpKind::BatchNormInference { .. }, _, 4) => {
                    x.abs() + 0.1
                }
                (OpKind::AdamStep { .. }, _, 3) => x.abs(),
                (OpKind::RunningUpdate { .. }, _, 1 | 3) => x.abs(),
                (OpKind::LayerNormGrad { .. }, _, 3) => x.abs() + 0.5,
                (OpKind::LstmCellGrad { .. }, _, 0) => 0.5 + 0.49 * x,
                _ => 2.0 * x,
            }
        });
        operands.push(numbers.map(|x| f64::from(x as f32)).collect());
    }
    match kind {
        OpKind::AttentionGrad(heads) => {
            let made = twin::twin(&OpKind::Attention(*heads), &[&operands[0]], SEED, ITERATION);
            operands[1] = made[0].iter().map(|&x| f64::from(x as f32)).collect();
            operands[2] = made[1].iter().map(|&x| f64::from(x as f32)).collect();
        }
        OpKind::CrossAttentionGrad(extents) => {
            let made = twin::twin(
                &OpKind::CrossAttention(*extents),
                &[&operands[0], &operands[1], &operands[2]],
                SEED,
                ITERATION,
            );
            operands[3] = made[0].iter().map(|&x| f64::from(x as f32)).collect();
            operands[4] = made[1].iter().map(|&x| f64::from(x as f32)).collect();
        }
        OpKind::CrossEntropyGrad(loss) => {
            let made =
                twin::twin(&OpKind::CrossEntropy(*loss), &[&operands[0], &operands[1]], SEED, ITERATION);
            operands[2] = made[1].iter().map(|&x| f64::from(x as f32)).collect();
        }
        _ => {}
    }
    operands
}

/// A position in window `i` of a pooling that lies on the input.
fn inside(pool: &Pool, i: usize, x: f64) -> f64 {
    let at = [i / pool.out_size[1] % pool.out_size[0], i % pool.out_size[1]];
    let [a, b] = [0, 1].map(|axis| {
        let start = (at[axis] * pool.window.stride[axis]) as isize - pool.window.padding[axis] as isize;
        let first = (-start).max(0);
        let last = (pool.in_size[axis] as isize - start).min(pool.window.kernel[axis] as isize);
        first + ((x.abs() * (last - first) as f64) as isize).min(last - first - 1)
    });
    (a as usize * pool.window.kernel[1] + b as usize) as f64
}

fn to_memory(numbers: &[f64], dtype: DType) -> Memory {
    let bytes: Vec<u8> = match dtype {
        DType::F32 => numbers.iter().flat_map(|&x| (x as f32).to_ne_bytes()).collect(),
        DType::I32 => numbers.iter().flat_map(|&x| (x as i32).to_ne_bytes()).collect(),
        DType::Bf16 => numbers.iter().flat_map(|&x| Bf16::nearest(x as f32).0.to_ne_bytes()).collect(),
        DType::U8 => numbers.iter().map(|&x| x as u8).collect(),
    };
    Memory::of(&bytes)
}

fn from_memory(memory: &Memory, dtype: DType) -> Vec<f64> {
    match dtype {
        DType::F32 => memory.floats().iter().map(|&x| f64::from(x)).collect(),
        DType::I32 => {
            let (words, _) = memory.bytes().as_chunks::<4>();
            words.iter().map(|&word| f64::from(i32::from_ne_bytes(word))).collect()
        }
        DType::Bf16 => {
            let (halves, _) = memory.bytes().as_chunks::<2>();
            halves.iter().map(|&half| f64::from(Bf16(u16::from_ne_bytes(half)).float())).collect()
        }
        DType::U8 => memory.bytes().iter().map(|&x| f64::from(x)).collect(),
    }
}

/// Runs a kernel; `over[output]` is the operand in whose place the output goes.
fn compute(pool: &ThreadPool, kind: &OpKind, operands: &[Vec<f64>], over: &[Option<usize>]) -> Vec<Memory> {
    let signature = kind.signature();
    let mut memory: Vec<Memory> = operands
        .iter()
        .zip(&signature.inputs)
        .map(|(numbers, &(_, dtype))| to_memory(numbers, dtype))
        .collect();
    let reads: Vec<usize> = (0..memory.len()).collect();
    let mut writes = Vec::new();
    for (&(shape, dtype), over) in signature.outputs.iter().zip(over) {
        writes.push(over.unwrap_or_else(|| {
            memory.push(Memory::poisoned(shape.bytes(dtype).get() as usize));
            memory.len() - 1
        }));
    }
    let context =
        Context { pool, seed: SEED, iteration: ITERATION, rate: 1.0, inputs: &[], outputs: &|_, _| {} };
    run_owned(kind, &mut memory, &reads, &writes, &context);
    writes.iter().map(|&write| memory[write].clone()).collect()
}

/// All ways to place results over operands.
fn placements(kind: &OpKind) -> Vec<Vec<Option<usize>>> {
    let outputs = kind.signature().outputs.len();
    let mut fixed = vec![None; outputs];
    for (input, output) in kind.mutations() {
        fixed[output] = Some(input);
    }
    let mut all = vec![fixed];
    for reuse in kind.reusable() {
        for known in all.clone() {
            if known[reuse.output].is_none() && !known.contains(&Some(reuse.input)) {
                let mut next = known;
                next[reuse.output] = Some(reuse.input);
                all.push(next);
            }
        }
    }
    all
}

fn check(kind: &OpKind) {
    let pools =
        [1, 2].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("threads start"));
    let operands = operands(kind);
    let borrowed: Vec<&[f64]> = operands.iter().map(Vec::as_slice).collect();
    let expected = twin::twin(kind, &borrowed, SEED, ITERATION);
    let outputs = kind.signature().outputs;
    mixed::check(kind, &operands, &pools);
    let mut first: Option<Vec<Memory>> = None;
    for over in placements(kind) {
        for pool in &pools {
            let found = compute(pool, kind, &operands, &over);
            for (position, ((found, expected), &(_, dtype))) in
                found.iter().zip(&expected).zip(&outputs).enumerate()
            {
                let found = from_memory(found, dtype);
                assert_eq!(found.len(), expected.len(), "{kind:?}");
                let size = expected.iter().fold(1e-3f64, |size, x| size.max(x.abs()));
                for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
                    // Sums of many terms leave an absolute error in proportion to the terms.
                    let allowed = 2e-5 * size + 1e-5 * expected.abs();
                    assert!(
                        (found - expected).abs() <= allowed,
                        "{kind:?} placed {over:?}: result {position}[{i}] is {found}, not {expected}"
                    );
                }
            }
            let first = first.get_or_insert_with(|| found.clone());
            for (position, (found, first)) in found.iter().zip(first).enumerate() {
                assert!(
                    found.bytes() == first.bytes(),
                    "{kind:?} placed {over:?}: bits of result {position} differ"
                );
            }
        }
    }
}

fn conv(batch: usize, channels: [usize; 2], in_size: [usize; 2], window: Window) -> Conv {
    let out_size = window.output(in_size).expect("the window fits");
    Conv {
        batch,
        in_channels: channels[0],
        in_size,
        out_channels: channels[1],
        out_size,
        window,
        algorithm: Algorithm::Tiled,
    }
}

fn window(kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2]) -> Window {
    Window { kernel, stride, padding }
}

#[test]
fn convolutions() {
    for conv in [
        conv(2, [3, 5], [9, 7], Window::square(3, 1, 1)),
        conv(3, [16, 33], [8, 8], Window::square(3, 1, 1)),
        conv(1, [4, 64], [32, 32], Window::square(3, 1, 1)),
        conv(2, [2, 3], [32, 20], Window::square(3, 1, 0)),
        conv(2, [8, 13], [16, 16], Window::square(3, 2, 1)),
        conv(2, [7, 6], [9, 11], Window::square(1, 2, 0)),
        conv(3, [17, 40], [5, 6], Window::square(1, 1, 0)),
        conv(2, [3, 8], [23, 23], Window::square(7, 2, 3)),
        conv(1, [3, 4], [21, 25], Window::square(11, 4, 2)),
        conv(2, [5, 4], [7, 9], window([1, 7], [1, 1], [0, 3])),
        conv(2, [5, 4], [9, 7], window([5, 2], [2, 3], [1, 0])),
        conv(4, [40, 24], [2, 2], Window::square(3, 1, 1)),
        // Deep enough for several blocks, which begin and end inside a channel.
        conv(2, [61, 20], [8, 8], Window::square(3, 1, 1)),
        conv(1, [30, 50], [12, 12], Window::square(5, 1, 2)),
        conv(2, [70, 66], [6, 6], Window::square(3, 2, 1)),
        conv(1, [66, 61], [20, 20], Window::square(3, 2, 1)),
        conv(9, [3, 2], [1, 1], Window::square(3, 1, 1)),
        conv(1, [2, 2], [3, 3], Window::square(2, 3, 0)),
    ] {
        check(&OpKind::Conv2d { conv, bias: false });
        check(&OpKind::Conv2d { conv, bias: true });
        check(&OpKind::Conv2dGradInput(conv));
        check(&OpKind::Conv2dGradInputTile { conv, whole: conv.out_channels });
        check(&OpKind::Conv2dGradInputTile { conv, whole: 3 * conv.out_channels + 100 });
        check(&OpKind::Conv2dGradWeight(conv));
    }
}

#[test]
fn convolutions_by_other_algorithms() {
    let convs = [
        conv(2, [3, 5], [9, 7], Window::square(3, 1, 1)),
        // Vectors on two lines and on four, on lines of two images, and whole planes.
        conv(3, [30, 50], [12, 12], Window::square(5, 1, 2)),
        conv(2, [5, 4], [7, 9], window([1, 7], [1, 1], [0, 3])),
        conv(3, [70, 33], [8, 8], Window::square(3, 1, 1)),
        conv(2, [17, 40], [16, 48], Window::square(1, 1, 0)),
        conv(2, [3, 5], [10, 9], window([6, 3], [1, 1], [7, 0])),
        conv(1, [4, 64], [32, 32], Window::square(3, 1, 1)),
        conv(2, [2, 3], [32, 20], Window::square(3, 1, 0)),
        conv(3, [5, 4], [6, 5], Window::square(3, 1, 2)),
        conv(2, [5, 4], [3, 70], window([3, 3], [1, 1], [0, 2])),
        conv(4, [40, 24], [2, 2], Window::square(3, 1, 1)),
        // Several parts of tiles, the last one smaller; weights that are not all kept.
        conv(1, [300, 200], [18, 17], Window::square(3, 1, 1)),
        // Weights that are all kept, and patches of one part.
        conv(2, [270, 30], [12, 10], Window::square(3, 1, 1)),
        // Parts for several tasks.
        conv(3, [20, 24], [70, 58], Window::square(3, 1, 1)),
        conv(9, [3, 2], [1, 1], Window::square(3, 1, 1)),
        conv(2, [61, 130], [8, 8], Window::square(3, 2, 1)),
        conv(3, [130, 40], [5, 6], Window::square(1, 1, 0)),
    ];
    let [first, second] = [0, 1].map(|half| convs.iter().skip(half).step_by(2).copied());
    let [first, second] = std::thread::scope(|scope| {
        let second = scope.spawn(|| computed_by_other_algorithms(second));
        [computed_by_other_algorithms(first), second.join().unwrap()]
    });
    let [winograd, direct] = [0, 1].map(|at| first[at] + second[at]);
    assert!(winograd > 20, "{winograd} operations were computed by Winograd's algorithm");
    assert!(direct > 30, "{direct} operations were computed without workspace");
}

/// Checks every algorithm of some convolutions; returns how many operations were computed by Winograd's, and how many without workspace.
fn computed_by_other_algorithms(convs: impl Iterator<Item = Conv>) -> [usize; 2] {
    let (mut winograd, mut direct) = (0, 0);
    for conv in convs {
        let plain = [
            OpKind::Conv2d { conv, bias: false },
            OpKind::Conv2d { conv, bias: true },
            OpKind::Conv2dGradInput(conv),
            OpKind::Conv2dGradWeight(conv),
        ];
        for kind in &plain {
            let usual = bits(kind);
            assert_eq!(algorithms(kind).next(), Some(Algorithm::Tiled));
            for algorithm in algorithms(kind).skip(1) {
                let other = kind.computed_by(algorithm).expect("a convolution");
                check(&other);
                if algorithm == Algorithm::WinogradLean {
                    let in_bf16 = |kind: &OpKind| {
                        let inputs = vec![DType::Bf16; kind.signature().inputs.len()];
                        OpKind::Mixed(Box::new(Mixed {
                            kind: kind.clone(),
                            inputs,
                            outputs: vec![DType::F32],
                        }))
                    };
                    let whole = kind.computed_by(Algorithm::Winograd).expect("a convolution");
                    for (lean, whole) in [(in_bf16(&other), in_bf16(&whole)), (other.clone(), whole)] {
                        assert!(
                            workspace(&lean) <= workspace(&whole) && bits(&lean) == bits(&whole),
                            "{lean:?}"
                        );
                    }
                }
                winograd += usize::from(algorithm == Algorithm::Winograd);
                direct += usize::from(algorithm == Algorithm::Direct && workspace(&other).is_zero());
                assert!(!algorithm.has_usual_bits() || bits(&other) == usual, "{other:?} has other bits");
            }
        }
    }
    [winograd, direct]
}

/// The bytes of an operation's results.
fn bits(kind: &OpKind) -> Vec<Vec<u8>> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("threads start");
    let over = placements(kind).swap_remove(0);
    compute(&pool, kind, &operands(kind), &over).iter().map(|result| result.bytes().to_vec()).collect()
}

#[test]
fn linear_products() {
    for (rows, inputs, outputs) in [(1, 1, 1), (5, 7, 10), (64, 100, 33), (20, 65, 260), (130, 300, 12)] {
        let product = Product { rows, inputs, outputs };
        check(&OpKind::Linear { product, bias: false });
        check(&OpKind::Linear { product, bias: true });
        check(&OpKind::LinearGradInput(product));
        check(&OpKind::LinearGradInputTile { product, whole: outputs });
        check(&OpKind::LinearGradInputTile { product, whole: 3 * outputs + 100 });
        check(&OpKind::LinearGradWeight { product, accumulate: false });
        check(&OpKind::LinearGradWeight { product, accumulate: true });
    }
}

#[test]
fn elementwise_operations() {
    for len in [1, 7, 1000, 33_001] {
        check(&OpKind::Fill { len, value: 1.5 });
        check(&OpKind::Add { len });
        check(&OpKind::Accumulate { len });
        check(&OpKind::Scale { len, factor: -0.3 });
        check(&OpKind::ScaleBy { len });
        check(&OpKind::Mul { len });
        check(&OpKind::SquaredError { len, factor: 1.0 / len as f32 });
        check(&OpKind::SquaredErrorGrad { len, factor: 0.3 });
        check(&OpKind::Noise { len, stream: 3 });
        check(&OpKind::RandomSteps { rows: len, steps: 1000, stream: 4 });
        check(&OpKind::Indices { ids: (0..len as i32).map(|i| 7 * i - 3).collect() });
        for function in [
            Function::Relu,
            Function::Gelu,
            Function::Tanh,
            Function::Sigmoid,
            Function::Relu6,
            Function::Silu,
            Function::GeluExact,
            Function::HardSigmoid,
            Function::HardSwish,
            Function::LeakyRelu { slope: 0.1 },
            Function::Clamp { least: -1.5, most: 0.5 },
            Function::Clamp { least: 0.25, most: f32::MAX },
            Function::Elu { alpha: 1.5 },
            Function::Abs,
            Function::Exp,
            Function::Log,
            Function::Reciprocal,
            Function::Softplus,
            Function::Sqrt,
            Function::Step { bound: 0.25 },
        ] {
            check(&OpKind::Map { len, function });
            check(&OpKind::MapGrad { len, function });
        }
        check(&OpKind::Dropout(Mask::new(len, 0.3, 5)));
        for momentum in [0.0, 0.9] {
            let sgd = Sgd { learning_rate: 0.1, momentum, weight_decay: 0.01 };
            check(&OpKind::SgdStep { len, sgd });
        }
        let adam = Adam { learning_rate: 0.01, betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.1 };
        check(&OpKind::AdamStep { len, adam });
    }
    check(&OpKind::ClipFactor { max_norm: 0.25 });
    check(&OpKind::ClipFactor { max_norm: 25.0 });
    check(&OpKind::AddRow { outer: 1, inner: 3 });
    check(&OpKind::AddRow { outer: 37, inner: 1001 });
}

#[test]
fn normalizations() {
    for (batch, channels, spatial) in
        [(2, 3, 5), (4, 70, 1), (3, 2, 200), (5, 65, 16), (2, 1, 20_000), (1, 130, 2)]
    {
        let channels = Channels { batch, channels, spatial };
        check(&OpKind::BiasGrad(channels));
        check(&OpKind::AddChannel(channels));
        check(&OpKind::MulChannel(channels));
        check(&OpKind::MulChannelGrad(channels));
        for groups in (1..=channels.channels).filter(|&groups| channels.channels.is_multiple_of(groups)) {
            let groups = Groups { channels, groups };
            check(&OpKind::GroupNorm { groups, epsilon: 1e-5 });
            check(&OpKind::GroupNormGrad(groups));
        }
        check(&OpKind::BatchNorm { channels, epsilon: 1e-5 });
        check(&OpKind::BatchNormGrad { channels, epsilon: 1e-5 });
        check(&OpKind::BatchNormInference { channels, epsilon: 1e-3 });
    }
    check(&OpKind::RunningUpdate { channels: 19, count: 1, momentum: 0.1 });
    check(&OpKind::RunningUpdate { channels: 19, count: 64, momentum: 0.1 });
    for (rows, width) in [(1, 2), (7, 64), (40, 130), (500, 70)] {
        check(&OpKind::LayerNorm { rows, width, epsilon: 1e-5 });
        check(&OpKind::LayerNormGrad { rows, width });
        check(&OpKind::RmsNorm { rows, width, epsilon: 1e-6 });
        check(&OpKind::RmsNormGrad { rows, width });
    }
}

#[test]
fn poolings() {
    for (planes, in_size, window, up) in [
        (3, [8, 8], Window::square(2, 2, 0), false),
        (2, [10, 70], Window::square(2, 2, 0), false),
        (2, [9, 80], Window::square(2, 2, 0), false),
        (2, [6, 100], Window::square(3, 2, 1), false),
        (2, [7, 90], Window::square(4, 3, 2), false),
        (5, [9, 7], Window::square(3, 2, 1), false),
        (2, [7, 7], Window::square(7, 1, 0), false),
        (70, [16, 16], Window::square(3, 1, 1), false),
        (4, [6, 7], Window::square(3, 2, 0), true),
        (2, [5, 9], window([2, 3], [1, 2], [1, 1]), false),
        (600, [4, 4], Window::square(4, 4, 0), false),
        // Larger than a position in a byte can say: the mean of a whole plane.
        (3, [48, 50], window([48, 50], [1, 1], [0, 0]), false),
        (2, [40, 37], Window::square(20, 3, 5), false),
    ] {
        let out_size = if up { window.output_ceil(in_size) } else { window.output(in_size) };
        let pool = Pool { planes, in_size, out_size: out_size.expect("the window fits"), window };
        if window.area() <= 256 {
            check(&OpKind::MaxPool(pool));
            check(&OpKind::MaxPoolGrad(pool));
        }
        for count_padding in [false, true] {
            check(&OpKind::AveragePool { pool, count_padding });
            check(&OpKind::AveragePoolGrad { pool, count_padding });
        }
    }
}

#[test]
fn language_operations() {
    for (rows, places, vocabulary, width) in [
        (1, Places::ALL, 1, 1),
        (30, Places::steps(4, [30, 5]), 11, 65),
        (30, Places::steps(2, [10, 5]), 11, 65),
        (200, Places::ALL, 50, 130),
    ] {
        for first in [0, 3, vocabulary] {
            let lookup = Lookup { rows, places, first, vocabulary, width };
            check(&OpKind::Embedding(lookup));
            check(&OpKind::EmbeddingTile(lookup));
            check(&OpKind::EmbeddingGrad { lookup, accumulate: false });
            check(&OpKind::EmbeddingGrad { lookup, accumulate: true });
        }
    }
    for (batch, hidden) in [(1, 1), (3, 65), (20, 130), (70, 200)] {
        check(&OpKind::LstmCell { batch, hidden });
        check(&OpKind::LstmCellGrad { batch, hidden, carry: false });
        check(&OpKind::LstmCellGrad { batch, hidden, carry: true });
    }
    for (batch, tokens, heads, width) in
        [(1, 1, 1, 1), (2, 9, 3, 5), (3, 70, 2, 16), (1, 130, 4, 64), (9, 64, 2, 8)]
    {
        for causal in [false, true] {
            let heads = Heads { batch, tokens, heads, width, causal };
            check(&OpKind::Attention(heads));
            check(&OpKind::AttentionGrad(heads));
        }
    }
    for (rows, classes, places) in [
        (1, 1, Places::steps(0, [1, 7])),
        (9, 10, Places::steps(2, [9, 3])),
        (9, 10, Places::steps(2, [3, 6])),
        (300, 130, Places::ALL),
        (3, 5000, Places { offset: 1, ..Places::ALL }),
    ] {
        let loss = Classification { rows, classes, places, scale: 1.0 / rows as f32 };
        check(&OpKind::CrossEntropy(loss));
        check(&OpKind::CrossEntropyGrad(loss));
        check(&OpKind::Hits(loss));
    }
}

#[test]
fn rows_side_by_side() {
    check(&OpKind::Split { outer: 5, widths: vec![3] });
    check(&OpKind::Split { outer: 70, widths: vec![300, 1, 77] });
    check(&OpKind::Concat { outer: 5, widths: vec![3] });
    check(&OpKind::Concat { outer: 70, widths: vec![300, 1, 77] });
    for (outer, total, start, width) in [(1, 3, 0, 3), (40, 1000, 300, 77), (7, 9, 8, 1)] {
        check(&OpKind::Slice { outer, total, start, width });
        check(&OpKind::Pad { outer, total, start, width });
    }
}

#[test]
fn transpositions() {
    for (batch, rows, columns) in [(1, 1, 7), (2, 33, 20), (3, 2, 700), (1, 64, 64)] {
        for inner in [1, 2, 37] {
            check(&OpKind::Transpose { batch, rows, columns, inner });
        }
    }
}

#[test]
fn responses_of_neighbouring_channels() {
    for (batch, channels, spatial, size, beta) in
        [(2, 9, 35, 5, 0.75), (1, 3, 700, 5, 0.75), (3, 4, 1, 3, 0.5), (1, 1, 10, 5, 0.75)]
    {
        let channels = Channels { batch, channels, spatial };
        let response = Response { channels, size, k: 2.0, alpha: 0.1, beta };
        check(&OpKind::ResponseNorm(response));
        check(&OpKind::ResponseNormGrad(response));
        check(&OpKind::AddChannel(channels));
    }
}

#[test]
fn clusters() {
    for (rows, clusters, width) in [(1, 1, 1), (50, 7, 130), (3000, 20, 3)] {
        check(&OpKind::RowSquares { rows, width });
        check(&OpKind::Nearest { rows, clusters });
        check(&OpKind::CentroidUpdate { parts: vec![rows], clusters, width });
        check(&OpKind::Sum { len: rows * width, factor: 0.25 });
    }
    // Sums of so many elements that several tasks take them in, the last one a part; and of so many that tasks become larger.
    for len in [16384, 16385, 50_000, 64 * 16384 + 1000] {
        check(&OpKind::Sum { len, factor: 0.25 });
        check(&OpKind::RowSquares { rows: 2, width: len });
        check(&OpKind::SquaredError { len, factor: 1.0 / len as f32 });
    }
    // More centroids than points: some have none.
    check(&OpKind::CentroidUpdate { parts: vec![3], clusters: 9, width: 4 });
    check(&OpKind::CentroidUpdate { parts: vec![40, 40, 7], clusters: 9, width: 4 });
}

fn grouped(batch: usize, channels: [usize; 2], in_size: [usize; 2], window: Window) -> GroupedConv {
    GroupedConv { conv: conv(batch, channels, in_size, window), groups: 1, dilation: [1, 1] }
}

/// The same with groups and a distance between taps.
fn spread(grouped: GroupedConv, groups: usize, dilation: [usize; 2]) -> GroupedConv {
    let mut conv = grouped.conv;
    conv.out_size = GroupedConv::span(conv.window, dilation).output(conv.in_size).expect("the window fits");
    GroupedConv { conv, groups, dilation }
}

#[test]
fn convolutions_in_groups() {
    for conv in [
        // Depthwise, with one output channel or several per input channel.
        spread(grouped(2, [5, 5], [9, 7], Window::square(3, 1, 1)), 5, [1, 1]),
        spread(grouped(3, [20, 20], [14, 14], Window::square(3, 2, 1)), 20, [1, 1]),
        spread(grouped(2, [6, 18], [12, 11], Window::square(5, 2, 2)), 6, [1, 1]),
        spread(grouped(1, [33, 33], [7, 7], Window::square(7, 1, 3)), 33, [1, 1]),
        spread(grouped(2, [4, 4], [40, 30], window([3, 5], [3, 2], [2, 0])), 4, [2, 3]),
        spread(grouped(2, [3, 3], [2, 2], Window::square(2, 3, 1)), 3, [1, 1]),
        spread(grouped(2, [2, 2], [9, 10], Window::square(1, 4, 0)), 2, [1, 1]),
        spread(grouped(1, [2, 4], [5, 6], Window::square(3, 1, 4)), 2, [2, 2]),
        // Groups of several channels.
        spread(grouped(2, [8, 12], [9, 7], Window::square(3, 1, 1)), 4, [1, 1]),
        spread(grouped(3, [64, 64], [8, 8], Window::square(3, 2, 1)), 2, [1, 1]),
        spread(grouped(2, [6, 4], [11, 13], Window::square(3, 2, 2)), 2, [2, 1]),
        spread(grouped(1, [40, 80], [5, 5], Window::square(1, 1, 0)), 20, [1, 1]),
        // Taps apart, without groups.
        spread(grouped(2, [5, 7], [12, 14], Window::square(3, 1, 2)), 1, [2, 2]),
        spread(grouped(2, [5, 7], [15, 14], Window::square(3, 2, 3)), 1, [3, 2]),
        spread(grouped(1, [3, 40], [21, 18], window([4, 3], [2, 4], [1, 2])), 1, [2, 6]),
        spread(grouped(2, [3, 4], [9, 9], Window::square(2, 3, 0)), 1, [3, 5]),
    ] {
        check(&OpKind::GroupedConv2d { conv, bias: false });
        check(&OpKind::GroupedConv2d { conv, bias: true });
        check(&OpKind::GroupedConv2dGradInput(conv));
        check(&OpKind::GroupedConv2dGradWeight(conv));
    }
}

#[test]
fn attention_with_separate_operands() {
    for (batch, [queries, keys], [heads, shared], width) in [
        (1, [1, 1], [1, 1], 1),
        (2, [9, 9], [6, 3], 5),
        (3, [70, 70], [4, 1], 16),
        (2, [10, 77], [2, 2], 8),
        (1, [130, 20], [8, 2], 64),
        (9, [64, 65], [2, 1], 8),
    ] {
        for causal in [false, true] {
            let extents = Queries { batch, queries, keys, heads, shared, width, causal };
            check(&OpKind::CrossAttention(extents));
            check(&OpKind::CrossAttentionGrad(extents));
        }
        for back in [false, true] {
            let width = 2 * width;
            check(&OpKind::Rotary(Rotation { batch, tokens: keys, heads, width, base: 1e4, back }));
        }
    }
}

#[test]
fn products_of_a_batch_and_softmax() {
    for (batch, [rows, columns], depth) in
        [(1, [1, 1], 1), (1, [70, 300], 40), (3, [13, 33], 257), (40, [49, 49], 32), (17, [5, 64], 7)]
    {
        for transposed in [[false, false], [true, false], [false, true], [true, true]] {
            check(&OpKind::BatchedProduct(Products { batch, rows, columns, depth, transposed }));
        }
        check(&OpKind::Softmax { rows: batch * rows, width: columns });
        check(&OpKind::SoftmaxGrad { rows: batch * rows, width: columns });
    }
}

#[test]
fn separate_operands_have_the_bits_of_joined_ones() {
    let (batch, tokens, count, width) = (2, 70, 3, 16);
    let heads = Heads { batch, tokens, heads: count, width, causal: true };
    let joined = OpKind::Attention(heads);
    let operand = operands(&joined).swap_remove(0);
    let wide = count * width;
    let part = |part: usize| -> Vec<f64> {
        operand.chunks(3 * wide).flat_map(|row| row[part * wide..(part + 1) * wide].to_vec()).collect()
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("threads start");
    let one = compute(&pool, &joined, std::slice::from_ref(&operand), &[None, None]);
    let extents =
        Queries { batch, queries: tokens, keys: tokens, heads: count, shared: count, width, causal: true };
    let three = compute(&pool, &OpKind::CrossAttention(extents), &[part(0), part(1), part(2)], &[None, None]);
    assert!(one.iter().zip(&three).all(|(one, three)| one.bytes() == three.bytes()));
}

#[test]
fn diffusion_of_images() {
    for (batch, size, steps) in [(1, 1, 1), (5, 700, 1000), (3, 40_000, 10)] {
        check(&OpKind::Diffuse(Diffusion { batch, size, steps }));
        check(&OpKind::Sinusoid { rows: batch, width: 2 * (1 + size % 50) });
    }
    // The draws are normal, and every step is drawn.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("threads start");
    let noise = compute(&pool, &OpKind::Noise { len: 100_000, stream: 1 }, &[], &[None]);
    let (mut mean, mut square) = (0.0, 0.0);
    for x in noise[0].floats() {
        mean += f64::from(*x) / 1e5;
        square += f64::from(*x).powi(2) / 1e5;
    }
    assert!(mean.abs() < 0.01 && (square - 1.0).abs() < 0.02, "{mean} {square}");
}

#[test]
fn bf16_operands_larger_than_a_part() {
    let pools =
        [1, 2].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("threads start"));
    let channels = Channels { batch: 5, channels: 67, spatial: 31 * 31 };
    let len = channels.len();
    let rows = Channels { batch: 3001, channels: 210, spatial: 1 };
    let groups = Groups { channels: Channels { batch: 9, channels: 64, spatial: 23 * 23 }, groups: 8 };
    let pool = Pool { planes: 400, in_size: [33, 33], out_size: [17, 17], window: Window::square(3, 2, 1) };
    let plain = conv(5, [40, 24], [43, 41], Window::square(3, 1, 1));
    let transformed = Conv { algorithm: Algorithm::Winograd, ..plain };
    let strided = conv(7, [24, 40], [63, 61], Window::square(3, 2, 1));
    let depthwise = GroupedConv {
        conv: conv(3, [96, 96], [41, 43], Window::square(3, 1, 1)),
        groups: 96,
        dilation: [1, 1],
    };
    let product = Product { rows: 2500, inputs: 100, outputs: 150 };
    let products = Products { batch: 50, rows: 70, columns: 65, depth: 48, transposed: [false, false] };
    let heads = Heads { batch: 5, tokens: 130, heads: 4, width: 32, causal: true };
    let loss = Classification { rows: 900, classes: 500, places: Places::ALL, scale: 0.5 };
    let (outer, widths) = (1700, vec![100, 7, 120]);
    let kinds = [
        OpKind::Add { len },
        OpKind::Accumulate { len },
        OpKind::ScaleBy { len },
        OpKind::MapGrad { len, function: Function::Gelu },
        OpKind::Dropout(Mask::new(len, 0.3, 2)),
        OpKind::AddRow { outer: 1500, inner: 300 },
        OpKind::AddChannel(channels),
        OpKind::MulChannel(channels),
        OpKind::MulChannel(Channels { batch: 1, channels: 5 * 67, spatial: 31 * 31 }),
        OpKind::MulChannelGrad(channels),
        OpKind::BiasGrad(channels),
        OpKind::BiasGrad(rows),
        OpKind::BatchNorm { channels, epsilon: 1e-5 },
        OpKind::BatchNorm { channels: rows, epsilon: 1e-5 },
        OpKind::BatchNormGrad { channels, epsilon: 1e-5 },
        OpKind::BatchNormInference { channels, epsilon: 1e-5 },
        OpKind::LayerNorm { rows: 2000, width: 170, epsilon: 1e-5 },
        OpKind::LayerNormGrad { rows: 2000, width: 170 },
        OpKind::RmsNorm { rows: 2000, width: 170, epsilon: 1e-5 },
        OpKind::RmsNormGrad { rows: 2000, width: 170 },
        OpKind::GroupNorm { groups, epsilon: 1e-5 },
        OpKind::GroupNormGrad(groups),
        OpKind::MaxPool(pool),
        OpKind::MaxPoolGrad(pool),
        OpKind::AveragePool { pool, count_padding: false },
        OpKind::AveragePoolGrad { pool, count_padding: false },
        OpKind::Conv2d { conv: plain, bias: true },
        OpKind::Conv2dGradInput(plain),
        OpKind::Conv2dGradWeight(plain),
        OpKind::Conv2d { conv: transformed, bias: true },
        OpKind::Conv2dGradInput(transformed),
        OpKind::Conv2dGradWeight(transformed),
        OpKind::Conv2d { conv: strided, bias: false },
        OpKind::Conv2dGradInput(strided),
        OpKind::Conv2dGradWeight(strided),
        OpKind::GroupedConv2d { conv: depthwise, bias: true },
        OpKind::GroupedConv2dGradInput(depthwise),
        OpKind::GroupedConv2dGradWeight(depthwise),
        OpKind::Linear { product, bias: true },
        OpKind::LinearGradInput(product),
        OpKind::LinearGradWeight { product, accumulate: false },
        OpKind::LinearGradWeight { product, accumulate: true },
        OpKind::BatchedProduct(Products { transposed: [false, true], ..products }),
        OpKind::BatchedProduct(Products { transposed: [true, false], ..products }),
        OpKind::Softmax { rows: 3000, width: 140 },
        OpKind::SoftmaxGrad { rows: 3000, width: 140 },
        OpKind::LstmCell { batch: 900, hidden: 50 },
        OpKind::LstmCellGrad { batch: 900, hidden: 50, carry: true },
        OpKind::Attention(heads),
        OpKind::AttentionGrad(heads),
        OpKind::Rotary(Rotation { batch: 9, tokens: 150, heads: 4, width: 64, base: 1e4, back: false }),
        OpKind::CrossEntropy(loss),
        OpKind::CrossEntropyGrad(loss),
        OpKind::Concat { outer, widths: widths.clone() },
        OpKind::Split { outer, widths },
        OpKind::Slice { outer, total: 227, start: 100, width: 90 },
        OpKind::Pad { outer, total: 227, start: 100, width: 90 },
        OpKind::Transpose { batch: 20, rows: 130, columns: 110, inner: 1 },
    ];
    for kind in kinds {
        mixed::check(&kind, &operands(&kind), &pools);
        let signature = kind.signature();
        let inputs = signature.inputs.iter().map(|&(Size::Exactly(len) | Size::AtLeast(len), _)| len);
        let elements = inputs.chain(signature.outputs.iter().map(|(shape, _)| shape.len())).sum::<usize>();
        assert!(elements > 1 << 18, "{kind:?} is one part");
    }
}

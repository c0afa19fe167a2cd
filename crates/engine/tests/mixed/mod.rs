//! Kernels on bf16 operands: the bits of the kernel for `f32` on the same numbers, rounded; near these where sums have another order, or terms are
//! rounded as well.

use elbowroom_engine::kernels::{Bf16, uses_matrix_unit};
use elbowroom_graph::{DType, Mixed, OpKind};
use rayon::ThreadPool;

use super::{compute, from_memory, placements};

/// Which operands are bf16: all floats, all but the second input, every other one, results alone.
fn types(kind: &OpKind) -> Vec<Mixed> {
    let signature = kind.signature();
    let patterns: [&dyn Fn(usize, bool) -> bool; 4] = [
        &|_, _| true,
        &|at, is_input| !(is_input && at == 1),
        &|at, is_input| (at % 2 == 0) == is_input,
        &|_, is_input| !is_input,
    ];
    let with = |pattern: &dyn Fn(usize, bool) -> bool| {
        let typed = |at: usize, dtype: DType, is_input: bool| {
            if dtype == DType::F32 && pattern(at, is_input) { DType::Bf16 } else { dtype }
        };
        let inputs = signature.inputs.iter().enumerate();
        let inputs: Vec<DType> = inputs.map(|(at, &(_, dtype))| typed(at, dtype, true)).collect();
        let outputs = signature.outputs.iter().enumerate();
        let mut outputs: Vec<DType> = outputs.map(|(at, &(_, dtype))| typed(at, dtype, false)).collect();
        for (input, output) in kind.mutations() {
            outputs[output] = inputs[input];
        }
        Mixed { kind: kind.clone(), inputs, outputs }
    };
    let mut all: Vec<Mixed> = patterns.into_iter().map(with).collect();
    all.dedup();
    all
}

/// Whether results of a kind are sums over what a large op is cut into.
fn is_sum_of_parts(kind: &OpKind, operands: &[Vec<f64>]) -> bool {
    let adds_up = matches!(
        kind,
        OpKind::Conv2dGradWeight(_)
            | OpKind::LinearGradWeight { .. }
            | OpKind::LayerNormGrad { .. }
            | OpKind::RmsNormGrad { .. }
            | OpKind::GroupNormGrad(_)
            | OpKind::CrossEntropy(_)
            | OpKind::SquaredError { .. }
            | OpKind::Sum { .. }
    );
    adds_up && operands.iter().map(Vec::len).sum::<usize>() > 1 << 18
}

/// How far results are off, as a share of the largest, where a kernel rounds what it multiplies besides its operands: probabilities and their
/// gradients, and what Winograd's convolutions transform, of which a result is a sum of nine.
fn rounding(mixed: &Mixed) -> Option<f64> {
    if let Some(conv) = mixed.kind.conv() {
        return (!conv.algorithm.has_usual_bits()).then(|| 2f64.powi(-7));
    }
    let sums = match mixed.kind {
        OpKind::Attention(_) | OpKind::CrossAttention(_) => None,
        OpKind::AttentionGrad(_) => Some(2),
        OpKind::CrossAttentionGrad(_) => Some(4),
        _ => return None,
    };
    let mut factors = (0..mixed.inputs.len()).filter(|&at| Some(at) != sums);
    factors.all(|at| mixed.inputs[at] == DType::Bf16).then(|| 2f64.powi(-8))
}

/// Checks a kind with bf16 operands, in every place that its results may have and on one thread and two.
pub fn check(kind: &OpKind, operands: &[Vec<f64>], pools: &[ThreadPool; 2]) {
    for mixed in types(kind) {
        if let OpKind::CentroidUpdate { .. } = kind {
            assert!(!mixed.is_sound(), "k-means has no bf16");
            continue;
        }
        assert!(mixed.is_sound());
        let nearest = |x: &f64| f64::from(Bf16::nearest(*x as f32).float());
        let known = operands.iter().zip(&mixed.inputs).enumerate().map(|(at, (numbers, &dtype))| {
            let is_factor = at < 2 && Mixed::is_product(kind) && dtype == DType::F32;
            match dtype == DType::Bf16 || is_factor {
                true => numbers.iter().map(nearest).collect(),
                false => numbers.clone(),
            }
        });
        let known: Vec<Vec<f64>> = known.collect();
        let plain = compute(&pools[0], kind, &known, &placements(kind)[0]);
        let outputs = kind.signature().outputs;
        let typed = OpKind::Mixed(Box::new(mixed.clone()));
        for over in placements(&typed) {
            for pool in pools {
                let found = compute(pool, &typed, operands, &over);
                for (at, (found, expected)) in found.iter().zip(&plain).enumerate() {
                    let mut expected = from_memory(expected, outputs[at].1);
                    if mixed.outputs[at] == DType::Bf16 {
                        expected = expected.iter().map(nearest).collect();
                    }
                    // Sums over parts of a large op, and in a matrix unit: their order is another one.
                    let of_parts = mixed.outputs[at] == DType::F32 && is_sum_of_parts(kind, &known);
                    let rounding = rounding(&mixed);
                    if of_parts || rounding.is_some() || uses_matrix_unit(&typed) {
                        let size = expected.iter().fold(1e-3f64, |size, x| size.max(x.abs()));
                        // What is rounded may be the neighbour.
                        let step = if mixed.outputs[at] == DType::Bf16 { 2f64.powi(-7) } else { 0.0 };
                        let share = rounding.unwrap_or(2e-5);
                        let near = |(found, expected): (&f64, &f64)| {
                            (found - expected).abs() <= share * size + step * expected.abs()
                        };
                        let found = from_memory(found, mixed.outputs[at]);
                        assert!(found.iter().zip(&expected).all(near), "{typed:?}");
                        continue;
                    }
                    let bits = |numbers: &[f64]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<u64>>();
                    let found = from_memory(found, mixed.outputs[at]);
                    assert!(
                        bits(&found) == bits(&expected),
                        "{typed:?} placed {over:?}: result {at} has other bits: {:?}",
                        found
                            .iter()
                            .zip(&expected)
                            .enumerate()
                            .find(|(_, (found, expected))| found != expected)
                    );
                }
            }
        }
    }
}

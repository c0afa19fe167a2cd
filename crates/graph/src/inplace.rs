//! In-place facts: which outputs may take over the bytes of which inputs that are not needed afterwards (Chen et al., 2016, Section 3;
//! *inplace operation*).
//!
//! A fact is stated only if every element of the output is written after the last read of the input's element at the same position, and of
//! all elements on which later writes depend. For elementwise ops this always holds. Where a kernel must order its passes for it to hold,
//! the reason below says so, and the kernel must comply. Whether the input is still needed is decided by a schedule, not here.

use crate::op::OpKind;

/// Output `output` may be written over input `input`; both are positions among the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reusable {
    /// Position among the inputs.
    pub input: usize,
    /// Position among the outputs.
    pub output: usize,
}

const fn over(input: usize, output: usize) -> Reusable {
    Reusable { input, output }
}

impl OpKind {
    /// All permitted reuses. If an output has several, a schedule uses at most one; reuses of different outputs may be combined.
    pub fn reusable(&self) -> Vec<Reusable> {
        match self {
            Self::Mixed(mixed) => mixed.reusable(),
            kind => kind.reuses().to_vec(),
        }
    }

    /// The reuses of an op whose operands all have the types of its kind.
    fn reuses(&self) -> &'static [Reusable] {
        match self {
            // Elementwise in every input named.
            Self::Add { .. } | Self::Mul { .. } | Self::MapGrad { .. } | Self::SquaredErrorGrad { .. } => {
                const { &[over(0, 0), over(1, 0)] }
            }
            Self::Scale { .. }
            | Self::Map { .. }
            | Self::Dropout(_)
            | Self::ScaleBy { .. }
            | Self::AddRow { .. }
            | Self::AddChannel(_)
            | Self::MulChannel(_) => const { &[over(0, 0)] },
            // Both columns of a pair are read before either is written.
            Self::Rotary(_) => const { &[over(0, 0)] },
            // Noise and image at one place make the result there.
            Self::Diffuse(_) => const { &[over(0, 0), over(1, 0)] },
            Self::BatchNormInference { .. } => const { &[over(0, 0)] },
            // The statistics of a channel (a row) are complete before the first element of that channel (row) is written.
            Self::BatchNorm { .. } | Self::LayerNorm { .. } => const { &[over(0, 0)] },
            Self::GroupNorm { .. } | Self::RmsNorm { .. } | Self::Softmax { .. } => const { &[over(0, 0)] },
            // The sum of a row is complete before its first dx; dx then needs dy and y at its own position only.
            Self::SoftmaxGrad { .. } => const { &[over(0, 0), over(1, 0)] },
            // Both sums of a channel are complete before its first dx; dx then needs dy and x at its own position only.
            Self::BatchNormGrad { .. } => const { &[over(0, 0), over(1, 0)] },
            // The kernel reads all operands of one (row, column), then writes all results of it: gates over a or b, c′ over c.
            Self::LstmCell { .. } => const { &[over(2, 1), over(0, 2), over(1, 2)] },
            // As above: d over gates; dc over c, c′, dh or dc′.
            Self::LstmCellGrad { carry: false, .. } => {
                const { &[over(0, 0), over(1, 1), over(2, 1), over(3, 1)] }
            }
            Self::LstmCellGrad { carry: true, .. } => {
                const { &[over(0, 0), over(1, 1), over(2, 1), over(3, 1), over(4, 1)] }
            }
            // Elementwise in the logits; the row's sum is an input of its own.
            Self::CrossEntropyGrad(_) => const { &[over(0, 0)] },
            // All others read an input element for several output elements, or change its size.
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Channels, Diffusion, Function, Groups, Mask, Rotation};
    use crate::signature::Size;

    #[test]
    fn reused_inputs_are_as_large_as_their_outputs() {
        let channels = Channels { batch: 2, channels: 3, spatial: 5 };
        let kinds = [
            OpKind::Add { len: 7 },
            OpKind::Mul { len: 7 },
            OpKind::MulChannel(channels),
            OpKind::SquaredErrorGrad { len: 7, factor: 0.5 },
            OpKind::GroupNorm { groups: Groups { channels, groups: 3 }, epsilon: 1e-5 },
            OpKind::RmsNorm { rows: 3, width: 4, epsilon: 1e-5 },
            OpKind::Softmax { rows: 3, width: 4 },
            OpKind::SoftmaxGrad { rows: 3, width: 4 },
            OpKind::Rotary(Rotation { batch: 2, tokens: 3, heads: 2, width: 4, base: 1e4, back: false }),
            OpKind::Diffuse(Diffusion { batch: 2, size: 3, steps: 10 }),
            OpKind::ScaleBy { len: 7 },
            OpKind::AddRow { outer: 3, inner: 4 },
            OpKind::Map { len: 7, function: Function::Relu },
            OpKind::MapGrad { len: 7, function: Function::Gelu },
            OpKind::Dropout(Mask::new(7, 0.5, 0)),
            OpKind::BatchNorm { channels, epsilon: 1e-5 },
            OpKind::BatchNormGrad { channels, epsilon: 1e-5 },
            OpKind::LayerNorm { rows: 3, width: 4, epsilon: 1e-5 },
            OpKind::LstmCell { batch: 2, hidden: 3 },
            OpKind::LstmCellGrad { batch: 2, hidden: 3, carry: false },
            OpKind::LstmCellGrad { batch: 2, hidden: 3, carry: true },
        ];
        for kind in kinds {
            let signature = kind.signature();
            assert!(!kind.reusable().is_empty());
            for reuse in kind.reusable() {
                let (size, dtype) = signature.inputs[reuse.input];
                let (shape, made) = signature.outputs[reuse.output];
                assert_eq!((size, dtype), (Size::Exactly(shape.len()), made), "{kind:?}");
                assert!(kind.mutations().iter().all(|&(_, output)| output != reuse.output));
            }
        }
    }
}

//! Ops on operands of which some are bf16: the same formula, rounded results.
//!
//! A kind defines its formula for `f32`. [`Mixed`] says which of its operands are stored in half as many bytes. Products round both of their
//! factors, so that a weight that is stored in `f32` counts as its nearest bf16 number: kernels may multiply bf16 numbers, and a bf16 copy of the
//! weight is never stored.

use crate::inplace::Reusable;
use crate::op::OpKind;
use crate::shape::DType;
use crate::signature::Signature;

/// An op, and the types of its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixed {
    /// What it computes, on `f32` operands.
    pub kind: OpKind,
    /// The type of every input.
    pub inputs: Vec<DType>,
    /// The type of every output.
    pub outputs: Vec<DType>,
}

impl Mixed {
    /// The op with the given types where its kind has `f32`.
    pub(crate) fn signature(&self) -> Signature {
        let Signature { mut inputs, mut outputs } = self.kind.signature();
        for ((_, dtype), own) in inputs.iter_mut().zip(&self.inputs) {
            *dtype = *own;
        }
        for ((_, dtype), own) in outputs.iter_mut().zip(&self.outputs) {
            *dtype = *own;
        }
        Signature { inputs, outputs }
    }

    /// Another op on operands of the same types.
    pub(crate) fn with(&self, kind: OpKind) -> OpKind {
        OpKind::Mixed(Box::new(Self { kind, inputs: self.inputs.clone(), outputs: self.outputs.clone() }))
    }

    /// Reuses between operands of one size.
    pub(crate) fn reusable(&self) -> Vec<Reusable> {
        let mut reuses = self.kind.reusable();
        reuses.retain(|reuse| self.inputs.get(reuse.input) == self.outputs.get(reuse.output));
        reuses
    }

    /// Whether the op multiplies matrices or windows: its first two inputs count as their nearest bf16 numbers, however they are stored.
    pub fn is_product(kind: &OpKind) -> bool {
        matches!(
            kind,
            OpKind::Conv2d { .. }
                | OpKind::Conv2dGradInput(_)
                | OpKind::Conv2dGradWeight(_)
                | OpKind::GroupedConv2d { .. }
                | OpKind::GroupedConv2dGradInput(_)
                | OpKind::GroupedConv2dGradWeight(_)
                | OpKind::Linear { .. }
                | OpKind::LinearGradInput(_)
                | OpKind::LinearGradWeight { .. }
                | OpKind::BatchedProduct(_)
        )
    }

    /// Whether the types are those of the kind, or bf16 in place of `f32`.
    pub fn is_sound(&self) -> bool {
        let Signature { inputs, outputs } = self.kind.signature();
        let fits =
            |own: &DType, of_kind: DType| *own == of_kind || (*own == DType::Bf16 && of_kind == DType::F32);
        let has_types = !matches!(
            self.kind,
            OpKind::Input { .. } | OpKind::Output { .. } | OpKind::CentroidUpdate { .. } | OpKind::Mixed(_)
        );
        has_types
            && inputs.len() == self.inputs.len()
            && outputs.len() == self.outputs.len()
            && inputs.iter().zip(&self.inputs).all(|(&(_, of_kind), own)| fits(own, of_kind))
            && outputs.iter().zip(&self.outputs).all(|(&(_, of_kind), own)| fits(own, of_kind))
            && self.kind.mutations().iter().all(|&(input, output)| self.inputs[input] == self.outputs[output])
    }
}

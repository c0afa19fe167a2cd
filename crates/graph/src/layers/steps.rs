//! Tensors of several steps of a sequence: the rows of one step after those of another.

use crate::builder::{BuildError, Builder, Var};
use crate::op::OpKind;

impl Builder {
    /// The rows of `x [steps · rows, columns]` step by step.
    pub fn parts(&mut self, name: &str, x: Var, steps: usize) -> Result<Vec<Var>, BuildError> {
        if steps == 1 {
            return Ok(vec![x]);
        }
        let (rows, columns) = (x.dim(0) / steps.max(1), x.dim(1));
        let kind = OpKind::Split { outer: 1, widths: vec![rows * columns; steps] };
        let parts = self.push(name, kind, &[x.id])?;
        Ok(parts.into_iter().map(|part| Var { id: part.id, shape: [rows, columns].into() }).collect())
    }

    /// The rows of all steps, each `[rows, columns]`, in one tensor.
    pub fn joined(&mut self, name: &str, steps: &[Var]) -> Result<Var, BuildError> {
        if let [only] = steps {
            return Ok(*only);
        }
        let flat = |step: &Var| Var { id: step.id, shape: [1, step.shape.len()].into() };
        let columns = steps.first().map_or(1, |step| step.dim(1));
        let all = self.concat(name, &steps.iter().map(flat).collect::<Vec<_>>())?;
        Ok(Var { id: all.id, shape: [all.shape.len() / columns.max(1), columns].into() })
    }
}

//! Products of two tensors and softmax, where they are no part of attention as one op.

use elbowroom_graph::op::{OpKind, Products};
use elbowroom_ir::TensorId;

use super::joined::repeated;
use crate::constant::common_extents;
use crate::error::Refusal;
use crate::import::{Import, expect_size};
use crate::value::Tensor;
use crate::view::{View, inverse};

/// The matrices of a tensor, its two last axes, as they lie in memory, and whether these are the transposed ones.
fn matrices(import: &mut Import<'_>, name: &str, x: Tensor) -> Result<(TensorId, bool), Refusal> {
    if !x.view.is_dense() && x.view.transposed().is_dense() {
        return Ok((x.id, true));
    }
    Ok((import.dense(name, x)?.id, false))
}

/// `a·b` of the matrices that are the two last axes of both. The axes before these are the batch, over which an operand may repeat.
pub fn product(import: &mut Import<'_>, name: &str, a: Tensor, b: Tensor) -> Result<Tensor, Refusal> {
    let (of_a, of_b) = (a.dims(), b.dims());
    let refuse = || {
        Refusal::from(format!(
            "matrices of extents {of_a:?} and {of_b:?} cannot be multiplied; vectors need a second axis of extent 1"
        ))
    };
    let ([a_batch @ .., rows, depth], [b_batch @ .., same, columns]) = (of_a.as_slice(), of_b.as_slice())
    else {
        return Err(refuse());
    };
    let batch = common_extents(a_batch, b_batch).filter(|_| depth == same).ok_or_else(refuse)?;
    let (rows, columns, depth) = (*rows, *columns, *depth);
    let members: usize = batch.iter().product();
    let is_one = |dims: &[usize]| dims.iter().all(|&extent| extent == 1);
    let view = View::dense(&[batch.as_slice(), &[rows, columns]].concat());
    expect_size(&view)?;
    let [left, right] = ["a", "b"].map(|operand| format!("{name}.{operand}"));
    let (products, ids) = if members > 1 && is_one(a_batch) {
        // The transposed products share a factor in the way of the next case.
        let swapped = [b, a].map(|x| Tensor { view: x.view.transposed(), ..x });
        let [b, a] = swapped;
        let y = product(import, name, b, a)?;
        return Ok(Tensor { view: y.view.transposed(), ..y });
    } else if members > 1 && is_one(b_batch) {
        // One product of the rows of all.
        let a = import.dense(&left, a)?.id;
        let (b, transposed) = matrices(import, &right, b)?;
        let rows = members * rows;
        (Products { batch: 1, rows, columns, depth, transposed: [false, transposed] }, [a, b])
    } else {
        let whole = |import: &mut Import<'_>, name: &str, x: Tensor, dims: [usize; 2]| {
            let dims = [batch.as_slice(), &dims].concat();
            if x.view.len() == View::dense(&dims).len() {
                return matrices(import, name, x);
            }
            let x = import.dense(name, x)?;
            let x = repeated(import, &format!("{name}.repeated"), x, &dims)?;
            matrices(import, &format!("{name}.order"), x)
        };
        let (a, first) = whole(import, &left, a, [rows, depth])?;
        let (b, second) = whole(import, &right, b, [depth, columns])?;
        (Products { batch: members, rows, columns, depth, transposed: [first, second] }, [a, b])
    };
    let id = import.pushed(name, OpKind::BatchedProduct(products), &ids)?;
    Ok(Tensor { id, view, classes: false })
}

/// Whether a softmax joins all axes from its own one on, as before opset 13.
pub fn joins_axes(import: &Import<'_>) -> bool {
    import.model.opset() < 13
}

/// The softmax over one axis, or over all from that one on.
pub fn softmax(import: &mut Import<'_>, name: &str, x: Tensor, axis: usize) -> Result<Tensor, Refusal> {
    let dims = x.dims();
    let rank = dims.len();
    let (order, width): (Vec<usize>, usize) = match joins_axes(import) {
        true => ((0..rank).collect(), dims[axis..].iter().product()),
        false => ((0..rank).filter(|&other| other != axis).chain([axis]).collect(), dims[axis]),
    };
    let x = import.dense(&format!("{name}.rows"), Tensor { view: x.view.permuted(&order), ..x })?;
    let kind = OpKind::Softmax { rows: x.view.len() / width.max(1), width };
    let id = import.pushed(name, kind, &[x.id])?;
    Ok(Tensor { id, view: x.view.permuted(&inverse(&order)), classes: false })
}

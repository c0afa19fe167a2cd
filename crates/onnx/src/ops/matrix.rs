//! One axis by known numbers: products with a matrix, `[extent after, extent before]`, which make other sizes of images, and elements in any order.

use std::sync::Arc;

use elbowroom_graph::op::{Lookup, OpKind, Places, Product};

use crate::constant::Constant;
use crate::error::Refusal;
use crate::import::{Import, expect_size};
use crate::value::Tensor;
use crate::view::{View, inverse};

/// Elements of a matrix that selects at most: a lookup takes less where there are more.
const LARGEST: usize = 1 << 16;

/// The product. Axes that change alike share the matrix, whose name says how.
pub fn along(
    import: &mut Import<'_>,
    name: &str,
    x: Tensor,
    axis: usize,
    matrix_name: &str,
    matrix: &Constant,
) -> Result<Tensor, Refusal> {
    let &[after, before] = matrix.dims.as_slice() else { return Err("its matrix has other axes".into()) };
    // The axis is brought to the end, and the view has it back in its place.
    let rank = x.dims().len();
    let order: Vec<usize> = (0..rank).filter(|&other| other != axis).chain([axis]).collect();
    let last = Tensor { view: x.view.permuted(&order), ..x };
    let innermost = last.view.run(&[rank - 1]).is_some_and(|run| run[2] == 1);
    let last = if innermost { last } else { import.dense(name, last)? };
    let view = last.view.narrowed_to(rank - 1, after).ok_or("its axis is no axis of memory")?;
    expect_size(&view)?;
    let weight = import.frozen(matrix_name, matrix)?;
    let product = Product { rows: last.view.len() / before, inputs: before, outputs: after };
    let id = import.pushed(name, OpKind::Linear { product, bias: false }, &[last.id, weight.id])?;
    Ok(Tensor { id, view: view.permuted(&inverse(&order)), classes: false })
}

/// These elements of an axis, in this order and as often as they are named.
pub fn select(
    import: &mut Import<'_>,
    name: &str,
    x: Tensor,
    axis: usize,
    matrix_name: &str,
    indices: &[usize],
) -> Result<Tensor, Refusal> {
    let before = x.dims()[axis];
    if let Some(index) = indices.iter().find(|&&index| index >= before) {
        return Err(format!("there is no element {index} of {before}").into());
    }
    let is_outermost = x.view.run(&[axis]).is_some_and(|[outer, ..]| outer == 1);
    if is_outermost || before.saturating_mul(indices.len()) > LARGEST {
        return lookup(import, name, x, axis, matrix_name, indices);
    }
    let mut values = vec![0.0; indices.len() * before];
    for (row, &index) in values.chunks_exact_mut(before).zip(indices) {
        row[index] = 1.0;
    }
    let matrix = Constant { dims: vec![indices.len(), before], values, whole: false };
    along(import, name, x, axis, matrix_name, &matrix)
}

/// As [`select`], where the axis is, or is brought, outermost: rows of a table.
fn lookup(
    import: &mut Import<'_>,
    name: &str,
    x: Tensor,
    axis: usize,
    ids_name: &str,
    indices: &[usize],
) -> Result<Tensor, Refusal> {
    let order: Vec<usize> =
        [axis].into_iter().chain((0..x.dims().len()).filter(|&other| other != axis)).collect();
    let x = import.dense(name, Tensor { view: x.view.permuted(&order), ..x })?;
    let mut dims = x.dims();
    let vocabulary = std::mem::replace(&mut dims[0], indices.len());
    let view = View::dense(&dims);
    expect_size(&view)?;
    let ids: Option<Arc<[i32]>> = indices.iter().map(|&index| i32::try_from(index).ok()).collect();
    let ids = OpKind::Indices { ids: ids.ok_or("its axis is too long")? };
    let ids = import.pushed(ids_name, ids, &[])?;
    let width = x.view.len() / vocabulary.max(1);
    let lookup = Lookup { rows: indices.len(), places: Places::ALL, first: 0, vocabulary, width };
    let id = import.pushed(name, OpKind::Embedding(lookup), &[ids, x.id])?;
    Ok(Tensor { id, view: view.permuted(&inverse(&order)), classes: false })
}

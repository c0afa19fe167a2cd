//! Products of one axis with a matrix of known numbers, `[extent after, extent before]`: other sizes of images, and elements in any order.

use elbowroom_graph::op::{OpKind, Product};

use crate::constant::{Constant, elements};
use crate::error::Refusal;
use crate::import::{Import, expect_size};
use crate::value::Tensor;

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
    let mut back: Vec<usize> = (0..rank - 1).collect();
    back.insert(axis, rank - 1);
    let last = Tensor { view: x.view.permuted(&order), ..x };
    let innermost = last.view.run(&[rank - 1]).is_some_and(|run| run[2] == 1);
    let last = if innermost { last } else { import.dense(name, last)? };
    let view = last.view.narrowed_to(rank - 1, after).ok_or("its axis is no axis of memory")?;
    expect_size(&view)?;
    let weight = import.frozen(matrix_name, matrix)?;
    let product = Product { rows: last.view.len() / before, inputs: before, outputs: after };
    let id = import.pushed(name, OpKind::Linear { product, bias: false }, &[last.id, weight.id])?;
    Ok(Tensor { id, view: view.permuted(&back), classes: false })
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
    let count = elements(&[indices.len(), before]).filter(|&count| count > 0);
    let mut values = vec![0.0; count.ok_or("its axes are too long")?];
    for (row, &index) in values.chunks_exact_mut(before).zip(indices) {
        *row.get_mut(index).ok_or_else(|| format!("there is no element {index} of {before}"))? = 1.0;
    }
    let matrix = Constant { dims: vec![indices.len(), before], values, whole: false };
    along(import, name, x, axis, matrix_name, &matrix)
}

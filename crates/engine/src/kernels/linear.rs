//! Products of rows with a weight matrix, and their gradients.

use elbowroom_graph::op::Product;
use rayon::ThreadPool;

use super::Operands;
use super::number::Factor;
use super::pack::Strided;
use super::parallel::Shared;
use super::product::{Extents, Initial, Target, product};

/// `y [rows, outputs]`, over the inputs.
pub const fn extents(p: Product) -> Extents {
    Extents::new(p.rows, p.outputs, p.inputs)
}

/// `dx [rows, inputs]`, over the outputs.
pub const fn grad_input_extents(p: Product) -> Extents {
    Extents::new(p.rows, p.inputs, p.outputs)
}

/// As [`grad_input_extents`], for a tile of a weight with `whole` outputs.
pub const fn grad_input_tile_extents(p: Product, whole: usize) -> Extents {
    Extents { whole_depth: whole, ..grad_input_extents(p) }
}

/// `dw [outputs, inputs]`, over the rows.
pub const fn grad_weight_extents(p: Product) -> Extents {
    Extents::new(p.outputs, p.inputs, p.rows)
}

/// The rows of a dense matrix as lines, or its columns.
fn lines<T>(data: &[T], width: usize, by_row: bool) -> Strided<'_, T> {
    let (line_step, depth_step) = if by_row { (width, 1) } else { (1, width) };
    Strided { data, line_step, depth_step }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn forward<T: Factor>(o: &Operands<'_>, pool: &ThreadPool, p: Product, bias: bool) {
    let extents = extents(p);
    // SAFETY: the result is apart from all operands.
    unsafe {
        let x = lines(o.read::<T>(0, p.rows * p.inputs), p.inputs, true);
        let w = T::weight(lines::<f32>(o.read(1, p.outputs * p.inputs), p.inputs, true));
        let initial = if bias { Initial::Columns(o.read(2, p.outputs)) } else { Initial::Zero };
        let y = Target::matrix(Shared::new(o.target(0, p.rows * p.outputs)), p.outputs);
        product(Some(pool), extents, (&x, &w), initial, y, o.scratch(extents.scratch()));
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad_input<T: Factor>(o: &Operands<'_>, pool: &ThreadPool, p: Product) {
    let extents = grad_input_extents(p);
    // SAFETY: the result is apart from all operands.
    unsafe {
        let dy = lines(o.read::<T>(0, p.rows * p.outputs), p.outputs, true);
        let w = T::weight(lines::<f32>(o.read(1, p.outputs * p.inputs), p.inputs, false));
        let dx = Target::matrix(Shared::new(o.target(0, p.rows * p.inputs)), p.inputs);
        product(Some(pool), extents, (&dy, &w), Initial::Zero, dx, o.scratch(extents.scratch()));
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad_input_tile(o: &Operands<'_>, pool: &ThreadPool, p: Product, whole: usize) {
    let extents = grad_input_tile_extents(p, whole);
    // SAFETY: the result is the sum so far, which only the product touches.
    unsafe {
        let dy = lines::<f32>(o.read(0, p.rows * p.outputs), p.outputs, true);
        let w = lines::<f32>(o.read(1, p.outputs * p.inputs), p.inputs, false);
        let dx = Target::matrix(Shared::new(o.target(0, p.rows * p.inputs)), p.inputs);
        product(Some(pool), extents, (&dy, &w), extents.continued(), dx, o.scratch(extents.scratch()));
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad_weight<T: Factor>(o: &Operands<'_>, pool: &ThreadPool, p: Product, accumulate: bool) {
    let extents = grad_weight_extents(p);
    // SAFETY: the result is apart from the operands, or is the accumulator, which only the product touches.
    unsafe {
        let x = lines(o.read::<T>(0, p.rows * p.inputs), p.inputs, false);
        let dy = lines(o.read::<T>(1, p.rows * p.outputs), p.outputs, false);
        let initial = if accumulate { Initial::Keep } else { Initial::Zero };
        let dw = Target::matrix(Shared::new(o.target(0, p.outputs * p.inputs)), p.inputs);
        product(Some(pool), extents, (&dy, &x), initial, dw, o.scratch(extents.scratch()));
    }
}

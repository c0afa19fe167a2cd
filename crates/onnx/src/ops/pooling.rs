//! Poolings, and means, sums and maxima over axes.

use elbowroom_graph::op::{Function, OpKind, Pool, Window};

use super::convolution::{Spatial, extents, size, spatial};
use super::functions::{map, multiplied};
use crate::error::Refusal;
use crate::import::Import;
use crate::node::Node;
use crate::value::{Pending, Tensor, Value};
use crate::view::View;

/// Elements of a window of maximum pooling at most.
const LARGEST_MAXIMUM: usize = 256;

/// A pooling.
pub fn pool(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let name = node.name();
    let x = import.dense_input(node.required(0)?)?;
    let (in_size, dims) = (size(&x, node)?, x.dims());
    let planes = dims[0] * dims[1];
    if node.kind().starts_with("Global") {
        let window = Window { kernel: in_size, stride: [1, 1], padding: [0, 0] };
        let pool = Pool { planes, in_size, out_size: [1, 1], window };
        let view = View::dense(&extents(&x, dims[1], [1, 1]));
        let kind = match node.kind() {
            "GlobalMaxPool" => maximum(pool)?,
            _ => OpKind::AveragePool { pool, count_padding: true },
        };
        return import.push(&name, kind, &[x.id], view);
    }
    let Spatial { window, dilation, .. } = spatial(node, None, in_size, dims.len() == 3)?.alike()?;
    if dilation != [1, 1] {
        return Err("dilations of poolings are not supported".into());
    }
    let fits = match node.int("ceil_mode").unwrap_or(0) {
        0 => window.output(in_size),
        _ => window.output_ceil(in_size),
    };
    let out_size = fits.ok_or_else(|| format!("its window does not fit into {in_size:?}"))?;
    if [0, 1].iter().any(|&axis| window.padding[axis] >= window.kernel[axis]) {
        return Err("its padding is as large as its window".into());
    }
    let pool = Pool { planes, in_size, out_size, window };
    let view = View::dense(&extents(&x, dims[1], out_size));
    let kind = match node.kind() {
        "MaxPool" => maximum(pool)?,
        _ => OpKind::AveragePool { pool, count_padding: node.int("count_include_pad").unwrap_or(0) != 0 },
    };
    import.push(&name, kind, &[x.id], view)
}

/// Maximum pooling, if its windows are not too large.
fn maximum(pool: Pool) -> Result<OpKind, Refusal> {
    match pool.window.area() <= LARGEST_MAXIMUM {
        true => Ok(OpKind::MaxPool(pool)),
        false => Err(format!("maxima of more than {LARGEST_MAXIMUM} elements are not supported").into()),
    }
}

/// `ReduceMean`, `ReduceSum`, `ReduceMax`, and sums of absolute values, of squares and their roots
pub fn reduced(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let x = import.tensor(node.required(0)?)?;
    let given = import.constant(node.input(1));
    let dims = x.dims();
    let axes = node.reduced(given.as_ref(), dims.len())?;
    // The other axes keep their order; the reduced ones are brought to the end.
    let kept: Vec<usize> = (0..dims.len()).filter(|axis| !axes.contains(axis)).collect();
    let order: Vec<usize> = kept.iter().chain(&axes).copied().collect();
    let mut ordered = x.clone();
    ordered.view = x.view.permuted(&order);
    let name = node.name();
    let mut x = import.dense(&name, ordered)?;
    if node.kind() == "ReduceL1" {
        x = map(import, &format!("{name}.abs"), x, Function::Abs)?;
    } else if ["ReduceL2", "ReduceSumSquare"].contains(&node.kind()) {
        x = multiplied(import, &format!("{name}.squares"), &x, &x)?;
    }
    let count: usize = axes.iter().map(|&axis| dims[axis]).product();
    let window = Window { kernel: [1, count], stride: [1, 1], padding: [0, 0] };
    let pool = Pool { planes: x.view.len() / count.max(1), in_size: [1, count], out_size: [1, 1], window };
    let keeps = node.int("keepdims").unwrap_or(1) != 0;
    let left = (0..dims.len()).filter(|axis| keeps || !axes.contains(axis));
    let left: Vec<usize> = left.map(|axis| if axes.contains(&axis) { 1 } else { dims[axis] }).collect();
    let kind = match node.kind() {
        "ReduceMax" => maximum(pool)?,
        _ => OpKind::AveragePool { pool, count_padding: true },
    };
    let id = import.pushed(&name, kind, &[x.id])?;
    let y = Tensor { id, view: View::dense(&left), classes: false };
    Ok(match node.kind() {
        "ReduceMean" | "ReduceMax" => Value::Tensor(y),
        "ReduceL2" => {
            let root = map(import, &format!("{name}.root"), y, Function::Sqrt)?;
            Value::Pending(Pending::Scaled { x: root, factor: (count as f64).sqrt() })
        }
        _ => Value::Pending(Pending::Scaled { x: y, factor: count as f64 }),
    })
}

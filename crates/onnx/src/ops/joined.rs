//! Tensors that are joined, padded and repeated.

use elbowroom_graph::op::OpKind;

use super::elementwise::spread_sum;
use super::matrix;
use crate::error::Refusal;
use crate::import::{Import, expect_size};
use crate::node::Node;
use crate::selection::MOST;
use crate::value::{Tensor, Value};
use crate::view::View;

/// A tensor with zeros at the ends of an axis.
pub fn padded(
    import: &mut Import<'_>,
    name: &str,
    x: Tensor,
    axis: usize,
    [before, behind]: [usize; 2],
) -> Result<Tensor, Refusal> {
    if before == 0 && behind == 0 {
        return Ok(x);
    }
    let extent = x.dims()[axis];
    let total = extent.checked_add(before).and_then(|total| total.checked_add(behind));
    let total = total.filter(|&total| total <= MOST).ok_or("its padding is too large")?;
    let (x, [outer, _, inner]) = import.in_memory(name, x, axis)?;
    let view = x.view.narrowed_to(axis, total).ok_or("its axis is no axis of memory")?;
    expect_size(&view)?;
    let kind = OpKind::Pad { outer, total: total * inner, start: before * inner, width: extent * inner };
    Ok(Tensor { id: import.pushed(name, kind, &[x.id])?, view, classes: false })
}

/// `Pad`
pub fn pad(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let from = node.required(0)?;
    let pads = import.constant(node.input(1)).map(|pads| pads.ints());
    let pads = pads.or_else(|| node.ints("pads").map(<[i64]>::to_vec));
    let pads = pads.ok_or("its widths are computed by the network")?;
    if pads.iter().all(|&width| width == 0) {
        return import.value(from);
    }
    let mode = node.text("mode").unwrap_or_else(|| "constant".to_owned());
    if !["constant", "reflect", "edge", "wrap"].contains(&mode.as_str()) {
        return Err(format!("the mode {mode} is not supported").into());
    }
    let fill = match node.input(2) {
        Some(name) => import.constant(Some(name)).and_then(|fill| fill.single()),
        None => node.float("value").map_or(Some(0.0), |value| Some(f64::from(value))),
    };
    if mode == "constant" && fill != Some(0.0) {
        return Err("of known numbers, zeros alone are supported as padding".into());
    }
    let mut x = import.tensor(from)?;
    let rank = x.dims().len();
    let axes = match import.constant(node.input(3)) {
        Some(axes) => axes.ints().iter().map(|&axis| node.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?,
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return Err(format!("its widths are {} numbers for {} axes", pads.len(), axes.len()).into());
    }
    for (at, &axis) in axes.iter().enumerate() {
        let ends = [pads[at], pads[axes.len() + at]].map(usize::try_from);
        let [Ok(before), Ok(behind)] = ends else {
            return Err(format!("its widths {pads:?} take elements away, which Slice does").into());
        };
        let name = format!("{}.axis{axis}", node.name());
        x = match mode.as_str() {
            "constant" => padded(import, &name, x, axis, [before, behind])?,
            _ => continued(import, &name, x, axis, [before, behind], &mode)?,
        };
    }
    Ok(Value::Tensor(x))
}

/// A tensor whose axis goes on with its own elements at both ends.
fn continued(
    import: &mut Import<'_>,
    name: &str,
    x: Tensor,
    axis: usize,
    [before, behind]: [usize; 2],
    mode: &str,
) -> Result<Tensor, Refusal> {
    let extent = x.dims()[axis];
    if before == 0 && behind == 0 {
        return Ok(x);
    }
    if before.max(behind) >= extent {
        return Err(format!("{before} and {behind} elements are no {mode} padding of {extent}").into());
    }
    let (first, last) = (before as isize, extent as isize - 1);
    let source = |at: usize| {
        let place = at as isize - first;
        let inside = match mode {
            "edge" => place.clamp(0, last),
            "wrap" => place.rem_euclid(last + 1),
            // Mirrored at the first and the last element.
            _ => last - (last - place.abs()).abs(),
        };
        inside.unsigned_abs()
    };
    let indices: Vec<usize> = (0..before + extent + behind).map(source).collect();
    matrix::select(import, name, x, axis, &format!("{mode}.{extent}.{before}-{behind}"), &indices)
}

/// Tensors side by side.
pub fn concat(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let mut parts = Vec::new();
    for index in 0..node.0.inputs.len() {
        let name = node.required(index)?;
        if import.constant(Some(name)).is_none_or(|part| !part.values.is_empty()) {
            parts.push(import.dense_input(name)?);
        }
    }
    let Some(first) = parts.first() else { return Err("it joins nothing".into()) };
    let mut dims = first.dims();
    let axis = node.axis(node.int("axis").unwrap_or(0), dims.len())?;
    let others = |dims: &[usize]| [&dims[..axis], dims.get(axis + 1..).unwrap_or_default()].concat();
    if let Some(part) =
        parts.iter().find(|part| part.dims().len() != dims.len() || others(&part.dims()) != others(&dims))
    {
        return Err(format!("extents {dims:?} and {:?} differ in more than axis {axis}", part.dims()).into());
    }
    dims[axis] = parts.iter().map(|part| part.dims()[axis]).sum();
    let outer: usize = dims[..axis].iter().product();
    let widths = parts.iter().map(|part| part.view.len() / outer.max(1)).collect();
    let ids: Vec<_> = parts.iter().map(|part| part.id).collect();
    import.push(&node.name(), OpKind::Concat { outer, widths }, &ids, View::dense(&dims))
}

/// A tensor that is repeated along axes of extent 1, as a class token is for every sample.
pub fn expand(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let (name, from) = (node.name(), node.required(0)?);
    let Some(wanted) = import.constant(node.input(1)) else {
        return Err("its extents are computed by the network".into());
    };
    let wanted: Vec<usize> =
        wanted.ints().iter().map(|&extent| usize::try_from(extent).unwrap_or(0)).collect();
    let x = import.dense_input(from)?;
    let own = x.dims();
    let rank = own.len().max(wanted.len());
    let extent =
        |dims: &[usize], axis: usize| (axis + dims.len()).checked_sub(rank).map_or(1, |axis| dims[axis]);
    let dims: Vec<usize> = (0..rank).map(|axis| extent(&own, axis).max(extent(&wanted, axis))).collect();
    if dims.contains(&0) {
        return Err(format!("it repeats extents {own:?} to {dims:?}").into());
    }
    repeated(import, &name, x, &dims).map(Value::Tensor)
}

/// `Tile`: every axis as often as a known number says.
pub fn tile(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let name = node.name();
    let counts = import.constant(node.input(1)).ok_or("its counts are computed by the network")?;
    let x = import.dense_input(node.required(0)?)?;
    let dims = x.dims();
    let counts: Vec<usize> = counts.ints().iter().map(|&count| usize::try_from(count).unwrap_or(0)).collect();
    if counts.len() != dims.len() || counts.contains(&0) {
        return Err(format!("it repeats extents {dims:?} {counts:?} times").into());
    }
    // Each axis as one of extent 1, which repeats, and itself.
    let apart = |counts: &[usize]| -> Vec<usize> {
        counts.iter().zip(&dims).flat_map(|(&count, &extent)| [count, extent]).collect()
    };
    let x = import.reshaped(&name, x, &apart(&vec![1; dims.len()]))?;
    let y = repeated(import, &name, x, &apart(&counts))?;
    let whole: Vec<usize> =
        counts.iter().zip(&dims).map(|(&count, &extent)| count.saturating_mul(extent)).collect();
    import.reshaped(&name, y, &whole).map(Value::Tensor)
}

/// A tensor, whose axes lie in the order of memory, repeated along axes that it lacks or has with extent 1: added to zeros.
pub fn repeated(import: &mut Import<'_>, name: &str, x: Tensor, dims: &[usize]) -> Result<Tensor, Refusal> {
    let view = View::dense(dims);
    expect_size(&view)?;
    if view.len() == x.view.len() {
        return Ok(Tensor { view, ..x });
    }
    let zeros = format!("{name}.zeros");
    let id = import.pushed(&zeros, OpKind::Fill { len: view.len(), value: 0.0 }, &[])?;
    spread_sum(import, [name, &zeros], Tensor { id, view, classes: false }, &x)
}

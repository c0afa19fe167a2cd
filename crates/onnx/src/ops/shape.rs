//! Reshapes, transpositions, parts of tensors and joined tensors.

use elbowroom_graph::op::{Lookup, OpKind, Places};

use crate::constant::Constant;
use crate::error::Refusal;
use crate::import::{Import, expect_size};
use crate::node::{AxisPart, Node};
use crate::selection::MOST;
use crate::value::{Stored, Tensor, Value};
use crate::view::View;

/// Most parts of a sequence.
const MOST_PARTS: usize = 1 << 12;

/// The extents of a tensor are known when the network is built.
pub fn shape(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let name = node.required(0)?;
    let dims = match import.value(name)? {
        Value::Tensor(tensor) => tensor.dims(),
        Value::Weight(stored) => stored.seen(),
        Value::Constant(constant) => constant.dims,
        Value::Pending(_) | Value::Sequence(_) => import.tensor(name)?.dims(),
    };
    if node.kind() == "Size" {
        return Ok(Value::Constant(Constant::scalar(dims.iter().product::<usize>() as f64, true)));
    }
    let rank = dims.len() as i64;
    let bound = |given: Option<i64>, none: i64| {
        let at = given.unwrap_or(none);
        (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize
    };
    let (start, end) = (bound(node.int("start"), 0), bound(node.int("end"), rank));
    Ok(Value::Constant(Constant::list(dims[start..end.max(start)].iter().copied())))
}

/// Other extents of the same elements.
pub fn reshape(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let name = node.required(0)?;
    let given = import.constant(node.input(1));
    if node.input(1).is_some() && given.is_none() {
        return Err(
            "its second input is computed by the network; export it with fixed sizes other than the batch"
                .into(),
        );
    }
    if let Value::Weight(stored) = import.value(name)? {
        if stored.transposed {
            return Err(format!("it reshapes the transposed weight `{}`", stored.name).into());
        }
        let dims = node.reshape(&stored.dims, given.as_ref())?;
        return Ok(Value::Weight(Stored { dims, ..stored }));
    }
    let tensor = import.tensor(name)?;
    let dims = node.reshape(&tensor.dims(), given.as_ref())?;
    if let Some(view) = tensor.view.reshaped(&dims) {
        return Ok(Value::Tensor(Tensor { view, ..tensor }));
    }
    let tensor = import.dense(&node.name(), tensor)?;
    Ok(Value::Tensor(Tensor { view: View::dense(&dims), ..tensor }))
}

/// `DepthToSpace` and `SpaceToDepth`: blocks of pixels as channels, and back. Nothing moves until an op needs it.
pub fn blocks(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let x = import.tensor(node.required(0)?)?;
    let &[batch, channels, height, width] = x.dims().as_slice() else {
        return Err(format!(
            "it takes [batch, channels, height, width], and its input has extents {:?}",
            x.dims()
        )
        .into());
    };
    let block =
        node.int("blocksize").and_then(|block| usize::try_from(block).ok()).filter(|&block| block > 0);
    let block = block.ok_or("it states no blocksize")?;
    let columns_first = node.text("mode").is_some_and(|mode| mode == "CRD");
    let (apart, order, joined) = match (node.kind(), columns_first) {
        ("SpaceToDepth", _) => {
            let (rows, columns) = (height / block, width / block);
            let apart = [batch, channels, rows, block, columns, block];
            (apart, [0, 3, 5, 1, 2, 4], [batch, channels * block * block, rows, columns])
        }
        (_, true) => {
            let left = channels / (block * block);
            let apart = [batch, left, block, block, height, width];
            (apart, [0, 1, 4, 2, 5, 3], [batch, left, height * block, width * block])
        }
        (_, false) => {
            let left = channels / (block * block);
            let apart = [batch, block, block, left, height, width];
            (apart, [0, 3, 4, 1, 5, 2], [batch, left, height * block, width * block])
        }
    };
    if apart.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)) != Some(x.view.len()) {
        return Err(format!("blocks of {block} × {block} do not divide extents {:?}", x.dims()).into());
    }
    let x = match x.view.reshaped(&apart) {
        Some(view) => Tensor { view, ..x },
        None => Tensor { view: View::dense(&apart), ..import.dense(&node.name(), x)? },
    };
    let view = x.view.permuted(&order).reshaped(&joined).ok_or("its result has no such view")?;
    Ok(Value::Tensor(Tensor { view, ..x }))
}

/// Axes in another order: nothing moves until an op needs it.
pub fn transpose(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let name = node.required(0)?;
    if let Value::Weight(stored) = import.value(name)? {
        let order = node.order(stored.dims.len())?;
        if order.len() != 2 {
            return Err(format!(
                "it transposes the weight `{}` of {} axes, and matrices alone are",
                stored.name,
                order.len()
            )
            .into());
        }
        let transposed = stored.transposed ^ (order == [1, 0]);
        return Ok(Value::Weight(Stored { transposed, ..stored }));
    }
    let tensor = import.tensor(name)?;
    let order = node.order(tensor.dims().len())?;
    Ok(Value::Tensor(Tensor { view: tensor.view.permuted(&order), ..tensor }))
}

/// The part of a tensor along one axis.
fn part(import: &mut Import<'_>, name: &str, x: Tensor, part: AxisPart) -> Result<Tensor, Refusal> {
    let AxisPart { axis, start, count, step } = part;
    let extent = x.dims()[axis];
    if start == 0 && count == extent && step == 1 {
        return Ok(x);
    }
    if count == 0 || step != 1 && count > 1 {
        return Err("only parts without gaps, of one element or more, are supported".into());
    }
    let x = if x.view.run(&[axis]).is_some() { x } else { import.dense(name, x)? };
    let run = x.view.run(&[axis]).zip(x.view.narrowed(axis, count));
    let ([outer, _, inner], view) = run.ok_or("its axis is no axis of memory")?;
    let kind = OpKind::Slice { outer, total: extent * inner, start: start * inner, width: count * inner };
    Ok(Tensor { id: import.pushed(name, kind, &[x.id])?, view, classes: false })
}

/// Elements of an axis, or rows of a table.
pub fn gather(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let (from, at) = (node.required(0)?, node.required(1)?);
    if let Value::Weight(table) = import.value(from)?
        && let Value::Tensor(ids) = import.value(at)?
    {
        if !ids.classes || table.dims.len() != 2 || table.transposed || node.int("axis").unwrap_or(0) != 0 {
            return Err("only rows of a table [tokens, width] are looked up, by whole numbers".into());
        }
        let (vocabulary, width) = (table.dims[0], table.dims[1]);
        let ids = import.dense(at, ids)?;
        let mut dims = ids.dims();
        let lookup = Lookup { rows: ids.view.len(), places: Places::ALL, first: 0, vocabulary, width };
        let table = import.operand(&table)?.id;
        dims.push(width);
        return import.push(&node.name(), OpKind::Embedding(lookup), &[ids.id, table], View::dense(&dims));
    }
    let Some(indices) = import.constant(Some(at)) else {
        return Err("it gathers by indices that the network computes, which is not supported".into());
    };
    let x = import.tensor(from)?;
    let dims = x.dims();
    let axis = node.axis(node.int("axis").unwrap_or(0), dims.len())?;
    let extent = dims[axis];
    let wanted: Vec<i64> =
        indices.ints().iter().map(|&at| if at < 0 { at + extent as i64 } else { at }).collect();
    // A run of neighbours, which may be taken several times, as positions are for every sample.
    let count = wanted.windows(2).take_while(|pair| pair[1] == pair[0] + 1).count() + 1;
    let repeats = wanted.chunks(count).all(|run| *run == wanted[..count.min(wanted.len())]);
    let start = wanted
        .first()
        .and_then(|&start| usize::try_from(start).ok())
        .filter(|&start| start + count <= extent);
    let (Some(start), true) = (start, repeats && (count == wanted.len() || axis == 0)) else {
        let some = &wanted[..wanted.len().min(8)];
        return Err(format!(
            "it gathers {} of {extent}, from {some:?} on, and neighbours in their order alone are supported, or such rows several times",
            wanted.len()
        )
        .into());
    };
    let mut left = x.dims();
    left.splice(axis..=axis, indices.dims.iter().copied());
    let y = match split_before(import, from, &x, axis)? {
        Some(parts) if count == 1 => parts[start].clone(),
        _ => part(import, &node.name(), x, AxisPart { axis, start, count, step: 1 })?,
    };
    if count < wanted.len() {
        let y = import.dense(&node.name(), y)?;
        return repeated(import, &format!("{}.repeated", node.name()), &y, &left);
    }
    let view = y.view.reshaped(&left).ok_or("its result has no such view")?;
    Ok(Value::Tensor(Tensor { view, ..y }))
}

/// All elements of an axis one by one, if several nodes take them, as of queries, keys and values: one op instead of many.
fn split_before(
    import: &mut Import<'_>,
    from: &str,
    x: &Tensor,
    axis: usize,
) -> Result<Option<Vec<Tensor>>, Refusal> {
    let key = (from.to_owned(), axis);
    if let Some(parts) = import.splits.get(&key) {
        return Ok(Some(parts.clone()));
    }
    let extent = x.dims()[axis];
    if !(2..=4).contains(&extent) || import.uses(from) < extent {
        return Ok(None);
    }
    let parts = divide(import, &format!("{from}.split"), x.clone(), axis, &vec![1; extent])?;
    import.splits.insert(key, parts.clone());
    Ok(Some(parts))
}

/// The parts of an axis of these extents.
fn divide(
    import: &mut Import<'_>,
    name: &str,
    x: Tensor,
    axis: usize,
    extents: &[usize],
) -> Result<Vec<Tensor>, Refusal> {
    let x = if x.view.run(&[axis]).is_some() { x } else { import.dense(name, x)? };
    let [outer, _, inner] = x.view.run(&[axis]).ok_or("its axis is no axis of memory")?;
    let widths = extents.iter().map(|&extent| extent * inner).collect();
    let made = import.b.push(name, OpKind::Split { outer, widths }, &[x.id])?;
    let view = |extent: usize| x.view.narrowed(axis, extent).ok_or("its axis is no axis of memory");
    made.iter()
        .zip(extents)
        .map(|(var, &extent)| Ok(Tensor { id: var.id, view: view(extent)?, classes: false }))
        .collect()
}

/// Parts of a tensor along some axes.
pub fn slice(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let mut x = import.tensor(node.required(0)?)?;
    let mut inputs = Vec::new();
    for index in 1..node.0.inputs.len() {
        let known = import.constant(node.input(index));
        if node.input(index).is_some() && known.is_none() {
            return Err("its bounds are computed by the network".into());
        }
        inputs.push(known);
    }
    for taken in node.parts(&x.dims(), &inputs)? {
        x = part(import, &format!("{}.axis{}", node.name(), taken.axis), x, taken)?;
    }
    Ok(Value::Tensor(x))
}

/// `Split`
pub fn split(import: &mut Import<'_>, node: &Node<'_>) -> Result<Vec<Value>, Refusal> {
    let x = import.tensor(node.required(0)?)?;
    let axis = node.axis(node.int("axis").unwrap_or(0), x.dims().len())?;
    let (extent, count) = (x.dims()[axis], node.0.outputs.len().max(1));
    let given = import.constant(node.input(1)).map(|given| given.ints());
    let given = given.or_else(|| node.ints("split").filter(|list| !list.is_empty()).map(<[i64]>::to_vec));
    let extents: Vec<usize> = match given {
        Some(given) => given.iter().map(|&part| usize::try_from(part).unwrap_or(0)).collect(),
        None => {
            let each = extent.div_ceil(count);
            (0..count).map(|at| extent.saturating_sub(at * each).min(each)).collect()
        }
    };
    if extents.len() != count {
        return Err(format!("it has {count} results and {} extents of parts", extents.len()).into());
    }
    let parts = divided(import, &node.name(), x, axis, &extents)?;
    Ok(parts.into_iter().map(Value::Tensor).collect())
}

/// As [`divide`], with extents that the file states.
fn divided(
    import: &mut Import<'_>,
    name: &str,
    x: Tensor,
    axis: usize,
    extents: &[usize],
) -> Result<Vec<Tensor>, Refusal> {
    let (extent, sum) = (x.dims()[axis], extents.iter().fold(0usize, |sum, &part| sum.saturating_add(part)));
    if extents.contains(&0) || sum != extent {
        return Err(format!("parts of {extents:?} do not make {extent}").into());
    }
    divide(import, name, x, axis, extents)
}

/// The parts of an axis as a sequence.
pub fn sequence(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let x = import.tensor(node.required(0)?)?;
    let axis = node.axis(node.int("axis").unwrap_or(0), x.dims().len())?;
    let extent = x.dims()[axis];
    let given = import.constant(node.input(1));
    let Some(given) = given.filter(|given| given.ints().iter().all(|&part| part > 0)) else {
        return Err(
            "it states no extents of its parts; parts of one element that lose their axis are not supported"
                .into(),
        );
    };
    let extents: Vec<usize> = match given.dims.is_empty() {
        // One extent for all parts but the last.
        true => {
            let each = given.values[0] as usize;
            if extent.div_ceil(each) > MOST_PARTS {
                return Err(format!("sequences of more than {MOST_PARTS} parts are not supported").into());
            }
            (0..extent.div_ceil(each)).map(|at| (extent - at * each).min(each)).collect()
        }
        false => given.ints().iter().map(|&part| part as usize).collect(),
    };
    divided(import, &node.name(), x, axis, &extents).map(Value::Sequence)
}

/// One tensor of a sequence.
pub fn sequence_at(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let Value::Sequence(parts) = import.value(node.required(0)?)? else {
        return Err("its input is no sequence".into());
    };
    let at = import.constant(node.input(1)).and_then(|at| at.single());
    let at = at.ok_or("its position is computed by the network")? as i64;
    let at = node.axis(at, parts.len())?;
    Ok(Value::Tensor(parts[at].clone()))
}

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
    let x = if x.view.run(&[axis]).is_some() { x } else { import.dense(name, x)? };
    let run = x.view.run(&[axis]).zip(x.view.narrowed_to(axis, total));
    let ([outer, _, inner], view) = run.ok_or("its axis is no axis of memory")?;
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
    if node.text("mode").is_some_and(|mode| mode != "constant") {
        return Err("only padding with zeros is supported; its mode is another".into());
    }
    let fill = match node.input(2) {
        Some(name) => import.constant(Some(name)).and_then(|fill| fill.single()),
        None => node.float("value").map_or(Some(0.0), |value| Some(f64::from(value))),
    };
    if fill != Some(0.0) {
        return Err("only padding with zeros is supported".into());
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
        x = padded(import, &format!("{}.axis{axis}", node.name()), x, axis, [before, behind])?;
    }
    Ok(Value::Tensor(x))
}

/// Tensors side by side.
pub fn concat(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let mut parts = Vec::new();
    for index in 0..node.0.inputs.len() {
        parts.push(import.dense_input(node.required(index)?)?);
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

/// A weight that is repeated for every sample, as a class token is.
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
    let first = (0..rank).find(|&axis| extent(&own, axis) > 1).unwrap_or(rank);
    if (first..rank).any(|axis| extent(&own, axis) != dims[axis]) || dims.contains(&0) {
        return Err(format!(
            "it repeats extents {own:?} to {dims:?}, and repetition along the first axes alone is supported"
        )
        .into());
    }
    repeated(import, &name, &x, &dims)
}

/// The elements of a tensor in the order of memory, as often as these extents have them.
fn repeated(import: &mut Import<'_>, name: &str, x: &Tensor, dims: &[usize]) -> Result<Value, Refusal> {
    let (view, inner) = (View::dense(dims), x.view.len());
    expect_size(&view)?;
    if view.len() == inner {
        return Ok(Value::Tensor(Tensor { view, ..x.clone() }));
    }
    let outer = view.len() / inner;
    let fill = OpKind::Fill { len: view.len(), value: 0.0 };
    let zeros = import.pushed(&format!("{name}.zeros"), fill, &[])?;
    import.push(name, OpKind::AddRow { outer, inner }, &[zeros, x.id], view)
}

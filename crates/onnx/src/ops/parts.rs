//! Parts of tensors: slices, splits, and elements that are gathered.

use elbowroom_graph::op::{Lookup, OpKind, Places};

use super::joined::{padded, repeated};
use super::matrix;
use crate::constant::Constant;
use crate::error::Refusal;
use crate::fold::flat;
use crate::import::Import;
use crate::node::{AxisPart, Node};
use crate::value::{Tensor, Value};
use crate::view::View;

const COMPUTED: &str = "it gathers by indices that the network computes, which is not supported";
/// Most parts of a sequence.
const MOST_PARTS: usize = 1 << 12;

/// The part of a tensor along one axis.
fn part(import: &mut Import<'_>, name: &str, x: Tensor, part: AxisPart) -> Result<Tensor, Refusal> {
    let AxisPart { axis, start, count, step } = part;
    let extent = x.dims()[axis];
    if start == 0 && count == extent && step == 1 {
        return Ok(x);
    }
    if count == 0 {
        return Err("parts without an element are not supported".into());
    }
    if count > 1 && step != 1 {
        return match usize::try_from(step) {
            Ok(step) => every(import, name, x, axis, step, [start, count]),
            Err(_) => {
                let indices: Vec<usize> = part.indices().collect();
                matrix::select(
                    import,
                    name,
                    x,
                    axis,
                    &format!("slice.{extent}.{start}.{step}.{count}"),
                    &indices,
                )
            }
        };
    }
    let (x, [outer, _, inner]) = import.in_memory(name, x, axis)?;
    let view = x.view.narrowed(axis, count).ok_or("its axis is no axis of memory")?;
    let kind = OpKind::Slice { outer, total: extent * inner, start: start * inner, width: count * inner };
    Ok(Tensor { id: import.pushed(name, kind, &[x.id])?, view, classes: false })
}

/// Every `step`-th element of an axis: one column of the axis as rows of `step` elements.
fn every(
    import: &mut Import<'_>,
    name: &str,
    x: Tensor,
    axis: usize,
    step: usize,
    [start, count]: [usize; 2],
) -> Result<Tensor, Refusal> {
    let missing = x.dims()[axis].next_multiple_of(step) - x.dims()[axis];
    let x = padded(import, &format!("{name}.pad"), x, axis, [0, missing])?;
    let mut dims = x.dims();
    dims.splice(axis..=axis, [dims[axis] / step, step]);
    let x = import.reshaped(name, x, &dims)?;
    let column = AxisPart { axis: axis + 1, start: start % step, count: 1, step: 1 };
    let x = part(import, &format!("{name}.column"), x, column)?;
    let mut dims = x.dims();
    dims.remove(axis + 1);
    let x = import.reshaped(name, x, &dims)?;
    part(import, name, x, AxisPart { axis, start: start / step, count, step: 1 })
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
        return Err(COMPUTED.into());
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
    let mut left = dims;
    left.splice(axis..=axis, indices.dims.iter().copied());
    let (Some(start), true) = (start, repeats && (count == wanted.len() || axis == 0)) else {
        // A negative index that is still one is past the end, and refused there.
        let indices: Vec<usize> =
            wanted.iter().map(|&at| usize::try_from(at).unwrap_or(usize::MAX)).collect();
        let (name, matrix_name) = (node.name(), format!("{}.indices", node.name()));
        let y = matrix::select(import, &name, x, axis, &matrix_name, &indices)?;
        return import.reshaped(&name, y, &left).map(Value::Tensor);
    };
    let mut y = match split_before(import, from, &x, axis)? {
        Some(parts) if count == 1 => parts[start].clone(),
        _ => part(import, &node.name(), x, AxisPart { axis, start, count, step: 1 })?,
    };
    if count < wanted.len() {
        y = import.dense(&node.name(), y)?;
        let dims = [&[wanted.len() / count], y.dims().as_slice()].concat();
        y = repeated(import, &format!("{}.repeated", node.name()), y, &dims)?;
    }
    import.reshaped(&node.name(), y, &left).map(Value::Tensor)
}

/// `GatherND` by known indices: elements of the first axes, which become one.
pub fn gather_nd(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let name = node.name();
    let Some(indices) = import.constant(node.input(1)) else { return Err(COMPUTED.into()) };
    if node.int("batch_dims").unwrap_or(0) != 0 {
        return Err("axes that indices and elements share (batch_dims) are not supported".into());
    }
    let x = import.tensor(node.required(0)?)?;
    let dims = x.dims();
    let Some((&depth, places)) =
        indices.dims.split_last().filter(|&(&depth, _)| (1..=dims.len()).contains(&depth))
    else {
        return Err(format!("indices of extents {:?} name no elements of {dims:?}", indices.dims).into());
    };
    let (first, rest) = dims.split_at(depth);
    let place = |place: &[f64]| {
        flat(place, first).ok_or_else(|| Refusal::from(format!("there is no element {place:?} of {dims:?}")))
    };
    let wanted: Vec<usize> = indices.values.chunks(depth).map(place).collect::<Result<_, _>>()?;
    let x = import.reshaped(&name, x, &[&[first.iter().product()], rest].concat())?;
    let y = matrix::select(import, &name, x, 0, &format!("{name}.indices"), &wanted)?;
    import.reshaped(&name, y, &[places, rest].concat()).map(Value::Tensor)
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
    let (x, [outer, _, inner]) = import.in_memory(name, x, axis)?;
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
    let taken = node.parts(&x.dims(), &inputs)?;
    if taken.iter().any(|taken| taken.count == 0) {
        // Concat passes over it.
        let mut dims = x.dims();
        taken.iter().for_each(|taken| dims[taken.axis] = taken.count);
        return Ok(Value::Constant(Constant { dims, values: Vec::new(), whole: false }));
    }
    for taken in taken {
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

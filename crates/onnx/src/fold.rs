//! Operations on known numbers, as exporters use them to compute shapes, scales and masks.

use crate::constant::{Constant, elements};
use crate::node::Node;

/// An index of this axis, counted from the end if it is negative.
fn position(index: f64, extent: usize) -> Option<usize> {
    let index = if index < 0.0 { index + extent as f64 } else { index };
    (index >= 0.0 && index < extent as f64).then_some(index as usize)
}

/// Indices of the first axes as an index of the one that they make together.
pub fn flat(place: &[f64], dims: &[usize]) -> Option<usize> {
    place
        .iter()
        .zip(dims)
        .try_fold(0, |joined: usize, (&at, &extent)| Some(joined * extent + position(at, extent)?))
}

/// The result of a node whose inputs are all known, in order and with `None` for those that are left out. `None` if it is no such operation.
pub fn fold(node: &Node<'_>, inputs: &[Option<Constant>]) -> Option<Constant> {
    let x = inputs.first()?.as_ref()?;
    let y = || inputs.get(1)?.as_ref();
    let both = |whole: bool, f: fn(f64, f64) -> f64| x.zip(y()?, whole, f);
    let truth = |value: bool| f64::from(u8::from(value));
    let rank = x.dims.len();
    let axis = |given: i64| usize::try_from(if given < 0 { given + rank as i64 } else { given }).ok();
    Some(match node.kind() {
        "Identity" => x.clone(),
        "Cast" => match node.int("to").unwrap_or(1) {
            1 | 10 | 11 | 16 => Constant { whole: false, ..x.clone() },
            9 => x.map(true, |value| f64::from(u8::from(value != 0.0))),
            _ => x.map(true, f64::trunc),
        },
        "CastLike" => match y()?.whole {
            true => x.map(true, f64::trunc),
            false => Constant { whole: false, ..x.clone() },
        },
        "Neg" => x.map(x.whole, |value| -value),
        "Abs" => x.map(x.whole, f64::abs),
        "Sqrt" => x.map(false, f64::sqrt),
        "Exp" => x.map(false, f64::exp),
        "Log" => x.map(false, f64::ln),
        "Sin" => x.map(false, f64::sin),
        "Cos" => x.map(false, f64::cos),
        "MatMul" => {
            let y = y()?;
            let ([x_batch @ .., rows, depth], [y_batch @ .., same, columns]) = (&x.dims[..], &y.dims[..])
            else {
                return None;
            };
            if x_batch != y_batch || depth != same {
                return None;
            }
            let dims = [x_batch, &[*rows, *columns]].concat();
            // As many multiplications as a tensor may have elements.
            elements(&[dims.as_slice(), &[*depth]].concat())?;
            let mut values = Vec::with_capacity(elements(&dims)?);
            for member in 0..x_batch.iter().product() {
                for (row, column) in (0..*rows).flat_map(|row| (0..*columns).map(move |column| (row, column)))
                {
                    let left = &x.values[(member * rows + row) * depth..][..*depth];
                    let right = y.values[member * depth * columns + column..].iter().step_by(*columns);
                    values.push(left.iter().zip(right).map(|(a, b)| a * b).sum());
                }
            }
            Constant { dims, values, whole: x.whole }
        }
        "Reciprocal" => x.map(false, |value| 1.0 / value),
        "Floor" => x.map(x.whole, f64::floor),
        "Ceil" => x.map(x.whole, f64::ceil),
        "Not" => x.map(true, |value| f64::from(u8::from(value == 0.0))),
        "Add" => both(x.whole, |a, b| a + b)?,
        "Sub" => both(x.whole, |a, b| a - b)?,
        "Mul" => both(x.whole, |a, b| a * b)?,
        "Div" if x.whole => both(true, |a, b| (a / b).trunc())?,
        "Div" => both(false, |a, b| a / b)?,
        "Mod" => both(x.whole, |a, b| a - b * (a / b).floor())?,
        "Pow" => both(x.whole, f64::powf)?,
        "Min" | "Max" => {
            let chosen: fn(f64, f64) -> f64 = if node.kind() == "Min" { f64::min } else { f64::max };
            inputs[1..]
                .iter()
                .try_fold(x.clone(), |so_far, next| so_far.zip(next.as_ref()?, x.whole, chosen))?
        }
        "Equal" => x.zip(y()?, true, |a, b| truth(a == b))?,
        "Less" => x.zip(y()?, true, |a, b| truth(a < b))?,
        "LessOrEqual" => x.zip(y()?, true, |a, b| truth(a <= b))?,
        "Greater" => x.zip(y()?, true, |a, b| truth(a > b))?,
        "GreaterOrEqual" => x.zip(y()?, true, |a, b| truth(a >= b))?,
        "And" => x.zip(y()?, true, |a, b| truth(a != 0.0 && b != 0.0))?,
        "Or" => x.zip(y()?, true, |a, b| truth(a != 0.0 || b != 0.0))?,
        "Where" => {
            let other = inputs.get(2)?.as_ref()?;
            // Each choice under the extents of all three.
            let (first, second) = (x.zip(y()?, true, |c, _| c)?, x.zip(other, true, |c, _| c)?);
            let (chosen, left) = (first.zip(y()?, false, |_, b| b)?, second.zip(other, false, |_, b| b)?);
            let chosen = chosen.zip(&left, false, |a, _| a)?;
            let left = left.broadcast(&chosen.dims)?;
            let condition = x.broadcast(&chosen.dims)?;
            let picked = condition.values.iter().zip(chosen.values.iter().zip(&left.values));
            let values = picked.map(|(&c, (&a, &b))| if c == 0.0 { b } else { a }).collect();
            Constant { dims: chosen.dims, values, whole: y()?.whole }
        }
        "ConstantOfShape" => {
            let dims: Vec<usize> =
                x.ints().into_iter().map(|extent| usize::try_from(extent).ok()).collect::<Option<_>>()?;
            let value = node.tensor("value").and_then(Constant::of);
            let (whole, value) = value.map_or((false, Some(0.0)), |value| (value.whole, value.single()));
            Constant { values: vec![value?; elements(&dims)?], dims, whole }
        }
        "Range" => {
            let (start, limit) = (x.single()?, y()?.single()?);
            let step = inputs.get(2)?.as_ref()?.single()?;
            let count = ((limit - start) / step).ceil().max(0.0);
            if count.is_nan() || count >= 1e6 {
                return None;
            }
            let values: Vec<f64> = (0..count as usize).map(|at| start + step * at as f64).collect();
            Constant { dims: vec![values.len()], values, whole: x.whole }
        }
        "Gather" => {
            let axis = axis(node.int("axis").unwrap_or(0))?;
            let (extent, indices) = (*x.dims.get(axis)?, y()?);
            let wanted = indices.values.iter().map(|&at| position(at, extent));
            let taken = x.take(axis, &wanted.collect::<Option<Vec<_>>>()?)?;
            let mut dims = taken.dims.clone();
            dims.splice(axis..=axis, indices.dims.iter().copied());
            taken.reshaped(dims)
        }
        "GatherElements" => {
            let (at, axis) = (y()?, axis(node.int("axis").unwrap_or(0))?);
            let extent = *x.dims.get(axis)?;
            // The extents before and behind the axis are those of the indices, which may be smaller than those of x.
            if at.dims.len() != rank {
                return None;
            }
            let stride = |dims: &[usize], axis: usize| dims[axis + 1..].iter().product::<usize>();
            let mut values = Vec::with_capacity(at.values.len());
            for (index, &wanted) in at.values.iter().enumerate() {
                let wanted = position(wanted, extent)?;
                let mut from = 0;
                for other in 0..rank {
                    let own = index / stride(&at.dims, other) % at.dims[other];
                    let place = if other == axis { wanted } else { own };
                    if place >= x.dims[other] {
                        return None;
                    }
                    from += place * stride(&x.dims, other);
                }
                values.push(*x.values.get(from)?);
            }
            Constant { dims: at.dims.clone(), values, whole: x.whole }
        }
        "GatherND" if node.int("batch_dims").unwrap_or(0) == 0 => {
            let at = y()?;
            let (&depth, outer) = at.dims.split_last()?;
            let block: usize = x.dims.get(depth..)?.iter().product();
            let dims = [outer, &x.dims[depth..]].concat();
            let mut values = Vec::with_capacity(elements(&dims)?);
            for place in at.values.chunks(depth.max(1)) {
                let from = flat(place, &x.dims)?;
                values.extend_from_slice(x.values.get(from * block..)?.get(..block)?);
            }
            (elements(&dims)? == values.len()).then_some(Constant { dims, values, whole: x.whole })?
        }
        "ScatterND" if node.text("reduction").is_none_or(|way| way == "none") => {
            let (at, updates) = (y()?, inputs.get(2)?.as_ref()?);
            let (&depth, outer) = at.dims.split_last()?;
            let rest = x.dims.get(depth..)?;
            if updates.dims != [outer, rest].concat() || at.values.is_empty() {
                return None;
            }
            let block: usize = rest.iter().product();
            let mut made = x.clone();
            for (place, update) in at.values.chunks(depth.max(1)).zip(updates.values.chunks(block.max(1))) {
                let first = flat(place, &x.dims)? * block;
                made.values.get_mut(first..first + block)?.copy_from_slice(update.get(..block)?);
            }
            made
        }
        "Tile" => {
            let counts: Vec<usize> =
                y()?.ints().into_iter().map(|count| usize::try_from(count).ok()).collect::<Option<_>>()?;
            if counts.len() != rank {
                return None;
            }
            let apart = |counts: &[usize]| -> Vec<usize> {
                counts.iter().zip(&x.dims).flat_map(|(&count, &extent)| [count, extent]).collect()
            };
            let repeated = x.clone().reshaped(apart(&vec![1; rank])).broadcast(&apart(&counts))?;
            let dims = counts.iter().zip(&x.dims).map(|(&count, &extent)| count.checked_mul(extent));
            repeated.reshaped(dims.collect::<Option<_>>()?)
        }
        "CumSum" => {
            let axis = axis(y()?.single()? as i64)?;
            let extent = *x.dims.get(axis)?;
            let inner: usize = x.dims[axis + 1..].iter().product();
            if node.int("exclusive").unwrap_or(0) != 0 || node.int("reverse").unwrap_or(0) != 0 {
                return None;
            }
            let mut sums = x.clone();
            for at in 0..sums.values.len() {
                if !(at / inner).is_multiple_of(extent) {
                    sums.values[at] += sums.values[at - inner];
                }
            }
            sums
        }
        "IsNaN" => x.map(true, |value| truth(value.is_nan())),
        "Slice" => {
            let mut taken = x.clone();
            for part in node.parts(&x.dims, &inputs[1..]).ok()? {
                taken = taken.take(part.axis, &part.indices().collect::<Vec<_>>())?;
            }
            taken
        }
        "Concat" => {
            let axis = axis(node.int("axis")?)?;
            let parts = inputs.iter().map(Option::as_ref).collect::<Option<Vec<_>>>()?;
            let outer: usize = x.dims.get(..axis)?.iter().product();
            let mut dims = x.dims.clone();
            *dims.get_mut(axis)? =
                parts.iter().map(|part| part.dims.get(axis).copied()).sum::<Option<usize>>()?;
            let mut values = Vec::with_capacity(elements(&dims)?);
            for block in 0..outer {
                for part in &parts {
                    let width = part.values.len() / outer.max(1);
                    values.extend_from_slice(part.values.get(block * width..(block + 1) * width)?);
                }
            }
            (values.len() == elements(&dims)?).then_some(Constant { dims, values, whole: x.whole })?
        }
        "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" => {
            let dims = node.reshape(&x.dims, y()).ok()?;
            x.clone().reshaped(dims)
        }
        "Transpose" => {
            let order = node.order(rank).ok()?;
            let (from, to) = (&x.dims, order.iter().map(|&axis| x.dims[axis]).collect::<Vec<_>>());
            let mut values = Vec::with_capacity(x.values.len());
            for index in 0..x.values.len() {
                let (mut rest, mut at) = (index, vec![0; rank]);
                for axis in (0..rank).rev() {
                    at[order[axis]] = rest % to[axis];
                    rest /= to[axis];
                }
                values.push(x.values[(0..rank).fold(0, |sum, axis| sum * from[axis] + at[axis])]);
            }
            Constant { dims: to, values, whole: x.whole }
        }
        "Expand" => {
            let dims: Vec<usize> =
                y()?.ints().into_iter().map(|extent| usize::try_from(extent).ok()).collect::<Option<_>>()?;
            let ones = Constant { values: vec![1.0; elements(&dims)?], dims, whole: x.whole };
            x.zip(&ones, x.whole, |value, _| value)?
        }
        "Trilu" => {
            let k = y().and_then(Constant::single).unwrap_or(0.0) as i64;
            let (upper, columns) = (node.int("upper").unwrap_or(1) != 0, *x.dims.last()?);
            let rows = *x.dims.get(rank.checked_sub(2)?)?;
            let mut kept = x.clone();
            for (at, value) in kept.values.iter_mut().enumerate() {
                let (row, column) = ((at / columns % rows) as i64, (at % columns) as i64);
                if upper && column < row + k || !upper && column > row + k {
                    *value = 0.0;
                }
            }
            kept
        }
        "ReduceProd" => Constant::scalar(x.values.iter().product(), x.whole),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto;

    /// An operation on whole numbers of these extents, as extents and elements.
    fn folded(
        kind: &str,
        inputs: &[(&[usize], &[i64])],
        axis: Option<i64>,
    ) -> Option<(Vec<usize>, Vec<i64>)> {
        let attributes = axis.map(|axis| proto::Attribute {
            name: "axis".to_owned(),
            int: Some(axis),
            ..proto::Attribute::default()
        });
        let node = proto::Node {
            kind: kind.to_owned(),
            attributes: attributes.into_iter().collect(),
            ..proto::Node::default()
        };
        let constant = |&(dims, values): &(&[usize], &[i64])| {
            let values = values.iter().map(|&value| value as f64).collect();
            Some(Constant { dims: dims.to_vec(), values, whole: true })
        };
        let inputs: Vec<_> = inputs.iter().map(constant).collect();
        fold(&Node(&node), &inputs).map(|made| (made.dims.clone(), made.ints()))
    }

    #[test]
    fn known_numbers_are_gathered_and_summed_as_onnx_defines_it() {
        let x: (&[usize], &[i64]) = (&[2, 3], &[1, 2, 3, 4, 5, 6]);
        let rows = folded("GatherElements", &[x, (&[1, 3], &[1, 0, -1])], Some(0));
        assert_eq!(rows, Some((vec![1, 3], vec![4, 2, 6])));
        let columns = folded("GatherElements", &[x, (&[2, 2], &[2, 0, 1, 1])], Some(-1));
        assert_eq!(columns, Some((vec![2, 2], vec![3, 1, 5, 5])));
        assert_eq!(folded("GatherElements", &[x, (&[2, 1], &[0, 3])], Some(1)), None);
        let places = folded("GatherND", &[x, (&[2, 2], &[0, 1, -1, 2])], None);
        assert_eq!(places, Some((vec![2], vec![2, 6])));
        let blocks = folded("GatherND", &[x, (&[1, 2, 1], &[1, 0])], None);
        assert_eq!(blocks, Some((vec![1, 2, 3], vec![4, 5, 6, 1, 2, 3])));
        assert_eq!(folded("GatherND", &[x, (&[1, 1], &[2])], None), None);
        let row: (&[usize], &[i64]) = (&[3], &[3, 3, 3]);
        assert_eq!(folded("Max", &[x, row], None), Some((vec![2, 3], vec![3, 3, 3, 4, 5, 6])));
        assert_eq!(folded("Min", &[x, row, (&[1], &[2])], None).unwrap().1, [1, 2, 2, 2, 2, 2]);
        assert_eq!(folded("Max", &[x], None).unwrap().1, x.1);
        let written = folded("ScatterND", &[x, (&[1, 1], &[-1]), (&[1, 3], &[7, 8, 9])], None);
        assert_eq!(written, Some((vec![2, 3], vec![1, 2, 3, 7, 8, 9])));
        assert_eq!(folded("ScatterND", &[x, (&[1, 1], &[2]), (&[1, 3], &[7, 8, 9])], None), None);
        assert_eq!(folded("ScatterND", &[x, (&[1, 1], &[0]), (&[1, 2], &[7, 8])], None), None);
        let tiled = folded("Tile", &[x, (&[2], &[1, 2])], None);
        assert_eq!(tiled, Some((vec![2, 6], vec![1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6])));
        let product = folded("MatMul", &[x, (&[3, 1], &[1, 0, 2])], None);
        assert_eq!(product, Some((vec![2, 1], vec![7, 16])));
        assert_eq!(folded("MatMul", &[x, x], None), None);
        let sums = |axis| folded("CumSum", &[x, (&[], &[axis])], None).unwrap().1;
        assert_eq!(sums(0), [1, 2, 3, 5, 7, 9]);
        assert_eq!(sums(-1), [1, 3, 6, 4, 9, 15]);
    }
}

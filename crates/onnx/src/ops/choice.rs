//! Choices of elements: of two values by known truths or by comparisons, and numbers that are written to known places.

use elbowroom_graph::op::{Function, OpKind};

use super::elementwise::{LOW, number, operand, plus, scaled, times};
use crate::constant::{Constant, elements};
use crate::error::Refusal;
use crate::fold::fold;
use crate::import::Import;
use crate::node::Node;
use crate::value::{Pending, Tensor, Value};

/// From here on ln(1 + eˣ) is x in single precision.
const LINEAR: f32 = 17.0;

/// One of two values, element by element, as a known condition says or a comparison.
pub fn choice(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let from = node.required(0)?;
    let names = [node.required(1)?, node.required(2)?];
    let values = [operand(import, names[0])?, operand(import, names[1])?];
    let masks = match import.value(from)? {
        Value::Constant(condition) => {
            let truths =
                |wanted: bool| condition.map(false, |truth| f64::from(u8::from((truth != 0.0) == wanted)));
            let [first, second] = [true, false].map(truths);
            for (at, mask) in [&first, &second].into_iter().enumerate() {
                if mask.values.iter().all(|&keeps| keeps == 1.0) && number(&values[1 - at]).is_some() {
                    return import.value(names[at]);
                }
            }
            if let Some((at, mask)) = low(&values, [&first, &second]) {
                let masked = format!("{}.mask", node.name());
                return plus(
                    import,
                    &node.name(),
                    [names[at], &masked],
                    [values[at].clone(), Value::Constant(mask)],
                );
            }
            [first, second].map(Value::Constant)
        }
        Value::Pending(Pending::Compared { x, bound, is_above }) => {
            if is_above && bound >= LINEAR && are_softplus(import, &x, &values) {
                return Ok(values[1].clone());
            }
            [is_above, !is_above]
                .map(|is_above| Value::Pending(Pending::Compared { x: x.clone(), bound, is_above }))
        }
        _ => return Err("its condition is computed by the network, and no comparison with a number".into()),
    };
    joined_parts(import, &node.name(), names, values, masks)
}

/// Whether two values are x and ln(1 + eˣ): PyTorch chooses x where both are the same number.
fn are_softplus(import: &Import<'_>, x: &Tensor, values: &[Value; 2]) -> bool {
    let [Value::Tensor(same), Value::Tensor(y)] = values else { return false };
    let softplus = OpKind::Map { len: x.view.len(), function: Function::Softplus };
    same == x && import.maker(y.id).is_some_and(|maker| maker.kind == softplus && maker.inputs == [x.id])
}

/// The sum of two values, each times its mask of zeros and ones.
fn joined_parts(
    import: &mut Import<'_>,
    name: &str,
    names: [&str; 2],
    values: [Value; 2],
    masks: [Value; 2],
) -> Result<Value, Refusal> {
    let mut parts = Vec::new();
    for (at, (mask, value)) in masks.into_iter().zip(values).enumerate() {
        let (kept, of_mask) = (format!("{name}.{at}"), format!("{name}.{at}.mask"));
        let part = match number(&value) {
            Some(0.0) => continue,
            Some(fill) => scaled(import, &of_mask, mask, fill)?,
            None => times(import, &kept, [names[at], &of_mask], [value, mask])?,
        };
        parts.push((kept, part));
    }
    match <[_; 2]>::try_from(parts) {
        Ok([(first, a), (second, b)]) => plus(import, name, [&first, &second], [a, b]),
        Err(parts) => {
            let part = parts.into_iter().next().map(|(_, part)| part);
            part.ok_or_else(|| "it chooses from zeros alone".into())
        }
    }
}

/// A mask that may be added to one of two values, of which the other one is so low a number that a softmax makes nothing of it: to scores, or −∞ to
/// any tensor.
fn low(values: &[Value; 2], keeps: [&Constant; 2]) -> Option<(usize, Constant)> {
    let (at, fill) = match [number(&values[0]), number(&values[1])] {
        [None, Some(fill)] => (0, fill),
        [Some(fill), None] => (1, fill),
        _ => return None,
    };
    let scores = matches!(&values[at], Value::Pending(Pending::Scores(scores)) if !scores.normalized);
    let may_be_added = fill == f64::NEG_INFINITY || (scores && fill <= LOW);
    may_be_added.then(|| (at, keeps[at].map(false, |keeps| if keeps == 1.0 { 0.0 } else { fill })))
}

/// `Greater` and its like: a tensor compared with a known number.
pub fn comparison(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let names = [node.required(0)?, node.required(1)?];
    let numbers = [number(&operand(import, names[0])?), number(&operand(import, names[1])?)];
    // With the number on the right.
    let (from, bound, is_swapped) = match numbers {
        [_, Some(bound)] => (names[0], bound, false),
        [Some(bound), _] => (names[1], bound, true),
        _ => return Err("only a tensor and a known number are compared".into()),
    };
    let is_above = node.kind().starts_with("Greater") != is_swapped;
    // x ≥ b is x > the number before b, and x < b is the contrary of x ≥ b.
    let or_equal = node.kind().ends_with("OrEqual");
    let bound = if or_equal == is_above { (bound as f32).next_down() } else { bound as f32 };
    Ok(Value::Pending(Pending::Compared { x: import.tensor(from)?, bound, is_above }))
}

/// `ScatterND` of known numbers to known places.
pub fn scattered(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let (from, name) = (node.required(0)?, node.name());
    let (Some(places), Some(updates)) = (import.constant(node.input(1)), import.constant(node.input(2)))
    else {
        return Err("only known numbers are written, and to known places".into());
    };
    let x = import.tensor(from)?;
    let dims = x.dims();
    let of = |value: f64, updates: Constant| {
        let count = elements(&dims)?;
        let x = Constant { dims: dims.clone(), values: vec![value; count], whole: false };
        fold(node, &[Some(x), Some(places.clone()), Some(Constant { whole: false, ..updates })])
    };
    let zeros = updates.map(false, |_| 0.0);
    let (Some(kept), Some(added)) = (of(1.0, zeros), of(0.0, updates)) else {
        return Err(format!("its places or numbers do not fit into extents {dims:?}").into());
    };
    let (of_kept, of_added) = (format!("{name}.kept"), format!("{name}.numbers"));
    let y = times(import, &of_kept, [from, &of_kept], [Value::Tensor(x), Value::Constant(kept)])?;
    match added.values.iter().all(|&number| number == 0.0) {
        true => Ok(y),
        false => plus(import, &name, [&of_kept, &of_added], [y, Value::Constant(added)]),
    }
}

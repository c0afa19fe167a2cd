//! Sums and products of elements, and what repeats over what in them.

use elbowroom_graph::op::{Channels, Function, OpKind};

use super::functions::{GELU_CUBE, close, gelu, map};
use super::joined::repeated;
use super::{attention, dense, dropout};
use crate::constant::{Constant, common_extents};
use crate::error::Refusal;
use crate::import::Import;
use crate::node::Node;
use crate::value::{Mask, Pending, Scores, Tensor, Value};
use crate::view::inverse;

/// Numbers from here on downwards are masks: a softmax makes nothing of scores to which they are added.
pub const LOW: f64 = -1e4;

/// An input times a known number.
pub fn scale(import: &mut Import<'_>, from: &str, by: f64) -> Result<Value, Refusal> {
    let value = import.value(from)?;
    scaled(import, from, value, by)
}

/// A value times a known number.
pub fn scaled(import: &mut Import<'_>, from: &str, value: Value, by: f64) -> Result<Value, Refusal> {
    if by == 1.0 {
        return Ok(value);
    }
    Ok(Value::Pending(match value {
        Value::Constant(numbers) => {
            return Ok(Value::Constant(numbers.map(numbers.whole, |number| number * by)));
        }
        Value::Pending(Pending::Scaled { x, factor }) => Pending::Scaled { x, factor: factor * by },
        Value::Pending(Pending::Mask(mask)) => Pending::Mask(Mask { factor: mask.factor * by, ..mask }),
        Value::Pending(Pending::Cube { x, factor }) => Pending::Cube { x, factor: factor * by },
        Value::Pending(Pending::GeluArgument { x, factor }) => {
            Pending::GeluArgument { x, factor: factor * by }
        }
        Value::Pending(Pending::GeluGate { x, form, factor }) => {
            Pending::GeluGate { x, form, factor: factor * by }
        }
        Value::Pending(Pending::ScaledGelu { x, form, factor }) => {
            return gelu(import, &format!("{from}.gelu"), x, form, factor * by);
        }
        Value::Pending(Pending::Scores(scores)) if !scores.causal && !scores.normalized => {
            Pending::Scores(Scores { factor: scores.factor * by, ..scores })
        }
        other => Pending::Scaled { x: import.realized(from, other)?, factor: by },
    }))
}

/// A known number that is the same for all elements.
pub fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Constant(constant) => constant.single(),
        _ => None,
    }
}

/// The axes of `whole` over which an operand of these extents does not repeat; `None` if it cannot repeat over the others.
fn own_axes(whole: &[usize], dims: &[usize]) -> Option<Vec<usize>> {
    let missing = whole.len().checked_sub(dims.len())?;
    let axes = (0..dims.len()).filter(|&axis| dims[axis] > 1).map(|axis| axis + missing);
    let axes: Vec<usize> = axes.collect();
    axes.iter().all(|&axis| dims[axis - missing] == whole[axis]).then_some(axes)
}

/// How the elements of a smaller operand repeat over a larger one: as the middle of three extents of its memory. The axes of the larger one are
/// brought into an order in which they do where that is needed; those that the smaller one has come first.
pub fn spread_over(
    import: &mut Import<'_>,
    name: &str,
    x: Tensor,
    dims: &[usize],
) -> Result<(Tensor, Channels), Refusal> {
    let whole = x.dims();
    let axes = own_axes(&whole, dims).ok_or_else(|| {
        format!("extents {dims:?} cannot repeat over {whole:?}, whose extents they do not have")
    })?;
    let spread = |x: &Tensor| {
        let [batch, channels, spatial] = x.view.run(&axes)?;
        // One number for all elements is that of the only channel, of however many images.
        let images = whole.first().copied().filter(|_| axes.is_empty());
        let [batch, spatial] =
            images.map_or([batch, spatial], |images| [images, x.view.len() / images.max(1)]);
        Some(Channels { batch, channels, spatial })
    };
    if let Some(channels) = spread(&x) {
        return Ok((x, channels));
    }
    let neighbours = axes.windows(2).all(|pair| pair[1] == pair[0] + 1);
    let x = if neighbours {
        import.dense(name, x)?
    } else {
        let others = (0..whole.len()).filter(|axis| !axes.contains(axis));
        let order: Vec<usize> = axes.iter().copied().chain(others).collect();
        let moved = import.dense(name, Tensor { view: x.view.permuted(&order), ..x })?;
        Tensor { view: moved.view.permuted(&inverse(&order)), ..moved }
    };
    let channels = spread(&x).ok_or("its axes are no axes of memory")?;
    Ok((x, channels))
}

/// The sum of a tensor and a smaller one that repeats over it.
pub fn spread_sum(
    import: &mut Import<'_>,
    [name, first]: [&str; 2],
    large: Tensor,
    small: &Tensor,
) -> Result<Tensor, Refusal> {
    let (large, channels) = spread_over(import, first, large, &small.dims())?;
    let kind = match channels {
        Channels { batch, channels, spatial: 1 } => OpKind::AddRow { outer: batch, inner: channels },
        channels => OpKind::AddChannel(channels),
    };
    let id = import.pushed(name, kind, &[large.id, small.id])?;
    Ok(Tensor { id, ..large })
}

/// The larger one of two tensors with its name, and the smaller one, which repeats over it. Where each repeats over the other, the larger one is repeated.
fn spread<'n>(
    import: &mut Import<'_>,
    name: &str,
    names: [&'n str; 2],
    [a, b]: [Tensor; 2],
) -> Result<(Tensor, Tensor, &'n str), Refusal> {
    let (large, small, [first, second]) = match a.view.len() >= b.view.len() {
        true => (a, b, names),
        false => (b, a, [names[1], names[0]]),
    };
    let small = import.dense(second, small)?;
    let (own, other) = (large.dims(), small.dims());
    match common_extents(&own, &other) {
        Some(dims) if dims != own => {
            let large = import.dense(first, large)?;
            Ok((repeated(import, &format!("{name}.repeated"), large, &dims)?, small, first))
        }
        _ => Ok((large, small, first)),
    }
}

/// Two tensors of equal extents whose memory has one order.
fn aligned(import: &mut Import<'_>, names: [&str; 2], [a, b]: [Tensor; 2]) -> Result<[Tensor; 2], Refusal> {
    if a.view.aligned(&b.view) {
        return Ok([a, b]);
    }
    Ok([import.dense(names[0], a)?, import.dense(names[1], b)?])
}

/// An operand of a sum or a product. Exporters write scalars as tensors of one element, which are therefore numbers here and no weights, as are
/// masks and other buffers.
pub fn operand(import: &Import<'_>, name: &str) -> Result<Value, Refusal> {
    Ok(match import.value(name)? {
        Value::Weight(stored) if stored.single.is_some() => {
            Value::Constant(Constant::scalar(stored.single.unwrap_or_default(), false))
        }
        Value::Weight(stored) if stored.fixed => match import.numbers(Some(name)) {
            Some(numbers) => Value::Constant(numbers),
            None => Value::Weight(stored),
        },
        value => value,
    })
}

/// `Add` and `Sub`.
pub fn sum(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let (names, name) = ([node.required(0)?, node.required(1)?], node.name());
    let mut values = [operand(import, names[0])?, operand(import, names[1])?];
    let negative = node.kind() == "Sub";
    if negative {
        values[1] = match &values[1] {
            Value::Constant(constant) => Value::Constant(constant.map(constant.whole, |value| -value)),
            _ => scale(import, names[1], -1.0)?,
        };
        if let Value::Pending(pending) = &values[1] {
            let negated = super::realize(import, &format!("{name}.negated"), pending.clone())?;
            values[1] = Value::Tensor(negated);
        }
    }
    plus(import, &name, names, values)
}

/// Brings what the file holds, which repeats over what the network computes, to the second place.
fn ordered(names: &mut [&str; 2], values: &mut [Value; 2]) {
    if matches!(values[0], Value::Constant(_) | Value::Weight(_)) {
        values.swap(0, 1);
        names.swap(0, 1);
    }
}

/// The sum of two values.
pub fn plus(
    import: &mut Import<'_>,
    name: &str,
    mut names: [&str; 2],
    mut values: [Value; 2],
) -> Result<Value, Refusal> {
    ordered(&mut names, &mut values);
    match (&values[0], &values[1]) {
        (Value::Pending(Pending::GeluCurve { x, form }), Value::Constant(one))
            if one.single() == Some(1.0) =>
        {
            return Ok(Value::Pending(Pending::GeluGate { x: x.clone(), form: *form, factor: 1.0 }));
        }
        (Value::Tensor(x), Value::Pending(Pending::Cube { x: same, factor }))
        | (Value::Pending(Pending::Cube { x: same, factor }), Value::Tensor(x))
            if x == same && close(*factor, GELU_CUBE) =>
        {
            return Ok(Value::Pending(Pending::GeluArgument { x: x.clone(), factor: 1.0 }));
        }
        (Value::Pending(Pending::Scores(scores)), Value::Constant(mask))
            if attention::knows(scores, mask) =>
        {
            return Ok(attention::masked(scores, mask));
        }
        (_, Value::Constant(constant)) if constant.single() == Some(0.0) => return Ok(values[0].clone()),
        _ => {}
    }
    if let (Value::Pending(Pending::Product { x, weight }), Value::Weight(bias)) = (&values[0], &values[1])
        && let [_, outputs] = weight.seen()[..]
        && bias.dims.iter().product::<usize>() == outputs
        && bias.dims.last() == Some(&outputs)
        && import.uses(names[0]) == 1
    {
        // Parameters come in the order weight, bias.
        import.layer(weight)?;
        let bias = import.operand(bias)?.id;
        return dense::product(import, name, x.clone(), weight, Some(bias)).map(Value::Tensor);
    }
    let a = import.realized(names[0], values[0].clone())?;
    if let Value::Constant(constant) = &values[1]
        && let Some(number) = constant.single()
    {
        let len = a.view.len();
        let fill =
            import.pushed(&format!("{name}.number"), OpKind::Fill { len, value: number as f32 }, &[])?;
        return import.push(name, OpKind::Add { len }, &[a.id, fill], a.view);
    }
    let b = import.realized(names[1], values[1].clone())?;
    if a.dims() == b.dims() {
        let [a, b] = aligned(import, names, [a, b])?;
        return import.push(name, OpKind::Add { len: a.view.len() }, &[a.id, b.id], a.view);
    }
    let (large, small, first) = spread(import, name, names, [a, b])?;
    spread_sum(import, [name, first], large, &small).map(Value::Tensor)
}

/// `Mul` and `Div`.
pub fn product(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let (names, name) = ([node.required(0)?, node.required(1)?], node.name());
    let mut values = [operand(import, names[0])?, operand(import, names[1])?];
    if node.kind() == "Div" {
        values[1] = match &values[1] {
            Value::Constant(by) if by.values.contains(&0.0) => return Err("it divides by zero".into()),
            Value::Constant(by) => Value::Constant(by.map(false, f64::recip)),
            by => {
                let by = import.realized(names[1], by.clone())?;
                Value::Tensor(map(import, &format!("{name}.reciprocal"), by, Function::Reciprocal)?)
            }
        };
    }
    times(import, &name, names, values)
}

/// The product of two values, element by element.
pub fn times(
    import: &mut Import<'_>,
    name: &str,
    mut names: [&str; 2],
    mut values: [Value; 2],
) -> Result<Value, Refusal> {
    ordered(&mut names, &mut values);
    if let Some(by) = number(&values[1]) {
        return scaled(import, names[0], values[0].clone(), by);
    }
    for (at, other) in [(0, 1), (1, 0)] {
        match (&values[at], &values[other]) {
            (Value::Pending(Pending::Mask(mask)), x) => {
                let x = import.realized(names[other], x.clone())?;
                return dropout::masked(import, name, x, mask);
            }
            (Value::Pending(Pending::Sigmoid { x }), Value::Tensor(same)) if x == same => {
                return map(import, name, x.clone(), Function::Silu).map(Value::Tensor);
            }
            (Value::Pending(Pending::GeluGate { x, form, factor }), Value::Tensor(same)) if x == same => {
                return gelu(import, name, x.clone(), *form, 2.0 * factor);
            }
            (
                Value::Pending(Pending::GeluGate { x, form, factor }),
                Value::Pending(Pending::Scaled { x: same, factor: more }),
            ) if x == same => {
                return gelu(import, name, x.clone(), *form, 2.0 * factor * more);
            }
            _ => {}
        }
    }
    let a = import.realized(names[0], values[0].clone())?;
    let b = import.realized(names[1], values[1].clone())?;
    if a.dims() == b.dims() {
        let [a, b] = aligned(import, names, [a, b])?;
        return import.push(name, OpKind::Mul { len: a.view.len() }, &[a.id, b.id], a.view);
    }
    let (large, small, first) = spread(import, name, names, [a, b])?;
    let (large, channels) = spread_over(import, first, large, &small.dims())?;
    import.push(name, OpKind::MulChannel(channels), &[large.id, small.id], large.view)
}

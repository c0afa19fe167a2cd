//! Functions of elements, sums and products, with GELU and SiLU where exporters write them in parts.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use elbowroom_graph::op::{Channels, Function, OpKind};

use super::{attention, dense, dropout};
use crate::constant::Constant;
use crate::error::Refusal;
use crate::import::Import;
use crate::node::Node;
use crate::value::{Mask, Pending, Tensor, Value};

/// The factor of the cube in the form of GELU with a hyperbolic tangent, and √(2/π), that of the argument.
const GELU_CUBE: f64 = 0.044_715;
const GELU_ARGUMENT: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;

/// Whether two factors are the same up to single precision.
pub fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * b.abs()
}

/// The ops of an expression of elements.
pub fn realize(import: &mut Import<'_>, name: &str, pending: Pending) -> Result<Tensor, Refusal> {
    let scaled = |import: &mut Import<'_>, name: &str, x: &Tensor, factor: f64| {
        let kind = OpKind::Scale { len: x.view.len(), factor: factor as f32 };
        import.pushed(name, kind, &[x.id]).map(|id| Tensor { id, ..x.clone() })
    };
    match pending {
        Pending::Scaled { x, factor } => scaled(import, name, &x, factor),
        Pending::Sigmoid { x } => map(import, name, x, Function::Sigmoid),
        Pending::ScaledGelu { x, form, factor } => {
            let gelu = map(import, &format!("{name}.gelu"), x, form)?;
            scaled(import, name, &gelu, factor)
        }
        Pending::Cube { x, factor } => {
            let square = times(import, &format!("{name}.square"), &x, &x)?;
            match factor == 1.0 {
                true => times(import, name, &square, &x),
                false => {
                    let cube = times(import, &format!("{name}.cube"), &square, &x)?;
                    scaled(import, name, &cube, factor)
                }
            }
        }
        Pending::GeluArgument { .. } | Pending::GeluCurve { .. } | Pending::GeluGate { .. } => Err(format!(
            "`{name}` is a part of GELU, ½·x·(1 + erf(x / √2)) or ½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), by itself, which is not supported"
        )
        .into()),
        other => Err(format!("`{name}` is {}", other.name()).into()),
    }
}

/// The product of two tensors of one view.
fn times(import: &mut Import<'_>, name: &str, a: &Tensor, b: &Tensor) -> Result<Tensor, Refusal> {
    let id = import.pushed(name, OpKind::Mul { len: a.view.len() }, &[a.id, b.id])?;
    Ok(Tensor { id, ..a.clone() })
}

/// `Pow`
pub fn power(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let from = node.required(0)?;
    let exponent = import.constant(node.input(1)).and_then(|exponent| exponent.single());
    let x = import.tensor(from)?;
    match exponent {
        Some(1.0) => Ok(Value::Tensor(x)),
        Some(2.0) => times(import, &node.name(), &x, &x).map(Value::Tensor),
        Some(3.0) => Ok(Value::Pending(Pending::Cube { x, factor: 1.0 })),
        _ => Err("only the powers 2 and 3 are supported; export with opset_version=17 or later, where layer normalization is one operation".into()),
    }
}

fn map(import: &mut Import<'_>, name: &str, x: Tensor, function: Function) -> Result<Tensor, Refusal> {
    let id = import.pushed(name, OpKind::Map { len: x.view.len(), function }, &[x.id])?;
    Ok(Tensor { id, ..x })
}

/// `factor · gelu(x)`, which is an op where the factor is one.
fn gelu(
    import: &mut Import<'_>,
    name: &str,
    x: Tensor,
    form: Function,
    factor: f64,
) -> Result<Value, Refusal> {
    match factor == 1.0 {
        true => map(import, name, x, form).map(Value::Tensor),
        false => Ok(Value::Pending(Pending::ScaledGelu { x, form, factor })),
    }
}

/// A function of one tensor.
pub fn function(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let from = node.required(0)?;
    let function = match node.kind() {
        "Relu" => Function::Relu,
        "Tanh" => match import.value(from)? {
            Value::Pending(Pending::GeluArgument { x, factor }) if close(factor, GELU_ARGUMENT) => {
                return Ok(Value::Pending(Pending::GeluCurve { x, form: Function::Gelu }));
            }
            _ => Function::Tanh,
        },
        "Gelu" => match node.text("approximate").as_deref() {
            Some("tanh") => Function::Gelu,
            _ => Function::GeluExact,
        },
        "Swish" if node.float("alpha").is_none_or(|alpha| alpha == 1.0) => Function::Silu,
        "Clip" => {
            let bound = |index: usize, name: &str, none: f64| {
                let given = import.constant(node.input(index)).and_then(|value| value.single());
                given.or_else(|| node.float(name).map(f64::from)).unwrap_or(none)
            };
            if [1, 2]
                .iter()
                .any(|&index| node.input(index).is_some() && import.constant(node.input(index)).is_none())
            {
                return Err("its bounds are computed by the network".into());
            }
            clamp(bound(1, "min", f64::from(f32::MIN)), bound(2, "max", f64::from(f32::MAX)))?
        }
        "Erf" => {
            return match import.value(from)? {
                Value::Pending(Pending::Scaled { x, factor }) if close(factor, FRAC_1_SQRT_2) => {
                    Ok(Value::Pending(Pending::GeluCurve { x, form: Function::GeluExact }))
                }
                _ => Err("an error function is supported in GELU, ½·x·(1 + erf(x / √2)), alone".into()),
            };
        }
        "Sigmoid" => {
            let x = import.tensor(from)?;
            return Ok(Value::Pending(Pending::Sigmoid { x }));
        }
        "Neg" => return scale(import, from, -1.0),
        "HardSwish" => Function::HardSwish,
        "HardSigmoid" => {
            let factors = [node.float("alpha").unwrap_or(0.2), node.float("beta").unwrap_or(0.5)];
            if !close(f64::from(factors[0]), 1.0 / 6.0) || factors[1] != 0.5 {
                return Err(format!(
                    "only alpha = 1/6 and beta = 1/2 are supported, and these are {} and {}",
                    factors[0], factors[1]
                )
                .into());
            }
            Function::HardSigmoid
        }
        "Max" | "Min" => return bounded(import, node),
        "Elu" => match node.float("alpha").unwrap_or(1.0) {
            alpha if alpha > 0.0 && alpha.is_finite() => Function::Elu { alpha },
            alpha => {
                return Err(format!("its alpha of {alpha} is not above zero, which is not supported").into());
            }
        },
        "LeakyRelu" => match node.float("alpha").unwrap_or(0.01) {
            slope if slope >= 0.0 && slope.is_finite() => Function::LeakyRelu { slope },
            slope => return Err(format!("its slope of {slope} is below zero, which is not supported").into()),
        },
        _ => return Err("it has an alpha other than 1, which is not supported".into()),
    };
    let x = import.tensor(from)?;
    map(import, &node.name(), x, function).map(Value::Tensor)
}

/// The function that keeps numbers between two bounds.
fn clamp(least: f64, most: f64) -> Result<Function, Refusal> {
    match [least, most] {
        [0.0, 6.0] => Ok(Function::Relu6),
        [0.0, most] if most >= f64::from(f32::MAX) => Ok(Function::Relu),
        [least, most] if least <= most => Ok(Function::Clamp { least: least as f32, most: most as f32 }),
        _ => Err(format!("its bounds {least} and {most} leave no number between them").into()),
    }
}

/// `Max` and `Min` with a known number.
fn bounded(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let [first, second] = [node.required(0)?, node.required(1)?];
    let number = |import: &Import<'_>, name: &str| match operand(import, name)? {
        Value::Constant(constant) => Ok::<_, Refusal>(constant.single()),
        _ => Ok(None),
    };
    let (from, bound) = match [number(import, first)?, number(import, second)?] {
        [Some(bound), _] => (second, bound),
        [_, Some(bound)] => (first, bound),
        _ => return Err("only the larger or smaller one of a tensor and a known number is supported".into()),
    };
    if node.0.inputs.len() > 2 {
        return Err("only two operands are supported".into());
    }
    let function = match node.kind() {
        "Max" => clamp(bound, f64::from(f32::MAX))?,
        _ => clamp(f64::from(f32::MIN), bound)?,
    };
    let x = import.tensor(from)?;
    map(import, &node.name(), x, function).map(Value::Tensor)
}

/// `PRelu`: `max(x, 0) − w·max(−x, 0)`, with a weight for every channel or one for all.
pub fn parametric_relu(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let name = node.name();
    let x = import.tensor(node.required(0)?)?;
    let Value::Weight(slope) = import.value(node.required(1)?)? else {
        return Err("its slope is no weight of the file".into());
    };
    let (x, channels) = spread_over(import, &name, x, &slope.dims)?;
    let slope = import.operand(&slope)?.id;
    let len = x.view.len();
    let above =
        import.pushed(&format!("{name}.above"), OpKind::Map { len, function: Function::Relu }, &[x.id])?;
    let below = import.pushed(&format!("{name}.negative"), OpKind::Scale { len, factor: -1.0 }, &[x.id])?;
    let below =
        import.pushed(&format!("{name}.below"), OpKind::Map { len, function: Function::Relu }, &[below])?;
    let below = import.pushed(&format!("{name}.product"), OpKind::MulChannel(channels), &[below, slope])?;
    let below = import.pushed(&format!("{name}.slope"), OpKind::Scale { len, factor: -1.0 }, &[below])?;
    import.push(&name, OpKind::Add { len }, &[above, below], x.view)
}

/// A tensor times a known number.
fn scale(import: &mut Import<'_>, from: &str, by: f64) -> Result<Value, Refusal> {
    Ok(Value::Pending(match import.value(from)? {
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
        Value::Pending(Pending::Scores { q, k, factor, causal, normalized: false }) => {
            if causal {
                return Err("it scales masked scores; scale before the mask is added".into());
            }
            Pending::Scores { q, k, factor: factor * by, causal, normalized: false }
        }
        _ => Pending::Scaled { x: import.tensor(from)?, factor: by },
    }))
}

/// One of two values, by a condition that is the same for all elements.
pub fn choice(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let condition = import.constant(node.input(0)).and_then(|condition| condition.single());
    let condition = condition.ok_or("its condition is not one known number for all elements")?;
    let [first, second] = [node.required(1)?, node.required(2)?];
    let (chosen, other) = if condition == 0.0 { (second, first) } else { (first, second) };
    match import.constant(Some(other)).and_then(|other| other.single()) {
        Some(_) => import.value(chosen),
        None => Err("the value that it does not choose is not one known number".into()),
    }
}

/// How the elements of a smaller operand repeat over a larger one: as the middle of three extents of its memory.
fn spread(x: &Tensor, dims: &[usize]) -> Option<Channels> {
    let whole = x.dims();
    let missing = whole.len().checked_sub(dims.len())?;
    let axes: Vec<usize> =
        (0..dims.len()).filter(|&axis| dims[axis] > 1).map(|axis| axis + missing).collect();
    if axes.iter().any(|&axis| dims[axis - missing] != whole[axis]) {
        return None;
    }
    let [batch, channels, spatial] = x.view.run(&axes)?;
    Some(Channels { batch, channels, spatial })
}

/// As [`spread`], with the axes of the larger operand brought into the order of memory where that is needed.
pub fn spread_over(
    import: &mut Import<'_>,
    name: &str,
    x: Tensor,
    dims: &[usize],
) -> Result<(Tensor, Channels), Refusal> {
    if let Some(channels) = spread(&x, dims) {
        return Ok((x, channels));
    }
    let x = import.dense(name, x)?;
    match spread(&x, dims) {
        Some(channels) => Ok((x, channels)),
        None => Err(format!(
            "extents {dims:?} cannot repeat over {:?} here: the axes above 1 of the smaller operand must be neighbours and have the extents of the larger",
            x.dims()
        )
        .into()),
    }
}

/// Two tensors of equal extents whose memory has one order.
fn aligned(import: &mut Import<'_>, names: [&str; 2], [a, b]: [Tensor; 2]) -> Result<[Tensor; 2], Refusal> {
    if a.view.aligned(&b.view) {
        return Ok([a, b]);
    }
    Ok([import.dense(names[0], a)?, import.dense(names[1], b)?])
}

/// An operand of a sum or a product. Exporters write scalars as tensors of one element, which are therefore numbers here and no weights.
fn operand(import: &Import<'_>, name: &str) -> Result<Value, Refusal> {
    Ok(match import.value(name)? {
        Value::Weight(stored) if stored.single.is_some() => {
            Value::Constant(Constant::scalar(stored.single.unwrap_or_default(), false))
        }
        value => value,
    })
}

/// `Add` and `Sub`.
pub fn sum(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let (mut names, name) = ([node.required(0)?, node.required(1)?], node.name());
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
    // What repeats over the other comes second.
    if matches!(values[0], Value::Constant(_) | Value::Weight(_)) {
        values.swap(0, 1);
        names.swap(0, 1);
    }
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
        (Value::Pending(Pending::Scores { .. }), Value::Constant(mask)) => {
            return attention::masked(&values[0], mask);
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
        return dense::product(import, &name, x.clone(), weight, Some(bias)).map(Value::Tensor);
    }
    let a = import.realized(names[0], values[0].clone())?;
    if let Value::Constant(constant) = &values[1]
        && let Some(number) = constant.single()
    {
        let len = a.view.len();
        let fill =
            import.pushed(&format!("{name}.number"), OpKind::Fill { len, value: number as f32 }, &[])?;
        return import.push(&name, OpKind::Add { len }, &[a.id, fill], a.view);
    }
    let b = import.realized(names[1], values[1].clone())?;
    if a.dims() == b.dims() {
        let [a, b] = aligned(import, names, [a, b])?;
        return import.push(&name, OpKind::Add { len: a.view.len() }, &[a.id, b.id], a.view);
    }
    let (large, small, [first, second]) = match a.view.len() >= b.view.len() {
        true => (a, b, names),
        false => (b, a, [names[1], names[0]]),
    };
    let small = import.dense(second, small)?;
    let (large, channels) = spread_over(import, first, large, &small.dims())?;
    let kind = match channels {
        Channels { batch, channels, spatial: 1 } => OpKind::AddRow { outer: batch, inner: channels },
        channels => OpKind::AddChannel(channels),
    };
    import.push(&name, kind, &[large.id, small.id], large.view)
}

/// `Mul` and `Div`.
pub fn product(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let (mut names, name) = ([node.required(0)?, node.required(1)?], node.name());
    let mut values = [operand(import, names[0])?, operand(import, names[1])?];
    let number = |value: &Value| match value {
        Value::Constant(constant) => constant.single(),
        _ => None,
    };
    if node.kind() == "Div" {
        return match number(&values[1]) {
            Some(by) if by != 0.0 => scale(import, names[0], 1.0 / by),
            _ => Err("only divisions by a known number are supported".into()),
        };
    }
    if matches!(values[0], Value::Constant(_) | Value::Weight(_)) {
        values.swap(0, 1);
        names.swap(0, 1);
    }
    if let Some(by) = number(&values[1]) {
        return scale(import, names[0], by);
    }
    for (at, other) in [(0, 1), (1, 0)] {
        if let Value::Pending(Pending::Mask(mask)) = &values[at] {
            let x = import.realized(names[other], values[other].clone())?;
            return dropout::masked(import, &name, x, mask);
        }
    }
    for (at, other) in [(0, 1), (1, 0)] {
        match (&values[at], &values[other]) {
            (Value::Pending(Pending::Sigmoid { x }), Value::Tensor(same)) if x == same => {
                return map(import, &name, x.clone(), Function::Silu).map(Value::Tensor);
            }
            (Value::Pending(Pending::GeluGate { x, form, factor }), Value::Tensor(same)) if x == same => {
                return gelu(import, &name, x.clone(), *form, 2.0 * factor);
            }
            (
                Value::Pending(Pending::GeluGate { x, form, factor }),
                Value::Pending(Pending::Scaled { x: same, factor: more }),
            ) if x == same => {
                return gelu(import, &name, x.clone(), *form, 2.0 * factor * more);
            }
            _ => {}
        }
    }
    let a = import.realized(names[0], values[0].clone())?;
    let b = import.realized(names[1], values[1].clone())?;
    if a.dims() == b.dims() {
        let [a, b] = aligned(import, names, [a, b])?;
        return import.push(&name, OpKind::Mul { len: a.view.len() }, &[a.id, b.id], a.view);
    }
    let (large, small, [first, second]) = match a.view.len() >= b.view.len() {
        true => (a, b, names),
        false => (b, a, [names[1], names[0]]),
    };
    let small = import.dense(second, small)?;
    let (large, channels) = spread_over(import, first, large, &small.dims())?;
    import.push(&name, OpKind::MulChannel(channels), &[large.id, small.id], large.view)
}

/// Whether known numbers let a token see those before it and itself, and no others.
pub fn is_causal(mask: &Constant) -> bool {
    let &[.., rows, columns] = mask.dims.as_slice() else { return false };
    let expected = |row: usize, column: usize, value: f64| match column <= row {
        true => value == 0.0,
        false => value <= -1e4,
    };
    rows == columns
        && mask
            .values
            .iter()
            .enumerate()
            .all(|(at, &value)| expected(at / columns % rows, at % columns, value))
}

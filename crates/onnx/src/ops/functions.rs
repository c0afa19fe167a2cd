//! Functions of one tensor, with GELU and SiLU where exporters write them in parts.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use elbowroom_graph::op::{Function, OpKind};

use super::elementwise::{operand, scale, spread_over};
use crate::error::Refusal;
use crate::import::Import;
use crate::node::Node;
use crate::value::{Pending, Tensor, Value};

/// The factor of the cube in the form of GELU with a hyperbolic tangent, and √(2/π), that of the argument.
pub const GELU_CUBE: f64 = 0.044_715;
/// α and γ of SELU (Klambauer et al., 2017).
const SELU: [f32; 2] = [1.673_263_2, 1.050_701];
const GELU_ARGUMENT: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;

/// Whether two factors are the same up to single precision.
pub fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * b.abs()
}

/// A tensor times a factor as an op.
pub fn scaled(import: &mut Import<'_>, name: &str, x: &Tensor, factor: f64) -> Result<Tensor, Refusal> {
    let kind = OpKind::Scale { len: x.view.len(), factor: factor as f32 };
    import.pushed(name, kind, &[x.id]).map(|id| Tensor { id, ..x.clone() })
}

/// The ops of an expression of elements.
pub fn realize(import: &mut Import<'_>, name: &str, pending: Pending) -> Result<Tensor, Refusal> {
    match pending {
        Pending::Scaled { x, factor } => scaled(import, name, &x, factor),
        Pending::Sigmoid { x } => map(import, name, x, Function::Sigmoid),
        Pending::Compared { x, bound, is_above: true } => map(import, name, x, Function::Step { bound }),
        Pending::Compared { x, bound, is_above: false } => {
            // x ≤ bound where −x ≥ −bound.
            let x = scaled(import, &format!("{name}.negated"), &x, -1.0)?;
            map(import, name, x, Function::Step { bound: (-bound).next_down() })
        }
        Pending::ScaledGelu { x, form, factor } => {
            let gelu = map(import, &format!("{name}.gelu"), x, form)?;
            scaled(import, name, &gelu, factor)
        }
        Pending::Cube { x, factor } => {
            let square = multiplied(import, &format!("{name}.square"), &x, &x)?;
            match factor == 1.0 {
                true => multiplied(import, name, &square, &x),
                false => {
                    let cube = multiplied(import, &format!("{name}.cube"), &square, &x)?;
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
pub fn multiplied(import: &mut Import<'_>, name: &str, a: &Tensor, b: &Tensor) -> Result<Tensor, Refusal> {
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
        Some(2.0) => multiplied(import, &node.name(), &x, &x).map(Value::Tensor),
        Some(3.0) => Ok(Value::Pending(Pending::Cube { x, factor: 1.0 })),
        Some(0.5) => map(import, &node.name(), x, Function::Sqrt).map(Value::Tensor),
        Some(-1.0) => map(import, &node.name(), x, Function::Reciprocal).map(Value::Tensor),
        Some(-0.5) => {
            let root = map(import, &format!("{}.root", node.name()), x, Function::Sqrt)?;
            map(import, &node.name(), root, Function::Reciprocal).map(Value::Tensor)
        }
        _ => Err("only the powers 2, 3, ½, −½ and −1 are supported".into()),
    }
}

/// A function as an op.
pub fn map(import: &mut Import<'_>, name: &str, x: Tensor, function: Function) -> Result<Tensor, Refusal> {
    let id = import.pushed(name, OpKind::Map { len: x.view.len(), function }, &[x.id])?;
    Ok(Tensor { id, ..x })
}

/// `factor · gelu(x)`, which is an op where the factor is one.
pub fn gelu(
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
            let bound = |index: usize, name: &str, none: f32| match node.input(index) {
                None => Ok(node.float(name).unwrap_or(none).into()),
                given => {
                    let given = import.numbers(given).and_then(|value| value.single());
                    given.ok_or_else(|| Refusal::from("its bounds are computed by the network"))
                }
            };
            clamp(bound(1, "min", f32::MIN)?, bound(2, "max", f32::MAX)?)?
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
        "Abs" => Function::Abs,
        "Exp" => Function::Exp,
        "Log" => Function::Log,
        "Reciprocal" => Function::Reciprocal,
        "Softplus" => Function::Softplus,
        "Sqrt" => Function::Sqrt,
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

/// Functions that are made of others: `Selu`, `Celu` and `Mish`.
pub fn compound(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let (name, x) = (node.name(), import.tensor(node.required(0)?)?);
    let above_zero = |attribute: &str, default: f32| match node.float(attribute).unwrap_or(default) {
        value if value > 0.0 && value.is_finite() => Ok(value),
        value => Err(Refusal::from(format!(
            "its {attribute} of {value} is not above zero, which is not supported"
        ))),
    };
    match node.kind() {
        // gamma · (x > 0 ? x : alpha · (eˣ − 1))
        "Selu" => {
            let [alpha, gamma] = [above_zero("alpha", SELU[0])?, above_zero("gamma", SELU[1])?];
            let x = map(import, &format!("{name}.elu"), x, Function::Elu { alpha })?;
            Ok(Value::Pending(Pending::Scaled { x, factor: f64::from(gamma) }))
        }
        // x > 0 ? x : alpha · (e^(x / alpha) − 1)
        "Celu" => {
            let alpha = above_zero("alpha", 1.0)?;
            let x = scaled(import, &format!("{name}.scaled"), &x, f64::from(alpha.recip()))?;
            let x = map(import, &format!("{name}.elu"), x, Function::Elu { alpha: 1.0 })?;
            Ok(Value::Pending(Pending::Scaled { x, factor: f64::from(alpha) }))
        }
        // x · tanh(ln(1 + eˣ))
        _ => {
            let gate = map(import, &format!("{name}.softplus"), x.clone(), Function::Softplus)?;
            let gate = map(import, &format!("{name}.tanh"), gate, Function::Tanh)?;
            multiplied(import, &name, &x, &gate).map(Value::Tensor)
        }
    }
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
pub fn bounded(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
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

/// `PRelu`: `max(x, 0) + w·min(x, 0)`, with a weight for every channel or one for all.
pub fn parametric_relu(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let name = node.name();
    let x = import.tensor(node.required(0)?)?;
    let Value::Weight(slope) = import.value(node.required(1)?)? else {
        return Err("its slope is no weight of the file".into());
    };
    let (x, channels) = spread_over(import, &name, x, &slope.dims)?;
    let slope = import.operand(&slope)?.id;
    let len = x.view.len();
    let negative = Function::Clamp { least: f32::NEG_INFINITY, most: 0.0 };
    let above = map(import, &format!("{name}.above"), x.clone(), Function::Relu)?;
    let below = map(import, &format!("{name}.below"), x, negative)?;
    let below =
        import.pushed(&format!("{name}.product"), OpKind::MulChannel(channels), &[below.id, slope])?;
    import.push(&name, OpKind::Add { len }, &[above.id, below], above.view)
}

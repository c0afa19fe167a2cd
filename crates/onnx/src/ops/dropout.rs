//! Dropout, of elements and of whole samples or planes: one operation, or as exporters write it in parts,
//! `x · (random < kept) / kept` with random numbers of the mask's extents.

use elbowroom_graph::op::OpKind;
use elbowroom_graph::{Mode, Shape, Var};
use elbowroom_ir::TensorId;

use super::attention::prepare_dropout;
use super::elementwise::spread_over;
use super::functions::close;
use crate::error::Refusal;
use crate::import::Import;
use crate::node::Node;
use crate::value::{Mask, Pending, Tensor, Value};

/// `Dropout`
pub fn dropout(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let from = node.required(0)?;
    let given = import.constant(node.input(1)).and_then(|ratio| ratio.single());
    let ratio = given.or_else(|| node.float("ratio").map(f64::from)).unwrap_or(0.5);
    let value = import.value(from)?;
    if ratio == 0.0 {
        return Ok(value);
    }
    if import.b.mode() != Mode::Training {
        prepare_dropout(import, &value)?;
        return Ok(value);
    }
    let x = import.tensor(from)?;
    let id = dropped(import, &node.name(), x.id, x.view.len(), ratio)?;
    Ok(Value::Tensor(Tensor { id, ..x }))
}

fn dropped(
    import: &mut Import<'_>,
    name: &str,
    x: TensorId,
    len: usize,
    ratio: f64,
) -> Result<TensorId, Refusal> {
    let var = Var { id: x, shape: Shape::new(&[len]) };
    Ok(import.b.dropout(name, var, ratio as f32)?.id)
}

/// `RandomUniformLike`: numbers from 0 to 1 of the extents of its input.
pub fn random(import: &Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    if node.float("low").unwrap_or(0.0) != 0.0 || node.float("high").unwrap_or(1.0) != 1.0 {
        return Err("only random numbers from 0 to 1, of which a mask is made, are supported".into());
    }
    Ok(Value::Pending(Pending::Random { dims: import.dims(node.required(0)?)? }))
}

/// Whether random numbers are compared.
pub fn is_mask(import: &Import<'_>, node: &Node<'_>) -> Result<bool, Refusal> {
    Ok(matches!(import.value(node.required(0)?)?, Value::Pending(Pending::Random { .. })))
}

/// `Less`: a random mask.
pub fn mask(import: &Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let kept = import.constant(node.input(1)).and_then(|kept| kept.single());
    match (import.value(node.required(0)?)?, kept) {
        (Value::Pending(Pending::Random { dims }), Some(kept)) if kept > 0.0 && kept <= 1.0 => {
            Ok(Value::Pending(Pending::Mask(Mask { dims, kept, factor: 1.0 })))
        }
        _ => Err("only random numbers are compared, with a share above 0 that is known".into()),
    }
}

/// A tensor times a random mask: of its own extents, or of samples, planes or rows that are kept as a whole.
pub fn masked(import: &mut Import<'_>, name: &str, x: Tensor, mask: &Mask) -> Result<Value, Refusal> {
    let Mask { dims, kept, factor } = mask;
    // The op divides what it keeps by its share.
    let rest = factor * kept;
    let y = match import.b.mode() {
        Mode::Training if *kept < 1.0 => {
            if *dims == x.dims() {
                let id = dropped(import, name, x.id, x.view.len(), 1.0 - kept)?;
                Tensor { id, ..x }
            } else {
                let (x, channels) = spread_over(import, name, x, dims)?;
                let len = channels.channels;
                let ones = import.pushed(&format!("{name}.ones"), OpKind::Fill { len, value: 1.0 }, &[])?;
                let mask = dropped(import, &format!("{name}.kept"), ones, len, 1.0 - kept)?;
                let id = import.pushed(name, OpKind::MulChannel(channels), &[x.id, mask])?;
                Tensor { id, ..x }
            }
        }
        _ => x,
    };
    Ok(match close(rest, 1.0) {
        true => Value::Tensor(y),
        false => Value::Pending(Pending::Scaled { x: y, factor: rest }),
    })
}

//! Dense layers: products of rows with a weight.

use elbowroom_graph::op::{OpKind, Product};
use elbowroom_ir::TensorId;

use super::elementwise::spread_sum;
use super::{attention, batched};
use crate::error::Refusal;
use crate::import::{Import, expect_size};
use crate::node::Node;
use crate::value::{Pending, Stored, Tensor, Value};
use crate::view::View;

/// `x·w` of rows of `x` and a weight `[inputs, outputs]`, and a bias `[outputs]`. Rows keep their order, whatever it is.
pub fn product(
    import: &mut Import<'_>,
    name: &str,
    x: Tensor,
    weight: &Stored,
    bias: Option<TensorId>,
) -> Result<Tensor, Refusal> {
    let &[inputs, outputs] = weight.seen().as_slice() else {
        return Err(
            format!("the weight `{}` of extents {:?} is no matrix", weight.name, weight.seen()).into()
        );
    };
    let rank = x.dims().len();
    let innermost =
        |x: &Tensor| rank.checked_sub(1).and_then(|last| x.view.run(&[last])).is_some_and(|run| run[2] == 1);
    let x = if innermost(&x) { x } else { import.dense(name, x)? };
    if x.dims().last() != Some(&inputs) {
        return Err(format!(
            "rows of extents {:?} cannot be multiplied by a weight of {inputs}×{outputs}",
            x.dims()
        )
        .into());
    }
    let view = match x.view.narrowed_to(rank - 1, outputs) {
        Some(view) => view,
        None => View::dense(&[x.view.len() / inputs, outputs]),
    };
    expect_size(&view)?;
    let weight = import.layer(weight)?;
    let product = Product { rows: x.view.len() / inputs, inputs, outputs };
    let operands: Vec<TensorId> = [x.id, weight].into_iter().chain(bias).collect();
    let id = import.pushed(name, OpKind::Linear { product, bias: bias.is_some() }, &operands)?;
    Ok(Tensor { id, view, classes: false })
}

/// `Gemm`
pub fn gemm(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let one = |name: &str| node.float(name).is_none_or(|value| value == 1.0);
    if !one("alpha") || (node.input(2).is_some() && !one("beta")) || node.int("transA").unwrap_or(0) != 0 {
        return Err("only alpha = beta = 1 and transA = 0 are supported".into());
    }
    let second = node.required(1)?;
    let transposes = node.int("transB").unwrap_or(0) != 0;
    let Value::Weight(mut weight) = import.value(second)? else {
        return of_tensors(import, node, second, transposes);
    };
    weight.transposed ^= transposes;
    let outputs = weight.seen().last().copied().unwrap_or(0);
    let x = import.tensor(node.required(0)?)?;
    // Parameters come in the order weight, bias.
    import.layer(&weight)?;
    let bias =
        node.input(2).map(|name| import.vector(name, outputs, elbowroom_graph::Role::Weight)).transpose()?;
    product(import, &node.name(), x, &weight, bias).map(Value::Tensor)
}

/// `Gemm` whose second operand the network computes, as a weight of normalized rows.
fn of_tensors(
    import: &mut Import<'_>,
    node: &Node<'_>,
    second: &str,
    transposes: bool,
) -> Result<Value, Refusal> {
    let (name, a, mut b) = (node.name(), import.tensor(node.required(0)?)?, import.tensor(second)?);
    if [a.dims().len(), b.dims().len()] != [2, 2] {
        return Err("its operands are no matrices".into());
    }
    if transposes {
        b.view = b.view.transposed();
    }
    let Some(bias) = node.input(2) else { return batched::product(import, &name, a, b).map(Value::Tensor) };
    let product = format!("{name}.product");
    let y = batched::product(import, &product, a, b)?;
    let bias = import.dense_input(bias)?;
    spread_sum(import, [&name, &product], y, &bias).map(Value::Tensor)
}

/// `MatMul`: with a matrix of the file, or of two tensors.
pub fn matmul(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let names = [node.required(0)?, node.required(1)?];
    match import.value(names[1])? {
        Value::Weight(weight) if weight.dims.len() == 2 => {
            let x = import.tensor(names[0])?;
            Ok(Value::Pending(Pending::Product { x, weight }))
        }
        _ => attention::product(import, node, names),
    }
}

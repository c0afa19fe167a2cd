//! Attention: softmax(factor · q·kᵀ + mask)·v, found from the products and the softmax that exporters write, or given as one operation.

use elbowroom_graph::op::{OpKind, Queries};

use super::functions::close;
use crate::constant::Constant;
use crate::error::Refusal;
use crate::import::Import;
use crate::node::Node;
use crate::value::{Pending, Tensor, Value};
use crate::view::View;

/// A tensor and a factor that a product takes over.
fn factored(import: &mut Import<'_>, name: &str) -> Result<(Tensor, f64), Refusal> {
    match import.value(name)? {
        Value::Pending(Pending::Scaled { x, factor }) => Ok((x, factor)),
        _ => Ok((import.tensor(name)?, 1.0)),
    }
}

/// A product of two tensors: scores, or probabilities times values.
pub fn product(import: &mut Import<'_>, node: &Node<'_>, names: [&str; 2]) -> Result<Value, Refusal> {
    if let Value::Pending(Pending::Scores { q, k, factor, causal, normalized }) = import.value(names[0])? {
        if !normalized {
            return Err("it multiplies scores of attention that no softmax has normalized".into());
        }
        let v = import.tensor(names[1])?;
        return attend(import, &node.name(), [q, k, v], factor, causal).map(Value::Tensor);
    }
    let (q, first) = factored(import, names[0])?;
    let (k, second) = factored(import, names[1])?;
    let rank = k.dims().len();
    if rank != q.dims().len() || !(3..=4).contains(&rank) {
        return Err(format!(
            "products of two tensors are supported in attention only, and these have extents {:?} and {:?}",
            q.dims(),
            k.dims()
        )
        .into());
    }
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 1, rank - 2);
    let k = Tensor { view: k.view.permuted(&order), ..k };
    Ok(Value::Pending(Pending::Scores { q, k, factor: first * second, causal: false, normalized: false }))
}

/// Scores with known numbers added.
pub fn masked(scores: &Value, mask: &Constant) -> Result<Value, Refusal> {
    let Value::Pending(Pending::Scores { q, k, factor, normalized: false, .. }) = scores else {
        return Err("it adds numbers to probabilities of attention".into());
    };
    let causal = causal(mask)?;
    let (q, k, factor) = (q.clone(), k.clone(), *factor);
    Ok(Value::Pending(Pending::Scores { q, k, factor, causal, normalized: false }))
}

/// Whether a mask is the causal one; otherwise it is none at all.
fn causal(mask: &Constant) -> Result<bool, Refusal> {
    let causal = is_causal(mask);
    match causal || mask.values.iter().all(|&value| value == 0.0) {
        true => Ok(causal),
        false => Err("of masks of attention, only the causal one is supported".into()),
    }
}

/// The softmax of scores.
pub fn softmax(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let Value::Pending(Pending::Scores { q, k, factor, causal, normalized: false }) =
        import.value(node.required(0)?)?
    else {
        return Err(
            "a softmax is supported in attention and, with the loss cross-entropy, as the end of the network"
                .into(),
        );
    };
    let rank = q.dims().len();
    let default = if import.model.opset() >= 13 { -1 } else { 1 };
    if node.axis(node.int("axis").unwrap_or(default), rank)? != rank - 1 {
        return Err("its axis is not the last one".into());
    }
    Ok(Value::Pending(Pending::Scores { q, k, factor, causal, normalized: true }))
}

/// Exporters ask where the probabilities of a row whose keys are all masked are no numbers. The masks here leave a key to every row.
pub fn is_nan(import: &Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    match import.value(node.required(0)?)? {
        Value::Pending(Pending::Scores { normalized: true, .. }) => {
            Ok(Value::Constant(Constant::scalar(0.0, true)))
        }
        _ => Err("it is supported for probabilities of attention, which are numbers".into()),
    }
}

/// `[batch, heads, tokens, width]` of a tensor of four axes, or of three, whose first one has heads and batch if it was made of both.
fn by_heads(x: &Tensor) -> Result<View, Refusal> {
    match x.dims()[..] {
        [_, _, _, _] => Ok(x.view.clone()),
        [both, tokens, width] => {
            let batch = x.view.first_factor(0);
            x.view
                .reshaped(&[batch, both / batch, tokens, width])
                .ok_or_else(|| "its heads cannot be told apart".into())
        }
        _ => Err("attention has three or four axes".into()),
    }
}

/// The op. Its operands lie as `[batch, tokens, heads, width]`, which is how dense layers leave them.
fn attend(
    import: &mut Import<'_>,
    name: &str,
    [q, k, v]: [Tensor; 3],
    factor: f64,
    causal: bool,
) -> Result<Tensor, Refusal> {
    let rank = q.dims().len();
    let mut operands = Vec::new();
    let mut extents = Vec::new();
    for (part, x) in ["q", "k", "v"].into_iter().zip([&q, &k, &v]) {
        let view = by_heads(x)?.permuted(&[0, 2, 1, 3]);
        let dims = view.dims();
        let x = import.dense(&format!("{name}.{part}"), Tensor { view, ..x.clone() })?;
        operands.push(x.id);
        extents.push([dims[0], dims[1], dims[2], dims[3]]);
    }
    let [[batch, queries, heads, width], [b, keys, shared, w], values] = [extents[0], extents[1], extents[2]];
    if values != [b, keys, shared, w]
        || b != batch
        || w != width
        || shared == 0
        || !heads.is_multiple_of(shared)
    {
        return Err(format!(
            "attention takes queries [batch, heads, tokens, width] with keys and values of the same batch and width, and these have extents {:?}, \
             {:?} and {:?}",
            q.dims(),
            k.dims(),
            v.dims()
        )
        .into());
    }
    // The op divides by √width.
    let rest = factor * (width as f64).sqrt();
    if !close(rest, 1.0) {
        let len = q.view.len();
        operands[0] = import.pushed(
            &format!("{name}.scale"),
            OpKind::Scale { len, factor: rest as f32 },
            &operands[..1],
        )?;
    }
    let kind = OpKind::CrossAttention(Queries { batch, queries, keys, heads, shared, width, causal });
    let id = import.pushed(name, kind, &operands)?;
    let view = View::dense(&[batch, queries, heads, width]).permuted(&[0, 2, 1, 3]);
    let view = match rank {
        3 => view.reshaped(&[batch * heads, queries, width]).ok_or("its heads cannot be joined")?,
        _ => view,
    };
    Ok(Tensor { id, view, classes: false })
}

/// `Attention`: of opset 23.
pub fn whole(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    if (4..node.0.inputs.len()).any(|index| node.input(index).is_some()) {
        return Err("earlier keys and values as inputs are not supported".into());
    }
    let masked = match node.input(3) {
        None => false,
        Some(name) => {
            let mask = import.constant(Some(name)).ok_or("its mask is computed by the network")?;
            // Truth values say which keys a query sees.
            let added = |seen: f64| if seen == 0.0 { f64::NEG_INFINITY } else { 0.0 };
            causal(&if mask.whole { mask.map(false, added) } else { mask })?
        }
    };
    if node.float("softcap").is_some_and(|cap| cap != 0.0)
        || node.int("qk_matmul_output_mode").is_some_and(|mode| mode != 0)
    {
        return Err("softcap and other results than the first are not supported".into());
    }
    let [mut q, mut k, mut v] = [
        import.tensor(node.required(0)?)?,
        import.tensor(node.required(1)?)?,
        import.tensor(node.required(2)?)?,
    ];
    let joined = q.dims().len() == 3;
    if joined {
        let heads = |name: &str| {
            node.int(name).and_then(|heads| usize::try_from(heads).ok()).filter(|&heads| heads > 0)
        };
        let (own, shared) = (heads("q_num_heads"), heads("kv_num_heads"));
        let (Some(own), Some(shared)) = (own, shared) else {
            return Err("it states no number of heads".into());
        };
        for (x, heads) in [(&mut q, own), (&mut k, shared), (&mut v, shared)] {
            let dims = x.dims();
            let split = x.view.reshaped(&[dims[0], dims[1], heads, dims[2] / heads]);
            x.view = split.ok_or("its columns cannot be divided among its heads")?.permuted(&[0, 2, 1, 3]);
        }
    }
    let width = q.dims().last().copied().unwrap_or(1) as f64;
    let factor = node.float("scale").map_or_else(|| 1.0 / width.sqrt(), f64::from);
    let causal = masked || node.int("is_causal").unwrap_or(0) != 0;
    let y = attend(import, &node.name(), [q, k, v], factor, causal)?;
    if !joined {
        return Ok(Value::Tensor(y));
    }
    let dims = y.dims();
    let view = y.view.permuted(&[0, 2, 1, 3]).reshaped(&[dims[0], dims[2], dims[1] * dims[3]]);
    Ok(Value::Tensor(Tensor { view: view.ok_or("its heads cannot be joined")?, ..y }))
}

/// Whether known numbers let a token see those before it and itself, and no others.
fn is_causal(mask: &Constant) -> bool {
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

//! Attention: softmax(factor · q·kᵀ + mask)·v, found from the products and the softmax that exporters write, or given as one operation.

use elbowroom_graph::op::{OpKind, Queries};
use elbowroom_ir::TensorId;

use super::elementwise::{LOW, spread_sum};
use super::functions::close;
use super::{batched, functions};
use crate::constant::{Constant, elements};
use crate::error::Refusal;
use crate::import::Import;
use crate::node::Node;
use crate::value::{Pending, Scores, Tensor, Value};
use crate::view::View;

/// A tensor and a factor that a product takes over.
fn factored(import: &mut Import<'_>, name: &str) -> Result<(Tensor, f64), Refusal> {
    match import.value(name)? {
        Value::Pending(Pending::Scaled { x, factor }) => Ok((x, factor)),
        _ => Ok((import.tensor(name)?, 1.0)),
    }
}

/// A product of two tensors: scores, probabilities times values, or another one.
pub fn product(import: &mut Import<'_>, node: &Node<'_>, names: [&str; 2]) -> Result<Value, Refusal> {
    if let Value::Pending(Pending::Scores(scores)) = import.value(names[0])?
        && scores.normalized
    {
        let v = import.tensor(names[1])?;
        return mixture(import, [&node.name(), names[0]], scores, v).map(Value::Tensor);
    }
    let (q, first) = factored(import, names[0])?;
    let (k, second) = factored(import, names[1])?;
    let (own, other) = (q.dims(), k.dims());
    let rank = own.len();
    // Heads are part of the batch, or the axis behind it.
    let of_attention = (3..=4).contains(&rank)
        && rank == other.len()
        && own[..rank - 2] == other[..rank - 2]
        && own[rank - 1] == other[rank - 2];
    if of_attention {
        let (k, factor) = (Tensor { view: k.view.transposed(), ..k }, first * second);
        return Ok(Value::Pending(Pending::Scores(Scores {
            q,
            k,
            factor,
            causal: false,
            normalized: false,
        })));
    }
    let [a, b] = [import.tensor(names[0])?, import.tensor(names[1])?];
    batched::product(import, &node.name(), a, b).map(Value::Tensor)
}

/// Whether a mask is the causal one, or none at all, of scores that have no other.
pub fn knows(scores: &Scores, mask: &Constant) -> bool {
    let dims = [scores.q.dims(), scores.k.dims()].map(|dims| dims[dims.len() - 2]);
    let is_none = mask.values.iter().all(|&value| value == 0.0);
    !scores.normalized && !scores.causal && (is_none || mask.dims.ends_with(&dims) && is_causal(mask))
}

/// Scores with a mask that it [`knows`].
pub fn masked(scores: &Scores, mask: &Constant) -> Value {
    Value::Pending(Pending::Scores(Scores { causal: is_causal(mask), ..scores.clone() }))
}

/// The softmax of scores, or of any tensor.
pub fn softmax(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let from = node.required(0)?;
    let default = if batched::joins_axes(import) { 1 } else { -1 };
    let axis = node.int("axis").unwrap_or(default);
    if let Value::Pending(Pending::Scores(scores)) = import.value(from)? {
        let rank = scores.q.dims().len();
        if !scores.normalized && node.axis(axis, rank)? == rank - 1 {
            return Ok(Value::Pending(Pending::Scores(Scores { normalized: true, ..scores })));
        }
    }
    let x = import.tensor(from)?;
    let axis = node.axis(axis, x.dims().len())?;
    batched::softmax(import, &node.name(), x, axis).map(Value::Tensor)
}

/// Exporters ask where the probabilities of a row whose keys are all masked are no numbers. Here masks leave a key to every row.
pub fn is_nan(import: &Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let probabilities = match import.value(node.required(0)?)? {
        Value::Pending(Pending::Scores(scores)) => scores.normalized,
        Value::Tensor(x) => {
            import.maker(x.id).is_some_and(|maker| matches!(maker.kind, OpKind::Softmax { .. }))
        }
        _ => false,
    };
    match probabilities {
        true => Ok(Value::Constant(Constant::scalar(0.0, true))),
        false => Err("it is supported for probabilities of attention, which are numbers".into()),
    }
}

/// The causal mask as a tensor, which all layers share.
fn causal_mask(import: &mut Import<'_>, [rows, columns]: [usize; 2]) -> Result<Tensor, Refusal> {
    let seen = |at: usize| if at % columns <= at / columns { 0.0 } else { f64::NEG_INFINITY };
    let count = elements(&[rows, columns]).ok_or("its mask is too large")?;
    let values = (0..count).map(seen).collect();
    let mask = Constant { dims: vec![rows, columns], values, whole: false };
    import.frozen(&format!("causal.{rows}.{columns}"), &mask)
}

/// Creates what dropping the probabilities of scores needs in training: networks have the same tensors in all modes.
pub fn prepare_dropout(import: &mut Import<'_>, value: &Value) -> Result<(), Refusal> {
    let Value::Pending(Pending::Scores(scores)) = value else { return Ok(()) };
    if scores.causal {
        let dims = Pending::Scores(scores.clone()).dims();
        causal_mask(import, [dims[dims.len() - 2], dims[dims.len() - 1]])?;
    }
    Ok(())
}

/// The ops of scores that are no part of an attention with one op.
pub fn realize(import: &mut Import<'_>, name: &str, scores: Scores) -> Result<Tensor, Refusal> {
    let Scores { q, k, factor, causal, normalized } = scores;
    let step = |step: &str, is_last: bool| if is_last { name.to_owned() } else { format!("{name}.{step}") };
    let q = scaled(import, &step("queries", false), q, factor)?;
    let k = Tensor { view: k.view.transposed(), ..k };
    let mut y = batched::product(import, &step("scores", !causal && !normalized), q, k)?;
    if causal {
        let dims = y.dims();
        let mask = causal_mask(import, [dims[dims.len() - 2], dims[dims.len() - 1]])?;
        y = spread_sum(import, [&step("masked", !normalized), name], y, &mask)?;
    }
    if normalized {
        let last = y.dims().len() - 1;
        y = batched::softmax(import, name, y, last)?;
    }
    Ok(y)
}

/// `[batch, heads, tokens, width]` of a tensor of four axes, or of three, whose first one has heads and batch if it was made of both.
fn by_heads(x: &Tensor) -> Option<View> {
    match x.dims()[..] {
        [_, _, _, _] => Some(x.view.clone()),
        [both, tokens, width] => {
            let batch = x.view.first_factor(0);
            x.view.reshaped(&[batch, both / batch, tokens, width])
        }
        _ => None,
    }
}

/// Probabilities times values: attention as one op where its operands have the extents of one, and as its parts otherwise.
fn mixture(
    import: &mut Import<'_>,
    [name, of_scores]: [&str; 2],
    scores: Scores,
    v: Tensor,
) -> Result<Tensor, Refusal> {
    match Layout::of([&scores.q, &scores.k, &v], scores.causal) {
        Some(layout) => attend(import, name, layout, scores, v),
        None => {
            let p = import.realized(of_scores, Value::Pending(Pending::Scores(scores)))?;
            batched::product(import, name, p, v)
        }
    }
}

/// How the operands of attention as one op lie in memory: `[batch, tokens, heads, width]`, which is how dense layers leave them.
struct Layout {
    extents: Queries,
    views: [View; 3],
}

impl Layout {
    /// That of queries, keys and values of three or four axes; `None` if they have not the extents of such an op.
    fn of(operands: [&Tensor; 3], causal: bool) -> Option<Self> {
        let by_tokens = |x: &Tensor| Some(by_heads(x)?.permuted(&[0, 2, 1, 3]));
        let [q, k, v] = operands.map(by_tokens);
        let views = [q?, k?, v?];
        let [q, k, v] = views.each_ref().map(View::dims);
        let (&[batch, queries, heads, width], &[b, keys, shared, w]) = (q.as_slice(), k.as_slice()) else {
            return None;
        };
        let fits = v == k && b == batch && w == width && shared > 0 && heads.is_multiple_of(shared);
        fits.then_some(Self {
            extents: Queries { batch, queries, keys, heads, shared, width, causal },
            views,
        })
    }
}

/// Attention as one op.
fn attend(
    import: &mut Import<'_>,
    name: &str,
    layout: Layout,
    scores: Scores,
    v: Tensor,
) -> Result<Tensor, Refusal> {
    let Layout { extents, views } = layout;
    let rank = scores.q.dims().len();
    let mut operands = Vec::new();
    for ((part, x), view) in ["q", "k", "v"].into_iter().zip([scores.q, scores.k, v]).zip(views) {
        let x = import.dense(&format!("{name}.{part}"), Tensor { view, ..x })?;
        operands.push(x);
    }
    let Queries { batch, queries, heads, width, .. } = extents;
    // The op divides by √width.
    let rest = scores.factor * (width as f64).sqrt();
    operands[0] = scaled(import, &format!("{name}.scale"), operands[0].clone(), rest)?;
    let ids: Vec<TensorId> = operands.iter().map(|x| x.id).collect();
    let id = import.pushed(name, OpKind::CrossAttention(extents), &ids)?;
    let view = View::dense(&[batch, queries, heads, width]).permuted(&[0, 2, 1, 3]);
    let view = match rank {
        3 => view.reshaped(&[batch * heads, queries, width]).ok_or("its heads cannot be joined")?,
        _ => view,
    };
    Ok(Tensor { id, view, classes: false })
}

/// A tensor times a factor that is not one.
fn scaled(import: &mut Import<'_>, name: &str, x: Tensor, factor: f64) -> Result<Tensor, Refusal> {
    match close(factor, 1.0) {
        true => Ok(x),
        false => functions::scaled(import, name, &x, factor),
    }
}

/// `Attention`: of opset 23.
pub fn whole(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    if (4..node.0.inputs.len()).any(|index| node.input(index).is_some()) {
        return Err("earlier keys and values as inputs are not supported".into());
    }
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
    let causal = node.int("is_causal").unwrap_or(0) != 0;
    let scores = Scores { q, k, factor, causal, normalized: true };
    let name = node.name();
    let of_scores = format!("{name}.probabilities");
    let y = match node.input(3) {
        None => mixture(import, [&name, &of_scores], scores, v)?,
        Some(mask) => with_mask(import, [&name, &of_scores], scores, mask, v)?,
    };
    if !joined {
        return Ok(Value::Tensor(y));
    }
    let dims = y.dims();
    let view = y.view.permuted(&[0, 2, 1, 3]).reshaped(&[dims[0], dims[2], dims[1] * dims[3]]);
    Ok(Value::Tensor(Tensor { view: view.ok_or("its heads cannot be joined")?, ..y }))
}

/// Attention with a mask: known numbers, truth values that say which keys a query sees, or a bias that the network computes.
fn with_mask(
    import: &mut Import<'_>,
    [name, of_scores]: [&str; 2],
    scores: Scores,
    mask: &str,
    v: Tensor,
) -> Result<Tensor, Refusal> {
    let added = |seen: f64| if seen == 0.0 { f64::NEG_INFINITY } else { 0.0 };
    let mask_name = format!("{name}.mask");
    let plain = Scores { normalized: false, ..scores };
    let bias = match import.constant(Some(mask)) {
        Some(known) => {
            let known = if known.whole { known.map(false, added) } else { known };
            if knows(&plain, &known) {
                let scores = Scores { causal: is_causal(&known), normalized: true, ..plain };
                return mixture(import, [name, of_scores], scores, v);
            }
            import.frozen(&mask_name, &known)?
        }
        None => import.dense_input(mask)?,
    };
    let y = realize(import, &format!("{name}.scores"), plain)?;
    let y = spread_sum(import, [&format!("{name}.masked"), name], y, &bias)?;
    let last = y.dims().len() - 1;
    let p = batched::softmax(import, of_scores, y, last)?;
    batched::product(import, name, p, v)
}

/// Whether known numbers let a token see those before it and itself, and no others.
fn is_causal(mask: &Constant) -> bool {
    let &[.., rows, columns] = mask.dims.as_slice() else { return false };
    let expected = |row: usize, column: usize, value: f64| match column <= row {
        true => value == 0.0,
        false => value <= LOW,
    };
    rows == columns
        && mask
            .values
            .iter()
            .enumerate()
            .all(|(at, &value)| expected(at / columns % rows, at % columns, value))
}

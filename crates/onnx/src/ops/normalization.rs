//! Normalizations.

use elbowroom_graph::op::{Channels, Groups, OpKind, Response};
use elbowroom_graph::{Mode, Role};

use crate::constant::Constant;
use crate::error::Refusal;
use crate::import::Import;
use crate::node::Node;
use crate::value::{Tensor, Value};

const EPSILON: f32 = 1e-5;

/// Batch normalization: in training with the batch's own statistics, whatever mode it was exported in, as after `model.train()`.
pub fn batch(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let x = import.tensor(node.required(0)?)?;
    let dims = x.dims();
    if dims.len() < 2 {
        return Err(format!("it takes [batch, channels, …], and its input has extents {dims:?}").into());
    }
    let x = if x.view.run(&[1]).is_some() { x } else { import.dense(&node.name(), x)? };
    let Some([batch, _, spatial]) = x.view.run(&[1]) else {
        return Err("its channels are no axis of memory".into());
    };
    let mut channels = Channels { batch, channels: dims[1], spatial };
    if dims[1] == 1 {
        channels = Channels { batch: 1, channels: 1, spatial: x.view.len() };
    }
    let epsilon = node.float("epsilon").unwrap_or(EPSILON);
    let gamma = import.vector(node.required(1)?, dims[1], Role::Weight)?;
    let beta = import.vector(node.required(2)?, dims[1], Role::Weight)?;
    let name = node.name();
    // Without statistics of its own ([`crate::normalized`]), it takes the batch's in all modes.
    if node.input(3).is_none() {
        return import.push(&name, OpKind::BatchNorm { channels, epsilon }, &[x.id, gamma, beta], x.view);
    }
    let mean = import.vector(node.required(3)?, dims[1], Role::Statistic)?;
    let variance = import.vector(node.required(4)?, dims[1], Role::Statistic)?;
    if import.b.mode() != Mode::Training {
        let kind = OpKind::BatchNormInference { channels, epsilon };
        return import.push(&name, kind, &[x.id, gamma, beta, mean, variance], x.view);
    }
    let made = import.b.push(name.clone(), OpKind::BatchNorm { channels, epsilon }, &[x.id, gamma, beta])?;
    // The file states the weight of the old statistics. Rounded, because 1 − 0.9 is not 0.1 in floats.
    let kept = f64::from(node.float("momentum").unwrap_or(0.9));
    let momentum = ((1.0 - kept) * 1e6).round() / 1e6;
    let update =
        OpKind::RunningUpdate { channels: dims[1], count: channels.per_channel(), momentum: momentum as f32 };
    import.b.push(format!("{name}.update"), update, &[made[1].id, made[2].id, mean, variance])?;
    Ok(Value::Tensor(Tensor { id: made[0].id, ..x }))
}

/// Normalization of rows: of layers, or by the root mean square.
pub fn rows(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let x = import.tensor(node.required(0)?)?;
    let dims = x.dims();
    let axis = node.axis(node.int("axis").unwrap_or(-1), dims.len())?;
    let axes: Vec<usize> = (axis..dims.len()).collect();
    let last = |x: &Tensor| x.view.run(&axes).is_some_and(|run| run[2] == 1);
    let x = if last(&x) { x } else { import.dense(&node.name(), x)? };
    let width: usize = dims[axis..].iter().product();
    let rows = x.view.len() / width.max(1);
    let epsilon = node.float("epsilon").unwrap_or(EPSILON);
    let gamma = import.vector(node.required(1)?, width, Role::Weight)?;
    let name = node.name();
    if node.kind() == "RMSNormalization" {
        return import.push(&name, OpKind::RmsNorm { rows, width, epsilon }, &[x.id, gamma], x.view);
    }
    let beta = match node.input(2) {
        Some(beta) => import.vector(beta, width, Role::Weight)?,
        None => {
            let zeros = Constant { dims: vec![width], values: vec![0.0; width], whole: false };
            import.frozen(&format!("{name}.zeros"), &zeros)?.id
        }
    };
    import.push(&name, OpKind::LayerNorm { rows, width, epsilon }, &[x.id, gamma, beta], x.view)
}

/// Normalization of groups of channels of every image; of single channels where the node says nothing of groups.
pub fn groups(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let x = import.dense_input(node.required(0)?)?;
    let dims = x.dims();
    let &[batch, channels, ..] = dims.as_slice() else {
        return Err(format!("it takes [batch, channels, …], and its input has extents {dims:?}").into());
    };
    let groups = match node.kind() {
        "GroupNormalization" => usize::try_from(node.int("num_groups").unwrap_or(0)).unwrap_or(0),
        _ => channels,
    };
    if groups == 0 || !channels.is_multiple_of(groups) {
        return Err(format!("{groups} groups do not divide {channels} channels").into());
    }
    let spatial = x.view.len() / (batch * channels).max(1);
    let groups = Groups { channels: Channels { batch, channels, spatial }, groups };
    let epsilon = node.float("epsilon").unwrap_or(EPSILON);
    let gamma = import.vector(node.required(1)?, channels, Role::Weight)?;
    let beta = import.vector(node.required(2)?, channels, Role::Weight)?;
    import.push(&node.name(), OpKind::GroupNorm { groups, epsilon }, &[x.id, gamma, beta], x.view)
}

/// Local response normalization.
pub fn response(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let x = import.dense_input(node.required(0)?)?;
    let dims = x.dims();
    let &[batch, channels, ..] = dims.as_slice() else {
        return Err(format!("it takes [batch, channels, …], and its input has extents {dims:?}").into());
    };
    let size = usize::try_from(node.int("size").unwrap_or(0)).unwrap_or(0);
    if size % 2 == 0 || size > channels.saturating_mul(2) {
        return Err(
            format!("a size of {size} is not supported; odd ones are, up to twice the channels").into()
        );
    }
    let extents = Channels { batch, channels, spatial: x.view.len() / (batch * channels).max(1) };
    // The file divides by the size.
    let alpha = node.float("alpha").unwrap_or(1e-4) / size as f32;
    let (beta, k) = (node.float("beta").unwrap_or(0.75), node.float("bias").unwrap_or(1.0));
    let response = Response { channels: extents, size, k, alpha, beta };
    import.push(&node.name(), OpKind::ResponseNorm(response), &[x.id], x.view)
}

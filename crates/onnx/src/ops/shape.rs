//! Reshapes and transpositions, which move nothing.

use crate::constant::Constant;
use crate::error::Refusal;
use crate::import::Import;
use crate::node::Node;
use crate::value::{Stored, Tensor, Value};

/// The extents of a tensor are known when the network is built.
pub fn shape(import: &Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let dims = import.dims(node.required(0)?)?;
    if node.kind() == "Size" {
        return Ok(Value::Constant(Constant::scalar(dims.iter().product::<usize>() as f64, true)));
    }
    let rank = dims.len() as i64;
    let bound = |given: Option<i64>, none: i64| {
        let at = given.unwrap_or(none);
        (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize
    };
    let (start, end) = (bound(node.int("start"), 0), bound(node.int("end"), rank));
    Ok(Value::Constant(Constant::list(dims[start..end.max(start)].iter().copied())))
}

/// Other extents of the same elements.
pub fn reshape(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let name = node.required(0)?;
    let given = import.constant(node.input(1));
    if node.input(1).is_some() && given.is_none() {
        return Err(
            "its second input is computed by the network; export it with fixed sizes other than the batch"
                .into(),
        );
    }
    if let Value::Weight(stored) = import.value(name)? {
        if stored.transposed {
            return Err(format!("it reshapes the transposed weight `{}`", stored.name).into());
        }
        let dims = node.reshape(&stored.dims, given.as_ref())?;
        return Ok(Value::Weight(Stored { dims, ..stored }));
    }
    let tensor = import.tensor(name)?;
    let dims = node.reshape(&tensor.dims(), given.as_ref())?;
    import.reshaped(&node.name(), tensor, &dims).map(Value::Tensor)
}

/// `DepthToSpace` and `SpaceToDepth`: blocks of pixels as channels, and back. Nothing moves until an op needs it.
pub fn blocks(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let x = import.tensor(node.required(0)?)?;
    let &[batch, channels, height, width] = x.dims().as_slice() else {
        return Err(format!(
            "it takes [batch, channels, height, width], and its input has extents {:?}",
            x.dims()
        )
        .into());
    };
    let block =
        node.int("blocksize").and_then(|block| usize::try_from(block).ok()).filter(|&block| block > 0);
    let block = block.ok_or("it states no blocksize")?;
    let columns_first = node.text("mode").is_some_and(|mode| mode == "CRD");
    let (apart, order, joined) = match (node.kind(), columns_first) {
        ("SpaceToDepth", _) => {
            let (rows, columns) = (height / block, width / block);
            let apart = [batch, channels, rows, block, columns, block];
            (apart, [0, 3, 5, 1, 2, 4], [batch, channels * block * block, rows, columns])
        }
        (_, true) => {
            let left = channels / (block * block);
            let apart = [batch, left, block, block, height, width];
            (apart, [0, 1, 4, 2, 5, 3], [batch, left, height * block, width * block])
        }
        (_, false) => {
            let left = channels / (block * block);
            let apart = [batch, block, block, left, height, width];
            (apart, [0, 3, 4, 1, 5, 2], [batch, left, height * block, width * block])
        }
    };
    if apart.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)) != Some(x.view.len()) {
        return Err(format!("blocks of {block} × {block} do not divide extents {:?}", x.dims()).into());
    }
    let x = import.reshaped(&node.name(), x, &apart)?;
    let view = x.view.permuted(&order).reshaped(&joined).ok_or("its result has no such view")?;
    Ok(Value::Tensor(Tensor { view, ..x }))
}

/// Axes in another order: nothing moves until an op needs it.
pub fn transpose(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let name = node.required(0)?;
    if let Value::Weight(stored) = import.value(name)? {
        let order = node.order(stored.dims.len())?;
        if order.len() == 2 {
            let transposed = stored.transposed ^ (order == [1, 0]);
            return Ok(Value::Weight(Stored { transposed, ..stored }));
        }
    }
    let tensor = import.tensor(name)?;
    let order = node.order(tensor.dims().len())?;
    Ok(Value::Tensor(Tensor { view: tensor.view.permuted(&order), ..tensor }))
}

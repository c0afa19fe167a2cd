//! Convolutions and transposed ones, over two axes, or over one as over images of one line.

use elbowroom_graph::Role;
use elbowroom_graph::op::{Algorithm, Channels, Conv, GroupedConv, OpKind, Window};

use super::joined::padded;
use crate::error::Refusal;
use crate::import::{Import, expect_size};
use crate::node::Node;
use crate::value::{Tensor, Value};
use crate::view::View;

/// Largest extent of a window, a step or a padding.
const MOST: i64 = 1 << 14;

/// A window over one or two axes, with its dilation.
#[derive(Clone, Copy, Debug)]
pub struct Spatial {
    pub window: Window,
    pub dilation: [usize; 2],
    /// For every axis, what is padded before and behind the input on top of the window's padding, which is alike on both sides.
    pub more: [[usize; 2]; 2],
}

impl Spatial {
    /// Itself, where padding is alike on both sides.
    pub fn alike(self) -> Result<Self, Refusal> {
        match self.more == [[0; 2]; 2] {
            true => Ok(self),
            false => Err("its padding differs between the two sides, which only convolutions support; pad the same on both sides".into()),
        }
    }
}

/// Height and width of images, or a height of one for lines.
pub fn size(x: &Tensor, node: &Node<'_>) -> Result<[usize; 2], Refusal> {
    match x.dims()[..] {
        [_, _, width] => Ok([1, width]),
        [_, _, height, width] => Ok([height, width]),
        ref dims => Err(format!(
            "{} over extents {dims:?} is not supported: one or two axes behind batch and channels are",
            node.kind()
        )
        .into()),
    }
}

/// Extents of a result with these height and width, of as many axes as `x`.
pub fn extents(x: &Tensor, channels: usize, size: [usize; 2]) -> Vec<usize> {
    let dims = x.dims();
    let spatial = if dims.len() == 3 { &size[1..] } else { &size[..] };
    [&[dims[0], channels], spatial].concat()
}

/// The window that a node states, where `kernel` is what its weight has.
pub fn spatial(
    node: &Node<'_>,
    kernel: Option<&[usize]>,
    input: [usize; 2],
    line: bool,
) -> Result<Spatial, Refusal> {
    let axes = if line { 1 } else { 2 };
    let pair = |given: &[i64], least: i64, none: usize, what: &str| {
        if let Some(value) = given.iter().find(|value| !(least..=MOST).contains(value)) {
            return Err(Refusal::from(format!("its {what} of {value} is not in {least}..={MOST}")));
        }
        match *given {
            [only] if line => Ok([none, only as usize]),
            [first, second] if !line => Ok([first as usize, second as usize]),
            _ => Err(format!("its {what} has {} numbers, and there are {axes} axes", given.len()).into()),
        }
    };
    let list = |name: &str, none: i64| node.ints(name).map_or_else(|| vec![none; axes], <[i64]>::to_vec);
    let stated = node.ints("kernel_shape").map(<[i64]>::to_vec);
    let kernel = stated.or_else(|| kernel.map(|kernel| kernel.iter().map(|&extent| extent as i64).collect()));
    let kernel = pair(&kernel.ok_or("it states no kernel_shape")?, 1, 1, "kernel_shape")?;
    let stride = pair(&list("strides", 1), 1, 1, "stride")?;
    let dilation = pair(&list("dilations", 1), 1, 1, "dilation")?;
    let auto = node.text("auto_pad").unwrap_or_default();
    let [before, behind] = match auto.as_str() {
        "" | "NOTSET" => {
            let pads = node.ints("pads").map_or_else(|| vec![0; 2 * axes], <[i64]>::to_vec);
            if pads.len() != 2 * axes {
                return Err(format!("its pads are {} numbers, and there are {axes} axes", pads.len()).into());
            }
            let (before, behind) = pads.split_at(axes);
            [pair(before, 0, 0, "padding")?, pair(behind, 0, 0, "padding")?]
        }
        "VALID" => [[0, 0]; 2],
        _ => {
            let mut sides = [[0; 2]; 2];
            for axis in 2 - axes..2 {
                let span = dilation[axis] * (kernel[axis] - 1) + 1;
                let total = (input[axis].div_ceil(stride[axis]).max(1) - 1) * stride[axis] + span;
                let total = total.saturating_sub(input[axis]);
                let (less, more) = (total / 2, total.div_ceil(2));
                let ends = if auto == "SAME_LOWER" { [more, less] } else { [less, more] };
                [sides[0][axis], sides[1][axis]] = ends;
            }
            sides
        }
    };
    let padding = [0, 1].map(|axis| before[axis].min(behind[axis]));
    let more = [0, 1].map(|axis| [before[axis] - padding[axis], behind[axis] - padding[axis]]);
    Ok(Spatial { window: Window { kernel, stride, padding }, dilation, more })
}

fn groups(node: &Node<'_>, channels: [usize; 2]) -> Result<usize, Refusal> {
    let groups = usize::try_from(node.int("group").unwrap_or(1)).unwrap_or(0);
    match groups > 0 && channels.iter().all(|channels| channels.is_multiple_of(groups)) {
        true => Ok(groups),
        false => {
            Err(format!("{groups} groups do not divide {} and {} channels", channels[0], channels[1]).into())
        }
    }
}

/// The extents of a weight, of the file or computed.
fn weight(import: &Import<'_>, node: &Node<'_>) -> Result<Vec<usize>, Refusal> {
    let dims = import.dims(node.required(1)?)?;
    match (3..=4).contains(&dims.len()) {
        true => Ok(dims),
        false => Err(format!("its weight has extents {dims:?}, and three or four axes are expected").into()),
    }
}

/// `Conv`
pub fn conv(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let mut x = import.dense_input(node.required(0)?)?;
    let dims = weight(import, node)?;
    let rank = x.dims().len();
    if dims.len() != rank {
        return Err(format!("its weight has extents {dims:?} and its input {:?}", x.dims()).into());
    }
    let Spatial { window, dilation, more } =
        spatial(node, Some(&dims[2..]), size(&x, node)?, dims.len() == 3)?;
    for (axis, ends) in (rank - 2..rank).zip(more) {
        x = padded(import, &format!("{}.pad{axis}", node.name()), x, axis, ends)?;
    }
    let in_size = size(&x, node)?;
    let (in_channels, out_channels) = (x.dims()[1], dims[0]);
    let groups = groups(node, [in_channels, out_channels])?;
    let fits = GroupedConv::span(window, dilation).output(in_size);
    let out_size = fits.ok_or_else(|| format!("its window does not fit into {in_size:?}"))?;
    let batch = x.dims()[0];
    let conv =
        Conv { batch, in_channels, in_size, out_channels, out_size, window, algorithm: Algorithm::default() };
    if dims[1].saturating_mul(groups) != in_channels || dims[2..].iter().product::<usize>() != window.area() {
        return Err(format!(
            "its weight of extents {dims:?} does not fit {in_channels} channels in {groups} groups"
        )
        .into());
    }
    let view = View::dense(&extents(&x, out_channels, out_size));
    let w = import.vector(node.required(1)?, dims.iter().product(), Role::Weight)?;
    let bias = node.input(2).map(|name| import.vector(name, out_channels, Role::Weight)).transpose()?;
    let kind = match (groups, dilation) {
        (1, [1, 1]) => OpKind::Conv2d { conv, bias: bias.is_some() },
        _ => OpKind::GroupedConv2d { conv: GroupedConv { conv, groups, dilation }, bias: bias.is_some() },
    };
    let operands: Vec<_> = [x.id, w].into_iter().chain(bias).collect();
    import.push(&node.name(), kind, &operands, view)
}

/// `ConvTranspose`
pub fn transposed(import: &mut Import<'_>, node: &Node<'_>) -> Result<Value, Refusal> {
    let x = import.dense_input(node.required(0)?)?;
    let (small, dims) = (size(&x, node)?, weight(import, node)?);
    if dims.len() != x.dims().len() || dims[0] != x.dims()[1] {
        return Err(format!("its weight has extents {dims:?} and its input {:?}", x.dims()).into());
    }
    if node.ints("output_shape").is_some() || node.text("auto_pad").is_some_and(|auto| auto != "NOTSET") {
        return Err("output_shape and auto_pad are not supported; state pads and output_padding".into());
    }
    let line = dims.len() == 3;
    let Spatial { window, dilation, .. } = spatial(node, Some(&dims[2..]), small, line)?.alike()?;
    let groups = groups(node, [dims[0], dims[0]])?;
    let (in_channels, out_channels) = (dims[0], dims[1].saturating_mul(groups));
    let extra: Vec<usize> = node
        .ints("output_padding")
        .unwrap_or_default()
        .iter()
        .map(|&more| more.clamp(0, MOST) as usize)
        .collect();
    let extra = match extra[..] {
        [] => [0, 0],
        [only] if line => [0, only],
        [first, second] if !line => [first, second],
        _ => return Err("its output_padding has another number of axes".into()),
    };
    let span = GroupedConv::span(window, dilation);
    let large = [0, 1].map(|axis| {
        let reach = window.stride[axis] * small[axis].saturating_sub(1) + span.kernel[axis] + extra[axis];
        reach.saturating_sub(2 * window.padding[axis])
    });
    // The convolution that this one transposes goes from the result to x.
    if span.output(large) != Some(small) || dims[2..].iter().product::<usize>() != window.area() {
        return Err(format!("no convolution with its window makes {small:?} of {large:?}").into());
    }
    let batch = x.dims()[0];
    let conv = Conv {
        batch,
        in_channels: out_channels,
        in_size: large,
        out_channels: in_channels,
        out_size: small,
        window,
        algorithm: Algorithm::default(),
    };
    let view = View::dense(&extents(&x, out_channels, large));
    let w = import.vector(node.required(1)?, dims.iter().product(), Role::Weight)?;
    let kind = match (groups, dilation) {
        (1, [1, 1]) => OpKind::Conv2dGradInput(conv),
        _ => OpKind::GroupedConv2dGradInput(GroupedConv { conv, groups, dilation }),
    };
    expect_size(&view)?;
    let (name, operands) = (node.name(), [x.id, w]);
    let Some(bias) = node.input(2) else { return import.push(&name, kind, &operands, view) };
    let y = import.pushed(&format!("{name}.product"), kind, &operands)?;
    let bias = import.vector(bias, out_channels, Role::Weight)?;
    let channels = Channels { batch, channels: out_channels, spatial: large[0] * large[1] };
    import.push(&name, OpKind::AddChannel(channels), &[y, bias], view)
}

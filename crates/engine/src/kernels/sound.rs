//! Which kinds of ops kernels may run: kernels rely on extents that belong together. The fields of kinds and graphs are public, so that safe
//! code can put any numbers there; what is unsound is rejected here, before a kernel runs.

use elbowroom_graph::op::{Conv, GroupedConv, Heads, Places, Pool};
use elbowroom_graph::{Graph, OpKind};
use elbowroom_ir::Id;

use super::algorithms;

/// Upper bound of the number of elements of an operand and of the multiplications of an op: sizes in bytes, scratch memory included, stay
/// far from overflow.
const MOST: u128 = 1 << 48;

/// The reason why kernels may not run a kind; `None` if they may.
pub fn fault(kind: &OpKind) -> Option<String> {
    let name = kind.name();
    if let OpKind::Mixed(mixed) = kind {
        let fault = || (!mixed.is_sound()).then(|| format!("the types of {name} do not belong together"));
        // The kind first: its signature multiplies its extents.
        return match mixed.kind {
            OpKind::Mixed(_) => Some("an op has its types twice".to_owned()),
            ref kind => fault_of_extents(kind).or_else(fault),
        };
    }
    fault_of_extents(kind)
}

/// As [`fault`], for a kind that is not [`OpKind::Mixed`].
fn fault_of_extents(kind: &OpKind) -> Option<String> {
    let name = kind.name();
    if !volumes(kind).into_iter().all(|extents| volume(&extents) <= MOST) {
        return Some(format!("the extents of {name} are too large"));
    }
    let fits = match kind {
        OpKind::Conv2d { conv, .. }
        | OpKind::Conv2dGradInput(conv)
        | OpKind::Conv2dGradInputTile { conv, .. }
        | OpKind::Conv2dGradWeight(conv) => {
            if !algorithms(kind).any(|algorithm| algorithm == conv.algorithm) {
                return Some(format!("there is no kernel {} for this {name}", conv.algorithm.name()));
            }
            covers(conv)
        }
        // A position in the window is stored in a byte.
        OpKind::MaxPool(pool) | OpKind::MaxPoolGrad(pool) => pool.window.area() <= 256 && pools(pool),
        OpKind::AveragePool { pool, .. } | OpKind::AveragePoolGrad { pool, .. } => pools(pool),
        OpKind::GroupedConv2d { conv, .. }
        | OpKind::GroupedConv2dGradInput(conv)
        | OpKind::GroupedConv2dGradWeight(conv) => grouped_covers(conv),
        OpKind::GroupNorm { groups, .. } | OpKind::GroupNormGrad(groups) => {
            divides(groups.groups, groups.channels.channels)
        }
        OpKind::CrossAttention(extents) | OpKind::CrossAttentionGrad(extents) => {
            divides(extents.shared, extents.heads)
        }
        OpKind::Embedding(lookup) | OpKind::EmbeddingTile(lookup) | OpKind::EmbeddingGrad { lookup, .. } => {
            lookup.places.each > 0
        }
        OpKind::CrossEntropy(loss) | OpKind::CrossEntropyGrad(loss) | OpKind::Hits(loss) => {
            loss.places.each > 0
        }
        OpKind::Rotary(rotation) => rotation.width.is_multiple_of(2),
        OpKind::Sinusoid { width, .. } => width.is_multiple_of(2),
        OpKind::Diffuse(diffusion) => diffusion.steps > 0,
        OpKind::RandomSteps { steps, .. } => *steps > 0 && *steps <= i32::MAX as usize,
        OpKind::Slice { total, start, width, .. } | OpKind::Pad { total, start, width, .. } => {
            start + width <= *total
        }
        _ => true,
    };
    (!fits).then(|| format!("the extents of {name} do not belong together"))
}

/// The first op of a graph that may not run, with the reason.
pub fn graph_fault(graph: &Graph) -> Option<String> {
    graph.nodes.values().find_map(|node| {
        let why =
            fault(&node.kind).or_else(|| operands_fault(graph, &node.kind, [&node.inputs, &node.outputs]))?;
        Some(format!("{}: {why}", node.name))
    })
}

/// Whether operands and results of an op of a graph are not those that its kind requires.
fn operands_fault(
    graph: &Graph,
    kind: &OpKind,
    [inputs, outputs]: [&Vec<elbowroom_ir::TensorId>; 2],
) -> Option<String> {
    let tensor = |id: &elbowroom_ir::TensorId| graph.tensors.get(*id);
    if !inputs.iter().chain(outputs).all(|id| tensor(id).is_some()) {
        return Some("it names tensors that the graph does not have".to_owned());
    }
    let stored = |id: &elbowroom_ir::TensorId| {
        let tensor = &graph.tensors[*id];
        graph.storages.get(tensor.storage).is_some_and(|&bytes| bytes >= tensor.bytes())
    };
    if !inputs.iter().chain(outputs).all(stored) {
        return Some("a storage is smaller than its tensor".to_owned());
    }
    match *kind {
        OpKind::Input { slot } => {
            let own = graph.inputs.get(slot).is_some_and(|input| outputs.as_slice() == [input.tensor]);
            return (!own || !inputs.is_empty()).then(|| "it is not the input of its slot".to_owned());
        }
        OpKind::Output { slot } => {
            let own = graph.outputs.get(slot).is_some_and(|output| inputs.as_slice() == [output.tensor]);
            return (!own || !outputs.is_empty()).then(|| "it is not the output of its slot".to_owned());
        }
        _ => {}
    }
    let signature = kind.signature();
    let reads = inputs.len() == signature.inputs.len()
        && inputs.iter().zip(&signature.inputs).all(|(id, &(size, dtype))| {
            let tensor = &graph.tensors[*id];
            size.admits(tensor.shape.len()) && tensor.dtype == dtype
        });
    let writes = outputs.len() == signature.outputs.len()
        && outputs.iter().zip(&signature.outputs).all(|(id, (shape, dtype))| {
            let tensor = &graph.tensors[*id];
            tensor.shape.len() == shape.len() && tensor.dtype == *dtype
        });
    if !reads || !writes {
        return Some(format!("its operands are not those of {}", kind.name()));
    }
    let places = |ids: &[elbowroom_ir::TensorId]| -> Vec<usize> {
        ids.iter().map(|id| graph.tensors[*id].storage.index()).collect()
    };
    sharing_fault(kind, &places(inputs), &places(outputs))
}

/// Whether results share memory with operands, given by their indices, in a way that the kind does not permit.
pub fn sharing_fault(kind: &OpKind, reads: &[usize], writes: &[usize]) -> Option<String> {
    let (mutations, reusable) = (kind.mutations(), kind.reusable());
    for (output, write) in writes.iter().enumerate() {
        if writes[..output].contains(write) {
            return Some("results do not lie apart from each other".to_owned());
        }
        for (input, _) in reads.iter().enumerate().filter(|&(_, read)| read == write) {
            let permitted = mutations.contains(&(input, output))
                || reusable.iter().any(|reuse| (reuse.input, reuse.output) == (input, output));
            if !permitted {
                return Some(format!("result {output} of {} does not lie over operand {input}", kind.name()));
            }
        }
    }
    let in_place = |&(input, output): &(usize, usize)| reads.get(input) == writes.get(output);
    (!mutations.iter().all(in_place)).then(|| "it is not mutated in place".to_owned())
}

fn covers(conv: &Conv) -> bool {
    strides(conv.window.stride) && conv.window.output(conv.in_size) == Some(conv.out_size)
}

fn divides(part: usize, whole: usize) -> bool {
    part > 0 && whole.is_multiple_of(part)
}

fn grouped_covers(grouped: &GroupedConv) -> bool {
    let GroupedConv { conv, groups, dilation } = *grouped;
    divides(groups, conv.in_channels)
        && divides(groups, conv.out_channels)
        && strides(conv.window.stride)
        && strides(dilation)
        && strides(conv.window.kernel)
        && GroupedConv::span(conv.window, dilation).output(conv.in_size) == Some(conv.out_size)
}

fn pools(pool: &Pool) -> bool {
    let sizes = [pool.window.output(pool.in_size), pool.window.output_ceil(pool.in_size)];
    strides(pool.window.stride) && sizes.contains(&Some(pool.out_size))
}

fn strides(stride: [usize; 2]) -> bool {
    stride.iter().all(|&stride| stride > 0)
}

fn volume(extents: &[usize]) -> u128 {
    // Extents of zero count as one: a product of the others may be computed first.
    extents.iter().fold(1, |volume: u128, &extent| volume.saturating_mul(extent.max(1) as u128))
}

/// Extents whose products are sizes of operands or counts of multiplications.
fn volumes(kind: &OpKind) -> Vec<Vec<usize>> {
    let windows =
        |[size, out]: [[usize; 2]; 2], window: &elbowroom_graph::op::Window, channels: [usize; 3]| {
            let [batch, inputs, outputs] = channels;
            let padded = [0, 1].map(|axis| size[axis].saturating_add(window.padding[axis].saturating_mul(2)));
            let [height, width] = window.kernel;
            vec![
                vec![batch, inputs, padded[0], padded[1]],
                vec![batch, outputs, out[0], out[1]],
                vec![batch, inputs, outputs, out[0], out[1], height, width],
                window.stride.to_vec(),
            ]
        };
    match *kind {
        OpKind::Mixed(ref mixed) => volumes(&mixed.kind),
        OpKind::Input { .. } | OpKind::Output { .. } => Vec::new(),
        OpKind::Fill { len, .. }
        | OpKind::Add { len }
        | OpKind::Mul { len }
        | OpKind::SquaredError { len, .. }
        | OpKind::SquaredErrorGrad { len, .. }
        | OpKind::Noise { len, .. }
        | OpKind::Scale { len, .. }
        | OpKind::ScaleBy { len }
        | OpKind::Sum { len, .. }
        | OpKind::Accumulate { len }
        | OpKind::Map { len, .. }
        | OpKind::MapGrad { len, .. }
        | OpKind::SgdStep { len, .. }
        | OpKind::AdamStep { len, .. } => vec![vec![len]],
        OpKind::ClipFactor { .. } | OpKind::Indices { .. } => Vec::new(),
        OpKind::Dropout(mask) => vec![vec![mask.len]],
        OpKind::AddRow { outer, inner } => vec![vec![outer, inner]],
        OpKind::Conv2d { conv, .. }
        | OpKind::Conv2dGradInput(conv)
        | OpKind::Conv2dGradInputTile { conv, .. }
        | OpKind::Conv2dGradWeight(conv) => {
            let channels = match *kind {
                OpKind::Conv2dGradInputTile { whole, .. } => conv.out_channels.max(whole),
                _ => conv.out_channels,
            };
            windows([conv.in_size, conv.out_size], &conv.window, [conv.batch, conv.in_channels, channels])
        }
        OpKind::GroupedConv2d { conv: grouped, .. }
        | OpKind::GroupedConv2dGradInput(grouped)
        | OpKind::GroupedConv2dGradWeight(grouped) => {
            let GroupedConv { conv, groups, dilation } = grouped;
            let span = GroupedConv::span(conv.window, dilation);
            let channels = [conv.batch, conv.in_channels, conv.out_channels];
            let mut all = windows([conv.in_size, conv.out_size], &conv.window, channels);
            all.push(span.kernel.to_vec());
            // The padded plane, cut by strides and with the reach of taps behind.
            let padded = [0, 1].map(|axis| {
                let size = conv.in_size[axis].saturating_add(conv.window.padding[axis].saturating_mul(2));
                size.saturating_add(conv.window.stride[axis]).saturating_add(span.kernel[axis])
            });
            all.push(vec![16, padded[0], padded[1]]);
            all.extend([dilation.to_vec(), vec![groups]]);
            all
        }
        OpKind::MaxPool(pool)
        | OpKind::MaxPoolGrad(pool)
        | OpKind::AveragePool { pool, .. }
        | OpKind::AveragePoolGrad { pool, .. } => {
            windows([pool.in_size, pool.out_size], &pool.window, [pool.planes, 1, 1])
        }
        OpKind::AddChannel(c)
        | OpKind::MulChannel(c)
        | OpKind::MulChannelGrad(c)
        | OpKind::BiasGrad(c)
        | OpKind::BatchNorm { channels: c, .. }
        | OpKind::BatchNormGrad { channels: c, .. }
        | OpKind::BatchNormInference { channels: c, .. } => vec![vec![c.batch, c.channels, c.spatial]],
        OpKind::ResponseNorm(response) | OpKind::ResponseNormGrad(response) => {
            let c = response.channels;
            vec![vec![c.batch, c.channels, c.spatial], vec![response.size]]
        }
        OpKind::RunningUpdate { channels, count, .. } => vec![vec![channels], vec![count]],
        OpKind::GroupNorm { groups, .. } | OpKind::GroupNormGrad(groups) => {
            let c = groups.channels;
            vec![vec![c.batch, c.channels, c.spatial], vec![c.batch, groups.groups]]
        }
        OpKind::LayerNorm { rows, width, .. }
        | OpKind::LayerNormGrad { rows, width }
        | OpKind::RmsNorm { rows, width, .. }
        | OpKind::RmsNormGrad { rows, width }
        | OpKind::Softmax { rows, width }
        | OpKind::SoftmaxGrad { rows, width }
        | OpKind::Sinusoid { rows, width }
        | OpKind::RowSquares { rows, width } => vec![vec![rows, width]],
        OpKind::Linear { product: p, .. }
        | OpKind::LinearGradInput(p)
        | OpKind::LinearGradWeight { product: p, .. } => vec![vec![p.rows, p.inputs, p.outputs]],
        OpKind::BatchedProduct(p) => vec![vec![p.batch, p.rows, p.columns, p.depth]],
        OpKind::LinearGradInputTile { product: p, whole } => {
            vec![vec![p.rows, p.inputs, p.outputs.max(whole)]]
        }
        OpKind::Embedding(lookup) | OpKind::EmbeddingTile(lookup) | OpKind::EmbeddingGrad { lookup, .. } => {
            vec![
                vec![lookup.rows, lookup.width],
                vec![lookup.vocabulary, lookup.width],
                vec![lookup.rows, lookup.places.stride],
                vec![lookup.places.offset],
            ]
        }
        OpKind::LstmCell { batch, hidden } | OpKind::LstmCellGrad { batch, hidden, .. } => {
            vec![vec![4, batch, hidden]]
        }
        OpKind::Attention(Heads { batch, tokens, heads, width, .. })
        | OpKind::AttentionGrad(Heads { batch, tokens, heads, width, .. }) => {
            vec![vec![3, batch, tokens, heads, width], vec![batch, heads, tokens, tokens]]
        }
        OpKind::CrossAttention(e) | OpKind::CrossAttentionGrad(e) => vec![
            vec![e.batch, e.queries, e.heads, e.width],
            vec![e.batch, e.keys, e.shared, e.width],
            vec![e.batch, e.heads, e.queries, e.keys],
        ],
        OpKind::Rotary(r) => vec![vec![r.batch, r.tokens, r.heads, r.width]],
        OpKind::RandomSteps { rows, steps, .. } => vec![vec![rows], vec![steps]],
        OpKind::Diffuse(diffusion) => vec![vec![diffusion.batch, diffusion.size], vec![diffusion.steps]],
        OpKind::CrossEntropy(loss) | OpKind::CrossEntropyGrad(loss) | OpKind::Hits(loss) => {
            let Places { offset, stride, .. } = loss.places;
            vec![vec![loss.rows, loss.classes], vec![loss.rows, stride], vec![offset]]
        }
        OpKind::Concat { outer, ref widths } | OpKind::Split { outer, ref widths } => {
            let total = widths.iter().fold(0, |total: usize, &width| total.saturating_add(width));
            vec![vec![outer, total]]
        }
        OpKind::Slice { outer, total, start, width } | OpKind::Pad { outer, total, start, width } => {
            vec![vec![outer, total], vec![outer, width], vec![start]]
        }
        OpKind::Transpose { batch, rows, columns, inner } => vec![vec![batch, rows, columns, inner]],
        OpKind::Nearest { rows, clusters } => vec![vec![rows, clusters]],
        OpKind::CentroidUpdate { ref parts, clusters, width } => {
            let parts = parts.iter().map(|&rows| vec![rows]);
            [vec![clusters, width]].into_iter().chain(parts).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_graph::op::Algorithm;
    use elbowroom_graph::zoo::{self, Options};

    use super::*;

    #[test]
    fn graphs_of_the_zoo_are_sound_and_changed_ones_are_not() {
        let mut sound = 0;
        for name in zoo::NAMES {
            let depths = ["20", "26", "50", "121", "16", "11"];
            let names = depths.map(|depth| name.replace('N', depth));
            let Some(graph) = names.iter().find_map(|name| zoo::build(name, &Options::new(2)).ok()) else {
                panic!("{name} cannot be built");
            };
            assert_eq!(graph_fault(&graph), None, "{name}");
            sound += 1;
        }
        assert!(sound > 10, "{sound}");

        let graph = zoo::build("resnet20", &Options::new(2)).unwrap();
        let convolution = |node: &elbowroom_graph::Node| node.kind.conv().is_some();
        let op = graph.nodes.iter().find(|(_, node)| convolution(node)).unwrap().0;
        let mut changed = graph.clone();
        changed.nodes[op].outputs = changed.nodes[op].inputs[..1].to_vec();
        assert!(graph_fault(&changed).is_some(), "its result lies over its operand");
        let mut changed = graph.clone();
        changed.nodes[op].inputs.swap(0, 1);
        assert!(graph_fault(&changed).is_some(), "operands of other sizes");
        let mut changed = graph.clone();
        let storage = changed.tensors[changed.nodes[op].outputs[0]].storage;
        changed.storages[storage] = elbowroom_ir::Bytes(4);
        assert!(graph_fault(&changed).is_some(), "a storage that is too small");
        let mut changed = graph;
        let OpKind::Conv2d { conv, .. } = &mut changed.nodes[op].kind else { panic!("the first is forward") };
        (conv.window.stride, conv.algorithm) = ([2, 2], Algorithm::Direct);
        assert!(graph_fault(&changed).is_some(), "no kernel");
    }
}

//! What of a file becomes a graph: the output, the nodes that it needs, the inputs that those read, and the options with what the file leaves open.

use std::collections::{HashMap, HashSet};

use elbowroom_graph::shape::MAX_RANK;
use elbowroom_graph::zoo::{OptimizerKind, Options};
use elbowroom_graph::{Content, Mode};

use crate::node::Node;
use crate::proto::element;
use crate::weights::Initializer;
use crate::{Loss, Model, OnnxError};

/// Most elements of one tensor of the graph: sums of sizes stay far from overflow.
pub const MOST: usize = 1 << 36;
/// Sizes that the file leaves open where the user does not set them.
const IMAGE: usize = 224;
const LENGTH: usize = 128;
/// The step size of the optimizer by default.
pub const RATE: f32 = 0.01;

/// Extents and content of an input of the network.
pub struct Entry {
    pub name: String,
    pub dims: Vec<usize>,
    pub content: Content,
}

/// The sizes that the file leaves open: image size and length, where there are any.
#[derive(Default)]
pub struct Open {
    image: Option<usize>,
    length: Option<usize>,
}

/// The result that becomes the output, and the nodes that it needs, in order. A softmax at the end belongs to the cross entropy.
pub fn needed(model: &Model, loss: Loss) -> Result<(&str, Vec<Node<'_>>), OnnxError> {
    let Some(output) = model.graph.outputs.first() else {
        return Err(model.refuse("it has no output".to_owned()));
    };
    let mut makers: HashMap<&str, usize> = HashMap::new();
    for (index, node) in model.graph.nodes.iter().enumerate() {
        makers.extend(node.outputs.iter().map(|name| (name.as_str(), index)));
    }
    let mut output = output.name.as_str();
    // A file may claim that a result is made from itself.
    let mut left = model.graph.nodes.len();
    while loss == Loss::CrossEntropy
        && left > 0
        && let Some(&maker) = makers.get(output)
        && let node = &model.graph.nodes[maker]
        && ["Softmax", "LogSoftmax", "Identity"].contains(&node.kind.as_str())
        && let Some(input) = node.inputs.first()
    {
        output = input;
        left -= 1;
    }
    let (mut kept, mut pending) = (vec![false; model.graph.nodes.len()], vec![output]);
    while let Some(name) = pending.pop() {
        if let Some(&maker) = makers.get(name)
            && !std::mem::replace(&mut kept[maker], true)
        {
            pending.extend(model.graph.nodes[maker].inputs.iter().map(String::as_str));
        }
    }
    let nodes = model.graph.nodes.iter().zip(kept).filter(|(_, kept)| *kept);
    Ok((output, nodes.map(|(node, _)| Node(node)).collect()))
}

/// Inputs that the nodes read, with sizes that the file leaves open filled in.
pub fn entries(
    model: &Model,
    nodes: &[Node<'_>],
    options: &Options,
) -> Result<(Vec<Entry>, Open), OnnxError> {
    let read: HashSet<&str> =
        nodes.iter().flat_map(|node| node.0.inputs.iter().map(String::as_str)).collect();
    let mut open = Open::default();
    let mut entries = Vec::new();
    let inputs = model.graph.inputs.iter().filter(|input| !model.initializers.contains_key(&input.name));
    for input in inputs.filter(|input| read.contains(input.name.as_str())) {
        let name = &input.name;
        let stated = input.r#type.as_ref().and_then(|kind| kind.tensor.as_ref());
        let Some((kind, shape)) = stated.and_then(|kind| Some((kind.element, kind.shape.as_ref()?))) else {
            return Err(
                model.refuse(format!("its input `{name}` has no extents; export it with example inputs"))
            );
        };
        let real = kind == element::FLOAT;
        if !real && ![element::INT32, element::INT64].contains(&kind) {
            let found = element::name(kind);
            return Err(model
                .refuse(format!("its input `{name}` is of type {found}; float, int32 and int64 are read")));
        }
        let mut dims = Vec::new();
        for (axis, dim) in shape.dims.iter().enumerate() {
            let fixed =
                dim.value.filter(|&value| value > 0 && dim.name.as_ref().is_none_or(String::is_empty));
            let fixed = fixed.and_then(|value| usize::try_from(value).ok()).filter(|&value| value <= MOST);
            dims.push(match (axis, fixed) {
                (0, None) => options.batch,
                (0, Some(fixed)) if fixed != options.batch => {
                    return Err(model.refuse(format!(
                        "its batch is fixed to {fixed}, and the batch here is {}; choose --batch {fixed}, or export it with an open batch \
                         (dynamic_shapes=({{0: \"batch\"}},), or dynamic_axes={{\"{name}\": {{0: \"batch\"}}}} with dynamo=False)",
                        options.batch
                    )));
                }
                (_, Some(fixed)) => fixed,
                (_, None) if real => *open.image.get_or_insert(options.image.unwrap_or(IMAGE)),
                (_, None) => *open.length.get_or_insert(options.length.unwrap_or(LENGTH)),
            });
        }
        if dims.is_empty() || dims.len() > MAX_RANK {
            let found = dims.len();
            return Err(model.refuse(format!("its input `{name}` has {found} axes; 1 to {MAX_RANK} are read, of which the first is the batch")));
        }
        let content = match real {
            true => Content::Real,
            false => Content::Class {
                classes: vocabulary(model, nodes, name).ok_or_else(|| {
                    model.refuse(format!(
                        "its input `{name}` holds whole numbers that look nothing up in a table of weights"
                    ))
                })?,
            },
        };
        entries.push(Entry { name: name.clone(), dims, content });
    }
    if entries.is_empty() {
        return Err(model.refuse("its output depends on no input".to_owned()));
    }
    Ok((entries, open))
}

/// Rows of the table in which an input of whole numbers looks something up.
fn vocabulary(model: &Model, nodes: &[Node<'_>], name: &str) -> Option<usize> {
    let mut same = HashSet::from([name]);
    nodes.iter().find_map(|node| match node.kind() {
        "Gather" if node.input(1).is_some_and(|ids| same.contains(ids)) => {
            match model.initializers.get(node.input(0)?)? {
                Initializer::Weight { dims, .. } => dims.first().copied(),
                _ => None,
            }
        }
        "Cast" | "Identity" | "Reshape" | "Squeeze" | "Unsqueeze"
            if node.input(0).is_some_and(|ids| same.contains(ids)) =>
        {
            same.extend(node.0.outputs.first().map(String::as_str));
            None
        }
        _ => None,
    })
}

/// The options with what is used where they leave something open.
pub fn resolved(model: &Model, options: &Options) -> Result<Options, OnnxError> {
    let (_, nodes) = needed(model, Loss::CrossEntropy)?;
    let (entries, open) = entries(model, &nodes, options)?;
    let vocabulary = entries.iter().find_map(|entry| match entry.content {
        Content::Class { classes } => Some(classes),
        Content::Real => None,
    });
    let resolved = Options::new(options.batch)
        .mode(options.mode)
        .image(open.image)
        .length(open.length)
        .vocabulary(vocabulary);
    if options.mode != Mode::Training {
        return Ok(resolved);
    }
    let kind = options.optimizer.unwrap_or(OptimizerKind::Sgd);
    Ok(resolved
        .optimizer(kind)
        .learning_rate(options.learning_rate_or(OptimizerKind::Sgd, RATE))
        .weight_decay(options.weight_decay.or(Some(kind.default_weight_decay()))))
}

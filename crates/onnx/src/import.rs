//! From the nodes of a file to a graph: nodes that the output needs, one after another, and the loss behind them.

use std::collections::{HashMap, HashSet};

use elbowroom_graph::layers::Part;
use elbowroom_graph::op::OpKind;
use elbowroom_graph::shape::MAX_RANK;
use elbowroom_graph::zoo::{OptimizerKind, Options};
use elbowroom_graph::{Builder, Content, DType, Init, Mode, Role, Shape, Var};
use elbowroom_ir::TensorId;

use crate::constant::Constant;
use crate::error::Refusal;
use crate::fold::fold;
use crate::proto::{self, element};
use crate::value::{Pending, Stored, Tensor, Value};
use crate::view::View;
use crate::weights::{Form, Initializer, Place, Weight};
use crate::{Built, Loss, Model, OnnxError, ops};

/// Most elements of one tensor of the graph: sums of sizes stay far from overflow.
const MOST: usize = 1 << 36;
/// Sizes that the file leaves open where the user does not set them.
const IMAGE: usize = 224;
const LENGTH: usize = 128;
/// The step size of the optimizer by default.
const RATE: f32 = 0.01;

/// A node, with its attributes by name.
pub struct Node<'m>(pub &'m proto::Node);

/// A part of one axis: from `start` on, every `step`-th, `count` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisPart {
    pub axis: usize,
    pub start: usize,
    pub count: usize,
    pub step: isize,
}

impl AxisPart {
    pub fn indices(self) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |at| self.start.wrapping_add_signed(self.step * at as isize))
    }
}

impl<'m> Node<'m> {
    pub fn kind(&self) -> &'m str {
        &self.0.kind
    }

    /// Its name, or that of its first result.
    pub fn name(&self) -> String {
        let first = || self.0.outputs.first().cloned().unwrap_or_default();
        if self.0.name.is_empty() { first() } else { self.0.name.clone() }
    }

    /// The name of an input that is there.
    pub fn input(&self, index: usize) -> Option<&'m str> {
        self.0.inputs.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The name of an input that must be there.
    pub fn required(&self, index: usize) -> Result<&'m str, Refusal> {
        self.input(index).ok_or_else(|| format!("its input {index} is missing").into())
    }

    fn attribute(&self, name: &str) -> Option<&'m proto::Attribute> {
        self.0.attributes.iter().find(|attribute| attribute.name == name)
    }

    pub fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name)?.int
    }

    pub fn float(&self, name: &str) -> Option<f32> {
        self.attribute(name)?.float
    }

    pub fn tensor(&self, name: &str) -> Option<&'m proto::Tensor> {
        self.attribute(name)?.tensor.as_ref()
    }

    pub fn ints(&self, name: &str) -> Option<&'m [i64]> {
        self.attribute(name).map(|attribute| attribute.ints.as_slice())
    }

    pub fn text(&self, name: &str) -> Option<String> {
        let bytes = self.attribute(name)?.string.as_ref()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }

    /// An axis of a tensor of this many, counted from the end if it is negative.
    pub fn axis(&self, given: i64, rank: usize) -> Result<usize, Refusal> {
        let axis = if given < 0 { given.saturating_add(rank as i64) } else { given };
        let found = usize::try_from(axis).ok().filter(|&axis| axis < rank);
        found.ok_or_else(|| format!("there is no axis {given} of {rank}").into())
    }

    /// Axes as an attribute, or as numbers that are known.
    fn axes(&self, given: Option<&Constant>, rank: usize) -> Result<Option<Vec<usize>>, Refusal> {
        let listed = given.map(Constant::ints).or_else(|| self.ints("axes").map(<[i64]>::to_vec));
        listed.map(|axes| axes.iter().map(|&axis| self.axis(axis, rank)).collect()).transpose()
    }

    /// The axes of a reduction.
    pub fn reduced(&self, given: Option<&Constant>, rank: usize) -> Result<Vec<usize>, Refusal> {
        let mut axes = self.axes(given, rank)?.unwrap_or_else(|| (0..rank).collect());
        axes.sort_unstable();
        axes.dedup();
        Ok(axes)
    }

    /// The order of axes of a transposition.
    pub fn order(&self, rank: usize) -> Result<Vec<usize>, Refusal> {
        let Some(order) = self.ints("perm") else { return Ok((0..rank).rev().collect()) };
        let order = order.iter().map(|&axis| self.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?;
        let distinct: HashSet<_> = order.iter().collect();
        if order.len() != rank || distinct.len() != rank {
            return Err(format!("{order:?} is no order of {rank} axes").into());
        }
        Ok(order)
    }

    /// The extents after a reshape of any kind, from its second input where it is known.
    pub fn reshape(&self, dims: &[usize], given: Option<&Constant>) -> Result<Vec<usize>, Refusal> {
        let count: usize = dims.iter().product();
        match self.kind() {
            "Flatten" => {
                let given = self.int("axis").unwrap_or(1);
                let at = if given == dims.len() as i64 { dims.len() } else { self.axis(given, dims.len())? };
                Ok(vec![dims[..at].iter().product(), dims[at..].iter().product()])
            }
            "Squeeze" => {
                let axes = self.axes(given, dims.len())?;
                let gone = |axis: usize| axes.as_ref().map_or(dims[axis] == 1, |axes| axes.contains(&axis));
                if let Some(axis) = (0..dims.len()).find(|&axis| gone(axis) && dims[axis] != 1) {
                    return Err(format!("axis {axis} has an extent of {}, not 1", dims[axis]).into());
                }
                Ok((0..dims.len()).filter(|&axis| !gone(axis)).map(|axis| dims[axis]).collect())
            }
            "Unsqueeze" => {
                let listed = given.map(Constant::ints).or_else(|| self.ints("axes").map(<[i64]>::to_vec));
                let listed = listed.ok_or("it states no axes")?;
                let rank = dims.len() + listed.len();
                let new =
                    listed.iter().map(|&axis| self.axis(axis, rank)).collect::<Result<HashSet<_>, _>>()?;
                let mut old = dims.iter();
                Ok((0..rank)
                    .map(|axis| if new.contains(&axis) { 1 } else { old.next().copied().unwrap_or(1) })
                    .collect())
            }
            _ => {
                let wanted = given.ok_or("its shape is computed from values of the network; export with fixed sizes other than the batch")?;
                let mut found = Vec::new();
                let mut open = None;
                for (axis, extent) in wanted.ints().into_iter().enumerate() {
                    found.push(match extent {
                        0 if self.int("allowzero").unwrap_or(0) == 0 => {
                            *dims.get(axis).ok_or("it keeps an axis that its input lacks")?
                        }
                        -1 if open.is_none() => {
                            open = Some(axis);
                            1
                        }
                        extent => usize::try_from(extent).map_err(|_| format!("{extent} is no extent"))?,
                    });
                }
                let known = found.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)).unwrap_or(0);
                if let (Some(open), true) = (open, known > 0) {
                    found[open] = count / known;
                }
                match found.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)) == Some(count) {
                    true => Ok(found),
                    false => Err(format!("{dims:?} has no view of extents {:?}", wanted.ints()).into()),
                }
            }
        }
    }

    /// The parts that a slice takes: starts, ends, axes and steps are inputs, or attributes in old files.
    pub fn parts(&self, dims: &[usize], inputs: &[Option<Constant>]) -> Result<Vec<AxisPart>, Refusal> {
        let list = |index: usize, name: &str| {
            let known = inputs.get(index).and_then(Option::as_ref).map(Constant::ints);
            known.or_else(|| self.ints(name).map(<[i64]>::to_vec))
        };
        let starts = list(0, "starts").ok_or("its starts are not known")?;
        let ends = list(1, "ends").ok_or("its ends are not known")?;
        let axes = list(2, "axes").unwrap_or_else(|| (0..starts.len() as i64).collect());
        let steps = list(3, "steps").unwrap_or_else(|| vec![1; starts.len()]);
        if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
            return Err("its starts, ends, axes and steps have different lengths".into());
        }
        let each = starts.iter().zip(&ends).zip(axes.iter().zip(&steps));
        each.map(|((&start, &end), (&axis, &step))| {
            let axis = self.axis(axis, dims.len())?;
            let extent = dims[axis] as i64;
            let wrap = |at: i64| if at < 0 { at.saturating_add(extent) } else { at };
            let (start, end) = match step {
                0 => return Err("its step is zero".into()),
                1.. => (wrap(start).clamp(0, extent), wrap(end).clamp(0, extent)),
                _ => (wrap(start).clamp(-1, extent - 1), wrap(end).clamp(-1, extent - 1)),
            };
            let distance = (end - start) as i128;
            let count = (distance + i128::from(step - step.signum())) / i128::from(step);
            let count = usize::try_from(count.max(0)).unwrap_or(0);
            let step = isize::try_from(step).map_err(|_| "its step is too large")?;
            Ok(AxisPart { axis, start: start.max(0) as usize, count, step })
        })
        .collect()
    }
}

/// Extents and content of an input of the network.
struct Entry {
    name: String,
    dims: Vec<usize>,
    content: Content,
}

/// A graph under construction.
pub struct Import<'m> {
    pub model: &'m Model,
    pub b: Builder,
    values: HashMap<String, Value>,
    /// How many nodes read a result.
    uses: HashMap<&'m str, usize>,
    weights: Vec<Weight>,
    /// Parameters of the graph by the names of their initializers, with their form.
    taken: HashMap<String, (TensorId, Form)>,
    /// Parts into which an axis of a result was split.
    pub splits: HashMap<(String, usize), Vec<Tensor>>,
}

/// The sizes that the file leaves open: image size and length, where there are any.
#[derive(Default)]
struct Open {
    image: Option<usize>,
    length: Option<usize>,
}

/// The result that becomes the output, and the nodes that it needs, in order. A softmax at the end belongs to the cross entropy.
fn needed(model: &Model, loss: Loss) -> Result<(&str, Vec<Node<'_>>), OnnxError> {
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
fn entries(model: &Model, nodes: &[Node<'_>], options: &Options) -> Result<(Vec<Entry>, Open), OnnxError> {
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
                         (dynamic_axes={{\"{name}\": {{0: \"batch\"}}}})",
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
        "Cast" | "Identity" if node.input(0).is_some_and(|ids| same.contains(ids)) => {
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

/// Refuses a result that is too large to be counted.
pub fn expect_size(view: &View) -> Result<(), Refusal> {
    match view.len() <= MOST {
        true => Ok(()),
        false => Err(format!("its result of extents {:?} is too large", view.dims()).into()),
    }
}

/// The graph of an iteration.
pub fn build(model: &Model, options: &Options, loss: Loss) -> Result<Built, OnnxError> {
    options.validate().map_err(|error| model.refuse(error.to_string()))?;
    let (output, nodes) = needed(model, loss)?;
    let (entries, _) = entries(model, &nodes, options)?;
    let mut uses: HashMap<&str, usize> = HashMap::new();
    for name in nodes.iter().flat_map(|node| &node.0.inputs) {
        *uses.entry(name).or_default() += 1;
    }
    let title = format!("{} batch {}", model.name(), options.batch);
    let mut import = Import {
        model,
        b: Builder::new(title, options.mode),
        values: HashMap::new(),
        uses,
        weights: Vec::new(),
        taken: HashMap::new(),
        splits: HashMap::new(),
    };
    let tokens = matches!(entries[0].content, Content::Class { .. });
    for Entry { name, dims, content } in entries {
        let refuse = |why: String| model.refuse(format!("its input `{name}`: {why}"));
        if dims.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)).is_none_or(|count| count > MOST) {
            return Err(refuse(format!("{dims:?} is too large")));
        }
        let var = import.b.input(&name, Shape::new(&dims), content);
        let tensor = Tensor { id: var.id, view: View::dense(&dims), classes: content != Content::Real };
        import.values.insert(name, Value::Tensor(tensor));
    }
    for (name, initializer) in &model.initializers {
        let value = match initializer {
            Initializer::Weight { dims, single, .. } => Value::Weight(Stored {
                name: name.clone(),
                dims: dims.clone(),
                transposed: false,
                single: *single,
            }),
            Initializer::Constant(constant) => Value::Constant(constant.clone()),
            Initializer::Other(_) => continue,
        };
        import.values.insert(name.clone(), value);
    }
    for node in &nodes {
        import.node(node).map_err(|refusal| place(model, node, refusal))?;
    }
    import.finish(output, loss, tokens, options).map_err(|refusal| match refusal {
        Refusal::Why(why) => model.refuse(why),
        Refusal::Build(source) => OnnxError::Build { path: model.path.clone(), source: Box::new(source) },
    })
}

fn place(model: &Model, node: &Node<'_>, refusal: Refusal) -> OnnxError {
    let path = model.path.clone();
    let why = match refusal {
        Refusal::Build(source) => source.to_string(),
        Refusal::Why(why) => why,
    };
    let domain = &node.0.domain;
    let op = if domain.is_empty() { node.kind().to_owned() } else { format!("{domain}.{}", node.kind()) };
    OnnxError::Op { path, op, node: node.name(), opset: model.opset, why }
}

impl Import<'_> {
    /// Adds a node.
    fn node(&mut self, node: &Node<'_>) -> Result<(), Refusal> {
        if !["", "ai.onnx"].contains(&node.0.domain.as_str()) {
            return Err("it is no operation of ONNX itself; export the network without custom operations or functions (onnx.inliner \
                        replaces functions)"
                .into());
        }
        let known = |name: &String| match self.values.get(name) {
            Some(Value::Constant(constant)) => Some(Some(constant.clone())),
            None if name.is_empty() => Some(None),
            _ => None,
        };
        let inputs: Option<Vec<Option<Constant>>> = node.0.inputs.iter().map(known).collect();
        let made = inputs.filter(|inputs| !inputs.is_empty()).and_then(|inputs| fold(node, &inputs));
        let results = match made {
            Some(constant) => vec![Value::Constant(constant)],
            None => ops::add(self, node)?,
        };
        for (name, value) in node.0.outputs.iter().zip(results) {
            self.values.insert(name.clone(), value);
        }
        Ok(())
    }

    /// The loss behind the output, or the output itself.
    fn finish(mut self, output: &str, loss: Loss, tokens: bool, options: &Options) -> Result<Built, Refusal> {
        let mut y = self.tensor(output)?;
        let dims = y.dims();
        // Classes are the second axis of images, as PyTorch's loss has them, and the last of sequences.
        if loss == Loss::CrossEntropy && !tokens && dims.len() > 2 {
            let mut order: Vec<usize> = (0..dims.len()).collect();
            let classes = order.remove(1);
            order.push(classes);
            if self.b.mode() != Mode::Inference {
                y.view = y.view.permuted(&order);
            }
        }
        let y = self.dense("logits", y)?;
        let dims = y.dims();
        let (rows, classes) = dims.split_at(dims.len().saturating_sub(1));
        let shape = |dims: &[usize]| {
            let kept = dims.iter().rposition(|&extent| extent > 1).map_or(1, |last| last + 1);
            let kept = &dims[..kept.min(dims.len())];
            (kept.len() <= MAX_RANK)
                .then(|| Shape::new(kept))
                .ok_or_else(|| Refusal::from("its output has too many axes"))
        };
        let (b, weights) = (&mut self.b, self.weights);
        if b.mode() == Mode::Inference {
            let var = Var { id: y.id, shape: shape(&dims)? };
            return Ok(Built { graph: self.b.finish_inference(&[("logits", var)]), weights });
        }
        let value = match loss {
            Loss::CrossEntropy => {
                let Some(&classes) = classes.first().filter(|&&classes| classes > 1) else {
                    return Err(
                        format!("its output of extents {dims:?} has no classes; choose --loss mse").into()
                    );
                };
                let count: usize = rows.iter().product();
                let labels = b.input("labels", shape(rows)?, Content::Class { classes });
                let logits = Var { id: y.id, shape: [count, classes].into() };
                b.cross_entropy("loss", [logits, labels], Part::ALL, 1.0 / count as f32)?
            }
            Loss::SquaredError => {
                let shape = shape(&dims)?;
                let targets = b.input("targets", shape, Content::Real);
                b.squared_error("loss", Var { id: y.id, shape }, targets, 1.0 / shape.len() as f32)?
            }
        };
        let optimizer = options.optimizer_or(OptimizerKind::Sgd, RATE);
        Ok(Built { graph: self.b.finish_training(value, optimizer)?, weights })
    }

    /// What is known of an input.
    pub fn value(&self, name: &str) -> Result<Value, Refusal> {
        if let Some(value) = self.values.get(name) {
            return Ok(value.clone());
        }
        match self.model.initializers.get(name) {
            Some(Initializer::Other(kind)) => Err(format!(
                "`{name}` is of type {kind}, and weights are 32-bit floats here; export the network as float32"
            )
            .into()),
            _ => Err(format!("`{name}` is made by no earlier node").into()),
        }
    }

    /// Known numbers, if there are any.
    pub fn constant(&self, name: Option<&str>) -> Option<Constant> {
        match self.values.get(name?)? {
            Value::Constant(constant) => Some(constant.clone()),
            _ => None,
        }
    }

    /// How many nodes read a result.
    pub fn uses(&self, name: &str) -> usize {
        self.uses.get(name).copied().unwrap_or(0)
    }

    /// An input as a tensor of the graph: an expression becomes its ops.
    pub fn tensor(&mut self, name: &str) -> Result<Tensor, Refusal> {
        let value = self.value(name)?;
        let tensor = self.realized(name, value)?;
        self.values.insert(name.to_owned(), Value::Tensor(tensor.clone()));
        Ok(tensor)
    }

    /// A value as a tensor of the graph.
    pub fn realized(&mut self, name: &str, value: Value) -> Result<Tensor, Refusal> {
        match value {
            Value::Tensor(tensor) => Ok(tensor),
            Value::Pending(pending) => ops::realize(self, name, pending),
            Value::Weight(stored) => self.operand(&stored),
            Value::Constant(constant) => self.frozen(name, &constant),
        }
    }

    /// A tensor whose axes lie in the order of memory.
    pub fn dense(&mut self, name: &str, tensor: Tensor) -> Result<Tensor, Refusal> {
        let mut id = tensor.id;
        for (step, to) in tensor.view.moves().into_iter().enumerate() {
            let kind =
                OpKind::Transpose { batch: to.batch, rows: to.rows, columns: to.columns, inner: to.inner };
            if tensor.classes {
                return Err("tokens cannot be transposed".into());
            }
            id = self.b.push1(format!("{name}.order{step}"), kind, &[id])?.id;
        }
        Ok(Tensor { id, view: View::dense(&tensor.dims()), classes: tensor.classes })
    }

    /// An input as a tensor whose axes lie in the order of memory.
    pub fn dense_input(&mut self, name: &str) -> Result<Tensor, Refusal> {
        let tensor = self.tensor(name)?;
        let dense = self.dense(name, tensor)?;
        self.values.insert(name.to_owned(), Value::Tensor(dense.clone()));
        Ok(dense)
    }

    /// A weight as an operand with its own extents.
    pub fn operand(&mut self, stored: &Stored) -> Result<Tensor, Refusal> {
        let id = self.parameter(stored, Form::Plain, Role::Weight)?;
        let mut view = View::dense(&stored.dims);
        if stored.transposed {
            view = view.permuted(&(0..stored.dims.len()).rev().collect::<Vec<_>>());
        }
        Ok(Tensor { id, view, classes: false })
    }

    /// The weight of a dense layer: `[outputs, inputs]`, from this one of `[inputs, outputs]`.
    pub fn layer(&mut self, stored: &Stored) -> Result<TensorId, Refusal> {
        let form = if stored.transposed { Form::Plain } else { Form::Transposed };
        self.parameter(stored, form, Role::Weight)
    }

    /// A weight, or known numbers that stay as they are, with this number of elements.
    pub fn vector(&mut self, name: &str, len: usize, role: Role) -> Result<TensorId, Refusal> {
        match self.value(name)? {
            Value::Weight(stored) if stored.dims.iter().product::<usize>() == len => {
                self.parameter(&stored, Form::Plain, role)
            }
            Value::Constant(constant) if constant.values.len() == len => Ok(self.frozen(name, &constant)?.id),
            Value::Weight(Stored { dims, .. }) | Value::Constant(Constant { dims, .. }) => {
                Err(format!("`{name}` has extents {dims:?} instead of {len} elements").into())
            }
            _ => {
                Err(format!("`{name}` is computed by the network, and a weight of the file is expected")
                    .into())
            }
        }
    }

    /// The parameter of the graph for a tensor of the file. It is one, however often it is read.
    fn parameter(&mut self, stored: &Stored, form: Form, role: Role) -> Result<TensorId, Refusal> {
        let Stored { name, dims, .. } = stored;
        if let Some(&(id, earlier)) = self.taken.get(name) {
            return match earlier == form {
                true => Ok(id),
                false => Err(format!(
                    "the weight `{name}` is read as it is and with rows and columns exchanged, and no tensor here has both forms; \
                     export one of the two as a weight of its own"
                )
                .into()),
            };
        }
        let Some(Initializer::Weight { dims: own, place, .. }) = self.model.initializers.get(name) else {
            return Err(format!("`{name}` is no weight of the file").into());
        };
        let mut shape = dims.clone();
        if form == Form::Transposed {
            shape.reverse();
        }
        let len: usize = own.iter().product();
        if shape.len() > MAX_RANK || len == 0 || len > MOST {
            return Err(
                format!("the weight `{name}` has extents {own:?}, which no operation here takes").into()
            );
        }
        let var = self.b.persistent(name.clone(), Shape::new(&shape), role, Init::Constant(0.0));
        let weight = Weight { name: name.clone(), place: place.clone(), form, len };
        self.weights.push(weight);
        self.taken.insert(name.clone(), (var.id, form));
        Ok(var.id)
    }

    /// Known numbers as a tensor that no training changes.
    pub fn frozen(&mut self, name: &str, constant: &Constant) -> Result<Tensor, Refusal> {
        let dims = &constant.dims;
        if dims.len() > MAX_RANK || constant.values.is_empty() || constant.whole {
            return Err(format!("the known numbers `{name}` of extents {dims:?} are no operand here").into());
        }
        let view = View::dense(dims);
        if let Some(&(id, _)) = self.taken.get(name) {
            return Ok(Tensor { id, view, classes: false });
        }
        let values: Vec<f32> = constant.values.iter().map(|&value| value as f32).collect();
        let var = self.b.persistent(name, Shape::new(dims), Role::Statistic, Init::Constant(0.0));
        let (place, len) = (Place::Memory(values.into()), constant.values.len());
        self.weights.push(Weight { name: name.to_owned(), place, form: Form::Plain, len });
        self.taken.insert(name.to_owned(), (var.id, Form::Plain));
        Ok(Tensor { id: var.id, view, classes: false })
    }

    /// Adds an op with one result, whose elements have this view.
    pub fn push(
        &mut self,
        name: &str,
        kind: OpKind,
        inputs: &[TensorId],
        view: View,
    ) -> Result<Value, Refusal> {
        expect_size(&view)?;
        let id = self.pushed(name, kind, inputs)?;
        Ok(Value::Tensor(Tensor { id, view, classes: false }))
    }

    /// Adds an op and returns its first result.
    pub fn pushed(&mut self, name: &str, kind: OpKind, inputs: &[TensorId]) -> Result<TensorId, Refusal> {
        let floats = |id: &&TensorId| self.b.graph().tensors[**id].dtype == DType::F32;
        let embeds = matches!(kind, OpKind::Embedding(_));
        if !embeds && !inputs.iter().all(|id| floats(&id)) {
            return Err("whole numbers can only look up rows of a table here".into());
        }
        Ok(self.b.push1(name, kind, inputs)?.id)
    }

    /// The name of a value that is not an op by itself, as the end of a sentence.
    pub fn described(value: &Value) -> &'static str {
        match value {
            Value::Constant(_) => "known numbers",
            Value::Weight(_) => "a weight",
            Value::Tensor(_) => "a tensor",
            Value::Pending(pending) => Pending::name(pending),
        }
    }
}

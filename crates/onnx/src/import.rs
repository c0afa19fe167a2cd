//! From the nodes of a file to a graph: nodes that the output needs, one after another, and the loss behind them.

use std::collections::HashMap;

use elbowroom_graph::layers::Part;
use elbowroom_graph::op::OpKind;
use elbowroom_graph::shape::MAX_RANK;
use elbowroom_graph::zoo::{OptimizerKind, Options};
use elbowroom_graph::{Builder, Content, DType, Init, Mode, Role, Shape, Var};
use elbowroom_ir::TensorId;

use crate::constant::Constant;
use crate::error::Refusal;
use crate::fold::fold;
use crate::node::Node;
use crate::selection::{Entry, MOST, RATE, entries, needed};
use crate::value::{Stored, Tensor, Value};
use crate::view::View;
use crate::weights::{Form, Initializer, Place, Weight};
use crate::{Built, Loss, Model, OnnxError, ops};

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
            Initializer::Weight { dims, single, fixed, .. } => Value::Weight(Stored {
                name: name.clone(),
                dims: dims.clone(),
                transposed: false,
                single: *single,
                fixed: *fixed,
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
        let results = match self.folded(node) {
            Some(constant) => vec![Value::Constant(constant)],
            None => ops::add(self, node)?,
        };
        for (name, value) in node.0.outputs.iter().zip(results) {
            self.values.insert(name.clone(), value);
        }
        Ok(())
    }

    /// The result of a node that reads known numbers alone.
    fn folded(&self, node: &Node<'_>) -> Option<Constant> {
        let is_known = |name: &String| match self.values.get(name) {
            Some(Value::Weight(stored)) => stored.fixed,
            Some(value) => matches!(value, Value::Constant(_)),
            None => name.is_empty(),
        };
        if node.0.inputs.is_empty() || !node.0.inputs.iter().all(is_known) {
            return None;
        }
        let numbers = |name: &String| match name.is_empty() {
            true => Some(None),
            false => self.numbers(Some(name)).map(Some),
        };
        let inputs: Option<Vec<Option<Constant>>> = node.0.inputs.iter().map(numbers).collect();
        fold(node, &inputs?)
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

    /// As [`constant`](Self::constant), also of a tensor of the file that would be a weight elsewhere.
    pub fn numbers(&self, name: Option<&str>) -> Option<Constant> {
        match self.values.get(name?)? {
            Value::Weight(stored) if !stored.transposed => {
                let values = self.model.initializers.get(&stored.name)?.numbers()?;
                Some(Constant { dims: stored.dims.clone(), values, whole: false })
            }
            _ => self.constant(name),
        }
    }

    /// How many nodes read a result.
    pub fn uses(&self, name: &str) -> usize {
        self.uses.get(name).copied().unwrap_or(0)
    }

    /// Extents of an input.
    pub fn dims(&self, name: &str) -> Result<Vec<usize>, Refusal> {
        Ok(match self.value(name)? {
            Value::Tensor(tensor) => tensor.dims(),
            Value::Weight(stored) => stored.seen(),
            Value::Constant(constant) => constant.dims,
            Value::Pending(pending) => pending.dims(),
            Value::Sequence(_) => {
                return Err(format!("`{name}` is a sequence, which has no extents here").into());
            }
        })
    }

    /// An input as a tensor of the graph: an expression becomes its ops.
    pub fn tensor(&mut self, name: &str) -> Result<Tensor, Refusal> {
        let value = self.value(name)?;
        self.realized(name, value)
    }

    /// A value as a tensor of the graph. If the name is that of an expression, it names the tensor from then on.
    pub fn realized(&mut self, name: &str, value: Value) -> Result<Tensor, Refusal> {
        match value {
            Value::Tensor(tensor) => Ok(tensor),
            Value::Pending(pending) => {
                let tensor = ops::realize(self, name, pending.clone())?;
                if self.values.get(name) == Some(&Value::Pending(pending)) {
                    self.values.insert(name.to_owned(), Value::Tensor(tensor.clone()));
                }
                Ok(tensor)
            }
            Value::Weight(stored) => self.operand(&stored),
            Value::Constant(constant) => self.frozen(name, &constant),
            Value::Sequence(_) => {
                Err(format!("`{name}` is a sequence, and SequenceAt alone reads one").into())
            }
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

    /// Other extents of the same elements.
    pub fn reshaped(&mut self, name: &str, tensor: Tensor, dims: &[usize]) -> Result<Tensor, Refusal> {
        Ok(match tensor.view.reshaped(dims) {
            Some(view) => Tensor { view, ..tensor },
            None => Tensor { view: View::dense(dims), ..self.dense(name, tensor)? },
        })
    }

    /// A tensor whose axis is a [range of memory](View::run), with the extents before, of and behind it.
    pub fn in_memory(
        &mut self,
        name: &str,
        tensor: Tensor,
        axis: usize,
    ) -> Result<(Tensor, [usize; 3]), Refusal> {
        if let Some(run) = tensor.view.run(&[axis]) {
            return Ok((tensor, run));
        }
        let tensor = self.dense(name, tensor)?;
        let run = tensor.view.run(&[axis]).ok_or("its axis is no axis of memory")?;
        Ok((tensor, run))
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

    /// A weight, known numbers that stay as they are, or, as no statistic, what the network computes, with this number of elements.
    pub fn vector(&mut self, name: &str, len: usize, role: Role) -> Result<TensorId, Refusal> {
        match self.value(name)? {
            Value::Weight(stored) if stored.dims.iter().product::<usize>() == len => {
                self.parameter(&stored, Form::Plain, role)
            }
            Value::Constant(constant) if constant.values.len() == len => Ok(self.frozen(name, &constant)?.id),
            Value::Weight(Stored { dims, .. }) | Value::Constant(Constant { dims, .. }) => {
                Err(format!("`{name}` has extents {dims:?} instead of {len} elements").into())
            }
            _ if role == Role::Statistic => {
                Err(format!("`{name}` is computed by the network, and a tensor of the file is expected")
                    .into())
            }
            _ => {
                let x = self.dense_input(name)?;
                let dims = x.dims();
                match dims.iter().product::<usize>() == len {
                    true => Ok(x.id),
                    false => Err(format!("`{name}` has extents {dims:?} instead of {len} elements").into()),
                }
            }
        }
    }

    /// The parameter of the graph for a tensor of the file. It is one, however often it is read.
    fn parameter(&mut self, stored: &Stored, form: Form, role: Role) -> Result<TensorId, Refusal> {
        let Stored { name, dims, fixed, .. } = stored;
        let role = if *fixed { Role::Statistic } else { role };
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
        let values: Vec<f32> = constant.values.iter().map(|&value| value as f32).collect();
        let place = Place::Memory(values.into());
        let of_file = self.model.initializers.contains_key(name);
        // Nodes may have one name and other numbers.
        let (mut own, mut number) = (name.to_owned(), 1);
        while let Some(&(id, _)) = self.taken.get(&own) {
            if of_file || self.weights.iter().any(|weight| weight.name == own && weight.place == place) {
                return Ok(Tensor { id, view, classes: false });
            }
            number += 1;
            own = format!("{name}.{number}");
        }
        let var = self.b.persistent(own.clone(), Shape::new(dims), Role::Statistic, Init::Constant(0.0));
        let len = constant.values.len();
        self.weights.push(Weight { name: own.clone(), place, form: Form::Plain, len });
        self.taken.insert(own, (var.id, Form::Plain));
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

    /// The op that made a tensor.
    pub fn maker(&self, tensor: TensorId) -> Option<&elbowroom_graph::Node> {
        self.b.graph().nodes.values().rev().find(|node| node.outputs.contains(&tensor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Dimension, Graph, Node, Shape, TensorType, Type, ValueInfo};

    #[test]
    fn numbers_of_nodes_with_one_name_are_told_apart() {
        let dimension = |extent: i64| Dimension { value: Some(extent), name: None };
        let shape = Shape { dims: [3, 2].map(dimension).to_vec() };
        let tensor = Some(TensorType { element: crate::proto::element::FLOAT, shape: Some(shape) });
        let value = |name: &str| ValueInfo {
            name: name.to_owned(),
            r#type: Some(Type { tensor: tensor.clone() }),
            metadata: Vec::new(),
        };
        let node = |inputs: [&str; 3], output: &str| Node {
            kind: "Where".to_owned(),
            name: "same".to_owned(),
            inputs: inputs.map(str::to_owned).to_vec(),
            outputs: vec![output.to_owned()],
            ..Node::default()
        };
        let nodes = vec![
            node(["first", "x", "zero"], "y"),
            node(["second", "y", "zero"], "z"),
            node(["first", "z", "zero"], "out"),
        ];
        let graph =
            Graph { nodes, inputs: vec![value("x")], outputs: vec![value("out")], ..Graph::default() };
        let truths = |values: [f64; 2]| {
            Initializer::Constant(Constant { dims: vec![2], values: values.to_vec(), whole: true })
        };
        let initializers = [
            ("first", truths([1.0, 0.0])),
            ("second", truths([0.0, 1.0])),
            ("zero", Initializer::Constant(Constant::scalar(0.0, false))),
        ];
        let initializers = initializers.map(|(name, initializer)| (name.to_owned(), initializer)).into();
        let model = Model { path: "net.onnx".into(), graph, opset: 17, initializers };
        let built = model.build(&Options::new(3).mode(Mode::Inference), Loss::SquaredError).unwrap();
        let masks: Vec<&Place> = built.weights.iter().map(|weight| &weight.place).collect();
        let mask = |values: [f32; 2]| Place::Memory(values.as_slice().into());
        assert_eq!(masks, [&mask([1.0, 0.0]), &mask([0.0, 1.0])]);
    }
}

//! A training iteration over several micro-batches: the forward and the backward ops once for each, one update at the end. The gradients of the
//! micro-batches are added up, so that activations of one micro-batch at a time are alive.
//!
//! ```text
//! whole batch   forward                     backward                    update
//! three parts   forward backward  forward backward  forward backward    update
//! ```
//!
//! The loss of the iteration is the mean over the micro-batches, as PyTorch users write it by hand. Batch normalization uses the statistics of
//! each micro-batch. Gradients can be clipped by their global norm before the update.

use std::collections::HashMap;

use elbowroom_ir::TensorId;
use elbowroom_ir::trace::Phase;

use crate::autodiff::SEED;
use crate::builder::{BuildError, Builder, Mode, Var, part_suffix};
use crate::graph::Graph;
use crate::op::{Mask, OpKind};

impl Graph {
    /// The same training over `parts` micro-batches of this graph's batch, each with inputs of its own (with the names of this graph's, part
    /// after part), and with gradients clipped to a global norm if `clip` is given: all gradients are multiplied by
    /// `min(1, clip / (norm + 10⁻⁶))`, as in PyTorch's `clip_grad_norm_`. One part without clipping computes the same bits as this graph.
    ///
    /// # Errors
    /// [`BuildError::Extents`] if the graph has no gradients, or results other than its loss.
    pub fn accumulated(&self, parts: usize, clip: Option<f32>) -> Result<Self, BuildError> {
        let name = match parts {
            1 => self.name.clone(),
            _ => format!("{} in {parts} parts", self.name),
        };
        let refuse = |why: &str| BuildError::Extents { node: self.name.clone(), why: why.to_owned() };
        if parts == 0 {
            return Err(refuse("a batch has at least one part"));
        }
        let steps = self.nodes.values().filter(|node| node.phase == Phase::Update);
        let steps: Vec<_> = steps.collect();
        if steps.is_empty()
            || !steps.iter().all(|step| matches!(step.kind, OpKind::SgdStep { .. } | OpKind::AdamStep { .. }))
        {
            return Err(refuse(
                "only a network that is trained by gradients has gradients to add up or to clip",
            ));
        }
        let mut copy = Copy::new(self, name, parts, clip);
        for part in 0..parts {
            copy.part(part)?;
        }
        copy.finish()
    }
}

/// The op with random words that are `further` streams away.
fn with_streams(kind: &OpKind, further: u32) -> OpKind {
    match kind {
        OpKind::Dropout(mask) => OpKind::Dropout(Mask { stream: mask.stream + further, ..*mask }),
        &OpKind::Noise { len, stream } => OpKind::Noise { len, stream: stream + further },
        &OpKind::RandomSteps { rows, steps, stream } => {
            OpKind::RandomSteps { rows, steps, stream: stream + further }
        }
        OpKind::Mixed(mixed) => mixed.with(with_streams(&mixed.kind, further)),
        kind => kind.clone(),
    }
}

/// A graph under construction from the nodes of another one.
struct Copy<'g> {
    graph: &'g Graph,
    builder: Builder,
    parts: usize,
    clip: Option<f32>,
    /// The current tensor of every persistent tensor of the original, by what it is called when the iteration begins.
    persistent: HashMap<TensorId, TensorId>,
    /// The sum of the gradients so far, by the gradient's tensor in the original.
    gradients: HashMap<TensorId, Option<TensorId>>,
    /// The sum of squares of the gradients so far.
    squares: Option<Var>,
    /// The sum over the parts of every output.
    outputs: Vec<Option<Var>>,
    masks: u32,
}

impl<'g> Copy<'g> {
    fn new(graph: &'g Graph, name: String, parts: usize, clip: Option<f32>) -> Self {
        let mut builder = Builder::new(name, Mode::Training);
        let mut persistent = HashMap::new();
        for parameter in &graph.persistent {
            let shape = graph.tensors[parameter.begin].shape;
            let made = builder.persistent(parameter.name.clone(), shape, parameter.role, parameter.init);
            persistent.insert(parameter.begin, made.id);
        }
        let steps = graph.nodes.values().filter(|node| node.phase == Phase::Update);
        let gradients = steps.map(|step| (step.inputs[1], None)).collect();
        let masks = graph.nodes.values().filter_map(|node| match *node.kind.formula() {
            OpKind::Dropout(mask) => Some(mask.stream + 1),
            OpKind::Noise { stream, .. } | OpKind::RandomSteps { stream, .. } => Some(stream + 1),
            _ => None,
        });
        let masks = masks.max().unwrap_or(0);
        let outputs = vec![None; graph.outputs.len()];
        Self { graph, builder, parts, clip, persistent, gradients, squares: None, outputs, masks }
    }

    /// Appends the ops of one part; of the last one with the updates, unless they wait for the norm.
    fn part(&mut self, part: usize) -> Result<(), BuildError> {
        let last = part + 1 == self.parts;
        let mut here: HashMap<TensorId, TensorId> = self.persistent.clone();
        for node in self.graph.nodes.values() {
            let name = format!("{}{}", node.name, part_suffix(part));
            self.builder.phase = node.phase;
            match &node.kind {
                OpKind::Input { slot } => {
                    let input = &self.graph.inputs[*slot];
                    let shape = self.graph.tensors[input.tensor].shape;
                    here.insert(input.tensor, self.builder.input(&input.name, shape, input.content).id);
                }
                OpKind::Output { slot } => {
                    let original = self.graph.outputs[*slot].tensor;
                    let shape = self.graph.tensors[original].shape;
                    let value = Var { id: here[&original], shape };
                    self.outputs[*slot] = Some(match self.outputs[*slot] {
                        None => value,
                        Some(sum) => self.builder.add(&format!("{name}.sum"), sum, value)?,
                    });
                }
                _ if node.phase == Phase::Update => {
                    if last && self.clip.is_none() {
                        self.update(node, None)?;
                    }
                }
                kind => {
                    let kind = match kind {
                        // The derivative of the mean over the parts.
                        OpKind::Fill { len, value } if node.name == SEED => {
                            OpKind::Fill { len: *len, value: *value / self.parts as f32 }
                        }
                        kind => with_streams(kind, part as u32 * self.masks),
                    };
                    let inputs: Vec<TensorId> = node.inputs.iter().map(|input| here[input]).collect();
                    let made = self.builder.push(name, kind, &inputs)?;
                    for (position, (&original, made)) in node.outputs.iter().zip(&made).enumerate() {
                        here.insert(original, made.id);
                        let mutated =
                            node.kind.mutations().into_iter().find(|&(_, output)| output == position);
                        let begin = mutated.map(|(input, _)| self.graph.tensors[node.inputs[input]].storage);
                        let owner = begin.and_then(|storage| {
                            let owns = |&&id: &&TensorId| self.graph.tensors[id].storage == storage;
                            self.persistent.keys().find(owns).copied()
                        });
                        if let Some(owner) = owner {
                            self.persistent.insert(owner, made.id);
                        }
                        self.gradient_made(original, *made, last)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds a gradient to those of the parts before, as soon as it is complete.
    fn gradient_made(&mut self, original: TensorId, made: Var, last: bool) -> Result<(), BuildError> {
        let Some(&before) = self.gradients.get(&original) else { return Ok(()) };
        let name = self.graph.tensors[original].name.clone();
        let sum = match before {
            None => made,
            Some(before) => {
                let before = Var { id: before, shape: made.shape };
                self.builder.add(
                    &format!("{name}.parts{}", self.builder.graph().nodes.len()),
                    before,
                    made,
                )?
            }
        };
        self.gradients.insert(original, Some(sum.id));
        if last && self.clip.is_some() {
            // By rows, so that a weight in tiles gives the same bits.
            let rows = match *sum.shape.dims() {
                [rows, _, ..] => rows.max(1),
                _ => 1,
            };
            let kind = OpKind::RowSquares { rows, width: sum.shape.len() / rows };
            let mut squares = self.builder.push1(format!("{name}.squares"), kind, &[sum.id])?;
            if rows > 1 {
                let kind = OpKind::Sum { len: rows, factor: 1.0 };
                squares = self.builder.push1(format!("{name}.squares.total"), kind, &[squares.id])?;
            }
            self.squares = Some(match self.squares {
                None => squares,
                Some(before) => self.builder.add(&format!("{name}.squares.sum"), before, squares)?,
            });
        }
        Ok(())
    }

    /// Appends the update of one weight, from its gradient times `factor`.
    fn update(&mut self, node: &crate::graph::Node, factor: Option<Var>) -> Result<(), BuildError> {
        let gradient = self.gradients.get(&node.inputs[1]).copied().flatten();
        let Some(mut gradient) = gradient else { return Ok(()) };
        if let Some(factor) = factor {
            let len = self.graph.tensors[node.inputs[1]].shape.len();
            let kind = OpKind::ScaleBy { len };
            gradient = self.builder.push1(format!("{}.clipped", node.name), kind, &[gradient, factor.id])?.id;
        }
        self.builder.phase = Phase::Update;
        let current = |input: &TensorId| self.persistent.get(input).copied();
        let operands: Option<Vec<TensorId>> = node
            .inputs
            .iter()
            .enumerate()
            .map(|(position, input)| if position == 1 { Some(gradient) } else { current(input) })
            .collect();
        let Some(operands) = operands else { return Ok(()) };
        self.builder.push(node.name.clone(), node.kind.clone(), &operands)?;
        Ok(())
    }

    fn finish(mut self) -> Result<Graph, BuildError> {
        if let (Some(max_norm), Some(squares)) = (self.clip, self.squares) {
            self.builder.phase = Phase::Update;
            let factor = self.builder.push1("clip", OpKind::ClipFactor { max_norm }, &[squares.id])?;
            let graph = self.graph;
            for node in graph.nodes.values().filter(|node| node.phase == Phase::Update) {
                self.update(node, Some(factor))?;
            }
        }
        for (output, sum) in self.graph.outputs.iter().zip(std::mem::take(&mut self.outputs)) {
            self.builder.phase = Phase::Forward;
            let Some(sum) = sum else { continue };
            if self.parts > 1 && sum.shape.len() != 1 {
                let why = "a result of a batch in parts is one number, the mean over the parts".to_owned();
                return Err(BuildError::Extents { node: output.name.clone(), why });
            }
            let mean = match self.parts {
                1 => sum,
                parts => self.builder.scale(&format!("{}.mean", output.name), sum, 1.0 / parts as f32)?,
            };
            self.builder.output(&output.name, mean);
        }
        Ok(self.builder.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zoo::{self, Options};

    #[test]
    fn one_part_is_the_same_graph_and_several_have_one_update() {
        for name in ["resnet20", "gpt", "lstm", "vgg11", "unet"] {
            let options = Options::new(2).length(4).layers(1).image(if name == "vgg11" { 32 } else { 16 });
            let graph = zoo::build(name, &options).unwrap();
            let count =
                |graph: &Graph, phase| graph.nodes.values().filter(|node| node.phase == phase).count();
            let one = graph.accumulated(1, None).unwrap();
            assert_eq!((one.nodes.len(), one.persistent.len()), (graph.nodes.len(), graph.persistent.len()));
            let three = graph.accumulated(3, None).unwrap();
            assert_eq!(count(&three, Phase::Update), count(&graph, Phase::Update), "{name}");
            assert_eq!(three.inputs.len(), 3 * graph.inputs.len());
            assert!(three.trace(&|_, _| elbowroom_ir::Bytes::ZERO).is_ok());
            let clipped = graph.accumulated(2, Some(1.0)).unwrap();
            assert!(clipped.trace(&|_, _| elbowroom_ir::Bytes::ZERO).is_ok());
        }
        let kmeans = zoo::build("kmeans", &Options::new(2)).unwrap();
        assert!(kmeans.accumulated(2, None).is_err() && kmeans.accumulated(0, None).is_err());
    }
}

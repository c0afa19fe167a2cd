//! Normalizations that exporters write in parts: of layers before opset 17, by the root mean square before opset 23, and batch normalization by statistics
//! that are computed from the batch.
//!
//! ```text
//! x ─┬────────────────────────▶ Div ─▶ Mul γ ─▶ Add β        x − mean(x) takes the place of x in that of layers
//!    └▶ Pow 2 ─▶ ReduceMean ─▶ Add ε ─▶ Sqrt ┘
//! ```
//!
//! As one op they need less memory: the backward pass reads x and a number for each row instead of every step between.

use std::collections::HashMap;

use crate::constant::Constant;
use crate::fold::fold;
use crate::node::Node;
use crate::proto::{self, Graph};
use crate::weights::Initializer;

/// Nodes one behind another that compute an axis at most: exporters write a reshape or a cast.
const STEPS: usize = 3;

/// Puts one node in the place of the last node of each.
pub fn join(graph: &mut Graph, initializers: &HashMap<String, Initializer>) {
    let parts = Parts::of(graph, initializers);
    let of = |at: usize| match graph.nodes[at].kind.as_str() {
        "Sqrt" => parts.normalization(at),
        "BatchNormalization" => parts.of_batch(at),
        _ => None,
    };
    let found: Vec<(usize, proto::Node)> = (0..graph.nodes.len()).filter_map(of).collect();
    for (last, node) in found {
        graph.nodes[last] = node;
    }
}

/// The nodes of a graph by what they make and read.
struct Parts<'g> {
    nodes: &'g [proto::Node],
    initializers: &'g HashMap<String, Initializer>,
    makers: HashMap<&'g str, usize>,
    readers: HashMap<&'g str, Vec<usize>>,
}

impl<'g> Parts<'g> {
    fn of(graph: &'g Graph, initializers: &'g HashMap<String, Initializer>) -> Self {
        let mut makers = HashMap::new();
        let mut readers: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, node) in graph.nodes.iter().enumerate() {
            makers.extend(node.outputs.first().map(|output| (output.as_str(), at)));
            for input in &node.inputs {
                readers.entry(input).or_default().push(at);
            }
        }
        // What leaves the graph has one reader more.
        for output in &graph.outputs {
            readers.entry(&output.name).or_default().push(usize::MAX);
        }
        Self { nodes: &graph.nodes, initializers, makers, readers }
    }

    /// The node that makes a result, if it is of this kind.
    fn maker(&self, name: &str, kind: &str) -> Option<&'g proto::Node> {
        let maker = self.makers.get(name).map(|&at| &self.nodes[at])?;
        (maker.kind == kind && maker.domain.is_empty()).then_some(maker)
    }

    /// The only node that reads the result of another one, if it is of this kind.
    fn reader(&self, of: &proto::Node, kind: &str) -> Option<usize> {
        match self.readers.get(of.outputs.first()?.as_str())?.as_slice() {
            &[at] => {
                self.nodes.get(at).filter(|node| node.kind == kind && node.domain.is_empty()).map(|_| at)
            }
            _ => None,
        }
    }

    /// Known numbers: of the file, of a node, or what nodes before it compute from such.
    fn known(&self, name: &str) -> Option<Constant> {
        self.computed(name, STEPS)
    }

    /// As [`known`](Self::known), within this many nodes one behind another.
    fn computed(&self, name: &str, steps: usize) -> Option<Constant> {
        match self.initializers.get(name) {
            Some(Initializer::Constant(constant)) => return Some(constant.clone()),
            Some(Initializer::Weight { single, .. }) => {
                return single.map(|single| Constant::scalar(single, false));
            }
            Some(Initializer::Other(_)) => return None,
            None => {}
        }
        let node = &self.nodes[*self.makers.get(name).filter(|_| steps > 0)?];
        if node.kind == "Constant" {
            return Node(node).constant();
        }
        let inputs = node.inputs.iter().map(|input| self.computed(input, steps - 1).map(Some));
        let inputs: Vec<Option<Constant>> = inputs.collect::<Option<_>>()?;
        fold(&Node(node), &inputs)
    }

    /// The operand of a node that is not this one.
    fn other(node: &'g proto::Node, one: &str) -> Option<&'g str> {
        match node.inputs.as_slice() {
            [first, second] if second == one => Some(first),
            [first, second] if first == one => Some(second),
            _ => None,
        }
    }

    /// A node that is a mean over axes that are known: its operand, and these.
    fn mean_over(&self, name: &str) -> Option<(&'g str, Vec<i64>)> {
        let node = Node(self.maker(name, "ReduceMean")?);
        let axes = node.ints("axes").map(<[i64]>::to_vec);
        let axes = axes.or_else(|| self.known(node.input(1)?).map(|axes| axes.ints()))?;
        Some((node.input(0)?, axes))
    }

    /// A node that is the mean over the last axis, and keeps it: its operand.
    fn mean(&self, name: &str) -> Option<&'g str> {
        let keeps = Node(self.maker(name, "ReduceMean")?).int("keepdims").unwrap_or(1) != 0;
        let (x, axes) = self.mean_over(name)?;
        (keeps && axes == [-1]).then_some(x)
    }

    /// The batch normalization at this place without its statistics, if they are computed from the batch: of a module that has none.
    fn of_batch(&self, at: usize) -> Option<(usize, proto::Node)> {
        let node = &self.nodes[at];
        let [x, _, _, mean, variance] = node.inputs.as_slice() else { return None };
        let (same, axes) = self.mean_over(mean)?;
        let (squares, also) = self.mean_over(variance)?;
        let [minuend, center] = self.maker(self.square(squares)?, "Sub")?.inputs.as_slice() else {
            return None;
        };
        // All axes but the channels'.
        let others =
            axes.first() == Some(&0) && axes[1..].iter().zip(2..).all(|(&axis, other)| axis == other);
        let is_own = same == x && minuend == x && self.mean_over(center)? == (x, axes.clone());
        let inputs = node.inputs[..3].to_vec();
        (is_own && others && also == axes).then(|| (at, proto::Node { inputs, ..node.clone() }))
    }

    /// A node that is a square: its operand.
    fn square(&self, name: &str) -> Option<&'g str> {
        if let Some(power) = self.maker(name, "Pow") {
            let [x, exponent] = power.inputs.as_slice() else { return None };
            return (self.known(exponent)?.single()? == 2.0).then_some(x);
        }
        let [x, same] = self.maker(name, "Mul")?.inputs.as_slice() else { return None };
        (x == same).then_some(x)
    }

    /// The weight of one axis by which a node multiplies, or which it adds, besides this operand.
    fn weight(&self, node: &'g proto::Node, operand: &str) -> Option<&'g str> {
        let name = Self::other(node, operand)?;
        let is_vector = |initializer: &Initializer| matches!(initializer, Initializer::Weight { dims, fixed: false, .. } if dims.len() == 1);
        self.initializers.get(name).is_some_and(is_vector).then_some(name)
    }

    /// The normalization whose root this node is: its last node, and what takes that one's place.
    fn normalization(&self, root: usize) -> Option<(usize, proto::Node)> {
        let root = &self.nodes[root];
        let sum = self.maker(root.inputs.first()?, "Add")?;
        let (mean, epsilon) = match sum.inputs.as_slice() {
            [a, b] => match self.known(b) {
                Some(epsilon) => (a, epsilon),
                None => (b, self.known(a)?),
            },
            _ => return None,
        };
        let (epsilon, divided) = (epsilon.single()?, self.square(self.mean(mean)?)?);
        let quotient = match self.reader(root, "Div") {
            Some(quotient) => quotient,
            None => self.reader(&self.nodes[self.reader(root, "Reciprocal")?], "Mul")?,
        };
        let by_root = |node: &proto::Node| match node.kind.as_str() {
            "Div" => node.inputs.first().is_some_and(|x| x == divided),
            _ => node.inputs.iter().any(|x| x == divided),
        };
        let quotient = Some(&self.nodes[quotient]).filter(|node| by_root(node))?;
        let scaled = self.reader(quotient, "Mul")?;
        let scale = self.weight(&self.nodes[scaled], quotient.outputs.first()?)?;
        // Of layers if the mean was taken away before.
        let centered = self.maker(divided, "Sub").and_then(|difference| match difference.inputs.as_slice() {
            [x, mean] => (self.mean(mean)? == x).then_some(x),
            _ => None,
        });
        let (kind, last, inputs) = match centered {
            None => ("RMSNormalization", scaled, vec![divided.to_owned(), scale.to_owned()]),
            Some(x) => {
                let last = self.reader(&self.nodes[scaled], "Add")?;
                let shift = self.weight(&self.nodes[last], self.nodes[scaled].outputs.first()?)?;
                ("LayerNormalization", last, vec![x.clone(), scale.to_owned(), shift.to_owned()])
            }
        };
        let float = proto::Attribute {
            name: "epsilon".to_owned(),
            float: Some(epsilon as f32),
            ..proto::Attribute::default()
        };
        let node = proto::Node {
            kind: kind.to_owned(),
            inputs,
            attributes: vec![float],
            ..self.nodes[last].clone()
        };
        Some((last, node))
    }
}

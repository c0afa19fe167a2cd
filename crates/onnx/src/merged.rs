//! Weights that an exporter merged because their values were equal.
//!
//! Exporters of PyTorch store equal tensors once: in a network that was never trained, one tensor of ones is the scale of every normalization of its
//! width, and one of zeros may be a bias and a running mean at the same time. Training would change all of them together. Here every reader of such a
//! tensor gets one of its own, unless the readers are calls of one module, whose weight is meant to be shared.
//!
//! Merged is what has several readers and one value throughout: two tensors of random numbers are never equal, so that a table of embeddings that is also
//! the last layer stays one. A file that has two equal tensors was not written by an exporter that merges them, and is left as it is.

use std::collections::{HashMap, HashSet};

use crate::proto::{Graph, Node};
use crate::weights::Initializer;

/// Elements of a tensor that is merged at most, as PyTorch's exporter does it.
const MERGED: usize = 1024;

/// Where a node reads a tensor: its index, and that of the input.
type Reading = (usize, usize);

/// Gives the readers of merged weights tensors of their own, with names of the form in which PyTorch has them: `layer4.1.bn2.running_mean`.
pub fn separate(graph: &mut Graph, initializers: &mut HashMap<String, Initializer>) {
    let mut readings: HashMap<&str, Vec<Reading>> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        for (input, name) in node.inputs.iter().enumerate() {
            if matches!(initializers.get(name), Some(Initializer::Weight { .. })) {
                readings.entry(name).or_default().push((index, input));
            }
        }
    }
    let mut merged: Vec<(String, Vec<Reading>)> = readings
        .into_iter()
        .filter(|(name, places)| places.len() > 1 && initializers[*name].one_value().is_some())
        .map(|(name, places)| (name.to_owned(), places))
        .collect();
    if merged.is_empty() || has_equal(initializers) {
        return;
    }
    // The order of names, where two weights want the same one.
    merged.sort();
    let results: HashSet<String> = graph.nodes.iter().flat_map(|node| &node.outputs).cloned().collect();
    // How often a name was wanted.
    let mut wanted: HashMap<String, usize> = HashMap::new();
    for (name, places) in merged {
        let owners: Vec<Owner> =
            places.iter().map(|&(index, input)| Owner::of(&graph.nodes[index], input)).collect();
        // The tensor that gave its name keeps it; where names tell nothing, the first one does.
        let first = owners.iter().position(|owner| owner.tensor(&name) == name).unwrap_or(0);
        let mut names = HashMap::from([(owners[first].clone(), name.clone())]);
        for (&(index, input), owner) in places.iter().zip(owners) {
            let own = names.entry(owner).or_insert_with_key(|owner| {
                let tensor = owner.tensor(&name);
                let number = wanted.entry(tensor.clone()).or_insert(0);
                let free = loop {
                    *number += 1;
                    let free = if *number == 1 { tensor.clone() } else { format!("{tensor}.{number}") };
                    if !initializers.contains_key(&free) && !results.contains(&free) {
                        break free;
                    }
                };
                // Of equal tensors, what the file says of a buffer holds for the one that has its name.
                initializers.insert(free.clone(), initializers[&name].trained());
                free
            });
            graph.nodes[index].inputs[input].clone_from(own);
        }
    }
}

/// Whether two tensors of the file are equal, which an exporter that merges equal ones would have merged.
fn has_equal(initializers: &HashMap<String, Initializer>) -> bool {
    let mut found = HashSet::new();
    initializers.values().any(|initializer| {
        let Initializer::Weight { dims, .. } = initializer else { return false };
        let is_small = dims.iter().product::<usize>() <= MERGED;
        is_small && initializer.one_value().is_some_and(|value| !found.insert((dims, value)))
    })
}

/// To which parameter of which module of the exported program a tensor belongs.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Owner {
    /// `features.0.1`, or the name of the node where the file does not state its module.
    module: String,
    /// `running_mean`, where the operation tells.
    parameter: Option<&'static str>,
    /// Tells the factors of a module apart, which may have several of one shape.
    factor: Option<String>,
}

impl Owner {
    fn of(node: &Node, input: usize) -> Self {
        let own_name = || crate::node::Node(node).name();
        let module = module(node).filter(|module| !module.is_empty());
        let parameter = match (node.kind.as_str(), input) {
            ("BatchNormalization", 3) => Some("running_mean"),
            ("BatchNormalization", 4) => Some("running_var"),
            ("Add" | "Mul" | "Sub" | "Div", _) => None,
            (_, 1) => Some("weight"),
            (_, 2) => Some("bias"),
            _ => None,
        };
        let factor = (module.is_none() || matches!(node.kind.as_str(), "Mul" | "Div")).then(own_name);
        Self { module: module.unwrap_or_else(own_name), parameter, factor }
    }

    /// The name of the tensor: that of its parameter in its module, or of `merged` where the operation does not tell.
    fn tensor(&self, merged: &str) -> String {
        let last = merged.rsplit('.').next().unwrap_or(merged);
        format!("{}.{}", self.module, self.parameter.unwrap_or(last))
    }
}

/// The module of the exported program that a node is part of, if the file states it: in its metadata, or as the folders of its name.
fn module(node: &Node) -> Option<String> {
    if let Some(scopes) = node.metadata.iter().find(|entry| entry.key == "pkg.torch.onnx.name_scopes") {
        // A list as Python writes it, from the whole network to the operation: `['', 'features', 'features.0', 'conv2d']`.
        let scopes: Vec<&str> = scopes.value.split('\'').skip(1).step_by(2).collect();
        return scopes.len().checked_sub(2).map(|module| scopes[module].to_owned());
    }
    // `/features/features.0/conv/Conv`: a part repeats the one before where that is a list of modules.
    let (folders, _) = node.name.strip_prefix('/')?.rsplit_once('/')?;
    let mut parts: Vec<&str> = Vec::new();
    for folder in folders.split('/') {
        let repeated = |last: &&str| folder.strip_prefix(last).is_some_and(|rest| rest.starts_with('.'));
        if parts.last().is_some_and(repeated) {
            parts.pop();
        }
        parts.push(folder);
    }
    Some(parts.join("."))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::proto::Entry;
    use crate::weights::Place;

    fn node(kind: &str, name: &str, scopes: &str, inputs: &[&str]) -> Node {
        let metadata = match scopes {
            "" => Vec::new(),
            scopes => vec![Entry { key: "pkg.torch.onnx.name_scopes".to_owned(), value: scopes.to_owned() }],
        };
        let inputs = inputs.iter().map(|&input| input.to_owned()).collect();
        Node {
            inputs,
            outputs: vec![format!("{name}.y")],
            name: name.to_owned(),
            kind: kind.to_owned(),
            metadata,
            ..Node::default()
        }
    }

    fn weight(values: &[f32]) -> Initializer {
        Initializer::Weight {
            dims: vec![values.len()],
            place: Place::Memory(Arc::from(values)),
            single: None,
            fixed: false,
        }
    }

    /// The inputs of every node after the separation, but for the first.
    fn separated(nodes: Vec<Node>, weights: &[(&str, &[f32])]) -> (Vec<Vec<String>>, Vec<String>) {
        let mut graph = Graph { nodes, ..Graph::default() };
        let mut initializers: HashMap<String, Initializer> =
            weights.iter().map(|&(name, values)| (name.to_owned(), weight(values))).collect();
        separate(&mut graph, &mut initializers);
        let inputs: Vec<_> = graph.nodes.into_iter().map(|node| node.inputs[1..].to_vec()).collect();
        let mut names: Vec<String> = initializers.into_keys().collect();
        names.sort();
        assert!(inputs.iter().flatten().all(|name| names.contains(name)), "{inputs:?} of {names:?}");
        (inputs, names)
    }

    #[test]
    fn readers_of_merged_weights_get_their_own_with_the_names_of_their_modules() {
        let scopes = |path: &str| format!("['', 'body', '{path}', 'norm_3']");
        let (ones, zeros) = ("body.0.weight", "body.0.bias");
        let nodes = vec![
            node("BatchNormalization", "n0", &scopes("body.0"), &["x", ones, zeros, zeros, ones]),
            node("LayerNormalization", "n1", &scopes("body.1"), &["n0.y", ones, zeros]),
            node("Add", "n2", &scopes("body.2.linear"), &["n1.y", zeros]),
            // The module of n1, called again: its weights are meant to be shared.
            node("LayerNormalization", "n3", &scopes("body.1"), &["n2.y", ones, zeros]),
        ];
        let (inputs, names) = separated(nodes, &[(ones, &[1.0; 3]), (zeros, &[0.0; 3])]);
        assert_eq!(inputs[0], [ones, zeros, "body.0.running_mean", "body.0.running_var"]);
        assert_eq!(inputs[1], ["body.1.weight", "body.1.bias"]);
        assert_eq!(inputs[2], ["body.2.linear.bias"]);
        assert_eq!(inputs[3], inputs[1]);
        assert_eq!(names.len(), 7);
    }

    #[test]
    fn the_reader_after_which_a_merged_weight_is_named_keeps_it() {
        let nodes = vec![
            node("Gemm", "/head/head.0/Gemm", "", &["x", "w", "norm.bias"]),
            node("LayerNormalization", "/norm/LayerNormalization", "", &["y", "s", "norm.bias"]),
        ];
        let (inputs, _) = separated(nodes, &[("w", &[0.5, 2.0]), ("s", &[1.0]), ("norm.bias", &[0.0; 2])]);
        assert_eq!([&inputs[0][1], &inputs[1][1]], ["head.0.bias", "norm.bias"]);
    }

    #[test]
    fn files_with_equal_tensors_stay_as_they_are() {
        let nodes = || {
            vec![
                node("Mul", "n0", "['', 'a', 'mul']", &["x", "scale"]),
                node("Mul", "n1", "['', 'b', 'mul']", &["y", "scale"]),
                node("Add", "n2", "['', 'b', 'add']", &["z", "other"]),
            ]
        };
        let (inputs, _) = separated(nodes(), &[("scale", &[1.0; 3]), ("other", &[1.0; 3])]);
        assert_eq!([&inputs[0][0], &inputs[1][0]], ["scale", "scale"]);
        let (inputs, _) = separated(nodes(), &[("scale", &[1.0; 3]), ("other", &[0.0; 3])]);
        assert_ne!(inputs[0][0], inputs[1][0]);
    }

    #[test]
    fn factors_of_one_module_are_told_apart_and_shared_tables_are_not() {
        let (scale, table) = ("block.gamma_1", "embedding.weight");
        let nodes = vec![
            node("Gather", "n0", "", &["ids", table]),
            node("Mul", "n1", "['', 'block', 'mul']", &["n0.y", scale]),
            node("Mul", "n2", "['', 'block', 'mul_1']", &["n1.y", scale]),
            node("MatMul", "n3", "['', 'head', 'linear']", &["n2.y", table]),
        ];
        let (inputs, names) = separated(nodes, &[(scale, &[0.1; 4]), (table, &[0.1, 0.1, 0.1, 0.2])]);
        let inputs: Vec<&str> = inputs.iter().map(|inputs| inputs[0].as_str()).collect();
        assert_eq!(inputs, [table, scale, "block.gamma_1.2", table]);
        assert_eq!(names, [scale, "block.gamma_1.2", table]);
    }
}

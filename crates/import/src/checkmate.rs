//! Graphs of Checkmate and of random layered networks, as networkx writes them.
//!
//! One JSON object: `nodes` and `links` as networkx's node-link data. A node of a network has `cost_cpu`, `cost_ram` and `backward`, and
//! a link a `source` and a `target`; a node of a random graph has `duration` and `out_cost`, and a link the ends `0` and `1`. The order of
//! execution is `graph.order`, or that of the nodes.
//!
//! Sizes are bytes. The unit of times is not stated ([`Options::time_unit`](crate::Options::time_unit)); some are outliers, some counts of
//! operations. Results are as Checkmate counts: every op may be recomputed, nothing has to stay to the end, parameters are left out.

use std::collections::BTreeMap;

use elbowroom_ir::planning::CostSource;
use elbowroom_ir::trace::Phase;
use serde::Deserialize;

use crate::detect::Format;
use crate::error::ImportError;
use crate::finish::{ImportDraft, duration, finish};
use crate::notes::Notes;
use crate::op_graph::{OpGraph, OpNode, topological};
use crate::{Imported, Options, Source};

#[derive(Deserialize)]
struct CheckmateFile {
    #[serde(default)]
    graph: Attributes,
    nodes: Vec<CheckmateNode>,
    links: Vec<Link>,
}

#[derive(Default, Deserialize)]
struct Attributes {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    order: Vec<u64>,
}

#[derive(Deserialize)]
struct CheckmateNode {
    #[serde(default)]
    id: Option<u64>,
    #[serde(default)]
    name: Name,
    #[serde(default)]
    backward: bool,
    #[serde(alias = "duration")]
    cost_cpu: f64,
    #[serde(alias = "out_cost")]
    cost_ram: u64,
}

/// A node is called by a text, or by the number that is its id.
#[derive(Default, Deserialize)]
#[serde(untagged)]
enum Name {
    Text(String),
    Number(u64),
    #[default]
    None,
}

#[derive(Deserialize)]
struct Link {
    #[serde(alias = "0")]
    source: u64,
    #[serde(alias = "1")]
    target: u64,
}

pub fn import(source: &Source<'_>, options: &Options) -> Result<Imported, ImportError> {
    let file: CheckmateFile = source.json()?;
    let mut ids = BTreeMap::new();
    let mut nodes = Vec::with_capacity(file.nodes.len());
    for (index, node) in file.nodes.iter().enumerate() {
        let id = match (node.id, &node.name) {
            (Some(id), _) | (None, &Name::Number(id)) => id,
            _ => index as u64,
        };
        if ids.insert(id, index).is_some() {
            return Err(source.wrong(format!("two nodes have the id {id}")));
        }
        let nanos = duration(node.cost_cpu, options.time_unit.get() as f64)
            .ok_or_else(|| source.wrong(format!("node {id}: {} is no duration", node.cost_cpu)))?;
        nodes.push(OpNode {
            name: match &node.name {
                Name::Text(name) => name.clone(),
                _ => format!("n{id}"),
            },
            kind: String::new(),
            phase: if node.backward { Phase::Backward } else { Phase::Forward },
            bytes: node.cost_ram,
            workspace: 0,
            nanos,
            reads: Vec::new(),
        });
    }
    for link in &file.links {
        let (Some(&from), Some(&to)) = (ids.get(&link.source), ids.get(&link.target)) else {
            return Err(source.wrong(format!(
                "the link from {} to {} names a node that is not there",
                link.source, link.target
            )));
        };
        nodes[to].reads.push(from);
    }
    let named: Option<Vec<usize>> = file.graph.order.iter().map(|id| ids.get(id).copied()).collect();
    let named = named.ok_or_else(|| source.wrong("`graph.order` names a node that is not there"))?;
    let preferred = if named.is_empty() { (0..nodes.len()).collect() } else { named };
    let order = topological(&nodes, &preferred).map_err(|node| {
        source.wrong(format!("{} reads, by some way round, its own result", nodes[node].name))
    })?;
    let mut graph = OpGraph::default();
    graph.data.name = file.graph.name.unwrap_or_else(|| source.stem().to_owned());
    graph.nodes(&nodes, &order);
    let mut notes = Notes::new(Format::CheckmateGraph);
    notes.remarks.push(format!(
        "The file does not state its unit of time; one unit is read as {}.",
        options.time_unit
    ));
    finish(
        source,
        ImportDraft { data: graph.data, nanos: graph.nanos, costs_from: CostSource::Recorded, notes },
    )
}

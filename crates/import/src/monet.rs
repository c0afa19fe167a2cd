//! Forward and backward op graphs measured on a Tesla P100, with the results that Checkmate's program reached for them.
//!
//! One JSON object: `nodes` in the order of execution (`op`, `kind` fwd, loss or bwd, `time_ms`, `out_bytes`, `workspace_mib`, and
//! `fixed_bytes`: parameters, batch and the gradients that exist by then), `edges` as pairs of node ids, `loss`, and `reference`.
//!
//! In [`Units::Published`] op `k` is node `k`: cost ⌊100·ms⌉, size ⌊bytes ÷ 1024⌉ KiB (halves to even), nothing else. Live memory of such a
//! trace, at every op, is what Checkmate's program counts: an op reserves its result while its inputs exist, a result lives until its last
//! use, and nothing is kept to the end. A published budget minus `fixed_bytes` of the last node is a limit on live memory.
//!
//! In [`Units::Exact`] there is also a persistent tensor for the initial `fixed_bytes`, read by every op that has parameters, and a tensor
//! for every gradient by which `fixed_bytes` grows, kept to the end.

use std::collections::BTreeMap;
use std::time::Duration;

use elbowroom_ir::planning::CostSource;
use elbowroom_ir::trace::{Again, Persistent, Phase};
use elbowroom_ir::{Bytes, Nanos};
use serde::Deserialize;

use crate::detect::Format;
use crate::error::ImportError;
use crate::finish::{ImportDraft, duration, finish};
use crate::notes::{Notes, Reference};
use crate::op_graph::{OpGraph, OpNode, Value, topological};
use crate::storage_log::results_op;
use crate::{Imported, Options, Source, Units};

const KIB: u64 = 1 << 10;
/// 1/100 ms.
const TICK: f64 = 10_000.0;

#[derive(Deserialize)]
struct MonetFile {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    source: Option<String>,
    nodes: Vec<MonetNode>,
    edges: Vec<(u64, u64)>,
    #[serde(default)]
    reference: Vec<FileReference>,
}

#[derive(Deserialize)]
struct MonetNode {
    id: u64,
    op: String,
    kind: String,
    time_ms: f64,
    out_bytes: u64,
    #[serde(default)]
    workspace_mib: f64,
    #[serde(default)]
    fixed_bytes: u64,
    #[serde(default)]
    fwd_id: Option<u64>,
}

#[derive(Deserialize)]
struct FileReference {
    budget_gb: f64,
    gurobi_checkmate_obj: u64,
    no_recompute_obj: u64,
    #[serde(default)]
    solve_time_s: f64,
}

pub fn import(source: &Source<'_>, options: &Options) -> Result<Imported, ImportError> {
    let file: MonetFile = source.json()?;
    let ids: BTreeMap<u64, usize> =
        file.nodes.iter().enumerate().map(|(index, node)| (node.id, index)).collect();
    if ids.len() != file.nodes.len() {
        return Err(source.wrong("two nodes have one id"));
    }
    let mut nodes = Vec::with_capacity(file.nodes.len());
    for node in &file.nodes {
        nodes.push(
            read_node(node, options).map_err(|what| source.wrong(format!("node {}: {what}", node.id)))?,
        );
    }
    for (from, to) in &file.edges {
        let (Some(&from), Some(&to)) = (ids.get(from), ids.get(to)) else {
            return Err(source.wrong(format!("the edge [{from}, {to}] names a node that is not there")));
        };
        nodes[to].reads.push(from);
    }
    let order: Vec<usize> = (0..nodes.len()).collect();
    if topological(&nodes, &order).ok().as_ref() != Some(&order) {
        return Err(
            source.wrong("a node reads one that comes after it; the nodes must be in the order of execution")
        );
    }

    let last_fixed = file.nodes.last().map_or(0, |node| node.fixed_bytes);
    let mut notes = Notes::new(Format::MeasuredGraph);
    notes.origin = file.source;
    notes.references =
        file.reference.iter().filter_map(|reference| read_reference(reference, last_fixed)).collect();
    let mut graph = OpGraph::default();
    graph.data.name = file.name.unwrap_or_else(|| source.stem().to_owned());
    match options.units {
        Units::Published => {
            graph.nodes(&nodes, &order);
            notes.left_out = Bytes(last_fixed);
            notes.remarks.push(
                "Sizes are whole KiB and times whole 1/100 ms; parameters, gradients, batch and workspaces are left out, as published results count."
                    .to_owned(),
            );
        }
        Units::Exact => with_parameters(&mut graph, &nodes, &file.nodes, &ids),
    }
    finish(
        source,
        ImportDraft { data: graph.data, nanos: graph.nanos, costs_from: CostSource::Recorded, notes },
    )
}

fn read_node(node: &MonetNode, options: &Options) -> Result<OpNode, String> {
    let phase = match node.kind.as_str() {
        "fwd" | "loss" => Phase::Forward,
        "bwd" => Phase::Backward,
        other => return Err(format!("kind `{other}` is none of fwd, loss and bwd")),
    };
    let no_time = || format!("{} ms is no duration", node.time_ms);
    let (bytes, workspace, nanos) = match options.units {
        Units::Exact => {
            // Measured as a difference of two readings, which is negative for some ops without workspace.
            let workspace = duration(node.workspace_mib.max(0.0) * 1_048_576.0, 1.0)
                .ok_or_else(|| format!("{} MiB is no size", node.workspace_mib))?;
            (node.out_bytes, workspace.get(), duration(node.time_ms, 1e6).ok_or_else(no_time)?)
        }
        Units::Published => {
            let ticks = duration((node.time_ms * 100.0).round_ties_even(), TICK).ok_or_else(no_time)?;
            (kib(node.out_bytes).saturating_mul(KIB), 0, ticks)
        }
    };
    Ok(OpNode {
        name: format!("{}@{}", node.op, node.id),
        kind: node.op.rsplit(':').next().unwrap_or(&node.op).to_owned(),
        phase,
        bytes,
        workspace,
        nanos,
        reads: Vec::new(),
    })
}

/// Whole KiB, halves to even.
fn kib(bytes: u64) -> u64 {
    let (whole, rest) = (bytes / KIB, bytes % KIB);
    whole + u64::from(rest > KIB / 2 || (rest == KIB / 2 && whole % 2 == 1))
}

fn read_reference(reference: &FileReference, fixed: u64) -> Option<Reference> {
    let memory = duration(reference.budget_gb, 1_048_576.0)?.get();
    let ticks = |obj: u64| obj.checked_mul(TICK as u64).map(Nanos);
    Some(Reference {
        memory: Bytes(memory.checked_mul(KIB)?),
        live_limit: Bytes(memory.saturating_sub(kib(fixed)).checked_mul(KIB)?),
        time: ticks(reference.gurobi_checkmate_obj)?,
        unlimited_time: ticks(reference.no_recompute_obj)?,
        solver: Duration::try_from_secs_f64(reference.solve_time_s).ok()?,
    })
}

/// Adds the nodes, and tensors for `fixed_bytes`.
fn with_parameters(graph: &mut OpGraph, nodes: &[OpNode], rows: &[MonetNode], ids: &BTreeMap<u64, usize>) {
    let grows = |k: usize| rows[k].fixed_bytes.saturating_sub(rows[k.saturating_sub(1)].fixed_bytes);
    let mut has_parameters = vec![false; nodes.len()];
    for (index, row) in rows.iter().enumerate() {
        if let Some(&forward) = row.fwd_id.as_ref().and_then(|id| ids.get(id))
            && grows(index) > 0
        {
            has_parameters[forward] = true;
        }
    }
    let fixed = rows.first().map_or(0, |row| row.fixed_bytes);
    let parameters = (fixed > 0).then(|| graph.value("parameters and batch".to_owned(), fixed));
    if let Some(value) = parameters {
        graph.data.persistent.push(Persistent { begin: value, end: value });
    }
    let mut made = vec![Value::default(); nodes.len()];
    let mut gradients = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        let layer = rows[index].fwd_id.as_ref().and_then(|id| ids.get(id)).copied().unwrap_or(index);
        let parameters = parameters.filter(|_| has_parameters[layer] || index == 0);
        let inputs: Vec<Value> =
            node.reads.iter().map(|&n| made[n]).chain(parameters.map(Value::of)).collect();
        let tensor = (node.bytes > 0).then(|| graph.value(node.name.clone(), node.bytes));
        let mut outputs: Vec<_> = tensor.into_iter().collect();
        if grows(index) > 0 {
            let gradient = graph.value(format!("{}.gradient", node.name), grows(index));
            gradients.push(gradient);
            outputs.push(gradient);
        }
        let op = graph.op(node, &inputs, outputs);
        made[index] = Value { tensor, maker: Some(op) };
        if node.kind.contains("dropout") && node.phase == Phase::Forward {
            graph.data.ops[op].again = Again::Rng { stream: index as u64 };
        }
    }
    if !gradients.is_empty() {
        graph.push(results_op(gradients, Phase::Backward), Nanos::ZERO);
    }
}

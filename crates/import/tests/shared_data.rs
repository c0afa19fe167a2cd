//! Every file of the shared data set is read, and the trace agrees with the figures of the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use elbowroom_import::{Format, Imported, Options, Units, import};
use elbowroom_ir::trace::{Again, Phase, Trace};
use elbowroom_ir::{Bytes, Id, Nanos, OpId};
use serde_json::Value;

#[path = "../../../golden/mod.rs"]
mod golden;
#[path = "../../../golden/shared.rs"]
mod shared;
use shared::shared;

fn files(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(shared(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

fn read(path: &Path, options: &Options) -> Imported {
    let bytes = std::fs::read(path).unwrap();
    import(&bytes, &path.file_name().unwrap().to_string_lossy(), options)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

fn milliseconds(value: &Value) -> f64 {
    value.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).sum()
}

/// No op both writes over something and may be recomputed; updates are of persistent storages only.
fn effects_stand_apart(trace: &Trace) {
    for op in trace.ops().values() {
        assert!(op.mutates.is_empty() || op.again == Again::Never, "{}", op.name);
    }
    let persistent: Vec<_> = trace.persistent().iter().map(|pair| trace.storage(pair.begin)).collect();
    for op in trace.ops().values() {
        assert!(op.mutates.iter().all(|m| persistent.contains(&trace.storage(m.old))), "{}", op.name);
    }
}

#[test]
#[ignore = "needs the shared data"]
fn chains_add_up() {
    for path in files("data/chains") {
        let (file, imported) = (json(&path), read(&path, &Options::default()));
        assert_eq!(imported.notes.kind, Format::Chain);
        let n = file["n"].as_u64().unwrap() as usize;
        let stated = milliseconds(&file["uF"]) + milliseconds(&file["uB"]);
        let total = imported.costs.total().get() as f64 / 1e6;
        assert!((total - stated).abs() < 1e-6 * 2.0 * n as f64, "{}: {total} {stated}", path.display());

        // The live memory of every op by the chain's formulas: B_i runs while everything saved up to layer i is alive.
        let (saved, y) = (numbers(&file["xbar"]), numbers(&file["y"]));
        let (forward, backward) = (numbers(&file["exF"]), numbers(&file["exB"]));
        let up_to = |k: usize| saved[..=k].iter().sum::<u64>();
        let load = (0..n)
            .flat_map(|i| [up_to(i + 1) + forward[i], up_to(i + 1) + y[i + 1] + y[i] + backward[i]])
            .max()
            .unwrap();
        assert_eq!(imported.notes.peak, Bytes(load), "{}", path.display());
    }
}

/// The peak if every storage were freed after its last use, by the log alone.
fn tight_peak(file: &Value) -> u64 {
    let sizes = numbers(&file["sizes"]);
    let ops = file["ops"].as_array().unwrap();
    let constant: Vec<usize> =
        file["const_first_op"].as_object().unwrap().keys().map(|k| k.parse().unwrap()).collect();
    let mut last = vec![usize::MAX; sizes.len()];
    for (index, op) in ops.iter().enumerate() {
        for key in ["reads", "writes"] {
            numbers(&op[key]).iter().for_each(|&s| last[s as usize] = index);
        }
    }
    let freed: Vec<u64> = ops.iter().flat_map(|op| numbers(&op["frees"])).collect();
    let mut frees: BTreeMap<usize, u64> = BTreeMap::new();
    freed.iter().for_each(|&s| *frees.entry(last[s as usize]).or_default() += sizes[s as usize]);
    let mut live: u64 = constant.iter().map(|&s| sizes[s]).sum();
    let mut peak = live;
    for (index, op) in ops.iter().enumerate() {
        live += numbers(&op["allocs"]).iter().map(|&s| sizes[s as usize]).sum::<u64>();
        peak = peak.max(live);
        live -= frees.get(&index).copied().unwrap_or_default();
    }
    peak
}

#[test]
#[ignore = "needs the shared data"]
fn recorded_traces_keep_time_and_peak() {
    for path in files("data/recorded") {
        let (file, imported) = (json(&path), read(&path, &Options::default()));
        let notes = &imported.notes;
        assert_eq!(notes.kind, Format::Recorded);
        assert_eq!(Some(imported.costs.total()), notes.stated_time, "{}", path.display());
        assert_eq!(notes.recorded_peak, notes.stated_peak, "{}", path.display());
        assert_eq!(notes.peak, Bytes(tight_peak(&file)), "{}", path.display());
        effects_stand_apart(&imported.trace);
        let named =
            |name: &str| file["ops"].as_array().unwrap().iter().filter(|op| op["name"] == name).count();
        let updates = imported.trace.ops().values().filter(|op| op.kind == "cudnn_batch_norm_update").count();
        assert_eq!(updates, named("cudnn_batch_norm"), "{}", path.display());
    }
}

struct Capture {
    meta: Value,
    storages: Vec<Value>,
    ops: Vec<Value>,
}

fn capture(path: &Path) -> Capture {
    use std::io::Read;
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    let mut capture = Capture { meta: Value::Null, storages: Vec::new(), ops: Vec::new() };
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        match line["k"].as_str().unwrap() {
            "meta" => capture.meta = line,
            "st" => capture.storages.push(line),
            "op" => capture.ops.push(line),
            _ => {}
        }
    }
    capture
}

#[test]
#[ignore = "needs the shared data"]
fn captured_traces_keep_time_and_peak() {
    for path in files("data/traces") {
        let (file, imported) = (capture(&path), read(&path, &Options::default()));
        let (trace, notes) = (&imported.trace, &imported.notes);
        assert_eq!(notes.kind, Format::Captured);
        effects_stand_apart(trace);
        let stated: f64 = file.ops.iter().map(|op| op["us"].as_f64().unwrap()).sum();
        assert_eq!(imported.costs.total().get(), (stated * 1e3).round() as u64, "{}", path.display());

        // The file states its peak in tenths of a MiB.
        let recorded = notes.recorded_peak.unwrap();
        let stated = file.meta["peak_MB"].as_f64().unwrap();
        assert!((recorded.get() as f64 / 1_048_576.0 - stated).abs() <= 0.0501, "{}", path.display());
        // The trace lets go of the batch after its last use and writes new statistics over the old ones; that is all the difference.
        let class = |names: &[&str]| -> u64 {
            let of = file.storages.iter().filter(|s| names.contains(&s["c"].as_str().unwrap()));
            of.map(|s| s["b"].as_u64().unwrap()).sum()
        };
        let slack = class(&["input", "buffer", "tangent"]) + 64;
        assert!(notes.peak <= recorded && recorded.get() <= notes.peak.get() + slack, "{}", path.display());

        let joint = file.meta["mode"] == "joint";
        let persistent = file
            .storages
            .iter()
            .filter(|s| ["param", "buffer", "optstate"].contains(&s["c"].as_str().unwrap()));
        assert_eq!(trace.persistent().len(), persistent.clone().count());
        // Eager traces step every parameter and its momentum; joint ones update buffers alone.
        let changed = trace.persistent().iter().filter(|pair| pair.begin != pair.end).count();
        let buffers = persistent.clone().filter(|s| s["c"] == "buffer").count();
        assert_eq!(changed, if joint { buffers } else { persistent.count() }, "{}", path.display());
        let batch_norms = file.ops.iter().filter(|op| {
            let name = op["op"].as_str().unwrap();
            name.contains("batch_norm") && !name.contains("backward")
        });
        let updates = trace
            .ops()
            .values()
            .filter(|op| op.kind.ends_with("batch_norm_update") || op.kind.ends_with("functional_update"));
        assert_eq!(updates.count(), batch_norms.count(), "{}", path.display());
    }
}

/// The reduced graph that the planners' test of these sequences reads is the graph that the importer reads.
fn same_as_golden(imported: &Imported, graph: &Value) {
    let ops = imported.trace.ops();
    let (cost, size) = (numbers(&graph["cost"]), numbers(&graph["size"]));
    let backward = graph["backward"].as_u64().unwrap() as usize;
    assert_eq!((cost.len(), size.len()), (ops.len(), ops.len()));
    for (id, op) in ops.iter() {
        let index = id.index();
        assert_eq!(imported.costs.nanos[id], Nanos(10_000) * cost[index], "{}", op.name);
        let made: u64 = op.outputs.iter().map(|&tensor| imported.trace.bytes(tensor).get()).sum();
        assert_eq!(made, size[index] << 10, "{}", op.name);
        assert_eq!(op.phase == Phase::Backward, index >= backward, "{}", op.name);
        let reads = op.reads.iter().filter_map(|&tensor| imported.trace.producer(tensor));
        let mut reads: Vec<u64> = reads.map(|op| op.index() as u64).collect();
        let mut stated = numbers(&graph["reads"][index]);
        stated.retain(|&op| size[op as usize] > 0);
        reads.sort_unstable();
        stated.sort_unstable();
        assert_eq!(reads, stated, "{}", op.name);
    }
}

/// Replays ops in another order, some of them again: a value lives from its making until its last use before it is made again.
fn replay(imported: &Imported, sequence: &[usize]) -> (Nanos, Bytes) {
    let trace = &imported.trace;
    let mut newest: BTreeMap<u32, usize> = BTreeMap::new();
    let mut last_use: Vec<usize> = (0..sequence.len()).collect();
    for (place, &op) in sequence.iter().enumerate() {
        for value in &trace.ops()[OpId::new(op)].reads {
            last_use[newest[&value.0]] = place;
        }
        trace.ops()[OpId::new(op)].outputs.iter().for_each(|value| {
            newest.insert(value.0, place);
        });
    }
    let made =
        |op: usize| trace.ops()[OpId::new(op)].outputs.iter().map(|&v| trace.bytes(v).get()).sum::<u64>();
    let (mut live, mut peak, mut frees) = (0u64, 0u64, vec![0u64; sequence.len()]);
    for (place, &op) in sequence.iter().enumerate() {
        live += made(op);
        peak = peak.max(live);
        frees[last_use[place]] += made(op);
        live -= frees[place];
    }
    assert_eq!(live, 0);
    (sequence.iter().map(|&op| imported.costs.nanos[OpId::new(op)]).sum(), Bytes(peak))
}

#[test]
#[ignore = "needs the shared data"]
fn published_sequences_cost_what_was_published() {
    let (golden, graphs) =
        (golden::json("checkmate_p100_sequences.json"), golden::json("checkmate_p100_graphs.json"));
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 21);
    let (tick, kib) = (Nanos(10_000), Bytes(1 << 10));
    for case in cases {
        let graph = case["graph"].as_str().unwrap();
        let imported = read(&shared(graph), &Options::default().units(Units::Published));
        same_as_golden(&imported, &graphs[graph.trim_end_matches(".json").rsplit('/').next().unwrap()]);
        let number = |key: &str| case[key].as_u64().unwrap();
        let sequence: Vec<usize> = numbers(&case["sequence"]).into_iter().map(|n| n as usize).collect();
        let (time, peak) = replay(&imported, &sequence);
        assert_eq!((time, peak), (tick * number("gurobi_cost"), kib * number("gurobi_peak_kib")), "{graph}");

        assert_eq!(imported.costs.total(), tick * number("no_recompute_cost"), "{graph}");
        assert_eq!(imported.notes.peak, kib * number("no_recompute_peak_kib"), "{graph}");
        assert!(imported.trace.ops().values().all(|op| op.again == Again::Pure && op.workspace.is_zero()));
        let memory = Bytes(number("budget_gb") << 30);
        if let Some(reference) = imported.notes.references.iter().find(|r| r.memory == memory) {
            assert_eq!(reference.live_limit, kib * number("budget_kib_net"), "{graph}");
            assert_eq!(reference.time, time, "{graph}");
            assert_eq!(reference.unlimited_time, imported.costs.total(), "{graph}");
        }
    }
}

#[test]
#[ignore = "needs the shared data"]
fn measured_graphs_carry_everything_in_exact_units() {
    for path in files("data/graphs/monet_p100") {
        let (file, imported) = (json(&path), read(&path, &Options::default()));
        let nodes = file["nodes"].as_array().unwrap();
        let published = read(&path, &Options::default().units(Units::Published));
        assert_eq!(imported.notes.kind, Format::MeasuredGraph);
        assert_eq!(published.trace.ops().len(), nodes.len());
        let stated: f64 = nodes.iter().map(|node| node["time_ms"].as_f64().unwrap()).sum();
        assert!((imported.costs.total().get() as f64 / 1e6 - stated).abs() < 1e-6 * nodes.len() as f64);
        // Parameters, batch and gradients: what the file counts as fixed at its end stays to the end.
        let last = imported.trace.ops().values().last().unwrap();
        let kept: u64 = last.reads.iter().map(|&v| imported.trace.bytes(v).get()).sum();
        let there = imported.trace.bytes(imported.trace.persistent()[0].begin).get();
        assert_eq!(
            kept + there,
            nodes.last().unwrap()["fixed_bytes"].as_u64().unwrap(),
            "{}",
            path.display()
        );
        assert_eq!(published.notes.left_out, Bytes(kept + there));
        assert!(imported.notes.peak > published.notes.peak);
        assert!(!imported.notes.references.is_empty());
    }
}

#[test]
#[ignore = "needs the shared data"]
fn checkmate_graphs_have_every_node_and_link() {
    for path in files("data/graphs/checkmate") {
        let (file, imported) = (json(&path), read(&path, &Options::default()));
        assert_eq!(imported.notes.kind, Format::CheckmateGraph);
        let (nodes, links) = (file["nodes"].as_array().unwrap(), file["links"].as_array().unwrap());
        let of = |a: &str, b: &str| -> u64 {
            nodes.iter().map(|n| n[a].as_u64().or(n[b].as_u64()).unwrap()).sum()
        };
        assert_eq!(imported.trace.ops().len(), nodes.len());
        assert_eq!(imported.trace.ops().values().map(|op| op.reads.len()).sum::<usize>(), links.len());
        assert_eq!(imported.costs.total().get(), 1_000 * of("cost_cpu", "duration"));
        assert_eq!(
            imported.trace.storages().values().map(|s| s.bytes.get()).sum::<u64>(),
            of("cost_ram", "out_cost")
        );
        if let Some(order) = file["graph"]["order"].as_array() {
            let names: Vec<String> = order.iter().map(|id| format!("n{id}")).collect();
            assert!(imported.trace.ops().values().map(|op| &op.name).eq(&names), "{}", path.display());
        }
    }
}

#[test]
#[ignore = "needs the shared data"]
fn chainer_graphs_have_every_function() {
    for path in files("data/graphs/chainer") {
        let (file, imported) = (json(&path), read(&path, &Options::default()));
        assert_eq!(imported.notes.kind, Format::ChainerGraph);
        let functions = file["functions"].as_array().unwrap();
        let stated: u64 = functions.iter().map(|f| f["t"].as_u64().unwrap()).sum();
        assert_eq!(imported.costs.total().get(), 1_000 * stated);
        let computed =
            |op: &&elbowroom_ir::trace::Op| !["input", "fill", "output"].contains(&op.kind.as_str());
        assert_eq!(imported.trace.ops().values().filter(computed).count(), functions.len());
        // Every parameter has a gradient, kept to the end.
        let last = imported.trace.ops().values().last().unwrap();
        assert_eq!(last.kind, "output");
        assert_eq!(last.reads.len(), imported.trace.persistent().len(), "{}", path.display());
    }
}

#[test]
#[ignore = "needs the shared data"]
fn more_reuse_never_costs_memory() {
    for path in files("data/traces") {
        let plain = read(&path, &Options::default());
        let inplace = read(&path, &Options::default().inplace(true));
        assert!(inplace.notes.peak <= plain.notes.peak, "{}", path.display());
        let permitted = |i: &Imported| i.trace.ops().values().map(|op| op.may_reuse.len()).sum::<usize>();
        assert!(permitted(&inplace) >= permitted(&plain));
    }
}

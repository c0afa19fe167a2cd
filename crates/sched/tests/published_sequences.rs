//! The sequences that a 24-hour run of Checkmate's program published, as policies: lowered and simulated, they take the published time
//! and memory.

use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::{CostSource, Costs, Freedom, Request};
use elbowroom_ir::trace::{Again, Op, Phase, Storage, Tensor, Trace, TraceData, Work};
use elbowroom_ir::{Bytes, Id, Nanos, OpId, TensorId};
use elbowroom_sched::recompute::repeats;
use elbowroom_sched::{LowerError, lower};
use elbowroom_sim::{presets, simulate};
use serde_json::Value;

#[path = "../../../golden/mod.rs"]
mod golden;

const TICK: Nanos = Nanos(10_000);

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

/// A graph of the golden file: one tensor per op that has a result.
fn trace(name: &str, graph: &Value) -> (Trace, Costs) {
    let mut data = TraceData { name: name.to_owned(), ..TraceData::default() };
    let mut results: Vec<Option<TensorId>> = Vec::new();
    for (index, size) in numbers(&graph["size"]).into_iter().enumerate() {
        let backward = index as u64 >= graph["backward"].as_u64().unwrap();
        let reads = numbers(&graph["reads"][index]);
        let result = (size > 0).then(|| {
            let storage = data.storages.push(Storage { bytes: Bytes(size << 10) });
            data.tensors.push(Tensor { name: format!("x{index}"), storage })
        });
        data.ops.push(Op {
            name: format!("op{index}"),
            kind: String::new(),
            phase: if backward { Phase::Backward } else { Phase::Forward },
            again: Again::Pure,
            reads: reads.into_iter().filter_map(|op| results[op as usize]).collect(),
            outputs: result.into_iter().collect(),
            mutates: vec![],
            may_reuse: vec![],
            after: vec![],
            workspace: Bytes::ZERO,
            work: Work::default(),
            line: String::new(),
        });
        results.push(result);
    }
    let nanos: Vec<Nanos> = numbers(&graph["cost"]).into_iter().map(|ticks| TICK * ticks).collect();
    (Trace::new(data).unwrap(), Costs { nanos: nanos.into(), source: CostSource::Recorded })
}

#[test]
fn every_sequence_costs_what_was_published() {
    let (golden, graphs) =
        (golden::json("checkmate_p100_sequences.json"), golden::json("checkmate_p100_graphs.json"));
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 21);
    let machine = Machine { align: Bytes(1), ..presets::machine("p100").unwrap() };
    for case in cases {
        let graph = case["graph"].as_str().unwrap().trim_end_matches(".json").rsplit('/').next().unwrap();
        let (trace, costs) = trace(graph, &graphs[graph]);
        let number = |key: &str| case[key].as_u64().unwrap();
        assert_eq!(costs.total(), TICK * number("no_recompute_cost"), "{graph}");
        let sequence: Vec<OpId> =
            numbers(&case["sequence"]).into_iter().map(|op| OpId::new(op as usize)).collect();
        let policy = repeats::policy(&trace, sequence);
        let peak = Bytes(number("gurobi_peak_kib") << 10);
        let request = |limit| Request {
            trace: &trace,
            costs: &costs,
            machine: &machine,
            live_limit: limit,
            freedom: Freedom { offload: false, recompute: true, ..Freedom::ALL },
            packer: None,
            pins: None,
        };
        let lowered = lower(&request(peak), &policy).unwrap();
        let timeline = simulate(&trace, &costs, &machine, &lowered.schedule).unwrap();
        assert_eq!(timeline.peak_live, peak, "{graph}");
        assert_eq!(timeline.iteration, TICK * number("gurobi_cost"), "{graph}");
        assert!(
            matches!(lower(&request(peak - Bytes(1)), &policy), Err(LowerError::Shortfall(_))),
            "{graph}"
        );
    }
}

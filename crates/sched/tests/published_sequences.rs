//! The sequences that a 24-hour run of Checkmate's program published, replayed: as policies, lowered and simulated.

use std::path::PathBuf;

use elbowroom_import::{Options, Units, import};
use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::{Freedom, Request};
use elbowroom_ir::{Bytes, Nanos, OpId};
use elbowroom_sched::recompute::repeats;
use elbowroom_sched::{LowerError, lower};
use elbowroom_sim::{presets, simulate};
use serde_json::Value;

#[test]
fn every_sequence_costs_what_was_published() {
    let shared = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared"));
    let Ok(golden) = std::fs::read(shared.join("golden/checkmate_p100_sequences.json")) else {
        eprintln!("skipped: {} has no golden sequences", shared.display());
        return;
    };
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 21);
    let machine = Machine { align: Bytes(1), ..presets::machine("p100").unwrap() };
    for case in cases {
        let graph = case["graph"].as_str().unwrap();
        let options = Options { units: Units::Published, ..Options::default() };
        let imported = import(&std::fs::read(shared.join(graph)).unwrap(), graph, &options).unwrap();
        let ops = case["sequence"].as_array().unwrap();
        let sequence: Vec<OpId> = ops.iter().map(|op| OpId(op.as_u64().unwrap() as u32)).collect();
        let policy = repeats::policy(&imported.trace, sequence);
        let number = |key: &str| case[key].as_u64().unwrap();
        let peak = Bytes(number("gurobi_peak_kib") << 10);
        let request = |limit| Request {
            trace: &imported.trace,
            costs: &imported.costs,
            machine: &machine,
            load_limit: limit,
            freedom: Freedom { offload: false, recompute: true, ..Freedom::ALL },
            packer: None,
        };
        let lowered = lower(&request(peak), &policy).unwrap();
        let timeline = simulate(&imported.trace, &imported.costs, &machine, &lowered.schedule).unwrap();
        assert_eq!(timeline.peak_load, peak, "{graph}");
        assert_eq!(timeline.iteration, Nanos(number("gurobi_cost") * 10_000), "{graph}");
        assert!(
            matches!(lower(&request(peak - Bytes(1)), &policy), Err(LowerError::Shortfall(_))),
            "{graph}"
        );
    }
}

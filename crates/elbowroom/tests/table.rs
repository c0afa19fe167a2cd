//! A table of buffers, shown as a history: lifetimes, peak and offsets are those of the table.

use std::sync::Arc;

use elbowroom::ir::planning::Freedom;
use elbowroom::ir::search::{Budget, Silent};
use elbowroom::ir::{BufferId, Bytes};
use elbowroom::pack::csv;
use elbowroom::pipeline::{self, Task};
use elbowroom::registry;
use elbowroom::sim::{liveness, presets};
use elbowroom::table::{Table, TableError};

/// 60 buffers whose lifetimes touch, overlap and contain one another.
fn text() -> String {
    let row = |k: u64| format!("b{k},{},{},{}\n", k * 7 % 40, k * 7 % 40 + 1 + k * 11 % 13, 1 + k * 37 % 90);
    "id,lower,upper,size\n".to_owned() + &(0..60).map(row).collect::<String>()
}

fn task(table: &Table) -> Task {
    let machine = presets::machine("cpu").unwrap();
    let machine = elbowroom::ir::machine::Machine { align: table.align, ..machine };
    let (trace, costs) = (Arc::new(table.imported.trace.clone()), table.imported.costs.clone());
    Task { trace, costs, machine, freedom: Freedom::ALL, pins: None }
}

#[test]
fn the_history_has_the_lifetimes_and_the_offsets_of_the_table() {
    let buffers = csv::read(&text()).unwrap();
    let table = Table::new(&buffers, "t.csv").unwrap();
    let task = task(&table);
    let problem = pipeline::natural_problem(&task, &Silent).unwrap();
    assert_eq!(problem.peak_live(), buffers.problem.peak_live());
    assert_eq!(problem.blocks.len(), 60);
    // Nothing is placed yet.
    let packer = registry::packer("auto").unwrap();
    let kept = pipeline::unconstrained(&task, packer, &Silent).unwrap();
    assert!(table.placed(&task, &kept).unwrap().is_none());

    // A placement that a packer made is shown as it is.
    let placement = packer.pack(&buffers.problem, &Budget::evaluations(1), &Silent).best.unwrap();
    let placed = csv::read(&csv::write(&buffers, &placement)).unwrap();
    let table = Table::new(&placed, "t.csv").unwrap();
    let plan = table.placed(&task, &kept).unwrap().expect("every buffer has an offset");
    assert_eq!(plan.placement().height, placement.height);
    let lifetimes = liveness::problem(plan.schedule(), plan.machine());
    let mut shown: Vec<(Bytes, Bytes)> = lifetimes
        .blocks
        .iter()
        .map(|(id, block): (BufferId, _)| (block.size, plan.placement().offsets[id]))
        .collect();
    let mut stated: Vec<(Bytes, Bytes)> =
        placed.problem.blocks.values().map(|block| (block.size, block.fixed.unwrap())).collect();
    shown.sort();
    stated.sort();
    assert_eq!(shown, stated);
}

#[test]
fn a_placement_in_which_buffers_overlap_is_illegal() {
    let overlap = "id,lower,upper,size,offset\na,0,4,10,0\nb,3,6,10,5\n";
    let table = Table::new(&csv::read(overlap).unwrap(), "t.csv").unwrap();
    let task = task(&table);
    let kept = pipeline::unconstrained(&task, registry::packer("auto").unwrap(), &Silent).unwrap();
    assert!(table.placed(&task, &kept).is_err());
    // One after the other they may share bytes.
    let touching = overlap.replace("b,3,6", "b,4,6");
    let table = Table::new(&csv::read(&touching).unwrap(), "t.csv").unwrap();
    let task = self::task(&table);
    let kept = pipeline::unconstrained(&task, registry::packer("auto").unwrap(), &Silent).unwrap();
    assert_eq!(table.placed(&task, &kept).unwrap().unwrap().placement().height, Bytes(15));
}

#[test]
fn what_is_no_history_is_refused() {
    let refusal = |text: &str| Table::new(&csv::read(text).unwrap(), "t.csv").unwrap_err();
    assert!(matches!(refusal("id,lower,upper,size\n"), TableError::Empty { .. }));
    assert!(matches!(refusal("id,lower,upper,size,gaps\na,0,9,4,3-6\n"), TableError::Gaps { .. }));
}

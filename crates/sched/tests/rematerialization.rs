//! Compares `dtr` on recorded iterations with the published figures of its authors' simulator.

use std::sync::Arc;

use elbowroom_import::{Options, import};
use elbowroom_ir::Bytes;
use elbowroom_ir::check::check_schedule;
use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::{Freedom, Request};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_sched::planner;
use elbowroom_sim::{presets, simulate};

#[path = "../../../golden/shared.rs"]
mod shared;
use shared::shared;

/// Overhead in percent at 70, 50 and 30 % of the recorded peak; `None` where it does not fit.
const FIGURES: [(&str, [Option<f64>; 3]); 3] = [
    ("resnet32-56-9000000000.0", [Some(4.6), Some(10.7), Some(17.8)]),
    ("tv_densenet121-84-10000000000.0", [Some(10.4), Some(17.6), Some(44.7)]),
    ("unet-6-8000000000.0", [Some(8.5), Some(15.9), None]),
];

#[test]
#[ignore = "needs the shared data"]
fn overheads_are_near_the_published_ones() {
    let machine = Machine { align: Bytes(1), ..presets::machine("v100").unwrap() };
    for (name, published) in FIGURES {
        let bytes = std::fs::read(shared(&format!("data/recorded/{name}.json"))).unwrap();
        let imported = import(&bytes, name, &Options::default()).unwrap();
        let peak = imported.notes.recorded_peak.unwrap();
        for (percent, published) in [70, 50, 30].into_iter().zip(published) {
            let limit = Bytes(peak.get() / 100 * percent);
            let request = Request {
                trace: &imported.trace,
                costs: &imported.costs,
                machine: &machine,
                live_limit: limit,
                freedom: Freedom { offload: false, recompute: true, ..Freedom::ALL },
                packer: None,
                pins: None,
            };
            let outcome = planner("dtr").unwrap().schedule(&request, &Budget::default(), &Silent);
            let overhead = outcome.best.map(|schedule| {
                let timeline = simulate(&imported.trace, &imported.costs, &machine, &schedule).unwrap();
                assert!(timeline.peak_live <= limit);
                check_schedule(Arc::new(imported.trace.clone()), machine.clone(), schedule, limit).unwrap();
                100.0 * (timeline.iteration.get() as f64 / imported.costs.total().get() as f64 - 1.0)
            });
            println!("{name} at {percent} % of {peak}: {overhead:.1?}, published {published:?}");
            match (overhead, published) {
                (Some(overhead), Some(published)) => {
                    assert!((overhead - published).abs() < 3.0, "{name} at {percent} %");
                }
                (overhead, published) => assert_eq!(overhead, published, "{name} at {percent} %"),
            }
        }
    }
}

//! What the user decides about a trace holds for the plans of every planner.

use elbowroom::graph::zoo;
use elbowroom::ir::check;
use elbowroom::ir::plan::Plan;
use elbowroom::ir::planning::Freedom;
use elbowroom::ir::search::{Budget, Silent};
use elbowroom::pins::{PinError, PinnedTask, broken, parse, pin};
use elbowroom::pipeline::{self, Method, Task};
use elbowroom::registry;
use elbowroom::sim::presets;

fn task(network: &str, options: &zoo::Options) -> Task {
    let machine = presets::machine("v100").unwrap();
    Task::estimate(&zoo::build(network, options).unwrap(), &machine, Freedom::ALL).unwrap()
}

#[test]
fn every_planner_obeys_pins() {
    let pins = parse("keep *relu*\nnever-recompute *norm*\nhost *conv1*").unwrap();
    let given = task("resnet20", &zoo::Options::new(2).image(16));
    let packer = registry::packer("best-fit").unwrap();
    let peak = pipeline::unconstrained(&given, packer, &Silent).unwrap().height();
    let PinnedTask { task, pinned } = pin(&given, &pins).unwrap();
    assert!(pinned.iter().all(|pinned| pinned.count > 0 && pinned.bytes.get() > 0), "{pinned:?}");
    let mut found = 0;
    let mut free = 0;
    for name in registry::planners().into_iter().filter(|name| *name != "dqn") {
        let planner = registry::planner(name).unwrap();
        let method = Method::new(planner, packer, Budget::evaluations(40)).at_once();
        for percent in [75, 95] {
            let limit = peak.get() / 100 * percent;
            let limited = task.with_memory(elbowroom::ir::Bytes(limit));
            let Ok(planned) = pipeline::plan(&limited, &method, &Silent) else { continue };
            found += 1;
            let schedule = planned.plan.schedule();
            assert_eq!(broken(&limited, schedule), Vec::<String>::new(), "{name} at {percent} %");
            // It is a plan for the trace without pins, too.
            let plan = Plan { trace: given.trace.fingerprint(), ..planned.plan.plan().clone() };
            check::check(given.trace.clone(), limited.machine.clone(), plan).unwrap();
            let own = Task { pins: task.pins.clone(), ..given.with_memory(limited.machine.memory) };
            let unpinned = pipeline::plan(&Task { pins: None, ..own.clone() }, &method, &Silent);
            free += unpinned.map_or(0, |planned| broken(&own, planned.plan.schedule()).len());
        }
    }
    assert!(found > 12, "{found} plans");
    assert!(free > 0, "without pins the same planners do otherwise");
}

#[test]
fn pins_that_cannot_be_obeyed_are_refused() {
    let given = task("gpt", &zoo::Options::new(1).length(16).layers(1).width(64));
    let refused = |task: &Task, text: &str| pin(task, &parse(text).unwrap()).map(|_| ()).unwrap_err();
    assert!(matches!(refused(&given, "keep nowhere"), PinError::Unmatched { example: Some(_), .. }));
    assert!(matches!(refused(&given, "never-recompute adam"), PinError::Unmatched { .. }));
    let alone = Task { freedom: Freedom { offload: false, ..Freedom::ALL }, ..given.clone() };
    assert!(matches!(refused(&alone, "host *"), PinError::NoOffload { .. }));
    // The last line about a tensor counts.
    let PinnedTask { task, .. } = pin(&given, &parse("host *\nkeep *").unwrap()).unwrap();
    assert!(task.pins.as_ref().is_some_and(|pins| pins.hosted.is_empty() && !pins.kept.is_empty()));
    let PinnedTask { task, .. } = pin(&given, &parse("keep *\nhost *").unwrap()).unwrap();
    assert_eq!(task.pins.as_ref().map(|pins| pins.hosted.len()), Some(given.trace.persistent().len()));
}

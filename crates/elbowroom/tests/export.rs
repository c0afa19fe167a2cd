//! What is exported says what the plan says: read back, the bytes, times and addresses are those of the plan.

use std::collections::BTreeMap;
use std::sync::Mutex;

use elbowroom::export::{Course, memory_snapshot, trace_events};
use elbowroom::graph::{Graph, zoo};
use elbowroom::import::snapshot::Snapshot;
use elbowroom::ir::check::CheckedPlan;
use elbowroom::ir::planning::Freedom;
use elbowroom::ir::schedule::Action;
use elbowroom::ir::search::{Budget, Observer, Silent};
use elbowroom::ir::timeline::Timeline;
use elbowroom::ir::{Bytes, Nanos};
use elbowroom::pipeline::{self, Method, Planned, Task};
use elbowroom::registry;
use elbowroom::sim::{liveness, presets};
use elbowroom::train::{Executed, TrainObserver, Training};
use serde_json::Value;

fn graph(network: &str, batch: usize) -> Graph {
    zoo::build(network, &zoo::Options::new(batch)).unwrap()
}

/// A plan of a network for a share of its unconstrained peak, in percent.
fn planned(network: &str, batch: usize, percent: u64) -> Planned {
    let task =
        Task::estimate(&graph(network, batch), &presets::machine("v100").unwrap(), Freedom::ALL).unwrap();
    let packer = registry::packer("best-fit").unwrap();
    let method = Method::new(registry::planner("auto").unwrap(), packer, Budget::evaluations(60)).at_once();
    let kept = pipeline::unconstrained(&task, packer, &Silent).unwrap();
    let limit = Bytes(kept.height().get() / 100 * percent);
    pipeline::plan(&task.with_memory(limit), &method, &Silent).unwrap()
}

/// The events of a phase (`X`, `C`, `M`) in a document of trace events.
fn events<'a>(document: &'a Value, phase: &str) -> Vec<&'a Value> {
    document["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == phase).collect()
}

/// What must hold of the process `pid` of a document: its events are the actions of the timeline.
fn expect_course(plan: &CheckedPlan, timeline: &Timeline, document: &Value, pid: u64) {
    let own = |phase| -> Vec<&Value> {
        events(document, phase).into_iter().filter(|event| event["pid"] == pid).collect()
    };
    let nanos = |value: &Value| (value.as_f64().unwrap() * 1_000.0).round() as u64;
    let spans = own("X");
    assert_eq!(spans.len(), timeline.spans.len());
    let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
    for (event, span) in spans.iter().zip(&timeline.spans) {
        let (start, end) = (nanos(&event["ts"]), nanos(&event["ts"]) + nanos(&event["dur"]));
        assert_eq!([start, end], [span.start.get(), span.end.get()]);
        // A thread runs one action at a time.
        let before = ends.insert(event["tid"].as_u64().unwrap(), end).unwrap_or_default();
        assert!(before <= start, "{event}");
        let recomputes = matches!(plan.schedule().steps[span.action].action, Action::Recompute(_));
        assert_eq!(event["cat"] == "recompute", recomputes, "{event}");
        assert!(!event["name"].as_str().unwrap().is_empty());
    }
    let live = own("C").into_iter().map(|event| event["args"]["bytes"].as_u64().unwrap()).max();
    assert_eq!(live.map(Bytes), timeline.live.iter().map(|&(_, bytes)| bytes).max());
}

#[test]
fn trace_events_are_the_actions_of_the_timeline() {
    for (network, batch, percent) in [("resnet20", 8, 50), ("lstm", 2, 80), ("gpt", 1, 70), ("vgg11", 1, 90)]
    {
        let planned = planned(network, batch, percent);
        let course = Course { name: "predicted", timeline: &planned.predicted };
        let document: Value = serde_json::from_str(&trace_events(&planned.plan, &[course])).unwrap();
        expect_course(&planned.plan, &planned.predicted, &document, 1);
        let streams =
            events(&document, "M").into_iter().filter(|event| event["name"] == "thread_name").count();
        assert_eq!(streams, 3, "{network}");
    }
}

#[test]
fn a_snapshot_has_the_addresses_and_the_peak_of_the_plan() {
    for (network, batch, percent) in [("resnet20", 8, 50), ("lstm", 2, 80), ("gpt", 1, 70), ("vgg11", 1, 90)]
    {
        let planned = planned(network, batch, percent);
        let (plan, machine) = (&planned.plan, planned.plan.machine());
        let read = Snapshot::read(&memory_snapshot(plan, &planned.predicted), network, None).unwrap();
        assert_eq!(read.reserved, planned.height().align_up(machine.align), "{network}");
        let problem = liveness::problem(plan.schedule(), machine);
        assert_eq!(read.problem(Bytes(1)).peak_live(), problem.peak_live(), "{network}");
        // Every residency has an allocation, and nothing is there before the first event.
        assert!(read.allocations.len() >= problem.blocks.len(), "{network}");
        assert!(read.allocations.iter().all(|allocation| allocation.from.is_some()), "{network}");
        assert!(read.times.is_sorted(), "{network}");
        let end = *read.times.last().unwrap();
        assert!(end <= planned.predicted.iteration + Nanos(1_000), "{network}: {end}");
    }
}

/// Keeps what the training reports of its last planned iteration.
#[derive(Default)]
struct Keep(Mutex<Vec<(Bytes, Timeline, Timeline)>>);

impl Observer for Keep {}

impl TrainObserver for Keep {
    fn executed(&self, last: &Executed<'_>) {
        let (plan, predicted, measured) = (last.plan, last.predicted, last.measured);
        let courses = [("predicted", predicted), ("measured", measured)];
        let courses = courses.map(|(name, timeline)| Course { name, timeline });
        let document: Value = serde_json::from_str(&trace_events(plan, &courses)).unwrap();
        expect_course(plan, predicted, &document, 1);
        expect_course(plan, measured, &document, 2);
        self.0.lock().unwrap().push((plan.placement().height, predicted.clone(), measured.clone()));
    }
}

#[test]
fn a_training_reports_its_last_planned_iteration_once() {
    let keep = Keep::default();
    let packer = registry::packer("best-fit").unwrap();
    let method = Method::new(registry::planner("auto").unwrap(), packer, Budget::evaluations(60));
    let training =
        Training::new(graph("resnet20", 4), Bytes(12 << 20)).iterations(3).method(method).verify(true);
    let report = training.run_observed(&keep).unwrap();
    let kept = keep.0.into_inner().unwrap();
    let [(height, predicted, measured)] = &kept[..] else { panic!("{} reports", kept.len()) };
    assert_eq!(*height, report.measured_peak_bytes);
    assert_eq!(predicted.traffic, measured.traffic);
    assert_eq!(predicted.recomputed, measured.recomputed);
    assert_eq!(measured.traffic.to_host, report.measured_to_host_bytes);
}

#[test]
fn a_dynamic_training_has_no_planned_iteration_to_report() {
    let keep = Keep::default();
    let training = Training::new(graph("resnet20", 2), Bytes(64 << 20)).iterations(2).dynamic(true);
    training.run_observed(&keep).unwrap();
    assert!(keep.0.lock().unwrap().is_empty());
}

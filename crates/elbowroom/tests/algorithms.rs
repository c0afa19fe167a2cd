//! Choices of algorithms: made under the limit, and the same in the limited and in the unlimited run.

mod support;

use std::sync::Arc;

use elbowroom::algorithms::{Choice, choose, counts};
use elbowroom::graph::Graph;
use elbowroom::graph::op::Algorithm;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::planning::Freedom;
use elbowroom::train::{Training, train, train_after};
use elbowroom::{engine, sim};

use support::{Quiet, method};

fn network() -> Arc<Graph> {
    let options = Options { image: Some(16), width: Some(24), ..Options::new(4) };
    Arc::new(zoo::build("resnet18", &options).unwrap())
}

fn training(graph: Arc<Graph>, memory: &str) -> Training<'static> {
    Training {
        graph,
        memory: memory.parse().unwrap(),
        machine: sim::presets::machine("cpu").unwrap(),
        method: method(),
        freedom: Freedom::ALL,
        iterations: 3,
        data: None,
        host: engine::HostOptions::default(),
        seed: 7,
        threads: 2,
        verify: true,
        save: None,
        resume: None,
        changing: None,
        reactive: false,
    }
}

#[test]
fn a_choice_of_equal_bits_never_shows() {
    let usual = training(network(), "60%");
    let expected = train(&usual, &Quiet).unwrap();
    let Choice { graph, memory, natural } =
        choose(&Training { iterations: 1000, ..training(network(), "60%") }, false, &Quiet).unwrap();
    assert!(
        graph.nodes.values().filter_map(|node| node.kind.conv()).all(|conv| conv.algorithm.has_usual_bits())
    );
    let chosen = Training { graph, memory, ..training(network(), "60%") };
    // The plan of the usual graph is taken only where it is for the chosen one.
    let found = train_after(&chosen, natural, &Quiet).unwrap();
    assert_eq!((found.verified, &found.losses), (Some(true), &expected.losses));
    assert_eq!(found.plan.limit_bytes, expected.plan.limit_bytes, "a share means the same with any choice");
    assert_eq!(found.measured_peak_bytes, found.plan.predicted_peak_bytes);
}

#[test]
fn other_bits_are_the_same_in_both_runs() {
    let mut graph = Graph::clone(&network());
    for op in graph.nodes.ids() {
        let kind = &graph.nodes[op].kind;
        if engine::kernels::algorithms(kind).any(|algorithm| algorithm == Algorithm::Winograd) {
            graph.nodes[op].kind = kind.computed_by(Algorithm::Winograd).unwrap();
        }
    }
    let expected = train(&training(network(), "60%"), &Quiet).unwrap();
    let found = train(&training(Arc::new(graph), "60%"), &Quiet).unwrap();
    assert!(found.algorithms["winograd"] > 20, "{:?}", found.algorithms);
    assert_eq!(found.verified, Some(true));
    assert_eq!(found.measured_peak_bytes, found.plan.predicted_peak_bytes);
    assert_ne!(found.losses, expected.losses, "rounding shows");
    for (found, expected) in found.losses.iter().zip(&expected.losses) {
        assert!((found - expected).abs() < 1e-2 * expected, "{found} for {expected}");
    }
}

#[test]
fn the_smallest_limit_takes_the_smallest_workspaces() {
    let graph = choose(&training(network(), "min"), true, &Quiet).unwrap().graph;
    let found = counts(&graph);
    // Gradients of weights and what has a stride have no way without workspace.
    assert!(found["lean"] > 15 && found["direct"] > 20 && !found.contains_key("winograd"), "{found:?}");
    let workspaces = |graph: &Graph| -> Vec<u64> {
        graph.nodes.values().map(|node| engine::kernels::workspace(&node.kind).get()).collect()
    };
    assert!(workspaces(&graph).iter().zip(workspaces(&network())).all(|(&lean, usual)| lean <= usual));
}

//! Choices of algorithms: made under the limit, and the same in the limited and in the unlimited run.

mod support;

use std::collections::HashSet;
use std::sync::Arc;

use elbowroom::algorithms::{AlgorithmChoice, Chosen, Conditions, choose, counts};
use elbowroom::graph::op::Algorithm;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::graph::{Convolutions, Graph, OpKind, Precision};
use elbowroom::ir::TensorId;
use elbowroom::ir::planning::Freedom;
use elbowroom::size::MemorySpec;
use elbowroom::train::Training;
use elbowroom::{engine, sim};

use support::{Quiet, method};

fn network() -> Arc<Graph> {
    let options = Options::new(4).image(16).width(24);
    Arc::new(zoo::build("resnet18", &options).unwrap())
}

fn training(graph: Arc<Graph>, memory: &str) -> Training<'static> {
    let memory: MemorySpec = memory.parse().unwrap();
    Training::new(graph, memory)
        .method(method())
        .algorithms(AlgorithmChoice::AsBuilt)
        .iterations(3)
        .seed(7)
        .threads(2)
        .verify(true)
}

/// Chooses algorithms for a training of this many iterations.
fn chosen(memory: &str, iterations: u64, algorithms: AlgorithmChoice) -> Chosen {
    let (machine, method) = (sim::presets::machine("cpu").unwrap(), method());
    let conditions = Conditions {
        memory: memory.parse().unwrap(),
        machine: &machine,
        method: &method,
        freedom: Freedom::ALL,
        iterations,
        threads: 2,
        algorithms,
    };
    choose(&network(), &conditions, &Quiet).unwrap()
}

#[test]
fn a_choice_of_equal_bits_never_shows() {
    let expected = training(network(), "60%").run_observed(&Quiet).unwrap();
    let Chosen { graph, memory, .. } = chosen("60%", 1000, AlgorithmChoice::BitExact);
    assert!(
        graph.nodes.values().filter_map(|node| node.kind.conv()).all(|conv| conv.algorithm.has_usual_bits())
    );
    assert_eq!(memory.absolute(), Some(expected.plan.limit_bytes), "a share means the same with any choice");
    // Once with the algorithms chosen before, once with a training that chooses them itself.
    let absolute =
        Training::new(graph, memory).method(method()).iterations(3).seed(7).threads(2).verify(true);
    let before = absolute.algorithms(AlgorithmChoice::AsBuilt).run_observed(&Quiet).unwrap();
    let within =
        training(network(), "60%").algorithms(AlgorithmChoice::BitExact).run_observed(&Quiet).unwrap();
    for found in [before, within] {
        assert_eq!((found.verified, &found.losses), (Some(true), &expected.losses));
        assert_eq!(found.plan.limit_bytes, expected.plan.limit_bytes);
        assert_eq!(found.measured_peak_bytes, found.plan.predicted_peak_bytes);
    }
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
    let expected = training(network(), "60%").run_observed(&Quiet).unwrap();
    let found = training(Arc::new(graph), "60%").run_observed(&Quiet).unwrap();
    assert!(found.algorithms["winograd"] > 20, "{:?}", found.algorithms);
    assert_eq!(found.verified, Some(true));
    assert_eq!(found.measured_peak_bytes, found.plan.predicted_peak_bytes);
    assert_ne!(found.losses, expected.losses, "rounding shows");
    for (found, expected) in found.losses.iter().zip(&expected.losses) {
        assert!((found - expected).abs() < 1e-2 * expected, "{found} for {expected}");
    }
}

/// A network with Winograd's convolutions in the stages of which the shapes gain from them, all but the last.
fn by_winograd(precision: Precision) -> Arc<Graph> {
    let plain = zoo::build("resnet18", &Options::new(4).width(32)).unwrap();
    let graph = plain.in_precision(precision).unwrap().with_convolutions(Convolutions::Winograd);
    assert!(counts(&graph)["winograd"] > 15, "{:?}", counts(&graph));
    Arc::new(graph)
}

#[test]
fn winograd_has_the_same_bits_within_every_limit() {
    for precision in [Precision::F32, Precision::Bf16] {
        let run = |memory: &str| {
            let training = training(by_winograd(precision), memory).algorithms(AlgorithmChoice::BitExact);
            let found = training.run_observed(&Quiet).unwrap();
            assert_eq!(found.verified, Some(true));
            assert_eq!(found.measured_peak_bytes, found.plan.predicted_peak_bytes);
            found
        };
        let [whole, half, least] = ["100%", "50%", "min"].map(run);
        assert_eq!((&half.losses, &least.losses), (&whole.losses, &whole.losses));
        assert!(whole.algorithms.contains_key("winograd"), "{:?}", whole.algorithms);
        // The least has all of them, but with the smallest workspace.
        assert!(least.algorithms["winograd-lean"] > 15 && !least.algorithms.contains_key("winograd"));
    }
}

#[test]
fn weights_of_plain_convolutions_alone_are_cut() {
    let graph = by_winograd(Precision::F32);
    let tileable: HashSet<TensorId> = graph.tileable().iter().map(|weight| weight.tensor).collect();
    let mut seen = [0, 0];
    for node in graph.nodes.values().filter(|node| matches!(node.kind, OpKind::Conv2d { .. })) {
        let is_plain = node.kind.conv().is_some_and(|conv| conv.algorithm.has_usual_bits());
        if !is_plain {
            assert!(!tileable.contains(&node.inputs[1]), "{}", node.name);
        }
        seen[usize::from(is_plain)] += usize::from(is_plain == tileable.contains(&node.inputs[1]));
    }
    assert!(seen.iter().all(|&seen| seen > 5), "{seen:?}");
}

#[test]
fn the_smallest_limit_takes_the_smallest_workspaces() {
    let graph = chosen("min", 3, AlgorithmChoice::NumericChanges).graph;
    let found = counts(&graph);
    // Gradients of weights and what has a stride have no way without workspace.
    assert!(found["lean"] > 15 && found["direct"] > 20 && !found.contains_key("winograd"), "{found:?}");
    let workspaces = |graph: &Graph| -> Vec<u64> {
        graph.nodes.values().map(|node| engine::kernels::workspace(&node.kind).get()).collect()
    };
    assert!(workspaces(&graph).iter().zip(workspaces(&network())).all(|(&lean, usual)| lean <= usual));
}

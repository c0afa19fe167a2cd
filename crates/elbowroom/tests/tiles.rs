//! Trainings whose weights are in tiles: chosen under the limit, equal to whole ones to the bit, with the same files.

mod support;

use std::sync::Arc;

use elbowroom::graph::layers::WeightInit;
use elbowroom::graph::op::{Adam, Sgd};
use elbowroom::graph::zoo::Options;
use elbowroom::graph::{Builder, Content, Graph, Mode, Optimizer};
use elbowroom::ir::Bytes;
use elbowroom::network::Model;
use elbowroom::report::TrainReport;
use elbowroom::size::MemorySpec;
use elbowroom::tiles::TileChoice;
use elbowroom::train::{TrainError, Training};
use support::{Quiet, method};

const SGD: Optimizer = Optimizer::Sgd(Sgd { learning_rate: 0.05, momentum: 0.9, weight_decay: 0.01 });
const ADAM: Optimizer =
    Optimizer::Adam(Adam { learning_rate: 1e-3, betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.1 });

/// Dense layers for three images of this many pixels on a side.
fn dense(name: &str, side: usize, outputs: [usize; 3], optimizer: Optimizer) -> Arc<Graph> {
    let mut b = Builder::new(name, Mode::Training);
    let mut x = b.input("images", [3, 3, side, side], Content::Real).rows();
    let labels = b.input("labels", [3], Content::Class { classes: 10 });
    for (layer, outputs) in outputs.into_iter().enumerate() {
        let name = format!("fc{layer}");
        let weights = b.linear_weights(&name, [x.dim(1), outputs], true, WeightInit::FanInUniform);
        x = b.linear(&name, x, weights).unwrap();
        if layer < 2 {
            x = b.relu(&format!("{name}.relu"), x).unwrap();
        }
    }
    let loss = b.cross_entropy("loss", [x, labels], elbowroom::graph::layers::Part::ALL, 1.0 / 3.0).unwrap();
    Arc::new(b.finish_training(loss, optimizer).unwrap())
}

/// Dense layers, of which one weight has most of the bytes.
fn wide(optimizer: Optimizer) -> Arc<Graph> {
    dense("wide", 5, [1100, 1030, 10], optimizer)
}

fn share(percent: &str) -> MemorySpec {
    percent.parse().unwrap()
}

fn train(network: Arc<Graph>, memory: MemorySpec) -> Training<'static> {
    Training::new(network, memory).method(method()).threads(2).iterations(3)
}

fn run(training: Training<'_>) -> TrainReport {
    training.run_observed(&Quiet).unwrap()
}

/// Trains to the same bits and its planned peak within a share of the peak that is too little for whole weights.
fn tiled(network: Arc<Graph>, percent: &str) -> TrainReport {
    let whole = train(network.clone(), share(percent)).tiles(TileChoice::Never).run_observed(&Quiet);
    assert!(matches!(whole, Err(TrainError::Refused(_))), "{percent} is too little for whole weights");
    let report = run(train(network, share(percent)).verify(true));
    assert_eq!(report.verified, Some(true));
    assert_eq!(report.measured_peak_bytes, report.plan.predicted_peak_bytes);
    assert!(report.measured_peak_bytes <= report.plan.limit_bytes);
    report
}

#[test]
fn limits_below_what_an_update_needs_are_met() {
    for (optimizer, percent) in [(SGD, "50%"), (SGD, "35%"), (ADAM, "50%"), (ADAM, "35%")] {
        let report = tiled(wide(optimizer), percent);
        let [cut] = &report.tiled_weights[..] else { panic!("{:?}", report.tiled_weights) };
        assert_eq!((cut.name.as_str(), cut.weight_bytes), ("fc1.weight", Bytes(4 * 1030 * 1100)));
        assert!(cut.tiles > 1);
    }
    // Enough for whole weights.
    assert!(run(train(wide(SGD), share("120%"))).tiled_weights.is_empty());
    let smallest = run(train(wide(SGD), MemorySpec::Smallest).verify(true));
    assert_eq!(smallest.verified, Some(true));
    assert!(3 * smallest.measured_peak_bytes.get() < smallest.plan.unconstrained_peak_bytes.get());
}

/// A dense layer of few outputs behind a wide one: its weight has most of the bytes, and every gradient to its input sums over few rows.
fn narrow(optimizer: Optimizer) -> Arc<Graph> {
    dense("narrow", 2, [7000, 200, 10], optimizer)
}

#[test]
fn hidden_weights_with_few_outputs_are_in_tiles() {
    for (optimizer, percent) in [(SGD, "50%"), (ADAM, "35%")] {
        let report = tiled(narrow(optimizer), percent);
        let cut: Vec<_> = report.tiled_weights.iter().map(|cut| (cut.name.as_str(), cut.tiles > 1)).collect();
        assert!(cut.contains(&("fc1.weight", true)), "{cut:?}");
    }
    // Files do not depend on tiles.
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let all = |tiles, name: &str| {
        let weights = format!("{name}-weights");
        let report = run(train(narrow(SGD), share("120%"))
            .tiles(tiles)
            .save(path(name), 10)
            .save_weights(path(&weights)));
        (
            report.tiled_weights.len(),
            std::fs::read(path(name)).unwrap(),
            std::fs::read(path(&weights)).unwrap(),
        )
    };
    let (cut, checkpoint, weights) = all(TileChoice::AtMost(Bytes(1 << 20)), "cut");
    assert_eq!(cut, 1);
    assert!((0, checkpoint, weights) == all(TileChoice::Never, "whole"));
}

#[test]
fn a_training_goes_on_with_other_tiles_and_writes_the_same_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let read = |name: &str| std::fs::read(path(name)).unwrap();
    let all = |tiles| train(wide(SGD), share("120%")).tiles(tiles);
    let cut = TileChoice::AtMost(Bytes(1 << 20));
    run(all(TileChoice::Never).iterations(4).save(path("whole"), 10).save_weights(path("whole-weights")));
    run(all(cut).iterations(2).save(path("cut-first"), 10));
    run(all(TileChoice::Never).iterations(2).save(path("whole-first"), 10));
    assert!(read("cut-first") == read("whole-first"));
    run(all(TileChoice::Never).iterations(2).resume(path("cut-first")).save(path("then-whole"), 10));
    let report = run(all(cut)
        .iterations(2)
        .resume(path("whole-first"))
        .save(path("then-cut"), 10)
        .save_weights(path("cut-weights")));
    assert_eq!(report.tiled_weights.len(), 1);
    for name in ["then-whole", "then-cut"] {
        assert!(read(name) == read("whole"), "{name}");
    }
    assert!(read("cut-weights") == read("whole-weights"));
    // Weights alone are read into tiles as well.
    let begun = |tiles| run(all(tiles).weights(path("whole-weights"))).losses;
    assert_eq!(begun(cut), begun(TileChoice::Never));
}

#[test]
fn networks_of_other_kinds_train_in_tiles() {
    let cut = TileChoice::AtMost(Bytes(128 << 10));
    let language = Options::new(2).length(6).vocabulary(600).width(192).layers(1);
    let networks: [(Model, usize); 4] = [
        (Model::new("gpt", language.clone()).unwrap(), 2),
        (Model::new("lstm", language.clone()).unwrap(), 2),
        (Model::new("vgg11", Options::new(2)).unwrap(), 4),
        // Its last batch of an epoch is smaller.
        (Model::new("gpt", language).unwrap().epoch(3), 2),
    ];
    for (model, least) in networks {
        let training = Training::new(model, share("70%")).method(method()).threads(2).iterations(4);
        let report = run(training.tiles(cut).verify(true));
        assert!(report.tiled_weights.len() >= least, "{:?}", report.tiled_weights);
        assert_eq!(report.verified, Some(true), "{}", report.plan.trace);
    }
    let parts = Model::new("vgg11", Options::new(4)).unwrap();
    let training = Training::new(parts, share("70%")).method(method()).threads(2).iterations(2);
    let report = run(training.micro_batch(2).tiles(cut).verify(true));
    assert!(report.verified == Some(true) && report.tiled_weights.len() >= 4);
}

#[test]
fn clipped_gradients_are_in_tiles_too() {
    let clipped = |memory| train(wide(SGD), memory).clip_norm(0.05);
    let whole = clipped(share("45%")).tiles(TileChoice::Never).run_observed(&Quiet);
    assert!(matches!(whole, Err(TrainError::Refused(_))));
    let report = run(clipped(share("45%")).verify(true));
    assert_eq!((report.verified, report.tiled_weights.len()), (Some(true), 1));
    assert_eq!(report.measured_peak_bytes, report.plan.predicted_peak_bytes);
    assert_ne!(report.losses, run(train(wide(SGD), share("45%"))).losses);
}

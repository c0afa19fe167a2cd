//! Networks of today, and k-means, under half of their unconstrained peak and under the smallest limit that a plan is found for: the bits of
//! the unlimited training, resumed trainings alike, and forward passes alone.

mod support;

use elbowroom::graph::Mode;
use elbowroom::graph::zoo::Options;
use elbowroom::network::Model;
use elbowroom::report::TrainReport;
use elbowroom::size::MemorySpec;
use elbowroom::train::Training;
use support::{Quiet, method};

fn training(name: &str, options: &Options, limit: &str) -> Training<'static> {
    let most: MemorySpec = limit.parse().unwrap();
    Training::new(Model::new(name, options.clone()).unwrap(), most).method(method()).threads(2)
}

fn run(training: Training<'_>) -> TrainReport {
    training.run_observed(&Quiet).unwrap()
}

fn check(name: &str, options: &Options) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let half = run(training(name, options, "50%").iterations(4).verify(true));
    assert_eq!(half.verified, Some(true), "{name} at 50 %");
    assert!(half.execution.planned_iterations >= 3, "{name}");
    let least = run(training(name, options, "min").iterations(2).verify(true));
    assert_eq!(least.verified, Some(true), "{name} at min");
    assert_eq!(least.losses[..], half.losses[..2], "{name}");
    let first = run(training(name, options, "50%").iterations(2).save(&path, 100));
    let rest = run(training(name, options, "50%").iterations(2).resume(&path));
    assert_eq!([first.losses, rest.losses].concat(), half.losses, "{name} resumed");
    let forward = options.clone().mode(Mode::Inference);
    let forward = run(training(name, &forward, "min").iterations(2).verify(true));
    assert_eq!(forward.verified, Some(true), "{name} forward only");
}

#[test]
fn llama() {
    check("llama", &Options::new(2).length(8).vocabulary(40).width(64).layers(1));
}

#[test]
fn vision_transformer() {
    check("vit-b-16", &Options::new(1).image(16).width(64).layers(1));
}

#[test]
fn diffusion() {
    check("diffusion", &Options::new(1).image(8).width(4));
}

#[test]
fn points_in_parts() {
    // 16 parts, the last one smaller than the others.
    check("kmeans", &Options::new(1_009).width(16).classes(8));
}

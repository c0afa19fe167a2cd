//! Trainings in bf16: under half of their unconstrained peak and under the smallest limit the bits of the unlimited training, resumed trainings
//! alike, forward passes alone, and losses close to those of `f32`.

mod support;

use elbowroom::graph::zoo::Options;
use elbowroom::graph::{Mode, Precision};
use elbowroom::ir::search::Observer;
use elbowroom::network::{Model, Source};
use elbowroom::report::TrainReport;
use elbowroom::size::MemorySpec;
use elbowroom::train::{Iteration, TrainObserver, Training};
use support::{Quiet, method};

fn training(name: &str, options: &Options, precision: Precision, limit: &str) -> Training<'static> {
    let most: MemorySpec = limit.parse().unwrap();
    let source = Source::open(name).unwrap().precision(precision);
    Training::new(Model::of(source, options.clone()).unwrap(), most).method(method()).threads(2)
}

fn run(training: Training<'_>) -> TrainReport {
    training.run_observed(&Quiet).unwrap()
}

/// Checks a network whose losses in bf16 and in `f32` differ by no more than this share of them.
fn check(name: &str, options: &Options, share: f32) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let bf16 = |limit| training(name, options, Precision::Bf16, limit);
    let half = run(bf16("50%").iterations(4).verify(true));
    assert_eq!(half.verified, Some(true), "{name} at 50 %");
    let least = run(bf16("min").iterations(2).verify(true));
    assert_eq!(least.verified, Some(true), "{name} at min");
    assert_eq!(least.losses[..], half.losses[..2], "{name}");
    let first = run(bf16("50%").iterations(2).save(&path, 100));
    let rest = run(bf16("50%").iterations(2).resume(&path));
    assert_eq!([first.losses, rest.losses].concat(), half.losses, "{name} resumed");
    let forward = options.clone().mode(Mode::Inference);
    let forward = run(training(name, &forward, Precision::Bf16, "min").iterations(2).verify(true));
    assert_eq!(forward.verified, Some(true), "{name} forward only");

    let f32 = run(training(name, options, Precision::F32, "100%").iterations(4));
    assert_ne!(f32.losses, half.losses, "{name} is computed in f32");
    for (narrow, wide) in half.losses.iter().zip(&f32.losses) {
        let difference = (narrow - wide).abs();
        assert!(
            difference <= share * wide.abs(),
            "{name}: {:?} is not close to {:?}",
            half.losses,
            f32.losses
        );
    }
    assert!(
        half.plan.unconstrained_peak_bytes < f32.plan.unconstrained_peak_bytes,
        "{name} needs {} in bf16 and {} in f32",
        half.plan.unconstrained_peak_bytes,
        f32.plan.unconstrained_peak_bytes
    );
}

#[test]
fn residual_network() {
    check("resnet20", &Options::new(8).image(16), 0.05);
}

#[test]
fn densely_connected_network() {
    check("densenet121", &Options::new(8).image(32), 0.05);
}

#[test]
fn gpt() {
    check("gpt", &Options::new(4).length(32).layers(2).width(64), 0.01);
}

#[test]
fn recurrent_network() {
    check("lstm", &Options::new(8).length(12).width(48), 0.01);
}

#[test]
fn llama() {
    check("llama", &Options::new(4).length(32).vocabulary(40).width(64).layers(1), 0.01);
}

#[test]
fn vision_transformer() {
    check("vit-b-16", &Options::new(4).image(64).width(64).layers(2), 0.02);
}

#[test]
fn network_of_depthwise_convolutions() {
    check("mobilenet-v2", &Options::new(4).image(32), 0.05);
}

#[test]
fn diffusion() {
    check("diffusion", &Options::new(4).image(16).width(16), 0.02);
}

#[test]
fn segmentation() {
    check("unet", &Options::new(2).image(64).width(8), 0.02);
}

#[test]
fn parts_of_a_batch_clipped_gradients_and_dynamic_iterations() {
    let bf16 = || training("gpt", &Options::new(4).length(16).layers(1).width(64), Precision::Bf16, "60%");
    let parts = run(bf16().micro_batch(2).clip_norm(0.5).iterations(3).verify(true));
    assert_eq!(parts.verified, Some(true));
    let dynamic = run(bf16().dynamic(true).iterations(3).verify(true));
    assert_eq!(dynamic.verified, Some(true));
    assert_eq!(dynamic.losses, run(bf16().iterations(3)).losses);
}

#[test]
fn k_means_has_no_bf16() {
    let network = Source::open("kmeans").unwrap().precision(Precision::Bf16);
    let error = network.build(&Options::new(64)).unwrap_err().to_string();
    assert!(error.contains("trained by gradients"), "{error}");
}

/// Keeps what a training remarks.
#[derive(Default)]
struct Remarks(std::sync::Mutex<Vec<String>>);

impl Observer for Remarks {}

impl TrainObserver for Remarks {
    fn iteration(&self, _: &Iteration) {}

    fn remark(&self, sentence: &str) {
        self.0.lock().unwrap().push(sentence.to_owned());
    }
}

#[test]
fn a_checkpoint_of_another_precision_is_taken_and_remarked() {
    let options = Options::new(2).length(8).layers(1).width(64);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gpt");
    run(training("gpt", &options, Precision::Bf16, "100%").iterations(1).save(&path, 100));
    let resumed = |precision| {
        let remarks = Remarks::default();
        let training = training("gpt", &options, precision, "100%").iterations(1).resume(&path);
        training.run_observed(&remarks).unwrap();
        remarks.0.into_inner().unwrap()
    };
    assert!(resumed(Precision::Bf16).is_empty());
    let said = resumed(Precision::F32);
    assert_eq!(said, ["the checkpoint was trained in bf16, and the training goes on in f32"]);
}

//! Networks of ONNX files: PyTorch's losses from the weights in the file, the same bits under every limit, and clear words for what is not read.

mod support;

use std::path::{Path, PathBuf};

use elbowroom::data::{Batch, DataError, Dataset};
use elbowroom::graph::zoo::{OptimizerKind, Options};
use elbowroom::graph::{Mode, Role};
use elbowroom::network::{Model, Source};
use elbowroom::onnx::Loss;
use elbowroom::report::TrainReport;
use elbowroom::size::MemorySpec;
use elbowroom::train::Training;
use support::{Quiet, method};

const BATCH: usize = 16;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data")
}

fn file(name: &str) -> String {
    data().join(format!("{name}.onnx")).to_string_lossy().into_owned()
}

/// The batch that `crates/onnx/tests/data/make.py` describes, in every iteration.
#[derive(Clone, Copy)]
struct Fixed(&'static str);

impl Dataset for Fixed {
    fn samples(&self) -> Option<u64> {
        None
    }

    fn fill(&mut self, _: &[u64], batch: &mut Batch) -> Result<(), DataError> {
        let sample: Vec<Vec<usize>> = batch.inputs().map(|(_, sample)| sample.to_vec()).collect();
        let wave = |values: &mut [f32], f: &dyn Fn(f64) -> f64| {
            values.iter_mut().enumerate().for_each(|(i, x)| *x = f(i as f64) as f32);
        };
        let label = |values: &mut [i32], classes: i32| {
            values.iter_mut().enumerate().for_each(|(i, x)| *x = (7 * i as i32 + 3) % classes);
        };
        match self.0 {
            "tokens" | "language" | "attention" | "rotary" | "dropped" => {
                let tokens = batch.classes("x", &sample[0])?;
                tokens.iter_mut().enumerate().for_each(|(i, x)| *x = (5 * i as i32 + i as i32 / 7) % 11);
            }
            _ => wave(batch.reals("x", &sample[0])?, &|i| (0.37 * i).sin()),
        }
        match self.0 {
            _ if sample.len() < 2 => {}
            "regression" => wave(batch.reals("targets", &sample[1])?, &|i| (0.21 * i).cos()),
            "tokens" | "language" | "attention" | "rotary" | "dropped" => {
                label(batch.classes("labels", &sample[1])?, 11)
            }
            _ => label(batch.classes("labels", &sample[1])?, 5),
        }
        Ok(())
    }
}

fn options() -> Options {
    Options::new(BATCH).length(6).optimizer(OptimizerKind::Sgd).learning_rate(0.05).weight_decay(5e-4)
}

fn training(name: &'static str, options: &Options, limit: &str) -> Training<'static> {
    let loss = if name == "regression" { Loss::SquaredError } else { Loss::CrossEntropy };
    let source = Source::open(file(name)).unwrap().loss(loss);
    let most: MemorySpec = limit.parse().unwrap();
    Training::new(Model::of(source, options.clone()).unwrap(), most)
        .method(method())
        .threads(2)
        .data(Fixed(name))
}

fn run(training: Training<'_>) -> TrainReport {
    training.run_observed(&Quiet).unwrap()
}

/// PyTorch's losses.
fn losses(name: &str) -> Vec<f64> {
    let table = std::fs::read(data().join("losses.json")).unwrap();
    let table: serde_json::Value = serde_json::from_slice(&table).unwrap();
    table[name].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
}

/// `limit` is the share of the unconstrained peak that is tried besides the smallest one.
fn check(name: &'static str, limit: &str) {
    let theirs = losses(name);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let whole = run(training(name, &options(), "100%").iterations(3).verify(true));
    assert_eq!(whole.verified, Some(true), "{name}");
    for (ours, theirs) in whole.losses.iter().zip(&theirs) {
        assert!((f64::from(*ours) / theirs - 1.0).abs() < 5e-5, "{name}: {:?} and {theirs:?}", whole.losses);
    }
    let half = run(training(name, &options(), limit).iterations(3).verify(true));
    assert_eq!((half.verified, &half.losses), (Some(true), &whole.losses), "{name} at {limit}");
    let least = run(training(name, &options(), "min").iterations(3).verify(true));
    assert_eq!((least.verified, &least.losses), (Some(true), &whole.losses), "{name} at min");
    let first = run(training(name, &options(), limit).iterations(2).save(&path, 100));
    let rest = run(training(name, &options(), limit).iterations(1).resume(&path));
    assert_eq!([first.losses, rest.losses].concat(), whole.losses, "{name} resumed");
    let forward = options().mode(Mode::Inference);
    let forward = run(training(name, &forward, "min").iterations(2).verify(true));
    assert_eq!(forward.verified, Some(true), "{name} forward only");
    // Weights that a training wrote are read again under the names of the file.
    let weights = folder.path().join("weights");
    let _ = run(training(name, &options(), limit).iterations(3).save_weights(&weights));
    let again = run(training(name, &options(), limit).iterations(1).weights(&weights));
    assert!(again.losses[0] < whole.losses[2], "{name}: {:?} after {:?}", again.losses, whole.losses);
}

/// A network with masks that PyTorch draws otherwise: the same bits under both limits, and PyTorch's loss in evaluation.
fn check_random(name: &'static str) {
    let whole = run(training(name, &options(), "100%").iterations(3).verify(true));
    let least = run(training(name, &options(), "min").iterations(3).verify(true));
    assert_eq!((whole.verified, least.verified), (Some(true), Some(true)), "{name}");
    assert_eq!(whole.losses, least.losses, "{name}");
    let evaluated = run(training(name, &options().mode(Mode::Evaluation), "100%").iterations(1));
    let (ours, theirs) = (evaluated.eval_loss[0], losses(name)[0]);
    assert!((ours / theirs - 1.0).abs() < 1e-6, "{name}: {ours} and {theirs}");
}

#[test]
fn images_train_to_the_losses_of_pytorch() {
    check("images", "50%");
}

#[test]
fn tokens_train_to_the_losses_of_pytorch() {
    // The gradient of attention needs two thirds of the peak of so small a network by itself.
    check("tokens", "80%");
}

#[test]
fn targets_train_to_the_losses_of_pytorch() {
    // One op of so small a network needs two thirds of the peak by itself.
    check("regression", "80%");
}

#[test]
fn small_networks_of_today_train_to_the_losses_of_pytorch() {
    check("mobile", "70%");
}

#[test]
fn language_models_of_libraries_train_to_the_losses_of_pytorch() {
    for name in ["language", "attention"] {
        check(name, "80%");
        let graph = Source::open(file(name)).unwrap().build(&options()).unwrap();
        let count = |kind: &str| graph.nodes.values().filter(|node| node.kind.name() == kind).count();
        assert_eq!([count("gelu"), count("cross-attention"), count("tanh")], [1, 1, 0], "{name}");
    }
}

#[test]
fn weights_that_the_exporter_merged_train_apart() {
    check("merged", "80%");
    let graph = Source::open(file("merged")).unwrap().build(&options()).unwrap();
    let weights = graph.persistent.iter().filter(|parameter| parameter.role == Role::Weight);
    let mut names: Vec<&str> = weights.map(|parameter| parameter.name.as_str()).collect();
    names.sort_unstable();
    for name in ["blocks.0.norm1.weight", "blocks.1.norm2.bias", "twice.weight"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    // Four layers and four normalizations in blocks, a stem, a head, and a normalization that is called twice, each with a weight and a bias;
    // four scales.
    assert_eq!(names.len(), 2 * 11 + 4, "{names:?}");
}

#[test]
fn images_of_other_sizes_train_to_the_losses_of_pytorch() {
    for name in ["resized", "sized"] {
        check(name, "70%");
    }
}

#[test]
fn functions_of_elements_train_to_the_losses_of_pytorch() {
    check("functions", "70%");
}

#[test]
fn blocks_of_pixels_train_to_the_losses_of_pytorch() {
    // One op of so small a network needs nine tenths of the peak by itself.
    check("blocks", "95%");
}

#[test]
fn attention_with_biases_and_masks_trains_to_the_losses_of_pytorch() {
    check("windows", "70%");
    let graph = Source::open(file("windows")).unwrap().build(&options()).unwrap();
    let count = |kind: &str| graph.nodes.values().filter(|node| node.kind.name() == kind).count();
    // Two products and a softmax in both attentions, and one over tokens. A table of biases is looked up; the other one, whose heads come first, is
    // multiplied by a matrix.
    assert_eq!([count("batched-product"), count("softmax"), count("embedding")], [12, 3, 1]);
    // Buffers are no weights.
    let roles = |role| graph.persistent.iter().filter(move |parameter| parameter.role == role);
    let has_mask =
        |role| roles(role).any(|parameter| graph.tensors[parameter.begin].shape.len() == 4 * 16 * 16);
    assert_eq!([Role::Weight, Role::Statistic].map(has_mask), [false, true]);
}

#[test]
fn normalizations_in_parts_are_one_op_and_train_to_the_losses_of_pytorch() {
    for (name, normalizations) in
        [("rotary", ["rms-norm", "cross-attention"]), ("roots", ["layer-norm", "sqrt"])]
    {
        check(name, "80%");
        let graph = Source::open(file(name)).unwrap().build(&options()).unwrap();
        let count = |kind: &str| graph.nodes.values().filter(|node| node.kind.name() == kind).count();
        let found = normalizations.map(count);
        // Other roots belong to no normalization.
        let expected = if name == "rotary" { [2, 1] } else { [1, 5] };
        assert_eq!((found, count("rms-norm") + count("layer-norm")), (expected, expected[0]), "{name}");
    }
}

#[test]
fn probabilities_of_attention_are_dropped() {
    let source = Source::open(file("dropped")).unwrap();
    let counts = |mode: Mode| {
        let graph = source.build(&options().mode(mode)).unwrap();
        ["dropout", "softmax", "cross-attention"]
            .map(|kind| graph.nodes.values().filter(|node| node.kind.name() == kind).count())
    };
    assert_eq!([counts(Mode::Training), counts(Mode::Evaluation)], [[2, 1, 0], [0, 0, 1]]);
    check_random("dropped");
}

#[test]
fn random_masks_are_dropout() {
    let source = Source::open(file("random")).unwrap();
    let counts = |mode: Mode| {
        let graph = source.build(&options().mode(mode)).unwrap();
        ["dropout", "fill"].map(|kind| graph.nodes.values().filter(|node| node.kind.name() == kind).count())
    };
    // Elements, planes and samples; their masks act on the gradients as well. Planes and samples have ones of their own, and so has the loss.
    assert_eq!(counts(Mode::Training), [4, 3]);
    assert_eq!(counts(Mode::Evaluation), [0, 0]);
    check_random("random");
}

#[test]
fn batches_that_the_file_leaves_open_may_be_computed_in_parts() {
    let parts = run(training("tokens", &options(), "100%").micro_batch(4).iterations(1));
    let whole = run(training("tokens", &options(), "100%").iterations(1));
    assert!((parts.losses[0] - whole.losses[0]).abs() < 1e-5, "{:?} {:?}", parts.losses, whole.losses);
}

#[test]
fn attention_moves_no_tensor() {
    let source = Source::open(file("images")).unwrap();
    let graph = source.build(&options()).unwrap();
    let count = |kind: &str| graph.nodes.values().filter(|node| node.kind.name() == kind).count();
    assert_eq!(count("split"), 1, "queries, keys and values are one op");
    // The channels of the images move behind their pixels, and back; the mean over tokens moves them to the end, and back.
    assert_eq!(count("transpose"), 4);
}

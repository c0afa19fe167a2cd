//! What decides how large a step is: schedules, clipping, batches in parts. Each trains the same bits under a limit, without one, and after a
//! resumption.

mod support;

use std::path::Path;

use elbowroom::engine::Interpreter;
use elbowroom::graph::layers::{Part, WeightInit};
use elbowroom::graph::op::Sgd;
use elbowroom::graph::zoo::Options;
use elbowroom::graph::{Builder, Content, Graph, Mode, Optimizer};
use elbowroom::network::Model;
use elbowroom::report::TrainReport;
use elbowroom::size::MemorySpec;
use elbowroom::train::{Schedule, TrainError, Training};
use support::{Quiet, method};

fn training<'a>(rate: f32) -> Training<'a> {
    let most: MemorySpec = "60%".parse().unwrap();
    let options = Options::new(8).image(8).width(4).learning_rate(rate);
    Training::new(Model::new("resnet20", options).unwrap(), most).method(method()).threads(2)
}

fn run(training: Training<'_>) -> TrainReport {
    training.run_observed(&Quiet).unwrap()
}

/// Trains six iterations at once under a limit and without one, and in two runs of three, and expects the same losses.
fn expect_same_bits(case: &str, at: &Path, make: &dyn Fn() -> Training<'static>) -> Vec<f32> {
    let path = at.join(case);
    let whole = run(make().iterations(6).verify(true));
    assert_eq!(whole.verified, Some(true), "{case}");
    assert!(whole.execution.planned_iterations >= 5, "{case}");
    let first = run(make().iterations(3).schedule_length(6).save(&path, 100));
    let rest = run(make().iterations(3).resume(&path));
    assert_eq!([first.losses, rest.losses].concat(), whole.losses, "{case}");
    whole.losses
}

#[test]
fn one_plan_serves_every_learning_rate() {
    let folder = tempfile::tempdir().unwrap();
    let cosine = Schedule::Cosine { warmup: 2 };
    let losses = expect_same_bits("cosine", folder.path(), &|| training(0.02).schedule(cosine));
    let steps = Schedule::Steps { every: 2, factor: 0.5 };
    expect_same_bits("steps", folder.path(), &|| training(0.02).schedule(steps));
    // The first iteration of the warm-up has half of the rate.
    let half = run(training(0.01).iterations(2)).losses;
    assert_eq!(losses[..2], half[..]);
    assert_ne!(losses[..2], run(training(0.02).iterations(2)).losses);
}

#[test]
fn batches_in_parts_and_clipped_gradients_train_the_same_bits_under_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let parts = expect_same_bits("parts", folder.path(), &|| training(0.02).micro_batch(2));
    let clipped = expect_same_bits("clip", folder.path(), &|| training(0.02).clip_norm(0.5));
    expect_same_bits("both", folder.path(), &|| training(0.02).micro_batch(4).clip_norm(0.5));
    // Before the first update, parts differ by the statistics of batch normalization alone, and clipping changes nothing.
    assert!((parts[0] - clipped[0]).abs() < 0.5, "{parts:?} {clipped:?}");
    assert_eq!(clipped[0], run(training(0.02).iterations(1)).losses[0]);
    assert_ne!(clipped[1], run(training(0.02).iterations(2)).losses[1]);
    let refused = training(0.02).micro_batch(3).run_observed(&Quiet).err().unwrap();
    assert!(matches!(refused, TrainError::Parts { batch: 8, part: 3, .. }), "{refused}");
    let report = training(0.02).micro_batch(2).run_observed(&Quiet).unwrap();
    assert_eq!(report.batch, 8);
}

#[test]
fn the_largest_part_that_fits_is_found() {
    let peak = |part| run(training(0.02).iterations(1).micro_batch(part)).plan.unconstrained_peak_bytes;
    let (whole, quarter) = (peak(8), peak(2));
    assert!(quarter < whole, "{quarter} {whole}");
    let options = Options::new(8).image(8).width(4);
    let network = || Model::new("resnet20", options.clone()).unwrap();
    let fits = Training::new(network(), whole).method(method()).iterations(1).largest_micro_batch();
    assert!(run(fits).plan.trace.starts_with("resnet20 batch 8"), "the whole batch fits");
    let refused = Training::new(network(), elbowroom::ir::Bytes(4096)).method(method()).largest_micro_batch();
    assert!(refused.run_observed(&Quiet).is_err());
}

/// One linear layer with a bias over rows of five numbers, without momentum and weight decay.
fn linear(batch: usize, rate: f32) -> Graph {
    let mut b = Builder::new("linear", Mode::Training);
    let x = b.input("x", [batch, 5], Content::Real);
    let labels = b.input("labels", [batch], Content::Class { classes: 3 });
    let weights = b.linear_weights("fc", [5, 3], true, WeightInit::FanInUniform);
    let logits = b.linear("fc", x, weights).unwrap();
    let loss = b.cross_entropy("loss", [logits, labels], Part::ALL, 1.0 / batch as f32).unwrap();
    let sgd = Sgd { learning_rate: rate, momentum: 0.0, weight_decay: 0.0 };
    b.finish_training(loss, Optimizer::Sgd(sgd)).unwrap()
}

#[test]
fn gradients_of_parts_add_up_and_a_clipped_step_has_the_norm_that_was_named() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let xs: Vec<f32> = (0..40).map(|i| ((i * 37 % 23) as f32 - 11.0) / 5.0).collect();
    let labels: Vec<i32> = (0..8).map(|i| i % 3).collect();
    let step = |graph: &Graph, parts: usize| {
        let mut interpreter = Interpreter::new(graph, 3);
        let before = [0, 1].map(|at| interpreter.persistent(at).to_vec()).concat();
        let (x, l): (Vec<_>, Vec<_>) = (xs.chunks(40 / parts).collect(), labels.chunks(8 / parts).collect());
        let inputs: Vec<&[u8]> =
            x.iter().zip(&l).flat_map(|(x, l)| [bytemuck::cast_slice(x), bytemuck::cast_slice(l)]).collect();
        let loss = interpreter.run(&pool, &inputs).unwrap()[0].clone();
        let after = [0, 1].map(|at| interpreter.persistent(at).to_vec()).concat();
        let change: Vec<f64> = before.iter().zip(&after).map(|(b, a)| f64::from(b - a)).collect();
        (f32::from_ne_bytes(loss.try_into().unwrap()), change)
    };
    let (loss, change) = step(&linear(8, 1.0), 1);
    let (in_parts, by_parts) = step(&linear(2, 1.0).accumulated(4, None).unwrap(), 4);
    assert!((loss - in_parts).abs() < 1e-6);
    assert!(change.iter().zip(&by_parts).all(|(a, b)| (a - b).abs() < 1e-6), "{change:?} {by_parts:?}");
    let norm = |change: &[f64]| change.iter().map(|x| x * x).sum::<f64>().sqrt();
    let (_, clipped) = step(&linear(2, 1.0).accumulated(4, Some(0.125)).unwrap(), 4);
    assert!(
        norm(&change) > 0.2 && (norm(&clipped) - 0.125).abs() < 1e-5,
        "{} {}",
        norm(&change),
        norm(&clipped)
    );
    let (_, unclipped) = step(&linear(8, 1.0).accumulated(1, Some(100.0)).unwrap(), 1);
    assert_eq!(unclipped, change);
}

//! Evaluation during a training: its figures are those that the interpreter computes, under a limit, without one and after a resumption.

mod support;

use elbowroom::data::{Batch, DataError, Dataset};
use elbowroom::engine::Interpreter;
use elbowroom::graph::Mode;
use elbowroom::graph::zoo::{self, Options};
use elbowroom::network::Model;
use elbowroom::report::TrainReport;
use elbowroom::size::MemorySpec;
use elbowroom::train::{TrainError, Training};
use support::{Quiet, method};

const CLASSES: usize = 4;
const SIDE: usize = 8;

/// Images whose brightest quarter is their class.
#[derive(Clone, Copy)]
struct Quarters(u64);

impl Quarters {
    fn image(index: u64) -> (i32, Vec<f32>) {
        let class = (index % CLASSES as u64) as usize;
        let pixel = |at: usize| {
            let (y, x) = (at / SIDE % SIDE, at % SIDE);
            let noise = ((index as usize * 31 + at * 17) % 13) as f32 / 13.0;
            noise + f32::from(u8::from(2 * y / SIDE * 2 + 2 * x / SIDE == class))
        };
        (class as i32, (0..3 * SIDE * SIDE).map(pixel).collect())
    }
}

impl Dataset for Quarters {
    fn samples(&self) -> Option<u64> {
        Some(self.0)
    }

    fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError> {
        let pixels = batch.reals("images", &[3, SIDE, SIDE])?;
        for (image, &index) in pixels.chunks_exact_mut(3 * SIDE * SIDE).zip(indices) {
            image.copy_from_slice(&Self::image(index).1);
        }
        for (label, &index) in batch.classes("labels", &[])?.iter_mut().zip(indices) {
            *label = Self::image(index).0;
        }
        Ok(())
    }
}

fn options() -> Options {
    Options::new(4).image(SIDE).classes(CLASSES).width(4)
}

fn training<'a>() -> Training<'a> {
    let half: MemorySpec = "60%".parse().unwrap();
    let network = Model::new("resnet20", options()).unwrap();
    Training::new(network, half).method(method()).threads(2).data(Quarters(18)).evaluation_data(Quarters(10))
}

fn run(training: Training<'_>) -> TrainReport {
    training.run_observed(&Quiet).unwrap()
}

#[test]
fn an_evaluation_gives_the_interpreters_loss_and_hits_and_equals_the_unlimited_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    let report = run(training().iterations(3).evaluate_every(2).save(&path, 10).verify(true));
    assert_eq!(report.verified, Some(true));
    assert_eq!(report.eval_iterations, [2, 3]);
    assert!(report.eval_perplexity.is_empty());
    assert!(report.measured_peak_bytes <= report.plan.limit_bytes);
    assert_eq!(report.execution.planned_iterations + report.execution.dynamic_iterations, 3);

    // The same weights, the same ten samples, another road: logits of one sample at a time.
    let graph = zoo::build("resnet20", &options().batch(1).mode(Mode::Inference)).unwrap();
    let checkpoint = elbowroom::checkpoint::Checkpoint::open(&path).unwrap();
    let mut interpreter = Interpreter::new(&graph, 0);
    for (position, parameter) in graph.persistent.iter().enumerate() {
        let value = bytemuck::cast_slice_mut(interpreter.persistent_mut(position));
        checkpoint.read(&parameter.name, value).unwrap();
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let (mut loss, mut hits) = (0.0f64, 0);
    for index in 0..10 {
        let (class, image) = Quarters::image(index);
        let outputs = interpreter.run(&pool, &[bytemuck::cast_slice(&image)]).unwrap();
        let logits: Vec<f64> =
            outputs[0].chunks(4).map(|b| f64::from(f32::from_ne_bytes(b.try_into().unwrap()))).collect();
        let sum: f64 = logits.iter().map(|x| x.exp()).sum();
        loss += sum.ln() - logits[class as usize];
        let best = (0..CLASSES).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        hits += usize::from(best == class as usize);
    }
    assert!((report.eval_loss[1] - loss / 10.0).abs() < 1e-5, "{:?} {}", report.eval_loss, loss / 10.0);
    assert_eq!(report.eval_accuracy[1], hits as f64 / 10.0);
}

#[test]
fn epochs_end_where_an_uninterrupted_training_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    // 18 samples in batches of four: 9 iterations are two epochs.
    let whole = run(training().epochs(2));
    assert_eq!((whole.losses.len(), &whole.eval_iterations[..]), (9, &[5, 9][..]));
    let first = run(training().iterations(4).save(&path, 100));
    assert_eq!(first.eval_iterations, [4], "a length in iterations has no epochs");
    let rest = run(training().epochs(2).resume(&path));
    assert_eq!([&first.losses[..], &rest.losses[..]].concat(), whole.losses);
    assert_eq!((&rest.eval_iterations, &rest.eval_loss), (&whole.eval_iterations, &whole.eval_loss));
    let done = training().epochs(2).save(&path, 100).resume(&path).run_observed(&Quiet).unwrap();
    assert_eq!(done.saved.saved_iterations, Some(9));
    let error = training().epochs(2).resume(&path).run_observed(&Quiet).err().unwrap();
    assert!(matches!(error, TrainError::Complete { done: 9, epochs: 2, total: 9 }), "{error}");
    // An epoch that ends with a smaller batch has one iteration more.
    let cut = Model::new("resnet20", options()).unwrap().epoch(18);
    let half: MemorySpec = "70%".parse().unwrap();
    let cut = Training::new(cut, half).method(method()).data(Quarters(18)).evaluation_data(Quarters(10));
    assert_eq!(run(cut.epochs(2)).eval_iterations, [5, 10]);
}

#[test]
fn language_models_have_a_perplexity_and_networks_without_classes_no_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("a.txt");
    std::fs::write(&text, "so it goes, and so on, ".repeat(20)).unwrap();
    for name in ["gpt", "lstm"] {
        let model = Model::new(name, Options::new(2).length(8).width(64).layers(1)).unwrap();
        let most: MemorySpec = "80%".parse().unwrap();
        let training = Training::new(model, most).method(method()).data_path(&text).evaluation_path(&text);
        let report = run(training.iterations(2).verify(true));
        assert_eq!(report.verified, Some(true), "{name}");
        assert_eq!(report.eval_perplexity, [report.eval_loss[0].exp()], "{name}");
        assert!((2.0..8.0).contains(&report.eval_loss[0]), "{name}: {:?}", report.eval_loss);
    }
    for model in ["kmeans", "seq2seq"] {
        let model = Model::new(model, Options::new(2).width(8).classes(4)).unwrap();
        let most: MemorySpec = "80%".parse().unwrap();
        let training = Training::new(model, most).method(method()).evaluation_data(Quarters(2));
        let error = training.run_observed(&Quiet).err().unwrap();
        assert!(matches!(error, TrainError::Unevaluable), "{error}");
    }
}

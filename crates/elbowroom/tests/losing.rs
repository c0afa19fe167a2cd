//! What a training keeps when the disk is full for a while, when its data fails, and when it is interrupted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use elbowroom::checkpoint::{Checkpoint, CheckpointError};
use elbowroom::data::{Batch, DataError, Dataset, Synthetic};
use elbowroom::graph::zoo::Options;
use elbowroom::ir::search::Observer;
use elbowroom::network::Model;
use elbowroom::registry;
use elbowroom::report::Ending;
use elbowroom::size::MemorySpec;
use elbowroom::train::{Iteration, TrainError, TrainObserver, Training};

/// A training whose iterations take milliseconds.
fn training() -> Training<'static> {
    let model = Model::new("resnet20", Options::new(2).image(8).width(4)).unwrap();
    Training::new(model, MemorySpec::Share(1.0)).planner(registry::planner("keep").unwrap()).threads(1)
}

/// What is done after the iteration of a number.
type After<'a> = &'a (dyn Fn(&Watch<'_>, u64) + Sync);

/// Notes what is saved, and does something after every iteration.
struct Watch<'a> {
    after: After<'a>,
    runs: AtomicU64,
    interrupted: AtomicBool,
    saved: Mutex<Vec<u64>>,
    failed: Mutex<Vec<Option<u64>>>,
}

impl<'a> Watch<'a> {
    fn new(after: After<'a>) -> Self {
        Self {
            after,
            runs: AtomicU64::new(0),
            interrupted: AtomicBool::new(false),
            saved: Mutex::default(),
            failed: Mutex::default(),
        }
    }
}

impl Observer for Watch<'_> {
    fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

impl TrainObserver for Watch<'_> {
    fn begin(&self, _: u64) {
        self.runs.fetch_add(1, Ordering::Relaxed);
    }
    fn iteration(&self, done: &Iteration) {
        (self.after)(self, done.number);
    }
    fn saved(&self, _: &Path, iterations_done: u64) {
        self.saved.lock().unwrap().push(iterations_done);
    }
    fn save_failed(&self, error: &CheckpointError, retry: Option<u64>) {
        assert!(error.to_string().contains("cannot save"), "{error}");
        self.failed.lock().unwrap().push(retry);
    }
}

/// A folder for a checkpoint, and the place to which it can be moved away.
fn folders(root: &Path) -> [PathBuf; 2] {
    let [here, away] = ["here", "away"].map(|name| root.join(name));
    fs::create_dir(&here).unwrap();
    [here, away]
}

#[test]
fn a_save_that_failed_is_repeated_soon() {
    let root = tempfile::tempdir().unwrap();
    let [here, away] = folders(root.path());
    let after = |_: &Watch<'_>, number: u64| match number {
        19 => fs::rename(&here, &away).unwrap(),
        22 => fs::rename(&away, &here).unwrap(),
        _ => {}
    };
    let watch = Watch::new(&after);
    let file = here.join("m");
    let report = training().iterations(25).save(&file, 20).run_observed(&watch).unwrap();
    // Due after 20 iterations; from then on every tenth of the interval.
    assert_eq!(*watch.failed.lock().unwrap(), [Some(22), Some(24)]);
    assert_eq!(*watch.saved.lock().unwrap(), [24, 25]);
    assert_eq!((report.saved.saved_iterations, report.saved.failed_saves), (Some(25), 2));
    assert_eq!((report.ending, report.saved.save_error, report.losses.len()), (Ending::Finished, None, 25));
    assert_eq!(Checkpoint::open(&file).unwrap().header.iterations_done, 25);
}

#[test]
fn a_last_save_that_failed_is_reported() {
    let root = tempfile::tempdir().unwrap();
    let [here, away] = folders(root.path());
    let after = |_: &Watch<'_>, number: u64| {
        if number == 3 {
            fs::rename(&here, &away).unwrap();
        }
    };
    let watch = Watch::new(&after);
    let report = training().iterations(4).save(here.join("m"), 2).run_observed(&watch).unwrap();
    assert_eq!((report.saved.saved_iterations, report.saved.failed_saves), (Some(2), 1));
    assert!(report.saved.save_error.unwrap().contains("cannot save"));
    assert_eq!(*watch.failed.lock().unwrap(), [None]);
    assert_eq!(Checkpoint::open(&away.join("m")).unwrap().header.iterations_done, 2);
}

/// Synthetic data of which one sample cannot be read.
struct Torn(Synthetic, u64);

impl Dataset for Torn {
    fn samples(&self) -> Option<u64> {
        None
    }
    fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError> {
        if indices.contains(&self.1) {
            return Err(DataError::other("the sample is torn"));
        }
        self.0.fill(indices, batch)
    }
}

#[test]
fn data_that_fails_ends_a_training_after_a_save() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("m");
    // Two samples in each batch.
    let torn = Torn(Synthetic { seed: 0 }, 9);
    let error = training().data(torn).iterations(10).save(&file, 100).run().unwrap_err();
    assert!(error.to_string().contains("torn"), "{error}");
    assert_eq!(Checkpoint::open(&file).unwrap().header.iterations_done, 4);
    training().iterations(4).save(root.path().join("whole"), 100).run().unwrap();
    assert!(fs::read(file).unwrap() == fs::read(root.path().join("whole")).unwrap());
}

#[test]
fn an_interrupted_comparison_finds_nothing() {
    let after = |watch: &Watch<'_>, number: u64| {
        let second = watch.runs.load(Ordering::Relaxed) == 2;
        watch.interrupted.fetch_or(second && number == 1, Ordering::Relaxed);
    };
    let report = training().iterations(4).verify(true).run_observed(&Watch::new(&after)).unwrap();
    assert_eq!((report.verified, report.ending, report.losses.len()), (None, Ending::Finished, 4));

    let after = |watch: &Watch<'_>, number: u64| {
        watch.interrupted.fetch_or(number == 1, Ordering::Relaxed);
    };
    let report = training().iterations(4).verify(true).run_observed(&Watch::new(&after)).unwrap();
    assert_eq!((report.verified, report.ending, report.losses.len()), (None, Ending::Interrupted, 2));
}

#[test]
fn an_interruption_before_the_first_iteration_runs_none() {
    let after = |_: &Watch<'_>, number: u64| panic!("iteration {number} ran");
    let watch = Watch::new(&after);
    watch.interrupted.store(true, Ordering::Relaxed);
    let error = training().run_observed(&watch).unwrap_err();
    assert!(matches!(error, TrainError::Interrupted), "{error}");
}

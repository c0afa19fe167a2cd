//! Batches are read ahead: while an iteration runs, a thread reads the next one, and nothing else changes.

use std::sync::{Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use elbowroom::data::{Batch, DataError, Dataset, Synthetic};
use elbowroom::graph::zoo::Options;
use elbowroom::ir::search::Observer;
use elbowroom::network::Model;
use elbowroom::registry;
use elbowroom::size::MemorySpec;
use elbowroom::train::{Iteration, TrainObserver, Training};

const BATCH: u64 = 2;

fn training() -> Training<'static> {
    let model = Model::new("resnet20", Options::new(BATCH as usize).image(8).width(4)).unwrap();
    Training::new(model, MemorySpec::Share(1.0)).planner(registry::planner("keep").unwrap()).threads(1)
}

/// What was read, by whom.
#[derive(Default)]
struct Notes {
    reads: Mutex<Vec<(u64, ThreadId)>>,
    another: Condvar,
}

impl Notes {
    /// First indices of the batches read so far.
    fn firsts(&self) -> Vec<u64> {
        self.reads.lock().unwrap().iter().map(|(first, _)| *first).collect()
    }
}

/// Synthetic data that notes every read.
struct Noted<'n>(&'n Notes, Option<u64>);

impl Dataset for Noted<'_> {
    fn samples(&self) -> Option<u64> {
        self.1
    }
    fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError> {
        Synthetic { seed: 0 }.fill(indices, batch)?;
        self.0.reads.lock().unwrap().push((indices[0], thread::current().id()));
        self.0.another.notify_all();
        Ok(())
    }
}

/// After every iteration but the last, waits until the batch of the next one has been read: before anything asks for it.
struct Waits<'n> {
    notes: &'n Notes,
    iterations: u64,
}

impl Observer for Waits<'_> {}

impl TrainObserver for Waits<'_> {
    fn iteration(&self, done: &Iteration) {
        if done.number + 1 < self.iterations {
            let missing = |reads: &mut Vec<(u64, ThreadId)>| {
                !reads.iter().any(|read| read.0 == BATCH * (done.number + 1))
            };
            let reads = self.notes.reads.lock().unwrap();
            let (_reads, late) =
                self.notes.another.wait_timeout_while(reads, Duration::from_secs(60), missing).unwrap();
            assert!(!late.timed_out(), "nothing read the batch after iteration {}", done.number);
        }
    }
}

#[test]
fn a_thread_reads_the_next_batch_before_it_is_asked_for() {
    let (notes, iterations) = (Notes::default(), 5);
    let own = training().data(Noted(&notes, None)).iterations(iterations);
    let report = own.run_observed(&Waits { notes: &notes, iterations }).unwrap();
    assert_eq!(report.losses, training().iterations(iterations).run().unwrap().losses);
    // Every batch once, none beyond the end; the first one before anything long begins, the others on one other thread.
    assert_eq!(notes.firsts(), (0..iterations).map(|number| BATCH * number).collect::<Vec<_>>());
    let reads = notes.reads.into_inner().unwrap();
    assert_eq!(reads[0].1, thread::current().id());
    assert!(reads[1..].iter().all(|read| read.1 == reads[1].1 && read.1 != reads[0].1));
}

#[test]
fn an_evaluation_is_read_ahead_as_well() {
    let (notes, held_out) = (Notes::default(), Notes::default());
    let own = training().data(Noted(&notes, None)).iterations(4).evaluate_every(2);
    let report = own.evaluation_data(Noted(&held_out, Some(5))).verify(true).run().unwrap();
    assert_eq!(report.verified, Some(true));
    assert_eq!(report.eval_iterations, [2, 4]);
    // The first batch is read before the training begins, which finds data that does not fit, and again when it is needed, because its memory
    // is given back in between; the last one repeats sample 0.
    assert_eq!(held_out.firsts(), [0, 0, 2, 4, 0, 2, 4, 0, 2, 4, 0, 2, 4]);
    let main = thread::current().id();
    let reads = held_out.reads.into_inner().unwrap();
    assert!(reads.iter().all(|read| (read.1 == main) == (read.0 == 0)));
}

/// Panics in a batch.
struct Panics;

impl Dataset for Panics {
    fn samples(&self) -> Option<u64> {
        None
    }
    fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError> {
        assert!(indices[0] < 2 * BATCH, "a fault of the data set");
        Synthetic { seed: 0 }.fill(indices, batch)
    }
}

#[test]
#[should_panic = "a fault of the data set"]
fn a_panic_of_a_data_set_is_the_panic_of_the_training() {
    let _ = training().data(Panics).iterations(4).run();
}

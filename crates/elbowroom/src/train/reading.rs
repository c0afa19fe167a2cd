//! Batches that a thread reads and decodes while the iteration before them runs.
//!
//! ```text
//! thread     read 1 ▸      read 2 ▸      read 3 ▸
//! training   copy 0, run 0  copy 1, run 1  copy 2, run 2
//! ```
//!
//! The engine copies a batch into its own input buffers before an iteration begins. From then on the buffers of the reader are free, and the next
//! batch is read into them: reading ahead takes no memory in addition. Which samples a batch has depends on its number alone, so results do
//! not depend on the thread, and a batch that was read in vain is read again. An error is returned when its batch is asked for.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::Scope;

use elbowroom_engine::Session;
use elbowroom_graph::Graph;

use crate::data::{Batch, DataError, Feed, Pass, Samples};

/// What reads batches into buffers of its own.
pub(super) trait Source: Send {
    /// What says which batch to read.
    type Request: Send;

    /// Reads a batch. The buffers hold it until the next call.
    fn read(&mut self, request: &Self::Request) -> Result<(), DataError>;

    /// The last batch that was read.
    fn batch(&self) -> Option<&Batch>;

    /// Gives the memory of the buffers back, until another batch is read.
    fn give_back(&mut self);
}

impl Source for Feed<'_> {
    type Request = (Arc<Graph>, Samples);

    fn read(&mut self, (graph, samples): &Self::Request) -> Result<(), DataError> {
        Feed::read(self, graph, samples).map(|_| ())
    }

    fn batch(&self) -> Option<&Batch> {
        Feed::batch(self)
    }

    fn give_back(&mut self) {
        Feed::give_back(self);
    }
}

impl Source for Pass<'_> {
    type Request = u64;

    fn read(&mut self, number: &u64) -> Result<(), DataError> {
        Pass::read(self, *number).map(|_| ())
    }

    fn batch(&self) -> Option<&Batch> {
        Some(self.part().batch)
    }

    fn give_back(&mut self) {
        Pass::give_back(self);
    }
}

type Job<'scope> = Box<dyn FnOnce() + Send + 'scope>;
type Done<S> = Result<(S, Result<(), DataError>), Box<dyn Any + Send>>;

/// The thread, which ends with its scope.
pub(super) struct Reader<'scope> {
    jobs: Sender<Job<'scope>>,
}

impl<'scope> Reader<'scope> {
    /// Starts the thread. Where the system has none left, batches are read when they are needed.
    pub fn start<'env>(scope: &'scope Scope<'scope, 'env>) -> Self {
        let (jobs, received) = mpsc::channel::<Job<'scope>>();
        let read = move || received.into_iter().for_each(|job| job());
        // Without the thread nothing receives, and sending fails.
        let _ = std::thread::Builder::new().name("batches".to_owned()).spawn_scoped(scope, read);
        Self { jobs }
    }
}

/// A source that is read ahead by at most one batch.
pub(super) struct Ahead<S> {
    /// The source, unless the thread has it.
    source: Option<S>,
    pending: Option<Receiver<Done<S>>>,
    /// Number of the batch that is being read or that the buffers hold.
    holds: Option<u64>,
}

impl<S: Source> Ahead<S> {
    pub fn new(source: S) -> Self {
        Self { source: Some(source), pending: None, holds: None }
    }

    /// The source with the batch of this number in its buffers.
    pub fn batch(&mut self, number: u64, request: impl FnOnce() -> S::Request) -> Result<&mut S, DataError> {
        let read = self.settle();
        let known = self.holds.take() == Some(number);
        let source = self.source.as_mut().expect("a settled source is here");
        match known {
            true => read?,
            false => source.read(&request())?,
        }
        self.holds = Some(number);
        Ok(source)
    }

    /// Gives the memory of the buffers back; what they held, or were to hold, is read again when it is asked for. Training and evaluation
    /// each have buffers for a batch, and only one of them runs at a time.
    pub fn give_back(&mut self) {
        // An error of a batch that nothing has asked for is none.
        let _ = self.settle();
        self.holds = None;
        if let Some(source) = &mut self.source {
            source.give_back();
        }
    }

    /// Copies the batch of this number into the inputs of a session. From then on the thread reads the next one, if there is one.
    pub fn fill<'scope>(
        &mut self,
        session: &mut Session,
        reader: &Reader<'scope>,
        (number, request): (u64, impl FnOnce() -> S::Request),
        next: Option<(u64, S::Request)>,
    ) -> Result<(), DataError>
    where
        S: 'scope,
        S::Request: 'scope,
    {
        // An iteration that cannot be executed in one way is filled again for another; then this reads its batch again.
        let slots = self.batch(number, request)?.batch().into_iter().flat_map(Batch::slots);
        for (slot, bytes) in slots.enumerate() {
            session.fill_input(slot, |input| input.copy_from_slice(bytes));
        }
        if let Some((number, request)) = next {
            self.start(reader, number, request);
        }
        Ok(())
    }

    /// Lets the thread read the batch of this number; what the buffers held is lost.
    fn start<'scope>(&mut self, reader: &Reader<'scope>, number: u64, request: S::Request)
    where
        S: 'scope,
        S::Request: 'scope,
    {
        // An error of a batch that nothing has asked for is none.
        let _ = self.settle();
        self.holds = None;
        let Some(mut source) = self.source.take() else { return };
        let (sender, receiver) = mpsc::channel();
        let job = move || {
            let done = catch_unwind(AssertUnwindSafe(|| {
                let read = source.read(&request);
                (source, read)
            }));
            let _ = sender.send(done);
        };
        match reader.jobs.send(Box::new(job)) {
            Ok(()) => (self.pending, self.holds) = (Some(receiver), Some(number)),
            // The job has the source; here it only reads at once.
            Err(mpsc::SendError(job)) => {
                job();
                (self.pending, self.holds) = (Some(receiver), Some(number));
            }
        }
    }

    /// Waits until the thread has given the source back.
    pub fn settle(&mut self) -> Result<(), DataError> {
        let Some(pending) = self.pending.take() else { return Ok(()) };
        match pending.recv() {
            Ok(Ok((source, read))) => {
                self.source = Some(source);
                read
            }
            // A data set of the user has panicked.
            Ok(Err(panic)) => resume_unwind(panic),
            Err(_) => unreachable!("a job sends before it ends"),
        }
    }
}

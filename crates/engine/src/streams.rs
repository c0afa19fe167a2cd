//! The executor: three streams, each of which runs its tasks in order. Waits are the only synchronization between them.
//!
//! Threads are started once and reused by every iteration. The compute stream is a job that occupies one worker of the pool, so that
//! kernels start parallel work from inside the pool without a hand-over; each direction of the link has a thread of its own if the program
//! copies at all. Between iterations all threads sleep. During an iteration nothing is allocated.
//!
//! The order of a stream's tasks matters, not the thread that runs them. Waking a thread takes longer than copying a small tensor. If the
//! device permits it, the compute stream therefore makes small copies itself, as soon as its ops make them possible, and also makes those
//! copies that it would otherwise wait for. It wakes no thread for a copy that its next op waits for. The mutex around a stream's next task
//! guarantees that one thread at a time advances the stream.
//!
//! If work fails on one stream, the executor stops the device: the waits of the other streams fail and all streams finish. The first
//! failure is reported.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Instant;

use elbowroom_ir::ActionId;
use elbowroom_ir::schedule::Stream;
use rayon::ThreadPool;

use crate::device::{Call, Device, Exchange, IterationKey, Stopped};
use crate::error::EngineError;
use crate::host::slots::HostCopies;
use crate::program::{Program, Task, TaskWork};
use crate::record::Recording;

/// A program, the device that runs it, and the measurements of the run.
pub(crate) struct ExecutorState {
    pub program: Program,
    pub device: Box<dyn Device>,
    pub exchange: Mutex<Exchange>,
    /// Locked for writing between iterations only.
    pub copies: RwLock<HostCopies>,
    pub recording: Recording,
    /// For each copy stream, the index of its next task. The thread that holds the lock runs the stream.
    next: [Mutex<usize>; 3],
    /// For each residency, the number of its accesses that have not run yet in this iteration. Empty if the device ignores
    /// [`Device::retire`].
    remaining: Vec<AtomicUsize>,
    failure: Mutex<Option<EngineError>>,
}

/// The threads of the streams.
pub(crate) struct StreamThreads {
    gate: Arc<Gate>,
    copiers: Vec<JoinHandle<()>>,
    /// Streams that have tasks, and therefore a thread or a job.
    count: usize,
}

/// Lets the threads sleep between iterations.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    /// Iterations started.
    iterations: u64,
    /// Streams that have not finished the iteration.
    busy: usize,
    /// Streams whose threads have not exited.
    alive: usize,
    key: IterationKey,
    origin: Option<Instant>,
    quit: bool,
}

/// One iteration, from the point of view of one stream's thread.
struct StreamRun<'a> {
    stream: Stream,
    origin: Instant,
    copies: &'a HostCopies,
}

/// Which copies another stream may make on behalf of a copy stream.
#[derive(Clone, Copy)]
struct CopyBound {
    /// Size of the largest copy, in bytes.
    bytes: usize,
    /// The last action to run, if there is one.
    last: Option<ActionId>,
}

const ALL: CopyBound = CopyBound { bytes: usize::MAX, last: None };

/// Why a stream stops advancing.
enum StopCause {
    /// This action has not finished.
    Missing(ActionId),
    /// The next copy exceeds the bound.
    Bound,
    /// All tasks are done.
    End,
}

/// Why a stream ends early.
enum Halted {
    /// Another stream failed.
    Stopped,
    Failed(EngineError),
}

impl From<Stopped> for Halted {
    fn from(Stopped: Stopped) -> Self {
        Self::Stopped
    }
}

impl From<EngineError> for Halted {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic on a stream is reported as a failure; the guarded data is replaced or read as a whole, so a poisoned lock is harmless.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ExecutorState {
    pub fn new(program: Program, device: Box<dyn Device>, exchange: Exchange, copies: HostCopies) -> Self {
        let remaining = if device.retires() { program.residencies.len() } else { 0 };
        Self {
            recording: Recording::new(program.actions),
            remaining: (0..remaining).map(|_| AtomicUsize::new(0)).collect(),
            exchange: Mutex::new(exchange),
            copies: RwLock::new(copies),
            next: Default::default(),
            failure: Mutex::new(None),
            program,
            device,
        }
    }

    /// The device and the exchange buffers, when no stream uses them any more.
    pub fn into_parts(self) -> (Box<dyn Device>, Exchange) {
        (self.device, self.exchange.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn exchange(&self) -> MutexGuard<'_, Exchange> {
        lock(&self.exchange)
    }

    fn fail(&self, error: EngineError) {
        lock(&self.failure).get_or_insert(error);
        self.device.stop();
    }

    /// Runs all tasks of a stream.
    fn run_stream(&self, stream: Stream, key: IterationKey, origin: Instant) -> Result<(), EngineError> {
        let copies = self.copies.read().unwrap_or_else(PoisonError::into_inner);
        let run = StreamRun { stream, origin, copies: &copies };
        let outcome = if stream == Stream::Compute { self.run_ops(&run, key) } else { self.run_copies(&run) };
        match outcome {
            Ok(()) => self.device.drain(stream),
            Err(Halted::Stopped) => Ok(()),
            Err(Halted::Failed(error)) => Err(error),
        }
    }

    fn run_ops(&self, run: &StreamRun<'_>, key: IterationKey) -> Result<(), Halted> {
        let mut exchange = self.exchange();
        let tasks = &self.program.streams[Stream::Compute.index()];
        // Streams whose threads sleep because this op was left their next copies.
        let mut left = [false; 3];
        for (index, task) in tasks.iter().enumerate() {
            let TaskWork::Launch { op, ref reads, ref writes, workspace } = task.work else { continue };
            let awaited = || {
                let awaited = Stream::ALL.into_iter().zip(task.after);
                let awaited = awaited.filter_map(|(stream, action)| Some((stream, action?)));
                awaited.filter(|&(_, action)| !self.device.reached(Stream::Compute, action))
            };
            // All copies before the first wait: one may depend on another whose thread was not woken.
            for (stream, action) in awaited() {
                if !left[stream.index()] && self.device.inline_copy_limit() == 0 {
                    continue;
                }
                if !self.help(run, stream, CopyBound { last: Some(action), ..ALL })? {
                    // The copies after this one are for the stream's own thread, which has slept so far.
                    self.device.wake(stream);
                }
            }
            for (_, action) in awaited() {
                self.device.wait(Stream::Compute, action)?;
            }
            self.recording.start(task.action, Stream::Compute, task.end, run.origin, Instant::now());
            let extents = &self.program.extents;
            let (reads, writes) = (&extents[reads.clone()], &extents[writes.clone()]);
            self.device.launch(Call { op, reads, writes, workspace, key, exchange: &mut exchange })?;
            // What the next op waits for.
            let next = tasks.get(index + 1).map_or([None; 3], |next| next.after);
            left = self.finish(run, Stream::Compute, task, next)?;
        }
        Ok(())
    }

    fn run_copies(&self, run: &StreamRun<'_>) -> Result<(), Halted> {
        loop {
            // The lock is not held while the stream waits.
            let pause = self.advance(run, run.stream, &mut lock(&self.next[run.stream.index()]), ALL)?;
            match pause {
                StopCause::Missing(action) => self.device.wait(run.stream, action)?,
                StopCause::Bound | StopCause::End => return Ok(()),
            }
        }
    }

    /// Runs the tasks of a copy stream, starting with the next one, until a task cannot start yet or exceeds the bound.
    fn advance(
        &self,
        run: &StreamRun<'_>,
        stream: Stream,
        next: &mut usize,
        bound: CopyBound,
    ) -> Result<StopCause, Halted> {
        let tasks = &self.program.streams[stream.index()];
        while let Some(task) = tasks.get(*next) {
            let mut awaited = task.after.into_iter().flatten();
            if let Some(action) = awaited.find(|&action| !self.device.reached(stream, action)) {
                return Ok(StopCause::Missing(action));
            }
            if task.bytes() > bound.bytes || bound.last.is_some_and(|last| task.action > last) {
                return Ok(StopCause::Bound);
            }
            let before = next.checked_sub(1).map(|before| tasks[before].action);
            self.copy(run, stream, task, before)?;
            *next += 1;
            self.finish(run, stream, task, [None; 3])?;
        }
        Ok(StopCause::End)
    }

    /// Runs tasks of another stream unless a thread is already doing so. Returns whether that stream's own thread may stay asleep: its next copy
    /// is not possible yet.
    fn help(&self, run: &StreamRun<'_>, stream: Stream, bound: CopyBound) -> Result<bool, Halted> {
        match self.next[stream.index()].try_lock() {
            Ok(mut next) => {
                let pause = self.advance(run, stream, &mut next, bound)?;
                Ok(matches!(pause, StopCause::Missing(_)))
            }
            Err(_) => Ok(false),
        }
    }

    /// Makes a copy. `before` is the preceding action on its stream.
    fn copy(
        &self,
        run: &StreamRun<'_>,
        stream: Stream,
        task: &Task,
        before: Option<ActionId>,
    ) -> Result<(), EngineError> {
        let causes = task.after.into_iter().chain([before]).flatten();
        let ready = causes.map(|action| self.recording.ended(action)).max().unwrap_or_default();
        let start = self.device.copy_start(stream, run.origin + ready);
        self.recording.start(task.action, stream, task.end, run.origin, start);
        let (value, outcome) = match task.work {
            TaskWork::Store { value, from, copy } => {
                (value, self.device.store(from, run.copies.offsets[copy], start))
            }
            TaskWork::Load { value, copy, to } => {
                (value, self.device.load(run.copies.offsets[copy], to, start))
            }
            TaskWork::Launch { .. } => return Ok(()),
        };
        outcome.map_err(|source| EngineError::Copy { action: task.action, value, source })
    }

    /// Records that a task is done and wakes or serves the streams that wait for it. The compute stream makes small copies itself, and leaves
    /// those for which its next op waits, up to the actions `next`, to that op. Returns the streams whose copies that op must make.
    fn finish(
        &self,
        run: &StreamRun<'_>,
        stream: Stream,
        task: &Task,
        next: [Option<ActionId>; 3],
    ) -> Result<[bool; 3], Halted> {
        let mut left = [false; 3];
        self.recording.end(task.action, run.origin);
        self.retire(task);
        for waiting in
            self.device.signal(stream, task.action).streams().filter(|&waiting| waiting != run.stream)
        {
            let bytes = if run.stream == Stream::Compute { self.device.inline_copy_limit() } else { 0 };
            if bytes > 0 {
                if self.help(run, waiting, CopyBound { bytes, ..ALL })? {
                    continue;
                }
                left[waiting.index()] = self.is_next(waiting, next[waiting.index()]);
            }
            if !left[waiting.index()] {
                self.device.wake(waiting);
            }
        }
        Ok(left)
    }

    /// Whether the next copy of a stream is among those up to an action, which the compute stream makes now. False if a thread runs the stream.
    fn is_next(&self, stream: Stream, last: Option<ActionId>) -> bool {
        let Some((last, next)) = last.zip(self.next[stream.index()].try_lock().ok()) else { return false };
        self.program.streams[stream.index()].get(*next).is_some_and(|copy| copy.action <= last)
    }

    /// Retires the residencies of which this was the last access in time. A program makes every later use of their common bytes wait for
    /// all of these accesses.
    fn retire(&self, task: &Task) {
        if self.remaining.is_empty() {
            return;
        }
        for &residency in &self.program.retiring[task.retires.clone()] {
            if self.remaining[residency].fetch_sub(1, AcqRel) == 1 {
                self.device.retire(self.program.residencies[residency].common);
            }
        }
    }

    fn prepare(&self) {
        self.device.begin();
        *lock(&self.failure) = None;
        self.next.iter().for_each(|next| *lock(next) = 0);
        for (remaining, residency) in self.remaining.iter().zip(&self.program.residencies) {
            remaining.store(residency.accesses.len(), Relaxed);
        }
    }
}

impl StreamThreads {
    /// Starts the threads. They sleep until the first iteration.
    pub fn start(shared: &Arc<ExecutorState>, pool: &ThreadPool) -> Result<Self, EngineError> {
        let gate = Arc::new(Gate::default());
        let mut this = Self { gate, copiers: Vec::new(), count: 0 };
        for stream in Stream::ALL {
            if shared.program.streams[stream.index()].is_empty() {
                continue;
            }
            let (shared, gate) = (Arc::clone(shared), Arc::clone(&this.gate));
            lock(&this.gate.state).alive += 1;
            this.count += 1;
            let serve = move || gate.serve(shared, stream);
            if stream == Stream::Compute {
                pool.spawn(serve);
                continue;
            }
            match std::thread::Builder::new().name(format!("elbowroom-{}", stream.name())).spawn(serve) {
                Ok(thread) => this.copiers.push(thread),
                Err(error) => {
                    lock(&this.gate.state).alive -= 1;
                    return Err(EngineError::Threads { threads: 1, why: error.to_string() });
                }
            }
        }
        Ok(this)
    }

    /// Runs one iteration. Returns when all streams have finished it.
    pub fn run(&self, shared: &ExecutorState, key: IterationKey) -> Result<(), EngineError> {
        shared.prepare();
        let mut state = lock(&self.gate.state);
        state.iterations += 1;
        state.busy = self.count;
        state.key = key;
        state.origin = Some(Instant::now());
        self.gate.changed.notify_all();
        while state.busy > 0 {
            state = self.gate.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        lock(&shared.failure).take().map_or(Ok(()), Err)
    }
}

impl Gate {
    /// The main loop of a stream's thread.
    fn serve(&self, shared: Arc<ExecutorState>, stream: Stream) {
        let mut served = 0;
        loop {
            let mut state = lock(&self.state);
            while state.iterations == served && !state.quit {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.quit {
                break;
            }
            served = state.iterations;
            let (key, origin) = (state.key, state.origin);
            drop(state);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                shared.run_stream(stream, key, origin.unwrap_or_else(Instant::now))
            }));
            match outcome {
                Ok(Ok(())) => {}
                Ok(Err(error)) => shared.fail(error),
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    let why = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("unknown").to_owned();
                    shared.fail(EngineError::Defect { stream: stream.name(), why });
                }
            }
            lock(&self.state).busy -= 1;
            self.changed.notify_all();
        }
        // The thread drops its reference before it reports its exit, so that the owner of [`StreamThreads`] then holds the only one.
        drop(shared);
        lock(&self.state).alive -= 1;
        self.changed.notify_all();
    }
}

impl Drop for StreamThreads {
    fn drop(&mut self) {
        let mut state = lock(&self.gate.state);
        state.quit = true;
        self.gate.changed.notify_all();
        while state.alive > 0 {
            state = self.gate.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        for copier in self.copiers.drain(..) {
            // Streams catch their panics, so the join has no outcome to report.
            let _ = copier.join();
        }
    }
}

#[cfg(test)]
mod tests;

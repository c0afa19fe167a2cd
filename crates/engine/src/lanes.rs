//! The executor: three lanes that walk a program, each in its own order, bound together by waits alone.
//!
//! Threads are started once and reused by every iteration. The compute lane is a job that occupies one worker of the pool, so that
//! kernels start parallel work from inside the pool and nothing has to be handed to it; each direction of the link has a thread of its
//! own, if the program copies at all. Between iterations all of them sleep. While an iteration runs nothing is allocated.
//!
//! When work fails on one lane, it tells the device to stop: waits of the others fail, and all lanes come to rest. The first failure is
//! reported.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Instant;

use elbowroom_ir::schedule::Lane;
use rayon::ThreadPool;

use crate::device::{Call, Device, Exchange, Stopped, Turn};
use crate::error::EngineError;
use crate::host::slots::Copies;
use crate::program::{Program, Task, Work};
use crate::record::Recording;

/// A program, the device that runs it, and what is measured.
pub(crate) struct Shared {
    pub program: Program,
    pub device: Box<dyn Device>,
    pub exchange: Mutex<Exchange>,
    /// Locked for writing between iterations only.
    pub copies: RwLock<Copies>,
    pub recording: Recording,
    /// For each residence, its accesses that are still to come in this iteration. Empty if the device does not care.
    remaining: Vec<AtomicUsize>,
    failure: Mutex<Option<EngineError>>,
}

/// The lanes' threads.
pub(crate) struct Lanes {
    gate: Arc<Gate>,
    copiers: Vec<JoinHandle<()>>,
    /// Lanes that take part: those that have tasks.
    count: usize,
}

/// Where lanes sleep between iterations.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Iterations begun.
    begun: u64,
    /// Lanes that have not yet finished the iteration.
    busy: usize,
    /// Lanes whose threads are still there.
    alive: usize,
    turn: Turn,
    origin: Option<Instant>,
    quit: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic on a lane is reported as a failure; what the lock guards is replaced or read as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(program: Program, device: Box<dyn Device>, exchange: Exchange, copies: Copies) -> Self {
        let remaining = if device.retires() { program.residences.len() } else { 0 };
        Self {
            recording: Recording::new(program.actions),
            remaining: (0..remaining).map(|_| AtomicUsize::new(0)).collect(),
            exchange: Mutex::new(exchange),
            copies: RwLock::new(copies),
            failure: Mutex::new(None),
            program,
            device,
        }
    }

    /// What is left when the program is done for.
    pub fn into_ground(self) -> (Box<dyn Device>, Exchange) {
        (self.device, self.exchange.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn exchange(&self) -> MutexGuard<'_, Exchange> {
        lock(&self.exchange)
    }

    fn fail(&self, error: EngineError) {
        lock(&self.failure).get_or_insert(error);
        self.device.stop();
    }

    /// Runs all tasks of a lane.
    fn run_lane(&self, lane: Lane, turn: Turn, origin: Instant) -> Result<(), EngineError> {
        let copies = self.copies.read().unwrap_or_else(PoisonError::into_inner);
        let mut exchange = (lane == Lane::Compute).then(|| self.exchange());
        let mut none = Exchange::default();
        let exchange = exchange.as_deref_mut().unwrap_or(&mut none);
        for task in &self.program.lanes[lane.index()] {
            for &action in task.after.iter().flatten() {
                if self.device.wait(lane, action) == Err(Stopped) {
                    return Ok(());
                }
            }
            self.recording.start(task.action, lane, task.end, origin);
            self.work(task, turn, &copies, exchange)?;
            self.recording.end(task.action, origin);
            self.retire(task);
            self.device.signal(lane, task.action);
        }
        self.device.drain(lane)
    }

    fn work(
        &self,
        task: &Task,
        turn: Turn,
        copies: &Copies,
        exchange: &mut Exchange,
    ) -> Result<(), EngineError> {
        match task.work {
            Work::Launch { op, ref reads, ref writes, workspace } => {
                let extents = &self.program.extents;
                let (reads, writes) = (&extents[reads.clone()], &extents[writes.clone()]);
                self.device.launch(Call { op, reads, writes, workspace, turn, exchange })
            }
            Work::Store { value, from, copy } => {
                let outcome = self.device.store(from, copies.offsets[copy]);
                outcome.map_err(|source| EngineError::Copy { action: task.action, value, source })
            }
            Work::Load { value, copy, to } => {
                let outcome = self.device.load(copies.offsets[copy], to);
                outcome.map_err(|source| EngineError::Copy { action: task.action, value, source })
            }
        }
    }

    /// Gives up residences of which this was the last access in time. Whoever takes bytes that all accesses touch waits for all of them.
    fn retire(&self, task: &Task) {
        if self.remaining.is_empty() {
            return;
        }
        for &residence in &self.program.retiring[task.retires.clone()] {
            if self.remaining[residence].fetch_sub(1, AcqRel) == 1 {
                self.device.retire(self.program.residences[residence].common);
            }
        }
    }

    fn prepare(&self) {
        self.device.begin();
        *lock(&self.failure) = None;
        for (remaining, residence) in self.remaining.iter().zip(&self.program.residences) {
            remaining.store(residence.accesses.len(), Relaxed);
        }
    }
}

impl Lanes {
    /// Starts the threads; they sleep until the first iteration.
    pub fn start(shared: &Arc<Shared>, pool: &ThreadPool) -> Result<Self, EngineError> {
        let gate = Arc::new(Gate::default());
        let mut this = Self { gate, copiers: Vec::new(), count: 0 };
        for lane in Lane::ALL {
            if shared.program.lanes[lane.index()].is_empty() {
                continue;
            }
            let (shared, gate) = (Arc::clone(shared), Arc::clone(&this.gate));
            lock(&this.gate.state).alive += 1;
            this.count += 1;
            let serve = move || gate.serve(shared, lane);
            if lane == Lane::Compute {
                pool.spawn(serve);
                continue;
            }
            match std::thread::Builder::new().name(format!("elbowroom-{}", lane.name())).spawn(serve) {
                Ok(thread) => this.copiers.push(thread),
                Err(error) => {
                    lock(&this.gate.state).alive -= 1;
                    return Err(EngineError::Threads { threads: 1, why: error.to_string() });
                }
            }
        }
        Ok(this)
    }

    /// Runs one iteration and returns when all lanes rest.
    pub fn run(&self, shared: &Shared, turn: Turn) -> Result<(), EngineError> {
        shared.prepare();
        let mut state = lock(&self.gate.state);
        state.begun += 1;
        state.busy = self.count;
        state.turn = turn;
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
    /// A lane's life.
    fn serve(&self, shared: Arc<Shared>, lane: Lane) {
        let mut served = 0;
        loop {
            let mut state = lock(&self.state);
            while state.begun == served && !state.quit {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.quit {
                break;
            }
            served = state.begun;
            let (turn, origin) = (state.turn, state.origin);
            drop(state);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                shared.run_lane(lane, turn, origin.unwrap_or_else(Instant::now))
            }));
            match outcome {
                Ok(Ok(())) => {}
                Ok(Err(error)) => shared.fail(error),
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    let why = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("unknown").to_owned();
                    shared.fail(EngineError::Defect { lane: lane.name(), why });
                }
            }
            lock(&self.state).busy -= 1;
            self.changed.notify_all();
        }
        // The last thing that a lane does with its memory, so that whoever waits for the lanes to leave is its only owner then.
        drop(shared);
        lock(&self.state).alive -= 1;
        self.changed.notify_all();
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        let mut state = lock(&self.gate.state);
        state.quit = true;
        self.gate.changed.notify_all();
        while state.alive > 0 {
            state = self.gate.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        for copier in self.copiers.drain(..) {
            // Lanes catch their panics, so there is no outcome to look at.
            let _ = copier.join();
        }
    }
}

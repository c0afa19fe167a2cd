//! The executor: three lanes that walk a program, each in its own order, bound together by waits alone.
//!
//! Threads are started once and reused by every iteration. The compute lane is a job that occupies one worker of the pool, so that
//! kernels start parallel work from inside the pool and nothing has to be handed to it; each direction of the link has a thread of its
//! own, if the program copies at all. Between iterations all of them sleep. While an iteration runs nothing is allocated.
//!
//! A lane's tasks need its order, not its thread. To wake a thread takes longer than to copy a small value, so where a device says so the
//! compute lane makes small copies itself as soon as its ops make them possible, and of the copies that it waits for whatever can begin. Who
//! holds a lane's place in its list goes on with it; everybody else leaves it alone.
//!
//! When work fails on one lane, it tells the device to stop: waits of the others fail, and all lanes come to rest. The first failure is
//! reported.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Instant;

use elbowroom_ir::ActionId;
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
    /// For each lane of copies, the task that comes next. Whoever holds the lock runs the lane.
    next: [Mutex<usize>; 3],
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

/// An iteration, for the thread of a lane.
struct Pass<'a> {
    lane: Lane,
    origin: Instant,
    copies: &'a Copies,
}

/// The copies that are asked for.
#[derive(Clone, Copy)]
struct Bound {
    /// No larger ones.
    bytes: usize,
    /// None after this one.
    last: Option<ActionId>,
}

const ALL: Bound = Bound { bytes: usize::MAX, last: None };

/// Why a lane does not go on.
enum Pause {
    /// This action has not finished.
    Missing(ActionId),
    /// The next copy is not asked for.
    Bound,
    /// All is done.
    End,
}

/// Why a lane ends before its time.
enum Halted {
    /// Another one has failed.
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
            next: Default::default(),
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
        let pass = Pass { lane, origin, copies: &copies };
        let outcome = if lane == Lane::Compute { self.run_ops(&pass, turn) } else { self.run_copies(&pass) };
        match outcome {
            Ok(()) => self.device.drain(lane),
            Err(Halted::Stopped) => Ok(()),
            Err(Halted::Failed(error)) => Err(error),
        }
    }

    fn run_ops(&self, pass: &Pass<'_>, turn: Turn) -> Result<(), Halted> {
        let mut exchange = self.exchange();
        for task in &self.program.lanes[Lane::Compute.index()] {
            let Work::Launch { op, ref reads, ref writes, workspace } = task.work else { continue };
            for (lane, &action) in Lane::ALL.into_iter().zip(&task.after) {
                if let Some(action) = action.filter(|&action| !self.device.reached(Lane::Compute, action)) {
                    if self.device.prompt() > 0 {
                        self.help(pass, lane, Bound { last: Some(action), ..ALL })?;
                    }
                    self.device.wait(Lane::Compute, action)?;
                }
            }
            self.recording.start(task.action, Lane::Compute, task.end, pass.origin, Instant::now());
            let extents = &self.program.extents;
            let (reads, writes) = (&extents[reads.clone()], &extents[writes.clone()]);
            self.device.launch(Call { op, reads, writes, workspace, turn, exchange: &mut exchange })?;
            self.finish(pass, Lane::Compute, task)?;
        }
        Ok(())
    }

    fn run_copies(&self, pass: &Pass<'_>) -> Result<(), Halted> {
        loop {
            // The lock is not held while the lane waits.
            let pause = self.advance(pass, pass.lane, &mut lock(&self.next[pass.lane.index()]), ALL)?;
            match pause {
                Pause::Missing(action) => self.device.wait(pass.lane, action)?,
                Pause::Bound | Pause::End => return Ok(()),
            }
        }
    }

    /// Runs tasks of a lane of copies, from the next one on, until one cannot begin or is out of bounds.
    fn advance(&self, pass: &Pass<'_>, lane: Lane, next: &mut usize, bound: Bound) -> Result<Pause, Halted> {
        let tasks = &self.program.lanes[lane.index()];
        while let Some(task) = tasks.get(*next) {
            let mut awaited = task.after.into_iter().flatten();
            if let Some(action) = awaited.find(|&action| !self.device.reached(lane, action)) {
                return Ok(Pause::Missing(action));
            }
            if task.bytes() > bound.bytes || bound.last.is_some_and(|last| task.action > last) {
                return Ok(Pause::Bound);
            }
            let before = next.checked_sub(1).map(|before| tasks[before].action);
            self.copy(pass, lane, task, before)?;
            *next += 1;
            self.finish(pass, lane, task)?;
        }
        Ok(Pause::End)
    }

    /// Runs tasks of another lane, unless somebody does so already. Says whether that lane's own thread can sleep on.
    fn help(&self, pass: &Pass<'_>, lane: Lane, bound: Bound) -> Result<bool, Halted> {
        match self.next[lane.index()].try_lock() {
            Ok(mut next) => {
                let pause = self.advance(pass, lane, &mut next, bound)?;
                Ok(matches!(pause, Pause::Missing(_)))
            }
            Err(_) => Ok(false),
        }
    }

    /// Makes a copy; `before` is the one before it on its lane.
    fn copy(
        &self,
        pass: &Pass<'_>,
        lane: Lane,
        task: &Task,
        before: Option<ActionId>,
    ) -> Result<(), EngineError> {
        let causes = task.after.into_iter().chain([before]).flatten();
        let ready = causes.map(|action| self.recording.ended(action)).max().unwrap_or_default();
        let start = self.device.begun(lane, pass.origin + ready);
        self.recording.start(task.action, lane, task.end, pass.origin, start);
        let (value, outcome) = match task.work {
            Work::Store { value, from, copy } => {
                (value, self.device.store(from, pass.copies.offsets[copy], start))
            }
            Work::Load { value, copy, to } => (value, self.device.load(pass.copies.offsets[copy], to, start)),
            Work::Launch { .. } => return Ok(()),
        };
        outcome.map_err(|source| EngineError::Copy { action: task.action, value, source })
    }

    /// A task of a lane is done: others may go on. Ops go on with small copies for them.
    fn finish(&self, pass: &Pass<'_>, lane: Lane, task: &Task) -> Result<(), Halted> {
        self.recording.end(task.action, pass.origin);
        self.retire(task);
        for waiting in self.device.signal(lane, task.action).lanes().filter(|&waiting| waiting != pass.lane) {
            let bytes = if pass.lane == Lane::Compute { self.device.prompt() } else { 0 };
            let served = bytes > 0 && self.help(pass, waiting, Bound { bytes, ..ALL })?;
            if !served {
                self.device.wake(waiting);
            }
        }
        Ok(())
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
        self.next.iter().for_each(|next| *lock(next) = 0);
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

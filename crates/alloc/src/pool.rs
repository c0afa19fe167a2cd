//! Planned memory of a device for a host program: one sequence for each queue, and whatever has no plan straight from the backing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::arena::Release;
use crate::directory::Directory;
use crate::memory::{Backing, OutOfMemory};
use crate::request::{Request, Ticket};
use crate::sequence::{Answer, Sequence, Settings};
use crate::stats::Stats;

/// Blocks of one device. A *queue* is where the operations that use a block are ordered: a CUDA stream. Blocks are used again by the queue
/// that asked for them and by no other, so an operation still under way when its block is freed is safe.
pub struct Pool<B: Backing + Clone> {
    backing: B,
    settings: Settings,
    directory: Arc<Directory>,
    state: Mutex<PoolState<B>>,
}

struct PoolState<B: Backing> {
    queues: HashMap<u64, Sequence<B, Arc<Directory>>>,
    /// Blocks that have no plan.
    unplanned: HashMap<usize, Request>,
    /// Bytes of them.
    unplanned_bytes: usize,
    /// Blocks whose queue wants to hear of their free.
    recorded: HashMap<usize, (u64, Ticket)>,
}

impl<B: Backing> PoolState<B> {
    /// Tells the queue of a block that it is freed, if the queue wants to know.
    fn record_free(&mut self, address: usize) {
        let Some((queue, ticket)) = self.recorded.remove(&address) else { return };
        if let Some(sequence) = self.queues.get_mut(&queue) {
            let now = sequence.now();
            sequence.freed(ticket, now);
        }
    }
}

impl<B: Backing + Clone> Pool<B> {
    /// A pool without blocks.
    pub fn new(backing: B, settings: Settings) -> Self {
        let state = PoolState {
            queues: HashMap::new(),
            unplanned: HashMap::new(),
            unplanned_bytes: 0,
            recorded: HashMap::new(),
        };
        Self { backing, settings, directory: Arc::default(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, PoolState<B>> {
        // A panic cannot leave it half changed: nothing that can panic stands between its changes.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A block for a queue.
    pub fn allocate(&self, queue: u64, request: Request) -> Result<usize, OutOfMemory> {
        let mut state = self.state();
        let ticket = match self.sequence(&mut state, queue).request(request) {
            Answer::Planned(address, ticket) => {
                if let Some(ticket) = ticket {
                    state.recorded.insert(address, (queue, ticket));
                }
                return Ok(address);
            }
            Answer::Fallback(ticket) => ticket,
        };
        let taken = self.backing.reserve(request.size.max(1), request.align);
        let address = taken.or_else(|_| {
            // Plans that are not in use may hold what is missing.
            state.queues.values_mut().for_each(Sequence::release_idle_plans);
            self.backing.reserve(request.size.max(1), request.align)
        })?;
        state.unplanned.insert(address, request);
        if let Some(ticket) = ticket {
            state.recorded.insert(address, (queue, ticket));
        }
        state.unplanned_bytes += request.size;
        Ok(address)
    }

    /// Gives back a block. An address at which none begins changes nothing.
    pub fn free(&self, address: usize) -> Release {
        let mut state = self.state();
        let release = self.directory.release(address);
        if release == Release::Nothing {
            return release;
        }
        state.record_free(address);
        if release == Release::Freed {
            return release;
        }
        let Some(request) = state.unplanned.remove(&address) else { return Release::Elsewhere };
        state.unplanned_bytes -= request.size;
        drop(state);
        self.backing.release(address, request.size.max(1), request.align);
        Release::Freed
    }

    /// Says something to the sequence of a queue: iteration marks, interruptions. A queue may be new.
    pub fn with_queue<T>(&self, queue: u64, action: impl FnOnce(&mut Sequence<B, Arc<Directory>>) -> T) -> T {
        action(self.sequence(&mut self.state(), queue))
    }

    fn sequence<'a>(&self, state: &'a mut PoolState<B>, queue: u64) -> &'a mut Sequence<B, Arc<Directory>> {
        state.queues.entry(queue).or_insert_with(|| {
            Sequence::new(self.backing.clone(), self.directory.clone(), self.settings.clone())
        })
    }

    /// Counts of all queues together, and bytes that have no plan and live now.
    pub fn stats(&self) -> (Stats, usize) {
        let state = self.state();
        let mut sum = Stats::default();
        state.queues.values().for_each(|sequence| sum.add(&sequence.stats()));
        (sum, state.unplanned_bytes)
    }
}

impl<B: Backing + Clone> Drop for Pool<B> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (address, request) in state.unplanned.drain() {
            self.backing.release(address, request.size.max(1), request.align);
        }
    }
}

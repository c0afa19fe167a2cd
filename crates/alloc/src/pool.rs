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
    state: Mutex<State<B>>,
}

struct State<B: Backing> {
    queues: HashMap<u64, Sequence<B, Arc<Directory>>>,
    /// Blocks that have no plan.
    outside: HashMap<usize, Outside>,
    /// Bytes of them.
    outside_bytes: usize,
}

#[derive(Clone, Copy)]
struct Outside {
    queue: u64,
    request: Request,
    ticket: Option<Ticket>,
}

impl<B: Backing + Clone> Pool<B> {
    /// A pool without blocks.
    pub fn new(backing: B, settings: Settings) -> Self {
        let state = State { queues: HashMap::new(), outside: HashMap::new(), outside_bytes: 0 };
        Self { backing, settings, directory: Arc::default(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State<B>> {
        // A panic cannot leave it half changed: nothing that can panic stands between its changes.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A block for a queue.
    pub fn allocate(&self, queue: u64, request: Request) -> Result<usize, OutOfMemory> {
        let mut state = self.state();
        let sequence = state.queues.entry(queue).or_insert_with(|| {
            Sequence::new(self.backing.clone(), self.directory.clone(), self.settings.clone())
        });
        let ticket = match sequence.request(request) {
            Answer::Planned(address) => return Ok(address),
            Answer::Fallback(ticket) => ticket,
        };
        let taken = self.backing.reserve(request.size.max(1), request.align);
        let address = taken.or_else(|_| {
            // Plans that are not in use may hold what is missing.
            state.queues.values_mut().for_each(Sequence::shed);
            self.backing.reserve(request.size.max(1), request.align)
        })?;
        state.outside.insert(address, Outside { queue, request, ticket });
        state.outside_bytes += request.size;
        Ok(address)
    }

    /// Gives back a block. An address at which none begins changes nothing.
    pub fn free(&self, address: usize) -> Release {
        let release = self.directory.release(address);
        if release != Release::Elsewhere {
            return release;
        }
        let mut state = self.state();
        let Some(outside) = state.outside.remove(&address) else { return Release::Elsewhere };
        state.outside_bytes -= outside.request.size;
        if let (Some(ticket), Some(sequence)) = (outside.ticket, state.queues.get_mut(&outside.queue)) {
            let now = sequence.now();
            sequence.freed(ticket, now);
        }
        drop(state);
        self.backing.release(address, outside.request.size.max(1), outside.request.align);
        Release::Freed
    }

    /// Says something to the sequence of a queue: iteration marks, interruptions.
    pub fn tell<T>(&self, queue: u64, say: impl FnOnce(&mut Sequence<B, Arc<Directory>>) -> T) -> Option<T> {
        self.state().queues.get_mut(&queue).map(say)
    }

    /// Counts of all queues together, and bytes that have no plan and live now.
    pub fn stats(&self) -> (Stats, usize) {
        let state = self.state();
        let mut sum = Stats::default();
        state.queues.values().for_each(|sequence| sum.add(&sequence.stats()));
        (sum, state.outside_bytes)
    }
}

impl<B: Backing + Clone> Drop for Pool<B> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (address, outside) in state.outside.drain() {
            self.backing.release(address, outside.request.size.max(1), outside.request.align);
        }
    }
}

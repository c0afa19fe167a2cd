//! Planned device memory for a host program: one sequence per queue; unplanned blocks come straight from the backing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::arena::Release;
use crate::directory::Directory;
use crate::memory::{Backing, OutOfMemory};
use crate::request::{Request, Ticket};
use crate::sequence::{Answer, Sequence, Settings};
use crate::stats::Stats;

/// Blocks of one device. A *queue* orders the operations that use a block, as a CUDA stream does. Only the queue that requested a block
/// reuses its bytes, so a block may be freed while an operation that uses it is still in progress.
pub struct Pool<B: Backing + Clone> {
    backing: B,
    settings: Settings,
    directory: Arc<Directory>,
    state: Mutex<PoolState<B>>,
}

struct PoolState<B: Backing> {
    queues: HashMap<u64, Sequence<B, Arc<Directory>>>,
    /// Blocks outside of any plan.
    unplanned: HashMap<usize, Request>,
    /// The sum of their sizes.
    unplanned_bytes: usize,
    /// Blocks whose queue records when they are freed.
    recorded: HashMap<usize, (u64, Ticket)>,
}

impl<B: Backing> PoolState<B> {
    /// Reports the free of a block to its queue if the queue records it.
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
        // A panic cannot leave the state half changed: no operation between related changes can panic.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Allocates a block for a queue and returns its address.
    ///
    /// The block is valid until it is freed or the pool is dropped.
    ///
    /// # Errors
    /// The backing has no memory left, even after all plans without live blocks have been released, or the alignment is no power of two.
    pub fn allocate(&self, queue: u64, request: Request) -> Result<usize, OutOfMemory> {
        if !request.align.is_power_of_two() {
            return Err(OutOfMemory::new(request.size, "the alignment is no power of two"));
        }
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
        let reserve = || self.backing.reserve(request.size.max(1), request.align);
        let address = reserve()
            .or_else(|_| {
                // Arenas of idle plans may occupy the missing bytes.
                state.queues.values_mut().for_each(Sequence::release_idle_plans);
                reserve()
            })
            .or_else(|_| {
                // So may those of plans in use whose queues have no blocks now.
                state.queues.values_mut().for_each(Sequence::release_empty_plans);
                reserve()
            })?;
        state.unplanned.insert(address, request);
        if let Some(ticket) = ticket {
            state.recorded.insert(address, (queue, ticket));
        }
        state.unplanned_bytes += request.size;
        Ok(address)
    }

    /// Frees a block. Has no effect if no block begins at the address.
    ///
    /// ```compile_fail,E0133
    /// use elbowroom_alloc::{HostMemory, Pool, Request, Settings};
    ///
    /// let pool = Pool::new(HostMemory, Settings::default());
    /// let block = pool.allocate(0, Request::new(4096, 64)).unwrap();
    /// pool.free(block);
    /// ```
    ///
    /// # Safety
    /// If a block begins at the address, nothing uses its bytes any more, except operations that precede the next use of the block's queue.
    pub unsafe fn free(&self, address: usize) -> Release {
        let mut state = self.state();
        // SAFETY: the caller's promise.
        let release = unsafe { self.directory.release(address) };
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
        // SAFETY: reserved for this request, which is no longer in the table; the caller promises that the block is unused.
        unsafe { self.backing.release(address, request.size.max(1), request.align) };
        Release::Freed
    }

    /// Marks the start of an iteration of a queue; see [`Sequence::mark_iteration`].
    pub fn mark_iteration(&self, queue: u64) {
        self.sequence(&mut self.state(), queue).mark_iteration();
    }

    /// Excludes the following requests of a queue from the iteration until [`resume`](Self::resume). Interruptions nest.
    pub fn interrupt(&self, queue: u64) {
        self.sequence(&mut self.state(), queue).interrupt();
    }

    /// Ends an interruption.
    pub fn resume(&self, queue: u64) {
        self.sequence(&mut self.state(), queue).resume();
    }

    fn sequence<'a>(&self, state: &'a mut PoolState<B>, queue: u64) -> &'a mut Sequence<B, Arc<Directory>> {
        state.queues.entry(queue).or_insert_with(|| {
            Sequence::new(self.backing.clone(), self.directory.clone(), self.settings.clone())
        })
    }

    /// Counters of all queues together, and the bytes of live unplanned blocks.
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
            // SAFETY: reserved for this request; a block is valid only as long as its pool.
            unsafe { self.backing.release(address, request.size.max(1), request.align) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    /// Memory of so many bytes, at addresses that are not used again.
    #[derive(Clone)]
    struct Limited {
        left: Rc<Cell<usize>>,
        next: Rc<Cell<usize>>,
    }

    // SAFETY: ranges of nothing, which no code accesses; they never overlap.
    unsafe impl Backing for Limited {
        fn reserve(&self, bytes: usize, align: usize) -> Result<usize, OutOfMemory> {
            let left = self.left.get().checked_sub(bytes).ok_or_else(|| OutOfMemory::new(bytes, "full"))?;
            let address = self.next.get().next_multiple_of(align);
            self.next.set(address + bytes);
            self.left.set(left);
            Ok(address)
        }

        unsafe fn release(&self, _: usize, bytes: usize, _: usize) {
            self.left.set(self.left.get() + bytes);
        }
    }

    fn iterate(pool: &Pool<Limited>, queue: u64) {
        let blocks: Vec<usize> =
            (1..5).map(|i| pool.allocate(queue, Request::new(1_000 * i, 64)).expect("memory")).collect();
        // SAFETY: blocks of imaginary memory have no contents.
        assert!(blocks.iter().all(|&block| unsafe { pool.free(block) } == Release::Freed));
    }

    /// A memory may rely on it: the trait promises a power of two.
    #[test]
    fn an_alignment_that_is_no_power_of_two_never_reaches_the_memory() {
        struct Trusting;
        // SAFETY: gives nothing.
        unsafe impl Backing for &Trusting {
            fn reserve(&self, bytes: usize, align: usize) -> Result<usize, OutOfMemory> {
                assert!(align.is_power_of_two(), "{align}");
                Err(OutOfMemory::new(bytes, "full"))
            }
            unsafe fn release(&self, _: usize, _: usize, _: usize) {}
        }
        let pool = Pool::new(&Trusting, Settings::default());
        for align in [0, 3, 5_000] {
            let error = pool.allocate(0, Request::new(4_096, align)).unwrap_err();
            assert!(error.why.contains("power of two"), "{error}");
        }
        assert_eq!(pool.allocate(0, Request::new(4_096, 64)).unwrap_err().why, "full");
    }

    #[test]
    fn a_plan_of_a_queue_without_blocks_makes_room_for_another_queue() {
        let memory = Limited { left: Rc::new(Cell::new(40_000)), next: Rc::new(Cell::new(1 << 20)) };
        let pool = Pool::new(memory.clone(), Settings::default());
        let iterations = if cfg!(miri) { 40 } else { 400 };
        (0..iterations).for_each(|_| iterate(&pool, 0));
        assert!(pool.stats().0.planned > 0 && memory.left.get() < 32_000, "{:?}", pool.stats());
        let whole = pool.allocate(1, Request::new(40_000, 64)).expect("the memory of the plan");
        assert!(pool.allocate(0, Request::new(1_000, 64)).is_err(), "there is none for the first queue");
        // SAFETY: as above.
        assert_eq!(unsafe { pool.free(whole) }, Release::Freed);
        let before = pool.stats().0;
        // A queue that lost its plan is looked at ever more rarely: after 47 iterations if it began with 40.
        (0..2 * iterations).for_each(|_| iterate(&pool, 0));
        assert!(pool.stats().0.planned > before.planned, "what repeats is planned again");
    }

    #[test]
    fn a_plan_with_live_blocks_stays() {
        let memory = Limited { left: Rc::new(Cell::new(40_000)), next: Rc::new(Cell::new(1 << 20)) };
        let pool = Pool::new(memory, Settings::default());
        (0..if cfg!(miri) { 40 } else { 400 }).for_each(|_| iterate(&pool, 0));
        let block = (0..8).find_map(|_| {
            let planned = pool.stats().0.planned;
            let block = pool.allocate(0, Request::new(1_000, 64)).expect("memory");
            (pool.stats().0.planned > planned).then_some(block)
        });
        assert!(pool.allocate(1, Request::new(40_000, 64)).is_err());
        // SAFETY: as above.
        assert_eq!(unsafe { pool.free(block.expect("a planned block")) }, Release::Freed);
    }
}

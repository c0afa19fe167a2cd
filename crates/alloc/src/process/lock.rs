//! A lock that needs no memory, knows its owner, and can be acquired before a fork and released on both sides of it.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Held for a few dozen instructions at a time, except during a fork; a thread that finds it held yields.
#[derive(Debug)]
pub(super) struct Lock {
    /// The thread that holds it, as the address of its thread-local state, which a fork does not change; 0 for none.
    owner: AtomicUsize,
}

impl Lock {
    pub const fn new() -> Self {
        Self { owner: AtomicUsize::new(0) }
    }

    /// Acquires the lock for a thread. Returns false if that thread holds it already: it was interrupted by a signal handler while it held
    /// the lock, or it is forking and another fork handler runs.
    pub fn acquire(&self, thread: usize) -> bool {
        loop {
            match self.owner.compare_exchange_weak(0, thread, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                // Only this thread writes its own address, so the value is not stale.
                Err(owner) if owner == thread => return false,
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// Whether a thread other than this one holds the lock.
    pub fn is_held_by_other_than(&self, thread: usize) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        owner != 0 && owner != thread
    }

    /// Releases the lock. Only the thread that acquired it may call this, or in a child the only thread.
    pub fn release(&self) {
        self.owner.store(0, Ordering::Release);
    }
}

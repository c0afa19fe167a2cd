//! A lock that needs no memory, and that can be acquired before a fork and released on both sides of it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Held for a few dozen instructions at a time; a thread that finds it held yields.
#[derive(Debug)]
pub(crate) struct Lock {
    held: AtomicBool,
}

impl Lock {
    pub(crate) const fn new() -> Self {
        Self { held: AtomicBool::new(false) }
    }

    pub(crate) fn acquire(&self) {
        while self.held.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
    }

    pub(crate) fn release(&self) {
        self.held.store(false, Ordering::Release);
    }
}

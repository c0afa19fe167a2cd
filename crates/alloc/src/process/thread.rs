//! The state of a thread.

use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use super::PROCESS;
use super::band::{BANDS, BandSequence};

/// The state of a thread. It has no destructor, so that it is usable until the thread ends.
pub(super) struct ThreadState {
    /// Whether all its requests go to the fallback, because it records, plans or forks.
    pub busy: Cell<bool>,
    /// One per band.
    pub sequences: [Cell<*mut BandSequence>; BANDS.len()],
    pub small: Cell<u64>,
    pub small_bytes: Cell<u64>,
    /// During a fork: what to restore after it.
    pub fork: Cell<Option<BeforeFork>>,
}

/// The state of the forking thread before the fork.
#[derive(Clone, Copy)]
pub(super) struct BeforeFork {
    pub busy: bool,
    /// Whether the fork handler acquired the lock. Otherwise a signal handler forks while its own thread holds it.
    pub locked: bool,
    /// The same for the lock of those who discard pages.
    pub discarding: bool,
}

thread_local! {
    pub(super) static THREAD: ThreadState = const {
        ThreadState {
            busy: Cell::new(false),
            sequences: [const { Cell::new(null_mut()) }; BANDS.len()],
            small: Cell::new(0),
            small_bytes: Cell::new(0),
            fork: Cell::new(None),
        }
    };
    /// Releases the band sequences when the thread ends.
    pub(super) static THREAD_EXIT: ThreadExit = const { ThreadExit };
}

impl ThreadState {
    /// What identifies the thread, also after a fork: the address of its state.
    pub fn token(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

pub(super) struct ThreadExit;

impl Drop for ThreadExit {
    fn drop(&mut self) {
        THREAD.with(|thread| {
            // From here on the thread has no band sequences and claims no others.
            thread.busy.set(true);
            for owner in &thread.sequences {
                // SAFETY: sequences are never freed.
                if let Some(owner) = unsafe { owner.replace(null_mut()).as_ref() } {
                    PROCESS.stop_recording(owner);
                    // SAFETY: the owner is still this thread's, and the thread is busy.
                    unsafe { &*owner.sequence.get() }.discard_all_free_pages();
                    owner.claimed.store(false, Ordering::Release);
                }
            }
        });
    }
}

//! The state of a thread.

use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use super::PROCESS;
use super::band::{BANDS, Band, BandSequence};

/// The state of a thread. It has no destructor, so that it is usable until the thread ends.
pub(super) struct ThreadState {
    /// Whether all its requests go to the fallback, because it records, plans or forks.
    pub busy: Cell<bool>,
    /// One per band.
    pub sequences: [Cell<*mut BandSequence>; BANDS.len()],
    /// One per band.
    pub pauses: [Pause; BANDS.len()],
    pub small: Cell<u64>,
    pub small_bytes: Cell<u64>,
    /// One per band: requests of the thread up to its latest fork.
    pub requests_at_fork: [Cell<u64>; BANDS.len()],
    /// During a fork: what to restore after it.
    pub fork: Cell<Option<BeforeFork>>,
}

/// Requests that go to the fallback without a look at the sequence. See [`Sequence::pause`](crate::Sequence).
pub(super) struct Pause {
    granted: Cell<u64>,
    left: Cell<u64>,
    bytes: Cell<u64>,
}

impl Pause {
    const fn new() -> Self {
        Self { granted: Cell::new(0), left: Cell::new(0), bytes: Cell::new(0) }
    }

    /// Whether a request goes to the fallback; counts it if so.
    #[inline]
    pub fn take(&self, bytes: usize) -> bool {
        let left = self.left.get();
        if left == 0 {
            return false;
        }
        self.left.set(left - 1);
        self.bytes.set(self.bytes.get().wrapping_add(bytes as u64));
        true
    }

    /// Begins a pause. The one before must have been ended.
    pub fn begin(&self, requests: u64) {
        self.granted.set(requests);
        self.left.set(requests);
    }

    /// Requests in the pause so far.
    pub fn taken(&self) -> u64 {
        self.granted.get() - self.left.get()
    }

    /// Begins a pause, or extends the one that lasts, so that at least this many requests are left.
    pub fn extend(&self, requests: u64) {
        let missing = requests.saturating_sub(self.left.get());
        self.granted.set(self.granted.get() + missing);
        self.left.set(self.left.get() + missing);
    }

    /// Ends the pause. Returns the requests in it and their bytes; `None` if there was no pause.
    #[inline]
    pub fn end(&self) -> Option<(u64, u64)> {
        if self.granted.get() == 0 {
            return None;
        }
        let left = self.left.replace(0);
        Some((self.granted.replace(0) - left, self.bytes.replace(0)))
    }
}

/// The state of the forking thread before the fork.
#[derive(Clone, Copy)]
pub(super) struct BeforeFork {
    pub busy: bool,
    /// Whether the process had no other thread. Then no lock is acquired.
    pub alone: bool,
    /// Whether the fork handler acquired the lock. If not, and the thread is not alone, a signal handler forks while its own thread holds it.
    pub locked: bool,
    /// The same for the lock of those who discard pages.
    pub discarding: bool,
}

thread_local! {
    pub(super) static THREAD: ThreadState = const {
        ThreadState {
            busy: Cell::new(false),
            sequences: [const { Cell::new(null_mut()) }; BANDS.len()],
            pauses: [const { Pause::new() }; BANDS.len()],
            small: Cell::new(0),
            small_bytes: Cell::new(0),
            requests_at_fork: [const { Cell::new(0) }; BANDS.len()],
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
            let mut had_large_plan = false;
            for band in BANDS {
                // SAFETY: sequences are never freed.
                if let Some(owner) = unsafe { thread.sequences[band as usize].replace(null_mut()).as_ref() } {
                    // SAFETY: the owner is still this thread's, and the thread is busy.
                    let sequence = unsafe { &mut *owner.sequence.get() };
                    PROCESS.end_pause(thread, owner, sequence);
                    PROCESS.stop_recording(owner);
                    sequence.discard_all_free_pages();
                    had_large_plan |= band == Band::Large && sequence.stats_ref().plans > 0;
                    owner.claimed.store(false, Ordering::Release);
                }
            }
            if let Some(on_thread_end) = PROCESS.on_thread_end.get().filter(|_| had_large_plan) {
                on_thread_end();
            }
        });
    }
}

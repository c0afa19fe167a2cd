//! Events for lanes that are threads: a pair of flags for each action, and sleep for those that wait.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use elbowroom_ir::{ActionId, Id};

use super::Stopped;

/// Flags that are raised once per iteration.
///
/// A signaller raises its flag and then looks whether the action is awaited; a sleeper says that it is and then looks at the flag. With
/// sequential consistency one of the two sees the other, so no wake-up is lost, and a signal that nobody waits for costs no system call,
/// even while others sleep: copies mostly do, and small ops would spend their time in waking them for nothing.
#[derive(Debug)]
pub struct Events {
    done: Box<[AtomicBool]>,
    /// Actions that somebody sleeps or slept for. Taken back by nobody before the iteration is over: of two sleepers, the one that looks
    /// later could be missed.
    awaited: Box<[AtomicBool]>,
    stopped: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Events {
    /// A flag for each of `actions`.
    pub fn new(actions: usize) -> Self {
        let flags = || (0..actions).map(|_| AtomicBool::new(false)).collect();
        Self {
            done: flags(),
            awaited: flags(),
            stopped: AtomicBool::new(false),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    /// Lowers all flags. Nobody waits meanwhile.
    pub fn reset(&self) {
        self.done.iter().chain(&self.awaited).for_each(|flag| flag.store(false, SeqCst));
        self.stopped.store(false, SeqCst);
    }

    /// Raises an action's flag.
    pub fn signal(&self, action: ActionId) {
        self.done[action.index()].store(true, SeqCst);
        if self.awaited[action.index()].load(SeqCst) {
            self.wake();
        }
    }

    /// Makes all waits fail.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        self.wake();
    }

    /// Returns when the action's flag is up.
    pub fn wait(&self, action: ActionId) -> Result<(), Stopped> {
        let done = || self.done[action.index()].load(SeqCst);
        let stopped = || self.stopped.load(SeqCst);
        if !done() && !stopped() {
            let mut guard = self.lock();
            self.awaited[action.index()].store(true, SeqCst);
            while !done() && !stopped() {
                guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
        }
        if stopped() { Err(Stopped) } else { Ok(()) }
    }

    fn wake(&self) {
        // Between a sleeper's look at the flag and its sleep the lock is held.
        drop(self.lock());
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_waits_across_threads_all_arrive() {
        let events = Events::new(3_000);
        std::thread::scope(|scope| {
            for lane in 0..3 {
                let events = &events;
                scope.spawn(move || {
                    for action in (lane..3_000).step_by(3) {
                        if action > 0 {
                            events.wait(ActionId::new(action - 1)).unwrap();
                        }
                        events.signal(ActionId::new(action));
                    }
                });
            }
        });
        assert_eq!(events.wait(ActionId::new(2_999)), Ok(()));
        events.reset();
        events.stop();
        assert_eq!(events.wait(ActionId::new(0)), Err(Stopped));
    }
}

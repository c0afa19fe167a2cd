//! Events for lanes that are threads: one flag for each action, and sleep for those that wait.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use elbowroom_ir::{ActionId, Id};

use super::Stopped;

/// Flags that are raised once per iteration.
///
/// A signaller raises its flag and then looks for sleepers; a sleeper announces itself and then looks at the flag. With sequential
/// consistency one of the two sees the other, so no wake-up is lost and a signal that nobody waits for costs no system call.
#[derive(Debug)]
pub struct Events {
    done: Box<[AtomicBool]>,
    stopped: AtomicBool,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Events {
    /// A flag for each of `actions`.
    pub fn new(actions: usize) -> Self {
        Self {
            done: (0..actions).map(|_| AtomicBool::new(false)).collect(),
            stopped: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    /// Lowers all flags. Nobody waits meanwhile.
    pub fn reset(&self) {
        self.done.iter().for_each(|flag| flag.store(false, SeqCst));
        self.stopped.store(false, SeqCst);
    }

    /// Raises an action's flag.
    pub fn signal(&self, action: ActionId) {
        self.done[action.index()].store(true, SeqCst);
        self.wake();
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
            self.sleepers.fetch_add(1, SeqCst);
            while !done() && !stopped() {
                guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.sleepers.fetch_sub(1, SeqCst);
        }
        if stopped() { Err(Stopped) } else { Ok(()) }
    }

    fn wake(&self) {
        if self.sleepers.load(SeqCst) > 0 {
            // Between a sleeper's look at the flag and its sleep the lock is held.
            drop(self.lock());
            self.changed.notify_all();
        }
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

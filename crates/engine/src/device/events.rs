//! Events for lanes that are threads: a flag for each action, and sleep for those that wait.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use elbowroom_ir::schedule::Lane;
use elbowroom_ir::{ActionId, Id};

use super::Stopped;

/// How long ops look for a copy's end before they sleep: about as long as waking up takes, so that whoever looks in vain has lost no more
/// than that. Copies wait for long ops mostly, and would only take the ops' processor by looking.
const PATIENCE: Duration = Duration::from_micros(60);

/// Flags that are raised once per iteration.
///
/// A signaller raises its flag and then looks who awaits the action; a sleeper says that it does and then looks at the flag. With
/// sequential consistency one of the two sees the other, so no wake-up is lost, and a signal that nobody waits for costs no system call,
/// even while others sleep: copies mostly do, and small ops would spend their time in waking them for nothing.
#[derive(Debug)]
pub struct Events {
    done: Box<[AtomicBool]>,
    /// For each action a bit for each lane that waits or waited for it. Taken back by nobody before the iteration is over.
    awaited: Box<[AtomicU8]>,
    stopped: AtomicBool,
    /// Lanes that nobody has woken yet.
    asleep: Mutex<[bool; 3]>,
    changed: [Condvar; 3],
}

/// The lanes that wait for an action: to be woken, now that it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting(u8);

impl Waiting {
    /// Lane by lane.
    pub fn lanes(self) -> impl Iterator<Item = Lane> {
        Lane::ALL.into_iter().filter(move |&lane| self.0 & bit(lane) != 0)
    }
}

const fn bit(lane: Lane) -> u8 {
    1 << lane.index()
}

impl Events {
    /// A flag for each of `actions`.
    pub fn new(actions: usize) -> Self {
        Self {
            done: (0..actions).map(|_| AtomicBool::new(false)).collect(),
            awaited: (0..actions).map(|_| AtomicU8::new(0)).collect(),
            stopped: AtomicBool::new(false),
            asleep: Mutex::default(),
            changed: Default::default(),
        }
    }

    /// Lowers all flags. Nobody waits meanwhile.
    pub fn reset(&self) {
        self.done.iter().for_each(|flag| flag.store(false, SeqCst));
        self.awaited.iter().for_each(|lanes| lanes.store(0, SeqCst));
        self.stopped.store(false, SeqCst);
    }

    /// Raises an action's flag, and says who is to be woken.
    pub fn signal(&self, action: ActionId) -> Waiting {
        self.done[action.index()].store(true, SeqCst);
        Waiting(self.awaited[action.index()].load(SeqCst))
    }

    /// Makes all waits fail.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        Lane::ALL.into_iter().for_each(|lane| self.wake(lane));
    }

    /// Whether the action's flag is up. If it is not, its signal will say that this lane waits.
    pub fn reached(&self, lane: Lane, action: ActionId) -> bool {
        let done = || self.done[action.index()].load(SeqCst);
        done() || {
            self.awaited[action.index()].fetch_or(bit(lane), SeqCst);
            done()
        }
    }

    /// Returns when the action's flag is up and whoever raised it has woken this lane.
    pub fn wait(&self, lane: Lane, action: ActionId) -> Result<(), Stopped> {
        let stopped = || self.stopped.load(SeqCst);
        // Said once: whoever looks again and again only reads.
        let reached = self.reached(lane, action);
        let over = || reached || self.done[action.index()].load(SeqCst) || stopped();
        let began = Instant::now();
        let patient = || lane == Lane::Compute && began.elapsed() < PATIENCE;
        while !over() && patient() {
            std::hint::spin_loop();
        }
        if !over() {
            let mut asleep = self.lock();
            while !over() {
                asleep[lane.index()] = true;
                asleep = self.changed[lane.index()].wait(asleep).unwrap_or_else(PoisonError::into_inner);
            }
            asleep[lane.index()] = false;
        }
        if stopped() { Err(Stopped) } else { Ok(()) }
    }

    /// Wakes a lane, if it sleeps.
    pub fn wake(&self, lane: Lane) {
        // Between a sleeper's look at the flag and its sleep the lock is held.
        let slept = std::mem::take(&mut self.lock()[lane.index()]);
        if slept {
            self.changed[lane.index()].notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, [bool; 3]> {
        self.asleep.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_waits_across_threads_all_arrive() {
        let events = Events::new(3_000);
        std::thread::scope(|scope| {
            for (start, lane) in Lane::ALL.into_iter().enumerate() {
                let events = &events;
                scope.spawn(move || {
                    for action in (start..3_000).step_by(3) {
                        if action > 0 {
                            events.wait(lane, ActionId::new(action - 1)).unwrap();
                        }
                        let waiting = events.signal(ActionId::new(action));
                        waiting.lanes().for_each(|lane| events.wake(lane));
                    }
                });
            }
        });
        assert_eq!(events.wait(Lane::Compute, ActionId::new(2_999)), Ok(()));
        events.reset();
        events.stop();
        assert_eq!(events.wait(Lane::ToHost, ActionId::new(0)), Err(Stopped));
    }
}

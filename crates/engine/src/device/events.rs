//! Events for streams that are threads: a flag per action, and sleeping until a flag is set.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use elbowroom_ir::schedule::Stream;
use elbowroom_ir::{ActionId, Id};

use super::Stopped;

/// How long the compute stream spins before it sleeps: about as long as waking up takes, so that spinning in vain at most doubles the wait.
/// Copy streams mostly wait for long ops and do not spin, because they would take the processor from those ops.
const SPIN_TIME: Duration = Duration::from_micros(60);

/// Flags that are set once per iteration.
///
/// A signaller sets its flag and then reads which streams wait for the action; a waiting stream registers and then reads the flag. Under
/// sequential consistency at least one of the two sees the other's write, so no wake-up is lost. A signal that no stream waits for costs no
/// system call, even while other streams sleep.
#[derive(Debug)]
pub struct Events {
    done: Box<[AtomicBool]>,
    /// For each action, a bit for each stream that has waited for it in this iteration. Cleared only between iterations.
    awaited: Box<[AtomicU8]>,
    stopped: AtomicBool,
    /// Streams that sleep and have not been woken.
    asleep: Mutex<[bool; 3]>,
    changed: [Condvar; 3],
}

/// The streams that wait for an action and must be woken now that it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting(u8);

impl Waiting {
    /// These streams.
    #[cfg(test)]
    pub fn of(streams: impl Iterator<Item = Stream>) -> Self {
        Self(streams.fold(0, |bits, stream| bits | bit(stream)))
    }

    /// The streams, in order.
    pub fn streams(self) -> impl Iterator<Item = Stream> {
        Stream::ALL.into_iter().filter(move |&stream| self.0 & bit(stream) != 0)
    }
}

const fn bit(stream: Stream) -> u8 {
    1 << stream.index()
}

impl Events {
    /// One flag for each of `actions` actions.
    pub fn new(actions: usize) -> Self {
        Self {
            done: (0..actions).map(|_| AtomicBool::new(false)).collect(),
            awaited: (0..actions).map(|_| AtomicU8::new(0)).collect(),
            stopped: AtomicBool::new(false),
            asleep: Mutex::default(),
            changed: Default::default(),
        }
    }

    /// Clears all flags. No stream may wait during the call.
    pub fn reset(&self) {
        self.done.iter().for_each(|flag| flag.store(false, SeqCst));
        self.awaited.iter().for_each(|streams| streams.store(0, SeqCst));
        self.stopped.store(false, SeqCst);
    }

    /// Sets an action's flag and returns the streams to wake.
    pub fn signal(&self, action: ActionId) -> Waiting {
        self.done[action.index()].store(true, SeqCst);
        Waiting(self.awaited[action.index()].load(SeqCst))
    }

    /// Makes all waits fail.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        Stream::ALL.into_iter().for_each(|stream| self.wake(stream));
    }

    /// Whether the action's flag is set. If not, registers the stream, so that the signal will wake it.
    pub fn reached(&self, stream: Stream, action: ActionId) -> bool {
        let done = || self.done[action.index()].load(SeqCst);
        done() || {
            self.awaited[action.index()].fetch_or(bit(stream), SeqCst);
            done()
        }
    }

    /// Returns when the action's flag is set; the signaller wakes this stream.
    pub fn wait(&self, stream: Stream, action: ActionId) -> Result<(), Stopped> {
        let stopped = || self.stopped.load(SeqCst);
        // The stream registers once; while it spins it only reads.
        let reached = self.reached(stream, action);
        let over = || reached || self.done[action.index()].load(SeqCst) || stopped();
        let began = Instant::now();
        let spinning = || stream == Stream::Compute && began.elapsed() < SPIN_TIME;
        while !over() && spinning() {
            std::hint::spin_loop();
        }
        if !over() {
            let mut asleep = self.lock();
            while !over() {
                asleep[stream.index()] = true;
                asleep = self.changed[stream.index()].wait(asleep).unwrap_or_else(PoisonError::into_inner);
            }
            asleep[stream.index()] = false;
        }
        if stopped() { Err(Stopped) } else { Ok(()) }
    }

    /// Wakes a stream if it sleeps.
    pub fn wake(&self, stream: Stream) {
        // The lock is held from a sleeper's check of the flag to its sleep, so the wake-up cannot fall in between.
        let slept = std::mem::take(&mut self.lock()[stream.index()]);
        if slept {
            self.changed[stream.index()].notify_one();
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
            for (start, stream) in Stream::ALL.into_iter().enumerate() {
                let events = &events;
                scope.spawn(move || {
                    for action in (start..3_000).step_by(3) {
                        if action > 0 {
                            events.wait(stream, ActionId::new(action - 1)).unwrap();
                        }
                        let waiting = events.signal(ActionId::new(action));
                        waiting.streams().for_each(|stream| events.wake(stream));
                    }
                });
            }
        });
        assert_eq!(events.wait(Stream::Compute, ActionId::new(2_999)), Ok(()));
        events.reset();
        events.stop();
        assert_eq!(events.wait(Stream::ToHost, ActionId::new(0)), Err(Stopped));
    }
}

//! The evaluations of the improver, shared among threads.
//!
//! Evaluations are prepared ahead of their results: number *k* + [`AHEAD`] once the results up to *k* are applied, in order of their numbers,
//! whichever thread computed them. A result that decides something voids the evaluations prepared before it was known. Seed and number of
//! evaluations therefore reproduce the result on any number of threads, and no thread waits for the end of a batch.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use elbowroom_ir::search::StopReason;

use crate::evaluation::{Evaluation, Searched};
use crate::improver::Improver;

/// Evaluations that are prepared ahead of the result that is applied next.
const AHEAD: u64 = 32;

/// Does evaluations until there is nothing to search any more, or the budget ends.
pub(crate) fn run(improver: &mut Improver<'_>) -> StopReason {
    let threads = improver.budget.threads.max(1);
    let clock = improver.clock;
    let mut line = Line { improver, queue: VecDeque::new(), ended: None };
    line.fill();
    let shared = Shared { line: Mutex::new(line), wake: Condvar::new(), void: AtomicU64::new(0) };
    let stopped = || clock.stop_reason().is_some();
    if threads == 1 {
        shared.work(&stopped);
    } else {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (1..threads).map(|_| scope.spawn(|| shared.work(&stopped))).collect();
            shared.work(&stopped);
            for worker in workers {
                if let Err(panic) = worker.join() {
                    std::panic::resume_unwind(panic);
                }
            }
        });
    }
    let line = shared.line.into_inner().unwrap_or_else(PoisonError::into_inner);
    line.ended.unwrap_or(StopReason::Finished)
}

/// An evaluation in the line.
enum Slot {
    Waiting(Arc<Evaluation>),
    Running(Arc<Evaluation>),
    Done(Arc<Evaluation>, Searched),
}

impl Slot {
    fn task(&self) -> &Arc<Evaluation> {
        match self {
            Self::Waiting(task) | Self::Running(task) | Self::Done(task, _) => task,
        }
    }
}

/// The evaluations whose results are not applied yet, in order of their numbers.
struct Line<'i, 'a> {
    improver: &'i mut Improver<'a>,
    queue: VecDeque<Slot>,
    /// Why no more evaluations are done.
    ended: Option<StopReason>,
}

impl Line<'_, '_> {
    /// Prepares evaluations up to [`AHEAD`] of the next result, or to the end of the budget.
    fn fill(&mut self) {
        let open = match self.improver.open() {
            Ok(open) => open,
            Err(reason) => {
                self.ended = Some(reason);
                return;
            }
        };
        let goal = self.improver.goal();
        let first = self.improver.evaluations;
        let last = self.improver.budget.evaluations.unwrap_or(u64::MAX).min(first.saturating_add(AHEAD));
        for number in first + self.queue.len() as u64..last {
            let task = self.improver.prepare(number, goal, &open);
            self.queue.push_back(Slot::Waiting(Arc::new(task)));
        }
    }

    /// Applies the results at the front of the line. Returns whether one of them decided something, so that the others are void.
    fn apply(&mut self) -> bool {
        while let Some(Slot::Done(..)) = self.queue.front()
            && let Some(Slot::Done(task, searched)) = self.queue.pop_front()
        {
            let decided = task.decided_by(searched.verdict);
            let before = (self.improver.height(), self.improver.bound());
            self.improver.accept(&task, searched);
            if decided {
                for slot in std::mem::take(&mut self.queue).iter().rev() {
                    let task = slot.task();
                    self.improver.states[task.state].plan = task.before;
                }
            }
            self.improver.report(before);
            self.fill();
            if decided || self.ended.is_some() {
                return true;
            }
        }
        false
    }
}

/// Ends the line if its thread panics, so that no other thread waits for a result that will not come.
struct Alarm<'s, 'i, 'a>(&'s Shared<'i, 'a>);

impl Drop for Alarm<'_, '_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().ended = Some(StopReason::Interrupted);
        }
        self.0.wake.notify_all();
    }
}

/// What the threads share.
struct Shared<'i, 'a> {
    line: Mutex<Line<'i, 'a>>,
    /// Rung when the line has changed.
    wake: Condvar,
    /// How often evaluations became void.
    void: AtomicU64,
}

impl<'i, 'a> Shared<'i, 'a> {
    fn lock(&self) -> MutexGuard<'_, Line<'i, 'a>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does evaluations until the line ends.
    fn work(&self, stopped: &(dyn Fn() -> bool + Sync)) {
        // Declared before the lock is taken, and therefore dropped after it is released.
        let _alarm = Alarm(self);
        let mut line = self.lock();
        while line.ended.is_none() {
            let Some(slot) = line.queue.iter_mut().find(|slot| matches!(slot, Slot::Waiting(_))) else {
                line = self.wake.wait(line).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let task = Arc::clone(slot.task());
            *slot = Slot::Running(Arc::clone(&task));
            let void = self.void.load(Ordering::Relaxed);
            drop(line);
            let searched = task.search(&|| self.void.load(Ordering::Relaxed) != void || stopped());
            line = self.lock();
            if self.void.load(Ordering::Relaxed) != void || line.ended.is_some() {
                continue;
            }
            if searched.stopped(&task) {
                line.ended = line.improver.stop_reason().or(Some(StopReason::Interrupted));
            } else {
                let at = (task.number - line.improver.evaluations) as usize;
                if let Some(slot) = line.queue.get_mut(at) {
                    *slot = Slot::Done(task, searched);
                }
                if line.apply() {
                    self.void.fetch_add(1, Ordering::Relaxed);
                }
            }
            self.wake.notify_all();
        }
    }
}

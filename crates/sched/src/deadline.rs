//! A deadline as an observer: it interrupts searches that have no time limit of their own and records whether it did.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use elbowroom_ir::search::{Goal, Observer};

/// Forwards all progress to another observer, and interrupts after a deadline.
pub struct Until<'a> {
    observer: &'a dyn Observer,
    end: Option<Instant>,
    over: AtomicBool,
}

impl<'a> Until<'a> {
    /// Interrupts at `end`, if there is one, and whenever `observer` does.
    pub fn new(observer: &'a dyn Observer, end: Option<Instant>) -> Self {
        Self { observer, end, over: AtomicBool::new(false) }
    }

    /// Whether its deadline interrupted a search, whose result then depends on the clock.
    pub fn cut(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

impl Observer for Until<'_> {
    fn begins(&self, goal: &Goal<'_>) {
        self.observer.begins(goal);
    }
    fn improved(&self, cost: u64, bound: u64) {
        self.observer.improved(cost, bound);
    }
    fn progress(&self, evaluations: u64) {
        self.observer.progress(evaluations);
    }
    fn note(&self, note: &dyn Any) {
        self.observer.note(note);
    }
    fn origin(&self, origin: &str) {
        self.observer.origin(origin);
    }
    fn interrupted(&self) -> bool {
        let over = self.end.is_some_and(|end| Instant::now() >= end);
        if over {
            self.over.store(true, Ordering::Relaxed);
        }
        over || self.observer.interrupted()
    }
    fn deadline(&self) -> Option<Instant> {
        self.end.into_iter().chain(self.observer.deadline()).min()
    }
}

//! The clock as an observer: searches that have no time limit of their own end at a moment, and whoever asked knows whether one did.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use elbowroom_ir::search::{Goal, Observer};

/// Passes everything on, and interrupts from a moment on.
pub(super) struct Until<'a> {
    observer: &'a dyn Observer,
    end: Option<Instant>,
    over: AtomicBool,
}

impl<'a> Until<'a> {
    /// Interrupts at `end`, if there is one.
    pub(super) fn new(observer: &'a dyn Observer, end: Option<Instant>) -> Self {
        Self { observer, end, over: AtomicBool::new(false) }
    }

    /// Whether a search was told that the time is over: then its result depends on the clock.
    pub(super) fn cut(&self) -> bool {
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
}

//! Who found a schedule: what a planner reports of itself, else its name.

use std::any::Any;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use elbowroom_ir::planning::Planner;
use elbowroom_ir::search::{Goal, Observer};

/// Forwards everything to another observer and keeps the last origin that was reported.
pub(super) struct Origin<'a> {
    observer: &'a dyn Observer,
    last: Mutex<Option<String>>,
}

impl<'a> Origin<'a> {
    pub fn new(observer: &'a dyn Observer) -> Self {
        Self { observer, last: Mutex::default() }
    }

    /// The reported origin, or the name of the planner that ran.
    pub fn found_by(self, planner: &dyn Planner) -> String {
        let last = self.last.into_inner().unwrap_or_else(PoisonError::into_inner);
        last.unwrap_or_else(|| planner.name().to_owned())
    }
}

impl Observer for Origin<'_> {
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
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(origin.to_owned());
        self.observer.origin(origin);
    }
    fn interrupted(&self) -> bool {
        self.observer.interrupted()
    }
    fn deadline(&self) -> Option<Instant> {
        self.observer.deadline()
    }
}

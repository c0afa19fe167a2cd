//! The state of a search that judges policies one after another: budget, observer, the best schedule so far, and the least live memory
//! that was reached, for the answer when nothing fits.

use std::time::Instant;

use elbowroom_ir::Bytes;
use elbowroom_ir::planning::Request;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

use crate::lower::{Lowered, least_live};
use crate::policy::Policy;
use crate::verdict::refusal;

/// See the [module](self). The best schedule is the one with the shortest iteration; of equal ones the first.
pub(crate) struct Search<'a> {
    pub request: &'a Request<'a>,
    budget: &'a Budget,
    pub observer: &'a dyn Observer,
    started: Instant,
    best: Option<Lowered>,
    least: Option<Bytes>,
    evaluations: u64,
}

impl<'a> Search<'a> {
    pub(crate) fn new(request: &'a Request<'a>, budget: &'a Budget, observer: &'a dyn Observer) -> Self {
        Self { request, budget, observer, started: Instant::now(), best: None, least: None, evaluations: 0 }
    }

    /// The reason to stop now, if there is one: an interruption, or the budget.
    pub(crate) fn stopped(&self) -> Option<StopReason> {
        if self.observer.interrupted() {
            return Some(StopReason::Interrupted);
        }
        self.spent()
    }

    /// Whether the observer interrupts: for searches that no budget ends.
    pub(crate) fn interrupted(&self) -> bool {
        self.observer.interrupted()
    }

    /// The part of the budget that is used up, if any is: for searches that an interruption does not end.
    pub(crate) fn spent(&self) -> Option<StopReason> {
        self.budget.exhausted(self.evaluations, self.started)
    }

    /// Counts an evaluation.
    pub(crate) fn count(&mut self) {
        self.evaluations += 1;
        self.observer.progress(self.evaluations);
    }

    /// Evaluations so far.
    pub(crate) fn evaluations(&self) -> u64 {
        self.evaluations
    }

    /// The least live memory of a policy, which is remembered if it is the smallest; `None` if the policy contradicts the trace.
    pub(crate) fn least_live(&mut self, policy: &Policy) -> Option<Bytes> {
        let (live_bytes, _) = least_live(self.request, policy).ok()?;
        self.reached(live_bytes);
        Some(live_bytes)
    }

    /// Remembers the live memory of a candidate if it is the smallest.
    pub(crate) fn reached(&mut self, live_bytes: Bytes) {
        self.least = Some(self.least.map_or(live_bytes, |least| least.min(live_bytes)));
    }

    /// Whether a schedule would be the best.
    pub(crate) fn improves(&self, lowered: &Lowered) -> bool {
        self.best.as_ref().is_none_or(|best| lowered.iteration < best.iteration)
    }

    /// Keeps a schedule if it is the best. Returns whether it is.
    pub(crate) fn offer(&mut self, lowered: Lowered) -> bool {
        let improves = self.improves(&lowered);
        if improves {
            self.observer.improved(lowered.iteration.get(), self.request.costs.total().get());
            self.best = Some(lowered);
        }
        improves
    }

    /// The best schedule so far.
    pub(crate) fn best(&self) -> Option<&Lowered> {
        self.best.as_ref()
    }

    /// Whether the best schedule takes no longer than the ops alone, so that none can be shorter.
    pub(crate) fn optimal(&self) -> bool {
        self.best.as_ref().is_some_and(|best| best.iteration == self.request.costs.total())
    }

    /// The answer: the best schedule, or a refusal.
    pub(crate) fn finish(self, stop: StopReason) -> Outcome<Schedule> {
        self.finish_or(None, stop)
    }

    /// The answer: the best schedule, else another one, else a refusal.
    pub(crate) fn finish_or(self, other: Option<Lowered>, stop: StopReason) -> Outcome<Schedule> {
        match self.best.or(other) {
            Some(lowered) => Outcome { best: Some(lowered.schedule), evaluations: self.evaluations, stop },
            None => refusal(self.request, self.least, self.evaluations),
        }
    }
}

//! The time limit of a plan, and how rounds and packing attempts share it.

use std::time::{Duration, Instant};

use super::{Method, Rounds};

/// The time limit of a plan. Recorded rounds have none.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    started: Instant,
    pub time: Option<Duration>,
}

impl Clock {
    pub fn start(method: &Method<'_>) -> Self {
        let time = method.budget.time.filter(|_| !matches!(method.rounds, Rounds::Recorded(_)));
        Self { started: Instant::now(), time }
    }

    /// What is left for the planner's own rounds.
    pub fn left(&self) -> Option<Duration> {
        self.time.map(|time| (time / 6 * 5).saturating_sub(self.started.elapsed()))
    }

    /// The end of the planner's own rounds: before that of the peers' searches, because otherwise the rounds would use up their time.
    pub fn end(&self) -> Option<Instant> {
        self.time.and_then(|time| self.started.checked_add(time / 6 * 5))
    }

    /// The end of everything.
    pub fn end_of_all(&self) -> Option<Instant> {
        self.time.and_then(|time| self.started.checked_add(time))
    }

    /// The end of the search for a plan that is found at once, in quarters of the time.
    pub fn end_of_safe(&self, quarters: u32) -> Option<Instant> {
        self.time.and_then(|time| self.started.checked_add(time / 4 * quarters))
    }

    /// The share of the remaining time for planning in a round: most first placements fit, but more rounds may follow, each of which
    /// starts from the schedules of the earlier ones.
    pub fn for_planning(&self, round: usize) -> Option<Duration> {
        self.left().map(|left| if round == 0 { left / 5 * 4 } else { left / 3 })
    }

    /// The time for planning in a round of a series: most of what is left, because a round that the clock ends is still packed.
    pub fn for_round(&self) -> Option<Duration> {
        self.time.map(|time| time.saturating_sub(self.started.elapsed()) / 5 * 4)
    }

    /// Whether too little time is left for another round. There may have been none from the start.
    pub fn nearly_over(&self) -> bool {
        self.time.is_some_and(|time| time.saturating_sub(self.started.elapsed()) <= time / 16)
    }

    /// The end of the short searches of peers that begin now.
    pub fn end_of_peers(&self) -> Option<Instant> {
        let left = self.time.map(|time| time.saturating_sub(self.started.elapsed()));
        left.and_then(|left| Instant::now().checked_add(left / 2))
    }

    /// The end of the packing attempt of a round.
    pub fn end_of_placing(&self) -> Option<Instant> {
        self.left().and_then(|left| Instant::now().checked_add(left / 2))
    }
}

//! How far training has come: the share of its budget that is used.
//!
//! Exploration and step size fall with this share (Algorithm 1, line 6, where the budget is the number of episodes). Evaluations count as they
//! are used. A time is turned into evaluations once, after the first episode, at the rate of that episode: what follows depends on a number
//! and not on a clock, and that number, as a budget of evaluations, leads to the same result.

use std::time::{Duration, Instant};

use elbowroom_ir::search::{Budget, StopReason};

/// The part of the time that evaluations are planned for; the rest is for those that take longer.
const PLANNED: f64 = 0.9;

/// See the [module](self).
pub(crate) struct Pace {
    /// Evaluations in all, as far as they are known.
    total: Option<u64>,
    time: Option<Duration>,
    /// Evaluations, and when, before the first episode.
    begun: Option<(u64, Instant)>,
    /// Whether the total comes from a clock.
    clocked: bool,
}

impl Pace {
    pub(crate) fn of(budget: &Budget) -> Self {
        Self { total: budget.evaluations, time: budget.time, begun: None, clocked: false }
    }

    /// The first episode begins after this many evaluations.
    pub(crate) fn begin(&mut self, done: u64) {
        self.begun = Some((done, Instant::now()));
    }

    /// The used share of the budget, from 0 to 1: of the episodes or of the evaluations, whichever is more. The first episode counts as none
    /// of the evaluations, because their number may not be known yet.
    pub(crate) fn share(&self, episode: u32, episodes: u32, done: u64) -> f32 {
        let by_episodes = f64::from(episode) / f64::from(episodes.max(1));
        let by_evaluations = match self.total {
            Some(total) if episode > 1 => done as f64 / total.max(1) as f64,
            _ => 0.0,
        };
        by_episodes.max(by_evaluations).min(1.0) as f32
    }

    /// An episode has ended. After the first, a budget of time becomes one of evaluations.
    pub(crate) fn after_episode(&mut self, done: u64, started: Instant) {
        let (None, Some(time), Some((before, begun))) = (self.total, self.time, self.begun) else { return };
        let per_second = (done - before).max(1) as f64 / begun.elapsed().as_secs_f64().max(1e-9);
        let left = time.saturating_sub(started.elapsed()).as_secs_f64();
        self.total = Some(done + (PLANNED * left * per_second) as u64);
        self.clocked = true;
    }

    /// Whether evaluations are left of those that the time was turned into.
    pub(crate) fn check(&self, done: u64) -> Result<(), StopReason> {
        match self.total {
            Some(total) if self.clocked && done >= total => Err(StopReason::Time),
            _ => Ok(()),
        }
    }

    /// The reason to stop and the evaluations that reproduce the result. If the clock ended training before the evaluations that it was turned
    /// into were used up, nothing reproduces it, and the search counts as interrupted.
    pub(crate) fn end(&self, stop: StopReason, done: u64) -> (StopReason, u64) {
        match self.total {
            Some(total) if self.clocked && stop == StopReason::Time && done < total => {
                (StopReason::Interrupted, done)
            }
            // Another end than that of the evaluations comes again only with as many of them.
            Some(total) => (stop, total.max(done)),
            None => (stop, done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_follows_what_is_used_up_first() {
        let pace = Pace::of(&Budget::evaluations(100));
        assert_eq!(pace.share(1, 200, 60), 0.005, "the first episode");
        assert_eq!(pace.share(2, 200, 60), 0.6);
        assert_eq!(pace.share(150, 200, 60), 0.75);
        assert_eq!(pace.share(2, 200, 300), 1.0);
        assert_eq!(Pace::of(&Budget { time: None, ..Budget::default() }).share(50, 200, 9_999), 0.25);
    }

    #[test]
    fn a_time_becomes_a_number_of_evaluations_once() {
        let started = Instant::now();
        let mut pace = Pace::of(&Budget::time(Duration::from_secs(3_600)));
        pace.begin(10);
        pace.after_episode(20, started);
        let total = pace.total.unwrap();
        assert!(total > 20 && pace.check(total - 1).is_ok());
        pace.after_episode(30, started);
        assert_eq!(pace.total, Some(total));
        assert_eq!(pace.check(total), Err(StopReason::Time));
        assert_eq!(pace.end(StopReason::Time, total), (StopReason::Time, total));
        assert_eq!(pace.end(StopReason::Time, total - 1), (StopReason::Interrupted, total - 1));
        assert_eq!(pace.end(StopReason::Optimal, 25), (StopReason::Optimal, total));
    }
}

//! A portfolio: several planners on one request, of whose schedules the fastest is kept.
//!
//! [`auto`](mod@crate::auto) takes its warm starts from a portfolio, `dqn` compares its network with one, and [`BestOf`] is a planner that
//! only runs a portfolio. Planners are held as values, so that a planner that is renamed or removed is a compile error.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, InterruptOnly, Observer, Outcome, StopReason};
use elbowroom_ir::{Bytes, Nanos};

use crate::keep::Keep;
use crate::mixed::segments::Mixed;
use crate::offload::autoswap::BestScore;
use crate::offload::floor::Floor;
use crate::offload::greedy::Greedy;
use crate::recompute::sqrt::Sqrt;

/// Planners to run on one request.
#[derive(Clone)]
pub struct Portfolio {
    /// The planners, in the order in which they start.
    pub planners: Vec<&'static dyn Planner>,
    /// The budget of each planner.
    pub budget: Budget,
    /// How many planners may run at the same time; at least 1. The results do not depend on it.
    pub threads: usize,
    /// No planner starts after one has found a schedule that is this fast: a lower bound of the iteration time.
    pub bound: Option<Nanos>,
}

/// A schedule that one planner of a portfolio found.
#[derive(Clone)]
pub struct Entry {
    /// The planner.
    pub planner: &'static dyn Planner,
    /// The schedule's simulated iteration time.
    pub time: Nanos,
    /// The schedule.
    pub schedule: Schedule,
}

/// What a portfolio found.
#[derive(Default)]
pub struct Entries {
    /// The schedules in the order of their planners; no planner has an entry after the first that reached the bound.
    pub found: Vec<Entry>,
    /// Planners that answered, in their order and without a gap.
    pub answers: usize,
    /// Evaluations of all planners together.
    pub evaluations: u64,
    /// The smallest live memory that a planner without a schedule reached.
    pub least: Option<Bytes>,
    /// The first proof that no schedule exists.
    pub infeasible: Option<StopReason>,
    /// Whether the observer interrupted before all planners had answered.
    pub interrupted: bool,
}

impl Entries {
    /// The fastest schedule; of equally fast ones the first.
    pub fn fastest(&self) -> Option<&Entry> {
        self.found.iter().min_by_key(|entry| entry.time)
    }
}

/// The answer of one planner.
struct Answer {
    evaluations: u64,
    stop: StopReason,
    /// With its iteration time, if it can be simulated.
    schedule: Option<(Nanos, Schedule)>,
}

impl Portfolio {
    /// Runs the planners until all have answered, one has reached the bound or proved infeasibility, or the observer interrupts. A planner
    /// that has started is waited for, so that no answer is missing before the one that ended the run. An interruption discards the answers
    /// of the planners that it ended, and every later one. With a bound, the observer is
    /// notified of every improvement; the planners' own progress is in other units and is not passed on.
    pub fn run(&self, request: &Request<'_>, observer: &dyn Observer) -> Entries {
        let answers: Vec<OnceLock<Answer>> = self.planners.iter().map(|_| OnceLock::new()).collect();
        let (next, decided, fastest) =
            (AtomicUsize::new(0), AtomicBool::new(false), AtomicU64::new(u64::MAX));
        let work = || {
            while !decided.load(Ordering::Relaxed) && !observer.interrupted() {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(planner) = self.planners.get(index) else { return };
                let answer = self.answer(*planner, request, observer);
                // An answer that an interruption may have changed cannot be reproduced.
                if observer.interrupted() {
                    return;
                }
                decided.fetch_or(self.decides(&answer), Ordering::Relaxed);
                if let (Some(Nanos(bound)), Some((Nanos(time), _))) = (self.bound, &answer.schedule)
                    && *time < fastest.fetch_min(*time, Ordering::Relaxed)
                {
                    observer.improved(*time, bound);
                }
                // Every index is drawn once: nothing else sets its answer.
                let _ = answers[index].set(answer);
            }
        };
        std::thread::scope(|scope| {
            (1..self.threads.min(self.planners.len())).for_each(|_| {
                scope.spawn(work);
            });
            work();
        });
        let all_answered = answers.iter().all(|answer| answer.get().is_some());
        let interrupted = !all_answered && !decided.into_inner();
        let mut entries = Entries { interrupted, ..Entries::default() };
        for (planner, answer) in self.planners.iter().zip(answers) {
            // What was found after a missing answer is left out, so that the number of answers reproduces the result.
            let Some(answer) = answer.into_inner() else { break };
            entries.answers += 1;
            let decides = self.decides(&answer);
            entries.evaluations += answer.evaluations;
            match (answer.schedule, answer.stop) {
                (Some((time, schedule)), _) => {
                    entries.found.push(Entry { planner: *planner, time, schedule })
                }
                (None, StopReason::GaveUp { best: Some(live_bytes) }) => {
                    entries.least = Some(entries.least.map_or(live_bytes, |least| least.min(live_bytes)));
                }
                (None, stop @ StopReason::Infeasible(_)) => entries.infeasible = Some(stop),
                (None, _) => {}
            }
            if decides {
                break;
            }
        }
        entries
    }

    fn answer(&self, planner: &dyn Planner, request: &Request<'_>, observer: &dyn Observer) -> Answer {
        let Outcome { best, evaluations, stop } =
            planner.schedule(request, &self.budget, &InterruptOnly(observer));
        let schedule = best.and_then(|schedule| {
            let predicted = elbowroom_sim::simulate(request.trace, request.costs, request.machine, &schedule);
            Some((predicted.ok()?.iteration, schedule))
        });
        Answer { evaluations, stop, schedule }
    }

    /// Whether no planner need follow.
    fn decides(&self, answer: &Answer) -> bool {
        match &answer.schedule {
            Some((time, _)) => self.bound.is_some_and(|bound| *time <= bound),
            None => matches!(answer.stop, StopReason::Infeasible(_)),
        }
    }
}

/// `best-of`: the planners without a search, one for each idea; the fastest of their schedules.
#[derive(Clone, Copy, Debug, Default)]
pub struct BestOf;

impl Planner for BestOf {
    fn name(&self) -> &'static str {
        "best-of"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let planners: Vec<&'static dyn Planner> = vec![&Keep, &Greedy, &BestScore, &Sqrt, &Mixed, &Floor];
        let portfolio = Portfolio { planners, budget: budget.clone(), threads: 1, bound: None };
        let entries = portfolio.run(request, observer);
        let best = entries.fastest().map(|entry| {
            observer.origin(entry.planner.name());
            entry.schedule.clone()
        });
        let stop = match (entries.infeasible, &best) {
            (Some(proof), _) => return Outcome { best: None, evaluations: entries.evaluations, stop: proof },
            _ if entries.interrupted => StopReason::Interrupted,
            (None, Some(_)) => StopReason::Finished,
            (None, None) => StopReason::GaveUp { best: entries.least },
        };
        Outcome { best, evaluations: entries.evaluations, stop }
    }
}

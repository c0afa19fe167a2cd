//! Names of planners and packers.

use elbowroom_ir::packing::Packer;
use elbowroom_ir::planning::{Request, Scheduler};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_ir::{Bytes, Nanos};

/// The planner used when none is named.
pub const DEFAULT_PLANNER: &str = "auto";

/// The planner that asks the quick ones.
const BEST_OF: &str = "best-of";

/// The packer used when none is named.
pub const DEFAULT_PACKER: &str = "auto";

/// A name that nothing is registered under.
#[derive(Debug, thiserror::Error)]
#[error("there is no {kind} called `{name}`; there are: {}", .known.join(", "))]
pub struct UnknownName {
    /// `planner` or `packer`.
    pub kind: &'static str,
    /// What was asked for.
    pub name: String,
    /// What there is.
    pub known: Vec<&'static str>,
}

/// The planner of a name.
pub fn scheduler(name: &str) -> Result<&'static dyn Scheduler, UnknownName> {
    if name == BEST_OF {
        return Ok(&BestOf);
    }
    elbowroom_sched::scheduler(name).ok_or_else(|| {
        let known = std::iter::once(BEST_OF).chain(elbowroom_sched::SCHEDULERS.iter().map(|s| s.name()));
        UnknownName { kind: "planner", name: name.to_owned(), known: known.collect() }
    })
}

/// The names of all planners but `best-of`, which asks others.
pub fn planners() -> Vec<&'static str> {
    elbowroom_sched::SCHEDULERS.iter().map(|scheduler| scheduler.name()).collect()
}

/// The packer of a name.
pub fn packer(name: &str) -> Result<&'static dyn Packer, UnknownName> {
    elbowroom_pack::packer(name).ok_or_else(|| UnknownName {
        kind: "packer",
        name: name.to_owned(),
        known: elbowroom_pack::PACKERS.iter().map(|p| p.name()).collect(),
    })
}

/// Planners without a search, from which [`BestOf`] takes the best: one for each idea.
const QUICK: [&str; 6] = ["keep", "greedy", "autoswap", "sqrt", "mixed", "floor"];

/// Asks planners that answer at once, and keeps the schedule with the shortest predicted iteration.
struct BestOf;

impl Scheduler for BestOf {
    fn name(&self) -> &'static str {
        BEST_OF
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let mut best: Option<(Nanos, Schedule)> = None;
        let mut evaluations = 0;
        let mut lowest = None;
        for scheduler in QUICK.into_iter().filter_map(elbowroom_sched::scheduler) {
            if observer.interrupted() {
                let best = best.map(|(_, schedule)| schedule);
                return Outcome { best, evaluations, stop: StopReason::Interrupted };
            }
            let outcome = scheduler.schedule(request, budget, observer);
            evaluations += outcome.evaluations;
            match (outcome.best, outcome.stop) {
                (Some(schedule), _) => {
                    let predicted =
                        elbowroom_sim::simulate(request.trace, request.costs, request.machine, &schedule);
                    let Ok(timeline) = predicted else { continue };
                    if best.as_ref().is_none_or(|(time, _)| timeline.iteration < *time) {
                        best = Some((timeline.iteration, schedule));
                    }
                }
                (None, stop @ StopReason::Infeasible(_)) => return Outcome { best: None, evaluations, stop },
                (None, StopReason::GaveUp { best: Some(load) }) => {
                    lowest = Some(lowest.map_or(load, |l: Bytes| l.min(load)));
                }
                (None, _) => {}
            }
        }
        let stop = if best.is_some() { StopReason::Finished } else { StopReason::GaveUp { best: lowest } };
        Outcome { best: best.map(|(_, schedule)| schedule), evaluations, stop }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_registered_once() {
        assert!(QUICK.iter().all(|name| elbowroom_sched::scheduler(name).is_some()));
        let mut names = planners();
        names.push(BEST_OF);
        assert!(names.iter().all(|name| scheduler(name).is_ok()));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), planners().len() + 1);
        assert!(scheduler(DEFAULT_PLANNER).is_ok() && packer(DEFAULT_PACKER).is_ok());
    }
}

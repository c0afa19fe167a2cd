//! What fixed rules find, none of which searches: the network can take every decision that they take, so its answer is never worse.

use elbowroom_ir::planning::Request;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Silent, StopReason};
use elbowroom_ir::{Bytes, Nanos};

/// The rules, by the names of their planners.
const RULES: [&str; 9] =
    ["keep", "greedy", "vdnn", "tflms", "autoswap", "drop-cheap", "sublinear", "supernn", "mixed"];

/// The plan of one rule.
pub(super) struct Rule {
    pub name: &'static str,
    pub time: u64,
    pub schedule: Schedule,
}

/// What the rules have found.
#[derive(Default)]
pub(super) struct Found {
    pub best: Option<Rule>,
    /// The least load that any of them reached, if none fits.
    pub least: Option<Bytes>,
    pub evaluations: u64,
    /// The plans of all rules that found one.
    pub plans: Vec<(&'static str, Schedule)>,
}

/// Asks all rules, or until one reaches `bound`. They ignore the budget: together they take seconds on a thousand ops.
pub(super) fn best(request: &Request<'_>, bound: u64, observer: &dyn Observer) -> Found {
    let budget = Budget { evaluations: None, time: None, ..Budget::default() };
    let mut found = Found::default();
    for scheduler in RULES.iter().filter_map(|name| crate::scheduler(name)) {
        if observer.interrupted() || found.best.as_ref().is_some_and(|rule| rule.time <= bound) {
            break;
        }
        let outcome = scheduler.schedule(request, &budget, &Silent);
        found.evaluations += outcome.evaluations;
        if let StopReason::GaveUp { best: Some(load) } = outcome.stop {
            found.least = Some(found.least.map_or(load, |least| least.min(load)));
        }
        let Some(schedule) = outcome.best else { continue };
        let predicted = elbowroom_sim::simulate(request.trace, request.costs, request.machine, &schedule);
        let Ok(timeline) = predicted else { continue };
        let Nanos(time) = timeline.iteration;
        if found.best.as_ref().is_none_or(|rule| time < rule.time) {
            observer.improved(time, bound);
            found.best = Some(Rule { name: scheduler.name(), time, schedule: schedule.clone() });
        }
        found.plans.push((scheduler.name(), schedule));
    }
    found
}

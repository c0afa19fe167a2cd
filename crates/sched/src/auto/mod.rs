//! `auto`: the joint planner, the default. Searches over which values stay, leave or are made again in every gap between their uses, on
//! any trace, until its budget ends.
//!
//! - `instance`: the request in flat tables.
//! - `order`: where the caller allows it, another order of the ops.
//! - `state`: a sequence with repeats and its load, evaluated incrementally and exactly.
//! - `moves`: changes of a state that can be undone.
//! - `anneal`: one walk over repeats alone, where the state itself is the exact evaluation.
//! - `window`: a few repeats at a time, exactly.
//! - `joint`: one walk over repeats and copies, judged by the exact iteration time.
//! - `search`: several walks side by side, the same on any number of threads.
//! - `warm`: what other planners find, to start from and to fall back on.
//! - `sequence`: from decisions to a policy.
//!
//! - [`explain`]: what every absence saves and costs.
//!
//! An evaluation is one move of one walk.

mod anneal;
pub mod explain;
mod instance;
mod joint;
mod moves;
mod order;
pub(crate) mod random;
mod search;
mod sequence;
mod state;
mod warm;
mod window;

use elbowroom_ir::planning::{Request, Scheduler};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_sim::bound::lower_bound;

use crate::lower::{least_load, lower};
use crate::policy::Policy;
use crate::verdict::{impossible_op, refusal};
use instance::Instance;
use search::Found;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Auto;

impl Scheduler for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        if impossible_op(request).is_some() {
            return refusal(request, None, 1);
        }
        let plain = Policy::prompt(request.trace);
        let least = least_load(request, &plain).ok().map(|(load, _)| load);
        let bound = lower_bound(request).get();
        if let Ok(lowered) = lower(request, &plain)
            && lowered.iteration.get() <= bound
        {
            return Outcome { best: Some(lowered.schedule), evaluations: 1, stop: StopReason::Optimal };
        }
        let order =
            if request.freedom.reorder { order::relaxed(request, &plain.sequence) } else { plain.sequence };
        let inst = Instance::new(request, order);
        let mut warm = warm::starts(request, &inst, bound, budget.seed);
        if request.freedom.reorder {
            warm.extend(warm::kept(request, &inst));
            warm.sort_by_key(|warm| warm.time);
        }
        if let Some(best) = warm.first() {
            observer.improved(best.time, bound);
        }
        let found = match warm.first() {
            Some(best) if best.time <= bound => {
                Found { best: None, evaluations: 1, stop: StopReason::Optimal }
            }
            _ => search::search(request, &inst, &warm, bound, budget, observer),
        };
        let searched = found
            .best
            .and_then(|(_, decisions)| lower(request, &sequence::policy(request, &inst, &decisions)).ok());
        let fallback = warm.into_iter().next();
        let best = match (searched, fallback) {
            (Some(lowered), Some(warm)) if warm.time < lowered.iteration.get() => Some(warm.schedule),
            (Some(lowered), _) => Some(lowered.schedule),
            (None, warm) => warm.map(|warm| warm.schedule),
        };
        match best {
            Some(best) => Outcome { best: Some(best), evaluations: found.evaluations, stop: found.stop },
            None => refusal(request, least, found.evaluations),
        }
    }
}

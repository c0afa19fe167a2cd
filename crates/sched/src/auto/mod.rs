//! `auto`: the joint planner, the default. Searches over which values stay, leave or are made again in every gap between their uses, on
//! any trace, until its budget ends.
//!
//! - [`instance`]: the request in flat tables.
//! - [`state`]: a sequence with repeats and its load, evaluated incrementally and exactly.
//! - [`moves`]: changes of a state that can be undone.
//! - [`anneal`]: one walk over repeats alone, where the state itself is the exact evaluation.
//! - [`joint`]: one walk over repeats and copies, judged by the exact iteration time.
//! - [`search`]: several walks side by side, the same on any number of threads.
//! - [`sequence`]: from repeats to a policy.
//!
//! An evaluation is one move of one walk.

mod anneal;
mod instance;
mod joint;
mod moves;
mod random;
mod search;
mod sequence;
mod state;

use elbowroom_ir::planning::{Request, Scheduler};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

use crate::lower::{least_load, lower};
use crate::policy::Policy;
use crate::verdict::{impossible_op, refusal};
use instance::Instance;

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
        let keep = Policy::keep(request.trace);
        let least = least_load(request, &keep).ok().map(|(load, _)| load);
        let total = request.costs.total();
        if let Ok(lowered) = lower(request, &keep)
            && lowered.iteration == total
        {
            return Outcome { best: Some(lowered.schedule), evaluations: 1, stop: StopReason::Optimal };
        }
        let inst = Instance::new(request);
        let found = search::search(request, &inst, inst.total, budget, observer);
        let best = found.best.and_then(|(_, decisions)| {
            lower(request, &sequence::policy(request, &decisions)).ok().map(|lowered| lowered.schedule)
        });
        match best {
            Some(best) => Outcome { best: Some(best), evaluations: found.evaluations, stop: found.stop },
            None => refusal(request, least, found.evaluations),
        }
    }
}

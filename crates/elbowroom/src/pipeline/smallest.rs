//! The smallest limit at which a plan is found, by bisection.
//!
//! What a single op needs is a proof that no plan exists below. Above it, a planner that only offloads finds a limit that works within
//! milliseconds; planners that take its schedule as a warm start begin their bisection there.

use std::sync::Arc;
use std::time::Instant;

use elbowroom_ir::Bytes;
use elbowroom_ir::check;
use elbowroom_ir::planning::Planner;
use elbowroom_ir::search::{Budget, Infeasible, Observer};
use elbowroom_pack::BestFit;
use elbowroom_sched::deadline::Until;
use elbowroom_sched::offload::floor::Floor;

use super::{Evaluations, Method, PlanError, Planned, Quick, Rounds, Task, fit, floor, plan, prove};

/// The planner that offloads as much as it can.
const FLOOR: &dyn Planner = &Floor;

/// A limit that a bisection has found to work, with its plan.
struct Bisection<'a> {
    task: &'a Task,
    /// Its evaluations are the short search that found it.
    best: Planned,
    works: Bytes,
    too_small: Bytes,
}

/// The smallest limit at which the method finds a plan, to within half a percent, with that plan; the limit is the memory of the plan's
/// machine. Bisects between what is proved impossible and the unconstrained peak. Planners are not monotone, so smaller limits that work may
/// exist that a bisection misses; the result was planned at exactly this limit.
///
/// A budget of time bounds the whole: half of it is for the bisection, whose result is then no longer
/// [`reproducible`](Planned::reproducible) if the time ended it but [at the limit](Planned::reproducible_at_limit), and the rest for a plan at
/// the limit that was found. If that is not faster, the plan of the bisection is returned, and its [`Evaluations`] are the short search that
/// found it.
///
/// # Errors
///
/// A [`PlanError`] if there is no plan at the unconstrained peak.
pub fn smallest(
    task: &Task,
    method: &Method<'_>,
    unconstrained: Bytes,
    observer: &dyn Observer,
) -> Result<Planned, PlanError> {
    let started = Instant::now();
    if let Rounds::Recorded(Evaluations { quick: Some(quick), .. }) = method.rounds {
        let planned = again(quick, &task.with_memory(quick.limit), method, observer)?;
        let machine = task.machine.clone().with_memory(planned.height());
        let plan = check::check(task.trace.clone(), machine, planned.plan.plan().clone())?;
        return Ok(Planned { plan: Arc::new(plan), ..planned });
    }
    let half = method.budget.time.and_then(|time| started.checked_add(time / 2));
    let watch = Until::new(observer, half);
    // Whether a limit works must not depend on the budget, and a long search at each of twenty limits would take too long.
    let quick = &method.at_once();
    let offloads = method.planner.peers(&task.trace).iter().any(|peer| peer.name() == FLOOR.name());
    let limit = if offloads { quick_smallest(task, unconstrained, None, &watch) } else { None };
    let own = |limit: Bytes| {
        let planned = plan(&task.with_memory(limit), quick, &watch)?;
        Ok(Planned { evaluations: Evaluations::quick(quick.budget.evaluations, limit), ..planned })
    };
    // The planner itself starts from there if it finds a plan, and else from the unconstrained peak. If the time ends before, the quick plan
    // serves: such a planner is never slower than that one.
    let there = limit.as_ref().map(|found| own(found.height()));
    let first = match (there, limit) {
        (Some(Err(PlanError::Illegal(fault))), _) => return Err(fault.into()),
        (Some(Ok(planned)), _) if !watch.interrupted() => planned,
        (_, Some(found)) if watch.interrupted() => found,
        _ => own(unconstrained)?,
    };
    let mut bisection = Bisection::new(task, first);
    bisection.run(&watch, own)?;
    let Bisection { best, works, .. } = bisection;
    let reproducible = !watch.cut();
    // At the limit that was found, the search uses its whole budget. Only this search is recorded: everything before is deterministic.
    let patient = method.clone().since(started);
    let task = task.with_memory(works);
    let (fitted, evaluations) = fit(&task, &patient, &[], observer);
    let planned = match fitted.and_then(|fitted| prove(&task, fitted, evaluations.clone(), started)) {
        Ok(planned) if planned.predicted.iteration < best.predicted.iteration => planned,
        Err(PlanError::Illegal(fault)) => return Err(fault.into()),
        found => {
            let plan =
                Arc::new(check::check(task.trace.clone(), task.machine.clone(), best.plan.plan().clone())?);
            // What did not come first must not be reproduced in its place.
            let kept = found.map_or(true, |planned| planned.reproducible);
            let reproducible_at_limit = best.reproducible;
            if reproducible && best.reproducible && kept {
                // The same bisection finds it again, and the search at its limit is again not faster.
                Planned { plan, evaluations, ..best }
            } else {
                // The search at this limit alone does not find it.
                Planned { plan, reproducible: false, reproducible_at_limit, ..best }
            }
        }
    };
    let reproducible = reproducible && planned.reproducible;
    Ok(Planned { reproducible, planning: started.elapsed(), ..planned })
}

/// The plan of a short search for a limit, for a task whose limit holds its arena. A planner that searches is passed the evaluations
/// of its bisection; without a number it is that of the planner that only offloads.
///
/// # Errors
///
/// A [`PlanError`] if the search finds no plan, or one whose arena exceeds the task's limit.
pub(super) fn again(
    quick: Quick,
    task: &Task,
    method: &Method<'_>,
    observer: &dyn Observer,
) -> Result<Planned, PlanError> {
    let started = Instant::now();
    let there = task.with_memory(quick.limit);
    let planned = match quick.evaluations {
        Some(evaluations) => {
            let budget = Budget { evaluations: Some(evaluations), ..method.budget.clone() };
            plan(&there, &Method { budget, ..method.clone() }.at_once(), observer)?
        }
        None => plan(&there, &only_offload(), observer)?,
    };
    let limit = task.machine.memory;
    if planned.height() > limit {
        return Err(PlanError::GaveUp { limit, best: Some(planned.height()) });
    }
    let plan = check::check(task.trace.clone(), task.machine.clone(), planned.plan.plan().clone())?;
    let evaluations = Evaluations::quick(quick.evaluations, quick.limit);
    Ok(Planned { plan: Arc::new(plan), evaluations, planning: started.elapsed(), ..planned })
}

/// The short search of the planner that only offloads, with a packer that takes little time however many blocks there are: on 25,000 ops a
/// better one places a single schedule while this one bisects to the end. Who has more time begins where this search ended.
fn only_offload() -> Method<'static> {
    Method::new(FLOOR, &BestFit, Budget::default()).at_once()
}

/// The plan of the planner that only offloads, found in little time; `None` if it finds none. Trainings try it whatever their planner is.
pub(crate) fn offload_alone(task: &Task, observer: &dyn Observer) -> Option<Planned> {
    plan(task, &only_offload(), observer).ok()
}

/// The first plan of a training at the smallest limit, which must not wait for long: the planner's bisection begins at the smallest limit at
/// which offload alone and a quick packer succeed, and stops at `end`, if there is one. The plan is that of the bisection. As in
/// [`smallest`], the limit is the memory of the plan's machine.
///
/// # Errors
///
/// A [`PlanError`] if there is no plan at the unconstrained peak.
pub(crate) fn smallest_soon(
    task: &Task,
    method: &Method<'_>,
    unconstrained: Bytes,
    end: Option<Instant>,
    observer: &dyn Observer,
) -> Result<Planned, PlanError> {
    let started = Instant::now();
    let watch = Until::new(observer, end);
    let method = method.at_once();
    let offloads = method.planner.peers(&task.trace).iter().any(|peer| peer.name() == FLOOR.name());
    let coarse = if offloads { quick_smallest(task, unconstrained, end, observer) } else { None };
    let first = match coarse {
        Some(found) => match plan(&task.with_memory(found.height()), &method, &watch) {
            Err(PlanError::Illegal(fault)) => return Err(fault.into()),
            planned => planned.unwrap_or(found),
        },
        // Without a plan there is no training: this one is not interrupted.
        None => plan(&task.with_memory(unconstrained), &method, observer)?,
    };
    let mut bisection = Bisection::new(task, first);
    bisection.run(&watch, |limit| plan(&task.with_memory(limit), &method, &watch))?;
    let Bisection { best, works, .. } = bisection;
    let machine = task.machine.clone().with_memory(works);
    let plan = check::check(task.trace.clone(), machine, best.plan.plan().clone())?;
    let (reproducible, reproducible_at_limit) = (best.reproducible && !watch.cut(), false);
    let planning = started.elapsed();
    Ok(Planned { plan: Arc::new(plan), reproducible, reproducible_at_limit, planning, ..best })
}

/// The plan of the smallest arena size that a planner which only offloads finds until `end`; `None` if nothing is smaller than the unconstrained
/// peak. Its arena size is a limit that works.
pub fn quick_smallest(
    task: &Task,
    unconstrained: Bytes,
    end: Option<Instant>,
    observer: &dyn Observer,
) -> Option<Planned> {
    let watch = Until::new(observer, end);
    let method = only_offload();
    let floor = |limit: Bytes| {
        let planned = plan(&task.with_memory(limit), &method, &watch)?;
        Ok(Planned { evaluations: Evaluations::quick(None, limit), ..planned })
    };
    let first = floor(unconstrained).ok().filter(|_| !watch.interrupted())?;
    let mut bisection = Bisection::new(task, first);
    bisection.run(&watch, floor).ok()?;
    (bisection.works < unconstrained).then_some(bisection.best)
}

/// The largest limit below which the bytes needed during one op prove that no plan exists, less one alignment.
fn proved(task: &Task) -> Bytes {
    floor(task).1.saturating_sub(task.machine.align)
}

impl<'a> Bisection<'a> {
    /// The plan also works at a limit of exactly the bytes that it uses.
    fn new(task: &'a Task, best: Planned) -> Self {
        Self { task, works: best.height(), best, too_small: proved(task) }
    }

    /// Bisects until the difference is half a percent or one alignment, or until the observer interrupts.
    fn run(
        &mut self,
        observer: &dyn Observer,
        plan: impl Fn(Bytes) -> Result<Planned, PlanError>,
    ) -> Result<(), PlanError> {
        let align = self.task.machine.align;
        while self.works.saturating_sub(self.too_small) > align.max(Bytes(self.works.get() / 200))
            && !observer.interrupted()
        {
            let candidate = Bytes((self.works.get() + self.too_small.get()) / 2).align_up(align);
            if candidate >= self.works {
                break;
            }
            match plan(candidate) {
                // An interrupted search may have found what no other run finds.
                Ok(_) if observer.interrupted() => break,
                Ok(planned) => {
                    self.works = planned.height();
                    self.best = planned;
                }
                Err(PlanError::Infeasible { proof: Infeasible::Op { needed, .. }, .. }) => {
                    self.too_small = candidate.max(needed.saturating_sub(align));
                }
                Err(PlanError::Illegal(fault)) => return Err(fault.into()),
                Err(_) if observer.interrupted() => break,
                Err(_) => self.too_small = candidate,
            }
        }
        Ok(())
    }
}

//! The smallest limit at which a plan is found, by bisection.
//!
//! What a single op needs is a proof that no plan exists below. Above it, a planner that only offloads finds a limit that works within
//! milliseconds; planners that take its schedule as a warm start begin their bisection there.

use std::sync::Arc;
use std::time::Instant;

use elbowroom_ir::Bytes;
use elbowroom_ir::check;
use elbowroom_ir::packing::Packer;
use elbowroom_ir::planning::Planner;
use elbowroom_ir::search::{Budget, Infeasible, Observer};
use elbowroom_pack::BestFit;
use elbowroom_sched::deadline::Until;
use elbowroom_sched::offload::floor::Floor;

use super::{Method, PlanError, Planned, Task, fit, floor, plan, prove};

/// The planner that offloads as much as it can.
const FLOOR: &dyn Planner = &Floor;

/// A limit that a bisection has found to work, with its plan.
struct Bisection<'a> {
    task: &'a Task,
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
/// the limit that was found.
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
    let half = method.budget.time.and_then(|time| started.checked_add(time / 2));
    let watch = Until::new(observer, half);
    // Whether a limit works must not depend on the budget, and a long search at each of twenty limits would take too long.
    let quick = &method.at_once();
    let offloads = method.planner.peers(&task.trace).iter().any(|peer| peer.name() == FLOOR.name());
    let limit =
        if offloads { quick_smallest(task, method.packer, unconstrained, None, &watch) } else { None };
    // The planner itself starts from there if it finds a plan, and else from the unconstrained peak. If the time ends before, the quick plan
    // serves: such a planner is never slower than that one.
    let there = limit.as_ref().map(|found| plan(&task.with_memory(found.height()), quick, &watch));
    let first = match there {
        Some(Err(PlanError::Illegal(fault))) => return Err(fault.into()),
        Some(Ok(planned)) => planned,
        _ if watch.interrupted()
            && let Some(found) = limit =>
        {
            found
        }
        _ => plan(&task.with_memory(unconstrained), quick, &watch)?,
    };
    let mut bisection = Bisection::new(task, first);
    bisection.run(&watch, |task| plan(task, quick, &watch))?;
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
            // What did not come first must not be reproduced in its place.
            let kept = found.map_or(true, |planned| planned.reproducible);
            let plan = check::check(task.trace.clone(), task.machine.clone(), best.plan.plan().clone())?;
            let reproducible = best.reproducible && kept;
            // The search at this limit alone does not find it.
            let reproducible_at_limit = false;
            Planned { plan: Arc::new(plan), evaluations, reproducible, reproducible_at_limit, ..best }
        }
    };
    let reproducible = reproducible && planned.reproducible;
    Ok(Planned { reproducible, planning: started.elapsed(), ..planned })
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
    let coarse = if offloads { quick_smallest(task, &BestFit, unconstrained, end, observer) } else { None };
    let first = match coarse {
        Some(found) => match plan(&task.with_memory(found.height()), &method, &watch) {
            Err(PlanError::Illegal(fault)) => return Err(fault.into()),
            planned => planned.unwrap_or(found),
        },
        // Without a plan there is no training: this one is not interrupted.
        None => plan(&task.with_memory(unconstrained), &method, observer)?,
    };
    let mut bisection = Bisection::new(task, first);
    bisection.run(&watch, |task| plan(task, &method, &watch))?;
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
    packer: &dyn Packer,
    unconstrained: Bytes,
    end: Option<Instant>,
    observer: &dyn Observer,
) -> Option<Planned> {
    let watch = Until::new(observer, end);
    let method = Method::new(FLOOR, packer, Budget::default()).at_once();
    let first = plan(&task.with_memory(unconstrained), &method, &watch).ok()?;
    let mut bisection = Bisection::new(task, first);
    bisection.run(&watch, |task| plan(task, &method, &watch)).ok()?;
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
        plan: impl Fn(&Task) -> Result<Planned, PlanError>,
    ) -> Result<(), PlanError> {
        let align = self.task.machine.align;
        while self.works.saturating_sub(self.too_small) > align.max(Bytes(self.works.get() / 200))
            && !observer.interrupted()
        {
            let candidate = Bytes((self.works.get() + self.too_small.get()) / 2).align_up(align);
            if candidate >= self.works {
                break;
            }
            match plan(&self.task.with_memory(candidate)) {
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

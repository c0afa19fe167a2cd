//! What every table needs: networks as tasks, placements of whole iterations, and sweeps over limits. Nothing is computed in another way than by
//! the commands.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use elbowroom::compare::{self, Comparison};
use elbowroom::graph::zoo::{self, Options};
use elbowroom::ir::Bytes;
use elbowroom::ir::machine::Machine;
use elbowroom::ir::packing::Problem;
use elbowroom::ir::planning::Freedom;
use elbowroom::ir::search::{Budget, Observer};
use elbowroom::pipeline::{self, Method, PlannedSchedule, Task};
use elbowroom::{registry, sim};

use crate::Error;

/// How much is computed, and who is told.
pub struct Bench<'a> {
    quick: bool,
    pub(crate) observer: &'a dyn Observer,
    stages: Option<&'a dyn Fn(&str)>,
    /// Sweeps that two figures show.
    sweeps: RefCell<BTreeMap<String, Rc<Vec<compare::Row>>>>,
}

/// Evaluations of planners that end by themselves, `bo` with its 40 among them: no result depends on the clock.
pub(crate) const TO_THE_END: u64 = 1_000_000;

impl<'a> Bench<'a> {
    /// Every network and limit: all items together take about half an hour on two cores (measured: 29 minutes).
    pub fn full(observer: &'a dyn Observer) -> Self {
        Self { quick: false, observer, stages: None, sweeps: RefCell::default() }
    }

    /// Fewer networks, limits and batch sizes: all items together take less than two minutes on two cores.
    pub fn quick(observer: &'a dyn Observer) -> Self {
        Self { quick: true, ..Self::full(observer) }
    }

    /// Calls this with what is computed next.
    pub fn stages(self, stages: &'a dyn Fn(&str)) -> Self {
        Self { stages: Some(stages), ..self }
    }

    /// One of two, by the extent.
    pub(crate) fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Whether to stop.
    pub(crate) fn stopped(&self) -> bool {
        self.observer.interrupted()
    }

    /// Says what is computed now.
    pub(crate) fn begins(&self, what: &str) {
        if let Some(stages) = self.stages {
            stages(what);
        }
    }

    /// Every planner at every limit on live memory, given as percent of the peak, by a number of equal steps from `low` to `high`.
    pub(crate) fn sweep(
        &self,
        task: &Task,
        planners: &[&str],
        [low, high]: [f64; 2],
        steps: usize,
        evaluations: u64,
    ) -> Result<Rc<Vec<compare::Row>>, Error> {
        let key = format!(
            "{} {} {:?} {planners:?} {low} {high} {steps} {evaluations}",
            task.trace.name(),
            task.machine.name,
            task.freedom
        );
        if let Some(rows) = self.sweeps.borrow().get(&key) {
            return Ok(rows.clone());
        }
        let peak = peak(task, self.observer)?;
        let at = |i: usize| low + (high - low) * i as f64 / (steps.max(2) - 1) as f64;
        let limits: Vec<Bytes> =
            (0..steps).map(|i| Bytes((peak.get() as f64 * at(i) / 100.0).round() as u64)).collect();
        let planners = planners.iter().map(|name| registry::planner(name)).collect::<Result<Vec<_>, _>>()?;
        let comparison = Comparison {
            task,
            planners: &planners,
            packer: registry::packer(registry::DEFAULT_PACKER)?,
            budget: Budget::evaluations(evaluations),
            limits: &limits,
            by_live_memory: true,
            unconstrained: peak,
            alone: true,
        };
        let rows = Rc::new(compare::compare(&comparison, self.observer, |_, _| {})?);
        self.sweeps.borrow_mut().insert(key, rows.clone());
        Ok(rows)
    }

    /// The smallest limit, as a share of `unconstrained`, at which a planner keeps to an overhead; with a packer, of the arena.
    pub(crate) fn smallest(
        &self,
        task: &Task,
        planner: &str,
        overhead: f64,
        packer: Option<&str>,
        unconstrained: Bytes,
        steps: usize,
    ) -> Result<Option<f64>, Error> {
        let limits: Vec<Bytes> = (0..steps)
            .map(|i| 0.1 + 0.9 * i as f64 / (steps - 1) as f64)
            .map(|share| Bytes((unconstrained.get() as f64 * share).round() as u64))
            .collect();
        let comparison = Comparison {
            task,
            planners: &[registry::planner(planner)?],
            packer: registry::packer(packer.unwrap_or(registry::DEFAULT_PACKER))?,
            budget: Budget::evaluations(TO_THE_END),
            limits: &limits,
            by_live_memory: packer.is_none(),
            unconstrained,
            alone: true,
        };
        let rows = compare::smallest(&comparison, overhead, self.observer, |_| {})?;
        Ok(rows.first().filter(|row| row.feasible).map(|row| row.share))
    }
}

/// A planner's line of a sweep: for each limit that has a value, the limit as percent of the peak and the value.
pub(crate) fn points(
    rows: &[compare::Row],
    planner: &str,
    value: impl Fn(&compare::Row) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let of = rows.iter().filter(|row| row.planner == planner);
    of.filter_map(|row| Some((100.0 * row.share, value(row)?))).collect()
}

/// A planner's line of a sweep: the reduction of the peak and the overhead, both in percent.
pub(crate) fn by_reduction(rows: &[compare::Row], planner: &str) -> Vec<(f64, f64)> {
    let of = rows.iter().filter(|row| row.planner == planner);
    of.filter_map(|row| Some((100.0 * (1.0 - row.share), 100.0 * row.overhead?))).collect()
}

/// A machine by name.
pub(crate) fn machine(name: &str) -> Result<Machine, Error> {
    sim::presets::machine(name).ok_or_else(|| Error::Fault(format!("there is no machine {name}")))
}

/// A network of the zoo on a machine, whose buffers have this alignment.
pub(crate) fn task(
    network: &str,
    options: &Options,
    on: &str,
    align: u64,
    freedom: Freedom,
) -> Result<Task, Error> {
    let machine = Machine { align: Bytes(align), ..machine(on)? };
    Ok(Task::estimate(&zoo::build(network, options)?, &machine, freedom)?)
}

/// The largest live memory if every tensor stays.
pub(crate) fn peak(task: &Task, observer: &dyn Observer) -> Result<Bytes, Error> {
    Ok(pipeline::natural_problem(task, observer)?.peak_live())
}

/// The buffers of an iteration whose tensors all stay.
pub(crate) fn buffers(task: &Task, observer: &dyn Observer) -> Result<Problem, Error> {
    Ok(pipeline::natural_problem(task, observer)?)
}

/// The arena of a packer without a limit.
pub(crate) fn height(problem: &Problem, packer: &str, observer: &dyn Observer) -> Result<Bytes, Error> {
    let outcome = registry::packer(packer)?.pack(problem, &Budget::evaluations(1_000), observer);
    let placement = outcome.best.ok_or_else(|| Error::Fault(format!("{packer} found no placement")))?;
    Ok(placement.height)
}

/// The schedule of a planner where memory is no matter: of those that decide without a limit.
pub(crate) fn unlimited(
    task: &Task,
    planner: &str,
    observer: &dyn Observer,
) -> Result<PlannedSchedule, Error> {
    let task = task.with_memory(Bytes(1 << 60));
    let method = Method::new(
        registry::planner(planner)?,
        registry::packer(registry::DEFAULT_PACKER)?,
        Budget::evaluations(TO_THE_END),
    );
    Ok(pipeline::plan_schedule(&task, &method, &[], observer)?)
}

/// Bytes of parameters and of what else outlives an iteration.
pub(crate) fn persistent(task: &Task) -> Bytes {
    Bytes(task.trace.persistent().iter().map(|pair| task.trace.bytes(pair.begin).get()).sum())
}

/// What a plan may do that only offloads.
pub(crate) const OFFLOAD: Freedom = Freedom { recompute: false, ..Freedom::ALL };

/// What a plan may do that only recomputes.
pub(crate) const RECOMPUTE: Freedom = Freedom { offload: false, ..Freedom::ALL };

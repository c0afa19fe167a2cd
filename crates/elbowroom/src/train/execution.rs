//! How every iteration of a training is executed: by the plan of its structure, by one that is derived from the plan of the largest structure,
//! or dynamically.
//!
//! ```text
//! structure   A        A     B        A     B     C        A        A: the largest
//! executed    dynamic  plan  derived  plan  plan  derived  plan
//! planned              ▲A                   ▲B
//! ```
//!
//! The first iteration of the largest structure is dynamic and measures the durations that its plan is made for. Algorithms are chosen behind it,
//! so that it need not wait: they have the same bits, and plan and iterations from then on are those of a graph with other algorithms. Another
//! structure that is a part of it follows a [derived](super::derived) plan, which is there at once, and gets a plan of its own when it occurs
//! again. One that is no part of it is executed dynamically the first time. A structure that dynamic execution cannot run within the limit
//! follows a plan for estimated durations instead. Every plan has the persistent tensors at the offsets of the first plan if they fit there, so
//! that nothing moves between two plans.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use elbowroom_engine::dynamic::{Candidate, Decider, DynamicExecution, DynamicReport, Removal};
use elbowroom_engine::{EngineError, MeasuredCosts, Session};
use elbowroom_graph::Graph;
use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::order::Order;
use elbowroom_ir::planning::{Costs, Freedom};
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::trace::Fingerprint;
use elbowroom_ir::{Bytes, Nanos, TensorId, units};
use elbowroom_sched::policy::Policy;

use super::derived::Derivation;
use super::dtr::Dtr;
use super::limit::{replan, within_host_memory};
use super::{TrainError, TrainObserver, Training};
use crate::algorithms::{self, Best};
use crate::network::KEPT_STRUCTURES;
use crate::pipeline::{self, PlanError, Planned, Task, Untraceable};
use crate::report::{Execution, PlanReport};

/// The measurements of one iteration.
pub(super) struct Measured {
    pub time: Nanos,
    pub peak: Bytes,
    pub planned: bool,
    /// Only its totals if the iteration was executed dynamically.
    pub timeline: Timeline,
}

/// Executes the iterations of a run.
pub(super) trait Executor {
    /// Executes the iteration of this number on a graph. `fill` fills the inputs of a session that runs the graph.
    fn step(
        &mut self,
        session: &mut Session,
        number: u64,
        graph: &Arc<Graph>,
        fill: &mut dyn FnMut(&mut Session),
    ) -> Result<Measured, TrainError>;

    /// Executes one batch of an evaluation, which is no iteration of the training.
    fn evaluate(
        &mut self,
        session: &mut Session,
        number: u64,
        graph: &Arc<Graph>,
        fill: &mut dyn FnMut(&mut Session),
    ) -> Result<Measured, TrainError> {
        self.step(session, number, graph, fill)
    }

    /// Different structures that have run, and plans made, so far.
    fn structures_and_plans(&self) -> [u64; 2] {
        [1, 1]
    }
}

/// Every iteration by one plan.
pub(super) struct ByPlan {
    pub plan: Arc<CheckedPlan>,
}

impl Executor for ByPlan {
    fn step(
        &mut self,
        session: &mut Session,
        number: u64,
        graph: &Arc<Graph>,
        fill: &mut dyn FnMut(&mut Session),
    ) -> Result<Measured, TrainError> {
        Ok(follow(session, number, graph, &self.plan, fill)?.0)
    }
}

/// Executes an iteration by a plan. Also returns the bytes of persistent tensors that moved to where the plan has them.
fn follow(
    session: &mut Session,
    number: u64,
    graph: &Arc<Graph>,
    plan: &Arc<CheckedPlan>,
    fill: &mut dyn FnMut(&mut Session),
) -> Result<(Measured, Bytes), TrainError> {
    let moved = session.set_plan(graph, plan)?;
    fill(session);
    let report = session.run_iteration(number)?;
    let timeline = session.timeline();
    Ok((Measured { time: report.iteration, peak: report.measured_peak, planned: true, timeline }, moved))
}

/// Every iteration dynamically in memory that holds all tensors, so that none is evicted or offloaded.
#[derive(Default)]
pub(super) struct Unlimited {
    /// The graph of the last iteration with its order of ops.
    last: Option<(Arc<Graph>, Order)>,
}

/// Keeps every tensor on the device.
struct KeepAll;

impl Decider for KeepAll {
    fn victim(&mut self, _: Bytes, _: &[Candidate]) -> Option<(TensorId, Removal)> {
        None
    }
}

impl Executor for Unlimited {
    fn step(
        &mut self,
        session: &mut Session,
        number: u64,
        graph: &Arc<Graph>,
        fill: &mut dyn FnMut(&mut Session),
    ) -> Result<Measured, TrainError> {
        session.set_graph(graph)?;
        fill(session);
        let (_, order) = match self.last.take().filter(|(last, _)| Arc::ptr_eq(last, graph)) {
            Some(last) => self.last.insert(last),
            None => {
                let trace = elbowroom_engine::trace(graph)
                    .map_err(|source| Untraceable { network: graph.name.clone(), source })?;
                self.last.insert((graph.clone(), default_order(&trace)?))
            }
        };
        let run_dynamic = DynamicExecution { order, freedom: Freedom::ALL, decider: &mut KeepAll };
        Ok(measured(&session.run_dynamic(number, run_dynamic)?))
    }
}

/// The order of ops from which planners start, too.
pub(super) fn default_order(trace: &elbowroom_ir::trace::Trace) -> Result<Order, TrainError> {
    Ok(Order::new(trace, Policy::prompt(trace).sequence)?)
}

/// The measurements of a dynamic iteration.
fn measured(report: &DynamicReport) -> Measured {
    let timeline = Timeline {
        iteration: report.iteration,
        traffic: report.traffic,
        recomputed: report.recomputed,
        recompute_time: report.recompute_time,
        ..Timeline::default()
    };
    Measured { time: report.iteration, peak: report.measured_peak, planned: false, timeline }
}

/// Copies in each direction from which the rate of the host tier is taken.
const COPIES: usize = 10_000;

/// A structure that has occurred.
pub(super) struct Known {
    /// What occurs.
    graph: Arc<Graph>,
    /// What runs: the same graph, in which ops may have other algorithms with the same bits.
    pub(super) run: Arc<Graph>,
    /// With the durations that its plan was made for; with estimated ones while there is no plan.
    pub task: Task,
    order: Order,
    pub costs: MeasuredCosts,
    /// Iterations that ran.
    pub runs: u64,
    /// When it last occurred: the number of occurrences of any structure until then.
    last_used: u64,
    pub planned: Option<Planned>,
    /// Whether no plan was found.
    pub unplanned: bool,
    /// What follows for it from the plan of the largest structure, once that has been asked for.
    pub derived: Option<Derivation>,
}

/// Every iteration under the limit.
pub(super) struct UnderLimit<'a> {
    pub(super) training: &'a Training<'a>,
    pub(super) observer: &'a dyn TrainObserver,
    pub(super) known: HashMap<Fingerprint, Known>,
    /// Occurrences of structures so far.
    occurrences: u64,
    /// Largest arena size of all plans that have been followed.
    arena: Option<Bytes>,
    pub(super) main: Fingerprint,
    /// A plan of the largest structure for estimated durations.
    pub(super) estimated: Planned,
    /// Offsets of the persistent tensors in the first plan.
    offsets: Option<Vec<Option<Bytes>>>,
    /// With the limit as its memory, and with the link of the host tier.
    machine: Machine,
    /// Bytes and time of copies made during dynamic execution, to the host and to the device.
    copies: [Vec<(Bytes, Nanos)>; 2],
    intact: bool,
    pub(super) execution: Execution,
    /// Why no plan was derived, the last time that none was.
    pub(super) underived: Option<String>,
    dynamic_times: Vec<Nanos>,
    /// Whether the algorithms of the largest structure have yet to be chosen.
    choosing: bool,
    /// Time that all plans so far have taken.
    planning: Duration,
    /// The plan of the last iteration that followed one, and the structure of that iteration.
    followed: Option<(Fingerprint, Arc<CheckedPlan>)>,
}

impl<'a> UnderLimit<'a> {
    /// Before the first iteration. `task` is the largest structure with estimated durations, under the limit of all iterations, and
    /// `estimated` a plan for it. With `choosing`, its algorithms are chosen before it is planned again.
    pub(super) fn new(
        training: &'a Training<'a>,
        graph: Arc<Graph>,
        task: &Task,
        estimated: Planned,
        choosing: bool,
        observer: &'a dyn TrainObserver,
    ) -> Result<Self, TrainError> {
        let main = task.trace.fingerprint();
        let known = Known::new(graph, task.clone())?;
        Ok(Self {
            training,
            observer,
            machine: task.machine.clone(),
            known: HashMap::from([(main, known)]),
            occurrences: 0,
            arena: None,
            main,
            planning: estimated.planning,
            estimated,
            offsets: None,
            copies: Default::default(),
            intact: true,
            execution: Execution::default(),
            underived: None,
            dynamic_times: Vec::new(),
            followed: None,
            choosing,
        })
    }

    /// The machine, with the limit as its memory and the link that was measured before the first plan.
    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// How the iterations were executed.
    pub(super) fn execution(&self) -> Execution {
        let median = units::median(&mut self.dynamic_times.clone());
        Execution { dynamic_iteration_ns: median, ..self.execution }
    }

    /// Why no plan was derived for the last structure for which none was.
    pub(super) fn underived(&self) -> Option<String> {
        self.underived.clone()
    }

    /// Whether the bytes above the plans' arena sizes were left untouched.
    pub(super) fn arena_above_intact(&mut self, session: &Session) -> bool {
        self.inspect(session);
        self.intact
    }

    /// The report of the plan of the largest structure, by the durations that it was made for, or of the plan for estimated durations if
    /// that structure never had another. The arena size is the largest of all plans that have been followed.
    pub(super) fn plan_report(&self, unconstrained_peak: Bytes) -> PlanReport {
        let known = &self.known[&self.main];
        let planned = known.planned.as_ref().unwrap_or(&self.estimated);
        let mut report = PlanReport::new(&known.task, &self.training.method, unconstrained_peak, planned);
        // Measured durations differ in the next run.
        report.reproduce_with = None;
        if let Some(arena) = self.arena {
            (report.predicted_peak_bytes, report.arena_bytes) = (arena, Some(arena));
        }
        report
    }

    /// The plan of the last iteration that followed one, with the durations that it was made for and the course that they predict.
    pub(super) fn last_followed(&self) -> Option<(&CheckedPlan, &Costs, Timeline)> {
        let (key, plan) = self.followed.as_ref()?;
        let known = self.known.get(key)?;
        Some((plan, &known.task.costs, pipeline::simulate(&known.task, plan.schedule())))
    }

    /// Sum of the median durations of the ops of the largest structure, or of the one that ran most if that did not run.
    pub(super) fn sum_of_op_times(&self) -> Nanos {
        let runs = |known: &&Known| known.runs;
        let main = self.known.get(&self.main).filter(|known| known.runs > 0);
        let known = main.or_else(|| self.known.values().max_by_key(runs));
        known.map_or(Nanos::ZERO, |known| known.costs.clone().median().total())
    }

    /// The key of a graph's structure, which is known from then on.
    fn key(&mut self, graph: &Arc<Graph>) -> Result<Fingerprint, TrainError> {
        self.occurrences += 1;
        if let Some((&key, known)) = self.known.iter_mut().find(|(_, known)| Arc::ptr_eq(&known.graph, graph))
        {
            known.last_used = self.occurrences;
            return Ok(key);
        }
        let task = Task::estimate(graph, &self.machine, self.training.freedom)?;
        let key = task.trace.fingerprint();
        let known = match self.known.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Known::new(graph.clone(), task)?),
        };
        known.last_used = self.occurrences;
        self.forget_the_oldest();
        Ok(key)
    }

    /// Structures that never occur again must not fill the memory.
    fn forget_the_oldest(&mut self) {
        let others = self.known.iter().filter(|(key, _)| **key != self.main);
        if self.known.len() > KEPT_STRUCTURES
            && let Some((&oldest, _)) = others.min_by_key(|(_, known)| known.last_used)
        {
            self.known.remove(&oldest);
        }
    }

    /// The task of a structure with measured durations and rates; `None` if nothing is measured.
    fn measured_task(&self, key: Fingerprint, known: &Known) -> Option<Task> {
        let costs = match known.runs {
            0 if key == self.main => self.costs_of_parts(&known.task)?,
            0 => return None,
            _ => known.costs.clone().median(),
        };
        let mut machine = known.task.machine.clone();
        let channels = [&mut machine.to_host, &mut machine.to_device];
        for (copies, channel) in self.copies.iter().zip(channels) {
            *channel = rate(copies).map_or(*channel, Channel::with_rate);
        }
        Some(Task { costs, machine, ..known.task.clone() })
    }

    /// The time that planning may still take if iterations take about this long: a share of the training, less what all plans so far have
    /// taken.
    fn time_left_for_planning(&self, iteration: Nanos) -> Duration {
        pipeline::planning_share(iteration, self.training.iterations).saturating_sub(self.planning)
    }

    /// Makes a plan for a structure: with the user's whole budget for the largest one, with a short search for others.
    fn plan(&mut self, key: Fingerprint) -> Result<(), TrainError> {
        let started = Instant::now();
        let Some(mut known) = self.known.remove(&key) else { return Ok(()) };
        if key == self.main && std::mem::take(&mut self.choosing) {
            self.choose_algorithms(&mut known)?;
            self.observer.stage("planning");
        }
        let measured = self.measured_task(key, &known);
        let is_measured = measured.is_some();
        let task = measured.unwrap_or_else(|| known.task.clone());
        let left = self.time_left_for_planning(task.costs.total()).saturating_sub(started.elapsed());
        let method = self.training.method.clone().within(left);
        let estimated = (key == self.main).then(|| self.estimated.clone());
        let planned = match (estimated, &self.offsets) {
            (Some(estimated), None) if is_measured => Some(replan(&method, &task, estimated, self.observer)?),
            // Before anything is measured there is no better plan.
            (Some(estimated), None) => Some(estimated),
            (estimated, offsets) => {
                let offsets = offsets.as_deref().unwrap_or_default();
                match pipeline::plan_at_offsets(&task, &method.at_once_within_time(), offsets, self.observer)
                {
                    Ok(planned) => Some(planned),
                    Err(PlanError::Illegal(fault)) => return Err(TrainError::Plan(fault.into())),
                    Err(_) => estimated.map(|estimated| pipeline::predict(&task, estimated)),
                }
            }
        };
        let planned = match planned {
            Some(planned) => {
                let offsets = self.offsets.as_deref().unwrap_or_default();
                within_host_memory(self.training, &task, planned, offsets, self.observer)?
            }
            None => None,
        };
        // A derived plan may be faster than what a short search finds.
        let derived = known.derived.as_ref().and_then(Derivation::plan);
        let derived = derived.map(|plan| pipeline::iteration_time(&task, plan));
        let planned = planned.filter(|own| derived.is_none_or(|derived| own.predicted.iteration < derived));
        known.unplanned = planned.is_none();
        self.execution.plans_made += u64::from(planned.is_some());
        if let Some(planned) = &planned {
            known.task = task;
            self.offsets.get_or_insert_with(|| pipeline::persistent_offsets(&planned.plan));
        }
        known.planned = planned;
        self.known.insert(key, known);
        self.planning += started.elapsed();
        if key == self.main {
            // What was derived from the plan for estimated durations has the persistent tensors at other offsets.
            self.known.values_mut().for_each(|known| known.derived = None);
        }
        Ok(())
    }

    /// Chooses the algorithms of the largest structure. The durations that were measured are those of other algorithms: those of ops that change
    /// are scaled.
    fn choose_algorithms(&mut self, known: &mut Known) -> Result<(), TrainError> {
        let limit = self.machine.memory;
        let conditions = self.training.conditions_within(limit, &self.machine);
        let Some(Best { graph, planned, costs: [before, after] }) =
            algorithms::best(&known.run, &conditions, limit, self.observer)?
        else {
            return Ok(());
        };
        let task = Task::estimate(&graph, &self.machine, self.training.freedom)?;
        if task.trace.fingerprint() == known.task.trace.fingerprint() {
            return Ok(());
        }
        known.costs.scaled(|op| match (before.nanos[op].get(), after.nanos[op].get()) {
            (before, after) if before > 0 && after > 0 => after as f64 / before as f64,
            _ => 1.0,
        });
        (known.order, known.run) = (default_order(&task.trace)?, graph);
        (known.task, self.estimated) = (Task { costs: after, ..task }, planned);
        Ok(())
    }

    /// The largest structure as it runs.
    pub(super) fn largest(&self) -> &Graph {
        &self.known[&self.main].run
    }

    /// Makes the plans that are due before an iteration of this structure.
    fn plan_what_is_due(&mut self, key: Fingerprint) -> Result<(), TrainError> {
        if self.training.dynamic {
            return Ok(());
        }
        let ran = self.execution.planned_iterations + self.execution.dynamic_iterations;
        let unplanned = |known: &Known| known.planned.is_none() && !known.unplanned;
        // The largest structure may never occur by itself. Its plan is for the durations that its parts have shown.
        if key != self.main && ran > 0 && unplanned(&self.known[&self.main]) {
            self.plan(self.main)?;
        }
        let known = &self.known[&key];
        // A single iteration is not worth measuring: it follows the plan for estimated durations.
        let alone = self.training.iterations == 1 && key == self.main;
        if (known.runs > 0 || alone) && unplanned(known) {
            self.plan(key)?;
        }
        if key != self.main && self.known[&key].planned.is_none() {
            self.derive(key);
        }
        Ok(())
    }

    /// Looks for writes above the arena size of the plan at hand: before another plan follows, and at the end.
    fn inspect(&mut self, session: &Session) {
        self.intact &= session.first_overwritten().is_none();
    }

    /// Executes an iteration by the plan of its structure; `None` if there is none.
    fn by_plan(
        &mut self,
        session: &mut Session,
        number: u64,
        key: Fingerprint,
        fill: &mut dyn FnMut(&mut Session),
    ) -> Result<Option<Measured>, TrainError> {
        let Some(known) = self.known.get(&key) else { return Ok(None) };
        let Some(plan) = known.plan().cloned() else { return Ok(None) };
        let (graph, derived) = (known.run.clone(), known.planned.is_none());
        if session.plan().is_some_and(|now| !Arc::ptr_eq(now, &plan)) {
            self.inspect(session);
        }
        let (measured, moved) = follow(session, number, &graph, &plan, fill)?;
        self.execution.switch_moved_bytes += moved;
        self.execution.derived_iterations += u64::from(derived);
        self.arena = self.arena.max(Some(plan.placement().height));
        if let Some(known) = self.known.get_mut(&key) {
            known.costs.add(plan.schedule(), &measured.timeline);
            known.runs += 1;
            self.execution.structures += u64::from(known.runs == 1);
        }
        self.execution.planned_iterations += 1;
        self.followed = Some((key, plan));
        Ok(Some(measured))
    }

    /// Executes an iteration dynamically; `None` if that does not succeed within the limit and a plan may.
    fn dynamically(
        &mut self,
        session: &mut Session,
        number: u64,
        key: Fingerprint,
        fill: &mut dyn FnMut(&mut Session),
    ) -> Result<Option<Measured>, TrainError> {
        self.inspect(session);
        let Some(known) = self.known.get_mut(&key) else { return Ok(None) };
        session.set_graph(&known.run)?;
        let freedom = self.training.freedom;
        // An iteration that runs out of bytes ends a training. A dry run makes the same decisions, so one that succeeds rules that out.
        let mut decider = Dtr::new(&known.task, &known.order);
        match session.dry_run(DynamicExecution { order: &known.order, freedom, decider: &mut decider }) {
            Ok(_) => {}
            Err(EngineError::OutOfMemory { .. }) if !self.training.dynamic => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        fill(session);
        let mut decider = Dtr::new(&known.task, &known.order);
        let run_dynamic = DynamicExecution { order: &known.order, freedom, decider: &mut decider };
        let report = session.run_dynamic(number, run_dynamic)?;
        known.costs.add_runs(&report.ops);
        known.runs += 1;
        self.execution.structures += u64::from(known.runs == 1);
        for (copies, new) in self.copies.iter_mut().zip([&report.offload_copies, &report.prefetch_copies]) {
            copies.extend(new);
            copies.drain(..copies.len().saturating_sub(COPIES));
        }
        self.execution.add(&report);
        self.dynamic_times.push(report.iteration);
        Ok(Some(measured(&report)))
    }
}

/// Bytes per second of the copies: the median of the large ones, because a small copy measures its fixed costs more than its rate.
fn rate(copies: &[(Bytes, Nanos)]) -> Option<u64> {
    let largest = copies.iter().map(|&(bytes, _)| bytes).max()?;
    let large = copies.iter().filter(|(bytes, time)| 2 * bytes.get() >= largest.get() && !time.is_zero());
    let per_second =
        |&(bytes, time): &(Bytes, Nanos)| u128::from(bytes.get()) * 1_000_000_000 / u128::from(time.get());
    let mut rates: Vec<u64> =
        large.map(per_second).map(|rate| u64::try_from(rate).unwrap_or(u64::MAX).max(1)).collect();
    units::median(&mut rates)
}

impl Known {
    fn new(graph: Arc<Graph>, task: Task) -> Result<Self, TrainError> {
        let order = default_order(&task.trace)?;
        let costs = MeasuredCosts::new(&task.trace);
        let (planned, unplanned, derived) = (None, false, None);
        Ok(Self {
            run: graph.clone(),
            graph,
            task,
            order,
            costs,
            runs: 0,
            last_used: 0,
            planned,
            unplanned,
            derived,
        })
    }

    /// The plan to follow: its own, or else a derived one.
    fn plan(&self) -> Option<&Arc<CheckedPlan>> {
        let derived = || self.derived.as_ref().and_then(Derivation::plan);
        self.planned.as_ref().map(|planned| &planned.plan).or_else(derived)
    }
}

impl Executor for UnderLimit<'_> {
    fn structures_and_plans(&self) -> [u64; 2] {
        [self.execution.structures, self.execution.plans_made]
    }

    /// The report counts iterations of the training. What an evaluation uses of arena and host counts as well.
    fn evaluate(
        &mut self,
        session: &mut Session,
        number: u64,
        graph: &Arc<Graph>,
        fill: &mut dyn FnMut(&mut Session),
    ) -> Result<Measured, TrainError> {
        let (before, underived, followed) = (self.execution, self.underived.clone(), self.followed.clone());
        let dynamic_times = self.dynamic_times.len();
        let measured = self.step(session, number, graph, fill)?;
        self.dynamic_times.truncate(dynamic_times);
        let Execution { dynamic_peak_bytes, dynamic_host_bytes, switch_moved_bytes, .. } = self.execution;
        self.execution = Execution { dynamic_peak_bytes, dynamic_host_bytes, switch_moved_bytes, ..before };
        (self.underived, self.followed) = (underived, followed);
        Ok(measured)
    }

    fn step(
        &mut self,
        session: &mut Session,
        number: u64,
        graph: &Arc<Graph>,
        fill: &mut dyn FnMut(&mut Session),
    ) -> Result<Measured, TrainError> {
        let key = self.key(graph)?;
        self.plan_what_is_due(key)?;
        if let Some(measured) = self.by_plan(session, number, key, fill)? {
            return Ok(measured);
        }
        if let Some(measured) = self.dynamically(session, number, key, fill)? {
            let underived = matches!(self.known[&key].derived, Some(Derivation::Refused));
            self.execution.underived_iterations += u64::from(underived);
            return Ok(measured);
        }
        // Dynamic execution does not succeed within the limit, so the structure is planned before it is measured.
        self.plan(key)?;
        let measured = self.by_plan(session, number, key, fill)?;
        measured.ok_or(TrainError::Plan(PlanError::GaveUp { limit: self.machine.memory, best: None }))
    }
}

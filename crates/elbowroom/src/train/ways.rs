//! How every iteration of a training runs: on demand the first time that its trace comes, by a plan from then on.
//!
//! ```text
//! trace    A     A     B     A     B     C     A
//! runs     asks  plan  asks  plan  plan  asks  plan
//! planned        ▲A                ▲B
//! ```
//!
//! The iteration that runs on demand measures the durations that the plan is made for; one that would get stuck on demand follows a plan
//! for estimated durations instead. All plans have the persistent values where the first one has them, as far as that can be, so that
//! going from one to another moves nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use elbowroom_engine::reactive::{Candidate, Decider, How, Improvise, ReactiveReport};
use elbowroom_engine::{EngineError, MeasuredCosts, Session};
use elbowroom_graph::Graph;
use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::order::Order;
use elbowroom_ir::planning::Freedom;
use elbowroom_ir::timeline::Timeline;
use elbowroom_ir::trace::Fingerprint;
use elbowroom_ir::{Bytes, Nanos, TensorId, units};
use elbowroom_sched::policy::Policy;

use super::changing::{FORMS, Lesson};
use super::dtr::Dtr;
use super::{TrainError, TrainObserver, Training, estimate, replan};
use crate::pipeline::{self, PlanError, Planned, Task};
use crate::report::{Execution, PlanReport};

/// What one iteration was like.
pub(super) struct Lap {
    pub time: Nanos,
    pub peak: Bytes,
    pub planned: bool,
    /// Without a plan only its totals.
    pub timeline: Timeline,
}

/// A way to run the iterations of a training.
pub(super) trait Way {
    /// Runs an iteration of this number. `fill` fills the inputs of a session that runs the lesson's graph.
    fn step(
        &mut self,
        session: &mut Session,
        number: u64,
        lesson: &Lesson,
        fill: &mut dyn FnMut(&mut Session),
    ) -> Result<Lap, TrainError>;

    /// Different traces and plans so far.
    fn traces_and_plans(&self) -> [u64; 2] {
        [1, 1]
    }
}

/// By one plan.
pub(super) struct ByPlan {
    pub plan: Arc<CheckedPlan>,
}

impl Way for ByPlan {
    fn step(
        &mut self,
        session: &mut Session,
        number: u64,
        lesson: &Lesson,
        fill: &mut dyn FnMut(&mut Session),
    ) -> Result<Lap, TrainError> {
        Ok(follow(session, number, &lesson.graph, &self.plan, fill)?.0)
    }
}

/// Runs an iteration by a plan. Returns also the bytes that moved on the way to it.
fn follow(
    session: &mut Session,
    number: u64,
    graph: &Arc<Graph>,
    plan: &Arc<CheckedPlan>,
    fill: &mut dyn FnMut(&mut Session),
) -> Result<(Lap, Bytes), TrainError> {
    let moved = session.follow(graph, plan)?;
    fill(session);
    let report = session.run_iteration(number)?;
    let timeline = session.timeline();
    Ok((Lap { time: report.iteration, peak: report.measured_peak, planned: true, timeline }, moved))
}

/// Without a limit: there is room for everything, and nothing ever has to leave.
#[derive(Default)]
pub(super) struct Unlimited {
    /// The graph of the last iteration, with its order.
    last: Option<(Arc<Graph>, Order)>,
}

/// Lets nothing leave.
struct Keep;

impl Decider for Keep {
    fn victim(&mut self, _: Bytes, _: &[Candidate]) -> Option<(TensorId, How)> {
        None
    }
}

impl Way for Unlimited {
    fn step(
        &mut self,
        session: &mut Session,
        number: u64,
        lesson: &Lesson,
        fill: &mut dyn FnMut(&mut Session),
    ) -> Result<Lap, TrainError> {
        let graph = &lesson.graph;
        session.change_to(graph)?;
        fill(session);
        let (_, order) = match self.last.take().filter(|(last, _)| Arc::ptr_eq(last, graph)) {
            Some(last) => self.last.insert(last),
            None => {
                let trace = elbowroom_engine::trace(graph)
                    .map_err(|error| TrainError::Trace(graph.name.clone(), error))?;
                self.last.insert((graph.clone(), natural_order(&trace)?))
            }
        };
        let improvise = Improvise { order, freedom: Freedom::ALL, decider: &mut Keep };
        Ok(lap(&session.improvise(number, improvise)?))
    }
}

/// The order that planners start from too.
fn natural_order(trace: &elbowroom_ir::trace::Trace) -> Result<Order, TrainError> {
    Ok(Order::new(trace, Policy::prompt(trace).sequence)?)
}

fn lap(report: &ReactiveReport) -> Lap {
    let timeline = Timeline {
        iteration: report.iteration,
        traffic: report.traffic,
        recomputed: report.recomputed,
        recompute_time: report.recompute_time,
        ..Timeline::default()
    };
    Lap { time: report.iteration, peak: report.measured_peak, planned: false, timeline }
}

/// Copies that are kept each way to say how fast the tier is.
const COPIES: usize = 10_000;

/// A trace that has come.
struct Known {
    graph: Arc<Graph>,
    /// With the durations that its plan was made for; with estimated ones while there is none.
    task: Task,
    order: Order,
    costs: MeasuredCosts,
    /// Iterations that ran.
    runs: u64,
    /// When it came last, by the number of traces that had come before.
    came: u64,
    planned: Option<Planned>,
    /// Whether no plan was found.
    unplanned: bool,
}

/// Under the limit.
pub(super) struct Ways<'a> {
    training: &'a Training<'a>,
    observer: &'a dyn TrainObserver,
    known: HashMap<Fingerprint, Known>,
    /// How often a trace came.
    came: u64,
    /// Height of the highest plan.
    highest: Option<Bytes>,
    main: Fingerprint,
    /// A plan of the main graph for estimated durations.
    draft: Planned,
    /// Where the first plan has persistent values.
    homes: Option<Vec<Option<Bytes>>>,
    /// With the limit as its memory, and with the host tier's link.
    machine: Machine,
    /// Copies made without a plan and the time that each took, to the host and to the device.
    copied: [Vec<(Bytes, Nanos)>; 2],
    intact: bool,
    tally: Execution,
    dynamic_times: Vec<Nanos>,
}

impl<'a> Ways<'a> {
    /// Nothing has run yet. `task` is the training's main graph with estimated durations, under the limit of all iterations, and
    /// `draft` a plan for it.
    pub(super) fn new(
        training: &'a Training<'a>,
        task: &Task,
        draft: Planned,
        observer: &'a dyn TrainObserver,
    ) -> Result<Self, TrainError> {
        let main = task.trace.fingerprint();
        let known = Known::new(training.graph.clone(), task.clone())?;
        Ok(Self {
            training,
            observer,
            machine: task.machine.clone(),
            known: HashMap::from([(main, known)]),
            came: 0,
            highest: None,
            main,
            draft,
            homes: None,
            copied: Default::default(),
            intact: true,
            tally: Execution::default(),
            dynamic_times: Vec::new(),
        })
    }

    /// The machine, with the limit as its memory and the link that was measured before.
    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// How the iterations ran.
    pub(super) fn execution(&self) -> Execution {
        let median = units::median(&mut self.dynamic_times.clone());
        Execution { dynamic_iteration_ns: median, ..self.tally }
    }

    /// Whether the bytes above the plans' heights were left alone.
    pub(super) fn intact(&mut self, session: &Session) -> bool {
        self.look(session);
        self.intact
    }

    /// What the plans promised, by the durations that they were made for: that of the main graph, or its draft where it was never planned.
    /// The peak is that of all plans.
    pub(super) fn promised(&self, natural: Bytes) -> PlanReport {
        let known = &self.known[&self.main];
        let planned = known.planned.as_ref().unwrap_or(&self.draft);
        let mut report = PlanReport::new(&known.task, &self.training.method, natural, planned);
        // Measured durations never come again.
        report.reproduce_with = None;
        if let Some(height) = self.highest {
            (report.predicted_peak_bytes, report.arena_bytes) = (height, Some(height));
        }
        report
    }

    /// Sum of the median durations of the main graph's ops, or of the graph's that ran most.
    pub(super) fn unlimited_by_ops(&self) -> Nanos {
        let ran = |known: &&Known| known.runs;
        let main = self.known.get(&self.main).filter(|known| known.runs > 0);
        let known = main.or_else(|| self.known.values().max_by_key(ran));
        known.map_or(Nanos::ZERO, |known| known.costs.clone().median().total())
    }

    /// The trace of a graph, which is known from then on.
    fn meet(&mut self, graph: &Arc<Graph>) -> Result<Fingerprint, TrainError> {
        self.came += 1;
        if let Some((&key, known)) = self.known.iter_mut().find(|(_, known)| Arc::ptr_eq(&known.graph, graph))
        {
            known.came = self.came;
            return Ok(key);
        }
        let task = estimate(graph, &self.machine, self.training.freedom)?;
        let key = task.trace.fingerprint();
        let known = match self.known.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Known::new(graph.clone(), task)?),
        };
        known.came = self.came;
        self.give_up_the_oldest();
        Ok(key)
    }

    /// Traces that never come again must not fill the memory.
    fn give_up_the_oldest(&mut self) {
        let others = self.known.iter().filter(|(key, _)| **key != self.main);
        if self.known.len() > FORMS
            && let Some((&oldest, _)) = others.min_by_key(|(_, known)| known.came)
        {
            self.known.remove(&oldest);
        }
    }

    /// The task with what was measured, as far as it was.
    fn measured(&self, known: &Known) -> Task {
        if known.runs == 0 {
            return known.task.clone();
        }
        let mut machine = known.task.machine.clone();
        let channels = [&mut machine.to_host, &mut machine.to_device];
        for (copies, channel) in self.copied.iter().zip(channels) {
            *channel = rate(copies).map_or(*channel, Channel::with_rate);
        }
        Task { costs: known.costs.clone().median(), machine, ..known.task.clone() }
    }

    /// Makes a plan for a trace: with all the time that the user gave for the main one, at once for others.
    fn plan(&mut self, key: Fingerprint) -> Result<(), TrainError> {
        let Some(mut known) = self.known.remove(&key) else { return Ok(()) };
        let task = self.measured(&known);
        let method = &self.training.method;
        let draft = (key == self.main).then(|| self.draft.clone());
        let planned = match (draft, &self.homes) {
            (Some(draft), None) if known.runs > 0 => {
                Some(replan(self.training, &task, draft, self.observer)?)
            }
            // Before anything is measured there is nothing better than the draft.
            (Some(draft), None) => Some(draft),
            (draft, homes) => {
                let nowhere = Vec::new();
                let homes = homes.as_ref().unwrap_or(&nowhere);
                match pipeline::plan_beside(&task, &method.at_once(), homes, self.observer) {
                    Ok(planned) => Some(planned),
                    Err(PlanError::Illegal(fault)) => return Err(TrainError::Plan(fault.into())),
                    Err(_) => draft.map(|draft| pipeline::predict(&task, draft)),
                }
            }
        };
        known.unplanned = planned.is_none();
        self.tally.plans_made += u64::from(planned.is_some());
        if let Some(planned) = &planned {
            known.task = task;
            self.highest = self.highest.max(Some(planned.height()));
            self.homes.get_or_insert_with(|| pipeline::homes(&planned.plan));
        }
        known.planned = planned;
        self.known.insert(key, known);
        Ok(())
    }

    /// Before a plan is left, or at the end.
    fn look(&mut self, session: &Session) {
        self.intact &= session.first_stain().is_none();
    }

    fn by_plan(
        &mut self,
        session: &mut Session,
        number: u64,
        key: Fingerprint,
        fill: &mut dyn FnMut(&mut Session),
    ) -> Result<Option<Lap>, TrainError> {
        let Some(Known { graph, planned: Some(planned), .. }) = self.known.get(&key) else { return Ok(None) };
        let (graph, plan) = (graph.clone(), planned.plan.clone());
        if session.plan().is_some_and(|now| !Arc::ptr_eq(now, &plan)) {
            self.look(session);
        }
        let (lap, moved) = follow(session, number, &graph, &plan, fill)?;
        self.tally.switch_moved_bytes += moved;
        if let Some(known) = self.known.get_mut(&key) {
            known.costs.add(plan.schedule(), &lap.timeline);
            known.runs += 1;
            self.tally.structures += u64::from(known.runs == 1);
        }
        self.tally.planned_iterations += 1;
        Ok(Some(lap))
    }

    fn on_demand(
        &mut self,
        session: &mut Session,
        number: u64,
        key: Fingerprint,
        fill: &mut dyn FnMut(&mut Session),
    ) -> Result<Option<Lap>, TrainError> {
        self.look(session);
        let Some(known) = self.known.get_mut(&key) else { return Ok(None) };
        session.change_to(&known.graph)?;
        let freedom = self.training.freedom;
        // An iteration that gets stuck ends a training; one that was rehearsed does not get stuck.
        let mut decider = Dtr::new(&known.task, &known.order);
        match session.rehearse(Improvise { order: &known.order, freedom, decider: &mut decider }) {
            Ok(_) => {}
            Err(EngineError::NoRoom { .. }) if !self.training.reactive => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        fill(session);
        let mut decider = Dtr::new(&known.task, &known.order);
        let improvise = Improvise { order: &known.order, freedom, decider: &mut decider };
        let report = session.improvise(number, improvise)?;
        known.costs.add_runs(&report.ops);
        known.runs += 1;
        self.tally.structures += u64::from(known.runs == 1);
        for (copied, copies) in self.copied.iter_mut().zip([&report.stores, &report.loads]) {
            copied.extend(copies);
            copied.drain(..copied.len().saturating_sub(COPIES));
        }
        self.tally.add(&report);
        self.dynamic_times.push(report.iteration);
        Ok(Some(lap(&report)))
    }
}

/// Bytes per second of the copies, by the median of the large ones; small ones say more about a copy's beginning than about its rate.
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
        let order = natural_order(&task.trace)?;
        let costs = MeasuredCosts::new(&task.trace);
        Ok(Self { graph, task, order, costs, runs: 0, came: 0, planned: None, unplanned: false })
    }
}

impl Way for Ways<'_> {
    fn traces_and_plans(&self) -> [u64; 2] {
        [self.tally.structures, self.tally.plans_made]
    }

    fn step(
        &mut self,
        session: &mut Session,
        number: u64,
        lesson: &Lesson,
        fill: &mut dyn FnMut(&mut Session),
    ) -> Result<Lap, TrainError> {
        let key = self.meet(&lesson.graph)?;
        let known = &self.known[&key];
        // A single iteration is worth no measuring: it follows the draft.
        let alone = self.training.iterations == 1 && key == self.main;
        let due = (known.runs > 0 || alone) && known.planned.is_none() && !known.unplanned;
        if due && !self.training.reactive {
            self.plan(key)?;
        }
        if let Some(lap) = self.by_plan(session, number, key, fill)? {
            return Ok(lap);
        }
        if let Some(lap) = self.on_demand(session, number, key, fill)? {
            return Ok(lap);
        }
        // On demand it would get stuck: planned unseen.
        self.plan(key)?;
        let lap = self.by_plan(session, number, key, fill)?;
        lap.ok_or(TrainError::Plan(PlanError::GaveUp { limit: self.machine.memory, best: None }))
    }
}

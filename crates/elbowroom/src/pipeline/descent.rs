//! Rounds of one planner, each of which plans and packs: the limit on live memory falls until a placement fits, and then rises towards the last one
//! that did not fit.

use elbowroom_ir::packing::Placement;
use elbowroom_ir::planning::{Known, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sched::deadline::Until;
use elbowroom_sched::retry::{self, PACKING_EVALUATIONS, ROUNDS};
use elbowroom_sim::liveness;

use super::clock::Clock;
use super::evaluations::Round;
use super::fit::Fitted;
use super::origin::Origin;
use super::placing::{Placed, Placing, Unplaced, known_placement, place, problem_within};
use super::{Method, PlanError, Rounds, Task, goal, no_schedule, request};

/// Rounds that may raise the limit on live memory again, and the share of the limit below which a difference does not matter.
const RISES: usize = 3;
const NEAR: u64 = 500;

/// See the [module](self).
pub(super) struct Descent<'a> {
    task: &'a Task,
    method: &'a Method<'a>,
    clock: Clock,
    known: &'a [&'a Schedule],
    /// The iteration time that no plan can be below, if it has been computed.
    bound: Option<Nanos>,
    /// Whether this is the planner of the method, not a peer.
    pub first: bool,
    /// Whether the planner gets no packer for its candidates.
    pub sparing: bool,
    /// The rounds that have finished.
    pub rounds: Vec<Round>,
    /// Whether the clock prevented another round.
    pub cut: bool,
    /// Whether the rounds reproduce what they found.
    reproducible: bool,
}

impl<'a> Descent<'a> {
    pub fn new(
        task: &'a Task,
        method: &'a Method<'a>,
        clock: Clock,
        known: &'a [&'a Schedule],
        bound: Option<Nanos>,
    ) -> Self {
        let (first, sparing, rounds, cut, reproducible) = (false, false, Vec::new(), false, true);
        Self { task, method, clock, known, bound, first, sparing, rounds, cut, reproducible }
    }

    /// Lowers the limit on live memory until a placement fits. If the planner finds nothing, the last step was too long and is halved.
    pub fn run(&mut self, observer: &dyn Observer) -> Result<Fitted, PlanError> {
        let task = self.task;
        let limit = task.machine.memory;
        // Live memory counts every buffer rounded up to the alignment; the highest buffer may end at its last byte.
        let whole = limit.align_up(task.machine.align);
        let mut limits = retry::RoundLimits::from(whole);
        let mut lowest: Option<Bytes> = None;
        let mut made: Vec<Schedule> = Vec::new();
        for round in 0..self.most() {
            // What a short search finds after its end does not count.
            if round > 0 && !self.first && observer.interrupted() {
                break;
            }
            let Some((Outcome { best, stop, .. }, found_by)) =
                self.plan(round, limits.limit(), &made, observer)
            else {
                break;
            };
            let Some(schedule) = best else {
                let whole = limits.is_first();
                if observer.interrupted() || !limits.too_low() {
                    return Err(no_schedule(stop, whole, limit, lowest));
                }
                continue;
            };
            let peak = liveness::problem(&schedule, &task.machine).peak_live();
            let height = match self.place(round, &schedule, observer) {
                Ok(placement) => {
                    let fitted =
                        Fitted { schedule, placement, stop, found_by, reproducible: self.reproducible };
                    let taken = limits.exceeds();
                    let near = taken.saturating_sub(peak) < Bytes(limit.get() / NEAR);
                    let enough = round == 0 || near || self.method.rounds == Rounds::AtOnce;
                    return Ok(match enough || self.reaches_bound(&fitted) {
                        true => fitted,
                        false => self.rise(fitted, [peak, taken], made, observer),
                    });
                }
                Err(height) => height,
            };
            lowest = Some(lowest.map_or(height, |lowest| lowest.min(height)));
            if !limits.too_high(peak, height - limit) {
                break;
            }
            made.push(schedule);
        }
        Err(PlanError::GaveUp { limit, best: lowest })
    }

    fn reaches_bound(&self, fitted: &Fitted) -> bool {
        self.bound.is_some_and(|bound| fitted.time(self.task) <= bound)
    }

    /// Raises the limit on live memory again, because the last step down may have been too long: bisects between the highest live memory
    /// that fitted and the lowest that did not. Returns the fastest schedule that fits.
    fn rise(
        &mut self,
        fitted: Fitted,
        [mut fits, mut exceeds]: [Bytes; 2],
        mut made: Vec<Schedule>,
        observer: &dyn Observer,
    ) -> Fitted {
        let mut best = fitted;
        made.push(best.schedule.clone());
        let first = self.rounds.len();
        for round in first..(first + RISES).min(self.most()) {
            if exceeds.saturating_sub(fits) < Bytes(self.task.machine.memory.get() / NEAR) {
                break;
            }
            let between = Bytes(fits.get().midpoint(exceeds.get()));
            let Some((Outcome { best: Some(schedule), stop, .. }, found_by)) =
                self.plan(round, between, &made, observer)
            else {
                break;
            };
            match self.place(round, &schedule, observer) {
                Ok(placement) => {
                    let reproducible = self.reproducible;
                    let other =
                        Fitted { schedule: schedule.clone(), placement, stop, found_by, reproducible };
                    if other.time(self.task) < best.time(self.task) {
                        best = other;
                    }
                    if self.reaches_bound(&best) {
                        break;
                    }
                    fits = between;
                }
                Err(_) => exceeds = between,
            }
            made.push(schedule);
        }
        best
    }

    /// Packs a round's schedule. The error is the arena size that exceeds the limit.
    fn place(
        &mut self,
        round: usize,
        schedule: &Schedule,
        observer: &dyn Observer,
    ) -> Result<Placement, Bytes> {
        let machine = &self.task.machine;
        let problem = problem_within(schedule, machine);
        if let Some(placement) = known_placement(self.task, self.method, &problem) {
            return Ok(placement);
        }
        match place(problem, schedule, self.method, self.placing(round), observer) {
            Ok(Placed { placement, evaluations, long }) if placement.height <= machine.memory => {
                let record = &mut self.rounds[round];
                let counted = record.planner.max(PACKING_EVALUATIONS);
                // As a budget of evaluations, the planner's number would not let the packer search for as long.
                if self.clock.time.is_some() && evaluations > counted {
                    record.packer = Some(long);
                }
                Ok(placement)
            }
            Ok(Placed { placement, .. }) => Err(placement.height),
            Err(Unplaced { height, cut }) => {
                self.rounds[round].packer = cut;
                Err(height)
            }
        }
    }

    /// Plans one round, with who found the schedule; `None` if no time is left for it.
    fn plan(
        &mut self,
        round: usize,
        live_limit: Bytes,
        made: &[Schedule],
        observer: &dyn Observer,
    ) -> Option<(Outcome<Schedule>, String)> {
        let Method { planner, packer, budget, rounds, .. } = self.method;
        // The first round always runs, and what it found until the clock ended it counts.
        let first = round == 0;
        let watch = Until::new(observer, self.clock.end());
        let origin = Origin::new(&watch);
        self.cut = !first && watch.interrupted() && watch.cut();
        if self.cut {
            return None;
        }
        let evaluations = match rounds {
            Rounds::Recorded(recorded) => recorded.rounds.get(round).map(|round| round.planner),
            _ => budget.evaluations,
        };
        let budget = Budget { evaluations, time: self.clock.for_planning(round), ..budget.clone() };
        observer.begins(&goal(self.task, *planner, &budget));
        let packer = (!self.sparing).then_some(*packer);
        let request = Request { packer, ..request(self.task, live_limit) };
        // The schedule that was found last needs the least memory.
        let known: Vec<&Schedule> = made.iter().rev().chain(self.known.iter().copied()).collect();
        // That of a lower limit is higher.
        let bound = self.bound.filter(|_| first);
        let known = Known { bound, ..Known::schedules(&known) };
        let mut outcome = planner.schedule_from(&request, known, &budget, &origin);
        self.cut = watch.cut() && !first;
        (!self.cut).then(|| {
            if outcome.stop == StopReason::Interrupted {
                self.reproducible = false;
                if !observer.interrupted() {
                    outcome.stop = StopReason::Time;
                }
            }
            self.rounds.push(Round { planner: outcome.evaluations, packer: None });
            (outcome, origin.found_by(*planner))
        })
    }

    /// The largest number of rounds.
    fn most(&self) -> usize {
        match &self.method.rounds {
            Rounds::Recorded(recorded) => recorded.rounds.len().min(ROUNDS),
            _ => ROUNDS,
        }
    }

    /// How long the packer searches in a round.
    fn placing(&self, round: usize) -> Placing {
        match &self.method.rounds {
            Rounds::AtOnce => Placing::AtOnce,
            Rounds::AsNeeded | Rounds::Sparing
                if self.clock.time.is_none() && !(self.first && round == 0) =>
            {
                Placing::Briefly
            }
            Rounds::AsNeeded | Rounds::Sparing => Placing::Search {
                most: None,
                end: self.clock.end_of_placing(),
                last: self.clock.end_of_all(),
            },
            Rounds::Recorded(recorded) => {
                let most = recorded.rounds.get(round).and_then(|round| round.packer);
                Placing::Search { most, end: None, last: None }
            }
        }
    }
}

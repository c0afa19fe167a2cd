//! A schedule and a place for it: the planner promises load, the pipeline promises bytes of arena.
//!
//! What a planner finds is placed; if that takes more than the limit, the planner is asked again for a lower load. A planner that is never
//! behind others by its load could fall behind them by that, for theirs may fit where its own does not. So where the first schedule does
//! not fit, the others are asked too, each down to the load at which it fits, and the fastest of all is taken.
//!
//! With a time limit the clock decides how long each round looks, how long an attempt to place lasts, and after which of the others there
//! is no time left. It decides nothing that [`Evaluations`] do not tell: what was cut short anywhere else counts for nothing.

use std::time::{Duration, Instant};

use elbowroom_ir::Bytes;
use elbowroom_ir::packing::{Placement, Problem};
use elbowroom_ir::planning::{Request, Scheduler};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Infeasible, Observer, Outcome, StopReason, Unheard};
use elbowroom_sched::retry::{self, PACKING_EVALUATIONS, ROUNDS};
use elbowroom_sim::liveness;

use super::clock::Until;
use super::evaluations::{Evaluations, Round};
use super::{AT_ONCE, Method, PlanError, Rounds, Task, goal, no_schedule, request, simulate};

/// How many rounds may go up again, and the share of the limit within which a load is as good as another.
const RISES: usize = 3;
const NEAR: u64 = 500;

/// The work that the packer may do for a placement where it searches, in evaluations × blocks. Not a time: on a busy machine a placement
/// must not fail that succeeds on an idle one.
const PLACEMENT_WORK: u64 = 300_000;
/// The share of that work for a placement of many that no clock ends: those of later rounds, and those of the others.
const BRIEFLY: u64 = 16;

/// A schedule and a placement that fits the limit, not yet proved.
pub(super) struct Fitted {
    pub schedule: Schedule,
    pub placement: Placement,
    pub stop: StopReason,
}

impl Fitted {
    fn time(&self, task: &Task) -> elbowroom_ir::Nanos {
        simulate(task, &self.schedule).iteration
    }
}

/// The time that a plan may take. Where its rounds are told there is none to keep.
#[derive(Clone, Copy)]
struct Clock {
    started: Instant,
    time: Option<Duration>,
}

impl Clock {
    fn start(method: &Method<'_>) -> Self {
        let time = method.budget.time.filter(|_| !matches!(method.rounds, Rounds::Again(_)));
        Self { started: Instant::now(), time }
    }

    fn left(&self) -> Option<Duration> {
        self.time.map(|time| time.saturating_sub(self.started.elapsed()))
    }

    /// When the rounds are over.
    fn end(&self) -> Option<Instant> {
        self.time.and_then(|time| self.started.checked_add(time))
    }

    /// When everything is: the others are asked a little longer, or there would be no time left for them.
    fn very_end(&self) -> Option<Instant> {
        let time = self.time?;
        self.started.checked_add(time.saturating_add(time / 5))
    }

    /// The share of the time that is left for a round to be planned in: most placements fit at the first, but more may follow, each from
    /// what the ones before have found.
    fn for_planning(&self, round: usize) -> Option<Duration> {
        self.left().map(|left| if round == 0 { left / 3 * 2 } else { left / 3 })
    }

    /// When its placement has had its share.
    fn end_of_placing(&self) -> Option<Instant> {
        self.left().and_then(|left| Instant::now().checked_add(left / 2))
    }
}

/// How hard the packer looks.
#[derive(Clone, Copy)]
pub(super) enum Placing {
    /// A few evaluations.
    AtOnce,
    /// Until a share of its work is done.
    Briefly,
    /// Until a fixed amount of work is done, or so many evaluations; or until a moment, but not less than at once.
    Search { most: Option<u64>, end: Option<Instant> },
}

impl Placing {
    pub(super) const PATIENT: Self = Self::Search { most: None, end: None };
}

/// No place was found.
pub(super) struct NoPlace {
    /// The lowest height that the packer reached: how far that is above the limit says how far the load must fall.
    pub height: Bytes,
    /// The packer's evaluations, where the clock ended them, now or when they were told.
    pub cut: Option<u64>,
}

/// A schedule with a placement that fits: the one that the method finds, starting from `known` ones if it can. Where the first did not
/// fit, the fastest of that, of what is found at once, when little time was left for later rounds, and of what the planner's peers find,
/// as far as the time reaches; a method that only looks at once is content with its own. Beside it what makes the same again.
pub(super) fn fit(
    task: &Task,
    method: &Method<'_>,
    known: &[&Schedule],
    observer: &dyn Observer,
) -> (Result<Fitted, PlanError>, Evaluations) {
    let clock = Clock::start(method);
    let mut told = Evaluations::default();
    let mut descent = Descent { task, method, clock, known, first: true, rounds: Vec::new(), cut: false };
    let mut best = descent.run(observer);
    let mut cut = descent.cut;
    told.rounds = descent.rounds;
    let in_one_round = best.is_ok() && told.rounds.len() == 1;
    let impossible = matches!(best, Err(PlanError::Infeasible { .. }));
    if in_one_round || impossible || matches!(method.rounds, Rounds::AtOnce) {
        return (best, told);
    }
    let most = match &method.rounds {
        Rounds::Again(told) => told.others,
        _ => None,
    };
    let mut heard = 0;
    for other in others(task, method, &told, best.is_ok(), !known.is_empty()) {
        // A placement that is found at once is looked for even if the time is over, unless there is another.
        let end = clock.very_end().filter(|_| best.is_ok() || other.rounds != Rounds::AtOnce);
        let watch = Until::new(observer, end);
        if most.is_some_and(|most| heard >= most) || watch.interrupted() {
            cut |= watch.cut();
            break;
        }
        let Other { scheduler, evaluations, rounds } = other;
        let budget = Budget { evaluations: Some(evaluations), time: None, ..method.budget.clone() };
        let quick = Method { scheduler, budget, rounds, ..method.clone() };
        let clock = Clock::start(&quick);
        let mut descent =
            Descent { task, method: &quick, clock, known: &[], first: false, rounds: Vec::new(), cut: false };
        let found = descent.run(&Unheard(&watch));
        if watch.cut() {
            cut = true;
            break;
        }
        heard += 1;
        if let Ok(other) = found
            && best.as_ref().map_or(true, |best| other.time(task) < best.time(task))
        {
            best = Ok(other);
        }
    }
    told.others = if cut { Some(heard) } else { most };
    (best, told)
}

/// A short search for another plan.
struct Other<'a> {
    scheduler: &'a dyn Scheduler,
    evaluations: u64,
    rounds: Rounds,
}

/// Who else is asked where the first schedule found no place, in this order: as long as nothing `is_found`, everybody with a placement at
/// once; then everybody with a longer one.
fn others<'a>(
    task: &Task,
    method: &Method<'a>,
    told: &Evaluations,
    is_found: bool,
    started_from_known: bool,
) -> Vec<Other<'a>> {
    let most = told.rounds.iter().map(|round| round.planner).max().unwrap_or_default();
    let own = Other { scheduler: method.scheduler, evaluations: most.min(AT_ONCE), rounds: Rounds::AsNeeded };
    let peer = |scheduler| Other { scheduler, evaluations: AT_ONCE, rounds: Rounds::AsNeeded };
    let peers = method.scheduler.peers(&task.trace).into_iter().map(peer);
    let all: Vec<Other<'a>> = std::iter::once(own).chain(peers).collect();
    let at_once = all.iter().filter(|_| !is_found).map(|other| Other { rounds: Rounds::AtOnce, ..*other });
    let at_once: Vec<Other<'a>> = at_once.collect();
    // Few evaluations have just made the same as they would at once.
    let same = matches!(method.rounds, Rounds::AsNeeded)
        && method.budget.evaluations.is_some_and(|evaluations| evaluations <= AT_ONCE)
        && method.budget.time.is_none()
        && !started_from_known;
    at_once.into_iter().chain(all.into_iter().skip(usize::from(same))).collect()
}

/// Asks for schedules of ever lower load until one's placement fits, and then for a few between that and the last that did not.
struct Descent<'a> {
    task: &'a Task,
    method: &'a Method<'a>,
    clock: Clock,
    known: &'a [&'a Schedule],
    /// Whether it is the planner that was asked for.
    first: bool,
    /// The rounds so far.
    rounds: Vec<Round>,
    /// Whether there would have been another round, but no time for it.
    cut: bool,
}

impl Descent<'_> {
    /// Goes down. A load that is too low for the planner says that the last step was too long, and halves it.
    fn run(&mut self, observer: &dyn Observer) -> Result<Fitted, PlanError> {
        let task = self.task;
        let limit = task.machine.memory;
        // Loads count every buffer rounded up to the alignment; the highest one may end where its bytes end.
        let whole = limit.align_up(task.machine.align);
        let mut limits = retry::RoundLimits::from(whole);
        let mut lowest: Option<Bytes> = None;
        let mut made: Vec<Schedule> = Vec::new();
        for round in 0..self.most() {
            let Some(Outcome { best, stop, .. }) = self.plan(round, limits.limit(), &made, observer) else {
                break;
            };
            let Some(schedule) = best else {
                let whole = limits.is_first();
                if observer.interrupted() || !limits.too_low() {
                    return Err(no_schedule(stop, whole, limit, lowest));
                }
                continue;
            };
            let load = liveness::problem(&schedule, &task.machine).peak_load();
            let height = match self.place(round, &schedule, observer) {
                Ok(placement) => {
                    let fitted = Fitted { schedule, placement, stop };
                    let taken = limits.exceeds();
                    let near = taken.saturating_sub(load) < Bytes(limit.get() / NEAR);
                    return Ok(match round == 0 || near || self.method.rounds == Rounds::AtOnce {
                        true => fitted,
                        false => self.rise(fitted, [load, taken], made, observer),
                    });
                }
                Err(height) => height,
            };
            lowest = Some(lowest.map_or(height, |lowest| lowest.min(height)));
            if !limits.too_high(load, height - limit) {
                break;
            }
            made.push(schedule);
        }
        Err(PlanError::GaveUp { limit, best: lowest })
    }

    /// Goes up again, for the step down may have been longer than it need be: halves the way between the highest load that has fitted and
    /// the lowest that has not. Returns the fastest that fits.
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
            let Some(Outcome { best: Some(schedule), stop, .. }) = self.plan(round, between, &made, observer)
            else {
                break;
            };
            match self.place(round, &schedule, observer) {
                Ok(placement) => {
                    let other = Fitted { schedule: schedule.clone(), placement, stop };
                    if other.time(self.task) < best.time(self.task) {
                        best = other;
                    }
                    fits = between;
                }
                Err(_) => exceeds = between,
            }
            made.push(schedule);
        }
        best
    }

    /// A place for a round's schedule, or the height that is too much.
    fn place(
        &mut self,
        round: usize,
        schedule: &Schedule,
        observer: &dyn Observer,
    ) -> Result<Placement, Bytes> {
        let machine = &self.task.machine;
        let capacity = Some(machine.memory.align_up(machine.align));
        let problem = Problem { capacity, ..liveness::problem(schedule, machine) };
        match place(problem, schedule, self.method, self.placing(round), observer) {
            Ok(placement) if placement.height <= machine.memory => Ok(placement),
            Ok(placement) => Err(placement.height),
            Err(NoPlace { height, cut }) => {
                self.rounds[round].packer = cut;
                Err(height)
            }
        }
    }

    /// One round's schedule; `None` if there is no time for it.
    fn plan(
        &mut self,
        round: usize,
        load_limit: Bytes,
        made: &[Schedule],
        observer: &dyn Observer,
    ) -> Option<Outcome<Schedule>> {
        let Method { scheduler, packer, budget, rounds } = self.method;
        // The first round is made whatever the clock says.
        let watch = Until::new(observer, self.clock.end().filter(|_| round > 0));
        self.cut = round > 0 && watch.interrupted() && watch.cut();
        if self.cut {
            return None;
        }
        let evaluations = match rounds {
            Rounds::Again(told) => told.rounds.get(round).map(|round| round.planner),
            _ => budget.evaluations,
        };
        let budget = Budget { evaluations, time: self.clock.for_planning(round), ..budget.clone() };
        observer.begins(&goal(self.task, *scheduler, &budget));
        let request = Request { packer: Some(*packer), ..request(self.task, load_limit) };
        // The last to have been found needs the least.
        let known: Vec<&Schedule> = made.iter().rev().chain(self.known.iter().copied()).collect();
        let outcome = scheduler.schedule_from(&request, &known, &budget, &watch);
        self.cut = watch.cut();
        (!self.cut).then(|| {
            self.rounds.push(Round { planner: outcome.evaluations, packer: None });
            outcome
        })
    }

    /// How many rounds there may be.
    fn most(&self) -> usize {
        match &self.method.rounds {
            Rounds::Again(told) => told.rounds.len().min(ROUNDS),
            _ => ROUNDS,
        }
    }

    /// How hard to look for the place of a round's schedule.
    fn placing(&self, round: usize) -> Placing {
        match &self.method.rounds {
            Rounds::AtOnce => Placing::AtOnce,
            Rounds::AsNeeded if self.clock.time.is_none() && !(self.first && round == 0) => Placing::Briefly,
            Rounds::AsNeeded => Placing::Search { most: None, end: self.clock.end_of_placing() },
            Rounds::Again(told) => {
                Placing::Search { most: told.rounds.get(round).and_then(|round| round.packer), end: None }
            }
        }
    }
}

/// A placement within the problem's capacity (the lowest without one), or how near one came.
///
/// Blocks are rounded up to the alignment, buffers are not: the highest one ends where its bytes end.
pub(super) fn place(
    problem: Problem,
    schedule: &Schedule,
    method: &Method<'_>,
    placing: Placing,
    observer: &dyn Observer,
) -> Result<Placement, NoPlace> {
    let pack = |evaluations: u64, observer: &dyn Observer| {
        let budget = Budget { evaluations: Some(evaluations), time: None, ..method.budget.clone() };
        method.packer.pack(&problem, &budget, &Unheard(observer))
    };
    let work = (PLACEMENT_WORK / problem.blocks.len().max(1) as u64).max(PACKING_EVALUATIONS);
    let (outcome, cut) = match placing {
        Placing::AtOnce => (pack(PACKING_EVALUATIONS, observer), None),
        Placing::Briefly => {
            let most = (work / BRIEFLY).max(PACKING_EVALUATIONS);
            (pack(most, observer), Some(most))
        }
        Placing::Search { most, end } => {
            let watch = Until::new(observer, end);
            let outcome = pack(most.unwrap_or(work), &watch);
            if outcome.best.is_some() || !watch.cut() {
                (outcome, most)
            } else if outcome.evaluations < PACKING_EVALUATIONS {
                (pack(PACKING_EVALUATIONS, observer), Some(PACKING_EVALUATIONS))
            } else {
                let evaluations = outcome.evaluations;
                (outcome, Some(evaluations))
            }
        }
    };
    let Some(placement) = outcome.best else {
        let unknown = problem.capacity.unwrap_or_default() + Bytes(1);
        let height = match outcome.stop {
            StopReason::GaveUp { best: Some(best) } => best,
            StopReason::Infeasible(proof) => match *proof {
                Infeasible::Blocks { needed, .. } => needed.max(unknown),
                Infeasible::Op { .. } => unknown,
            },
            _ => unknown,
        };
        return Err(NoPlace { height, cut });
    };
    let offsets = placement.offsets;
    Ok(Placement { height: liveness::height(schedule, &offsets), offsets })
}

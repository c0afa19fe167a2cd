//! A series of rounds under a time limit, for planners that continue from known schedules: short rounds first, each of which plans *and* packs.
//!
//! The budget of a round depends on the rounds before it alone, never on the time limit: it is small while nothing can be packed, and
//! doubles with every round that is not about packing. So a longer time limit only appends rounds to those of a shorter one, and because the
//! fastest plan that is already packed is kept, more time gives no slower plan, up to what the last round, which the clock ends, happens to
//! find. A schedule that cannot be packed lowers the limit on live memory of the rounds that follow, one that is packed raises it
//! again, and only a schedule that is faster than the fastest packed one is packed at all.
//!
//! Rounds of different [freedom](Track) take turns: most have the link and keep the trace's order, some do without the link, and some search in
//! another order where that is permitted. The tracks with another freedom than most rounds get more rounds as soon as they lead. So more freedom
//! costs a share of the time, but does not hide what less of it finds. Until a schedule has been packed, every round keeps the trace's order.
//!
//! [`Evaluations::continued`] are those of the rounds up to the one that found the plan, and reproduce it.

use std::cell::OnceCell;

use elbowroom_ir::packing::Placement;
use elbowroom_ir::planning::{Freedom, Known, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, InterruptOnly, Observer, Outcome, StopReason};
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sched::deadline::Until;
use elbowroom_sim::bound::lower_bound;
use elbowroom_sim::liveness;

use super::clock::Clock;
use super::evaluations::{Evaluations, Round};
use super::fit::{Fitted, at_once};
use super::live_limit::LiveLimit;
use super::origin::Origin;
use super::placing::{Placed, Placing, Unplaced, known_placement, place, problem_within};
use super::{AT_ONCE, Method, PlanError, Rounds, Task, goal, no_schedule, request, simulate};

/// Evaluations of the planner in rounds of level 0. Each level has twice the evaluations of the one before.
const FIRST: u64 = 5_000;
/// On traces of more ops than the first of these they are fewer, because an evaluation takes longer, and on traces of more than the second fewer
/// with the square of the ops, because all else before the first schedule is packed takes longer, too.
const TYPICAL: u64 = 1_700;
const LONG: u64 = 4_000;
/// The highest level.
const LEVELS: u32 = 24;
/// Schedules in succession that cannot be packed, after which the level rises nevertheless: a longer packing attempt may succeed.
const FAILURES: u32 = 4;
/// Levels of rounds for one of packing attempts, which take longer than the rounds if they grow as fast.
const PACKING: u32 = 3;
/// By how many levels rounds are shorter that follow a schedule which could not be packed: they lower the live memory of what was found.
const SHORTER: u32 = 2;
/// Rounds are of level 0 while no schedule has been packed, and shorter by this factor after one that could not be packed.
const HURRY: u64 = 8;
/// The largest number of rounds.
const MOST: usize = 128;
/// Of this many rounds the last has another freedom than the main track, the one before is of the track that leads, and the others are of the
/// main track.
const TURNS: usize = 3;
/// Rounds without any plan that can be packed, after which the planner's peers are run.
const PATIENCE: usize = 6;
/// Schedules that could not be packed, the latest, from which a round continues.
const UNPACKED: usize = 2;

/// Runs the series: until the clock ends it, or the recorded rounds have been made. Returns the fastest schedule that was packed.
pub(super) fn series(
    task: &Task,
    method: &Method<'_>,
    clock: Clock,
    known: &[&Schedule],
    bound: Nanos,
    observer: &dyn Observer,
) -> (Result<Fitted, PlanError>, Evaluations) {
    let mut series = Series::new(task, method, clock, known, bound);
    let refused = series.run(bound, observer).err();
    let Series { best, rounds, lowest, peers_finished, .. } = series;
    let record = |rounds: Vec<Round>| Evaluations {
        rounds,
        continued: true,
        peer_searches: peers_finished,
        ..Evaluations::default()
    };
    match (best, refused) {
        (Some(Best { fitted, rounds: made, .. }), _) => (Ok(fitted), record(rounds[..made].to_vec())),
        (None, Some(refused)) => (Err(refused), record(rounds)),
        (None, None) => (Err(PlanError::GaveUp { limit: task.machine.memory, best: lowest }), record(rounds)),
    }
}

/// The fastest plan, and after how many rounds it was found.
struct Best {
    /// The shortest iteration time of the schedules that have been packed, as the search sees it: with all waits. Only what is below is packed.
    time: Nanos,
    /// The iteration time of the plan, without the waits that its placement makes superfluous.
    placed: Nanos,
    fitted: Fitted,
    rounds: usize,
    /// The track that found it.
    track: Option<usize>,
}

/// The rounds that decide with the same freedom.
struct Track {
    freedom: Freedom,
    /// The iteration time that none of its plans can be below: computed when it is asked for, since a short series has no round of most tracks.
    bound: OnceCell<Nanos>,
    limit: LiveLimit,
    /// How long its rounds are, and how many in succession failed to pack.
    level: u32,
    failures: u32,
    /// The fastest of its schedules that has been packed.
    packed: Option<(Nanos, Schedule)>,
    /// Its schedules that could not be packed, the latest last.
    unpacked: Vec<Schedule>,
    /// Whether it has had a round, and whether it is proved that it needs no other.
    begun: bool,
    over: bool,
}

struct Series<'a> {
    task: &'a Task,
    method: &'a Method<'a>,
    clock: Clock,
    known: &'a [&'a Schedule],
    tracks: Vec<Track>,
    best: Option<Best>,
    rounds: Vec<Round>,
    /// The smallest arena size that the packer reached without success.
    lowest: Option<Bytes>,
    /// Searches of peers that finished if the clock ended one.
    peers_finished: Option<u32>,
    asked_peers: bool,
    /// Whether no interruption has changed what the rounds so far found.
    reproducible: bool,
}

impl<'a> Series<'a> {
    fn new(
        task: &'a Task,
        method: &'a Method<'a>,
        clock: Clock,
        known: &'a [&'a Schedule],
        bound: Nanos,
    ) -> Self {
        let whole = task.machine.memory.align_up(task.machine.align);
        let track = |freedom| Track {
            freedom,
            bound: if freedom == task.freedom { OnceCell::from(bound) } else { OnceCell::new() },
            limit: LiveLimit::from(whole, task.machine.align),
            level: 0,
            failures: 0,
            packed: None,
            unpacked: Vec::new(),
            begun: false,
            over: false,
        };
        let tracks = freedoms(task).into_iter().map(track).collect();
        let (best, rounds, lowest, peers_finished) = (None, Vec::new(), None, None);
        Self {
            task,
            method,
            clock,
            known,
            tracks,
            best,
            rounds,
            lowest,
            peers_finished,
            asked_peers: false,
            reproducible: true,
        }
    }

    /// The error is a proof that there is no plan.
    fn run(&mut self, bound: Nanos, observer: &dyn Observer) -> Result<(), PlanError> {
        for round in 0..self.most() {
            if round == PATIENCE && self.best.is_none() {
                self.run_peers(observer);
            }
            let reached = self.best.as_ref().is_some_and(|best| best.placed <= bound);
            let Some(track) = self.turn(round) else { break };
            if reached || !self.round(round, track, observer)? || observer.interrupted() {
                break;
            }
        }
        // The record of what a peer found ends with these rounds.
        if self.rounds.len() == PATIENCE && self.best.is_none() && !self.asked_peers {
            self.run_peers(observer);
        }
        Ok(())
    }

    fn most(&self) -> usize {
        match &self.method.rounds {
            Rounds::Recorded(recorded) => recorded.rounds.len().min(MOST),
            _ => MOST,
        }
    }

    /// The track that has this round.
    fn turn(&self, round: usize) -> Option<usize> {
        let best = self.best.as_ref().map(|best| best.placed);
        let open = |track: &&usize| {
            let track = &self.tracks[**track];
            !track.over && best.is_none_or(|best| track.bound(self.task) < best)
        };
        // Those that keep the order first, as long as nothing is packed no others, unless these are over.
        let main = self.main();
        let order: Vec<usize> = (main..self.tracks.len()).chain(0..main).collect();
        let others = if best.is_some() { &order[1..] } else { &order[1..order.len() - main] };
        // A faster schedule that could not be packed is repaired at once: what it is worth would be found again otherwise.
        let repairs = |track: &usize| (1..FAILURES).contains(&self.tracks[*track].failures);
        let repaired = [self.leader(), main].into_iter().find(repairs);
        let own = repaired.unwrap_or(match round % TURNS {
            turn if turn == TURNS - 1 && !others.is_empty() => others[round / TURNS % others.len()],
            turn if turn == TURNS - 2 => self.leader(),
            _ => main,
        });
        [own].iter().chain(&order).find(open).copied()
    }

    /// The track with most freedom of those that keep the trace's order.
    fn main(&self) -> usize {
        self.tracks.iter().position(|track| !track.freedom.reorder).unwrap_or(0)
    }

    /// The track that found the fastest plan; the main one as long as there is none.
    fn leader(&self) -> usize {
        self.best.as_ref().and_then(|best| best.track).unwrap_or(self.main())
    }

    /// Plans and packs once; returns whether there may be another round.
    fn round(&mut self, round: usize, index: usize, observer: &dyn Observer) -> Result<bool, PlanError> {
        let clock = self.clock;
        if round > 0 && clock.nearly_over() {
            return Ok(false);
        }
        let Some((Outcome { best, stop, .. }, found_by, ended)) = self.plan(round, index, observer) else {
            return Ok(false);
        };
        let (task, track) = (self.task, &mut self.tracks[index]);
        let whole = track.limit.is_whole();
        let Some(schedule) = best else {
            match (&stop, whole) {
                (StopReason::Infeasible(_), true) if index == 0 => {
                    return Err(no_schedule(stop, true, task.machine.memory, None));
                }
                (StopReason::Infeasible(_), true) => track.over = true,
                _ => {
                    track.limit.too_low();
                    track.failed();
                    // What was known could not be repaired: the next round makes warm starts.
                    track.begun = false;
                }
            }
            return Ok(!ended);
        };
        let time = simulate(task, &schedule).iteration;
        let peak = liveness::problem(&schedule, &task.machine).peak_live();
        if self.best.as_ref().is_some_and(|best| best.time <= time) {
            track.limit.rise();
            track.settled();
            // What a search proves at the whole limit, no other search improves on.
            track.over |= whole && stop == StopReason::Optimal;
            return Ok(!ended);
        }
        match self.pack(index, &schedule, observer) {
            Ok(placement) => {
                let track = &mut self.tracks[index];
                track.over |= whole && stop == StopReason::Optimal;
                track.limit.fits();
                track.settled();
                track.packed = Some((time, schedule.clone()));
                let reproducible = self.reproducible;
                let fitted = Fitted { schedule, placement, stop, found_by, reproducible };
                self.hand_over(index);
                self.take(time, fitted, Some(index));
            }
            Err(height) => {
                let track = &mut self.tracks[index];
                track.limit.exceeds(peak, height.saturating_sub(task.machine.memory));
                track.failed();
                track.unpacked.push(schedule);
                self.lowest = Some(self.lowest.map_or(height, |lowest| lowest.min(height)));
            }
        }
        Ok(!ended)
    }

    /// Takes over a schedule that has been packed. With fewer waits, one that is faster with all of them may be slower.
    fn take(&mut self, time: Nanos, fitted: Fitted, track: Option<usize>) {
        let placed = fitted.time(self.task);
        match &mut self.best {
            Some(best) if best.placed <= placed => best.time = best.time.min(time),
            best => *best = Some(Best { time, placed, fitted, rounds: self.rounds.len(), track }),
        }
    }

    /// With the first packed schedule, of a track that keeps the order, the tracks that do not go on from where those are that do.
    fn hand_over(&mut self, index: usize) {
        let main = self.main();
        if self.best.is_some() || index < main {
            return;
        }
        let (free, in_order) = self.tracks.split_at_mut(main);
        for (track, known) in free.iter_mut().zip(in_order) {
            let Track { limit, level, failures, begun, .. } = *known;
            (track.limit, track.level, track.failures, track.begun) = (limit, level, failures, begun);
            track.unpacked.clone_from(&known.unpacked);
        }
    }

    /// The level of a track's next round. Those that neither are the main one nor lead stay behind, so that they take a small share of the time.
    fn level(&self, index: usize) -> u32 {
        let (own, main) = (self.tracks[index].level, self.main());
        match index == main || index == self.leader() {
            true => own,
            false => own.min(self.tracks[main].level.saturating_sub(1)),
        }
    }

    /// Plans a round, with who found the schedule and whether the clock ended it; `None` if it ended before anything could be counted.
    fn plan(
        &mut self,
        round: usize,
        index: usize,
        observer: &dyn Observer,
    ) -> Option<(Outcome<Schedule>, String, bool)> {
        let Method { planner, packer, budget, rounds, .. } = self.method;
        let level = self.level(index);
        let track = &mut self.tracks[index];
        let track_failed = track.failures > 0;
        let watch = Until::new(observer, self.clock.end_of_all());
        let origin = Origin::new(&watch);
        let shortest = first(self.task.trace.ops().len());
        // A schedule that can be packed at all comes first.
        let horizon = match self.best {
            None if track_failed => shortest.div_ceil(HURRY),
            None => shortest,
            Some(_) if track_failed => shortest << level.saturating_sub(SHORTER),
            Some(_) => shortest << level,
        };
        let evaluations = match rounds {
            Rounds::Recorded(recorded) => recorded.rounds[round].planner,
            _ => horizon,
        };
        let budget = Budget {
            evaluations: Some(evaluations),
            time: self.clock.for_round(),
            seed: budget.seed.wrapping_add(round as u64),
            ..budget.clone()
        };
        observer.begins(&goal(self.task, *planner, &budget));
        let request = Request {
            packer: Some(*packer),
            freedom: track.freedom,
            ..request(self.task, track.limit.limit())
        };
        let best = self.best.as_ref().map(|best| &best.fitted.schedule);
        let own = track.packed.as_ref().map(|(_, schedule)| schedule);
        let unpacked = track.unpacked.iter().rev().take(UNPACKED);
        let mut known: Vec<&Schedule> = best.into_iter().chain(own).chain(unpacked).collect();
        known.dedup();
        known.extend(self.known);
        let horizon = std::mem::replace(&mut track.begun, true).then_some(horizon);
        let known = Known { schedules: &known, bound: Some(track.bound(self.task)), horizon };
        let mut outcome = planner.schedule_from(&request, known, &budget, &origin);
        if outcome.stop == StopReason::Interrupted {
            if watch.cut() && round > 0 {
                return None;
            }
            self.reproducible = false;
            if !observer.interrupted() {
                outcome.stop = StopReason::Time;
            }
        }
        let ended = outcome.stop == StopReason::Time;
        self.rounds.push(Round { planner: outcome.evaluations, packer: None });
        Some((outcome, origin.found_by(*planner), ended))
    }

    /// Packs a round's schedule. The error is the arena size that the packer reached.
    fn pack(&self, index: usize, schedule: &Schedule, observer: &dyn Observer) -> Result<Placement, Bytes> {
        let machine = &self.task.machine;
        let problem = problem_within(schedule, machine);
        if let Some(placement) = known_placement(self.task, self.method, &problem) {
            return Ok(placement);
        }
        let end = self.clock.end_of_all();
        let placing = Placing::Search {
            most: Some(Placing::at_level(&problem, self.level(index) / PACKING)),
            end,
            last: end,
        };
        match place(problem, schedule, self.method, placing, observer) {
            Ok(Placed { placement, .. }) if placement.height <= machine.memory => Ok(placement),
            Ok(Placed { placement, .. }) => Err(placement.height),
            Err(Unplaced { height, .. }) => Err(height),
        }
    }

    /// Short searches of the planner's peers, whose schedules may be packed where the planner's own cannot.
    fn run_peers(&mut self, observer: &dyn Observer) {
        let most = match &self.method.rounds {
            Rounds::Recorded(recorded) => recorded.peer_searches,
            _ => None,
        };
        self.asked_peers = true;
        for (finished, peer) in (0u32..).zip(self.method.planner.peers(&self.task.trace)) {
            let watch = Until::new(observer, self.clock.end_of_peers());
            if most.is_some_and(|most| finished >= most) || watch.interrupted() {
                self.peers_finished = Some(finished);
                return;
            }
            let budget = Budget { evaluations: Some(AT_ONCE), time: None, ..self.method.budget.clone() };
            let quick = Method { planner: peer, budget, rounds: Rounds::AtOnce, ..self.method.clone() };
            let found = at_once(self.task, &quick, &InterruptOnly(&watch));
            if watch.interrupted() {
                self.peers_finished = Some(finished);
                return;
            }
            let Some(fitted) = found else { continue };
            self.take(simulate(self.task, &fitted.schedule).iteration, fitted, None);
        }
    }
}

impl Track {
    fn bound(&self, task: &Task) -> Nanos {
        let whole = task.machine.memory.align_up(task.machine.align);
        *self.bound.get_or_init(|| lower_bound(&Request { freedom: self.freedom, ..request(task, whole) }))
    }

    /// A round ended without a question about packing: the next one searches for longer.
    fn settled(&mut self) {
        (self.level, self.failures) = ((self.level + 1).min(LEVELS), 0);
    }

    /// A round ended without a plan.
    fn failed(&mut self) {
        self.failures += 1;
        if self.failures >= FAILURES {
            self.settled();
        }
    }
}

/// Evaluations of a round of level 0 for a trace of this many ops.
fn first(ops: usize) -> u64 {
    let ops = ops as u64;
    let [typical, long] = [ops.max(TYPICAL), ops.max(LONG)];
    (FIRST * TYPICAL / typical).min(FIRST * LONG / long * LONG / long).max(1)
}

/// What the tracks may decide: what the task permits, then less of it.
fn freedoms(task: &Task) -> Vec<Freedom> {
    let all = task.freedom;
    let mut freedoms = vec![all];
    let hosted = task.pins.as_ref().is_some_and(|pins| !pins.hosted.is_empty());
    let alone = Freedom { offload: false, ..all };
    let floor = elbowroom_sim::bound::floor(&task.trace, alone, task.machine.align);
    if all.offload && all.recompute && !hosted && floor.is_none_or(|floor| floor.bytes <= task.machine.memory)
    {
        freedoms.push(alone);
    }
    if all.reorder {
        let in_order = |freedom: Freedom| Freedom { reorder: false, ..freedom };
        freedoms.extend(freedoms.clone().into_iter().map(in_order));
    }
    freedoms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rounds_of_long_traces_are_short() {
        assert_eq!(first(1), FIRST);
        assert_eq!(first(TYPICAL as usize), FIRST);
        let lengths = [5_000, 6_000, 14_442, 50_000, 1 << 20];
        assert!(lengths.windows(2).all(|two| first(two[0]) > first(two[1])));
        // The work of a round falls, too.
        assert!(50_000 * first(50_000) < 5_000 * first(5_000) / 5);
        assert_eq!(first(usize::MAX), 1);
    }

    #[test]
    fn rounds_grow_where_packing_is_not_the_question() {
        let whole = Bytes(10_000);
        let freedom = Freedom::ALL;
        let (limit, unpacked, bound) = (LiveLimit::from(whole, Bytes(1)), Vec::new(), OnceCell::new());
        let (level, failures, packed, begun, over) = (0, 0, None, false, false);
        let mut track = Track { freedom, bound, limit, level, failures, packed, unpacked, begun, over };
        (1..FAILURES).for_each(|_| track.failed());
        assert_eq!(track.level, 0);
        track.failed();
        assert_eq!(track.level, 1, "a longer attempt may pack what a short one did not");
        (0..2 * LEVELS).for_each(|_| track.settled());
        assert!(FIRST.checked_shl(track.level).is_some_and(|evaluations| evaluations > 1 << 32));
    }
}

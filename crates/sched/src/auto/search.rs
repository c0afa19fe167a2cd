//! Several walks in parallel, in slices, so that the result depends on the seed and the number of moves only.
//!
//! The number of walks is fixed, whatever the number of threads. A slice is a fixed number of moves of every walk; the clock and the observer
//! are consulted between slices. Slices make cycles, each cooling from hot to cold and twice as long as the one before; at the end of a cycle
//! the walks that have fallen behind continue from the best sequence so far.

use std::sync::Arc;
use std::time::Instant;

use elbowroom_ir::search::{Budget, Observer, StopReason};

use elbowroom_ir::planning::{Freedom, Request};

use elbowroom_sim::bound::floor;

use super::anneal::AnnealWalk;
use super::instance::Instance;
use super::joint::{self, JointWalk};
use super::sequence::Decisions;
use super::state::{AnnealState, Copies};
use super::warm::{EARLIER, LONG, WarmStart};
use super::window::WindowSearch;

/// Walks, whatever the number of threads.
const WALKS: usize = 4;
/// The walk that begins anew in every cycle.
const ANEW: usize = 1;
/// Searchers of windows, one around the best and one around what the walk that begins anew has found, and the nodes that they visit in a
/// slice: a node costs many times what a move costs.
const WINDOWS: usize = 2;
const NODES: u64 = 40;

/// Moves of each walk between two looks at the clock, for traces of up to [`TYPICAL`] ops: on longer ones a move costs more.
const SLICE: u64 = 1_000;
pub(crate) const TYPICAL: usize = 1_000;
/// Slices of the first cycle and of the longest.
const FIRST_CYCLE: u64 = 2;
const LONGEST_CYCLE: u64 = 128;
/// Slices of the shortest cycle of joint walks that does not wait for scouts, and the same for a search that goes on, whose starts are better.
const PATIENCE: u64 = 128;
const CONTINUED_PATIENCE: u64 = 9;
/// By how much the first cycles over repeats alone are longer on long traces, where a slice is short and a joint step costs so much that
/// walks pay off sooner.
const LONGER: u64 = 4;

/// Where each walk starts to cool, in mean durations of an op; all of them cool by the same factor.
const HEAT: [f64; WALKS] = [0.25, 0.5, 0.125, 1.0];
const COOLING: f64 = 1.0 / 60.0;

/// Steps of each joint walk between two looks at the clock: a step costs many times what a move costs.
const JOINT_SLICE: u64 = 40;
/// Slices of joint walks per slice of the others, and the same as a ratio for a search that goes on.
const JOINT_SHARE: u64 = 4;
const CONTINUED_SHARE: [u64; 2] = [3, 2];

/// By how much scouts lengthen each copy for what it may wait, and the share of the time that they may spend on copies.
const WAITS: [f64; WALKS] = [1.0, 1.3, 1.7, 2.5];
const CROWDED: [f64; WALKS] = [1.0, 0.9, 0.75, 0.6];

/// What a search found.
#[derive(Clone, Debug)]
pub(crate) struct SearchResult {
    /// The shortest iteration that fits.
    pub best: Option<(u64, Decisions)>,
    /// The shortest of every joint walk.
    pub joint: Vec<(u64, Decisions)>,
    /// Moves and steps tried.
    pub evaluations: u64,
    /// Why it ended.
    pub stop: StopReason,
}

impl SearchResult {
    /// That of no search, after this many evaluations of other planners.
    pub(crate) fn without_search(evaluations: u64, stop: StopReason) -> Self {
        Self { best: None, joint: Vec::new(), evaluations, stop }
    }
}

/// The walks and what they have found.
struct ParallelSearch<'a> {
    walks: Vec<AnnealWalk<'a>>,
    /// Walks in which copies take time, from which the joint ones start.
    scouts: Vec<AnnealWalk<'a>>,
    /// Searchers of windows around the best that the walks have found.
    windows: Vec<WindowSearch<'a>>,
    joints: Vec<JointWalk<'a>>,
    /// Cycles of fewer slices wait until a scout has found something.
    patience: u64,
    /// Whether the trace is so long that to repair a schedule that keeps everything takes longer than a whole round.
    long: bool,
    best: Option<(u64, Decisions)>,
    /// The best without copies.
    alone: Option<(u64, Decisions)>,
    evaluations: u64,
    bound: u64,
    mean: f64,
    /// Moves and steps of a slice.
    slices: [u64; 2],
    /// The ratio of slices of joint walks to slices of the others.
    joint_share: [u64; 2],
    start: Instant,
    budget: &'a Budget,
    observer: &'a dyn Observer,
}

/// Searches until the budget ends. No iteration can be shorter than `bound`. A search with a horizon goes on from what is known.
pub(crate) fn search<'a>(
    request: &'a Request<'a>,
    inst: &'a Instance,
    warm: &[WarmStart],
    (horizon, bound): (Option<u64>, u64),
    budget: &'a Budget,
    observer: &'a dyn Observer,
) -> SearchResult {
    let state = AnnealState::new(inst);
    let seed = |i: u64| budget.seed.wrapping_mul(2 * WALKS as u64).wrapping_add(i);
    let continues = horizon.is_some() || !warm.is_empty() && warm.iter().all(|warm| warm.by == EARLIER);
    let copies = joint::can_copy(request);
    // What a search that goes on starts from is faster than what recompute alone finds: with copies it leaves that to searches without a link.
    let fits_alone = request.freedom.recompute && can_fit_alone(request);
    let recompute = fits_alone && !(continues && copies);
    let walks = (0..WALKS as u64).filter(|_| recompute).map(|i| AnnealWalk::new(state.clone(), seed(i)));
    let windows = (0..WINDOWS as u64).filter(|_| recompute);
    let windows = windows.map(|i| WindowSearch::new(state.clone(), !seed(i)));
    let joints = (0..WALKS as u64).filter(|_| copies);
    let joints = joints.map(|i| JointWalk::new(request, state.clone(), seed(i + WALKS as u64)));
    let mut search = ParallelSearch {
        walks: walks.collect(),
        windows: windows.collect(),
        scouts: if copies { scouts(request, &state, budget.seed) } else { Vec::new() },
        joints: joints.collect(),
        patience: match continues {
            _ if fits_alone || inst.ops.len() <= TYPICAL => 0,
            true => CONTINUED_PATIENCE,
            false => PATIENCE,
        },
        long: inst.ops.len() > LONG,
        best: None,
        alone: None,
        evaluations: 0,
        bound,
        mean: inst.total as f64 / inst.ops.len().max(1) as f64,
        slices: [SLICE, JOINT_SLICE]
            .map(|length| (length * TYPICAL as u64 / inst.ops.len().max(TYPICAL) as u64).max(4)),
        joint_share: [JOINT_SHARE, 1],
        start: Instant::now(),
        budget,
        observer,
    };
    // The best starts that recompute alone, and the best of all; the first walks begin from nothing.
    let alone = warm.iter().filter(|warm| warm.decisions.prefetches.is_empty());
    for (walk, warm) in search.walks.iter_mut().rev().zip(alone) {
        walk.editor.jump(&warm.decisions.repeats, &[]);
    }
    for (joint, warm) in search.joints.iter_mut().rev().zip(warm) {
        joint.jump(&warm.decisions);
    }
    // What fits of that, or could be repaired, is found even if there is no time left.
    search.alone = search.walks.iter().fold(None, |best, walk| better(best, &walk.fitting()));
    search.collect();
    let stop = if continues { search.go_on(warm, horizon) } else { search.run(FIRST_CYCLE) };
    let joint = search.joints.into_iter().filter_map(|walk| walk.best).collect();
    SearchResult { best: search.best, joint, evaluations: search.evaluations, stop }
}

/// Whether it has not been proved that recompute alone cannot keep to the limit: where parameters must leave, walks without copies would take
/// evaluations and find nothing.
pub(crate) fn can_fit_alone(request: &Request<'_>) -> bool {
    let alone = Freedom { offload: false, ..request.freedom };
    floor(request.trace, alone, request.machine.align).is_none_or(|floor| floor.bytes <= request.live_limit)
}

/// Walks in which copies take time, each with another view of how crowded the link may become.
fn scouts<'a>(request: &Request<'_>, state: &AnnealState<'a>, seed: u64) -> Vec<AnnealWalk<'a>> {
    let inst = state.inst;
    if !request.freedom.recompute {
        return Vec::new();
    }
    // Copies to the host have the time until the live memory is highest, copies back the time after it. What is on the host between
    // iterations comes before its first use, mostly in the first part, and leaves in the second.
    let backward_start = inst.start(state.highest_place()) as f64;
    let each = |index: usize| {
        let mut state = state.clone();
        state.copies = Some(Arc::new(Copies::of(request, inst, WAITS[index])));
        let fill = CROWDED[index] * WAITS[index];
        let [first, second] = [fill * backward_start, fill * (inst.total as f64 - backward_start)];
        let room = [first, second, second, first];
        AnnealWalk::with_copies(
            state,
            seed.wrapping_mul(WALKS as u64).wrapping_add(1 << 32 | index as u64),
            room,
        )
    };
    (0..WALKS).map(each).collect()
}

impl ParallelSearch<'_> {
    /// Continues from the warm starts, all of which are earlier schedules, in a single cycle that ends at the horizon, if there is one and that
    /// is not longer than the longest. Scouts continue from them too, and have a larger share: a step of a joint walk takes as long as a
    /// hundred moves, and what is left to find is mostly found by moves.
    fn go_on(&mut self, warm: &[WarmStart], horizon: Option<u64>) -> StopReason {
        // They have to be repaired for the limit first, which is up to the joint walks.
        let repairs = FIRST_CYCLE * JOINT_SHARE;
        if let Some(stop) = self.step(repairs) {
            return stop;
        }
        let Some(horizon) = horizon else { return self.run(FIRST_CYCLE) };
        for (scout, warm) in self.scouts.iter_mut().zip(warm.iter().cycle()) {
            scout.editor.jump(&warm.decisions.repeats, &warm.decisions.prefetches);
        }
        let [moves, steps] = self.slices;
        let [moves, steps] =
            [moves * (self.walks.len() + self.scouts.len()) as u64, steps * self.joints.len() as u64];
        let left = horizon.saturating_sub(repairs * steps);
        self.joint_share = CONTINUED_SHARE;
        let [joint, others] = self.joint_share;
        let cycle = left * others / (moves * others + steps * joint).max(1);
        if cycle < FIRST_CYCLE {
            // The shortest cycle in shorter slices: the walks would use up all evaluations, and no joint walk take over what they found.
            let whole = FIRST_CYCLE * moves + FIRST_CYCLE * joint / others * steps;
            self.slices = self.slices.map(|slice| (slice * left / whole).max(1));
        }
        self.run(cycle.clamp(FIRST_CYCLE, LONGEST_CYCLE))
    }

    /// Cycles, each twice as long as the one before; the first has `cycle` slices.
    fn run(&mut self, mut cycle: u64) -> StopReason {
        let longer = self.slices[0] < SLICE && !self.walks.is_empty();
        let walk = FIRST_CYCLE * if longer { LONGER } else { 1 };
        let [joint, others] = self.joint_share;
        loop {
            if let Some(stop) = self.walk(cycle.max(walk)).or_else(|| self.step(cycle * joint / others)) {
                return stop;
            }
            if self.walks.is_empty() && self.joints.is_empty() {
                return StopReason::Finished;
            }
            cycle = (2 * cycle).min(LONGEST_CYCLE);
        }
    }

    /// One cycle over repeats alone.
    fn walk(&mut self, cycle: u64) -> Option<StopReason> {
        if self.walks.is_empty() && self.scouts.is_empty() {
            return None;
        }
        let whole = self.slices[0];
        let length = (cycle * whole) as f64;
        for slice in 0..cycle {
            let moves = match self.slice(whole, self.walks.len() + self.scouts.len()) {
                Ok(moves) => moves,
                Err(stop) => return Some(stop),
            };
            let (mean, done) = (self.mean, (slice * whole) as f64);
            side_by_side(&mut self.walks, self.budget.threads, &|index, walk| {
                let hot = mean * HEAT[index];
                walk.run(moves, |step| hot * COOLING.powf((done + step as f64) / length));
            });
            side_by_side(&mut self.scouts, self.budget.threads, &|index, walk| {
                let hot = mean * HEAT[index];
                walk.run(moves, |step| hot * COOLING.powf((done + step as f64) / length));
            });
            self.alone = self.walks.iter().fold(self.alone.take(), |best, walk| better(best, &walk.best));
            let nodes = NODES * moves / SLICE;
            let (alone, anew) = (&self.alone, self.walks.get(ANEW).map(|walk| &walk.best));
            side_by_side(&mut self.windows, self.budget.threads, &|index, windows| {
                let start = if index == 0 { Some(alone) } else { anew };
                if let Some(Some(start)) = start {
                    windows.adopt(start);
                }
                windows.run(nodes);
            });
            self.alone =
                self.windows.iter().fold(self.alone.take(), |best, windows| better(best, &windows.best));
            self.collect();
        }
        if let Some((_, alone)) = &self.alone {
            for walk in self.walks.iter_mut().step_by(2) {
                walk.editor.jump(&alone.repeats, &[]);
            }
            // One of the others begins anew, so that the search does not stay where its first cycles led it, and with it the windows
            // around what it finds.
            if let Some(walk) = self.walks.get_mut(ANEW) {
                walk.restart();
            }
            self.windows.iter_mut().skip(1).for_each(|windows| windows.best = None);
        }
        None
    }

    /// One cycle over repeats and copies together.
    fn step(&mut self, cycle: u64) -> Option<StopReason> {
        if self.joints.is_empty() || self.scouts_first(cycle) {
            return None;
        }
        let keep = Decisions::KEEP;
        for (index, joint) in self.joints.iter_mut().enumerate() {
            if let Some((_, scouted)) = self.scouts.get(index).and_then(AnnealWalk::best_or_fitting) {
                joint.challenge(&scouted);
            }
            let from = match (index, &self.best, &self.alone) {
                (0, Some((_, best)), _) | (1, Some((_, best)), None) => best,
                (1, _, Some((_, alone))) => alone,
                (_, Some((_, best)), _) if joint.lost() && self.long => best,
                _ if joint.lost() => &keep,
                _ => continue,
            };
            joint.jump(&from.clone());
        }
        let whole = self.slices[1];
        let length = (cycle * whole) as f64;
        for slice in 0..cycle {
            self.collect();
            let steps = match self.slice(whole, self.joints.len()) {
                Ok(steps) => steps,
                Err(stop) => return Some(stop),
            };
            let (mean, done) = (self.mean, (slice * whole) as f64);
            side_by_side(&mut self.joints, self.budget.threads, &|index, joint| {
                let hot = mean * HEAT[index];
                joint.run(steps, |step| hot * COOLING.powf((done + step as f64) / length));
            });
        }
        self.collect();
        None
    }

    /// Whether joint walks had better wait until a scout has found something: where parameters must leave, what they start from is many times
    /// slower than what scouts find, and on a long trace a joint step costs as much as some hundred moves.
    fn scouts_first(&self, cycle: u64) -> bool {
        cycle < self.patience
            && !self.scouts.is_empty()
            && self.scouts.iter().all(|scout| !scout.has_schedule())
    }

    /// How many moves each walk may make next, or why there are no more; counts them.
    fn slice(&mut self, most: u64, walks: usize) -> Result<u64, StopReason> {
        if self.best.as_ref().is_some_and(|(time, _)| *time <= self.bound) {
            return Err(StopReason::Optimal);
        }
        if self.observer.interrupted() {
            return Err(StopReason::Interrupted);
        }
        // The first slice is made whatever the time: the starts may have taken all the time.
        let stop = self.budget.exhausted(self.evaluations, self.start);
        if let Some(stop) = stop.filter(|stop| self.evaluations > 0 || *stop != StopReason::Time) {
            return Err(stop);
        }
        let left = self.budget.evaluations.map_or(u64::MAX, |limit| limit - self.evaluations);
        let moves = most.min(left.div_ceil(walks as u64));
        self.evaluations += (moves * walks as u64).min(left);
        Ok(moves)
    }

    /// Takes over what the walks have found.
    fn collect(&mut self) {
        let before = self.best.as_ref().map(|&(time, _)| time);
        let best = self.joints.iter().fold(self.best.take(), |best, joint| better(best, &joint.best));
        self.best = better(best, &self.alone);
        if let Some((time, _)) = &self.best
            && before.is_none_or(|before| *time < before)
        {
            self.observer.improved(*time, self.bound);
        }
        self.observer.progress(self.evaluations);
    }
}

fn better(best: Option<(u64, Decisions)>, other: &Option<(u64, Decisions)>) -> Option<(u64, Decisions)> {
    match (&best, other) {
        (Some((time, _)), Some((other_time, _))) if other_time < time => other.clone(),
        (None, Some(_)) => other.clone(),
        _ => best,
    }
}

/// Runs every walk, or other piece of work, once on this many threads. They share nothing, so the result does not depend on which thread runs
/// which.
pub(crate) fn side_by_side<W: Send>(walks: &mut [W], threads: usize, run: &(dyn Fn(usize, &mut W) + Sync)) {
    let threads = threads.min(walks.len()).max(1);
    if threads == 1 {
        walks.iter_mut().enumerate().for_each(|(index, walk)| run(index, walk));
        return;
    }
    let share = walks.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (chunk, walks) in walks.chunks_mut(share).enumerate() {
            scope.spawn(move || {
                walks.iter_mut().enumerate().for_each(|(index, walk)| run(chunk * share + index, walk));
            });
        }
    });
}

//! The search that `auto` and `exact` share: many short descents of the tree, part by part, on any number of threads.
//!
//! Every part has a proved lower bound and a best placement. The *goal* is the capacity, or without one the highest lower bound of any part: nobody can be lower.
//! A part is done when it meets the goal. An evaluation is one search of a part's tree with a limited number of nodes: most aim
//! at the goal, the others at a ceiling between the goal and the best height so far, so that there is progress where the goal is out of reach.
//! A search that sees its whole tree in vain raises the part's lower bound.
//!
//! Evaluations are prepared and their results are taken in by batches of a fixed length, in order of their numbers, whichever thread did them: seed
//! and number of evaluations reproduce the result on any number of threads.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use elbowroom_ir::search::{Budget, Observer, StopReason};

use crate::instance::{Instance, gcd};
use crate::parts::Part;
use crate::preference::Preferences;
use crate::random::Random;
use crate::squeaky::{self, Run, Squeaky};
use crate::tree::{Number, Search, Tree, Verdict, scale_of};

/// Parts with more items are not searched. A descent calls itself once for every item and must fit a thread's stack, which tests give two megabytes; every
/// step looks at all that waits, so that one descent is quadratic; and the tree lists conflicting pairs, here 9 MB at most.
pub(crate) const MOST_ITEMS: usize = 1_500;

const BATCH: u64 = 8;
/// Parts with fewer items are searched at once, without trying orders first.
const FEWEST_REORDERED: usize = 500;
/// Orders tried on a part that is also searched.
const REORDERINGS: usize = 64;

enum AnyTree {
    Narrow(Tree<i32>),
    Wide(Tree<i64>),
}

/// A part with what is known about it.
pub(crate) struct State {
    pub(crate) part: Part,
    /// Proved: nothing is lower.
    pub(crate) bound: u64,
    pub(crate) height: u64,
    pub(crate) offsets: Vec<u64>,
    /// Every height is a multiple of this.
    grain: u64,
    tree: Option<AnyTree>,
    preferences: Preferences,
    searches: u64,
    /// Nodes of the search that proved the bound.
    pub(crate) proof_nodes: u64,
}

impl State {
    /// A part with the best placement known.
    pub(crate) fn new(part: Part, offsets: Vec<u64>) -> Self {
        Self {
            bound: part.instance.bound,
            height: part.instance.height(&offsets),
            preferences: Preferences::new(&part.instance),
            grain: part
                .instance
                .items
                .iter()
                .fold(scale_of(&part.instance), |grain, item| gcd(grain, item.bytes)),
            offsets,
            tree: None,
            part,
            searches: 0,
            proof_nodes: 0,
        }
    }

    fn searchable(&self) -> bool {
        self.part.items.len() <= MOST_ITEMS
    }

    /// Takes a placement if it is lower.
    pub(crate) fn offer(&mut self, offsets: Vec<u64>) {
        let height = self.part.instance.height(&offsets);
        if height < self.height {
            self.height = height;
            self.offsets = offsets;
        }
    }
}

fn any_tree(instance: &Instance) -> AnyTree {
    let scale = scale_of(instance);
    let total: u64 =
        instance.items.iter().map(|i| (i.size + i.align + i.fixed.unwrap_or(0)) / scale + 1).sum();
    if total < 1 << 29 { AnyTree::Narrow(Tree::new(instance)) } else { AnyTree::Wide(Tree::new(instance)) }
}

/// Whether a tree fits `capacity` bytes, and the offsets if so; `None` if the nodes allowed did not suffice.
pub(crate) fn fits(
    instance: &Instance,
    capacity: u64,
    order: &[u32],
    nodes: u64,
    stop: &dyn Fn() -> bool,
) -> Option<bool> {
    let verdict = match any_tree(instance) {
        AnyTree::Narrow(tree) => Search::new(&tree, stop).run(capacity, order, nodes),
        AnyTree::Wide(tree) => Search::new(&tree, stop).run(capacity, order, nodes),
    };
    match verdict {
        Verdict::Fits => Some(true),
        Verdict::DoesNotFit => Some(false),
        Verdict::OutOfNodes => None,
    }
}

/// One evaluation to do.
struct Task {
    number: u64,
    state: usize,
    ceiling: u64,
    aims: bool,
    order: Vec<u32>,
    nodes: u64,
}

/// One evaluation done.
struct Found {
    verdict: Verdict,
    offsets: Vec<u64>,
    area: u64,
    nodes: u64,
}

/// How many nodes searches may visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Short searches, with a longer one now and then.
    Short,
    /// Searches that double in length until one of them proves something.
    Growing,
}

impl Patience {
    /// Every so many searches, one is made between the goal and the height instead of at the goal.
    fn turn(self) -> u64 {
        match self {
            Self::Short => 6,
            Self::Growing => 2,
        }
    }

    fn nodes(self, search: u64) -> u64 {
        match self {
            Self::Short if search % 16 == 12 => 4_000 << (search / 128).min(20),
            Self::Short => [1_000, 2_000, 2_000, 4_000][(search / 6 % 4) as usize],
            Self::Growing => 1_000 << (search / 4).min(40),
        }
    }
}

/// The search as a whole.
pub(crate) struct Improver<'a> {
    pub(crate) states: Vec<State>,
    capacity: Option<u64>,
    patience: Patience,
    budget: &'a Budget,
    observer: &'a dyn Observer,
    start: Instant,
    pub(crate) evaluations: u64,
}

impl<'a> Improver<'a> {
    pub(crate) fn new(
        states: Vec<State>,
        capacity: Option<u64>,
        patience: Patience,
        budget: &'a Budget,
        observer: &'a dyn Observer,
        start: Instant,
        evaluations: u64,
    ) -> Self {
        Self { states, capacity, patience, budget, observer, start, evaluations }
    }

    /// What every part should meet.
    pub(crate) fn goal(&self) -> u64 {
        self.capacity.unwrap_or_else(|| self.bound())
    }

    /// Proved: no placement of the whole is lower.
    pub(crate) fn bound(&self) -> u64 {
        self.states.iter().map(|state| state.bound).max().unwrap_or(0)
    }

    /// Height of the whole.
    pub(crate) fn height(&self) -> u64 {
        self.states.iter().map(|state| state.height).max().unwrap_or(0)
    }

    /// Whether time is up or somebody asked to stop, and why.
    pub(crate) fn asked_to_stop(&self) -> Option<StopReason> {
        if self.observer.interrupted() {
            return Some(StopReason::Interrupted);
        }
        self.budget.time.filter(|&limit| self.start.elapsed() >= limit).map(|_| StopReason::Time)
    }

    /// Searches until every part that can be searched is done, something is refuted at the capacity, or the budget ends.
    pub(crate) fn run(&mut self) -> StopReason {
        loop {
            let goal = self.goal();
            if self.states.iter().any(|state| state.bound > goal) {
                return StopReason::Finished;
            }
            let open: Vec<usize> = (0..self.states.len())
                .filter(|&s| self.states[s].height > goal && self.states[s].searchable())
                .collect();
            if open.is_empty() {
                let done = self.height() <= goal;
                let used_up = self.budget.evaluations.is_some_and(|limit| self.evaluations >= limit);
                let stop = if used_up { StopReason::Evaluations } else { StopReason::Finished };
                return if done { stop } else { self.asked_to_stop().unwrap_or(stop) };
            }
            if let Some(stop) = self.asked_to_stop() {
                return stop;
            }
            let left = self
                .budget
                .evaluations
                .map_or(BATCH, |limit| limit.saturating_sub(self.evaluations).min(BATCH));
            if left == 0 {
                return StopReason::Evaluations;
            }
            let tasks = self.prepare(goal, &open, left);
            let done = self.perform(&tasks);
            let complete = done.len() == tasks.len();
            let before = self.height();
            for (task, found) in tasks.into_iter().zip(done) {
                self.take_in(task, found);
            }
            if self.height() < before {
                self.observer.improved(self.height(), self.bound());
            }
            self.observer.progress(self.evaluations);
            if !complete && let Some(stop) = self.asked_to_stop() {
                return stop;
            }
        }
    }

    /// Runs best-fit in better and better orders on the large parts above the goal: to the end of the budget on those that cannot be searched, and
    /// for some runs on the others.
    pub(crate) fn reorder(&mut self) {
        for s in 0..self.states.len() {
            let items = self.states[s].part.items.len();
            if items < FEWEST_REORDERED || self.states[s].height <= self.goal() {
                continue;
            }
            let most = if items > MOST_ITEMS { usize::MAX } else { REORDERINGS };
            let state = &self.states[s];
            let mut squeaky = Squeaky::new(&state.part.instance, self.goal(), &state.offsets);
            let mut runs = 0;
            while runs < most && self.states[s].height > self.goal() && self.asked_to_stop().is_none() {
                let left =
                    self.budget.evaluations.map_or(u64::MAX, |limit| limit.saturating_sub(self.evaluations));
                let batch = squeaky::BATCH.min(usize::try_from(left).unwrap_or(usize::MAX));
                if batch == 0 {
                    return;
                }
                let goal = self.goal();
                let instance = &self.states[s].part.instance;
                let next = |at: usize| {
                    let random = Random::new(self.budget.seed, self.evaluations + at as u64);
                    squeaky.next(instance, goal, runs + at, random)
                };
                let batch: Vec<Run> = (0..batch).map(next).collect();
                squeaky.begin_batch();
                let stop = || self.asked_to_stop().is_some();
                let done = squeaky.perform(instance, goal, &batch, self.budget.threads, &stop);
                let before = self.height();
                for (run, found) in batch.into_iter().zip(done) {
                    self.evaluations += 1;
                    runs += 1;
                    let State { part, height, .. } = &self.states[s];
                    if let Some(offsets) = squeaky.hear(&part.instance, (goal, *height), run, found) {
                        self.states[s].offer(offsets);
                    }
                }
                if self.height() < before {
                    self.observer.improved(self.height(), self.bound());
                }
                self.observer.progress(self.evaluations);
            }
        }
    }

    /// Evaluations of the next batch: at most `left`, over the open parts in turn.
    fn prepare(&mut self, goal: u64, open: &[usize], left: u64) -> Vec<Task> {
        let mut tasks = Vec::new();
        for number in self.evaluations..self.evaluations + left {
            let s = open[(number % open.len() as u64) as usize];
            let state = &mut self.states[s];
            let search = state.searches;
            state.searches += 1;
            let mut random = Random::new(self.budget.seed, number);
            let gap = state.height - goal;
            let aims = gap < 2 || search % self.patience.turn() != self.patience.turn() - 1;
            // Without a capacity, bounds are proved from below and heights improved from above until they meet.
            let ceiling =
                if aims { goal } else { state.height - (gap >> [1, 2, 4, 6][random.below(4)]).max(1) };
            tasks.push(Task {
                number,
                state: s,
                ceiling,
                aims,
                order: state.preferences.order(search, &mut random),
                nodes: self.patience.nodes(search),
            });
        }
        for task in &tasks {
            let state = &mut self.states[task.state];
            if state.tree.is_none() {
                state.tree = Some(any_tree(&state.part.instance));
            }
        }
        tasks
    }

    /// Does the evaluations; a clock or an observer may cut the list short. A success at the goal drops those after it, if one part is open.
    fn perform(&self, tasks: &[Task]) -> Vec<Found> {
        let threads = self.budget.threads.clamp(1, tasks.len());
        let next = AtomicUsize::new(0);
        // Evaluations from this number on are no longer wanted.
        let cut = AtomicU64::new(u64::MAX);
        let work = || {
            let mut done = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(task) = tasks.get(at) else { return done };
                let stop = || cut.load(Ordering::Relaxed) <= task.number || self.asked_to_stop().is_some();
                if stop() {
                    return done;
                }
                let found = self.search(task, &stop);
                if stop() && found.verdict == Verdict::OutOfNodes {
                    cut.fetch_min(task.number, Ordering::Relaxed);
                    return done;
                }
                if found.verdict != Verdict::OutOfNodes {
                    cut.fetch_min(task.number + 1, Ordering::Relaxed);
                }
                done.push((at, found));
            }
        };
        let mut done: Vec<(usize, Found)> = if threads == 1 {
            work()
        } else {
            std::thread::scope(|scope| {
                let workers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
                let mut done = work();
                for worker in workers {
                    match worker.join() {
                        Ok(more) => done.extend(more),
                        Err(panic) => std::panic::resume_unwind(panic),
                    }
                }
                done
            })
        };
        done.sort_by_key(|&(at, _)| at);
        // Only an unbroken beginning counts, up to the first evaluation that decided something.
        let mut kept = Vec::new();
        for (at, found) in done {
            if at != kept.len() {
                break;
            }
            let decided = found.verdict != Verdict::OutOfNodes;
            kept.push(found);
            if decided {
                break;
            }
        }
        kept
    }

    fn search(&self, task: &Task, stop: &dyn Fn() -> bool) -> Found {
        fn with<N: Number>(tree: &Tree<N>, task: &Task, stop: &dyn Fn() -> bool) -> Found {
            let mut search = Search::new(tree, stop);
            let verdict = search.run(task.ceiling, &task.order, task.nodes);
            let offsets = if verdict == Verdict::Fits { search.offsets() } else { Vec::new() };
            Found { verdict, offsets, area: search.most_area, nodes: search.nodes }
        }
        match &self.states[task.state].tree {
            Some(AnyTree::Narrow(tree)) => with(tree, task, stop),
            Some(AnyTree::Wide(tree)) => with(tree, task, stop),
            None => Found { verdict: Verdict::OutOfNodes, offsets: Vec::new(), area: 0, nodes: 0 },
        }
    }

    fn take_in(&mut self, task: Task, found: Found) {
        self.evaluations += 1;
        let state = &mut self.states[task.state];
        match found.verdict {
            Verdict::Fits => state.offer(found.offsets),
            Verdict::DoesNotFit => {
                state.bound = state.bound.max((task.ceiling + 1).next_multiple_of(state.grain));
                state.proof_nodes = state.proof_nodes.max(found.nodes);
            }
            Verdict::OutOfNodes => {
                if task.aims {
                    state.preferences.learn(found.area, &task.order);
                }
            }
        }
    }
}

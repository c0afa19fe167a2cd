//! The search of `auto` and `exact`: many short searches of each component's tree, on any number of threads.
//!
//! Each component has a proved lower bound and a best placement. The *goal* is the capacity or, without one, the highest lower bound of any
//! component, below which the height of the whole cannot be. A component is done when its height is no higher than the goal.
//!
//! An evaluation is one search of a component's tree with a limited number of nodes. Most evaluations ask for a placement below the goal; the
//! others ask for one below a ceiling between the goal and the best height, so that placements improve even if the goal is out of reach.
//! A search that visits its whole tree without a placement raises the component's lower bound.
//!
//! Evaluations are prepared in batches of a fixed length, and their results are applied in order of their numbers, whichever thread computed
//! them. Seed and number of evaluations therefore reproduce the result on any number of threads.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use elbowroom_ir::search::{Budget, Observer, StopReason};

use crate::branching_order::BranchingOrders;
use crate::canonical_tree::{Number, Tree, TreeSearch, Verdict, scale_of};
use crate::component::Component;
use crate::instance::{Instance, gcd};
use crate::random::Random;
use crate::squeaky_wheel::{self, Move, SqueakyWheel};

/// Components with more items are not searched: the search recurses once per item and must fit a stack of 2 MiB, one descent takes quadratic
/// time, and the tree lists all conflicting pairs (at most 9 MB for this many items).
pub(crate) const MOST_ITEMS: usize = 1_500;

const BATCH: u64 = 8;
/// Components with fewer items are searched at once, without squeaky wheel optimization.
const FEWEST_REORDERED: usize = 500;
/// Moves of squeaky wheel optimization on a component that is also searched.
const REORDERINGS: usize = 64;

enum AnyTree {
    Narrow(Tree<i32>),
    Wide(Tree<i64>),
}

/// A component with its bound and best placement.
pub(crate) struct ComponentState {
    pub(crate) component: Component,
    /// Proved lower bound of its height, in bytes.
    pub(crate) bound: u64,
    pub(crate) height: u64,
    pub(crate) offsets: Vec<u64>,
    /// Every height is a multiple of this.
    grain: u64,
    tree: Option<AnyTree>,
    orders: BranchingOrders,
    searches: u64,
    /// Nodes of the search that proved the bound.
    pub(crate) proof_nodes: u64,
}

impl ComponentState {
    /// A component with a first placement.
    pub(crate) fn new(component: Component, offsets: Vec<u64>) -> Self {
        Self {
            bound: component.instance.bound,
            height: component.instance.height(&offsets),
            orders: BranchingOrders::new(&component.instance),
            grain: component
                .instance
                .items
                .iter()
                .fold(scale_of(&component.instance), |grain, item| gcd(grain, item.bytes)),
            offsets,
            tree: None,
            component,
            searches: 0,
            proof_nodes: 0,
        }
    }

    fn searchable(&self) -> bool {
        self.component.items.len() <= MOST_ITEMS
    }

    /// Adopts a placement if it is lower.
    pub(crate) fn offer(&mut self, offsets: Vec<u64>) {
        let height = self.component.instance.height(&offsets);
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

/// Whether an instance fits `capacity` bytes; `None` if `nodes` nodes did not suffice to decide.
pub(crate) fn fits(
    instance: &Instance,
    capacity: u64,
    order: &[u32],
    nodes: u64,
    stop: &dyn Fn() -> bool,
) -> Option<bool> {
    let verdict = match any_tree(instance) {
        AnyTree::Narrow(tree) => TreeSearch::new(&tree, stop).run(capacity, order, nodes),
        AnyTree::Wide(tree) => TreeSearch::new(&tree, stop).run(capacity, order, nodes),
    };
    match verdict {
        Verdict::Fits => Some(true),
        Verdict::DoesNotFit => Some(false),
        Verdict::OutOfNodes => None,
    }
}

/// One evaluation, prepared.
struct Evaluation {
    number: u64,
    state: usize,
    ceiling: u64,
    at_goal: bool,
    order: Vec<u32>,
    nodes: u64,
}

/// The result of one evaluation.
struct Searched {
    verdict: Verdict,
    offsets: Vec<u64>,
    area: u64,
    nodes: u64,
}

/// How many nodes searches may visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeLimits {
    /// Short searches, with a longer one now and then.
    Short,
    /// Searches that double in length until one of them proves something.
    Growing,
}

impl NodeLimits {
    /// One of this many searches aims between the goal and the height; the others aim at the goal.
    fn ceiling_period(self) -> u64 {
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

/// The search over all components.
pub(crate) struct Improver<'a> {
    pub(crate) states: Vec<ComponentState>,
    capacity: Option<u64>,
    limits: NodeLimits,
    budget: &'a Budget,
    observer: &'a dyn Observer,
    start: Instant,
    pub(crate) evaluations: u64,
}

impl<'a> Improver<'a> {
    pub(crate) fn new(
        states: Vec<ComponentState>,
        capacity: Option<u64>,
        limits: NodeLimits,
        budget: &'a Budget,
        observer: &'a dyn Observer,
        start: Instant,
        evaluations: u64,
    ) -> Self {
        Self { states, capacity, limits, budget, observer, start, evaluations }
    }

    /// The height that every component should reach, in bytes.
    pub(crate) fn goal(&self) -> u64 {
        self.capacity.unwrap_or_else(|| self.bound())
    }

    /// The proved lower bound of the whole, in bytes.
    pub(crate) fn bound(&self) -> u64 {
        self.states.iter().map(|state| state.bound).max().unwrap_or(0)
    }

    /// The height of the whole, in bytes.
    pub(crate) fn height(&self) -> u64 {
        self.states.iter().map(|state| state.height).max().unwrap_or(0)
    }

    /// Why the search must stop now, if it must: the observer interrupts, or time is up.
    pub(crate) fn stop_reason(&self) -> Option<StopReason> {
        if self.observer.interrupted() {
            return Some(StopReason::Interrupted);
        }
        self.budget.time.filter(|&limit| self.start.elapsed() >= limit).map(|_| StopReason::Time)
    }

    /// Searches until every searchable component is done, one is proved not to fit the capacity, or the budget ends.
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
                return if done { stop } else { self.stop_reason().unwrap_or(stop) };
            }
            if let Some(stop) = self.stop_reason() {
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
            let done = self.evaluate(&tasks);
            let complete = done.len() == tasks.len();
            let before = self.height();
            for (task, searched) in tasks.into_iter().zip(done) {
                self.accept(task, searched);
            }
            if self.height() < before {
                self.observer.improved(self.height(), self.bound());
            }
            self.observer.progress(self.evaluations);
            if !complete && let Some(stop) = self.stop_reason() {
                return stop;
            }
        }
    }

    /// Runs squeaky wheel optimization on the large components above the goal: to the end of the budget on those too large for a tree search,
    /// for [`REORDERINGS`] moves on the others.
    pub(crate) fn reorder(&mut self) {
        for s in 0..self.states.len() {
            let items = self.states[s].component.items.len();
            if items < FEWEST_REORDERED || self.states[s].height <= self.goal() {
                continue;
            }
            let most = if items > MOST_ITEMS { usize::MAX } else { REORDERINGS };
            let state = &self.states[s];
            let mut wheel = SqueakyWheel::new(&state.component.instance, self.goal(), &state.offsets);
            let mut runs = 0;
            while runs < most && self.states[s].height > self.goal() && self.stop_reason().is_none() {
                let left =
                    self.budget.evaluations.map_or(u64::MAX, |limit| limit.saturating_sub(self.evaluations));
                let batch = squeaky_wheel::BATCH.min(usize::try_from(left).unwrap_or(usize::MAX));
                if batch == 0 {
                    return;
                }
                let goal = self.goal();
                let instance = &self.states[s].component.instance;
                let next = |at: usize| {
                    let random = Random::new(self.budget.seed, self.evaluations + at as u64);
                    wheel.next(instance, goal, runs + at, random)
                };
                let batch: Vec<Move> = (0..batch).map(next).collect();
                wheel.start_batch();
                let stop = || self.stop_reason().is_some();
                let done = wheel.evaluate(instance, goal, &batch, self.budget.threads, &stop);
                let before = self.height();
                for (one, change) in batch.into_iter().zip(done) {
                    self.evaluations += 1;
                    runs += 1;
                    let ComponentState { component, height, .. } = &self.states[s];
                    if let Some(offsets) = wheel.accept(&component.instance, (goal, *height), one, change) {
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

    /// Prepares the next batch: at most `left` evaluations, over the open components in turn.
    fn prepare(&mut self, goal: u64, open: &[usize], left: u64) -> Vec<Evaluation> {
        let mut tasks = Vec::new();
        for number in self.evaluations..self.evaluations + left {
            let s = open[(number % open.len() as u64) as usize];
            let state = &mut self.states[s];
            let search = state.searches;
            state.searches += 1;
            let mut random = Random::new(self.budget.seed, number);
            let gap = state.height - goal;
            let at_goal =
                gap < 2 || search % self.limits.ceiling_period() != self.limits.ceiling_period() - 1;
            // Without a capacity, bounds are proved from below and heights improved from above until they meet.
            let ceiling =
                if at_goal { goal } else { state.height - (gap >> [1, 2, 4, 6][random.below(4)]).max(1) };
            tasks.push(Evaluation {
                number,
                state: s,
                ceiling,
                at_goal,
                order: state.orders.order(search, &mut random),
                nodes: self.limits.nodes(search),
            });
        }
        for task in &tasks {
            let state = &mut self.states[task.state];
            if state.tree.is_none() {
                state.tree = Some(any_tree(&state.component.instance));
            }
        }
        tasks
    }

    /// Evaluates a batch. The result ends after the first evaluation that decided something, and before the first that was stopped.
    fn evaluate(&self, tasks: &[Evaluation]) -> Vec<Searched> {
        let threads = self.budget.threads.clamp(1, tasks.len());
        let next = AtomicUsize::new(0);
        // The results of evaluations from this number on are not used.
        let cut = AtomicU64::new(u64::MAX);
        let work = || {
            let mut done = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(task) = tasks.get(at) else { return done };
                let stop = || cut.load(Ordering::Relaxed) <= task.number || self.stop_reason().is_some();
                if stop() {
                    return done;
                }
                let searched = self.search(task, &stop);
                if stop() && searched.verdict == Verdict::OutOfNodes {
                    cut.fetch_min(task.number, Ordering::Relaxed);
                    return done;
                }
                if searched.verdict != Verdict::OutOfNodes {
                    cut.fetch_min(task.number + 1, Ordering::Relaxed);
                }
                done.push((at, searched));
            }
        };
        let mut done: Vec<(usize, Searched)> = if threads == 1 {
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
        // Keep an unbroken prefix, up to the first evaluation that decided something.
        let mut kept = Vec::new();
        for (at, searched) in done {
            if at != kept.len() {
                break;
            }
            let decided = searched.verdict != Verdict::OutOfNodes;
            kept.push(searched);
            if decided {
                break;
            }
        }
        kept
    }

    fn search(&self, task: &Evaluation, stop: &dyn Fn() -> bool) -> Searched {
        fn with<N: Number>(tree: &Tree<N>, task: &Evaluation, stop: &dyn Fn() -> bool) -> Searched {
            let mut search = TreeSearch::new(tree, stop);
            let verdict = search.run(task.ceiling, &task.order, task.nodes);
            let offsets = if verdict == Verdict::Fits { search.offsets() } else { Vec::new() };
            Searched { verdict, offsets, area: search.most_area, nodes: search.nodes }
        }
        match &self.states[task.state].tree {
            Some(AnyTree::Narrow(tree)) => with(tree, task, stop),
            Some(AnyTree::Wide(tree)) => with(tree, task, stop),
            None => Searched { verdict: Verdict::OutOfNodes, offsets: Vec::new(), area: 0, nodes: 0 },
        }
    }

    fn accept(&mut self, task: Evaluation, searched: Searched) {
        self.evaluations += 1;
        let state = &mut self.states[task.state];
        match searched.verdict {
            Verdict::Fits => state.offer(searched.offsets),
            Verdict::DoesNotFit => {
                state.bound = state.bound.max((task.ceiling + 1).next_multiple_of(state.grain));
                state.proof_nodes = state.proof_nodes.max(searched.nodes);
            }
            Verdict::OutOfNodes => {
                if task.at_goal {
                    state.orders.record(searched.area, &task.order);
                }
            }
        }
    }
}

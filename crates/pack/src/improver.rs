//! The search of `auto` and `exact`: many short searches of each component's tree, on any number of threads.
//!
//! Each component has a proved lower bound and a best placement. The *goal* is the capacity or, without one, the highest lower bound of any
//! component, below which the height of the whole cannot be. A component is done when its height is no higher than the goal.
//!
//! An evaluation is one search of a component's tree with a limited number of nodes ([`crate::search_plan`] decides which). Most evaluations ask
//! for a placement below the goal; the others ask for one below a ceiling between the goal and the best height, so that placements improve even
//! if the goal is out of reach. A search that visits its whole tree without a placement raises the component's lower bound.
//!
//! [`crate::evaluation_line`] shares the evaluations among threads.

use std::sync::Arc;

use elbowroom_ir::search::{Budget, Observer, StopReason};

use crate::branching_order::{BranchingOrders, StaticOrder};
use crate::canonical_tree::{Verdict, scale_of};
use crate::clock::Clock;
use crate::component::Component;
use crate::composite::{self, Joining};
use crate::corner_search::Strip;
use crate::evaluation::{AnyTree, Evaluation, Scope, Searched, any_tree, nearly_filled};
use crate::evaluation_line;
use crate::instance::{Instance, Span, gcd};
use crate::random::Random;
use crate::search_plan::{FIRST_CORNERS, Kind, SearchPlan};
use crate::squeaky_wheel::{self, Move, SqueakyWheel};
use crate::window;

/// Components with more items are not searched: the search recurses once per item and must fit a stack of 2 MiB, one descent takes quadratic
/// time, and the tree lists all conflicting pairs (at most 9 MB for this many items).
pub(crate) const MOST_ITEMS: usize = 1_500;

/// Components with fewer items are searched at once, without squeaky wheel optimization; with fewer than the first number if they are nearly
/// filled.
const FEWEST_REORDERED: [usize; 2] = [100, 500];
/// Whether the corners of a component are searched: it is nearly filled, or its items fit each other as if they had been cut from a rectangle.
fn has_corners(instance: &Instance) -> bool {
    nearly_filled(instance) || instance.len() <= MOST_ITEMS && composite::fit_each_other(instance)
}

/// The noise in the order in which items are joined, and the probability that they are, by the number of the search. Five, so that long searches,
/// whose numbers are two below a power of two, meet all of them.
const JOINED: [(f64, f64); 5] = [(0.0, 1.0), (0.5, 1.0), (1.0, 1.0), (2.0, 0.95), (4.0, 0.9)];

/// Moves of squeaky wheel optimization on a component that is also searched.
const REORDERINGS: usize = 64;
/// Nodes of a search of composites for one move by which they are joined.
const NODES_PER_MOVE: u64 = 10;

/// A ceiling below the height, and not below the goal.
fn ceiling_between(goal: u64, height: u64, random: &mut Random) -> u64 {
    height - ((height - goal) >> [1, 2, 4, 6][random.below(4)]).max(1)
}

/// A component with its bound and best placement.
pub(crate) struct ComponentState {
    pub(crate) component: Arc<Component>,
    /// Proved lower bound of its height, in bytes.
    pub(crate) bound: u64,
    pub(crate) height: u64,
    pub(crate) offsets: Vec<u64>,
    /// Every height is a multiple of this.
    grain: u64,
    /// Whether corners are searched.
    corners: bool,
    tree: Option<Arc<AnyTree>>,
    /// For searches of corners, if they are possible.
    strip: Option<Arc<Strip>>,
    orders: BranchingOrders,
    /// The orders of its deep searches.
    deep: Vec<Vec<u32>>,
    pub(crate) plan: SearchPlan,
    /// Nodes of the search that proved the bound.
    pub(crate) proof_nodes: u64,
    /// The sections that this search saw, if not all.
    pub(crate) proof_window: Option<Span>,
}

impl ComponentState {
    /// A component with a first placement.
    pub(crate) fn new(component: Component, offsets: Vec<u64>) -> Self {
        Self {
            corners: has_corners(&component.instance),
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
            strip: None,
            component: Arc::new(component),
            deep: Vec::new(),
            plan: SearchPlan::default(),
            proof_nodes: 0,
            proof_window: None,
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

/// How many nodes searches may visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeLimits {
    /// Short searches, and deep ones that take as many nodes in all.
    Short,
    /// Searches that double in length until one of them proves something.
    Growing,
}

/// The search over all components.
pub(crate) struct Improver<'a> {
    pub(crate) states: Vec<ComponentState>,
    capacity: Option<u64>,
    limits: NodeLimits,
    pub(crate) budget: &'a Budget,
    pub(crate) clock: Clock<'a>,
    pub(crate) evaluations: u64,
}

impl<'a> Improver<'a> {
    pub(crate) fn new(
        states: Vec<ComponentState>,
        capacity: Option<u64>,
        limits: NodeLimits,
        budget: &'a Budget,
        clock: Clock<'a>,
        evaluations: u64,
    ) -> Self {
        Self { states, capacity, limits, budget, clock, evaluations }
    }

    /// Receives the progress of the search.
    pub(crate) fn observer(&self) -> &'a dyn Observer {
        self.clock.observer()
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
        self.clock.stop_reason()
    }

    /// Searches until every searchable component is done, one is proved not to fit the capacity, or the budget ends.
    pub(crate) fn run(&mut self) -> StopReason {
        evaluation_line::run(self)
    }

    /// The components to search, or why there is nothing to search any more.
    pub(crate) fn open(&self) -> Result<Vec<usize>, StopReason> {
        let goal = self.goal();
        if self.states.iter().any(|state| state.bound > goal) {
            return Err(StopReason::Finished);
        }
        let open: Vec<usize> = (0..self.states.len())
            .filter(|&s| self.states[s].height > goal && self.states[s].searchable())
            .collect();
        let used_up = self.budget.evaluations.is_some_and(|limit| self.evaluations >= limit);
        let stop = if used_up { StopReason::Evaluations } else { StopReason::Finished };
        if open.is_empty() {
            return Err(if self.height() <= goal { stop } else { self.stop_reason().unwrap_or(stop) });
        }
        match self.stop_reason() {
            Some(reason) => Err(reason),
            None if used_up => Err(StopReason::Evaluations),
            None => Ok(open),
        }
    }

    /// Runs squeaky wheel optimization on the large components above the goal: to the end of the budget on those too large for a tree search,
    /// for [`REORDERINGS`] moves on the others.
    pub(crate) fn reorder(&mut self) {
        for s in 0..self.states.len() {
            let items = self.states[s].component.items.len();
            let [filled, other] = FEWEST_REORDERED;
            let fewest = if self.states[s].corners { filled } else { other };
            if items < fewest || self.states[s].height <= self.goal() {
                continue;
            }
            self.search_corners(s);
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
                let (goal, height) = (self.goal(), self.states[s].height);
                let instance = &self.states[s].component.instance;
                let next = |at: usize| {
                    let random = Random::new(self.budget.seed, self.evaluations + at as u64);
                    wheel.next(instance, (goal, height), runs + at, random)
                };
                let batch: Vec<Move> = (0..batch).map(next).collect();
                wheel.start_batch();
                let stop = || self.stop_reason().is_some();
                let done = wheel.evaluate(instance, goal, &batch, self.budget.threads, &stop);
                let before = (self.height(), self.bound());
                for (one, change) in batch.into_iter().zip(done) {
                    self.evaluations += 1;
                    runs += 1;
                    let ComponentState { component, height, .. } = &self.states[s];
                    if let Some(offsets) = wheel.accept(&component.instance, (goal, *height), one, change) {
                        self.states[s].offer(offsets);
                    }
                }
                self.report(before);
            }
        }
    }

    /// The first searches of the corners of a component that is nearly filled. Most such components are placed by one of them.
    fn search_corners(&mut self, s: usize) {
        if !self.states[s].searchable() || !self.states[s].corners {
            return;
        }
        for _ in 0..FIRST_CORNERS {
            let goal = self.goal();
            let done = self.states[s].height <= goal || self.states[s].bound > goal;
            if done || self.clock.stop_reason_after(self.evaluations).is_some() {
                return;
            }
            let task = self.prepare(self.evaluations, goal, &[s]);
            if self.states[s].strip.is_none() {
                self.states[s].plan = task.before;
                return;
            }
            let searched = task.search(&|| self.stop_reason().is_some());
            if searched.stopped(&task) {
                return;
            }
            let before = (self.height(), self.bound());
            self.accept(&task, searched);
            self.report(before);
        }
    }

    /// Tells the observer how far the search is, and whether height or bound are others than before.
    pub(crate) fn report(&self, before: (u64, u64)) {
        let now = (self.height(), self.bound());
        if now != before {
            self.observer().improved(now.0, now.1);
        }
        self.observer().progress(self.evaluations);
    }

    /// Prepares the evaluation of a number.
    pub(crate) fn prepare(&mut self, number: u64, goal: u64, open: &[usize]) -> Evaluation {
        let s = open[(number % open.len() as u64) as usize];
        let limits = self.limits;
        let mut random = Random::new(self.budget.seed, number);
        let state = &mut self.states[s];
        let before = state.plan;
        if before == SearchPlan::default() && state.strip.is_none() && state.corners {
            state.strip = Strip::new(&state.component.instance).map(Arc::new);
        }
        let (kind, nodes) =
            state.plan.next(limits, state.component.items.len() as u64, state.strip.is_some());
        if let Kind::Composites { search, .. } | Kind::Joined { search } = kind {
            let (ceiling, filled) = match kind {
                Kind::Joined { .. } => (ceiling_between(goal, state.height, &mut random), false),
                // Any step may be the height at which holes are as they were cut.
                Kind::Composites { between: true, .. } => {
                    let steps = (state.height - goal) / state.grain;
                    (goal + state.grain * random.below(steps.max(1) as usize) as u64, true)
                }
                _ => (goal, search.is_multiple_of(2)),
            };
            let (noise, chance) = JOINED[(search % JOINED.len() as u64) as usize];
            let filled_to = filled.then_some(ceiling);
            let joining = Joining { noise, chance, filled_to, moves: nodes / NODES_PER_MOVE };
            let component = Arc::clone(&state.component);
            let scope = Scope::Composites { component, joining, search, random };
            return Evaluation { number, state: s, scope, ceiling, kind, order: Vec::new(), nodes, before };
        }
        if let Kind::Corners { search } = kind
            && let Some(strip) = &state.strip
        {
            let order = state.orders.corner_order(search, &mut random);
            let scope = Scope::Corners(Arc::clone(strip));
            return Evaluation { number, state: s, scope, ceiling: goal, kind, order, nodes, before };
        }
        if let Kind::Deep { .. } = kind
            && state.deep.is_empty()
        {
            let orders = (0..StaticOrder::COUNT as u64).map(StaticOrder::number);
            state.deep = orders.map(|order| order.of(&state.component.instance)).collect();
        }
        let gap = state.height - goal;
        if kind == Kind::Window {
            let instance = &state.component.instance;
            let (window, part) = window::draw(instance, &mut random);
            // Higher ceilings are proved too low less often, and raise the bound further.
            let above = if self.capacity.is_none() && random.below(2) == 0 {
                gap >> [2, 4, 6, 8][random.below(4)]
            } else {
                0
            };
            let ceiling = goal + above.min(gap - 1);
            let order = window::order(&part);
            let scope = Scope::Window(Box::new(part), window);
            return Evaluation { number, state: s, scope, ceiling, kind, order, nodes, before };
        }
        let kind = if gap < 2 { kind.at_goal() } else { kind };
        // Without a capacity, bounds are proved from below and heights improved from above until they meet.
        let ceiling = match kind {
            kind if kind.between() => ceiling_between(goal, state.height, &mut random),
            _ => goal,
        };
        let order = match kind {
            Kind::Deep { order, .. } => state.deep[order.index()].clone(),
            Kind::AtGoal { search } | Kind::Between { search } | Kind::Wander { search, .. } => {
                state.orders.order(search, &mut random)
            }
            Kind::Corners { .. } | Kind::Composites { .. } | Kind::Joined { .. } | Kind::Window => Vec::new(),
        };
        let tree = state.tree.get_or_insert_with(|| Arc::new(any_tree(&state.component.instance)));
        let scope = Scope::Whole(Arc::clone(tree));
        Evaluation { number, state: s, scope, ceiling, kind, order, nodes, before }
    }

    pub(crate) fn accept(&mut self, task: &Evaluation, searched: Searched) {
        self.evaluations += 1;
        let state = &mut self.states[task.state];
        match searched.verdict {
            Verdict::Fits | Verdict::DoesNotFit if !task.decided_by(searched.verdict) => {}
            Verdict::Fits => state.offer(searched.offsets),
            Verdict::DoesNotFit => {
                state.bound = state.bound.max((task.ceiling + 1).next_multiple_of(state.grain));
                state.proof_nodes = state.proof_nodes.max(searched.nodes);
                state.proof_window = match task.scope {
                    Scope::Window(_, window) => Some(window),
                    Scope::Whole(_) | Scope::Corners(_) | Scope::Composites { .. } => None,
                };
            }
            Verdict::OutOfNodes => {
                // A deep search places more area than a short one only because it lasts longer.
                if let Kind::AtGoal { .. } = task.kind {
                    state.orders.record(searched.area, &task.order);
                }
            }
        }
    }
}

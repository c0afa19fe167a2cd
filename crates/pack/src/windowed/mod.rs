//! Problems in which some blocks occupy only windows of their bytes at some positions ([`Block::windows`]).
//!
//! Sections, spans and the tree of canonical placements assume that a block is alive as a whole or not at all. These problems therefore have
//! packers of their own:
//! - the packers without a search place the blocks in their order, first-fit or best-fit, at offsets that windows make legal
//!   ([`constructive`]);
//! - `auto` and `exact` begin with `auto`'s placement of the same blocks without windows (which is legal), let every block fall as far as the
//!   windows allow, and go on with random orders and, up to 60 blocks alive in one stretch of time, with [`difference_search`].
//!
//! A lower bound is proved for placements in which no byte is shared, also if two blocks pass each other, which [`relation`] excludes.

mod constructive;
mod difference_search;
mod relation;

use std::cmp::Reverse;

use elbowroom_ir::packing::{Block, Interval, Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, InterruptOnly, Observer, Outcome, StopReason};
use elbowroom_ir::{Bytes, Table};

use self::difference_search::{DifferenceSearch, Ending, MOST_ITEMS};
use self::relation::{Occupancy, Rule};
use crate::auto::Auto;
use crate::best_fit::longest_first;
use crate::clock::{ALWAYS_PLACED, Clock};
use crate::component::components;
use crate::greedy::{conflict_order, size_order};
use crate::instance::{Instance, Missed, infeasible, missed};
use crate::order_keys::{ascending, order_by};
use crate::overlap::OverlapIndex;
use crate::partial_placement::Fit;
use crate::random::Random;
use crate::search::hint_order;
use crate::smart_pool::smart_order;
use crate::squeaky_wheel::Order;

/// Evaluations of `auto` on the blocks without windows, if there are too many blocks for [`difference_search`].
const WITHOUT_WINDOWS: u64 = 64;
/// Nodes of the first search of a component; the limit doubles from search to search.
const FIRST_NODES: u64 = 2_000;

/// Whether a problem needs the packers of this module.
pub(crate) fn has_windows(problem: &Problem) -> bool {
    problem.blocks.values().any(|block| !block.windows.is_empty())
}

/// In order of time.
pub(crate) fn time_order(instance: &Instance) -> Vec<u32> {
    order_by(instance, |i| (instance.items[i].hull.lo, instance.items[i].first_position))
}

/// The block, alive as a whole wherever it occupies any bytes, and not fixed.
pub(crate) fn without_windows(block: &Block, fixed: Option<Bytes>) -> Block {
    let mut all: Vec<Interval> = block.parts().map(|(during, ..)| during).collect();
    all.sort_unstable();
    let mut alive: Vec<Interval> = Vec::with_capacity(all.len());
    for interval in all {
        match alive.last_mut() {
            Some(last) if interval.start <= last.end => last.end = last.end.max(interval.end),
            _ => alive.push(interval),
        }
    }
    Block { size: block.size, alive, windows: Vec::new(), align: block.align, fixed, hint: block.hint }
}

/// The blocks of a connected stretch of time, with the lowest offsets found.
struct Component {
    items: Vec<u32>,
    /// Proved lower bound of its height, in bytes.
    bound: u64,
    /// Nodes of its next search; `None` if searching it cannot prove more.
    nodes: Option<u64>,
}

/// A problem with windows, made ready.
struct Windowed<'a> {
    problem: &'a Problem,
    instance: Instance,
    occupancy: Occupancy,
    overlaps: OverlapIndex,
    components: Vec<Component>,
    /// No placement is lower.
    bound: u64,
    offsets: Vec<u64>,
    height: u64,
}

impl<'a> Windowed<'a> {
    /// The error is the outcome of a problem that is infeasible for every packer.
    fn new(problem: &'a Problem) -> Result<Self, Outcome<Placement>> {
        let blocks = problem.blocks.values().map(|block| without_windows(block, None)).collect();
        let instance = Instance::cut(&Problem { blocks, capacity: None });
        let occupancy = Occupancy::new(problem, &instance);
        let end = |block: &Block| block.fixed.unwrap_or_default() + block.size;
        let highest = problem.blocks.values().map(end).max().unwrap_or_default();
        let bound = highest.max(problem.peak_live()).get();
        let components = components(&instance)
            .into_iter()
            .map(|component| {
                let nodes = (component.items.len() <= MOST_ITEMS).then_some(FIRST_NODES);
                Component { items: component.items, bound: 0, nodes }
            })
            .collect();
        let overlaps = OverlapIndex::new(&instance);
        let offsets = Vec::new();
        let windowed =
            Self { problem, instance, occupancy, overlaps, components, bound, offsets, height: u64::MAX };
        if let Some(pair) = windowed.fixed_clash() {
            let blocks = pair.map(|item| windowed.instance.items[item].block).to_vec();
            return Err(infeasible(blocks, bound + 1, problem.capacity));
        }
        if let Some(capacity) = problem.capacity.map(Bytes::get)
            && capacity < bound
        {
            return Err(infeasible(windowed.witness(), bound, problem.capacity));
        }
        Ok(windowed)
    }

    /// Two fixed items whose offsets are illegal.
    fn fixed_clash(&self) -> Option<[usize; 2]> {
        let fixed = &self.occupancy.fixed;
        for (a, item) in self.instance.items.iter().enumerate() {
            let Some(x) = fixed[a] else { continue };
            let mut clash = None;
            self.overlaps.each_in(item.hull, |b| {
                let b = b as usize;
                if b < a
                    && let Some(y) = fixed[b]
                    && let Some((low, high)) = self.occupancy.ordered(a, b)
                    && low < x - y
                    && x - y < high
                {
                    clash = Some([b, a]);
                }
            });
            if clash.is_some() {
                return clash;
            }
        }
        None
    }

    /// The blocks that prove the bound: those of the fullest position, or the one with the highest end.
    fn witness(&self) -> Vec<u32> {
        let mut events: Vec<(u64, bool, u64, u32)> = Vec::new();
        for (item, parts) in (0..).zip(&self.occupancy.parts) {
            for &(during, from, to) in parts {
                events.push((during.start, true, (to - from) as u64, item));
                events.push((during.end, false, (to - from) as u64, item));
            }
        }
        events.sort_unstable();
        let (mut live, mut alive) = (0, std::collections::BTreeSet::new());
        for (_, starts, bytes, item) in events {
            if starts {
                live += bytes;
                alive.insert(item);
                if live == self.bound {
                    return alive.into_iter().map(|item| self.instance.items[item as usize].block).collect();
                }
            } else {
                live -= bytes;
                alive.remove(&item);
            }
        }
        let blocks = self.problem.blocks.iter();
        let highest = blocks.max_by_key(|(_, block)| block.fixed.unwrap_or_default() + block.size);
        highest.iter().map(|(id, _)| id.0).collect()
    }

    fn height_of(&self, items: &[u32], offsets: &[u64]) -> u64 {
        let ends = items.iter().map(|&i| offsets[i as usize] + self.occupancy.size[i as usize] as u64);
        ends.max().unwrap_or(0)
    }

    /// Adopts for every component the lower of its two placements.
    fn offer(&mut self, offsets: Vec<u64>) {
        if self.offsets.is_empty() {
            self.offsets = offsets;
        } else {
            for component in &self.components {
                if self.height_of(&component.items, &offsets)
                    < self.height_of(&component.items, &self.offsets)
                {
                    for &item in &component.items {
                        self.offsets[item as usize] = offsets[item as usize];
                    }
                }
            }
        }
        let heights = self.components.iter().map(|c| self.height_of(&c.items, &self.offsets));
        self.height = heights.max().unwrap_or(0);
    }

    /// The highest proved lower bound.
    fn proved(&self) -> u64 {
        self.components.iter().map(|component| component.bound).fold(self.bound, u64::max)
    }

    /// The height at or below which a component needs no search.
    fn goal(&self) -> u64 {
        self.problem.capacity.map_or_else(|| self.proved(), Bytes::get)
    }

    fn place(&self, order: &[u32], fit: Fit, stop: &dyn Fn() -> bool) -> Option<Vec<u64>> {
        constructive::place(&self.instance, &self.occupancy, &self.overlaps, order, fit, stop)
    }

    /// The lowest placement found.
    fn placement(&self) -> Placement {
        let fixed = |block: &Block| block.fixed.unwrap_or_default();
        let mut all: Vec<Bytes> = self.problem.blocks.values().map(fixed).collect();
        for (item, &offset) in self.instance.items.iter().zip(&self.offsets) {
            all[item.block as usize] = Bytes(offset);
        }
        Placement::new(self.problem, Table::from(all))
    }

    /// The outcome after `evaluations`.
    fn conclude(&self, evaluations: u64, observer: &dyn Observer, stop: StopReason) -> Outcome<Placement> {
        let best = self.placement();
        if self.problem.capacity.is_some_and(|capacity| best.height > capacity) {
            return missed(best, evaluations, observer);
        }
        let stop = if best.height.get() <= self.proved() { StopReason::Optimal } else { stop };
        Outcome { best: Some(best), evaluations, stop }
    }

    /// One search of a component, which may lower it, raise its bound or double the limit of its next search.
    fn search(&mut self, number: usize, stop: &dyn Fn() -> bool) {
        let Component { ref items, nodes: Some(nodes), .. } = self.components[number] else { return };
        let height = self.height_of(items, &self.offsets);
        let goal = self.goal();
        let ceiling = self.problem.capacity.map_or(height - 1, Bytes::get);
        let found =
            DifferenceSearch::new(&self.occupancy, items, Rule::Ordered).run(ceiling, goal, nodes, stop);
        let next = if found.ending == Ending::OutOfNodes { Some(2 * nodes) } else { None };
        let below = found.offsets.as_ref().map_or(ceiling, |_| 0);
        let (bound, next) = match (&found.offsets, next) {
            (_, Some(next)) => (None, Some(next)),
            // A placement was found: whether none is lower than it was decided too.
            (Some(offsets), None) => {
                let ends =
                    items.iter().zip(offsets).map(|(&i, at)| at + self.occupancy.size[i as usize] as u64);
                self.hold(items, ends.max().unwrap_or(0).saturating_sub(1), nodes, stop)
            }
            (None, None) => self.hold(items, below, nodes, stop),
        };
        if let Some(offsets) = found.offsets {
            let mut all = self.offsets.clone();
            for (&item, offset) in items.iter().zip(offsets) {
                all[item as usize] = offset;
            }
            self.offer(all);
        }
        let component = &mut self.components[number];
        component.nodes = next;
        component.bound = component.bound.max(bound.unwrap_or(0));
    }

    /// The bound proved if no placement of at most `ceiling` bytes exists even where blocks pass each other, and the limit of a further search.
    fn hold(
        &self,
        items: &[u32],
        ceiling: u64,
        nodes: u64,
        stop: &dyn Fn() -> bool,
    ) -> (Option<u64>, Option<u64>) {
        let passing = items.iter().enumerate().any(|(at, &a)| {
            items[..at].iter().any(|&b| self.occupancy.illegal(a as usize, b as usize, Rule::Bytes).len() > 1)
        });
        if !passing {
            return (Some(ceiling + 1), None);
        }
        let mut search = DifferenceSearch::new(&self.occupancy, items, Rule::Bytes);
        let found = search.run(ceiling, u64::MAX, 4 * nodes, stop);
        match (found.offsets, found.ending) {
            (None, Ending::Whole) => (Some(ceiling + 1), None),
            (None, Ending::OutOfNodes) => (None, Some(2 * nodes)),
            (Some(_), _) => (None, None),
        }
    }

    /// The outcome if some component is proved not to fit the capacity: names blocks from which none can be left out.
    fn refuted(&self, evaluations: u64, stop: &dyn Fn() -> bool) -> Option<Outcome<Placement>> {
        let capacity = self.problem.capacity?.get();
        let component = self.components.iter().find(|component| component.bound > capacity)?;
        let mut kept = component.items.clone();
        for &item in &component.items {
            if stop() {
                break;
            }
            let without: Vec<u32> = kept.iter().copied().filter(|&other| other != item).collect();
            let mut search = DifferenceSearch::new(&self.occupancy, &without, Rule::Bytes);
            let found = search.run(capacity, u64::MAX, 64 * FIRST_NODES, stop);
            if found.offsets.is_none() && found.ending == Ending::Whole {
                kept = without;
            }
        }
        let blocks = kept.iter().map(|&item| self.instance.items[item as usize].block).collect();
        let outcome = infeasible(blocks, capacity + 1, self.problem.capacity);
        Some(Outcome { evaluations, ..outcome })
    }

    /// A random change of an order: items that end above the goal move towards the front.
    fn reorder(&self, order: &[u32], random: &mut Random) -> Vec<u32> {
        let goal = self.goal();
        let share = [0.1, 0.3, 1.0, 1.0][random.below(4)];
        let noise = [0.0, 0.02, 0.1, 0.3][random.below(4)] * order.len() as f64;
        let mut keys: Vec<(f64, u32)> = Vec::with_capacity(order.len());
        for (at, &item) in order.iter().enumerate() {
            let end = self.offsets[item as usize] + self.occupancy.size[item as usize] as u64;
            let forward = if end > goal { 1.0 - share * random.unit() } else { 1.0 };
            keys.push((at as f64 * forward + noise * (random.unit() - 0.5), item));
        }
        ascending(keys)
    }
}

/// A packer without a search: places the blocks in this order.
pub(crate) fn in_order(
    problem: &Problem,
    order: Order,
    fit: Fit,
    budget: &Budget,
    observer: &dyn Observer,
) -> Outcome<Placement> {
    let clock = Clock::start(budget, observer);
    let mut windowed = match Windowed::new(problem) {
        Ok(windowed) => windowed,
        Err(outcome) => return outcome,
    };
    let order = order(&windowed.instance);
    let Some(offsets) = windowed.place(&order, fit, &|| clock.ends_constructions()) else {
        return clock.stopped();
    };
    windowed.offer(offsets);
    windowed.conclude(1, observer, StopReason::Finished)
}

/// The orders of the packers without a search, which a search begins with.
const ORDERS: [(Order, Fit); 7] = [
    (hint_order, Fit::First),
    (size_order, Fit::First),
    (conflict_order, Fit::First),
    (smart_order, Fit::Best),
    (smart_order, Fit::First),
    (longest_first, Fit::First),
    (time_order, Fit::First),
];

/// `auto` and `exact`. An evaluation is one order, or one search of a component.
pub(crate) fn search(problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
    let clock = Clock::start(budget, observer);
    let mut windowed = match Windowed::new(problem) {
        Ok(windowed) => windowed,
        Err(outcome) => return outcome,
    };
    let stop = || clock.stop_reason().is_some();
    let (order, fit) = ORDERS[0];
    let mut best_order = order(&windowed.instance);
    let many = windowed.instance.len() > ALWAYS_PLACED;
    match windowed.place(&best_order, fit, &|| many && clock.ends_constructions()) {
        Some(offsets) => windowed.offer(offsets),
        None => return clock.stopped(),
    }
    let mut evaluations = 1;
    if windowed.height > windowed.goal() && windowed.components.iter().any(|c| c.nodes.is_none()) {
        evaluations += from_whole_blocks(&mut windowed, budget, clock);
    }
    observer.improved(windowed.height, windowed.proved());
    let mut random = Random::new(budget.seed, 0);
    let mut round = 1;
    let ending = loop {
        let goal = windowed.goal();
        if windowed.height <= goal {
            break StopReason::Finished;
        }
        if problem.capacity.is_some_and(|capacity| windowed.proved() > capacity.get()) {
            break StopReason::Finished;
        }
        if let Some(reason) = clock.stop_reason_after(evaluations) {
            break reason;
        }
        let above = |c: &Component| windowed.height_of(&c.items, &windowed.offsets) > goal;
        let open: Vec<usize> =
            (0..windowed.components.len()).filter(|&number| above(&windowed.components[number])).collect();
        if open.iter().all(|&number| {
            windowed.components[number].items.len() <= MOST_ITEMS
                && windowed.components[number].nodes.is_none()
        }) {
            break StopReason::Finished;
        }
        let before = windowed.height;
        let number = open[round % open.len()];
        if let Some(&(order, fit)) = ORDERS.get(round) {
            let order = order(&windowed.instance);
            let Some(offsets) = windowed.place(&order, fit, &stop) else { continue };
            windowed.offer(offsets);
            if windowed.height < before {
                best_order = order;
            }
        } else if windowed.components[number].nodes.is_some() {
            windowed.search(number, &stop);
            if stop() {
                continue;
            }
        } else {
            let order = windowed.reorder(&best_order, &mut random);
            let Some(offsets) = windowed.place(&order, Fit::First, &stop) else { continue };
            let height = windowed.height_of(&order, &offsets);
            windowed.offer(offsets);
            if height <= before {
                best_order = order;
            }
        }
        round += 1;
        evaluations += 1;
        if windowed.height < before {
            observer.improved(windowed.height, windowed.proved());
        }
        observer.progress(evaluations);
    };
    if let Some(outcome) = windowed.refuted(evaluations, &stop) {
        observer.note(&Missed(windowed.placement()));
        return outcome;
    }
    windowed.conclude(evaluations, observer, ending)
}

/// Packs the blocks with `auto` as if they had no windows, and lets each fall as far as the windows allow: in ascending order of offsets, none
/// rises. Returns the number of evaluations.
fn from_whole_blocks(windowed: &mut Windowed<'_>, budget: &Budget, clock: Clock<'_>) -> u64 {
    let problem = windowed.problem;
    let blocks = problem.blocks.values().map(|block| without_windows(block, block.fixed)).collect();
    let whole = Problem { blocks, capacity: None };
    let left =
        budget.evaluations.map_or(WITHOUT_WINDOWS, |limit| limit.saturating_sub(1).min(WITHOUT_WINDOWS));
    let time = clock.time_left();
    if left == 0 {
        return 0;
    }
    let budget = Budget { evaluations: Some(left), time, ..budget.clone() };
    // Blocks that are fixed in each other's windows overlap as a whole: then there is nothing to start from.
    let outcome = Auto.pack(&whole, &budget, &InterruptOnly(clock.observer()));
    let Some(placement) = outcome.best else { return 0 };
    let offset = |i: usize| placement.offsets.as_slice()[windowed.instance.items[i].block as usize];
    let order = order_by(&windowed.instance, |i| (offset(i), Reverse(windowed.instance.items[i].size)));
    if let Some(offsets) = windowed.place(&order, Fit::First, &|| false) {
        windowed.offer(offsets);
    }
    outcome.evaluations
}

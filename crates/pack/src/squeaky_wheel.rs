//! Squeaky wheel optimization (Joslin and Clements 1999): better and better orders for components with too many items for a tree search.
//!
//! An order is handed to a constructive packer (best-fit or first-fit). Items that end above the goal move towards the front of the next order.
//! The first orders are those that do well on training traces: by size, by lifetime, and by the most live memory of any section in which
//! an item is alive, so that the peak is packed first. The last key works best: once the peak is settled, only a few items of the next
//! fullest sections end above the goal, and a construction that makes them do so is recognized early and abandoned. If a
//! component has too many items for a tree search, [`crate::outwards`] settles the peak better than these orders do; if it has too many for whole
//! runs of a constructive packer, [`crate::advance`] does.
//!
//! Later moves improve the best placement only where items end above the goal: [`crate::large_neighbourhood`] packs a window of time again, and
//! [`crate::ejection_chain`] lets items displace each other.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::advance::{Advances, Step, Stepped};
use crate::best_fit::{best_fit, longest_first};
use crate::ejection_chain::eject_above;
use crate::greedy::{conflict_order, size_order};
use crate::improver::MOST_ITEMS;
use crate::instance::{Instance, Span};
use crate::large_neighbourhood::{excess, repack, window_around};
use crate::order_keys::{ascending, order_by, peak_live, random_lifetime};
use crate::outwards::Outwards;
use crate::overlap::OverlapIndex;
use crate::partial_placement::{Fit, PartialPlacement, place_each_while, place_in_order_while};
use crate::random::Random;
use crate::smart_pool::smart_order;

/// Moves of one batch. A batch is prepared as a whole, so that the result does not depend on the number of threads.
pub(crate) const BATCH: usize = 2;

/// Sorts all items.
pub(crate) type Order = fn(&Instance) -> Vec<u32>;

/// The orders and rules of the greedy packers. The search is never worse than they are, once it has run each of them.
pub(crate) const GREEDY: [(Order, Fit); 4] = [
    (size_order, Fit::First),
    (conflict_order, Fit::First),
    (smart_order, Fit::Best),
    (smart_order, Fit::First),
];

/// How a move places all items in its order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Construction {
    /// Sekiyama's best-fit.
    BestFit,
    /// First-fit. Short-lived items go as high as possible below the goal, all others as low as possible. The free bytes between the two
    /// groups then stay in one piece.
    FirstFit {
        /// The longest lifetime of a short-lived item, in positions.
        short: u64,
    },
    /// A greedy packer; the result is kept even if more items end above the goal.
    Greedy(Fit),
    /// Outwards from the peak.
    Outwards(Outwards),
}

/// Further initial orders.
const STARTS: [(Order, Start); 17] = [
    (|i| order_by(i, |k| (i.items[k].hull.lo, Reverse(i.items[k].hull.hi))), Start::BestFit),
    (size_order, Start::BestFit),
    (by_live, Start::BestFit),
    (by_live, Start::FirstFit(512)),
    (by_live_step, Start::BestFit),
    (|i| order_by(i, |k| (Reverse(i.items[k].lifetime.ilog2()), i.items[k].hull.lo)), Start::BestFit),
    (
        |i| {
            order_by(i, |k| {
                let item = &i.items[k];
                (Reverse(item.size.ilog2()), Reverse(item.lifetime), Reverse(item.size))
            })
        },
        Start::BestFit,
    ),
    (
        |i| order_by(i, |k| Reverse(u128::from(i.items[k].size) * u128::from(i.items[k].lifetime))),
        Start::BestFit,
    ),
    (|i| order_by(i, |k| (Reverse(i.items[k].size.ilog2()), i.items[k].hull.lo)), Start::BestFit),
    (by_live_step, Start::FirstFit(0)),
    (by_live_step, Start::FirstFit(64)),
    (size_order, Start::FirstFit(64)),
    (by_live_step, Start::FirstFit(512)),
    (size_order, Start::FirstFit(512)),
    (by_live_step, Start::FirstFit(8)),
    (size_order, Start::FirstFit(8)),
    (longest_first, Start::FirstFit(64)),
];

/// The construction of an initial order. For first-fit, items are short-lived up to the longest lifetime divided by the number.
#[derive(Clone, Copy)]
enum Start {
    BestFit,
    FirstFit(u64),
}

/// The first move that places all items outwards from the peak, on components of up to [`LONG`] items; on longer ones it is move 0. All
/// moves up to [`FIRST_MOVES`] follow it.
const FIRST_OUTWARDS: usize = 8;
/// Up to this number of items, orders are repaired that place large ones a little earlier ([`Outwards`]), and one of two later moves outwards is a
/// [`Step`]. Above it, all are, and most moves.
const MOST_SHIFTED: usize = 10_000;

/// Moves with the order by live memory, and outwards from the peak, before other initial orders are tried.
const FIRST_MOVES: usize = 16;

/// Above this many items, all best-fit orders are tried first, or right after the first sweeps, and later constructions are rare.
const LONG: usize = 50_000;
/// One move in this many is such a construction: it takes as long as hundreds of windows.
const LONG_PERIOD: usize = 64;
/// The same where items are placed outwards by [`Advances`], which do better than these.
const ADVANCES_PERIOD: usize = 256;
/// Attempts at one window that count as one evaluation.
const ATTEMPTS: u32 = 4;

/// The search over orders of one component.
pub(crate) struct SqueakyWheel {
    overlaps: OverlapIndex,
    order: Vec<u32>,
    construction: Construction,
    offsets: Vec<u64>,
    /// Items that end above the goal.
    above: Vec<u32>,
    /// The sum of [`excess`] over all items.
    cost: f64,
    /// Of problems of many items: the search for a way to place them outwards from the peak.
    advances: Option<Advances>,
    /// Windows changed since the moves of this batch were prepared.
    changed: Vec<Span>,
}

/// Items of the fullest sections first; among them, larger ones first.
fn by_live(instance: &Instance) -> Vec<u32> {
    let peaks = peak_live(instance);
    order_by(instance, |i| (Reverse(peaks[i]), Reverse(instance.items[i].size)))
}

/// The same with live memory in steps of 1/64 of the peak, so that nearly equal sections do not outweigh size.
fn by_live_step(instance: &Instance) -> Vec<u32> {
    let peaks = peak_live(instance);
    let step = instance.bound / 64 + 1;
    order_by(instance, |i| (Reverse(peaks[i] / step), Reverse(instance.items[i].size)))
}

impl SqueakyWheel {
    /// Starts from a placement made by best-fit with the longest lifetimes first.
    pub(crate) fn new(instance: &Instance, goal: u64, offsets: &[u64]) -> Self {
        let overlaps = OverlapIndex::new(instance);
        let mut wheel = Self {
            order: Vec::new(),
            construction: Construction::BestFit,
            offsets: Vec::new(),
            above: Vec::new(),
            cost: f64::INFINITY,
            advances: if instance.len() > MOST_ITEMS { Advances::new(instance, &overlaps) } else { None },
            overlaps,
            changed: Vec::new(),
        };
        wheel.accept_full(
            instance,
            goal,
            Some((longest_first(instance), Construction::BestFit)),
            offsets.to_vec(),
        );
        wheel
    }

    /// The best order, with items that end above the goal moved towards the front.
    fn order(&self, instance: &Instance, goal: u64, random: &mut Random) -> Vec<u32> {
        let excess = |item: u32| self.offsets[item as usize] + instance.items[item as usize].bytes > goal;
        // They move by the same share of their position, or each by a random one.
        let mut keys: Vec<(f64, u32)> =
            self.order.iter().enumerate().map(|(at, &item)| (at as f64, item)).collect();
        let share = [0.1, 0.3, 1.0, 1.0][random.below(4)];
        let (uniform, noisy) = (random.below(2) == 0, random.below(2) == 0);
        let common = random.unit();
        for (key, item) in &mut keys {
            if excess(*item) {
                if uniform {
                    *key *= 1.0 - share * common;
                } else if random.unit() < 0.7 {
                    *key *= 1.0 - share * random.unit();
                }
            } else if noisy && random.unit() < 0.002 {
                *key += (random.unit() - 0.5) * 0.05 * self.order.len() as f64;
            }
        }
        ascending(keys)
    }

    /// Adopts a placement of all items if its cost is no higher.
    fn accept_full(
        &mut self,
        instance: &Instance,
        goal: u64,
        order: Option<(Vec<u32>, Construction)>,
        offsets: Vec<u64>,
    ) {
        let end = |i: usize| offsets[i] + instance.items[i].bytes;
        let cost = (0..instance.len()).map(|i| excess(end(i), goal)).sum();
        if cost <= self.cost {
            self.above = (0..instance.len() as u32).filter(|&i| end(i as usize) > goal).collect();
            self.cost = cost;
            self.offsets = offsets;
            self.changed.push(Span { lo: 0, hi: instance.sections() as u32 });
            if let Some((order, construction)) = order {
                (self.order, self.construction) = (order, construction);
            }
        }
    }

    /// Adopts a repacked window, unless something in it has changed since the move was prepared.
    fn accept_window(&mut self, instance: &Instance, goal: u64, window: Span, moved: &[(u32, u64)]) {
        if self.changed.iter().any(|other| other.overlaps(window)) {
            return;
        }
        self.changed.push(window);
        let end = |i: u32, offset: u64| offset + instance.items[i as usize].bytes;
        for &(item, offset) in moved {
            let (old, new) = (end(item, self.offsets[item as usize]), end(item, offset));
            self.cost += excess(new, goal) - excess(old, goal);
            self.offsets[item as usize] = offset;
            if old <= goal && new > goal {
                self.above.push(item);
            }
        }
        self.above.retain(|&item| end(item, self.offsets[item as usize]) > goal);
    }

    /// Applies the result of a move. Returns the offsets of all items if they are lower than `height`.
    pub(crate) fn accept(
        &mut self,
        instance: &Instance,
        (goal, height): (u64, u64),
        applied: Move,
        change: Change,
    ) -> Option<Vec<u64>> {
        let change = match (&applied, change) {
            (Move::Outwards(step), Change::Outwards(stepped)) => {
                let all = (instance, &self.overlaps);
                Change::Full(self.advances.as_mut()?.accept(all, step, stepped)?)
            }
            (_, other) => other,
        };
        match (applied, change) {
            (_, Change::None | Change::Outwards(_)) => None,
            (Move::Repack { window, .. }, Change::Partial(moved)) => {
                self.accept_window(instance, goal, window, &moved);
                let end = |&i: &u32| self.offsets[i as usize] + instance.items[i as usize].bytes;
                let lower = self.above.iter().map(end).max().is_none_or(|end| end < height);
                lower.then(|| self.offsets.clone())
            }
            (_, Change::Partial(_)) => None,
            (applied, Change::Full(offsets)) => {
                let lower = (instance.height(&offsets) < height).then(|| offsets.clone());
                let order = if let Move::Construct(order, construction) = applied {
                    Some((order, construction))
                } else {
                    None
                };
                self.accept_full(instance, goal, order, offsets);
                lower
            }
        }
    }
}

/// One evaluation: how to change the best placement.
pub(crate) enum Move {
    /// Places all items in an order. First-fit stops as soon as its cost exceeds that of the best placement; large items and those of full
    /// sections come first, so it stops early.
    Construct(Vec<u32>, Construction),
    /// Runs ejection chains below a ceiling, from the best offsets.
    Eject {
        /// In bytes.
        ceiling: u64,
        /// Its random choices.
        random: Random,
    },
    /// Places items outwards from the peak, each where it begins.
    Outwards(Step),
    /// Packs a window of time again.
    Repack {
        /// Its sections.
        window: Span,
        /// Its random choices.
        random: Random,
    },
}

/// The result of a move.
pub(crate) enum Change {
    /// Offsets of all items.
    Full(Vec<u64>),
    /// Items with new offsets.
    Partial(Vec<(u32, u64)>),
    /// What a step outwards gives.
    Outwards(Stepped),
    /// No improvement.
    None,
}

/// Items placed between two checks of the clock and the observer.
const ITEMS_PER_CHECK: u32 = 64;
/// Steps of one run of ejection chains.
const CHAIN_STEPS: u32 = 400;

impl SqueakyWheel {
    /// The move of a number, counted from the start of this search: one that places all items, by a fixed order, outwards from the peak or by the
    /// order of this search, or else one that changes a few.
    pub(crate) fn next(
        &self,
        instance: &Instance,
        (goal, height): (u64, u64),
        number: usize,
        mut random: Random,
    ) -> Move {
        if number < FIRST_MOVES
            && let Some(outwards) = self.next_outwards(instance, height, number, &mut random)
        {
            return outwards;
        }
        if let Some(start) = self.next_start(instance, number) {
            return start;
        }
        if number >= FIRST_MOVES
            && let Some(outwards) = self.next_outwards(instance, height, number, &mut random)
        {
            return outwards;
        }
        if let Some(whole) = self.next_whole(instance, goal, number, &mut random) {
            return whole;
        }
        self.next_local(instance, goal, number, random)
    }

    /// The move of a number if a fixed order has its turn: first those of the greedy packers, then those that searches start with.
    fn next_start(&self, instance: &Instance, number: usize) -> Option<Move> {
        let long = instance.len() > LONG;
        let mut quick = STARTS.iter().filter(|(_, start)| matches!(start, Start::BestFit));
        let sweeps = if self.advances.is_some() { FIRST_MOVES } else { 0 };
        if long && let Some(&(order, _)) = quick.nth(number - sweeps) {
            return Some(Move::Construct(order(instance), Construction::BestFit));
        }
        let (first, period) = match (long, self.advances.is_some()) {
            (false, _) => (FIRST_MOVES, 2),
            (true, false) => (LONG_PERIOD - 1, LONG_PERIOD),
            (true, true) => (ADVANCES_PERIOD - 1, ADVANCES_PERIOD),
        };
        let turn = number.checked_sub(first).filter(|since| since % period == 0)? / period;
        if let Some(&(order, fit)) = GREEDY.get(turn) {
            return Some(Move::Construct(order(instance), Construction::Greedy(fit)));
        }
        let &(order, start) = STARTS.get(turn - GREEDY.len())?;
        let construction = match start {
            Start::BestFit => Construction::BestFit,
            Start::FirstFit(share) => {
                let longest = instance.items.iter().map(|item| item.lifetime).max().unwrap_or(0);
                Construction::FirstFit { short: longest.checked_div(share).unwrap_or(0) }
            }
        };
        Some(Move::Construct(order(instance), construction))
    }

    /// The move of a number if it places all items by the order of this search, or by that of live memory at first; never in long problems, where
    /// that takes too long.
    fn next_whole(&self, instance: &Instance, goal: u64, number: usize, random: &mut Random) -> Option<Move> {
        if instance.len() > LONG {
            return None;
        }
        if number < 2 {
            let construction = Construction::FirstFit { short: 2 * number as u64 };
            return Some(Move::Construct(by_live(instance), construction));
        }
        let same = match self.construction {
            Construction::Greedy(_) => Construction::FirstFit { short: 0 },
            construction => construction,
        };
        let (period, turn) = (number / 16, number % 16);
        let construction = match turn {
            _ if number < FIRST_MOVES => same,
            1 | 7 => same,
            // Most items of a training live for one op or two. Placed at the top, they leave the rest in one piece.
            3 => Construction::FirstFit { short: 2 },
            9 => Construction::FirstFit { short: random_lifetime(instance, random) },
            11 => Construction::FirstFit { short: [1, 4, 0, 8][period % 4] },
            5 => Construction::BestFit,
            _ => return None,
        };
        Some(Move::Construct(self.order(instance, goal, random), construction))
    }

    /// The move of a number if it places all items outwards from the peak.
    fn next_outwards(
        &self,
        instance: &Instance,
        height: u64,
        number: usize,
        random: &mut Random,
    ) -> Option<Move> {
        let first = if instance.len() > LONG { 0 } else { FIRST_OUTWARDS };
        if instance.len() <= MOST_ITEMS || number < first {
            return None;
        }
        let shifted = instance.len() <= MOST_SHIFTED;
        if shifted && (number < FIRST_MOVES || number % 4 == 3) {
            let outwards = Outwards::draw(instance, random);
            return Some(Move::Construct(outwards.order(instance), Construction::Outwards(outwards)));
        }
        // Above that number of items, one of 32 moves repacks windows and one runs ejection chains.
        let steps = if shifted { number % 4 == 2 } else { number / 2 % 16 != 6 };
        let advances = self.advances.as_ref()?;
        if number < FIRST_MOVES {
            return Some(Move::Outwards(advances.first_step(instance, random)));
        }
        let turn = if shifted { number / 4 } else { number };
        steps.then(|| Move::Outwards(advances.step(turn, height, random)))
    }

    /// A move that changes a few items.
    pub(crate) fn next_local(
        &self,
        instance: &Instance,
        goal: u64,
        number: usize,
        mut random: Random,
    ) -> Move {
        let end = |i: u32| self.offsets[i as usize] + instance.items[i as usize].bytes;
        let height = self.above.iter().map(|&i| end(i)).max().unwrap_or(goal);
        if number % 16 == 13 {
            let gap = height - goal;
            let down = [0, gap / 2, gap / 4, gap - gap / 16][number / 16 % 4];
            return Move::Eject { ceiling: goal + down.min(gap.saturating_sub(1)), random };
        }
        let highest = self.above.iter().copied().find(|&i| end(i) == height).filter(|_| random.below(2) == 0);
        let item = highest.unwrap_or_else(|| self.above[random.below(self.above.len())]);
        let window = window_around(instance, &self.overlaps, item as usize, &mut random);
        Move::Repack { window, random }
    }

    /// Starts to prepare a batch.
    pub(crate) fn start_batch(&mut self) {
        self.changed.clear();
    }

    /// What a move gives.
    pub(crate) fn change(
        &self,
        instance: &Instance,
        goal: u64,
        one: &Move,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Change {
        let checks = AtomicU32::new(0);
        let interrupted = || checks.fetch_add(1, Ordering::Relaxed).is_multiple_of(ITEMS_PER_CHECK) && stop();
        let whole = |offsets: Option<Vec<u64>>| offsets.map_or(Change::None, Change::Full);
        match one {
            Move::Construct(order, Construction::BestFit) => Change::Full(best_fit(instance, order)),
            Move::Construct(order, Construction::FirstFit { short }) => {
                whole(self.placed_while_cheap(instance, goal, order, &interrupted, |placement, at| {
                    let short = instance.items[at].lifetime <= *short;
                    let top = if short { placement.place_below(at, goal) } else { None };
                    top.unwrap_or_else(|| placement.place(at))
                }))
            }
            Move::Construct(order, Construction::Outwards(outwards)) => {
                whole(self.placed_while_cheap(instance, goal, order, &interrupted, |placement, at| {
                    outwards.place(placement, instance, at, goal)
                }))
            }
            Move::Outwards(step) => {
                let all = (instance, &self.overlaps);
                let run = |advances: &Advances| advances.run(all, goal, step, &interrupted);
                self.advances.as_ref().and_then(run).map_or(Change::None, Change::Outwards)
            }
            Move::Construct(order, Construction::Greedy(fit)) => {
                whole(place_in_order_while(instance, order.iter().copied(), *fit, |_, _| !interrupted()))
            }
            Move::Eject { ceiling, random } => {
                let random = &mut random.clone();
                whole(eject_above(
                    instance,
                    &self.overlaps,
                    &self.offsets,
                    *ceiling,
                    CHAIN_STEPS,
                    random,
                    stop,
                ))
            }
            Move::Repack { window, random } => {
                let mut random = random.clone();
                let mut attempt =
                    |_| repack(instance, &self.overlaps, &self.offsets, *window, goal, &mut random);
                (0..ATTEMPTS).find_map(&mut attempt).map_or(Change::None, Change::Partial)
            }
        }
    }

    /// Offsets of all items, placed in an order until their excess is higher than that of the best placement.
    fn placed_while_cheap<'a>(
        &self,
        instance: &'a Instance,
        goal: u64,
        order: &[u32],
        interrupted: &dyn Fn() -> bool,
        place: impl FnMut(&mut PartialPlacement<'a>, usize) -> u64,
    ) -> Option<Vec<u64>> {
        let mut left = self.cost;
        place_each_while(instance, order.iter().copied(), Fit::First, place, |item, offset| {
            left -= excess(offset + instance.items[item].bytes, goal);
            left >= 0.0 && !interrupted()
        })
    }

    /// Evaluates the moves of a batch, with at most `threads` threads. The result ends before the first move that was stopped.
    pub(crate) fn evaluate(
        &self,
        instance: &Instance,
        goal: u64,
        moves: &[Move],
        threads: usize,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Vec<Change> {
        // A move without improvement counts as an evaluation, unless it was stopped.
        let attempt = |one: &Move| {
            if stop() {
                None
            } else {
                Some(self.change(instance, goal, one, stop))
                    .filter(|change| !matches!(change, Change::None) || !stop())
            }
        };
        let done: Vec<Option<Change>> = if threads < 2 {
            moves.iter().map(attempt).collect()
        } else {
            std::thread::scope(|scope| {
                let workers: Vec<_> = moves.iter().map(|one| scope.spawn(move || attempt(one))).collect();
                workers
                    .into_iter()
                    .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                    .collect()
            })
        };
        done.into_iter().map_while(|change| change).collect()
    }
}

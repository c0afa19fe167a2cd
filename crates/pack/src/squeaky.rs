//! Better and better orders for parts with too many items to search: squeaky wheel optimization (Joslin and Clements 1999).
//!
//! What ends above the goal in one run comes earlier in the next. Runs start from the orders that do well on training traces: by size, by lifetime, and by
//! the load of the fullest section that an item lives through, so that the peak is packed first and everything else gives way to it. Orders are handed to best-fit, which
//! is the fastest way to place many items, and once to the greedy packers. Most runs then mend the best placement where something ends above the goal: a stretch
//! of time is placed anew ([`crate::neighbourhood`]), or items push each other around ([`crate::eject`]).

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::beside::Beside;
use crate::best_fit::{best_fit, longest_first};
use crate::eject::repair;
use crate::greedy::{conflict_order, size_order};
use crate::instance::{Instance, Span};
use crate::neighbourhood::{around, excess, replace};
use crate::random::Random;
use crate::shelf::{Hole, Shelf, order_by, place_while};
use crate::smart_pool::smart_order;

/// Runs of one batch, prepared together so that the result does not depend on the number of threads.
pub(crate) const BATCH: usize = 2;

/// Makes an order of all items.
pub(crate) type Order = fn(&Instance) -> Vec<u32>;

/// What the greedy packers do. The search is never worse than these once they have had their turn.
pub(crate) const GREEDY: [(Order, Hole); 4] = [
    (size_order, Hole::Lowest),
    (conflict_order, Hole::Lowest),
    (smart_order, Hole::Smallest),
    (smart_order, Hole::Lowest),
];

/// Orders in which best-fit runs first.
const SEEDS: [Order; 7] = [
    by_fullest,
    |i| order_by(i, |k| (Reverse(i.items[k].lifetime.ilog2()), i.items[k].hull.lo)),
    |i| {
        order_by(i, |k| {
            let item = &i.items[k];
            (Reverse(item.size.ilog2()), Reverse(item.lifetime), Reverse(item.size))
        })
    },
    |i| order_by(i, |k| (i.items[k].hull.lo, Reverse(i.items[k].hull.hi))),
    |i| order_by(i, |k| Reverse(u128::from(i.items[k].size) * u128::from(i.items[k].lifetime))),
    |i| order_by(i, |k| (Reverse(i.items[k].size.ilog2()), i.items[k].hull.lo)),
    size_order,
];

/// Orders in which first-fit runs next, and what share of the longest lifetime is a short one.
const SIDED: [(Order, u64); 8] = [
    (by_fullest, 0),
    (by_fullest, 64),
    (size_order, 64),
    (by_fullest, 512),
    (size_order, 512),
    (by_fullest, 8),
    (size_order, 8),
    (longest_first, 64),
];

/// Runs before the greedy packers have their turn, which is long where items are many.
const BEFORE_GREEDY: usize = 31;

/// Beyond this many items, a run over all of them is rare, and the greedy packers have no turn: they would take minutes.
const MOST_AT_ONCE: usize = 50_000;
/// Attempts at one stretch that are one evaluation.
const ATTEMPTS: u32 = 4;

/// The search over orders of one part.
pub(crate) struct Squeaky {
    beside: Beside,
    order: Vec<u32>,
    offsets: Vec<u64>,
    /// What ends above the goal.
    above: Vec<u32>,
    /// The sum of [`excess`] over all items.
    cost: f64,
    /// Stretches placed anew since the runs of this batch were prepared.
    changed: Vec<Span>,
}

/// A lifetime up to the longest, its logarithm evenly spread.
pub(crate) fn short(instance: &Instance, random: &mut Random) -> u64 {
    let longest = instance.items.iter().map(|item| item.lifetime).max().unwrap_or(0);
    longest >> random.below(longest.checked_ilog2().unwrap_or(0) as usize + 1)
}

/// Items of the fullest sections first, the largest of them first. Loads count in steps of a 64th of the peak: nearly equal ones should not
/// outweigh size.
fn by_fullest(instance: &Instance) -> Vec<u32> {
    let fullest = fullest(instance);
    let step = instance.bound / 64 + 1;
    order_by(instance, |i| (Reverse(fullest[i] / step), Reverse(instance.items[i].size)))
}

/// Largest load of any section that each item lives through: a sparse table of maxima answers every span at once.
pub(crate) fn fullest(instance: &Instance) -> Vec<u64> {
    let mut levels = vec![instance.load.clone()];
    while 2 << (levels.len() - 1) <= instance.sections() {
        let (below, step) = (&levels[levels.len() - 1], 1 << (levels.len() - 1));
        let level = (0..below.len() - step).map(|at| below[at].max(below[at + step])).collect();
        levels.push(level);
    }
    let longest = |lo: u32, hi: u32| {
        let level = (hi - lo).ilog2() as usize;
        levels[level][lo as usize].max(levels[level][hi as usize - (1 << level)])
    };
    (0..instance.len())
        .map(|i| instance.spans(i).iter().map(|span| longest(span.lo, span.hi)).max().unwrap_or(0))
        .collect()
}

impl Squeaky {
    /// A search that starts from a placement of best-fit with the longest lifetimes first.
    pub(crate) fn new(instance: &Instance, goal: u64, offsets: &[u64]) -> Self {
        let mut squeaky = Self {
            beside: Beside::new(instance),
            order: Vec::new(),
            offsets: Vec::new(),
            above: Vec::new(),
            cost: f64::INFINITY,
            changed: Vec::new(),
        };
        squeaky.learn(instance, goal, Some(longest_first(instance)), offsets.to_vec());
        squeaky
    }

    /// The order for a run.
    fn order(&self, instance: &Instance, goal: u64, random: &mut Random) -> Vec<u32> {
        let excess = |item: u32| self.offsets[item as usize] + instance.items[item as usize].bytes > goal;
        // Most of the wheels that squeak go some way towards the front.
        let mut keys: Vec<(f64, u32)> =
            self.order.iter().enumerate().map(|(at, &item)| (at as f64, item)).collect();
        let share = [0.02, 0.1, 0.3, 0.8][random.below(4)];
        for (key, item) in &mut keys {
            if excess(*item) && random.unit() < 0.7 {
                *key -= share * (*key + 1.0) * random.unit().max(0.5);
            } else if random.unit() < 0.002 {
                *key += (random.unit() - 0.5) * 0.05 * self.order.len() as f64;
            }
        }
        keys.sort_by(|a, b| a.0.total_cmp(&b.0));
        keys.into_iter().map(|(_, item)| item).collect()
    }

    /// Takes a placement of everything if less of it ends above the goal.
    fn learn(&mut self, instance: &Instance, goal: u64, order: Option<Vec<u32>>, offsets: Vec<u64>) {
        let end = |i: usize| offsets[i] + instance.items[i].bytes;
        let cost = (0..instance.len()).map(|i| excess(end(i), goal)).sum();
        if cost <= self.cost {
            self.above = (0..instance.len() as u32).filter(|&i| end(i as usize) > goal).collect();
            self.cost = cost;
            self.offsets = offsets;
            self.changed.push(Span { lo: 0, hi: instance.sections() as u32 });
            if let Some(order) = order {
                self.order = order;
            }
        }
    }

    /// Takes a stretch, unless something there has changed since it was looked at.
    fn learn_stretch(&mut self, instance: &Instance, goal: u64, stretch: Span, moved: &[(u32, u64)]) {
        if self.changed.iter().any(|other| other.overlaps(stretch)) {
            return;
        }
        self.changed.push(stretch);
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

    /// Hears what a run gave; the offsets of all items, if they are lower than `height`.
    pub(crate) fn hear(
        &mut self,
        instance: &Instance,
        (goal, height): (u64, u64),
        run: Run,
        found: Found,
    ) -> Option<Vec<u64>> {
        match (run, found) {
            (_, Found::Nothing) => None,
            (Run::Stretch { stretch, .. }, Found::Moves(moved)) => {
                self.learn_stretch(instance, goal, stretch, &moved);
                let end = |&i: &u32| self.offsets[i as usize] + instance.items[i as usize].bytes;
                let lower = self.above.iter().map(end).max().is_none_or(|end| end < height);
                lower.then(|| self.offsets.clone())
            }
            (_, Found::Moves(_)) => None,
            (run, Found::Whole(offsets)) => {
                let lower = (instance.height(&offsets) < height).then(|| offsets.clone());
                let order = match run {
                    Run::BestFit(order) | Run::FirstFit { order, .. } | Run::Greedy(order, _) => Some(order),
                    _ => None,
                };
                self.learn(instance, goal, order, offsets);
                lower
            }
        }
    }
}

/// One evaluation.
pub(crate) enum Run {
    /// Best-fit in an order.
    BestFit(Vec<u32>),
    /// First-fit in an order, given up when more ends above the goal than in the best placement. As what is large tends to come
    /// first, that is seen early.
    FirstFit {
        /// The order.
        order: Vec<u32>,
        /// Items that live no longer than this hang from the goal; the others stand on the floor. So what is free lies in one piece between those
        /// that come and go and those that stay.
        short: u64,
    },
    /// One item after another, to the end.
    Greedy(Vec<u32>, Hole),
    /// Ejection chains under a ceiling, from the best offsets.
    Repair {
        /// The ceiling, in bytes.
        ceiling: u64,
        /// Its random choices.
        random: Random,
    },
    /// A stretch placed anew.
    Stretch {
        /// The stretch.
        stretch: Span,
        /// Its random choices.
        random: Random,
    },
}

/// What came of a run.
pub(crate) enum Found {
    /// Offsets of all items.
    Whole(Vec<u64>),
    /// Items with new offsets.
    Moves(Vec<(u32, u64)>),
    /// Nothing to take.
    Nothing,
}

/// Items placed between two looks whether to stop.
const PATIENCE: u32 = 64;
/// Steps of one ejection chain.
const STEPS: u32 = 400;

impl Squeaky {
    /// What to evaluate next, the first of a batch or a later one.
    pub(crate) fn next(&self, instance: &Instance, goal: u64, run: usize, mut random: Random) -> Run {
        let long = instance.len() > MOST_AT_ONCE;
        let seed = if long {
            run.checked_sub(63).filter(|run| run % 64 == 0).map(|run| run / 64)
        } else {
            Some(run)
        };
        if let Some(seed) = seed.and_then(|seed| SEEDS.get(seed)) {
            return Run::BestFit(seed(instance));
        }
        if let Some(&(order, share)) = run.checked_sub(SEEDS.len()).and_then(|at| SIDED.get(at))
            && !long
        {
            let longest = instance.items.iter().map(|item| item.lifetime).max().unwrap_or(0);
            return Run::FirstFit { order: order(instance), short: longest.checked_div(share).unwrap_or(0) };
        }
        if let Some(&(order, hole)) = run.checked_sub(BEFORE_GREEDY).and_then(|at| GREEDY.get(at))
            && !long
        {
            return Run::Greedy(order(instance), hole);
        }
        let end = |i: u32| self.offsets[i as usize] + instance.items[i as usize].bytes;
        let height = self.above.iter().map(|&i| end(i)).max().unwrap_or(goal);
        match run % 16 {
            1 | 3 | 7 | 9 | 11 if !long => {
                // What lives for an op or two is most of a training's items, and hung apart it leaves the rest in one piece.
                let short = match run % 16 {
                    1 | 7 => 2,
                    3 | 11 => [1, 4, 0, 8][run / 16 % 4],
                    _ => short(instance, &mut random),
                };
                return Run::FirstFit { order: self.order(instance, goal, &mut random), short };
            }
            5 if !long => return Run::BestFit(self.order(instance, goal, &mut random)),
            13 => {
                let gap = height - goal;
                let down = [0, gap / 2, gap / 4, gap - gap / 16][run / 16 % 4];
                return Run::Repair { ceiling: goal + down.min(gap.saturating_sub(1)), random };
            }
            _ => {}
        }
        let highest = self.above.iter().copied().find(|&i| end(i) == height).filter(|_| random.below(2) == 0);
        let item = highest.unwrap_or_else(|| self.above[random.below(self.above.len())]);
        let stretch = around(instance, &self.beside, item as usize, &mut random);
        Run::Stretch { stretch, random }
    }

    /// Forgets what changed before: a new batch is about to be prepared.
    pub(crate) fn begin_batch(&mut self) {
        self.changed.clear();
    }

    /// Does the runs of a batch on the given number of threads. Runs that were stopped are left out with those after them.
    pub(crate) fn perform(
        &self,
        instance: &Instance,
        goal: u64,
        runs: &[Run],
        threads: usize,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Vec<Found> {
        let asked = AtomicU32::new(0);
        let ask = || asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(PATIENCE) && stop();
        let whole = |offsets: Option<Vec<u64>>| offsets.map_or(Found::Nothing, Found::Whole);
        let one = |run: &Run| match run {
            Run::BestFit(order) => Found::Whole(best_fit(instance, order)),
            Run::FirstFit { order, short } => {
                let mut left = self.cost;
                let mut shelf = Shelf::new(instance, Hole::Lowest);
                let mut place = |item: &u32| {
                    let at = *item as usize;
                    let item = &instance.items[at];
                    let hung = if item.lifetime <= *short { shelf.hang(at, goal) } else { None };
                    let offset = hung.unwrap_or_else(|| shelf.place(at));
                    left -= excess(offset + item.bytes, goal);
                    left >= 0.0 && !ask()
                };
                let mut free = order.iter().filter(|&&i| instance.items[i as usize].fixed.is_none());
                whole(free.all(&mut place).then(|| shelf.into_offsets()))
            }
            Run::Greedy(order, hole) => {
                whole(place_while(instance, order.iter().copied(), *hole, |_, _| !ask()))
            }
            Run::Repair { ceiling, random } => {
                let random = &mut random.clone();
                whole(repair(instance, &self.beside, &self.offsets, *ceiling, STEPS, random, stop))
            }
            Run::Stretch { stretch, random } => {
                let mut random = random.clone();
                let mut attempt =
                    |_| replace(instance, &self.beside, &self.offsets, *stretch, goal, &mut random);
                (0..ATTEMPTS).find_map(&mut attempt).map_or(Found::Nothing, Found::Moves)
            }
        };
        // A run that comes to nothing counts, unless it was told to stop.
        let one = |run: &Run| {
            if stop() {
                None
            } else {
                Some(one(run)).filter(|found| !matches!(found, Found::Nothing) || !stop())
            }
        };
        let done: Vec<Option<Found>> = if threads < 2 {
            runs.iter().map(one).collect()
        } else {
            std::thread::scope(|scope| {
                let workers: Vec<_> = runs.iter().map(|run| scope.spawn(move || one(run))).collect();
                workers
                    .into_iter()
                    .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                    .collect()
            })
        };
        done.into_iter().map_while(|found| found).collect()
    }
}

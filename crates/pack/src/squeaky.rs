//! Better and better orders for parts with too many items to search: squeaky wheel optimization (Joslin and Clements 1999).
//!
//! What ends above the goal in one run comes earlier in the next. Runs start from the orders that do well on training traces: by size, by lifetime, and by
//! the load of the fullest section that an item lives through, so that the peak is packed first and everything else gives way to it. The last one leaves
//! least to mend: what cannot be helped at the peak is settled before anything else lies in the way, so that only a few items of the next fullest sections
//! end above the goal, and a run in which they do so again is seen early and given up. Orders are handed to first-fit and to best-fit. Later runs also mend the
//! best placement where something ends above the goal: a stretch of time is placed anew ([`crate::neighbourhood`]), or items push each other around
//! ([`crate::eject`]).

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

/// How all items are placed in one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    BestFit,
    /// First-fit. Items that live no longer than this hang from the goal; the others stand on the floor. So what is free lies in one piece between those
    /// that come and go and those that stay.
    FirstFit {
        short: u64,
    },
    /// First-fit as a greedy packer does it, whatever comes of it.
    Greedy(Hole),
}

/// More orders to start from. Of first-fit, the number says what share of the longest lifetime is a short one.
const STARTS: [(Order, Start); 17] = [
    (|i| order_by(i, |k| (i.items[k].hull.lo, Reverse(i.items[k].hull.hi))), Start::BestFit),
    (size_order, Start::BestFit),
    (by_load, Start::BestFit),
    (by_load, Start::FirstFit(512)),
    (by_step, Start::BestFit),
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
    (by_step, Start::FirstFit(0)),
    (by_step, Start::FirstFit(64)),
    (size_order, Start::FirstFit(64)),
    (by_step, Start::FirstFit(512)),
    (size_order, Start::FirstFit(512)),
    (by_step, Start::FirstFit(8)),
    (size_order, Start::FirstFit(8)),
    (longest_first, Start::FirstFit(64)),
];

/// The way of a start, before lifetimes are known.
#[derive(Clone, Copy)]
enum Start {
    BestFit,
    FirstFit(u64),
}

/// Runs before other orders than the first have their turn.
const FIRST: usize = 16;

/// Beyond this many items, best-fit runs in each of its orders, and later runs over all items are rare: each takes as long as hundreds of stretches.
const MOST_AT_ONCE: usize = 50_000;
/// Attempts at one stretch that are one evaluation.
const ATTEMPTS: u32 = 4;

/// The search over orders of one part.
pub(crate) struct Squeaky {
    beside: Beside,
    order: Vec<u32>,
    way: Way,
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

/// Items of the fullest sections first, the largest of them first.
fn by_load(instance: &Instance) -> Vec<u32> {
    let fullest = fullest(instance);
    order_by(instance, |i| (Reverse(fullest[i]), Reverse(instance.items[i].size)))
}

/// The same with loads in steps of a 64th of the peak, for problems in which nearly equal ones should not outweigh size.
fn by_step(instance: &Instance) -> Vec<u32> {
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
            way: Way::BestFit,
            offsets: Vec::new(),
            above: Vec::new(),
            cost: f64::INFINITY,
            changed: Vec::new(),
        };
        squeaky.learn(instance, goal, Some((longest_first(instance), Way::BestFit)), offsets.to_vec());
        squeaky
    }

    /// The order for a run.
    fn order(&self, instance: &Instance, goal: u64, random: &mut Random) -> Vec<u32> {
        let excess = |item: u32| self.offsets[item as usize] + instance.items[item as usize].bytes > goal;
        // The wheels that squeak go some way towards the front, all alike or each as luck has it.
        let mut keys: Vec<(f64, u32)> =
            self.order.iter().enumerate().map(|(at, &item)| (at as f64, item)).collect();
        let share = [0.1, 0.3, 1.0, 1.0][random.below(4)];
        let (alike, noisy) = (random.below(2) == 0, random.below(2) == 0);
        let luck = random.unit();
        for (key, item) in &mut keys {
            if excess(*item) {
                if alike {
                    *key *= 1.0 - share * luck;
                } else if random.unit() < 0.7 {
                    *key *= 1.0 - share * random.unit();
                }
            } else if noisy && random.unit() < 0.002 {
                *key += (random.unit() - 0.5) * 0.05 * self.order.len() as f64;
            }
        }
        keys.sort_by(|a, b| a.0.total_cmp(&b.0));
        keys.into_iter().map(|(_, item)| item).collect()
    }

    /// Takes a placement of everything if less of it ends above the goal.
    fn learn(&mut self, instance: &Instance, goal: u64, order: Option<(Vec<u32>, Way)>, offsets: Vec<u64>) {
        let end = |i: usize| offsets[i] + instance.items[i].bytes;
        let cost = (0..instance.len()).map(|i| excess(end(i), goal)).sum();
        if cost <= self.cost {
            self.above = (0..instance.len() as u32).filter(|&i| end(i as usize) > goal).collect();
            self.cost = cost;
            self.offsets = offsets;
            self.changed.push(Span { lo: 0, hi: instance.sections() as u32 });
            if let Some((order, way)) = order {
                (self.order, self.way) = (order, way);
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
                let order = if let Run::Whole(order, way) = run { Some((order, way)) } else { None };
                self.learn(instance, goal, order, offsets);
                lower
            }
        }
    }
}

/// One evaluation.
pub(crate) enum Run {
    /// All items in an order. First-fit is given up when more ends above the goal than in the best placement. As what is large or lives through full
    /// sections comes first, that is seen early.
    Whole(Vec<u32>, Way),
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
        let start = if long {
            run.checked_sub(63).filter(|run| run % 64 == 0).map(|run| run / 64)
        } else {
            run.checked_sub(FIRST).filter(|run| run % 2 == 0).map(|run| run / 2)
        };
        let mut quick = STARTS.iter().filter(|(_, start)| matches!(start, Start::BestFit));
        if long && let Some(&(order, _)) = quick.nth(run) {
            return Run::Whole(order(instance), Way::BestFit);
        }
        if let Some(&(order, hole)) = start.and_then(|start| GREEDY.get(start)) {
            return Run::Whole(order(instance), Way::Greedy(hole));
        }
        if let Some(&(order, start)) = start.and_then(|start| STARTS.get(start.checked_sub(GREEDY.len())?)) {
            let longest = instance.items.iter().map(|item| item.lifetime).max().unwrap_or(0);
            let way = match start {
                Start::BestFit => Way::BestFit,
                Start::FirstFit(share) => Way::FirstFit { short: longest.checked_div(share).unwrap_or(0) },
            };
            return Run::Whole(order(instance), way);
        }
        if !long && run < 2 {
            return Run::Whole(by_load(instance), Way::FirstFit { short: 2 * run as u64 });
        }
        let way = if let Way::Greedy(_) = self.way { Way::FirstFit { short: 0 } } else { self.way };
        if !long && run < FIRST {
            return Run::Whole(self.order(instance, goal, &mut random), way);
        }
        let end = |i: u32| self.offsets[i as usize] + instance.items[i as usize].bytes;
        let height = self.above.iter().map(|&i| end(i)).max().unwrap_or(goal);
        match run % 16 {
            1 | 7 if !long => return Run::Whole(self.order(instance, goal, &mut random), way),
            3 | 9 | 11 if !long => {
                // What lives for an op or two is most of a training's items, and hung apart it leaves the rest in one piece.
                let short = match run % 16 {
                    3 => 2,
                    9 => short(instance, &mut random),
                    _ => [1, 4, 0, 8][run / 16 % 4],
                };
                return Run::Whole(self.order(instance, goal, &mut random), Way::FirstFit { short });
            }
            5 if !long => return Run::Whole(self.order(instance, goal, &mut random), Way::BestFit),
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
            Run::Whole(order, Way::BestFit) => Found::Whole(best_fit(instance, order)),
            Run::Whole(order, Way::FirstFit { short }) => {
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
            Run::Whole(order, Way::Greedy(hole)) => {
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

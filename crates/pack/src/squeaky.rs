//! First-fit in better and better orders, for parts with too many items to search: squeaky wheel optimization (Joslin and Clements 1999).
//!
//! What ends above the goal in one run comes earlier in the next. Runs start from the orders that do well on training traces: by size, by lifetime, and by
//! the load of the fullest section that an item lives through, so that the peak is packed first and everything else gives way to it. Most runs are then ejection chains ([`crate::eject`]) from the best placement.

use std::cmp::Reverse;

use crate::eject::repair;
use crate::instance::Instance;
use crate::random::Random;
use crate::shelf::{Hole, order_by, place_in_order};
use crate::windows::first_fit;

/// Runs of one batch, prepared together so that the result does not depend on the number of threads.
pub(crate) const BATCH: usize = 2;

/// Up to this many items, one shelf is faster than windows: long-lived items would be in all of them.
const MOST_ON_ONE_SHELF: usize = 50_000;

/// The search over orders of one part.
pub(crate) struct Squeaky {
    /// Orders to be tried first.
    seeds: Vec<Vec<u32>>,
    order: Vec<u32>,
    /// Height, and the bytes by which items end above the goal, added up.
    cost: (u64, u128),
    offsets: Vec<u64>,
}

/// Largest load of any section that each item lives through: a sparse table of maxima answers every span at once.
fn fullest(instance: &Instance) -> Vec<u64> {
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
    pub(crate) fn new(instance: &Instance) -> Self {
        let fullest = fullest(instance);
        let items = &instance.items;
        // Loads in steps of a 64th of the peak: nearly equal ones should not outweigh size.
        let step = instance.bound / 64 + 1;
        let seeds = vec![
            order_by(instance, |i| (Reverse(fullest[i] / step), Reverse(items[i].size))),
            order_by(instance, |i| Reverse(items[i].size)),
            order_by(instance, |i| {
                (Reverse(items[i].size.ilog2()), Reverse(items[i].lifetime), Reverse(items[i].size))
            }),
            order_by(instance, |i| {
                (Reverse(fullest[i] / step), Reverse(items[i].lifetime), Reverse(items[i].size))
            }),
            order_by(instance, |i| (Reverse(items[i].size), Reverse(items[i].lifetime))),
        ];
        Self { seeds, order: Vec::new(), cost: (u64::MAX, 0), offsets: Vec::new() }
    }

    /// The order for a run.
    fn order(&self, instance: &Instance, goal: u64, run: usize, random: &mut Random) -> Vec<u32> {
        if let Some(seed) = self.seeds.get(run) {
            return seed.clone();
        }
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

    /// Hears what a run gave. Of two equal heights, that with less above the goal promises more.
    pub(crate) fn learn(&mut self, instance: &Instance, goal: u64, order: Option<Vec<u32>>, offsets: &[u64]) {
        let ends = instance
            .items
            .iter()
            .zip(offsets)
            .map(|(item, &offset)| u128::from((offset + item.bytes).saturating_sub(goal)));
        let cost = (instance.height(offsets), ends.sum());
        if cost <= self.cost {
            (self.cost, self.offsets) = (cost, offsets.to_vec());
            if let Some(order) = order {
                self.order = order;
            }
        }
    }
}

/// One evaluation.
pub(crate) enum Run {
    /// First-fit in an order.
    Order(Vec<u32>),
    /// Ejection chains under a ceiling, from the best offsets.
    Repair {
        /// The ceiling, in bytes.
        ceiling: u64,
        /// Its random choices.
        random: Random,
    },
}

/// Steps of one ejection chain.
const STEPS: u32 = 400;

impl Squeaky {
    /// What to evaluate next. Ejection chains need a plain list of what is placed, so larger parts go on with orders.
    pub(crate) fn next(&self, instance: &Instance, goal: u64, run: usize, mut random: Random) -> Run {
        if run < self.seeds.len()
            || instance.len() > MOST_ON_ONE_SHELF
            || self.offsets.is_empty()
            || run % 8 == 7
        {
            return Run::Order(self.order(instance, goal, run, &mut random));
        }
        let gap = self.cost.0 - goal;
        let ceiling = goal + [0, gap / 2, gap / 4, gap - gap / 16 - 1][run % 4].min(gap.saturating_sub(1));
        Run::Repair { ceiling, random }
    }

    /// Does the runs of a batch on the given number of threads; `None` stands for nothing found. Runs that were stopped are left out with those
    /// after them.
    pub(crate) fn perform(
        &self,
        instance: &Instance,
        runs: &[Run],
        threads: usize,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Vec<Option<Vec<u64>>> {
        let one = |run: &Run| match run {
            Run::Order(order) if instance.len() > MOST_ON_ONE_SHELF => first_fit(instance, order, stop),
            Run::Order(order) => Some(place_in_order(instance, order.iter().copied(), Hole::Lowest)),
            Run::Repair { ceiling, random } => {
                repair(instance, &self.offsets, *ceiling, STEPS, &mut random.clone(), stop)
            }
        };
        // A run that comes to nothing counts, unless it was told to stop.
        let one =
            |run: &Run| if stop() { None } else { Some(one(run)).filter(|found| found.is_some() || !stop()) };
        let done: Vec<Option<Option<Vec<u64>>>> = if threads < 2 {
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

//! Branching orders for the tree search: by shape, with noise, and mutations of those that placed the most area.
//!
//! Running times of a depth-first search are heavy-tailed: most orders fail late, a few succeed at once. Many short searches are therefore
//! made. The first use plain orders by lifetime, size and peak of live memory; later ones add noise to these, or to one of the orders
//! that placed the most area before they reached their node limit.

use std::cmp::Reverse;

use crate::instance::Instance;
use crate::order_keys::{ascending, order_by, peak_live};
use crate::random::Random;

/// Weights of lifetime and size (both as logarithms) and of the peak of live memory.
const SHAPES: [[f64; 3]; 6] = [
    [1.0, 0.5, 1000.0],
    [0.5, 0.5, 1000.0],
    [1.0, 0.01, 0.0],
    [1.0, 1.0, 0.0],
    [0.0, 1.0, 1000.0],
    [1.0, 1.0, 5.0],
];
/// Weights of lifetime and size for corners, and of noise after the first round.
const CORNER_SHAPES: [[f64; 2]; 4] = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]];
const CORNER_NOISE: [f64; 3] = [1.0, 3.0, 6.0];
const NOISE: [f64; 4] = [0.05, 0.2, 0.5, 1.0];
const SHIFTS: [f64; 4] = [0.02, 0.05, 0.1, 0.3];
/// Orders kept for mutation.
const KEPT: usize = 8;
/// Searches without a better order after which the kept orders are dropped.
const STALE: u32 = 300;

/// MiniMalloc's static orders, each by three descending keys: the most live memory of any section (total), the area and the lifetime (width).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StaticOrder(usize);

impl StaticOrder {
    /// How many there are.
    pub(crate) const COUNT: usize = 4;

    /// The order of a number; every [`Self::COUNT`] of them they begin again.
    pub(crate) fn number(number: u64) -> Self {
        Self((number % Self::COUNT as u64) as usize)
    }

    /// Its number below [`Self::COUNT`].
    pub(crate) fn index(self) -> usize {
        self.0
    }

    /// What an item is sorted by, descending.
    pub(crate) fn key(self, total: u128, area: u128, width: u128) -> [u128; 3] {
        match self.0 {
            0 => [total, area, width],
            1 => [width, area, total],
            2 => [total, width, area],
            _ => [area, total, width],
        }
    }

    /// All items in this order.
    pub(crate) fn of(self, instance: &Instance) -> Vec<u32> {
        let totals = peak_live(instance);
        order_by(instance, |i| {
            let item = &instance.items[i];
            let area = u128::from(item.size) * u128::from(item.lifetime);
            Reverse(self.key(totals[i].into(), area, item.lifetime.into()))
        })
    }
}

/// Makes orders for one instance.
pub(crate) struct BranchingOrders {
    features: Vec<[f64; 3]>,
    /// The orders that placed the most area, best first, as (area, position of every item).
    kept: Vec<(u64, Vec<u32>)>,
    stale: u32,
}

impl BranchingOrders {
    pub(crate) fn new(instance: &Instance) -> Self {
        let peaks = peak_live(instance);
        let feature = |i: usize| {
            let sections: u32 = instance.spans(i).iter().map(|span| span.hi - span.lo).sum();
            [
                f64::from(sections).ln(),
                (instance.items[i].size as f64).ln(),
                peaks[i] as f64 / instance.bound.max(1) as f64,
            ]
        };
        Self { features: (0..instance.len()).map(feature).collect(), kept: Vec::new(), stale: 0 }
    }

    /// The order for the search of a number; the search tries its first items first.
    pub(crate) fn order(&self, search: u64, random: &mut Random) -> Vec<u32> {
        let shapes = SHAPES.len() as u64;
        let [long, large, full] = SHAPES[(search % shapes) as usize];
        let noise =
            if search < shapes { 0.0 } else { NOISE[(search / shapes % NOISE.len() as u64) as usize] };
        let mutated = self.kept.len() == KEPT && random.unit() < 0.7;
        let keys: Vec<f64> = if mutated {
            let (_, ranks) = &self.kept[random.below(KEPT)];
            let shift = SHIFTS[random.below(SHIFTS.len())] * ranks.len() as f64;
            let mut shifted = |&rank: &u32| {
                let by = shift * (random.unit() - 0.5);
                f64::from(rank) + if random.unit() < 0.3 { by } else { 0.0 }
            };
            ranks.iter().map(&mut shifted).collect()
        } else {
            let mut key = |feature: &[f64; 3]| {
                let fullness = feature[2] * full * (1.0 + 0.1 * noise * (random.unit() - 0.5));
                -(feature[0] * long + feature[1] * large + fullness + 4.0 * noise * (random.unit() - 0.5))
            };
            self.features.iter().map(&mut key).collect()
        };
        ascending(keys.into_iter().zip(0..).collect())
    }

    /// The order in which the search of a number tries the items that fit a corner.
    pub(crate) fn corner_order(&self, search: u64, random: &mut Random) -> Vec<u32> {
        let (shapes, levels) = (CORNER_SHAPES.len() as u64, CORNER_NOISE.len() as u64);
        // Later ones are drawn: long searches come at numbers two below a power of two, which would all have one shape.
        let shape = if search < shapes { search as usize } else { random.below(CORNER_SHAPES.len()) };
        let [long, large] = CORNER_SHAPES[shape];
        let noise = if search < shapes { 0.0 } else { CORNER_NOISE[(search / shapes % levels) as usize] };
        let key =
            |feature: &[f64; 3]| -(feature[0] * long + feature[1] * large) + noise * (random.unit() - 0.5);
        ascending(self.features.iter().map(key).zip(0..).collect())
    }

    /// Records the area that a search with an order has placed.
    pub(crate) fn record(&mut self, area: u64, order: &[u32]) {
        self.stale += 1;
        if self.kept.iter().any(|(known, _)| *known == area) {
            return;
        }
        if self.kept.first().is_none_or(|(best, _)| area > *best) {
            self.stale = 0;
        } else if self.stale > STALE {
            self.kept.clear();
            self.stale = 0;
        }
        let at = self.kept.partition_point(|(known, _)| *known > area);
        if at < KEPT {
            let mut ranks = vec![0; order.len()];
            for (rank, &item) in order.iter().enumerate() {
                ranks[item as usize] = rank as u32;
            }
            self.kept.insert(at, (area, ranks));
            self.kept.truncate(KEPT);
        }
    }
}

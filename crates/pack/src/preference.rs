//! Orders of preference for the tree search: by shape, with noise, and bred from those that came furthest.
//!
//! Run times of a depth-first search are heavy-tailed: most orders fail late, a few succeed at once. So many short searches are made. The first try pure
//! orders by lifetime, size and the load of the fullest section; later ones disturb these, or disturb one of the orders that had placed the
//! most area before they ran out of nodes.

use crate::instance::Instance;
use crate::random::Random;

/// Weights of lifetime, size (both as logarithms) and fullest section.
const SHAPES: [[f64; 3]; 6] = [
    [1.0, 0.5, 1000.0],
    [0.5, 0.5, 1000.0],
    [1.0, 0.01, 0.0],
    [1.0, 1.0, 0.0],
    [0.0, 1.0, 1000.0],
    [1.0, 1.0, 5.0],
];
const NOISE: [f64; 4] = [0.05, 0.2, 0.5, 1.0];
const SHIFTS: [f64; 4] = [0.02, 0.05, 0.1, 0.3];
/// How many good orders are kept.
const KEPT: usize = 8;
/// Searches without a better order after which breeding starts afresh.
const STALE: u32 = 300;

/// Makes orders for one instance.
pub(crate) struct Preferences {
    features: Vec<[f64; 3]>,
    /// Orders that came furthest, best first, as (area placed, position of every item).
    kept: Vec<(u64, Vec<u32>)>,
    stale: u32,
}

impl Preferences {
    pub(crate) fn new(instance: &Instance) -> Self {
        let feature = |i: usize| {
            let sections: u32 = instance.spans(i).iter().map(|span| span.hi - span.lo).sum();
            let spans = instance.spans(i).iter();
            let fullest = spans.flat_map(|span| &instance.load[span.range()]).max().copied().unwrap_or(0);
            [
                f64::from(sections).ln(),
                (instance.items[i].size as f64).ln(),
                fullest as f64 / instance.bound.max(1) as f64,
            ]
        };
        Self { features: (0..instance.len()).map(feature).collect(), kept: Vec::new(), stale: 0 }
    }

    /// The order for a search, most preferred first.
    pub(crate) fn order(&self, search: u64, random: &mut Random) -> Vec<u32> {
        let shapes = SHAPES.len() as u64;
        let [long, large, full] = SHAPES[(search % shapes) as usize];
        let noise =
            if search < shapes { 0.0 } else { NOISE[(search / shapes % NOISE.len() as u64) as usize] };
        let bred = self.kept.len() == KEPT && random.unit() < 0.7;
        let keys: Vec<f64> = if bred {
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
        let mut order: Vec<u32> = (0..keys.len() as u32).collect();
        order.sort_by(|&a, &b| keys[a as usize].total_cmp(&keys[b as usize]));
        order
    }

    /// Hears how far a search with an order came.
    pub(crate) fn learn(&mut self, area: u64, order: &[u32]) {
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

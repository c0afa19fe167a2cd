//! Orders of items, and measures that several searches sort by.
//!
//! Every type that is sorted gets code of its own, 5 to 10 kB of it, and programs that preload the allocator have all of it in memory. So
//! orders are sorted by these functions, whose code does not depend on the keys.

use std::cmp::Ordering;

use crate::instance::Instance;
use crate::random::Random;

/// All items, sorted by a key; items of equal keys in order of their ids.
pub(crate) fn order_by<K: Ord>(instance: &Instance, key: impl Fn(usize) -> K) -> Vec<u32> {
    let keys: Vec<K> = (0..instance.len()).map(key).collect();
    sorted_by(keys.len(), &|a, b| keys[a as usize].cmp(&keys[b as usize]))
}

/// The numbers below `n`, sorted; equal ones in ascending order.
pub(crate) fn sorted_by(n: usize, compare: &dyn Fn(u32, u32) -> Ordering) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    order.sort_unstable_by(|&a, &b| compare(a, b).then(a.cmp(&b)));
    order
}

/// Items in ascending order of their keys; those of equal keys stay in their order.
pub(crate) fn ascending(mut keys: Vec<(f64, u32)>) -> Vec<u32> {
    sort_ascending(&mut keys);
    keys.into_iter().map(|(_, item)| item).collect()
}

/// Sorts items and their keys as [`ascending`] does.
pub(crate) fn sort_ascending(keys: &mut [(f64, u32)]) {
    keys.sort_by(|a, b| a.0.total_cmp(&b.0));
}

/// For every item, the most live memory of any section in which it is alive, in bytes. A sparse table of maxima answers each span in constant
/// time.
pub(crate) fn peak_live(instance: &Instance) -> Vec<u64> {
    let mut levels = vec![instance.live.clone()];
    while 2 << (levels.len() - 1) <= instance.sections() {
        let (below, step) = (&levels[levels.len() - 1], 1 << (levels.len() - 1));
        let level = (0..below.len() - step).map(|at| below[at].max(below[at + step])).collect();
        levels.push(level);
    }
    let peak = |lo: u32, hi: u32| {
        let level = (hi - lo).ilog2() as usize;
        levels[level][lo as usize].max(levels[level][hi as usize - (1 << level)])
    };
    (0..instance.len())
        .map(|i| instance.spans(i).iter().map(|span| peak(span.lo, span.hi)).max().unwrap_or(0))
        .collect()
}

/// The longest lifetime, gaps included, in sections.
pub(crate) fn longest_hull(instance: &Instance) -> f64 {
    f64::from(instance.items.iter().map(|item| item.hull.hi - item.hull.lo).max().unwrap_or(1))
}

/// A random lifetime up to the longest one, uniform in its logarithm.
pub(crate) fn random_lifetime(instance: &Instance, random: &mut Random) -> u64 {
    let longest = instance.items.iter().map(|item| item.lifetime).max().unwrap_or(0);
    longest >> random.below(longest.checked_ilog2().unwrap_or(0) as usize + 1)
}

//! Measures of items that several searches sort by.

use crate::instance::Instance;
use crate::random::Random;

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

/// A random lifetime up to the longest one, uniform in its logarithm.
pub(crate) fn random_lifetime(instance: &Instance, random: &mut Random) -> u64 {
    let longest = instance.items.iter().map(|item| item.lifetime).max().unwrap_or(0);
    longest >> random.below(longest.checked_ilog2().unwrap_or(0) as usize + 1)
}

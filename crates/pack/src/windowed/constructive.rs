//! Places items one after another at legal offsets, first-fit or best-fit, if some occupy only windows of their bytes at some positions.
//!
//! Every placed item that meets the new one makes an open interval of offsets illegal ([`Occupancy::ordered`]). The holes between these
//! intervals are examined from below.

use super::relation::Occupancy;
use crate::instance::Instance;
use crate::overlap::OverlapIndex;
use crate::partial_placement::Fit;

/// Places the items that are not fixed in the given order. `None` once `stop` returns true.
pub(crate) fn place(
    instance: &Instance,
    occupancy: &Occupancy,
    overlaps: &OverlapIndex,
    order: &[u32],
    fit: Fit,
    stop: &dyn Fn() -> bool,
) -> Option<Vec<u64>> {
    let mut offsets: Vec<Option<i64>> = occupancy.fixed.clone();
    let mut illegal: Vec<(i64, i64)> = Vec::new();
    for (number, &item) in order.iter().enumerate() {
        let item = item as usize;
        if occupancy.fixed[item].is_some() {
            continue;
        }
        if number % 64 == 63 && stop() {
            return None;
        }
        illegal.clear();
        overlaps.each_in(instance.items[item].hull, |other| {
            let other = other as usize;
            if let Some(at) = offsets[other]
                && other != item
                && let Some((low, high)) = occupancy.ordered(item, other)
            {
                illegal.push((at + low, at + high));
            }
        });
        illegal.sort_unstable();
        offsets[item] = Some(free_offset(&illegal, occupancy.align[item], fit));
    }
    Some(offsets.into_iter().map(|offset| offset.unwrap_or(0) as u64).collect())
}

/// A multiple of the alignment in none of the open intervals, which are sorted by their starts: the lowest, or the one in the hole with the
/// fewest offsets to spare.
fn free_offset(illegal: &[(i64, i64)], align: i64, fit: Fit) -> i64 {
    let mut offset = 0u64;
    let mut best: Option<(i64, i64)> = None;
    for &(low, high) in illegal {
        let at = offset as i64;
        if at <= low {
            if fit == Fit::First {
                return at;
            }
            if best.is_none_or(|(slack, _)| low - at < slack) {
                best = Some((low - at, at));
            }
        }
        if high > at {
            offset = (high as u64).next_multiple_of(align as u64);
        }
    }
    best.map_or(offset as i64, |(_, at)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_closed_sets_of_offsets() {
        let illegal = [(-3, 4), (2, 6), (6, 9), (11, 20)];
        assert_eq!(free_offset(&illegal, 1, Fit::First), 6);
        assert_eq!(free_offset(&illegal, 5, Fit::First), 10);
        assert_eq!(free_offset(&illegal, 1, Fit::Best), 6);
        assert_eq!(free_offset(&illegal, 16, Fit::Best), 32);
        assert_eq!(free_offset(&[], 8, Fit::Best), 0);
    }
}

//! `pool`: a caching allocator, which has no knowledge of later requests (Chainer's and CnMem's pools, as Sekiyama and Zhang describe them).
//!
//! Requests come in order of time. Each takes the smallest free range that holds it (the lowest among equals) and splits off the rest. Freed
//! ranges are merged with their free neighbours. If no range is large enough, the pool grows at its top. The bytes of fixed buffers are never
//! used, and a buffer keeps its bytes through its gaps, because a pool cannot guarantee the same bytes again. About n log n.

use std::collections::{BTreeMap, BTreeSet};

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

use crate::instance::Instance;
use crate::order_keys::order_by;
use crate::partial_placement::Fit;
use crate::windowed;

/// Online best-fit with splitting and coalescing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pool;

impl Packer for Pool {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        if windowed::has_windows(problem) {
            return windowed::in_order(problem, windowed::time_order, Fit::Best, budget, observer);
        }
        let instance = match Instance::new(problem) {
            Ok(instance) => instance,
            Err(outcome) => return outcome,
        };
        let mut ranges = FreeRanges::around(&fixed_ranges(&instance));
        let mut offsets: Vec<u64> = instance.items.iter().map(|item| item.fixed.unwrap_or(0)).collect();
        let free = |&item: &u32| instance.items[item as usize].fixed.is_none();
        let hull = |item: u32| instance.items[item as usize].hull;
        let ends: Vec<u32> =
            order_by(&instance, |i| instance.items[i].hull.hi).into_iter().filter(free).collect();
        let starts = order_by(&instance, |i| (instance.items[i].hull.lo, instance.items[i].first_position));
        let mut ended = ends.into_iter().peekable();
        for item in starts.into_iter().filter(free) {
            while let Some(old) = ended.next_if(|&old| hull(old).hi <= hull(item).lo) {
                ranges.release(offsets[old as usize], instance.items[old as usize].size);
            }
            offsets[item as usize] = ranges.allocate(&instance, item as usize);
        }
        instance.conclude(problem, &offsets, 1, observer, StopReason::Finished)
    }
}

/// The bytes that fixed items take at any time, as disjoint ranges, ascending.
pub(crate) fn fixed_ranges(instance: &Instance) -> Vec<(u64, u64)> {
    let mut fixed: Vec<(u64, u64)> =
        instance.items.iter().filter_map(|i| Some((i.fixed?, i.fixed? + i.size))).collect();
    fixed.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for (start, end) in fixed {
        match ranges.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => ranges.push((start, end)),
        }
    }
    ranges
}

/// The free ranges of a pool below its top.
struct FreeRanges {
    by_start: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    top: u64,
}

impl FreeRanges {
    fn around(taken: &[(u64, u64)]) -> Self {
        let mut ranges = Self { by_start: BTreeMap::new(), by_size: BTreeSet::new(), top: 0 };
        for &(start, end) in taken {
            if ranges.top < start {
                ranges.insert(ranges.top, start - ranges.top);
            }
            ranges.top = end;
        }
        ranges
    }

    fn insert(&mut self, start: u64, size: u64) {
        self.by_start.insert(start, size);
        self.by_size.insert((size, start));
    }

    fn remove(&mut self, start: u64) -> u64 {
        let size = self.by_start.remove(&start).unwrap_or(0);
        self.by_size.remove(&(size, start));
        size
    }

    fn allocate(&mut self, instance: &Instance, item: usize) -> u64 {
        let size = instance.items[item].size;
        let holds =
            |&&(bytes, start): &&(u64, u64)| instance.items[item].align_up(start) + size <= start + bytes;
        let found = self.by_size.range((size, 0)..).find(holds).copied();
        let (start, bytes) = match found {
            Some((bytes, start)) => (start, bytes),
            None => {
                // The pool grows by what the free range at its top lacks.
                let last =
                    self.by_start.last_key_value().filter(|&(&start, &bytes)| start + bytes == self.top);
                let start = last.map_or(self.top, |(&start, _)| start);
                let end = instance.items[item].align_up(start) + size;
                let bytes = end - start;
                self.top = end;
                (start, bytes)
            }
        };
        self.remove(start);
        let offset = instance.items[item].align_up(start);
        if start < offset {
            self.insert(start, offset - start);
        }
        if offset + size < start + bytes {
            self.insert(offset + size, start + bytes - offset - size);
        }
        offset
    }

    fn release(&mut self, mut start: u64, mut size: u64) {
        if self.by_start.contains_key(&(start + size)) {
            size += self.remove(start + size);
        }
        if let Some((&below, &bytes)) = self.by_start.range(..start).next_back()
            && below + bytes == start
        {
            self.remove(below);
            (start, size) = (below, bytes + size);
        }
        self.insert(start, size);
    }
}

//! Items that were placed before a sweep reaches them.

use crate::front::Neighbour;

/// The bytes that an item occupies from some section on.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) by: Neighbour,
    pub(crate) begins: u32,
}

/// These items, in two orders. Some have begun.
pub(crate) struct Reserved {
    by_offset: Vec<Taken>,
    /// Where each of these begins: looked through at once, without the rest.
    begins: Vec<u32>,
    by_begin: Vec<Taken>,
    contains: Vec<bool>,
    /// From this number of them on, those that have begun are dropped.
    most: usize,
    /// The indices of some, in order of their offsets.
    found: Vec<u32>,
}

/// The least number of items at which some are dropped.
const MANY: usize = 256;
/// Up to this many that begin in a span are sorted. That takes less time than a look at all of them in order of their offsets.
const FEW: usize = 64;

impl Reserved {
    /// None, of this many items.
    pub(crate) fn new(items: usize) -> Self {
        let (by_offset, by_begin) = (Vec::new(), Vec::new());
        let (begins, found) = (Vec::new(), Vec::new());
        Self { by_offset, begins, by_begin, contains: vec![false; items], most: MANY, found }
    }

    pub(crate) fn contains(&self, item: u32) -> bool {
        self.contains[item as usize]
    }

    /// Adds an item where the front is at the section `now`.
    pub(crate) fn add(&mut self, taken: Taken, now: u32) {
        self.contains[taken.by.item as usize] = true;
        if self.by_offset.len() >= self.most {
            self.by_offset.retain(|other| other.begins >= now);
            self.begins.retain(|&begins| begins >= now);
            let begun = self.by_begin.partition_point(|other| other.begins < now);
            for dropped in self.by_begin.drain(..begun) {
                self.contains[dropped.by.item as usize] = false;
            }
            self.most = MANY + self.by_offset.len() * 5 / 4;
        }
        let at = self.first_above(taken.start);
        self.by_offset.insert(at, taken);
        self.begins.insert(at, taken.begins);
        // Mostly the last one.
        let behind = self.by_begin.iter().rev().take_while(|other| other.begins > taken.begins).count();
        self.by_begin.insert(self.by_begin.len() - behind, taken);
    }

    /// Removes an item that is at an offset, if it is one of these.
    pub(crate) fn remove(&mut self, item: u32, offset: u64) {
        if !std::mem::replace(&mut self.contains[item as usize], false) {
            return;
        }
        let first = self.first_above(offset);
        let own = self.by_offset[first..].iter().position(|other| other.by.item == item);
        let own = first + own.expect("it is there");
        self.by_offset.remove(own);
        self.begins.remove(own);
        let own = self.by_begin.iter().rposition(|other| other.by.item == item);
        self.by_begin.remove(own.expect("it is there"));
    }

    fn first_above(&self, offset: u64) -> usize {
        self.by_offset.partition_point(|other| other.start < offset)
    }

    /// Those that begin between two sections, the first one included, in order of their offsets.
    pub(crate) fn between(&mut self, from: u32, until: u32) -> impl Iterator<Item = &Taken> {
        let first = self.by_begin.partition_point(|taken| taken.begins < from);
        self.found.clear();
        let all = if self.by_begin.get(first + FEW).is_none_or(|taken| taken.begins >= until) {
            let all = &self.by_begin;
            let len = all[first..].iter().take_while(|taken| taken.begins < until).count();
            self.found.extend(first as u32..(first + len) as u32);
            self.found.sort_unstable_by_key(|&at| all[at as usize].start);
            all
        } else {
            self.found.resize(self.begins.len(), 0);
            let mut len = 0;
            // Without a branch: whether an item is one of these cannot be predicted.
            for (at, begins) in (0..).zip(&self.begins) {
                self.found[len] = at;
                len += usize::from((from..until).contains(begins));
            }
            self.found.truncate(len);
            &self.by_offset
        };
        self.found.iter().map(|&at| &all[at as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn those_that_begin_in_a_span_are_found_in_order_of_their_offsets() {
        let (mut few, mut many, mut dropped) = (0, 0, 0);
        for seed in 0..20 {
            let mut random = Random::new(seed, 0);
            let mut reserved = Reserved::new(2_000);
            let mut all: Vec<Taken> = Vec::new();
            let mut now = 0;
            for item in 0..2_000 {
                let begins = now + random.below(40) as u32;
                let start = random.below(100_000) as u64;
                let freed = begins + 1 + random.below(20) as u32;
                let taken = Taken { start, end: start + 1, by: Neighbour { item, freed }, begins };
                reserved.add(taken, now);
                all.push(taken);
                if random.below(5) == 0 {
                    let Taken { start, by, .. } = all.swap_remove(random.below(all.len()));
                    reserved.remove(by.item, start);
                    assert!(!reserved.contains(by.item));
                }
                now += u32::from(random.below(10) == 0);
                let until = now + random.below(40) as u32;
                let begins_there = |taken: &&Taken| (now..until).contains(&taken.begins);
                let mut expected: Vec<(u64, u32)> =
                    all.iter().filter(begins_there).map(|taken| (taken.start, taken.by.item)).collect();
                let mut found: Vec<(u64, u32)> =
                    reserved.between(now, until).map(|taken| (taken.start, taken.by.item)).collect();
                assert!(found.is_sorted_by_key(|&(start, _)| start), "seed {seed}");
                expected.sort_unstable();
                found.sort_unstable();
                assert_eq!(found, expected, "seed {seed}");
                *if found.len() > FEW { &mut many } else { &mut few } += 1;
            }
            dropped += all.iter().filter(|taken| !reserved.contains(taken.by.item)).count();
        }
        assert!(few > 5_000 && many > 5_000 && dropped > 5_000, "{few} {many} {dropped}");
    }
}

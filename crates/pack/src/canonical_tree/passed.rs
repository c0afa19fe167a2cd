//! What becomes of an unplaced item whose minimum offset the search has passed: another item must raise it first. Nodes that pass few items look at
//! what each of them conflicts with, the others sort all unplaced items once by where they end at least.

use super::{Number, TreeSearch};

/// How many conflicts a node looks at, for each of its unplaced items, before it sorts these by their lowest ends.
const SCANS_PER_ITEM: usize = 16;

/// Where an unplaced item ends at least.
#[derive(Clone, Copy)]
pub(super) struct LowestEnd<N> {
    end: N,
    /// The offset for which it ends there.
    offset: N,
    hull: (u32, u32),
    item: u32,
}

impl<N: Number> TreeSearch<'_, N> {
    /// The lowest offset that an item of a list can still get after the search has passed its minimum offset; `None` if there is none below the
    /// ceiling. Counts the conflicts that the node looks at.
    pub(super) fn next_min_offset(
        &mut self,
        item: u32,
        list: (usize, usize),
        last: N,
        scanned: &mut usize,
    ) -> Option<N> {
        let item_state = &self.state[item as usize];
        if item_state.min_offset + item_state.size <= last {
            return None;
        }
        if *scanned > SCANS_PER_ITEM * (list.1 - list.0) && self.ends.is_empty() {
            self.sort_ends(list, last);
        }
        #[cfg(test)]
        if self.ends.is_empty() {
            self.sort_ends(list, last);
            assert!(self.next_of_conflicts(item, last) == self.next_of_ends(item), "item {item}");
            self.ends.clear();
        }
        if !self.ends.is_empty() {
            return self.next_of_ends(item);
        }
        *scanned += self.tree.conflicts[item as usize].len();
        self.next_of_conflicts(item, last)
    }

    /// The same of an item that can end above the last offset, from all items that conflict with it.
    fn next_of_conflicts(&self, item: u32, last: N) -> Option<N> {
        let item_state = &self.state[item as usize];
        let end = item_state.min_offset + item_state.size;
        let mut earliest = N::TOP;
        for &other in &self.tree.conflicts[item as usize] {
            let other = &self.state[other as usize];
            if !other.placed {
                let from = other.min_offset.max(last);
                if from < end {
                    earliest = earliest.min(from + other.size);
                }
            }
        }
        (earliest <= item_state.max_offset).then_some(earliest)
    }

    /// The same from the sorted ends, mostly the first few of them.
    fn next_of_ends(&self, item: u32) -> Option<N> {
        let item_state = &self.state[item as usize];
        let end = item_state.min_offset + item_state.size;
        let (lo, hi) = self.tree.hull[item as usize];
        let mut below = self.ends.iter().take_while(|other| other.end <= item_state.max_offset);
        below
            .find(|other| {
                other.offset < end
                    && other.hull.0 < hi
                    && lo < other.hull.1
                    && other.item != item
                    && self.tree.conflict(item, other.item)
            })
            .map(|other| other.end)
    }

    /// Sorts a part of the list by where its items end at least, if they are placed after the last offset.
    fn sort_ends(&mut self, (start, end): (usize, usize), last: N) {
        for &(_, item) in &self.lists[start..end] {
            let item_state = &self.state[item as usize];
            let offset = item_state.min_offset.max(last);
            let hull = self.tree.hull[item as usize];
            self.ends.push(LowestEnd { end: offset + item_state.size, offset, hull, item });
        }
        self.ends.sort_unstable_by_key(|item| item.end);
    }
}

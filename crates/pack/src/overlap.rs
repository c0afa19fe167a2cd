//! Which items overlap a span of sections in time: an index that answers this without a list of conflicting pairs.

use crate::instance::{Instance, Span};

/// Children of a tree node.
const FAN: usize = 16;

/// All items in order of their first section, with a tree over them whose nodes hold the latest end below.
pub(crate) struct OverlapIndex {
    items: Vec<u32>,
    /// For each section, the number of items that start before it.
    started_before: Vec<u32>,
    /// The end of each item, then the latest end of each group of 16 items, and so on.
    latest_end: Vec<Vec<u32>>,
}

impl OverlapIndex {
    pub(crate) fn new(instance: &Instance) -> Self {
        let mut started_before = vec![0u32; instance.sections() + 1];
        for item in &instance.items {
            started_before[item.hull.lo as usize + 1] += 1;
        }
        for section in 1..started_before.len() {
            started_before[section] += started_before[section - 1];
        }
        let mut next = started_before.clone();
        let mut items = vec![0; instance.len()];
        for (i, item) in instance.items.iter().enumerate() {
            let at = &mut next[item.hull.lo as usize];
            items[*at as usize] = i as u32;
            *at += 1;
        }
        let mut latest_end =
            vec![items.iter().map(|&i| instance.items[i as usize].hull.hi).collect::<Vec<u32>>()];
        while let Some(below) = latest_end.last().filter(|below| below.len() > FAN) {
            let level = below.chunks(FAN).map(|group| group.iter().copied().max().unwrap_or(0)).collect();
            latest_end.push(level);
        }
        Self { items, started_before, latest_end }
    }

    /// All items in order of their first section; those of the same section in order of their numbers.
    pub(crate) fn in_time(&self) -> &[u32] {
        &self.items
    }

    /// The number of items that start before a section.
    pub(crate) fn started_before(&self, section: u32) -> usize {
        self.started_before[section as usize] as usize
    }

    /// The first section of the item at a position in the order of first sections; that of the last item for positions past the end.
    pub(crate) fn section_of(&self, number: usize) -> u32 {
        let number = number.min(self.items.len() - 1) as u32;
        self.started_before.partition_point(|&count| count <= number) as u32 - 1
    }

    /// Calls `visit` for every item whose hull overlaps a span.
    pub(crate) fn each_in(&self, span: Span, mut visit: impl FnMut(u32)) {
        let end = self.started_before[span.hi as usize] as usize;
        self.visit(self.latest_end.len(), 0, span.lo, end, &mut visit);
    }

    /// Visits the children of one node; `level` is the number of levels below it.
    fn visit(&self, level: usize, node: usize, start: u32, end: usize, visit: &mut impl FnMut(u32)) {
        let children = &self.latest_end[level - 1];
        let first = node * FAN;
        for (child, &latest_end) in children.iter().enumerate().skip(first).take(FAN) {
            if child * FAN.pow(level as u32 - 1) >= end {
                return;
            }
            if latest_end <= start {
                continue;
            }
            if level == 1 {
                visit(self.items[child]);
            } else {
                self.visit(level - 1, child, start, end, visit);
            }
        }
    }
}

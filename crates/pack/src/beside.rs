//! Which items are alive beside one: found by asking a tree, so that no list of conflicting pairs is ever built.

use crate::instance::{Instance, Span};

/// Children of a node.
const FAN: usize = 16;

/// All items in order of their first section, under a tree that knows the latest end below each node.
pub(crate) struct Beside {
    items: Vec<u32>,
    /// How many items begin before each section.
    begun: Vec<u32>,
    /// Latest end of each item, then of each group of 16, and so on.
    latest: Vec<Vec<u32>>,
}

impl Beside {
    pub(crate) fn new(instance: &Instance) -> Self {
        let mut begun = vec![0u32; instance.sections() + 1];
        for item in &instance.items {
            begun[item.hull.lo as usize + 1] += 1;
        }
        for section in 1..begun.len() {
            begun[section] += begun[section - 1];
        }
        let mut next = begun.clone();
        let mut items = vec![0; instance.len()];
        for (i, item) in instance.items.iter().enumerate() {
            let at = &mut next[item.hull.lo as usize];
            items[*at as usize] = i as u32;
            *at += 1;
        }
        let mut latest =
            vec![items.iter().map(|&i| instance.items[i as usize].hull.hi).collect::<Vec<u32>>()];
        while let Some(below) = latest.last().filter(|below| below.len() > FAN) {
            let level = below.chunks(FAN).map(|group| group.iter().copied().max().unwrap_or(0)).collect();
            latest.push(level);
        }
        Self { items, begun, latest }
    }

    /// How many items begin before a section.
    pub(crate) fn begun(&self, section: u32) -> usize {
        self.begun[section as usize] as usize
    }

    /// The section in which the item of a number begins, counted in order of first sections; the last one for numbers past the end.
    pub(crate) fn section_of(&self, number: usize) -> u32 {
        let number = number.min(self.items.len() - 1) as u32;
        self.begun.partition_point(|&begun| begun <= number) as u32 - 1
    }

    /// Hands over every item whose first to last section overlap a span, the one that lies there among them.
    pub(crate) fn each(&self, span: Span, mut found: impl FnMut(u32)) {
        let begun = self.begun[span.hi as usize] as usize;
        self.descend(self.latest.len(), 0, span.lo, begun, &mut found);
    }

    /// Goes through the children of one node; `level` is the number of levels below it.
    fn descend(&self, level: usize, node: usize, start: u32, begun: usize, found: &mut impl FnMut(u32)) {
        let children = &self.latest[level - 1];
        let first = node * FAN;
        for (child, &latest) in children.iter().enumerate().skip(first).take(FAN) {
            if child * FAN.pow(level as u32 - 1) >= begun {
                return;
            }
            if latest <= start {
                continue;
            }
            if level == 1 {
                found(self.items[child]);
            } else {
                self.descend(level - 1, child, start, begun, found);
            }
        }
    }
}

//! Which searches of a tree follow each other, and how many nodes each may visit.
//!
//! Running times of a depth-first search are heavy-tailed, in both directions: some problems yield to one of many short searches with random
//! orders, others only to a long search with the right order. MiniMalloc's orders are static: by total, area and width, in turn, each time with
//! twice as many nodes. `auto` gives half of its nodes to these deep searches and half to short ones; it is never much slower than either.

use crate::improver::NodeLimits;

/// Static orders of deep searches; even, so that two threads finish together.
pub(crate) const DEEP: usize = 4;

/// One search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// With a static order, at the goal.
    Deep {
        /// The number of the order.
        order: usize,
    },
    /// With the branching order of a number, at the goal.
    AtGoal {
        /// The number.
        search: u64,
    },
    /// With the branching order of a number, below a ceiling between the goal and the height.
    Between {
        /// The number.
        search: u64,
    },
}

impl Kind {
    /// The same search, aimed at the goal.
    pub(crate) fn at_goal(self) -> Self {
        match self {
            Self::Between { search } => Self::AtGoal { search },
            other => other,
        }
    }
}

/// How far the searches of one component have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SearchPlan {
    /// Short searches so far.
    shorts: u64,
    /// Deep searches so far.
    deeps: u64,
    short_nodes: u64,
    deep_nodes: u64,
}

impl SearchPlan {
    /// The next search of a component of this many items, and the nodes it may visit.
    pub(crate) fn next(&mut self, limits: NodeLimits, items: u64) -> (Kind, u64) {
        let begun = !self.deeps.is_multiple_of(DEEP as u64);
        if limits == NodeLimits::Short && (begun || self.deep_nodes < self.short_nodes) {
            let order = (self.deeps % DEEP as u64) as usize;
            let nodes = (2 * items) << (self.deeps / DEEP as u64).min(40);
            self.deeps += 1;
            self.deep_nodes = self.deep_nodes.saturating_add(nodes);
            return (Kind::Deep { order }, nodes);
        }
        let search = self.shorts;
        self.shorts += 1;
        let (period, nodes) = match limits {
            NodeLimits::Short => (6, [1_000, 2_000, 2_000, 4_000][(search / 6 % 4) as usize]),
            NodeLimits::Growing => (2, 1_000 << (search / 4).min(40)),
        };
        self.short_nodes = self.short_nodes.saturating_add(nodes);
        let kind =
            if search % period == period - 1 { Kind::Between { search } } else { Kind::AtGoal { search } };
        (kind, nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_and_short_searches_share_the_nodes() {
        let mut plan = SearchPlan::default();
        for _ in 0..10_000 {
            plan.next(NodeLimits::Short, 200);
        }
        assert!(plan.deep_nodes / 3 < plan.short_nodes && plan.short_nodes < 3 * plan.deep_nodes, "{plan:?}");
    }
}

//! Which searches of a tree follow each other, and how many nodes each may visit.
//!
//! Running times of a depth-first search are heavy-tailed, in both directions: some problems yield to one of many short searches with random
//! orders, others only to a long search with the right order. MiniMalloc's orders are static: by total, area and width, in turn, each time with
//! twice as many nodes, and sorted again for every group of items that a search cuts off. `auto` gives half of its nodes to deep searches and half
//! to short ones; it is never much slower than either. Of the deep searches one half sorts again; the other half, in turn, does not, or has a
//! random order, because each of the three finds placements that the other two miss.
//!
//! Of the searches of corners every second one has items joined to composites: problems cut from a rectangle yield to them at once, others never. Where the
//! first of them fail, the goal may be out of reach: trees of composites are then searched above it, and two of three times their corners.
//!
//! An eighth of as many nodes goes to windows: where the peak of live memory cannot be reached, that often shows in a short stretch of time, and there
//! it can be proved.

use crate::branching_order::StaticOrder;
use crate::improver::NodeLimits;

/// Deep searches with the same limit of nodes; even, so that two threads finish together.
const ROUND: u64 = 2 * StaticOrder::COUNT as u64;

/// The first round of deep searches that aims between the goal and the height, as every third after it does.
const PATIENT: u64 = 5;

/// Nodes of other searches before the first search of a window, and how many times more nodes they take later.
const FIRST_WINDOW: u64 = 20_000;
const WINDOW_SHARE: u64 = 8;

/// Nodes of the first search of corners. Later ones take 1, 1, 2, 1, 1, 2, 4, … times as many (Luby, Sinclair and Zuckerman 1993).
const CORNER_NODES: u64 = 2_000;
/// Searches of corners, of composites and of items in turn, before all others.
pub(crate) const FIRST_CORNERS: u64 = 16;
/// How many times more nodes searches of corners take than all others, whose nodes take about eight times as long: at first, and after
/// so many nodes, when the goal may be out of reach.
const CORNER_SHARE: u64 = 32;
const LATER_SHARE: u64 = 8;
const MANY_NODES: u64 = 2_000_000;

/// One search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// With a static order, at the goal.
    Deep {
        /// The order.
        order: StaticOrder,
        /// Whether groups of items are sorted again.
        again: bool,
        /// Whether it aims between the goal and the height instead.
        between: bool,
    },
    /// With the branching order of a number and as many nodes.
    Wander {
        /// The number.
        search: u64,
        /// Whether it aims between the goal and the height instead.
        between: bool,
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
    /// Corner by corner with the order of a number, at the goal.
    Corners {
        /// The number.
        search: u64,
    },
    /// The same with items joined to composites, in a random way.
    Composites {
        /// The number.
        search: u64,
        /// Whether it aims between the goal and the height instead.
        between: bool,
    },
    /// The tree of composites, below a ceiling between the goal and the height.
    Joined {
        /// The number.
        search: u64,
    },
    /// Of a part of the time alone, to prove that the goal is too low.
    Window,
}

impl Kind {
    /// The same search, aimed at the goal.
    pub(crate) fn at_goal(self) -> Self {
        match self {
            Self::Between { search } => Self::AtGoal { search },
            Self::Deep { order, again, .. } => Self::Deep { order, again, between: false },
            Self::Wander { search, .. } => Self::Wander { search, between: false },
            Self::Composites { search, .. } => Self::Composites { search, between: false },
            other => other,
        }
    }

    /// Whether it aims between the goal and the height.
    pub(crate) fn between(self) -> bool {
        match self {
            Self::Between { .. } | Self::Joined { .. } => true,
            Self::Deep { between, .. } | Self::Wander { between, .. } | Self::Composites { between, .. } => {
                between
            }
            Self::AtGoal { .. } | Self::Corners { .. } | Self::Window => false,
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
    /// Searches of windows so far.
    windows: u64,
    /// Searches of corners so far.
    corners: u64,
    /// Searches of trees of composites so far.
    joined: u64,
    short_nodes: u64,
    deep_nodes: u64,
    window_nodes: u64,
    corner_nodes: u64,
}

impl SearchPlan {
    /// The next search of a component of this many items, with corners or not, and the nodes it may visit.
    pub(crate) fn next(&mut self, limits: NodeLimits, items: u64, corners: bool) -> (Kind, u64) {
        let others = self.short_nodes.saturating_add(self.deep_nodes);
        let all = others.saturating_add(self.corner_nodes);
        let first = corners && self.corners < FIRST_CORNERS;
        if !first && all > FIRST_WINDOW && self.window_nodes < all / WINDOW_SHARE {
            let nodes = 1_000 << (self.windows / 32).min(40);
            self.windows += 1;
            self.window_nodes = self.window_nodes.saturating_add(nodes);
            return (Kind::Window, nodes);
        }
        let share = if self.corner_nodes < MANY_NODES { CORNER_SHARE } else { LATER_SHARE };
        if first || corners && self.corner_nodes <= others.saturating_mul(share) {
            // In turn, once the first ones have failed.
            let (search, kind) = if !first && self.joined < self.corners - FIRST_CORNERS {
                self.joined += 1;
                (self.joined - 1, Kind::Joined { search: self.joined - 1 })
            } else {
                self.corners += 1;
                let search = (self.corners - 1) / 2;
                let joined = !self.corners.is_multiple_of(2);
                let between = !first && !search.is_multiple_of(3);
                (search, if joined { Kind::Composites { search, between } } else { Kind::Corners { search } })
            };
            let nodes = match limits {
                NodeLimits::Short => CORNER_NODES * luby(search + 1),
                NodeLimits::Growing => CORNER_NODES << (search / 4).min(40),
            };
            self.corner_nodes = self.corner_nodes.saturating_add(nodes);
            return (kind, nodes);
        }
        let begun = !self.deeps.is_multiple_of(ROUND);
        if limits == NodeLimits::Short && (begun || self.deep_nodes < self.short_nodes) {
            let (search, round) = (self.deeps, self.deeps / ROUND);
            let nodes = (2 * items) << round.min(40);
            self.deeps += 1;
            self.deep_nodes = self.deep_nodes.saturating_add(nodes);
            let again = search % ROUND < StaticOrder::COUNT as u64;
            let wanders = !again && !round.is_multiple_of(2);
            let order = StaticOrder::number(search);
            // Where so many nodes have failed, the goal may be out of reach.
            let between = round >= PATIENT && round % 3 == PATIENT % 3;
            let deep = Kind::Deep { order, again, between };
            return (if wanders { Kind::Wander { search, between } } else { deep }, nodes);
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

/// The sequence 1, 1, 2, 1, 1, 2, 4, 1, …, from 1 on.
pub(crate) fn luby(at: u64) -> u64 {
    let power = u64::BITS - at.leading_zeros();
    if at + 1 == 1 << power { 1 << (power - 1) } else { luby(at + 1 - (1 << (power - 1))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_and_short_searches_share_the_nodes() {
        let mut plan = SearchPlan::default();
        for _ in 0..10_000 {
            plan.next(NodeLimits::Short, 200, false);
        }
        assert!(plan.deep_nodes / 3 < plan.short_nodes && plan.short_nodes < 3 * plan.deep_nodes, "{plan:?}");
    }

    #[test]
    fn corners_come_first_with_composites_and_without() {
        let mut plan = SearchPlan::default();
        for at in 0..FIRST_CORNERS {
            let (kind, _) = plan.next(NodeLimits::Short, 200, true);
            let search = at / 2;
            let expected =
                [Kind::Composites { search, between: false }, Kind::Corners { search }][at as usize % 2];
            assert_eq!(kind, expected);
        }
    }

    #[test]
    fn after_the_first_corners_every_second_search_is_of_a_tree_of_composites() {
        let mut plan = SearchPlan::default();
        let kinds: Vec<Kind> = (0..200).map(|_| plan.next(NodeLimits::Short, 200, true).0).collect();
        let (first, later) = kinds.split_at(FIRST_CORNERS as usize);
        let joined = |kinds: &[Kind]| kinds.iter().filter(|kind| matches!(kind, Kind::Joined { .. })).count();
        let corners = |kind: &&Kind| matches!(kind, Kind::Corners { .. } | Kind::Composites { .. });
        assert_eq!(joined(first), 0);
        assert!(joined(later).abs_diff(later.iter().filter(corners).count()) <= 1, "{later:?}");
    }

    #[test]
    fn the_lengths_of_searches_of_corners_follow_luby() {
        assert_eq!((1..=15).map(luby).collect::<Vec<_>>(), [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]);
    }
}

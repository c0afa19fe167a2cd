//! Places the items that are alive at the peak in one stack, and all others outwards from it, to both sides.
//!
//! ```text
//! offset ▲
//!   goal ┤  ━━━━━━━━━━━━━━                The stack (━) has no holes at the peak. Its upper items are freed first, so that the free bytes
//!        │      ━━━━━━━━━━━━━━            on the right side are one hole, below the goal. Its lower items begin last, so that those on the
//!        │          ━━━━━━━━━━━━━━        left side are one hole too, above the floor. The other items (not drawn) are placed in these.
//!        └────────────┴──────────────▶
//!                   peak
//! ```
//!
//! A new item divides its hole least if its neighbour is freed shortly after it: then the two are again one hole later. The stack has two such
//! orders, by ends for the right side and by starts for the left side. In a training they nearly agree, because the first tensors are needed
//! last; [`Stack::draw`] mixes them. Items on the right side conflict with none on the left side.

use crate::instance::{Instance, Item, Span};
use crate::order_keys::{ascending, longest_hull, sort_ascending};
use crate::partial_placement::PartialPlacement;
use crate::random::Random;

/// Which hole an item takes, and which end of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Matching {
    /// The cost of each section by which an item outlives its neighbour. A section by which the neighbour outlives the item costs 1.
    pub(crate) outlives: f64,
    /// The cost of the floor or the goal as a neighbour, and the highest cost of a neighbour that outlives the item.
    wall: f64,
    /// The cost of the bytes that stay free in the hole if they are as many as the goal.
    pub(crate) slack: f64,
}

/// When an item is freed, counted away from the peak.
pub(crate) type FreedAt = i64;

impl Matching {
    /// Random costs, where an item lives for up to `longest` sections.
    pub(crate) fn draw(longest: f64, random: &mut Random) -> Self {
        let mut pick = |values: &[f64]| values[random.below(values.len())];
        Self {
            outlives: pick(&[0.5, 1.0, 2.0, 4.0]),
            wall: longest * pick(&[0.3, 1.0]),
            slack: longest * pick(&[3.0, 10.0, 10.0, 30.0]),
        }
    }

    /// The cost of a neighbour, or of the floor or the goal.
    fn neighbour(&self, own: FreedAt, other: Option<FreedAt>) -> f64 {
        match other.map(|other| (other - own) as f64) {
            None => self.wall,
            Some(later) if later >= 0.0 => later.min(self.wall),
            Some(later) => -later * self.outlives,
        }
    }

    /// The cost and the offset of an item in a hole below the goal, if it fits and costs less than `least`. `neighbours` are below and above
    /// the hole.
    #[inline]
    pub(crate) fn seat(
        &self,
        (item, own): (&Item, FreedAt),
        (start, end): (u64, u64),
        neighbours: impl FnOnce() -> [Option<FreedAt>; 2],
        goal: u64,
        least: f64,
    ) -> Option<(f64, u64)> {
        let (start, capped) = (item.align_up(start), end > goal);
        let end = end.min(goal);
        if start + item.size > end {
            return None;
        }
        let slack = end - start - item.size;
        if slack == 0 {
            return (least > 0.0).then_some((0.0, start));
        }
        let slack = slack as f64 / goal as f64 * self.slack;
        if slack >= least {
            return None;
        }
        let [below, above] = neighbours();
        let below = self.neighbour(own, below);
        let above = self.neighbour(own, above.filter(|_| !capped));
        let (cost, offset) = if below <= above {
            (below + slack, start)
        } else {
            (above + slack, (end - item.size) / item.align * item.align)
        };
        (cost < least).then_some((cost, offset))
    }
}

/// How the stack at the peak is sorted, in ascending offsets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stack {
    /// By a weighted sum of start and end, latest first: 1 is by start alone, 0 has equal weights, -1 is by end alone.
    Sum(f64),
    /// By the share of the lifetime that lies before the peak, smallest first.
    Share,
    /// By a root of the sections before the peak, minus a weighted root of those behind it, smallest first. In between the other two: without a root it is
    /// a sum, and the higher the root, the more it is like the share.
    Roots {
        /// How many square roots are taken, one of the other: they are the same on every machine, and need no library of functions.
        square_roots: u32,
        /// The weight.
        weight: f64,
    },
}

impl Stack {
    /// A random order.
    pub(crate) fn draw(random: &mut Random) -> Self {
        match random.below(8) {
            0 => Self::Sum(0.0),
            1 | 2 => Self::Sum(-1.0),
            3 | 4 => Self::Sum(1.0),
            5 => Self::Sum(2.0 * random.unit() - 1.0),
            _ => Self::Share,
        }
    }

    /// A random order, every second time by roots.
    pub(crate) fn draw_any(random: &mut Random) -> Self {
        if random.below(2) == 0 {
            return Self::draw(random);
        }
        let square_roots = random.below(4) as u32;
        // From an eighth to eight; each doubling is equally likely.
        Self::Roots { square_roots, weight: (1.0 + random.unit()) * f64::from(1 << random.below(6)) / 8.0 }
    }

    /// The key of an item that is alive at the peak.
    pub(crate) fn key(self, hull: Span, peak: u32) -> f64 {
        let [start, end, peak] = [hull.lo, hull.hi, peak].map(f64::from);
        match self {
            Self::Sum(weight) => -(start * (1.0 + weight) + end * (1.0 - weight)),
            Self::Share => (peak - start) / (end - start),
            Self::Roots { square_roots, weight } => {
                let root = |sections: f64| (0..square_roots).fold(sections, |root, _| root.sqrt());
                root(peak - start) - weight * root(end - peak)
            }
        }
    }
}

/// One way to place all items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outwards {
    /// A section with the most live memory.
    peak: u32,
    stack: Stack,
    /// By how many sections an item comes earlier in the order for each doubling of its size.
    shift: f64,
    /// Whether of those that begin together the longest comes first, or the largest.
    longest_first: bool,
    matching: Matching,
}

impl Outwards {
    /// A random way.
    pub(crate) fn draw(instance: &Instance, random: &mut Random) -> Self {
        let most = instance.live.iter().copied().max().unwrap_or(0);
        let peaks: Vec<u32> =
            (0..instance.sections() as u32).filter(|&at| instance.live[at as usize] == most).collect();
        let longest = longest_hull(instance);
        let shifts = [0.0, 0.002, 0.004, 0.008, 0.016, 0.03];
        let shift = longest * shifts[random.below(shifts.len())];
        let matching = Matching::draw(longest, random);
        let stack = Stack::draw(random);
        Self {
            peak: peaks[random.below(peaks.len())],
            stack,
            shift,
            longest_first: random.below(2) == 0,
            matching,
        }
    }

    fn at_peak(&self, item: &Item) -> bool {
        item.hull.lo <= self.peak && self.peak < item.hull.hi
    }

    /// A way that shifts no item.
    #[cfg(test)]
    pub(crate) fn new(peak: u32, stack: Stack, matching: Matching) -> Self {
        Self { peak, stack, shift: 0.0, longest_first: false, matching }
    }

    /// All items: the stack, then the others by their distance from it.
    pub(crate) fn order(&self, instance: &Instance) -> Vec<u32> {
        let peak = f64::from(self.peak);
        let hull = |item: &Item| (f64::from(item.hull.lo), f64::from(item.hull.hi));
        let size_or_length = |item: &Item| {
            let (start, end) = hull(item);
            if self.longest_first { end - start } else { item.size as f64 }
        };
        let distance = |item: &Item| {
            let (start, end) = hull(item);
            let sections = if start > peak { start - peak } else { peak + 1.0 - end };
            sections - self.shift * (item.size as f64).log2()
        };
        let (mut stack, mut others) = (Vec::new(), Vec::new());
        for (item, at) in instance.items.iter().zip(0..) {
            if self.at_peak(item) {
                stack.push((self.stack.key(item.hull, self.peak), at));
            } else {
                others.push((-size_or_length(item), at));
            }
        }
        sort_ascending(&mut others);
        for (key, at) in &mut others {
            *key = distance(&instance.items[*at as usize]);
        }
        let mut order = ascending(stack);
        order.extend(ascending(others));
        order
    }

    /// Places one item, in any order.
    pub(crate) fn place(
        &self,
        placement: &mut PartialPlacement<'_>,
        instance: &Instance,
        item: usize,
        goal: u64,
    ) -> u64 {
        let placed = &instance.items[item];
        if self.at_peak(placed) {
            placement.place(item)
        } else {
            placement.place_matching(item, &self.matching, placed.hull.lo > self.peak, goal)
        }
    }
}

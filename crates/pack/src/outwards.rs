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
//! last; [`Outwards::draw`] mixes them. Items on the right side conflict with none on the left side.

use crate::instance::{Instance, Item};
use crate::large_neighbourhood::excess;
use crate::order_keys::{ascending, sort_ascending};
use crate::partial_placement::PartialPlacement;
use crate::random::Random;

/// Which hole an item takes, and which end of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Matching {
    /// The cost of each section by which an item outlives its neighbour. A section by which the neighbour outlives the item costs 1.
    outlives: f64,
    /// The cost of the floor or the goal as a neighbour, and the highest cost of a neighbour that outlives the item.
    wall: f64,
    /// The cost of the bytes that stay free in the hole if they are as many as the goal.
    slack: f64,
}

/// When an item is freed, counted away from the peak.
pub(crate) type FreedAt = i64;

impl Matching {
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
enum Stack {
    /// By a weighted sum of start and end, latest first: 1 is by start alone, 0 has equal weights, -1 is by end alone.
    Sum(f64),
    /// By the share of the lifetime that lies before the peak, smallest first.
    Share,
}

/// One way to place all items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outwards {
    /// A section with the most live memory.
    peak: u32,
    stack: Stack,
    /// By how many sections an item comes earlier in the order for each doubling of its size. A [`sweep`] shifts no item.
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
        let mut pick = |values: &[f64]| values[random.below(values.len())];
        let longest = instance.items.iter().map(|item| item.hull.hi - item.hull.lo).max().unwrap_or(1);
        let longest = f64::from(longest);
        let shift = longest * pick(&[0.0, 0.002, 0.004, 0.008, 0.016, 0.03]);
        let matching = Matching {
            outlives: pick(&[0.5, 1.0, 2.0, 4.0]),
            wall: longest * pick(&[0.3, 1.0]),
            slack: longest * pick(&[3.0, 10.0, 10.0, 30.0]),
        };
        let stack = match random.below(8) {
            0 => Stack::Sum(0.0),
            1 | 2 => Stack::Sum(-1.0),
            3 | 4 => Stack::Sum(1.0),
            5 => Stack::Sum(2.0 * random.unit() - 1.0),
            _ => Stack::Share,
        };
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

    /// All items: the stack, then the others by their distance from it.
    pub(crate) fn order(&self, instance: &Instance) -> Vec<u32> {
        let peak = f64::from(self.peak);
        let hull = |item: &Item| (f64::from(item.hull.lo), f64::from(item.hull.hi));
        let seat = |item: &Item| {
            let (start, end) = hull(item);
            match self.stack {
                Stack::Sum(weight) => -(start * (1.0 + weight) + end * (1.0 - weight)),
                Stack::Share => (peak - start) / (end - start),
            }
        };
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
                stack.push((seat(item), at));
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

/// Whether a [`sweep`] can place the items: none is fixed or has gaps.
pub(crate) fn can_sweep(instance: &Instance) -> bool {
    !instance.any_fixed && !instance.any_gaps
}

/// Offsets of all items, placed in order of their starts to the right and of their ends to the left. For each item it looks at the holes where
/// the item begins, not at all items placed. `None` if the excess above the goal exceeds `left`, or if it is to `stop`.
pub(crate) fn sweep(
    instance: &Instance,
    outwards: &Outwards,
    goal: u64,
    mut left: f64,
    stop: &dyn Fn() -> bool,
) -> Option<Vec<u64>> {
    let order = Outwards { shift: 0.0, ..*outwards }.order(instance);
    let item = |i: u32| &instance.items[i as usize];
    let (stack, others) = order.split_at(order.partition_point(|&i| outwards.at_peak(item(i))));
    let mut offsets = vec![0; instance.len()];
    let mut top = 0;
    for &i in stack {
        offsets[i as usize] = item(i).align_up(top);
        top = offsets[i as usize] + item(i).size;
        left -= excess(offsets[i as usize] + item(i).bytes, goal);
    }
    for right in [true, false] {
        let mut front = Front::new(instance, (right, outwards.peak), goal, stack, &offsets);
        for &i in others.iter().filter(|&&i| (item(i).hull.lo > outwards.peak) == right) {
            let offset = front.place(i, &outwards.matching, &mut offsets);
            left -= excess(offset + item(i).bytes, goal);
            if left < 0.0 || stop() {
                return None;
            }
        }
    }
    Some(offsets)
}

/// Free bytes between two items that are alive, or the floor, or nothing.
#[derive(Clone, Copy)]
struct Hole {
    start: u64,
    end: u64,
    below: Option<u32>,
    above: Option<u32>,
}

/// The items alive at the section that a sweep has reached, as a list in order of their offsets, and the holes between them.
struct Front<'a> {
    instance: &'a Instance,
    right: bool,
    goal: u64,
    /// That section, counted in the direction of the sweep.
    now: u32,
    /// Ascending; the last one has no end.
    holes: Vec<Hole>,
    /// For each item that is alive, its neighbours in the list.
    below: Vec<Option<u32>>,
    above: Vec<Option<u32>>,
    /// For each section, the placed items that are freed there.
    freed: Vec<Vec<u32>>,
}

impl<'a> Front<'a> {
    fn new(
        instance: &'a Instance,
        (right, peak): (bool, u32),
        goal: u64,
        stack: &[u32],
        offsets: &[u64],
    ) -> Self {
        let sections = instance.sections();
        let mut front = Self {
            instance,
            right,
            goal,
            now: if right { peak } else { sections as u32 - 1 - peak },
            holes: vec![Hole { start: 0, end: u64::MAX, below: None, above: None }],
            below: vec![None; instance.len()],
            above: vec![None; instance.len()],
            freed: vec![Vec::new(); sections + 1],
        };
        for &item in stack {
            front.insert(item, front.holes.len() - 1, offsets[item as usize]);
        }
        front
    }

    /// The sections at which an item begins and is freed, counted in the direction of the sweep.
    fn lifetime(&self, item: u32) -> [u32; 2] {
        let hull = self.instance.items[item as usize].hull;
        let sections = self.instance.sections() as u32;
        if self.right { [hull.lo, hull.hi] } else { [sections - hull.hi, sections - hull.lo] }
    }

    /// Makes two items, or an item and an end of the list, neighbours.
    fn link(&mut self, below: Option<u32>, above: Option<u32>) {
        if let Some(below) = below {
            self.above[below as usize] = above;
        }
        if let Some(above) = above {
            self.below[above as usize] = below;
        }
    }

    /// Places an item in a hole.
    fn insert(&mut self, item: u32, at: usize, offset: u64) {
        let hole = self.holes[at];
        self.link(hole.below, Some(item));
        self.link(Some(item), hole.above);
        let rest = [
            Hole { end: offset, above: Some(item), ..hole },
            Hole { start: offset + self.instance.items[item as usize].size, below: Some(item), ..hole },
        ];
        self.holes.splice(at..=at, rest.into_iter().filter(|hole| hole.start < hole.end));
        let [_, freed] = self.lifetime(item);
        self.freed[freed as usize].push(item);
    }

    /// Frees an item, and joins its bytes with the holes that touch them.
    fn remove(&mut self, item: u32, offset: u64) {
        let (below, above) = (self.below[item as usize], self.above[item as usize]);
        self.link(below, above);
        let mut free =
            Hole { start: offset, end: offset + self.instance.items[item as usize].size, below, above };
        let (mut from, mut to) = (self.holes.partition_point(|hole| hole.start < offset), 0);
        if let Some(hole) = self.holes.get(from).filter(|hole| hole.start == free.end) {
            (free.end, to) = (hole.end, 1);
        }
        to += from;
        if let Some(hole) = from.checked_sub(1).map(|at| self.holes[at]).filter(|hole| hole.end == offset) {
            (free.start, from) = (hole.start, from - 1);
        }
        self.holes.splice(from..to, [free]);
    }

    /// Frees all items that are not alive where an item begins, and places the item. Returns its offset.
    fn place(&mut self, item: u32, matching: &Matching, offsets: &mut [u64]) -> u64 {
        let [begins, freed] = self.lifetime(item);
        while self.now < begins {
            self.now += 1;
            for other in std::mem::take(&mut self.freed[self.now as usize]) {
                self.remove(other, offsets[other as usize]);
            }
        }
        let placed = &self.instance.items[item as usize];
        let freed_at = |other: Option<u32>| other.map(|other| FreedAt::from(self.lifetime(other)[1]));
        let (mut least, mut best) = (f64::INFINITY, None);
        for (at, hole) in self.holes.iter().enumerate() {
            let neighbours = || [freed_at(hole.below), freed_at(hole.above)];
            let own = (placed, FreedAt::from(freed));
            if let Some((cost, offset)) =
                matching.seat(own, (hole.start, hole.end), neighbours, self.goal, least)
            {
                (least, best) = (cost, Some((at, offset)));
            }
        }
        // Without a hole below the goal the lowest one above it.
        let (at, offset) = best.unwrap_or_else(|| {
            let fits = |hole: &Hole| placed.align_up(hole.start) + placed.size <= hole.end;
            let at = self.holes.iter().position(fits).unwrap_or(self.holes.len() - 1);
            (at, placed.align_up(self.holes[at].start))
        });
        self.insert(item, at, offset);
        offsets[item as usize] = offset;
        offset
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::Bytes;
    use elbowroom_ir::packing::{Block, Problem};

    use super::*;
    use crate::partial_placement::Fit;

    fn problem(random: &mut Random, aligns: &[u64]) -> Problem {
        let blocks = (0..120).map(|_| {
            let start = random.below(60) as u64;
            let size = Bytes(1 + random.below(50) as u64);
            let mut block = Block::new(start, start + 1 + random.below(30) as u64, size);
            block.align = Bytes(aligns[random.below(aligns.len())]);
            block
        });
        Problem { blocks: blocks.collect(), capacity: None }
    }

    /// A sweep knows what is alive from its lists, the other placement from a look at all items: the offsets are the same. With alignments the
    /// other one also fills holes of the stack.
    #[test]
    fn a_sweep_places_items_where_a_look_at_all_of_them_does() {
        for seed in 0..200 {
            let mut random = Random::new(seed, 0);
            let problem = problem(&mut random, &[1]);
            let Ok(instance) = Instance::new(&problem) else { panic!("no block is fixed") };
            let outwards = Outwards { shift: 0.0, ..Outwards::draw(&instance, &mut random) };
            // Nothing ends above this goal: above it, the two take different holes.
            let goal = 2 * instance.bound;
            let swept =
                sweep(&instance, &outwards, goal, 0.0, &|| false).expect("nothing ends above the goal");
            let placement = instance.placement(&problem, &swept);
            assert_eq!(crate::validate(&problem, &placement), Ok(()), "seed {seed}");
            let mut partial = PartialPlacement::new(&instance, Fit::First);
            for item in outwards.order(&instance) {
                outwards.place(&mut partial, &instance, item as usize, goal);
            }
            assert_eq!(partial.into_offsets(), swept, "seed {seed}");
        }
    }

    #[test]
    fn a_sweep_is_legal_above_the_goal_and_ends_where_it_costs_too_much() {
        for seed in 0..200 {
            let mut random = Random::new(seed, 0);
            let problem = problem(&mut random, &[1, 1, 8]);
            let Ok(instance) = Instance::new(&problem) else { panic!("no block is fixed") };
            let outwards = Outwards::draw(&instance, &mut random);
            let goal = instance.bound * 9 / 10;
            let swept =
                sweep(&instance, &outwards, goal, f64::INFINITY, &|| false).expect("nothing stops it");
            let placement = instance.placement(&problem, &swept);
            assert_eq!(crate::validate(&problem, &placement), Ok(()), "seed {seed}");
            assert_eq!(sweep(&instance, &outwards, goal, 0.0, &|| false), None, "seed {seed}");
            assert_eq!(sweep(&instance, &outwards, goal, f64::INFINITY, &|| true), None, "seed {seed}");
        }
    }
}

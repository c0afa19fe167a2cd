//! Places the items that are alive at the peak in one stack, and all others outwards from it, to both sides.
//!
//! ```text
//! offset ▲      ┌──────┐                 The stack (═) has no holes. Away from it items leave, and what begins there finds holes. Where
//!   goal ┤   ╔══╧══╗───┴──┐  to the      neighbours in the stack leave one after the other, their holes are one hole. So an item is placed
//!        │ ╔═╧═════╧══╗───┴─┐ right →    next to one that leaves shortly after it.
//!        │ ╚══════════╝─────┘
//!        └──────┼──────────────▶
//!             peak
//! ```
//!
//! The stack has two orders that serve one side each: by ends to the right, by starts to the left. In a training these nearly agree, because
//! what begins first is needed last; [`Outwards::draw`] mixes them. What is right of the peak and what is left of it do not meet.

use crate::instance::{Instance, Item};
use crate::large_neighbourhood::excess;
use crate::partial_placement::PartialPlacement;
use crate::random::Random;

/// Of more items, those that begin first are always placed first: what is alive at the front of a [`sweep`] is known without a search.
pub(crate) const MOST_SHIFTED: usize = 10_000;

/// Which hole an item takes, and which end of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Matching {
    /// What a section costs by which an item stays longer than its neighbour, where one by which it leaves earlier costs 1.
    outlives: f64,
    /// What the floor and the goal cost as neighbours, and the most that any neighbour costs that stays longer.
    wall: f64,
    /// What free bytes around the item cost, as a share of the goal.
    slack: f64,
}

/// Where an item ends up away from the peak: ascending in the direction of a sweep.
pub(crate) type Leaving = i64;

impl Matching {
    fn neighbour(&self, own: Leaving, other: Option<Leaving>) -> f64 {
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
        (item, own): (&Item, Leaving),
        (start, end): (u64, u64),
        neighbours: impl FnOnce() -> [Option<Leaving>; 2],
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

/// How the stack at the peak is sorted, from below.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stack {
    /// By the sum of start and end, with this weight of the start, from -1 to 1 around equal ones; latest first.
    Sum(f64),
    /// By how much of the lifetime lies before the peak; the largest share last.
    Share,
}

/// One way to place all items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outwards {
    /// A section with the most live memory.
    peak: u32,
    stack: Stack,
    /// By how much of the longest lifetime an item comes earlier for each doubling of its size.
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
        let shift = pick(&[0.0, 0.002, 0.004, 0.008, 0.016, 0.03]);
        let longest = longest(instance);
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
            shift: if instance.len() > MOST_SHIFTED { 0.0 } else { shift },
            longest_first: random.below(2) == 0,
            matching,
        }
    }

    fn at_peak(&self, item: &Item) -> bool {
        item.hull.lo <= self.peak && self.peak < item.hull.hi
    }

    /// All items: the stack, then the others by their distance from it.
    pub(crate) fn order(&self, instance: &Instance) -> Vec<u32> {
        let (longest, peak) = (longest(instance), f64::from(self.peak));
        let key = |item: &Item| {
            let (start, end) = (f64::from(item.hull.lo), f64::from(item.hull.hi));
            if self.at_peak(item) {
                let key = match self.stack {
                    Stack::Sum(weight) => -(start * (1.0 + weight) + end * (1.0 - weight)),
                    Stack::Share => (peak - start).atan2(end - peak),
                };
                return (false, key, 0.0);
            }
            let distance = if start > peak { start - peak } else { peak + 1.0 - end };
            let size = item.size as f64;
            let second = if self.longest_first { end - start } else { size };
            (true, distance - self.shift * longest * size.log2(), -second)
        };
        let mut keys: Vec<_> = instance.items.iter().map(key).zip(0..).collect();
        keys.sort_by(|(a, _), (b, _)| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.total_cmp(&b.2)));
        keys.into_iter().map(|(_, item)| item).collect()
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

/// The longest hull of any item, in sections.
fn longest(instance: &Instance) -> f64 {
    f64::from(instance.items.iter().map(|item| item.hull.hi - item.hull.lo).max().unwrap_or(1))
}

/// Whether items can be placed by a [`sweep`].
pub(crate) fn can_sweep(instance: &Instance) -> bool {
    !instance.any_fixed && !instance.any_gaps
}

/// Offsets of all items, each placed where it begins. Costs the number of holes for each item. `None` if their excess above the goal exceeds
/// `left`, or if it is to `stop`.
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

/// The items alive where a sweep is, as a list in order of their offsets, and the holes between them.
struct Front<'a> {
    instance: &'a Instance,
    right: bool,
    goal: u64,
    /// Sections from the first one that the sweep could see.
    now: u32,
    /// Ascending; the last one has no end.
    holes: Vec<Hole>,
    /// For each item that is alive, the next ones.
    below: Vec<Option<u32>>,
    above: Vec<Option<u32>>,
    /// For each section, the items that leave there.
    leaving: Vec<Vec<u32>>,
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
            leaving: vec![Vec::new(); sections + 1],
        };
        for &item in stack {
            front.insert(item, front.holes.len() - 1, offsets[item as usize]);
        }
        front
    }

    /// When an item begins and leaves in the direction of the sweep.
    fn lifetime(&self, item: u32) -> [u32; 2] {
        let hull = self.instance.items[item as usize].hull;
        let sections = self.instance.sections() as u32;
        if self.right { [hull.lo, hull.hi] } else { [sections - hull.hi, sections - hull.lo] }
    }

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
        let [_, leaves] = self.lifetime(item);
        self.leaving[leaves as usize].push(item);
    }

    /// Joins what an item leaves free with the holes that it touches.
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

    fn place(&mut self, item: u32, matching: &Matching, offsets: &mut [u64]) -> u64 {
        let [begins, leaves] = self.lifetime(item);
        while self.now < begins {
            self.now += 1;
            for left in std::mem::take(&mut self.leaving[self.now as usize]) {
                self.remove(left, offsets[left as usize]);
            }
        }
        let placed = &self.instance.items[item as usize];
        let leaving = |other: Option<u32>| other.map(|other| Leaving::from(self.lifetime(other)[1]));
        let (mut least, mut best) = (f64::INFINITY, None);
        for (at, hole) in self.holes.iter().enumerate() {
            let neighbours = || [leaving(hole.below), leaving(hole.above)];
            let own = (placed, Leaving::from(leaves));
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

//! The items alive at the section that a sweep has reached, and the holes between them.
//!
//! An item is placed with a look at these holes, not at all items placed. That takes a microsecond where thousands of items are alive at once. A front can go
//! back to a section that it has passed, which takes as long as what was placed and freed since.

use crate::instance::Instance;
use crate::outwards::{FreedAt, Matching};
use crate::reserved::{Reserved, Taken};

/// The direction of a sweep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Side {
    Right,
    Left,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::Right, Self::Left];

    /// A section counted in this direction, of one counted in time, or the other way round.
    pub(crate) fn section(self, instance: &Instance, section: u32) -> u32 {
        match self {
            Self::Right => section,
            Self::Left => instance.sections() as u32 - 1 - section,
        }
    }

    /// The sections at which an item begins and is freed, counted in this direction.
    pub(crate) fn lifetime(self, instance: &Instance, item: u32) -> [u32; 2] {
        let hull = instance.items[item as usize].hull;
        let sections = instance.sections() as u32;
        match self {
            Self::Right => [hull.lo, hull.hi],
            Self::Left => [sections - hull.hi, sections - hull.lo],
        }
    }
}

/// In lists of items: none.
const NONE: u32 = u32::MAX;

/// An item below or above a hole.
#[derive(Clone, Copy)]
pub(crate) struct Neighbour {
    /// [`NONE`] for the floor, or for the end of the highest hole.
    pub(crate) item: u32,
    pub(crate) freed: u32,
}

const END: Neighbour = Neighbour { item: NONE, freed: 0 };

impl Neighbour {
    fn freed_at(self) -> Option<FreedAt> {
        (self.item != NONE).then(|| self.freed.into())
    }
}

/// Free bytes between two items that are alive, or the floor, or nothing.
#[derive(Clone, Copy)]
struct Hole {
    start: u64,
    end: u64,
    below: Neighbour,
    above: Neighbour,
}

/// The items of a list.
fn listed(first: u32, next: &[u32]) -> impl Iterator<Item = u32> {
    let some = |item: u32| (item != NONE).then_some(item);
    std::iter::successors(some(first), move |&item| some(next[item as usize]))
}

/// A sweep in one direction.
pub(crate) struct Front<'a> {
    instance: &'a Instance,
    side: Side,
    goal: u64,
    /// The section reached, counted in the direction of the sweep.
    now: u32,
    /// Ascending; the last one has no end.
    holes: Vec<Hole>,
    /// The items that are alive, as a list in order of their offsets: the first one, and for each the next ones in both directions.
    lowest: u32,
    below: Vec<u32>,
    above: Vec<u32>,
    /// For each section, the first of the placed items that are freed there, and for each of these the next one.
    freed: Vec<u32>,
    freed_too: Vec<u32>,
    /// How many these are.
    alive: usize,
    /// Items that were placed before they begin.
    reserved: Reserved,
    /// What has changed since the start, to go back.
    changes: Vec<Change>,
}

/// A change of a front.
#[derive(Clone, Copy)]
enum Change {
    /// An item was placed.
    Placed(u32),
    /// An item was freed.
    Freed(u32),
    /// The next section was reached, where this is the first item freed.
    Reached(u32),
}

/// Where one in this many items that are alive is freed before a section or more, the free bytes there are found by a look at all of them.
const MANY_FREED: usize = 8;

/// The best of the holes that were considered.
struct Choice<'a> {
    matching: &'a Matching,
    goal: u64,
    least: f64,
    /// The number of the hole, and an offset in it.
    best: Option<(usize, u64)>,
    /// The lowest one that ends above the goal.
    above_goal: Option<(usize, u64)>,
}

impl<'a> Choice<'a> {
    fn new(matching: &'a Matching, goal: u64) -> Self {
        Self { matching, goal, least: f64::INFINITY, best: None, above_goal: None }
    }

    /// Considers free bytes of a hole for an item.
    #[inline(always)]
    fn consider(
        &mut self,
        (instance, item, freed): (&Instance, u32, u32),
        at: usize,
        (start, end): (u64, u64),
        [below, above]: [Neighbour; 2],
    ) {
        let placed = &instance.items[item as usize];
        if end - start < placed.size {
            return;
        }
        let neighbours = || [below.freed_at(), above.freed_at()];
        let own = (placed, freed.into());
        if let Some((cost, offset)) = self.matching.seat(own, (start, end), neighbours, self.goal, self.least)
        {
            (self.least, self.best) = (cost, Some((at, offset)));
        }
        let lowest = placed.align_up(start);
        if self.above_goal.is_none() && end > self.goal && lowest + placed.size <= end {
            self.above_goal = Some((at, lowest));
        }
    }
}

impl<'a> Front<'a> {
    /// Starts at a section, counted in the direction of the sweep, with the offsets of the items that are alive there, in ascending order.
    pub(crate) fn new(
        instance: &'a Instance,
        (side, section): (Side, u32),
        goal: u64,
        stack: &[u32],
        offsets: &[u64],
    ) -> Self {
        let (items, sections) = (instance.len(), instance.sections());
        let mut front = Self {
            instance,
            side,
            goal,
            now: section,
            holes: Vec::new(),
            lowest: NONE,
            below: vec![NONE; items],
            above: vec![NONE; items],
            freed: vec![NONE; sections + 1],
            freed_too: vec![NONE; items],
            alive: stack.len(),
            reserved: Reserved::new(items),
            changes: Vec::new(),
        };
        let mut rest = Hole { start: 0, end: u64::MAX, below: END, above: END };
        for &item in stack {
            let (own, start) = (front.neighbour(item), offsets[item as usize]);
            if rest.start < start {
                front.holes.push(Hole { end: start, above: own, ..rest });
            }
            front.link(rest.below.item, item);
            front.free_at(own.freed, item);
            rest = Hole { start: start + instance.items[item as usize].size, below: own, ..rest };
        }
        front.holes.push(rest);
        front
    }

    /// The section reached, counted in the direction of the sweep.
    pub(crate) fn section(&self) -> u32 {
        self.now
    }

    fn freed_at(&self, item: u32) -> u32 {
        self.side.lifetime(self.instance, item)[1]
    }

    fn neighbour(&self, item: u32) -> Neighbour {
        if item == NONE { END } else { Neighbour { item, freed: self.freed_at(item) } }
    }

    /// Makes two items, or an item and an end of the list, neighbours.
    fn link(&mut self, below: u32, above: u32) {
        if below == NONE {
            self.lowest = above;
        } else {
            self.above[below as usize] = above;
        }
        if above != NONE {
            self.below[above as usize] = below;
        }
    }

    /// Places an item in a hole, until it is freed.
    fn insert(&mut self, item: u32, at: usize, offset: u64) {
        self.occupy(item, at, offset);
        self.free_at(self.freed_at(item), item);
        self.changes.push(Change::Placed(item));
    }

    /// Notes where an item is freed.
    fn free_at(&mut self, section: u32, item: u32) {
        self.freed_too[item as usize] = std::mem::replace(&mut self.freed[section as usize], item);
    }

    /// Takes the bytes of an item from a hole.
    fn occupy(&mut self, item: u32, at: usize, offset: u64) {
        self.alive += 1;
        let hole = self.holes[at];
        self.link(hole.below.item, item);
        self.link(item, hole.above.item);
        let own = self.neighbour(item);
        let end = offset + self.instance.items[item as usize].size;
        let rest = [Hole { end: offset, above: own, ..hole }, Hole { start: end, below: own, ..hole }];
        self.holes.splice(at..=at, rest.into_iter().filter(|hole| hole.start < hole.end));
    }

    /// The number of the hole in which an offset lies.
    fn hole_at(&self, offset: u64) -> usize {
        self.holes.partition_point(|hole| hole.end <= offset)
    }

    /// Frees an item, and joins its bytes with the holes that touch them.
    fn remove(&mut self, item: u32, start: u64) {
        self.alive -= 1;
        let (below, above) = (self.below[item as usize], self.above[item as usize]);
        self.link(below, above);
        let end = start + self.instance.items[item as usize].size;
        let mut free = Hole { start, end, below: self.neighbour(below), above: self.neighbour(above) };
        let (mut from, mut to) = (self.holes.partition_point(|hole| hole.start < start), 0);
        if let Some(hole) = self.holes.get(from).filter(|hole| hole.start == end) {
            (free.end, to) = (hole.end, 1);
        }
        to += from;
        if let Some(hole) = from.checked_sub(1).map(|at| self.holes[at]).filter(|hole| hole.end == start) {
            (free.start, from) = (hole.start, from - 1);
        }
        self.holes.splice(from..to, [free]);
    }

    /// Frees all items that are not alive any more at a section.
    pub(crate) fn advance(&mut self, to: u32, offsets: &[u64]) {
        while self.now < to {
            self.now += 1;
            let first = std::mem::replace(&mut self.freed[self.now as usize], NONE);
            self.changes.push(Change::Reached(first));
            let mut next = first;
            while next != NONE {
                self.remove(next, offsets[next as usize]);
                self.changes.push(Change::Freed(next));
                next = self.freed_too[next as usize];
            }
        }
    }

    /// Goes back to a section: what was placed behind it is not placed any more, and what was freed is alive again. Reserved items stay so.
    pub(crate) fn go_back(&mut self, to: u32, offsets: &[u64]) {
        while self.now > to
            && let Some(change) = self.changes.pop()
        {
            match change {
                Change::Placed(item) => {
                    self.remove(item, offsets[item as usize]);
                    // It is the first one, because it was the last one placed.
                    let freed = self.freed_at(item) as usize;
                    self.freed[freed] = self.freed_too[item as usize];
                }
                Change::Freed(item) => {
                    let offset = offsets[item as usize];
                    self.occupy(item, self.hole_at(offset), offset);
                }
                Change::Reached(first) => {
                    self.freed[self.now as usize] = first;
                    self.now -= 1;
                }
            }
        }
    }

    /// Places an item where it begins. One that is reserved stays where `offsets` says. Returns its offset.
    pub(crate) fn place(&mut self, item: u32, matching: &Matching, offsets: &[u64]) -> u64 {
        if self.reserved.contains(item) {
            self.place_at(item, offsets);
            return offsets[item as usize];
        }
        self.advance_to(item, offsets);
        let holes = std::mem::take(&mut self.holes);
        let choice = self.choose(item, &holes, matching);
        self.holes = holes;
        let (at, offset) = choice.best.or(choice.above_goal).expect("the highest hole has no end");
        self.insert(item, at, offset);
        offset
    }

    /// Places an item where it begins, and where `offsets` says.
    pub(crate) fn place_at(&mut self, item: u32, offsets: &[u64]) {
        self.advance_to(item, offsets);
        let offset = offsets[item as usize];
        self.insert(item, self.hole_at(offset), offset);
    }

    /// Frees all items that are not alive any more where another one begins.
    fn advance_to(&mut self, item: u32, offsets: &[u64]) {
        let [begins, _] = self.side.lifetime(self.instance, item);
        self.advance(begins, offsets);
    }

    /// The best of the holes for an item: those that there are where it begins, if what is reserved takes none of their bytes.
    fn choose<'m>(&mut self, item: u32, holes: &[Hole], matching: &'m Matching) -> Choice<'m> {
        let [begins, freed] = self.side.lifetime(self.instance, item);
        let own = (self.instance, item, freed);
        let size = self.instance.items[item as usize].size;
        // What has begun is alive, and outside the holes.
        let begin_before = self.reserved.between(self.now, freed);
        let mut taken = begin_before.filter(|taken| begins < taken.by.freed).peekable();
        let mut choice = Choice::new(matching, self.goal);
        // Of the reserved bytes below: the highest end.
        let mut last: Option<Taken> = None;
        let higher = |last: Option<Taken>, next: Taken| {
            if last.is_none_or(|last| next.end > last.end) { Some(next) } else { last }
        };
        for (at, hole) in holes.iter().enumerate() {
            // Most holes are too small, and most sweeps have nothing reserved there.
            if hole.end - hole.start < size {
                continue;
            }
            while let Some(&next) = taken.next_if(|taken| taken.start < hole.start) {
                last = higher(last, next);
            }
            let (mut start, mut below) = (hole.start, hole.below);
            if let Some(last) = last.filter(|last| last.end > start) {
                (start, below) = (last.end, last.by);
            }
            while let Some(&next) = taken.next_if(|taken| taken.start < hole.end) {
                if start < next.start {
                    choice.consider(own, at, (start, next.start), [below, next.by]);
                }
                if next.end > start {
                    (start, below) = (next.end, next.by);
                }
                last = higher(last, next);
            }
            if start < hole.end {
                choice.consider(own, at, (start, hole.end), [below, hole.above]);
            }
        }
        choice
    }

    /// Places an item before the sweep reaches it, unless it has a place already or would end above the goal. Returns its offset.
    pub(crate) fn reserve(&mut self, item: u32, matching: &Matching, offsets: &[u64]) -> Option<u64> {
        if self.reserved.contains(item) {
            return None;
        }
        let [begins, _] = self.side.lifetime(self.instance, item);
        let holes = self.holes_at(begins, offsets);
        let (_, offset) = self.choose(item, &holes, matching).best?;
        self.reserve_at(item, offset);
        Some(offset)
    }

    /// The holes at a later section, if nothing is placed until then.
    fn holes_at(&self, section: u32, offsets: &[u64]) -> Vec<Hole> {
        let mut freed: Vec<u32> = (self.now + 1..=section)
            .flat_map(|at| listed(self.freed[at as usize], &self.freed_too))
            .take(self.alive / MANY_FREED + 1)
            .collect();
        if freed.len() > self.alive / MANY_FREED {
            freed.clear();
            freed.extend(listed(self.lowest, &self.above).filter(|&item| self.freed_at(item) <= section));
        } else {
            freed.sort_unstable_by_key(|&item| offsets[item as usize]);
        }
        let freed = freed.into_iter().map(|item| {
            let start = offsets[item as usize];
            let end = start + self.instance.items[item as usize].size;
            let [below, above] = [&self.below, &self.above].map(|next| self.neighbour(next[item as usize]));
            Hole { start, end, below, above }
        });
        let mut all: Vec<Hole> = Vec::new();
        let mut join = |next: Hole| match all.last_mut() {
            Some(last) if last.end == next.start => (last.end, last.above) = (next.end, next.above),
            _ => all.push(next),
        };
        let mut holes = self.holes.iter().copied().peekable();
        for next in freed {
            while let Some(hole) = holes.next_if(|hole| hole.start < next.start) {
                join(hole);
            }
            join(next);
        }
        holes.for_each(join);
        all
    }

    /// Places an item at an offset before the sweep reaches it.
    pub(crate) fn reserve_at(&mut self, item: u32, offset: u64) {
        if !self.reserved.contains(item) {
            let [begins, freed] = self.side.lifetime(self.instance, item);
            let end = offset + self.instance.items[item as usize].size;
            let taken = Taken { start: offset, end, by: Neighbour { item, freed }, begins };
            self.reserved.add(taken, self.now);
        }
    }

    /// Takes back that an item was placed at an offset before the sweep reaches it.
    pub(crate) fn release(&mut self, item: u32, offset: u64) {
        self.reserved.remove(item, offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::sweep::tests::problem;

    /// The holes, each with its neighbours, and the items alive, in ascending order of their offsets.
    fn state(front: &Front<'_>) -> (Vec<[u64; 4]>, Vec<u32>) {
        (listed_holes(&front.holes), listed(front.lowest, &front.above).collect())
    }

    fn listed_holes(holes: &[Hole]) -> Vec<[u64; 4]> {
        let numbers = |hole: &Hole| {
            let [below, above] = [hole.below, hole.above].map(|neighbour| u64::from(neighbour.item));
            [hole.start, hole.end, below, above]
        };
        holes.iter().map(numbers).collect()
    }

    /// Sweeps through a problem, with some items placed before they begin, and hands over the front and the offsets at some sections.
    fn with_fronts(mut test: impl FnMut(&Instance, &mut Front<'_>, &[u64], &mut Random)) {
        for seed in 0..100 {
            let mut random = Random::new(seed, 0);
            let problem = problem(&mut random, &[1, 1, 8]);
            let Ok(instance) = Instance::new(&problem) else { panic!("no block is fixed") };
            let side = Side::BOTH[seed as usize % 2];
            let matching = Matching::draw(30.0, &mut random);
            let mut order: Vec<u32> = (0..instance.len() as u32).collect();
            order.sort_by_key(|&i| side.lifetime(&instance, i)[0]);
            let mut offsets = vec![0; instance.len()];
            let mut front = Front::new(&instance, (side, 0), 2 * instance.bound, &[], &offsets);
            for (at, &item) in order.iter().enumerate() {
                let ahead = order[(at + random.below(20)).min(order.len() - 1)];
                if let Some(offset) = front.reserve(ahead, &matching, &offsets) {
                    offsets[ahead as usize] = offset;
                }
                offsets[item as usize] = front.place(item, &matching, &offsets);
                test(&instance, &mut front, &offsets, &mut random);
            }
        }
    }

    /// What is alive at a section of those that a front has placed, in ascending order of their offsets.
    fn alive(front: &Front<'_>, placed: &[u32], offsets: &[u64]) -> Vec<u32> {
        let is_alive = |&i: &u32| {
            let [begins, freed] = front.side.lifetime(front.instance, i);
            begins <= front.now && front.now < freed
        };
        let mut alive: Vec<u32> = placed.iter().copied().filter(is_alive).collect();
        alive.sort_by_key(|&i| offsets[i as usize]);
        alive
    }

    #[test]
    fn a_front_that_goes_back_is_like_a_new_one_and_finds_its_way_again() {
        let (mut placed, mut went_back) = (Vec::new(), 0);
        with_fronts(|instance, front, offsets, random| {
            if front.changes.iter().filter(|change| matches!(change, Change::Placed(_))).count() == 1 {
                placed.clear();
            }
            if let Some(Change::Placed(item)) = front.changes.last() {
                placed.push(*item);
            }
            if random.below(8) > 0 {
                return;
            }
            let (now, before) = (front.now, state(front));
            front.go_back(random.below(now as usize + 1) as u32, offsets);
            let stack = alive(front, &placed, offsets);
            let new = Front::new(instance, (front.side, front.now), front.goal, &stack, offsets);
            assert!(state(front) == state(&new));
            went_back += usize::from(front.now < now);
            let (side, section) = (front.side, front.now);
            for &item in placed.iter().filter(|&&i| side.lifetime(instance, i)[0] > section) {
                front.place_at(item, offsets);
            }
            assert!((front.now, state(front)) == (now, before));
        });
        assert!(went_back > 1_000, "{went_back}");
    }

    #[test]
    fn the_holes_at_a_later_section_are_those_around_what_is_alive_then() {
        let mut freed = 0;
        with_fronts(|instance, front, offsets, random| {
            let now = front.now as usize;
            let section = (now + random.below(instance.sections() - now)) as u32;
            let alive: Vec<u32> = listed(front.lowest, &front.above).collect();
            let stack: Vec<u32> = alive.iter().copied().filter(|&i| front.freed_at(i) > section).collect();
            freed += alive.len() - stack.len();
            let new = Front::new(instance, (front.side, section), front.goal, &stack, offsets);
            assert!(listed_holes(&front.holes_at(section, offsets)) == listed_holes(&new.holes));
        });
        assert!(freed > 10_000, "{freed}");
    }
}

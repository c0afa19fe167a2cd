//! The items alive at the section that a sweep has reached, and the holes between them.
//!
//! An item is placed with a look at these holes, not at all items placed. That takes a microsecond where thousands of items are alive at once.

use crate::instance::Instance;
use crate::outwards::{FreedAt, Matching};

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
struct Neighbour {
    /// [`NONE`] for the floor, or for the end of the highest hole.
    item: u32,
    freed: u32,
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

/// The bytes that an item occupies from some section on.
#[derive(Clone, Copy)]
struct Taken {
    start: u64,
    end: u64,
    by: Neighbour,
    begins: u32,
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
    /// Items that are placed and begin later, in order of their offsets.
    reserved: Vec<Taken>,
    /// Whether an item is one of these, or was.
    is_reserved: Vec<bool>,
}

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

    fn chosen(self) -> (usize, u64) {
        self.best.or(self.above_goal).expect("the highest hole has no end")
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
            holes: vec![Hole { start: 0, end: u64::MAX, below: END, above: END }],
            lowest: NONE,
            below: vec![NONE; items],
            above: vec![NONE; items],
            freed: vec![NONE; sections + 1],
            freed_too: vec![NONE; items],
            reserved: Vec::new(),
            is_reserved: vec![false; items],
        };
        for &item in stack {
            front.insert(item, front.holes.len() - 1, offsets[item as usize]);
        }
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

    /// Places an item in a hole.
    fn insert(&mut self, item: u32, at: usize, offset: u64) {
        let hole = self.holes[at];
        self.link(hole.below.item, item);
        self.link(item, hole.above.item);
        let own = self.neighbour(item);
        let end = offset + self.instance.items[item as usize].size;
        let rest = [Hole { end: offset, above: own, ..hole }, Hole { start: end, below: own, ..hole }];
        self.holes.splice(at..=at, rest.into_iter().filter(|hole| hole.start < hole.end));
        self.freed_too[item as usize] = std::mem::replace(&mut self.freed[own.freed as usize], item);
    }

    /// Frees an item, and joins its bytes with the holes that touch them.
    fn remove(&mut self, item: u32, start: u64) {
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
    fn advance(&mut self, to: u32, offsets: &[u64]) {
        while self.now < to {
            self.now += 1;
            let mut next = std::mem::replace(&mut self.freed[self.now as usize], NONE);
            while next != NONE {
                self.remove(next, offsets[next as usize]);
                next = self.freed_too[next as usize];
            }
        }
    }

    /// Places an item where it begins. One that is reserved stays where `offsets` says. Returns its offset.
    pub(crate) fn place(&mut self, item: u32, matching: &Matching, offsets: &[u64]) -> u64 {
        let [begins, _] = self.side.lifetime(self.instance, item);
        self.advance(begins, offsets);
        let (at, offset) = if self.is_reserved[item as usize] {
            let offset = offsets[item as usize];
            let first = self.reserved.partition_point(|taken| taken.start < offset);
            let own = self.reserved[first..].iter().position(|taken| taken.by.item == item);
            self.reserved.remove(first + own.expect("it is reserved there"));
            (self.holes.partition_point(|hole| hole.end <= offset), offset)
        } else {
            self.find_hole(item, matching)
        };
        self.insert(item, at, offset);
        offset
    }

    /// The best hole for an item, and the offset in it.
    fn find_hole(&self, item: u32, matching: &Matching) -> (usize, u64) {
        let freed = self.freed_at(item);
        let own = (self.instance, item, freed);
        let size = self.instance.items[item as usize].size;
        // All of these begin now or later.
        let mut taken = self.reserved.iter().filter(|taken| taken.begins < freed).peekable();
        let mut choice = Choice::new(matching, self.goal);
        // Of the reserved bytes below: the highest end.
        let mut last: Option<Taken> = None;
        let higher = |last: Option<Taken>, next: Taken| {
            if last.is_none_or(|last| next.end > last.end) { Some(next) } else { last }
        };
        for (at, hole) in self.holes.iter().enumerate() {
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
        choice.chosen()
    }

    fn overlap(&self, one: u32, other: u32) -> bool {
        let [one, other] = [one, other].map(|item| self.instance.items[item as usize].hull);
        one.overlaps(other)
    }

    /// Places an item before the sweep reaches it, unless it has a place already or would end above the goal. Returns its offset.
    pub(crate) fn reserve(&mut self, item: u32, matching: &Matching, offsets: &[u64]) -> Option<u64> {
        if self.is_reserved[item as usize] {
            return None;
        }
        let first = (self.lowest != NONE).then_some(self.lowest);
        let alive =
            std::iter::successors(first, |&at| Some(self.above[at as usize]).filter(|&at| at != NONE));
        let mut alive = alive
            .filter(|&at| self.overlap(at, item))
            .map(|at| self.taken(at, offsets[at as usize]))
            .peekable();
        let reserved = self.reserved.iter().filter(|taken| self.overlap(taken.by.item, item)).copied();
        let end = Taken { start: u64::MAX, end: u64::MAX, by: END, begins: 0 };
        let freed = self.freed_at(item);
        let mut choice = Choice::new(matching, self.goal);
        let (mut start, mut below) = (0, END);
        let mut pass = |next: Taken| {
            if start < next.start {
                choice.consider((self.instance, item, freed), 0, (start, next.start), [below, next.by]);
            }
            // What is freed before a reserved item begins may have the same bytes.
            if next.end > start {
                (start, below) = (next.end, next.by);
            }
        };
        for reserved in reserved.chain([end]) {
            while let Some(next) = alive.next_if(|next| next.start <= reserved.start) {
                pass(next);
            }
            pass(reserved);
        }
        let (_, offset) = choice.best?;
        self.reserve_at(item, offset);
        Some(offset)
    }

    /// Places an item at an offset before the sweep reaches it.
    pub(crate) fn reserve_at(&mut self, item: u32, offset: u64) {
        let at = self.reserved.partition_point(|other| other.start < offset);
        self.reserved.insert(at, self.taken(item, offset));
        self.is_reserved[item as usize] = true;
    }

    fn taken(&self, item: u32, start: u64) -> Taken {
        let [begins, freed] = self.side.lifetime(self.instance, item);
        let end = start + self.instance.items[item as usize].size;
        Taken { start, end, by: Neighbour { item, freed }, begins }
    }
}

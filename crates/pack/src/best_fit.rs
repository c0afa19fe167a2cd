//! Best-fit (Sekiyama et al. 2018, section 3.2), after Burke's heuristic for strip packing.
//!
//! ```text
//!  offset ▲                 The skyline is a row of *offset lines*. Each step takes the lowest line, the leftmost of several, and places on it the
//!         │ ▓▓▓▓     ▒▒▒    longest-lived buffer that lies within the line and collides with nothing. If there is none, the line is lifted to its
//!         │ ▓▓▓▓ ━━━ ▒▒▒    lowest neighbour (both, if they are equal) and merged with it.
//!         └─────────────▶
//! ```
//!
//! Ties of lifetime: the larger size, then the lower id. Extensions of the paper's method: a buffer whose alignment the line does not keep starts at
//! the next multiple above it; a buffer with several intervals may be placed if the skyline is no higher than the line under all of them;
//! fixed buffers are obstacles, and a line may be lifted to the end of one.
//!
//! The paper's version takes quadratic time, this one about n log n. A tree over the buffers in order of their first section finds the
//! longest-lived buffer of a line. The lowest line need not be searched for: what happens on a line that is lower than both neighbours depends
//! on no other line, because the neighbours cannot change before the line has risen above them. Any such line may come next, and the one
//! nearest to the last is taken. Only buffers with several intervals couple distant lines; with them the lowest of all lines is needed.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

use crate::clock::Clock;
use crate::instance::{Instance, Span};
use crate::order_keys::order_by;
use crate::partial_placement::Fit;
use crate::windowed;

/// Sekiyama's best-fit heuristic.
#[derive(Clone, Copy, Debug, Default)]
pub struct BestFit;

impl Packer for BestFit {
    fn name(&self) -> &'static str {
        "best-fit"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        if windowed::has_windows(problem) {
            return windowed::in_order(problem, longest_first, Fit::First, budget, observer);
        }
        let clock = Clock::start(budget, observer);
        let instance = match Instance::new(problem) {
            Ok(instance) => instance,
            Err(outcome) => return outcome,
        };
        let order = longest_first(&instance);
        match from_low_lines(&instance, &order, instance.any_gaps, Merging::AtLiftUp, clock.stops()) {
            Some(offsets) => instance.conclude(problem, &offsets, 1, observer, StopReason::Finished),
            None => clock.stopped(),
        }
    }
}

/// The paper's order: longer lifetimes first, then larger sizes, then the lower id.
pub(crate) fn longest_first(instance: &Instance) -> Vec<u32> {
    order_by(instance, |i| (Reverse(instance.items[i].lifetime), Reverse(instance.items[i].size)))
}

/// Runs the heuristic with another order of preference, most preferred item first.
pub(crate) fn best_fit(instance: &Instance, order: &[u32]) -> Vec<u64> {
    best_fit_while(instance, order, || false).unwrap_or_default()
}

/// The same; `None` if it `stops` before.
pub(crate) fn best_fit_while(
    instance: &Instance,
    order: &[u32],
    stops: impl FnMut() -> bool,
) -> Option<Vec<u64>> {
    from_low_lines(instance, order, instance.any_gaps, Merging::AtLiftUp, stops)
}

/// When neighbouring lines of equal offset become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merging {
    /// When one of them is lifted to the other, as section 3.2 says.
    AtLiftUp,
    /// As soon as they are equal.
    AtOnce,
}

/// The heuristic as section 3.2 states it: each step takes the lowest of all lines, the leftmost of several. `None` if it `stops` before.
pub(crate) fn lowest_line_first(
    instance: &Instance,
    order: &[u32],
    merging: Merging,
    stops: impl FnMut() -> bool,
) -> Option<Vec<u64>> {
    from_low_lines(instance, order, true, merging, stops)
}

/// The same; with `lowest_of_all`, each step takes the lowest of all lines.
fn from_low_lines(
    instance: &Instance,
    order: &[u32],
    lowest_of_all: bool,
    merging: Merging,
    mut stops: impl FnMut() -> bool,
) -> Option<Vec<u64>> {
    let mut unplaced = Unplaced::new(instance, order);
    let mut gapped: Vec<u32> = order.iter().copied().filter(|&i| unplaced.is_gapped(i as usize)).collect();
    let mut skyline = Skyline::new(instance.sections() as u32, lowest_of_all);
    let obstacles: Vec<usize> = (0..instance.len()).filter(|&i| instance.items[i].fixed.is_some()).collect();
    let mut offsets: Vec<u64> = instance.items.iter().map(|item| item.fixed.unwrap_or_default()).collect();
    let mut left = instance.len() - obstacles.len();
    while left > 0 {
        if stops() {
            return None;
        }
        let (floor, line) = skyline.next();
        let fits = |item: usize| {
            let start = instance.items[item].align_up(floor);
            let end = start + instance.items[item].size;
            obstacles.iter().all(|&other| {
                let at = offsets[other];
                end <= at || at + instance.items[other].size <= start || !instance.conflict(item, other)
            })
        };
        let mut chosen = unplaced.preferred(line, &fits);
        let gapped_fit = gapped.iter().position(|&i| {
            let spans = instance.spans(i as usize);
            spans.iter().any(|span| line.lo <= span.lo && span.hi <= line.hi)
                && spans.iter().all(|&span| skyline.highest_in(span) <= floor)
                && fits(i as usize)
        });
        if let Some(at) = gapped_fit
            && chosen.is_none_or(|item| unplaced.rank(gapped[at] as usize) < unplaced.rank(item))
        {
            chosen = Some(gapped.remove(at) as usize);
        } else if let Some(item) = chosen {
            unplaced.take(item);
        }
        match chosen {
            Some(item) => {
                let offset = instance.items[item].align_up(floor);
                offsets[item] = offset;
                for &span in instance.spans(item) {
                    let whole = instance.spans(item).len() == 1;
                    let lo = if whole { line.lo } else { skyline.line_over(span.lo) };
                    skyline.raise(lo, span, offset + instance.items[item].size, merging);
                }
                left -= 1;
            }
            None => {
                let ends = obstacles.iter().filter(|&&i| instance.items[i].hull.overlaps(line));
                let obstacle =
                    ends.map(|&i| offsets[i] + instance.items[i].size).filter(|&end| end > floor).min();
                skyline.lift(line, obstacle);
            }
        }
    }
    Some(offsets)
}

/// The offset lines, each indexed by its first section.
struct Skyline {
    /// All lines by offset, if the lowest of all is needed.
    by_offset: Option<BTreeSet<(u64, u32)>>,
    /// A line start the last change, from which a lowest one is reached by going down.
    start: u32,
    offset: Vec<u64>,
    end: Vec<u32>,
    /// For the first section of each line, the first section of the line before it.
    before: Vec<u32>,
}

impl Skyline {
    fn new(sections: u32, lowest_of_all: bool) -> Self {
        let len = sections as usize + 1;
        let mut skyline = Self {
            by_offset: lowest_of_all.then(BTreeSet::new),
            start: 0,
            offset: vec![0; len],
            end: vec![0; len],
            before: vec![0; len],
        };
        skyline.insert(Span { lo: 0, hi: sections }, 0);
        skyline
    }

    fn insert(&mut self, span: Span, offset: u64) {
        self.offset[span.lo as usize] = offset;
        self.end[span.lo as usize] = span.hi;
        self.before[span.hi as usize] = span.lo;
        self.start = span.lo;
        if let Some(lines) = &mut self.by_offset {
            lines.insert((offset, span.lo));
        }
    }

    fn remove(&mut self, lo: u32) -> (Span, u64) {
        let offset = self.offset[lo as usize];
        if let Some(lines) = &mut self.by_offset {
            lines.remove(&(offset, lo));
        }
        (Span { lo, hi: self.end[lo as usize] }, offset)
    }

    /// A line lower than both neighbours, the leftmost of equal ones; or the lowest of all, if lines are sorted by offset.
    fn next(&self) -> (u64, Span) {
        if let Some(lines) = &self.by_offset {
            let &(offset, lo) = lines.first().expect("the skyline covers all sections");
            return (offset, Span { lo, hi: self.end[lo as usize] });
        }
        let last = self.end.len() as u32 - 1;
        let mut lo = self.start;
        loop {
            let (offset, end, before) =
                (self.offset[lo as usize], self.end[lo as usize], self.before[lo as usize]);
            if lo > 0 && self.offset[before as usize] <= offset {
                lo = before;
            } else if end < last && self.offset[end as usize] < offset {
                lo = end;
            } else {
                return (offset, Span { lo, hi: end });
            }
        }
    }

    /// The first section of the line over a section. There are few lines and fewer items with gaps, so a scan is fast enough.
    fn line_over(&self, section: u32) -> u32 {
        let mut lo = 0;
        while self.end[lo as usize] <= section {
            lo = self.end[lo as usize];
        }
        lo
    }

    fn highest_in(&self, span: Span) -> u64 {
        let mut lo = self.line_over(span.lo);
        let mut highest = 0;
        while lo < span.hi {
            highest = highest.max(self.offset[lo as usize]);
            lo = self.end[lo as usize];
        }
        highest
    }

    /// Replaces the skyline over a span and splits the lines at its ends. `lo` is the first section of the line over the start of the span.
    fn raise(&mut self, mut lo: u32, mut span: Span, offset: u64, merging: Merging) {
        while lo < span.hi {
            let (line, old) = self.remove(lo);
            if line.lo < span.lo {
                self.insert(Span { lo: line.lo, hi: span.lo }, old);
            }
            if line.hi > span.hi {
                self.insert(Span { lo: span.hi, hi: line.hi }, old);
            }
            lo = line.hi;
        }
        if merging == Merging::AtOnce {
            let last = self.end.len() as u32 - 1;
            let left = (span.lo > 0).then(|| self.before[span.lo as usize]);
            if let Some(lo) = left.filter(|&lo| self.offset[lo as usize] == offset) {
                span.lo = self.remove(lo).0.lo;
            }
            if span.hi < last && self.offset[span.hi as usize] == offset {
                span.hi = self.remove(span.hi).0.hi;
            }
        }
        self.insert(span, offset);
    }

    /// Lifts a line to its lowest neighbour and merges the equal ones, or to the end of an obstacle if that is lower.
    fn lift(&mut self, line: Span, obstacle: Option<u64>) {
        let left = (line.lo > 0).then(|| self.before[line.lo as usize]);
        let right = ((line.hi as usize) < self.end.len() - 1).then_some(line.hi);
        let level = |lo: Option<u32>| lo.map(|lo| self.offset[lo as usize]);
        let (left_level, right_level) = (level(left), level(right));
        let Some(target) = [left_level, right_level, obstacle].into_iter().flatten().min() else {
            // A single line over all sections without obstacles above takes any item, so this is not reached while items are left.
            return;
        };
        let (mut span, _) = self.remove(line.lo);
        if let Some(lo) = left.filter(|_| left_level == Some(target)) {
            span.lo = self.remove(lo).0.lo;
        }
        if let Some(lo) = right.filter(|_| right_level == Some(target)) {
            span.hi = self.remove(lo).0.hi;
        }
        self.insert(span, target);
    }
}

/// Unplaced items with one span: a tree over them in order of their first section. A node holds the best rank and the earliest end below it.
struct Unplaced {
    /// Rank of each item: its position in the order of preference.
    ranks: Vec<u32>,
    gapped: Vec<bool>,
    /// Items by first section.
    leaves: Vec<u32>,
    /// For each section, the number of leaves that start before it.
    started_before: Vec<u32>,
    leaf_of: Vec<u32>,
    nodes: Vec<Node>,
    width: usize,
}

#[derive(Clone, Copy)]
struct Node {
    best: u32,
    earliest: u32,
}

const NO_RANK: u32 = u32::MAX;
const EMPTY: Node = Node { best: NO_RANK, earliest: NO_RANK };

/// A search for the best item that fits a line.
struct LineQuery<'a> {
    wanted: Range<usize>,
    end: u32,
    fits: &'a dyn Fn(usize) -> bool,
    best: u32,
    item: Option<usize>,
}

impl Unplaced {
    fn new(instance: &Instance, order: &[u32]) -> Self {
        let mut ranks = vec![0; instance.len()];
        for (rank, &item) in order.iter().enumerate() {
            ranks[item as usize] = rank as u32;
        }
        let free = |i: usize| instance.items[i].fixed.is_none();
        let gapped: Vec<bool> = (0..instance.len()).map(|i| free(i) && instance.spans(i).len() > 1).collect();
        // Counting sort of the leaves by first section.
        let mut started_before = vec![0u32; instance.sections() + 1];
        let whole = |i: &usize| free(*i) && !gapped[*i];
        for i in (0..instance.len()).filter(whole) {
            started_before[instance.items[i].hull.lo as usize + 1] += 1;
        }
        for section in 1..started_before.len() {
            started_before[section] += started_before[section - 1];
        }
        let len = started_before.last().map_or(0, |&len| len as usize);
        let width = len.next_power_of_two();
        let mut next = started_before.clone();
        let mut leaves = vec![0; len];
        let mut leaf_of = vec![0; instance.len()];
        let mut nodes = vec![EMPTY; 2 * width];
        for i in (0..instance.len()).filter(whole) {
            let hull = instance.items[i].hull;
            let at = next[hull.lo as usize];
            next[hull.lo as usize] += 1;
            leaves[at as usize] = i as u32;
            leaf_of[i] = at;
            nodes[width + at as usize] = Node { best: ranks[i], earliest: hull.hi };
        }
        let mut unplaced = Self { ranks, gapped, leaves, started_before, leaf_of, nodes, width };
        for node in (1..width).rev() {
            unplaced.pull(node);
        }
        unplaced
    }

    fn pull(&mut self, node: usize) {
        let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
        self.nodes[node] =
            Node { best: left.best.min(right.best), earliest: left.earliest.min(right.earliest) };
    }

    fn is_gapped(&self, item: usize) -> bool {
        self.gapped[item]
    }

    fn rank(&self, item: usize) -> u32 {
        self.ranks[item]
    }

    /// The unplaced item of the best rank that lies within a line and for which `fits` is true.
    fn preferred(&self, line: Span, fits: &dyn Fn(usize) -> bool) -> Option<usize> {
        let wanted =
            self.started_before[line.lo as usize] as usize..self.started_before[line.hi as usize] as usize;
        let mut search = LineQuery { wanted, end: line.hi, fits, best: NO_RANK, item: None };
        self.descend(1, 0..self.width, &mut search);
        search.item
    }

    fn descend(&self, node: usize, covered: Range<usize>, search: &mut LineQuery<'_>) {
        let outside = covered.end <= search.wanted.start || search.wanted.end <= covered.start;
        if outside || self.nodes[node].best >= search.best || self.nodes[node].earliest > search.end {
            return;
        }
        if node >= self.width {
            let item = self.leaves[node - self.width] as usize;
            if (search.fits)(item) {
                (search.best, search.item) = (self.nodes[node].best, Some(item));
            }
            return;
        }
        let middle = covered.start.midpoint(covered.end);
        let halves = [(2 * node, covered.start..middle), (2 * node + 1, middle..covered.end)];
        let first = usize::from(self.nodes[2 * node + 1].best < self.nodes[2 * node].best);
        for (child, half) in [halves[first].clone(), halves[1 - first].clone()] {
            self.descend(child, half, search);
        }
    }

    fn take(&mut self, item: usize) {
        let mut node = self.width + self.leaf_of[item] as usize;
        self.nodes[node] = EMPTY;
        while node > 1 {
            node /= 2;
            self.pull(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::Bytes;
    use elbowroom_ir::packing::Block;

    use super::*;
    use crate::random::Random;

    #[test]
    fn any_line_below_its_neighbours_may_come_next() {
        let mut random = Random::new(0, 0);
        for round in 0..300 {
            let len = 2 + random.below(60);
            let mut block = || {
                let start = random.below(3 * len) as u64;
                let end = start + 1 + random.below(len) as u64;
                let mut block = Block::new(start, end, Bytes(1 + random.below(9) as u64));
                if round % 2 == 1 && random.below(12) == 0 {
                    // Obstacles; where two clash, there is no instance and the round is left out.
                    block.fixed = Some(Bytes(10 * random.below(4) as u64));
                    block.alive[0].end = block.alive[0].start + 1;
                }
                block
            };
            let blocks = (0..len).map(|_| block()).collect();
            let Ok(instance) = Instance::new(&Problem { blocks, capacity: None }) else { continue };
            let order = longest_first(&instance);
            let start = from_low_lines(&instance, &order, false, Merging::AtLiftUp, || false);
            assert_eq!(
                start,
                from_low_lines(&instance, &order, true, Merging::AtLiftUp, || false),
                "round {round}"
            );
        }
    }
}

//! Best-fit (Sekiyama et al. 2018, section 3.2), after Burke's heuristic for strip packing.
//!
//! ```text
//!  offset ▲                 The skyline is a row of *offset lines*. Take the lowest, the leftmost of several; put on it the block with the longest
//!         │ ▓▓▓▓     ▒▒▒    lifetime that lies within it and collides with nothing. Where none does, lift the line to its lowest neighbour
//!         │ ▓▓▓▓ ━━━ ▒▒▒    (both, if they are equal) and merge them.
//!         └─────────────▶
//! ```
//!
//! Equal lifetimes: the larger size, then the lower id. Beyond the paper: a block whose alignment the line does not keep starts at the next
//! multiple above it; a block with several intervals may be placed when the skyline is no higher than the line under all of them; fixed blocks are
//! obstacles, and a line may be lifted to the end of one.
//!
//! The paper's version is quadratic; here a run takes about n log n. A tree over the blocks in order of their first section finds the longest-lived
//! block of a line. And the lowest line need not be searched for: what happens on a line that is lower than both neighbours depends on
//! no other line, since those beside it cannot change before it has risen past them. So any such line may come next, and the one nearest to the last
//! is taken, which keeps the work in one place. Only blocks with several intervals tie distant lines together and need the lowest of all.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

use crate::instance::{Instance, Span};
use crate::shelf::order_by;

/// Sekiyama's best-fit heuristic.
#[derive(Clone, Copy, Debug, Default)]
pub struct BestFit;

impl Packer for BestFit {
    fn name(&self) -> &'static str {
        "best-fit"
    }

    fn pack(&self, problem: &Problem, _budget: &Budget, _observer: &dyn Observer) -> Outcome<Placement> {
        let instance = match Instance::new(problem) {
            Ok(instance) => instance,
            Err(outcome) => return outcome,
        };
        let offsets = best_fit(&instance, &longest_first(&instance));
        instance.conclude(problem, &offsets, 1, StopReason::Finished)
    }
}

/// Longer lifetimes first, then larger sizes, then the lower id: the paper's preference.
pub(crate) fn longest_first(instance: &Instance) -> Vec<u32> {
    order_by(instance, |i| (Reverse(instance.items[i].lifetime), Reverse(instance.items[i].size)))
}

/// Runs the heuristic with the items' preference given by `order`, most preferred first.
pub(crate) fn best_fit(instance: &Instance, order: &[u32]) -> Vec<u64> {
    let scattered = (0..instance.len()).any(|i| instance.spans(i).len() > 1);
    from_low_lines(instance, order, scattered)
}

/// The same, always from the lowest line of all if asked to.
fn from_low_lines(instance: &Instance, order: &[u32], lowest_of_all: bool) -> Vec<u64> {
    let mut waiting = Waiting::new(instance, order);
    let mut scattered: Vec<u32> =
        order.iter().copied().filter(|&i| waiting.is_scattered(i as usize)).collect();
    let mut skyline = Skyline::new(instance.sections() as u32, lowest_of_all);
    let obstacles: Vec<usize> = (0..instance.len()).filter(|&i| instance.items[i].fixed.is_some()).collect();
    let mut offsets: Vec<u64> = instance.items.iter().map(|item| item.fixed.unwrap_or_default()).collect();
    let mut left = instance.len() - obstacles.len();
    while left > 0 {
        let (floor, line) = skyline.next();
        let fits = |item: usize| {
            let start = instance.align_up(item, floor);
            let end = start + instance.items[item].size;
            obstacles.iter().all(|&other| {
                let at = offsets[other];
                end <= at || at + instance.items[other].size <= start || !instance.conflict(item, other)
            })
        };
        let mut chosen = waiting.preferred(line, &fits);
        let scattered_fit = scattered.iter().position(|&i| {
            let spans = instance.spans(i as usize);
            spans.iter().any(|span| line.lo <= span.lo && span.hi <= line.hi)
                && spans.iter().all(|&span| skyline.highest_in(span) <= floor)
                && fits(i as usize)
        });
        if let Some(at) = scattered_fit
            && chosen.is_none_or(|item| waiting.rank(scattered[at] as usize) < waiting.rank(item))
        {
            chosen = Some(scattered.remove(at) as usize);
        } else if let Some(item) = chosen {
            waiting.take(item);
        }
        match chosen {
            Some(item) => {
                let offset = instance.align_up(item, floor);
                offsets[item] = offset;
                for &span in instance.spans(item) {
                    let whole = instance.spans(item).len() == 1;
                    let lo = if whole { line.lo } else { skyline.line_over(span.lo) };
                    skyline.raise(lo, span, offset + instance.items[item].size);
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
    offsets
}

/// The offset lines, each keyed by its first section.
struct Skyline {
    /// All lines by offset, if the lowest of all is wanted.
    by_offset: Option<BTreeSet<(u64, u32)>>,
    /// A line near the last change, from which a lowest one is reached by going down.
    near: u32,
    offset: Vec<u64>,
    end: Vec<u32>,
    /// First section of the line that ends where another begins, keyed by that section.
    before: Vec<u32>,
}

impl Skyline {
    fn new(sections: u32, lowest_of_all: bool) -> Self {
        let len = sections as usize + 1;
        let mut skyline = Self {
            by_offset: lowest_of_all.then(BTreeSet::new),
            near: 0,
            offset: vec![0; len],
            end: vec![0; len],
            before: vec![0; len],
        };
        skyline.put(Span { lo: 0, hi: sections }, 0);
        skyline
    }

    fn put(&mut self, span: Span, offset: u64) {
        self.offset[span.lo as usize] = offset;
        self.end[span.lo as usize] = span.hi;
        self.before[span.hi as usize] = span.lo;
        self.near = span.lo;
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

    /// A line lower than both neighbours, the leftmost of equal ones; the lowest of all if that is wanted.
    fn next(&self) -> (u64, Span) {
        if let Some(lines) = &self.by_offset {
            let &(offset, lo) = lines.first().expect("the skyline covers all sections");
            return (offset, Span { lo, hi: self.end[lo as usize] });
        }
        let last = self.end.len() as u32 - 1;
        let mut lo = self.near;
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

    /// The first section of the line over a section. Lines are few and scattered blocks fewer, so a scan is enough.
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

    /// Replaces the skyline over a span, splitting the lines at its ends; `lo` begins the line over its first section.
    fn raise(&mut self, mut lo: u32, span: Span, offset: u64) {
        while lo < span.hi {
            let (line, old) = self.remove(lo);
            if line.lo < span.lo {
                self.put(Span { lo: line.lo, hi: span.lo }, old);
            }
            if line.hi > span.hi {
                self.put(Span { lo: span.hi, hi: line.hi }, old);
            }
            lo = line.hi;
        }
        self.put(span, offset);
    }

    /// Lifts a line to its lowest neighbour and merges the equal ones, or to the end of an obstacle if that is lower.
    fn lift(&mut self, line: Span, obstacle: Option<u64>) {
        let left = (line.lo > 0).then(|| self.before[line.lo as usize]);
        let right = ((line.hi as usize) < self.end.len() - 1).then_some(line.hi);
        let level = |lo: Option<u32>| lo.map(|lo| self.offset[lo as usize]);
        let (left_level, right_level) = (level(left), level(right));
        let Some(target) = [left_level, right_level, obstacle].into_iter().flatten().min() else {
            // A single line over everything, free of obstacles above, takes any block; so this is never reached with blocks left.
            return;
        };
        let (mut span, _) = self.remove(line.lo);
        if let Some(lo) = left.filter(|_| left_level == Some(target)) {
            span.lo = self.remove(lo).0.lo;
        }
        if let Some(lo) = right.filter(|_| right_level == Some(target)) {
            span.hi = self.remove(lo).0.hi;
        }
        self.put(span, target);
    }
}

/// Blocks with one interval that are not placed yet: a tree over them in order of their first section, whose nodes know the best rank and the
/// earliest end below them.
struct Waiting {
    /// Rank of every item: its position in the order of preference.
    ranks: Vec<u32>,
    scattered: Vec<bool>,
    /// Items by first section.
    leaves: Vec<u32>,
    /// How many leaves begin before each section.
    begun: Vec<u32>,
    place: Vec<u32>,
    nodes: Vec<Node>,
    width: usize,
}

#[derive(Clone, Copy)]
struct Node {
    best: u32,
    earliest: u32,
}

const NOBODY: u32 = u32::MAX;
const EMPTY: Node = Node { best: NOBODY, earliest: NOBODY };

/// A line's question to the tree, and the best answer so far.
struct Search<'a> {
    wanted: Range<usize>,
    end: u32,
    fits: &'a dyn Fn(usize) -> bool,
    best: u32,
    found: Option<usize>,
}

impl Waiting {
    fn new(instance: &Instance, order: &[u32]) -> Self {
        let mut ranks = vec![0; instance.len()];
        for (rank, &item) in order.iter().enumerate() {
            ranks[item as usize] = rank as u32;
        }
        let free = |i: usize| instance.items[i].fixed.is_none();
        let scattered: Vec<bool> =
            (0..instance.len()).map(|i| free(i) && instance.spans(i).len() > 1).collect();
        // Leaves are sorted by counting those of every section.
        let mut begun = vec![0u32; instance.sections() + 1];
        let whole = |i: &usize| free(*i) && !scattered[*i];
        for i in (0..instance.len()).filter(whole) {
            begun[instance.items[i].hull.lo as usize + 1] += 1;
        }
        for section in 1..begun.len() {
            begun[section] += begun[section - 1];
        }
        let len = begun.last().map_or(0, |&len| len as usize);
        let width = len.next_power_of_two();
        let mut next = begun.clone();
        let mut leaves = vec![0; len];
        let mut place = vec![0; instance.len()];
        let mut nodes = vec![EMPTY; 2 * width];
        for i in (0..instance.len()).filter(whole) {
            let hull = instance.items[i].hull;
            let at = next[hull.lo as usize];
            next[hull.lo as usize] += 1;
            leaves[at as usize] = i as u32;
            place[i] = at;
            nodes[width + at as usize] = Node { best: ranks[i], earliest: hull.hi };
        }
        let mut waiting = Self { ranks, scattered, leaves, begun, place, nodes, width };
        for node in (1..width).rev() {
            waiting.pull(node);
        }
        waiting
    }

    fn pull(&mut self, node: usize) {
        let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
        self.nodes[node] =
            Node { best: left.best.min(right.best), earliest: left.earliest.min(right.earliest) };
    }

    fn is_scattered(&self, item: usize) -> bool {
        self.scattered[item]
    }

    fn rank(&self, item: usize) -> u32 {
        self.ranks[item]
    }

    /// The waiting item of the best rank that lies within a line and passes a test.
    fn preferred(&self, line: Span, fits: &dyn Fn(usize) -> bool) -> Option<usize> {
        let wanted = self.begun[line.lo as usize] as usize..self.begun[line.hi as usize] as usize;
        let mut search = Search { wanted, end: line.hi, fits, best: NOBODY, found: None };
        self.descend(1, 0..self.width, &mut search);
        search.found
    }

    fn descend(&self, node: usize, covered: Range<usize>, search: &mut Search<'_>) {
        let outside = covered.end <= search.wanted.start || search.wanted.end <= covered.start;
        if outside || self.nodes[node].best >= search.best || self.nodes[node].earliest > search.end {
            return;
        }
        if node >= self.width {
            let item = self.leaves[node - self.width] as usize;
            if (search.fits)(item) {
                (search.best, search.found) = (self.nodes[node].best, Some(item));
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
        let mut node = self.width + self.place[item] as usize;
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
            let near = from_low_lines(&instance, &order, false);
            assert_eq!(near, from_low_lines(&instance, &order, true), "round {round}");
        }
    }
}

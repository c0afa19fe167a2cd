//! Fills the valleys of a skyline corner by corner, depth first, to decide whether all items fit below a ceiling.
//!
//! Where memory is nearly full, the ends of lifetimes say more than sizes do. A *valley* is a stretch of sections whose placed items end at one
//! level, the floor, between higher walls. At its *corner*, the first or the last section, only an item can come next that starts or ends there and
//! fits between the walls, or a gap. A section has few such items, so most corners leave one choice or none.
//!
//! ```text
//!  bytes        ┌──┐
//!  ▲   ┌────┐   │  │      Left corner of the valley: the section beside the left wall. Its next item starts there and
//!  │   │    │...│  │      ends at the right wall at the latest, or there is a gap, whose bytes the section must spare.
//!  │   │    ├───┤  │
//!  └───┴────┴───┴──┴─▶ sections
//! ```
//!
//! Every placement can be pushed down until each item rests on another one or at offset 0, and the choices at a corner exclude each other: each such
//! placement is found in one way. The search takes the corner with the fewest choices, counting less where it failed often (Boussemart et al. 2004,
//! *Boosting systematic search by weighting constraints*). When a corner has no choice left, the search returns to the last choice that took part in that
//! (Prosser 1993, conflict-directed backjumping): to an item that lies beside the corner or below it, that was placed elsewhere, or to a gap.
//! [`crate::canonical_tree`], which places items in ascending order of offsets, has none of this, and suits problems with bytes to spare.
//!
//! Conflicts name placed items only by properties that other choices cannot change: an item is no choice at a corner if a placed one overlaps it there.

use crate::canonical_tree::{NODES_PER_CHECK, Verdict, scale_of};
use crate::instance::Instance;

/// Above every offset.
const TOP: i64 = i64::MAX / 4;
/// The choice of a gap instead of an item.
const GAP: u32 = u32::MAX;
/// An item that is not placed, as a level.
const UNPLACED: u32 = u32::MAX;
/// A search has at most so many choices per item; there are more only where small gaps add up.
const LEVELS_PER_ITEM: usize = 4;

/// An instance as the search sees it, for any ceiling.
pub(crate) struct Strip {
    size: Vec<i64>,
    bytes: Vec<u64>,
    lo: Vec<usize>,
    hi: Vec<usize>,
    area: Vec<u64>,
    /// For each section, the items that start there, and the items that end before it.
    starts: Vec<Vec<u32>>,
    ends: Vec<Vec<u32>>,
    /// For each section, the items that are alive on both sides of the boundary before it.
    crossing: Vec<Vec<u32>>,
    /// The smallest size of an item that starts later than an item and overlaps it, and of one that ends earlier and overlaps it.
    least_after: Vec<i64>,
    least_before: Vec<i64>,
    live: Vec<i64>,
    scale: u64,
}

impl Strip {
    /// `None` if items have gaps, fixed offsets or different alignments: then corners are not all there is.
    pub(crate) fn new(instance: &Instance) -> Option<Self> {
        if instance.any_gaps || instance.any_fixed || instance.any_align {
            return None;
        }
        let (n, sections, scale) = (instance.len(), instance.sections(), scale_of(instance));
        let size: Vec<i64> = instance.items.iter().map(|item| (item.size / scale) as i64).collect();
        let lo: Vec<usize> = instance.items.iter().map(|item| item.hull.lo as usize).collect();
        let hi: Vec<usize> = instance.items.iter().map(|item| item.hull.hi as usize).collect();
        let mut strip = Self {
            bytes: instance.items.iter().map(|item| item.bytes).collect(),
            area: (0..n).map(|i| size[i] as u64 * (hi[i] - lo[i]) as u64).collect(),
            starts: vec![Vec::new(); sections + 1],
            ends: vec![Vec::new(); sections + 1],
            crossing: vec![Vec::new(); sections + 1],
            least_after: vec![TOP; n],
            least_before: vec![TOP; n],
            live: instance.live.iter().map(|live| (live / scale) as i64).collect(),
            scale,
            size,
            lo,
            hi,
        };
        for i in 0..n {
            let (lo, hi) = (strip.lo[i], strip.hi[i]);
            strip.starts[lo].push(i as u32);
            strip.ends[hi].push(i as u32);
            for boundary in &mut strip.crossing[lo + 1..hi] {
                boundary.push(i as u32);
            }
            for other in (0..n).filter(|&other| strip.lo[other] < hi && lo < strip.hi[other]) {
                if strip.lo[other] > lo {
                    strip.least_after[i] = strip.least_after[i].min(strip.size[other]);
                }
                if strip.hi[other] < hi {
                    strip.least_before[i] = strip.least_before[i].min(strip.size[other]);
                }
            }
        }
        Some(strip)
    }

    fn len(&self) -> usize {
        self.size.len()
    }

    fn sections(&self) -> usize {
        self.live.len()
    }

    /// The items that start or end at a corner, with whether the valley can hold them.
    fn at(&self, corner: Corner) -> impl Iterator<Item = (usize, bool)> + '_ {
        let list = if corner.left { &self.starts[corner.lo] } else { &self.ends[corner.hi] };
        list.iter()
            .map(|&item| item as usize)
            .map(move |i| (i, if corner.left { self.hi[i] <= corner.hi } else { self.lo[i] >= corner.lo }))
    }

    /// Whether two items live through the same sections and leave the same bytes unused when they are topmost: then they can be exchanged.
    fn alike(&self, a: usize, b: usize) -> bool {
        let spare = |i: usize| self.size[i] as u64 * self.scale - self.bytes[i];
        self.lo[a] == self.lo[b] && self.hi[a] == self.hi[b] && spare(a) == spare(b)
    }
}

/// A corner of a valley of sections `lo..hi`.
#[derive(Clone, Copy, Debug, Default)]
struct Corner {
    lo: usize,
    hi: usize,
    /// Whether it is the first section, not the last.
    left: bool,
    floor: i64,
    /// If a gap is possible, an offset that the item above it has at least.
    above_gap: Option<i64>,
}

impl Corner {
    fn section(&self) -> usize {
        if self.left { self.lo } else { self.hi - 1 }
    }

    /// The boundary beside the corner, the section beyond that, and the same at the other end of the valley.
    fn walls(&self) -> [(usize, usize); 2] {
        let (left, right) = ((self.lo, self.lo.wrapping_sub(1)), (self.hi, self.hi));
        if self.left { [left, right] } else { [right, left] }
    }
}

/// A corner with the choices that are left to try, which lie on [`CornerSearch::choices`].
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    corner: Corner,
    first_choice: usize,
    chosen: u32,
}

/// What lies over a section: what was chosen at a level, up to an offset.
#[derive(Clone, Copy, Debug)]
struct Layer {
    level: u32,
    end: i64,
}

/// Searches of one strip, one after another, with their shared memory.
pub(crate) struct CornerSearch<'t> {
    strip: &'t Strip,
    /// The highest offset below the ceiling, and the position in the preferred order, of every item.
    max_offset: Vec<i64>,
    rank: Vec<u32>,
    /// The level at which an item is placed.
    placed: Vec<u32>,
    offset: Vec<i64>,
    /// For every section, the lowest free offset, the bytes it can still waste, its layers, its unplaced items, and how often it failed.
    floor: Vec<i64>,
    slack: Vec<i64>,
    layers: Vec<Vec<Layer>>,
    waiting: Vec<u32>,
    failures: Vec<f64>,
    /// For every boundary, the unplaced items that are alive on both sides.
    crossing: Vec<u32>,
    unplaced: usize,
    levels: Vec<Level>,
    choices: Vec<u32>,
    /// Sets of levels, `words` numbers each: why the choices of a level that failed did so, and why gaps are as large as they are.
    conflicts: Vec<u64>,
    gap_reasons: Vec<u64>,
    words: usize,
    area: u64,
    /// The most area that was placed at one time in the last run.
    pub(crate) most_area: u64,
    /// Nodes visited in all runs.
    pub(crate) nodes: u64,
    stop: &'t dyn Fn() -> bool,
}

impl<'t> CornerSearch<'t> {
    /// A search that ends early once `stop` returns true.
    pub(crate) fn new(strip: &'t Strip, stop: &'t dyn Fn() -> bool) -> Self {
        let (n, sections) = (strip.len(), strip.sections());
        Self {
            strip,
            max_offset: vec![0; n],
            rank: vec![0; n],
            placed: vec![UNPLACED; n],
            offset: vec![0; n],
            floor: vec![0; sections],
            slack: vec![0; sections],
            layers: vec![Vec::new(); sections],
            waiting: vec![0; sections],
            failures: vec![1.0; sections],
            crossing: vec![0; sections + 1],
            unplaced: n,
            levels: Vec::new(),
            choices: Vec::new(),
            conflicts: Vec::new(),
            gap_reasons: Vec::new(),
            words: (LEVELS_PER_ITEM * n).div_ceil(64),
            area: 0,
            most_area: 0,
            nodes: 0,
            stop,
        }
    }

    /// Offsets in bytes after [`Verdict::Fits`].
    pub(crate) fn offsets(&self) -> Vec<u64> {
        self.offset.iter().map(|&offset| offset as u64 * self.strip.scale).collect()
    }

    /// Searches for a placement of at most `capacity` bytes in at most `allowed` nodes. Of the items that fit a corner, the first in `preference` is
    /// tried first.
    pub(crate) fn run(&mut self, capacity: u64, preference: &[u32], allowed: u64) -> Verdict {
        let strip = self.strip;
        if strip.bytes.iter().any(|&bytes| bytes > capacity) {
            return Verdict::DoesNotFit;
        }
        for (rank, &item) in preference.iter().enumerate() {
            let i = item as usize;
            self.rank[i] = rank as u32;
            self.max_offset[i] = ((capacity - strip.bytes[i]) / strip.scale) as i64;
        }
        let ceiling = (0..strip.len()).map(|i| self.max_offset[i] + strip.size[i]).max().unwrap_or(0);
        self.placed.fill(UNPLACED);
        self.floor.fill(0);
        self.layers.iter_mut().for_each(Vec::clear);
        self.failures.fill(1.0);
        self.waiting.fill(0);
        for i in 0..strip.len() {
            self.waiting[strip.lo[i]..strip.hi[i]].iter_mut().for_each(|waiting| *waiting += 1);
        }
        for (section, live) in strip.live.iter().enumerate() {
            self.slack[section] = ceiling - live;
            self.crossing[section] = strip.crossing[section].len() as u32;
        }
        self.unplaced = strip.len();
        self.levels.clear();
        self.choices.clear();
        (self.area, self.most_area) = (0, 0);
        if self.slack.iter().any(|&slack| slack < 0) {
            return Verdict::DoesNotFit;
        }
        self.descend(self.nodes.saturating_add(allowed))
    }

    fn descend(&mut self, allowed: u64) -> Verdict {
        while self.unplaced > 0 {
            self.nodes += 1;
            let deepest = self.levels.len() >= LEVELS_PER_ITEM * self.strip.len();
            let stopped = self.nodes.is_multiple_of(NODES_PER_CHECK) && (self.stop)();
            if self.nodes > allowed || deepest || stopped {
                // A search that ends for want of levels is no different from one for want of nodes.
                self.nodes = if deepest { self.nodes.max(allowed + 1) } else { self.nodes };
                return Verdict::OutOfNodes;
            }
            let corner = self.narrowest();
            self.open(corner);
            if !self.advance() {
                return Verdict::DoesNotFit;
            }
        }
        Verdict::Fits
    }

    /// The offset below which nothing that crosses a boundary can lie in the section beyond it.
    fn wall(&self, boundary: usize, beyond: usize) -> i64 {
        if self.crossing[boundary] == 0 { TOP } else { self.floor[beyond] }
    }

    /// The corner with the fewest choices for the failures there.
    fn narrowest(&self) -> Corner {
        let sections = self.strip.sections();
        let (mut best, mut least) = (Corner::default(), f64::INFINITY);
        let mut lo = 0;
        while lo < sections {
            let floor = self.floor[lo];
            let mut hi = lo + 1;
            while self.crossing[hi] > 0 && self.floor[hi] == floor {
                hi += 1;
            }
            let valley = Corner { lo, hi, left: true, floor, above_gap: None };
            if self.waiting[lo] > 0
                && valley.walls().iter().all(|&(at, beyond)| self.wall(at, beyond) > floor)
            {
                // Both corners of a single section are the same.
                for left in [true, false].into_iter().take(hi - lo) {
                    let (corner, choices) = self.count(Corner { left, ..valley });
                    if choices == 0 {
                        return corner;
                    }
                    // What leaves no choice comes before all others.
                    let weight =
                        if choices == 1 { 0.0 } else { f64::from(choices) / self.failures[corner.section()] };
                    if weight < least {
                        (best, least) = (corner, weight);
                    }
                }
            }
            lo = hi;
        }
        best
    }

    /// The unplaced items that start or end at a corner, with whether the valley can hold them.
    fn at(&self, corner: Corner) -> impl Iterator<Item = (usize, bool)> + '_ {
        self.strip.at(corner).filter(|&(item, _)| self.placed[item] == UNPLACED)
    }

    /// Whether an item that the valley can hold is a choice: it ends below the ceiling, and exchanging it with an item right below it
    /// gives no placement that is also found otherwise.
    fn is_choice(&self, corner: Corner, item: usize) -> bool {
        if corner.floor > self.max_offset[item] {
            return false;
        }
        let below =
            self.layers[corner.section()].last().map(|layer| self.levels[layer.level as usize].chosen);
        below.is_none_or(|below| {
            below == GAP
                || !self.strip.alike(below as usize, item)
                || self.rank[below as usize] < self.rank[item]
        })
    }

    /// Completes a corner, and counts its choices.
    fn count(&self, corner: Corner) -> (Corner, u32) {
        let [near, far] = corner.walls().map(|(boundary, beyond)| self.wall(boundary, beyond));
        let (mut choices, mut above_gap) = (0, near);
        for (item, held) in self.at(corner) {
            let least = if corner.left { &self.strip.least_after } else { &self.strip.least_before };
            // Above a gap, an item rests on a wall, or on an item that comes to lie in the valley.
            above_gap = above_gap.min(if held { corner.floor + least[item] } else { far });
            choices += u32::from(held && self.is_choice(corner, item));
        }
        let possible = above_gap < TOP && above_gap - corner.floor <= self.slack[corner.section()];
        let above_gap = possible.then_some(above_gap);
        (Corner { above_gap, ..corner }, choices + u32::from(possible))
    }

    /// Adds a level with the choices of a corner.
    fn open(&mut self, corner: Corner) {
        let first_choice = self.choices.len();
        // The last choice is tried first.
        self.choices.extend(corner.above_gap.map(|_| GAP));
        let items = self.choices.len();
        let mut choices = std::mem::take(&mut self.choices);
        let held = self.at(corner).filter(|&(item, held)| held && self.is_choice(corner, item));
        choices.extend(held.map(|(item, _)| item as u32));
        choices[items..].sort_unstable_by_key(|&item| std::cmp::Reverse(self.rank[item as usize]));
        self.choices = choices;
        let from = self.levels.len() * self.words;
        if self.conflicts.len() < from + self.words {
            self.conflicts.resize(from + self.words, 0);
            self.gap_reasons.resize(from + self.words, 0);
        }
        let mut conflicts = std::mem::take(&mut self.conflicts);
        let set = &mut conflicts[from..from + self.words];
        set.fill(0);
        self.explain(corner, set);
        if corner.above_gap.is_some() {
            self.gap_reasons[from..from + self.words].copy_from_slice(set);
        }
        self.conflicts = conflicts;
        if self.choices.len() == first_choice {
            self.failures[corner.section()] += 1.0;
        }
        self.levels.push(Level { corner, first_choice, chosen: GAP });
    }

    /// Makes the next choice, at an earlier level if need be. False if there is none.
    fn advance(&mut self) -> bool {
        let words = self.words;
        while let Some(level) = self.levels.last_mut() {
            if self.choices.len() > level.first_choice {
                level.chosen = self.choices.pop().unwrap_or(GAP);
                self.place();
                return true;
            }
            self.levels.pop();
            let from = self.levels.len() * words;
            let last = (0..words).rev().find(|&word| self.conflicts[from + word] != 0);
            let Some(word) = last else { return false };
            let guilty = 64 * word + self.conflicts[from + word].ilog2() as usize;
            while self.levels.len() > guilty + 1 {
                self.unplace();
                if let Some(skipped) = self.levels.pop() {
                    self.choices.truncate(skipped.first_choice);
                }
            }
            self.unplace();
            self.conflicts[from + word] ^= 1 << (guilty % 64);
            for word in 0..words {
                self.conflicts[guilty * words + word] |= self.conflicts[from + word];
            }
        }
        false
    }

    /// Applies what the last level has chosen.
    fn place(&mut self) {
        let number = self.levels.len() - 1;
        let Level { corner, chosen, .. } = self.levels[number];
        let level = number as u32;
        if chosen == GAP {
            let (section, end) = (corner.section(), corner.above_gap.unwrap_or(corner.floor));
            self.slack[section] -= end - corner.floor;
            self.floor[section] = end;
            self.layers[section].push(Layer { level, end });
            return;
        }
        let item = chosen as usize;
        let (lo, hi, end) = (self.strip.lo[item], self.strip.hi[item], corner.floor + self.strip.size[item]);
        (self.placed[item], self.offset[item]) = (level, corner.floor);
        self.unplaced -= 1;
        self.area += self.strip.area[item];
        self.most_area = self.most_area.max(self.area);
        for section in lo..hi {
            self.floor[section] = end;
            self.waiting[section] -= 1;
            self.layers[section].push(Layer { level, end });
        }
        self.crossing[lo + 1..hi].iter_mut().for_each(|count| *count -= 1);
    }

    /// Takes back what the last level has chosen.
    fn unplace(&mut self) {
        let Some(&Level { corner, chosen, .. }) = self.levels.last() else { return };
        if chosen == GAP {
            let section = corner.section();
            self.slack[section] += self.floor[section] - corner.floor;
            self.floor[section] = corner.floor;
            self.layers[section].pop();
            return;
        }
        let item = chosen as usize;
        let (lo, hi) = (self.strip.lo[item], self.strip.hi[item]);
        self.placed[item] = UNPLACED;
        self.unplaced += 1;
        self.area -= self.strip.area[item];
        for section in lo..hi {
            self.floor[section] = corner.floor;
            self.waiting[section] += 1;
            self.layers[section].pop();
        }
        self.crossing[lo + 1..hi].iter_mut().for_each(|count| *count += 1);
    }
}

/// Why corners have no more choices than they have: the levels to which the search may have to return.
impl CornerSearch<'_> {
    /// Adds a level to a set, and if it chose a gap, why the gap is as large as it is.
    fn blame(&self, level: u32, set: &mut [u64]) {
        let level = level as usize;
        set[level / 64] |= 1 << (level % 64);
        if self.levels[level].chosen == GAP {
            let reasons = &self.gap_reasons[level * self.words..][..self.words];
            set.iter_mut().zip(reasons).for_each(|(word, reason)| *word |= reason);
        }
    }

    fn blame_top(&self, section: usize, set: &mut [u64]) {
        if let Some(layer) = self.layers[section].last() {
            self.blame(layer.level, set);
        }
    }

    /// Adds why no item that crosses a boundary of a valley is at `from` or above it and below `to` there.
    fn blame_wall(&self, (boundary, beyond): (usize, usize), from: i64, to: i64, set: &mut [u64]) {
        if self.strip.crossing[boundary].is_empty() {
            return;
        }
        let layers = &self.layers[beyond];
        for layer in &layers[layers.partition_point(|layer| layer.end <= from)..] {
            self.blame(layer.level, set);
            if layer.end >= to {
                return;
            }
        }
        // No such wall: everything that crosses the boundary is placed.
        for &item in &self.strip.crossing[boundary] {
            if self.placed[item as usize] != UNPLACED {
                self.blame(self.placed[item as usize], set);
            }
        }
    }

    /// Adds why a corner has no other choices, and why a gap there has at least the bytes that it has, or is not possible.
    fn explain(&self, corner: Corner, set: &mut [u64]) {
        let (strip, section, floor) = (self.strip, corner.section(), corner.floor);
        self.blame_top(section, set);
        let (mut held_to, mut far) = (section, false);
        for (i, held) in strip.at(corner) {
            far |= !held;
            if held && self.placed[i] != UNPLACED {
                self.blame(self.placed[i], set);
            } else if held {
                held_to = if corner.left { held_to.max(strip.hi[i] - 1) } else { held_to.min(strip.lo[i]) };
            }
        }
        let slack = self.slack[section];
        let above = corner.above_gap.unwrap_or(floor + slack + 1);
        let [near_wall, far_wall] = corner.walls();
        self.blame_wall(near_wall, floor, above, set);
        if far {
            self.blame_wall(far_wall, floor, above, set);
        }
        // Bytes that the section has wasted already.
        for layer in &self.layers[section] {
            if self.levels[layer.level as usize].chosen == GAP {
                self.blame(layer.level, set);
            }
        }
        if slack > 0 {
            // What an item above a gap could rest on lies on the floor of the valley.
            for section in section.min(held_to)..=section.max(held_to) {
                self.blame_top(section, set);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::Bytes;
    use elbowroom_ir::packing::{Block, Problem};

    use super::*;
    use crate::canonical_tree::{Tree, TreeSearch};
    use crate::random::Random;

    /// Blocks that fill `height` bytes at almost every position: whenever two end, others begin, often a single one, which needs their bytes in
    /// one piece. Many such problems cannot be packed into their peak of live memory.
    fn blocks(random: &mut Random) -> Vec<Block> {
        let (height, steps) = (9, 10 + random.below(8) as u64);
        let (mut free, mut alive, mut blocks) = (height, Vec::new(), Vec::new());
        for now in 0..steps {
            // Some bytes stay free for a while.
            let spared = if random.below(9) == 0 { random.below(2).min(free) } else { 0 };
            while free > spared {
                let most = free - spared;
                let whole = now > 0 && random.below(2) > 0;
                let size = if whole { most } else { 1 + random.below(most.min(2)) };
                alive.push((now, size));
                free -= size;
            }
            for _ in 0..alive.len().min(2) {
                let (start, size) = alive.swap_remove(random.below(alive.len()));
                blocks.push(Block::new(start, now + 1, Bytes(size as u64)));
                free += size;
            }
        }
        let last = alive.into_iter().map(|(start, size)| Block::new(start, steps, Bytes(size as u64)));
        blocks.into_iter().chain(last).collect()
    }

    #[test]
    fn the_verdict_is_that_of_the_tree_of_canonical_placements() {
        let mut random = Random::new(5, 0);
        let (mut fitting, mut refuted) = (0, 0);
        for case in 0..6_000 {
            let mut blocks = blocks(&mut random);
            // Every third problem is rounded up to an alignment, and the topmost block may end at its own bytes.
            if case % 3 == 0 {
                for block in &mut blocks {
                    block.align = Bytes(2);
                }
            }
            let problem = Problem { blocks: blocks.into_iter().collect(), capacity: None };
            let Ok(instance) = Instance::new(&problem) else { continue };
            let mut order: Vec<u32> = (0..instance.len() as u32).collect();
            for at in (1..order.len()).rev() {
                order.swap(at, random.below(at + 1));
            }
            let (tree, strip) = (Tree::<i32>::new(&instance), Strip::new(&instance).unwrap());
            for ceiling in instance.bound..instance.bound + 1 + (case % 2) {
                let mut corners = CornerSearch::new(&strip, &|| false);
                let verdict = corners.run(ceiling, &order, 5_000);
                let expected = TreeSearch::new(&tree, &|| false).run(ceiling, &order, None, 5_000);
                if [verdict, expected].contains(&Verdict::OutOfNodes) {
                    continue;
                }
                assert_eq!(verdict, expected, "{problem:?} below {ceiling}");
                if verdict == Verdict::Fits {
                    fitting += 1;
                    let placement = instance.placement(&problem, &corners.offsets());
                    assert_eq!(crate::validate(&problem, &placement), Ok(()), "{problem:?}");
                    assert!(placement.height.get() <= ceiling, "{problem:?} below {ceiling}");
                } else {
                    refuted += 1;
                }
            }
        }
        assert!(fitting > 5_000 && refuted > 20, "{fitting} fit, {refuted} do not");
    }
}

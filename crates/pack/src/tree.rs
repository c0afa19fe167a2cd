//! The tree of canonical placements, searched depth first: does everything fit below a ceiling?
//!
//! A placement is *canonical* if every item rests on another one or on the floor; pushing items down one after another makes any placement
//! canonical without raising it. Taken in ascending order of offsets, each item of a canonical placement lies at its *rest*: the highest end
//! of the items before it that are alive beside it. So a node of the tree is a set of items placed so far, and its children place one more item each, at its rest
//! (MiniMalloc, Moffitt 2023, searches the same tree).
//!
//! A node is cut off when
//! - in some section, the rests of the waiting items, taken as release dates of jobs on one machine, end above the ceiling;
//! - a waiting item can slip down: its rest is below the last offset, so that it can no longer be placed there, and nothing still to come can
//!   hold it up.
//!
//! A child is skipped when another waiting item fits entirely below it, or when it would stand on an item of the same sections that
//! comes after it in the order of preference: exchanging the two changes nothing else. Where the waiting items fall
//! apart into groups that share no section, each group is searched on its own.

use crate::instance::{Instance, Item, gcd};

/// Whole numbers in which the search counts: narrow ones are faster, and enough for most instances once sizes are divided by their
/// greatest common divisor.
pub(crate) trait Number: Copy + Ord + Default + std::ops::Add<Output = Self> {
    /// More than any end, and still far from overflow.
    const TOP: Self;
    fn from_u64(value: u64) -> Self;
    fn to_u64(self) -> u64;
    /// The next multiple of `align`.
    fn up_to(self, align: Self) -> Self;
}

macro_rules! number {
    ($type:ty) => {
        impl Number for $type {
            const TOP: Self = Self::MAX / 2;
            fn from_u64(value: u64) -> Self {
                value as Self
            }
            fn to_u64(self) -> u64 {
                self as u64
            }
            fn up_to(self, align: Self) -> Self {
                (self + align - 1) / align * align
            }
        }
    };
}
number!(i32);
number!(i64);

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Everything is placed.
    Fits,
    /// The whole tree was seen, and nothing fits.
    DoesNotFit,
    /// The nodes allowed were used up, or somebody asked to stop.
    OutOfNodes,
}

/// Searches look this often whether they are to stop, in nodes.
const PATIENCE: u64 = 256;

/// An instance as the search sees it, for any ceiling.
pub(crate) struct Tree<N> {
    size: Vec<N>,
    bytes: Vec<u64>,
    align: Vec<N>,
    fixed: Vec<Option<N>>,
    hull: Vec<(u32, u32)>,
    /// All spans of the items that have several; empty for the others.
    spans: Vec<Vec<(u32, u32)>>,
    /// Items with the same spans have the same class, unless they are fixed or alignments make a difference.
    class: Vec<u32>,
    /// Items alive beside each item.
    beside: Vec<Vec<u32>>,
    /// Bytes times sections, for measuring how far a search came.
    area: Vec<u64>,
    sections: usize,
    scale: u64,
    aligned: bool,
}

/// The divisor of everything that can make up an offset.
pub(crate) fn scale_of(instance: &Instance) -> u64 {
    let parts = |i: &Item| [i.size, if i.align > instance.unit { i.align } else { 0 }, i.fixed.unwrap_or(0)];
    instance.items.iter().flat_map(parts).fold(0, gcd).max(1)
}

impl<N: Number> Tree<N> {
    pub(crate) fn new(instance: &Instance) -> Self {
        let n = instance.len();
        let scale = scale_of(instance);
        let scaled = |value: u64| N::from_u64(value / scale);
        let pairs = |i: usize| instance.spans(i).iter().map(|s| (s.lo, s.hi)).collect::<Vec<_>>();
        let mut classes = std::collections::BTreeMap::new();
        Self {
            size: instance.items.iter().map(|i| scaled(i.size)).collect(),
            bytes: instance.items.iter().map(|i| i.bytes).collect(),
            align: instance.items.iter().map(|i| scaled(i.align.max(scale))).collect(),
            fixed: instance.items.iter().map(|i| i.fixed.map(scaled)).collect(),
            hull: instance.items.iter().map(|i| (i.hull.lo, i.hull.hi)).collect(),
            spans: (0..n).map(|i| if instance.spans(i).len() > 1 { pairs(i) } else { Vec::new() }).collect(),
            class: (0..n)
                .map(|i| {
                    let next = classes.len() as u32;
                    let alone = instance.any_align || instance.items[i].fixed.is_some();
                    *classes.entry((pairs(i), if alone { i } else { n })).or_insert(next)
                })
                .collect(),
            beside: (0..n)
                .map(|a| {
                    (0..n as u32).filter(|&b| b as usize != a && instance.conflict(a, b as usize)).collect()
                })
                .collect(),
            area: (0..n)
                .map(|i| {
                    instance.items[i].size / scale
                        * instance.spans(i).iter().map(|s| u64::from(s.hi - s.lo)).sum::<u64>()
                })
                .collect(),
            sections: instance.sections(),
            aligned: instance.any_align,
            scale,
        }
    }

    /// Number of items.
    pub(crate) fn len(&self) -> usize {
        self.size.len()
    }
}

/// What changes about an item during a search, kept together for the sake of the cache.
#[derive(Clone, Copy, Default)]
struct Spot<N> {
    /// Highest end of the placed items beside it, aligned; once placed, its offset.
    rest: N,
    /// Highest offset under the ceiling.
    limit: N,
    size: N,
    /// Position in the order of preference.
    rank: u32,
    placed: bool,
}

enum Change<N> {
    Placed(u32),
    Rest(u32, N),
    Top(u32, (N, u32)),
}

/// One search after another over the same tree, with the memory that they need.
pub(crate) struct Search<'t, N> {
    tree: &'t Tree<N>,
    ceiling: N,
    spots: Vec<Spot<N>>,
    /// The last item placed of every class: its end and its rank.
    tops: Vec<(N, u32)>,
    /// Number of waiting items alive on both sides of the boundary before every section.
    crossing: Vec<u32>,
    level: Vec<N>,
    queue: Vec<(N, u32)>,
    /// Stack of lists of waiting items, each nearly in order of release.
    lists: Vec<u32>,
    /// Stack of children still to try, most promising last.
    children: Vec<u32>,
    trail: Vec<Change<N>>,
    area: u64,
    /// The most area placed at any time in the last run.
    pub(crate) most_area: u64,
    /// Nodes visited in all runs.
    pub(crate) nodes: u64,
    allowed: u64,
    stop: &'t dyn Fn() -> bool,
}

impl<'t, N: Number> Search<'t, N> {
    /// A search that asks `stop` now and then whether to give up.
    pub(crate) fn new(tree: &'t Tree<N>, stop: &'t dyn Fn() -> bool) -> Self {
        Self {
            tree,
            ceiling: N::default(),
            spots: vec![Spot::default(); tree.len()],
            tops: vec![(N::default(), 0); tree.len()],
            crossing: vec![0; tree.sections + 1],
            level: vec![N::default(); tree.sections],
            queue: Vec::new(),
            lists: Vec::new(),
            children: Vec::new(),
            trail: Vec::new(),
            area: 0,
            most_area: 0,
            nodes: 0,
            allowed: 0,
            stop,
        }
    }

    /// Offsets in bytes after [`Verdict::Fits`].
    pub(crate) fn offsets(&self) -> Vec<u64> {
        self.spots.iter().map(|spot| spot.rest.to_u64() * self.tree.scale).collect()
    }

    /// Searches for a placement of at most `capacity` bytes in at most `allowed` nodes; among items of equal rest, the most preferred is
    /// tried first.
    pub(crate) fn run(&mut self, capacity: u64, preference: &[u32], allowed: u64) -> Verdict {
        let tree = self.tree;
        if tree.bytes.iter().any(|&bytes| bytes > capacity) {
            return Verdict::DoesNotFit;
        }
        for (rank, &item) in preference.iter().enumerate() {
            let i = item as usize;
            self.spots[i] = Spot {
                rest: tree.fixed[i].unwrap_or_default(),
                limit: N::from_u64((capacity - tree.bytes[i]) / tree.scale),
                size: tree.size[i],
                rank: rank as u32,
                placed: false,
            };
        }
        self.ceiling = self.spots.iter().map(|spot| spot.limit + spot.size).max().unwrap_or_default();
        self.tops.fill((N::default(), 0));
        self.crossing.fill(0);
        for &(lo, hi) in &tree.hull {
            for count in &mut self.crossing[lo as usize + 1..hi as usize] {
                *count += 1;
            }
        }
        self.children.clear();
        self.trail.clear();
        (self.area, self.most_area) = (0, 0);
        self.allowed = self.nodes.saturating_add(allowed);
        self.lists.clear();
        self.lists.extend_from_slice(preference);
        if tree.len() == 0 { Verdict::Fits } else { self.apart(0, (N::default(), 0)) }
    }

    /// Places the list on top of the stack, group by group where no waiting item joins the groups; smaller groups first.
    fn apart(&mut self, from: usize, last: (N, u32)) -> Verdict {
        let to = self.lists.len();
        let hull = &self.tree.hull;
        let (lo, hi) = self.reach(from, to);
        let mut cuts: Vec<u32> =
            (lo + 1..hi).filter(|&section| self.crossing[section as usize] == 0).collect();
        if cuts.is_empty() {
            return self.descend(from, to, last);
        }
        cuts.push(hi);
        let group = |item: u32| cuts.partition_point(|&cut| cut <= hull[item as usize].0);
        self.lists[from..].sort_by_key(|&item| group(item));
        let mut groups: Vec<(usize, usize)> = self.lists[from..]
            .chunk_by(|&a, &b| group(a) == group(b))
            .scan(from, |start, members| {
                *start += members.len();
                Some((*start - members.len(), *start))
            })
            .collect();
        groups.sort_by_key(|&(start, end)| end - start);
        let mark = self.trail.len();
        for (start, end) in groups {
            let verdict = self.descend(start, end, last);
            self.lists.truncate(to);
            if verdict != Verdict::Fits {
                self.back_to(mark);
                return verdict;
            }
        }
        Verdict::Fits
    }

    /// First and last section of a list.
    fn reach(&self, from: usize, to: usize) -> (u32, u32) {
        let hulls = self.lists[from..to].iter().map(|&item| self.tree.hull[item as usize]);
        hulls.fold((u32::MAX, 0), |(lo, hi), hull| (lo.min(hull.0), hi.max(hull.1)))
    }

    fn back_to(&mut self, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop() {
                Some(Change::Placed(item)) => {
                    self.spots[item as usize].placed = false;
                    self.area -= self.tree.area[item as usize];
                    let (lo, hi) = self.tree.hull[item as usize];
                    for count in &mut self.crossing[lo as usize + 1..hi as usize] {
                        *count += 1;
                    }
                }
                Some(Change::Rest(item, rest)) => self.spots[item as usize].rest = rest,
                Some(Change::Top(class, top)) => self.tops[class as usize] = top,
                None => return,
            }
        }
    }

    fn descend(&mut self, start: usize, end: usize, last: (N, u32)) -> Verdict {
        let from = self.children.len();
        if !self.expand(start, end, last) {
            return Verdict::DoesNotFit;
        }
        while self.children.len() > from
            && let Some(item) = self.children.pop()
        {
            let mark = self.trail.len();
            let offset = self.spots[item as usize].rest;
            let fits = self.place(item);
            if end - start == 1 {
                self.children.truncate(from);
                return Verdict::Fits;
            }
            self.nodes += 1;
            if self.nodes > self.allowed || (self.nodes.is_multiple_of(PATIENCE) && (self.stop)()) {
                self.children.truncate(from);
                return Verdict::OutOfNodes;
            }
            if fits {
                let list = self.lists.len();
                for at in start..end {
                    let other = self.lists[at];
                    if other != item {
                        self.lists.push(other);
                    }
                }
                let next = (offset, self.spots[item as usize].rank + 1);
                let (lo, hi) = self.tree.hull[item as usize];
                let whole = self.crossing[lo as usize + 1..hi as usize].iter().all(|&count| count > 0);
                let verdict = if whole {
                    self.descend(list, list + end - start - 1, next)
                } else {
                    self.apart(list, next)
                };
                self.lists.truncate(list);
                if verdict != Verdict::DoesNotFit {
                    self.children.truncate(from);
                    return verdict;
                }
            }
            self.back_to(mark);
        }
        Verdict::DoesNotFit
    }

    /// Places an item at its rest; false if that lifts another one above its limit.
    fn place(&mut self, item: u32) -> bool {
        let tree = self.tree;
        let spot = &mut self.spots[item as usize];
        spot.placed = true;
        let end = spot.rest + spot.size;
        let class = tree.class[item as usize];
        self.trail.push(Change::Placed(item));
        self.trail.push(Change::Top(class, self.tops[class as usize]));
        self.tops[class as usize] = (end, spot.rank);
        self.area += tree.area[item as usize];
        self.most_area = self.most_area.max(self.area);
        let (lo, hi) = tree.hull[item as usize];
        for count in &mut self.crossing[lo as usize + 1..hi as usize] {
            *count -= 1;
        }
        for &other in &tree.beside[item as usize] {
            let spot = &mut self.spots[other as usize];
            if spot.rest < end && !spot.placed {
                self.trail.push(Change::Rest(other, spot.rest));
                spot.rest = if tree.aligned { end.up_to(tree.align[other as usize]) } else { end };
                if spot.rest > spot.limit {
                    return false;
                }
            }
        }
        true
    }

    /// Pushes the children of the present node; false if nothing can come of it.
    fn expand(&mut self, start: usize, end: usize, last: (N, u32)) -> bool {
        let tree = self.tree;
        let mut lowest_end = N::TOP;
        let (mut from, mut to) = (u32::MAX, 0);
        self.queue.clear();
        for &item in &self.lists[start..end] {
            let spot = self.spots[item as usize];
            let end = spot.rest + spot.size;
            let late = (spot.rest, spot.rank) < last;
            let mut release = spot.rest;
            if late {
                match self.held_up(item, last) {
                    Some(earliest) if tree.fixed[item as usize].is_none() => release = earliest,
                    _ => return false,
                }
            }
            if tree.fixed[item as usize].is_some_and(|fixed| fixed < spot.rest) {
                return false;
            }
            lowest_end = lowest_end.min(end);
            let (lo, hi) = tree.hull[item as usize];
            from = from.min(lo);
            to = to.max(hi);
            self.queue.push((release, item));
        }
        // The list was in order when its parent was expanded, so few items are out of place.
        for at in 1..self.queue.len() {
            let row = self.queue[at];
            let mut to = at;
            while to > 0 && self.queue[to - 1].0 > row.0 {
                self.queue[to] = self.queue[to - 1];
                to -= 1;
            }
            self.queue[to] = row;
        }
        self.level[from as usize..to as usize].fill(N::default());
        for (slot, &(release, item)) in self.lists[start..end].iter_mut().zip(&self.queue) {
            *slot = item;
            let size = self.spots[item as usize].size;
            let mut stack = |(lo, hi): (u32, u32)| {
                for level in &mut self.level[lo as usize..hi as usize] {
                    *level = (*level).max(release) + size;
                }
            };
            if tree.spans[item as usize].is_empty() {
                stack(tree.hull[item as usize]);
            } else {
                tree.spans[item as usize].iter().copied().for_each(stack);
            }
        }
        if self.level[from as usize..to as usize].iter().any(|&level| level > self.ceiling) {
            return false;
        }
        let first = self.children.len();
        for &(release, item) in &self.queue {
            if release >= lowest_end {
                break;
            }
            let spot = self.spots[item as usize];
            let (top, rank) = self.tops[tree.class[item as usize] as usize];
            if (spot.rest, spot.rank) >= last && !(top == spot.rest && spot.rank < rank) {
                self.children.push(item);
            }
        }
        let spots = &self.spots;
        self.children[first..]
            .sort_unstable_by_key(|&i| std::cmp::Reverse((spots[i as usize].rest, spots[i as usize].rank)));
        true
    }

    /// The earliest offset at which an item can still come to lie whose rest has passed; `None` if it slips down or cannot fit.
    fn held_up(&self, item: u32, last: (N, u32)) -> Option<N> {
        let spot = self.spots[item as usize];
        let end = spot.rest + spot.size;
        if end <= last.0 {
            return None;
        }
        let mut earliest = N::TOP;
        for &other in &self.tree.beside[item as usize] {
            let other = &self.spots[other as usize];
            if !other.placed {
                let from = other.rest.max(last.0);
                if from < end {
                    earliest = earliest.min(from + other.size);
                }
            }
        }
        (earliest <= spot.limit).then_some(earliest)
    }
}

//! The tree of canonical placements, searched depth first to decide whether all items fit below a ceiling.
//!
//! In a *canonical* placement every item lies on another item or at offset 0. Pushing items down one after another makes any placement
//! canonical without raising it. If items are placed in ascending order of offsets, each lies at its *minimum offset*: the highest end of
//! the placed items that conflict with it. A node of the tree is a set of placed items; its children place one more item, at its minimum offset.
//! MiniMalloc (Moffitt 2023) searches the same tree.
//!
//! A node is pruned if
//! - in some section, the unplaced items, scheduled as jobs of one machine with their minimum offsets as release dates, end above the ceiling:
//!   only sections whose items or release dates changed since the parent are looked at, first of all the one for which a node was pruned last;
//! - the minimum offset of an unplaced item is below the last offset, and no unplaced item can raise it above that.
//!
//! A child is skipped if another unplaced item fits entirely below it, or if it would lie on an item of the same sections that comes later in
//! the branching order: exchanging the two changes nothing else. An item that is alive as long as all others together lies at the bottom: moving it
//! there lifts what was below it by its size, and nothing else. If the unplaced items fall into groups that share no section, each group is
//! searched on its own; with one of MiniMalloc's orders, that order is computed again for the bytes that are left.

mod number;
mod passed;
mod tree;

pub(crate) use self::number::Number;
use self::passed::LowestEnd;
pub(crate) use self::tree::{Tree, scale_of};
use crate::branching_order::StaticOrder;

/// How a search ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All items are placed.
    Fits,
    /// The whole tree was visited without a placement.
    DoesNotFit,
    /// The node limit was reached, or the search was stopped.
    #[default]
    OutOfNodes,
}

/// All sections.
const EVERYWHERE: (u32, u32) = (0, u32::MAX);

/// Nodes between two checks of the clock and the observer.
pub(crate) const NODES_PER_CHECK: u64 = 256;

/// A list is sorted anew if more of its items changed.
const FEW_CHANGED: usize = 128;

/// What changes about an item during a search, in one cache line.
#[derive(Clone, Copy, Default)]
struct ItemState<N> {
    /// The highest end of the placed items that conflict with it, aligned; once placed, its offset.
    min_offset: N,
    /// The highest offset below the ceiling.
    max_offset: N,
    size: N,
    /// Position in the branching order.
    rank: u32,
    /// The first of its positions, by which items of one class are told apart.
    first_rank: u32,
    placed: bool,
}

enum Change<N> {
    Placed(u32),
    MinOffset(u32, N),
    Top(u32, (N, u32)),
}

/// Searches of one tree, one after another, with their shared memory.
pub(crate) struct TreeSearch<'t, N> {
    tree: &'t Tree<N>,
    ceiling: N,
    state: Vec<ItemState<N>>,
    /// The last placed item of each class: its end and its first rank.
    tops: Vec<(N, u32)>,
    /// For each section, the number of unplaced items that are alive on both sides of the boundary before it.
    crossing: Vec<u32>,
    level: Vec<N>,
    /// The section for which a node was pruned last.
    tightest: u32,
    /// Where the unplaced items of a node that passes many of them end at least, in ascending order.
    ends: Vec<LowestEnd<N>>,
    /// Stack of lists of unplaced items, each nearly sorted by release date: those of the node, or of its parent until it is expanded.
    lists: Vec<(N, u32)>,
    /// Stack of children to try, the first one on top.
    children: Vec<u32>,
    trail: Vec<Change<N>>,
    /// The order that each group of items is sorted by.
    order: Option<StaticOrder>,
    /// Stack of ranks to go back to.
    ranks: Vec<u32>,
    area: u64,
    /// The most area that was placed at one time in the last run.
    pub(crate) most_area: u64,
    /// Nodes visited in all runs.
    pub(crate) nodes: u64,
    allowed: u64,
    stop: &'t dyn Fn() -> bool,
}

impl<'t, N: Number> TreeSearch<'t, N> {
    /// A search that ends early once `stop` returns true.
    pub(crate) fn new(tree: &'t Tree<N>, stop: &'t dyn Fn() -> bool) -> Self {
        Self {
            tree,
            ceiling: N::default(),
            state: vec![ItemState::default(); tree.len()],
            tops: vec![(N::default(), 0); tree.len()],
            crossing: vec![0; tree.sections + 1],
            level: vec![N::default(); tree.sections],
            tightest: 0,
            ends: Vec::new(),
            lists: Vec::new(),
            children: Vec::new(),
            trail: Vec::new(),
            order: None,
            ranks: Vec::new(),
            area: 0,
            most_area: 0,
            nodes: 0,
            allowed: 0,
            stop,
        }
    }

    /// Offsets in bytes after [`Verdict::Fits`].
    pub(crate) fn offsets(&self) -> Vec<u64> {
        self.state.iter().map(|item_state| item_state.min_offset.to_u64() * self.tree.scale).collect()
    }

    /// Searches for a placement of at most `capacity` bytes in at most `allowed` nodes. Among items of equal minimum offset, the first in
    /// `preference` is tried first. If that is a static order, it is given too, and sorts the items of every group again.
    pub(crate) fn run(
        &mut self,
        capacity: u64,
        preference: &[u32],
        order: Option<StaticOrder>,
        allowed: u64,
    ) -> Verdict {
        let tree = self.tree;
        self.order = order;
        self.ranks.clear();
        if tree.bytes.iter().any(|&bytes| bytes > capacity) {
            return Verdict::DoesNotFit;
        }
        for (rank, &item) in preference.iter().enumerate() {
            let i = item as usize;
            self.state[i] = ItemState {
                min_offset: tree.fixed[i].unwrap_or_default(),
                max_offset: N::from_u64((capacity - tree.bytes[i]) / tree.scale),
                size: tree.size[i],
                rank: rank as u32,
                first_rank: rank as u32,
                placed: false,
            };
        }
        self.ceiling = self
            .state
            .iter()
            .map(|item_state| item_state.max_offset + item_state.size)
            .max()
            .unwrap_or_default();
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
        self.lists.extend(preference.iter().map(|&item| (N::default(), item)));
        let level =
            !tree.aligned && tree.fixed.iter().all(Option::is_none) && tree.spans.iter().all(Vec::is_empty);
        if tree.len() == 0 {
            Verdict::Fits
        } else {
            self.search_groups(0, (N::default(), 0), level, EVERYWHERE)
        }
    }

    /// Searches the list on top of the stack, group by group where no unplaced item connects the groups; smaller groups first. Above a `level`
    /// floor, the items that are alive throughout a group are placed first. Something was placed within the sections `touched` since the lists
    /// were made.
    fn search_groups(&mut self, from: usize, last: (N, u32), level: bool, touched: (u32, u32)) -> Verdict {
        let to = self.lists.len();
        let hull = &self.tree.hull;
        let (lo, hi) = self.hull_of(from, to);
        let mut cuts: Vec<u32> =
            (lo + 1..hi).filter(|&section| self.crossing[section as usize] == 0).collect();
        if cuts.is_empty() {
            return if level { self.found(from, to, last) } else { self.descend(from, to, last, touched) };
        }
        cuts.push(hi);
        let group = |item: u32| cuts.partition_point(|&cut| cut <= hull[item as usize].0);
        self.lists[from..].sort_by_key(|&(_, item)| group(item));
        let mut groups: Vec<(usize, usize)> = self.lists[from..]
            .chunk_by(|&(_, a), &(_, b)| group(a) == group(b))
            .scan(from, |start, members| {
                *start += members.len();
                Some((*start - members.len(), *start))
            })
            .collect();
        groups.sort_by_key(|&(start, end)| end - start);
        let mark = self.trail.len();
        let ranks = self.ranks.len();
        for (start, end) in groups {
            // After new ranks, those of items at the last offset no longer say what was tried there.
            let last = if self.rank_again(start, end) { (last.0, 0) } else { last };
            let verdict =
                if level { self.found(start, end, last) } else { self.descend(start, end, last, touched) };
            self.lists.truncate(to);
            if verdict != Verdict::Fits {
                self.undo_to(mark);
                while self.ranks.len() > ranks {
                    if let (Some(rank), Some(item)) = (self.ranks.pop(), self.ranks.pop()) {
                        self.state[item as usize].rank = rank;
                    }
                }
                return verdict;
            }
        }
        Verdict::Fits
    }

    /// Searches a part of the list above a level floor.
    fn found(&mut self, start: usize, end: usize, last: (N, u32)) -> Verdict {
        let tree = self.tree;
        let whole = self.hull_of(start, end);
        let list = self.lists.len();
        let mark = self.trail.len();
        for at in start..end {
            let row @ (_, item) = self.lists[at];
            let i = item as usize;
            // The topmost item may end at its bytes instead of its size, so one that is rounded up is not moved.
            let throughout = tree.hull[i] == whole && N::from_u64(tree.bytes[i] / tree.scale) == tree.size[i];
            if throughout {
                if !self.place(item) {
                    self.undo_to(mark);
                    self.lists.truncate(list);
                    return Verdict::DoesNotFit;
                }
            } else {
                self.lists.push(row);
            }
        }
        let left = self.lists.len() - list;
        let verdict = match left {
            0 => Verdict::Fits,
            _ if left == end - start => self.descend(list, list + left, last, EVERYWHERE),
            _ => self.search_groups(list, last, true, EVERYWHERE),
        };
        if verdict != Verdict::Fits {
            self.undo_to(mark);
        }
        self.lists.truncate(list);
        verdict
    }

    /// Sorts a part of the list by the static order, as it is for the items of that part, which exchange their ranks. Returns whether there is
    /// such an order.
    fn rank_again(&mut self, start: usize, end: usize) -> bool {
        let Some(order) = self.order else { return false };
        let tree = self.tree;
        let (lo, hi) = self.hull_of(start, end);
        self.level[lo as usize..hi as usize].fill(N::default());
        for &(_, item) in &self.lists[start..end] {
            for level in tree.spans_of(item).flat_map(|(lo, hi)| lo..hi) {
                self.level[level as usize] = self.level[level as usize] + tree.size[item as usize];
            }
        }
        let mut keys: Vec<_> = self.lists[start..end]
            .iter()
            .map(|&(_, item)| {
                let sections = tree.spans_of(item).flat_map(|(lo, hi)| lo..hi);
                let total = sections.map(|section| self.level[section as usize]).max().unwrap_or_default();
                let (area, width) = tree.shape[item as usize];
                let key = order.key(total.to_u64().into(), area, width.into());
                (std::cmp::Reverse(key), self.state[item as usize].first_rank, item)
            })
            .collect();
        keys.sort_unstable();
        let mut free: Vec<u32> = keys.iter().map(|&(.., item)| self.state[item as usize].rank).collect();
        free.sort_unstable();
        for ((.., item), rank) in keys.into_iter().zip(free) {
            self.ranks.extend([item, std::mem::replace(&mut self.state[item as usize].rank, rank)]);
        }
        true
    }

    /// First and last section of a list.
    fn hull_of(&self, from: usize, to: usize) -> (u32, u32) {
        let hulls = self.lists[from..to].iter().map(|&(_, item)| self.tree.hull[item as usize]);
        hulls.fold((u32::MAX, 0), |(lo, hi), hull| (lo.min(hull.0), hi.max(hull.1)))
    }

    fn undo_to(&mut self, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop() {
                Some(Change::Placed(item)) => {
                    self.state[item as usize].placed = false;
                    self.area -= self.tree.area[item as usize];
                    let (lo, hi) = self.tree.hull[item as usize];
                    for count in &mut self.crossing[lo as usize + 1..hi as usize] {
                        *count += 1;
                    }
                }
                Some(Change::MinOffset(item, min_offset)) => {
                    self.state[item as usize].min_offset = min_offset
                }
                Some(Change::Top(class, top)) => self.tops[class as usize] = top,
                None => return,
            }
        }
    }

    fn descend(&mut self, start: usize, end: usize, last: (N, u32), touched: (u32, u32)) -> Verdict {
        let from = self.children.len();
        if !self.expand(start, end, last, touched) {
            return Verdict::DoesNotFit;
        }
        while self.children.len() > from
            && let Some(item) = self.children.pop()
        {
            let mark = self.trail.len();
            let offset = self.state[item as usize].min_offset;
            let fits = self.place(item);
            if end - start == 1 {
                self.children.truncate(from);
                return Verdict::Fits;
            }
            self.nodes += 1;
            if self.nodes > self.allowed || (self.nodes.is_multiple_of(NODES_PER_CHECK) && (self.stop)()) {
                self.children.truncate(from);
                return Verdict::OutOfNodes;
            }
            if fits {
                let list = self.lists.len();
                for at in start..end {
                    let row = self.lists[at];
                    if row.1 != item {
                        self.lists.push(row);
                    }
                }
                let next = (offset, self.state[item as usize].rank + 1);
                let (lo, hi) = self.tree.hull[item as usize];
                let whole = self.crossing[lo as usize + 1..hi as usize].iter().all(|&count| count > 0);
                let verdict = if whole {
                    self.descend(list, list + end - start - 1, next, (lo, hi))
                } else {
                    self.search_groups(list, next, false, (lo, hi))
                };
                self.lists.truncate(list);
                if verdict != Verdict::DoesNotFit {
                    self.children.truncate(from);
                    return verdict;
                }
            }
            self.undo_to(mark);
        }
        Verdict::DoesNotFit
    }

    /// Places an item at its minimum offset; false if that raises the minimum offset of another item above its maximum.
    fn place(&mut self, item: u32) -> bool {
        let tree = self.tree;
        let item_state = &mut self.state[item as usize];
        item_state.placed = true;
        let end = item_state.min_offset + item_state.size;
        let class = tree.class[item as usize];
        self.trail.push(Change::Placed(item));
        self.trail.push(Change::Top(class, self.tops[class as usize]));
        self.tops[class as usize] = (end, item_state.first_rank);
        self.area += tree.area[item as usize];
        self.most_area = self.most_area.max(self.area);
        let (lo, hi) = tree.hull[item as usize];
        for count in &mut self.crossing[lo as usize + 1..hi as usize] {
            *count -= 1;
        }
        for &other in &tree.conflicts[item as usize] {
            let item_state = &mut self.state[other as usize];
            if item_state.min_offset < end && !item_state.placed {
                self.trail.push(Change::MinOffset(other, item_state.min_offset));
                item_state.min_offset =
                    if tree.aligned { end.up_to(tree.align[other as usize]) } else { end };
                if item_state.min_offset > item_state.max_offset {
                    return false;
                }
            }
        }
        true
    }

    /// Pushes the children of the current node; false if the node is pruned. Since its parent was expanded, something was placed within the
    /// sections `touched`.
    fn expand(&mut self, start: usize, end: usize, last: (N, u32), touched: (u32, u32)) -> bool {
        let tree = self.tree;
        let mut lowest_end = N::TOP;
        // Elsewhere the same items wait with the same release dates as at the parent, which was not pruned.
        let (mut from, mut to) = touched;
        let (mut scanned, mut changed) = (0, 0);
        self.ends.clear();
        for at in start..end {
            let (before, item) = self.lists[at];
            let item_state = self.state[item as usize];
            let mut release = item_state.min_offset;
            if (item_state.min_offset, item_state.rank) < last {
                match self.next_min_offset(item, (start, end), last.0, &mut scanned) {
                    Some(earliest) if tree.fixed[item as usize].is_none() => release = earliest,
                    _ => return false,
                }
            }
            if tree.fixed[item as usize].is_some_and(|fixed| fixed < item_state.min_offset) {
                return false;
            }
            lowest_end = lowest_end.min(item_state.min_offset + item_state.size);
            if release != before {
                let (lo, hi) = tree.hull[item as usize];
                (from, to) = (from.min(lo), to.max(hi));
                self.lists[at].0 = release;
                changed += 1;
            }
        }
        sort_again(&mut self.lists[start..end], changed);
        if self.overfull(start, end, (from, to)) {
            return false;
        }
        #[cfg(test)]
        assert!(!self.overfull(start, end, EVERYWHERE), "a section elsewhere is overfull");
        #[cfg(test)]
        assert!(self.lists[start..end].is_sorted_by_key(|&(release, _)| release), "the list is not sorted");
        let first = self.children.len();
        for &(release, item) in &self.lists[start..end] {
            if release >= lowest_end {
                break;
            }
            let item_state = self.state[item as usize];
            let (top, rank) = self.tops[tree.class[item as usize] as usize];
            if (item_state.min_offset, item_state.rank) >= last
                && !(top == item_state.min_offset && item_state.first_rank < rank)
            {
                self.children.push(item);
            }
        }
        let state = &self.state;
        self.children[first..].sort_unstable_by_key(|&i| {
            std::cmp::Reverse((state[i as usize].min_offset, state[i as usize].rank))
        });
        true
    }

    /// Whether in one of some sections the listed items, one on another from their release dates on, end above the ceiling.
    fn overfull(&mut self, start: usize, end: usize, (from, to): (u32, u32)) -> bool {
        let tree = self.tree;
        let rows = &self.lists[start..end];
        // Neighbours in the tree are mostly pruned for the same section, and one section takes less than all.
        let tightest = self.tightest;
        if (from..to).contains(&tightest) {
            let mut level = N::default();
            for &(release, item) in rows {
                if tree.spans_of(item).any(|(lo, hi)| (lo..hi).contains(&tightest)) {
                    level = level.max(release) + self.state[item as usize].size;
                }
            }
            if level > self.ceiling {
                return true;
            }
        }
        let to = to.min(tree.sections as u32);
        self.level[from as usize..to as usize].fill(N::default());
        for &(release, item) in rows {
            let size = self.state[item as usize].size;
            for (lo, hi) in tree.spans_of(item) {
                let (lo, hi) = (lo.max(from), hi.min(to));
                if lo < hi {
                    for level in &mut self.level[lo as usize..hi as usize] {
                        *level = (*level).max(release) + size;
                    }
                }
            }
        }
        let above = self.level[from as usize..to as usize].iter().position(|&level| level > self.ceiling);
        if let Some(at) = above {
            self.tightest = from + at as u32;
        }
        above.is_some()
    }
}

/// Sorts by release date what was sorted until a number of them changed.
fn sort_again<N: Number>(rows: &mut [(N, u32)], changed: usize) {
    if changed > FEW_CHANGED {
        rows.sort_by_key(|&(release, _)| release);
        return;
    }
    // Few are out of order: insertion sort.
    for at in 1..rows.len() {
        let row = rows[at];
        let mut to = at;
        while to > 0 && rows[to - 1].0 > row.0 {
            rows[to] = rows[to - 1];
            to -= 1;
        }
        rows[to] = row;
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::Bytes;
    use elbowroom_ir::packing::{Block, Interval, Problem};

    use super::*;
    use crate::instance::Instance;
    use crate::random::Random;

    /// Every node that is expanded asserts that no section is overfull, also where the search did not look, that its list is sorted, and that the
    /// sorted ends give the same next offsets as all conflicts.
    #[test]
    fn nodes_find_what_a_look_at_everything_finds() {
        let mut random = Random::new(11, 0);
        let (mut fits, mut fails) = (0, 0);
        for case in 0..2_000 {
            let blocks = (0..6 + random.below(12)).map(|_| {
                let start = random.below(24) as u64;
                let end = start + 1 + random.below(10) as u64;
                let mut block = Block::new(start, end, Bytes(1 + random.below(9) as u64));
                // Some blocks are alive twice, and some sizes are rounded up.
                if random.below(5) == 0 {
                    let again = end + 1 + random.below(5) as u64;
                    block.alive.push(Interval::new(again, again + 1 + random.below(5) as u64));
                }
                block.align = Bytes(if case % 3 == 0 { 2 } else { 1 });
                block
            });
            let Ok(instance) = Instance::new(&Problem { blocks: blocks.collect(), capacity: None }) else {
                panic!("no block is fixed")
            };
            let order: Vec<u32> = (0..instance.len() as u32).collect();
            let tree = Tree::<i32>::new(&instance);
            let mut search = TreeSearch::new(&tree, &|| false);
            for ceiling in instance.bound..instance.bound + 3 {
                match search.run(ceiling, &order, None, 3_000) {
                    Verdict::Fits => fits += 1,
                    Verdict::DoesNotFit => fails += 1,
                    Verdict::OutOfNodes => {}
                }
            }
        }
        assert!(fits > 1_000 && fails > 100, "{fits} fit, {fails} do not");
    }

    /// The same in nodes with many items, whose lists are sorted in another way.
    #[test]
    fn nodes_with_many_items_find_the_same() {
        let mut random = Random::new(12, 0);
        for order in 0..StaticOrder::COUNT as u64 {
            let blocks = (0..500).map(|_| {
                let start = random.below(300) as u64;
                Block::new(start, start + 1 + random.below(100) as u64, Bytes(1 + random.below(90) as u64))
            });
            let Ok(instance) = Instance::new(&Problem { blocks: blocks.collect(), capacity: None }) else {
                panic!("no block is fixed")
            };
            let order = StaticOrder::number(order);
            let tree = Tree::<i32>::new(&instance);
            let mut search = TreeSearch::new(&tree, &|| false);
            search.run(instance.bound, &order.of(&instance), Some(order), 1_000);
            assert!(search.nodes > 500, "{} nodes", search.nodes);
        }
    }
}

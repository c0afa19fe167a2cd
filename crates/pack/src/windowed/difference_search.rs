//! Branch and bound on differences of offsets: the lowest placement of some dozens of items, under any rule of [`super::relation`].
//!
//! A node is a set of constraints `x[i] ≥ x[j] + c`, with the lowest offsets that satisfy them; alignments round up, fixed offsets are lower and
//! upper limits. If those offsets are legal, no placement of this subtree is lower. Otherwise the difference of some pair lies in an illegal
//! interval, and one of the two must rise: two children. Pairs of which only one can rise come first, then those whose smaller rise is largest.

use super::relation::{Occupancy, Rule};

/// More items are not searched: the running time is exponential.
pub(crate) const MOST_ITEMS: usize = 60;

/// How a search ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The tree was visited whole, or the goal was met.
    Whole,
    /// The node limit was reached, or the search was stopped.
    OutOfNodes,
}

/// The lowest placement found below the ceiling, if any, and how the search ended.
pub(crate) struct Found {
    pub(crate) offsets: Option<Vec<u64>>,
    pub(crate) ending: Ending,
}

/// Two items and the illegal intervals of `x[a] - x[b]`.
struct Pair {
    a: usize,
    b: usize,
    illegal: Vec<(i64, i64)>,
}

/// `x[to] ≥ x[from] + by`.
#[derive(Clone, Copy)]
struct Constraint {
    from: usize,
    to: usize,
    by: i64,
}

enum Change {
    Offset(usize, i64),
    Constraint(usize),
}

/// Why a constraint could not be added.
enum Refusal {
    Illegal,
    Undecided,
}

/// The search over some items.
pub(crate) struct DifferenceSearch<'a> {
    occupancy: &'a Occupancy,
    items: &'a [u32],
    pairs: Vec<Pair>,
    aligned: bool,
    /// Offsets of the items, by their position in `items`.
    x: Vec<i64>,
    ceiling: i64,
    constraints: Vec<Vec<(usize, i64)>>,
    trail: Vec<Change>,
}

impl<'a> DifferenceSearch<'a> {
    pub(crate) fn new(occupancy: &'a Occupancy, items: &'a [u32], rule: Rule) -> Self {
        let pairs = (0..items.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        let pair = |(a, b): (usize, usize)| {
            let illegal = occupancy.illegal(items[a] as usize, items[b] as usize, rule);
            (!illegal.is_empty()).then_some(Pair { a, b, illegal })
        };
        Self {
            occupancy,
            items,
            pairs: pairs.filter_map(pair).collect(),
            aligned: items.iter().any(|&item| occupancy.align[item as usize] > 1),
            x: Vec::new(),
            ceiling: 0,
            constraints: Vec::new(),
            trail: Vec::new(),
        }
    }

    fn size(&self, at: usize) -> i64 {
        self.occupancy.size[self.items[at] as usize]
    }

    /// The highest offset that an item may have.
    fn highest(&self, at: usize) -> i64 {
        let top = self.ceiling - self.size(at);
        self.occupancy.fixed[self.items[at] as usize].map_or(top, |fixed| fixed.min(top))
    }

    /// Searches for the lowest placement of at most `ceiling` bytes in at most `nodes` nodes, and ends at the first of at most `goal` bytes.
    pub(crate) fn run(&mut self, ceiling: u64, goal: u64, nodes: u64, stop: &dyn Fn() -> bool) -> Found {
        let n = self.items.len();
        self.ceiling = i64::try_from(ceiling).unwrap_or(i64::MAX / 2);
        self.x = self.items.iter().map(|&item| self.occupancy.fixed[item as usize].unwrap_or(0)).collect();
        self.constraints = vec![Vec::new(); n];
        self.trail.clear();
        let mut best: Option<Vec<u64>> = None;
        if (0..n).any(|at| self.x[at] > self.highest(at)) {
            return Found { offsets: None, ending: Ending::Whole };
        }
        // The constraint that is tried second at each level, with the length of the trail before the first.
        let mut open: Vec<(usize, Constraint)> = Vec::new();
        let (mut visited, mut undecided) = (0, false);
        loop {
            let next = self.branch();
            let mut dead = next.is_none();
            if let Some((first, second)) = next {
                open.push((self.trail.len(), second));
                dead = self.impose(first, &mut undecided);
            } else {
                best = Some(self.x.iter().map(|&offset| offset as u64).collect());
                let height = (0..n).map(|at| self.x[at] + self.size(at)).max().unwrap_or(0);
                self.ceiling = height - 1;
                if height as u64 <= goal {
                    return Found { offsets: best, ending: Ending::Whole };
                }
            }
            while dead {
                let Some((mark, second)) = open.pop() else {
                    let ending = if undecided { Ending::OutOfNodes } else { Ending::Whole };
                    return Found { offsets: best, ending };
                };
                self.undo_to(mark);
                dead = self.impose(second, &mut undecided);
            }
            visited += 1;
            if visited > nodes || (visited.is_multiple_of(64) && stop()) {
                return Found { offsets: best, ending: Ending::OutOfNodes };
            }
        }
    }

    /// Adds a constraint; true if no placement of the node is left.
    fn impose(&mut self, constraint: Constraint, undecided: &mut bool) -> bool {
        match self.add(constraint) {
            Ok(()) => false,
            Err(Refusal::Illegal) => true,
            Err(Refusal::Undecided) => {
                *undecided = true;
                true
            }
        }
    }

    fn add(&mut self, new: Constraint) -> Result<(), Refusal> {
        self.constraints[new.from].push((new.to, new.by));
        self.trail.push(Change::Constraint(new.from));
        // A ceiling that has fallen since the offsets were computed may refuse any of them.
        if (0..self.x.len()).any(|at| self.x[at] > self.highest(at)) {
            return Err(Refusal::Illegal);
        }
        let mut raised = vec![new.from];
        // Alignments may make a cycle of constraints rise in small steps; the limit keeps that from taking for ever.
        let mut steps = 64 * (self.x.len() as u64 + 1) * (self.x.len() as u64 + 1);
        while let Some(from) = raised.pop() {
            for at in 0..self.constraints[from].len() {
                let (to, by) = self.constraints[from][at];
                let item = self.items[to] as usize;
                let align = self.occupancy.align[item];
                let least = self.x[from] + by;
                if least <= self.x[to] {
                    continue;
                }
                // Offsets are not negative, so a least one above them is positive.
                let least = (least as u64).next_multiple_of(align as u64) as i64;
                if least > self.highest(to) || (to == new.from && !self.aligned) {
                    return Err(Refusal::Illegal);
                }
                steps -= 1;
                if steps == 0 {
                    return Err(Refusal::Undecided);
                }
                self.trail.push(Change::Offset(to, self.x[to]));
                self.x[to] = least;
                raised.push(to);
            }
        }
        Ok(())
    }

    fn undo_to(&mut self, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop() {
                Some(Change::Offset(at, offset)) => self.x[at] = offset,
                Some(Change::Constraint(from)) => drop(self.constraints[from].pop()),
                None => return,
            }
        }
    }

    /// The two ways to resolve an illegal pair, the smaller rise first; `None` if all differences are legal.
    fn branch(&self) -> Option<(Constraint, Constraint)> {
        let mut chosen: Option<((i64, i64), (Constraint, Constraint))> = None;
        for pair in &self.pairs {
            let (a, b) = (pair.a, pair.b);
            let difference = self.x[a] - self.x[b];
            let inside = |&&(low, high): &&(i64, i64)| low < difference && difference < high;
            let Some(&(low, high)) = pair.illegal.iter().find(inside) else { continue };
            let raise_a = Constraint { from: b, to: a, by: high };
            let raise_b = Constraint { from: a, to: b, by: -low };
            let rise = |at: usize, by: i64| {
                if self.x[at] + by > self.highest(at) { i64::MAX } else { by }
            };
            let (up_a, up_b) = (rise(a, high - difference), rise(b, difference - low));
            let (forced, least) = (up_a.max(up_b), up_a.min(up_b));
            let key = (if forced == i64::MAX { i64::MAX } else { least }, forced);
            if chosen.as_ref().is_none_or(|(best, _)| key > *best) {
                let both = if up_a <= up_b { (raise_a, raise_b) } else { (raise_b, raise_a) };
                chosen = Some((key, both));
            }
        }
        chosen.map(|(_, both)| both)
    }
}

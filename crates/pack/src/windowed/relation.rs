//! Which differences of two offsets are legal if the blocks occupy only windows of their bytes at some positions.
//!
//! At a position at which one block occupies its bytes `p..q` and another its bytes `r..s`, the difference *d* of their offsets is illegal if
//! `r - q < d < s - p`: an open interval. Two rules combine these intervals over all common positions:
//! - [`Rule::Ordered`], MiniMalloc's: one of the two lies below the other wherever they meet, so the hull of all intervals is illegal. Every
//!   placement obeys it (`Buffer::effective_size` in MiniMalloc is an end of this hull).
//! - [`Rule::Bytes`]: no byte is shared, so the union of the intervals is illegal. Two blocks may then pass each other, one above at one
//!   position and below at another. Proofs hold under this weaker rule too.

use elbowroom_ir::packing::{Block, Interval, Problem};

use crate::instance::Instance;

/// How the illegal differences at several positions are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Ordered,
    Bytes,
}

/// What one item occupies, in order of time: positions, first byte, first free byte above.
type Parts = Vec<(Interval, i64, i64)>;

/// The items of an instance with what they occupy. Numbers are signed, because windows make differences negative; they are below 2^63.
pub(crate) struct Occupancy {
    pub(crate) parts: Vec<Parts>,
    pub(crate) size: Vec<i64>,
    pub(crate) align: Vec<i64>,
    pub(crate) fixed: Vec<Option<i64>>,
}

fn parts(block: &Block) -> Parts {
    let mut parts: Parts = block.parts().map(|(during, from, to)| (during, from as i64, to as i64)).collect();
    parts.sort_unstable();
    parts
}

impl Occupancy {
    /// The blocks of a problem that are items of an instance.
    pub(crate) fn new(problem: &Problem, instance: &Instance) -> Self {
        let blocks = problem.blocks.as_slice();
        let of = |block: u32| &blocks[block as usize];
        Self {
            parts: instance.items.iter().map(|item| parts(of(item.block))).collect(),
            size: instance.items.iter().map(|item| item.bytes as i64).collect(),
            align: instance.items.iter().map(|item| item.align as i64).collect(),
            fixed: instance.items.iter().map(|i| of(i.block).fixed.map(|at| at.get() as i64)).collect(),
        }
    }

    /// Calls `visit` with the illegal interval of `x[a] - x[b]` at each pair of parts that share positions.
    fn each_meeting(&self, a: usize, b: usize, mut visit: impl FnMut(i64, i64)) {
        let (xs, ys) = (&self.parts[a], &self.parts[b]);
        let (mut i, mut j) = (0, 0);
        while let (Some(&(x, p, q)), Some(&(y, r, s))) = (xs.get(i), ys.get(j)) {
            if x.overlaps(y) {
                visit(r - q, s - p);
            }
            if x.end <= y.end {
                i += 1;
            } else {
                j += 1;
            }
        }
    }

    /// The open interval of illegal differences `x[a] - x[b]` under [`Rule::Ordered`]; `None` if the two never meet.
    pub(crate) fn ordered(&self, a: usize, b: usize) -> Option<(i64, i64)> {
        let mut hull: Option<(i64, i64)> = None;
        self.each_meeting(a, b, |low, high| {
            hull = Some(hull.map_or((low, high), |(l, h)| (l.min(low), h.max(high))));
        });
        hull
    }

    /// The disjoint open intervals of illegal differences `x[a] - x[b]`, ascending.
    pub(crate) fn illegal(&self, a: usize, b: usize, rule: Rule) -> Vec<(i64, i64)> {
        if rule == Rule::Ordered {
            return self.ordered(a, b).into_iter().collect();
        }
        let mut found = Vec::new();
        self.each_meeting(a, b, |low, high| found.push((low, high)));
        found.sort_unstable();
        let mut union: Vec<(i64, i64)> = Vec::with_capacity(found.len());
        for (low, high) in found {
            match union.last_mut() {
                // Open intervals that only touch leave the point between them legal.
                Some(last) if low < last.1 => last.1 = last.1.max(high),
                _ => union.push((low, high)),
            }
        }
        union
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::Bytes;
    use elbowroom_ir::packing::Window;

    use super::*;

    #[test]
    fn the_hull_forbids_what_the_union_allows() {
        let mut holed = Block::new(0, 2, Bytes(10));
        holed.alive = Vec::new();
        let window = |start, from, to| Window {
            during: Interval::new(start, start + 1),
            from: Bytes(from),
            to: Bytes(to),
        };
        holed.windows = vec![window(0, 0, 2), window(1, 8, 10)];
        let occupancy = Occupancy {
            parts: vec![parts(&holed), parts(&Block::new(0, 2, Bytes(3)))],
            size: vec![10, 3],
            align: vec![1, 1],
            fixed: vec![None, None],
        };
        assert_eq!(occupancy.illegal(0, 1, Rule::Ordered), [(-10, 3)]);
        assert_eq!(occupancy.illegal(0, 1, Rule::Bytes), [(-10, -5), (-2, 3)]);
        assert_eq!(occupancy.illegal(1, 0, Rule::Ordered), [(-3, 10)]);
    }
}

//! The arena as the checker sees it: for every byte, the value it is part of and who touched it last.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::{ActionId, TensorId};

/// What a byte is part of: a value whose first byte lies at `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// The value.
    pub value: TensorId,
    /// Address of its first byte.
    pub base: u64,
}

/// A run of neighbouring bytes with one history.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cell {
    /// One past the last byte.
    pub end: u64,
    /// What the bytes are part of; `None` for what no one may read: scratch, or nothing yet.
    pub content: Option<Content>,
    /// The last action that wrote them.
    pub writer: Option<ActionId>,
    /// The last action on each lane that has read them since.
    pub readers: [Option<ActionId>; 3],
}

/// Disjoint cells by first byte. Bytes in no cell were never touched.
#[derive(Default)]
pub struct Arena {
    cells: BTreeMap<u64, Cell>,
}

impl Arena {
    /// The cells that make up exactly `range`, ascending: those across its ends are split, and gaps filled.
    pub fn tile(&mut self, range: Range<u64>) -> impl Iterator<Item = (u64, &mut Cell)> {
        self.split(range.start);
        self.split(range.end);
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (&start, cell) in self.cells.range(range.clone()) {
            if at < start {
                gaps.push((at, start));
            }
            at = cell.end;
        }
        if at < range.end {
            gaps.push((at, range.end));
        }
        for (start, end) in gaps {
            self.cells.insert(start, Cell { end, ..Cell::default() });
        }
        self.cells.range_mut(range).map(|(&start, cell)| (start, cell))
    }

    /// Replaces all history of `range`.
    pub fn overwrite(&mut self, range: Range<u64>, content: Option<Content>, writer: Option<ActionId>) {
        self.split(range.start);
        self.split(range.end);
        let covered: Vec<u64> = self.cells.range(range.clone()).map(|(&start, _)| start).collect();
        for start in covered {
            self.cells.remove(&start);
        }
        self.cells.insert(range.start, Cell { end: range.end, content, writer, readers: [None; 3] });
    }

    /// Makes sure that no cell has `at` inside it.
    fn split(&mut self, at: u64) {
        if let Some((_, cell)) = self.cells.range_mut(..at).next_back()
            && cell.end > at
        {
            let upper = *cell;
            cell.end = at;
            self.cells.insert(at, upper);
        }
    }
}

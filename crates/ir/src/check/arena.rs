//! The checker's model of the arena: for every byte, the tensor that it belongs to and its last accesses.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::{ActionId, TensorId};

/// The tensor that a byte belongs to, whose first byte lies at `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteContent {
    /// The tensor.
    pub value: TensorId,
    /// Address of its first byte.
    pub base: u64,
}

/// Consecutive bytes with one history.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cell {
    /// One past the last byte.
    pub end: u64,
    /// What the bytes belong to; `None` for bytes that may not be read: workspaces and unwritten bytes.
    pub content: Option<ByteContent>,
    /// The last action that wrote them.
    pub writer: Option<ActionId>,
    /// The last action on each stream that has read them since.
    pub readers: [Option<ActionId>; 3],
}

/// Disjoint cells by first byte. Bytes in no cell were never accessed.
#[derive(Default)]
pub struct Arena {
    cells: BTreeMap<u64, Cell>,
}

impl Arena {
    /// The cells that make up exactly `range`, ascending: cells across its ends are split, and gaps filled.
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
    pub fn overwrite(&mut self, range: Range<u64>, content: Option<ByteContent>, writer: Option<ActionId>) {
        self.split(range.start);
        self.split(range.end);
        let covered: Vec<u64> = self.cells.range(range.clone()).map(|(&start, _)| start).collect();
        for start in covered {
            self.cells.remove(&start);
        }
        self.cells.insert(range.start, Cell { end: range.end, content, writer, readers: [None; 3] });
    }

    /// Splits the cell that has `at` inside it, if there is one.
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

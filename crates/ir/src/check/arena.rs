//! The checker's model of the arena: for every byte, the tensor that it belongs to and its last accesses; and the bytes of the live buffers.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::{ActionId, BufferId, TensorId};

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

/// The bytes of the live buffers.
#[derive(Default)]
pub struct LiveRanges {
    /// Buffers that overlap none of the others here, by first byte, with the byte after the last.
    disjoint: BTreeMap<u64, (BufferId, u64)>,
    /// Buffers that overlapped another one when they were inserted. In a legal plan there are none.
    others: BTreeMap<BufferId, Range<u64>>,
}

impl LiveRanges {
    /// Maximum number of overlaps that one insertion finds in each map, so that an illegal plan does not take longer than a legal one.
    const LISTED: usize = 50;

    /// Adds a buffer of at least one byte and returns the live buffers that overlap it.
    pub fn insert(&mut self, buffer: BufferId, range: Range<u64>) -> Vec<(BufferId, Range<u64>)> {
        // Disjoint ranges end in the order in which they start, so the overlapping ones are the last that start before the end.
        let before =
            self.disjoint.range(..range.end).rev().map(|(&start, &(other, end))| (other, start..end));
        let mut overlapping: Vec<_> =
            before.take_while(|(_, taken)| range.start < taken.end).take(Self::LISTED).collect();
        let others = self.others.iter().take(Self::LISTED).map(|(&other, taken)| (other, taken.clone()));
        let is_disjoint = overlapping.is_empty();
        overlapping.extend(others.filter(|(_, taken)| range.start < taken.end && taken.start < range.end));
        if is_disjoint {
            self.disjoint.insert(range.start, (buffer, range.end));
        } else {
            self.others.insert(buffer, range);
        }
        overlapping
    }

    /// Removes a buffer that starts at a byte.
    pub fn remove(&mut self, buffer: BufferId, start: u64) {
        if self.others.remove(&buffer).is_none() {
            self.disjoint.remove(&start);
        }
    }

    /// The live buffers.
    pub fn buffers(&self) -> impl Iterator<Item = BufferId> {
        self.disjoint.values().map(|&(buffer, _)| buffer).chain(self.others.keys().copied())
    }
}

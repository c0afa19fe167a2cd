//! The validator of every placement: a sweep over time that shares no code with the packers.
//!
//! At every position the occupied bytes are kept in order of their offsets. A range that begins is compared with its two neighbours: if all
//! ranges were disjoint before, it can overlap no other without overlapping one of them.

use std::collections::BTreeMap;

use elbowroom_ir::packing::{Placement, Problem};
use elbowroom_ir::{BufferId, Bytes};

/// Why a placement is illegal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The number of offsets is not the number of blocks.
    #[error("{blocks} blocks but {offsets} offsets")]
    Length {
        /// Number of blocks.
        blocks: usize,
        /// Number of offsets.
        offsets: usize,
    },
    /// An offset is not a multiple of the block's alignment.
    #[error("{block} lies at offset {offset}, which is not a multiple of its alignment {align}")]
    Misaligned {
        /// The block.
        block: BufferId,
        /// Its offset, in bytes.
        offset: u64,
        /// Its alignment, in bytes.
        align: u64,
    },
    /// A fixed block was moved.
    #[error("{block} is fixed at offset {fixed} but lies at {offset}")]
    Moved {
        /// The block.
        block: BufferId,
        /// The required offset, in bytes.
        fixed: u64,
        /// The offset in the placement, in bytes.
        offset: u64,
    },
    /// Two blocks that are alive together share bytes.
    #[error("{a} and {b} are alive at the same position and share bytes")]
    Overlap {
        /// The block with the lower id.
        a: BufferId,
        /// The other block.
        b: BufferId,
    },
    /// Two blocks lie in different orders at different positions, which windows permit but MiniMalloc's rule forbids.
    #[error("{a} lies below {b} at one position and above it at another")]
    Passing {
        /// The block with the lower id.
        a: BufferId,
        /// The other block.
        b: BufferId,
    },
    /// The stated height is not the highest end of any block.
    #[error("the height is stated as {stated} bytes but the blocks end at {actual}")]
    Height {
        /// The stated height, in bytes.
        stated: u64,
        /// The highest end, in bytes.
        actual: u64,
    },
    /// The height is above the capacity.
    #[error("the height of {height} bytes is above the capacity of {capacity} bytes")]
    Capacity {
        /// The height, in bytes.
        height: u64,
        /// The capacity, in bytes.
        capacity: u64,
    },
}

/// Checks that a placement is legal: its alignments, fixed offsets, stated height and capacity, that blocks that are alive together share
/// no bytes, and that blocks with windows do not pass each other. About n log n without windows. A block of zero bytes never shares bytes.
///
/// # Errors
///
/// The first violation found.
pub fn validate(problem: &Problem, placement: &Placement) -> Result<(), PlacementError> {
    if placement.offsets.len() != problem.blocks.len() {
        return Err(PlacementError::Length {
            blocks: problem.blocks.len(),
            offsets: placement.offsets.len(),
        });
    }
    let mut actual = 0u64;
    for (block, b) in problem.blocks.iter() {
        let offset = placement.offsets[block].get();
        if !offset.is_multiple_of(b.align.get()) {
            return Err(PlacementError::Misaligned { block, offset, align: b.align.get() });
        }
        if let Some(fixed) = b.fixed
            && fixed.get() != offset
        {
            return Err(PlacementError::Moved { block, fixed: fixed.get(), offset });
        }
        actual = actual.max(offset.saturating_add(b.size.get()));
    }
    no_shared_bytes(problem, placement)?;
    no_passing(problem, placement)?;
    if placement.height != Bytes(actual) {
        return Err(PlacementError::Height { stated: placement.height.get(), actual });
    }
    if let Some(capacity) = problem.capacity
        && capacity < placement.height
    {
        return Err(PlacementError::Capacity { height: actual, capacity: capacity.get() });
    }
    Ok(())
}

/// The error for two blocks that share bytes.
fn overlap(a: BufferId, b: BufferId) -> PlacementError {
    PlacementError::Overlap { a: a.min(b), b: a.max(b) }
}

/// The sweep. An event is the position, whether a range begins there (ends come first), its bytes and its block.
fn no_shared_bytes(problem: &Problem, placement: &Placement) -> Result<(), PlacementError> {
    let mut events: Vec<(u64, bool, u64, u64, BufferId)> = Vec::with_capacity(2 * problem.blocks.len());
    for (id, block) in problem.blocks.iter() {
        let offset = placement.offsets[id].get();
        for (during, from, to) in block.parts() {
            let (first, end) = (offset.saturating_add(from), offset.saturating_add(to));
            if first < end {
                events.push((during.start, true, first, end, id));
                events.push((during.end, false, first, end, id));
            }
        }
    }
    events.sort_unstable();
    let mut occupied: BTreeMap<u64, (u64, BufferId)> = BTreeMap::new();
    for (_, begins, first, end, id) in events {
        if !begins {
            occupied.remove(&first);
            continue;
        }
        // The last range that begins below this one's end is its neighbour below, or lies within it.
        if let Some((_, &(below, other))) = occupied.range(..end).next_back()
            && below > first
        {
            return Err(overlap(id, other));
        }
        occupied.insert(first, (end, id));
    }
    Ok(())
}

/// Two blocks of which one has windows may share no byte and yet pass each other: one above at one position and below at another. Compares
/// each block that has windows with those that are alive in its lifetime.
fn no_passing(problem: &Problem, placement: &Placement) -> Result<(), PlacementError> {
    let windowed: Vec<BufferId> =
        problem.blocks.iter().filter(|(_, block)| !block.windows.is_empty()).map(|(id, _)| id).collect();
    if windowed.is_empty() {
        return Ok(());
    }
    let extent = |id: BufferId| {
        let parts = problem.blocks[id].parts();
        parts.fold((u64::MAX, 0), |(lo, hi), (during, ..)| (during.start.min(lo), during.end.max(hi)))
    };
    let mut starts: Vec<(u64, u64, BufferId)> = problem
        .blocks
        .ids()
        .map(|id| {
            let (lo, hi) = extent(id);
            (lo, hi, id)
        })
        .collect();
    starts.sort_unstable();
    // The latest end of the blocks up to each, so that those that have ended need not be looked at.
    let mut latest = 0;
    let latest: Vec<u64> = starts
        .iter()
        .map(|&(_, hi, _)| {
            latest = hi.max(latest);
            latest
        })
        .collect();
    for a in windowed {
        let (lo, hi) = extent(a);
        let first = latest.partition_point(|&end| end <= lo);
        let last = starts.partition_point(|&(start, ..)| start < hi);
        for &(_, end, b) in &starts[first.min(last)..last] {
            if b != a && end > lo && passes(problem, placement, a, b) {
                return Err(PlacementError::Passing { a: a.min(b), b: a.max(b) });
            }
        }
    }
    Ok(())
}

/// Whether one block lies above the other at one position and below it at another.
fn passes(problem: &Problem, placement: &Placement, a: BufferId, b: BufferId) -> bool {
    let (x, y) = (placement.offsets[a].get(), placement.offsets[b].get());
    let (mut above, mut below) = (false, false);
    for (during, from, to) in problem.blocks[a].parts() {
        for (other, first, end) in problem.blocks[b].parts() {
            // No bytes lie neither above nor below others.
            if during.overlaps(other) && from < to && first < end {
                above |= x.saturating_add(from) >= y.saturating_add(end);
                below |= x.saturating_add(to) <= y.saturating_add(first);
            }
        }
    }
    above && below
}

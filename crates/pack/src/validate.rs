//! The validator of every placement: a quadratic comparison of pairs that shares no code with the packers.

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

/// Checks that a placement is legal: its alignments, fixed offsets, stated height and capacity, and that blocks that are alive together share
/// no bytes.
///
/// Compares every pair of blocks, interval by interval. A block of zero bytes never shares bytes.
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
    let bytes = |id: BufferId| {
        let start = placement.offsets[id].get();
        (start, start.saturating_add(problem.blocks[id].size.get()))
    };
    for (a, x) in problem.blocks.iter() {
        for (b, y) in problem.blocks.iter().skip(a.0 as usize + 1) {
            let ((from_a, to_a), (from_b, to_b)) = (bytes(a), bytes(b));
            let shared = from_a.max(from_b) < to_a.min(to_b);
            if shared && x.conflicts(y) {
                return Err(PlacementError::Overlap { a, b });
            }
        }
    }
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

//! The judge of every packer: quadratic, plain, and sharing no code with them.

use elbowroom_ir::packing::{Placement, Problem};
use elbowroom_ir::{BufferId, Bytes};

/// What is wrong with a placement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// Not one offset per block.
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
        /// Where it must lie.
        fixed: u64,
        /// Where it lies.
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
    /// The stated height is not the largest end of any block.
    #[error("the height is stated as {stated} bytes but the blocks end at {actual}")]
    Height {
        /// As stated.
        stated: u64,
        /// As it is.
        actual: u64,
    },
    /// The height is above the capacity.
    #[error("the height of {height} bytes is above the capacity of {capacity} bytes")]
    Capacity {
        /// The height.
        height: u64,
        /// The capacity.
        capacity: u64,
    },
}

/// Whether a placement is legal: alignments, fixed offsets, no shared bytes at any shared position, the stated height, the capacity.
///
/// Compares every pair of blocks, interval by interval. A block of no bytes shares bytes with nobody.
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

//! The lowest height by brute force.

use elbowroom_ir::packing::{Block, Problem};

use crate::legal::{Rule, legal};

/// The lowest height of at most `most` bytes, by trying every offset of every block.
pub fn brute_force(problem: &Problem, rule: Rule, most: u64) -> Option<u64> {
    fn extend(blocks: &[Block], offsets: &mut Vec<u64>, height: u64, rule: Rule) -> bool {
        let Some(block) = blocks.get(offsets.len()) else { return true };
        for offset in 0..=height.saturating_sub(block.size.get()) {
            let fits = offset + block.size.get() <= height
                && offset.is_multiple_of(block.align.get())
                && block.fixed.is_none_or(|fixed| fixed.get() == offset)
                && blocks.iter().zip(offsets.iter()).all(|(b, &y)| legal(block, offset, b, y, rule));
            if fits {
                offsets.push(offset);
                if extend(blocks, offsets, height, rule) {
                    return true;
                }
                offsets.pop();
            }
        }
        false
    }
    (0..=most).find(|&height| extend(problem.blocks.as_slice(), &mut Vec::new(), height, rule))
}

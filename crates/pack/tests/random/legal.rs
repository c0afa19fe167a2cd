//! Whether two blocks may have two offsets, position by position: what brute force is made of.

use elbowroom_ir::packing::Block;

/// How two blocks may lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// No byte is shared at any position.
    Bytes,
    /// The same one of the two is below wherever they meet.
    Ordered,
}

/// Whether two offsets are legal, position by position.
pub fn legal(a: &Block, x: u64, b: &Block, y: u64, rule: Rule) -> bool {
    let at = |block: &Block, position: u64| {
        let there = |&(during, ..): &(elbowroom_ir::packing::Interval, u64, u64)| {
            during.start <= position && position < during.end
        };
        block.parts().find(there).map(|(_, from, to)| (from, to))
    };
    let (mut above, mut below) = (true, true);
    for position in 0..40 {
        if let (Some((p, q)), Some((r, s))) = (at(a, position), at(b, position)) {
            if p == q || r == s {
                continue;
            }
            if x + q > y + r && y + s > x + p {
                return false;
            }
            above &= x + p >= y + s;
            below &= x + q <= y + r;
        }
    }
    rule == Rule::Bytes || above || below
}

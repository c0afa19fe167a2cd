//! Turns arbitrary bytes into a problem, packs it with every packer, and judges the results. Shared by the fuzz target and a unit test.

use arbitrary::{Result, Unstructured};
use elbowroom_ir::Bytes;
use elbowroom_ir::packing::{Block, Interval, Problem};
use elbowroom_ir::search::{Budget, Silent, StopReason};
use elbowroom_pack::{PACKERS, csv, validate};

fn block(bytes: &mut Unstructured<'_>) -> Result<Block> {
    let start = bytes.int_in_range(0..=20u64)?;
    let mut block =
        Block::new(start, start + bytes.int_in_range(1..=12u64)?, Bytes(bytes.int_in_range(0..=40u64)?));
    block.align = Bytes(*bytes.choose(&[1, 1, 1, 2, 3, 8])?);
    if bytes.ratio(1, 6)? {
        let again = block.alive[0].end + bytes.int_in_range(0..=4u64)?;
        block.alive.push(Interval::new(again, again + bytes.int_in_range(1..=5u64)?));
    }
    if bytes.ratio(1, 8)? {
        block.fixed = Some(Bytes(block.align.get() * bytes.int_in_range(0..=30u64)?));
    }
    Ok(block)
}

/// Panics if a packer gives an illegal placement, or says something that cannot be.
pub fn check(bytes: &mut Unstructured<'_>) -> Result<()> {
    if let Ok(text) = std::str::from_utf8(bytes.peek_bytes(bytes.len().min(200)).unwrap_or_default()) {
        // Any text gives buffers or an error.
        drop(csv::read(text));
    }
    let len = bytes.int_in_range(0..=14usize)?;
    let blocks = (0..len).map(|_| block(bytes)).collect::<Result<Vec<_>>>()?;
    let capacity = if bytes.ratio(1, 3)? { Some(Bytes(bytes.int_in_range(0..=150u64)?)) } else { None };
    let problem = Problem { blocks: blocks.into(), capacity };
    assert_eq!(problem.validate(), Ok(()));
    let budget = Budget {
        seed: bytes.arbitrary()?,
        threads: 1 + usize::from(bytes.arbitrary::<bool>()?),
        ..Budget::evaluations(8)
    };
    // The mixed-integer program is too slow for this many problems.
    for packer in PACKERS.iter().filter(|packer| packer.name() != "mip") {
        let outcome = packer.pack(&problem, &budget, &Silent);
        match outcome.best {
            Some(placement) => {
                assert_eq!(validate(&problem, &placement), Ok(()), "{} on {problem:?}", packer.name())
            }
            None => assert!(
                matches!(outcome.stop, StopReason::Infeasible(_)) || problem.capacity.is_some(),
                "{} on {problem:?}",
                packer.name()
            ),
        }
    }
    Ok(())
}

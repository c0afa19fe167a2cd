//! Sizes that sums stay far from overflow with.

use elbowroom_ir::Bytes;

use super::Task;

/// More bytes than all tensors and workspaces of a trace may take together.
const LARGEST: u64 = 1 << 60;

/// The buffers of a trace are larger than any memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its tensors take more than 1 EiB together if each starts at a multiple of {} bytes; use a smaller alignment",
    align.get()
)]
pub struct TooLarge {
    /// The machine's alignment.
    pub align: Bytes,
}

/// Refuses a task whose buffers, each rounded up to the alignment, take more than 1 EiB together: sums of sizes and offsets are then far from
/// overflow.
///
/// # Errors
///
/// [`TooLarge`].
pub fn expect(task: &Task) -> Result<(), TooLarge> {
    let align = task.machine.align;
    let rounded = |bytes: Bytes| u128::from(bytes.get()).next_multiple_of(u128::from(align.get()));
    let storages = task.trace.storages().values().map(|storage| rounded(storage.bytes));
    let workspaces = task.trace.ops().values().map(|op| rounded(op.workspace));
    if storages.chain(workspaces).sum::<u128>() > u128::from(LARGEST) {
        return Err(TooLarge { align });
    }
    Ok(())
}

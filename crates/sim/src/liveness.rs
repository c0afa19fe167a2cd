//! When every buffer of a schedule is alive, in positions of its total order.
//!
//! A buffer is alive from the action that first writes it to its release, half-open. A boundary buffer is alive at the start and at the end
//! of the iteration; if it is released and taken again in between, it has two intervals and one offset. A workspace is alive at one
//! position.

use elbowroom_ir::machine::Machine;
use elbowroom_ir::packing::{Block, Interval, Problem};
use elbowroom_ir::schedule::{Action, Schedule};
use elbowroom_ir::{BufferId, Bytes, Id, Table};

/// The intervals of positions in which every buffer is alive. A buffer that no action accesses has none; a buffer that is never released
/// lives to the end. Ids past the buffer table are ignored; the checker reports them.
pub fn lifetimes(schedule: &Schedule) -> Table<BufferId, Vec<Interval>> {
    let mut alive: Table<BufferId, Vec<Interval>> = Table::filled(schedule.buffers.len(), Vec::new());
    let mut since: Table<BufferId, Option<u64>> = Table::filled(schedule.buffers.len(), None);
    for at_boundary in &schedule.boundary {
        if let Some(buffer) = at_boundary.device.filter(|b| b.index() < since.len()) {
            since[buffer] = Some(0);
        }
    }
    let open = |since: &mut Table<BufferId, Option<u64>>, buffer: BufferId, position: u64| {
        if buffer.index() < since.len() {
            since[buffer].get_or_insert(position);
        }
    };
    for (id, step) in schedule.steps.iter() {
        let position = id.index() as u64;
        match &step.action {
            Action::Compute(launch) | Action::Recompute(launch) => {
                for &buffer in &launch.writes {
                    open(&mut since, buffer, position);
                }
                if let Some(buffer) = launch.workspace.filter(|b| b.index() < alive.len()) {
                    alive[buffer].push(Interval::new(position, position + 1));
                }
            }
            Action::Prefetch { to, .. } => open(&mut since, *to, position),
            Action::Release { buffer } if buffer.index() < since.len() => {
                if let Some(start) = since[*buffer].take()
                    && start < position
                {
                    alive[*buffer].push(Interval::new(start, position));
                }
            }
            Action::Release { .. } | Action::Offload { .. } | Action::HostRelease { .. } => {}
        }
    }
    let end = schedule.steps.len() as u64;
    for (buffer, start) in since.iter() {
        if let &Some(start) = start
            && start < end
        {
            alive[buffer].push(Interval::new(start, end));
        }
    }
    alive
}

/// The placement problem of a schedule. A block's size is its buffer's size rounded up to the machine's alignment, so that the problem's
/// peak memory equals the one that planners count, and a placement of that height can exist. The capacity is left open. The last byte in
/// use may lie slightly below the height of a placement of these blocks; [`height`] computes the exact end.
pub fn problem(schedule: &Schedule, machine: &Machine) -> Problem {
    let blocks = schedule
        .buffers
        .values()
        .zip(lifetimes(schedule).values())
        .map(|(buffer, alive)| {
            // A buffer without accesses occupies nothing; it keeps its id, with an interval that conflicts with no other.
            let (size, alive) = if alive.is_empty() {
                (Bytes::ZERO, vec![Interval::new(0, 1)])
            } else {
                (buffer.bytes.align_up(machine.align), alive.clone())
            };
            Block { size, alive, windows: Vec::new(), align: machine.align, fixed: None, hint: None }
        })
        .collect();
    Problem { blocks, capacity: None }
}

/// The arena size of a placement by the true sizes of a schedule's buffers, in bytes: what a plan states and a run measures.
pub fn height(schedule: &Schedule, offsets: &Table<BufferId, Bytes>) -> Bytes {
    let ends = schedule.buffers.values().zip(offsets.values()).map(|(buffer, &offset)| offset + buffer.bytes);
    ends.max().unwrap_or_default()
}

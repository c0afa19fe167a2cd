//! Live memory at every position of a schedule.

use elbowroom_ir::machine::Machine;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::{ActionId, BufferId, Bytes, Id, Table};

use crate::liveness::lifetimes;

/// Live memory of a schedule over its positions, in bytes; each buffer counts at its size rounded up to the machine's alignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveMemory {
    /// Live bytes at every position.
    pub curve: Table<ActionId, Bytes>,
    /// Peak memory; zero for an empty schedule.
    pub peak: Bytes,
    /// The first position at which the peak is reached; `None` for an empty schedule.
    pub at: Option<ActionId>,
}

impl LiveMemory {
    /// Sums the lifetimes of a schedule, in time linear in actions and buffers.
    pub fn of(schedule: &Schedule, machine: &Machine) -> Self {
        let positions = schedule.steps.len();
        let (mut opened, mut closed) = (vec![0u64; positions + 1], vec![0u64; positions + 1]);
        for (buffer, alive) in lifetimes(schedule).iter() {
            let bytes = schedule.buffers[buffer].bytes.align_up(machine.align).get();
            for interval in alive {
                opened[interval.start as usize] += bytes;
                closed[interval.end as usize] += bytes;
            }
        }
        let mut load = 0;
        let curve: Table<ActionId, Bytes> = (0..positions)
            .map(|p| {
                load = load + opened[p] - closed[p];
                Bytes(load)
            })
            .collect();
        let peak = curve.values().copied().max().unwrap_or_default();
        let at = curve.iter().find(|&(_, &bytes)| bytes == peak).map(|(id, _)| id);
        Self { curve, peak, at }
    }
}

/// The buffers alive at a position, ascending; at the position of the peak, those that cause it.
pub fn alive_at(schedule: &Schedule, position: ActionId) -> Vec<BufferId> {
    let position = position.index() as u64;
    let covers = |alive: &[elbowroom_ir::packing::Interval]| {
        alive.iter().any(|interval| interval.start <= position && position < interval.end)
    };
    lifetimes(schedule).iter().filter(|(_, alive)| covers(alive)).map(|(id, _)| id).collect()
}

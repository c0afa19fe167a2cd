//! Placements without optimization.

use ::arbitrary::{Result, Unstructured};

use crate::packing::{Interval, Placement};
use crate::schedule::{Action, Schedule};
use crate::{BufferId, Bytes, Table};

/// Places the buffers of a schedule in a drawn order, each at the lowest aligned offset that no buffer alive at the same position takes.
/// The schedule's ids must exist.
pub fn placement(u: &mut Unstructured<'_>, schedule: &Schedule, align: Bytes) -> Result<Placement> {
    let alive = residencies(schedule);
    let buffers = &schedule.buffers;
    let mut order: Vec<BufferId> = buffers.ids().collect();
    for last in (1..order.len()).rev() {
        if u.ratio(1, 2)? {
            order.swap(last, u.int_in_range(0..=last)?);
        }
    }
    let mut offsets: Table<BufferId, Option<Bytes>> = Table::filled(buffers.len(), None);
    for &buffer in &order {
        let mut taken: Vec<(Bytes, Bytes)> = Vec::new();
        for (other, offset) in offsets.iter() {
            let meet = alive[buffer].iter().any(|a| alive[other].iter().any(|b| a.overlaps(*b)));
            if let Some(offset) = *offset
                && meet
            {
                taken.push((offset, offset + buffers[other].bytes));
            }
        }
        taken.sort_unstable();
        let mut offset = Bytes::ZERO;
        for (start, end) in taken {
            if offset + buffers[buffer].bytes <= start {
                break;
            }
            offset = offset.max(end.align_up(align));
        }
        offsets[buffer] = Some(offset);
    }
    let offsets: Table<BufferId, Bytes> = offsets.values().map(|offset| offset.unwrap_or_default()).collect();
    let ends = buffers.iter().map(|(id, buffer)| offsets[id] + buffer.bytes);
    let height = ends.max().unwrap_or_default();
    Ok(Placement { offsets, height })
}

/// The positions at which each buffer is alive: from its first write, or from the start for a boundary buffer, to its release.
fn residencies(schedule: &Schedule) -> Table<BufferId, Vec<Interval>> {
    let mut alive: Table<BufferId, Vec<Interval>> = Table::filled(schedule.buffers.len(), Vec::new());
    let begin = |alive: &mut Table<BufferId, Vec<Interval>>, buffer: BufferId, position: u64| {
        if alive[buffer].last().is_none_or(|last| last.end <= position) {
            alive[buffer].push(Interval::new(position, u64::MAX));
        }
    };
    for at_boundary in &schedule.boundary {
        at_boundary.device.into_iter().for_each(|buffer| begin(&mut alive, buffer, 0));
    }
    for (id, step) in schedule.steps.iter() {
        let position = u64::from(id.0);
        match &step.action {
            Action::Compute(launch) | Action::Recompute(launch) => {
                for &buffer in &launch.writes {
                    begin(&mut alive, buffer, position);
                }
                if let Some(buffer) = launch.workspace {
                    alive[buffer].push(Interval::new(position, position + 1));
                }
            }
            &Action::Prefetch { to, .. } => begin(&mut alive, to, position),
            &Action::Release { buffer } => {
                if let Some(last) = alive[buffer].last_mut() {
                    last.end = position;
                }
            }
            Action::Offload { .. } | Action::HostRelease { .. } => {}
        }
    }
    alive
}

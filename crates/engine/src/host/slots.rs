//! Where on the host every offloaded value lies: decided once per plan, so that a copy only has to look up a number.
//!
//! A *host copy* lives from its offload (or the iteration's beginning) to its `HostRelease` (or the iteration's end). Copies that are
//! alive at the same position lie apart; otherwise they may share bytes. Placed largest first, each at the lowest offset that is free
//! (first fit decreasing). A copy into bytes that another copy had before must also wait until that one has been read for the last time:
//! plans do not say so, because they do not know host addresses, hence [`Copies::hazard`].
//!
//! **The boundary.** A persistent value whose home is on the host is there under the name `begin` when an iteration starts and under the
//! name `end` when it ends. If the first is given up before the second is made, both use one slot. If not, they have two slots and
//! exchange them between iterations.

use std::collections::HashMap;

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::packing::Interval;
use elbowroom_ir::schedule::Action;
use elbowroom_ir::{ActionId, Bytes, Id, Table, TensorId};

/// Host copies start at multiples of a page: a file system need not read what a page held before it is overwritten.
const ALIGN: usize = 4096;

/// One host copy of a plan, by its place in [`Copies`].
pub type CopyIndex = usize;

/// All host copies of a plan, placed.
#[derive(Debug, Default)]
pub struct Copies {
    /// First byte of every copy. Changes only between iterations.
    pub offsets: Vec<usize>,
    /// Bytes of host that all of them need.
    pub size: Bytes,
    /// The copy that an offload makes or a prefetch reads.
    pub of_action: Table<ActionId, Option<CopyIndex>>,
    /// For an offload: the prefetch after which the bytes it writes are no longer needed.
    pub hazard: Table<ActionId, Option<ActionId>>,
    /// For each persistent value of the trace: the copy in which the iteration finds it.
    pub homes: Vec<Option<CopyIndex>>,
    exchanges: Vec<(CopyIndex, CopyIndex)>,
}

#[derive(Debug)]
struct Copy {
    bytes: usize,
    alive: Interval,
    /// Whether bytes and place are its own throughout the iteration.
    alone: bool,
    /// Must lie where this copy lies.
    same_as: Option<CopyIndex>,
    offload: Option<ActionId>,
    last_read: Option<ActionId>,
}

impl Copies {
    /// Finds all host copies of a plan and places them.
    pub fn place(plan: &CheckedPlan) -> Self {
        let (trace, schedule) = (plan.trace(), plan.schedule());
        let end = schedule.steps.len() as u64 + 1;
        let mut copies: Vec<Copy> = Vec::new();
        let mut live: HashMap<TensorId, CopyIndex> = HashMap::new();
        let mut of_action = Table::filled(schedule.steps.len(), None);
        let mut add = |value: TensorId, start: u64, offload| {
            copies.push(Copy {
                bytes: trace.bytes(value).get() as usize,
                alive: Interval::new(start, end),
                alone: false,
                same_as: None,
                offload,
                last_read: None,
            });
            copies.len() - 1
        };
        // Positions are counted from 1, so that what exists at the beginning is older than the first action.
        let mut reads = Vec::new();
        let mut ends = Vec::new();
        for (persistent, home) in trace.persistent().iter().zip(&schedule.boundary) {
            if home.host {
                live.insert(persistent.begin, add(persistent.begin, 0, None));
            }
        }
        let begins: Vec<Option<CopyIndex>> =
            trace.persistent().iter().map(|persistent| live.get(&persistent.begin).copied()).collect();
        for (id, step) in schedule.steps.iter() {
            let position = id.index() as u64 + 1;
            match step.action {
                Action::Offload { value, .. } => {
                    let copy = add(value, position, Some(id));
                    live.insert(value, copy);
                    of_action[id] = Some(copy);
                }
                Action::Prefetch { value, .. } => {
                    of_action[id] = live.get(&value).copied();
                    reads.extend(of_action[id].map(|copy| (copy, id)));
                }
                Action::HostRelease { value } => {
                    ends.extend(live.remove(&value).map(|copy| (copy, position)))
                }
                Action::Compute(_) | Action::Recompute(_) | Action::Release { .. } => {}
            }
        }
        for (copy, id) in reads {
            copies[copy].last_read = Some(id);
        }
        for (copy, position) in ends {
            copies[copy].alive.end = position;
        }

        let mut exchanges = Vec::new();
        for (persistent, &begin) in trace.persistent().iter().zip(&begins) {
            let Some((begin, left)) = begin.zip(live.get(&persistent.end).copied()) else { continue };
            if begin == left {
                continue;
            }
            if copies[begin].alive.end <= copies[left].alive.start {
                copies[left].same_as = Some(begin);
            } else {
                (copies[begin].alone, copies[left].alone) = (true, true);
                exchanges.push((begin, left));
            }
        }

        let (offsets, size) = first_fit_decreasing(&copies);
        let mut hazard = Table::filled(schedule.steps.len(), None);
        for (later, copy) in copies.iter().enumerate() {
            let Some(offload) = copy.offload else { continue };
            let shares = |earlier: usize| {
                let other = &copies[earlier];
                offsets[earlier] < offsets[later] + copy.bytes
                    && offsets[later] < offsets[earlier] + other.bytes
            };
            let read = |earlier: usize| copies[earlier].last_read.filter(|&read| read < offload);
            hazard[offload] = (0..copies.len()).filter(|&c| c != later && shares(c)).filter_map(read).max();
        }
        Self { offsets, size: Bytes(size as u64), of_action, hazard, homes: begins, exchanges }
    }

    /// What was `end` becomes `begin`: to be called after every iteration.
    pub fn turn_over(&mut self) {
        for &(begin, end) in &self.exchanges {
            self.offsets.swap(begin, end);
        }
    }
}

fn first_fit_decreasing(copies: &[Copy]) -> (Vec<usize>, usize) {
    let conflict = |a: &Copy, b: &Copy| a.alone || b.alone || a.alive.overlaps(b.alive);
    // Copies that must lie together are placed together.
    let mut groups: Vec<Vec<CopyIndex>> = (0..copies.len()).map(|c| vec![c]).collect();
    for (index, copy) in copies.iter().enumerate() {
        if let Some(leader) = copy.same_as {
            groups[index].clear();
            groups[leader].push(index);
        }
    }
    groups.retain(|group| !group.is_empty());
    groups.sort_by_key(|group| (std::cmp::Reverse(copies[group[0]].bytes), group[0]));
    let (mut offsets, mut size) = (vec![0; copies.len()], 0);
    let mut placed: Vec<CopyIndex> = Vec::new();
    for group in groups {
        let bytes = copies[group[0]].bytes;
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&other| group.iter().any(|&member| conflict(&copies[member], &copies[other])))
            .map(|&other| (offsets[other], offsets[other] + copies[other].bytes))
            .collect();
        taken.sort_unstable();
        let mut offset: usize = 0;
        for (start, end) in taken {
            if offset + bytes <= start {
                break;
            }
            offset = offset.max(end.next_multiple_of(ALIGN));
        }
        for member in group {
            offsets[member] = offset;
            placed.push(member);
        }
        size = size.max(offset + bytes);
    }
    (offsets, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(bytes: usize, start: u64, end: u64) -> Copy {
        let alive = Interval::new(start, end);
        Copy { bytes, alive, alone: false, same_as: None, offload: None, last_read: None }
    }

    #[test]
    fn copies_alive_together_lie_apart_and_others_share() {
        let mut copies = vec![copy(100, 0, 5), copy(64, 5, 9), copy(64, 3, 9), copy(100, 7, 20)];
        copies[3].same_as = Some(0);
        copies.push(Copy { alone: true, ..copy(10, 0, 1) });
        let (offsets, size) = first_fit_decreasing(&copies);
        assert_eq!(offsets[0], offsets[3]);
        for a in 0..copies.len() {
            for b in 0..a {
                let apart =
                    offsets[a] + copies[a].bytes <= offsets[b] || offsets[b] + copies[b].bytes <= offsets[a];
                let together =
                    copies[a].alive.overlaps(copies[b].alive) || copies[a].alone || copies[b].alone;
                assert!(apart || !together, "{a} {b} {offsets:?}");
            }
        }
        assert!(offsets.iter().all(|offset| offset % ALIGN == 0));
        assert_eq!(size, offsets.iter().zip(&copies).map(|(o, c)| o + c.bytes).max().unwrap());
    }
}

//! Offsets of a plan's host copies, assigned once per plan, so that a copy only looks up a number.
//!
//! A *host copy* lives from its offload (or the start of the iteration) to its `HostRelease` (or the end of the iteration). Copies that are
//! alive at the same position do not overlap; others may share bytes. They are placed by first fit decreasing: largest first, each at the
//! lowest free offset. An offload into bytes that another copy used before must wait for the last prefetch of that copy. Plans contain no
//! host addresses and therefore no such wait, so it is added here: [`HostCopies::hazard`].
//!
//! **The boundary.** A persistent tensor that is on the host between iterations is called `begin` at the start of an iteration and `end` at
//! its end. If the copy of `begin` is released before the copy of `end` is made, both use the same bytes. Otherwise they have separate
//! bytes, which swap roles between iterations.

use std::collections::HashMap;

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::packing::Interval;
use elbowroom_ir::schedule::Action;
use elbowroom_ir::{ActionId, Bytes, Id, Table, TensorId};

/// Large host copies start at multiples of a page, so that a file system need not read a page before overwriting it.
const PAGE: usize = 4096;
/// From this size on a host copy is large: the bytes that it leaves unused are one part in 16 at most. Smaller copies share pages.
const LARGE: usize = 16 * PAGE;
/// Small host copies start at multiples of an element's size.
const ELEMENT: usize = 4;

const fn alignment(bytes: usize) -> usize {
    if bytes < LARGE { ELEMENT } else { PAGE }
}

/// Index of a host copy in [`HostCopies`].
pub type CopyIndex = usize;

/// All host copies of a plan with their offsets.
#[derive(Debug, Default)]
pub struct HostCopies {
    /// Offset of every copy, in bytes. Changes only between iterations.
    pub offsets: Vec<usize>,
    /// Size of the host tier that they need, in bytes.
    pub size: Bytes,
    /// The copy that an offload makes or a prefetch reads.
    pub of_action: Table<ActionId, Option<CopyIndex>>,
    /// For an offload: the prefetch that must finish before the offload may overwrite its bytes.
    pub hazard: Table<ActionId, Option<ActionId>>,
    /// For each persistent tensor of the trace: its copy at the start of an iteration.
    pub at_begin: Vec<Option<CopyIndex>>,
    exchanges: Vec<(CopyIndex, CopyIndex)>,
}

#[derive(Debug)]
struct HostCopy {
    bytes: usize,
    alive: Interval,
    /// Whether its bytes are shared with no other copy throughout the iteration.
    exclusive: bool,
    /// The copy at whose offset it must lie.
    same_as: Option<CopyIndex>,
    offload: Option<ActionId>,
    last_read: Option<ActionId>,
}

impl HostCopies {
    /// Collects the host copies of a plan and assigns their offsets.
    pub fn place(plan: &CheckedPlan) -> Self {
        let (trace, schedule) = (plan.trace(), plan.schedule());
        let end = schedule.steps.len() as u64 + 1;
        let mut copies: Vec<HostCopy> = Vec::new();
        let mut live: HashMap<TensorId, CopyIndex> = HashMap::new();
        let mut of_action = Table::filled(schedule.steps.len(), None);
        let mut add = |value: TensorId, start: u64, offload| {
            copies.push(HostCopy {
                bytes: trace.bytes(value).get() as usize,
                alive: Interval::new(start, end),
                exclusive: false,
                same_as: None,
                offload,
                last_read: None,
            });
            copies.len() - 1
        };
        // Positions count from 1; copies that exist at the start of the iteration have position 0.
        let mut reads = Vec::new();
        let mut ends = Vec::new();
        for (persistent, at_boundary) in trace.persistent().iter().zip(&schedule.boundary) {
            if at_boundary.host {
                live.insert(persistent.begin, add(persistent.begin, 0, None));
            }
        }
        let begins: Vec<Option<CopyIndex>> =
            trace.persistent().iter().map(|persistent| live.get(&persistent.begin).copied()).collect();
        for (id, step) in schedule.steps.iter() {
            let position = id.index() as u64 + 1;
            match step.action {
                Action::Offload { tensor: value, .. } => {
                    let copy = add(value, position, Some(id));
                    live.insert(value, copy);
                    of_action[id] = Some(copy);
                }
                Action::Prefetch { tensor: value, .. } => {
                    of_action[id] = live.get(&value).copied();
                    reads.extend(of_action[id].map(|copy| (copy, id)));
                }
                Action::HostRelease { tensor: value } => {
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
                (copies[begin].exclusive, copies[left].exclusive) = (true, true);
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
        Self { offsets, size: Bytes(size as u64), of_action, hazard, at_begin: begins, exchanges }
    }

    /// Makes every `end` the next `begin`. Must be called after every iteration.
    pub fn swap_boundary_slots(&mut self) {
        for &(begin, end) in &self.exchanges {
            self.offsets.swap(begin, end);
        }
    }
}

fn first_fit_decreasing(copies: &[HostCopy]) -> (Vec<usize>, usize) {
    let conflict = |a: &HostCopy, b: &HostCopy| a.exclusive || b.exclusive || a.alive.overlaps(b.alive);
    // Copies that must share an offset are placed together.
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
            offset = offset.max(end.next_multiple_of(alignment(bytes)));
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

    fn copy(bytes: usize, start: u64, end: u64) -> HostCopy {
        let alive = Interval::new(start, end);
        HostCopy { bytes, alive, exclusive: false, same_as: None, offload: None, last_read: None }
    }

    #[test]
    fn copies_alive_together_lie_apart_and_others_share() {
        let mut copies = vec![copy(100, 0, 5), copy(64, 5, 9), copy(64, 3, 9), copy(100, 7, 20)];
        copies[3].same_as = Some(0);
        copies.push(HostCopy { exclusive: true, ..copy(10, 0, 1) });
        let (offsets, size) = first_fit_decreasing(&copies);
        assert_eq!(offsets[0], offsets[3]);
        for a in 0..copies.len() {
            for b in 0..a {
                let apart =
                    offsets[a] + copies[a].bytes <= offsets[b] || offsets[b] + copies[b].bytes <= offsets[a];
                let together =
                    copies[a].alive.overlaps(copies[b].alive) || copies[a].exclusive || copies[b].exclusive;
                assert!(apart || !together, "{a} {b} {offsets:?}");
            }
        }
        let starts = offsets.iter().zip(&copies);
        assert!(starts.into_iter().all(|(offset, copy)| offset % alignment(copy.bytes) == 0));
        assert_eq!(size, offsets.iter().zip(&copies).map(|(o, c)| o + c.bytes).max().unwrap());
    }

    #[test]
    fn small_copies_share_pages() {
        let copies: Vec<HostCopy> = (0..500).map(|_| copy(40, 0, 5)).collect();
        assert_eq!(first_fit_decreasing(&copies).1, 20_000);
        let copies = [copy(LARGE + 4, 0, 5), copy(40, 0, 5), copy(LARGE, 0, 5)];
        let (offsets, size) = first_fit_decreasing(&copies);
        assert_eq!((offsets[0], offsets[1], offsets[2]), (0, LARGE + 4, LARGE + PAGE));
        assert_eq!(size, 2 * LARGE + PAGE);
    }
}

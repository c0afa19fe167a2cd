//! From a profiled iteration to slots: an offset for every request's block, and for each slot the slots that used its bytes before.
//!
//! The iteration is cyclic: its first request follows its last. A block that is freed in the next iteration is alive at the end and at the
//! beginning, at one offset. A block that is still alive when its request recurs cannot have a slot and is left to the fallback.
//!
//! ```text
//! bytes ▲  ┌─────┐  ┌───────────
//!       │──┤  1  └┐ │     3          slot 2 follows 0 and 1, slot 3 follows 1 and 2, and slot 1, in the next
//!       │──┘ ┌────┴─┴──┐              iteration, follows 3: an edge is a pair of bars that see each other along
//!       │    │    2    │  ┌────       time, so the edges make a planar graph, and there are at most 3 n of them
//!       └────┴─────────┴──┴────▶ request
//! ```

use std::collections::BTreeMap;

use elbowroom_ir::packing::{Block, Interval, Problem};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_ir::{BufferId, Bytes, Id};
use elbowroom_pack::Auto;

use elbowroom_ir::packing::Packer;

use crate::record::ProfiledRequest;

/// The range of one request's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// First byte in the arena.
    pub offset: usize,
    /// Bytes reserved: the request's, rounded up to the granule.
    pub bytes: usize,
}

/// Slots for the requests of an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// One per request of the iteration, in order; `None` for requests left to the fallback.
    pub slots: Vec<Option<Slot>>,
    /// For each request, the requests whose slots used its bytes last, in cyclic order; itself if none did since.
    pub predecessors: Vec<Vec<u32>>,
    /// Arena size, in bytes.
    pub arena_bytes: usize,
    /// Peak memory: the maximum of the requested bytes, not rounded, of slots alive at one time.
    pub peak_live: usize,
    /// Required alignment of the arena's base address, in bytes.
    pub align: usize,
}

/// Parameters of the placement.
#[derive(Clone, Debug)]
pub struct Planning {
    /// Slots start and end at multiples of this.
    pub granule: usize,
    /// Budget of the packer.
    pub budget: Budget,
}

/// Returns the iteration, or two copies of it if many blocks are freed only after their request has recurred. (A program that assigns the
/// result of an expression to a variable frees the old value last.) Over two iterations, each of the two instances of such a block can have
/// a slot of its own.
pub(crate) fn unrolled(iteration: Vec<ProfiledRequest>) -> Vec<ProfiledRequest> {
    let n = iteration.len();
    let bytes = |wanted: &dyn Fn(usize) -> bool| -> u128 {
        let profile = iteration.iter().filter(|entry| entry.span.is_some_and(wanted));
        profile.map(|entry| entry.request.size as u128).sum()
    };
    let (all, longer) = (bytes(&|_| true), bytes(&|span| span > n && span <= 2 * n));
    if 100 * longer >= all && longer > 0 { iteration.repeat(2) } else { iteration }
}

/// The positions of an iteration of `n` requests at which the block of request `at` is alive.
fn alive(at: usize, span: usize, n: usize) -> Vec<Interval> {
    let (start, end) = (at as u64, (at + span) as u64);
    let n = n as u64;
    if end <= n {
        vec![Interval::new(start, end)]
    } else if end - n == start {
        vec![Interval::new(0, n)]
    } else {
        vec![Interval::new(0, end - n), Interval::new(start, n)]
    }
}

impl Layout {
    /// Packs an iteration. `None` if no block can have a slot or the sum of sizes exceeds the address space.
    pub fn new(iteration: &[ProfiledRequest], planning: &Planning) -> Option<Self> {
        let n = iteration.len();
        let mut requests = Vec::new();
        let mut blocks = Vec::new();
        let mut exact_blocks = Vec::new();
        for (at, entry) in iteration.iter().enumerate() {
            let Some(span) = entry.span.filter(|span| (1..=n).contains(span)) else { continue };
            let bytes = entry.request.rounded(planning.granule)?;
            let block = Block {
                size: Bytes(bytes as u64),
                alive: alive(at, span, n),
                align: Bytes(entry.request.align.max(planning.granule) as u64),
                windows: Vec::new(),
                fixed: None,
                hint: None,
            };
            requests.push(at);
            exact_blocks.push(Block { size: Bytes(entry.request.size as u64), ..block.clone() });
            blocks.push(block);
        }
        let align = blocks.iter().map(|block| block.align.get() as usize).max()?;
        let peak_live = Problem { blocks: exact_blocks.into(), capacity: None }.peak_live();
        let problem = Problem { blocks: blocks.into(), capacity: None };
        problem.validate().ok()?;
        let placement = Auto.pack(&problem, &planning.budget, &Silent).best?;
        let mut slots = vec![None; n];
        for (index, &at) in requests.iter().enumerate() {
            let id = BufferId::new(index);
            slots[at] = Some(Slot {
                offset: placement.offsets[id].get() as usize,
                bytes: problem.blocks[id].size.get() as usize,
            });
        }
        let predecessors = predecessors(&slots);
        Some(Self {
            slots,
            predecessors,
            arena_bytes: placement.height.get() as usize,
            peak_live: peak_live.get() as usize,
            align,
        })
    }
}

/// The last users of each slot's bytes: one sweep over the iteration fills the arena, a second one reads it.
fn predecessors(slots: &[Option<Slot>]) -> Vec<Vec<u32>> {
    let mut predecessors = vec![Vec::new(); slots.len()];
    // Disjoint ranges by first byte, with their end and latest user.
    let mut held: BTreeMap<usize, (usize, u32)> = BTreeMap::new();
    for round in 0..2 {
        for (at, slot) in slots.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let end = slot.offset + slot.bytes;
            let first = held.range(..=slot.offset).next_back().map_or(slot.offset, |(&start, _)| start);
            let touched: Vec<(usize, usize, u32)> = held
                .range(first..end)
                .filter(|&(_, &(stop, _))| stop > slot.offset)
                .map(|(&start, &(stop, holder))| (start, stop, holder))
                .collect();
            for &(start, stop, holder) in &touched {
                held.remove(&start);
                if start < slot.offset {
                    held.insert(start, (slot.offset, holder));
                }
                if stop > end {
                    held.insert(end, (stop, holder));
                }
            }
            held.insert(slot.offset, (end, at as u32));
            if round == 1 {
                let mut holders: Vec<u32> = touched.iter().map(|&(.., holder)| holder).collect();
                holders.sort_unstable();
                holders.dedup();
                predecessors[at] = holders;
            }
        }
    }
    predecessors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Request;

    fn entry(size: usize, span: Option<usize>) -> ProfiledRequest {
        ProfiledRequest { request: Request::new(size, 1), span }
    }

    fn layout(profile: &[ProfiledRequest]) -> Option<Layout> {
        let budget = Budget::evaluations(if cfg!(miri) { 1 } else { 16 });
        Layout::new(profile, &Planning { granule: 64, budget })
    }

    #[test]
    fn a_block_that_outlives_the_iteration_has_no_slot() {
        let layout = layout(&[entry(100, Some(1)), entry(100, None), entry(100, Some(4))]).unwrap();
        assert!(layout.slots[0].is_some() && layout.slots[1].is_none() && layout.slots[2].is_none());
        assert_eq!((layout.arena_bytes, layout.peak_live), (128, 100));
        assert_eq!(layout.predecessors[0], [0]);
    }

    #[test]
    fn a_block_freed_in_the_next_iteration_wraps() {
        // Alive at 2 and 0; request 1 finds its bytes free, request 0 does not.
        let layout = layout(&[entry(64, Some(1)), entry(64, Some(1)), entry(64, Some(2))]).unwrap();
        assert_eq!(layout.arena_bytes, 128);
        assert_eq!(layout.slots[1], layout.slots[1].filter(|slot| slot.bytes == 64));
        assert_ne!(layout.slots[0].unwrap().offset, layout.slots[2].unwrap().offset);
    }

    #[test]
    fn a_block_that_meets_its_next_instance_has_two_slots() {
        let profile = unrolled(vec![entry(64, Some(1)), entry(640, Some(4)), entry(64, Some(1))]);
        assert_eq!(profile.len(), 6);
        let layout = layout(&profile).unwrap();
        assert!(layout.slots.iter().all(Option::is_some));
        assert_ne!(layout.slots[1], layout.slots[4]);
        assert_eq!(unrolled(vec![entry(640, Some(1)), entry(1, Some(3))]).len(), 2, "not for one byte");
        assert_eq!(unrolled(vec![entry(640, None)]).len(), 1);
    }

    #[test]
    fn nothing_to_place_is_no_layout() {
        assert!(layout(&[]).is_none());
        assert!(layout(&[entry(1, None)]).is_none());
        assert!(layout(&[entry(usize::MAX, Some(1))]).is_none());
    }

    #[test]
    fn edges_are_few() {
        let (many, longest) = if cfg!(miri) { (40, 30) } else { (500usize, 90) };
        let profile: Vec<ProfiledRequest> =
            (0..many).map(|i| entry(64 * (1 + i * 7 % 13), Some(1 + i * 31 % longest))).collect();
        let layout = layout(&profile).unwrap();
        let edges: usize = layout.predecessors.iter().map(Vec::len).sum();
        // Planar on the plane, not on the cylinder: a few more where bars wrap.
        assert!(edges <= 4 * profile.len(), "{edges}");
        assert!(layout.predecessors.iter().all(|predecessors| !predecessors.is_empty()));
    }
}

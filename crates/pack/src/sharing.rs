//! `sharing`: reuse of whole buffers (Chen et al. 2016, Fig. 2: recycled tags).
//!
//! Buffers are assigned in order of time. A buffer that starts takes the *tag* of one that has ended, or a new tag. A tag is as large as the
//! largest buffer that ever has it, and tags are placed one above the other. The figure leaves open which recycled tag to take: here the smallest
//! that is large enough, else the largest, which grows, as in MXNet's planner. A tag serves one buffer at a time, which SmartPool improves on.
//! Tags avoid the bytes of fixed buffers, a buffer keeps its tag through its gaps, and a tag passes from one buffer to another only if one
//! of their alignments divides the other. About n log n.

use std::collections::BTreeSet;

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

use crate::instance::Instance;
use crate::order_keys::order_by;
use crate::partial_placement::Fit;
use crate::pool::fixed_ranges;
use crate::windowed;

/// Whole-buffer reuse.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sharing;

struct Tag {
    size: u64,
    align: u64,
}

impl Packer for Sharing {
    fn name(&self) -> &'static str {
        "sharing"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        if windowed::has_windows(problem) {
            return windowed::in_order(problem, windowed::time_order, Fit::First, budget, observer);
        }
        let instance = match Instance::new(problem) {
            Ok(instance) => instance,
            Err(outcome) => return outcome,
        };
        let (tags, tag_of) = assign(&instance);
        let offsets = lay_out(&instance, &tags);
        let offset =
            |item: usize| instance.items[item].fixed.unwrap_or_else(|| offsets[tag_of[item] as usize]);
        let offsets: Vec<u64> = (0..instance.len()).map(offset).collect();
        instance.conclude(problem, &offsets, 1, observer, StopReason::Finished)
    }
}

/// The tags, and the tag of every item that is not fixed.
fn assign(instance: &Instance) -> (Vec<Tag>, Vec<u32>) {
    let mut tags: Vec<Tag> = Vec::new();
    let mut tag_of = vec![0; instance.len()];
    let mut recycled: BTreeSet<(u64, u32)> = BTreeSet::new();
    let free = |&item: &u32| instance.items[item as usize].fixed.is_none();
    let ends: Vec<u32> = order_by(instance, |i| instance.items[i].hull.hi).into_iter().filter(free).collect();
    let starts = order_by(instance, |i| (instance.items[i].hull.lo, instance.items[i].first_position));
    let mut ended = ends.into_iter().peekable();
    for item in starts.into_iter().filter(free) {
        let lo = instance.items[item as usize].hull.lo;
        while let Some(old) = ended.next_if(|&old| instance.items[old as usize].hull.hi <= lo) {
            let tag: u32 = tag_of[old as usize];
            recycled.insert((tags[tag as usize].size, tag));
        }
        let (size, align) = (instance.items[item as usize].size, instance.items[item as usize].align);
        let agrees = |&&(_, tag): &&(u64, u32)| {
            let other = tags[tag as usize].align;
            other.is_multiple_of(align) || align.is_multiple_of(other)
        };
        let found = recycled
            .range((size, 0)..)
            .find(agrees)
            .or_else(|| recycled.range(..(size, 0)).rev().find(agrees))
            .copied();
        let tag = if let Some(row) = found {
            recycled.remove(&row);
            let tag = &mut tags[row.1 as usize];
            tag.size = tag.size.max(size);
            tag.align = tag.align.max(align);
            row.1
        } else {
            tags.push(Tag { size, align });
            tags.len() as u32 - 1
        };
        tag_of[item as usize] = tag;
    }
    (tags, tag_of)
}

/// Offsets of the tags: one above the other, in order of their first use, around the bytes of fixed items.
fn lay_out(instance: &Instance, tags: &[Tag]) -> Vec<u64> {
    let mut taken = fixed_ranges(instance).into_iter().peekable();
    let mut top = 0u64;
    let place = |tag: &Tag| loop {
        let offset = top.next_multiple_of(tag.align);
        match taken.peek() {
            Some(&(start, end)) if start < offset + tag.size => {
                top = top.max(end);
                taken.next();
            }
            _ => {
                top = offset + tag.size;
                return offset;
            }
        }
    };
    tags.iter().map(place).collect()
}

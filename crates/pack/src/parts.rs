//! Independent stretches of time: where no block is alive on both sides of a boundary, the sides are placed on their own.

use crate::instance::{Instance, Span};

/// A stretch of an instance, as an instance.
pub(crate) struct Part {
    /// Item of the whole for every item of the part.
    pub(crate) items: Vec<u32>,
    pub(crate) instance: Instance,
}

/// Cuts an instance at every boundary that no item crosses; gaps count as crossed.
pub(crate) fn parts(whole: &Instance) -> Vec<Part> {
    let mut crossing = vec![0i32; whole.sections() + 1];
    for item in &whole.items {
        crossing[item.hull.lo as usize + 1] += 1;
        crossing[item.hull.hi as usize] -= 1;
    }
    // The part of every section.
    let mut part_of = Vec::with_capacity(whole.sections());
    let mut first = vec![0u32];
    let mut alive = 0;
    for (section, change) in crossing[..whole.sections()].iter().enumerate() {
        alive += change;
        if section > 0 && alive == 0 {
            first.push(section as u32);
        }
        part_of.push(first.len() as u32 - 1);
    }
    let mut members: Vec<Vec<u32>> = vec![Vec::new(); first.len()];
    for (i, item) in whole.items.iter().enumerate() {
        members[part_of[item.hull.lo as usize] as usize].push(i as u32);
    }
    first.push(whole.sections() as u32);
    let stretches = first.windows(2).map(|pair| Span { lo: pair[0], hi: pair[1] });
    members
        .into_iter()
        .zip(stretches)
        .map(|(items, stretch)| Part { instance: whole.restrict(&items, stretch), items })
        .collect()
}

//! Connected components in time: if no item is alive on both sides of a boundary, the two sides are packed independently.

use crate::instance::{Instance, Span};

/// A component of an instance, as an instance.
pub(crate) struct Component {
    /// For each item, its index in the whole instance.
    pub(crate) items: Vec<u32>,
    pub(crate) instance: Instance,
}

/// Cuts an instance at every boundary that no item crosses. An item crosses the boundaries in its gaps too.
pub(crate) fn components(whole: &Instance) -> Vec<Component> {
    let mut crossing = vec![0i32; whole.sections() + 1];
    for item in &whole.items {
        crossing[item.hull.lo as usize + 1] += 1;
        crossing[item.hull.hi as usize] -= 1;
    }
    // The component of each section.
    let mut component_of = Vec::with_capacity(whole.sections());
    let mut first = vec![0u32];
    let mut alive = 0;
    for (section, change) in crossing[..whole.sections()].iter().enumerate() {
        alive += change;
        if section > 0 && alive == 0 {
            first.push(section as u32);
        }
        component_of.push(first.len() as u32 - 1);
    }
    let mut members: Vec<Vec<u32>> = vec![Vec::new(); first.len()];
    for (i, item) in whole.items.iter().enumerate() {
        members[component_of[item.hull.lo as usize] as usize].push(i as u32);
    }
    first.push(whole.sections() as u32);
    let spans = first.windows(2).map(|pair| Span { lo: pair[0], hi: pair[1] });
    members
        .into_iter()
        .zip(spans)
        .map(|(items, window)| Component { instance: whole.restrict(&items, window), items })
        .collect()
}

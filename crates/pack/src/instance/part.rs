//! Instances made from others: of some items, clipped to a window of sections, or of rectangles that stand for several items.

use super::{Instance, Item, Span};

/// What takes the place of several items that touch each other: the same bytes through all its sections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rectangle {
    /// One of the items.
    pub(crate) item: u32,
    /// Its sections are `lo..hi`.
    pub(crate) lo: u32,
    pub(crate) hi: u32,
    pub(crate) size: u64,
    /// What counts towards the height.
    pub(crate) bytes: u64,
    pub(crate) lifetime: u64,
}

impl Instance {
    /// The items of a list, all of which lie within a window, as an instance.
    pub(crate) fn restrict(&self, items: &[u32], window: Span) -> Self {
        self.window(items, window, |item| self.items[item as usize].fixed)
    }

    /// The items of a list, all alive in a window, clipped to it, as an instance. Those with an offset by `fixed` are fixed.
    pub(crate) fn window(&self, items: &[u32], window: Span, fixed: impl Fn(u32) -> Option<u64>) -> Self {
        let shift = |span: Span| Span {
            lo: span.lo.max(window.lo) - window.lo,
            hi: span.hi.min(window.hi) - window.lo,
        };
        let mut part = Self {
            items: Vec::with_capacity(items.len()),
            spans: Vec::with_capacity(items.len()),
            unit: self.unit,
            live: vec![0; (window.hi - window.lo) as usize],
            bound: 0,
            capacity: self.capacity,
            any_fixed: false,
            any_gaps: false,
            any_align: false,
        };
        let mut difference = vec![0u64; part.live.len() + 1];
        for &i in items {
            let item = self.items[i as usize];
            let fixed = fixed(i);
            let first_span = part.spans.len() as u32;
            for &span in self.spans(i as usize).iter().filter(|span| span.overlaps(window)) {
                let span = shift(span);
                // Differences wrap below zero and back again in the running sum.
                difference[span.lo as usize] = difference[span.lo as usize].wrapping_add(item.size);
                difference[span.hi as usize] = difference[span.hi as usize].wrapping_sub(item.size);
                part.spans.push(span);
            }
            let span_count = part.spans.len() as u32 - first_span;
            let own = &part.spans[first_span as usize..];
            let hull = Span { lo: own[0].lo, hi: own[own.len() - 1].hi };
            part.any_fixed |= fixed.is_some();
            part.any_gaps |= span_count > 1;
            part.any_align |= item.align > self.unit;
            part.bound = part.bound.max(fixed.unwrap_or(0) + item.bytes);
            part.items.push(Item { hull, first_span, span_count, fixed, ..item });
        }
        let mut running = 0u64;
        for (live, change) in part.live.iter_mut().zip(difference) {
            running = running.wrapping_add(change);
            *live = running;
        }
        part.with_bound()
    }

    /// An instance of rectangles made of all items of this one. Time is compressed again, because fewer ends are left.
    pub(crate) fn composed(&self, rectangles: &[Rectangle]) -> Self {
        let mut changes = vec![(false, false); self.sections() + 1];
        for rectangle in rectangles {
            changes[rectangle.lo as usize].0 = true;
            changes[rectangle.hi as usize].1 = true;
        }
        // For every boundary, the section of what starts there, and the end of what ends there.
        let (mut section, mut after_end) = (0u32, false);
        let boundary = |&(starts, ends): &(bool, bool)| {
            let end = section + 1;
            after_end |= ends;
            section += u32::from(starts && after_end);
            after_end &= !starts;
            (section, end)
        };
        let boundaries: Vec<(u32, u32)> = changes.iter().map(boundary).collect();
        let mut part = Self {
            items: Vec::with_capacity(rectangles.len()),
            spans: Vec::with_capacity(rectangles.len()),
            live: vec![0; section as usize + 1],
            bound: 0,
            any_fixed: false,
            any_gaps: false,
            any_align: false,
            ..*self
        };
        for &Rectangle { item, lo, hi, size, bytes, lifetime } in rectangles {
            let hull = Span { lo: boundaries[lo as usize].0, hi: boundaries[hi as usize].1 };
            let item = Item {
                hull,
                size,
                bytes,
                lifetime,
                first_span: part.spans.len() as u32,
                span_count: 1,
                fixed: None,
                hint: None,
                ..self.items[item as usize]
            };
            part.spans.push(hull);
            part.items.push(item);
            part.live[hull.range()].iter_mut().for_each(|live| *live += size);
        }
        part.with_bound()
    }
}

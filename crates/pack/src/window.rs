//! Windows of time whose blocks are packed on their own, to prove that a whole cannot be as low as its peak of live memory.
//!
//! A placement of the whole places what is alive in a window, cut to that window. What is proved of the part therefore holds of the whole, and short
//! windows have few distinct lifetimes, most of them throughout, so that their trees are small.

use std::cmp::Reverse;

use crate::instance::{Instance, Span};
use crate::order_keys::order_by;
use crate::random::Random;

/// The fewest sections of a window: in two the peak is always reached.
const FEWEST: u32 = 3;
/// The most sections above these, as an exponent of two. The exponent is drawn, because trees grow fast with the length of a window.
const MOST: usize = 5;

/// A random window, more often where memory is full, and its items.
pub(crate) fn draw(instance: &Instance, random: &mut Random) -> (Span, Instance) {
    let sections = instance.sections() as u32;
    let fullest = (0..4).map(|_| random.below(sections as usize)).max_by_key(|&at| instance.live[at]);
    let fullest = fullest.unwrap_or(0) as u32;
    let longest = 1 << (1 + random.below(MOST));
    let width = (FEWEST + random.below(longest) as u32).min(sections);
    let lo = fullest.saturating_sub(random.below(width as usize) as u32).min(sections - width);
    let window = Span { lo, hi: lo + width };
    (window, part(instance, 0..instance.len() as u32, window))
}

/// The listed items that are alive in a window, cut to it.
pub(crate) fn part(instance: &Instance, items: impl IntoIterator<Item = u32>, window: Span) -> Instance {
    let alive = |&item: &u32| instance.spans(item as usize).iter().any(|span| span.overlaps(window));
    let items: Vec<u32> = items.into_iter().filter(alive).collect();
    instance.window(&items, window, |item| instance.items[item as usize].fixed)
}

/// The branching order of a part: what is alive longest there, then the largest.
pub(crate) fn order(part: &Instance) -> Vec<u32> {
    order_by(part, |i| {
        let sections: u32 = part.spans(i).iter().map(|span| span.hi - span.lo).sum();
        (Reverse(sections), Reverse(part.items[i].size))
    })
}

//! Large neighbourhood search (Shaw 1998): packs the items within a window of time again, around those that cross its ends.
//!
//! ```text
//! offset ▲ ━━━━━━━━━┃▒▒▒▒▒ ▒▒▒┃━━━━━      Items that are alive on both sides of an end keep their offsets (━). Those
//!        │    ━━━━━━┃━━━━━━━━━┃━━          within (▒) are placed again in a random order, from below or from above.
//!        │          ┃▒▒▒▒▒▒▒▒ ┃            The result is adopted if its excess above the goal is no larger.
//!        └──────────┸─────────┸───▶
//! ```
//!
//! In a long problem, one order does well in most windows and badly in some. The cost of a move depends on the window, not on the length of
//! the problem.

use std::cmp::Reverse;

use crate::instance::{Instance, Span};
use crate::order_keys::{ascending, peak_live, random_lifetime, sort_ascending};
use crate::overlap::OverlapIndex;
use crate::partial_placement::{Fit, PartialPlacement};
use crate::random::Random;

/// Sort keys of [`order`].
const ORDERS: usize = 9;
/// How far noise moves an item in the order, as a share of the number of items.
const NOISE: [f64; 4] = [0.0, 0.0, 0.02, 0.1];
/// Items that a window should contain.
const SIZES: [usize; 4] = [200, 600, 2_000, 6_000];

/// The excess of an end above the goal: the square of the bytes, so that high ends weigh more.
pub(crate) fn excess(end: u64, goal: u64) -> f64 {
    let above = end.saturating_sub(goal) as f64;
    above * above
}

/// A window of random size around an item.
pub(crate) fn window_around(
    instance: &Instance,
    overlaps: &OverlapIndex,
    item: usize,
    random: &mut Random,
) -> Span {
    let hull = instance.items[item].hull;
    let wanted = SIZES[random.below(SIZES.len())];
    let shift = random.below(wanted / 2 + 1);
    let (first, last) = (overlaps.started_before(hull.lo), overlaps.started_before(hull.hi));
    let spare = wanted.saturating_sub(last - first);
    let before = (spare / 4 + shift).min(spare);
    Span {
        lo: overlaps.section_of(first.saturating_sub(before)).min(hull.lo),
        hi: overlaps
            .section_of(last + spare - before)
            .saturating_add(1)
            .clamp(hull.hi, instance.sections() as u32),
    }
}

/// Where items are placed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// All at their lowest free offsets.
    Floor,
    /// All at their highest free offsets below the goal.
    Ceiling,
    /// Items that ended above the goal at their highest free offsets below it, all others at their lowest.
    Both,
    /// Items with lifetimes up to this at their highest free offsets below the goal, all others at their lowest.
    Short(u64),
}

/// Packs the items within a window again, in a random order. Returns them with their new offsets if their excess above the goal is no larger.
pub(crate) fn repack(
    instance: &Instance,
    overlaps: &OverlapIndex,
    offsets: &[u64],
    window: Span,
    goal: u64,
    random: &mut Random,
) -> Option<Vec<(u32, u64)>> {
    let mut members = Vec::new();
    overlaps.each_in(window, |item| {
        if instance.spans(item as usize).iter().any(|span| span.overlaps(window)) {
            members.push(item);
        }
    });
    let within = |item: u32| {
        let item = &instance.items[item as usize];
        item.fixed.is_none() && window.lo <= item.hull.lo && item.hull.hi <= window.hi
    };
    let inner = instance.window(&members, window, |item| (!within(item)).then(|| offsets[item as usize]));
    let end = |at: u32, offset: u64| offset + inner.items[at as usize].bytes;
    let old = |at: u32| offsets[members[at as usize] as usize];
    let free: Vec<u32> =
        (0..inner.len() as u32).filter(|&at| inner.items[at as usize].fixed.is_none()).collect();
    let mut left: f64 = free.iter().map(|&at| excess(end(at, old(at)), goal)).sum();
    let short = random_lifetime(&inner, random);
    let side = [Side::Floor, Side::Both, Side::Both, Side::Ceiling, Side::Short(short), Side::Short(short)]
        [random.below(6)];
    let mut order = order(&inner, free, &old, random);
    if side == Side::Both || random.below(2) == 0 {
        order.sort_by_key(|&at| Reverse(end(at, old(at)) > goal));
    }
    let mut placement = PartialPlacement::new(&inner, Fit::First);
    for &at in &order {
        let from_top = match side {
            Side::Floor => false,
            Side::Ceiling => true,
            Side::Both => end(at, old(at)) > goal,
            Side::Short(short) => inner.items[at as usize].lifetime <= short,
        };
        let top = if from_top { placement.place_below(at as usize, goal) } else { None };
        let offset = top.unwrap_or_else(|| placement.place(at as usize));
        left -= excess(end(at, offset), goal);
        if left < 0.0 {
            return None;
        }
    }
    let new = placement.into_offsets();
    Some(order.into_iter().map(|at| (members[at as usize], new[at as usize])).collect())
}

/// The items that are not fixed, sorted by a random key, with noise.
fn order(inner: &Instance, free: Vec<u32>, old: &dyn Fn(u32) -> u64, random: &mut Random) -> Vec<u32> {
    let kind = random.below(ORDERS + 2).min(ORDERS);
    let peaks = if matches!(kind, 4 | 5) { peak_live(inner) } else { Vec::new() };
    let step = inner.bound / 64 + 1;
    let key = |at: u32| {
        let item = &inner.items[at as usize];
        let (size, lifetime) = ((item.size as f64).log2(), (item.lifetime as f64).log2());
        let peak = || (peaks[at as usize] / step) as f64 * 64.0;
        // Classes by powers of two; within a class, in order of time.
        let class = |log: f64| -log.floor() * inner.sections() as f64 + f64::from(item.hull.lo);
        match kind {
            0 => -size,
            1 => -lifetime,
            2 => -size - lifetime,
            3 => -size.floor() * 64.0 - lifetime,
            4 => -peak() - size,
            5 => -peak() - lifetime,
            6 => class(size),
            7 => class(lifetime),
            8 => f64::from(item.hull.lo),
            _ => old(at) as f64,
        }
    };
    let mut keys: Vec<(f64, u32)> = free.into_iter().map(|at| (key(at), at)).collect();
    sort_ascending(&mut keys);
    let noise = NOISE[random.below(NOISE.len())] * keys.len() as f64;
    if noise > 0.0 {
        for (rank, key) in keys.iter_mut().enumerate() {
            key.0 = rank as f64 + noise * (random.unit() - 0.5);
        }
    }
    ascending(keys)
}

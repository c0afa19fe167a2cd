//! Placing anew what lies within a stretch of time, around the items that cross its ends: large neighbourhood search (Shaw 1998).
//!
//! ```text
//! offset ▲ ━━━━━━━━━┃▒▒▒▒▒ ▒▒▒┃━━━━━      Items that are alive on both sides of an end stay where they are (━). Those
//!        │    ━━━━━━┃━━━━━━━━━┃━━          within (▒) are placed again, in one of many orders, from below or from above.
//!        │          ┃▒▒▒▒▒▒▒▒ ┃            The result is taken if no more bytes end above the goal than before.
//!        └──────────┸─────────┸───▶
//! ```
//!
//! In a long problem an order does well in most places and badly in some. Whatever its length, only the places where items end above the
//! goal are worked on, each with the orders that suit it.

use std::cmp::Reverse;

use crate::beside::Beside;
use crate::instance::{Instance, Span};
use crate::random::Random;
use crate::shelf::{Hole, Shelf};
use crate::squeaky::{fullest, short};

/// Orders in which items are placed again, before noise.
const ORDERS: usize = 9;
/// How far noise moves an item, as a share of all.
const NOISE: [f64; 4] = [0.0, 0.0, 0.02, 0.1];
/// Items that are to lie within a stretch.
const SIZES: [usize; 4] = [200, 600, 2_000, 6_000];

/// What ends above a goal: the squares of the bytes, so that high ends weigh more.
pub(crate) fn excess(end: u64, goal: u64) -> f64 {
    let above = end.saturating_sub(goal) as f64;
    above * above
}

/// A stretch around an item.
pub(crate) fn around(instance: &Instance, beside: &Beside, item: usize, random: &mut Random) -> Span {
    let hull = instance.items[item].hull;
    let wanted = SIZES[random.below(SIZES.len())];
    let shift = random.below(wanted / 2 + 1);
    let (first, last) = (beside.begun(hull.lo), beside.begun(hull.hi));
    let spare = wanted.saturating_sub(last - first);
    let before = (spare / 4 + shift).min(spare);
    Span {
        lo: beside.section_of(first.saturating_sub(before)).min(hull.lo),
        hi: beside
            .section_of(last + spare - before)
            .saturating_add(1)
            .clamp(hull.hi, instance.sections() as u32),
    }
}

/// Which side items are placed from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    /// All at their lowest free offsets.
    Floor,
    /// All at their highest free offsets below the goal.
    Ceiling,
    /// What ended above the goal from the ceiling, all else from the floor.
    Both,
    /// What lives no longer than this from the ceiling, all else from the floor.
    Short(u64),
}

/// Items within a stretch with new offsets, if they end no higher above the goal than before.
pub(crate) fn replace(
    instance: &Instance,
    beside: &Beside,
    offsets: &[u64],
    stretch: Span,
    goal: u64,
    random: &mut Random,
) -> Option<Vec<(u32, u64)>> {
    let mut members = Vec::new();
    beside.each(stretch, |item| {
        if instance.spans(item as usize).iter().any(|span| span.overlaps(stretch)) {
            members.push(item);
        }
    });
    let within = |item: u32| {
        let item = &instance.items[item as usize];
        item.fixed.is_none() && stretch.lo <= item.hull.lo && item.hull.hi <= stretch.hi
    };
    let part = instance.stretch(&members, stretch, |item| (!within(item)).then(|| offsets[item as usize]));
    let end = |at: u32, offset: u64| offset + part.items[at as usize].bytes;
    let old = |at: u32| offsets[members[at as usize] as usize];
    let free: Vec<u32> =
        (0..part.len() as u32).filter(|&at| part.items[at as usize].fixed.is_none()).collect();
    let mut left: f64 = free.iter().map(|&at| excess(end(at, old(at)), goal)).sum();
    let short = short(&part, random);
    let from = [From::Floor, From::Both, From::Both, From::Ceiling, From::Short(short), From::Short(short)]
        [random.below(6)];
    let mut order = order(&part, free, &old, random);
    if from == From::Both || random.below(2) == 0 {
        order.sort_by_key(|&at| Reverse(end(at, old(at)) > goal));
    }
    let mut shelf = Shelf::new(&part, Hole::Lowest);
    for &at in &order {
        let hangs = match from {
            From::Floor => false,
            From::Ceiling => true,
            From::Both => end(at, old(at)) > goal,
            From::Short(short) => part.items[at as usize].lifetime <= short,
        };
        let hung = if hangs { shelf.hang(at as usize, goal) } else { None };
        let offset = hung.unwrap_or_else(|| shelf.place(at as usize));
        left -= excess(end(at, offset), goal);
        if left < 0.0 {
            return None;
        }
    }
    let new = shelf.into_offsets();
    Some(order.into_iter().map(|at| (members[at as usize], new[at as usize])).collect())
}

/// The free items in one of several orders, with noise.
fn order(part: &Instance, free: Vec<u32>, old: &dyn Fn(u32) -> u64, random: &mut Random) -> Vec<u32> {
    let kind = random.below(ORDERS + 2).min(ORDERS);
    let fullest = if matches!(kind, 4 | 5) { fullest(part) } else { Vec::new() };
    let step = part.bound / 64 + 1;
    let key = |at: u32| {
        let item = &part.items[at as usize];
        let (size, life) = ((item.size as f64).log2(), (item.lifetime as f64).log2());
        let full = || (fullest[at as usize] / step) as f64 * 64.0;
        // Powers of two as classes; within a class, in order of time.
        let class = |log: f64| -log.floor() * part.sections() as f64 + f64::from(item.hull.lo);
        match kind {
            0 => -size,
            1 => -life,
            2 => -size - life,
            3 => -size.floor() * 64.0 - life,
            4 => -full() - size,
            5 => -full() - life,
            6 => class(size),
            7 => class(life),
            8 => f64::from(item.hull.lo),
            _ => old(at) as f64,
        }
    };
    let mut keys: Vec<(f64, u32)> = free.into_iter().map(|at| (key(at), at)).collect();
    keys.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let noise = NOISE[random.below(NOISE.len())] * keys.len() as f64;
    if noise > 0.0 {
        for (rank, key) in keys.iter_mut().enumerate() {
            key.0 = rank as f64 + noise * (random.unit() - 0.5);
        }
        keys.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    keys.into_iter().map(|(_, at)| at).collect()
}

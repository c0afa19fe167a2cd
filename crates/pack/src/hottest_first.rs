//! Packs the items of the fullest sections first, in levels.
//!
//! ```text
//!  live memory      ╱▔╲                 A level has the sections whose live memory is at least a share of the goal. Time is only these sections:
//!  ▲ 99 % ┄┄┄┄┄┄┄┄┄╱┄┄┄╲┄┄┄┄┄┄┄        few items are alive in some of them and not in others, and those alive in the same ones are joined.
//!  │ 90 % ┄┄┄┄┄┄╱▔┄┄┄┄┄┄▔╲┄┄┄┄        The level above has found offsets for most; the next one has more sections, and more room in them.
//!  └──────────────────────────▶
//! ```
//!
//! What decides the height of a long problem is often alive at a few sections, and at those there is almost no room. A level of thousands of
//! items then has a hundred rectangles, and squeaky wheel optimization tries thousands of orders of them in the time of one order of all items.

use std::cmp::Reverse;
use std::collections::HashMap;

use elbowroom_ir::search::{Budget, Observer};

use crate::clock::Clock;
use crate::component::{Component, components};
use crate::improver::{ComponentState, Improver, MOST_ITEMS, NodeLimits};
use crate::instance::{Instance, Rectangle};
use crate::large_neighbourhood::excess;
use crate::order_keys::peak_live;
use crate::partial_placement::{Fit, PartialPlacement};
use crate::random::Random;
use crate::squeaky_wheel::SqueakyWheel;

/// The least live memory of the sections of each level, in thousandths of the goal.
const LEVELS: [u64; 13] = [990, 980, 960, 930, 900, 850, 800, 750, 700, 650, 600, 500, 0];
/// Of more items, the levels cost more than they bring: full sections then lie far apart, and what was placed around each does not fit between them.
const MOST_LEVELLED: usize = 6_000;
/// Rectangles that make a move cheaper no more.
const FEW: u64 = 20;

/// The most rectangles of a level whose trees are searched.
const MOST_SEARCHED: usize = 300;
/// The most rectangles of a level that are all placed again in every move; of more, only in so many first ones, and then in windows.
const MOST_REORDERED: usize = 1_000;
const FIRST_MOVES: usize = 24;
/// What a search of a tree costs.
const WORK_PER_SEARCH: u64 = 250;

/// Where an item lies after a level, and the live memory that was decisive there.
#[derive(Clone, Copy)]
struct Seat {
    offset: u64,
    heat: u64,
}

/// Items that are alive in the same sections of a level, as one rectangle.
struct Group {
    rectangle: Rectangle,
    members: Vec<u32>,
}

/// Whether an instance is too large for a search of its tree but not too large for levels, and any offset of joined items is one for each.
pub(crate) fn applies(instance: &Instance) -> bool {
    (MOST_ITEMS + 1..=MOST_LEVELLED).contains(&instance.len())
        && !instance.any_gaps
        && !instance.any_align
        && !instance.any_fixed
}

/// Offsets of all items. `work` limits the moves on a level: their number times the number of rectangles. `None` if it is to `stop`.
pub(crate) fn place(
    instance: &Instance,
    goal: u64,
    work: u64,
    random: &mut Random,
    stop: &(dyn Fn() -> bool + Sync),
) -> Option<Vec<u64>> {
    let mut goal = goal.next_multiple_of(instance.unit);
    let mut seats: Vec<Option<Seat>> = vec![None; instance.len()];
    for permille in LEVELS {
        let mut groups = groups_of(instance, goal, permille);
        if groups.is_empty() {
            continue;
        }
        groups.sort_by_cached_key(|group| {
            let old = group.members.iter().filter_map(|&i| seats[i as usize]);
            let old = old.map(|seat| (Reverse(seat.heat), seat.offset)).min();
            let Rectangle { lo, hi, size, .. } = group.rectangle;
            (old.is_none(), old, Reverse(u128::from(hi - lo) * if old.is_none() { size.into() } else { 1 }))
        });
        let level = instance.composed(&groups.iter().map(|group| group.rectangle).collect::<Vec<_>>());
        let mut height = goal;
        for Component { items, instance: part } in components(&level) {
            // What the fullest part of the level above has decided comes first.
            let heat = |&group: &u32| seats[groups[group as usize].members[0] as usize].map(|seat| seat.heat);
            let hottest = items.first().and_then(heat);
            let kept = items.iter().take_while(|&group| hottest.is_some() && heat(group) == hottest).count();
            let offsets = improve(&part, goal, kept, work, random, stop)?;
            height = height.max(part.height(&offsets));
            let heat = part.live.iter().copied().max().unwrap_or(0);
            for (&group, mut offset) in items.iter().zip(offsets) {
                let members = &mut groups[group as usize].members;
                members.sort_by_key(|&i| {
                    let seat = seats[i as usize].map(|seat| seat.offset);
                    (seat.is_none(), seat, Reverse(instance.items[i as usize].lifetime))
                });
                for &mut i in members {
                    seats[i as usize] = Some(Seat { offset, heat });
                    offset += instance.items[i as usize].size;
                }
            }
        }
        // What did not fit in few sections will not fit in more.
        goal = height;
    }
    Some(seats.iter().map(|seat| seat.map_or(0, |seat| seat.offset)).collect())
}

/// The items that are alive where live memory is high, in the sections of a level.
fn groups_of(instance: &Instance, goal: u64, permille: u64) -> Vec<Group> {
    // For each boundary, the number of sections of the level before it.
    let mut sections = vec![0u32];
    for &live in &instance.live {
        let hot = u128::from(live) * 1_000 >= u128::from(goal) * u128::from(permille);
        sections.push(sections[sections.len() - 1] + u32::from(hot));
    }
    let mut groups: Vec<Group> = Vec::new();
    let mut group_of: HashMap<(u32, u32), usize> = HashMap::new();
    for (i, item) in instance.items.iter().enumerate() {
        let [lo, hi] = [item.hull.lo, item.hull.hi].map(|boundary| sections[boundary as usize]);
        if lo == hi {
            continue;
        }
        let group = *group_of.entry((lo, hi)).or_insert_with(|| {
            let rectangle = Rectangle { item: i as u32, lo, hi, size: 0, bytes: 0, lifetime: 0 };
            groups.push(Group { rectangle, members: Vec::new() });
            groups.len() - 1
        });
        let group = &mut groups[group];
        group.rectangle.size += item.size;
        group.rectangle.bytes += item.size;
        group.rectangle.lifetime = group.rectangle.lifetime.max(item.lifetime);
        group.members.push(i as u32);
    }
    groups
}

/// Places items in their order by first-fit, or all but the first `kept` in another, then in better orders until none ends above the goal.
fn improve(
    part: &Instance,
    goal: u64,
    kept: usize,
    work: u64,
    random: &mut Random,
    stop: &(dyn Fn() -> bool + Sync),
) -> Option<Vec<u64>> {
    let peaks = peak_live(part);
    let step = part.bound / 64 + 1;
    let keys: [&dyn Fn(usize) -> [u64; 2]; 4] = [
        &|at| [peaks[at] / step, part.items[at].size],
        &|at| [part.items[at].size, 0],
        &|at| [part.items[at].lifetime, part.items[at].size],
        &|at| [u64::from(part.items[at].hull.hi - part.items[at].hull.lo), part.items[at].size],
    ];
    let mut best: Option<(f64, Vec<u32>, Vec<u64>)> = None;
    for tried in 0..=keys.len() {
        let mut order: Vec<u32> = (0..part.len() as u32).collect();
        if let Some(key) = tried.checked_sub(1).map(|at| keys[at]) {
            order[kept..].sort_by_key(|&at| Reverse(key(at as usize)));
        }
        let mut placement = PartialPlacement::new(part, Fit::First);
        let (mut cost, limit) = (0.0, best.as_ref().map_or(f64::INFINITY, |best| best.0));
        let whole = order.iter().all(|&at| {
            let end = placement.place(at as usize) + part.items[at as usize].bytes;
            cost += excess(end, goal);
            cost < limit
        });
        if whole {
            best = Some((cost, order, placement.into_offsets()));
        }
        if stop() {
            return None;
        }
        if cost == 0.0 {
            break;
        }
    }
    let (_, order, mut best) = best?;
    let mut height = part.height(&best);
    if height <= goal {
        return Some(best);
    }
    let mut wheel = SqueakyWheel::of_level(part, goal, order, &best);
    let moves = work / (part.len().min(MOST_REORDERED) as u64 + FEW);
    for number in 0..moves as usize {
        let random = Random::new(random.next(), 0);
        let one = if part.len() <= MOST_REORDERED || number < FIRST_MOVES {
            wheel.next(part, goal, number, random)
        } else {
            wheel.next_local(part, goal, number, random)
        };
        wheel.start_batch();
        let change = wheel.change(part, goal, &one, stop);
        if stop() {
            return None;
        }
        if let Some(offsets) = wheel.accept(part, (goal, height), one, change) {
            height = part.height(&offsets);
            best = offsets;
            if height <= goal {
                break;
            }
        }
    }
    if height > goal && part.len() <= MOST_SEARCHED {
        return search(part, goal, best, work, random, stop);
    }
    Some(best)
}

/// Lets something else stop a search.
struct Stop<'a>(&'a (dyn Fn() -> bool + Sync));

impl Observer for Stop<'_> {
    fn interrupted(&self) -> bool {
        (self.0)()
    }
}

/// Searches the trees of a few rectangles.
fn search(
    part: &Instance,
    goal: u64,
    best: Vec<u64>,
    work: u64,
    random: &mut Random,
    stop: &(dyn Fn() -> bool + Sync),
) -> Option<Vec<u64>> {
    let items = (0..part.len() as u32).collect();
    let state = ComponentState::new(Component { items, instance: part.clone() }, best);
    let budget = Budget { seed: random.next(), threads: 1, ..Budget::evaluations(work / WORK_PER_SEARCH) };
    let observer = Stop(stop);
    let clock = Clock::start(&budget, &observer);
    let mut improver = Improver::new(vec![state], Some(goal), NodeLimits::Short, &budget, clock, 0);
    improver.run();
    (!stop()).then(|| std::mem::take(&mut improver.states[0].offsets))
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::Bytes;
    use elbowroom_ir::packing::{Block, Problem};

    use super::*;

    #[test]
    fn levels_place_all_items_legally_and_stop_when_asked() {
        for seed in 0..40 {
            let mut random = Random::new(seed, 0);
            let blocks = (0..120).map(|_| {
                let start = random.below(60) as u64;
                Block::new(start, start + 1 + random.below(30) as u64, Bytes(1 + random.below(50) as u64))
            });
            let problem = Problem { blocks: blocks.collect(), capacity: None };
            let Ok(instance) = Instance::new(&problem) else { panic!("no block is fixed") };
            let placed = |stop: bool| {
                place(&instance, instance.bound, 2_000, &mut Random::new(seed, 1), &move || stop)
            };
            let offsets = placed(false).expect("nothing stops it");
            let placement = instance.placement(&problem, &offsets);
            assert_eq!(crate::validate(&problem, &placement), Ok(()), "seed {seed}");
            assert_eq!(placed(false), Some(offsets), "seed {seed}");
            assert_eq!(placed(true), None, "seed {seed}");
        }
    }
}

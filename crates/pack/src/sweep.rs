//! Places all items outwards from the peak ([`crate::outwards`]), each where it begins.
//!
//! Large items are the last to fit when they begin: other items have divided the free bytes by then. They are placed earlier. Neither side of the
//! peak depends on the other. What a sweep fails at, [`crate::advance`] tries again from there.

use crate::front::{Front, Side};
use crate::instance::Instance;
use crate::large_neighbourhood::excess;
use crate::order_keys::{ascending, longest_hull, sort_ascending};
use crate::outwards::{Matching, Stack};
use crate::random::Random;

/// How the items of one side are placed.
#[derive(Clone, Debug)]
pub(crate) struct SideWay {
    pub(crate) matching: Matching,
    /// Items of at least this size are placed early.
    pub(crate) large: u64,
    /// By how many sections.
    pub(crate) lead: f64,
    /// Other items that are, and by how many.
    pub(crate) early: Vec<(u32, f64)>,
}

impl SideWay {
    /// Places an item early by some sections.
    pub(crate) fn place_early(&mut self, item: u32, lead: f64) {
        self.early.retain(|&(other, _)| other != item);
        self.early.push((item, lead));
    }
}

/// The items of an instance by where they are alive: at the peak, or on one side of it.
pub(crate) struct Split {
    /// A section with the most live memory.
    peak: u32,
    /// The items alive there.
    pub(crate) stack: Vec<u32>,
    /// All others of each side, in order of their begins, larger ones first.
    pub(crate) sides: [Vec<u32>; 2],
    /// Of these, those that may be large.
    large: [Vec<u32>; 2],
    /// The longest lifetime, in sections.
    pub(crate) longest: f64,
}

/// Large items have at least these shares of the peak memory.
const LARGE: [u64; 3] = [256, 64, 32];
/// They are placed early by these shares of the longest lifetime.
const LEAD: [f64; 4] = [0.0, 0.05, 0.2, 1.0];

impl Split {
    /// `None` if an item is fixed or has gaps.
    pub(crate) fn new(instance: &Instance) -> Option<Self> {
        if instance.any_fixed || instance.any_gaps {
            return None;
        }
        let most = instance.live.iter().copied().max()?;
        let peak = instance.live.iter().position(|&live| live == most)? as u32;
        let (mut stack, mut sides) = (Vec::new(), [Vec::new(), Vec::new()]);
        for (item, i) in instance.items.iter().zip(0..) {
            if item.hull.lo > peak {
                sides[0].push((-(item.size as f64), i));
            } else if item.hull.hi <= peak {
                sides[1].push((-(item.size as f64), i));
            } else {
                stack.push(i);
            }
        }
        let [right, left] = Side::BOTH;
        let [sides, large] = [false, true].map(|large| {
            [(right, &sides[0]), (left, &sides[1])].map(|(side, items)| {
                let all = |&(size, _): &(f64, u32)| !large || -size * LARGE[0] as f64 >= most as f64;
                let mut items: Vec<(f64, u32)> = items.iter().copied().filter(all).collect();
                sort_ascending(&mut items);
                for (key, i) in &mut items {
                    *key = f64::from(side.lifetime(instance, *i)[0]);
                }
                ascending(items)
            })
        });
        Some(Self { peak, stack, sides, large, longest: longest_hull(instance) })
    }

    /// The section of the peak, counted in the direction of a side.
    pub(crate) fn start(&self, instance: &Instance, side: usize) -> u32 {
        Side::BOTH[side].section(instance, self.peak)
    }

    /// The order of the stack that a rule makes, in ascending offsets.
    pub(crate) fn stacked(&self, instance: &Instance, rule: Stack) -> Vec<u32> {
        ascending(
            self.stack.iter().map(|&i| (rule.key(instance.items[i as usize].hull, self.peak), i)).collect(),
        )
    }

    /// A random way, without early items.
    pub(crate) fn draw_side(&self, instance: &Instance, random: &mut Random) -> SideWay {
        SideWay {
            matching: Matching::draw(self.longest, random),
            large: (instance.bound / LARGE[random.below(LARGE.len())]).max(1),
            lead: self.longest * LEAD[random.below(LEAD.len())],
            early: Vec::new(),
        }
    }
}

/// An item that was placed before it begins.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    pub(crate) item: u32,
    /// The section at which the front then was.
    pub(crate) since: u32,
}

/// The items of one side, and how to place them.
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub(crate) split: &'a Split,
    pub(crate) instance: &'a Instance,
    pub(crate) side: usize,
    pub(crate) way: &'a SideWay,
    /// Items that have offsets already, in the order of the side, and the offsets of all items.
    pub(crate) given: (&'a [u32], &'a [u64]),
}

impl Pass<'_> {
    /// Where an item begins, in the direction of the side.
    fn begin(&self, item: u32) -> u32 {
        Side::BOTH[self.side].lifetime(self.instance, item)[0]
    }

    /// The items that begin behind a section, before another, and are placed early: with the section at which each is placed, in their order.
    fn early_items(&self, from: u32, until: u32) -> Vec<(f64, u32)> {
        let SideWay { large, lead, early, .. } = self.way;
        let listed = |i: u32| early.iter().any(|&(other, _)| other == i);
        let may_be_large = &self.split.large[self.side];
        let [first, end] = [from + 1, until].map(|at| may_be_large.partition_point(|&i| self.begin(i) < at));
        let is_large = |&i: &u32| *lead > 0.0 && self.instance.items[i as usize].size >= *large && !listed(i);
        let by_size = may_be_large[first..end].iter().copied().filter(is_large).map(|i| (i, *lead));
        let by_list = early.iter().copied().filter(|&(i, _)| (from + 1..until).contains(&self.begin(i)));
        let mut all: Vec<(f64, u32)> =
            by_size.chain(by_list).map(|(i, lead)| (f64::from(self.begin(i)) - lead, i)).collect();
        sort_ascending(&mut all);
        all
    }

    /// Places the items that begin behind the section at which a front starts, before the section `until`, and hands each with its offset to
    /// `placed`, until that says no. Adds those that are placed early to `ahead`. Returns how many items of the side have their places then.
    pub(crate) fn run(
        &self,
        front: &mut Front<'_>,
        until: u32,
        offsets: &mut [u64],
        ahead: &mut Vec<Ahead>,
        placed: &mut dyn FnMut(u32, u64) -> bool,
    ) -> usize {
        let (items, matching) = (&self.split.sides[self.side], &self.way.matching);
        let mut early = self.early_items(front.section(), until).into_iter().peekable();
        let is_past = |&i: &u32| self.begin(i) <= front.section();
        let first = items.partition_point(is_past);
        let (given, given_offsets) = self.given;
        let mut given = given[given.partition_point(is_past)..].iter().copied().peekable();
        // An item must not take bytes that one with an offset needs before it is freed.
        let mut take_given = |front: &mut Front<'_>, item: u32, offsets: &mut [u64]| {
            let [_, freed] = Side::BOTH[self.side].lifetime(self.instance, item);
            while let Some(i) = given.next_if(|&i| self.begin(i) < freed) {
                offsets[i as usize] = given_offsets[i as usize];
                front.reserve_at(i, offsets[i as usize]);
            }
        };
        for (at, &i) in items.iter().enumerate().skip(first) {
            let now = self.begin(i);
            if now >= until {
                return at;
            }
            take_given(front, i, offsets);
            while let Some((_, early)) = early.next_if(|&(at, _)| at <= f64::from(now)) {
                take_given(front, early, offsets);
                if let Some(offset) = front.reserve(early, matching, offsets) {
                    offsets[early as usize] = offset;
                    ahead.push(Ahead { item: early, since: now });
                }
            }
            let offset = front.place(i, matching, offsets);
            offsets[i as usize] = offset;
            if !placed(i, offset) {
                return at;
            }
        }
        items.len()
    }
}

/// Offsets of items one on the other, in an order.
pub(crate) fn pile(instance: &Instance, order: &[u32]) -> Vec<(u32, u64)> {
    let mut top = 0;
    let place = |&i: &u32| {
        let item = &instance.items[i as usize];
        let offset = item.align_up(top);
        top = offset + item.size;
        (i, offset)
    };
    order.iter().map(place).collect()
}

/// What a sweep gives.
pub(crate) struct Swept {
    /// The sum of the excess of all items above the goal.
    pub(crate) cost: f64,
    pub(crate) offsets: Vec<u64>,
}

/// A way to place all items, drawn before it is tried.
pub(crate) struct Sweep {
    stack: Stack,
    way: SideWay,
}

impl Sweep {
    /// A random way.
    pub(crate) fn draw(split: &Split, instance: &Instance, random: &mut Random) -> Self {
        let way = split.draw_side(instance, random);
        Self { stack: Stack::draw(random), way }
    }

    /// Places all items. `None` if that costs more than `most`, or if it is to `stop`.
    pub(crate) fn run(
        &self,
        split: &Split,
        instance: &Instance,
        goal: u64,
        most: f64,
        stop: &dyn Fn() -> bool,
    ) -> Option<Swept> {
        let Self { stack, way } = self;
        let stack = split.stacked(instance, *stack);
        let (mut offsets, mut cost) = (vec![0; instance.len()], 0.0);
        for (i, offset) in pile(instance, &stack) {
            offsets[i as usize] = offset;
            cost += excess(offset + instance.items[i as usize].bytes, goal);
        }
        for (side, direction) in Side::BOTH.into_iter().enumerate() {
            let mut front =
                Front::new(instance, (direction, split.start(instance, side)), goal, &stack, &offsets);
            let mut given_up = false;
            let pass = Pass { split, instance, side, way, given: (&[], &[]) };
            pass.run(&mut front, u32::MAX, &mut offsets, &mut Vec::new(), &mut |i, offset| {
                cost += excess(offset + instance.items[i as usize].bytes, goal);
                given_up = cost > most || stop();
                !given_up
            });
            if given_up {
                return None;
            }
        }
        Some(Swept { cost, offsets })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use elbowroom_ir::Bytes;
    use elbowroom_ir::packing::{Block, Problem};

    use super::*;
    use crate::outwards::Outwards;
    use crate::partial_placement::{Fit, PartialPlacement};

    /// 120 blocks, each with one of these alignments.
    pub(crate) fn problem(random: &mut Random, aligns: &[u64]) -> Problem {
        let blocks = (0..120).map(|_| {
            let start = random.below(60) as u64;
            let size = Bytes(1 + random.below(50) as u64);
            let mut block = Block::new(start, start + 1 + random.below(30) as u64, size);
            block.align = Bytes(aligns[random.below(aligns.len())]);
            block
        });
        Problem { blocks: blocks.collect(), capacity: None }
    }

    fn split_and_sweep(instance: &Instance, random: &mut Random) -> (Split, Sweep) {
        let split = Split::new(instance).expect("no block is fixed or has gaps");
        let sweep = Sweep::draw(&split, instance, random);
        (split, sweep)
    }

    /// A sweep knows what is alive from its lists, the other placement from a look at all items: the offsets are the same. With alignments the
    /// other one also fills holes of the stack.
    #[test]
    fn a_sweep_places_items_where_a_look_at_all_of_them_does() {
        for seed in 0..200 {
            let mut random = Random::new(seed, 0);
            let problem = problem(&mut random, &[1]);
            let Ok(instance) = Instance::new(&problem) else { panic!("no block is fixed") };
            // Nothing ends above this goal: above it, the two take different holes.
            let goal = 2 * instance.bound;
            let (split, mut sweep) = split_and_sweep(&instance, &mut random);
            sweep.way.lead = 0.0;
            let swept =
                sweep.run(&split, &instance, goal, f64::INFINITY, &|| false).expect("it is not given up");
            let placement = instance.placement(&problem, &swept.offsets);
            assert_eq!(crate::validate(&problem, &placement), Ok(()), "seed {seed}");
            let outwards = Outwards::new(split.peak, sweep.stack, sweep.way.matching);
            let mut partial = PartialPlacement::new(&instance, Fit::First);
            for item in outwards.order(&instance) {
                outwards.place(&mut partial, &instance, item as usize, goal);
            }
            assert_eq!(partial.into_offsets(), swept.offsets, "seed {seed}");
        }
    }

    #[test]
    fn items_with_offsets_keep_them_and_nothing_is_placed_in_their_way() {
        let mut kept = 0;
        for seed in 0..200 {
            let mut random = Random::new(seed, 0);
            let problem = problem(&mut random, &[1, 1, 8]);
            let Ok(instance) = Instance::new(&problem) else { panic!("no block is fixed") };
            let goal = 2 * instance.bound;
            let (split, sweep) = split_and_sweep(&instance, &mut random);
            let swept =
                sweep.run(&split, &instance, goal, f64::INFINITY, &|| false).expect("it is not given up");
            let given = |items: &Vec<u32>, random: &mut Random| {
                items.iter().copied().filter(|_| random.below(3) == 0).collect::<Vec<u32>>()
            };
            let given = [0, 1].map(|side: usize| given(&split.sides[side], &mut random));
            let mut offsets = swept.offsets.clone();
            let mut stack = split.stack.clone();
            stack.sort_by_key(|&i| offsets[i as usize]);
            for (side, direction) in Side::BOTH.into_iter().enumerate() {
                let start = split.start(&instance, side);
                let mut front = Front::new(&instance, (direction, start), goal, &stack, &offsets);
                let mut way = split.draw_side(&instance, &mut random);
                for &item in &split.sides[side] {
                    if random.below(4) == 0 {
                        way.place_early(item, 30.0 * random.unit());
                    }
                }
                let given = (&given[side][..], &swept.offsets[..]);
                let pass = Pass { split: &split, instance: &instance, side, way: &way, given };
                pass.run(&mut front, u32::MAX, &mut offsets, &mut Vec::new(), &mut |_, _| true);
            }
            let placement = instance.placement(&problem, &offsets);
            assert_eq!(crate::validate(&problem, &placement), Ok(()), "seed {seed}");
            for &i in given.iter().flatten() {
                assert_eq!(offsets[i as usize], swept.offsets[i as usize], "seed {seed}");
                kept += 1;
            }
        }
        assert!(kept > 2_000, "{kept}");
    }

    #[test]
    fn early_items_get_legal_offsets_above_and_below_the_goal() {
        for seed in 0..400 {
            let mut random = Random::new(seed, 0);
            let problem = problem(&mut random, &[1, 1, 8]);
            let Ok(instance) = Instance::new(&problem) else { panic!("no block is fixed") };
            let goal = instance.bound * [9, 11, 30][seed as usize % 3] / 10;
            let (split, mut sweep) = split_and_sweep(&instance, &mut random);
            for &item in split.sides.iter().flatten() {
                if random.below(3) == 0 {
                    sweep.way.place_early(item, 30.0 * random.unit());
                }
            }
            let run = |most, stop: &dyn Fn() -> bool| sweep.run(&split, &instance, goal, most, stop);
            let swept = run(f64::INFINITY, &|| false).expect("it is not given up");
            let placement = instance.placement(&problem, &swept.offsets);
            assert_eq!(crate::validate(&problem, &placement), Ok(()), "seed {seed}");
            let end = |i: usize| swept.offsets[i] + instance.items[i].bytes;
            let cost: f64 = (0..instance.len()).map(|i| excess(end(i), goal)).sum();
            assert!((cost - swept.cost).abs() <= 1e-9 * cost, "seed {seed}: {cost} {}", swept.cost);
            assert!(run(f64::INFINITY, &|| true).is_none(), "seed {seed}");
            assert!(run(swept.cost, &|| false).is_some(), "seed {seed}");
            if cost > 0.0 {
                assert!(run(0.9 * swept.cost, &|| false).is_none(), "seed {seed}");
            }
        }
    }
}

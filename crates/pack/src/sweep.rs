//! Places all items outwards from the peak ([`crate::outwards`]), each where it begins.
//!
//! Large items are the last to fit when they begin: other items have divided the free bytes by then. They are placed earlier, and so is every
//! item that ended above the goal: what [`crate::squeaky_wheel`] does to an order, a sweep can do only so, because its order is that of time.
//! Neither side of the peak depends on the other, so that one of them can be swept again alone.

use crate::front::{Front, Side};
use crate::instance::Instance;
use crate::large_neighbourhood::excess;
use crate::order_keys::{ascending, longest_hull, sort_ascending};
use crate::outwards::{Matching, Stack};
use crate::random::Random;

/// How the items of one side are placed.
#[derive(Clone, Debug)]
struct SideWay {
    matching: Matching,
    /// Items of at least this size are placed early.
    large: u64,
    /// By how many sections.
    lead: f64,
    /// Other items that are, and by how many.
    early: Vec<(u32, f64)>,
}

/// How all items are placed.
#[derive(Clone, Debug)]
struct Way {
    stack: Stack,
    sides: [SideWay; 2],
}

/// A way to try.
pub(crate) struct Attempt {
    way: Way,
    /// The only side that differs from the best way, if it does.
    only: Option<usize>,
}

/// What a way gives.
#[derive(Clone)]
pub(crate) struct Swept {
    way: Way,
    /// Items of each side that end above the goal.
    above: [Vec<u32>; 2],
    /// The sum of the excess of each side, and of the stack.
    costs: [f64; 2],
    stack_cost: f64,
    pub(crate) offsets: Vec<u64>,
}

impl Swept {
    fn cost(&self) -> f64 {
        self.costs[0] + self.costs[1] + self.stack_cost
    }
}

/// The search for a way.
pub(crate) struct Sweeps {
    /// A section with the most live memory.
    peak: u32,
    /// The items alive there.
    stack: Vec<u32>,
    /// All others of each side, in order of their begins, larger ones first.
    sides: [Vec<u32>; 2],
    /// Of these, those that may be large.
    large: [Vec<u32>; 2],
    /// The longest lifetime, in sections.
    longest: f64,
    best: Option<Swept>,
}

/// Large items have at least these shares of the peak memory.
const LARGE: [u64; 3] = [256, 64, 32];
/// They are placed early by these shares of the longest lifetime.
const LEAD: [f64; 4] = [0.0, 0.05, 0.2, 1.0];
/// The share of attempts that change the best way.
const CHANGED: f64 = 0.6;

impl Sweeps {
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
        Some(Self { peak, stack, sides, large, longest: longest_hull(instance), best: None })
    }

    fn draw_side(&self, instance: &Instance, random: &mut Random) -> SideWay {
        SideWay {
            matching: Matching::draw(self.longest, random),
            large: (instance.bound / LARGE[random.below(LARGE.len())]).max(1),
            lead: self.longest * LEAD[random.below(LEAD.len())],
            early: Vec::new(),
        }
    }

    /// A random way, or the best one with a change.
    pub(crate) fn attempt(&self, instance: &Instance, random: &mut Random) -> Attempt {
        if let Some(best) = self.best.as_ref().filter(|_| random.unit() < CHANGED) {
            let side = if best.above[0].is_empty() {
                1
            } else if best.above[1].is_empty() {
                0
            } else {
                random.below(2)
            };
            let mut way = best.way.clone();
            self.change(instance, &mut way.sides[side], &best.above[side], random);
            return Attempt { way, only: Some(side) };
        }
        let side = self.draw_side(instance, random);
        let way = Way { stack: Stack::draw(random), sides: [side.clone(), side] };
        Attempt { way, only: None }
    }

    /// Lets items that end above the goal come earlier, and may change how items are matched.
    fn change(&self, instance: &Instance, way: &mut SideWay, above: &[u32], random: &mut Random) {
        let one = (random.below(3) == 0).then(|| random.below(above.len().max(1)));
        for (at, &item) in above.iter().enumerate() {
            if one.map_or_else(|| random.unit() < 0.7, |one| one == at) {
                way.early.retain(|&(other, _)| other != item);
                // Each halving is equally likely.
                let share = (1.0 + random.unit()) / f64::from(2 << random.below(8));
                way.early.push((item, self.longest * share));
            }
        }
        if random.unit() < 0.3 {
            way.early.retain(|_| random.unit() < 0.9);
        }
        if random.unit() < 0.5 {
            let drawn = self.draw_side(instance, random);
            match random.below(4) {
                0 => way.lead = drawn.lead,
                1 => way.large = drawn.large,
                2 => way.matching.outlives = drawn.matching.outlives,
                _ => way.matching.slack = drawn.matching.slack,
            }
        }
    }

    /// Places all items. `None` if that costs more than the best way, or if it is to `stop`.
    pub(crate) fn sweep(
        &self,
        instance: &Instance,
        attempt: &Attempt,
        goal: u64,
        stop: &dyn Fn() -> bool,
    ) -> Option<Swept> {
        let Attempt { way, only } = attempt;
        let left = self.best.as_ref().map_or(f64::INFINITY, Swept::cost);
        let mut swept = match (&self.best, only) {
            (Some(best), Some(side)) => {
                let mut swept = Swept { way: way.clone(), ..best.clone() };
                swept.above[*side].clear();
                swept.costs[*side] = 0.0;
                swept
            }
            _ => Swept {
                way: way.clone(),
                above: [Vec::new(), Vec::new()],
                costs: [0.0; 2],
                stack_cost: 0.0,
                offsets: vec![0; instance.len()],
            },
        };
        let key = |i: u32| way.stack.key(instance.items[i as usize].hull, self.peak);
        let stack = ascending(self.stack.iter().map(|&i| (key(i), i)).collect());
        if only.is_none() {
            let mut top = 0;
            for &i in &stack {
                let item = &instance.items[i as usize];
                let offset = item.align_up(top);
                top = offset + item.size;
                swept.offsets[i as usize] = offset;
                swept.stack_cost += excess(offset + item.bytes, goal);
            }
        }
        for at in (0..2).filter(|&at| only.is_none_or(|only| only == at)) {
            let side = Side::BOTH[at];
            let front = Front::new(instance, (side, self.peak), goal, &stack, &swept.offsets);
            self.sweep_side(instance, at, front, &mut swept, (goal, left), stop)?;
        }
        Some(swept)
    }

    /// Places the items of one side.
    fn sweep_side(
        &self,
        instance: &Instance,
        at: usize,
        mut front: Front<'_>,
        swept: &mut Swept,
        (goal, left): (u64, f64),
        stop: &dyn Fn() -> bool,
    ) -> Option<()> {
        let SideWay { matching, large, lead, early } = &swept.way.sides[at];
        let begins = |i: u32| Side::BOTH[at].lifetime(instance, i)[0];
        let listed = |i: u32| early.iter().any(|&(other, _)| other == i);
        let is_large = |&&i: &&u32| *lead > 0.0 && instance.items[i as usize].size >= *large && !listed(i);
        let of_size = self.large[at].iter().filter(is_large).map(|&i| (i, *lead));
        let mut reserved: Vec<(f64, u32)> =
            of_size.chain(early.iter().copied()).map(|(i, lead)| (f64::from(begins(i)) - lead, i)).collect();
        sort_ascending(&mut reserved);
        let mut reserved = reserved.into_iter().peekable();
        let matching = *matching;
        for &i in &self.sides[at] {
            let now = f64::from(begins(i));
            while let Some((_, early)) = reserved.next_if(|&(at, _)| at <= now) {
                swept.offsets[early as usize] = front.reserve(early, &matching, &swept.offsets);
            }
            let offset = front.place(i, &matching, &swept.offsets);
            swept.offsets[i as usize] = offset;
            let end = offset + instance.items[i as usize].bytes;
            if end > goal {
                swept.above[at].push(i);
                swept.costs[at] += excess(end, goal);
            }
            if swept.cost() > left || stop() {
                return None;
            }
        }
        Some(())
    }

    /// Keeps a way if it costs no more than the best one.
    pub(crate) fn accept(&mut self, swept: Swept) {
        if self.best.as_ref().is_none_or(|best| swept.cost() <= best.cost()) {
            self.best = Some(swept);
        }
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::Bytes;
    use elbowroom_ir::packing::{Block, Problem};

    use super::*;
    use crate::outwards::Outwards;
    use crate::partial_placement::{Fit, PartialPlacement};

    fn problem(random: &mut Random, aligns: &[u64]) -> Problem {
        let blocks = (0..120).map(|_| {
            let start = random.below(60) as u64;
            let size = Bytes(1 + random.below(50) as u64);
            let mut block = Block::new(start, start + 1 + random.below(30) as u64, size);
            block.align = Bytes(aligns[random.below(aligns.len())]);
            block
        });
        Problem { blocks: blocks.collect(), capacity: None }
    }

    /// A way that places many items early.
    fn early(sweeps: &Sweeps, instance: &Instance, random: &mut Random) -> Attempt {
        let mut attempt = sweeps.attempt(instance, random);
        for (way, items) in attempt.way.sides.iter_mut().zip(&sweeps.sides) {
            way.early = items.iter().map(|&i| (i, 30.0 * random.unit())).collect();
            way.early.retain(|_| random.below(3) == 0);
        }
        attempt
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
            let sweeps = Sweeps::new(&instance).expect("no block is fixed or has gaps");
            let mut attempt = sweeps.attempt(&instance, &mut random);
            for way in &mut attempt.way.sides {
                way.lead = 0.0;
            }
            let swept = sweeps.sweep(&instance, &attempt, goal, &|| false).expect("no way is better");
            let placement = instance.placement(&problem, &swept.offsets);
            assert_eq!(crate::validate(&problem, &placement), Ok(()), "seed {seed}");
            let Way { stack, sides: [side, _] } = attempt.way;
            let outwards = Outwards::new(sweeps.peak, stack, side.matching);
            let mut partial = PartialPlacement::new(&instance, Fit::First);
            for item in outwards.order(&instance) {
                outwards.place(&mut partial, &instance, item as usize, goal);
            }
            assert_eq!(partial.into_offsets(), swept.offsets, "seed {seed}");
        }
    }

    #[test]
    fn early_items_get_legal_offsets_above_and_below_the_goal() {
        for seed in 0..400 {
            let mut random = Random::new(seed, 0);
            let problem = problem(&mut random, &[1, 1, 8]);
            let Ok(instance) = Instance::new(&problem) else { panic!("no block is fixed") };
            let sweeps = Sweeps::new(&instance).expect("no block is fixed or has gaps");
            let goal = instance.bound * [9, 11, 30][seed as usize % 3] / 10;
            let attempt = early(&sweeps, &instance, &mut random);
            let swept = sweeps.sweep(&instance, &attempt, goal, &|| false).expect("no way is better");
            let placement = instance.placement(&problem, &swept.offsets);
            assert_eq!(crate::validate(&problem, &placement), Ok(()), "seed {seed}");
            let end = |i: &u32| swept.offsets[*i as usize] + instance.items[*i as usize].bytes;
            let mut above = [sweeps.sides.concat(), swept.above.concat()];
            above[0].retain(|i| end(i) > goal);
            above.iter_mut().for_each(|items| items.sort_unstable());
            assert_eq!(above[0], above[1], "seed {seed}");
            let cost: f64 = (0..instance.len() as u32).map(|i| excess(end(&i), goal)).sum();
            assert!((cost - swept.cost()).abs() <= 1e-9 * cost, "seed {seed}: {cost} {}", swept.cost());
            assert!(sweeps.sweep(&instance, &attempt, goal, &|| true).is_none(), "seed {seed}");
        }
    }

    /// A side that is swept alone gets the offsets that it gets with the other one.
    #[test]
    fn one_side_does_not_depend_on_the_other() {
        for seed in 0..200 {
            let mut random = Random::new(seed, 0);
            let problem = problem(&mut random, &[1, 8]);
            let Ok(instance) = Instance::new(&problem) else { panic!("no block is fixed") };
            let mut sweeps = Sweeps::new(&instance).expect("no block is fixed or has gaps");
            let goal = instance.bound;
            let best = early(&sweeps, &instance, &mut random);
            let best = sweeps.sweep(&instance, &best, goal, &|| false).expect("no way is better");
            sweeps.accept(best.clone());
            let only = random.below(2);
            let mut way = best.way;
            way.sides[only] = early(&sweeps, &instance, &mut random).way.sides[only].clone();
            let [alone, both] = [Some(only), None].map(|only| {
                let attempt = Attempt { way: way.clone(), only };
                sweeps.sweep(&instance, &attempt, goal, &|| false)
            });
            let offsets = |swept: Option<Swept>| swept.map(|swept| (swept.cost(), swept.offsets));
            assert_eq!(offsets(alone), offsets(both), "seed {seed}");
        }
    }

    #[test]
    fn a_way_that_costs_more_than_the_best_one_is_given_up() {
        let mut random = Random::new(1, 0);
        let problem = problem(&mut random, &[1]);
        let Ok(instance) = Instance::new(&problem) else { panic!("no block is fixed") };
        let mut sweeps = Sweeps::new(&instance).expect("no block is fixed or has gaps");
        let goal = instance.bound;
        let (mut kept, mut given_up) = (f64::INFINITY, 0);
        for _ in 0..100 {
            let attempt = sweeps.attempt(&instance, &mut random);
            let Some(swept) = sweeps.sweep(&instance, &attempt, goal, &|| false) else {
                given_up += 1;
                continue;
            };
            assert!(swept.cost() <= kept);
            kept = swept.cost();
            sweeps.accept(swept);
        }
        assert!(given_up > 20 && kept < f64::INFINITY, "{given_up} {kept}");
    }
}

//! Joins items that fit each other into larger ones, *composites*, so that a search decides about fewer.
//!
//! ```text
//!  bytes  ┌─────┬──┐        ┌─────┬──┐        ┌────────┐      Items that are alive through the same sections are stacked. An item that
//!  ▲      ├───┬─┤  │        ├─────┤  │        │        │      starts where another one of its size ends is put behind it. Composites
//!  │      │   │ │  │   ──▶  │     │  │   ──▶  │        │      are joined in turn.
//!  └────▶ └───┴─┴──┘        └─────┴──┘        └────────┘
//! ```
//!
//! What was cut from a rectangle by straight cuts is a rectangle again in the end; where some pieces are missing, few composites are left of
//! hundreds of items. Items that could be joined may have to lie apart: that composites do not fit below a ceiling proves nothing. The smallest
//! composites are made first, as if the largest piece had been cut next, and from the second search on with noise.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::instance::{Instance, Rectangle};
use crate::random::Random;

/// Of the composites that fit a new one in the same way, at most this number may be joined to it: the latest.
const MOST_JOINTS: usize = 16;

/// Items joined to composites, which are the items of another instance.
pub(crate) struct Composites {
    pub(crate) instance: Instance,
    /// The parts of every composite: items, and their offsets above its own.
    parts: Vec<Vec<(u32, u64)>>,
}

impl Composites {
    /// Joins items that fit each other, those first that become the smallest composites; a joint seems up to 2^`noise` times as large as it is, and
    /// is made with a probability of `chance`. No item may have gaps, a fixed offset or a stricter alignment.
    pub(crate) fn join(instance: &Instance, noise: f64, chance: f64, random: &mut Random) -> Self {
        let mut order: Vec<u32> = (0..instance.len() as u32).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at + 1));
        }
        let mut pile = Pile { noise, ..Pile::default() };
        for item in order {
            let i = &instance.items[item as usize];
            let rectangle = Rectangle {
                item,
                lo: i.hull.lo,
                hi: i.hull.hi,
                size: i.size,
                bytes: i.bytes,
                lifetime: i.lifetime,
            };
            pile.push(rectangle, vec![(item, 0)], random);
        }
        while let Some(Reverse((_, joint))) = pile.joints.pop() {
            if joint.pair().iter().all(|&one| pile.is_whole(one)) && random.unit() < chance {
                pile.join(joint, random);
            }
        }
        let left = pile.rectangles.iter().zip(pile.parts).filter(|(_, parts)| !parts.is_empty());
        let (rectangles, parts): (Vec<Rectangle>, _) =
            left.map(|(&rectangle, parts)| (rectangle, parts)).unzip();
        Self { instance: instance.composed(&rectangles), parts }
    }

    /// The offsets of all items from those of the composites.
    pub(crate) fn offsets(&self, composites: &[u64]) -> Vec<u64> {
        let mut offsets = vec![0; self.parts.iter().map(Vec::len).sum()];
        for (parts, offset) in self.parts.iter().zip(composites) {
            for &(item, above) in parts {
                offsets[item as usize] = offset + above;
            }
        }
        offsets
    }
}

/// Where a composite is found by one that fits it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// First and last section.
    Lifetime(u32, u32),
    /// First section and size.
    Start(u32, u64),
    /// Last section and size.
    End(u32, u64),
}

/// Two composites that fit each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Joint {
    Stack { lower: u32, upper: u32 },
    Behind { first: u32, second: u32 },
}

impl Joint {
    fn pair(self) -> [u32; 2] {
        match self {
            Self::Stack { lower, upper } => [lower, upper],
            Self::Behind { first, second } => [first, second],
        }
    }
}

/// Composites that are being joined; those that are part of another one have no parts any more.
#[derive(Default)]
struct Pile {
    rectangles: Vec<Rectangle>,
    parts: Vec<Vec<(u32, u64)>>,
    places: BTreeMap<Place, Vec<u32>>,
    /// The joints that are possible, by the area of what they make, with noise.
    joints: BinaryHeap<Reverse<(u64, Joint)>>,
    noise: f64,
}

impl Pile {
    fn is_whole(&self, one: u32) -> bool {
        !self.parts[one as usize].is_empty()
    }

    /// Adds a composite, and its joints with those that are there.
    fn push(&mut self, rectangle: Rectangle, parts: Vec<(u32, u64)>, random: &mut Random) {
        let one = self.rectangles.len() as u32;
        let Rectangle { lo, hi, size, .. } = rectangle;
        self.rectangles.push(rectangle);
        self.parts.push(parts);
        for place in [Place::Lifetime(lo, hi), Place::Start(hi, size), Place::End(lo, size)] {
            let Some(found) = self.places.get_mut(&place) else { continue };
            found.retain(|&other| !self.parts[other as usize].is_empty());
            for &other in found.iter().rev().take(MOST_JOINTS) {
                let joint = match place {
                    Place::Lifetime(..) => Joint::Stack { lower: one, upper: other },
                    Place::Start(..) => Joint::Behind { first: one, second: other },
                    Place::End(..) => Joint::Behind { first: other, second: one },
                };
                let area = |at: u32| {
                    let Rectangle { size, lifetime, .. } = self.rectangles[at as usize];
                    size as f64 * lifetime as f64
                };
                let seeming = (area(one) + area(other)) * power_of_two(self.noise * random.unit());
                self.joints.push(Reverse((seeming as u64, joint)));
            }
        }
        for place in [Place::Lifetime(lo, hi), Place::Start(lo, size), Place::End(hi, size)] {
            self.places.entry(place).or_default().push(one);
        }
    }

    /// Makes one of two.
    fn join(&mut self, joint: Joint, random: &mut Random) {
        let [a, b] = joint.pair().map(|one| one as usize);
        let (x, y) = (self.rectangles[a], self.rectangles[b]);
        let (rectangle, above) = match joint {
            Joint::Stack { .. } => {
                (Rectangle { size: x.size + y.size, bytes: x.size + y.bytes, ..x }, x.size)
            }
            Joint::Behind { .. } => {
                let (bytes, lifetime) = (x.bytes.max(y.bytes), x.lifetime + y.lifetime);
                (Rectangle { hi: y.hi, bytes, lifetime, ..x }, 0)
            }
        };
        let mut parts = std::mem::take(&mut self.parts[a]);
        let others = std::mem::take(&mut self.parts[b]);
        parts.extend(others.into_iter().map(|(item, offset)| (item, offset + above)));
        self.push(rectangle, parts, random);
    }
}

/// 2^`x` for a small `x` from zero on, to half a percent: with basic operations only, which give the same bits on all machines.
fn power_of_two(x: f64) -> f64 {
    let whole = x as u32;
    let rest = x - f64::from(whole);
    f64::from(1u32 << whole) * (1.0 + rest * (0.656 + 0.344 * rest))
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::Bytes;
    use elbowroom_ir::packing::{Block, Problem};

    use super::*;

    /// A rectangle cut into pieces by straight cuts.
    fn cut(pieces: usize, random: &mut Random) -> Vec<[u64; 4]> {
        let mut all = vec![[0, 1_000, 0, 1_000]];
        while all.len() < pieces {
            let at = random.below(all.len());
            let [start, end, low, high] = all[at];
            let across = random.below(2) == 0;
            let (from, to) = if across { (start, end) } else { (low, high) };
            if to - from < 2 {
                continue;
            }
            let middle = from + 1 + random.below((to - from - 1) as usize) as u64;
            all[at] = if across { [start, middle, low, high] } else { [start, end, low, middle] };
            all.push(if across { [middle, end, low, high] } else { [start, end, middle, high] });
        }
        all
    }

    #[test]
    fn powers_of_two_are_nearly_those() {
        for x in (0..=400).map(|hundredths| f64::from(hundredths) / 100.0) {
            assert!((power_of_two(x) / x.exp2() - 1.0).abs() < 5e-3, "{x}");
        }
    }

    #[test]
    fn a_rectangle_that_was_cut_is_whole_again_in_most_orders() {
        let (mut whole, mut cases) = (0, 0);
        for seed in 0..40 {
            let mut random = Random::new(seed, 0);
            let pieces = cut(60, &mut random);
            let block = |&[start, end, low, high]: &[u64; 4]| Block::new(start, end, Bytes(high - low));
            let problem = Problem { blocks: pieces.iter().map(block).collect(), capacity: None };
            let Ok(instance) = Instance::new(&problem) else { continue };
            let joined = Composites::join(&instance, 0.0, 1.0, &mut random);
            cases += 1;
            whole += usize::from(joined.instance.len() == 1);
            if joined.instance.len() == 1 {
                let placement = instance.placement(&problem, &joined.offsets(&[0]));
                assert_eq!(crate::validate(&problem, &placement), Ok(()), "seed {seed}");
                assert_eq!(placement.height, Bytes(1_000), "seed {seed}");
            }
        }
        assert!(2 * whole > cases, "{whole} of {cases}");
    }

    #[test]
    fn what_places_composites_places_their_parts() {
        for seed in 0..200 {
            let mut random = Random::new(seed, 1);
            let mut pieces = cut(40, &mut random);
            for _ in 0..6 {
                pieces.swap_remove(random.below(pieces.len()));
            }
            let block = |&[start, end, low, high]: &[u64; 4]| Block {
                align: Bytes(1 + seed % 3),
                ..Block::new(start, end, Bytes(high - low))
            };
            let problem = Problem { blocks: pieces.iter().map(block).collect(), capacity: None };
            let Ok(instance) = Instance::new(&problem) else { continue };
            let joined = Composites::join(&instance, 0.5, [1.0, 0.6][seed as usize % 2], &mut random);
            assert!(joined.instance.len() < instance.len(), "seed {seed}");
            let area = |i: &Instance, item: usize| {
                i.items[item].size * i.live[i.items[item].hull.range()].len() as u64
            };
            assert!((0..joined.instance.len()).all(|item| area(&joined.instance, item) > 0), "seed {seed}");
            // Any placement of the composites will do.
            let order: Vec<u32> = (0..joined.instance.len() as u32).collect();
            let composites = crate::best_fit::best_fit(&joined.instance, &order);
            let placement = instance.placement(&problem, &joined.offsets(&composites));
            assert_eq!(crate::validate(&problem, &placement), Ok(()), "seed {seed}");
            assert!(placement.height.get() <= joined.instance.height(&composites), "seed {seed}");
        }
    }
}

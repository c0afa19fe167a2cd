//! Joins items that fit each other into larger ones, *composites*, so that a search decides about fewer.
//!
//! ```text
//!  bytes  ┌─────┬──┐        ┌─────┬──┐        ┌────────┐      Items that are alive through the same sections are stacked. An item that
//!  ▲      ├───┬─┤  │        ├─────┤  │        │        │      starts where another one of its size ends is put behind it. Composites
//!  │      │   │ │  │   ──▶  │     │  │   ──▶  │        │      are joined in turn.
//!  └────▶ └───┴─┴──┘        └─────┴──┘        └────────┘
//! ```
//!
//! What was cut from a rectangle by straight cuts is a rectangle again in the end. Where some pieces are missing, the bytes below the ceiling that
//! no item uses are cut into rectangles too ([`crate::holes`]), which are joined like items. The smallest composites are made first, as if the
//! largest piece had been cut next, and from the second search on with noise.
//!
//! Some joints are wrong: two items fit each other by chance. A local search therefore takes composites apart that meet at one time, and joins
//! their parts in another way, unless more composites are left than before. Items that could be joined may have to lie apart even so: that
//! composites do not fit below a ceiling proves nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::holes::{self, Hole};
use crate::instance::{Instance, Item, Rectangle, Span};
use crate::random::Random;

/// Of the composites that fit a new one in the same way, at most this number may be joined to it: the latest.
const MOST_JOINTS: usize = 16;

/// Of the composites that meet at one time, the share that a move takes apart, and the probability that it does so to a part of them again.
const APART: [f64; 3] = [0.2, 0.5, 1.0];
const DEEPER: [f64; 4] = [0.0, 0.3, 0.6, 0.8];
/// Noise in the order in which a move joins.
const NOISE: [f64; 4] = [0.0, 0.5, 1.0, 2.0];
/// Moves between two checks whether to stop.
const MOVES_PER_CHECK: u64 = 64;
/// One of this many moves cuts the holes that no item is joined to in another way.
const CUTTING: usize = 3;

/// How items are joined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joining {
    /// A joint seems up to 2^`noise` times as large as it is.
    pub(crate) noise: f64,
    /// The probability with which a joint is made.
    pub(crate) chance: f64,
    /// Up to where holes fill all sections, if they do.
    pub(crate) filled_to: Option<u64>,
    /// Moves of the local search.
    pub(crate) moves: u64,
}

/// When items fit each other: at most one of this many pairs of items has the same size,
const ALIKE: u64 = 32;
/// of those that meet in time more than this many times as many do,
const FITTING: f64 = 2.5;
/// and there are more than one pair of these for this many items. For MiniMalloc's A to K the middle number is 3.1 to 13. Of 22 plans of networks it is
/// above 2.5 for eight, in each of which at least one of 26 pairs of items has the same size.
const ITEMS_PER_FITTING: u64 = 10;

/// Whether items fit each other as if they had been cut from a rectangle: sizes are rarely equal, but where one item ends and another begins they
/// often are. Joining pays then, whereas items of few sizes fit each other by chance.
pub(crate) fn fit_each_other(instance: &Instance) -> bool {
    let items = instance.len() as u64;
    let mut sizes: Vec<u64> = instance.items.iter().map(|item| item.size).collect();
    sizes.sort_unstable();
    // Pairs are counted in both orders.
    let alike: u64 = sizes.chunk_by(|a, b| a == b).map(|same| (same.len() * (same.len() - 1)) as u64).sum();
    let pairs = items * items.saturating_sub(1);
    let mut starts = vec![Vec::new(); instance.sections() + 1];
    for item in &instance.items {
        starts[item.hull.lo as usize].push(item.size);
    }
    let (mut meeting, mut fitting) = (0, 0);
    for item in &instance.items {
        let next = &starts[item.hull.hi as usize];
        meeting += next.len() as u64;
        fitting += next.iter().filter(|&&size| size == item.size).count() as u64;
    }
    let by_chance = meeting as f64 * alike as f64 / pairs.max(1) as f64;
    ALIKE * alike <= pairs && fitting as f64 > FITTING * by_chance && ITEMS_PER_FITTING * fitting > items
}

/// Items joined to composites, which are the items of another instance.
pub(crate) struct Composites {
    pub(crate) instance: Instance,
    /// The parts of every composite: items, and their offsets above its own.
    parts: Vec<Vec<(u32, u64)>>,
    /// How many items were joined.
    items: usize,
}

impl Composites {
    /// Joins the items of an instance. None of them may have gaps, a fixed offset or a stricter alignment. `None` if `stop` returns true.
    pub(crate) fn join(
        instance: &Instance,
        joining: Joining,
        random: &mut Random,
        stop: &dyn Fn() -> bool,
    ) -> Option<Self> {
        let mut pile = Pile::new(instance.sections());
        let mut pieces = Composite::items(instance);
        if let Some(ceiling) = joining.filled_to {
            let cut = holes::cut(holes::profile(instance, ceiling), random);
            pieces.extend(cut.into_iter().map(Composite::hole));
        }
        pile.join(pieces, joining.noise, joining.chance, random);
        for number in 0..joining.moves {
            if number.is_multiple_of(MOVES_PER_CHECK) && stop() {
                return None;
            }
            if pile.whole.len() <= 1 {
                break;
            }
            pile.change(random);
        }
        let rectangle = |&one: &u32| pile.all[one as usize].rectangle;
        let rectangles: Vec<Rectangle> = pile.whole.iter().map(rectangle).collect();
        let parts = pile.whole.iter().map(|&one| pile.parts(one)).collect();
        Some(Self { instance: instance.composed(&rectangles), parts, items: instance.len() })
    }

    /// The offsets of all items from those of the composites.
    pub(crate) fn offsets(&self, composites: &[u64]) -> Vec<u64> {
        let mut offsets = vec![0; self.items];
        for (parts, offset) in self.parts.iter().zip(composites) {
            for &(item, above) in parts {
                offsets[item as usize] = offset + above;
            }
        }
        offsets
    }
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

/// What a composite is made of.
#[derive(Clone, Copy)]
enum Made {
    Item,
    Hole(Hole),
    Of(Joint),
}

#[derive(Clone, Copy)]
struct Composite {
    rectangle: Rectangle,
    made: Made,
    /// Whether it has no items.
    hollow: bool,
}

impl Composite {
    fn items(instance: &Instance) -> Vec<Self> {
        let item = |(item, i): (u32, &Item)| {
            let Span { lo, hi } = i.hull;
            let rectangle = Rectangle { item, lo, hi, size: i.size, bytes: i.bytes, lifetime: i.lifetime };
            Self { rectangle, made: Made::Item, hollow: false }
        };
        (0..).zip(&instance.items).map(item).collect()
    }

    fn hole(hole: Hole) -> Self {
        Self { rectangle: hole.rectangle(), made: Made::Hole(hole), hollow: true }
    }
}

/// Composites that are being joined.
struct Pile {
    /// All that were made; parts come before what is made of them.
    all: Vec<Composite>,
    /// Those that are part of no other one, and for all the position among these.
    whole: Vec<u32>,
    position: Vec<u32>,
    /// For each section, the whole ones that start there, and those that end before it.
    starts: Vec<Vec<u32>>,
    ends: Vec<Vec<u32>>,
    /// The joints that are possible, by the area of what they make, with noise.
    joints: BinaryHeap<Reverse<(u64, Joint)>>,
    /// What has become whole (`true`) or a part since the last move.
    changes: Vec<(u32, bool)>,
}

/// The position of a composite that is not whole.
const PART: u32 = u32::MAX;

impl Pile {
    fn new(sections: usize) -> Self {
        Self {
            all: Vec::new(),
            whole: Vec::new(),
            position: Vec::new(),
            starts: vec![Vec::new(); sections + 1],
            ends: vec![Vec::new(); sections + 1],
            joints: BinaryHeap::new(),
            changes: Vec::new(),
        }
    }

    fn insert(&mut self, one: u32) {
        let Rectangle { lo, hi, .. } = self.all[one as usize].rectangle;
        self.position[one as usize] = self.whole.len() as u32;
        self.whole.push(one);
        self.starts[lo as usize].push(one);
        self.ends[hi as usize].push(one);
        self.changes.push((one, true));
    }

    fn remove(&mut self, one: u32) {
        let Rectangle { lo, hi, .. } = self.all[one as usize].rectangle;
        let at = std::mem::replace(&mut self.position[one as usize], PART) as usize;
        self.whole.swap_remove(at);
        if let Some(&moved) = self.whole.get(at) {
            self.position[moved as usize] = at as u32;
        }
        self.starts[lo as usize].retain(|&other| other != one);
        self.ends[hi as usize].retain(|&other| other != one);
        self.changes.push((one, false));
    }

    fn is_whole(&self, one: u32) -> bool {
        self.position[one as usize] != PART
    }

    /// Adds pieces in random order, and makes joints until none is left.
    fn join(&mut self, mut pieces: Vec<Composite>, noise: f64, chance: f64, random: &mut Random) {
        for at in (1..pieces.len()).rev() {
            pieces.swap(at, random.below(at + 1));
        }
        for piece in pieces {
            self.push(piece, noise, random);
        }
        while let Some(Reverse((_, joint))) = self.joints.pop() {
            if joint.pair().iter().all(|&one| self.is_whole(one)) && random.unit() < chance {
                joint.pair().iter().for_each(|&one| self.remove(one));
                self.push(self.joined(joint), noise, random);
            }
        }
    }

    /// Adds a composite, and its joints with those that are there.
    fn push(&mut self, composite: Composite, noise: f64, random: &mut Random) {
        let one = self.all.len() as u32;
        let Rectangle { lo, hi, size, lifetime, .. } = composite.rectangle;
        let area = size as f64 * lifetime as f64;
        let all = &self.all;
        let of = |other: &u32| all[*other as usize].rectangle;
        let fitting = |list: &[u32], fits: &dyn Fn(Rectangle) -> bool| -> Vec<u32> {
            list.iter().rev().filter(|&other| fits(of(other))).take(MOST_JOINTS).copied().collect()
        };
        let alike = fitting(&self.starts[lo as usize], &|other| other.hi == hi);
        let after = fitting(&self.starts[hi as usize], &|other| other.size == size);
        let before = fitting(&self.ends[lo as usize], &|other| other.size == size);
        let joints = alike.into_iter().map(|upper| Joint::Stack { lower: one, upper });
        let joints = joints.chain(after.into_iter().map(|second| Joint::Behind { first: one, second }));
        let joints = joints.chain(before.into_iter().map(|first| Joint::Behind { first, second: one }));
        for joint in joints {
            let [a, b] = joint.pair();
            let Rectangle { size, lifetime, .. } = of(if a == one { &b } else { &a });
            let seeming = (area + size as f64 * lifetime as f64) * power_of_two(noise * random.unit());
            self.joints.push(Reverse((seeming as u64, joint)));
        }
        self.all.push(composite);
        self.position.push(PART);
        self.insert(one);
    }

    /// Makes one of two.
    fn joined(&self, joint: Joint) -> Composite {
        let [a, b] = joint.pair().map(|one| self.all[one as usize]);
        let (x, y) = (a.rectangle, b.rectangle);
        let rectangle = match joint {
            Joint::Stack { .. } => Rectangle { size: x.size + y.size, bytes: x.size + y.bytes, ..x },
            Joint::Behind { .. } => {
                let (bytes, lifetime) = (x.bytes.max(y.bytes), x.lifetime + y.lifetime);
                Rectangle { hi: y.hi, bytes, lifetime, ..x }
            }
        };
        Composite { rectangle, made: Made::Of(joint), hollow: a.hollow && b.hollow }
    }

    /// The items of a composite, and their offsets above its own.
    fn parts(&self, one: u32) -> Vec<(u32, u64)> {
        let (mut parts, mut left) = (Vec::new(), vec![(one, 0)]);
        while let Some((one, offset)) = left.pop() {
            let composite = &self.all[one as usize];
            match composite.made {
                Made::Item => parts.push((composite.rectangle.item, offset)),
                Made::Hole(_) => {}
                Made::Of(Joint::Behind { first, second }) => left.extend([(first, offset), (second, offset)]),
                Made::Of(Joint::Stack { lower, upper }) => {
                    let above = offset + self.all[lower as usize].rectangle.size;
                    left.extend([(lower, offset), (upper, above)]);
                }
            }
        }
        parts
    }

    /// A move of the local search: takes some composites apart, and joins the parts. Is taken back if that leaves more composites than before.
    fn change(&mut self, random: &mut Random) {
        let (whole, all) = (self.whole.len(), self.all.len());
        self.changes.clear();
        let pieces = self.take_apart(random);
        self.join(pieces, NOISE[random.below(NOISE.len())], 1.0, random);
        if self.whole.len() > whole {
            for (one, inserted) in std::mem::take(&mut self.changes).into_iter().rev() {
                if inserted { self.remove(one) } else { self.insert(one) }
            }
            self.all.truncate(all);
            self.position.truncate(all);
        }
    }

    /// Takes composites that meet at a random time out of the pile, and in some moves the hollow ones. Returns their parts.
    fn take_apart(&mut self, random: &mut Random) -> Vec<Composite> {
        let Rectangle { lo, hi, .. } =
            self.all[self.whole[random.below(self.whole.len())] as usize].rectangle;
        let time = [lo, hi][random.below(2)] as usize;
        let share = APART[random.below(APART.len())];
        let deeper = DEEPER[random.below(DEEPER.len())];
        // Composites to remove, with whether they meet at that time.
        let meeting = self.starts[time].iter().chain(&self.ends[time]).copied();
        let mut left: Vec<(u32, bool)> =
            meeting.filter(|_| random.unit() < share).map(|one| (one, true)).collect();
        let cutting = random.below(CUTTING) == 0;
        if cutting {
            let hollow = |&one: &u32| self.all[one as usize].hollow && !left.contains(&(one, true));
            let hollow: Vec<u32> = self.whole.iter().copied().filter(hollow).collect();
            left.extend(hollow.into_iter().map(|one| (one, false)));
        }
        for &(one, _) in &left {
            self.remove(one);
        }
        let (mut pieces, mut holes) = (Vec::new(), Vec::new());
        while let Some((one, apart)) = left.pop() {
            let composite = self.all[one as usize];
            match composite.made {
                Made::Hole(hole) if cutting => holes.push(hole),
                Made::Of(joint) if apart || cutting && composite.hollow => {
                    left.extend(joint.pair().map(|part| (part, apart && random.unit() < deeper)));
                }
                _ => pieces.push(composite),
            }
        }
        pieces.extend(holes::cut(holes::profile_of(&holes), random).into_iter().map(Composite::hole));
        pieces
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
    fn cut(pieces: usize, side: u64, random: &mut Random) -> Vec<[u64; 4]> {
        let mut all = vec![[0, side, 0, side]];
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

    fn joining(noise: f64, chance: f64) -> Joining {
        Joining { noise, chance, filled_to: None, moves: 0 }
    }

    fn join(instance: &Instance, joining: Joining, random: &mut Random) -> Composites {
        Composites::join(instance, joining, random, &|| false).expect("nothing stops it")
    }

    fn problem(pieces: &[[u64; 4]], align: u64) -> Problem {
        let block = |&[start, end, low, high]: &[u64; 4]| Block {
            align: Bytes(align),
            ..Block::new(start, end, Bytes(high - low))
        };
        Problem { blocks: pieces.iter().map(block).collect(), capacity: None }
    }

    #[test]
    fn a_rectangle_that_was_cut_is_whole_again_in_most_orders_and_after_some_moves() {
        let (mut whole, mut later, mut cases) = (0, 0, 0);
        for seed in 0..40 {
            let mut random = Random::new(seed, 0);
            let problem = problem(&cut(60, 1_000, &mut random), 1);
            let Ok(instance) = Instance::new(&problem) else { continue };
            let first = join(&instance, joining(0.0, 1.0), &mut random);
            cases += 1;
            whole += usize::from(first.instance.len() == 1);
            let joined = join(&instance, Joining { moves: 2_000, ..joining(0.0, 1.0) }, &mut random);
            if joined.instance.len() > 1 {
                continue;
            }
            later += 1;
            let placement = instance.placement(&problem, &joined.offsets(&[0]));
            assert_eq!(crate::validate(&problem, &placement), Ok(()), "seed {seed}");
            assert_eq!(placement.height, Bytes(1_000), "seed {seed}");
        }
        assert!(2 * whole > cases && whole + 1 < later && later + 1 >= cases, "{whole}, {later} of {cases}");
    }

    #[test]
    fn a_rectangle_with_missing_pieces_is_whole_again_in_most_cases() {
        let mut whole = 0;
        for seed in 0..40 {
            let mut random = Random::new(seed, 2);
            let mut pieces = cut(60, 1_000, &mut random);
            // One block stays through all the time, so that nothing falls apart.
            pieces.push([0, 1_000, 1_000, 1_001]);
            for _ in 0..8 {
                pieces.swap_remove(random.below(pieces.len() - 1));
            }
            let problem = problem(&pieces, 1);
            let Ok(instance) = Instance::new(&problem) else { continue };
            let filled = Joining { filled_to: Some(1_001), moves: 2_000, ..joining(0.0, 1.0) };
            let joined = join(&instance, filled, &mut random);
            if joined.instance.len() == 1 {
                whole += 1;
                let placement = instance.placement(&problem, &joined.offsets(&[0]));
                assert_eq!(crate::validate(&problem, &placement), Ok(()), "seed {seed}");
                assert!(placement.height <= Bytes(1_001), "seed {seed}");
            }
        }
        assert!(whole >= 20, "{whole} of 40");
    }

    #[test]
    fn what_places_composites_places_their_parts() {
        for seed in 0..200 {
            let mut random = Random::new(seed, 1);
            let mut pieces = cut(40, 1_000, &mut random);
            for _ in 0..6 {
                pieces.swap_remove(random.below(pieces.len()));
            }
            let problem = problem(&pieces, 1 + seed % 3);
            let Ok(instance) = Instance::new(&problem) else { continue };
            let how = Joining {
                filled_to: (seed % 4 < 2).then_some(instance.bound),
                moves: 50 * (seed % 3),
                ..joining(0.5, [1.0, 0.6][seed as usize % 2])
            };
            let joined = join(&instance, how, &mut random);
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

    #[test]
    fn what_was_cut_fits_each_other_and_what_meets_by_chance_does_not() {
        let mut fitting = 0;
        for seed in 0..40 {
            let mut random = Random::new(seed, 4);
            let fits = |pieces: &[[u64; 4]]| match Instance::new(&problem(pieces, 1)) {
                Ok(instance) => fit_each_other(&instance),
                Err(_) => panic!("no block is fixed"),
            };
            let mut pieces = cut(90, 1 << 20, &mut random);
            for _ in 0..15 {
                pieces.swap_remove(random.below(pieces.len()));
            }
            fitting += usize::from(fits(&pieces));
            // The same lifetimes with the same sizes in another order, and with few sizes.
            let sizes: Vec<u64> = pieces.iter().map(|piece| piece[3] - piece[2]).collect();
            let first = random.below(sizes.len());
            let mixed = |size: &dyn Fn(usize) -> u64| -> Vec<[u64; 4]> {
                (0..).zip(&pieces).map(|(at, &[start, end, ..])| [start, end, 0, size(at)]).collect()
            };
            assert!(!fits(&mixed(&|at| sizes[(first + 7 * at) % sizes.len()])), "seed {seed}");
            assert!(!fits(&mixed(&|at| sizes[at] / 100_000 + 1)), "seed {seed}");
        }
        assert!(fitting >= 30, "{fitting} of 40");
    }

    #[test]
    fn a_move_that_is_taken_back_leaves_the_pile_as_it_was() {
        let mut random = Random::new(3, 3);
        let problem = problem(&cut(80, 1_000, &mut random), 1);
        let Ok(instance) = Instance::new(&problem) else { panic!("no block is fixed") };
        let mut pile = Pile::new(instance.sections());
        pile.join(Composite::items(&instance), 6.0, 1.0, &mut random);
        for _ in 0..500 {
            let before = pile.whole.len();
            pile.change(&mut random);
            assert!(pile.whole.len() <= before);
            let mut items: Vec<u32> =
                pile.whole.iter().flat_map(|&one| pile.parts(one)).map(|(item, _)| item).collect();
            items.sort_unstable();
            assert!(items.into_iter().eq(0..instance.len() as u32));
            let listed = |lists: &[Vec<u32>]| lists.iter().map(Vec::len).sum::<usize>();
            assert_eq!([&pile.starts, &pile.ends].map(|lists| listed(lists)), [pile.whole.len(); 2]);
        }
    }
}

//! One advance, and the attempts to get further with it.

use std::cell::Cell;

use crate::front::Side;
use crate::instance::{Instance, Span};
use crate::order_keys::sorted_by;
use crate::overlap::OverlapIndex;
use crate::random::Random;
use crate::sweep::{SideWay, Split, pile};

use super::trail::{Stacked, Trail};

/// What is to be placed.
#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) instance: &'a Instance,
    pub(super) split: &'a Split,
    pub(super) overlaps: &'a OverlapIndex,
    /// Items of each side that have offsets already, in the order of the side. If there are any, the stack has its offsets, too.
    pub(super) given: Option<&'a [Vec<u32>; 2]>,
}

/// The tries of one attempt: each places what did not fit in the one before it earlier.
const TRIES: usize = 6;
/// The share of attempts that draw how to place items instead of placing them as the last adopted one did.
const REDRAWN: f64 = 0.5;
/// The share of attempts that place the item that did not fit earlier.
const EARLIER: f64 = 0.7;
/// The share of early items that stay early in the next attempt.
const STAY_EARLY: f64 = 0.9;
/// The share of attempts that change the stack, where a front is near the peak.
const RESTACKED: f64 = 0.5;

/// An offset above every ceiling, from which an item can still end.
const NOWHERE: u64 = u64::MAX / 2;

/// Counts work, in items placed, and says when to stop.
pub(crate) struct Meter<'a> {
    left: Cell<u64>,
    stop: &'a dyn Fn() -> bool,
    /// Whether the answer was yes once: it is not looked for at every question.
    stopped: Cell<bool>,
}

impl<'a> Meter<'a> {
    pub(super) fn new(work: u64, stop: &'a dyn Fn() -> bool) -> Self {
        Self { left: Cell::new(work), stop, stopped: Cell::new(false) }
    }

    /// Counts items placed.
    pub(super) fn count(&self, items: u64) {
        self.left.set(self.left.get().saturating_sub(items));
    }

    /// Whether to stop.
    pub(super) fn stops(&self) -> bool {
        self.stopped.set(self.stopped.get() || (self.stop)());
        self.stopped.get()
    }

    /// Whether the work is done.
    pub(super) fn is_done(&self) -> bool {
        self.left.get() == 0
    }
}

impl Field<'_> {
    /// Where an item begins, in the direction of a side.
    pub(super) fn begin(&self, side: usize, item: u32) -> u32 {
        Side::BOTH[side].lifetime(self.instance, item)[0]
    }

    pub(super) fn end(&self, item: u32, offset: u64) -> u64 {
        offset + self.instance.items[item as usize].bytes
    }

    /// The longest lifetime, in sections.
    fn longest(&self) -> u32 {
        self.split.longest as u32
    }

    /// The number of sections between the peak and the first item of a side without a place. `None` if every item has one.
    fn distance(&self, side: usize, placed: usize) -> Option<u32> {
        let next = self.split.sides[side].get(placed)?;
        Some(self.begin(side, *next) - self.split.start(self.instance, side))
    }

    /// How far both fronts are from the peak, each up to the longest lifetime: further away, the stack does not matter.
    fn reach(&self, placed: [usize; 2]) -> u32 {
        let capped = |side: usize| self.distance(side, placed[side]).unwrap_or(u32::MAX).min(self.longest());
        capped(0) + capped(1)
    }

    /// Offsets of the stack in an order. `None` if it ends above a ceiling.
    fn pile(&self, order: &[u32], ceiling: u64) -> Option<Stacked> {
        let pile = pile(self.instance, order);
        pile.iter().all(|&(i, offset)| self.end(i, offset) <= ceiling).then_some(pile)
    }
}

/// By how many sections an item is placed earlier. Each halving is equally likely.
fn draw_lead(field: &Field<'_>, random: &mut Random) -> f64 {
    field.split.longest * (1.0 + random.unit()) / f64::from(2 << random.below(8))
}

/// A placement below a ceiling, from the peak up to a front on each side.
#[derive(Clone)]
pub(crate) struct Advance {
    pub(super) ceiling: u64,
    /// Of all items; those behind the fronts do not count.
    pub(super) offsets: Vec<u64>,
    /// Items of each side that have places, in the order of the side.
    placed: [usize; 2],
    /// How the last adopted attempts placed the items of each side.
    ways: [SideWay; 2],
    /// Attempts since a front got further.
    pub(super) failures: u64,
}

/// A way to get further.
struct Attempt {
    /// The side of the front that is nearer to the peak, and how its items are placed.
    side: usize,
    way: SideWay,
    start: Start,
}

/// Where an attempt begins.
enum Start {
    /// At a section before the front, counted in the direction of the side.
    Section(u32),
    /// At the peak, on both sides, with the stack in another order.
    Peak(Vec<u32>),
}

/// What an attempt gives that gets as far as before.
struct Walked {
    placed: [usize; 2],
    moved: Vec<(u32, u64)>,
    way: SideWay,
}

/// What attempts leave for later ones of the same advance.
#[derive(Default)]
struct Kept<'a> {
    /// The fronts on both sides.
    trails: [Option<Trail<'a>>; 2],
    /// The items of the stack, in ascending order of their offsets.
    stack: Option<Vec<u32>>,
}

impl Advance {
    /// What ends below a ceiling in a placement of all items. `None` if the stack does not.
    pub(super) fn resume(field: &Field<'_>, offsets: Vec<u64>, way: SideWay, ceiling: u64) -> Option<Self> {
        let fits = |&i: &u32| field.end(i, offsets[i as usize]) <= ceiling;
        if !field.split.stack.iter().all(fits) {
            return None;
        }
        let placed = [0, 1].map(|side: usize| {
            let items = &field.split.sides[side];
            items.iter().position(|i| !fits(i)).unwrap_or(items.len())
        });
        Some(Self { ceiling, offsets, placed, ways: [way.clone(), way], failures: 0 })
    }

    /// The stack alone, in an order. `None` if it ends above the ceiling.
    pub(super) fn begin(field: &Field<'_>, order: &[u32], way: SideWay, ceiling: u64) -> Option<Self> {
        let pile = field.pile(order, ceiling)?;
        let mut advance = Self::nothing(field, way, ceiling);
        for (i, offset) in pile {
            advance.offsets[i as usize] = offset;
        }
        Some(advance)
    }

    /// Nothing placed but what has its offset already.
    pub(super) fn nothing(field: &Field<'_>, way: SideWay, ceiling: u64) -> Self {
        let offsets = vec![0; field.instance.len()];
        Self { ceiling, offsets, placed: [0; 2], ways: [way.clone(), way], failures: 0 }
    }

    /// Other offsets for the items that have them already; what they do not touch stays. `changed` are those that have others.
    pub(super) fn around(mut self, field: &Field<'_>, changed: &[(u32, u64)]) -> Self {
        for side in 0..2 {
            // The stack has changed, or an item of the side.
            let is_here = |i: u32| {
                Side::BOTH[side].lifetime(field.instance, i)[1] > field.split.start(field.instance, side)
            };
            let first =
                changed.iter().map(|&(i, _)| i).filter(|&i| is_here(i)).map(|i| field.begin(side, i)).min();
            let Some(first) = first else { continue };
            // What begins earlier is freed before.
            let stays = first.saturating_sub(field.longest());
            let items = &field.split.sides[side];
            self.placed[side] =
                self.placed[side].min(items.partition_point(|&i| field.begin(side, i) < stays));
        }
        for &(i, offset) in changed {
            self.offsets[i as usize] = offset;
        }
        self.failures = 0;
        self
    }

    /// The first item without a place on the side whose front is nearer to the peak. `None` if everything has one.
    pub(super) fn failed(&self, field: &Field<'_>) -> Option<u32> {
        let side = self.nearer(field);
        field.split.sides[side].get(self.placed[side]).copied()
    }

    /// The side whose front is nearer to the peak.
    fn nearer(&self, field: &Field<'_>) -> usize {
        let distances = [0, 1].map(|side| field.distance(side, self.placed[side]).unwrap_or(u32::MAX));
        usize::from(distances[1] < distances[0])
    }

    /// Moves the items without a place above every ceiling, except for those that have offsets already.
    pub(super) fn forget_unplaced(&mut self, field: &Field<'_>, has_offset: impl Fn(u32) -> bool) {
        for (items, &placed) in field.split.sides.iter().zip(&self.placed) {
            for &i in items[placed..].iter().filter(|&&i| !has_offset(i)) {
                self.offsets[i as usize] = NOWHERE;
            }
        }
    }

    /// Whether everything has a place.
    pub(super) fn is_done(&self, field: &Field<'_>) -> bool {
        (0..2).all(|side| self.placed[side] == field.split.sides[side].len())
    }

    /// Makes attempts until everything has a place, the work is done, or `patience` attempts in succession have failed. `None` if it is to stop.
    pub(super) fn go_on(
        &mut self,
        field: &Field<'_>,
        patience: u64,
        random: &mut Random,
        meter: &Meter<'_>,
    ) -> Option<()> {
        let mut kept = Kept::default();
        while self.failures < patience
            && !meter.is_done()
            && let Some(attempt) = self.draw(field, &mut kept, random)
        {
            let walked = self.walk(field, &attempt, &mut kept, random, meter);
            if meter.stops() {
                return None;
            }
            self.adopt(field, &attempt, walked);
        }
        Some(())
    }

    /// A random attempt to get further on the side whose front is nearer to the peak. `None` if everything has a place.
    fn draw(&self, field: &Field<'_>, kept: &mut Kept<'_>, random: &mut Random) -> Option<Attempt> {
        let (side, failed) = (self.nearer(field), self.failed(field)?);
        let begin = field.begin(side, failed);
        let mut way = self.ways[side].clone();
        if random.unit() < REDRAWN {
            let early = std::mem::take(&mut way.early);
            way = SideWay { early, ..field.split.draw_side(field.instance, random) };
        }
        way.early.retain(|_| random.unit() < STAY_EARLY);
        let mut lead = 0.0;
        if random.unit() < EARLIER {
            lead = draw_lead(field, random);
            way.place_early(failed, lead);
        }
        let is_near = begin - field.split.start(field.instance, side) < field.longest();
        if is_near && field.given.is_none() && random.unit() < RESTACKED {
            let stack = kept.stack.get_or_insert_with(|| self.in_order(&field.split.stack));
            let order = restacked(field, stack.clone(), (side, begin), random);
            return Some(Attempt { side, way, start: Start::Peak(order) });
        }
        // Each halving is equally likely, from twice the longest lifetime on.
        let back = 2.0 * field.split.longest * (1.0 + random.unit()) / f64::from(1 << random.below(10));
        let from = before(field, side, begin, back.max(lead));
        Some(Attempt { side, way, start: Start::Section(from) })
    }

    /// Tries an attempt. `None` if it does not get as far as before, or if it is to stop.
    fn walk<'a>(
        &self,
        field: &Field<'a>,
        attempt: &Attempt,
        kept: &mut Kept<'a>,
        random: &mut Random,
        meter: &Meter<'_>,
    ) -> Option<Walked> {
        match &attempt.start {
            Start::Section(from) => {
                let trail = &mut kept.trails[attempt.side];
                self.walk_side(field, attempt, trail, (*from, random), meter)
            }
            Start::Peak(order) => {
                let walked = self.walk_both(field, attempt, order, meter)?;
                // The stack has other offsets now.
                *kept = Kept::default();
                Some(walked)
            }
        }
    }

    /// Places the items of a side again from a section before the front on. What does not fit is placed earlier in the next try, which goes back
    /// no further than it has to.
    fn walk_side<'a>(
        &self,
        field: &Field<'a>,
        attempt: &Attempt,
        trail: &mut Option<Trail<'a>>,
        (mut from, random): (u32, &mut Random),
        meter: &Meter<'_>,
    ) -> Option<Walked> {
        let (side, mut way) = (attempt.side, attempt.way.clone());
        let (items, reached) = (&field.split.sides[side], self.placed[side]);
        // Further away, the other side may need another stack first.
        let until = field.begin(side, items[reached]).saturating_add(field.longest()).saturating_add(1);
        self.trail(field, (side, from), trail, meter).begin(from, &self.offsets, meter);
        for _ in 0..TRIES {
            let trail = self.trail(field, (side, from), trail, meter);
            let placed = trail.run(&way, until, &self.offsets, meter)?;
            if placed > reached || placed == reached && random.below(4) == 0 {
                let mut all = self.placed;
                all[side] = placed;
                return Some(Walked { placed: all, moved: trail.adopt(placed), way });
            }
            let lead = draw_lead(field, random);
            way.place_early(items[placed], lead);
            from = before(field, side, field.begin(side, items[placed]), lead);
            trail.go_back(from);
        }
        None
    }

    /// The front of a side, or a new one at a section that it cannot go back to.
    fn trail<'a, 't>(
        &self,
        field: &Field<'a>,
        (side, at): (usize, u32),
        former: &'t mut Option<Trail<'a>>,
        meter: &Meter<'_>,
    ) -> &'t mut Trail<'a> {
        if former.as_ref().is_none_or(|trail| !trail.reaches(at)) {
            let alive = self.alive(field, side, at);
            *former = Some(Trail::new(field, (side, at), self.ceiling, &alive, meter));
        }
        former.as_mut().expect("it was made if there was none")
    }

    /// Places the items of both sides, up to the longest lifetime, around the stack in another order.
    fn walk_both(
        &self,
        field: &Field<'_>,
        attempt: &Attempt,
        order: &[u32],
        meter: &Meter<'_>,
    ) -> Option<Walked> {
        let stack = field.pile(order, self.ceiling)?;
        // As far as the sides get that were not tried yet.
        let mut placed = [usize::MAX; 2];
        let mut moved = stack.clone();
        // The side that failed first.
        for side in [attempt.side, 1 - attempt.side] {
            let way = if side == attempt.side { &attempt.way } else { &self.ways[side] };
            let from = field.split.start(field.instance, side);
            let until = from.saturating_add(field.longest()).saturating_add(1);
            let mut trail = Trail::new(field, (side, from), self.ceiling, &stack, meter);
            placed[side] = trail.run(way, until, &self.offsets, meter)?;
            moved.extend(trail.moved());
            if field.reach(placed) < field.reach(self.placed) {
                return None;
            }
        }
        Some(Walked { placed, moved, way: attempt.way.clone() })
    }

    /// What is alive at a section, counted in the direction of a side.
    fn alive(&self, field: &Field<'_>, side: usize, at: u32) -> Stacked {
        let section = Side::BOTH[side].section(field.instance, at);
        let mut alive = Vec::new();
        field.overlaps.each_in(Span { lo: section, hi: section + 1 }, |i| alive.push(i));
        self.in_order(&alive).into_iter().map(|i| (i, self.offsets[i as usize])).collect()
    }

    /// Items in ascending order of their offsets.
    fn in_order(&self, items: &[u32]) -> Vec<u32> {
        let offset = |at: u32| self.offsets[items[at as usize] as usize];
        let order = sorted_by(items.len(), &|a, b| offset(a).cmp(&offset(b)));
        order.into_iter().map(|at| items[at as usize]).collect()
    }

    /// Takes in what an attempt gives.
    fn adopt(&mut self, field: &Field<'_>, attempt: &Attempt, walked: Option<Walked>) {
        self.failures += 1;
        let Some(walked) = walked else { return };
        for (i, offset) in walked.moved {
            self.offsets[i as usize] = offset;
        }
        let further = match attempt.start {
            Start::Section(_) => walked.placed[attempt.side] > self.placed[attempt.side],
            Start::Peak(_) => field.reach(walked.placed) > field.reach(self.placed),
        };
        if further {
            self.failures = 0;
        }
        self.placed = walked.placed;
        self.ways[attempt.side] = walked.way;
    }
}

/// The stack with a few items elsewhere. What does not fit needs the bytes of several items that are freed before it begins in one
/// piece, so mostly one of these is moved to another.
fn restacked(
    field: &Field<'_>,
    mut order: Vec<u32>,
    (side, begin): (usize, u32),
    random: &mut Random,
) -> Vec<u32> {
    for _ in 0..[1, 1, 2, 4][random.below(4)] {
        let is_free = |at: &usize| Side::BOTH[side].lifetime(field.instance, order[*at])[1] <= begin;
        let free: Vec<usize> = (0..order.len()).filter(is_free).collect();
        let mut pick = |share: f64| match free.len() {
            len if len > 0 && random.unit() < share => free[random.below(len)],
            _ => random.below(order.len()),
        };
        let (from, to) = (pick(0.8), pick(0.7));
        let item = order.remove(from);
        order.insert((to + random.below(2)).min(order.len()), item);
    }
    order
}

/// A section some sections before the one at which an item of a side begins, but not before the peak.
fn before(field: &Field<'_>, side: usize, begin: u32, sections: f64) -> u32 {
    let start = field.split.start(field.instance, side);
    begin.saturating_sub((sections as u32).max(1)).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::tests::problem;

    /// Whether what has a place is below the ceiling and apart from everything else that has one.
    fn is_legal(advance: &Advance, field: &Field<'_>) -> bool {
        let mut all = field.split.stack.clone();
        for (items, &placed) in field.split.sides.iter().zip(&advance.placed) {
            all.extend(&items[..placed]);
        }
        let (items, offsets) = (&field.instance.items, &advance.offsets);
        let apart = |a: u32, b: u32| {
            let ([a, b], [x, y]) = ([a, b].map(|i| &items[i as usize]), [a, b].map(|i| offsets[i as usize]));
            !a.hull.overlaps(b.hull) || x + a.bytes <= y || y + b.bytes <= x
        };
        all.iter().enumerate().all(|(at, &a)| {
            field.end(a, offsets[a as usize]) <= advance.ceiling
                && offsets[a as usize].is_multiple_of(items[a as usize].align)
                && all[..at].iter().all(|&b| apart(a, b))
        })
    }

    /// Begins an advance in a random problem, below a ceiling that is `percent` of the peak.
    fn with_advance(seed: u64, percent: u64, mut test: impl FnMut(Advance, &Field<'_>, &mut Random)) {
        let mut random = Random::new(seed, 0);
        let problem = problem(&mut random, &[1, 1, 8]);
        let Ok(instance) = Instance::new(&problem) else { panic!("no block is fixed") };
        let split = Split::new(&instance).expect("no block is fixed or has gaps");
        let overlaps = OverlapIndex::new(&instance);
        let field = Field { instance: &instance, split: &split, overlaps: &overlaps, given: None };
        let ceiling = instance.bound * percent / 100;
        let way = split.draw_side(&instance, &mut random);
        if let Some(advance) = Advance::begin(&field, &split.stack, way, ceiling) {
            test(advance, &field, &mut random);
        }
    }

    #[test]
    fn fronts_never_come_nearer_and_what_has_a_place_is_legal() {
        let (mut adopted, mut restacked, mut done) = (0, 0, 0);
        for seed in 0..300 {
            with_advance(seed, [100, 102, 110][seed as usize % 3], |mut advance, field, random| {
                let mut kept = Kept::default();
                for _ in 0..60 {
                    let Some(attempt) = advance.draw(field, &mut kept, random) else { break };
                    let meter = Meter::new(u64::MAX, &|| false);
                    let walked = advance.walk(field, &attempt, &mut kept, random, &meter);
                    let (before, gets_there) = (advance.clone(), walked.is_some());
                    let at_peak = matches!(attempt.start, Start::Peak(_));
                    advance.adopt(field, &attempt, walked);
                    assert!(is_legal(&advance, field), "seed {seed}");
                    if !gets_there {
                        assert_eq!((advance.placed, advance.failures), (before.placed, before.failures + 1));
                        continue;
                    }
                    adopted += 1;
                    if at_peak {
                        restacked += 1;
                        assert!(field.reach(advance.placed) >= field.reach(before.placed), "seed {seed}");
                    } else {
                        let further = advance.placed[attempt.side] > before.placed[attempt.side];
                        assert_eq!(advance.failures == 0, further, "seed {seed}");
                        assert!(advance.placed[attempt.side] >= before.placed[attempt.side], "seed {seed}");
                        assert_eq!(advance.placed[1 - attempt.side], before.placed[1 - attempt.side]);
                    }
                }
                done += u32::from(advance.is_done(field));
            });
        }
        assert!(adopted > 300 && restacked > 30 && done > 10, "{adopted} {restacked} {done}");
    }

    #[test]
    fn what_ends_below_a_lower_ceiling_keeps_its_place() {
        for seed in 0..60 {
            with_advance(seed, 130, |mut advance, field, random| {
                let meter = Meter::new(u64::MAX, &|| false);
                advance.go_on(field, 100, random, &meter).expect("it is not to stop");
                assert!(advance.is_done(field) || advance.failures == 100, "seed {seed}");
                if !advance.is_done(field) {
                    return;
                }
                let height = field.instance.height(&advance.offsets);
                let [way, _] = advance.ways;
                let resume = |ceiling| Advance::resume(field, advance.offsets.clone(), way.clone(), ceiling);
                assert!(resume(height).is_some_and(|advance| advance.is_done(field)), "seed {seed}");
                if let Some(lower) = resume(height - 1) {
                    assert!(!lower.is_done(field) && is_legal(&lower, field), "seed {seed}");
                }
            });
        }
    }

    #[test]
    fn an_advance_stops_when_it_is_told_to_and_when_its_work_is_done() {
        with_advance(1, 100, |advance, field, random| {
            let stopped = Meter::new(u64::MAX, &|| true);
            assert!(advance.clone().go_on(field, 100, random, &stopped).is_none());
            // `stop` may say yes only once: the meter remembers it.
            let asked = Cell::new(0);
            let once = || {
                asked.set(asked.get() + 1);
                asked.get() == 3
            };
            let stopped = Meter::new(u64::MAX, &once);
            assert!(advance.clone().go_on(field, 100, random, &stopped).is_none() && asked.get() == 3);
            let [short, long] = [1, 1_000].map(|work| {
                let (mut advance, placed) = (advance.clone(), Cell::new(0));
                let stop = || {
                    placed.set(placed.get() + 1);
                    false
                };
                let meter = Meter::new(work, &stop);
                advance.go_on(field, u64::MAX, random, &meter).expect("it is not to stop");
                assert!(!advance.is_done(field));
                placed.get()
            });
            assert!(short < long && long >= 500, "{short} {long}");
        });
    }
}

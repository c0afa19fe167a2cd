//! Placements that grow outwards from the peak, below a ceiling, and go back a little where they fail.
//!
//! ```text
//!   ceiling ┤━━━━┓   ┏━━━━━━━━━━━┓  ┊           An *advance* has a placement of everything between two fronts (┊), one on each side of the peak;
//!           │    ┗━━━┛           ┗━━┊━━?        the next item of a front (?) does not fit. An attempt goes back a random number of sections
//!           │  ┊   ◀── peak ──▶     ┊           and sweeps from there in another way, until an item does not fit. It is adopted if the
//!           └──┴────────────────────┴───▶       front is no nearer to the peak than before.
//! ```
//!
//! A long problem is nearly full in several places. A sweep ([`crate::sweep`]) would have to pass all of them in the same way. An advance passes one after the
//! other, and an attempt costs what lies between the section to which it goes back and the first item that does not fit. As long as a front is near
//! the peak, attempts also move items within the stack.
//!
//! Advances place the core of the problem first, and then everything else around it ([`core_parts`]). Two series of them run at the same time, at different ceilings
//! between the goal and the height.

mod core_parts;
mod leg;
mod trail;

use std::cmp::Reverse;
use std::sync::Arc;

use crate::best_fit::{best_fit, longest_first};
use crate::greedy::size_order;
use crate::instance::Instance;
use crate::order_keys::order_by;
use crate::outwards::Stack;
use crate::overlap::OverlapIndex;
use crate::random::Random;
use crate::search_plan::luby;
use crate::squeaky_wheel::Order;
use crate::sweep::{Split, Sweep, Swept};

use core_parts::{Core, Part};
use leg::{Advance, Field, Meter};

/// Attempts without success after which an advance through a part of the core is given up. Later ones get 1, 1, 2, 1, 1, 2, 4, … times as many (Luby, Sinclair
/// and Zuckerman 1993).
const PATIENCE: u64 = 60;
/// The same around the core, which then becomes larger.
const PATIENCE_AROUND: u64 = 2;
/// Advances through the core that are given up before it is tried below another ceiling, and how often the core becomes larger before.
const MOST_GIVEN_UP: u64 = 8;
const MOST_GROWTHS: u64 = 60;
/// The share of advances through the core that begin with what best-fit places below the ceiling. The others begin with a new stack.
const BY_BEST_FIT: f64 = 0.9;
/// The orders of best-fit.
const ORDERS: [Order; 4] = [
    longest_first,
    size_order,
    |i| order_by(i, |k| (Reverse(i.items[k].lifetime.ilog2()), i.items[k].hull.lo)),
    |i| order_by(i, |k| Reverse(u128::from(i.items[k].size) * u128::from(i.items[k].lifetime))),
];
/// Ceilings of advances in turn, in quarters of the way from the goal to the height.
const QUARTERS: [u64; 4] = [0, 2, 1, 2];
/// Where it is less than this share of the goal from the goal to a ceiling, the goal is the ceiling.
const NEAR_GOAL: u64 = 2_000;
/// A step places as many items as there are, divided by this: it lasts much longer than the last attempt of it, so that two threads finish together.
const WORK: u64 = 2;

/// The search outwards from the peak: sweeps at first, then two series of advances.
pub(crate) struct Advances {
    split: Split,
    /// The lowest cost of a sweep.
    cost: f64,
    series: [Series; 2],
}

/// One step of it, drawn before it is tried.
pub(crate) enum Step {
    /// Places all items.
    Sweep(Sweep),
    /// Goes on with the advances of one series, below a height.
    GoOn {
        /// Which series.
        series: usize,
        /// In bytes.
        height: u64,
        /// Its random choices.
        random: Random,
    },
}

/// What a step gives.
pub(crate) enum Stepped {
    /// Offsets of all items.
    Swept(Box<Swept>),
    /// The series, further or not.
    WentOn(Box<Series>),
}

/// Advances that follow each other, each below a ceiling of its own.
#[derive(Clone)]
pub(crate) struct Series {
    core: Arc<Core>,
    /// Zero before the first advance.
    ceiling: u64,
    /// Advances through the parts of the core, from the first one on.
    parts: Vec<Option<Advance>>,
    /// Of these, how many were given up below this ceiling.
    given_up: u64,
    /// How often the core became larger below this ceiling.
    growths: u64,
    /// Everything, around the core.
    around: Option<Advance>,
    /// The same before the core became larger.
    before: Option<Advance>,
    /// Ceilings tried.
    begun: u64,
}

/// A ceiling some quarters of the way from the goal to a height.
fn ceiling(goal: u64, height: u64, quarters: u64) -> u64 {
    let above = height.saturating_sub(goal) / 4 * quarters;
    if above < goal / NEAR_GOAL { goal } else { goal + above }
}

/// Between which heights the ceilings of a series lie.
struct Aim {
    /// The series: the two are at different ceilings.
    which: usize,
    goal: u64,
    height: u64,
}

/// How far a series is below its ceiling.
enum Progress {
    /// Everything has a place.
    Done,
    GivenUp,
    Underway,
}

impl Series {
    fn new(core: &Arc<Core>) -> Self {
        let parts = core.parts.iter().map(|_| None).collect();
        let core = Arc::clone(core);
        Self { core, ceiling: 0, parts, given_up: 0, growths: 0, around: None, before: None, begun: 0 }
    }

    /// Goes on until everything has a place or the work is done. `None` if it is to stop.
    fn go_on(&mut self, field: &Field<'_>, aim: &Aim, random: &mut Random, meter: &Meter<'_>) -> Option<()> {
        if self.ceiling >= aim.height || self.begun == 0 {
            self.begin(aim);
        }
        while !meter.is_done() {
            let progress = match self.around.take() {
                Some(around) => self.go_on_around(around, field, random, meter)?,
                None => self.go_on_core(field, random, meter)?,
            };
            match progress {
                Progress::Done => return Some(()),
                Progress::GivenUp => self.begin(aim),
                Progress::Underway => {}
            }
        }
        Some(())
    }

    /// Begins below another ceiling.
    fn begin(&mut self, aim: &Aim) {
        let quarters = QUARTERS[(self.begun as usize + aim.which) % QUARTERS.len()];
        self.begun += 1;
        self.ceiling = ceiling(aim.goal, aim.height, quarters);
        (self.given_up, self.growths) = (0, 0);
        self.parts.fill(None);
        (self.around, self.before) = (None, None);
    }

    /// Places the parts of the core, one after the other.
    fn go_on_core(&mut self, whole: &Field<'_>, random: &mut Random, meter: &Meter<'_>) -> Option<Progress> {
        let patience = PATIENCE * luby(self.begun);
        for (part, running) in self.core.parts.iter().zip(&mut self.parts) {
            let field = part.field();
            while !running.as_ref().is_some_and(|advance| advance.is_done(&field)) {
                if meter.is_done() {
                    return Some(Progress::Underway);
                }
                match running {
                    Some(advance) if advance.failures < patience => {
                        advance.go_on(&field, patience, random, meter)?;
                    }
                    _ => {
                        let is_first = running.is_none();
                        *running = begin_part(part, self.ceiling, random, meter);
                        self.given_up += u64::from(!is_first || running.is_none());
                        if self.given_up > MOST_GIVEN_UP {
                            return Some(Progress::GivenUp);
                        }
                    }
                }
            }
        }
        self.around = Some(self.laid_around(whole, random));
        Some(Progress::Underway)
    }

    /// The core with the offsets of its parts, and around it what had a place before and is not in its way.
    fn laid_around(&mut self, whole: &Field<'_>, random: &mut Random) -> Advance {
        let before = self.before.take().unwrap_or_else(|| {
            let way = whole.split.draw_side(whole.instance, random);
            Advance::nothing(whole, way, self.ceiling)
        });
        let parts = self.core.parts.iter().zip(&self.parts);
        let offsets =
            parts.filter_map(|(part, advance)| Some(part.items.iter().zip(&advance.as_ref()?.offsets)));
        let changed = |&(i, offset): &(u32, u64)| before.offsets[i as usize] != offset;
        let changed: Vec<(u32, u64)> =
            offsets.flatten().map(|(&i, &offset)| (i, offset)).filter(changed).collect();
        before.around(whole, &changed)
    }

    /// Places everything else around the core; makes the core larger where that fails.
    fn go_on_around(
        &mut self,
        mut around: Advance,
        whole: &Field<'_>,
        random: &mut Random,
        meter: &Meter<'_>,
    ) -> Option<Progress> {
        let core = Arc::clone(&self.core);
        let field = core.around(whole);
        around.go_on(&field, PATIENCE_AROUND, random, meter)?;
        let is_stuck = around.failures >= PATIENCE_AROUND;
        let Some(failed) = around.failed(&field).filter(|_| is_stuck) else {
            let is_done = around.is_done(&field);
            self.around = Some(around);
            return Some(if is_done { Progress::Done } else { Progress::Underway });
        };
        if self.growths == MOST_GROWTHS {
            return Some(Progress::GivenUp);
        }
        self.growths += 1;
        around.forget_unplaced(&field, |i| core.contains(i));
        self.core = Arc::new(core.with(whole, failed)?);
        let smaller = (&*core, &around.offsets[..]);
        let mut former = std::mem::take(&mut self.parts);
        for part in &self.core.parts {
            let advance = match core.parts.iter().position(|other| Arc::ptr_eq(other, part)) {
                Some(unchanged) => former[unchanged].take(),
                None => grow_part(part, smaller, self.ceiling, random, meter)?,
            };
            self.parts.push(advance);
        }
        self.before = Some(around);
        Some(Progress::Underway)
    }

    /// The offsets of all items, if all have places.
    fn placed(&self, field: &Field<'_>) -> Option<&[u64]> {
        let done = self.around.as_ref().filter(|around| around.is_done(field))?;
        Some(&done.offsets)
    }
}

/// A new advance through a part of the core. `None` if its stack ends above the ceiling.
fn begin_part(part: &Part, ceiling: u64, random: &mut Random, meter: &Meter<'_>) -> Option<Advance> {
    let (field, instance) = (part.field(), &part.instance);
    meter.count(instance.len() as u64);
    let way = field.split.draw_side(instance, random);
    if random.unit() < BY_BEST_FIT {
        let offsets = best_fit(instance, &ORDERS[random.below(ORDERS.len())](instance));
        if let Some(advance) = Advance::resume(&field, offsets, way.clone(), ceiling) {
            return Some(advance);
        }
    }
    let order = field.split.stacked(instance, Stack::draw_any(random));
    Advance::begin(&field, &order, way, ceiling)
}

/// An advance through a part of a core that was smaller, whose items have offsets: all of the part if what is new has places around them, otherwise
/// up to where it has none. `Some(None)` if the stack ends above the ceiling, `None` if it is to stop.
fn grow_part(
    part: &Part,
    (smaller, offsets): (&Core, &[u64]),
    ceiling: u64,
    random: &mut Random,
    meter: &Meter<'_>,
) -> Option<Option<Advance>> {
    let field = part.field();
    let offsets: Vec<u64> = part.items.iter().map(|&i| offsets[i as usize]).collect();
    let way = field.split.draw_side(field.instance, random);
    let has_offset = |&i: &u32| smaller.contains(part.items[i as usize]);
    if field.split.stack.iter().all(has_offset) {
        let given = |items: &Vec<u32>| items.iter().copied().filter(has_offset).collect();
        let given = field.split.sides.each_ref().map(given);
        let around = Field { given: Some(&given), ..field };
        let mut advance = Advance::nothing(&around, way.clone(), ceiling);
        advance.offsets.clone_from(&offsets);
        advance.go_on(&around, PATIENCE, random, meter)?;
        if advance.is_done(&around) {
            return Some(Some(advance));
        }
    }
    Some(Advance::resume(&field, offsets, way, ceiling))
}

impl Advances {
    /// `None` if an item is fixed or has gaps.
    pub(crate) fn new(instance: &Instance, overlaps: &OverlapIndex) -> Option<Self> {
        let split = Split::new(instance)?;
        let core = Arc::new(Core::new(&Field { instance, split: &split, overlaps, given: None })?);
        Some(Self { split, cost: f64::INFINITY, series: [0, 1].map(|_| Series::new(&core)) })
    }

    fn field<'a>(&'a self, instance: &'a Instance, overlaps: &'a OverlapIndex) -> Field<'a> {
        Field { instance, split: &self.split, overlaps, given: None }
    }

    /// A sweep.
    pub(crate) fn first_step(&self, instance: &Instance, random: &mut Random) -> Step {
        Step::Sweep(Sweep::draw(&self.split, instance, random))
    }

    /// A step with the series whose turn it is.
    pub(crate) fn step(&self, turn: usize, height: u64, random: &Random) -> Step {
        Step::GoOn { series: turn % self.series.len(), height, random: random.clone() }
    }

    /// Tries a step. `None` if it is of no use, or if it is to `stop`.
    pub(crate) fn run(
        &self,
        (instance, overlaps): (&Instance, &OverlapIndex),
        goal: u64,
        step: &Step,
        stop: &dyn Fn() -> bool,
    ) -> Option<Stepped> {
        match step {
            Step::Sweep(sweep) => {
                let swept = sweep.run(&self.split, instance, goal, self.cost, stop)?;
                Some(Stepped::Swept(Box::new(swept)))
            }
            Step::GoOn { series: which, height, random } => {
                let (mut series, mut random) = (self.series[*which].clone(), random.clone());
                let field = self.field(instance, overlaps);
                let aim = Aim { which: *which, goal, height: *height };
                let meter = Meter::new(instance.len() as u64 / WORK, stop);
                series.go_on(&field, &aim, &mut random, &meter)?;
                Some(Stepped::WentOn(Box::new(series)))
            }
        }
    }

    /// Takes in what a step gives. Returns the offsets of all items if they all have places.
    pub(crate) fn accept(
        &mut self,
        (instance, overlaps): (&Instance, &OverlapIndex),
        step: &Step,
        stepped: Stepped,
    ) -> Option<Vec<u64>> {
        match (step, stepped) {
            (_, Stepped::Swept(swept)) => {
                self.cost = self.cost.min(swept.cost);
                Some(swept.offsets)
            }
            (&Step::GoOn { series: which, .. }, Stepped::WentOn(series)) => {
                self.series[which] = *series;
                let placed = self.series[which].placed(&self.field(instance, overlaps))?;
                Some(placed.to_vec())
            }
            (Step::Sweep(_), Stepped::WentOn(_)) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::advance::core_parts::tests::with_field;

    /// A new series below a height, and what limits it.
    fn series(field: &Field<'_>, percent: u64) -> (Series, Aim) {
        let core = Arc::new(Core::new(field).expect("no block is fixed or has gaps"));
        let goal = field.instance.bound;
        (Series::new(&core), Aim { which: 0, goal, height: goal * percent / 100 })
    }

    #[test]
    fn a_series_places_the_core_and_everything_else_around_it() {
        let (mut placed, mut grown) = (0, 0);
        for seed in 0..300 {
            with_field(seed, |problem, field, random| {
                let (mut series, aim) = series(field, [101, 105, 115][seed as usize % 3]);
                for _ in 0..40 {
                    let meter = Meter::new(1_000, &|| false);
                    series.go_on(field, &aim, random, &meter).expect("it is not to stop");
                    assert!(aim.goal <= series.ceiling && series.ceiling < aim.height, "seed {seed}");
                    grown += u64::from(series.growths > 0);
                    let Some(offsets) = series.placed(field) else { continue };
                    let placement = field.instance.placement(problem, offsets);
                    assert_eq!(crate::validate(problem, &placement), Ok(()), "seed {seed}");
                    assert!(placement.height.get() <= series.ceiling, "seed {seed}");
                    for (part, advance) in series.core.parts.iter().zip(&series.parts) {
                        let own = &advance.as_ref().expect("the core is placed").offsets;
                        assert!(
                            part.items.iter().zip(own).all(|(&i, offset)| offsets[i as usize] == *offset)
                        );
                    }
                    placed += 1;
                    break;
                }
            });
        }
        assert!(placed > 150 && grown > 30, "{placed} {grown}");
    }

    #[test]
    fn a_core_that_becomes_larger_keeps_its_offsets_where_it_can() {
        let mut complete = 0;
        for seed in 0..100 {
            with_field(seed, |_, field, random| {
                let core = Core::new(field).expect("no block is fixed or has gaps");
                let mut offsets = best_fit(field.instance, &size_order(field.instance));
                let ceiling = field.instance.height(&offsets);
                // Nothing else has a place.
                for i in (0..offsets.len()).filter(|&i| !core.contains(i as u32)) {
                    offsets[i] = ceiling;
                }
                let larger = core.with(field, random.below(field.instance.len()) as u32);
                for part in larger.expect("no block is fixed or has gaps").parts {
                    let meter = Meter::new(u64::MAX, &|| false);
                    let grown = grow_part(&part, (&core, &offsets), ceiling, random, &meter);
                    let Some(advance) = grown.expect("it is not to stop") else { continue };
                    if !advance.is_done(&part.field()) {
                        continue;
                    }
                    complete += 1;
                    let items = &part.instance.items;
                    for (a, &i) in part.items.iter().enumerate() {
                        let place = advance.offsets[a]..advance.offsets[a] + items[a].bytes;
                        assert!(place.end <= ceiling, "seed {seed}");
                        assert!(!core.contains(i) || place.start == offsets[i as usize], "seed {seed}");
                        let overlaps = |b: usize| {
                            let other = advance.offsets[b];
                            part.instance.conflict(a, b)
                                && place.start < other + items[b].bytes
                                && other < place.end
                        };
                        assert!(!(0..a).any(overlaps), "seed {seed}");
                    }
                }
            });
        }
        assert!(complete > 100, "{complete}");
    }

    #[test]
    fn a_series_stops_when_it_is_told_to() {
        with_field(1, |_, field, random| {
            let (series, aim) = series(field, 101);
            for after in [1, 10, 50] {
                let asked = Cell::new(0);
                let stop = || {
                    asked.set(asked.get() + 1);
                    asked.get() >= after
                };
                let meter = Meter::new(u64::MAX, &stop);
                assert!(series.clone().go_on(field, &aim, random, &meter).is_none());
                assert_eq!(asked.get(), after);
            }
        });
    }

    #[test]
    fn a_ceiling_lies_between_the_goal_and_the_height() {
        assert_eq!(ceiling(1_000, 1_400, 2), 1_200);
        assert_eq!(ceiling(1_000_000, 1_000_100, 2), 1_000_000);
        assert_eq!(ceiling(1_000, 900, 2), 1_000);
    }
}

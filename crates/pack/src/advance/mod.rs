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
//! There are two series of advances: those of one go on with the lowest placement of all items, below a ceiling nearer to the goal, those of the other
//! begin with new stacks.

mod leg;

use crate::instance::Instance;
use crate::outwards::Stack;
use crate::overlap::OverlapIndex;
use crate::random::Random;
use crate::search_plan::luby;
use crate::sweep::{SideWay, Split, Sweep, Swept};

use leg::{Advance, Field, Meter};

/// The series that goes on with the lowest placement; the other one begins with new stacks.
const LOWEST: usize = 0;
/// Attempts without success after which an advance of each series is given up. Later ones get 1, 1, 2, 1, 1, 2, 4, … times as many (Luby, Sinclair
/// and Zuckerman 1993).
const PATIENCE: [u64; 2] = [80, 40];
/// Ceilings of advances in turn, in quarters of the way from the goal to the height.
const QUARTERS: [u64; 4] = [3, 2, 1, 2];
/// Where it is less than this share of the goal from the goal to a ceiling, the goal is the ceiling.
const NEAR_GOAL: u64 = 2_000;
/// A step places as many items as there are, divided by this: it lasts much longer than the last attempt of it, so that two threads finish together.
const WORK: u64 = 2;

/// A placement of all items, and how it placed the items of each side.
type Complete = (Vec<u64>, [SideWay; 2]);

/// The search outwards from the peak: sweeps at first, then two series of advances.
pub(crate) struct Advances {
    split: Split,
    /// The lowest cost of a sweep.
    cost: f64,
    /// The placement of that sweep, or the lowest of an advance.
    lowest: Option<Complete>,
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

/// Advances that follow each other.
#[derive(Clone, Default)]
pub(crate) struct Series {
    running: Option<Advance>,
    /// Advances begun.
    begun: u64,
}

/// A ceiling some quarters of the way from the goal to a height.
fn ceiling(goal: u64, height: u64, quarters: u64) -> u64 {
    let above = height.saturating_sub(goal) / 4 * quarters;
    if above < goal / NEAR_GOAL { goal } else { goal + above }
}

/// What a series goes on with, and below which height.
struct Aim<'a> {
    /// Which series.
    which: usize,
    lowest: &'a Complete,
    goal: u64,
    height: u64,
}

impl Series {
    /// Goes on until everything has a place or the work is done; begins another advance where one fails too often, or where its ceiling is not
    /// below the height any more. `None` if it is to stop, or if no advance can begin, because the stack ends above the ceilings.
    fn go_on(
        &mut self,
        field: &Field<'_>,
        aim: &Aim<'_>,
        random: &mut Random,
        meter: &Meter<'_>,
    ) -> Option<()> {
        loop {
            let patience = PATIENCE[aim.which] * luby(self.begun.max(1));
            match &mut self.running {
                Some(advance) if advance.failures < patience && advance.ceiling < aim.height => {
                    advance.go_on(field, patience, random, meter)?;
                    if advance.is_done(field) || meter.is_done() {
                        return Some(());
                    }
                }
                _ => self.begin(field, aim, random)?,
            }
        }
    }

    /// Begins an advance. `None` if the stack ends above all ceilings.
    fn begin(&mut self, field: &Field<'_>, aim: &Aim<'_>, random: &mut Random) -> Option<()> {
        for _ in QUARTERS {
            // The two series are at different ceilings.
            let quarters = QUARTERS[(self.begun as usize + aim.which) % QUARTERS.len()];
            let ceiling = ceiling(aim.goal, aim.height, quarters);
            self.begun += 1;
            self.running = if aim.which == LOWEST {
                Advance::resume(field, aim.lowest, ceiling)
            } else {
                let order = field.split.stacked(field.instance, Stack::draw_any(random));
                Advance::begin(field, &order, field.split.draw_side(field.instance, random), ceiling)
            };
            if self.running.is_some() {
                return Some(());
            }
        }
        None
    }
}

impl Advances {
    /// `None` if an item is fixed or has gaps.
    pub(crate) fn new(instance: &Instance) -> Option<Self> {
        let split = Split::new(instance)?;
        Some(Self { split, cost: f64::INFINITY, lowest: None, series: Default::default() })
    }

    /// A sweep.
    pub(crate) fn first_step(&self, instance: &Instance, random: &mut Random) -> Step {
        Step::Sweep(Sweep::draw(&self.split, instance, random))
    }

    /// A step with the series whose turn it is; a sweep if there was none before.
    pub(crate) fn step(&self, instance: &Instance, turn: usize, height: u64, random: &mut Random) -> Step {
        if self.lowest.is_none() {
            return self.first_step(instance, random);
        }
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
        let swept = |sweep: &Sweep| {
            let swept = sweep.run(&self.split, instance, goal, self.cost, stop)?;
            Some(Stepped::Swept(Box::new(swept)))
        };
        match step {
            Step::Sweep(sweep) => swept(sweep),
            Step::GoOn { series: which, height, random } => {
                let (mut series, mut random) = (self.series[*which].clone(), random.clone());
                let field = Field { instance, split: &self.split, overlaps };
                let aim = Aim { which: *which, lowest: self.lowest.as_ref()?, goal, height: *height };
                let meter = Meter::new(instance.len() as u64 / WORK, stop);
                match series.go_on(&field, &aim, &mut random, &meter) {
                    Some(()) => Some(Stepped::WentOn(Box::new(series))),
                    None => swept(&Sweep::draw(&self.split, instance, &mut random)),
                }
            }
        }
    }

    /// Takes in what a step gives. Returns the offsets of all items if they all have places.
    pub(crate) fn accept(
        &mut self,
        (instance, overlaps): (&Instance, &OverlapIndex),
        goal: u64,
        step: &Step,
        stepped: Stepped,
    ) -> Option<Vec<u64>> {
        match (step, stepped) {
            (_, Stepped::Swept(swept)) => {
                let Swept { way, cost, offsets } = *swept;
                if cost <= self.cost {
                    self.cost = cost;
                    self.lowest = Some((offsets.clone(), [way.clone(), way]));
                }
                Some(offsets)
            }
            (&Step::GoOn { series: which, .. }, Stepped::WentOn(series)) => {
                self.series[which] = *series;
                let field = Field { instance, split: &self.split, overlaps };
                let is_done = |advance: &mut Advance| advance.is_done(&field);
                let Advance { offsets, ways, .. } = self.series[which].running.take_if(is_done)?;
                let complete = (offsets.clone(), ways);
                let next = ceiling(goal, instance.height(&offsets), 2);
                self.series[LOWEST].running = Advance::resume(&field, &complete, next);
                self.lowest = Some(complete);
                Some(offsets)
            }
            (Step::Sweep(_), Stepped::WentOn(_)) => None,
        }
    }
}

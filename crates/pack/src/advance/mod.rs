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
//! Two advances take turns: one goes on with the lowest placement of all items, below a ceiling nearer to the goal, the other begins with a new stack.

mod leg;

use crate::instance::Instance;
use crate::outwards::Stack;
use crate::overlap::OverlapIndex;
use crate::random::Random;
use crate::search_plan::luby;
use crate::sweep::{SideWay, Split, Sweep, Swept};

use leg::{Advance, Attempt, Field, Walked};

/// The advance that goes on with the lowest placement; the other one begins with a new stack.
const LOWEST: usize = 0;
/// Attempts without success after which an advance is given up: for the one that goes on with the lowest placement, and for the other. Later ones
/// get 1, 1, 2, 1, 1, 2, 4, … times as many (Luby, Sinclair and Zuckerman 1993).
const PATIENCE: [u64; 2] = [80, 40];
/// Ceilings of advances in turn, in quarters of the way from the goal to the height.
const QUARTERS: [u64; 4] = [3, 2, 1, 2];
/// Where it is less than this share of the goal from the goal to a ceiling, the goal is the ceiling.
const NEAR_GOAL: u64 = 2_000;

/// A placement of all items, and how it placed the items of each side.
type Complete = (Vec<u64>, [SideWay; 2]);

/// The search outwards from the peak: sweeps at first, then two advances.
pub(crate) struct Advances {
    split: Split,
    /// The sweep of the lowest cost.
    swept: Option<Swept>,
    /// The lowest placement of an advance; at first that of the sweep.
    lowest: Option<Complete>,
    running: [Option<Advance>; 2],
    /// Advances begun of each kind.
    begun: [u64; 2],
}

/// One evaluation of it, drawn before it is tried.
pub(crate) enum Step {
    /// Places all items.
    Sweep(Sweep),
    /// Tries to get further with one of the advances.
    Walk(usize, Attempt),
}

/// What a step gives.
pub(crate) enum Stepped {
    /// Offsets of all items.
    Swept(Box<Swept>),
    /// Offsets of those that an advance has placed.
    Walked(Walked),
}

/// A ceiling some quarters of the way from the goal to a height.
fn ceiling(goal: u64, height: u64, quarters: u64) -> u64 {
    let above = height.saturating_sub(goal) / 4 * quarters;
    if above < goal / NEAR_GOAL { goal } else { goal + above }
}

impl Advances {
    /// `None` if an item is fixed or has gaps.
    pub(crate) fn new(instance: &Instance) -> Option<Self> {
        let split = Split::new(instance)?;
        Some(Self { split, swept: None, lowest: None, running: [None, None], begun: [0; 2] })
    }

    fn field<'a>(&'a self, instance: &'a Instance, overlaps: &'a OverlapIndex) -> Field<'a> {
        Field { instance, split: &self.split, overlaps }
    }

    /// Begins other advances in place of those that fail too often, or whose ceiling is not below the height any more; none before the first sweep.
    pub(crate) fn renew(
        &mut self,
        (instance, overlaps): (&Instance, &OverlapIndex),
        (goal, height): (u64, u64),
        random: &mut Random,
    ) {
        for (which, patience) in PATIENCE.into_iter().enumerate() {
            let patience = patience * luby(self.begun[which].max(1));
            let goes_on =
                |advance: &Advance| u64::from(advance.failures) < patience && advance.ceiling < height;
            if self.running[which].as_ref().is_some_and(goes_on) {
                continue;
            }
            let complete = self.lowest.take().or_else(|| {
                let Swept { way, offsets, .. } = self.swept.as_ref()?;
                Some((offsets.clone(), [way.clone(), way.clone()]))
            });
            let Some(complete) = complete else { return };
            let turn = self.begun.iter().sum::<u64>() as usize % QUARTERS.len();
            let ceiling = ceiling(goal, height, QUARTERS[turn]);
            self.begun[which] += 1;
            let field = self.field(instance, overlaps);
            let advance = if which == LOWEST {
                Advance::resume(&field, &complete, ceiling)
            } else {
                let order = self.split.stacked(instance, Stack::draw_any(random));
                Advance::begin(&field, &order, self.split.draw_side(instance, random), ceiling)
            };
            (self.running[which], self.lowest) = (advance, Some(complete));
        }
    }

    /// A step with the advance whose turn it is, or a sweep if that does not run.
    pub(crate) fn draw(
        &self,
        (instance, overlaps): (&Instance, &OverlapIndex),
        turn: usize,
        random: &mut Random,
    ) -> Step {
        let which = turn % 2;
        let field = self.field(instance, overlaps);
        let attempt = self.running[which].as_ref().and_then(|advance| advance.draw(&field, random));
        attempt.map_or_else(
            || Step::Sweep(Sweep::draw(&self.split, instance, random)),
            |attempt| Step::Walk(which, attempt),
        )
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
                let most = self.swept.as_ref().map_or(f64::INFINITY, |swept| swept.cost);
                let swept = sweep.run(&self.split, instance, goal, most, stop)?;
                Some(Stepped::Swept(Box::new(swept)))
            }
            Step::Walk(which, attempt) => {
                let field = self.field(instance, overlaps);
                self.running[*which].as_ref()?.walk(&field, attempt, stop).map(Stepped::Walked)
            }
        }
    }

    /// Takes in what a step gives. Returns the offsets of all items if they all have places.
    pub(crate) fn accept(
        &mut self,
        (instance, overlaps): (&Instance, &OverlapIndex),
        goal: u64,
        step: &Step,
        stepped: Option<Stepped>,
    ) -> Option<Vec<u64>> {
        let field = Field { instance, split: &self.split, overlaps };
        match (step, stepped) {
            (Step::Sweep(_), Some(Stepped::Swept(swept))) => {
                let offsets = swept.offsets.clone();
                if self.swept.as_ref().is_none_or(|best| swept.cost <= best.cost) {
                    self.swept = Some(*swept);
                }
                Some(offsets)
            }
            (Step::Walk(which, attempt), stepped) => {
                let walked = if let Some(Stepped::Walked(walked)) = stepped { Some(walked) } else { None };
                let advance = self.running[*which].as_mut()?;
                advance.adopt(&field, attempt, walked);
                if !advance.is_done(&field) {
                    return None;
                }
                let Advance { offsets, ways, .. } = self.running[*which].take()?;
                let complete = (offsets.clone(), ways);
                let next = ceiling(goal, instance.height(&offsets), 2);
                self.running[LOWEST] = Advance::resume(&field, &complete, next);
                self.lowest = Some(complete);
                Some(offsets)
            }
            (Step::Sweep(_), _) => None,
        }
    }
}

//! `best-fit-paper` and `best-fit-paper-merged`: best-fit exactly as Sekiyama et al. (2018) state it in section 3.2.
//!
//! Offset lines lie on the problem's own time, not on compressed time as in [`best-fit`](crate::BestFit), and each step takes the lowest of
//! all lines, the leftmost of several. Two placements differ where a line ends at a position at which a buffer only ends: compressed time
//! has no such position. The text merges a line with its neighbour when it is lifted to it (*lift up the line by merging it*), which is
//! `best-fit-paper`; it leaves open what happens to two lines that become equal because a buffer was placed. In `best-fit-paper-merged` they
//! are one line at once.
//!
//! Ties of lifetime, which the paper leaves open: the larger size, then the lower id. Alignments, gaps, fixed offsets and windows, which it does
//! not have, are treated as in `best-fit`.

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

use crate::best_fit::{Merging, longest_first, lowest_line_first};
use crate::clock::Clock;
use crate::instance::Instance;
use crate::partial_placement::Fit;
use crate::windowed;

/// Section 3.2, lines merged when they are lifted.
#[derive(Clone, Copy, Debug, Default)]
pub struct BestFitPaper;

/// Section 3.2, lines merged as soon as they are equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct BestFitPaperMerged;

impl Packer for BestFitPaper {
    fn name(&self) -> &'static str {
        "best-fit-paper"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        pack(problem, Merging::AtLiftUp, budget, observer)
    }
}

impl Packer for BestFitPaperMerged {
    fn name(&self) -> &'static str {
        "best-fit-paper-merged"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        pack(problem, Merging::AtOnce, budget, observer)
    }
}

fn pack(problem: &Problem, merging: Merging, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
    if windowed::has_windows(problem) {
        return windowed::in_order(problem, longest_first, Fit::First, budget, observer);
    }
    let clock = Clock::start(budget, observer);
    let instance = match Instance::on_original_time(problem) {
        Ok(instance) => instance,
        Err(outcome) => return outcome,
    };
    match lowest_line_first(&instance, &longest_first(&instance), merging, clock.stops()) {
        Some(offsets) => instance.conclude(problem, &offsets, 1, observer, StopReason::Finished),
        None => clock.stopped(),
    }
}

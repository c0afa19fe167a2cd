//! `auto`: a portfolio of packers for any size of problem.
//!
//! The fast heuristics run first. The search of [`crate::improver`] then lowers the placement until the height meets the lower bound or the
//! capacity, or the budget ends.

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome};

use crate::improver::NodeLimits;
use crate::search::PackingSearch;
use crate::windowed;

/// The portfolio. An evaluation is one heuristic, or one search with a limited number of nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Auto;

impl Packer for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        if windowed::has_windows(problem) {
            return windowed::search(problem, budget, observer);
        }
        let mut search = match PackingSearch::new(problem, budget, observer, NodeLimits::Short) {
            Ok(search) => search,
            Err(outcome) => return outcome,
        };
        search.improver.reorder();
        let stop = search.improver.run();
        search.finish(stop)
    }
}

//! `exact`: branch and bound that proves the lowest height, or whether a capacity suffices.
//!
//! The tree of [`crate::canonical_tree`] contains every canonical placement, so a search of the whole tree below a ceiling proves that no
//! placement is lower. Node limits grow until heights and proved bounds meet. With a capacity, the question is only whether a placement fits;
//! if none does, [`crate::infeasibility`] names buffers that cannot be placed together.
//!
//! The running time is exponential: proofs are practical for some dozens of buffers per component, more where live memory is close to
//! the capacity. Components of more than 1,500 buffers are not searched: the outcome is `GaveUp` or `Finished` unless a heuristic
//! meets the bound.

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome};

use crate::improver::NodeLimits;
use crate::search::PackingSearch;
use crate::windowed;

/// Branch and bound. An evaluation is one search with a limited number of nodes; the limit doubles every four searches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exact;

impl Packer for Exact {
    fn name(&self) -> &'static str {
        "exact"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        if windowed::has_windows(problem) {
            return windowed::search(problem, budget, observer);
        }
        let mut search = match PackingSearch::new(problem, budget, observer, NodeLimits::Growing) {
            Ok(search) => search,
            Err(outcome) => return outcome,
        };
        let stop = search.improver.run();
        search.finish(stop)
    }
}

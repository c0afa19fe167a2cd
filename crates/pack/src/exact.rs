//! `exact`: branch and bound to the end. Proves the lowest height, or says whether a capacity suffices.
//!
//! The tree of [`crate::tree`] holds every canonical placement, so seeing all of it under a ceiling proves that nothing lies below. Searches
//! grow until heights and proved bounds meet. With a capacity the question is only yes or no; a no
//! names a set of blocks from which none can be left out: each removal was tried, as far as ten times the nodes of the proof reach.
//! Exponential: proofs are practical for some dozens of blocks per independent stretch of time, more where the load is tight. Stretches of more than
//! 1,500 blocks are not searched, and end as `GaveUp` or `Finished` unless a heuristic meets the bound.

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome};

use crate::improve::{Improver, Patience, fits};
use crate::instance::{Instance, infeasible};
use crate::portfolio::{begin, conclude};
use crate::shelf::order_by;

/// Branch and bound. An evaluation is one search with a limited number of nodes; the limit doubles every few searches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exact;

impl Packer for Exact {
    fn name(&self) -> &'static str {
        "exact"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        let (whole, mut improver) = match begin(problem, budget, observer, Patience::Growing) {
            Ok(begun) => begun,
            Err(outcome) => return outcome,
        };
        let stop = improver.run();
        refuted(problem, &improver).unwrap_or_else(|| conclude(problem, &whole, &improver, stop))
    }
}

/// The outcome for a part that was proved not to fit the capacity, if there is one.
pub(crate) fn refuted(problem: &Problem, improver: &Improver<'_>) -> Option<Outcome<Placement>> {
    let capacity = problem.capacity?.get();
    let state = improver.states.iter().find(|state| state.bound > capacity)?;
    let items = irreducible(&state.part.instance, capacity, state.proof_nodes, &|| {
        improver.asked_to_stop().is_some()
    });
    let blocks = items.into_iter().map(|item| state.part.instance.items[item as usize].block).collect();
    let outcome = infeasible(blocks, capacity + 1, problem.capacity);
    Some(Outcome { evaluations: improver.evaluations, ..outcome })
}

/// A small set of items that does not fit: drops every stretch of items, halving its length, whose absence is proved not to help.
fn irreducible(instance: &Instance, capacity: u64, proof_nodes: u64, stop: &dyn Fn() -> bool) -> Vec<u32> {
    let nodes = proof_nodes.saturating_mul(10).max(10_000);
    // Neighbours in time stand together, so that stretches that do not matter go at once.
    let mut kept = order_by(instance, |i| instance.items[i].hull.lo);
    let mut length = kept.len() / 2;
    while length > 0 {
        let mut from = 0;
        while from < kept.len() && !stop() {
            let to = (from + length).min(kept.len());
            let mut without = kept.clone();
            without.drain(from..to);
            let rest = instance.keep(&without);
            let order = order_by(&rest, |i| std::cmp::Reverse(rest.items[i].lifetime));
            if rest.bound > capacity || fits(&rest, capacity, &order, nodes, stop) == Some(false) {
                kept = without;
            } else {
                from = to;
            }
        }
        length /= 2;
    }
    kept.sort_unstable_by_key(|&item| instance.items[item as usize].block);
    kept
}

//! Explains why a capacity is too small: an irreducible set of buffers that does not fit, as in MiniMalloc (Moffitt 2023).

use elbowroom_ir::packing::{Placement, Problem};
use elbowroom_ir::search::Outcome;

use crate::evaluation::fits;
use crate::improver::Improver;
use crate::instance::{Instance, Span, infeasible};
use crate::order_keys::order_by;
use crate::window;

/// The outcome if the search has proved that some component does not fit the capacity.
pub(crate) fn refuted(problem: &Problem, improver: &Improver<'_>) -> Option<Outcome<Placement>> {
    let capacity = problem.capacity?.get();
    let state = improver.states.iter().find(|state| state.bound > capacity)?;
    let instance = &state.component.instance;
    let stop = || improver.stop_reason().is_some();
    let items = irreducible(instance, capacity, state.proof_nodes, state.proof_window, &stop);
    let blocks = items.into_iter().map(|item| instance.items[item as usize].block).collect();
    let outcome = infeasible(blocks, capacity + 1, problem.capacity);
    Some(Outcome { evaluations: improver.evaluations, ..outcome })
}

/// A small set of items that does not fit, of those that the proof saw. Removes runs of items, halving their length each pass, if the remaining items are proved not to
/// fit either within ten times the nodes of the first proof.
fn irreducible(
    instance: &Instance,
    capacity: u64,
    proof_nodes: u64,
    window: Option<Span>,
    stop: &dyn Fn() -> bool,
) -> Vec<u32> {
    let window = window.unwrap_or(Span { lo: 0, hi: instance.sections() as u32 });
    let nodes = proof_nodes.saturating_mul(10).max(10_000);
    // In order of time, long runs that do not matter are removed at once.
    let mut kept = order_by(instance, |i| instance.items[i].hull.lo);
    kept.retain(|&item| instance.spans(item as usize).iter().any(|span| span.overlaps(window)));
    let mut length = kept.len() / 2;
    while length > 0 {
        let mut from = 0;
        while from < kept.len() && !stop() {
            let to = (from + length).min(kept.len());
            let mut without = kept.clone();
            without.drain(from..to);
            let rest = window::part(instance, without.iter().copied(), window);
            let order = window::order(&rest);
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

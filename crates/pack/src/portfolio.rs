//! `auto`: fast packers first, then the search of [`crate::improve`], until the height meets the lower bound or the budget ends.

use std::cmp::Reverse;
use std::time::Instant;

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

use crate::best_fit::best_fit;
use crate::exact::refuted;
use crate::greedy::{conflict_order, size_order};
use crate::improve::{Improver, Patience, State};
use crate::instance::Instance;
use crate::parts::{Part, parts};
use crate::shelf::{Hole, order_by, place_in_order};

/// The portfolio. An evaluation is one heuristic, or one search with a limited number of nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Auto;

impl Packer for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        let start = Instant::now();
        let whole = match Instance::new(problem) {
            Ok(instance) => instance,
            Err(outcome) => return outcome,
        };
        let goal = whole.capacity.unwrap_or(whole.bound);
        let mut states = Vec::new();
        for part in parts(&whole) {
            let offsets = quickest(&part, goal);
            states.push(State::new(part, offsets));
        }
        let mut improver = Improver::new(states, whole.capacity, Patience::Short, budget, observer, start, 1);
        observer.improved(improver.height(), improver.bound());
        improver.reorder();
        let stop = improver.run();
        refuted(problem, &improver).unwrap_or_else(|| conclude(problem, &whole, &improver, stop))
    }
}

/// Makes an order of all items.
type Order = fn(&Instance) -> Vec<u32>;

/// Quadratic heuristics run up to this many items; beyond, the orders of [`crate::squeaky`] take their place.
const MOST_QUADRATIC: usize = 1_500;

/// The best of the heuristics, tried until one meets the goal.
pub(crate) fn quickest(part: &Part, goal: u64) -> Vec<u64> {
    let instance = &part.instance;
    let longest =
        order_by(instance, |i| (Reverse(instance.items[i].lifetime), Reverse(instance.items[i].size)));
    let mut best = best_fit(instance, &longest);
    let others: [(Order, Hole); 3] =
        [(size_order, Hole::Lowest), (size_order, Hole::Smallest), (conflict_order, Hole::Lowest)];
    for (order, hole) in others {
        if instance.height(&best) <= goal || instance.len() > MOST_QUADRATIC {
            break;
        }
        let offsets = place_in_order(instance, order(instance), hole);
        if instance.height(&offsets) < instance.height(&best) {
            best = offsets;
        }
    }
    best
}

/// What the search found, as an outcome for the whole problem.
pub(crate) fn conclude(
    problem: &Problem,
    whole: &Instance,
    improver: &Improver<'_>,
    stop: StopReason,
) -> Outcome<Placement> {
    let mut offsets = vec![0; whole.len()];
    for state in &improver.states {
        for (&item, &offset) in state.part.items.iter().zip(&state.offsets) {
            offsets[item as usize] = offset;
        }
    }
    let stop = if improver.height().max(whole.bound) <= improver.bound().max(whole.bound) {
        StopReason::Optimal
    } else {
        stop
    };
    whole.conclude(problem, &offsets, improver.evaluations, stop)
}

//! `auto`: fast packers first, then the search of [`crate::improve`], until the height meets the lower bound or the budget ends.

use std::time::Instant;

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

use crate::best_fit::{best_fit, longest_first};
use crate::exact::refuted;
use crate::improve::{Improver, Patience, State};
use crate::instance::Instance;
use crate::parts::{Part, parts};
use crate::shelf::place_in_order;
use crate::squeaky::GREEDY;

/// The portfolio. An evaluation is one heuristic, or one search with a limited number of nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Auto;

impl Packer for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        let (whole, mut improver) = match begin(problem, budget, observer, Patience::Short) {
            Ok(begun) => begun,
            Err(outcome) => return outcome,
        };
        improver.reorder();
        let stop = improver.run();
        refuted(problem, &improver).unwrap_or_else(|| conclude(problem, &whole, &improver, stop))
    }
}

/// A search that knows the best of the heuristics, which are its first evaluation; the error is an outcome that needs no search.
pub(crate) fn begin<'a>(
    problem: &Problem,
    budget: &'a Budget,
    observer: &'a dyn Observer,
    patience: Patience,
) -> Result<(Instance, Improver<'a>), Outcome<Placement>> {
    let start = Instant::now();
    let whole = Instance::new(problem)?;
    let goal = whole.capacity.unwrap_or(whole.bound);
    let state = |part: Part| {
        let offsets = quickest(&part, goal);
        State::new(part, offsets)
    };
    let states = parts(&whole).into_iter().map(state).collect();
    let improver = Improver::new(states, whole.capacity, patience, budget, observer, start, 1);
    observer.improved(improver.height(), improver.bound());
    Ok((whole, improver))
}

/// The greedy packers run at once up to this many items; beyond, they have their turn in [`crate::squeaky`].
const MOST_AT_ONCE: usize = 4_000;

/// The best of the heuristics, tried until one meets the goal.
pub(crate) fn quickest(part: &Part, goal: u64) -> Vec<u64> {
    let instance = &part.instance;
    let mut best = best_fit(instance, &longest_first(instance));
    for (order, hole) in GREEDY {
        if instance.height(&best) <= goal || instance.len() > MOST_AT_ONCE {
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

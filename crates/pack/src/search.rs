//! The frame of the packers `auto` and `exact`: initial heuristics, the search of [`crate::improver`], and the outcome.

use std::cmp::Reverse;

use elbowroom_ir::packing::{Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

use crate::best_fit::{best_fit_while, longest_first};
use crate::clock::Clock;
use crate::component::{Component, components};
use crate::improver::{ComponentState, Improver, NodeLimits};
use crate::infeasibility::refuted;
use crate::instance::{Instance, Missed};
use crate::order_keys::order_by;
use crate::partial_placement::{Fit, place_in_order, place_in_order_while};
use crate::squeaky_wheel::GREEDY;

/// Up to this many items all greedy heuristics run before the search; for larger instances the search runs them later
/// ([`crate::squeaky_wheel`]).
const MOST_FOR_GREEDY: usize = 4_000;

/// Items with hints in ascending order of these, then the others, larger ones first. First-fit in this order raises no item above its hint if
/// all items have hints that are legal together.
pub(crate) fn hint_order(instance: &Instance) -> Vec<u32> {
    order_by(instance, |i| {
        let item = &instance.items[i];
        (item.hint.unwrap_or(u64::MAX), Reverse(item.size))
    })
}

/// The best placement of a component by the heuristics. They run one after another until one is no higher than `goal` bytes. `None` if the
/// first two, the only ones for many items, are to be stopped: they are one evaluation, which happens as a whole or not at all.
pub(crate) fn initial_placement(
    component: &Component,
    goal: u64,
    mut stops: impl FnMut() -> bool,
) -> Option<Vec<u64>> {
    let instance = &component.instance;
    let mut best = best_fit_while(instance, &longest_first(instance), &mut stops)?;
    if instance.items.iter().any(|item| item.hint.is_some()) {
        let offsets = place_in_order_while(instance, hint_order(instance), Fit::First, |_, _| !stops())?;
        if instance.height(&offsets) < instance.height(&best) {
            best = offsets;
        }
    }
    for (order, fit) in GREEDY {
        if instance.height(&best) <= goal || instance.len() > MOST_FOR_GREEDY {
            break;
        }
        let offsets = place_in_order(instance, order(instance), fit);
        if instance.height(&offsets) < instance.height(&best) {
            best = offsets;
        }
    }
    Some(best)
}

/// A problem, and the search for its placement, which has done its first evaluation: the heuristics.
pub(crate) struct PackingSearch<'a> {
    problem: &'a Problem,
    whole: Instance,
    pub(crate) improver: Improver<'a>,
}

impl<'a> PackingSearch<'a> {
    /// Runs the heuristics on every component. The error is the outcome of a problem that needs no search, or has no time for one.
    pub(crate) fn new(
        problem: &'a Problem,
        budget: &'a Budget,
        observer: &'a dyn Observer,
        limits: NodeLimits,
    ) -> Result<Self, Outcome<Placement>> {
        let clock = Clock::start(budget, observer);
        let whole = Instance::new(problem)?;
        let goal = whole.capacity.unwrap_or(whole.bound);
        let mut stops = clock.stops_above(whole.len());
        let mut state = |component: Component| {
            let offsets = initial_placement(&component, goal, &mut stops)?;
            Some(ComponentState::new(component, offsets))
        };
        let states: Option<Vec<_>> = components(&whole).into_iter().map(&mut state).collect();
        let Some(states) = states else { return Err(clock.stopped()) };
        let improver = Improver::new(states, whole.capacity, limits, budget, clock, 1);
        observer.improved(improver.height(), improver.bound());
        Ok(Self { problem, whole, improver })
    }

    /// The outcome for the whole problem, after the search has stopped with `stop`.
    pub(crate) fn finish(&self, stop: StopReason) -> Outcome<Placement> {
        let Self { problem, whole, improver } = self;
        let mut offsets = vec![0; whole.len()];
        for state in &improver.states {
            for (&item, &offset) in state.component.items.iter().zip(&state.offsets) {
                offsets[item as usize] = offset;
            }
        }
        if let Some(outcome) = refuted(problem, improver) {
            improver.observer().note(&Missed(whole.placement(problem, &offsets)));
            return outcome;
        }
        let proved = improver.height().max(whole.bound) <= improver.bound().max(whole.bound);
        let stop = if proved { StopReason::Optimal } else { stop };
        whole.conclude(problem, &offsets, improver.evaluations, improver.observer(), stop)
    }
}

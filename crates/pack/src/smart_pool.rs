//! SmartPool's best-fit and first-fit (Zhang et al. 2019, section III-C): weighted interval colouring in descending order of size.
//!
//! Each variable goes to a hole between the blocks of those neighbours (variables alive at the same time) that are placed already: the
//! smallest hole that holds it (best-fit, the paper's default) or the first (first-fit); where no hole is large enough, the
//! pool is extended. The space below the lowest neighbour is a hole too (the published implementation misses it).
//! Equal sizes are taken in order of allocation, then of their ids. Each is compared
//! with the blocks near it in time, not with all ([`crate::shelf`]).

use std::cmp::Reverse;

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

use crate::instance::Instance;
use crate::shelf::{Hole, order_by, place_in_order};

/// SmartPool with the smallest hole that holds the variable.
#[derive(Clone, Copy, Debug, Default)]
pub struct SmartPoolBest;

/// SmartPool with the first hole that holds the variable.
#[derive(Clone, Copy, Debug, Default)]
pub struct SmartPoolFirst;

impl Packer for SmartPoolBest {
    fn name(&self) -> &'static str {
        "smartpool-best"
    }

    fn pack(&self, problem: &Problem, _budget: &Budget, _observer: &dyn Observer) -> Outcome<Placement> {
        smart_pool(problem, Hole::Smallest)
    }
}

impl Packer for SmartPoolFirst {
    fn name(&self) -> &'static str {
        "smartpool-first"
    }

    fn pack(&self, problem: &Problem, _budget: &Budget, _observer: &dyn Observer) -> Outcome<Placement> {
        smart_pool(problem, Hole::Lowest)
    }
}

fn smart_pool(problem: &Problem, hole: Hole) -> Outcome<Placement> {
    let instance = match Instance::new(problem) {
        Ok(instance) => instance,
        Err(outcome) => return outcome,
    };
    let offsets = place_in_order(&instance, smart_order(&instance), hole);
    instance.conclude(problem, &offsets, 1, StopReason::Finished)
}

/// Larger first, then allocated earlier, then the lower id.
pub(crate) fn smart_order(instance: &Instance) -> Vec<u32> {
    order_by(instance, |item| (Reverse(instance.items[item].size), instance.items[item].first_position))
}

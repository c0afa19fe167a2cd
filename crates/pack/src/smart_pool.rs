//! SmartPool's best-fit and first-fit (Zhang et al. 2019, section III-C): weighted interval colouring in descending order of size.
//!
//! Each variable is placed in a hole between the placed variables that are alive at the same time: the smallest hole that holds it (best-fit, the
//! paper's default) or the first (first-fit). If no hole is large enough, the pool grows. The space below the lowest of these variables counts as
//! a hole, which the published implementation omits. Ties of size: order of allocation, then ids. [`crate::partial_placement`] finds the
//! conflicting variables.

use std::cmp::Reverse;

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome};

use crate::greedy::in_order;
use crate::instance::Instance;
use crate::order_keys::order_by;
use crate::partial_placement::Fit;

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

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        in_order(problem, smart_order, Fit::Best, budget, observer)
    }
}

impl Packer for SmartPoolFirst {
    fn name(&self) -> &'static str {
        "smartpool-first"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        in_order(problem, smart_order, Fit::First, budget, observer)
    }
}

/// Larger first, then allocated earlier, then the lower id.
pub(crate) fn smart_order(instance: &Instance) -> Vec<u32> {
    order_by(instance, |item| (Reverse(instance.items[item].size), instance.items[item].first_position))
}

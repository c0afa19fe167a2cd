//! `auto`: several packers, fast ones first, until the height meets the lower bound or the budget ends.

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use std::cmp::Reverse;

use crate::best_fit::best_fit;
use crate::greedy::{conflict_order, size_order};
use crate::instance::Instance;
use crate::shelf::{Hole, order_by, place_in_order};

/// The portfolio.
#[derive(Clone, Copy, Debug, Default)]
pub struct Auto;

impl Packer for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn pack(&self, problem: &Problem, _budget: &Budget, _observer: &dyn Observer) -> Outcome<Placement> {
        let instance = match Instance::new(problem) {
            Ok(instance) => instance,
            Err(outcome) => return outcome,
        };
        let longest =
            order_by(&instance, |i| (Reverse(instance.items[i].lifetime), Reverse(instance.items[i].size)));
        let mut best = best_fit(&instance, &longest);
        let mut evaluations = 1;
        for (order, hole) in [
            (size_order(&instance), Hole::Lowest),
            (size_order(&instance), Hole::Smallest),
            (conflict_order(&instance), Hole::Lowest),
        ] {
            if instance.height(&best) <= instance.bound || instance.len() > 50_000 {
                break;
            }
            let offsets = place_in_order(&instance, order, hole);
            evaluations += 1;
            if instance.height(&offsets) < instance.height(&best) {
                best = offsets;
            }
        }
        instance.conclude(problem, &best, evaluations, StopReason::Finished)
    }
}

//! Two greedy baselines: by size, as in TensorFlow Lite's arena planner (Pisarchyk and Lee 2020, section 5), and by conflicts.
//!
//! Both place each buffer at its lowest free offset. `size` takes the largest first; `conflict` takes the buffer with the most conflicts first,
//! as in TVM's unified static memory planner. Ties: the lower id. [`crate::partial_placement`] finds the conflicting buffers.

use std::cmp::Reverse;

use elbowroom_ir::packing::{Packer, Placement, Problem};
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

use crate::clock::Clock;
use crate::instance::Instance;
use crate::order_keys::order_by;
use crate::partial_placement::{Fit, place_in_order_while};
use crate::squeaky_wheel::Order;
use crate::windowed;

/// Largest first, at the lowest free offset.
#[derive(Clone, Copy, Debug, Default)]
pub struct GreedyBySize;

/// Most contended first, at the lowest free offset.
#[derive(Clone, Copy, Debug, Default)]
pub struct GreedyByConflict;

impl Packer for GreedyBySize {
    fn name(&self) -> &'static str {
        "size"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        in_order(problem, size_order, Fit::First, budget, observer)
    }
}

impl Packer for GreedyByConflict {
    fn name(&self) -> &'static str {
        "conflict"
    }

    fn pack(&self, problem: &Problem, budget: &Budget, observer: &dyn Observer) -> Outcome<Placement> {
        in_order(problem, conflict_order, Fit::First, budget, observer)
    }
}

/// Larger first, then the lower id.
pub(crate) fn size_order(instance: &Instance) -> Vec<u32> {
    order_by(instance, |i| Reverse(instance.items[i].size))
}

/// More conflicts first, then larger, then the lower id. The number of conflicts is the number of items that start before the item ends, minus
/// those that end before it starts. It counts gaps as alive, which is accurate enough for an order.
pub(crate) fn conflict_order(instance: &Instance) -> Vec<u32> {
    let mut starts: Vec<u32> = instance.items.iter().map(|item| item.hull.lo).collect();
    let mut ends: Vec<u32> = instance.items.iter().map(|item| item.hull.hi).collect();
    starts.sort_unstable();
    ends.sort_unstable();
    order_by(instance, |i| {
        let hull = instance.items[i].hull;
        let conflicts =
            starts.partition_point(|&lo| lo < hull.hi) - ends.partition_point(|&hi| hi <= hull.lo);
        (Reverse(conflicts), Reverse(instance.items[i].size))
    })
}

/// Places all blocks in an order, while the clock permits.
pub(crate) fn in_order(
    problem: &Problem,
    order: Order,
    fit: Fit,
    budget: &Budget,
    observer: &dyn Observer,
) -> Outcome<Placement> {
    if windowed::has_windows(problem) {
        return windowed::in_order(problem, order, fit, budget, observer);
    }
    let clock = Clock::start(budget, observer);
    let instance = match Instance::new(problem) {
        Ok(instance) => instance,
        Err(outcome) => return outcome,
    };
    let mut stops = clock.stops();
    match place_in_order_while(&instance, order(&instance), fit, |_, _| !stops()) {
        Some(offsets) => instance.conclude(problem, &offsets, 1, observer, StopReason::Finished),
        None => clock.stopped(),
    }
}

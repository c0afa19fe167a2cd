//! `mixed`: the segments of [`sqrt`](crate::recompute::sqrt); the tensors that the recomputed segments hand on are offloaded, so that recompute and
//! copies overlap.

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};

use crate::chain::division::divide;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Mixed;

impl Planner for Mixed {
    fn name(&self) -> &'static str {
        "mixed"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        divide(request, request.freedom.offload, budget, observer)
    }
}

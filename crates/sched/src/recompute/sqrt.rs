//! `sqrt`: Chen et al. (*Training deep nets with sublinear memory cost*, 2016), section 4.2. Divides the layers into
//! segments of about equal stash and recomputes as few of them as the limit allows (`chain::division`).

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};

use crate::chain::division::divide;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Sqrt;

impl Planner for Sqrt {
    fn name(&self) -> &'static str {
        "sqrt"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        divide(request, false, budget, observer)
    }
}

//! `keep`: everything stays. The baseline, and the answer when memory is enough.

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};

use crate::lower::{least_live, lower};
use crate::policy::Policy;
use crate::verdict::refusal;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep;

impl Planner for Keep {
    fn name(&self) -> &'static str {
        "keep"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, _: &dyn Observer) -> Outcome<Schedule> {
        let policy = Policy::keep(request.trace);
        match lower(request, &policy) {
            Ok(lowered) => Outcome::finished(lowered.schedule),
            Err(_) => {
                refusal(request, least_live(request, &policy).ok().map(|(live_bytes, _)| live_bytes), 1)
            }
        }
    }
}

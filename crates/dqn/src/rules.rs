//! The fixed rules that the network competes with, none of which searches. The network can take every decision that they take, so that the
//! planner's answer is never slower than any of them.

use std::time::Instant;

use elbowroom_ir::Nanos;
use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::search::{Budget, Observer};

use elbowroom_sched::deadline::Until;
use elbowroom_sched::keep::Keep;
use elbowroom_sched::mixed::segments::Mixed;
use elbowroom_sched::mixed::supernn::SuperNn;
use elbowroom_sched::offload::autoswap::BestScore;
use elbowroom_sched::offload::greedy::Greedy;
use elbowroom_sched::offload::tflms::Tflms;
use elbowroom_sched::offload::vdnn::Vdnn;
use elbowroom_sched::portfolio::{Entries, Portfolio};
use elbowroom_sched::recompute::drop_cheap::DropCheap;
use elbowroom_sched::recompute::sublinear::Sublinear;

/// The rules.
static RULES: [&dyn Planner; 9] =
    [&Keep, &Greedy, &Vdnn, &Tflms, &BestScore, &DropCheap, &Sublinear, &SuperNn, &Mixed];

/// The schedules of all rules, or until one reaches `bound` or the time ends: together they take seconds on a thousand ops. Evaluations do
/// not end them.
pub(crate) fn run(
    request: &Request<'_>,
    bound: u64,
    end: Option<Instant>,
    observer: &dyn Observer,
) -> Entries {
    let watch = Until::new(observer, end);
    let budget = Budget { evaluations: None, time: None, ..Budget::default() };
    let portfolio = Portfolio { planners: RULES.to_vec(), budget, threads: 1, bound: Some(Nanos(bound)) };
    portfolio.run(request, &watch)
}

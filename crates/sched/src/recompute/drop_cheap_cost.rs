//! `drop-cheap-cost`: as [`drop-cheap`](super::drop_cheap), but an op is cheap by its time, not by its kind.
//!
//! An op is cheap if a byte that it makes costs less than half of the average cost of a byte for the backward
//! phase over the forward phase. In a convolutional network the convolutions take nearly all the time and make a third of the bytes. Like the
//! other passes of the paper this one is unconditional: it evicts cheap results even where everything would fit, because a user who names a
//! pass wants that pass; `auto` recomputes only as much as the limit requires. If half the average does not meet the limit, the bound is
//! raised to three quarters, once and one and a half times the average.

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};
use elbowroom_ir::{OpId, TensorId};

use crate::policy::Policy;
use crate::recompute::cuts::Cuts;
use crate::recompute::mirror::Mirrors;
use crate::recompute::repeats::base;
use crate::recompute::{answer, least_bytes};

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct DropCheapCost;

impl Planner for DropCheapCost {
    fn name(&self) -> &'static str {
        "drop-cheap-cost"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, _: &dyn Observer) -> Outcome<Schedule> {
        let keep = Policy::prompt(request.trace);
        if !request.freedom.recompute {
            return answer(request, Some(&keep), 1);
        }
        let mut tried: Vec<Policy> = Vec::new();
        for quarters in [2, 3, 4, 6] {
            let policy = mirrors(request, quarters).policy(request.trace);
            let fits =
                least_bytes(request, &policy).is_some_and(|live_bytes| live_bytes <= request.live_limit);
            tried.push(policy);
            if fits {
                break;
            }
        }
        answer(request, tried.last(), tried.len() as u64)
    }
}

/// A count of one for every result of a forward op that is cheap by this many quarters of the average.
pub fn mirrors(request: &Request<'_>, quarters: u8) -> Mirrors {
    let trace = request.trace;
    let (_, backward_start) = base(trace);
    let cuts = Cuts::of(trace, backward_start);
    let mut mirrors = Mirrors::none(trace);
    let nanos = |op: OpId| request.costs.nanos.get(op).map_or(0, |nanos| u128::from(nanos.get()));
    let all_time: u128 = (0..backward_start).map(|place| nanos(OpId(place))).sum();
    let all_bytes: u128 = cuts.stash.iter().map(|&bytes| u128::from(bytes)).sum();
    for &(value, made, _) in &cuts.forward {
        let op = OpId(made);
        let bytes: u128 = made_by(trace, op).map(|value| u128::from(trace.bytes(value).get())).sum();
        if 4 * nanos(op) * all_bytes <= u128::from(quarters) * all_time * bytes {
            mirrors.mark(value, 1);
        }
    }
    mirrors
}

fn made_by(trace: &elbowroom_ir::trace::Trace, op: OpId) -> impl Iterator<Item = TensorId> + '_ {
    trace.ops()[op].outputs.iter().copied()
}

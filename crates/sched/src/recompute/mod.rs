//! Planners that evict tensors and recompute them, and that offload nothing. Each decides a sequence of ops with repeats, and [`repeats`] derives
//! the evictions from it.
//!
//! - Chen et al. (*Training deep nets with sublinear memory cost*, 2016): [`in_place`], [`marked`], [`drop_cheap`], [`drop_cheap_cost`], [`sqrt`],
//!   [`sublinear`], [`recursive`]. [`cuts`] and [`mirror`] are the terms of the paper's algorithms.
//! - Persistent checkpointing of a chain: [`rotor`], with [`profile`] and [`layered`].
//! - Dynamic tensor rematerialization: [`dtr`], with [`worth`].
//! - [`evictions`]: evicted tensors recomputed on the way to others, for planners that also offload.

pub mod cuts;
pub mod drop_cheap;
pub mod drop_cheap_cost;
pub mod dtr;
pub mod evictions;
pub mod in_place;
pub mod layered;
pub mod marked;
pub mod mirror;
pub mod profile;
pub mod recursive;
pub mod repeats;
pub mod rotor;
pub mod sqrt;
pub mod sublinear;
pub mod worth;

use elbowroom_ir::Bytes;
use elbowroom_ir::planning::Request;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Outcome, StopReason};

use crate::lower::{least_live, lower};
use crate::policy::Policy;
use crate::verdict::refusal;

/// What the least live memory of a policy is; nothing if the policy contradicts the trace.
fn least_bytes(request: &Request<'_>, policy: &Policy) -> Option<Bytes> {
    least_live(request, policy).ok().map(|(live_bytes, _)| live_bytes)
}

/// The answer of a planner that was interrupted: the schedule of the best policy so far, if there is one and it fits.
fn interrupted(request: &Request<'_>, policy: Option<&Policy>, evaluations: u64) -> Outcome<Schedule> {
    let answer = answer(request, policy, evaluations);
    let stop = if answer.best.is_some() { StopReason::Interrupted } else { answer.stop };
    Outcome { stop, ..answer }
}

/// The answer of a planner that has decided: the policy's schedule, if it fits.
fn answer(request: &Request<'_>, policy: Option<&Policy>, evaluations: u64) -> Outcome<Schedule> {
    let Some(policy) = policy else { return refusal(request, None, evaluations) };
    match lower(request, policy) {
        Ok(lowered) => Outcome { evaluations, ..Outcome::finished(lowered.schedule) },
        Err(_) => refusal(request, least_bytes(request, policy), evaluations),
    }
}

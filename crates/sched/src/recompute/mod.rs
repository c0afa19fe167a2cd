//! Planners that make values again: Chen et al. (*Training deep nets with sublinear memory cost*, 2016), persistent checkpointing of a
//! chain, and dynamic tensor rematerialization. Each decides a sequence of ops with repeats; [`repeats`] says which values are dropped.

pub mod cuts;
pub mod drop_cheap;
pub mod dtr;
pub mod in_place;
pub mod layered;
pub mod mirror;
pub mod profile;
pub mod recursive;
pub mod remake;
pub mod repeats;
pub mod rotor;
pub mod sqrt;
pub mod sublinear;
pub mod worth;

use elbowroom_ir::Bytes;
use elbowroom_ir::planning::Request;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::Outcome;

use crate::lower::{least_load, lower};
use crate::policy::Policy;
use crate::verdict::refusal;

/// What the least load of a policy is; nothing if the policy contradicts the trace.
fn load(request: &Request<'_>, policy: &Policy) -> Option<Bytes> {
    least_load(request, policy).ok().map(|(load, _)| load)
}

/// The answer of a planner that has decided: the policy's schedule, if it fits.
fn answer(request: &Request<'_>, policy: Option<&Policy>, evaluations: u64) -> Outcome<Schedule> {
    let Some(policy) = policy else { return refusal(request, None, evaluations) };
    match lower(request, policy) {
        Ok(lowered) => Outcome { evaluations, ..Outcome::finished(lowered.schedule) },
        Err(_) => refusal(request, load(request, policy), evaluations),
    }
}

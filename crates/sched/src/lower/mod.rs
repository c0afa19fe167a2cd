//! Policy → schedule: the only place that makes copies, releases and buffers. It invents no choice.
//!
//! *As soon as possible* alone is not a schedule: a fetch that comes too early takes the bytes that an op needs, and both wait for ever.
//! So positions are chosen by a simulation in which memory is a gate. It goes through the ops in the policy's order, and around each op
//!
//! 1. makes the fetches that the op needs and that have not been made;
//! 2. releases what has left by the time the op could start, and if the op still has no room, waits for the offloads under way, and
//!    starts others, until it has;
//! 3. makes fetches that may start before the op ends, if they fit beside it;
//! 4. runs the op, lets offloads start while it runs, and releases what it used last.
//!
//! A fetch may take bytes only if *every* op between then and its use still has room for its own: the earliest such place is found
//! beforehand, on the load that the policy would have if copies took no time. Offloads under way can only make an op wait, never fail.
//! The times of this simulation are those of the schedule that comes out, with the same waits; afterwards order and waits alone decide.

pub(crate) mod analysis;
mod gate;
mod outcome;
mod prefetches;
mod profile;
mod program;
pub mod waits;

use elbowroom_ir::planning::Request;
use elbowroom_ir::{Bytes, Nanos};

pub use outcome::{LowerError, Lowered, Shortfall};

use crate::policy::{Away, Place, Policy, Touches};
use analysis::{PolicyError, analyse, analyse_gaps};
use gate::Gate;
use outcome::shortfall;
use prefetches::{FetchStarts, earliest_fetches};
use program::Program;

/// The load without which no schedule of a policy can do, and the place that needs it: what every copy taking no time would reach.
/// Says nothing about time; near-linear and much cheaper than [`lower`].
pub fn least_load(request: &Request<'_>, policy: &Policy) -> Result<(Bytes, Place), PolicyError> {
    let load = loads(request, policy)?;
    let place = (0..load.len()).rev().max_by_key(|&place| load[place]).unwrap_or(0);
    Ok((Bytes(load.get(place).copied().unwrap_or(0)), place as Place))
}

/// The load that a policy cannot do without at every place of its sequence, and at the boundary after it.
pub fn loads(request: &Request<'_>, policy: &Policy) -> Result<Vec<u64>, PolicyError> {
    let program = analyse(request.trace, request.machine, policy)?;
    Ok(with_workspaces(request, policy, &program))
}

/// Turns a policy into a schedule whose load stays within the request's limit.
pub fn lower(request: &Request<'_>, policy: &Policy) -> Result<Lowered, LowerError> {
    let program = analyse(request.trace, request.machine, policy)?;
    let starts = starts(request, policy, &program)?;
    Gate::new(request, policy, &program, starts).run()
}

/// Iteration time and peak load of the schedule that [`lower`] would make, without making it: for searches that throw most away.
pub fn evaluate(request: &Request<'_>, policy: &Policy) -> Result<(Nanos, Bytes), LowerError> {
    let program = analyse(request.trace, request.machine, policy)?;
    let starts = starts(request, policy, &program)?;
    Gate::new(request, policy, &program, starts).measure()
}

/// The same for a policy given as for [`analyse_gaps`]; `None` if the iteration is longer than `worst`, mostly long before its end.
pub(crate) fn evaluate_within(
    request: &Request<'_>,
    policy: &Policy,
    touches: &Touches,
    away: &[Option<Away>],
    worst: u64,
) -> Result<Option<(Nanos, Bytes)>, LowerError> {
    let program = analyse_gaps(request.trace, request.machine, policy, touches, away)?;
    let starts = starts(request, policy, &program)?;
    Gate::new(request, policy, &program, starts).measure_within(worst)
}

/// What an unfinished policy costs so far.
#[derive(Clone, Debug)]
pub struct Unfinished {
    /// Iteration time if the limit holds wherever the policy keeps to it, and nowhere else.
    pub iteration: Nanos,
    /// The load that the policy cannot do without at every place, and at the boundary.
    pub load: Vec<u64>,
}

/// As [`evaluate`], for a policy that does not fit yet: where it needs more than the limit it may have it. A policy that fits takes the
/// time that [`evaluate`] finds.
pub fn evaluate_unfinished(request: &Request<'_>, policy: &Policy) -> Result<Unfinished, LowerError> {
    let program = analyse(request.trace, request.machine, policy)?;
    let load = with_workspaces(request, policy, &program);
    let limit = request.load_limit.get();
    let holds: Vec<bool> = load.iter().map(|&load| load <= limit).collect();
    let bounded: Vec<u64> = load.iter().map(|&load| if load <= limit { load } else { 0 }).collect();
    let starts = earliest_fetches(request, policy, &program, &bounded, limit);
    let (iteration, _) = Gate::new(request, policy, &program, starts).holding(&holds).measure()?;
    Ok(Unfinished { iteration, load })
}

/// Checks that the policy fits the limit at every place, and finds where its fetches may start.
fn starts(request: &Request<'_>, policy: &Policy, program: &Program) -> Result<FetchStarts, Shortfall> {
    let load = with_workspaces(request, policy, program);
    let limit = request.load_limit.get();
    if let Some(place) = (0..load.len()).max_by_key(|&place| load[place]).filter(|&p| load[p] > limit) {
        return Err(shortfall(request, policy, program, place as Place, load[place]));
    }
    Ok(earliest_fetches(request, policy, program, &load, limit))
}

fn with_workspaces(request: &Request<'_>, policy: &Policy, program: &Program) -> Vec<u64> {
    let mut load = program.least_load(policy.sequence.len() as Place);
    for (load, &op) in load.iter_mut().zip(&policy.sequence) {
        *load += request.trace.ops()[op].workspace.align_up(request.machine.align).get();
    }
    load
}

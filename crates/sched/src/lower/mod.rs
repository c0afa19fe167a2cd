//! Policy → schedule: the only module that inserts copies, releases and buffers. It decides nothing that the policy has decided.
//!
//! To start every action as soon as possible is not enough: a prefetch that comes too early takes the bytes that an op needs, and both wait
//! for ever. Positions are therefore chosen by a simulation in which every action waits for its memory. It visits the ops in the policy's
//! order, and for each op it
//!
//! 1. makes the prefetches that the op needs and that have not been made;
//! 2. releases the residencies that have ended by the time the op could start; if the op still lacks memory, it waits for the offloads in
//!    progress, and starts others, until the op fits;
//! 3. makes prefetches that may start before the op ends, if they fit together with it;
//! 4. runs the op, starts offloads while it runs, and releases the residencies that it used last.
//!
//! A prefetch may take bytes only if *every* op between then and its use still fits: the earliest such place is computed beforehand, from the
//! live memory that the policy would have if copies took no time. Offloads in progress can make an op wait, but never fail. The resulting
//! schedule, simulated by its order and waits alone, takes exactly the times of this simulation.

pub(crate) mod analysis;
mod gate;
mod outcome;
mod pinned;
mod prefetches;
mod profile;
mod program;
pub mod waits;

use elbowroom_ir::planning::Request;
use elbowroom_ir::{Bytes, Nanos};

pub use outcome::{LowerError, Lowered, Shortfall};

use crate::policy::{Gap, GapAction, Policy, SequenceIndex, Touches};
use analysis::{PolicyError, analyse, analyse_gaps};
use gate::Gate;
use outcome::shortfall;
use prefetches::{PrefetchStarts, earliest_prefetches};
use program::Program;

/// The live memory without which no schedule of a policy can do, and the place that needs it: what every copy taking no time would reach.
/// Does not predict time; near-linear and much cheaper than [`lower`].
pub fn least_live(request: &Request<'_>, policy: &Policy) -> Result<(Bytes, SequenceIndex), PolicyError> {
    let live_bytes = live_memory(request, policy)?;
    let place = (0..live_bytes.len()).rev().max_by_key(|&place| live_bytes[place]).unwrap_or(0);
    Ok((Bytes(live_bytes.get(place).copied().unwrap_or(0)), place as SequenceIndex))
}

/// The live memory that a policy cannot do without at every place of its sequence, and at the boundary after it.
pub fn live_memory(request: &Request<'_>, policy: &Policy) -> Result<Vec<u64>, PolicyError> {
    let policy = &*pinned::obeying(request, policy);
    let program = analyse(request.trace, request.machine, policy)?;
    Ok(with_workspaces(request, policy, &program))
}

/// Turns a policy into a schedule whose live memory stays within the request's limit.
pub fn lower(request: &Request<'_>, policy: &Policy) -> Result<Lowered, LowerError> {
    let policy = &*pinned::obeying(request, policy);
    let mut program = analyse(request.trace, request.machine, policy)?;
    program.drop_unused_buffers();
    let starts = starts(request, policy, &program)?;
    Gate::new(request, policy, &program, starts).run()
}

/// Iteration time and peak memory of the schedule that [`lower`] would make, without making it: for searches that throw most away.
pub fn evaluate(request: &Request<'_>, policy: &Policy) -> Result<(Nanos, Bytes), LowerError> {
    let policy = &*pinned::obeying(request, policy);
    let program = analyse(request.trace, request.machine, policy)?;
    let starts = starts(request, policy, &program)?;
    Gate::new(request, policy, &program, starts).measure()
}

/// A policy analysed once, for evaluations with several orders of its copies.
pub(crate) struct Analysed<'a> {
    request: &'a Request<'a>,
    program: Program,
}

impl<'a> Analysed<'a> {
    /// Analyses a policy.
    pub(crate) fn new(request: &'a Request<'a>, policy: &Policy) -> Result<Self, LowerError> {
        let policy = pinned::obeying(request, policy);
        Ok(Self { request, program: analyse(request.trace, request.machine, &policy)? })
    }

    /// As [`evaluate`], for the analysed policy or one that differs from it in the order of copies and the rule for prefetches only.
    pub(crate) fn evaluate(&self, policy: &Policy) -> Result<(Nanos, Bytes), LowerError> {
        let policy = &*pinned::obeying(self.request, policy);
        let starts = starts(self.request, policy, &self.program)?;
        Gate::new(self.request, policy, &self.program, starts).measure()
    }

    /// The gaps with offloads, and those with prefetches, in the order in which an unconstrained policy considers them.
    pub(crate) fn copies(&self) -> [Vec<Gap>; 2] {
        let mut offloads: Vec<_> =
            self.program.offloads.iter().map(|copy| (copy.idle_from(), copy.gap)).collect();
        let mut prefetches: Vec<_> =
            self.program.prefetches.iter().map(|copy| (copy.needed, copy.gap)).collect();
        offloads.sort_by_key(|&(rank, _)| rank);
        prefetches.sort_by_key(|&(rank, _)| rank);
        [offloads, prefetches].map(|copies| copies.into_iter().map(|(_, gap)| gap).collect())
    }
}

/// The same for a policy given as for [`analyse_gaps`]; `None` if the iteration is longer than `worst`, mostly long before its end.
pub(crate) fn evaluate_within(
    request: &Request<'_>,
    policy: &Policy,
    touches: &Touches,
    actions: &[Option<GapAction>],
    worst: u64,
) -> Result<Option<(Nanos, Bytes)>, LowerError> {
    let policy = &*pinned::obeying(request, policy);
    let actions = pinned::actions(request.pins, touches, actions);
    let program = analyse_gaps(request.trace, request.machine, policy, touches, &actions)?;
    let starts = starts(request, policy, &program)?;
    Gate::new(request, policy, &program, starts).measure_within(worst)
}

/// What an unfinished policy costs so far.
#[derive(Clone, Debug)]
pub struct Unfinished {
    /// Iteration time if the limit holds wherever the policy keeps to it, and nowhere else.
    pub iteration: Nanos,
    /// The least live memory of the policy at every place, and at the boundary.
    pub live_bytes: Vec<u64>,
}

/// As [`evaluate`], for a policy that does not fit yet: where it needs more than the limit it may have it. A policy that fits takes the
/// time that [`evaluate`] finds.
pub fn evaluate_unfinished(request: &Request<'_>, policy: &Policy) -> Result<Unfinished, LowerError> {
    let policy = &*pinned::obeying(request, policy);
    let program = analyse(request.trace, request.machine, policy)?;
    let live_bytes = with_workspaces(request, policy, &program);
    let limit = request.live_limit.get();
    let holds: Vec<bool> = live_bytes.iter().map(|&live_bytes| live_bytes <= limit).collect();
    let bounded: Vec<u64> =
        live_bytes.iter().map(|&live_bytes| if live_bytes <= limit { live_bytes } else { 0 }).collect();
    let starts = earliest_prefetches(request, policy, &program, &bounded, limit);
    let (iteration, _) = Gate::new(request, policy, &program, starts).holding(&holds).measure()?;
    Ok(Unfinished { iteration, live_bytes })
}

/// Checks that the policy fits the limit at every place, and finds where its prefetches may start.
fn starts(request: &Request<'_>, policy: &Policy, program: &Program) -> Result<PrefetchStarts, Shortfall> {
    let live_bytes = with_workspaces(request, policy, program);
    let limit = request.live_limit.get();
    if let Some(place) =
        (0..live_bytes.len()).max_by_key(|&place| live_bytes[place]).filter(|&p| live_bytes[p] > limit)
    {
        return Err(shortfall(request, policy, program, place as SequenceIndex, live_bytes[place]));
    }
    Ok(earliest_prefetches(request, policy, program, &live_bytes, limit))
}

fn with_workspaces(request: &Request<'_>, policy: &Policy, program: &Program) -> Vec<u64> {
    let mut live_bytes = program.least_live(policy.sequence.len() as SequenceIndex);
    for (live_bytes, &op) in live_bytes.iter_mut().zip(&policy.sequence) {
        *live_bytes += request.trace.ops()[op].workspace.align_up(request.machine.align).get();
    }
    live_bytes
}

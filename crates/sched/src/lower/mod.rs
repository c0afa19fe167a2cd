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
mod profile;
mod program;
pub mod waits;

use std::collections::HashMap;

use elbowroom_ir::planning::Request;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::{Bytes, Nanos, OpId, TensorId};

use crate::lower::analysis::{PolicyError, analyse, analyse_gaps};
use crate::lower::gate::Gate;
use crate::lower::profile::Room;
use crate::lower::program::{Program, Residence};
use crate::policy::{Away, CopyOrder, FetchRule, Gap, Place, Policy, Touches};

/// A policy that needs more than the limit, at the place where it needs most.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} needs {needed} beside what the policy keeps, {missing} more than there are",
    .op.map_or("the end of the iteration".to_owned(), |op| op.to_string())
)]
pub struct Shortfall {
    /// The place in the sequence; its length for the boundary.
    pub place: Place,
    /// The op there; `None` for the boundary.
    pub op: Option<OpId>,
    /// The values on the device while it runs, its own inputs and outputs among them.
    pub resident: Vec<TensorId>,
    /// Load while it runs, its workspace included.
    pub needed: Bytes,
    /// What that exceeds the limit by.
    pub missing: Bytes,
}

/// Why there is no schedule for a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// The policy contradicts itself or its trace, at any limit.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The policy keeps too much for the limit.
    #[error(transparent)]
    Shortfall(#[from] Shortfall),
    /// The copies on the host exceed the host's memory.
    #[error("the copies on the host take {needed}, more than the {memory} that it has")]
    Host {
        /// Bytes of copies at once.
        needed: Bytes,
        /// The host's memory.
        memory: Bytes,
    },
}

/// A schedule with what its making has shown.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The schedule, with conservative waits.
    pub schedule: Schedule,
    /// Its iteration time, as the exact simulator finds it too.
    pub iteration: Nanos,
    /// Its peak load.
    pub peak: Bytes,
}

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

/// The error for a place that needs more than the limit.
pub(crate) fn shortfall(
    request: &Request<'_>,
    policy: &Policy,
    program: &Program,
    place: Place,
    needed: u64,
) -> Shortfall {
    let end = policy.sequence.len() as Place;
    let covers = |residence: &&Residence| {
        program.first_place(residence) <= place
            && program.last_place(residence, end).is_some_and(|last| place <= last)
    };
    Shortfall {
        place,
        op: policy.sequence.get(place as usize).copied(),
        resident: program.residences.iter().filter(covers).map(|r| r.value).collect(),
        needed: Bytes(needed),
        missing: Bytes(needed).saturating_sub(request.load_limit),
    }
}

/// Position of every copy in its order.
pub(crate) fn ranks(order: &CopyOrder, gaps: impl Iterator<Item = (Gap, Place)>) -> Vec<Rank> {
    let listed: HashMap<Gap, u32> = match order {
        CopyOrder::Natural => HashMap::new(),
        CopyOrder::Listed(list) => list.iter().enumerate().map(|(i, &gap)| (gap, i as u32)).collect(),
    };
    gaps.map(|(gap, natural)| (listed.get(&gap).copied().unwrap_or(u32::MAX), natural)).collect()
}

/// When fetches may start: the order in which they are considered, and the earliest place of each.
pub(crate) struct FetchStarts {
    pub rank: Vec<Rank>,
    pub earliest: Vec<Place>,
}

/// Place in a list of copies, then in natural order: lower goes first.
pub(crate) type Rank = (u32, Place);

fn earliest_fetches(
    request: &Request<'_>,
    policy: &Policy,
    program: &Program,
    load: &[u64],
    limit: u64,
) -> FetchStarts {
    let rank = ranks(&policy.fetches, program.fetches.iter().map(|f| (f.gap, f.needed)));
    let mut order: Vec<usize> = (0..rank.len()).collect();
    order.sort_unstable_by_key(|&i| (rank[i], i));
    let timely = match policy.fetch {
        FetchRule::JustInTime => just_in_time(request, policy, program, &order),
        _ => Vec::new(),
    };
    let mut room = Room::new(load);
    let mut earliest = vec![0; rank.len()];
    let mut previous = 0;
    for i in order {
        let fetch = &program.fetches[i];
        let residence = &program.residences[fetch.residence as usize];
        let gone = fetch.gap.after.map_or(0, |place| place + 1);
        let home_left = residence.follows.map_or(0, |home| {
            let end = policy.sequence.len() as Place;
            program.last_place(&program.residences[home as usize], end).map_or(0, |place| place + 1)
        });
        let mut from = gone.max(home_left);
        match policy.fetch {
            FetchRule::Eager => {}
            FetchRule::AfterOffloads => from = from.max(previous),
            FetchRule::Lead(ops) => from = from.max(fetch.needed.saturating_sub(ops)),
            FetchRule::JustInTime => from = from.max(timely[i]),
        }
        let from = from.min(fetch.needed) as usize;
        let needed = fetch.needed as usize;
        let full = room.last_above(from, needed, limit.saturating_sub(residence.bytes));
        let place = full.map_or(from, |place| place + 1);
        room.add(place, needed, residence.bytes);
        earliest[i] = place as Place;
        previous = place as Place;
    }
    FetchStarts { rank, earliest }
}

/// For every fetch the place whose op is running at the latest time at which it can start without any op waiting, if ops run without a
/// break and fetches follow each other in order.
fn just_in_time(request: &Request<'_>, policy: &Policy, program: &Program, order: &[usize]) -> Vec<Place> {
    let mut begins = vec![0u64];
    for &op in &policy.sequence {
        let duration = request.costs.nanos.get(op).map_or(0, |time| time.get());
        begins.push(begins[begins.len() - 1] + duration);
    }
    let mut places = vec![0; program.fetches.len()];
    let mut next = u64::MAX;
    for &i in order.iter().rev() {
        let fetch = &program.fetches[i];
        let copy = request.machine.to_device.time(request.trace.bytes(fetch.gap.value)).get();
        next = next.min(begins[fetch.needed as usize]).saturating_sub(copy);
        places[i] = begins.partition_point(|&begin| begin <= next).saturating_sub(1) as Place;
    }
    places
}

//! The order in which prefetches are considered, and the earliest place at which each may start so that no op between then and its use
//! runs out of memory.

use std::collections::HashMap;

use elbowroom_ir::planning::Request;

use super::profile::LiveProfile;
use super::program::Program;
use crate::policy::{CopyOrder, Gap, Policy, PrefetchRule, SequenceIndex, layers_before};

/// Place in the list of a copy that is not listed.
pub(crate) const UNLISTED: u32 = u32::MAX;

/// Position of every copy in its order.
pub(crate) fn ranks(order: &CopyOrder, gaps: impl Iterator<Item = (Gap, SequenceIndex)>) -> Vec<Rank> {
    let listed: HashMap<Gap, u32> = match order {
        CopyOrder::Unconstrained => HashMap::new(),
        CopyOrder::Listed(list) => list.iter().enumerate().map(|(i, &gap)| (gap, i as u32)).collect(),
    };
    gaps.map(|(gap, unconstrained)| (listed.get(&gap).copied().unwrap_or(UNLISTED), unconstrained)).collect()
}

/// When prefetches may start: the order in which they are considered, and the earliest place of each.
pub(crate) struct PrefetchStarts {
    pub rank: Vec<Rank>,
    pub earliest: Vec<SequenceIndex>,
}

/// Place in a list of copies, then in unconstrained order: lower goes first.
pub(crate) type Rank = (u32, SequenceIndex);

/// See the [module](self): `live_bytes` is the live memory at every place without prefetches that come early.
pub(crate) fn earliest_prefetches(
    request: &Request<'_>,
    policy: &Policy,
    program: &Program,
    live_bytes: &[u64],
    limit: u64,
) -> PrefetchStarts {
    let rank = ranks(&policy.prefetches, program.prefetches.iter().map(|f| (f.gap, f.needed)));
    let mut order: Vec<usize> = (0..rank.len()).collect();
    order.sort_unstable_by_key(|&i| (rank[i], i));
    let timely = match policy.prefetch {
        PrefetchRule::JustInTime => just_in_time(request, policy, program, &order),
        _ => Vec::new(),
    };
    let mut room = LiveProfile::new(live_bytes);
    let mut earliest = vec![0; rank.len()];
    let mut previous = 0;
    for i in order {
        let prefetch = &program.prefetches[i];
        let residency = &program.residencies[prefetch.residency as usize];
        let gone = prefetch.gap.after.map_or(0, |place| place + 1);
        let home_left = residency.follows.map_or(0, |home| {
            let end = policy.sequence.len() as SequenceIndex;
            program.last_place(&program.residencies[home as usize], end).map_or(0, |place| place + 1)
        });
        let mut from = gone.max(home_left);
        match policy.prefetch {
            PrefetchRule::Eager => {}
            PrefetchRule::AfterOffloads => from = from.max(previous),
            PrefetchRule::Lead(ops) => from = from.max(prefetch.needed.saturating_sub(ops)),
            PrefetchRule::LeadLayers(lead) => {
                from = from.max(layers_before(&policy.layers, prefetch.needed, lead))
            }
            PrefetchRule::JustInTime => from = from.max(timely[i]),
        }
        let from = from.min(prefetch.needed) as usize;
        let needed = prefetch.needed as usize;
        let full = room.last_above(from, needed, limit.saturating_sub(residency.bytes));
        let place = full.map_or(from, |place| place + 1);
        room.add(place, needed, residency.bytes);
        earliest[i] = place as SequenceIndex;
        previous = place as SequenceIndex;
    }
    PrefetchStarts { rank, earliest }
}

/// For every prefetch the place whose op is running at the latest time at which it can start without any op waiting, if ops run without a
/// break and prefetches follow each other in order.
fn just_in_time(
    request: &Request<'_>,
    policy: &Policy,
    program: &Program,
    order: &[usize],
) -> Vec<SequenceIndex> {
    let mut begins = vec![0u64];
    for &op in &policy.sequence {
        let duration = request.costs.nanos.get(op).map_or(0, |time| time.get());
        begins.push(begins[begins.len() - 1] + duration);
    }
    let mut places = vec![0; program.prefetches.len()];
    let mut next = u64::MAX;
    for &i in order.iter().rev() {
        let prefetch = &program.prefetches[i];
        let copy = request.machine.to_device.time(request.trace.bytes(prefetch.gap.value)).get();
        next = next.min(begins[prefetch.needed as usize]).saturating_sub(copy);
        places[i] = begins.partition_point(|&begin| begin <= next).saturating_sub(1) as SequenceIndex;
    }
    places
}

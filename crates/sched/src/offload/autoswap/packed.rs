//! AutoSwap combined with a packer (Zhang et al., section V: first what is swapped, then the pool): lowers the limit on live memory until the
//! schedule of a selection can be packed.
//!
//! At each limit, prefetches start as early as memory permits, and just in time, as in section IV-E: a tensor that is prefetched late takes no
//! bytes from those that are still being offloaded, and the pool is less fragmented. The shorter schedule that can be packed is kept.

use elbowroom_ir::Bytes;
use elbowroom_ir::packing::Problem;
use elbowroom_ir::search::{Budget, InterruptOnly, StopReason};
use elbowroom_sim::liveness;

use crate::lower::Lowered;
use crate::policy::PrefetchRule;
use crate::retry::{PACKING_EVALUATIONS, ROUNDS, RoundLimits};
use crate::search::Search;

/// What a selection makes of ever lower limits on live memory until the request's packer finds a place for everything in the machine's memory;
/// the first schedule if it never does, or if the search has to stop before. Every schedule that is packed after the first one, which the caller
/// has counted, is an evaluation: packing takes much longer than selecting. Without a packer, the caller bounds the live memory alone, and
/// every schedule has its place.
pub(crate) fn packed(
    search: &mut Search<'_>,
    first: Lowered,
    select: impl Fn(Bytes, PrefetchRule) -> Result<Lowered, Bytes>,
) -> Result<Lowered, Lowered> {
    let request = search.request;
    let mut limits = RoundLimits::from(request.live_limit);
    for round in 0..ROUNDS {
        let mut fits: Option<Lowered> = None;
        let mut exceeds: Option<(Bytes, Bytes)> = None;
        for prefetch in [PrefetchRule::Eager, PrefetchRule::JustInTime] {
            let known = round == 0 && prefetch == PrefetchRule::Eager;
            if !known && request.packer.is_some() {
                if search.stopped().is_some() {
                    return fits.ok_or(first);
                }
                search.count();
            }
            let made = if known { Ok(first.clone()) } else { select(limits.limit(), prefetch) };
            let Ok(lowered) = made else { continue };
            match excess(search, &lowered) {
                Some(Bytes::ZERO) if fits.as_ref().is_none_or(|fits| lowered.iteration < fits.iteration) => {
                    fits = Some(lowered);
                }
                Some(excess) if exceeds.is_none_or(|(_, least)| excess < least) => {
                    exceeds = Some((lowered.peak, excess));
                }
                _ => {}
            }
            if fits.as_ref().is_some_and(|fits| fits.iteration == request.costs.total()) {
                break;
            }
        }
        if let Some(fits) = fits {
            return Ok(fits);
        }
        if !exceeds.is_some_and(|(live_bytes, excess)| limits.too_high(live_bytes, excess)) {
            break;
        }
    }
    Err(first)
}

/// By how much a schedule exceeds the machine's memory where the request's packer places it; `None` if that cannot be said.
fn excess(search: &Search<'_>, lowered: &Lowered) -> Option<Bytes> {
    let Some(packer) = search.request.packer else { return Some(Bytes::ZERO) };
    let machine = search.request.machine;
    let problem = liveness::problem(&lowered.schedule, machine);
    let problem = Problem { capacity: Some(machine.memory.align_up(machine.align)), ..problem };
    let outcome =
        packer.pack(&problem, &Budget::evaluations(PACKING_EVALUATIONS), &InterruptOnly(search.observer));
    let height = match (outcome.best, outcome.stop) {
        (Some(placement), _) => liveness::height(&lowered.schedule, &placement.offsets),
        (None, StopReason::GaveUp { best: Some(height) }) => height,
        _ => return None,
    };
    Some(height.saturating_sub(machine.memory))
}

//! AutoSwap combined with a packer (Zhang et al., section V: first what is swapped, then the pool): ever lower loads until what they leave
//! finds a place.
//!
//! At each load, fetches are tried as early as memory permits, and just in time, as in section IV-E: a value that is not there yet takes
//! no bytes from those that leave, and the pool has fewer holes. The shorter schedule that has its place wins.

use elbowroom_ir::Bytes;
use elbowroom_ir::packing::Problem;
use elbowroom_ir::planning::Request;
use elbowroom_ir::search::{Budget, Silent, StopReason};
use elbowroom_sim::liveness;

use crate::lower::Lowered;
use crate::policy::FetchRule;
use crate::retry::{PACKING_EVALUATIONS, ROUNDS, RoundLimits};

/// What a selection makes of ever lower loads until the request's packer finds a place for everything in the machine's memory; the first
/// schedule if it never does. Without a packer, whoever asks bounds the load alone, and every schedule has its place.
pub(crate) fn packed(
    request: &Request<'_>,
    first: Lowered,
    select: impl Fn(Bytes, FetchRule) -> Result<Lowered, Bytes>,
) -> Result<Lowered, Lowered> {
    let mut limits = RoundLimits::from(request.load_limit);
    for round in 0..ROUNDS {
        let mut fits: Option<Lowered> = None;
        let mut exceeds: Option<(Bytes, Bytes)> = None;
        for fetch in [FetchRule::Eager, FetchRule::JustInTime] {
            let known = round == 0 && fetch == FetchRule::Eager;
            let made = if known { Ok(first.clone()) } else { select(limits.limit(), fetch) };
            let Ok(lowered) = made else { continue };
            match excess(request, &lowered) {
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
        if !exceeds.is_some_and(|(load, excess)| limits.too_high(load, excess)) {
            break;
        }
    }
    Err(first)
}

/// By how much a schedule exceeds the machine's memory where the request's packer places it; `None` if that cannot be said.
fn excess(request: &Request<'_>, lowered: &Lowered) -> Option<Bytes> {
    let Some(packer) = request.packer else { return Some(Bytes::ZERO) };
    let machine = request.machine;
    let problem = liveness::problem(&lowered.schedule, machine);
    let problem = Problem { capacity: Some(machine.memory.align_up(machine.align)), ..problem };
    let outcome = packer.pack(&problem, &Budget::evaluations(PACKING_EVALUATIONS), &Silent);
    let height = match (outcome.best, outcome.stop) {
        (Some(placement), _) => liveness::height(&lowered.schedule, &placement.offsets),
        (None, StopReason::GaveUp { best: Some(height) }) => height,
        _ => return None,
    };
    Some(height.saturating_sub(machine.memory))
}

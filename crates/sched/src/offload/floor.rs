//! `floor`: offloads as much as possible, persistent tensors included, so that the live memory falls to the needs of single ops. It recomputes
//! nothing. Used to find the smallest limit that works.
//!
//! It offloads no more than the limit requires: gaps in the order of bytes × length, until the limit is met.

use elbowroom_ir::Bytes;
use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};

use crate::lower::{least_live, lower};
use crate::policy::{Boundary, Offloadable, Policy, Touches};
use crate::verdict::refusal;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Floor;

impl Planner for Floor {
    fn name(&self) -> &'static str {
        "floor"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let keep = Policy::prompt(request.trace);
        let offloadable = if request.freedom.offload { offloadable(request, &keep) } else { Vec::new() };
        let mut evaluations = 0;
        let mut best: Option<Bytes> = None;
        let mut fits = |count: usize| {
            evaluations += 1;
            let Ok((live_bytes, _)) = least_live(request, &offloaded(&keep, &offloadable[..count])) else {
                return false;
            };
            best = Some(best.map_or(live_bytes, |best| best.min(live_bytes)));
            live_bytes <= request.live_limit
        };
        let (mut low, mut high) = (0, offloadable.len());
        if !fits(high) {
            return refusal(request, best, evaluations);
        }
        if fits(0) {
            high = 0;
        }
        // What has been found fits: an interruption leaves it as it is.
        let mut stop = StopReason::Finished;
        while low + 1 < high {
            if observer.interrupted() {
                stop = StopReason::Interrupted;
                break;
            }
            let middle = low.midpoint(high);
            if fits(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        match lower(request, &offloaded(&keep, &offloadable[..high])) {
            Ok(lowered) => Outcome { best: Some(lowered.schedule), evaluations, stop },
            Err(_) => refusal(request, best, evaluations),
        }
    }
}

/// Everything that a policy keeps and that can be offloaded, what frees most for longest first.
fn offloadable(request: &Request<'_>, keep: &Policy) -> Vec<Offloadable> {
    let trace = request.trace;
    let touches = Touches::of(trace, &keep.sequence);
    let end = keep.sequence.len() as u64;
    let mut found: Vec<(u128, Offloadable)> = Vec::new();
    let worth = |bytes: Bytes, length: u64| u128::from(bytes.get()) * u128::from(length);
    for value in trace.tensors().ids() {
        for (gap, until) in touches.gaps(value) {
            let length = u64::from(until.place) - gap.after.map_or(0, u64::from);
            if length > 1 {
                found.push((worth(trace.bytes(value), length), Offloadable::Gap(gap)));
            }
        }
    }
    for (index, pair) in trace.persistent().iter().enumerate() {
        if keep.boundaries[index] == Boundary::Device {
            let first = touches.of_value(pair.begin).first().map_or(end, |touch| u64::from(touch.place));
            let last = touches.of_value(pair.end).last().map_or(0, |touch| u64::from(touch.place));
            let length = if trace.producer(pair.end).is_none() { end } else { first + (end - last) };
            found.push((worth(trace.bytes(pair.begin), length), Offloadable::Persistent(index)));
        }
    }
    found.sort_by_key(|&(worth, _)| std::cmp::Reverse(worth));
    found.into_iter().map(|(_, part)| part).collect()
}

/// The policy with these parts offloaded.
fn offloaded(keep: &Policy, parts: &[Offloadable]) -> Policy {
    let mut policy = keep.clone();
    parts.iter().for_each(|part| part.offload(&mut policy));
    policy
}

//! `floor`: as much as possible leaves. With every value away in every gap that is long enough to be worth a copy, persistent ones
//! included, the load falls to what single ops need. It recomputes nothing. Used to find the smallest limit that works.
//!
//! It does no more than needed: gaps go away in the order of bytes × length, until the limit holds.

use elbowroom_ir::Bytes;
use elbowroom_ir::planning::{Request, Scheduler};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};

use crate::lower::{least_load, lower};
use crate::policy::{Away, Gap, Policy, Station, Touches};
use crate::verdict::refusal;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct Floor;

/// One thing that may leave.
#[derive(Clone, Copy, Debug)]
enum Leave {
    Gap(Gap),
    /// A persistent value lives on the host between iterations.
    Wrap(usize),
}

impl Scheduler for Floor {
    fn name(&self) -> &'static str {
        "floor"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, _: &dyn Observer) -> Outcome<Schedule> {
        let leaves = if request.freedom.offload { leaves(request) } else { Vec::new() };
        let mut evaluations = 0;
        let mut best: Option<Bytes> = None;
        let mut fits = |count: usize| {
            evaluations += 1;
            let Ok((load, _)) = least_load(request, &policy(request, &leaves[..count])) else { return false };
            best = Some(best.map_or(load, |best| best.min(load)));
            load <= request.load_limit
        };
        let (mut low, mut high) = (0, leaves.len());
        if !fits(high) {
            return refusal(request, best, evaluations);
        }
        if fits(0) {
            high = 0;
        }
        while low + 1 < high {
            let middle = low.midpoint(high);
            if fits(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        match lower(request, &policy(request, &leaves[..high])) {
            Ok(lowered) => Outcome { evaluations, ..Outcome::finished(lowered.schedule) },
            Err(_) => refusal(request, best, evaluations),
        }
    }
}

/// Everything that may leave, what frees most for longest first.
fn leaves(request: &Request<'_>) -> Vec<Leave> {
    let trace = request.trace;
    let keep = Policy::prompt(trace);
    let touches = Touches::of(trace, &keep.sequence);
    let end = keep.sequence.len() as u64;
    let mut found: Vec<(u128, Leave)> = Vec::new();
    let worth = |bytes: Bytes, length: u64| u128::from(bytes.get()) * u128::from(length);
    for value in trace.tensors().ids() {
        for (gap, until) in touches.gaps(value) {
            let length = u64::from(until.place) - gap.after.map_or(0, u64::from);
            if length > 1 {
                found.push((worth(trace.bytes(value), length), Leave::Gap(gap)));
            }
        }
    }
    for (index, pair) in trace.persistent().iter().enumerate() {
        if keep.stations[index] == Station::Device {
            let first = touches.of_value(pair.begin).first().map_or(end, |touch| u64::from(touch.place));
            let last = touches.of_value(pair.end).last().map_or(0, |touch| u64::from(touch.place));
            let length = if trace.producer(pair.end).is_none() { end } else { first + (end - last) };
            found.push((worth(trace.bytes(pair.begin), length), Leave::Wrap(index)));
        }
    }
    found.sort_by_key(|&(worth, _)| std::cmp::Reverse(worth));
    found.into_iter().map(|(_, leave)| leave).collect()
}

fn policy(request: &Request<'_>, leaves: &[Leave]) -> Policy {
    let mut policy = Policy::prompt(request.trace);
    for leave in leaves {
        match *leave {
            Leave::Gap(gap) => policy.send(gap, Away::Offload),
            Leave::Wrap(index) => policy.stations[index] = Station::Host,
        }
    }
    policy
}

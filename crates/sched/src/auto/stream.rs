//! `stream`: streams the parameters of networks that are mostly parameters and optimizer state, as it would be written by hand.
//!
//! ```text
//! iteration   forward ─────────────────▶ backward ──────────────▶ update
//! layer 1     ▒▒██░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░▒▒████████░░░░░   ▒ prefetched  █ used  ░ on the host only
//! layer 2     ░░▒▒██░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░▒▒████████░░░░░░░░░
//! ```
//!
//! Every persistent tensor is on the host between iterations and prefetched for its first use, and for every later use as well or not until the
//! limit asks for that; or every one stays until the limit asks for more, which copies less where the limit is a little too low for all. The
//! relief (`relief.rs`) then evicts or offloads activations, gradients and parameters until everything fits, and what still fits is kept: the
//! shortest gaps first, which are those of the last layers between forward and backward, and those of the first layers between two iterations.
//! A tensor that no op changes is not copied back. The relief plans for a little less than the limit; what is left is room in which prefetches
//! run ahead. How much less, and what a copy costs against recomputation, is a matter of the network and the link: several *ways* are tried,
//! and the fastest schedule is kept. An evaluation is one way.

use std::sync::Arc;

use elbowroom_ir::Bytes;
use elbowroom_ir::planning::{Freedom, Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_ir::trace::Trace;
use elbowroom_sim::bound::floor;

use super::instance::Instance;
use super::relief::Relief;
use super::sequence::policy;
use super::state::{AnnealState, Copies};
use crate::lower::lower;
use crate::policy::{Policy, PrefetchRule};
use crate::search::Search;

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    ways: &'static [StreamWay],
}

/// How parameters are streamed.
#[derive(Clone, Copy, Debug)]
struct StreamWay {
    /// What is prefetched before the relief begins.
    begin: Begin,
    /// Whether the relief counts the time of copies, and offloads no more than the link can copy while the ops run.
    within_link: bool,
    /// What the copy back of a tensor costs, in its own time.
    price: u64,
    /// The share of the limit that is left for prefetches: one part of so many, or none.
    room: Option<i32>,
}

/// The prefetches of persistent tensors with which a way begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begin {
    /// None: every tensor stays until the relief lets it leave.
    Kept,
    /// For the first use.
    FirstUse,
    /// For every use.
    EveryUse,
}

const fn way(begin: Begin, price: u64, room: Option<i32>) -> StreamWay {
    StreamWay { begin, within_link: false, price, room }
}

/// The ways, each of which was the best or the second for some limit of a GPT-2 medium, of a network like Llama with and without Adam, or of an
/// OPT with Adam; the first four are furthest from each other.
static WAYS: [StreamWay; 8] = [
    way(Begin::FirstUse, 1, None),
    way(Begin::Kept, 2, None),
    StreamWay { within_link: true, ..way(Begin::Kept, 1, None) },
    way(Begin::FirstUse, 5, Some(16)),
    way(Begin::EveryUse, 5, Some(32)),
    way(Begin::FirstUse, 1, Some(32)),
    way(Begin::FirstUse, 1, Some(16)),
    way(Begin::EveryUse, 5, None),
];

/// Changes of a state that the relief of a way may try. A Llama with Adam takes 60,000; a way that takes more takes longer than the search, and
/// was never the best.
const CHANGES: usize = 80_000;

/// Persistent tensors are worth streaming in traces in which they are at least one part of so many of the unconstrained peak, and at limits of
/// which they are at least one part of so many.
const OF_PEAK: u64 = 8;
const OF_LIMIT: u64 = 3;

impl Stream {
    /// All ways.
    pub const DEFAULT: Self = Self { ways: &WAYS };
    /// One way each: starts for other searches.
    pub(crate) const EACH: [Self; WAYS.len()] = {
        let (mut each, mut index) = ([Self::DEFAULT; WAYS.len()], 0);
        while index < each.len() {
            each[index] = Self { ways: WAYS.split_at(index).1.split_at(1).0 };
            index += 1;
        }
        each
    };
}

impl Planner for Stream {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let mut search = Search::new(request, budget, observer);
        let inst = Instance::new(request, Policy::prompt(request.trace).sequence);
        for way in self.ways.iter().filter(|_| request.freedom.offload) {
            if search.optimal() {
                break;
            }
            if let Some(stop) = search.stopped() {
                return search.finish(stop);
            }
            if let Some(policy) = streamed(request, &inst, *way, observer)
                && let Ok(lowered) = lower(request, &policy)
            {
                search.offer(lowered);
            }
            search.count();
        }
        let stop = if search.interrupted() { StopReason::Interrupted } else { StopReason::Finished };
        search.finish(stop)
    }
}

/// Whether persistent tensors are so much of a trace that they may have to leave at some limits.
pub(crate) fn worth_trying(trace: &Trace) -> bool {
    let nothing = Freedom { offload: false, recompute: false, reorder: false };
    floor(trace, nothing, Bytes(1)).is_some_and(|kept| persistent_bytes(trace) >= kept.bytes.get() / OF_PEAK)
}

/// Whether they are so much of the limit.
pub(crate) fn worth_trying_at(request: &Request<'_>) -> bool {
    request.freedom.offload && persistent_bytes(request.trace) >= request.live_limit.get() / OF_LIMIT
}

fn persistent_bytes(trace: &Trace) -> u64 {
    trace.persistent().iter().map(|pair| trace.bytes(pair.begin).get()).sum()
}

/// The policy of one way; `None` if it does not fit.
fn streamed(
    request: &Request<'_>,
    inst: &Instance,
    way: StreamWay,
    observer: &dyn Observer,
) -> Option<Policy> {
    let price = |bytes| request.machine.to_device.time(bytes).get().saturating_mul(way.price);
    let prices: Vec<u64> =
        request.trace.tensors().ids().map(|value| price(request.trace.bytes(value))).collect();
    let room = way.room.map_or(0, |parts| inst.limit / parts);
    let tight = Instance { limit: inst.limit - room, ..inst.clone() };
    let mut state = AnnealState::new(&tight);
    if way.within_link {
        state.copies = Some(Arc::new(Copies::of(request, inst, 1.0)));
    }
    let mut relief = Relief::new(state, Some(&prices));
    relief.changes = CHANGES;
    if way.within_link {
        relief.room = [inst.total; 4];
    }
    for (stage, op) in (0u32..).zip(&inst.ops) {
        for &value in &op.reads {
            let state = &relief.editor.state;
            let first = state.use_before(value, stage, stage).is_none();
            if inst.values[value as usize].may_begin_on_host()
                && (way.begin == Begin::EveryUse || way.begin == Begin::FirstUse && first)
                && state.can_prefetch(value, stage, stage)
            {
                relief.editor.prefetch(value, stage, stage);
            }
        }
    }
    let interrupted = || observer.interrupted();
    relief.relieve(&interrupted)?;
    keep_again(&mut relief, inst, &interrupted)?;
    relief.keep_again(&interrupted)?;
    Some(policy(request, inst, &relief.editor.state.decisions(PrefetchRule::Eager)))
}

/// Keeps what was to be prefetched and fits nevertheless, the shortest gaps first; `None` if it is interrupted.
fn keep_again(relief: &mut Relief<'_>, inst: &Instance, interrupted: &dyn Fn() -> bool) -> Option<()> {
    let starts: Vec<u64> = inst
        .ops
        .iter()
        .scan(0, |end, op| {
            let start = *end;
            *end += op.time;
            Some(start)
        })
        .collect();
    let state = &relief.editor.state;
    // A gap from the beginning of the iteration is one from the last use in the iteration before.
    let gap = |&(value, stage, op): &(u32, u32, u32)| match state.use_before(value, stage, op) {
        Some(before) => starts[stage as usize] - starts[before as usize],
        None => inst.total,
    };
    let mut prefetches: Vec<_> =
        state.prefetches().iter().map(|prefetch| (gap(prefetch), *prefetch)).collect();
    prefetches.sort_unstable();
    for (_, (value, stage, op)) in prefetches {
        if interrupted() {
            return None;
        }
        relief.if_it_fits(|editor| editor.keep(value, stage, op));
    }
    Some(())
}

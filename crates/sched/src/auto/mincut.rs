//! `mincut`: recomputes what the lower bound recomputes.
//!
//! The [bound](elbowroom_sim::bound) finds, as minimum cuts, which ops should run again after the op at which most bytes must be absent, as if
//! memory were scarce at that op only, and as if a link carried any bytes for which it has time. Here each of these ops is recomputed as late
//! as its results permit. Where that exceeds the limit, at that op or another, more tensors leave greedily: by copies as long
//! as a link has time for them, and by recomputation. What the limit no longer asks for is kept.

use std::sync::OnceLock;

use elbowroom_ir::planning::{Freedom, Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_ir::{Id, OpId, TensorId};
use elbowroom_sim::bound::{Relaxation, relaxation};

use super::instance::{Instance, NONE};
use super::relief::{Means, relieved};
use super::search::{can_fit_alone, side_by_side};
use super::sequence::Decisions;
use crate::lower::Lowered;
use crate::policy::Policy;
use crate::search::Search;

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Mincut {
    /// What may leave besides what the bound recomputes.
    ways: &'static [Means],
}

/// With copies, all of the link, six tenths and four tenths of it: of all triples of shares the one that was best on 13 captured networks with three
/// links, and on seven of the zoo with two.
static WAYS: [Means; 4] = [Means::ALONE, Means::with_link(10), Means::with_link(6), Means::with_link(4)];

impl Mincut {
    /// All ways.
    pub const DEFAULT: Self = Self { ways: &WAYS };
    /// Starts for other searches: without copies, with copies, and with copies in two ways only, for traces on which each takes long.
    pub(crate) const ALONE: Self = Self { ways: WAYS.split_at(1).0 };
    pub(crate) const WITH_LINK: Self = Self { ways: WAYS.split_at(1).1 };
    pub(crate) const WITH_LINK_BRIEFLY: Self = Self { ways: WAYS.split_at(1).1.split_at(2).0 };
}

impl Planner for Mincut {
    fn name(&self) -> &'static str {
        "mincut"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let mut search = Search::new(request, budget, observer);
        let inst = Instance::new(request, Policy::prompt(request.trace).sequence);
        let repeats: [OnceLock<Vec<(u32, u32)>>; 2] = Default::default();
        let relieved = |way: Means| {
            let offload = way.link.is_some();
            let own = Request { freedom: Freedom { offload, ..request.freedom }, ..*request };
            let repeats = repeats[usize::from(offload)].get_or_init(|| self::repeats(&own, &inst));
            let recomputed = Decisions { repeats: repeats.clone(), ..Decisions::KEEP };
            relieved(request, &inst, &recomputed, way, &|| observer.interrupted())
        };
        let permitted =
            |way: &Means| if way.link.is_some() { request.freedom.offload } else { can_fit_alone(request) };
        let mut ways = self.ways.iter().copied().filter(permitted).peekable();
        // What is not relieved with all of the link is not with less of it, and to find that takes long.
        let mut hopeless = false;
        while ways.peek().is_some() && !search.optimal() && !hopeless {
            if let Some(stop) = search.stopped() {
                return search.finish(stop);
            }
            let mut found: Vec<(Means, Option<Lowered>)> =
                ways.by_ref().take(budget.threads.max(1)).map(|way| (way, None)).collect();
            side_by_side(&mut found, budget.threads, &|_, (way, lowered)| *lowered = relieved(*way));
            // In the order of the ways, so that the result does not depend on the number of threads.
            for (way, lowered) in found {
                if search.optimal() || search.spent().is_some() || hopeless {
                    break;
                }
                hopeless = way.link.is_some() && lowered.is_none();
                if let Some(lowered) = lowered {
                    search.offer(lowered);
                }
                search.count();
            }
        }
        let stop = if search.interrupted() { StopReason::Interrupted } else { StopReason::Finished };
        search.finish(stop)
    }
}

/// The ops that the relaxation of a request runs again as (stage, op), ascending: each just before the first op that reads what it makes after
/// the op at which memory is scarce.
fn repeats(request: &Request<'_>, inst: &Instance) -> Vec<(u32, u32)> {
    let Some(Relaxation { at, again }) = relaxation(request) else { return Vec::new() };
    let mut number = vec![NONE; inst.ops.len()];
    for (index, op) in (0u32..).zip(&inst.order) {
        number[op.index()] = index;
    }
    let at = number[at.index()];
    let mut stages = vec![NONE; inst.ops.len()];
    let mut again: Vec<u32> = again.iter().map(|op| number[op.index()]).collect();
    again.sort_unstable();
    // Users come after makers, so that a maker finds the stages of its users.
    for &op in again.iter().rev() {
        let outputs = inst.ops[op as usize].outputs.iter();
        let users = outputs.flat_map(|&value| request.trace.users(TensorId(value)));
        let stage = users.map(|user: &OpId| {
            let user = number[user.index()];
            if user > at { user } else { stages[user as usize] }
        });
        stages[op as usize] = stage.min().unwrap_or(NONE);
    }
    let mut repeats: Vec<(u32, u32)> = again.iter().map(|&op| (stages[op as usize], op)).collect();
    repeats.retain(|&(stage, _)| stage != NONE);
    repeats.sort_unstable();
    repeats
}

//! `mincut`: recomputes what the lower bound recomputes.
//!
//! The [bound](elbowroom_sim::bound) finds, as minimum cuts, which ops should run again after the op at which most bytes must be absent, as if
//! memory were scarce at that op only, and as if a link carried any bytes for which it has time. Here each of these ops is recomputed as late
//! as its results permit. Where that exceeds the limit, at that op or another, more tensors leave greedily: by copies as long
//! as a link has time for them, and by recomputation. What the limit no longer asks for is kept.

use std::sync::{Arc, OnceLock};

use elbowroom_ir::planning::{Freedom, Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_ir::{Id, OpId, TensorId};
use elbowroom_sim::bound::{Relaxation, relaxation};

use super::instance::{Instance, NONE};
use super::relief::Relief;
use super::search::{can_fit_alone, side_by_side};
use super::sequence::policy;
use super::state::{AnnealState, Copies};
use crate::lower::{Lowered, lower};
use crate::policy::{Policy, PrefetchRule};
use crate::search::Search;

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Mincut {
    ways: &'static [Way],
}

/// What may leave besides what the bound recomputes.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Tensors that are recomputed.
    Alone,
    /// Tensors that are copied as well. Their copies take at most this share, in tenths, of the time before and after the op with the highest live
    /// memory: copies wait for each other and for memory, in some networks more than in others.
    Link { tenths: u64 },
}

static WAYS: [Way; 4] =
    [Way::Alone, Way::Link { tenths: 6 }, Way::Link { tenths: 8 }, Way::Link { tenths: 10 }];

impl Way {
    fn copies(self) -> bool {
        matches!(self, Self::Link { .. })
    }
}

/// A copy counts as this part of its time: it costs nothing as long as the link has time for it.
const COPYING: u64 = 1_000;
/// Changes of a state that a relief with copies may try. A ResNet-152 takes up to 35,000; where a tensor is recomputed from far away, a relief that
/// takes more takes longer than the search, which does as well.
const CHANGES: usize = 40_000;

impl Mincut {
    /// All ways.
    pub const DEFAULT: Self = Self { ways: &WAYS };
    /// Without copies, and with them: starts for other searches.
    pub(crate) const EACH: [Self; 2] = {
        let (alone, link) = WAYS.split_at(1);
        [Self { ways: alone }, Self { ways: link }]
    };
}

impl Planner for Mincut {
    fn name(&self) -> &'static str {
        "mincut"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let mut search = Search::new(request, budget, observer);
        let inst = Instance::new(request, Policy::prompt(request.trace).sequence);
        let repeats: [OnceLock<Vec<(u32, u32)>>; 2] = Default::default();
        let relieved = |way: Way| {
            let offload = way.copies();
            let own = Request { freedom: Freedom { offload, ..request.freedom }, ..*request };
            let repeats = repeats[usize::from(offload)].get_or_init(|| self::repeats(&own, &inst));
            relieved(request, &inst, repeats, way, observer)
        };
        let permitted =
            |way: &Way| if way.copies() { request.freedom.offload } else { can_fit_alone(request) };
        let mut ways = self.ways.iter().copied().filter(permitted).peekable();
        while ways.peek().is_some() && !search.optimal() {
            if let Some(stop) = search.stopped() {
                return search.finish(stop);
            }
            let mut found: Vec<(Way, Option<Lowered>)> =
                ways.by_ref().take(budget.threads.max(1)).map(|way| (way, None)).collect();
            side_by_side(&mut found, budget.threads, &|_, (way, lowered)| *lowered = relieved(*way));
            // In the order of the ways, so that the result does not depend on the number of threads.
            for (_, lowered) in found {
                if search.optimal() || search.spent().is_some() {
                    break;
                }
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

/// The schedule with these repeats, in which more tensors are away where the limit asks for it; `None` if that does not help.
fn relieved(
    request: &Request<'_>,
    inst: &Instance,
    repeats: &[(u32, u32)],
    way: Way,
    observer: &dyn Observer,
) -> Option<Lowered> {
    let mut state = AnnealState::new(inst);
    let (mut prices, mut room) = (None, [u64::MAX; 4]);
    if let Way::Link { tenths } = way {
        let copies = Copies::of(request, inst, 1.0);
        let price = |(out, back): (&u64, &u64)| (out + back) / COPYING;
        prices = Some(copies.out.iter().zip(&copies.back).map(price).collect::<Vec<u64>>());
        let before = inst.start(state.highest_place());
        let [first, second] = [before, inst.total - before].map(|time| time / 10 * tenths);
        room = [first, second, second, first];
        state.copies = Some(Arc::new(copies));
    }
    let mut relief = Relief::new(state, prices.as_deref());
    relief.room = room;
    if way.copies() {
        relief.changes = CHANGES;
    }
    relief.editor.jump(repeats, &[]);
    let interrupted = || observer.interrupted();
    relief.relieve(&interrupted)?;
    relief.keep_again(&interrupted)?;
    lower(request, &policy(request, inst, &relief.editor.state.decisions(PrefetchRule::Eager))).ok()
}

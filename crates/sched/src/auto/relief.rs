//! A greedy start for recompute alone, where the planners of the [warm starts](super::warm) find nothing good.
//!
//! While live memory exceeds the limit, a tensor that is alive without being used at the place with the most is evicted: the one whose
//! eviction lowers the excess most for its time, where the inputs of its op are kept for it or recomputed too. Afterwards whatever the limit no
//! longer asks for is kept again, the longest ops first.

use elbowroom_ir::planning::{Planner, Request};

use super::instance::Instance;
use super::moves::Editor;
use super::search::{TYPICAL, can_fit_alone};
use super::sequence::policy;
use super::state::AnnealState;
use super::{Auto, Found};
use crate::lower::lower;
use crate::policy::PrefetchRule;

/// Tensors tried at a place: most bytes per time first.
const BREADTH: usize = 32;
/// Evictions tried altogether on traces of up to [`TYPICAL`] ops: on longer ones each takes longer.
const TRIALS: usize = 20_000;

/// A schedule of recompute alone that keeps to the limit; `None` if there is none, or every eviction at some place makes things worse.
pub(crate) fn schedule(request: &Request<'_>, inst: &Instance) -> Option<Found> {
    if !request.freedom.recompute || !can_fit_alone(request) {
        return None;
    }
    let trials = TRIALS * TYPICAL / inst.ops.len().max(TYPICAL);
    let mut relief = Relief { editor: Editor::new(AnnealState::new(inst), 0), trials };
    while relief.editor.state.excess > 0 {
        let (stage, op, deep) = relief.best()?;
        relief.editor.recompute(stage, op, deep);
    }
    relief.keep_again();
    let decisions = relief.editor.state.decisions(PrefetchRule::Eager);
    let lowered = lower(request, &policy(request, inst, &decisions)).ok()?;
    Some(Found { time: lowered.iteration.get(), schedule: lowered.schedule, by: Auto.name() })
}

struct Relief<'a> {
    editor: Editor<'a>,
    /// Evictions that may still be tried.
    trials: usize,
}

impl Relief<'_> {
    /// The op to recompute next, its stage, and how likely the ops of its inputs are recomputed with it.
    fn best(&mut self) -> Option<(u32, u32, f64)> {
        let mut best: Option<(f64, (u32, u32, f64))> = None;
        let before = (self.editor.state.excess, self.editor.state.time);
        for (stage, op) in self.idle() {
            for deep in [0.0, 1.0] {
                self.trials = self.trials.checked_sub(1)?;
                self.editor.settle();
                self.editor.recompute(stage, op, deep);
                let state = &self.editor.state;
                let score = (before.0 - state.excess) as f64 / (state.time - before.1 + 1) as f64;
                self.editor.undo();
                if score > 0.0 && best.is_none_or(|(most, _)| score > most) {
                    best = Some((score, (stage, op, deep)));
                }
            }
        }
        Some(best?.1)
    }

    /// Ops that can be recomputed to relieve the place with the most live memory, each with the stage of the next use of what it makes.
    fn idle(&self) -> Vec<(u32, u32)> {
        let state = &self.editor.state;
        let inst = state.inst;
        let score = |(value, stage): (u32, u32)| {
            let row = inst.values[value as usize];
            let time = (inst.ops[row.maker as usize].time + 1) as f64;
            (f64::from(row.size) / time, (stage, row.maker))
        };
        let mut idle: Vec<_> = self.editor.droppable(state.highest_place()).map(score).collect();
        idle.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut ops: Vec<(u32, u32)> = idle.into_iter().map(|(_, at)| at).collect();
        ops.dedup();
        ops.truncate(BREADTH);
        ops
    }

    /// Removes the repeats without which everything still fits.
    fn keep_again(&mut self) {
        let mut repeats = self.editor.state.repeats().to_vec();
        let ops = &self.editor.state.inst.ops;
        repeats.sort_by_key(|&(stage, op)| (std::cmp::Reverse(ops[op as usize].time), stage, op));
        for (stage, op) in repeats {
            self.editor.settle();
            self.editor.remove_repeat(stage, op);
            if self.editor.state.excess > 0 {
                self.editor.undo();
            }
        }
    }
}

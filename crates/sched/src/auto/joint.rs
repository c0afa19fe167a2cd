//! Simulated annealing over recompute and copies together; the exact iteration time of the schedule is the energy of a step.
//!
//! A step spends memory to save time (keeps a tensor that was recomputed or prefetched), or exchanges recompute for a prefetch or the
//! reverse, and then repairs: while some place is above the limit, an idle tensor there is evicted or offloaded, mostly in the way that costs
//! less of the scarcer resource, with some chance for the other. The longest iteration that a step may accept is drawn before the step, and the
//! repair knows it: it evicts nothing whose recomputation alone would take longer. A sequence is lowered only if it fits when copies take no time,
//! and if neither the compute time nor the link time alone exceeds the acceptable time.

use elbowroom_ir::planning::Request;
use elbowroom_ir::{Id, TensorId};

use super::instance::NONE;
use super::moves::Editor;
use super::sequence::{Decisions, PolicyDraft};
use super::state::AnnealState;
use crate::policy::PrefetchRule;

/// Longer than anything.
const NEVER: u64 = u64::MAX;
/// Tensors that a repair may evict or offload before it is given up.
const REPAIRS: usize = 24;
/// What a repair takes a unit of copying for, in units of computing: little, because copies cost nothing as long as the link has time for them, and
/// the exact iteration time shows when it has not.
const COPYING: f64 = 0.05;
/// The same for what a copy takes longer than its gap.
const EXCEEDING: f64 = 2.0;
/// More than what rounding changes in a few products.
const ROUNDING: f64 = 1.0 + 1e-9;

/// One walk over decisions that can be lowered.
pub(crate) struct JointWalk<'a> {
    request: &'a Request<'a>,
    editor: Editor<'a>,
    rule: PrefetchRule,
    draft: PolicyDraft,
    /// Exact iteration time; [`NEVER`] as long as nothing fits.
    time: u64,
    /// Shortest iteration seen.
    pub best: Option<(u64, Decisions)>,
    /// Time of both copies of every tensor; of what never changes, which the host has anyway, of the copy back.
    copies: Vec<u64>,
    /// Start of every op of the trace if nothing is recomputed and nothing waits.
    starts: Vec<u64>,
}

impl<'a> JointWalk<'a> {
    pub(crate) fn new(request: &'a Request<'a>, state: AnnealState<'a>, seed: u64) -> Self {
        let machine = request.machine;
        let copies = request.trace.tensors().ids().map(|value| {
            let bytes = request.trace.bytes(value);
            let out = if state.inst.is_constant(value.0) { 0 } else { machine.to_host.time(bytes).get() };
            out + machine.to_device.time(bytes).get()
        });
        let starts = state.inst.ops.iter().scan(0, |time, op| {
            let start = *time;
            *time += op.time;
            Some(start)
        });
        let starts = starts.collect();
        let copies = copies.collect();
        let editor = Editor::new(state, seed);
        let draft = PolicyDraft::new(request);
        Self { request, editor, rule: PrefetchRule::Eager, draft, time: NEVER, best: None, copies, starts }
    }

    /// Continues from these decisions, repaired if need be.
    pub(crate) fn jump(&mut self, decisions: &Decisions) {
        self.editor.jump(&decisions.repeats, &decisions.prefetches);
        self.rule = decisions.rule;
        self.repair(1 << 12, NEVER);
        self.editor.settle();
        self.time = self.judge(NEVER);
        self.remember();
    }

    /// Continues from these decisions if they take less time than where it is.
    pub(crate) fn challenge(&mut self, decisions: &Decisions) {
        let before = (self.time, self.editor.state.decisions(self.rule));
        self.jump(decisions);
        if before.0 < self.time {
            self.jump(&before.1);
        }
    }

    /// Whether nothing that fits has been found since the last jump.
    pub(crate) fn lost(&self) -> bool {
        self.time == NEVER
    }

    fn remember(&mut self) {
        if self.time != NEVER && self.best.as_ref().is_none_or(|(time, _)| self.time < *time) {
            self.best = Some((self.time, self.editor.state.decisions(self.rule)));
        }
    }

    /// The exact iteration time, or [`NEVER`] if it is beyond `worst` or there is none.
    fn judge(&mut self, worst: u64) -> u64 {
        let state = &self.editor.state;
        if state.excess > 0 || state.time > worst {
            return NEVER;
        }
        self.draft.set(self.request, state.inst, &state.decisions(self.rule));
        self.draft.time_within(self.request, worst).unwrap_or(NEVER)
    }

    /// Tries this many steps at a temperature in time units.
    pub(crate) fn run(&mut self, steps: u64, mut temperature: impl FnMut(u64) -> f64) {
        for step in 0..steps {
            let heat = temperature(step).max(1e-9);
            self.editor.settle();
            let rule = self.rule;
            // The worst time that would be accepted: the same as drawing after judging, but most steps need no judgement then.
            let slack = -heat * self.editor.random.unit().max(1e-12).ln();
            let worst = self.time.saturating_add(slack as u64);
            self.propose(worst);
            self.repair(REPAIRS, worst);
            if !self.editor.changed() && self.rule == rule {
                continue;
            }
            let time = self.judge(worst);
            if time <= worst && time != NEVER {
                self.time = time;
                self.remember();
            } else {
                self.editor.undo();
                self.rule = rule;
            }
        }
    }

    fn propose(&mut self, worst: u64) {
        let freedom = self.request.freedom;
        if freedom.offload && self.editor.propose_group() {
            return;
        }
        match self.editor.random.below(12) {
            0..=1 => {
                self.editor.keep_value();
            }
            2..=3 => self.editor.prefetch_less(),
            4..=5 if freedom.offload => self.editor.prefetch_instead(),
            6 if freedom.recompute => self.editor.recompute_instead(),
            7 => {
                let extra = 1 + self.editor.random.below(3);
                for _ in 0..extra {
                    let place = self.editor.random.below(self.editor.state.places());
                    self.release_idle(place, worst);
                }
            }
            8 => {
                self.editor.prefetch_less();
                self.editor.prefetch_less();
            }
            9 if self.editor.random.chance(0.2) => {
                self.rule = match self.editor.random.below(6) {
                    0..=2 => PrefetchRule::Eager,
                    3 => PrefetchRule::AfterOffloads,
                    _ => PrefetchRule::Lead(1 << self.editor.random.below(8)),
                };
            }
            _ if freedom.recompute => self.editor.propose(),
            _ => self.editor.prefetch_less(),
        }
    }

    /// Evicts or offloads tensors until nothing is over the limit, this many are off the device, or computing alone takes longer than `worst`.
    fn repair(&mut self, most: usize, worst: u64) {
        for _ in 0..most {
            if self.editor.state.excess == 0 || self.editor.state.time > worst {
                return;
            }
            let place = self.editor.state.highest_place();
            if !self.release_idle(place, worst) {
                return;
            }
        }
    }

    /// Evicts or offloads a tensor that is alive at a place without being used there; returns whether there was one for which computing takes
    /// no longer than `worst`.
    fn release_idle(&mut self, place: usize, worst: u64) -> bool {
        let Editor { state, random, .. } = &mut self.editor;
        let (inst, freedom) = (state.inst, self.request.freedom);
        let left = worst.saturating_sub(state.time);
        let mut pick: Option<(f64, u32, u32, u32, bool)> = None;
        // A way's bytes for its cost, times 2 to the power of up to 4 at random. The power lies below its chord, and that alone rules most out.
        let mut offer = |gain: f64, cost: f64, value: u32, stage: u32, op: u32, offload: bool| {
            let luck = random.unit();
            let may_win = |best: f64| gain * (1.0 + 15.0 * luck) * ROUNDING > best * cost;
            if pick.is_none_or(|(best, ..)| may_win(best)) {
                let score = gain / cost * (2.0 * luck).exp2().powi(2);
                if pick.is_none_or(|(best, ..)| score > best) {
                    pick = Some((score, value, stage, op, offload));
                }
            }
        };
        for (value, from, stage, op) in state.idle_at(place) {
            let row = &inst.values[value as usize];
            let gain = f64::from(row.size);
            if freedom.offload && !row.pinned {
                let gap = self.starts[stage as usize].saturating_sub(self.starts[from as usize]);
                let copies = self.copies[value as usize];
                let exceeding = copies.saturating_sub(gap);
                let cost = COPYING * copies as f64 + EXCEEDING * exceeding as f64 + 1.0;
                offer(gain, cost, value, stage, op, true);
            }
            let maker = row.maker;
            if freedom.recompute
                && maker != NONE
                && maker < op
                && inst.ops[maker as usize].time <= left
                && inst.ops[maker as usize].latest >= stage
                && !state.has(stage, maker)
            {
                offer(gain, inst.ops[maker as usize].time as f64 + 1.0, value, stage, op, false);
            }
        }
        match pick {
            Some((_, value, stage, op, true)) => self.editor.prefetch(value, stage, op),
            Some((_, value, stage, ..)) => {
                let maker = self.editor.state.inst.values[value as usize].maker;
                self.editor.recompute(stage, maker, 0.8);
            }
            None => return false,
        }
        true
    }
}

/// Whether copies are possible at all.
pub(crate) fn can_copy(request: &Request<'_>) -> bool {
    request.freedom.offload
        && (0..request.trace.tensors().len())
            .map(TensorId::new)
            .any(|value| request.trace.bytes(value) <= request.machine.host_memory)
}

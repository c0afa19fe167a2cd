//! Annealing over repeats and copies together, each step judged by the exact iteration time of its schedule.
//!
//! A step gives some bytes up to save time (keeps a value that was made again or fetched), or exchanges one way of being away for the
//! other, and then repairs: as long as some place is over the limit, a value that is alive there without being used leaves, by the way
//! that costs less of what is scarce, with some chance for others. Only a sequence that fits without counting the time of copies is
//! lowered, and only if neither compute nor the link alone takes longer than what would be accepted.

use elbowroom_ir::planning::Request;
use elbowroom_ir::{Id, TensorId};

use super::instance::NONE;
use super::moves::Editor;
use super::sequence::{Decisions, Draft};
use super::state::State;
use crate::policy::FetchRule;

/// Longer than anything.
const NEVER: u64 = u64::MAX;
/// Values that leave before a repair is given up.
const REPAIRS: usize = 24;

/// One walk over decisions that can be lowered.
pub(crate) struct Joint<'a> {
    request: &'a Request<'a>,
    editor: Editor<'a>,
    rule: FetchRule,
    draft: Draft,
    /// Exact iteration time; [`NEVER`] as long as nothing fits.
    time: u64,
    /// Shortest iteration seen.
    pub best: Option<(u64, Decisions)>,
    /// Time of both copies of every value.
    copies: Vec<u64>,
    /// Start of every op of the trace if nothing is run again and nothing waits.
    starts: Vec<u64>,
}

impl<'a> Joint<'a> {
    pub(crate) fn new(request: &'a Request<'a>, state: State<'a>, seed: u64) -> Self {
        let machine = request.machine;
        let copies = request.trace.tensors().ids().map(|value| {
            let bytes = request.trace.bytes(value);
            machine.to_host.time(bytes).get() + machine.to_device.time(bytes).get()
        });
        let starts = state.inst.ops.iter().scan(0, |time, op| {
            let start = *time;
            *time += op.time;
            Some(start)
        });
        let starts = starts.collect();
        let copies = copies.collect();
        let editor = Editor::new(state, seed);
        let draft = Draft::new(request);
        Self { request, editor, rule: FetchRule::Eager, draft, time: NEVER, best: None, copies, starts }
    }

    /// Continues from these decisions, repaired if need be.
    pub(crate) fn jump(&mut self, decisions: &Decisions) {
        self.editor.jump(&decisions.repeats, &decisions.fetches);
        self.rule = decisions.rule;
        self.repair(1 << 12);
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

    /// Tries so many steps at a temperature in time units.
    pub(crate) fn run(&mut self, steps: u64, mut temperature: impl FnMut(u64) -> f64) {
        for step in 0..steps {
            let heat = temperature(step).max(1e-9);
            self.editor.settle();
            let rule = self.rule;
            self.propose();
            self.repair(REPAIRS);
            if !self.editor.changed() && self.rule == rule {
                continue;
            }
            // The worst time that would be accepted: the same as drawing after judging, but most steps need no judgement then.
            let slack = -heat * self.editor.random.unit().max(1e-12).ln();
            let worst = self.time.saturating_add(slack as u64);
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

    fn propose(&mut self) {
        let freedom = self.request.freedom;
        match self.editor.random.below(12) {
            0..=1 => {
                self.editor.keep_value();
            }
            2..=3 => self.editor.fetch_less(),
            4..=5 if freedom.offload => self.editor.fetch_instead(),
            6 if freedom.recompute => self.editor.make_instead(),
            7 => {
                let extra = 1 + self.editor.random.below(3);
                for _ in 0..extra {
                    let place = self.editor.random.below(self.editor.state.places());
                    self.send_away(place);
                }
            }
            8 => {
                self.editor.fetch_less();
                self.editor.fetch_less();
            }
            9 if self.editor.random.chance(0.2) => {
                self.rule = match self.editor.random.below(6) {
                    0..=2 => FetchRule::Eager,
                    3 => FetchRule::AfterOffloads,
                    _ => FetchRule::Lead(1 << self.editor.random.below(8)),
                };
            }
            _ if freedom.recompute => self.editor.propose(),
            _ => self.editor.fetch_less(),
        }
    }

    /// Sends values away until nothing is over the limit, or so many have gone.
    fn repair(&mut self, most: usize) {
        for _ in 0..most {
            if self.editor.state.excess == 0 {
                return;
            }
            let place = self.editor.state.highest_place();
            if !self.send_away(place) {
                return;
            }
        }
    }

    /// Sends a value away that is alive at a place without being used there; says whether there was one.
    fn send_away(&mut self, place: usize) -> bool {
        let mut pick: Option<(f64, u32, u32, u32, bool)> = None;
        let freedom = self.request.freedom;
        let idle = self.editor.state.idle_at(place);
        for (value, from, stage, op) in idle {
            let inst = self.editor.state.inst;
            let row = inst.values[value as usize];
            let gain = f64::from(row.size);
            let gap = self.starts[stage as usize].saturating_sub(self.starts[from as usize]);
            if freedom.offload && self.editor.state.can_fetch(value, stage, op) {
                let copies = self.copies[value as usize];
                let cost = 0.3 * copies as f64 + 2.0 * copies.saturating_sub(gap) as f64 + 1.0;
                let score = gain / cost * (2.0 * self.editor.random.unit()).exp2().powi(2);
                if pick.is_none_or(|(best, ..)| score > best) {
                    pick = Some((score, value, stage, op, true));
                }
            }
            let maker = row.maker;
            if freedom.recompute
                && maker != NONE
                && maker < op
                && inst.ops[maker as usize].latest >= stage
                && !self.editor.state.has(stage, maker)
            {
                let cost = inst.ops[maker as usize].time as f64 + 1.0;
                let score = gain / cost * (2.0 * self.editor.random.unit()).exp2().powi(2);
                if pick.is_none_or(|(best, ..)| score > best) {
                    pick = Some((score, value, stage, op, false));
                }
            }
        }
        match pick {
            Some((_, value, stage, op, true)) => self.editor.fetch(value, stage, op),
            Some((_, value, stage, ..)) => {
                let maker = self.editor.state.inst.values[value as usize].maker;
                self.editor.make_again(stage, maker, 0.8);
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

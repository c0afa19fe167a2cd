//! Reversible changes of an [`AnnealState`].

use super::groups::Groups;
use super::instance::NONE;
use super::state::AnnealState;
use crate::random::Random;

/// The chance of a change of a whole group where all that can leave persists.
const GROUPS: f64 = 0.3;

/// The number of changes of a state that take about as long as its whole evaluation.
const MANY: usize = 32;

/// One change.
#[derive(Clone, Copy, Debug)]
enum Change {
    Insert(u32, u32),
    Remove(u32, u32),
    Prefetch(u32, u32, u32),
    Keep(u32, u32, u32),
}

/// A state with the changes since the last decision about them.
#[derive(Clone, Debug)]
pub(crate) struct Editor<'a> {
    pub state: AnnealState<'a>,
    pub random: Random,
    /// Tensors that can be recomputed: those worth drawing.
    pub again: Vec<u32>,
    /// Tensors that persist and may be on the host between iterations.
    persistent: Vec<u32>,
    /// The same in groups that can move together.
    groups: Groups,
    /// The share of them among the bytes that can leave.
    weight: f64,
    journal: Vec<Change>,
}

impl<'a> Editor<'a> {
    pub(crate) fn new(state: AnnealState<'a>, seed: u64) -> Self {
        let inst = state.inst;
        let again = |v: &u32| {
            let value = inst.values[*v as usize];
            value.maker != NONE && inst.ops[value.maker as usize].latest > 0 && value.size > 0
        };
        let again: Vec<u32> = (0..inst.values.len() as u32).filter(again).collect();
        let persistent = |v: &u32| {
            let value = inst.values[*v as usize];
            value.may_begin_on_host() && value.size > 0
        };
        let persistent: Vec<u32> = (0..inst.values.len() as u32).filter(persistent).collect();
        let groups = Groups::new(inst, &persistent);
        let bytes =
            |values: &[u32]| values.iter().map(|&v| f64::from(inst.values[v as usize].size)).sum::<f64>();
        let weight = bytes(&persistent) / (bytes(&persistent) + bytes(&again)).max(1.0);
        Self { state, random: Random::new(seed), again, persistent, groups, weight, journal: Vec::new() }
    }

    /// Whether anything has changed since the last decision.
    pub(crate) fn changed(&self) -> bool {
        !self.journal.is_empty()
    }

    /// Accepts the changes.
    pub(crate) fn settle(&mut self) {
        self.journal.clear();
    }

    /// Takes the changes back.
    pub(crate) fn undo(&mut self) {
        self.undo_to(0);
    }

    /// How many changes there have been since the last decision.
    pub(crate) fn mark(&self) -> usize {
        self.journal.len()
    }

    /// Takes the changes since a mark back.
    pub(crate) fn undo_to(&mut self, mark: usize) {
        for change in self.journal.drain(mark..).rev() {
            match change {
                Change::Insert(stage, op) => self.state.remove(stage, op),
                Change::Remove(stage, op) => self.state.insert(stage, op),
                Change::Prefetch(value, stage, op) => self.state.set_prefetched(value, stage, op, false),
                Change::Keep(value, stage, op) => self.state.set_prefetched(value, stage, op, true),
            }
        }
    }

    /// Makes the state one with these decisions, both ascending, without those that cannot be. Costs as much as they differ, up to what the whole
    /// evaluation costs.
    pub(crate) fn jump(&mut self, repeats: &[(u32, u32)], prefetches: &[(u32, u32, u32)]) {
        if self.differs_much(repeats, prefetches) {
            self.journal.clear();
            return self.state.set(repeats, prefetches);
        }
        for index in (0..self.state.prefetches().len()).rev() {
            let prefetch = self.state.prefetches()[index];
            if prefetches.binary_search(&prefetch).is_err() {
                self.state.set_prefetched(prefetch.0, prefetch.1, prefetch.2, false);
            }
        }
        for index in (0..self.state.repeats().len()).rev() {
            let repeat = self.state.repeats()[index];
            if repeats.binary_search(&repeat).is_err() {
                self.remove(repeat.0, repeat.1);
            }
        }
        for &(stage, op) in repeats {
            if self.state.inst.can_repeat(stage, op) && !self.state.has(stage, op) {
                self.state.insert(stage, op);
            }
        }
        for &(value, stage, op) in prefetches {
            if self.state.can_prefetch(value, stage, op) {
                self.state.set_prefetched(value, stage, op, true);
            }
        }
        self.journal.clear();
    }

    /// Whether these decisions, both ascending, differ from the state's by more than [`MANY`].
    fn differs_much(&self, repeats: &[(u32, u32)], prefetches: &[(u32, u32, u32)]) -> bool {
        let apart = |own: usize, other: usize, both: usize| own + other - 2 * both;
        let state = &self.state;
        let same_repeats = state.repeats().iter().filter(|own| repeats.binary_search(own).is_ok()).count();
        let same_prefetches =
            state.prefetches().iter().filter(|own| prefetches.binary_search(own).is_ok()).count();
        let repeats = apart(state.repeats().len(), repeats.len(), same_repeats);
        repeats + apart(state.prefetches().len(), prefetches.len(), same_prefetches) > MANY
    }

    /// Offloads a tensor before a use.
    pub(crate) fn prefetch(&mut self, value: u32, stage: u32, op: u32) {
        self.state.set_prefetched(value, stage, op, true);
        self.journal.push(Change::Prefetch(value, stage, op));
    }

    /// Undoes [`Editor::prefetch`].
    pub(crate) fn keep(&mut self, value: u32, stage: u32, op: u32) {
        self.state.set_prefetched(value, stage, op, false);
        self.journal.push(Change::Keep(value, stage, op));
    }

    /// Recomputes an op before another. A parameter that would be prefetched for a later use is prefetched for this one instead: it would
    /// otherwise stay from its last use on.
    pub(crate) fn insert(&mut self, stage: u32, op: u32) {
        self.state.insert(stage, op);
        self.journal.push(Change::Insert(stage, op));
        if self.state.prefetches().is_empty() {
            return;
        }
        let inst = self.state.inst;
        for &value in &inst.ops[op as usize].reads {
            if inst.values[value as usize].may_begin_on_host()
                && let Some((next, user)) = self.state.next_prefetched(value, stage, op)
                && self.state.is_plain(value, stage, op)
            {
                self.prefetch(value, stage, op);
                self.keep(value, next, user);
            }
        }
    }

    fn remove(&mut self, stage: u32, op: u32) {
        if !self.state.prefetches().is_empty() {
            let inst = self.state.inst;
            for &value in &inst.ops[op as usize].reads {
                if self.state.has_prefetch(value, stage, op) {
                    if inst.values[value as usize].may_begin_on_host()
                        && let Some((next, user)) = self.state.next_plain(value, stage, op)
                    {
                        self.prefetch(value, next, user);
                    }
                    self.keep(value, stage, op);
                }
            }
        }
        self.state.remove(stage, op);
        self.journal.push(Change::Remove(stage, op));
    }

    /// With a chance that grows with the share of persistent tensors: keeps a group of them, lets one leave, or both. Returns whether anything
    /// has changed. One tensor at a time, a walk would cross many schedules in which a group is neither here nor there.
    pub(crate) fn propose_group(&mut self) -> bool {
        if self.groups.is_empty() || !self.random.chance(GROUPS * self.weight) {
            return false;
        }
        let which = self.random.below(3);
        if which != 1 {
            self.keep_group();
        }
        if which != 0 {
            self.prefetch_group();
        }
        self.changed()
    }

    /// Keeps a group between two iterations, or between uses within one.
    fn keep_group(&mut self) {
        let group = self.groups.draw(&mut self.random);
        let between_iterations = self.random.chance(0.7);
        let of_group = |prefetch: &&(u32, u32, u32)| group.contains(&prefetch.0);
        let mut prefetches: Vec<_> = self.state.prefetches().iter().filter(of_group).copied().collect();
        prefetches.sort_unstable();
        for (value, stage, op) in prefetches {
            if between_iterations == self.state.use_before(value, stage, op).is_none() {
                self.keep(value, stage, op);
            }
        }
    }

    /// Offloads what is idle of a group at a random place.
    fn prefetch_group(&mut self) {
        let group = self.groups.draw(&mut self.random);
        let place = self.random.below(self.state.places());
        let moment = self.state.moment(place);
        for value in group {
            if let Some((stage, op)) = self.state.idle_persistent(value, moment) {
                self.prefetch(value, stage, op);
            }
        }
    }

    /// A random change of what is recomputed, or of what is offloaded where copies take time.
    pub(crate) fn propose(&mut self) {
        if self.again.is_empty() || self.state.copies.is_some() && self.propose_group() {
            return;
        }
        if self.state.copies.is_some() && self.random.chance(0.3) {
            return match self.random.below(4) {
                0 => self.prefetch_less(),
                1 => {
                    self.prefetch_less();
                    self.relieve();
                }
                2 => self.prefetch_instead(),
                _ => self.recompute_instead(),
            };
        }
        if self.state.excess > 0 && self.random.chance(0.5) {
            self.relieve();
            return;
        }
        match self.random.below(10) {
            0..=1 => self.drop_value(),
            2..=4 => self.keep_value(),
            5..=6 => self.shift(),
            _ => {
                self.keep_value();
                self.relieve();
                if self.state.excess > 0 && self.random.chance(0.5) {
                    self.relieve();
                }
            }
        }
    }

    /// Evicts a tensor in a random gap.
    pub(crate) fn drop_value(&mut self) {
        for _ in 0..8 {
            let value = self.again[self.random.below(self.again.len())];
            let touches = self.state.touch_count(value);
            if touches < 2 {
                continue;
            }
            let index = 1 + self.random.below(touches - 1);
            if let Some((stage, op)) = self.state.plain_use(value, index)
                && self.can_drop(value, stage, op)
            {
                self.drop_before(value, stage);
                return;
            }
        }
    }

    /// Evicts a tensor in a gap that spans a place over the limit; any gap if there is no such place.
    fn relieve(&mut self) {
        let from = self.random.below(self.state.places());
        let Some(place) = self.state.over_from(from) else { return self.drop_value() };
        let moment = self.state.moment(place);
        if self.state.copies.is_some() && !self.persistent.is_empty() && self.random.chance(self.weight) {
            for _ in 0..16 {
                let value = self.persistent[self.random.below(self.persistent.len())];
                if let Some((stage, op)) = self.state.idle_persistent(value, moment) {
                    return self.prefetch(value, stage, op);
                }
            }
        }
        let mut pick: Option<(f64, u32, u32)> = None;
        let mut found = 0;
        for _ in 0..48 {
            let value = self.again[self.random.below(self.again.len())];
            let Some((stage, op)) = self.state.idle_until(value, moment) else { continue };
            let pinned = self.state.inst.values[value as usize].pinned;
            if self.state.copies.is_some() && !pinned && self.random.chance(0.4) {
                return self.prefetch(value, stage, op);
            }
            if self.can_drop(value, stage, op) {
                let row = self.state.inst.values[value as usize];
                let time = self.state.inst.ops[row.maker as usize].time;
                let score = f64::from(row.size) / (time + 1) as f64;
                if pick.is_none_or(|(best, ..)| score > best) {
                    pick = Some((score, value, stage));
                }
                found += 1;
                if found == 2 {
                    break;
                }
            }
        }
        if let Some((_, value, stage)) = pick {
            self.drop_before(value, stage);
        }
    }

    /// Whether a tensor can be recomputed just before a use, and something is gained by that.
    fn can_drop(&self, value: u32, stage: u32, op: u32) -> bool {
        let maker = self.state.inst.values[value as usize].maker;
        let adjacent = stage <= maker + 1 && op == stage;
        !adjacent
            && maker < op
            && stage <= self.state.inst.ops[maker as usize].latest
            && !self.state.has(stage, maker)
    }

    /// Tensors that are idle at a place and can be recomputed just before their next use, each with the stage of that use.
    pub(crate) fn droppable(&self, place: usize) -> impl Iterator<Item = (u32, u32)> {
        let moment = self.state.moment(place);
        self.again.iter().filter_map(move |&value| {
            let (stage, op) = self.state.idle_until(value, moment)?;
            self.can_drop(value, stage, op).then_some((value, stage))
        })
    }

    fn drop_before(&mut self, value: u32, stage: u32) {
        let deep = if self.random.chance(0.5) { 0.9 } else { 0.3 };
        self.recompute(stage, self.state.inst.values[value as usize].maker, deep);
    }

    /// Recomputes an op in a stage, and with some chance the makers of those inputs that would have to be kept for it.
    pub(crate) fn recompute(&mut self, stage: u32, op: u32, deep: f64) {
        self.recompute_until(stage, op, deep, |_| false);
    }

    /// The same, but asks before each op after the first whether to end there.
    pub(crate) fn recompute_until(
        &mut self,
        stage: u32,
        op: u32,
        deep: f64,
        mut end: impl FnMut(&AnnealState<'_>) -> bool,
    ) {
        let inst = self.state.inst;
        let mut next = vec![op];
        while let Some(op) = next.pop() {
            if self.state.has(stage, op) {
                continue;
            }
            for &input in &inst.ops[op as usize].reads {
                let maker = inst.values[input as usize].maker;
                if maker != NONE
                    && inst.ops[maker as usize].latest >= stage
                    && maker < stage
                    && !self.state.alive_at(input, stage, op)
                    && self.random.chance(deep)
                    && next.len() < 64
                {
                    next.push(maker);
                }
            }
            self.insert(stage, op);
            if !next.is_empty() && end(&self.state) {
                return;
            }
        }
    }

    /// Removes a random repeat, and every repeat that no op needs any more.
    pub(crate) fn keep_value(&mut self) {
        let repeats = self.state.repeats();
        if repeats.is_empty() {
            return;
        }
        let (stage, op) = repeats[self.random.below(repeats.len())];
        self.remove_repeat(stage, op);
    }

    pub(crate) fn remove_repeat(&mut self, stage: u32, op: u32) {
        let inst = self.state.inst;
        let mut next = vec![(stage, op)];
        while let Some((stage, op)) = next.pop() {
            if !self.state.has(stage, op) {
                continue;
            }
            self.remove(stage, op);
            for &input in &inst.ops[op as usize].reads {
                if let Some((made, maker)) = self.state.made_before(input, stage, op)
                    && made != maker
                    && self.state.useless(made, maker)
                {
                    next.push((made, maker));
                }
            }
        }
    }

    /// Moves a random repeat, and perhaps those of the same stage that serve it, to another stage.
    pub(crate) fn shift(&mut self) {
        let repeats = self.state.repeats();
        if repeats.is_empty() {
            return;
        }
        let (stage, op) = repeats[self.random.below(repeats.len())];
        let reach = if self.random.chance(0.3) { 64 } else { 6 };
        let span = 1 + self.random.below(reach) as u32;
        let to = if self.random.chance(0.5) { stage.saturating_sub(span) } else { stage + span };
        if to <= op
            || to > self.state.inst.ops[op as usize].latest
            || to as usize >= self.state.inst.ops.len()
        {
            return;
        }
        if self.random.chance(0.5) {
            let group: Vec<u32> = self.state.again(stage).to_vec();
            for other in group {
                if other < to && to <= self.state.inst.ops[other as usize].latest {
                    self.remove(stage, other);
                    if !self.state.has(to, other) {
                        self.insert(to, other);
                    }
                }
            }
            return;
        }
        self.remove(stage, op);
        if !self.state.has(to, op) {
            self.insert(to, op);
        }
    }

    /// Keeps a tensor that was prefetched.
    pub(crate) fn prefetch_less(&mut self) {
        let prefetches = self.state.prefetches();
        if !prefetches.is_empty() {
            let (value, stage, op) = prefetches[self.random.below(prefetches.len())];
            self.keep(value, stage, op);
        }
    }

    /// Prefetches a tensor that was recomputed.
    pub(crate) fn prefetch_instead(&mut self) {
        let repeats = self.state.repeats();
        if repeats.is_empty() {
            return;
        }
        let (stage, op) = repeats[self.random.below(repeats.len())];
        let state = &self.state;
        let outputs = &state.inst.ops[op as usize].outputs;
        let uses: Vec<(u32, u32, u32)> =
            outputs.iter().filter_map(|&v| state.next_plain(v, stage, op).map(|(s, o)| (v, s, o))).collect();
        self.remove_repeat(stage, op);
        for (value, stage, op) in uses {
            if self.state.is_plain(value, stage, op) {
                self.prefetch(value, stage, op);
            }
        }
    }

    /// Recomputes a tensor that was prefetched.
    pub(crate) fn recompute_instead(&mut self) {
        let prefetches = self.state.prefetches();
        if prefetches.is_empty() {
            return;
        }
        let (value, stage, op) = prefetches[self.random.below(prefetches.len())];
        let maker = self.state.inst.values[value as usize].maker;
        if maker == NONE || maker >= op || stage > self.state.inst.ops[maker as usize].latest {
            return;
        }
        self.keep(value, stage, op);
        let deep = self.random.unit();
        self.recompute(stage, maker, deep);
    }
}

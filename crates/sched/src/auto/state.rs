//! A sequence of ops with repeats, and its load, evaluated incrementally.
//!
//! A sequence is the trace's ops in order, and before each of them, in the trace's order too, the ops that are run again there. Every
//! such set of repeats is a legal sequence: a value can always be kept from where it was made last. So the repeats decide everything, and
//! adding or taking away one of them changes the load of a few stretches only:
//!
//! ```text
//! place      0    1    2    3    4    5    6        x is made at 0 and used at 1 and 6
//! x          made used .................... used    alive across the boundaries 1..=6
//! x          made used .............. made  used    its maker again at 5: alive across 1..=1 and 6..=6
//! ```
//!
//! The load at a place is what is alive across the boundary before it, plus what its op reserves there.

use std::sync::Arc;

use super::instance::{Instance, NONE};
use super::sequence::Decisions;
use crate::policy::FetchRule;

/// When something happens: stage and op, and in the last two bits what. The trace's own ops are stage and op alike.
pub(crate) type Key = u64;

/// The op makes the value.
const MADE: Key = 1;
/// The op reads the value, which was away and has been fetched.
const FETCHED: Key = 2;
const WHAT: Key = MADE | FETCHED;
/// The beginning and the end of the iteration, for values that persist.
const BEGIN: Key = MADE;
const END: Key = Key::MAX & !WHAT;

const fn key(stage: u32, op: u32) -> Key {
    ((stage as u64 + 1) << 32) | ((op as u64) << 2)
}

const fn stage_of(key: Key) -> u32 {
    ((key >> 32) as u32) - 1
}

const fn op_of(key: Key) -> u32 {
    (key as u32) >> 2
}

/// Whether the value was not there just before this touch.
const fn anew(key: Key) -> bool {
    key & WHAT != 0
}

/// How long copies take, for states that are to count it.
#[derive(Clone, Debug)]
pub(crate) struct Copies {
    /// Time of a copy of each value to the host, with what it is thought to wait.
    pub out: Vec<u64>,
    /// Time of a copy back, likewise.
    pub back: Vec<u64>,
    /// Start of every op of the trace, and the end, if nothing is run again.
    pub starts: Vec<u64>,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct State<'a> {
    /// If it is there, a value that is fetched is away only from the end of its copy to the host to the start of its copy back, both as
    /// if the lanes were free, in whole stages. Otherwise copies take no time, and the load is what no schedule can do without.
    pub copies: Option<Arc<Copies>>,
    /// Time of all copies to the host, and of all copies back; 0 if copies take no time.
    pub copying: [u64; 2],
    pub inst: &'a Instance,
    /// Ops run again before each op of the trace, ascending.
    again: Vec<Vec<u32>>,
    /// Place at which each stage begins, and the end.
    starts: Vec<u32>,
    /// Load minus limit at each place, and at the end of the iteration.
    over: Vec<i32>,
    /// What the op at each place reserves; 0 at the end.
    fresh: Vec<i32>,
    /// When each value is made and used, ascending.
    touches: Vec<Vec<Key>>,
    /// All repeats, in no particular order.
    repeats: Vec<(u32, u32)>,
    /// All uses before which a value is away with a copy on the host, as (value, stage, op), in no particular order.
    fetches: Vec<(u32, u32, u32)>,
    /// Sum of durations.
    pub time: u64,
    /// Sum over all places of what exceeds the limit.
    pub excess: i64,
}

impl<'a> State<'a> {
    /// The trace's own sequence.
    pub(crate) fn new(inst: &'a Instance) -> Self {
        let ops = inst.ops.len();
        let mut touches: Vec<Vec<Key>> = vec![Vec::new(); inst.values.len()];
        for (touches, value) in touches.iter_mut().zip(&inst.values) {
            if value.begins {
                touches.push(BEGIN);
            }
        }
        for (i, op) in (0u32..).zip(&inst.ops) {
            for &value in &op.outputs {
                touches[value as usize].push(key(i, i) | MADE);
            }
            for &value in &op.reads {
                // A value that an op reads and makes anew was never a value of this trace.
                touches[value as usize].push(key(i, i));
            }
        }
        for (touches, value) in touches.iter_mut().zip(&inst.values) {
            if value.ends {
                touches.push(END);
            }
        }
        let mut state = Self {
            inst,
            again: vec![Vec::new(); ops],
            starts: (0..=ops as u32).collect(),
            over: vec![-inst.limit; ops + 1],
            fresh: vec![0; ops + 1],
            touches,
            repeats: Vec::new(),
            fetches: Vec::new(),
            copies: None,
            copying: [0; 2],
            time: inst.total,
            excess: 0,
        };
        for i in 0..ops {
            state.fresh[i] = state.reserves(i as u32, key(i as u32, i as u32));
            state.over[i] += state.fresh[i];
        }
        for v in 0..inst.values.len() {
            let size = inst.values[v].size;
            let mut from = None;
            for at in 0..state.touches[v].len() {
                let touch = state.touches[v][at];
                let place = state.place(touch);
                if !anew(touch)
                    && let Some(from) = from
                {
                    for over in &mut state.over[from + 1..=place as usize] {
                        *over += size;
                    }
                }
                from = Some(place as usize);
            }
            // What is there when the iteration begins.
            if inst.values[v].begins && state.touches[v].len() > 1 {
                state.over[0] += size;
            }
        }
        state.excess = state.over.iter().map(|&over| state.excess_of(over)).sum();
        state
    }

    fn excess_of(&self, over: i32) -> i64 {
        let shift = self.inst.shift;
        ((over.max(0) + ((1 << shift) - 1)) >> shift) as i64
    }

    /// The place of a touch. The beginning counts as place 0: see `cover`.
    fn place(&self, key: Key) -> u32 {
        if key == END {
            return self.starts[self.inst.ops.len()];
        }
        if key == BEGIN {
            return 0;
        }
        let (stage, op) = (stage_of(key), op_of(key));
        if stage == op {
            return self.starts[stage as usize + 1] - 1;
        }
        let list = &self.again[stage as usize];
        self.starts[stage as usize] + list.partition_point(|&other| other < op) as u32
    }

    /// Makes a value alive, or not alive, across the boundaries between two touches.
    fn cover(&mut self, from: Key, to: Key, size: i32) {
        let low = if from == BEGIN { 0 } else { self.place(from) as usize + 1 };
        let high = self.place(to) as usize;
        self.add(low, high, size);
    }

    /// Makes a value alive, or not alive, across the boundaries of a gap at which its copies are under way.
    fn cover_copies(&mut self, value: u32, from: Key, to: Key, size: i32) {
        let Some(copies) = self.copies.clone() else { return };
        let low = if from == BEGIN { 0 } else { self.place(from) as usize + 1 };
        let high = self.place(to) as usize;
        let (first, last) =
            (if from == BEGIN { 0 } else { stage_of(from) as usize + 1 }, stage_of(to) as usize);
        // Stages that begin before the copy to the host has ended, and those that end after the copy back has begun.
        let out = copies.starts[first.min(last)] + copies.out[value as usize];
        let left = first + copies.starts[first.min(last)..last].partition_point(|&start| start < out);
        let back = copies.starts[last].saturating_sub(copies.back[value as usize]);
        let returns = copies.starts[..=last].partition_point(|&start| start <= back).saturating_sub(1);
        if left >= returns {
            return self.add(low, high, size);
        }
        // A stage ends with its own op: repeats before it belong to what comes before for the copy out, to what comes after for the
        // copy back, so that one that is inserted finds itself on the side of the op behind it.
        if let Some(end) = self.starts[left].checked_sub(1) {
            self.add(low, end as usize, size);
        }
        self.add(low.max(self.starts[returns] as usize), high, size);
    }

    /// Lets the copies of a gap begin at a new touch instead of the one before it, or, with a negative size, the other way round.
    fn shift_copies(&mut self, value: u32, before: Key, at: Key, next: Option<Key>, size: i32) {
        if let Some(next) = next.filter(|next| next & FETCHED != 0) {
            self.cover_copies(value, before, next, -size);
            self.cover_copies(value, at, next, size);
        }
    }

    fn add(&mut self, low: usize, high: usize, size: i32) {
        if low > high {
            return;
        }
        let shift = self.inst.shift;
        let round = (1i32 << shift) - 1;
        let mut change = 0i32;
        for over in &mut self.over[low..=high] {
            let before = (over.max(&mut 0).wrapping_add(round)) >> shift;
            *over += size;
            let after = ((*over).max(0).wrapping_add(round)) >> shift;
            change = change.wrapping_add(after - before);
        }
        self.excess += i64::from(change);
    }

    /// What an op reserves: outputs and workspace, less what it takes over from inputs that nobody uses later, and inputs fetched for it.
    fn reserves(&self, op: u32, key: Key) -> i32 {
        let row = &self.inst.ops[op as usize];
        let mut fresh = row.fresh;
        let mut taken = [NONE; 4];
        for (slot, list) in row.takeovers.iter().take(4).enumerate() {
            let pick = list.iter().find(|t| !taken.contains(&t.input) && !self.wanted_after(t.input, key));
            if let Some(pick) = pick {
                taken[slot] = pick.input;
                fresh -= pick.size;
            }
        }
        if !self.fetches.is_empty() && self.copies.is_none() {
            let fetched = row.reads.iter().filter(|&&value| self.is_fetched_at(value, key));
            fresh += fetched.map(|&value| self.inst.values[value as usize].size).sum::<i32>();
        }
        fresh
    }

    fn is_fetched_at(&self, value: u32, key: Key) -> bool {
        let touches = &self.touches[value as usize];
        touches.get(touches.partition_point(|&touch| touch < key)) == Some(&(key | FETCHED))
    }

    /// Whether what is there of a value at some time is used later, on the device or from a copy on the host.
    fn wanted_after(&self, value: u32, key: Key) -> bool {
        let touches = &self.touches[value as usize];
        touches
            .get(touches.partition_point(|&touch| touch <= key | WHAT))
            .is_some_and(|&next| next & MADE == 0)
    }

    /// Whether what is there of a value at some time is used later.
    fn needed_after(&self, value: u32, key: Key) -> bool {
        let touches = &self.touches[value as usize];
        touches.get(touches.partition_point(|&touch| touch <= key | WHAT)).is_some_and(|&next| !anew(next))
    }

    /// Counts again what the op of a touch reserves, after a change of who uses its inputs last.
    fn refresh(&mut self, key: Key) {
        if key == END
            || key == BEGIN
            || (self.fetches.is_empty() && self.inst.ops[op_of(key) as usize].takeovers.is_empty())
        {
            return;
        }
        let fresh = self.reserves(op_of(key), key & !WHAT);
        let place = self.place(key & !WHAT) as usize;
        let change = fresh - self.fresh[place];
        if change != 0 {
            self.fresh[place] = fresh;
            let before = self.excess_of(self.over[place]);
            self.over[place] += change;
            self.excess += self.excess_of(self.over[place]) - before;
        }
    }

    /// Runs an op again before op `stage` of the trace. It must not be run again there already.
    pub(crate) fn insert(&mut self, stage: u32, op: u32) {
        let inst = self.inst;
        let row = &inst.ops[op as usize];
        let at = key(stage, op);
        let place = self.place(at) as usize;
        let list = &mut self.again[stage as usize];
        let rank = place - self.starts[stage as usize] as usize;
        list.insert(rank, op);
        self.starts[stage as usize + 1..].iter_mut().for_each(|start| *start += 1);
        self.repeats.push((stage, op));
        self.time += row.time;

        // Nothing begins or ends here yet: what is alive here is what is alive across the boundary before the next op.
        let across = self.over[place] - self.fresh[place];
        self.over.insert(place, across);
        self.fresh.insert(place, 0);
        self.excess += self.excess_of(across);

        for &value in &row.reads {
            let size = inst.values[value as usize].size;
            let touches = &mut self.touches[value as usize];
            let index = touches.partition_point(|&touch| touch < at);
            touches.insert(index, at);
            let before = touches[index - 1];
            let next = touches.get(index + 1).copied();
            if next.is_none_or(anew) {
                self.cover(before, at, size);
            }
            self.shift_copies(value, before, at, next, size);
            self.refresh(before);
        }
        for &value in &row.outputs {
            let size = inst.values[value as usize].size;
            let touches = &mut self.touches[value as usize];
            let index = touches.partition_point(|&touch| touch < at);
            touches.insert(index, at | MADE);
            let before = touches[index - 1];
            let next = touches.get(index + 1).copied();
            if next.is_some_and(|next| !anew(next)) {
                self.cover(before, at, -size);
            }
            self.shift_copies(value, before, at, next, size);
            self.refresh(before);
        }
        let fresh = self.reserves(op, at);
        self.fresh[place] = fresh;
        let before = self.excess_of(self.over[place]);
        self.over[place] += fresh;
        self.excess += self.excess_of(self.over[place]) - before;
    }

    /// Puts a value away before one of its uses, to be fetched for it, or keeps it there. Changes nothing else, so that a repeat that
    /// reads a fetched value must lose the fetch before it is taken away.
    pub(crate) fn set_fetched(&mut self, value: u32, stage: u32, op: u32, fetched: bool) {
        let at = key(stage, op);
        let size = self.inst.values[value as usize].size;
        let touches = &mut self.touches[value as usize];
        let index = touches.partition_point(|&touch| touch < at);
        touches[index] = if fetched { at | FETCHED } else { at };
        let before = touches[index - 1];
        if fetched {
            self.fetches.push((value, stage, op));
            self.cover(before, at, -size);
        } else {
            let index = self.fetches.iter().position(|&fetch| fetch == (value, stage, op));
            self.fetches.swap_remove(index.expect("it was fetched"));
            self.cover(before, at, size);
        }
        if let Some(copies) = &self.copies {
            for (sum, time) in self.copying.iter_mut().zip([&copies.out, &copies.back]) {
                let time = time[value as usize];
                *sum = if fetched { *sum + time } else { *sum - time };
            }
            self.cover_copies(value, before, at, if fetched { size } else { -size });
        } else {
            let place = self.place(at) as usize;
            let change = if fetched { size } else { -size };
            self.fresh[place] += change;
            let excess = self.excess_of(self.over[place]);
            self.over[place] += change;
            self.excess += self.excess_of(self.over[place]) - excess;
        }
        self.refresh(before);
    }

    /// All fetches as (value, stage, op), in an order that only the history of the state determines.
    pub(crate) fn fetches(&self) -> &[(u32, u32, u32)] {
        &self.fetches
    }

    /// Number of places.
    pub(crate) fn places(&self) -> usize {
        self.starts[self.inst.ops.len()] as usize
    }

    /// The place with the largest load.
    pub(crate) fn highest_place(&self) -> usize {
        (0..self.over.len()).max_by_key(|&place| self.over[place]).unwrap_or(0)
    }

    /// The first place over the limit from a place on, going round.
    pub(crate) fn over_from(&self, place: usize) -> Option<usize> {
        let after = self.over[place..].iter().position(|&over| over > 0).map(|steps| place + steps);
        after.or_else(|| self.over[..place].iter().position(|&over| over > 0))
    }

    /// The time of a place, for [`State::idle_until`].
    pub(crate) fn moment(&self, place: usize) -> Key {
        let ops = self.inst.ops.len();
        let stage = self.starts[..=ops].partition_point(|&start| start as usize <= place) - 1;
        if stage == ops {
            return END;
        }
        let rank = place - self.starts[stage] as usize;
        key(stage as u32, self.again[stage].get(rank).copied().unwrap_or(stage as u32))
    }

    /// If a value is alive at a moment without being used there: its next use, as (stage, op).
    pub(crate) fn idle_until(&self, value: u32, moment: Key) -> Option<(u32, u32)> {
        let touches = &self.touches[value as usize];
        let index = touches.partition_point(|&touch| touch < moment);
        let next = *touches.get(index)?;
        (index > 0 && !anew(next) && next != moment && next != END).then(|| (stage_of(next), op_of(next)))
    }

    /// Values that are alive at a place without being used there and are used later, as (value, stage of the touch before, stage of the
    /// use, op of the use).
    pub(crate) fn idle_at(&self, place: usize) -> Vec<(u32, u32, u32, u32)> {
        let at = self.moment(place);
        let mut idle = Vec::new();
        for (value, touches) in (0u32..).zip(&self.touches) {
            let index = touches.partition_point(|&touch| touch < at);
            let Some(&next) = touches.get(index) else { continue };
            if index == 0
                || anew(next)
                || next == at
                || next == END
                || self.inst.values[value as usize].size == 0
            {
                continue;
            }
            let before = touches[index - 1];
            let from = if before == BEGIN { 0 } else { stage_of(before) };
            idle.push((value, from, stage_of(next), op_of(next)));
        }
        idle
    }

    /// The next touch of a value after an op, as (stage, op), if it is a use at which the value is there anyway.
    pub(crate) fn next_plain(&self, value: u32, stage: u32, op: u32) -> Option<(u32, u32)> {
        let touches = &self.touches[value as usize];
        let next = *touches.get(touches.partition_point(|&touch| touch <= key(stage, op) | WHAT))?;
        (!anew(next) && next != END).then(|| (stage_of(next), op_of(next)))
    }

    /// Whether an op reads a value that is there anyway.
    pub(crate) fn is_plain(&self, value: u32, stage: u32, op: u32) -> bool {
        self.touches[value as usize].binary_search(&key(stage, op)).is_ok()
    }

    /// Whether a value is fetched for an op that reads it.
    pub(crate) fn has_fetch(&self, value: u32, stage: u32, op: u32) -> bool {
        self.is_fetched_at(value, key(stage, op))
    }

    /// Undoes [`State::insert`].
    pub(crate) fn remove(&mut self, stage: u32, op: u32) {
        let inst = self.inst;
        let row = &inst.ops[op as usize];
        let at = key(stage, op);
        let place = self.place(at) as usize;
        for &value in &row.outputs {
            let size = inst.values[value as usize].size;
            let touches = &mut self.touches[value as usize];
            let index = touches.partition_point(|&touch| touch < at);
            let before = touches[index - 1];
            let next = touches.get(index + 1).copied();
            touches.remove(index);
            if next.is_some_and(|next| !anew(next)) {
                self.cover(before, at, size);
            }
            self.shift_copies(value, before, at, next, -size);
            self.refresh(before);
        }
        for &value in &row.reads {
            let size = inst.values[value as usize].size;
            let touches = &mut self.touches[value as usize];
            let index = touches.partition_point(|&touch| touch < at);
            let before = touches[index - 1];
            let next = touches.get(index + 1).copied();
            touches.remove(index);
            if next.is_none_or(anew) {
                self.cover(before, at, -size);
            }
            self.shift_copies(value, before, at, next, -size);
            self.refresh(before);
        }
        self.excess -= self.excess_of(self.over[place]);
        self.over.remove(place);
        self.fresh.remove(place);
        let rank = place - self.starts[stage as usize] as usize;
        self.again[stage as usize].remove(rank);
        self.starts[stage as usize + 1..].iter_mut().for_each(|start| *start -= 1);
        let index = self.repeats.iter().position(|&repeat| repeat == (stage, op));
        self.repeats.swap_remove(index.expect("it was inserted"));
        self.time -= row.time;
    }

    /// Whether an op is run again in a stage.
    pub(crate) fn has(&self, stage: u32, op: u32) -> bool {
        self.again[stage as usize].binary_search(&op).is_ok()
    }

    /// All repeats as (stage, op), in an order that only the history of the state determines.
    pub(crate) fn repeats(&self) -> &[(u32, u32)] {
        &self.repeats
    }

    /// Ops run again in a stage, ascending.
    pub(crate) fn again(&self, stage: u32) -> &[u32] {
        &self.again[stage as usize]
    }

    /// Number of touches of a value.
    pub(crate) fn touch_count(&self, value: u32) -> usize {
        self.touches[value as usize].len()
    }

    /// A touch of a value as (stage, op), if it is a use at which the value is there anyway.
    pub(crate) fn plain_use(&self, value: u32, index: usize) -> Option<(u32, u32)> {
        let touch = self.touches[value as usize][index];
        (touch != END && !anew(touch)).then(|| (stage_of(touch), op_of(touch)))
    }

    /// Whether a value that an op run in some stage reads would be there anyway: used again later, before it is made again.
    pub(crate) fn alive_at(&self, value: u32, stage: u32, op: u32) -> bool {
        self.needed_after(value, key(stage, op))
    }

    /// Where a value was made last before an op run in some stage, as (stage, op); `None` for the beginning.
    pub(crate) fn made_before(&self, value: u32, stage: u32, op: u32) -> Option<(u32, u32)> {
        let touches = &self.touches[value as usize];
        let index = touches.partition_point(|&touch| touch < key(stage, op));
        let made = touches[..index].iter().rev().find(|&&touch| touch & MADE != 0)?;
        (*made != BEGIN).then(|| (stage_of(*made), op_of(*made)))
    }

    /// Whether nobody uses what a repeat makes.
    pub(crate) fn useless(&self, stage: u32, op: u32) -> bool {
        let outputs = &self.inst.ops[op as usize].outputs;
        outputs.iter().all(|&value| !self.needed_after(value, key(stage, op)))
    }

    /// What the state decides, with a rule for fetches.
    pub(crate) fn decisions(&self, rule: FetchRule) -> Decisions {
        let (mut repeats, mut fetches) = (self.repeats.clone(), self.fetches.clone());
        repeats.sort_unstable();
        fetches.sort_unstable();
        Decisions { repeats, fetches, rule }
    }

    /// Largest load minus limit.
    #[cfg(test)]
    pub(crate) fn highest(&self) -> i32 {
        self.over.iter().copied().max().unwrap_or(0)
    }

    /// The sequence of ops.
    #[cfg(test)]
    pub(crate) fn sequence(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.again).flat_map(|(op, again)| again.iter().copied().chain([op]))
    }

    /// The whole evaluation again from nothing, to compare with.
    #[cfg(test)]
    pub(crate) fn over_from_nothing(&self) -> Vec<i32> {
        let sequence: Vec<u32> = self.sequence().collect();
        let n = sequence.len();
        let mut uses: Vec<Vec<(usize, bool)>> = vec![Vec::new(); self.inst.values.len()];
        let mut over = vec![-self.inst.limit; n + 1];
        let mut fetched = Vec::new();
        let mut stage = 0;
        for (place, &op) in sequence.iter().enumerate() {
            for &value in &self.inst.ops[op as usize].outputs {
                uses[value as usize].push((place, true));
            }
            for &value in &self.inst.ops[op as usize].reads {
                let away = self.fetches.contains(&(value, stage, op));
                if away {
                    over[place] += self.inst.values[value as usize].size;
                    fetched.push((value, place));
                }
                uses[value as usize].push((place, away));
            }
            stage += u32::from(stage == op);
        }
        for (value, uses) in self.inst.values.iter().zip(&mut uses) {
            if value.ends {
                uses.push((n, false));
            }
            let mut from = value.begins.then_some(0);
            for &(place, made) in uses.iter() {
                if let (false, Some(from)) = (made, from) {
                    over[from..=place].iter_mut().for_each(|over| *over += value.size);
                }
                from = Some(place + 1);
            }
        }
        for (place, &op) in sequence.iter().enumerate() {
            let row = &self.inst.ops[op as usize];
            let mut taken = Vec::new();
            over[place] += row.fresh;
            for list in &row.takeovers {
                let dies = |input: u32| {
                    let next = uses[input as usize].iter().find(|&&(p, _)| p > place);
                    next.is_none_or(|&(p, anew)| anew && !fetched.contains(&(input, p)))
                };
                if let Some(t) = list.iter().find(|t| !taken.contains(&t.input) && dies(t.input)) {
                    taken.push(t.input);
                    over[place] -= t.size;
                }
            }
        }
        over
    }

    #[cfg(test)]
    pub(crate) fn over(&self) -> &[i32] {
        &self.over
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::machine::{Channel, Machine};
    use elbowroom_ir::planning::{CostSource, Costs, Freedom, Request};
    use elbowroom_ir::trace::{Persistent, Trace};
    use elbowroom_ir::{Bytes, Nanos};

    use super::super::random::Random;
    use super::super::sequence::policy;
    use super::*;
    use crate::lower::least_load;

    pub(crate) fn machine() -> Machine {
        Machine {
            name: "any".into(),
            memory: Bytes(1 << 40),
            align: Bytes(4),
            host_memory: Bytes(1 << 50),
            to_host: Channel::with_rate(1_000_000_000),
            to_device: Channel::with_rate(1_000_000_000),
            shared_link: true,
            flops_per_second: 1,
            bytes_per_second: 1,
            launch: Nanos::ZERO,
        }
    }

    /// The same decisions again from nothing, in another order.
    fn again(state: &State<'_>) -> Vec<i32> {
        let mut other = State { copies: state.copies.clone(), ..State::new(state.inst) };
        let decisions = state.decisions(FetchRule::Eager);
        decisions.repeats.iter().rev().for_each(|&(stage, op)| other.insert(stage, op));
        decisions.fetches.iter().for_each(|&(value, stage, op)| other.set_fetched(value, stage, op, true));
        assert_eq!((state.time, state.excess, state.copying), (other.time, other.excess, other.copying));
        other.over
    }

    fn walk_at_random(trace: &Trace, seed: u64, timed: bool) {
        let nanos = (1..=trace.ops().len() as u64).map(Nanos).collect();
        let costs = Costs { nanos, source: CostSource::Recorded };
        let machine = machine();
        let load_limit = Bytes(64);
        let request = Request {
            trace,
            costs: &costs,
            machine: &machine,
            load_limit,
            freedom: Freedom::ALL,
            packer: None,
        };
        let inst = Instance::new(&request);
        let mut state = State::new(&inst);
        if timed {
            let times: Vec<u64> = (0..inst.values.len() as u64).map(|value| 1 + value % 5).collect();
            let starts = (0..=inst.ops.len() as u64).map(|op| op * (op + 1) / 2).collect();
            state.copies = Some(Arc::new(Copies { out: times.clone(), back: times, starts }));
        }
        let mut random = Random::new(seed);
        for step in 0..80 {
            let stage = random.below(inst.ops.len()) as u32;
            let op = random.below(inst.ops.len()) as u32;
            let reads = &inst.ops[stage as usize].reads;
            if !reads.is_empty() && random.chance(0.4) {
                // Values that persist need a station for their gap from the beginning.
                let value = reads[random.below(reads.len())];
                if inst.values[value as usize].begins {
                    continue;
                }
                let fetched = state.has_fetch(value, stage, stage);
                state.set_fetched(value, stage, stage, !fetched);
            } else if op >= stage || stage > inst.ops[op as usize].latest {
                continue;
            } else if state.has(stage, op) {
                state.remove(stage, op);
            } else {
                state.insert(stage, op);
            }
            let over = if timed { again(&state) } else { state.over_from_nothing() };
            assert_eq!(state.over(), over, "after step {step}");
            assert_eq!(state.excess, over.iter().map(|&over| state.excess_of(over)).sum::<i64>());
            assert_eq!(state.time, state.sequence().map(|op| inst.ops[op as usize].time).sum::<u64>());
            let plain = |pair: &Persistent| trace.storage(pair.begin) == trace.storage(pair.end);
            if !timed && step % 8 == 0 && trace.persistent().iter().all(plain) {
                let (load, _) =
                    least_load(&request, &policy(&request, &inst.order, &state.decisions(FetchRule::Eager)))
                        .unwrap();
                let bytes = (i64::from(state.highest()) + 64 / inst.unit as i64) * inst.unit as i64;
                // A value that has a copy on the host already may be taken over where the search thinks that it leaves.
                let reuse = trace.ops().values().any(|op| !op.may_reuse.is_empty());
                assert!(bytes >= load.get() as i64, "lowering needs more");
                assert!(
                    bytes == load.get() as i64 || reuse && !state.fetches().is_empty(),
                    "lowering needs less"
                );
            }
        }
    }

    #[test]
    fn changes_agree_with_evaluation_from_nothing_and_with_lowering() {
        let mut seed = 0;
        arbtest::arbtest(|u| {
            let trace = elbowroom_ir::arbitrary::trace(u)?;
            seed += 1;
            walk_at_random(&trace, seed, seed % 2 == 0);
            Ok(())
        });
    }
}

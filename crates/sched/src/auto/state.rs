//! A sequence of ops with recomputed ones, and its live memory, evaluated incrementally.
//!
//! A sequence is the trace's ops in order, and before each of them, in the trace's order too, the ops that are recomputed there (its
//! *repeats*). Every such set of repeats is a legal sequence, because a tensor can always be kept from where it was made last. So the repeats
//! decide everything, and adding or removing one of them changes the live memory of a few stretches only:
//!
//! ```text
//! place      0    1    2    3    4    5    6        x is made at 0 and used at 1 and 6
//! x          made used .................... used    alive across the boundaries 1..=6
//! x          made used .............. made  used    its op recomputed at 5: alive across 1..=1 and 6..=6
//! ```
//!
//! A persistent tensor exists from the beginning on the device, or on the host: then it is prefetched for its first use, and the tensor with
//! which it ends is offloaded after its last use.
//!
//! The live memory at a place is the bytes that are alive across the boundary before it, plus the bytes that its op reserves there.

mod questions;
#[cfg(test)]
mod tests;
use std::sync::Arc;

use elbowroom_ir::planning::Request;
use elbowroom_ir::{Nanos, TensorId};

use super::instance::{Instance, NONE, Value};

/// Places of which one look tells whether any is over the limit.
const STRETCH: usize = 64;

/// When something happens: stage and op, and in the last two bits what. The trace's own ops are stage and op alike.
pub(crate) type Key = u64;

/// The op makes the tensor.
const MADE: Key = 1;
/// The op reads the tensor, which was away and has been prefetched.
const PREFETCHED: Key = 2;
const WHAT: Key = MADE | PREFETCHED;
/// The beginning and the end of the iteration, for tensors that persist.
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

/// Whether the tensor was not there just before this touch.
const fn anew(key: Key) -> bool {
    key & WHAT != 0
}

/// The last of the touches of a tensor, without what happens there.
fn last(touches: &[Key]) -> Key {
    touches.last().map_or(0, |touch| touch & !WHAT)
}

/// How long copies take, for states that are to count it.
#[derive(Clone, Debug)]
pub(crate) struct Copies {
    /// Time of a copy of each tensor to the host, with what it is thought to wait; 0 for what never changes, which the host has anyway.
    pub out: Vec<u64>,
    /// Time of a copy back, likewise.
    pub back: Vec<u64>,
    /// Start of every op of the trace, and the end, if nothing is recomputed.
    pub starts: Vec<u64>,
}

impl Copies {
    /// The times of a request's machine, each copy made longer by a factor for what it may wait.
    pub(crate) fn of(request: &Request<'_>, inst: &Instance, factor: f64) -> Self {
        let (trace, machine) = (request.trace, request.machine);
        let mut starts = vec![0];
        for op in &inst.ops {
            starts.push(starts[starts.len() - 1] + op.time);
        }
        let longer = |time: Nanos| (time.get() as f64 * factor) as u64;
        let out = |value: TensorId| match inst.is_constant(value.0) {
            true => 0,
            false => longer(machine.to_host.time(trace.bytes(value))),
        };
        let back = |value: TensorId| longer(machine.to_device.time(trace.bytes(value)));
        Self {
            out: trace.tensors().ids().map(out).collect(),
            back: trace.tensors().ids().map(back).collect(),
            starts,
        }
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct AnnealState<'a> {
    /// If it is there, a tensor that is prefetched is away only from the end of its copy to the host to the start of its copy back, both as
    /// if the streams were free, in whole stages. Otherwise copies take no time, and the live memory is what no schedule can do without.
    pub copies: Option<Arc<Copies>>,
    /// Time of all copies to the host and of all copies back within the iteration, then the same for tensors that are on the host between
    /// iterations; 0 if copies take no time.
    pub copying: [u64; 4],
    pub inst: &'a Instance,
    /// Ops recomputed before each op of the trace, ascending.
    again: Vec<Vec<u32>>,
    /// Index at which each stage begins, and the end.
    starts: Vec<u32>,
    /// Live memory minus limit at each place, and at the end of the iteration.
    over: Vec<i32>,
    /// What the op at each place reserves; 0 at the end.
    fresh: Vec<i32>,
    /// When each tensor is made and used, ascending.
    touches: Vec<Vec<Key>>,
    /// The last touch of each tensor, without what happens there: a look at it tells of most tensors that they are over at a place.
    last: Vec<Key>,
    /// All repeats, in no particular order.
    repeats: Vec<(u32, u32)>,
    /// All uses before which a tensor is away with a copy on the host, as (tensor, stage, op), in no particular order.
    prefetches: Vec<(u32, u32, u32)>,
    /// Sum of durations.
    pub time: u64,
    /// Sum over all places of what exceeds the limit.
    pub excess: i64,
}

/// What exceeds the limit at a place with this live memory minus limit, in units of 2 to the power of `shift`. Nothing wraps: [`AnnealState::add`]
/// says why nothing is checked either.
fn excess(over: i32, shift: u32) -> i32 {
    over.max(0).wrapping_add(1i32.wrapping_shl(shift).wrapping_sub(1)).wrapping_shr(shift)
}

/// When the trace's own sequence makes and uses each tensor.
fn own_touches(inst: &Instance) -> Vec<Vec<Key>> {
    let begin = |value: &Value| if value.begins { vec![BEGIN] } else { Vec::new() };
    let mut touches: Vec<Vec<Key>> = inst.values.iter().map(begin).collect();
    for (i, op) in (0u32..).zip(&inst.ops) {
        // A tensor that an op reads and makes anew was never a tensor of this trace.
        op.outputs.iter().for_each(|&value| touches[value as usize].push(key(i, i) | MADE));
        op.reads.iter().for_each(|&value| touches[value as usize].push(key(i, i)));
    }
    for (touches, _) in touches.iter_mut().zip(&inst.values).filter(|(_, value)| value.ends) {
        touches.push(END);
    }
    touches
}

impl<'a> AnnealState<'a> {
    /// The trace's own sequence.
    pub(crate) fn new(inst: &'a Instance) -> Self {
        let ops = inst.ops.len();
        let mut state = Self {
            inst,
            again: vec![Vec::new(); ops],
            starts: vec![0; ops + 1],
            over: Vec::new(),
            fresh: Vec::new(),
            last: Vec::new(),
            touches: own_touches(inst),
            repeats: Vec::new(),
            prefetches: Vec::new(),
            copies: None,
            copying: [0; 4],
            time: 0,
            excess: 0,
        };
        state.evaluate();
        state
    }

    /// Makes it the state with these decisions, both ascending, without those that cannot be. Takes as long as many changes together.
    pub(crate) fn set(&mut self, repeats: &[(u32, u32)], prefetches: &[(u32, u32, u32)]) {
        let inst = self.inst;
        self.again.iter_mut().for_each(Vec::clear);
        self.repeats.clear();
        self.touches = own_touches(inst);
        for &(stage, op) in repeats {
            let row = &inst.ops[op as usize];
            if !inst.can_repeat(stage, op) || self.again[stage as usize].last() == Some(&op) {
                continue;
            }
            self.again[stage as usize].push(op);
            self.repeats.push((stage, op));
            let at = key(stage, op);
            row.reads.iter().for_each(|&value| self.touches[value as usize].push(at));
            row.outputs.iter().for_each(|&value| self.touches[value as usize].push(at | MADE));
        }
        self.touches.iter_mut().for_each(|touches| touches.sort_unstable());
        self.prefetches.clear();
        for &(value, stage, op) in prefetches {
            if !self.can_prefetch(value, stage, op) {
                continue;
            }
            self.prefetches.push((value, stage, op));
            let touches = &mut self.touches[value as usize];
            let index = touches.partition_point(|&touch| touch < key(stage, op));
            touches[index] |= PREFETCHED;
            if touches[index - 1] == BEGIN
                && let [.., _, end] =
                    self.touches[inst.values[value as usize].becomes as usize].as_mut_slice()
            {
                *end |= PREFETCHED;
            }
        }
        self.evaluate();
    }

    /// Evaluates repeats and touches from nothing.
    fn evaluate(&mut self) {
        let inst = self.inst;
        for (stage, again) in self.again.iter().enumerate() {
            self.starts[stage + 1] = self.starts[stage] + again.len() as u32 + 1;
        }
        self.last = self.touches.iter().map(|touches| last(touches)).collect();
        let time = |&(_, op): &(u32, u32)| inst.ops[op as usize].time;
        self.time = inst.total + self.repeats.iter().map(time).sum::<u64>();
        self.copying = [0; 4];
        // By how much the live memory is more at each place than at the one before.
        let mut steps = vec![0; self.places() + 2];
        for value in 0..inst.values.len() as u32 {
            let size = inst.values[value as usize].size;
            let mut add = |(low, high): (usize, usize)| {
                if low <= high {
                    steps[low] += size;
                    steps[high + 1] -= size;
                }
            };
            for index in 1..self.touches[value as usize].len() {
                let [from, to] = [index - 1, index].map(|index| self.touches[value as usize][index]);
                if !anew(to) {
                    add(self.span(from, to));
                } else if to & PREFETCHED != 0 {
                    self.copy_spans(value, from, to).into_iter().for_each(&mut add);
                    if to & !WHAT != END {
                        self.count_copies(value, from == BEGIN, true);
                    }
                }
            }
        }
        self.fresh = vec![0; self.places() + 1];
        for stage in 0..inst.ops.len() as u32 {
            let first = self.starts[stage as usize] as usize;
            for rank in 0..=self.again[stage as usize].len() {
                let op = self.again[stage as usize].get(rank).copied().unwrap_or(stage);
                self.fresh[first + rank] = self.reserves(op, key(stage, op));
            }
        }
        let mut alive = -inst.limit;
        let over = steps.iter().zip(&self.fresh).map(|(step, fresh)| {
            alive += step;
            alive + fresh
        });
        self.over = over.collect();
        self.excess = self.over.iter().map(|&over| self.excess_of(over)).sum();
    }

    fn excess_of(&self, over: i32) -> i64 {
        i64::from(excess(over, self.inst.shift))
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

    /// The boundaries between two touches, as places.
    fn span(&self, from: Key, to: Key) -> (usize, usize) {
        let low = if from == BEGIN { 0 } else { self.place(from) as usize + 1 };
        (low, self.place(to) as usize)
    }

    /// Makes a tensor alive, or not alive, across the boundaries between two touches.
    fn cover(&mut self, from: Key, to: Key, size: i32) {
        let span = self.span(from, to);
        self.add(span, size);
    }

    /// Makes a tensor alive, or not alive, across the boundaries of a gap at which its copies are under way.
    fn cover_copies(&mut self, value: u32, from: Key, to: Key, size: i32) {
        for span in self.copy_spans(value, from, to) {
            self.add(span, size);
        }
    }

    /// The boundaries of a gap at which the tensor's copies are under way: those of the copy to the host, and those of the copy back. Where there
    /// are none, the first is above the last.
    fn copy_spans(&self, value: u32, from: Key, to: Key) -> [(usize, usize); 2] {
        const NOWHERE: (usize, usize) = (1, 0);
        let Some(copies) = &self.copies else { return [NOWHERE; 2] };
        let first = if from == BEGIN { 0 } else { stage_of(from) as usize + 1 };
        // What leaves for the end of the iteration does not come back in it.
        let leaves = to & !WHAT == END;
        let (low, high) = self.span(from, if leaves { END } else { to });
        let last = if leaves { self.inst.ops.len() } else { stage_of(to) as usize };
        // Stages that begin before the copy to the host has ended, and those that end after the copy back has begun. What begins on the
        // host needs no copy to it.
        let out = if from == BEGIN { 0 } else { copies.out[value as usize] };
        let out = copies.starts[first.min(last)] + out;
        let left = first + copies.starts[first.min(last)..last].partition_point(|&start| start < out);
        let back = copies.starts[last].saturating_sub(copies.back[value as usize]);
        let returns = copies.starts[..=last].partition_point(|&start| start <= back).saturating_sub(1);
        let returns = if leaves { last } else { returns };
        if left >= returns {
            return [(low, high), NOWHERE];
        }
        // A stage ends with its own op: repeats before it belong to what comes before for the copy out, to what comes after for the
        // copy back, so that one that is inserted finds itself on the side of the op behind it.
        let out = self.starts[left].checked_sub(1).map_or(NOWHERE, |end| (low, end as usize));
        let back = if leaves { NOWHERE } else { (low.max(self.starts[returns] as usize), high) };
        [out, back]
    }

    /// Counts the copies of a tensor that is prefetched, or no longer counts them.
    fn count_copies(&mut self, value: u32, from_beginning: bool, prefetched: bool) {
        let Some(copies) = &self.copies else { return };
        let sums = if from_beginning { &mut self.copying[2..] } else { &mut self.copying[..2] };
        for (sum, times) in sums.iter_mut().zip([&copies.out, &copies.back]) {
            let time = times[value as usize];
            *sum = if prefetched { *sum + time } else { *sum - time };
        }
    }

    /// Lets the copies of a gap begin at a new touch instead of the one before it, or, with a negative size, the other way round.
    fn shift_copies(&mut self, value: u32, before: Key, at: Key, next: Option<Key>, size: i32) {
        if let Some(next) = next.filter(|next| next & PREFETCHED != 0) {
            self.cover_copies(value, before, next, -size);
            self.cover_copies(value, at, next, size);
        }
    }

    /// Lets `size` more be alive at the places from `low` to `high`. Live memory is a 31-bit number, so no sum wraps; where each is checked, as in
    /// tests, these loops take several times as long.
    fn add(&mut self, (low, high): (usize, usize), size: i32) {
        if low > high {
            return;
        }
        let shift = self.inst.shift;
        // Whichever of before and after is more.
        let more = size.max(0);
        for stretch in self.over[low..=high].chunks_mut(STRETCH) {
            // The sign is set if any place of the stretch is over the limit then: in most stretches none is.
            let over_limit =
                stretch.iter().fold(0, |sign, over| sign | 0i32.wrapping_sub(over.wrapping_add(more))) < 0;
            if over_limit {
                let change =
                    |over: &i32| excess(over.wrapping_add(size), shift).wrapping_sub(excess(*over, shift));
                self.excess += i64::from(stretch.iter().map(change).fold(0, i32::wrapping_add));
            }
            stretch.iter_mut().for_each(|over| *over = over.wrapping_add(size));
        }
    }

    /// The growth of the excess if `size` more were alive at the places from `low` to `high`.
    fn growth(&self, low: usize, high: usize, size: i32) -> i64 {
        let over = self.over[low..=high].iter();
        over.map(|&over| self.excess_of(over + size) - self.excess_of(over)).sum()
    }

    /// What an op reserves: outputs and workspace, less what it takes over from inputs that no op uses later, and inputs prefetched for it.
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
        if !self.prefetches.is_empty() && self.copies.is_none() {
            let prefetched = row.reads.iter().filter(|&&value| self.is_prefetched_at(value, key));
            fresh += prefetched.map(|&value| self.inst.values[value as usize].size).sum::<i32>();
        }
        fresh
    }

    fn is_prefetched_at(&self, value: u32, key: Key) -> bool {
        let touches = &self.touches[value as usize];
        touches.get(touches.partition_point(|&touch| touch < key)) == Some(&(key | PREFETCHED))
    }

    /// Whether what is there of a tensor at some time is used later, on the device or from a copy on the host.
    fn wanted_after(&self, value: u32, key: Key) -> bool {
        let touches = &self.touches[value as usize];
        touches
            .get(touches.partition_point(|&touch| touch <= key | WHAT))
            .is_some_and(|&next| next & MADE == 0)
    }

    /// Whether what is there of a tensor at some time is used later.
    fn needed_after(&self, value: u32, key: Key) -> bool {
        let touches = &self.touches[value as usize];
        touches.get(touches.partition_point(|&touch| touch <= key | WHAT)).is_some_and(|&next| !anew(next))
    }

    /// Counts again what the op of a touch reserves, after a change of who uses its inputs last.
    fn refresh(&mut self, key: Key) {
        if key == END
            || key == BEGIN
            || (self.prefetches.is_empty() && self.inst.ops[op_of(key) as usize].takeovers.is_empty())
        {
            return;
        }
        let fresh = self.reserves(op_of(key), key & !WHAT);
        let place = self.place(key & !WHAT) as usize;
        let change = fresh - self.fresh[place];
        if change != 0 {
            self.reserve(place, change);
        }
    }

    /// Recomputes an op before op `stage` of the trace. It must not be recomputed there already.
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
            self.last[value as usize] = last(touches);
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
            self.last[value as usize] = last(touches);
            let before = touches[index - 1];
            let next = touches.get(index + 1).copied();
            if next.is_some_and(|next| !anew(next)) {
                self.cover(before, at, -size);
            }
            self.shift_copies(value, before, at, next, size);
            self.refresh(before);
        }
        self.reserve(place, self.reserves(op, at));
    }

    /// Offloads a tensor and prefetches it for one of its uses, or keeps it; one that is there from the beginning is put on
    /// the host between iterations if that is its first use. Changes nothing else, so that a repeat that reads a prefetched tensor must
    /// lose the prefetch before it is removed.
    pub(crate) fn set_prefetched(&mut self, value: u32, stage: u32, op: u32, prefetched: bool) {
        let at = key(stage, op);
        let size = self.inst.values[value as usize].size;
        let touches = &mut self.touches[value as usize];
        let index = touches.partition_point(|&touch| touch < at);
        touches[index] = if prefetched { at | PREFETCHED } else { at };
        let before = touches[index - 1];
        if prefetched {
            self.prefetches.push((value, stage, op));
            self.cover(before, at, -size);
        } else {
            let index = self.prefetches.iter().position(|&prefetch| prefetch == (value, stage, op));
            self.prefetches.swap_remove(index.expect("it was prefetched"));
            self.cover(before, at, size);
        }
        if self.copies.is_some() {
            self.count_copies(value, before == BEGIN, prefetched);
            self.cover_copies(value, before, at, if prefetched { size } else { -size });
        } else {
            let change = if prefetched { size } else { -size };
            self.reserve(self.place(at) as usize, change);
        }
        if before == BEGIN {
            self.set_left(self.inst.values[value as usize].becomes, prefetched);
        }
        self.refresh(before);
    }

    /// Lets the end of a tensor that persists leave after its last use, or stay.
    fn set_left(&mut self, value: u32, left: bool) {
        let size = self.inst.values[value as usize].size;
        let touches = &mut self.touches[value as usize];
        let [.., before, end] = touches.as_mut_slice() else { return };
        *end = if left { END | PREFETCHED } else { END };
        let before = *before;
        self.cover(before, END, if left { -size } else { size });
        self.cover_copies(value, before, END, if left { size } else { -size });
    }

    /// Lets the op of a place reserve so much more.
    fn reserve(&mut self, place: usize, change: i32) {
        self.fresh[place] += change;
        let before = self.excess_of(self.over[place]);
        self.over[place] += change;
        self.excess += self.excess_of(self.over[place]) - before;
    }

    /// Undoes [`AnnealState::insert`].
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
            self.last[value as usize] = last(touches);
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
            self.last[value as usize] = last(touches);
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
}

//! Queries of an [`AnnealState`]: which tensors are alive where, which are idle, which repeats serve which.

use super::super::instance::NONE;
use super::super::sequence::Decisions;
use super::{AnnealState, BEGIN, END, Key, MADE, PREFETCHED, WHAT, anew, key, op_of, stage_of};
use crate::policy::PrefetchRule;

impl AnnealState<'_> {
    /// All prefetches as (tensor, stage, op), in an order that only the history of the state determines.
    pub(crate) fn prefetches(&self) -> &[(u32, u32, u32)] {
        &self.prefetches
    }

    /// Number of places.
    pub(crate) fn places(&self) -> usize {
        self.starts[self.inst.ops.len()] as usize
    }

    /// The place with the largest live memory.
    pub(crate) fn highest_place(&self) -> usize {
        (0..self.over.len()).max_by_key(|&place| self.over[place]).unwrap_or(0)
    }

    /// Live memory minus limit at a place.
    pub(crate) fn over_at(&self, place: usize) -> i64 {
        i64::from(self.over[place])
    }

    /// An upper bound on the excess that a repeat removes: its outputs are not alive between the touch before and the repeat.
    pub(crate) fn gain_at_most(&self, stage: u32, op: u32) -> i64 {
        let at = key(stage, op);
        let high = self.place(at) as usize;
        let gain = |&value: &u32| {
            let touches = &self.touches[value as usize];
            let before = touches[touches.partition_point(|&touch| touch < at) - 1];
            // The op of that touch may have taken over their bytes.
            self.growth(self.place(before) as usize, high, self.inst.values[value as usize].size)
        };
        self.inst.ops[op as usize].outputs.iter().map(gain).sum()
    }

    /// The first place over the limit from a place on, going round.
    pub(crate) fn over_from(&self, place: usize) -> Option<usize> {
        let after = self.over[place..].iter().position(|&over| over > 0).map(|steps| place + steps);
        after.or_else(|| self.over[..place].iter().position(|&over| over > 0))
    }

    /// The time of a place, for [`AnnealState::idle_until`].
    pub(crate) fn moment(&self, place: usize) -> Key {
        let ops = self.inst.ops.len();
        let stage = self.starts[..=ops].partition_point(|&start| start as usize <= place) - 1;
        if stage == ops {
            return END;
        }
        let rank = place - self.starts[stage] as usize;
        key(stage as u32, self.again[stage].get(rank).copied().unwrap_or(stage as u32))
    }

    /// If a tensor is alive at a moment without being used there: its next use, as (stage, op).
    pub(crate) fn idle_until(&self, value: u32, moment: Key) -> Option<(u32, u32)> {
        let touches = &self.touches[value as usize];
        let index = touches.partition_point(|&touch| touch < moment);
        let next = *touches.get(index)?;
        (index > 0 && !anew(next) && next != moment && next != END).then(|| (stage_of(next), op_of(next)))
    }

    /// Tensors that are alive at a place without being used there and are used later, as (tensor, stage of the touch before, stage of the
    /// use, op of the use). Each can be prefetched for that use unless it is pinned.
    pub(crate) fn idle_at(&self, place: usize) -> impl Iterator<Item = (u32, u32, u32, u32)> {
        let at = self.moment(place);
        (0u32..).zip(&self.inst.values).filter_map(move |(value, row)| {
            // Most tensors are made later or over by then: to see that takes no look at their touches.
            let made = row.begins || row.maker < stage_of(at);
            if row.size == 0 || !made || self.last[value as usize] <= at && at != END {
                return None;
            }
            let touches = &self.touches[value as usize];
            let index = touches.partition_point(|&touch| touch < at);
            let next = *touches.get(index)?;
            if index == 0 || anew(next) || next == at {
                return None;
            }
            if next == END {
                return self.begins_on_host(row.began);
            }
            let before = touches[index - 1];
            let from = match before {
                BEGIN if row.becomes == NONE => return None,
                BEGIN => 0,
                before => stage_of(before),
            };
            Some((value, from, stage_of(next), op_of(next)))
        })
    }

    /// For a tensor that persists and could be on the host between iterations: the prefetch that would bring it, as [`AnnealState::idle_at`] has it.
    pub(super) fn begins_on_host(&self, value: u32) -> Option<(u32, u32, u32, u32)> {
        let first = *self.touches.get(value as usize)?.get(1)?;
        (!anew(first) && first != END).then(|| (value, 0, stage_of(first), op_of(first)))
    }

    /// If a tensor that persists is at a moment on the device without being used there, and could be away: the use before which it would be
    /// prefetched, as (stage, op).
    pub(crate) fn idle_persistent(&self, value: u32, moment: Key) -> Option<(u32, u32)> {
        let end = self.touches[self.inst.values[value as usize].becomes as usize].as_slice();
        if let [.., last, END] = end
            && *last < moment
        {
            return self.begins_on_host(value).map(|(_, _, stage, op)| (stage, op));
        }
        self.idle_until(value, moment)
    }

    /// The use of a tensor after an op, as (stage, op), if it is prefetched for it.
    pub(crate) fn next_prefetched(&self, value: u32, stage: u32, op: u32) -> Option<(u32, u32)> {
        let touches = &self.touches[value as usize];
        let next = *touches.get(touches.partition_point(|&touch| touch <= key(stage, op) | WHAT))?;
        (next & PREFETCHED != 0 && next & !WHAT != END).then(|| (stage_of(next), op_of(next)))
    }

    /// Whether a tensor that is there before an op reads it could be prefetched for that instead.
    pub(crate) fn can_prefetch(&self, value: u32, stage: u32, op: u32) -> bool {
        let row = self.inst.values[value as usize];
        let touches = &self.touches[value as usize];
        let index = touches.binary_search(&key(stage, op));
        !row.pinned && index.is_ok_and(|index| touches[index - 1] != BEGIN || row.becomes != NONE)
    }

    /// The next touch of a tensor after an op, as (stage, op), if it is a use at which the tensor is there anyway.
    pub(crate) fn next_plain(&self, value: u32, stage: u32, op: u32) -> Option<(u32, u32)> {
        let touches = &self.touches[value as usize];
        let next = *touches.get(touches.partition_point(|&touch| touch <= key(stage, op) | WHAT))?;
        (!anew(next) && next != END).then(|| (stage_of(next), op_of(next)))
    }

    /// Whether an op reads a tensor that is there anyway.
    pub(crate) fn is_plain(&self, value: u32, stage: u32, op: u32) -> bool {
        self.touches[value as usize].binary_search(&key(stage, op)).is_ok()
    }

    /// Whether a tensor is prefetched for an op that reads it.
    pub(crate) fn has_prefetch(&self, value: u32, stage: u32, op: u32) -> bool {
        self.is_prefetched_at(value, key(stage, op))
    }

    /// The stage of the touch before that of an op that reads a tensor; `None` for the beginning of the iteration.
    pub(crate) fn use_before(&self, value: u32, stage: u32, op: u32) -> Option<u32> {
        let touches = &self.touches[value as usize];
        let index = touches.partition_point(|&touch| touch < key(stage, op));
        let before = *touches[..index].last()?;
        (before != BEGIN).then(|| stage_of(before))
    }

    /// Whether an op is recomputed in a stage.
    pub(crate) fn has(&self, stage: u32, op: u32) -> bool {
        self.again[stage as usize].binary_search(&op).is_ok()
    }

    /// All repeats as (stage, op), in an order that only the history of the state determines.
    pub(crate) fn repeats(&self) -> &[(u32, u32)] {
        &self.repeats
    }

    /// Ops recomputed in a stage, ascending.
    pub(crate) fn again(&self, stage: u32) -> &[u32] {
        &self.again[stage as usize]
    }

    /// Number of touches of a tensor.
    pub(crate) fn touch_count(&self, value: u32) -> usize {
        self.touches[value as usize].len()
    }

    /// A touch of a tensor as (stage, op), if it is a use at which the tensor is there anyway.
    pub(crate) fn plain_use(&self, value: u32, index: usize) -> Option<(u32, u32)> {
        let touch = self.touches[value as usize][index];
        (touch != END && !anew(touch)).then(|| (stage_of(touch), op_of(touch)))
    }

    /// Whether a tensor that an op run in some stage reads would be there anyway: used again later, before it is recomputed.
    pub(crate) fn alive_at(&self, value: u32, stage: u32, op: u32) -> bool {
        self.needed_after(value, key(stage, op))
    }

    /// Where a tensor was made last before an op run in some stage, as (stage, op); `None` for the beginning.
    pub(crate) fn made_before(&self, value: u32, stage: u32, op: u32) -> Option<(u32, u32)> {
        let touches = &self.touches[value as usize];
        let index = touches.partition_point(|&touch| touch < key(stage, op));
        let made = touches[..index].iter().rev().find(|&&touch| touch & MADE != 0)?;
        (*made != BEGIN).then(|| (stage_of(*made), op_of(*made)))
    }

    /// Whether no op uses what a repeat makes.
    pub(crate) fn useless(&self, stage: u32, op: u32) -> bool {
        let outputs = &self.inst.ops[op as usize].outputs;
        outputs.iter().all(|&value| !self.needed_after(value, key(stage, op)))
    }

    /// What the state decides, with a rule for prefetches.
    pub(crate) fn decisions(&self, rule: PrefetchRule) -> Decisions {
        let (mut repeats, mut prefetches) = (self.repeats.clone(), self.prefetches.clone());
        repeats.sort_unstable();
        prefetches.sort_unstable();
        Decisions { repeats, prefetches, rule }
    }
}

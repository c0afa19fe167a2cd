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

use super::instance::{Instance, NONE};

/// When something happens: stage, op, and in the last bit whether a value is made. The trace's own ops are stage and op alike.
type Key = u64;

const END: Key = Key::MAX - 1;

const fn key(stage: u32, op: u32) -> Key {
    ((stage as u64 + 1) << 32) | ((op as u64) << 1)
}

const fn stage_of(key: Key) -> u32 {
    ((key >> 32) as u32) - 1
}

const fn op_of(key: Key) -> u32 {
    (key as u32) >> 1
}

const fn makes(key: Key) -> bool {
    key & 1 == 1
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct State<'a> {
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
                touches.push(1);
            }
        }
        for (i, op) in (0u32..).zip(&inst.ops) {
            for &value in &op.outputs {
                touches[value as usize].push(key(i, i) | 1);
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
                if !makes(touch)
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
        if key == 1 {
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
        let low = if from == 1 { 0 } else { self.place(from) as usize + 1 };
        let high = self.place(to) as usize;
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

    /// What an op reserves: outputs and workspace, less what it takes over from inputs that nobody uses later.
    fn reserves(&self, op: u32, key: Key) -> i32 {
        let row = &self.inst.ops[op as usize];
        let mut fresh = row.fresh;
        if row.takeovers.is_empty() {
            return fresh;
        }
        let mut taken = [NONE; 4];
        for (slot, list) in row.takeovers.iter().take(4).enumerate() {
            let pick = list.iter().find(|t| !taken.contains(&t.input) && !self.needed_after(t.input, key));
            if let Some(pick) = pick {
                taken[slot] = pick.input;
                fresh -= pick.size;
            }
        }
        fresh
    }

    /// Whether what is there of a value at some time is used later.
    fn needed_after(&self, value: u32, key: Key) -> bool {
        let touches = &self.touches[value as usize];
        touches.get(touches.partition_point(|&touch| touch <= key | 1)).is_some_and(|&next| !makes(next))
    }

    /// Counts again what the op of a touch reserves, after a change of who uses its inputs last.
    fn refresh(&mut self, key: Key) {
        if key == END || key == 1 || self.inst.ops[op_of(key) as usize].takeovers.is_empty() {
            return;
        }
        let fresh = self.reserves(op_of(key), key & !1);
        let place = self.place(key & !1) as usize;
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
            if touches.get(index + 1).is_none_or(|&next| makes(next)) {
                self.cover(before, at, size);
                self.refresh(before);
            }
        }
        for &value in &row.outputs {
            let size = inst.values[value as usize].size;
            let touches = &mut self.touches[value as usize];
            let index = touches.partition_point(|&touch| touch < at);
            touches.insert(index, at | 1);
            let before = touches[index - 1];
            if touches.get(index + 1).is_some_and(|&next| !makes(next)) {
                self.cover(before, at, -size);
                self.refresh(before);
            }
        }
        let fresh = self.reserves(op, at);
        self.fresh[place] = fresh;
        let before = self.excess_of(self.over[place]);
        self.over[place] += fresh;
        self.excess += self.excess_of(self.over[place]) - before;
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
            let wanted = touches.get(index + 1).is_some_and(|&next| !makes(next));
            touches.remove(index);
            if wanted {
                self.cover(before, at, size);
                self.refresh(before);
            }
        }
        for &value in &row.reads {
            let size = inst.values[value as usize].size;
            let touches = &mut self.touches[value as usize];
            let index = touches.partition_point(|&touch| touch < at);
            let before = touches[index - 1];
            let last = touches.get(index + 1).is_none_or(|&next| makes(next));
            touches.remove(index);
            if last {
                self.cover(before, at, -size);
                self.refresh(before);
            }
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

    /// A touch of a value as (stage, op, made); `None` for the beginning and the end of the iteration.
    pub(crate) fn touch(&self, value: u32, index: usize) -> Option<(u32, u32, bool)> {
        let touch = self.touches[value as usize][index];
        (touch != END && touch != 1).then(|| (stage_of(touch), op_of(touch), makes(touch)))
    }

    /// Whether a value that an op run in some stage reads would be there anyway: used again later, before it is made again.
    pub(crate) fn alive_at(&self, value: u32, stage: u32, op: u32) -> bool {
        self.needed_after(value, key(stage, op))
    }

    /// Where a value was made last before an op run in some stage, as (stage, op); `None` for the beginning.
    pub(crate) fn made_before(&self, value: u32, stage: u32, op: u32) -> Option<(u32, u32)> {
        let touches = &self.touches[value as usize];
        let index = touches.partition_point(|&touch| touch < key(stage, op));
        let made = touches[..index].iter().rev().find(|&&touch| makes(touch))?;
        (*made != 1).then(|| (stage_of(*made), op_of(*made)))
    }

    /// Whether nobody uses what a repeat makes.
    pub(crate) fn useless(&self, stage: u32, op: u32) -> bool {
        let outputs = &self.inst.ops[op as usize].outputs;
        outputs.iter().all(|&value| !self.needed_after(value, key(stage, op)))
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
        for (place, &op) in sequence.iter().enumerate() {
            for &value in &self.inst.ops[op as usize].outputs {
                uses[value as usize].push((place, true));
            }
            for &value in &self.inst.ops[op as usize].reads {
                uses[value as usize].push((place, false));
            }
        }
        let mut over = vec![-self.inst.limit; n + 1];
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
                    uses[input as usize].iter().find(|&&(p, _)| p > place).is_none_or(|&(_, made)| made)
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

    fn walk_at_random(trace: &Trace, seed: u64) {
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
        let mut random = Random::new(seed);
        for step in 0..60 {
            let stage = random.below(inst.ops.len()) as u32;
            let op = random.below(inst.ops.len()) as u32;
            if op >= stage || stage > inst.ops[op as usize].latest {
                continue;
            }
            if state.has(stage, op) {
                state.remove(stage, op)
            } else {
                state.insert(stage, op)
            }
            let over = state.over_from_nothing();
            assert_eq!(state.over(), over, "after step {step}");
            assert_eq!(state.excess, over.iter().map(|&over| state.excess_of(over)).sum::<i64>());
            assert_eq!(state.time, state.sequence().map(|op| inst.ops[op as usize].time).sum::<u64>());
            let plain = |pair: &Persistent| trace.storage(pair.begin) == trace.storage(pair.end);
            if step % 8 == 0 && trace.persistent().iter().all(plain) {
                let mut repeats = state.repeats().to_vec();
                repeats.sort_unstable();
                let (load, _) = least_load(&request, &policy(&request, &repeats)).unwrap();
                let units = i64::from(state.highest()) + 64 / inst.unit as i64;
                assert_eq!(units * inst.unit as i64, load.get() as i64, "lowering counts the same load");
            }
        }
    }

    #[test]
    fn changes_agree_with_evaluation_from_nothing_and_with_lowering() {
        let mut seed = 0;
        arbtest::arbtest(|u| {
            let trace = elbowroom_ir::arbitrary::trace(u)?;
            seed += 1;
            walk_at_random(&trace, seed);
            Ok(())
        });
    }
}

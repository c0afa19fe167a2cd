//! The whole evaluation again from nothing, and changes at random compared with it and with lowering.

use elbowroom_graph::zoo::{self, Options};
use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::planning::{CostSource, Costs, Freedom, Request};
use elbowroom_ir::trace::{Persistent, Trace};
use elbowroom_ir::{Bytes, Nanos};

use super::super::moves::Editor;
use super::super::sequence::{Decisions, PolicyDraft, policy};
use super::*;
use crate::lower::{least_live, lower};
use crate::policy::{Policy, PrefetchRule};
use crate::random::Random;

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
        half_flops_per_second: None,
        bytes_per_second: 1,
        launch: Nanos::ZERO,
    }
}

/// The same decisions again from nothing, in another order.
fn again(state: &AnnealState<'_>) -> Vec<i32> {
    let mut other = AnnealState { copies: state.copies.clone(), ..AnnealState::new(state.inst) };
    let decisions = state.decisions(PrefetchRule::Eager);
    decisions.repeats.iter().rev().for_each(|&(stage, op)| other.insert(stage, op));
    decisions.prefetches.iter().for_each(|&(value, stage, op)| other.set_prefetched(value, stage, op, true));
    assert_eq!((state.time, state.excess, state.copying), (other.time, other.excess, other.copying));
    other.over
}

/// A state of other decisions that is set to these at once is the same in all but the order of its lists.
fn set_at_once(state: &AnnealState<'_>, other: &mut AnnealState<'_>) {
    let Decisions { repeats, prefetches, .. } = state.decisions(PrefetchRule::Eager);
    other.set(&repeats, &prefetches);
    assert_eq!(other.decisions(PrefetchRule::Eager), state.decisions(PrefetchRule::Eager));
    assert_eq!((&other.again, &other.starts, &other.touches), (&state.again, &state.starts, &state.touches));
    assert_eq!((&other.over, &other.fresh, &other.last), (&state.over, &state.fresh, &state.last));
    assert_eq!((other.time, other.excess, other.copying), (state.time, state.excess, state.copying));
}

/// What is idle at a place, from the touches alone.
fn idle_from_nothing(state: &AnnealState<'_>, place: usize) -> Vec<(u32, u32, u32, u32)> {
    let at = state.moment(place);
    let mut idle = Vec::new();
    for (value, row) in (0u32..).zip(&state.inst.values).filter(|(_, row)| row.size > 0) {
        let touches = &state.touches[value as usize];
        let Some(index @ 1..) = touches.iter().position(|&touch| touch >= at) else { continue };
        let (before, next) = (touches[index - 1], touches[index]);
        let absent = anew(next) || next == at || before == BEGIN && row.becomes == NONE && next != END;
        match next {
            _ if absent => {}
            END => idle.extend(state.begins_on_host(row.began)),
            _ if before == BEGIN => idle.push((value, 0, stage_of(next), op_of(next))),
            _ => idle.push((value, stage_of(before), stage_of(next), op_of(next))),
        }
    }
    idle
}

/// A request with every freedom and little memory.
fn request<'a>(trace: &'a Trace, costs: &'a Costs, machine: &'a Machine) -> Request<'a> {
    let freedom = Freedom::ALL;
    Request { trace, costs, machine, live_limit: Bytes(64), freedom, packer: None, pins: None }
}

fn walk_at_random(trace: &Trace, seed: u64, timed: bool) {
    let nanos = (1..=trace.ops().len() as u64).map(Nanos).collect();
    let costs = Costs { nanos, source: CostSource::Recorded };
    let machine = machine();
    let request = request(trace, &costs, &machine);
    let inst = Instance::new(&request, Policy::prompt(trace).sequence);
    let mut state = AnnealState::new(&inst);
    if timed {
        let times: Vec<u64> = (0..inst.values.len() as u64).map(|value| 1 + value % 5).collect();
        let starts = (0..=inst.ops.len() as u64).map(|op| op * (op + 1) / 2).collect();
        state.copies = Some(Arc::new(Copies { out: times.clone(), back: times, starts }));
    }
    let mut other = state.clone();
    let mut random = Random::new(seed);
    let mut draft = PolicyDraft::new(&request);
    for step in 0..80 {
        let stage = random.below(inst.ops.len()) as u32;
        let op = random.below(inst.ops.len()) as u32;
        let reads = &inst.ops[stage as usize].reads;
        if !reads.is_empty() && random.chance(0.4) {
            let value = reads[random.below(reads.len())];
            let prefetched = state.has_prefetch(value, stage, stage);
            if prefetched || state.can_prefetch(value, stage, stage) {
                state.set_prefetched(value, stage, stage, !prefetched);
            }
        } else if op >= stage || stage > inst.ops[op as usize].latest {
            continue;
        } else if state.has(stage, op) {
            state.remove(stage, op);
        } else {
            state.insert(stage, op);
        }
        let over = if timed { again(&state) } else { state.over_from_nothing() };
        assert_eq!(state.over(), over, "after step {step}");
        if step % 4 == 0 {
            set_at_once(&state, &mut other);
        }
        assert_eq!(state.excess, over.iter().map(|&over| state.excess_of(over)).sum::<i64>());
        let place = random.below(state.places() + 1);
        let idle: Vec<_> = state.idle_at(place).collect();
        assert_eq!(idle, idle_from_nothing(&state, place), "at place {place} after step {step}");
        assert!(idle.iter().all(|&(value, _, stage, op)| state.can_prefetch(value, stage, op)));
        assert_eq!(state.time, state.sequence().map(|op| inst.ops[op as usize].time).sum::<u64>());
        let plain = |pair: &Persistent| trace.storage(pair.begin) == trace.storage(pair.end);
        if !timed && step % 8 == 0 && trace.persistent().iter().all(plain) {
            let decided = state.decisions(PrefetchRule::Eager);
            let policy = policy(&request, &inst, &decided);
            let (live_bytes, _) = least_live(&request, &policy).unwrap();
            // The time that a search gets is that of the lowered schedule, or none if that is too long.
            let request = Request { live_limit: live_bytes, ..request };
            let time = lower(&request, &policy).unwrap().iteration.get();
            draft.set(&request, &inst, &decided);
            assert_eq!(draft.time_within(&request, time), Some(time));
            assert_eq!(draft.time_within(&request, u64::MAX), Some(time));
            assert_eq!(time.checked_sub(1).and_then(|less| draft.time_within(&request, less)), None);
            let bytes = (i64::from(state.highest()) + 64 / inst.unit as i64) * inst.unit as i64;
            // A tensor that has a copy on the host already may be reused where the search expects an offload.
            let reuse = trace.ops().values().any(|op| !op.may_reuse.is_empty());
            assert!(bytes >= live_bytes.get() as i64, "lowering needs more");
            assert!(
                bytes == live_bytes.get() as i64 || reuse && !state.prefetches().is_empty(),
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

#[test]
fn changes_of_a_sequence_of_many_stretches_agree_too() {
    let trace = zoo::build("resnet20", &Options::new(4)).unwrap().trace(&|_, _| Bytes(16)).unwrap();
    assert!(trace.ops().len() > 4 * STRETCH);
    for seed in 0..4 {
        walk_at_random(&trace, seed, seed % 2 == 0);
    }
}

#[test]
fn groups_of_persistent_tensors_move_and_move_back() {
    let (mut seed, mut moved) = (0, 0);
    arbtest::arbtest(|u| {
        let trace = elbowroom_ir::arbitrary::trace(u)?;
        seed += 1;
        let nanos = trace.ops().values().map(|_| Nanos(1)).collect();
        let costs = Costs { nanos, source: CostSource::Recorded };
        let machine = machine();
        let request = request(&trace, &costs, &machine);
        let inst = Instance::new(&request, Policy::prompt(&trace).sequence);
        let mut editor = Editor::new(AnnealState::new(&inst), seed);
        for step in 0..40 {
            let before = editor.state.decisions(PrefetchRule::Eager);
            if !editor.propose_group() {
                continue;
            }
            moved += 1;
            let value = |&(value, ..): &(u32, u32, u32)| inst.values[value as usize];
            assert!(editor.state.prefetches().iter().map(value).all(|value| value.may_begin_on_host()));
            assert_eq!(editor.state.over(), editor.state.over_from_nothing());
            if step % 2 == 0 {
                editor.settle();
            } else {
                editor.undo();
                assert_eq!(editor.state.decisions(PrefetchRule::Eager), before);
            }
        }
        Ok(())
    });
    assert!(moved > 0, "no group has moved");
}

impl AnnealState<'_> {
    /// Largest live memory minus limit.
    pub(crate) fn highest(&self) -> i32 {
        self.over.iter().copied().max().unwrap_or(0)
    }

    /// The sequence of ops.
    pub(crate) fn sequence(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.again).flat_map(|(op, again)| again.iter().copied().chain([op]))
    }

    /// The whole evaluation again from nothing, to compare with.
    pub(crate) fn over_from_nothing(&self) -> Vec<i32> {
        let sequence: Vec<u32> = self.sequence().collect();
        let n = sequence.len();
        let mut uses: Vec<Vec<(usize, bool)>> = vec![Vec::new(); self.inst.values.len()];
        let mut over = vec![-self.inst.limit; n + 1];
        let mut prefetched = Vec::new();
        let mut stage = 0;
        for (place, &op) in sequence.iter().enumerate() {
            for &value in &self.inst.ops[op as usize].outputs {
                uses[value as usize].push((place, true));
            }
            for &value in &self.inst.ops[op as usize].reads {
                let actions = self.prefetches.contains(&(value, stage, op));
                if actions {
                    over[place] += self.inst.values[value as usize].size;
                    prefetched.push((value, place));
                }
                uses[value as usize].push((place, actions));
            }
            stage += u32::from(stage == op);
        }
        // A tensor that is prefetched for its first use is on the host between iterations.
        let first = |value: u32| uses.get(value as usize).and_then(|uses| uses.first());
        let left: Vec<bool> = self
            .inst
            .values
            .iter()
            .map(|value| first(value.began).is_some_and(|&(_, actions)| actions))
            .collect();
        for ((value, uses), left) in self.inst.values.iter().zip(&mut uses).zip(left) {
            if value.ends {
                uses.push((n, left));
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
                    next.is_none_or(|&(p, anew)| anew && !prefetched.contains(&(input, p)))
                };
                if let Some(t) = list.iter().find(|t| !taken.contains(&t.input) && dies(t.input)) {
                    taken.push(t.input);
                    over[place] -= t.size;
                }
            }
        }
        over
    }

    pub(crate) fn over(&self) -> &[i32] {
        &self.over
    }
}

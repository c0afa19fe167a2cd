//! `pofo`: the optimal combination of recompute and offload on a chain (O. Beaumont, L. Eyraud-Dubois and A. Shilova, *Efficient combination of
//! rematerialization and offloading for training DNNs*, NeurIPS 2021), a dynamic program over the layers that knows both.
//!
//! The forward phase is cut into *parts*. A part is one layer that keeps x̄, all that its backward op needs; or some layers i..j of which nothing
//! stays but the input of layer i, and which the backward phase runs again as [`rotor`](crate::recompute::rotor) would. The input of
//! every part stays, or it is offloaded during the part and prefetched for it. Copies may be interrupted and release their bytes as they go.
//!
//! ```text
//! forward     F_0 keeps x̄_1      F_1 … F_4 keep x_1         F_5 keeps x̄_6     loss
//! backward    B_0                 F_1 … F_4, B_4 … B_1       B_5
//!             part 0              part 1..4                  part 5
//! ```
//!
//! A state before layer i holds A, the inputs of earlier parts that stay; δ_F, what is still to be offloaded at that moment of the forward phase;
//! δ_B, the same of the backward phase in mirrored time, where a prefetch is an offload; and whether the input is x_i or x̄_i. With M the memory
//! and I the input, a layer that keeps x̄ leads to
//!
//! ```text
//! ε_F = max(0, δ_F + A + I + m(F_i) − M)        δ_F' = max(0, δ_F (+ I) − β·F_i − ε_F)
//! ε_B = max(0, δ_B + A + I + m(B_i) − M)        δ_B' = max(0, δ_B − β·B_i − ε_B) (+ I)        time F_i + B_i + (ε_F + ε_B) / β
//! ```
//!
//! where what is in brackets belongs to an input that is offloaded, and a part i..j likewise with the most of its forward ops, and with
//! rotor's time for i..j in place of B_i. Behind the loss the link finishes: (δ_F + δ_B) / β.
//!
//! What is not the paper's, whose text states more than the public descriptions from which this was written: a part is recomputed within one amount
//! of memory from its beginning to its end, chosen so that its time and the wait for the prefetches in its way are least, while memory
//! grows in truth as prefetches are not there yet; a part's input holds its bytes until the part has run forward, though it may be on the host
//! before; states are reached from the first layer on instead of filled in for all sizes, so that δ is not rounded, and if a layer
//! has more than [`Pofo::states`] of them, one is kept for each cell of a grid. A trace becomes a chain as for `rotor`; the best few plans
//! for some amounts of memory are simulated exactly with whole copies, and the shortest schedule that fits is kept. A coarse pass with few slots
//! and layers goes before: it takes a tenth of the time, and with whole copies its schedules are as often the shortest ones.

use std::collections::{HashMap, HashSet};

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_ir::{Bytes, OpId, TensorId};

use crate::lower::lower;
use crate::policy::{Gap, GapAction, Policy, PrefetchRule, SequenceIndex, Touches, backward_start};
use crate::recompute::layered::Layered;
use crate::recompute::profile::{Move, Profile};
use crate::recompute::repeats;
use crate::recompute::rotor::Optimum;
use crate::search::Search;

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pofo {
    /// The limit is cut into this many slots.
    pub slots: u32,
    /// A trace is cut into at most this many layers.
    pub layers: usize,
    /// States kept before each layer, of either input.
    pub states: usize,
    /// Plans that are simulated for each amount of memory.
    pub plans: usize,
}

impl Pofo {
    /// 500 slots, as published for `rotor`.
    pub const DEFAULT: Self = Self { slots: 500, layers: 96, states: 250, plans: 8 };
    /// What the first pass is cut down to, and a planner of that pass alone.
    pub const COARSE: Self = Self { slots: 100, layers: 32, states: 30, plans: 3 };
}

impl Default for Pofo {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Plans of one amount of memory that offload the same inputs: most of the next ones differ in a small layer that is recomputed.
const ALIKE: usize = 3;

/// The dynamic program for one chain. Sizes are slots, times are nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// The chain in slots.
    pub profile: &'a Profile,
    /// `rotor`'s times for every part of it, for at least the memory of [`solve`](Self::solve).
    pub table: &'a Optimum,
    /// Time in which the link offloads a slot and in which it prefetches one; `None` forbids offload.
    pub slot_times: Option<[u64; 2]>,
    /// Whether layers may be recomputed.
    pub recompute: bool,
    /// States kept before each layer, of either input.
    pub states: usize,
}

/// States that are considered for each that is kept.
const AHEAD: usize = 16;

/// A part of the forward phase, and what becomes of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// The layer at which it begins.
    pub start: usize,
    /// The layer after its last one.
    pub end: usize,
    /// Memory for its second run, in slots; `None` for a layer that keeps x̄.
    pub memory: Option<usize>,
    /// Whether its input is offloaded.
    pub offload: bool,
}

/// A path through the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Time of the iteration with copies that may be interrupted, in nanoseconds.
    pub time: u64,
    /// The parts, in order.
    pub parts: Vec<Part>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// A, in slots.
    stays: u64,
    /// δ_F and δ_B as times of the link.
    to_offload: u64,
    to_prefetch: u64,
    time: u64,
    /// The state before and the part from there; the first state has none.
    from: Option<(usize, Part)>,
}

impl State {
    fn no_worse(&self, other: &Self) -> bool {
        self.time <= other.time
            && self.stays <= other.stays
            && self.to_offload <= other.to_offload
            && self.to_prefetch <= other.to_prefetch
    }
}

/// What the program knows before a layer: the states with x_i as input, and those with x̄_i.
type Reached = [Vec<State>; 2];

impl Program<'_> {
    /// The best plans within this many slots, the shortest first, few of which offload the same inputs. `None` if the observer interrupts.
    pub fn solve(&self, memory: u64, plans: usize, observer: &dyn Observer) -> Option<Vec<Plan>> {
        let n = self.profile.forward.len();
        let mut reached: Vec<Reached> = vec![Reached::default(); n + 1];
        reached[0][0].push(State { stays: 0, to_offload: 0, to_prefetch: 0, time: 0, from: None });
        let mut all: Vec<State> = Vec::new();
        for i in 0..n {
            if observer.interrupted() {
                return None;
            }
            for (saved, states) in std::mem::take(&mut reached[i]).into_iter().enumerate() {
                let input = if saved == 1 { self.profile.saved[i] } else { self.profile.plain[i] };
                for state in self.thin(states, i, input, memory) {
                    let number = all.len();
                    all.push(state);
                    self.advance(i, input, memory, number, &state, &mut reached);
                }
            }
        }
        let mut ends: Vec<State> = Vec::new();
        for (saved, states) in std::mem::take(&mut reached[n]).into_iter().enumerate() {
            let last = if saved == 1 { self.profile.saved[n] } else { self.profile.plain[n] };
            let fits = |state: &State| state.stays + last + self.profile.plain[n] <= memory;
            ends.extend(states.into_iter().filter(fits).map(|state| State {
                time: state.time + state.to_offload + state.to_prefetch,
                to_offload: 0,
                to_prefetch: 0,
                ..state
            }));
        }
        ends.sort_by_key(|state| (state.time, state.stays));
        let mut found: Vec<Plan> = Vec::new();
        for end in ends {
            if found.len() >= plans {
                break;
            }
            let mut parts = Vec::new();
            let mut next = end.from;
            while let Some((number, part)) = next {
                parts.push(part);
                next = all[number].from;
            }
            parts.reverse();
            let plan = Plan { time: end.time, parts };
            let same = |known: &&Plan| plan.offloads().eq(known.offloads());
            if found.iter().filter(same).count() < ALIKE && !found.contains(&plan) {
                found.push(plan);
            }
        }
        Some(found)
    }

    /// Every part from a state on.
    fn advance(
        &self,
        i: usize,
        input: u64,
        memory: u64,
        number: usize,
        state: &State,
        reached: &mut [Reached],
    ) {
        let Profile { forward, backward, plain, saved, forward_extra, backward_extra } = self.profile;
        let n = forward.len();
        let Some(room) = memory.checked_sub(state.stays + input) else { return };
        let slot_times = self.slot_times.unwrap_or_default();
        // How long the link must work before this much of the room is free of bytes that wait for it.
        let wait = |pending: u64, need: u64, slot_time: u64| {
            Some(pending.saturating_sub(room.checked_sub(need)?.saturating_mul(slot_time)))
        };
        let mut reach = |part: Part, saved: usize, times: [u64; 2]| {
            for offload in [false, true] {
                // Nothing is gained where there is nothing to offload.
                if offload && (self.slot_times.is_none() || input == 0) {
                    continue;
                }
                let copied = |direction: usize| if offload { input * slot_times[direction] } else { 0 };
                reached[part.end][saved].push(State {
                    stays: state.stays + if offload { 0 } else { input },
                    to_offload: (state.to_offload + copied(0)).saturating_sub(times[0]),
                    to_prefetch: state.to_prefetch.saturating_sub(times[1]) + copied(1),
                    time: state.time + times[0] + times[1],
                    from: Some((number, Part { offload, ..part })),
                });
            }
        };
        let ahead = saved[i + 1] + forward_extra[i];
        let back = plain[i] + plain[i + 1] + saved[i + 1] + backward_extra[i];
        if let Some(waits) = wait(state.to_offload, ahead, slot_times[0])
            && let Some(waits_back) = wait(state.to_prefetch, back, slot_times[1])
        {
            let times = [forward[i].get() + waits, backward[i].get() + waits_back];
            reach(Part { start: i, end: i + 1, memory: None, offload: false }, 1, times);
        }
        if !self.recompute {
            return;
        }
        // The most that a forward op of the part waits after those before it.
        let (mut waits, mut ran) = (0, 0);
        for j in i..n {
            let carried = if j > i { plain[j] } else { 0 };
            let need = carried + plain[j + 1] + forward_extra[j];
            let Some(until) = wait(state.to_offload, need, slot_times[0]) else { return };
            waits = waits.max(until.saturating_sub(ran));
            ran += forward[j].get();
            // From the most memory on: once nothing has to wait, less memory only takes longer.
            let mut best: Option<(u64, u64)> = None;
            for (need, time) in self.table.steps(i, j, room).rev() {
                let Some(waits) = wait(state.to_prefetch, need, slot_times[1]) else { continue };
                if best.is_none_or(|(least, _)| time + waits < least) {
                    best = Some((time + waits, need));
                }
                if waits == 0 {
                    break;
                }
            }
            if let Some((time_back, need)) = best {
                let part = Part { start: i, end: j + 1, memory: usize::try_from(need).ok(), offload: false };
                reach(part, 0, [ran + waits, time_back]);
            }
        }
    }

    /// An iteration time within reach of a state: from here on as `rotor` would go on, which offloads nothing, once or while the link has
    /// copied what waits for it.
    fn reachable(&self, i: usize, input: u64, memory: u64, state: &State) -> u64 {
        let n = self.profile.forward.len();
        let [out, back] = self.slot_times.unwrap_or([1; 2]);
        let pending = state.to_offload.div_ceil(out).max(state.to_prefetch.div_ceil(back));
        let waits = state.to_offload + state.to_prefetch;
        let rest =
            |pending: u64| self.table.part_time(i, n, memory.checked_sub(state.stays + input + pending)?);
        let soon = rest(pending).map(|rest| state.time + rest.max(state.to_offload.max(state.to_prefetch)));
        let late = rest(0).map(|rest| state.time + waits + rest);
        soon.into_iter().chain(late).min().unwrap_or(u64::MAX)
    }

    /// The states of which no other is as good. If there are more than [`states`](Self::states), half of these are those within reach of the
    /// shortest iterations, and half are one for each cell of the finest grid that suffices.
    fn thin(&self, states: Vec<State>, i: usize, input: u64, memory: u64) -> Vec<State> {
        let mut states: Vec<(u64, State)> =
            states.into_iter().map(|state| (self.reachable(i, input, memory, &state), state)).collect();
        let order = |&(reachable, state): &(u64, State)| {
            (reachable, state.time, state.stays, state.to_offload, state.to_prefetch)
        };
        // Few of those far behind ever lead; they are left out so that they need not be sorted.
        let ahead = self.states.saturating_mul(AHEAD);
        if states.len() > ahead {
            states.select_nth_unstable_by_key(ahead, order);
            states.truncate(ahead);
        }
        states.sort_unstable_by_key(order);
        let mut best: Vec<State> = Vec::new();
        let mut rest: Vec<State> = Vec::new();
        for (_, state) in states {
            if best.len() < self.states.div_ceil(2).max(1) {
                if !best.iter().any(|known| known.no_worse(&state)) {
                    best.push(state);
                }
            } else {
                rest.push(state);
            }
        }
        let most = self.states.saturating_sub(best.len());
        let [out, back] = self.slot_times.unwrap_or([1; 2]);
        let mut grid = 4;
        while rest.len() > most {
            let mut known = HashSet::new();
            rest.retain(|state| {
                let waits = [(state.to_offload, out), (state.to_prefetch, back)];
                known.insert((state.stays / grid, waits.map(|(time, slot)| time / slot / grid)))
            });
            grid *= 2;
        }
        best.extend(rest);
        best
    }
}

impl Plan {
    /// The layers whose inputs are offloaded.
    fn offloads(&self) -> impl Iterator<Item = usize> + '_ {
        self.parts.iter().filter(|part| part.offload).map(|part| part.start)
    }

    /// The plan as moves over layers.
    fn moves(&self, table: &Optimum) -> Vec<Move> {
        let save = |part: &Part| part.memory.is_none();
        let ahead = self.parts.iter().flat_map(|part| {
            (part.start..part.end).map(move |layer| Move::Forward { layer, save: save(part) })
        });
        let mut moves: Vec<Move> = ahead.collect();
        for part in self.parts.iter().rev() {
            match part.memory {
                None => moves.push(Move::Backward { layer: part.start }),
                Some(memory) => moves.extend(table.part(part.start, part.end - 1, memory)),
            }
        }
        moves
    }

    /// The tensors that are offloaded.
    fn offloaded(&self, layered: &Layered<'_>) -> Vec<TensorId> {
        let mut after_saved = false;
        let mut tensors = Vec::new();
        for part in &self.parts {
            if part.offload {
                tensors.extend(layered.input(part.start, after_saved));
            }
            after_saved = part.memory.is_none();
        }
        tensors
    }
}

impl Pofo {
    /// The same, no finer than another.
    fn at_most(&self, other: &Self) -> Self {
        Self {
            slots: self.slots.min(other.slots),
            layers: self.layers.min(other.layers),
            states: self.states.min(other.states),
            plans: self.plans.min(other.plans),
        }
    }

    /// Tries the plans of every chain that the trace becomes.
    fn pass(&self, request: &Request<'_>, tries: &mut Tries<'_>) {
        let slots = u64::from(self.slots.clamp(1, 1 << 16));
        for layered in Layered::of(request.trace, self.layers.clamp(1, 1 << 10)) {
            if tries.over() {
                break;
            }
            let Ok((profile, base)) = layered.profile(request) else { continue };
            let slot = request.live_limit.saturating_sub(base).get().div_ceil(slots).max(1);
            // The chain counts some tensors twice and others for too long, so that more than the limit may do as well.
            let profile = profile.in_slots(slot);
            let memory = profile.peak().min(2 * slots);
            let Some(table) = Optimum::of(&profile, memory as usize, tries.search.observer) else { break };
            let rates = [request.machine.to_host.rate, request.machine.to_device.rate];
            let slot_time = |rate: u64| {
                let nanos = u128::from(slot) * 1_000_000_000 / u128::from(rate.max(1));
                u64::try_from(nanos).unwrap_or(u64::MAX).clamp(1, 1 << 32)
            };
            let program = Program {
                profile: &profile,
                table: &table,
                slot_times: request.freedom.offload.then(|| rates.map(slot_time)),
                recompute: request.freedom.recompute,
                states: self.states.max(1),
            };
            tries.most_memory(&program, &layered, memory, self.plans.max(1));
        }
    }
}

impl Planner for Pofo {
    fn name(&self) -> &'static str {
        "pofo"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let mut tries = Tries { search: Search::new(request, budget, observer), seen: HashMap::new() };
        tries.offer(&Policy::prompt(request.trace));
        let coarse = self.at_most(&Self::COARSE);
        if coarse != *self {
            coarse.pass(request, &mut tries);
        }
        self.pass(request, &mut tries);
        let stop = match tries.search.stopped() {
            _ if tries.search.optimal() => StopReason::Optimal,
            Some(stop) => stop,
            None => StopReason::Finished,
        };
        tries.search.finish(stop)
    }
}

/// Plans as exact schedules.
struct Tries<'a> {
    search: Search<'a>,
    /// Whether each of these sequences fits with these tensors offloaded.
    seen: HashMap<(Vec<OpId>, Vec<TensorId>), bool>,
}

/// Shares of the most memory whose plans fit, in percent, that are planned for as well: with whole copies the shortest plan is often one that
/// leaves some room.
const LESS: [u64; 4] = [98, 95, 91, 85];
/// The most memory is found to this part of the chain's peak.
const FINE: u64 = 128;

impl Tries<'_> {
    fn over(&self) -> bool {
        self.search.optimal() || self.search.stopped().is_some()
    }

    /// Searches for the most memory for which a plan fits, then tries less.
    fn most_memory(&mut self, program: &Program<'_>, layered: &Layered<'_>, memory: u64, plans: usize) {
        let (mut fits, mut exceeds) = (0, memory + 1);
        while exceeds - fits > 1 + memory / FINE && !self.over() {
            let middle = fits.midpoint(exceeds);
            if self.fits(program, layered, middle, plans) != Some(false) {
                fits = middle;
            } else {
                exceeds = middle;
            }
        }
        for share in LESS {
            if self.over() {
                break;
            }
            self.fits(program, layered, fits * share / 100, plans);
        }
    }

    /// Whether one of the plans for this many slots fits; `None` if there is no plan.
    fn fits(
        &mut self,
        program: &Program<'_>,
        layered: &Layered<'_>,
        slots: u64,
        plans: usize,
    ) -> Option<bool> {
        let found = program.solve(slots, plans, self.search.observer).filter(|found| !found.is_empty())?;
        let mut fits = false;
        for plan in found {
            if self.over() {
                break;
            }
            let sequence = layered.sequence(&plan.moves(program.table));
            let offloaded = plan.offloaded(layered);
            let decided = (sequence.clone(), offloaded.clone());
            if let Some(&known) = self.seen.get(&decided) {
                fits |= known;
                continue;
            }
            let trace = self.search.request.trace;
            let turn = backward_start(trace, &sequence).unwrap_or(sequence.len()) as SequenceIndex;
            let touches = Touches::of(trace, &sequence);
            let mut policy = repeats::policy(trace, sequence);
            for tensor in offloaded {
                let touched = touches.of_value(tensor);
                let split = touched.partition_point(|touch| touch.place < turn);
                let before = split.checked_sub(1).and_then(|before| touched.get(before));
                if let (Some(before), Some(after)) = (before, touched.get(split))
                    && !after.made
                {
                    policy.set(Gap::after(tensor, before.place), GapAction::Offload);
                }
            }
            let fitting = self.offer(&policy);
            self.seen.insert(decided, fitting);
            fits |= fitting;
        }
        Some(fits)
    }

    /// Makes the schedules of a policy with both rules for prefetches; whether its live memory fits.
    fn offer(&mut self, policy: &Policy) -> bool {
        self.search.count();
        let limit: Bytes = self.search.request.live_limit;
        if self.search.least_live(policy).is_none_or(|live_bytes| live_bytes > limit) {
            return false;
        }
        for prefetch in [PrefetchRule::AfterOffloads, PrefetchRule::Eager] {
            if let Ok(lowered) = lower(self.search.request, &Policy { prefetch, ..policy.clone() }) {
                self.search.offer(lowered);
            }
        }
        true
    }
}

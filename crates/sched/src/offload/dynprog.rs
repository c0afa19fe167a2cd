//! `dynprog`: Beaumont et al., section 5.3. Chooses the activations to offload with the dynamic program for fractional communications
//! ([`relaxation`](crate::chain::relaxation)) on memory cut into slots, and makes the ordered schedule that offloads exactly these.
//!
//! Sizes become slots by rounding up, times by rounding down their partial sums, activations by rounding up theirs. If no solution fits
//! in true sizes, activations whose slots are below their size, those closest to it first, get one more, and the program is solved again
//! (section 5.3.2). Many sets tie in the relaxation and differ in exact time, so the best few hundred are simulated exactly and the shortest
//! schedule is kept; the set of `greedy` is one of them. Beyond the paper, sets that differ from the winner in one or two activations follow,
//! because the relaxation ignores that a transfer cannot be divided.

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};
use elbowroom_ir::{Bytes, Nanos};

use crate::chain::linearize::Linear;
use crate::chain::ordered::{OrderedSets, Tried};
use crate::chain::relaxation::{Effort, Solution, Units};
use crate::verdict::refusal;

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DynProg {
    /// Memory is cut into this many slots; S in the paper.
    pub slots: u32,
    /// Sets that are simulated exactly; K.
    pub solutions: usize,
    /// States kept per layer.
    pub states: usize,
    /// How often the rounding of activations is mended.
    pub mends: usize,
    /// Sets near the best one that are simulated at the end.
    pub refinements: usize,
}

/// How many layers apart two activations may be that take each other's place at the end.
const REACH: usize = 8;

impl DynProg {
    /// S = 500 as in the paper.
    pub const DEFAULT: Self =
        Self { slots: 500, solutions: 200, states: 10_000, mends: 20, refinements: 800 };
}

impl Default for DynProg {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Planner for DynProg {
    fn name(&self) -> &'static str {
        "dynprog"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let Ok(linear) = Linear::of(request) else { return refusal(request, None, 0) };
        let mut search = OrderedSets::new(request, &linear, budget, observer);
        search.first_activations();
        if search.optimal() || !request.freedom.offload {
            return search.finish();
        }
        let mut slots = Slots::of(request, &linear, self.slots);
        for _ in 0..=self.mends {
            if search.stopped().is_some() {
                break;
            }
            let idle_limit = search.best_idle().map_or(i64::MAX, |idle| slots.of_time(idle, request));
            let effort = Effort { states: self.states, idle_limit, solutions: self.solutions };
            let solutions = slots.units.solve(&effort);
            let mut excess: Option<Bytes> = None;
            let mut fits = false;
            for solution in &solutions {
                match search.try_set(&solution.offloaded) {
                    Tried::Fits => fits = true,
                    Tried::Exceeds(bytes) => excess = Some(excess.map_or(bytes, |excess| excess.min(bytes))),
                    Tried::Skipped => {}
                }
            }
            let Some(excess) = excess.filter(|_| !fits && !search.optimal()) else { break };
            slots.mend(&linear, &solutions, excess);
        }
        search.refine(self.refinements, REACH);
        search.finish()
    }
}

/// A chain in slots.
struct Slots {
    units: Units,
    /// Bytes per slot.
    slot: u64,
}

impl Slots {
    fn of(request: &Request<'_>, linear: &Linear, slots: u32) -> Self {
        let memory = request.live_limit.get();
        let slot = memory.div_ceil(u64::from(slots.max(1))).max(1);
        let up = |bytes: Bytes| bytes.get().div_ceil(slot) as i64;
        let chain = &linear.chain;
        let (mut bytes, mut before) = (0, 0);
        let activations = chain.activations.iter().map(|x| {
            bytes += x.get();
            let after = up(Bytes(bytes));
            after - std::mem::replace(&mut before, after)
        });
        let activations = activations.collect();
        let machine = request.machine;
        let mut spent = [Nanos::ZERO; 2];
        let mut before = [0; 2];
        let mut copied = |side: usize, time: Nanos, rate: u64| {
            spent[side] += time;
            let slots = u128::from(spent[side].get()) * u128::from(rate) / 1_000_000_000 / u128::from(slot);
            let after = i64::try_from(slots).unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
            after - std::mem::replace(&mut before[side], after)
        };
        let times = chain.layers.iter().map(|layer| {
            let forward = copied(0, layer.forward, machine.to_host.rate);
            (forward, copied(1, layer.backward, machine.to_device.rate))
        });
        let times = times.collect();
        let units = Units {
            memory: (memory / slot) as i64,
            activations,
            gradients: chain.gradients.iter().map(|&y| up(y)).collect(),
            extras: chain.layers.iter().map(|l| (up(l.forward_extra), up(l.backward_extra))).collect(),
            times,
        };
        Self { units, slot }
    }

    /// A duration in slots that are copied meanwhile, with some margin for rounding.
    fn of_time(&self, time: Nanos, request: &Request<'_>) -> i64 {
        let rate = request.machine.to_host.rate.max(request.machine.to_device.rate);
        let slots = u128::from(time.get()) * u128::from(rate) / 1_000_000_000 / u128::from(self.slot);
        i64::try_from(slots).unwrap_or(i64::MAX / 4) + 2 * self.units.times.len() as i64
    }

    /// Makes up for an excess in true sizes: one more slot for each activation that is rounded down, those least so first, as far as
    /// some solution keeps it. What remains is due to the trace being no chain, and comes off the memory.
    fn mend(&mut self, linear: &Linear, solutions: &[Solution], excess: Bytes) {
        let mut slots = excess.get().div_ceil(self.slot) as i64;
        while slots > 0 && self.round_up(linear, solutions) {
            slots -= 1;
        }
        self.units.memory -= slots;
    }

    fn round_up(&mut self, linear: &Linear, solutions: &[Solution]) -> bool {
        let missing = |i: usize| {
            let exact = linear.chain.activations[i].get();
            exact.checked_sub(self.units.activations[i] as u64 * self.slot).filter(|&missing| missing > 0)
        };
        let kept =
            |i: usize| solutions.is_empty() || solutions.iter().any(|s| s.offloaded.get(i) == Some(&false));
        let below = (0..self.units.activations.len()).filter(|&i| kept(i));
        let Some((_, index)) = below.filter_map(|i| missing(i).map(|missing| (missing, i))).min() else {
            return false;
        };
        self.units.activations[index] += 1;
        true
    }
}

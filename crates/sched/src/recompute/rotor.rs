//! `rotor`: optimal *persistent* checkpointing of a heterogeneous chain (O. Beaumont, L. Eyraud-Dubois, J. Herrmann, A. Joly and
//! A. Shilova, *Optimal checkpointing for heterogeneous chains: how to train deep neural networks with limited memory*, 2019).
//!
//! Layer i can run forward keeping nothing, keeping its input x_i, or keeping x̄_{i+1}, all that its backward op needs. A kept x_i stays
//! until the backward op of layer i (that is what makes the plan persistent). With C(i, k, m) the least time to take layers i..k forward
//! and backward in memory m, x_i being there and not counted, and y_{k+1} given:
//!
//! ```text
//! C(i, i, m) = F_i + B_i                                                     if both fit
//! C(i, k, m) = min( F_i + … + F_{j−1} + C(j, k, m − x_j) + C(i, j−1, m)      for i < j ≤ k: keep x_i, and x_j
//!                   F_i + C(i+1, k, m − x̄_{i+1}) + B_i )                     keep x̄_{i+1}
//! ```
//!
//! The loss is layer n, and every y_i has the size of x_i. Memory is cut into slots, sizes rounded up. On a trace, the table gives a
//! plan for every amount of memory; the largest whose exact live memory fits is taken.

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_ir::{Bytes, Nanos};

use crate::lower::{least_live, lower};
use crate::policy::Policy;
use crate::recompute::layered::Layered;
use crate::recompute::profile::{Move, Profile};
use crate::recompute::repeats;
use crate::verdict::refusal;

const NEVER: u64 = u64::MAX / 4;

/// The least times for every part of a chain and every amount of memory.
#[derive(Clone, Debug)]
pub struct Optimum {
    layers: usize,
    memory: usize,
    /// Row (i, k): times by memory.
    times: Vec<Vec<u64>>,
    /// Row (i, k): the j of the best choice, 0 for x̄.
    choices: Vec<Vec<u16>>,
    /// x_0..x_n and x̄_0..x̄_n in slots.
    plain: Vec<usize>,
    saved: Vec<usize>,
}

impl Optimum {
    /// Fills the table for a chain in slots and every memory up to this many slots: O(n³) operations per slot. `None` if the observer
    /// interrupts.
    pub fn of(profile: &Profile, memory: usize, observer: &dyn Observer) -> Option<Self> {
        let n = profile.forward.len();
        let at = |list: &[u64], i: usize| list.get(i).copied().unwrap_or(0);
        let x = |i: usize| at(&profile.plain, i);
        let saved = |i: usize| at(&profile.saved, i);
        let forward = |i: usize| profile.forward.get(i).map_or(0, |time| time.get());
        let backward = |i: usize| profile.backward.get(i).map_or(0, |time| time.get());
        let slots = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
        let rows = (n + 1) * (n + 1);
        let mut table = Self {
            layers: n,
            memory,
            times: vec![Vec::new(); rows],
            choices: vec![Vec::new(); rows],
            plain: (0..=n).map(|i| slots(x(i))).collect(),
            saved: (0..=n).map(|i| slots(saved(i))).collect(),
        };
        for i in 0..=n {
            let going = x(i + 1) + saved(i + 1) + at(&profile.forward_extra, i);
            let coming = x(i) + x(i + 1) + saved(i + 1) + at(&profile.backward_extra, i);
            let needs = slots(going.max(coming));
            let time = |m| if m >= needs { forward(i) + backward(i) } else { NEVER };
            let row = table.row(i, i);
            table.times[row] = (0..=memory).map(time).collect();
        }
        for length in 1..=n {
            for i in 0..=n - length {
                if observer.interrupted() {
                    return None;
                }
                let k = i + length;
                // Running forward to the end of the part, with y_{k+1} in memory.
                let step = |j: usize| {
                    let input = if j == i { 0 } else { x(j) };
                    x(k + 1) + input + x(j + 1) + at(&profile.forward_extra, j)
                };
                let needs = (i..k).map(step).max().unwrap_or(0);
                let mut best = vec![NEVER; memory + 1];
                let mut choice = vec![0u16; memory + 1];
                let mut spent = 0;
                for j in i + 1..=k {
                    spent += forward(j - 1);
                    let right = &table.times[table.row(j, k)];
                    let left = &table.times[table.row(i, j - 1)];
                    let shift = slots(x(j)).min(memory + 1);
                    let sums = left[shift..].iter().zip(right);
                    let bests = best[shift..].iter_mut().zip(&mut choice[shift..]);
                    for ((best, choice), (left, right)) in bests.zip(sums) {
                        let time = spent + left + right;
                        if time < *best {
                            (*best, *choice) = (time, j as u16);
                        }
                    }
                }
                let shift = slots(saved(i + 1)).min(memory + 1);
                let alone = &table.times[table.row(i, i)];
                let rest = &table.times[table.row(i + 1, k)];
                for m in shift..=memory {
                    let time = alone[m] + rest[m - shift];
                    if time < best[m] {
                        (best[m], choice[m]) = (time, 0);
                    }
                }
                let few = slots(needs).min(memory + 1);
                best[..few].fill(NEVER);
                best.iter_mut().for_each(|time| *time = (*time).min(NEVER));
                let row = table.row(i, k);
                table.times[row] = best;
                table.choices[row] = choice;
            }
        }
        Some(table)
    }

    const fn row(&self, i: usize, k: usize) -> usize {
        i * (self.layers + 1) + k
    }

    /// The least time within this many slots, x_0 included; `None` if there is no plan.
    pub fn time(&self, slots: usize) -> Option<Nanos> {
        let m = slots.min(self.memory).checked_sub(self.plain[0])?;
        let time = self.times[self.row(0, self.layers)][m];
        (time < NEVER).then_some(Nanos(time))
    }

    /// The plan of [`time`](Self::time), without the loss.
    pub fn plan(&self, slots: usize) -> Option<Vec<Move>> {
        self.time(slots)?;
        let n = self.layers;
        enum Todo {
            Part(usize, usize, usize),
            Back(usize),
        }
        let mut moves = Vec::new();
        let mut todo = vec![Todo::Part(0, n, slots.min(self.memory) - self.plain[0])];
        while let Some(next) = todo.pop() {
            match next {
                Todo::Back(layer) => moves.push(Move::Backward { layer }),
                Todo::Part(i, k, _) if i == k => {
                    if i < n {
                        moves.push(Move::Forward { layer: i, save: true });
                        moves.push(Move::Backward { layer: i });
                    }
                }
                Todo::Part(i, k, m) => match self.choices[self.row(i, k)][m] as usize {
                    0 => {
                        moves.push(Move::Forward { layer: i, save: true });
                        todo.push(Todo::Back(i));
                        todo.push(Todo::Part(i + 1, k, m - self.saved[i + 1]));
                    }
                    j => {
                        moves.extend((i..j).map(|layer| Move::Forward { layer, save: false }));
                        todo.push(Todo::Part(i, j - 1, m));
                        todo.push(Todo::Part(j, k, m - self.plain[j]));
                    }
                },
            }
        }
        Some(moves)
    }
}

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rotor {
    /// The limit is cut into this many slots.
    pub slots: u32,
    /// A trace is cut into at most this many layers.
    pub layers: usize,
}

impl Rotor {
    /// 500 slots, as published; time and memory of the table grow with the cube and the square of the layers.
    pub const DEFAULT: Self = Self { slots: 500, layers: 128 };
}

impl Default for Rotor {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Planner for Rotor {
    fn name(&self) -> &'static str {
        "rotor"
    }

    fn schedule(&self, request: &Request<'_>, _: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let keep = Policy::prompt(request.trace);
        if let Ok(lowered) = lower(request, &keep) {
            return Outcome::finished(lowered.schedule);
        }
        if !request.freedom.recompute {
            return refusal(request, None, 1);
        }
        let slots = self.slots.clamp(1, 1 << 16);
        let (mut evaluations, mut least) = (1, None);
        let mut best: Option<(Nanos, Policy)> = None;
        for layered in Layered::of(request.trace, self.layers.clamp(1, 1 << 10)) {
            let Ok((profile, base)) = layered.profile(request) else { continue };
            let slot = request.live_limit.saturating_sub(base).get().div_ceil(u64::from(slots)).max(1);
            // The chain counts some tensors twice and others for too long, so that more than the limit may do as well.
            let profile = profile.in_slots(slot);
            let memory = profile.peak().min(2 * u64::from(slots)) as usize;
            let Some(table) = Optimum::of(&profile, memory, observer) else { break };
            let mut search = SlotSearch {
                request,
                observer,
                layered: &layered,
                table: &table,
                evaluations: 0,
                least,
                best: None,
            };
            search.most_memory(memory);
            evaluations += search.evaluations;
            least = search.least;
            if let Some(policy) = search.best {
                let time = repeats::recompute_time(&request.costs.nanos, &policy.sequence);
                if best.as_ref().is_none_or(|&(fastest, _)| time < fastest) {
                    best = Some((time, policy));
                }
            }
        }
        match best.map(|(_, policy)| lower(request, &policy)) {
            Some(Ok(lowered)) => {
                let stop =
                    if observer.interrupted() { StopReason::Interrupted } else { StopReason::Finished };
                Outcome { best: Some(lowered.schedule), evaluations, stop }
            }
            _ => refusal(request, least, evaluations),
        }
    }
}

/// Searches for the largest memory whose plan fits.
struct SlotSearch<'a> {
    request: &'a Request<'a>,
    observer: &'a dyn Observer,
    layered: &'a Layered<'a>,
    table: &'a Optimum,
    evaluations: u64,
    least: Option<Bytes>,
    best: Option<Policy>,
}

impl SlotSearch<'_> {
    /// Searches for the plan with most memory that fits.
    fn most_memory(&mut self, memory: usize) {
        let (mut fits, mut exceeds) = (0, memory + 1);
        while fits + 1 < exceeds && !self.observer.interrupted() {
            let middle = fits.midpoint(exceeds);
            if self.fits(middle) != Some(false) {
                fits = middle;
            } else {
                exceeds = middle;
            }
        }
    }

    /// Whether the plan for this many slots fits; `None` if there is no such plan.
    fn fits(&mut self, slots: usize) -> Option<bool> {
        let moves = self.table.plan(slots)?;
        self.evaluations += 1;
        let policy = repeats::policy(self.request.trace, self.layered.sequence(&moves));
        let Ok((live_bytes, _)) = least_live(self.request, &policy) else { return Some(false) };
        self.least = Some(self.least.map_or(live_bytes, |least| least.min(live_bytes)));
        let fits = live_bytes <= self.request.live_limit;
        if fits {
            self.best = Some(policy);
        }
        Some(fits)
    }
}

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
    /// Row (i, k).
    times: Vec<Staircase>,
    /// F_0..F_n in nanoseconds; the loss takes none.
    forward: Vec<u64>,
    /// x_0..x_n and x̄_0..x̄_n in slots.
    plain: Vec<usize>,
    saved: Vec<usize>,
}

/// The least times of one part of a chain by memory. They never rise with the memory and rarely change, so that the steps take a fraction of the
/// bytes of all times: a training plans next to an arena that takes the limit.
#[derive(Clone, Debug, Default)]
struct Staircase {
    /// The memory from which each time holds, up to that of the next one. Below the first there is no plan.
    starts: Vec<u32>,
    times: Vec<u64>,
}

impl Staircase {
    fn of(times: &[u64]) -> Self {
        let mut steps = Self::default();
        let mut last = NEVER;
        for (start, &time) in times.iter().enumerate() {
            if time != last {
                steps.starts.push(start as u32);
                steps.times.push(time);
                last = time;
            }
        }
        steps.starts.shrink_to_fit();
        steps.times.shrink_to_fit();
        steps
    }

    fn at(&self, memory: usize) -> u64 {
        let above = self.starts.partition_point(|&start| start as usize <= memory);
        above.checked_sub(1).map_or(NEVER, |step| self.times[step])
    }

    /// The steps as ranges of memory below `end`.
    fn ranges(&self, end: usize) -> impl Iterator<Item = (std::ops::Range<usize>, u64)> {
        let ends = self.starts.iter().skip(1).map(|&start| start as usize).chain([end]);
        let ranges = self.starts.iter().zip(ends).map(move |(&start, next)| start as usize..next.min(end));
        ranges.zip(self.times.iter().copied()).filter(|(range, _)| !range.is_empty())
    }
}

impl Optimum {
    /// Fills the table for a chain in slots and every memory up to this many slots: O(n³) operations per slot. `None` if the observer
    /// interrupts.
    pub fn of(profile: &Profile, memory: usize, observer: &dyn Observer) -> Option<Self> {
        let n = profile.forward.len();
        let at = |list: &[u64], i: usize| list.get(i).copied().unwrap_or(0);
        let x = |i: usize| at(&profile.plain, i);
        let saved = |i: usize| at(&profile.saved, i);
        let backward = |i: usize| profile.backward.get(i).map_or(0, |time| time.get());
        let slots = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
        let mut table = Self {
            layers: n,
            memory,
            times: vec![Staircase::default(); (n + 1) * (n + 1)],
            forward: (0..=n).map(|i| profile.forward.get(i).map_or(0, |time| time.get())).collect(),
            plain: (0..=n).map(|i| slots(x(i))).collect(),
            saved: (0..=n).map(|i| slots(saved(i))).collect(),
        };
        for i in (0..=n).rev() {
            // The rows (i, i), (i, i + 1) and so on, which all later ones of this layer read.
            let mut rows: Vec<Vec<u64>> = Vec::with_capacity(n + 1 - i);
            let going = x(i + 1) + saved(i + 1) + at(&profile.forward_extra, i);
            let coming = x(i) + x(i + 1) + saved(i + 1) + at(&profile.backward_extra, i);
            let needs = slots(going.max(coming));
            let alone = table.forward[i] + backward(i);
            rows.push((0..=memory).map(|m| if m >= needs { alone } else { NEVER }).collect());
            let row = table.row(i, i);
            table.times[row] = Staircase::of(&rows[0]);
            for k in i + 1..=n {
                if observer.interrupted() {
                    return None;
                }
                // Running forward to the end of the part, with y_{k+1} in memory.
                let step = |j: usize| {
                    let input = if j == i { 0 } else { x(j) };
                    x(k + 1) + input + x(j + 1) + at(&profile.forward_extra, j)
                };
                let needs = (i..k).map(step).max().unwrap_or(0);
                let mut best = vec![NEVER; memory + 1];
                let mut least = |left: &[u64], right: &Staircase, shift: usize, spent: u64| {
                    let shift = shift.min(memory + 1);
                    for (range, right) in right.ranges(memory + 1 - shift) {
                        let range = range.start + shift..range.end + shift;
                        for (best, left) in best[range.clone()].iter_mut().zip(&left[range]) {
                            *best = (*best).min(spent + left + right);
                        }
                    }
                };
                let mut spent = 0;
                for j in i + 1..=k {
                    spent += table.forward[j - 1];
                    least(&rows[j - 1 - i], &table.times[table.row(j, k)], table.plain[j], spent);
                }
                least(&rows[0], &table.times[table.row(i + 1, k)], table.saved[i + 1], 0);
                let few = slots(needs).min(memory + 1);
                best[..few].fill(NEVER);
                let row = table.row(i, k);
                table.times[row] = Staircase::of(&best);
                rows.push(best);
            }
        }
        Some(table)
    }

    const fn row(&self, i: usize, k: usize) -> usize {
        i * (self.layers + 1) + k
    }

    /// The best choice for layers i..k in this memory: the j whose input is kept, or `None` for x̄.
    fn choice(&self, i: usize, k: usize, memory: usize) -> Option<usize> {
        let time = |from: usize, to: usize, memory: Option<usize>| {
            memory.map_or(NEVER, |memory| self.times[self.row(from, to)].at(memory))
        };
        let (mut best, mut choice, mut spent) = (NEVER, None, 0);
        for j in i + 1..=k {
            spent += self.forward[j - 1];
            let right = time(j, k, memory.checked_sub(self.plain[j]));
            let whole = spent + right + time(i, j - 1, Some(memory));
            if whole < best {
                (best, choice) = (whole, Some(j));
            }
        }
        let saved = time(i + 1, k, memory.checked_sub(self.saved[i + 1])) + time(i, i, Some(memory));
        choice.filter(|_| saved >= best)
    }

    /// The least time within this many slots, x_0 included; `None` if there is no plan.
    pub fn time(&self, slots: usize) -> Option<Nanos> {
        let m = slots.min(self.memory).checked_sub(self.plain[0])?;
        let time = self.times[self.row(0, self.layers)].at(m);
        (time < NEVER).then_some(Nanos(time))
    }

    /// The plan of [`time`](Self::time), without the loss.
    pub fn plan(&self, slots: usize) -> Option<Vec<Move>> {
        self.time(slots)?;
        Some(self.part(0, self.layers, slots.min(self.memory) - self.plain[0]))
    }

    /// C(i, k, m), if it is finite.
    pub(crate) fn part_time(&self, i: usize, k: usize, memory: u64) -> Option<u64> {
        let memory = usize::try_from(memory).unwrap_or(usize::MAX);
        Some(self.times[self.row(i, k)].at(memory)).filter(|&time| time < NEVER)
    }

    /// C(i, k, m) as steps up to this much memory: the memory, in slots, from which each least time of layers i..k holds, the most memory last.
    pub fn steps(&self, i: usize, k: usize, most: u64) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        let Staircase { starts, times } = &self.times[self.row(i, k)];
        let count = starts.partition_point(|&start| u64::from(start) <= most);
        starts[..count].iter().map(|&start| u64::from(start)).zip(times[..count].iter().copied())
    }

    /// How layers i..k run forward and backward in C(i, k, memory), which must be finite. Without the loss.
    pub(crate) fn part(&self, i: usize, k: usize, memory: usize) -> Vec<Move> {
        let n = self.layers;
        enum Todo {
            Part(usize, usize, usize),
            Back(usize),
        }
        let mut moves = Vec::new();
        let mut todo = vec![Todo::Part(i, k, memory)];
        while let Some(next) = todo.pop() {
            match next {
                Todo::Back(layer) => moves.push(Move::Backward { layer }),
                Todo::Part(i, k, _) if i == k => {
                    if i < n {
                        moves.push(Move::Forward { layer: i, save: true });
                        moves.push(Move::Backward { layer: i });
                    }
                }
                Todo::Part(i, k, m) => match self.choice(i, k, m) {
                    None => {
                        moves.push(Move::Forward { layer: i, save: true });
                        todo.push(Todo::Back(i));
                        todo.push(Todo::Part(i + 1, k, m - self.saved[i + 1]));
                    }
                    Some(j) => {
                        moves.extend((i..j).map(|layer| Move::Forward { layer, save: false }));
                        todo.push(Todo::Part(i, j - 1, m));
                        todo.push(Todo::Part(j, k, m - self.plain[j]));
                    }
                },
            }
        }
        moves
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
    /// A twentieth of that work: a start for other searches.
    pub(crate) const COARSE: Self = Self { slots: 200, layers: 64 };
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

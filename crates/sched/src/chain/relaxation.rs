//! Fractional communications: Beaumont et al., section 5. Chooses the activations to offload with the least idle time, under the relaxation
//! that a copy may be interrupted and resumed, and that bytes are released as soon as they are copied. Algorithm 1, an exact dynamic program
//! over the layers, in whole units of memory; times are in units too (a unit of time copies one unit of memory).
//!
//! A state after F_{i−1} holds N, the activations before x_i that are kept; Δ_F, the bytes that are still to be offloaded then (negative: the
//! time for which the link has been idle); and Δ_B, the same of the backward phase in mirrored time. M_F and M_B follow from them (section
//! 5.2.1). Two corrections: equation 6 takes ex_i^B, and the test of Algorithm 1 takes Δ⁺. In equation 10, R_j^F also subtracts y_n, which
//! does not exist while a forward op runs.

use std::collections::HashMap;

/// A chain in whole units. Indices as in [`Chain`](crate::chain::Chain).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Units {
    /// Memory of the device.
    pub memory: i64,
    /// x_0..x_n.
    pub activations: Vec<i64>,
    /// y_0..y_n.
    pub gradients: Vec<i64>,
    /// ex_i^F and ex_i^B.
    pub extras: Vec<(i64, i64)>,
    /// Times of F_i and B_i, in units that the link copies meanwhile.
    pub times: Vec<(i64, i64)>,
}

/// A set of activations with the idle time of its relaxed schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solution {
    /// Idle time, in units.
    pub idle: i64,
    /// Whether each of x_0..x_{n−1} is offloaded.
    pub offloaded: Vec<bool>,
}

/// How much of the program is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// States kept per layer, those of least idle time; the program is exact while fewer arise.
    pub states: usize,
    /// Solutions with more idle time than this are not needed.
    pub idle_limit: i64,
    /// Solutions wanted.
    pub solutions: usize,
}

impl Effort {
    /// Everything kept, one solution: the exact program.
    pub const EXACT: Self = Self { states: usize::MAX, idle_limit: i64::MAX, solutions: 1 };
}

/// What the offloaded layers so far have come to; nothing at the beginning.
#[derive(Clone, Copy, Debug, Default)]
struct RelaxedState {
    stays: i64,
    to_offload: i64,
    to_prefetch: i64,
    idle: i64,
    parent: u32,
    offloaded: bool,
}

impl Units {
    /// The best solutions, least idle time first. Empty if no set fits even in the relaxation.
    pub fn solve(&self, effort: &Effort) -> Vec<Solution> {
        let n = self.times.len();
        // More idle time of the link than this changes nothing: everything could be copied in it.
        let longest: i64 = self.activations.iter().sum::<i64>() + 1;
        let start = RelaxedState::default();
        let mut layers: Vec<Vec<RelaxedState>> = vec![vec![start]];
        for i in 0..n {
            let mut next: Vec<RelaxedState> = Vec::new();
            let mut known: HashMap<(i64, i64, i64), usize> = HashMap::new();
            for (parent, state) in (0u32..).zip(&layers[i]) {
                for offloaded in [true, false] {
                    let Some(mut reached) = self.advance(i, state, offloaded) else { continue };
                    if reached.idle > effort.idle_limit {
                        continue;
                    }
                    reached.to_offload = reached.to_offload.max(-longest);
                    reached.to_prefetch = reached.to_prefetch.max(-longest);
                    reached.parent = parent;
                    let key = (reached.stays, reached.to_offload, reached.to_prefetch);
                    match known.get(&key) {
                        Some(&index) if next[index].idle <= reached.idle => {}
                        Some(&index) => next[index] = reached,
                        None => {
                            known.insert(key, next.len());
                            next.push(reached);
                        }
                    }
                }
            }
            if next.len() > effort.states {
                // Equal idle times are ordered by the bytes that are still to be offloaded.
                next.sort_by_key(|s| (s.idle, s.to_offload.max(0) + s.to_prefetch.max(0) + s.stays, s.stays));
                next.truncate(effort.states);
            }
            layers.push(next);
        }

        let mut ends: Vec<(i64, usize)> =
            layers[n].iter().enumerate().map(|(i, state)| (state.idle + self.between(state), i)).collect();
        ends.sort_unstable();
        ends.truncate(effort.solutions);
        let trace_back = |(idle, mut index): (i64, usize)| {
            let mut offloaded = vec![false; n];
            for i in (0..n).rev() {
                let state = &layers[i + 1][index];
                offloaded[i] = state.offloaded;
                index = state.parent as usize;
            }
            Solution { idle, offloaded }
        };
        ends.into_iter().filter(|&(idle, _)| idle <= effort.idle_limit).map(trace_back).collect()
    }

    /// The least idle time of the exact program: a lower bound for copies that cannot be interrupted. If a layer has more states than `most`,
    /// states that are close to each other are merged into one with the least of each of their numbers; every number of a state is better the
    /// smaller it is, so that the bound remains one. Without a shared link, the time between the phases counts as none. `None` if no set fits.
    pub(crate) fn least_idle(&self, most: usize, shared_link: bool) -> Option<i64> {
        let longest: i64 = self.activations.iter().sum::<i64>() + 1;
        let mut states = vec![RelaxedState::default()];
        let mut grid = 1;
        for i in 0..self.times.len() {
            let choices: &[bool] = if self.activations[i] > 0 { &[true, false] } else { &[false] };
            let both = states.iter().flat_map(|state| choices.iter().map(move |&choice| (state, choice)));
            let mut next: Vec<RelaxedState> =
                both.filter_map(|(state, choice)| self.advance(i, state, choice)).collect();
            for state in &mut next {
                state.to_offload = state.to_offload.max(-longest);
                state.to_prefetch = state.to_prefetch.max(-longest);
            }
            merge(&mut next, grid);
            while next.len() > most {
                grid *= 2;
                merge(&mut next, grid);
            }
            states = next;
        }
        let between = |state: &RelaxedState| if shared_link { self.between(state) } else { 0 };
        states.iter().map(|state| state.idle + between(state)).min()
    }

    /// The idle time if activations may be offloaded in part: the optimum of theorem 2, whose schedule offloads the first bytes, as many as the
    /// peak exceeds the memory by. `None` if that many cannot be offloaded, or if an op does not fit by itself.
    pub(crate) fn partial_idle(&self, shared_link: bool) -> Option<i64> {
        let mut kept = 0;
        let needs = self.extras.iter().enumerate().map(|(i, &(forward, backward))| {
            let held = kept + self.activations[i] + self.activations[i + 1];
            kept += self.activations[i];
            held + forward.max(backward + self.gradients[i] + self.gradients[i + 1])
        });
        let mut excess = (needs.max().unwrap_or(0) - self.memory).max(0);
        let mut state = RelaxedState::default();
        for i in 0..self.times.len() {
            let part = excess.min(self.activations[i]);
            excess -= part;
            state = self.advance_by(i, &state, (part > 0).then_some(part))?;
        }
        (excess == 0).then(|| state.idle + if shared_link { self.between(&state) } else { 0 })
    }

    /// One layer on, with x_i offloaded or not; `None` if it does not fit. Equations 1 to 8.
    fn advance(&self, i: usize, state: &RelaxedState, offloaded: bool) -> Option<RelaxedState> {
        self.advance_by(i, state, offloaded.then_some(self.activations[i]))
    }

    /// The same with this much of x_i offloaded.
    fn advance_by(&self, i: usize, state: &RelaxedState, offloaded: Option<i64>) -> Option<RelaxedState> {
        let (x, next_x) = (self.activations[i], self.activations[i + 1]);
        let pending = state.to_offload.max(0);
        let pending_back = state.to_prefetch.max(0);
        let forward = x + state.stays + self.extras[i].0 + next_x;
        let backward =
            self.gradients[i] + x + state.stays + self.extras[i].1 + next_x + self.gradients[i + 1];
        if forward > self.memory || backward > self.memory {
            return None;
        }
        let wait = (forward + pending - self.memory).max(0);
        let wait_back = (backward + pending_back - self.memory).max(0);
        let time = wait + self.times[i].0;
        let time_back = wait_back + self.times[i].1;
        let idle = state.idle + wait + wait_back;
        let mut reached = RelaxedState { offloaded: offloaded.is_some(), idle, ..*state };
        if let Some(part) = offloaded {
            reached.to_offload = pending + part - time;
            reached.to_prefetch = part + (state.to_prefetch - time_back).max(0);
            reached.stays += x - part;
        } else {
            reached.to_offload -= time;
            reached.to_prefetch -= time_back;
            reached.stays += x;
        }
        Some(reached)
    }

    /// Idle time between the phases. Equations 9 and 10.
    fn between(&self, state: &RelaxedState) -> i64 {
        let n = self.times.len();
        let (out, back) = (state.to_offload, state.to_prefetch);
        let last = self.activations[n];
        let forward = last + state.stays + out.max(0);
        let backward = self.gradients[n] + last + state.stays + back.max(0);
        match (out > 0, back > 0) {
            (true, true) => out + back,
            (false, false) => 0,
            // Offloads go on during the first backward ops, until the first prefetch.
            (true, false) => {
                let need = |j: usize| self.extras[j].1 + self.gradients[j] + self.gradients[j + 1];
                let room = self.tail(-back, |j| self.times[j].1, need);
                0.max(out + back).max(room.map_or(0, |room| room + forward - self.memory))
            }
            // Prefetches begin during the last forward ops, after the last offload.
            (false, true) => {
                let need = |j: usize| self.extras[j].0 - self.gradients[n];
                let room = self.tail(-out, |j| self.times[j].0, need);
                0.max(back + out).max(room.map_or(0, |room| room + backward - self.memory))
            }
        }
    }

    /// max over j with U_j < available of need_j − Σ_{i>j+1} x_i − U_j, where U_j is the time of the ops after j.
    fn tail(&self, available: i64, time: impl Fn(usize) -> i64, need: impl Fn(usize) -> i64) -> Option<i64> {
        let (mut after, mut gone) = (0, 0);
        let mut most: Option<i64> = None;
        for j in (0..self.times.len()).rev() {
            if after >= available {
                break;
            }
            let room = need(j) - gone - after;
            most = Some(most.map_or(room, |most| most.max(room)));
            gone += self.activations[j + 1];
            after += time(j);
        }
        most
    }
}

/// Merges the states that lie in the same cell of a grid into one that is as good as each of them.
fn merge(states: &mut Vec<RelaxedState>, grid: i64) {
    let cell = |state: &RelaxedState| {
        [state.stays, state.to_offload, state.to_prefetch].map(|number| number.div_euclid(grid))
    };
    states.sort_unstable_by_key(cell);
    states.dedup_by(|state, kept| {
        let same = cell(state) == cell(kept);
        if same {
            kept.stays = kept.stays.min(state.stays);
            kept.to_offload = kept.to_offload.min(state.to_offload);
            kept.to_prefetch = kept.to_prefetch.min(state.to_prefetch);
            kept.idle = kept.idle.min(state.idle);
        }
        same
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The least idle time of every choice of whole units of every activation.
    fn least_of_all(units: &Units, i: usize, state: &RelaxedState, least: &mut Option<i64>) {
        if i == units.times.len() {
            let idle = state.idle + units.between(state);
            *least = Some(least.map_or(idle, |least| least.min(idle)));
            return;
        }
        for part in 0..=units.activations[i] {
            if let Some(next) = units.advance_by(i, state, (part > 0).then_some(part)) {
                least_of_all(units, i + 1, &next, least);
            }
        }
    }

    /// Theorem 2.
    #[test]
    fn no_other_parts_of_activations_have_less_idle_time_than_the_first_bytes() {
        let mut random = Random::new(3);
        let (mut found, mut idle) = (0, 0);
        for case in 0..400 {
            let n = 2 + random.below(3);
            let mut list = |count: usize, least: i64, most: i64| -> Vec<i64> {
                (0..count).map(|_| least + random.below((most - least + 1) as usize) as i64).collect()
            };
            let mut units = Units {
                memory: 0,
                activations: list(n + 1, 1, 5),
                gradients: list(n + 1, 0, 2),
                extras: std::iter::zip(list(n, 0, 2), list(n, 0, 2)).collect(),
                times: std::iter::zip(list(n, 1, 6), list(n, 1, 6)).collect(),
            };
            units.memory = 6 + random.below(14) as i64;
            let start = RelaxedState::default();
            let mut least = None;
            least_of_all(&units, 0, &start, &mut least);
            assert_eq!(units.partial_idle(true), least, "{case}: {units:?}");
            found += usize::from(least.is_some());
            idle += usize::from(least.is_some_and(|least| least > 0));
        }
        assert!(found > 200 && idle > 80, "{found} {idle}");
    }
}

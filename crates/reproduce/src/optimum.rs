//! Exact optima of small chains: Problem 1 of Beaumont et al., offload over one link, whole transfers.
//!
//! A schedule is an order of actions, each of which starts as soon as the actions before it in the order, the data, the link or device, and the
//! memory permit. All orders are built action by action. Two partial schedules that ran the same ops and have the same tensors on the device are
//! compared by times: one that is nowhere later than another makes the other needless. Shares no code with the planners.

use std::collections::HashMap;

use elbowroom::sched::chain::Chain;

/// Where an activation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Where {
    /// On the device since it was made, or not made yet.
    Device,
    /// Offloaded: its copy on the device is released at the activation's time.
    Host,
    /// Prefetched: it is usable from the activation's time on.
    Back,
}

/// A partial schedule: the ops that have started, where activations are, and times.
#[derive(Clone, Debug)]
struct Partial {
    started: usize,
    at: Vec<Where>,
    /// Start of the last action, ends of the last op and of the last copy.
    now: u64,
    compute: u64,
    link: u64,
    /// Of each activation: release of the device copy, or end of the prefetch.
    when: Vec<u64>,
}

/// A chain whose link copies a byte in a nanosecond, and its limit.
pub(crate) struct Exact<'a> {
    chain: &'a Chain,
    limit: u64,
}

impl<'a> Exact<'a> {
    pub(crate) fn new(chain: &'a Chain, limit: u64) -> Self {
        Self { chain, limit }
    }

    /// The shortest iteration in nanoseconds, or nothing if no schedule fits.
    pub(crate) fn shortest(&self) -> Option<u64> {
        let n = self.chain.layers.len();
        let start =
            Partial { started: 0, at: vec![Where::Device; n], now: 0, compute: 0, link: 0, when: vec![0; n] };
        let mut open = vec![start];
        let mut best: Option<u64> = None;
        // Every action leads to a state of another rank, so that a rank is complete when it is expanded.
        while !open.is_empty() {
            let mut next: HashMap<(usize, Vec<Where>), Vec<Partial>> = HashMap::new();
            for state in open {
                if state.started == 2 * n {
                    best = Some(best.map_or(state.compute, |best| best.min(state.compute)));
                    continue;
                }
                for following in self.following(&state) {
                    let rest = self.rest(following.started);
                    if best.is_none_or(|best| following.compute + rest < best) {
                        add(next.entry((following.started, following.at.clone())).or_default(), following);
                    }
                }
            }
            open = next.into_values().flatten().collect();
        }
        best
    }

    /// Time of the ops that have not started.
    fn rest(&self, started: usize) -> u64 {
        let n = self.chain.layers.len();
        (started..2 * n).map(|op| self.time(op)).sum()
    }

    fn time(&self, op: usize) -> u64 {
        let n = self.chain.layers.len();
        if op < n {
            self.chain.layers[op].forward.get()
        } else {
            self.chain.layers[2 * n - 1 - op].backward.get()
        }
    }

    fn following(&self, state: &Partial) -> Vec<Partial> {
        let n = self.chain.layers.len();
        let mut found: Vec<Partial> = self.run(state).into_iter().collect();
        for i in 0..n {
            let bytes = self.chain.activations[i].get();
            match state.at[i] {
                // x_i is made by op i − 1; it is no use to offload what the backward phase has begun to read.
                Where::Device if state.started >= i && state.started < 2 * n - i && bytes > 0 => {
                    let made = if state.started == i { state.compute } else { 0 };
                    let at = state.now.max(state.link).max(made);
                    let mut next = state.clone();
                    (next.now, next.link) = (at, at + bytes);
                    next.at[i] = Where::Host;
                    // Its forward use holds it, if that is running or still to come (then the time is set when it starts).
                    let used = if state.started == i + 1 { state.compute } else { 0 };
                    next.when[i] = next.link.max(used);
                    found.push(next);
                }
                Where::Host if state.started > i => {
                    let earliest = state.now.max(state.link).max(state.when[i]);
                    if let Some(at) = self.room(state, earliest, bytes) {
                        let mut next = state.clone();
                        (next.now, next.link) = (at, at + bytes);
                        next.at[i] = Where::Back;
                        next.when[i] = next.link;
                        found.push(next);
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// The next op.
    fn run(&self, state: &Partial) -> Option<Partial> {
        let n = self.chain.layers.len();
        let op = state.started;
        let mut earliest = state.now.max(state.compute);
        let reads = if op < n { [Some(op), None] } else { [Some(2 * n - 1 - op), Some(2 * n - op)] };
        for i in reads.into_iter().flatten().filter(|&i| i < n) {
            match state.at[i] {
                Where::Host if op >= n => return None,
                Where::Back => earliest = earliest.max(state.when[i]),
                _ => {}
            }
        }
        let layer = &self.chain.layers[if op < n { op } else { 2 * n - 1 - op }];
        let new = if op < n {
            self.chain.activations[op + 1] + layer.forward_extra
        } else {
            let i = 2 * n - 1 - op;
            let last = if i + 1 == n { self.chain.gradients[n] } else { Default::default() };
            self.chain.gradients[i] + last + layer.backward_extra
        };
        let at = self.room(state, earliest, new.get())?;
        let mut next = state.clone();
        next.started += 1;
        next.now = at;
        next.compute = at + self.time(op);
        if op < n && state.at[op] == Where::Host {
            next.when[op] = state.when[op].max(next.compute);
        }
        Some(next)
    }

    /// The earliest time from `earliest` on at which this many more bytes fit.
    fn room(&self, state: &Partial, earliest: u64, bytes: u64) -> Option<u64> {
        let mut times: Vec<u64> = state.when.iter().copied().chain([state.compute, earliest]).collect();
        times.retain(|&time| time >= earliest);
        times.sort_unstable();
        times.into_iter().find(|&time| self.live(state, time) + bytes <= self.limit)
    }

    /// Bytes on the device at a time at which nothing new starts.
    fn live(&self, state: &Partial, time: u64) -> u64 {
        let n = self.chain.layers.len();
        let running = state.started > 0 && time < state.compute;
        // Ops that have ended by then.
        let ended = if running { state.started - 1 } else { state.started };
        let size = |i: usize| self.chain.activations[i].get();
        let mut live = 0;
        for i in 0..=n {
            let made = i == 0 || state.started >= i;
            // x_i is last read by B_{i−1}; x_0 by B_0.
            let last = if i == 0 { 2 * n - 1 } else { 2 * n - i };
            if !made || ended > last {
                continue;
            }
            let held = match state.at.get(i) {
                None | Some(Where::Device | Where::Back) => true,
                Some(Where::Host) => state.started <= i || time < state.when[i],
            };
            live += if held { size(i) } else { 0 };
        }
        for i in 0..=n {
            // y_n is made with y_{n−1}; y_i by B_i, and read by B_{i−1}; y_0 stays.
            let maker = if i == n { n } else { 2 * n - 1 - i };
            let gone = i > 0 && ended > 2 * n - i;
            if state.started > maker && !gone {
                live += self.chain.gradients[i].get();
            }
        }
        if running {
            let op = state.started - 1;
            let layer = &self.chain.layers[if op < n { op } else { 2 * n - 1 - op }];
            live += if op < n { layer.forward_extra } else { layer.backward_extra }.get();
        }
        live
    }
}

/// Adds a partial schedule to those with the same ops and places, unless one of them is nowhere later; drops those that it is nowhere later
/// than.
fn add(known: &mut Vec<Partial>, new: Partial) {
    let no_later = |a: &Partial, b: &Partial| {
        let mut times = a.when.iter().zip(&b.when);
        // A time before `now` is past, and no different from `now`.
        a.now <= b.now
            && a.compute <= b.compute.max(b.now)
            && a.link <= b.link.max(b.now)
            && times.all(|(a, b_time)| *a <= (*b_time).max(b.now))
    };
    if known.iter().any(|old| no_later(old, &new)) {
        return;
    }
    known.retain(|old| !no_later(&new, old));
    known.push(new);
}

#[cfg(test)]
mod tests {
    use elbowroom::ir::{Bytes, Nanos};
    use elbowroom::sched::chain::Layer;
    use serde_json::Value;

    use super::*;

    /// The golden optima, found by another program. Times are scaled by the link's rate, so that it copies a byte in a nanosecond.
    #[test]
    fn optima_are_those_of_the_golden_chains() {
        let text = include_str!("../../../golden/chain_offload.json");
        let json: Value = serde_json::from_str(text).unwrap();
        for case in json["cases"].as_array().unwrap() {
            let instance = &case["instance"];
            let list = |key: &str| -> Vec<u64> {
                instance[key].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect()
            };
            let rate = instance["beta"].as_u64().unwrap();
            let [forward, backward, ex_f, ex_b] = ["uF", "uB", "exF", "exB"].map(list);
            let layers = (0..forward.len()).map(|i| Layer {
                forward: Nanos(forward[i] * rate),
                backward: Nanos(backward[i] * rate),
                forward_extra: Bytes(ex_f[i]),
                backward_extra: Bytes(ex_b[i]),
            });
            let chain = Chain {
                layers: layers.collect(),
                activations: list("x").into_iter().map(Bytes).collect(),
                gradients: list("y").into_iter().map(Bytes).collect(),
            };
            let found = Exact::new(&chain, instance["M"].as_u64().unwrap()).shortest().unwrap();
            let stated = case["exact_half_duplex"].to_string();
            let stated = stated.trim_matches('"');
            let (over, under) = stated.split_once('/').unwrap_or((stated, "1"));
            let (over, under): (u64, u64) = (over.parse().unwrap(), under.parse().unwrap());
            assert_eq!(found * under, over * rate, "{}", case["id"]);
        }
    }
}

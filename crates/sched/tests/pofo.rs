//! `pofo` against the optima of its two halves, against every plan of small chains, and against exact optima with whole copies.

use std::collections::BTreeMap;

use elbowroom_ir::machine::{Channel, Machine};
use elbowroom_ir::planning::{Freedom, Planner, Request};
use elbowroom_ir::search::{Budget, Silent};
use elbowroom_ir::{Bytes, Nanos};
use elbowroom_sched::chain::{Chain, Layer};
use elbowroom_sched::mixed::pofo::{Pofo, Program};
use elbowroom_sched::random::Random;
use elbowroom_sched::recompute::profile::Profile;
use elbowroom_sched::recompute::rotor::Optimum;
use elbowroom_sim::simulate;

#[path = "../../../golden/mod.rs"]
mod golden;
mod rotor_cases;
use rotor_cases::{numbers, profile};

/// The time of the best plan.
fn shortest(profile: &Profile, memory: u64, slot_times: Option<[u64; 2]>, recompute: bool) -> Option<u64> {
    let table = Optimum::of(profile, memory as usize, &Silent).unwrap();
    let program = Program { profile, table: &table, slot_times, recompute, states: usize::MAX };
    program.solve(memory, 1, &Silent).unwrap().first().map(|plan| plan.time)
}

#[test]
fn without_a_link_it_is_as_short_as_rotor_and_no_shorter_than_the_optimum() {
    let golden = golden::json("chain_recompute_rotor_model.json");
    let (mut found, mut equal) = (0, 0);
    for case in golden["cases"].as_array().unwrap() {
        let instance = &case["instance"];
        let profile = profile(instance);
        let rotor = case["rotor_persistent"].as_u64();
        let time = shortest(&profile, instance["M"].as_u64().unwrap(), None, true);
        let Some(rotor) = rotor else { continue };
        let time = time.unwrap_or_else(|| panic!("{instance}"));
        assert!(
            time <= rotor && time >= case["exact"].as_u64().unwrap(),
            "{instance}: {time}, rotor {rotor}"
        );
        found += 1;
        equal += usize::from(time == rotor);
    }
    assert_eq!((found, equal), (75, 75));
}

/// A chain with up to five layers whose copies take about as long as its ops.
fn random_profile(random: &mut Random) -> Profile {
    let n = 2 + random.below(4);
    let mut list = |count: usize, least: u64, most: u64| -> Vec<u64> {
        (0..count).map(|_| least + random.below((most + 1 - least) as usize) as u64).collect()
    };
    let plain = list(n + 1, 1, 4);
    let more = list(n + 1, 0, 3);
    Profile {
        forward: list(n, 1, 9).into_iter().map(Nanos).collect(),
        backward: list(n, 1, 9).into_iter().map(Nanos).collect(),
        saved: plain.iter().zip(&more).map(|(plain, more)| plain + more).collect(),
        plain,
        forward_extra: list(n, 0, 2),
        backward_extra: list(n, 0, 2),
    }
}

/// All plans of a chain, one after another, each laid out op by op: the model of `pofo` without its program.
struct EveryPlan<'a> {
    profile: &'a Profile,
    memory: u64,
    slot_times: [u64; 2],
    /// The steps of rotor's time for every part.
    parts: BTreeMap<(usize, usize), Vec<(u64, u64)>>,
    best: Option<u64>,
}

/// One phase as it is laid out, forward, or backward from its end.
#[derive(Clone, Copy)]
struct Clock {
    now: u64,
    /// When the link has copied everything that it has to copy.
    free: u64,
}

impl Clock {
    /// Starts an op when this many slots are free of bytes that wait for the link, and runs it.
    fn run(&mut self, free_slots: u64, slot_time: u64, time: u64) {
        self.now = self.now.max(self.free.saturating_sub(free_slots * slot_time)) + time;
    }

    fn copy(&mut self, since: u64, slots: u64, slot_time: u64) {
        self.free = self.free.max(since) + slots * slot_time;
    }
}

impl EveryPlan<'_> {
    fn go(&mut self, i: usize, stays: u64, saved: bool, ahead: Clock, back: Clock) {
        let Profile { forward, backward, plain, saved: bars, forward_extra, backward_extra } = self.profile;
        let n = forward.len();
        let input = if saved { bars[i] } else { plain[i] };
        if i == n {
            if stays + input + plain[n] <= self.memory {
                let time = ahead.now.max(ahead.free) + back.now.max(back.free);
                self.best = Some(self.best.map_or(time, |best| best.min(time)));
            }
            return;
        }
        let room = |need: u64| self.memory.checked_sub(stays + input + need);
        let mut next = Vec::new();
        let all = room(bars[i + 1] + forward_extra[i]);
        let all_back = room(plain[i] + plain[i + 1] + bars[i + 1] + backward_extra[i]);
        if let (Some(free), Some(free_back)) = (all, all_back) {
            let (mut a, mut b) = (ahead, back);
            a.run(free, self.slot_times[0], forward[i].get());
            b.run(free_back, self.slot_times[1], backward[i].get());
            next.push((i + 1, true, a, b));
        }
        for j in i..n {
            let mut a = Some(ahead);
            for k in i..=j {
                let carried = if k > i { plain[k] } else { 0 };
                a = a.zip(room(carried + plain[k + 1] + forward_extra[k])).map(|(mut a, free)| {
                    a.run(free, self.slot_times[0], forward[k].get());
                    a
                });
            }
            for &(need, time) in &self.parts[&(i, j)] {
                if let (Some(a), Some(free)) = (a, room(need)) {
                    let mut b = back;
                    b.run(free, self.slot_times[1], time);
                    next.push((j + 1, false, a, b));
                }
            }
        }
        for (end, saved, a, b) in next {
            self.go(end, stays + input, saved, a, b);
            let (mut a, mut b) = (a, b);
            a.copy(ahead.now, input, self.slot_times[0]);
            // In mirrored time its prefetch ends where the part begins.
            b.copy(b.now, input, self.slot_times[1]);
            self.go(end, stays, saved, a, b);
        }
    }
}

#[test]
fn no_plan_of_a_small_chain_is_shorter() {
    let mut random = Random::new(7);
    let (mut found, mut helped) = (0, 0);
    for case in 0..300 {
        let profile = random_profile(&mut random);
        let slot_times = [1 + random.below(4) as u64, 1 + random.below(4) as u64];
        let memory = profile.peak() * (55 + random.below(40) as u64) / 100;
        let n = profile.forward.len();
        let table = Optimum::of(&profile, memory as usize, &Silent).unwrap();
        let pairs = (0..n).flat_map(|i| (i..n).map(move |j| (i, j)));
        let parts = pairs.map(|(i, j)| ((i, j), table.steps(i, j, memory).collect())).collect();
        let clock = Clock { now: 0, free: 0 };
        let mut every = EveryPlan { profile: &profile, memory, slot_times, parts, best: None };
        every.go(0, 0, false, clock, clock);
        let time = shortest(&profile, memory, Some(slot_times), true);
        assert_eq!(time, every.best, "{case}: {profile:?} in {memory}, {slot_times:?}");
        let alone =
            [shortest(&profile, memory, None, true), shortest(&profile, memory, Some(slot_times), false)];
        found += usize::from(time.is_some());
        helped += usize::from(time.is_some() && alone.iter().flatten().all(|&alone| Some(alone) > time));
    }
    println!("{found} chains with plans, on {helped} both together are shorter than either alone");
    assert!(found >= 100 && helped >= 20, "{found} {helped}");
}

#[test]
fn schedules_of_golden_chains_are_no_shorter_than_the_optimum() {
    let golden = golden::json("chain_joint.json");
    let (mut equal, mut sum, mut count) = (0, 0.0, 0);
    for case in golden["cases"].as_array().unwrap() {
        let instance = &case["instance"];
        let list = |key: &str| numbers(&instance[key]);
        let [forward, backward, ex_f, ex_b] = ["uF", "uB", "exF", "exB"].map(list);
        // Times by the rate of the link, so that it copies a byte in a nanosecond.
        let rate = instance["beta"].as_u64().unwrap();
        let layers = (0..forward.len()).map(|i| Layer {
            forward: Nanos(forward[i] * rate),
            backward: Nanos(backward[i] * rate),
            forward_extra: Bytes(ex_f[i]),
            backward_extra: Bytes(ex_b[i]),
        });
        let sizes = |key: &str| list(key).into_iter().map(Bytes).collect();
        let chain = Chain { layers: layers.collect(), activations: sizes("x"), gradients: sizes("y") };
        let traced = chain.to_trace("golden").unwrap();
        for (key, shared_link) in [("joint_half", true), ("joint_full", false)] {
            let stated = case[key].as_str().unwrap();
            if stated == "skipped" {
                continue;
            }
            let (over, under) = stated.split_once('/').unwrap_or((stated, "1"));
            let optimum = over.parse::<f64>().unwrap() / under.parse::<f64>().unwrap();
            let channel = Channel::with_rate(1_000_000_000);
            let machine = Machine {
                name: "golden".into(),
                memory: Bytes(1 << 50),
                align: Bytes(1),
                host_memory: Bytes(1 << 50),
                to_host: channel,
                to_device: channel,
                shared_link,
                flops_per_second: 1,
                half_flops_per_second: None,
                bytes_per_second: 1,
                launch: Nanos::ZERO,
            };
            let request = Request {
                trace: &traced.trace,
                costs: &traced.costs,
                machine: &machine,
                live_limit: Bytes(instance["M"].as_u64().unwrap()),
                freedom: Freedom::ALL,
                packer: None,
                pins: None,
            };
            count += 1;
            let outcome = Pofo::DEFAULT.schedule(&request, &Budget::default(), &Silent);
            let Some(schedule) = outcome.best else {
                println!("{} {key}: no schedule", case["id"]);
                continue;
            };
            let timeline = simulate(&traced.trace, &traced.costs, &machine, &schedule).unwrap();
            assert!(timeline.peak_live <= request.live_limit);
            let ratio = timeline.iteration.get() as f64 / rate as f64 / optimum;
            assert!(ratio > 1.0 - 1e-9, "{}: {ratio}", case["id"]);
            equal += usize::from(ratio < 1.0 + 1e-9);
            sum += ratio;
        }
    }
    let mean = sum / f64::from(count);
    println!("{equal} of {count} optimal, mean {mean:.4}");
    assert!(count == 46 && equal >= 30 && mean < 1.03, "{equal} of {count}, mean {mean}");
}

/// A chain of many layers, of sizes and times that differ by a factor of up to eight.
fn long_chain(random: &mut Random) -> Chain {
    let layers = 40 + random.below(20);
    let mut number = |most: usize| 1 + random.below(most) as u64;
    let mut layer = || {
        let forward = Nanos(1_000 * number(8));
        Layer { forward, backward: Nanos(2 * forward.get()), ..Layer::default() }
    };
    let of_layers = (0..layers).map(|_| layer()).collect();
    let sizes: Vec<Bytes> = (0..=layers).map(|_| Bytes(number(8) << 16)).collect();
    Chain { layers: of_layers, activations: sizes.clone(), gradients: sizes }
}

#[test]
fn a_coarse_pass_goes_before_and_its_schedule_is_never_lost() {
    let mut random = Random::new(20);
    let machine = elbowroom_sim::presets::machine("v100").unwrap();
    let [mut first, mut both] = [Pofo::DEFAULT; 2];
    (first.slots, first.layers, first.states, first.plans) = (100, 32, 30, 3);
    // Fewer states than by default, to be quick.
    both.states = 40;
    for case in 0..3 {
        let chain = long_chain(&mut random);
        let traced = chain.to_trace("long").unwrap();
        let request = Request {
            trace: &traced.trace,
            costs: &traced.costs,
            machine: &machine,
            live_limit: Bytes(chain.peak().get() * (45 + 15 * case) / 100),
            freedom: Freedom::ALL,
            packer: None,
            pins: None,
        };
        let run = |pofo: Pofo, budget: &Budget| {
            let outcome = pofo.schedule(&request, budget, &Silent);
            let timeline = |schedule| simulate(&traced.trace, &traced.costs, &machine, schedule).unwrap();
            let best = outcome.best.unwrap();
            let timeline = timeline(&best);
            assert!(timeline.peak_live <= request.live_limit);
            (timeline.iteration, outcome.evaluations, best)
        };
        let (coarse, few, _) = run(first, &Budget::default());
        let (time, evaluations, schedule) = run(both, &Budget::default());
        println!("{case}: {coarse:?} after {few}, {time:?} after {evaluations}");
        assert!(time <= coarse && evaluations >= few, "{case}: {time:?} {coarse:?}");
        // The coarse pass has the first evaluations; a number of evaluations repeats the search.
        assert_eq!(run(both, &Budget::evaluations(few)).0, coarse, "{case}");
        let (_, again, same) = run(both, &Budget::evaluations(evaluations));
        assert!(again == evaluations && same == schedule, "{case}");
    }
}

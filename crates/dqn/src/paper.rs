//! Algorithm 1 in the order of the paper's text, for comparison with the training of [`learn`](crate::learn).
//!
//! The agent is at a node, under execution. It chooses one action among those on *all* variables that are on the device then (H⁰ and H¹ of section
//! 4.3) and *doing nothing*, in one argmax (section 4.5, Algorithm 1 line 10). Doing nothing and removing lead to the next node; offloading leads to
//! the first node that begins after the copy, unless the memory is full, for then the node waits (section 4.6). Nodes at which nothing can be
//! done are passed over. An episode ends when the plan fits, or at the last node; a byte that is missing there has the price of the settings.
//!
//! ```text
//! nodes     0    1    2    3    4    5    6    7
//! nothing                  ●───▶●
//! remove                   ●───▶●
//! offload                  ●────copy───▶●
//! ```
//!
//! After every decision the network takes a step on a mini-batch from the replay memory, whose values are those of equation 5 with a copy of the
//! network that is renewed every few episodes. Rewards are those of the [`environment`](crate::environment): the change of the simulated
//! iteration time. A decision that comes later than the last use of its tensor is carried out at that use, as the schedules of this project copy
//! as soon as they can.

use std::collections::VecDeque;
use std::rc::Rc;

use elbowroom_ir::Bytes;
use elbowroom_ir::search::StopReason;

use crate::environment::{Action, Environment, PartialPlan};
use crate::learn::{BestPlan, Guard, Learned};
use crate::network::{Embedding, Optimizer, Point, Weights};
use crate::pace::Pace;
use crate::progress;
use crate::settings::Settings;
use crate::walk::{action_node, validity};
use elbowroom_sched::policy::Offloadable;
use elbowroom_sched::random::Random;

/// A state of the agent.
#[derive(Clone)]
struct State {
    /// Of every candidate; what is not decided stays.
    decisions: Rc<[Action]>,
    /// The node under execution; one past the last at the end.
    at: u32,
}

/// What is remembered: a state, an action, its reward, and the state after it unless that is a terminal one.
struct Experience {
    state: State,
    node: u32,
    reward: f32,
    next: Option<State>,
    /// What the next state was worth to which copy of the network.
    worth: Option<(u32, f32)>,
}

/// An action of the agent: on a candidate, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice {
    candidate: Option<usize>,
    action: Action,
    node: u32,
}

/// See the [module](self).
pub(crate) struct Agent<'e, 'a> {
    environment: &'e mut Environment<'a>,
    settings: &'e Settings,
    random: Random,
    weights: Weights,
    /// The copy that values next states, and its number.
    frozen: (Weights, u32),
    optimizer: Optimizer,
    memory: VecDeque<Experience>,
    best: Option<BestPlan>,
}

impl<'e, 'a> Agent<'e, 'a> {
    pub(crate) fn new(
        environment: &'e mut Environment<'a>,
        settings: &'e Settings,
        initial: Option<Weights>,
        seed: u64,
    ) -> Self {
        let mut random = Random::new(seed);
        let weights = initial.unwrap_or_else(|| Weights::random(settings.hidden, &mut random));
        let optimizer = Optimizer::new(weights.hidden(), settings.sgd);
        let frozen = (weights.clone(), 0);
        Self {
            environment,
            settings,
            random,
            weights,
            frozen,
            optimizer,
            memory: VecDeque::new(),
            best: None,
        }
    }

    /// Trains until the episodes are over or something else ends it.
    pub(crate) fn run(mut self, guard: &Guard<'_>) -> Learned {
        let mut pace = Pace::of(guard.budget);
        let stop = self.train(&mut pace, guard).err().unwrap_or(StopReason::Finished);
        let (stop, evaluations) = pace.end(stop, self.environment.simulated);
        Learned { weights: self.weights, best: self.best, stop, evaluations }
    }

    fn train(&mut self, pace: &mut Pace, guard: &Guard<'_>) -> Result<(), StopReason> {
        let settings = self.settings;
        let mut improved = 0;
        pace.begin(self.environment.simulated);
        for number in 1..=settings.episodes {
            let shares = [number, number - 1]
                .map(|episode| pace.share(episode, settings.episodes, self.environment.simulated));
            let explore = settings.explore * (1.0 - shares[0]);
            let before = self.best.as_ref().map(|best| best.time);
            let (gain, last) = self.episode(explore, settings.rate * (1.0 - shares[1]), guard)?;
            let cost = last.time.saturating_add(self.environment.price(last.missing));
            if number % settings.target == 0 {
                self.frozen = (self.weights.clone(), self.frozen.1 + 1);
            }
            if let Some(best) = self.best.as_mut().filter(|best| best.origin.is_empty()) {
                best.origin = format!("episode {number}");
            }
            pace.after_episode(self.environment.simulated, guard.started);
            pace.check(self.environment.simulated)?;
            let best = self.best.as_ref().map(|best| best.time);
            improved = if best == before { improved } else { number };
            guard.observer.note(&progress::Episode {
                number,
                of: settings.episodes,
                exploration: explore,
                gain,
                cost,
                fits: last.missing == 0,
                best,
            });
            guard.observer.progress(self.environment.simulated);
            let reached = best.is_some_and(|best| best <= guard.bound);
            if reached && !settings.through {
                return Err(StopReason::Optimal);
            }
            if settings.patience > 0 && number - improved >= settings.patience {
                break;
            }
        }
        Ok(())
    }

    /// One episode: lines 3 to 17. Returns the sum of its rewards and its last plan.
    fn episode(
        &mut self,
        explore: f32,
        rate: f32,
        guard: &Guard<'_>,
    ) -> Result<(f32, Rc<PartialPlan>), StopReason> {
        let undecided: Rc<[Action]> = vec![Action::Keep; self.environment.candidates.len()].into();
        let mut plan = self.environment.standing(&undecided);
        let mut state = self.passed_over(State { decisions: undecided, at: 0 });
        let mut gain = 0.0;
        while plan.missing > 0 && (state.at as usize) < self.environment.nodes.len() {
            guard.check(self.environment)?;
            let choices = self.choices(&state);
            let choice = if self.random.unit() < f64::from(explore) {
                choices[self.random.below(choices.len())]
            } else {
                let sight = self.environment.sight(self.settings.rounds);
                let valid = self.valid(&state);
                let embedding = sight.embed(&self.weights, &sight.fix(&self.weights), &valid);
                self.greatest(&self.weights, &embedding, &state, &choices).0
            };
            let (next, after, reward) = self.act(&state, &plan, choice);
            gain += reward;
            let goes_on = after.missing > 0 && (next.at as usize) < self.environment.nodes.len();
            let experience = Experience {
                state,
                node: choice.node,
                reward,
                next: goes_on.then(|| next.clone()),
                worth: None,
            };
            if self.memory.len() >= self.settings.replay {
                self.memory.pop_front();
            }
            self.memory.push_back(experience);
            self.update(rate);
            (state, plan) = (next, after);
        }
        if plan.missing == 0 && self.best.as_ref().is_none_or(|best| plan.time < best.time) {
            let decisions = state.decisions.to_vec();
            self.best = Some(BestPlan { time: plan.time, decisions, origin: String::new() });
            guard.observer.improved(plan.time, guard.bound);
        }
        Ok((gain, plan))
    }

    /// What can be done in a state: nothing, which the first node of all represents, and whatever is on the device, is not needed at once and
    /// was left alone so far.
    fn choices(&self, state: &State) -> Vec<Choice> {
        let mut choices = vec![Choice { candidate: None, action: Action::Keep, node: 0 }];
        let nodes = &self.environment.nodes.nodes;
        let Some(now) = nodes.get(state.at as usize).map(|node| node.place) else { return choices };
        for (index, candidate) in self.environment.candidates.iter().enumerate() {
            let used = candidate.node <= state.at;
            let there = match candidate.part {
                Offloadable::Gap(_) => used && now < candidate.until,
                // Its last use was in the iteration before, or is over in this one.
                Offloadable::Persistent(_) => used || now < candidate.until,
            };
            if !there || state.decisions[index] != Action::Keep {
                continue;
            }
            let actions =
                [(Action::Offload, candidate.offload), (Action::Recompute, candidate.remove.is_some())];
            for (action, _) in actions.into_iter().filter(|action| action.1) {
                let node = action_node(candidate, action);
                choices.push(Choice { candidate: Some(index), action, node });
            }
        }
        choices
    }

    /// The state, or the next one in which something can be done.
    fn passed_over(&self, mut state: State) -> State {
        while (state.at as usize) < self.environment.nodes.len() && self.choices(&state).len() == 1 {
            state.at += 1;
        }
        state
    }

    /// Section 4.6: the next state with its plan, and the reward.
    fn act(
        &mut self,
        state: &State,
        plan: &Rc<PartialPlan>,
        choice: Choice,
    ) -> (State, Rc<PartialPlan>, f32) {
        let (mut decisions, mut after, mut reward) = (state.decisions.clone(), plan.clone(), 0.0);
        let mut at = state.at + 1;
        if let Some(index) = choice.candidate {
            let mut decided = state.decisions.to_vec();
            decided[index] = choice.action;
            let tried = self.environment.standing(&decided);
            let bytes = self.environment.candidates[index].bytes;
            if tried.possible {
                reward += plan.time as f64 - tried.time as f64;
                (decisions, after) = (decided.into(), tried);
            } else {
                reward -= self.environment.price(bytes) as f64;
            }
            if choice.action == Action::Offload {
                at = self.behind_copy(state.at, Bytes(bytes), plan);
            }
        }
        let next = self.passed_over(State { decisions, at });
        if after.missing > 0 && next.at as usize >= self.environment.nodes.len() {
            reward -= self.environment.price(after.missing) as f64;
        }
        (next, after, (reward / self.environment.unit) as f32)
    }

    /// The first node behind a copy that begins at a node; the next one where there is no room for what comes meanwhile.
    fn behind_copy(&self, at: u32, bytes: Bytes, plan: &PartialPlan) -> u32 {
        let nodes = &self.environment.nodes.nodes;
        let request = self.environment.request;
        let here = nodes[at as usize];
        let live_bytes = plan.live_bytes.get(here.place as usize);
        if live_bytes.is_none_or(|&live_bytes| live_bytes >= request.live_limit.get()) {
            return at + 1;
        }
        let end = here.time + request.machine.to_host.time(bytes).get();
        let behind = nodes[at as usize + 1..].iter().position(|node| node.time >= end);
        behind.map_or(nodes.len() as u32, |nodes| at + 1 + nodes as u32)
    }

    fn valid(&self, state: &State) -> Vec<f32> {
        validity(&self.environment.candidates, self.environment.nodes.len(), &state.decisions)
    }

    /// The choice of greatest value, with it. The first one if the network's values are no numbers.
    fn greatest(
        &self,
        weights: &Weights,
        embedding: &Embedding,
        state: &State,
        choices: &[Choice],
    ) -> (Choice, f32) {
        let sight = self.environment.sight(self.settings.rounds);
        let mut best = (choices[0], f32::NEG_INFINITY);
        for &choice in choices {
            let value = sight.value(weights, embedding, state.at, choice.node);
            if value > best.1 {
                best = (choice, value);
            }
        }
        best
    }

    /// Line 13: a step on one mini-batch (equations 4 and 5).
    fn update(&mut self, rate: f32) {
        let drawn: Vec<usize> =
            (0..self.settings.batch).map(|_| self.random.below(self.memory.len())).collect();
        let sight = self.environment.sight(self.settings.rounds);
        let fixed = sight.fix(&self.weights);
        let mut of_frozen = None;
        let mut gradient = Weights::zero(self.weights.hidden());
        for index in drawn.iter().copied() {
            let experience = &self.memory[index];
            let known = experience.worth.filter(|worth| worth.0 == self.frozen.1).map(|worth| worth.1);
            let next = known.unwrap_or_else(|| {
                experience.next.as_ref().map_or(0.0, |next| {
                    let fixed = of_frozen.get_or_insert_with(|| sight.fix(&self.frozen.0));
                    let embedding = sight.embed(&self.frozen.0, fixed, &self.valid(next));
                    self.greatest(&self.frozen.0, &embedding, next, &self.choices(next)).1
                })
            });
            let wanted = experience.reward + self.settings.discount * next;
            let valid = self.valid(&experience.state);
            let embedding = sight.embed(&self.weights, &fixed, &valid);
            let (at, action) = (experience.state.at, experience.node);
            let error = sight.value(&self.weights, &embedding, at, action) - wanted;
            let point = Point { at, action, slope: 2.0 * error / self.settings.batch as f32 };
            sight.derive(&self.weights, &embedding, &valid, &[point], &mut gradient);
            let worth = Some((self.frozen.1, next));
            self.memory[index].worth = worth;
        }
        self.optimizer.step(&mut self.weights, &gradient, rate, self.settings.clip);
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::Nanos;
    use elbowroom_ir::machine::{Channel, Machine};
    use elbowroom_ir::planning::{Freedom, Request};
    use elbowroom_sched::chain::{Chain, Layer};
    use elbowroom_sim::presets;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Six layers of a second each, whose activations take one and a half to copy.
    fn chain(limit: u64, check: impl FnOnce(Agent<'_, '_>)) {
        let layer = Layer { forward: Nanos(SECOND), backward: Nanos(SECOND), ..Layer::default() };
        let chain = Chain {
            layers: vec![layer; 6],
            activations: vec![Bytes(3 << 20); 7],
            gradients: vec![Bytes(1); 7],
        };
        let traced = chain.to_trace("chain").unwrap();
        let link = Channel::with_rate(2 << 20);
        let machine =
            Machine { to_host: link, to_device: link, align: Bytes(1), ..presets::machine("v100").unwrap() };
        let request = Request {
            trace: &traced.trace,
            costs: &traced.costs,
            machine: &machine,
            live_limit: Bytes(limit << 20),
            freedom: Freedom::ALL,
            packer: None,
            pins: None,
        };
        let mut environment = Environment::new(&request, &Settings::PAPER).unwrap();
        check(Agent::new(&mut environment, &Settings::PAPER, None, 1));
    }

    /// The first state in which something can be done, its plan and the actions there of a kind.
    fn first(agent: &mut Agent<'_, '_>, action: Action) -> (State, Rc<PartialPlan>, Vec<Choice>) {
        let decisions: Rc<[Action]> = vec![Action::Keep; agent.environment.candidates.len()].into();
        let plan = agent.environment.standing(&decisions);
        let state = agent.passed_over(State { decisions, at: 0 });
        let all = agent.choices(&state);
        assert_eq!(all[0], Choice { candidate: None, action: Action::Keep, node: 0 });
        let of = all.into_iter().filter(|choice| choice.action == action).collect();
        (state, plan, of)
    }

    /// Section 4.6 and Figure 4.
    #[test]
    fn offloading_leads_behind_the_nodes_that_run_meanwhile() {
        chain(18, |mut agent| {
            let time = |agent: &Agent<'_, '_>, at: u32| agent.environment.nodes.nodes[at as usize].time;
            for action in [Action::Keep, Action::Offload] {
                let (state, plan, choices) = first(&mut agent, action);
                let (next, after, reward) = agent.act(&state, &plan, choices[0]);
                let begun = time(&agent, next.at) - time(&agent, state.at);
                if action == Action::Keep {
                    assert!((next.at, after.time, reward) == (state.at + 1, plan.time, 0.0));
                } else {
                    // A copy of 1.5 s ends within the second op from here; the next node is that of the third.
                    assert_eq!((begun, after.missing < plan.missing), (2 * SECOND, true));
                    assert!(
                        agent.choices(&next).iter().all(|choice| choice.candidate != choices[0].candidate)
                    );
                }
            }
        });
    }

    /// Without room for what comes meanwhile the node waits.
    #[test]
    fn where_memory_is_full_offloading_leads_to_the_next_node() {
        chain(18, |mut agent| {
            let (mut state, plan, _) = first(&mut agent, Action::Offload);
            let full = |at: u32| {
                let place = agent.environment.nodes.nodes[at as usize].place;
                plan.live_bytes[place as usize] >= 18 << 20
            };
            while !full(state.at) {
                state.at += 1;
            }
            assert_eq!(agent.behind_copy(state.at, Bytes(3 << 20), &plan), state.at + 1);
            assert!(agent.behind_copy(0, Bytes(3 << 20), &plan) > 1);
        });
    }

    /// All that is on the device can be chosen at a node, and not only what was used there.
    #[test]
    fn all_candidates_stand_in_one_argmax() {
        chain(12, |agent| {
            let decisions: Rc<[Action]> = vec![Action::Keep; agent.environment.candidates.len()].into();
            let most = (0..agent.environment.nodes.len() as u32)
                .map(|at| agent.choices(&State { decisions: decisions.clone(), at }))
                .max_by_key(Vec::len)
                .unwrap();
            let offloads = most.iter().filter(|choice| choice.action == Action::Offload).count();
            assert!(offloads >= 4, "{most:?}");
        });
    }

    /// Rewards add up to what the plan costs, and a step of training changes the network.
    #[test]
    fn an_episode_pays_for_its_plan() {
        chain(14, |mut agent| {
            let guard = Guard {
                budget: &elbowroom_ir::search::Budget::evaluations(1_000),
                started: std::time::Instant::now(),
                observer: &elbowroom_ir::search::Silent,
                bound: 0,
            };
            let before = agent.weights.clone();
            let none: Vec<Action> = vec![Action::Keep; agent.environment.candidates.len()];
            let start = agent.environment.standing(&none).time as f64;
            let (gain, last) = agent.episode(1.0, 1e-2, &guard).unwrap_or_else(|stop| panic!("{stop:?}"));
            let cost = last.time + agent.environment.price(last.missing);
            let paid = (start - cost as f64) / agent.environment.unit;
            assert!((f64::from(gain) - paid).abs() < 1e-3 * (1.0 + paid.abs()), "{gain} {paid}");
            assert!(agent.weights != before && !agent.memory.is_empty());
        });
    }
}

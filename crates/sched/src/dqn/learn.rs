//! Fitted Q-iteration: Algorithm 1 and section 4.10.
//!
//! An episode takes a decision at every candidate until the plan fits, at random with a probability that falls from all to nothing over
//! the episodes, else the one of greatest value. Its transitions go to the replay memory. After each episode the network takes steps on
//! mini-batches drawn from there; the value of the next state comes from a copy of the network that is renewed every few episodes, so
//! that no gradient flows through it. All random numbers come from one seed, and sums over a mini-batch are taken in an order that does
//! not depend on the number of threads.

use std::sync::Arc;
use std::time::Instant;

use elbowroom_ir::search::{self, Budget, Observer, StopReason};

use super::environment::{Action, Candidate, Environment, Episode};
use super::network::{Adam, Embedding, Fixed, Sight, Weights};
use super::settings::Settings;
use crate::auto::random::Random;

/// What training has led to.
pub(crate) struct Learned {
    pub weights: Weights,
    /// The best plan of any episode: iteration time and decisions, and the episode.
    pub best: Option<(u64, Vec<Action>, u32)>,
    pub stop: StopReason,
}

/// One decision as it is remembered.
struct Transition {
    /// The decisions of its whole episode.
    episode: Arc<[Action]>,
    /// How many of them came before this one.
    index: usize,
    reward: f32,
    /// What was gained from here to the end of the episode, discounted.
    gain: f32,
    last: bool,
    /// Which actions were valid next.
    valid: [bool; 3],
    /// What the next state was worth to which copy of the network.
    next: Option<(u32, f32)>,
}

/// Which node represents which action on a candidate. Doing nothing is represented by the first node of all (section 4.9).
fn action_node(candidate: &Candidate, action: Action) -> u32 {
    match action {
        Action::Nothing => 0,
        Action::Offload => candidate.node,
        Action::Remove => candidate.remove.unwrap_or(0),
    }
}

/// The last feature of every node: whether its action can be taken, which ends when its value leaves.
fn validity(candidates: &[Candidate], nodes: usize, decisions: &[Action]) -> Vec<f32> {
    let mut valid = vec![0.0; nodes];
    for (index, candidate) in candidates.iter().enumerate() {
        if decisions.get(index).is_none_or(|&action| action == Action::Nothing) {
            valid[candidate.node as usize] = f32::from(u8::from(candidate.offload));
            if let Some(remove) = candidate.remove {
                valid[remove as usize] = 1.0;
            }
        }
    }
    valid
}

/// The valid action of greatest value, with it.
fn greatest(
    sight: &Sight<'_>,
    weights: &Weights,
    embedding: &Embedding,
    candidate: &Candidate,
    valid: [bool; 3],
) -> (Action, f32) {
    let mut best = (Action::Nothing, f32::NEG_INFINITY);
    for action in Action::ALL.into_iter().filter(|&action| valid[action as usize]) {
        let value = sight.value(weights, embedding, candidate.node, action_node(candidate, action));
        if value > best.1 {
            best = (action, value);
        }
    }
    best
}

/// Trains on one environment.
pub(crate) struct Learner<'e, 'a> {
    environment: &'e mut Environment<'a>,
    settings: &'e Settings,
    random: Random,
    weights: Weights,
    frozen: Weights,
    /// Which copy `frozen` is.
    copy: u32,
    adam: Adam,
    memory: Vec<Transition>,
    /// Where the next transition goes when the memory is full.
    oldest: usize,
    /// How far below the limit it should look as if the rest could do without a candidate, before it may stay. What is removed must be made
    /// again somewhere, which takes room that cannot be foreseen; so this rises with every plan that does not fit and falls with others.
    margin: u64,
}

impl<'e, 'a> Learner<'e, 'a> {
    pub(crate) fn new(
        environment: &'e mut Environment<'a>,
        settings: &'e Settings,
        initial: Option<Weights>,
        seed: u64,
    ) -> Self {
        let mut random = Random::new(seed);
        let weights = initial.unwrap_or_else(|| Weights::random(settings.hidden, &mut random));
        let adam = Adam::new(weights.hidden());
        let frozen = weights.clone();
        let memory = Vec::new();
        Self { environment, settings, random, weights, frozen, copy: 0, adam, memory, oldest: 0, margin: 0 }
    }

    /// Trains until the episodes are over or something else ends it.
    pub(crate) fn run(
        mut self,
        bound: u64,
        budget: &Budget,
        started: Instant,
        observer: &dyn Observer,
    ) -> Learned {
        let settings = self.settings;
        let mut best: Option<(u64, Vec<Action>, u32)> = None;
        let mut improved = 0;
        let mut stop = StopReason::Finished;
        for number in 1..=settings.episodes {
            let explore = settings.explore * (1.0 - number as f32 / settings.episodes as f32);
            let (sum, episode) = match self.episode(explore, budget, started, observer) {
                Ok(finished) => finished,
                Err(reason) => {
                    stop = reason;
                    break;
                }
            };
            let missing = episode.standing.missing;
            let time = episode.fits().then_some(episode.standing.time);
            let cost = episode.standing.time + self.environment.price(missing);
            self.margin = match time {
                Some(_) => self.margin / 8 * 7,
                None => (self.margin + missing / 2).min(self.environment.request.load_limit.get() / 4),
            };
            if let Some(time) = time.filter(|&time| best.as_ref().is_none_or(|best| time < best.0)) {
                best = Some((time, episode.decisions, number));
                improved = number;
                observer.improved(time, bound);
            }
            observer.episode(&search::Episode {
                number,
                of: settings.episodes,
                exploration: explore,
                gain: sum,
                cost,
                fits: time.is_some(),
                best: best.as_ref().map(|best| best.0),
            });
            observer.progress(self.environment.simulated);
            if best.as_ref().is_some_and(|best| best.0 <= bound) {
                stop = StopReason::Optimal;
                break;
            }
            if settings.patience > 0 && number - improved >= settings.patience {
                break;
            }
            for _ in 0..settings.updates {
                self.update(budget.threads);
            }
            if number % settings.target == 0 {
                self.frozen = self.weights.clone();
                self.copy += 1;
            }
        }
        Learned { weights: self.weights, best, stop }
    }

    /// One episode; its transitions are remembered. Returns the sum of its rewards.
    fn episode(
        &mut self,
        explore: f32,
        budget: &Budget,
        started: Instant,
        observer: &dyn Observer,
    ) -> Result<(f32, Episode), StopReason> {
        let mut episode = Episode::new(self.environment);
        let mut steps = Vec::new();
        let mut seen: Option<(usize, Embedding)> = None;
        let fixed = self.sight().fix(&self.weights);
        let mut sum = 0.0;
        let mut valid = episode.valid(self.environment, self.margin);
        while !episode.fits() && episode.next(self.environment).is_some() {
            if observer.interrupted() {
                return Err(StopReason::Interrupted);
            }
            if let Some(reason) = budget.exhausted(self.environment.simulated, started) {
                return Err(reason);
            }
            let action = if self.random.unit() < f64::from(explore) {
                let choices: Vec<Action> = Action::ALL.into_iter().filter(|&a| valid[a as usize]).collect();
                choices[self.random.below(choices.len())]
            } else {
                // The states of nodes change only when a value has left.
                let taken = episode.decisions.iter().filter(|&&action| action != Action::Nothing).count();
                let embedding = match seen.take() {
                    Some((count, embedding)) if count == taken => embedding,
                    _ => self.embed(&fixed, &episode.decisions),
                };
                let candidate = &self.environment.candidates[episode.decisions.len()];
                let (action, _) = greatest(&self.sight(), &self.weights, &embedding, candidate, valid);
                seen = Some((taken, embedding));
                action
            };
            let step = episode.act(self.environment, action);
            sum += step.reward;
            valid = episode.valid(self.environment, self.margin);
            steps.push((step, valid));
        }
        let decisions: Arc<[Action]> = episode.decisions.as_slice().into();
        let mut gains = vec![0.0; steps.len()];
        for (index, (step, _)) in steps.iter().enumerate().rev() {
            let after = gains.get(index + 1).copied().unwrap_or(0.0);
            gains[index] = step.reward + self.settings.discount * after;
        }
        for (index, ((step, valid), gain)) in steps.into_iter().zip(gains).enumerate() {
            let (reward, last, episode) = (step.reward, step.last, decisions.clone());
            self.remember(Transition { episode, index, reward, gain, last, valid, next: None });
        }
        Ok((sum, episode))
    }

    fn sight(&self) -> Sight<'_> {
        let environment = &*self.environment;
        Sight { nodes: &environment.nodes, features: &environment.features, rounds: self.settings.rounds }
    }

    fn embed(&self, fixed: &Fixed, decisions: &[Action]) -> Embedding {
        let valid = validity(&self.environment.candidates, self.environment.nodes.len(), decisions);
        self.sight().embed(&self.weights, fixed, &valid)
    }

    fn remember(&mut self, transition: Transition) {
        if self.memory.len() < self.settings.replay {
            self.memory.push(transition);
        } else {
            self.memory[self.oldest] = transition;
            self.oldest = (self.oldest + 1) % self.settings.replay;
        }
    }

    /// A step on one mini-batch (equations 4 and 5).
    fn update(&mut self, threads: usize) {
        if self.memory.is_empty() {
            return;
        }
        let batch: Vec<usize> =
            (0..self.settings.batch).map(|_| self.random.below(self.memory.len())).collect();
        let targets = self.targets(&batch);
        let fixed = self.sight().fix(&self.weights);
        let sight = self.sight();
        let (weights, memory, candidates) = (&self.weights, &self.memory, &self.environment.candidates);
        let part = |samples: &[(usize, f32)]| {
            let mut gradient = Weights::zero(weights.hidden());
            for &(index, target) in samples {
                let Transition { episode, index, .. } = &memory[index];
                let valid = validity(candidates, sight.nodes.len(), &episode[..*index]);
                let embedding = sight.embed(weights, &fixed, &valid);
                let candidate = &candidates[*index];
                let action = action_node(candidate, episode[*index]);
                let error = sight.value(weights, &embedding, candidate.node, action) - target;
                let slope = 2.0 * error / batch.len() as f32;
                sight.derive(weights, &embedding, &valid, (candidate.node, action), slope, &mut gradient);
            }
            gradient
        };
        let samples: Vec<(usize, f32)> = batch.iter().copied().zip(targets).collect();
        let mut gradient = Weights::zero(weights.hidden());
        let size = samples.len().div_ceil(PARTS);
        if threads > 1 {
            let parts: Vec<Weights> = std::thread::scope(|scope| {
                let part = &part;
                let run = |samples| scope.spawn(move || part(samples));
                let running: Vec<_> = samples.chunks(size).map(run).collect();
                running.into_iter().filter_map(|thread| thread.join().ok()).collect()
            });
            parts.iter().for_each(|part| gradient.add(part));
        } else {
            samples.chunks(size).for_each(|samples| gradient.add(&part(samples)));
        }
        let (rate, clip) = (self.settings.rate, self.settings.clip);
        self.adam.step(&mut self.weights, &gradient, rate, clip);
    }

    /// y of equation 5 for each of these transitions.
    fn targets(&mut self, batch: &[usize]) -> Vec<f32> {
        let fixed = self.sight().fix(&self.frozen);
        let mut targets = Vec::with_capacity(batch.len());
        for &index in batch {
            let transition = &self.memory[index];
            let next = match transition.next {
                _ if transition.last => 0.0,
                Some((copy, value)) if copy == self.copy => value,
                _ => {
                    let environment = &*self.environment;
                    let decisions = &transition.episode[..=transition.index];
                    let valid = validity(&environment.candidates, environment.nodes.len(), decisions);
                    let sight = self.sight();
                    let embedding = sight.embed(&self.frozen, &fixed, &valid);
                    let candidate = &environment.candidates[transition.index + 1];
                    greatest(&sight, &self.frozen, &embedding, candidate, transition.valid).1
                }
            };
            let transition = &mut self.memory[index];
            transition.next = Some((self.copy, next));
            let expected = transition.reward + self.settings.discount * next;
            targets.push(if self.settings.tighten { expected.max(transition.gain) } else { expected });
        }
        targets
    }
}

/// Parts of a mini-batch whose gradients are summed separately, whatever the number of threads.
const PARTS: usize = 4;

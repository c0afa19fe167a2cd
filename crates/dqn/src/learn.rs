//! Fitted Q-iteration: Algorithm 1 and section 4.10.
//!
//! An episode takes a decision at every candidate until the plan fits: at random with a probability that falls from one to zero over the
//! episodes, else the action of greatest value. Its decisions go to the replay memory. After each episode the network takes steps on
//! mini-batches drawn from there; the value of the next state comes from a copy of the network that is renewed every few episodes, so
//! that no gradient flows through it. `Settings::ahead` is the number of rewards that count before that value; by default those of the whole
//! episode. All random numbers come from one seed, and sums over a mini-batch are taken in an order that does not depend on the number of
//! threads.
//!
//! Before the first episode the schedules of fixed rules are replayed, and remembered permanently. Every few episodes the network is run
//! without exploration. The network that did best there is the result of training, because the last one depends on its last mini-batches.

use std::time::Instant;

use elbowroom_ir::search::{Budget, Observer, StopReason};

use crate::environment::{Action, Environment};
use crate::episode::{Margin, Rollout};
use crate::imitate::Script;
use crate::memory::{ReplayMemory, Trajectory};
use crate::network::{Fixed, Optimizer, Point, Weights};
use crate::pace::Pace;
use crate::play::{Exploring, Greedy, trial};
use crate::progress;
use crate::settings::Settings;
use crate::walk::{EpisodeWalk, action_node, validity};
use elbowroom_sched::random::Random;

/// The best plan of any episode.
pub(crate) struct BestPlan {
    pub time: u64,
    pub decisions: Vec<Action>,
    /// The episode, for reports.
    pub origin: String,
}

/// What training has led to.
pub(crate) struct Learned {
    pub weights: Weights,
    pub best: Option<BestPlan>,
    pub stop: StopReason,
    /// The evaluations that lead to the same result, as a budget.
    pub evaluations: u64,
}

/// What ends training from outside.
pub(crate) struct Guard<'g> {
    pub budget: &'g Budget,
    pub started: Instant,
    pub observer: &'g dyn Observer,
    /// Nothing is shorter than this.
    pub bound: u64,
}

impl Guard<'_> {
    /// Whether time is left, between steps that are no evaluations.
    fn check_time(&self) -> Result<(), StopReason> {
        if self.observer.interrupted() {
            return Err(StopReason::Interrupted);
        }
        match self.budget.time.is_some_and(|time| self.started.elapsed() >= time) {
            true => Err(StopReason::Time),
            false => Ok(()),
        }
    }

    pub(crate) fn check(&self, environment: &Environment<'_>) -> Result<(), StopReason> {
        if self.observer.interrupted() {
            return Err(StopReason::Interrupted);
        }
        self.budget.exhausted(environment.simulated, self.started).map_or(Ok(()), Err)
    }
}

/// A copy of the network, with what it makes of the trace.
struct Frozen {
    weights: Weights,
    fixed: Fixed,
    /// Which copy it is.
    number: u32,
}

/// Trains on one environment.
pub(crate) struct Learner<'e, 'a> {
    environment: &'e mut Environment<'a>,
    settings: &'e Settings,
    random: Random,
    weights: Weights,
    frozen: Frozen,
    optimizer: Optimizer,
    memory: ReplayMemory,
    margin: Margin,
    best: Option<BestPlan>,
    /// What the best network reached when it played alone, and it.
    champion: Option<(u64, Weights)>,
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
        let optimizer = Optimizer::new(weights.hidden(), settings.sgd);
        let fixed = environment.sight(settings.rounds).fix(&weights);
        let frozen = Frozen { weights: weights.clone(), fixed, number: 0 };
        let (memory, margin) = (ReplayMemory::default(), Margin::default());
        let (best, champion) = (None, None);
        Self { environment, settings, random, weights, frozen, optimizer, memory, margin, best, champion }
    }

    /// Trains until the episodes are over or something else ends it; first the decisions of `examples` are played.
    pub(crate) fn run(mut self, examples: Vec<(String, Vec<Action>)>, guard: &Guard<'_>) -> Learned {
        let mut pace = Pace::of(guard.budget);
        let stop = self.train(examples, &mut pace, guard).err().unwrap_or(StopReason::Finished);
        let weights = self.champion.map_or(self.weights, |(_, weights)| weights);
        let (stop, evaluations) = pace.end(stop, self.environment.simulated);
        Learned { weights, best: self.best, stop, evaluations }
    }

    fn train(
        &mut self,
        examples: Vec<(String, Vec<Action>)>,
        pace: &mut Pace,
        guard: &Guard<'_>,
    ) -> Result<(), StopReason> {
        let settings = self.settings;
        for (origin, decisions) in examples {
            let mut script = Script(decisions);
            let played = Rollout::play(self.environment, &mut script, Margin::default(), |e| guard.check(e))?;
            self.take_best(&played.0, &origin, guard);
            if played.0.fits() {
                self.memory.keep(Trajectory::new(played.0.decisions, played.1, settings.discount));
            }
        }
        self.at_the_bound(guard)?;
        let mut improved = 0;
        pace.begin(self.environment.simulated);
        for number in 1..=settings.episodes {
            let share = pace.share(number, settings.episodes, self.environment.simulated);
            let explore = settings.explore * (1.0 - share);
            let before = self.best.as_ref().map(|best| best.time);
            let (gain, cost, fits) = self.episode(number, explore, guard)?;
            let share = pace.share(number - 1, settings.episodes, self.environment.simulated);
            let rate = settings.rate * (1.0 - share);
            for _ in 0..settings.updates {
                guard.check_time()?;
                self.update(rate, guard.budget.threads);
            }
            if number % settings.target == 0 {
                self.freeze();
            }
            if number == settings.episodes || settings.check > 0 && number % settings.check == 0 {
                self.check(number, guard)?;
            }
            pace.after_episode(self.environment.simulated, guard.started);
            pace.check(self.environment.simulated)?;
            let best = self.best.as_ref().map(|best| best.time);
            improved = if best == before { improved } else { number };
            let of = settings.episodes;
            let exploration = explore;
            guard.observer.note(&progress::Episode { number, of, exploration, gain, cost, fits, best });
            guard.observer.progress(self.environment.simulated);
            self.at_the_bound(guard)?;
            if settings.patience > 0 && number - improved >= settings.patience {
                break;
            }
        }
        Ok(())
    }

    /// Stops where nothing better can be found, unless training goes on for its own sake.
    fn at_the_bound(&self, guard: &Guard<'_>) -> Result<(), StopReason> {
        let reached = self.best.as_ref().is_some_and(|best| best.time <= guard.bound);
        if reached && !self.settings.through { Err(StopReason::Optimal) } else { Ok(()) }
    }

    /// One episode; its decisions are remembered. Returns the sum of its rewards, its cost, and whether its plan fits.
    fn episode(
        &mut self,
        number: u32,
        explore: f32,
        guard: &Guard<'_>,
    ) -> Result<(f32, u64, bool), StopReason> {
        let fixed = self.environment.sight(self.settings.rounds).fix(&self.weights);
        let network = Greedy::new(&self.weights, &fixed, self.settings);
        let mut decider = Exploring { network, random: &mut self.random, share: f64::from(explore) };
        let played = Rollout::play(self.environment, &mut decider, self.margin, |e| guard.check(e))?;
        let (episode, taken) = played;
        self.margin = self.margin.after(&episode, self.environment.request.live_limit.get());
        let gain = taken.iter().map(|taken| taken.reward).sum();
        let (cost, fits) = (episode.cost(self.environment), episode.fits());
        self.take_best(&episode, &format!("episode {number}"), guard);
        self.memory
            .add(Trajectory::new(episode.decisions, taken, self.settings.discount), self.settings.replay);
        Ok((gain, cost, fits))
    }

    /// Lets the network play alone, and remembers it if none did better.
    fn check(&mut self, number: u32, guard: &Guard<'_>) -> Result<(), StopReason> {
        let fixed = self.environment.sight(self.settings.rounds).fix(&self.weights);
        let mut network = Greedy::new(&self.weights, &fixed, self.settings);
        let (episode, _) = trial(self.environment, &mut network, |e| guard.check(e))?;
        let cost = episode.cost(self.environment);
        let better = self.champion.as_ref().is_none_or(|&(least, _)| cost < least);
        if better {
            self.champion = Some((cost, self.weights.clone()));
        }
        self.take_best(&episode, &format!("the network after episode {number}"), guard);
        Ok(())
    }

    fn take_best(&mut self, episode: &Rollout, origin: &str, guard: &Guard<'_>) {
        let time = episode.standing.time;
        if episode.fits() && self.best.as_ref().is_none_or(|best| time < best.time) {
            let (decisions, origin) = (episode.decisions.clone(), origin.to_owned());
            self.best = Some(BestPlan { time, decisions, origin });
            guard.observer.improved(time, guard.bound);
        }
    }

    fn freeze(&mut self) {
        let weights = self.weights.clone();
        let fixed = self.environment.sight(self.settings.rounds).fix(&weights);
        self.frozen = Frozen { weights, fixed, number: self.frozen.number + 1 };
    }

    /// A step on one mini-batch (equations 4 and 5).
    fn update(&mut self, rate: f32, threads: usize) {
        if self.memory.len() == 0 {
            return;
        }
        let drawn: Vec<usize> =
            (0..self.settings.batch).map(|_| self.random.below(self.memory.len())).collect();
        let samples: Vec<Sample> = drawn.into_iter().filter_map(|index| self.sample(index)).collect();
        let points: usize = samples.iter().map(|sample| sample.points.len()).sum();
        let environment = &*self.environment;
        let sight = environment.sight(self.settings.rounds);
        let (weights, fixed) = (&self.weights, sight.fix(&self.weights));
        let part = |samples: &[Sample]| {
            let mut gradient = Weights::zero(weights.hidden());
            for sample in samples {
                let embedding = sight.embed(weights, &fixed, &sample.valid);
                let slope = |&(at, action, target): &(u32, u32, f32)| {
                    let error = sight.value(weights, &embedding, at, action) - target;
                    Point { at, action, slope: 2.0 * error / points as f32 }
                };
                let slopes: Vec<Point> = sample.points.iter().map(slope).collect();
                sight.derive(weights, &embedding, &sample.valid, &slopes, &mut gradient);
            }
            gradient
        };
        let mut gradient = Weights::zero(weights.hidden());
        let size = samples.len().div_ceil(PARTS).max(1);
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
        self.optimizer.step(&mut self.weights, &gradient, rate, self.settings.clip);
    }

    /// The decisions of one remembered stretch, each with y of equation 5.
    fn sample(&mut self, index: usize) -> Option<Sample> {
        let stretch = self.memory.get_mut(index)?;
        let past = stretch.past.clone();
        let (environment, frozen) = (&*self.environment, &self.frozen);
        let candidates = &environment.candidates;
        let known = stretch.next.take().filter(|&(copy, _)| copy == frozen.number);
        let (_, next) = known.unwrap_or_else(|| {
            let sight = environment.sight(self.settings.rounds);
            let network = (&frozen.weights, &frozen.fixed);
            let mut walk: Option<EpisodeWalk<'_>> = None;
            let worth = (stretch.from..stretch.to).map(|index| {
                let end = past.end(index, self.settings.ahead);
                if end == past.taken.len() {
                    return 0.0;
                }
                let decisions = &past.decisions[..end];
                let walk =
                    walk.get_or_insert_with(|| EpisodeWalk::new(environment, &sight, network, decisions));
                walk.advance(environment, &sight, decisions);
                walk.greatest(&sight, &candidates[end], past.taken[end - 1].valid).1
            });
            (frozen.number, worth.collect())
        });
        let points = (stretch.from..stretch.to).zip(&next).map(|(index, next)| {
            let taken = &past.taken[index];
            let steps = &past.taken[index..past.end(index, self.settings.ahead)];
            let backwards = steps.iter().rev();
            let expected = backwards.fold(*next, |gain, taken| taken.reward + self.settings.discount * gain);
            let gained = if self.settings.tighten { past.gains[index] } else { f32::NEG_INFINITY };
            let candidate = &candidates[index];
            (candidate.node, action_node(candidate, taken.action), expected.max(gained))
        });
        let points = points.collect();
        stretch.next = Some((frozen.number, next));
        let valid = validity(candidates, environment.nodes.len(), &past.decisions[..stretch.from]);
        Some(Sample { valid, points })
    }
}

/// A state of the nodes and what its decisions should be worth.
struct Sample {
    valid: Vec<f32>,
    /// The node under execution, the action's node, and y.
    points: Vec<(u32, u32, f32)>,
}

/// Parts of a mini-batch whose gradients are summed separately, whatever the number of threads.
const PARTS: usize = 4;

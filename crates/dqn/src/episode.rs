//! Rollouts: one pass over the decisions of an episode, the policies that take them, and the transitions that are remembered.

use std::rc::Rc;

use elbowroom_ir::search::StopReason;

use crate::environment::{Action, Candidate, Environment, PartialPlan};
use elbowroom_sched::random::Random;

/// One pass over the decisions.
pub(crate) struct Rollout {
    pub decisions: Vec<Action>,
    pub standing: Rc<PartialPlan>,
    /// What the candidates that are still to be decided about could take off each place.
    relief: Vec<u64>,
}

/// A decision that was taken, with what it led to.
pub(crate) struct Transition {
    /// The action that was chosen: what is learned about, even where it turned out to be impossible and changed nothing.
    pub action: Action,
    /// In units of the environment; never positive, unless an action makes the plan faster.
    pub reward: f32,
    /// The actions that were valid next.
    pub valid: [bool; 3],
}

/// A policy that takes the decisions of an episode.
pub(crate) trait Decide {
    /// The action on the next candidate, one of the valid ones.
    fn decide(&mut self, environment: &Environment<'_>, decisions: &[Action], valid: [bool; 3]) -> Action;
}

/// Chance: each valid action is as likely.
pub(crate) struct Chance<'r>(pub &'r mut Random);

impl Decide for Chance<'_> {
    fn decide(&mut self, _: &Environment<'_>, _: &[Action], valid: [bool; 3]) -> Action {
        let choices: Vec<Action> = Action::ALL.into_iter().filter(|&a| valid[a as usize]).collect();
        choices[self.0.below(choices.len())]
    }
}

/// How far below the limit it should look as if the rest could do without a candidate, before it may stay. What is removed must be made
/// again somewhere, which takes room that cannot be foreseen; so this rises with every plan that does not fit and falls with others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Margin(pub u64);

impl Margin {
    /// The margin after an episode.
    pub(crate) fn after(self, episode: &Rollout, limit: u64) -> Self {
        match episode.standing.missing {
            0 => Self(self.0 / 8 * 7),
            missing => Self(self.0.saturating_add(missing / 2).min(limit / 4)),
        }
    }
}

impl Rollout {
    /// Plays an episode to its end. `guard` is called before every decision.
    pub(crate) fn play(
        environment: &mut Environment<'_>,
        decider: &mut impl Decide,
        margin: Margin,
        mut guard: impl FnMut(&Environment<'_>) -> Result<(), StopReason>,
    ) -> Result<(Self, Vec<Transition>), StopReason> {
        let mut episode = Self::new(environment);
        let mut taken = Vec::new();
        let mut valid = episode.valid(environment, margin);
        while !episode.fits() && episode.next(environment).is_some() {
            guard(environment)?;
            let action = decider.decide(environment, &episode.decisions, valid);
            let reward = episode.act(environment, action);
            valid = episode.valid(environment, margin);
            taken.push(Transition { action, reward, valid });
        }
        Ok((episode, taken))
    }

    /// What its plan costs, with the price of what is missing.
    pub(crate) fn cost(&self, environment: &Environment<'_>) -> u64 {
        self.standing.time.saturating_add(environment.price(self.standing.missing))
    }

    pub(crate) fn new(environment: &mut Environment<'_>) -> Self {
        let mut relief = vec![0; environment.keep.sequence.len()];
        for candidate in &environment.candidates {
            candidate.cover(&mut relief, |relief, bytes| *relief += bytes);
        }
        let standing = environment.standing(&[]);
        Self { decisions: Vec::new(), standing, relief }
    }

    /// The candidate that is decided about next.
    pub(crate) fn next<'e>(&self, environment: &'e Environment<'_>) -> Option<&'e Candidate> {
        environment.candidates.get(self.decisions.len())
    }

    /// Whether the plan fits without another decision.
    pub(crate) fn fits(&self) -> bool {
        self.standing.missing == 0
    }

    /// The actions that make sense now: nothing, only if it looks as if what is left could keep `margin` below the limit without this
    /// candidate; removing, only what can be recomputed.
    pub(crate) fn valid(&mut self, environment: &Environment<'_>, margin: Margin) -> [bool; 3] {
        let Some(candidate) = self.next(environment) else { return [true, false, false] };
        // What is left once this one stays. It is put back if it can be done without.
        candidate.cover(&mut self.relief, |relief, bytes| *relief -= bytes);
        let limit = environment.request.live_limit.get().saturating_sub(margin.0);
        let enough = self
            .standing
            .live_bytes
            .iter()
            .zip(&self.relief)
            .all(|(live_bytes, relief)| live_bytes.saturating_sub(*relief) <= limit);
        candidate.cover(&mut self.relief, |relief, bytes| *relief += bytes);
        [enough || !environment.mask, candidate.offload, candidate.remove.is_some()]
    }

    /// Decides about the next candidate. An action that turns out to be impossible (the host is full, something that it needs was
    /// overwritten) changes nothing and costs what copying the bytes would. Returns the reward.
    pub(crate) fn act(&mut self, environment: &mut Environment<'_>, action: Action) -> f32 {
        let before = self.standing.clone();
        let mut reward = 0.0;
        if let Some(candidate) = environment.candidates.get(self.decisions.len()) {
            candidate.cover(&mut self.relief, |relief, bytes| *relief -= bytes);
            let bytes = candidate.bytes;
            self.decisions.push(action);
            if action != Action::Keep {
                let after = environment.standing(&self.decisions);
                if after.possible {
                    reward += before.time as f64 - after.time as f64;
                    self.standing = after;
                } else {
                    reward -= environment.price(bytes) as f64;
                    if let Some(last) = self.decisions.last_mut() {
                        *last = Action::Keep;
                    }
                }
            }
        }
        if self.decisions.len() >= environment.candidates.len() && !self.fits() {
            reward -= environment.price(self.standing.missing) as f64;
        }
        (reward / environment.unit) as f32
    }
}

#[cfg(test)]
mod tests {
    use elbowroom_ir::machine::{Channel, Machine};
    use elbowroom_ir::planning::{CostSource, Costs, Freedom, Request};
    use elbowroom_ir::{Bytes, Nanos, OpId, Table};

    use super::*;
    use crate::imitate::{self, Script};
    use crate::settings::Settings;
    use elbowroom_sched::lower::{evaluate, live_memory, lower};
    use elbowroom_sched::policy::Policy;

    /// An episode with random valid decisions on one trace: whether there was any, whether its plan fits, whether its schedule leads
    /// back to a plan that fits, and whether that takes as long.
    fn at_random(trace: &elbowroom_ir::trace::Trace, seed: u64) -> [usize; 4] {
        let link = Channel { latency: Nanos(3), rate: 1_000_000_000 };
        let machine = Machine {
            name: "small".into(),
            memory: Bytes(1 << 40),
            align: Bytes(1),
            host_memory: Bytes(1 << 40),
            to_host: link,
            to_device: link,
            shared_link: seed.is_multiple_of(2),
            flops_per_second: 1,
            half_flops_per_second: None,
            bytes_per_second: 1,
            launch: Nanos::ZERO,
        };
        let nanos: Table<OpId, Nanos> = (1..=trace.ops().len() as u64).map(Nanos).collect();
        let costs = Costs { nanos, source: CostSource::Recorded };
        let mut request = Request {
            trace,
            costs: &costs,
            machine: &machine,
            live_limit: Bytes(1 << 40),
            freedom: Freedom::ALL,
            packer: None,
            pins: None,
        };
        let Ok(live_bytes) = live_memory(&request, &Policy::prompt(trace)) else { return [0; 4] };
        request.live_limit = Bytes(live_bytes.into_iter().max().unwrap_or(0) * (3 + seed % 6) / 9);
        let settings = Settings { least: Bytes(1), ..Settings::DEFAULT };
        let mut environment = Environment::new(&request, &settings).unwrap();
        let mut random = Random::new(seed);
        let start = environment.standing(&[]).time as f64;
        let decider = &mut Chance(&mut random);
        let (episode, taken) =
            Rollout::play(&mut environment, decider, Margin::default(), |_| Ok(())).unwrap();
        let sum: f64 = taken.iter().map(|taken| f64::from(taken.reward)).sum();
        // Whatever is decided, the policy is one that can be lowered where there is memory enough.
        let policy = environment.policy(&episode.decisions);
        let wide = Request { live_limit: Bytes(1 << 40), ..request };
        lower(&wide, &policy).unwrap();
        let any = usize::from(!episode.decisions.is_empty());
        if !episode.fits() {
            return [any, 0, 0, 0];
        }
        let (time, peak) = evaluate(&request, &policy).unwrap();
        assert_eq!(time.get(), episode.standing.time);
        assert!(peak <= request.live_limit);
        // The rewards add up to what the plan costs.
        let paid = (start - time.get() as f64) / environment.unit;
        assert!((sum - paid).abs() < 1e-3 * (1.0 + paid.abs()), "{sum} {paid}");
        let schedule = lower(&request, &policy).unwrap().schedule;
        let mut script = Script(imitate::decisions(&environment, &schedule));
        let (again, _) = Rollout::play(&mut environment, &mut script, Margin::default(), |_| Ok(())).unwrap();
        [any, 1, usize::from(again.fits()), usize::from(again.cost(&environment) == time.get())]
    }

    #[test]
    fn every_decision_leads_to_a_policy_and_rewards_add_up() {
        let mut counts = [0; 4];
        // As many cases on a busy machine as on an idle one.
        for seed in 0..200u64 {
            let mut case = |u: &mut arbtest::arbitrary::Unstructured<'_>| {
                let trace = elbowroom_ir::arbitrary::trace(u)?;
                let one = at_random(&trace, seed);
                counts.iter_mut().zip(one).for_each(|(count, one)| *count += one);
                Ok(())
            };
            arbtest::arbtest(&mut case).seed(seed << 32 | 2_048).run();
        }
        let [decided, fit, fit_again, same] = counts;
        assert!(decided > 20 && fit > 20, "{counts:?}");
        // Decisions can be read off their schedule, except where two ops' results are recomputed together.
        assert!(fit_again >= fit - fit / 20 && same >= fit - fit / 10, "{counts:?}");
    }
}

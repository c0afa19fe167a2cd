//! Episodes without learning: the value of a network's policy compared with random choice.

use elbowroom_ir::planning::Request;
use elbowroom_ir::search::StopReason;

use crate::environment::{Action, Environment};
use crate::episode::{Chance, Decide, Margin, Rollout, Transition};
use crate::network::{Fixed, Sight, Weights};
use crate::progress;
use crate::settings::Settings;
use crate::walk::EpisodeWalk;
use elbowroom_sched::PolicyError;
use elbowroom_sched::random::Random;

/// Who takes the decisions.
#[derive(Clone, Copy, Debug)]
pub enum Player<'w> {
    /// A network alone: always the valid action of greatest value.
    Network(&'w Weights),
    /// Chance alone: each valid action is as likely.
    Chance,
}

/// Plays a number of times without learning. A plan that does not fit is tried again with a larger reserve, as in training, at most
/// three times; a network without chance therefore does the same every time. Costs are iteration times in nanoseconds, with the price of
/// what is missing where the last try does not fit either.
pub fn play(
    request: &Request<'_>,
    settings: &Settings,
    player: Player<'_>,
    times: u32,
    seed: u64,
) -> Result<Vec<progress::Episode>, PolicyError> {
    let mut environment = Environment::new(request, settings)?;
    let mut random = Random::new(seed);
    let mut played = Vec::new();
    let mut best: Option<u64> = None;
    for number in 1..=times {
        let trial = match player {
            Player::Chance => trial(&mut environment, &mut Chance(&mut random), |_| Ok(())),
            Player::Network(weights) => {
                let fixed = environment.sight(settings.rounds).fix(weights);
                trial(&mut environment, &mut Greedy::new(weights, &fixed, settings), |_| Ok(()))
            }
        };
        // Nothing guards these episodes, so nothing can stop them.
        let Ok((episode, taken)) = trial else { break };
        let (cost, fits) = (episode.cost(&environment), episode.fits());
        best = best.into_iter().chain(fits.then_some(cost)).min();
        played.push(progress::Episode {
            number,
            of: times,
            exploration: if matches!(player, Player::Chance) { 1.0 } else { 0.0 },
            gain: taken.iter().map(|taken| taken.reward).sum(),
            cost,
            fits,
            best,
        });
    }
    Ok(played)
}

/// Tries of a plan that does not fit.
const TRIES: usize = 4;

/// Plays until a plan fits, with a greater margin each time; the last episode counts.
pub(crate) fn trial(
    environment: &mut Environment<'_>,
    decider: &mut impl Decide,
    mut guard: impl FnMut(&Environment<'_>) -> Result<(), StopReason>,
) -> Result<(Rollout, Vec<Transition>), StopReason> {
    let mut margin = Margin::default();
    let mut played = Rollout::play(environment, decider, margin, &mut guard)?;
    for _ in 1..TRIES {
        let next = margin.after(&played.0, environment.request.live_limit.get());
        if played.0.fits() || next == margin {
            break;
        }
        margin = next;
        played = Rollout::play(environment, decider, margin, &mut guard)?;
    }
    Ok(played)
}

/// A network alone.
pub(crate) struct Greedy<'w> {
    weights: &'w Weights,
    fixed: &'w Fixed,
    rounds: usize,
    walk: Option<EpisodeWalk<'w>>,
}

impl<'w> Greedy<'w> {
    pub(crate) fn new(weights: &'w Weights, fixed: &'w Fixed, settings: &Settings) -> Self {
        Self { weights, fixed, rounds: settings.rounds, walk: None }
    }
}

impl Decide for Greedy<'_> {
    fn decide(&mut self, environment: &Environment<'_>, decisions: &[Action], valid: [bool; 3]) -> Action {
        let Some(candidate) = environment.candidates.get(decisions.len()) else { return Action::Keep };
        let sight: Sight<'_> = environment.sight(self.rounds);
        // The first decision of another episode begins again.
        if decisions.is_empty() {
            self.walk = None;
        }
        let begin = || EpisodeWalk::new(environment, &sight, (self.weights, self.fixed), decisions);
        let walk = self.walk.get_or_insert_with(begin);
        walk.advance(environment, &sight, decisions);
        walk.greatest(&sight, candidate, valid).0
    }
}

/// A network with chance in a share of the decisions (the ε-greedy method of section 4.10).
pub(crate) struct Exploring<'w, 'r> {
    pub network: Greedy<'w>,
    pub random: &'r mut Random,
    /// ε.
    pub share: f64,
}

impl Decide for Exploring<'_, '_> {
    fn decide(&mut self, environment: &Environment<'_>, decisions: &[Action], valid: [bool; 3]) -> Action {
        if self.random.unit() < self.share {
            Chance(self.random).decide(environment, decisions, valid)
        } else {
            self.network.decide(environment, decisions, valid)
        }
    }
}

//! `dqn`: one deep Q-network decides what leaves for the host and what is made again (Shicheng Chen, *GPU memory management for neural
//! networks using deep Q-network*, 2020). A peer of the other planners; what it learns, it learns on the trace that it is asked about.
//!
//! - `nodes`: the graph of GPU operations that the network sees.
//! - `environment`: candidates, decisions, and rewards from the exact simulation.
//! - [`network`]: structure2vec and the head, with derivatives.
//! - `episode`: one pass over the decisions, and who takes them.
//! - `walk`: the states of nodes along an episode.
//! - `memory`, `learn`: fitted Q-iteration with replay.
//! - [`play`](mod@play): a network alone, or chance, without learning.
//! - `rules`, `imitate`: what fixed rules find, which the answer is never worse than, and which is played as first episodes.
//! - [`settings`]: the hyper-parameters.
//! - [`weights`](mod@weights): networks as files, to be trained further on another trace.
//!
//! An evaluation is one plan simulated. The best plan ever seen is returned, and [`Observer::origin`] hears who found it.

#![forbid(unsafe_code)]

mod environment;
mod episode;
mod imitate;
mod learn;
mod memory;
pub mod network;
mod nodes;
pub mod play;
mod progress;
mod rules;
pub mod settings;
mod walk;
pub mod weights;

use std::time::Instant;

use elbowroom_ir::planning::{Request, Scheduler};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_sim::bound::lower_bound;

use elbowroom_sched::lower::lower;
use elbowroom_sched::portfolio::Entry;
use elbowroom_sched::verdict::{impossible_op, refusal};
use environment::Environment;
use learn::{Guard, Learner};
use network::Weights;
pub use progress::{Episode, Trained};
use settings::Settings;

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Dqn {
    settings: Settings,
    initial: Option<Weights>,
}

impl Dqn {
    /// The name of the planner.
    pub const NAME: &str = "dqn";

    /// A planner that trains with these settings, beginning with this network if there is one; its number of hidden units then replaces
    /// the settings'.
    pub const fn new(settings: Settings, initial: Option<Weights>) -> Self {
        Self { settings, initial }
    }
}

impl Scheduler for Dqn {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let started = Instant::now();
        if impossible_op(request).is_some() {
            return refusal(request, None, 1);
        }
        let Ok(mut environment) = Environment::new(request, &self.settings) else {
            return refusal(request, None, 1);
        };
        let bound = lower_bound(request).get();
        let rules = rules::run(request, bound, observer);
        let rule = rules.fastest();
        let mut stop = StopReason::Optimal;
        let mut own = None;
        let open = self.settings.through || rule.is_none_or(|rule| rule.time.get() > bound);
        if open && !environment.candidates.is_empty() {
            let plans = if self.settings.imitate { rules.found.as_slice() } else { &[] };
            let imitate = |entry: &Entry| {
                let origin = format!("{}, imitated", entry.planner.name());
                (origin, imitate::decisions(&environment, &entry.schedule))
            };
            let examples = plans.iter().map(imitate).collect();
            let learner = Learner::new(&mut environment, &self.settings, self.initial.clone(), budget.seed);
            let learned = learner.run(examples, &Guard { budget, started, observer, bound });
            observer.note(&Trained(learned.weights));
            stop = learned.stop;
            own = learned.best;
        }
        let evaluations = rules.evaluations + environment.simulated;
        if let Some(best) = own
            && rule.is_none_or(|rule| best.time < rule.time.get())
            && let Ok(lowered) = lower(request, &environment.policy(&best.decisions))
        {
            observer.origin(&best.origin);
            return Outcome { best: Some(lowered.schedule), evaluations, stop };
        }
        match rule {
            Some(rule) => {
                observer.origin(rule.planner.name());
                let stop = match stop {
                    _ if rule.time.get() <= bound => StopReason::Optimal,
                    StopReason::Optimal => StopReason::Finished,
                    stop => stop,
                };
                Outcome { best: Some(rule.schedule.clone()), evaluations, stop }
            }
            None => refusal(request, rules.least, evaluations),
        }
    }
}

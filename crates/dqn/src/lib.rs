//! `dqn`: a deep Q-network decides which tensors are offloaded and which are recomputed (Shicheng Chen, *GPU memory management for neural
//! networks using deep Q-network*, 2020). It trains on the trace that it plans.
//!
//! The model: an episode visits the gaps of large tensors in the order of the iteration and keeps, offloads or evicts each tensor, until the
//! live memory meets the limit. The state is a graph of GPU operations, one node each; structure2vec embeds it, and a head of the network
//! gives the value of an action. The reward of an action is the change of the exactly simulated iteration time. One evaluation of the budget
//! is one simulated plan. The answer is the best plan of any episode, or of the fixed rules that the network starts from, so it is never
//! slower than those; [`Observer::origin`] names its source, and [`Observer::note`] receives an [`Episode`] after each episode and the
//! [`Trained`] network at the end. If the decisions cannot bring the live memory to the limit, the note [`OutOfReach`] says so before anything
//! else runs, and nothing is trained.
//!
//! ```
//! use elbowroom_dqn::{Dqn, settings::Settings};
//! use elbowroom_ir::planning::{Freedom, Request, Planner};
//! use elbowroom_ir::search::{Budget, Silent};
//! use elbowroom_ir::{Bytes, Nanos};
//! use elbowroom_sched::chain::{Chain, Layer};
//!
//! // Six equal layers, and a limit of 60 % of the memory that they take when everything is kept.
//! let layer = Layer { forward: Nanos(4_000), backward: Nanos(8_000), ..Layer::default() };
//! let mebibyte = Bytes(1 << 20);
//! let chain = Chain { layers: vec![layer; 6], activations: vec![mebibyte; 7], gradients: vec![mebibyte; 7] };
//! let traced = chain.to_trace("chain")?;
//! let machine = elbowroom_sim::presets::machine("v100").ok_or("unknown machine")?;
//! let request = Request {
//!     trace: &traced.trace,
//!     costs: &traced.costs,
//!     machine: &machine,
//!     live_limit: Bytes(chain.peak().get() * 6 / 10),
//!     freedom: Freedom::ALL,
//!     packer: None,
//!     pins: None,
//! };
//! let settings: Settings = "episodes=5,hidden=8".parse()?;
//! let outcome = Dqn::new(settings, None).schedule(&request, &Budget::evaluations(100), &Silent);
//! assert!(outcome.best.is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`settings`]: the hyper-parameters.
//! - [`network`], [`weights`](mod@weights): the network with its derivatives, and as a file.
//! - [`play`](mod@play): a network, or random choice, without learning.
//! - `nodes`: the graph of GPU operations.
//! - `environment`: candidates, decisions, and rewards.
//! - `episode`, `walk`: one pass over the decisions, and the embeddings of nodes along it.
//! - `memory`, `learn`, `pace`: fitted Q-iteration with replay.
//! - `paper`: the same in the order of the paper's text.
//! - `rules`, `imitate`: the fixed rules, and their schedules as first episodes.

#![forbid(unsafe_code)]

mod environment;
mod episode;
mod imitate;
mod learn;
mod memory;
pub mod network;
mod nodes;
mod pace;
mod paper;
pub mod play;
mod progress;
mod rules;
pub mod settings;
mod walk;
pub mod weights;

use std::time::Instant;

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_sim::bound::lower_bound;

use elbowroom_sched::lower::lower;
use elbowroom_sched::portfolio::Entry;
use elbowroom_sched::verdict::{impossible_op, refusal};
use environment::Environment;
use learn::{Guard, Learner};
use network::Weights;
use paper::Agent;
pub use progress::{Episode, OutOfReach, Trained};
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

impl Planner for Dqn {
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
        let out_of_reach = environment.out_of_reach;
        // The user hears it before the rules run, which takes seconds on a thousand ops.
        if let Some(out_of_reach) = &out_of_reach {
            observer.note(out_of_reach);
        }
        let bound = lower_bound(request).get();
        let end = budget.time.and_then(|time| started.checked_add(time));
        let rules = rules::run(request, bound, end, observer);
        let rule = rules.fastest();
        let mut stop = StopReason::Optimal;
        let mut own = None;
        // The budget counts these alone: with those of the rules, the number would let a repeated search go further than this one went.
        let mut evaluations = 0;
        let open =
            !rules.interrupted && (self.settings.through || rule.is_none_or(|rule| rule.time.get() > bound));
        if open && !environment.candidates.is_empty() && out_of_reach.is_none() {
            let guard = Guard { budget, started, observer, bound };
            let plans = if self.settings.imitate { rules.found.as_slice() } else { &[] };
            let imitate = |entry: &Entry| {
                let origin = format!("{}, imitated", entry.planner.name());
                (origin, imitate::decisions(&environment, &entry.schedule))
            };
            let examples = plans.iter().map(imitate).collect();
            let (settings, initial) = (&self.settings, self.initial.clone());
            let learned = if settings.all {
                Agent::new(&mut environment, settings, initial, budget.seed).run(&guard)
            } else {
                Learner::new(&mut environment, settings, initial, budget.seed).run(examples, &guard)
            };
            observer.note(&Trained(learned.weights));
            stop = learned.stop;
            own = learned.best;
            evaluations = learned.evaluations;
        }
        if let Some(best) = own
            && rule.is_none_or(|rule| best.time < rule.time.get())
            && let Ok(lowered) = lower(request, &environment.policy(&best.decisions))
        {
            observer.origin(&best.origin);
            return Outcome { best: Some(lowered.schedule), evaluations, stop };
        }
        match rule {
            Some(rule) => {
                let name = rule.planner.name();
                observer.origin(&match out_of_reach {
                    None => name.to_owned(),
                    Some(reason) => format!("{name}, a fixed rule: {reason}"),
                });
                let stop = match stop {
                    _ if rule.time.get() <= bound => StopReason::Optimal,
                    _ if rules.interrupted => StopReason::Interrupted,
                    StopReason::Optimal => StopReason::Finished,
                    stop => stop,
                };
                Outcome { best: Some(rule.schedule.clone()), evaluations, stop }
            }
            None => refusal(request, rules.least, evaluations),
        }
    }
}

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! `supernn`: the rules of SuperNeurons (L. Wang et al., *SuperNeurons: dynamic GPU memory management for training deep neural networks*,
//! PPoPP 2018), a baseline in Shicheng's Figure 5. Results of pooling, activation, normalization and dropout are cheap: they are dropped
//! and made again from the last convolution before them. Results of convolutions are expensive: they leave for the host, the least
//! recently used first and no more than the limit asks for (its tensor cache), and come back one convolution ahead of their use.
//!
//! As in Figure 5 there are three modes: recompute, offload, and both. Of those that fit the shortest wins. A layer that is made again on
//! the way to another stays until its own turn if there is room for it, else it is made once more (its cost-aware recomputation). The
//! rules go by the ops' kinds; a network without convolutions has nothing to offload.

use elbowroom_ir::planning::{Request, Scheduler};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_ir::trace::{Phase, Trace};
use elbowroom_ir::{OpId, TensorId};

use crate::lower::lower;
use crate::policy::{FetchRule, Place, Policy, Touches, turn};
use crate::recompute::remake::{Decided, Remake};
use crate::search::Search;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct SuperNn;

/// What cheap layers are called, in parts of their ops' kinds.
const CHEAP: [&str; 8] = ["relu", "gelu", "tanh", "sigmoid", "dropout", "norm", "pool", "activation"];

/// What the layers are called whose results leave.
const CONVOLUTION: &str = "conv";

impl Scheduler for SuperNn {
    fn name(&self) -> &'static str {
        "supernn"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let trace = request.trace;
        let rules = Rules::of(trace);
        let mut rounds = Rounds(Search::new(request, budget, observer));
        rounds.ask(&Policy::prompt(trace));
        for again in [false, true].into_iter().filter(|again| request.freedom.recompute || !again) {
            if rounds.0.optimal() {
                break;
            }
            rounds.evict(&rules, again);
        }
        rounds.0.finish(StopReason::Finished)
    }
}

/// What the rules say about a trace.
struct Rules {
    remake: Remake,
    /// Cheap results that the backward phase reads.
    again: Vec<TensorId>,
    /// Results of convolutions that the backward phase reads, with the places around the turn at which they are touched; the least
    /// recently used first.
    leave: Vec<(TensorId, Place, Place)>,
    /// Ops between the backward parts of two convolutions.
    lead: u32,
}

impl Rules {
    fn of(trace: &Trace) -> Self {
        let sequence = Policy::prompt(trace).sequence;
        let touches = Touches::of(trace, &sequence);
        let turn = turn(trace, &sequence).unwrap_or(sequence.len()) as Place;
        let read_later = |value| touches.of_value(value).iter().any(|touch| touch.place >= turn);
        let kind = |op: OpId| trace.ops()[op].kind.to_ascii_lowercase();
        let (mut again, mut leave) = (Vec::new(), Vec::new());
        for value in trace.tensors().ids() {
            let Some(op) = trace.producer(value).filter(|op| op.0 < turn) else { continue };
            let touched = touches.of_value(value);
            let before = touched.partition_point(|touch| touch.place < turn);
            let (Some(last), Some(next)) = (touched[..before].last(), touched.get(before)) else { continue };
            // An activation that writes over the convolution's result stands for it: the result itself is not there any more.
            let stands_for = trace.ops()[op].may_reuse.iter().any(|pair| {
                let maker = trace.producer(pair.input).filter(|_| pair.output == value);
                maker.is_some_and(|op| kind(op).contains(CONVOLUTION)) && !read_later(pair.input)
            });
            if stands_for || kind(op).contains(CONVOLUTION) {
                leave.push((value, last.place, next.place));
            } else if CHEAP.iter().any(|name| kind(op).contains(name)) {
                again.push(value);
            }
        }
        leave.sort_unstable_by_key(|&(value, last, _)| (last, value));
        let backward = trace.ops().values().filter(|op| op.phase == Phase::Backward).count();
        let lead = backward.div_ceil(leave.len().max(1)).max(1) as u32;
        Self { remake: Remake::new(trace, &sequence, touches), again, leave, lead }
    }
}

struct Rounds<'a>(Search<'a>);

impl Rounds<'_> {
    /// Takes a policy's schedule if it is the shortest; returns whether it fits.
    fn ask(&mut self, policy: &Policy) -> bool {
        self.0.count();
        let limit = self.0.request.load_limit;
        if self.0.least_load(policy).is_none_or(|load| load > limit) {
            return false;
        }
        let Ok(lowered) = lower(self.0.request, policy) else { return false };
        self.0.offer(lowered);
        true
    }

    /// Lets results of convolutions leave, the least recently used first, until the limit is kept.
    fn evict(&mut self, rules: &Rules, again: bool) {
        let mut decided = Decided::default();
        if again {
            decided.removed.clone_from(&rules.again);
        }
        let leave = if self.0.request.freedom.offload { rules.leave.as_slice() } else { &[] };
        for count in 0..=leave.len() {
            decided.offloaded = leave[..count].to_vec();
            let mut policy = rules.remake.policy(self.0.request, &decided);
            policy.fetch = FetchRule::Lead(rules.lead);
            if self.ask(&policy) {
                return;
            }
        }
    }
}

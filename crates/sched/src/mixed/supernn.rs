//! `supernn`: the rules of SuperNeurons (L. Wang et al., *SuperNeurons: dynamic GPU memory management for training deep neural networks*,
//! PPoPP 2018), a baseline in Shicheng's Figure 5. Results of pooling, activation, normalization and dropout are cheap: they are evicted
//! and recomputed from the last convolution before them. Results of convolutions are expensive: they are offloaded, the least recently used
//! first and no more than the limit requires (its tensor cache), and prefetched one convolution ahead of their use.
//!
//! As in Figure 5 there are three modes: recompute, offload, and both; the shortest schedule that fits is kept. A layer that is recomputed for
//! another one is kept until its own use if memory suffices, else it is recomputed once more (its cost-aware recomputation). The rules go by
//! the kinds of ops; a network without convolutions has nothing to offload.

use elbowroom_ir::planning::{Planner, Request};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_ir::trace::{Phase, Trace};
use elbowroom_ir::{OpId, TensorId};

use crate::lower::lower;
use crate::policy::{Policy, PrefetchRule, SequenceIndex, Touches, backward_start};
use crate::recompute::evictions::{EvictionPolicies, Evictions};
use crate::search::Search;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct SuperNn;

/// What cheap layers are called, in parts of their ops' kinds.
const CHEAP: [&str; 8] = ["relu", "gelu", "tanh", "sigmoid", "dropout", "norm", "pool", "activation"];

/// What the layers are called whose results leave.
const CONVOLUTION: &str = "conv";

impl Planner for SuperNn {
    fn name(&self) -> &'static str {
        "supernn"
    }

    fn schedule(&self, request: &Request<'_>, budget: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let trace = request.trace;
        let rules = Rules::of(trace);
        let mut rounds = Rounds(Search::new(request, budget, observer));
        rounds.accept(&Policy::prompt(trace));
        for again in [false, true].into_iter().filter(|again| request.freedom.recompute || !again) {
            if rounds.0.optimal() || rounds.0.interrupted() {
                break;
            }
            rounds.evict(&rules, again);
        }
        let stop = if rounds.0.interrupted() { StopReason::Interrupted } else { StopReason::Finished };
        rounds.0.finish(stop)
    }
}

/// What the rules decide for a trace.
struct Rules {
    evictions: EvictionPolicies,
    /// Cheap results that the backward phase reads.
    again: Vec<TensorId>,
    /// Results of convolutions that the backward phase reads, with the places around the first backward op at which they are touched; the least
    /// recently used first.
    leave: Vec<(TensorId, SequenceIndex, SequenceIndex)>,
    /// Ops between the backward parts of two convolutions.
    lead: u32,
}

impl Rules {
    fn of(trace: &Trace) -> Self {
        let sequence = Policy::prompt(trace).sequence;
        let touches = Touches::of(trace, &sequence);
        let backward_start = backward_start(trace, &sequence).unwrap_or(sequence.len()) as SequenceIndex;
        let read_later = |value| touches.of_value(value).iter().any(|touch| touch.place >= backward_start);
        let kind = |op: OpId| trace.ops()[op].kind.to_ascii_lowercase();
        let (mut again, mut leave) = (Vec::new(), Vec::new());
        for value in trace.tensors().ids() {
            let Some(op) = trace.producer(value).filter(|op| op.0 < backward_start) else { continue };
            let touched = touches.of_value(value);
            let before = touched.partition_point(|touch| touch.place < backward_start);
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
        Self { evictions: EvictionPolicies::new(trace, &sequence, touches), again, leave, lead }
    }
}

struct Rounds<'a>(Search<'a>);

impl Rounds<'_> {
    /// Takes a policy's schedule if it is the shortest; returns whether it fits.
    fn accept(&mut self, policy: &Policy) -> bool {
        self.0.count();
        let limit = self.0.request.live_limit;
        if self.0.least_live(policy).is_none_or(|live_bytes| live_bytes > limit) {
            return false;
        }
        let Ok(lowered) = lower(self.0.request, policy) else { return false };
        self.0.offer(lowered);
        true
    }

    /// Lets results of convolutions leave, the least recently used first, until the limit is kept.
    fn evict(&mut self, rules: &Rules, again: bool) {
        let mut decided = Evictions::default();
        if again {
            decided.evicted.clone_from(&rules.again);
        }
        let leave = if self.0.request.freedom.offload { rules.leave.as_slice() } else { &[] };
        for count in 0..=leave.len() {
            if self.0.interrupted() {
                return;
            }
            decided.offloaded = leave[..count].to_vec();
            let mut policy = rules.evictions.policy(self.0.request, &decided);
            policy.prefetch = PrefetchRule::Lead(rules.lead);
            if self.accept(&policy) {
                return;
            }
        }
    }
}

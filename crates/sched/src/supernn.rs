//! `supernn`: the rules of SuperNeurons (L. Wang et al., *SuperNeurons: dynamic GPU memory management for training deep neural networks*,
//! PPoPP 2018), a baseline in Shicheng's Figure 5. Results of pooling, activation, normalization and dropout are cheap: they are dropped
//! and made again from the last convolution before them. Results of convolutions are expensive: they leave for the host, the least
//! recently used first and no more than the limit asks for (its tensor cache), and come back one convolution ahead of their use.
//!
//! As in Figure 5 there are three modes: recompute, offload, and both. Of those that fit the shortest wins. Each layer is made again once and
//! stays until its backward op has run (its "speed-centric" recomputation). The rules go by the ops' kinds; a network without
//! convolutions has nothing to offload.

use elbowroom_ir::planning::{Request, Scheduler};
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome};
use elbowroom_ir::trace::{Phase, Trace};
use elbowroom_ir::{Bytes, TensorId};

use crate::lower::{Lowered, least_load, lower};
use crate::policy::{Away, FetchRule, Gap, Place, Policy, Touches};
use crate::recompute::cuts::Cuts;
use crate::recompute::mirror::Mirrors;
use crate::recompute::repeats::base;
use crate::verdict::refusal;

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

    fn schedule(&self, request: &Request<'_>, _: &Budget, observer: &dyn Observer) -> Outcome<Schedule> {
        let trace = request.trace;
        let rules = Rules::of(trace);
        let mut search = Search { request, best: None, least: None, evaluations: 0 };
        search.ask(&Policy::prompt(trace));
        for again in [false, true].into_iter().filter(|again| request.freedom.recompute || !again) {
            if search.best.as_ref().is_some_and(|best| best.iteration == request.costs.total()) {
                break;
            }
            let start = if again { rules.again.policy(trace) } else { Policy::prompt(trace) };
            search.ask(&start);
            if request.freedom.offload {
                search.evict(&rules, start);
            }
            if let Some(best) = &search.best {
                observer.improved(best.iteration.get(), request.costs.total().get());
            }
        }
        match search.best {
            Some(best) => Outcome { evaluations: search.evaluations, ..Outcome::finished(best.schedule) },
            None => refusal(request, search.least, search.evaluations),
        }
    }
}

/// What the rules say about a trace.
struct Rules {
    /// Cheap results, and what is dropped in any case because only the forward phase reads it.
    again: Mirrors,
    /// Results of convolutions that the backward phase reads, the least recently used first.
    leave: Vec<TensorId>,
    /// Ops between the backward parts of two convolutions.
    lead: u32,
    turn: Place,
}

impl Rules {
    fn of(trace: &Trace) -> Self {
        let (_, turn) = base(trace);
        let cuts = Cuts::of(trace, turn);
        let mut again = Mirrors::none(trace);
        let mut leave: Vec<(Place, TensorId)> = Vec::new();
        for &(value, made, last) in &cuts.forward {
            let Some(op) = trace.producer(value).map(|op| &trace.ops()[op]) else { continue };
            let kind = op.kind.to_ascii_lowercase();
            let stashed = trace.users(value).last().is_some_and(|user| user.0 >= turn);
            let cheap = CHEAP.iter().any(|name| kind.contains(name));
            if cheap || !stashed {
                again.mark(value, 1);
            }
            if kind.contains(CONVOLUTION) && stashed {
                leave.push((last.max(made), value));
            }
        }
        leave.sort_unstable();
        let backward = trace.ops().values().filter(|op| op.phase == Phase::Backward).count();
        let lead = backward.div_ceil(leave.len().max(1)).max(1) as u32;
        Self { again, leave: leave.into_iter().map(|(_, value)| value).collect(), lead, turn }
    }
}

struct Search<'a> {
    request: &'a Request<'a>,
    best: Option<Lowered>,
    least: Option<Bytes>,
    evaluations: u64,
}

impl Search<'_> {
    /// Takes a policy's schedule if it is the shortest; says whether it fits.
    fn ask(&mut self, policy: &Policy) -> bool {
        self.evaluations += 1;
        let Ok((load, _)) = least_load(self.request, policy) else { return false };
        self.least = Some(self.least.map_or(load, |least| least.min(load)));
        if load > self.request.load_limit {
            return false;
        }
        let Ok(lowered) = lower(self.request, policy) else { return false };
        if self.best.as_ref().is_none_or(|best| lowered.iteration < best.iteration) {
            self.best = Some(lowered);
        }
        true
    }

    /// Lets results of convolutions leave, the least recently used first, until the limit is kept.
    fn evict(&mut self, rules: &Rules, mut policy: Policy) {
        policy.fetch = FetchRule::Lead(rules.lead);
        let touches = Touches::of(self.request.trace, &policy.sequence);
        for &value in &rules.leave {
            let touched = touches.of_value(value);
            let before = touched.partition_point(|touch| touch.place < rules.turn).checked_sub(1);
            let Some(before) = before.and_then(|index| touched.get(index)) else { continue };
            policy.send(Gap::after(value, before.place), Away::Offload);
            if self.ask(&policy) {
                return;
            }
        }
    }
}

//! Ordered schedules of a chain: offloads in order of the activations, fetches in reverse, as Beaumont et al. compare them. What differs
//! between the planners that use this is only which sets of activations they try.

use std::collections::HashSet;

use elbowroom_ir::planning::Request;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_ir::{Bytes, Nanos};

use crate::chain::linearize::Linear;
use crate::lower::{Lowered, least_load, lower};
use crate::policy::{FetchRule, Policy};
use crate::verdict::refusal;

/// Sets of activations, each simulated exactly as an ordered schedule; the shortest that fits is kept.
pub(crate) struct OrderedSets<'a> {
    request: &'a Request<'a>,
    linear: &'a Linear,
    budget: &'a Budget,
    observer: &'a dyn Observer,
    started: std::time::Instant,
    seen: HashSet<Vec<bool>>,
    best: Option<Lowered>,
    best_set: Vec<bool>,
    least: Option<Bytes>,
    evaluations: u64,
    total: Nanos,
}

/// What came of trying a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// There is a schedule.
    Fits,
    /// It keeps too many bytes, by so many.
    Exceeds(Bytes),
    /// Known already, out of budget, or impossible for another reason than bytes.
    Skipped,
}

impl<'a> OrderedSets<'a> {
    pub(crate) fn new(
        request: &'a Request<'a>,
        linear: &'a Linear,
        budget: &'a Budget,
        observer: &'a dyn Observer,
    ) -> Self {
        Self {
            request,
            linear,
            budget,
            observer,
            started: std::time::Instant::now(),
            seen: HashSet::new(),
            best: None,
            best_set: Vec::new(),
            least: None,
            evaluations: 0,
            total: request.costs.total(),
        }
    }

    /// Number of activations that can be in a set.
    pub(crate) fn len(&self) -> usize {
        self.linear.groups.len()
    }

    /// The policy that offloads x_i where `set[i]`. The chain's x_0 is empty; x_{i+1} is the stash of group i.
    fn policy(&self, set: &[bool]) -> Policy {
        let mut policy = Policy { fetch: FetchRule::AfterOffloads, ..self.linear.keep.clone() };
        let chosen = (1..=self.len()).filter(|&i| set.get(i) == Some(&true)).map(|i| i - 1);
        self.linear.offload(&mut policy, chosen);
        policy
    }

    /// Tries the set that offloads nothing, then the first k activations from the k of `greedy` on until one fits.
    pub(crate) fn first_activations(&mut self) {
        let activations = self.linear.chain.activations.clone();
        let excess = self.linear.chain.peak().saturating_sub(self.request.load_limit);
        let mut set = vec![false; activations.len()];
        let mut offloaded = Bytes::ZERO;
        let mut i = 0;
        loop {
            if offloaded >= excess && self.try_set(&set) == Tried::Fits {
                return;
            }
            i += 1;
            if i >= activations.len() || !self.request.freedom.offload {
                // Even everything is not enough: try it all the same, to say how much there is.
                self.try_set(&set);
                return;
            }
            set[i] = true;
            offloaded += activations[i];
        }
    }

    /// Simulates a set. A set that was tried before is not tried again.
    pub(crate) fn try_set(&mut self, set: &[bool]) -> Tried {
        if !self.seen.insert(set.to_vec()) || self.stopped().is_some() {
            return Tried::Skipped;
        }
        let policy = &mut self.policy(set);
        self.evaluations += 1;
        self.observer.progress(self.evaluations);
        let Ok((load, _)) = least_load(self.request, policy) else { return Tried::Skipped };
        self.least = Some(self.least.map_or(load, |least| least.min(load)));
        if load > self.request.load_limit {
            return Tried::Exceeds(load - self.request.load_limit);
        }
        let Ok(mut lowered) = lower(self.request, policy) else { return Tried::Skipped };
        if !self.request.machine.shared_link {
            // With a lane for each direction nothing is lost when fetches do not wait for the last offload.
            policy.fetch = FetchRule::Eager;
            match lower(self.request, policy) {
                Ok(eager) if eager.iteration < lowered.iteration => lowered = eager,
                _ => {}
            }
        }
        if self.best.as_ref().is_none_or(|best| lowered.iteration < best.iteration) {
            self.observer.improved(lowered.iteration.get(), self.total.get());
            self.best = Some(lowered);
            self.best_set = set.to_vec();
        }
        Tried::Fits
    }

    /// Changes the best set for as long as that makes its schedule shorter, by at most so many tries: one activation more or less, or one
    /// in the place of another that is at most `reach` layers away.
    pub(crate) fn refine(&mut self, tries: usize, reach: usize) {
        let count = self.len();
        let last = self.evaluations + tries as u64;
        let mut improved = self.best.is_some();
        while std::mem::take(&mut improved) {
            let mut best = self.best_set.clone();
            best.resize(count + 1, false);
            let alone = (1..=count).map(|i| (i, i));
            let apart =
                (1..=reach).flat_map(|apart| (1..=count.saturating_sub(apart)).map(move |i| (i, i + apart)));
            let moves = apart.filter(|&(i, j)| best[i] != best[j]);
            for (i, j) in alone.chain(moves) {
                if self.optimal() || self.evaluations >= last {
                    return;
                }
                let mut set = best.clone();
                set[i] = !set[i];
                if j != i {
                    set[j] = !set[j];
                }
                let before = self.best_idle();
                self.try_set(&set);
                improved = self.best_idle() < before;
                if improved {
                    break;
                }
            }
        }
    }

    /// Idle time of the best so far.
    pub(crate) fn best_idle(&self) -> Option<Nanos> {
        self.best.as_ref().map(|best| best.iteration - self.total)
    }

    /// Whether nothing can be shorter.
    pub(crate) fn optimal(&self) -> bool {
        self.best_idle() == Some(Nanos::ZERO)
    }

    /// Why to stop now, if so.
    pub(crate) fn stopped(&self) -> Option<StopReason> {
        if self.observer.interrupted() {
            return Some(StopReason::Interrupted);
        }
        self.budget.exhausted(self.evaluations, self.started)
    }

    pub(crate) fn finish(self) -> Outcome<Schedule> {
        let stop = match self.stopped() {
            _ if self.optimal() => StopReason::Optimal,
            Some(stop) => stop,
            None => StopReason::Finished,
        };
        match self.best {
            Some(lowered) => Outcome { best: Some(lowered.schedule), evaluations: self.evaluations, stop },
            None => refusal(self.request, self.least, self.evaluations),
        }
    }
}

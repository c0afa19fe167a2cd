//! Ordered schedules of a chain, as Beaumont et al. compare them: offloads in the order of the activations, prefetches in reverse. The planners
//! that share this module differ only in the sets of activations that they try.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use elbowroom_ir::planning::Request;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer, Outcome, StopReason};
use elbowroom_ir::{Bytes, Nanos};

use crate::chain::linearize::Linear;
use crate::lower::{LowerError, Lowered, lower};
use crate::policy::{Policy, PrefetchRule};
use crate::search::Search;

/// Sets of activations, each simulated exactly as an ordered schedule; the shortest that fits is kept.
pub(crate) struct OrderedSets<'a> {
    linear: &'a Linear,
    search: Search<'a>,
    seen: HashSet<Vec<bool>>,
    best_set: Vec<bool>,
}

/// What came of trying a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// There is a schedule.
    Fits,
    /// It keeps too many bytes, by this many.
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
            linear,
            search: Search::new(request, budget, observer),
            seen: HashSet::new(),
            best_set: Vec::new(),
        }
    }

    /// Number of activations that can be in a set.
    pub(crate) fn len(&self) -> usize {
        self.linear.groups.len()
    }

    /// The policy that offloads x_i where `set[i]`. The chain's x_0 is empty; x_{i+1} is the stash of group i.
    fn policy(&self, set: &[bool]) -> Policy {
        let mut policy = Policy { prefetch: PrefetchRule::AfterOffloads, ..self.linear.keep.clone() };
        let chosen = (1..=self.len()).filter(|&i| set.get(i) == Some(&true)).map(|i| i - 1);
        self.linear.offload(&mut policy, chosen);
        policy
    }

    /// Tries the set that offloads nothing, then the first k activations from the k of `greedy` on until one fits.
    pub(crate) fn first_activations(&mut self) {
        let activations = self.linear.chain.activations.clone();
        let excess = self.linear.chain.peak().saturating_sub(self.search.request.live_limit);
        let mut set = vec![false; activations.len()];
        let mut offloaded = Bytes::ZERO;
        let mut i = 0;
        loop {
            if offloaded >= excess && self.try_set(&set) == Tried::Fits {
                return;
            }
            i += 1;
            if i >= activations.len() || !self.search.request.freedom.offload {
                // Offloading everything does not suffice; it is still tried, because its live memory goes into the report.
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
        let policy = self.policy(set);
        let request = self.search.request;
        self.search.count();
        let Some(live_bytes) = self.search.least_live(&policy) else { return Tried::Skipped };
        if live_bytes > request.live_limit {
            return Tried::Exceeds(live_bytes - request.live_limit);
        }
        let Ok(lowered) = lower_ordered(request, policy) else { return Tried::Skipped };
        if self.search.offer(lowered) {
            self.best_set = set.to_vec();
        }
        Tried::Fits
    }

    /// Changes the best set for as long as that makes its schedule shorter, by at most this many tries: one activation more or less, or one
    /// in the place of another that is at most `reach` layers away.
    pub(crate) fn refine(&mut self, tries: usize, reach: usize) {
        let count = self.len();
        let last = self.search.evaluations() + tries as u64;
        let mut improved = self.search.best().is_some();
        while std::mem::take(&mut improved) {
            let mut best = self.best_set.clone();
            best.resize(count + 1, false);
            let alone = (1..=count).map(|i| (i, i));
            let apart =
                (1..=reach).flat_map(|apart| (1..=count.saturating_sub(apart)).map(move |i| (i, i + apart)));
            let moves = apart.filter(|&(i, j)| best[i] != best[j]);
            for (i, j) in alone.chain(moves) {
                if self.optimal() || self.search.evaluations() >= last {
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
        self.search.best().map(|best| best.iteration - self.search.request.costs.total())
    }

    /// Whether nothing can be shorter.
    pub(crate) fn optimal(&self) -> bool {
        self.search.optimal()
    }

    /// The reason to stop now, if there is one.
    pub(crate) fn stopped(&self) -> Option<StopReason> {
        self.search.stopped()
    }

    pub(crate) fn finish(self) -> Outcome<Schedule> {
        let stop = match self.stopped() {
            _ if self.optimal() => StopReason::Optimal,
            Some(stop) => stop,
            None => StopReason::Finished,
        };
        self.search.finish(stop)
    }
}

/// The policy of the smallest of these counts of offloads that can be lowered, as an ordered schedule. The more tensors are offloaded, the less
/// stays on the device and the more lies on the host: the smallest count whose live memory fits is found in steps that double and then by
/// halving, and no larger count is tried once the host's memory is exceeded.
pub(crate) fn offer_fewest(
    mut search: Search<'_>,
    counts: RangeInclusive<usize>,
    policy: impl Fn(usize) -> Policy,
) -> Outcome<Schedule> {
    let request = search.request;
    let (mut few, all) = counts.into_inner();
    let (mut enough, mut stride) = (all, 0);
    while few < enough && !search.interrupted() {
        let count = few.midpoint(enough).min(few + stride);
        stride = 2 * stride + 1;
        search.count();
        let live_bytes = search.least_live(&policy(count));
        if live_bytes.is_some_and(|live_bytes| live_bytes <= request.live_limit) {
            enough = count;
        } else {
            few = count + 1;
        }
    }
    for count in enough..=all {
        search.count();
        match lower_ordered(request, policy(count)) {
            Ok(lowered) => {
                search.offer(lowered);
                break;
            }
            Err(LowerError::Policy(_) | LowerError::Host { .. }) => break,
            Err(LowerError::Shortfall(shortfall)) => search.reached(shortfall.needed),
        }
        if search.interrupted() {
            break;
        }
    }
    let stop = if search.interrupted() { StopReason::Interrupted } else { StopReason::Finished };
    search.finish(stop)
}

/// Lowers a policy as an ordered schedule. With a stream for each direction nothing is lost when prefetches do not wait for the last
/// offload, so that both rules are tried then and the shorter schedule is kept.
pub(crate) fn lower_ordered(request: &Request<'_>, policy: Policy) -> Result<Lowered, LowerError> {
    let mut lowered = lower(request, &policy)?;
    if !request.machine.shared_link {
        match lower(request, &Policy { prefetch: PrefetchRule::Eager, ..policy }) {
            Ok(eager) if eager.iteration < lowered.iteration => lowered = eager,
            _ => {}
        }
    }
    Ok(lowered)
}

//! How long to look, what was found, and why looking ended: shared by packers and planners.

use std::any::Any;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{Bytes, Nanos, OpId, TensorId};

/// How long a search may take. It counts *evaluations* (each algorithm says what one is); a clock may stop it only between two of
/// them. Seed and number of evaluations reproduce a result on any number of threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Evaluations allowed; `None` for no limit.
    pub evaluations: Option<u64>,
    /// Time allowed; `None` for no limit.
    pub time: Option<Duration>,
    /// Where random choices start.
    pub seed: u64,
    /// Threads that may be used; at least 1.
    pub threads: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { evaluations: None, time: Some(Duration::from_secs(10)), seed: 0, threads: 1 }
    }
}

impl Budget {
    /// A budget of evaluations only: reproducible by construction.
    pub fn evaluations(evaluations: u64) -> Self {
        Self { evaluations: Some(evaluations), time: None, ..Self::default() }
    }

    /// A budget of time only.
    pub fn time(time: Duration) -> Self {
        Self { time: Some(time), ..Self::default() }
    }

    /// The stop that this budget asks for now, if any, after `done` evaluations since `start`.
    pub fn exhausted(&self, done: u64, start: Instant) -> Option<StopReason> {
        if self.evaluations.is_some_and(|limit| done >= limit) {
            Some(StopReason::Evaluations)
        } else if self.time.is_some_and(|limit| start.elapsed() >= limit) {
            Some(StopReason::Time)
        } else {
            None
        }
    }
}

/// Why a search ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// The result is proved optimal: it meets a lower bound, or everything else was excluded.
    Optimal,
    /// A method without a search ran to its end; nothing is proved.
    Finished,
    /// The evaluations were used up.
    Evaluations,
    /// The time was used up.
    Time,
    /// The observer asked to stop.
    Interrupted,
    /// Nothing can exist: said only with a proof at the limit that was asked for.
    Infeasible(Box<Infeasible>),
    /// Nothing was found at the limit that was asked for, and nothing is proved.
    GaveUp {
        /// The fewest bytes with which something was found.
        best: Option<Bytes>,
    },
}

impl StopReason {
    /// The name in reports: `optimal`, `finished`, `evaluations`, `time`, `interrupted`, `infeasible` or `gave-up`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Optimal => "optimal",
            Self::Finished => "finished",
            Self::Evaluations => "evaluations",
            Self::Time => "time",
            Self::Interrupted => "interrupted",
            Self::Infeasible(_) => "infeasible",
            Self::GaveUp { .. } => "gave-up",
        }
    }
}

/// A proof that nothing fits, in terms that a person can act on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Infeasible {
    /// These values and this workspace must be resident together, whatever else is decided.
    Op {
        /// The op that needs them.
        op: OpId,
        /// Its inputs and outputs.
        values: Vec<TensorId>,
        /// Bytes of its inputs, outputs and workspace together, alignment included.
        needed: Bytes,
        /// Bytes allowed.
        limit: Bytes,
    },
    /// These blocks cannot be placed together within the capacity.
    Blocks {
        /// A small set that cannot be placed; leaving out any other block does not help.
        blocks: Vec<crate::BufferId>,
        /// Bytes that they need at least.
        needed: Bytes,
        /// Bytes allowed.
        limit: Bytes,
    },
}

/// What was found, how much looking it took, and why the looking ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<T> {
    /// The best result, if there is one.
    pub best: Option<T>,
    /// Evaluations done; with the seed they reproduce the result.
    pub evaluations: u64,
    /// Why it ended.
    pub stop: StopReason,
}

impl<T> Outcome<T> {
    /// The result of a method without a search.
    pub fn finished(best: T) -> Self {
        Self { best: Some(best), evaluations: 1, stop: StopReason::Finished }
    }

    /// The same ending with another result.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Outcome<U> {
        Outcome { best: self.best.map(f), evaluations: self.evaluations, stop: self.stop }
    }
}

/// A search for a schedule that begins, for those who watch it.
#[derive(Clone, Copy, Debug)]
pub struct Goal<'a> {
    /// Name of the planner.
    pub planner: &'a str,
    /// The limit.
    pub limit: Bytes,
    /// Iteration time of an unlimited device: what overheads are counted from.
    pub unlimited: Nanos,
    /// How long it may take.
    pub budget: &'a Budget,
}

/// Hears how a search goes on. Libraries never print: whoever started the search passes an observer that may.
pub trait Observer: Sync {
    /// A planner begins to search for a schedule; what is heard until the next goal is about this one, and costs are in nanoseconds.
    fn begins(&self, _goal: &Goal<'_>) {}
    /// A better result was found: what it costs now and the bound below which nothing can be, in the search's own unit.
    fn improved(&self, _cost: u64, _bound: u64) {}
    /// So many evaluations are done.
    fn progress(&self, _evaluations: u64) {}
    /// Something that only one planner reports, such as an episode of training. The planner's crate documents the types of its notes;
    /// a receiver that knows them uses [`downcast_ref`](Any#method.downcast_ref).
    fn note(&self, _note: &dyn Any) {}
    /// Where the result comes from, when a search has asked others too or has found it in one of many passes.
    fn origin(&self, _origin: &str) {}
    /// Whether to stop at the next evaluation, keeping the best so far.
    fn interrupted(&self) -> bool {
        false
    }
}

/// Hears nothing and never interrupts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}

/// Hears nothing of a search that another one starts for itself, whose costs mean something else, and stops it with the other.
pub struct Unheard<'a>(pub &'a dyn Observer);

impl Observer for Unheard<'_> {
    fn interrupted(&self) -> bool {
        self.0.interrupted()
    }
}

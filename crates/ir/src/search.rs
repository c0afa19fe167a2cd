//! Budgets, results and stop reasons of searches, shared by packers and planners.

use std::any::Any;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{Bytes, Nanos, OpId, TensorId};

/// How long a search may take. It is counted in *evaluations*, which each algorithm defines; a clock may stop a search only between two
/// evaluations. Seed and number of evaluations reproduce a result on any number of threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Evaluations allowed; `None` for no limit.
    pub evaluations: Option<u64>,
    /// Time allowed; `None` for no limit.
    pub time: Option<Duration>,
    /// Seed of random choices.
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

    /// The reason to stop after `done` evaluations since `start`, if this budget is exhausted.
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
    /// The result is proved optimal: it meets a lower bound, or the search was exhaustive.
    Optimal,
    /// A method without a search finished; nothing is proved.
    Finished,
    /// The evaluations were used up.
    Evaluations,
    /// The time was used up.
    Time,
    /// The observer asked to stop.
    Interrupted,
    /// No solution exists within the given limit; this has been proved.
    Infeasible(Box<Infeasible>),
    /// No solution was found within the given limit; nothing is proved.
    GaveUp {
        /// The smallest number of bytes for which a solution was found.
        best: Option<Bytes>,
    },
}

impl StopReason {
    /// Its name in reports: `optimal`, `finished`, `evaluations`, `time`, `interrupted`, `infeasible` or `gave-up`.
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

/// A proof of infeasibility, in terms of the user's trace or blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Infeasible {
    /// These tensors and this workspace must be resident together in every schedule.
    Op {
        /// The op that needs them.
        op: OpId,
        /// Its inputs and outputs.
        tensors: Vec<TensorId>,
        /// Other tensors, which nothing that is permitted can remove from the device meanwhile.
        held: Vec<TensorId>,
        /// Bytes of its inputs, outputs, workspace and the held tensors together, alignment included.
        needed: Bytes,
        /// The limit, in bytes.
        limit: Bytes,
    },
    /// These blocks cannot be placed together within the capacity.
    Blocks {
        /// A set of blocks that cannot be placed and from which no block can be left out.
        blocks: Vec<crate::BufferId>,
        /// A lower bound of the bytes that they need.
        needed: Bytes,
        /// The limit, in bytes.
        limit: Bytes,
    },
}

/// The result of a search, its number of evaluations, and why it ended.
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

    /// Replaces the result and keeps the rest.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Outcome<U> {
        Outcome { best: self.best.map(f), evaluations: self.evaluations, stop: self.stop }
    }
}

/// The start of a search for a schedule, for observers.
#[derive(Clone, Copy, Debug)]
pub struct Goal<'a> {
    /// Name of the planner.
    pub planner: &'a str,
    /// The limit.
    pub limit: Bytes,
    /// Iteration time without a limit, to which overheads refer.
    pub unlimited: Nanos,
    /// The budget of the search.
    pub budget: &'a Budget,
}

/// Receives the progress of a search. Libraries never print: the caller passes an observer that may.
pub trait Observer: Sync {
    /// A planner starts to search for a schedule. Until the next call, events concern this search, and costs are in nanoseconds.
    fn begins(&self, _goal: &Goal<'_>) {}
    /// A better result was found: its cost and a lower bound, both in the search's own unit.
    fn improved(&self, _cost: u64, _bound: u64) {}
    /// The number of evaluations so far.
    fn progress(&self, _evaluations: u64) {}
    /// A report of a kind that only one planner makes, such as an episode of training. The planner's crate documents the types of its
    /// notes; a receiver that knows them uses [`downcast_ref`](Any#method.downcast_ref).
    fn note(&self, _note: &dyn Any) {}
    /// The origin of the result, if the search ran other planners or found it in one of several passes.
    fn origin(&self, _origin: &str) {}
    /// Whether the search should stop at the next evaluation and keep its best result.
    fn interrupted(&self) -> bool {
        false
    }
    /// When it will interrupt at the latest, if that is known: for a search whose evaluations are too long to wait for the end of one.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// Ignores all events and never interrupts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}

/// Passes on interruptions only. For a search inside another one, whose costs have another meaning.
pub struct InterruptOnly<'a>(pub &'a dyn Observer);

impl Observer for InterruptOnly<'_> {
    fn interrupted(&self) -> bool {
        self.0.interrupted()
    }
    fn deadline(&self) -> Option<Instant> {
        self.0.deadline()
    }
}

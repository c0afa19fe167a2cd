//! When a plan is legal: ten rules, and the proof by which a plan becomes a [`CheckedPlan`].
//!
//! A plan comes from a planner, a file or another program and is not trusted. The checker replays it, position by position, over a
//! model of the arena that records for every byte which tensor it belongs to and which action last touched it. It is slower and simpler than any
//! planner and shares no code with them: it computes no lifetimes in advance, does not rely on the order of the trace, and uses no costs.
//!
//! # The rules
//!
//! - **L1, shape.** The plan is for this trace. Every action names ids that exist; a launch has a buffer for each of its op's reads and
//!   outputs, in their order, and a workspace exactly if the op needs one; the new tensor of a mutation goes to the buffer from which the
//!   old one is read. Every buffer is used.
//! - **L2, contents.** Every read (by a launch or an offload) finds, in its whole range, the tensor that it names. The order of the
//!   trace's ops is not required: this rule decides which orders are right.
//! - **L3, residency.** Every access is to a live buffer. A buffer is alive from the action that first writes it until its `Release`, once;
//!   a workspace at its launch only; the boundary buffer of a persistent tensor from the beginning, and once more after its release if
//!   it is written again. Live buffers share no byte, at no position. A launch writes only fresh buffers, except that it overwrites what its op
//!   mutates, and an input where the trace permits the output to reuse it. Permitted pairs with different inputs and different outputs
//!   may be chosen together. Input and output then start at the same byte: kernels see exact aliases or none.
//! - **L4, bounds.** Every buffer is at least as large as what it holds, starts at a multiple of the machine's alignment and ends within
//!   the machine's memory; the placement's height is the largest end. (Without a placement: live memory stays
//!   within its limit.)
//! - **L5, prefetches.** A prefetch reads a host copy of the tensor that it names, one that exists at its position and is finished when it
//!   starts, by stream order and waits alone.
//! - **L6, ops.** Every op is computed once, after the ops that it has to follow ([`Op::after`](crate::trace::Op::after)). It is
//!   recomputed only after that, and only if it may be recomputed. (The trace names the random state of an op that draws numbers, so
//!   no plan can change it.)
//! - **L7, races.** Any two accesses of one byte, at least one of them a write, are ordered by stream order and waits alone, in the
//!   direction of their positions. The two directions of the link count as separate streams even if they share one: that is the harder case.
//! - **L8, host memory.** An offload starts a host copy of a tensor that has none; the copy lives until its `HostRelease`, which names a
//!   copy that exists; together they stay within the machine's host memory at every position.
//! - **L9, the boundary.** Every persistent tensor has a boundary buffer, a host copy, or both, and every buffer is the boundary buffer
//!   of at most one. They hold the tensor `begin` when the iteration begins and the tensor `end` when it ends. At the end nothing else is
//!   alive, and there are no other host copies.
//! - **L10, waits.** Waits name earlier actions that run on a stream, so that streams cannot block one another; releases wait for nothing.
//!
//! # What follows
//!
//! Sequential replay proves the contents (L2) for one order. By L7 every conflicting pair happens in that order whenever streams and waits
//! are obeyed, so every execution leaves the same bytes, whatever its actions cost. By L10 every execution ends. The prologue is the
//! boundary itself, read as instructions, and all streams drain between two iterations, so L9 makes the iterations a chain.
//!
//! What remains for the executor: to obey stream order and waits, to write and read only what launches name, and to keep every host
//! copy in bytes of its own. If host memory of a released copy is used for a later one, the later offload has to wait until every prefetch
//! of the earlier copy has finished; such prefetches come earlier in the order, so waiting for them cannot block.

mod arena;
mod order;
mod replay;
mod shape;

use std::fmt;
use std::sync::Arc;

use crate::machine::Machine;
use crate::packing::Placement;
use crate::plan::Plan;
use crate::schedule::Schedule;
use crate::trace::Trace;
use crate::{ActionId, Bytes};

/// One of the numbered rules of the [module documentation](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Arity and kinds of every action match the trace.
    L1 = 1,
    /// Every read finds the tensor it names.
    L2,
    /// Accesses are to live buffers, which share no byte.
    L3,
    /// Sizes, alignment, memory.
    L4,
    /// A prefetch reads a finished host copy of the same tensor.
    L5,
    /// Every op once, after those that it has to follow, and again only what may be.
    L6,
    /// Conflicting accesses are ordered by streams and waits.
    L7,
    /// Host copies and host memory.
    L8,
    /// The iteration ends as it began.
    L9,
    /// Waits point backwards.
    L10,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{}", *self as u8)
    }
}

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The violated rule.
    pub rule: Rule,
    /// The action that violates it; `None` if it is the plan as a whole.
    pub action: Option<ActionId>,
    /// What is wrong: one sentence without a full stop.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.action {
            Some(action) => write!(f, "rule {} is broken at {action}: {}", self.rule, self.what),
            None => write!(f, "rule {} is broken: {}", self.rule, self.what),
        }
    }
}

/// Why a plan is illegal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Illegal {
    /// The violations, in the order in which they were found; at least one. A violation may be the consequence of an earlier one.
    pub violations: Vec<Violation>,
    /// Violations found beyond those listed.
    pub unlisted: usize,
}

impl Illegal {
    /// The violation found first.
    pub fn first(&self) -> &Violation {
        &self.violations[0]
    }
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first())?;
        match self.violations.len() - 1 + self.unlisted {
            0 => Ok(()),
            more => write!(f, " (and {more} more)"),
        }
    }
}

impl std::error::Error for Illegal {}

/// A proved plan, together with the trace and machine of the proof. Only the checker can make one, and it is never deserialized.
#[derive(Clone, Debug)]
pub struct CheckedPlan {
    trace: Arc<Trace>,
    machine: Machine,
    plan: Plan,
    peak_live: Bytes,
}

impl CheckedPlan {
    /// The trace.
    pub fn trace(&self) -> &Arc<Trace> {
        &self.trace
    }
    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
    /// The order of actions.
    pub fn schedule(&self) -> &Schedule {
        &self.plan.schedule
    }
    /// The offsets of buffers.
    pub fn placement(&self) -> &Placement {
        &self.plan.placement
    }
    /// Peak memory over all positions, computed by the checker; each buffer counts at its size rounded up to the machine's alignment.
    pub fn peak_live(&self) -> Bytes {
        self.peak_live
    }
    /// Returns the plan.
    pub fn into_plan(self) -> Plan {
        self.plan
    }
}

/// A schedule proved legal for every placement, together with the trace and machine of the proof.
#[derive(Clone, Debug)]
pub struct CheckedSchedule {
    trace: Arc<Trace>,
    machine: Machine,
    schedule: Schedule,
    peak_live: Bytes,
}

impl CheckedSchedule {
    /// The trace.
    pub fn trace(&self) -> &Arc<Trace> {
        &self.trace
    }
    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }
    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }
    /// Peak memory over all positions, computed by the checker; each buffer counts at its size rounded up to the machine's alignment.
    pub fn peak_live(&self) -> Bytes {
        self.peak_live
    }
    /// Returns the schedule.
    pub fn into_schedule(self) -> Schedule {
        self.schedule
    }
}

/// Proves a plan against its trace and machine.
///
/// # Errors
/// The rules that the plan violates, and where.
pub fn check(trace: Arc<Trace>, machine: Machine, plan: Plan) -> Result<CheckedPlan, Illegal> {
    let mut report = Report::default();
    if plan.trace != trace.fingerprint() {
        let what = format!("the plan is for trace {}, but this is trace {}", plan.trace, trace.fingerprint());
        report.add(Rule::L1, None, what);
        report.finish()?;
    }
    shape::machine(&machine, &mut report);
    shape::schedule(&trace, &plan.schedule, &mut report);
    report.finish()?;
    shape::placement(&machine, &plan.schedule, &plan.placement, &mut report);
    report.finish()?;
    let layout = replay::BufferLayout::Placed(plan.placement.offsets.as_slice());
    let peak_live = replay::replay(&trace, &machine, &plan.schedule, layout, &mut report);
    report.finish()?;
    Ok(CheckedPlan { trace, machine, plan, peak_live })
}

/// Proves a schedule that has no placement: every rule, with each buffer in bytes of its own, and besides
///
/// - live memory stays within `live_limit` at every position (rule L4 in place of offsets), and
/// - the waits do for every placement (rule L7): any two buffers with disjoint lifetimes might share bytes, so an action that takes a
///   buffer is ordered after all accesses of all buffers released before it.
///
/// Together they bound live memory at every moment of every execution, whatever its actions cost.
pub fn check_schedule(
    trace: Arc<Trace>,
    machine: Machine,
    schedule: Schedule,
    live_limit: Bytes,
) -> Result<CheckedSchedule, Illegal> {
    let mut report = Report::default();
    shape::machine(&machine, &mut report);
    shape::schedule(&trace, &schedule, &mut report);
    report.finish()?;
    let offsets = shape::apart(&schedule, &mut report);
    report.finish()?;
    let layout = replay::BufferLayout::Apart { offsets: &offsets, live_limit };
    let peak_live = replay::replay(&trace, &machine, &schedule, layout, &mut report);
    report.finish()?;
    Ok(CheckedSchedule { trace, machine, schedule, peak_live })
}

/// Collects violations. Above a maximum it only counts them, so that a hostile plan cannot fill memory with messages.
#[derive(Default)]
struct Report {
    violations: Vec<Violation>,
    unlisted: usize,
}

impl Report {
    const LISTED: usize = 50;

    fn add(&mut self, rule: Rule, action: Option<ActionId>, what: String) {
        if self.violations.len() < Self::LISTED {
            self.violations.push(Violation { rule, action, what });
        } else {
            self.unlisted += 1;
        }
    }

    /// Ends the check if there are violations: later stages rely on the earlier ones.
    fn finish(&mut self) -> Result<(), Illegal> {
        if self.violations.is_empty() {
            return Ok(());
        }
        Err(Illegal { violations: std::mem::take(&mut self.violations), unlisted: self.unlisted })
    }
}

//! Why the peak of memory is where it is, and what would lower it.
//!
//! The sum of all tensors says little: only what is alive at the peak raises it, and once that is gone, another moment is the peak. Each
//! [`Group`] of tensors therefore states what it contributes *to the peak*: the peak memory without the group, and the exact peak memory and
//! iteration time if the group's tensors are offloaded or recomputed while the peak lasts. [`Suggestion`]s are plans that were made.
//!
//! ```text
//! live memory      peak
//!     │          ╱╲
//!     │   ╱╲    ╱  ╲        without the group that is alive only here ─┐
//!     │  ╱  ╲  ╱    ╲  ◄── the next peak ──────────────────────────────┘
//!     └────────────────▶ actions
//! ```

pub(crate) mod groups;
mod savings;
mod suggestions;
mod text;

use std::time::{Duration, Instant};

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::schedule::Schedule;
use elbowroom_ir::search::{Budget, Observer};
use elbowroom_ir::trace::{Again, Trace};
use elbowroom_ir::{Bytes, Id, Nanos};
use elbowroom_sched::deadline::Until;
use elbowroom_sim::live::LiveMemory;
use serde::Serialize;

use crate::pipeline::{self, Method, Planned, Task};
use crate::registry::{self, UnknownName};
use groups::Residencies;
pub use groups::{Group, Kind, Moment};
pub use savings::Saving;
pub use suggestions::Suggestion;

/// Groups that are listed; the rest are summed up.
const LISTED: usize = 12;

/// Groups listed although they are hardly alive at the peak, because they are large elsewhere: freeing them would not lower the peak.
const ELSEWHERE: usize = 3;

/// What the peak of an iteration consists of.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Why {
    /// Name of the trace.
    pub trace: String,
    /// Name of the machine whose link and alignment count.
    pub machine: String,
    /// Whether this is about a plan; otherwise about the iteration without a limit.
    pub planned: bool,
    /// Whether the trace is a history of allocations, which does not tell when a tensor is used between its allocation and its release.
    pub allocations_only: bool,
    /// Peak live memory, each tensor rounded up to the alignment.
    pub peak_live_bytes: Bytes,
    /// Where the peak is.
    pub peak: Moment,
    /// Arena size: that of the plan, or the unconstrained peak.
    pub arena_bytes: Bytes,
    /// Bytes of the arena that are free at the peak because no offsets were found that use them.
    pub fragmentation_bytes: Bytes,
    /// Bytes alive at the peak that the op there reads and writes: no decision can remove them.
    pub in_use_bytes: Bytes,
    /// What is alive at the peak by kind, largest first.
    pub kinds: Vec<KindShare>,
    /// Groups of tensors by module and kind, those with most bytes at the peak first, then some that are large elsewhere.
    pub groups: Vec<Group>,
    /// Bytes alive at the peak that belong to groups which are not listed.
    pub other_bytes: Bytes,
    /// Listed groups of which no saving was evaluated because the time ended.
    pub unevaluated_groups: usize,
    /// The saving if every op of the update phase ran as soon as its gradient exists; `None` for a plan.
    pub prompt_updates: Option<Saving>,
    /// No plan exists for a smaller limit: an op needs these bytes together with the tensors that cannot leave the device.
    pub floor_bytes: Bytes,
    /// That op.
    pub floor_op: String,
    /// The smallest limit for which a plan was found.
    pub smallest_limit_bytes: Option<Bytes>,
    /// Up to three ways to a lower peak, each with the figures of a plan or schedule that was made.
    pub suggestions: Vec<Suggestion>,
}

/// What one kind of tensors contributes to the peak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KindShare {
    /// The kind.
    pub kind: Kind,
    /// Bytes alive at the peak.
    pub bytes: Bytes,
    /// Number of tensors alive at the peak.
    pub tensors: usize,
}

/// How plans for suggestions are made.
#[derive(Clone, Copy)]
pub struct Means<'a> {
    /// The method that plans at chosen limits.
    pub method: &'a Method<'a>,
    /// The method that looks for the smallest limit.
    pub smallest: &'a Method<'a>,
}

impl Why {
    /// Explains the peak of a plan for the task's trace, or without a plan that of its [unconstrained](pipeline::unconstrained) plan, in about
    /// this time. Suggestions are plans of the default planner, the smallest limit is that of a quick one.
    ///
    /// # Errors
    ///
    /// A planner or packer that this build does not have, which is a fault in this project.
    pub fn within(
        time: Duration,
        task: &Task,
        plan: Option<&CheckedPlan>,
        unconstrained: &Planned,
        observer: &dyn Observer,
    ) -> Result<Self, UnknownName> {
        let end = Instant::now().checked_add(time);
        let method = |planner, packer| {
            let budget = Budget { time: Some(time), ..Budget::default() };
            let method = Method::new(registry::planner(planner)?, registry::packer(packer)?, budget);
            Ok(method.at_once_within_time())
        };
        let means = Means {
            method: &method(registry::DEFAULT_PLANNER, registry::DEFAULT_PACKER)?,
            smallest: &method(registry::FRUGAL_PLANNER, registry::QUICK_PACKER)?,
        };
        Ok(Self::of(task, plan, unconstrained, &means, &Until::new(observer, end)))
    }

    /// Explains the peak of a plan for the task's trace, or without a plan that of its [unconstrained](pipeline::unconstrained) plan.
    pub fn of(
        task: &Task,
        plan: Option<&CheckedPlan>,
        unconstrained: &Planned,
        means: &Means<'_>,
        observer: &dyn Observer,
    ) -> Self {
        let shown = plan.unwrap_or(&unconstrained.plan);
        let schedule = shown.schedule();
        let allocations_only = allocations_only(&task.trace);
        let live = LiveMemory::of(schedule, &task.machine);
        let residencies = Residencies::of(&task.trace, schedule, &task.machine, allocations_only);
        let at = live.at.map_or(0, |action| action.index() as u64);
        let (mut groups, other_bytes) = residencies.groups(&live, LISTED, ELSEWHERE);
        let unevaluated_groups = match plan {
            None => savings::complete(task, schedule, at, &mut groups, allocations_only, observer),
            Some(_) => 0,
        };
        let (floor_op, floor_bytes) = pipeline::floor(task);
        let arena_bytes = shown.placement().height;
        let mut why = Self {
            trace: task.trace.name().to_owned(),
            machine: task.machine.name.clone(),
            planned: plan.is_some(),
            allocations_only,
            peak_live_bytes: live.peak,
            peak: groups::moment(&task.trace, schedule, at),
            arena_bytes,
            fragmentation_bytes: arena_bytes.saturating_sub(live.peak),
            in_use_bytes: residencies.in_use(at),
            kinds: residencies.kinds(at),
            groups,
            other_bytes,
            unevaluated_groups,
            prompt_updates: (plan.is_none() && !observer.interrupted())
                .then(|| savings::prompt_updates(task))
                .flatten(),
            floor_bytes,
            floor_op,
            smallest_limit_bytes: None,
            suggestions: Vec::new(),
        };
        suggestions::complete(&mut why, task, means, unconstrained, observer);
        why
    }
}

/// Whether the trace is a history of allocations and frees, as [imported](elbowroom_import::snapshot) memory snapshots are.
fn allocations_only(trace: &Trace) -> bool {
    !trace.ops().is_empty()
        && trace
            .ops()
            .values()
            .all(|op| op.again == Again::Never && matches!(op.kind.as_str(), "alloc" | "free"))
}

/// The iteration time of a schedule that keeps every tensor: the sum of the op times.
fn unlimited(task: &Task) -> Nanos {
    task.costs.total()
}

/// The op that an action runs, or that the next action runs which runs one.
fn next_op(trace: &Trace, schedule: &Schedule, position: u64) -> Option<elbowroom_ir::OpId> {
    let from = position as usize;
    let steps = schedule.steps.as_slice().get(from..).unwrap_or_default();
    let launch = steps.iter().find_map(|step| step.action.launch())?;
    (launch.op.index() < trace.ops().len()).then_some(launch.op)
}

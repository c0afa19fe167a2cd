//! A checked plan compiled for execution: for each stream a list of tasks in order, with addresses instead of ids.
//!
//! All look-ups happen here, once, so that an iteration only walks three lists. A program can be made from a [`CheckedPlan`] only, and only
//! inside this crate. If its tasks run in stream order and obey their waits, no task accesses bytes that another one is using (rules L3, L4
//! and L7 of the checker).

use std::ops::Range;

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::schedule::{Action, Launch, Stream};
use elbowroom_ir::{ActionId, BufferId, Bytes, OpId, Table, TensorId};

use crate::arena::Extent;
use crate::host::slots::{CopyIndex, HostCopies};

/// The work of a task.
#[derive(Clone, Debug)]
pub(crate) enum TaskWork {
    /// Runs an op.
    Launch {
        op: OpId,
        /// Ranges of its inputs, as indices into [`Program::extents`].
        reads: Range<usize>,
        /// Ranges of its outputs, as indices into [`Program::extents`].
        writes: Range<usize>,
        workspace: Extent,
    },
    /// Copies a tensor to the host.
    Store { value: TensorId, from: Extent, copy: CopyIndex },
    /// Copies a tensor to the device.
    Load { value: TensorId, copy: CopyIndex, to: Extent },
}

/// An action on its stream.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub action: ActionId,
    pub work: TaskWork,
    /// For each stream, the latest action that must have finished. Earlier ones have finished by then, because a stream runs in order.
    pub after: [Option<ActionId>; 3],
    /// Largest end of any range that the work uses, in bytes.
    pub end: usize,
    /// Residencies that the task accesses and that end within this iteration, as a range of [`Program::retiring`].
    pub retires: Range<usize>,
}

impl Task {
    /// Bytes that it copies.
    pub const fn bytes(&self) -> usize {
        match self.work {
            TaskWork::Store { from: moved, .. } | TaskWork::Load { to: moved, .. } => moved.len,
            TaskWork::Launch { .. } => 0,
        }
    }
}

/// One stay of a storage in the arena, or one workspace.
#[derive(Clone, Debug)]
pub(crate) struct Residency {
    /// The bytes that every access touches. A later use of other bytes of the residency need not wait for all accesses.
    pub common: Extent,
    /// Its size rounded up to the machine's alignment, as live memory counts it.
    pub bytes: Bytes,
    /// The action that reserves it; `None` if it exists when the iteration begins.
    pub first: Option<ActionId>,
    /// Actions that access it, in schedule order.
    pub accesses: Vec<ActionId>,
    /// Whether it ends within the iteration.
    pub ends: bool,
}

/// Where a plan puts a persistent tensor between iterations: a range of the arena, a host copy, or both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedLocation {
    pub bytes: usize,
    pub device: Option<Extent>,
    pub host: Option<CopyIndex>,
}

/// A plan with addresses.
#[derive(Debug)]
pub(crate) struct Program {
    pub streams: [Vec<Task>; 3],
    pub extents: Vec<Extent>,
    pub retiring: Vec<usize>,
    pub residencies: Vec<Residency>,
    /// In the order of the trace's persistent tensors.
    pub locations: Vec<PlannedLocation>,
    pub actions: usize,
}

impl Program {
    /// Resolves every address of a plan. `copies` are its host copies.
    pub fn new(plan: &CheckedPlan, copies: &HostCopies) -> Self {
        let (trace, schedule) = (plan.trace(), plan.schedule());
        let place = |buffer: BufferId, bytes: Bytes| Extent {
            offset: plan.placement().offsets[buffer].get() as usize,
            len: bytes.get() as usize,
        };
        let stream_of: Table<ActionId, Option<Stream>> =
            schedule.steps.values().map(|s| s.action.stream()).collect();
        let mut residencies = ResidencyTracker::new(plan);
        let mut streams = [const { Vec::new() }; 3];
        let mut extents = Vec::new();
        for (id, step) in schedule.steps.iter() {
            let (work, end) = match &step.action {
                Action::Compute(launch) | Action::Recompute(launch) => {
                    let Launch { op, reads, writes, workspace } = launch;
                    let facts = &trace.ops()[*op];
                    let start = extents.len();
                    extents.extend(reads.iter().zip(&facts.reads).map(|(&b, &t)| place(b, trace.bytes(t))));
                    let middle = extents.len();
                    extents
                        .extend(writes.iter().zip(&facts.outputs).map(|(&b, &t)| place(b, trace.bytes(t))));
                    for (&buffer, &extent) in reads.iter().chain(writes).zip(&extents[start..]) {
                        residencies.access(buffer, id, extent);
                    }
                    let mut scratch = Extent { offset: 0, len: 0 };
                    if let &Some(buffer) = workspace {
                        scratch = place(buffer, facts.workspace);
                        residencies.access(buffer, id, scratch);
                        residencies.close(buffer);
                    }
                    let ranges = extents[start..].iter().chain([&scratch]);
                    let end = ranges.map(|extent| extent.end()).max().unwrap_or(0);
                    let (reads, writes) = (start..middle, middle..extents.len());
                    (TaskWork::Launch { op: *op, reads, writes, workspace: scratch }, end)
                }
                &Action::Offload { tensor: value, from: buffer }
                | &Action::Prefetch { tensor: value, to: buffer } => {
                    let extent = place(buffer, trace.bytes(value));
                    residencies.access(buffer, id, extent);
                    // Every prefetch reads a copy that exists (rule L5), so the lookup never fails.
                    let copy = copies.of_action[id].unwrap_or_default();
                    let work = match step.action {
                        Action::Offload { .. } => TaskWork::Store { value, from: extent, copy },
                        _ => TaskWork::Load { value, copy, to: extent },
                    };
                    (work, extent.end())
                }
                &Action::Release { buffer } => {
                    residencies.close(buffer);
                    continue;
                }
                Action::HostRelease { .. } => continue,
            };
            let Some(stream) = stream_of[id] else { continue };
            let mut after = [None; 3];
            for &wait in step.waits.iter().chain(&copies.hazard[id]) {
                if let Some(other) = stream_of[wait].filter(|&other| other != stream) {
                    after[other.index()] = after[other.index()].max(Some(wait));
                }
            }
            streams[stream.index()].push(Task { action: id, work, after, end, retires: 0..0 });
        }

        let residencies = residencies.finish();
        let mut ending: Table<ActionId, Vec<usize>> = Table::filled(schedule.steps.len(), Vec::new());
        for (index, residency) in residencies.iter().enumerate().filter(|(_, residency)| residency.ends) {
            residency.accesses.iter().for_each(|&action| ending[action].push(index));
        }
        let mut retiring = Vec::new();
        for task in streams.iter_mut().flatten() {
            let start = retiring.len();
            retiring.extend(&ending[task.action]);
            task.retires = start..retiring.len();
        }

        let locations = trace.persistent().iter().zip(&schedule.boundary).zip(&copies.at_begin).map(
            |((persistent, at_boundary), &host)| {
                let bytes = trace.bytes(persistent.begin);
                let device = at_boundary.device.map(|buffer| place(buffer, bytes));
                PlannedLocation { bytes: bytes.get() as usize, device, host }
            },
        );
        let locations = locations.collect();
        Self { streams, extents, retiring, residencies, locations, actions: schedule.steps.len() }
    }
}

/// Collects the residencies of buffers while the schedule is read in order.
struct ResidencyTracker<'a> {
    plan: &'a CheckedPlan,
    open: Table<BufferId, Option<Residency>>,
    done: Vec<Residency>,
}

impl<'a> ResidencyTracker<'a> {
    fn new(plan: &'a CheckedPlan) -> Self {
        let mut this =
            Self { plan, open: Table::filled(plan.schedule().buffers.len(), None), done: Vec::new() };
        for buffer in plan.schedule().boundary.iter().filter_map(|at_boundary| at_boundary.device) {
            this.open[buffer] = Some(this.residency(buffer, None));
        }
        this
    }

    fn residency(&self, buffer: BufferId, first: Option<ActionId>) -> Residency {
        let bytes = self.plan.schedule().buffers[buffer].bytes;
        let offset = self.plan.placement().offsets[buffer].get() as usize;
        Residency {
            common: Extent { offset, len: bytes.get() as usize },
            bytes: bytes.align_up(self.plan.machine().align),
            first,
            accesses: Vec::new(),
            ends: false,
        }
    }

    fn access(&mut self, buffer: BufferId, action: ActionId, extent: Extent) {
        if self.open[buffer].is_none() {
            self.open[buffer] = Some(self.residency(buffer, Some(action)));
        }
        let Some(residency) = &mut self.open[buffer] else { return };
        residency.common.len = residency.common.len.min(extent.len);
        if residency.accesses.last() != Some(&action) {
            residency.accesses.push(action);
        }
    }

    fn close(&mut self, buffer: BufferId) {
        self.done.extend(self.open[buffer].take().map(|residency| Residency { ends: true, ..residency }));
    }

    fn finish(mut self) -> Vec<Residency> {
        self.done.extend(self.open.iter_mut().filter_map(|(_, open)| open.take()));
        self.done
    }
}

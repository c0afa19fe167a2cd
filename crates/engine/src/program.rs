//! A checked plan made ready to run: for each lane its tasks in order, with addresses instead of names.
//!
//! Everything that an iteration needs is looked up here once, so that running it is walking three lists. A program can be made from a
//! [`CheckedPlan`] only, and nobody outside the crate can make one: whoever runs its tasks in lane order and obeys their waits accesses
//! no byte that somebody else is using (rules L3, L4 and L7 of the checker).

use std::ops::Range;

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::schedule::{Action, Lane, Launch};
use elbowroom_ir::{ActionId, BufferId, Bytes, OpId, Table, TensorId};

use crate::arena::Extent;
use crate::host::slots::{Copies, CopyIndex};

/// What a task does.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Runs an op.
    Launch {
        op: OpId,
        /// Places of its inputs, in [`Program::extents`].
        reads: Range<usize>,
        /// Places of its outputs, in [`Program::extents`].
        writes: Range<usize>,
        workspace: Extent,
    },
    /// Copies a value to the host.
    Store { value: TensorId, from: Extent, copy: CopyIndex },
    /// Copies a value from the host.
    Load { value: TensorId, copy: CopyIndex, to: Extent },
}

/// One action on its lane.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub action: ActionId,
    pub work: Work,
    /// What must have finished on each lane: the latest suffices, because lanes work in order.
    pub after: [Option<ActionId>; 3],
    /// Largest end of any range that the work gets.
    pub end: usize,
    /// Residences that it accesses and that end in this iteration, in [`Program::retiring`].
    pub retires: Range<usize>,
}

impl Task {
    /// Bytes that it copies.
    pub const fn bytes(&self) -> usize {
        match self.work {
            Work::Store { from: moved, .. } | Work::Load { to: moved, .. } => moved.len,
            Work::Launch { .. } => 0,
        }
    }
}

/// One stay of a storage in the arena, or one workspace.
#[derive(Clone, Debug)]
pub(crate) struct Residence {
    /// The bytes that every access touches. Whoever takes other bytes of it need not wait for all accesses.
    pub common: Extent,
    /// Its size as loads count it: rounded up to the machine's alignment.
    pub load: Bytes,
    /// The action that reserves it; `None` for what is there when the iteration begins.
    pub first: Option<ActionId>,
    /// Actions that access it, in order of positions.
    pub accesses: Vec<ActionId>,
    /// Whether it ends within the iteration.
    pub ends: bool,
}

/// Where a persistent value is between iterations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PersistentHome {
    pub bytes: usize,
    pub device: Option<Extent>,
    pub host: Option<CopyIndex>,
}

/// A plan with addresses.
#[derive(Debug)]
pub(crate) struct Program {
    pub lanes: [Vec<Task>; 3],
    pub extents: Vec<Extent>,
    pub retiring: Vec<usize>,
    pub residences: Vec<Residence>,
    /// In the order of the trace's persistent values.
    pub homes: Vec<PersistentHome>,
    pub actions: usize,
}

impl Program {
    /// Looks up every address of a plan. `copies` are its host copies.
    pub fn new(plan: &CheckedPlan, copies: &Copies) -> Self {
        let (trace, schedule) = (plan.trace(), plan.schedule());
        let place = |buffer: BufferId, bytes: Bytes| Extent {
            offset: plan.placement().offsets[buffer].get() as usize,
            len: bytes.get() as usize,
        };
        let lane_of: Table<ActionId, Option<Lane>> =
            schedule.steps.values().map(|s| s.action.lane()).collect();
        let mut residences = Residences::new(plan);
        let mut lanes = [const { Vec::new() }; 3];
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
                        residences.access(buffer, id, extent);
                    }
                    let mut scratch = Extent { offset: 0, len: 0 };
                    if let &Some(buffer) = workspace {
                        scratch = place(buffer, facts.workspace);
                        residences.access(buffer, id, scratch);
                        residences.close(buffer);
                    }
                    let ranges = extents[start..].iter().chain([&scratch]);
                    let end = ranges.map(|extent| extent.end()).max().unwrap_or(0);
                    let (reads, writes) = (start..middle, middle..extents.len());
                    (Work::Launch { op: *op, reads, writes, workspace: scratch }, end)
                }
                &Action::Offload { value, from: buffer } | &Action::Prefetch { value, to: buffer } => {
                    let extent = place(buffer, trace.bytes(value));
                    residences.access(buffer, id, extent);
                    // Every prefetch reads a copy that exists (rule L5), so the lookup never fails.
                    let copy = copies.of_action[id].unwrap_or_default();
                    let work = match step.action {
                        Action::Offload { .. } => Work::Store { value, from: extent, copy },
                        _ => Work::Load { value, copy, to: extent },
                    };
                    (work, extent.end())
                }
                &Action::Release { buffer } => {
                    residences.close(buffer);
                    continue;
                }
                Action::HostRelease { .. } => continue,
            };
            let Some(lane) = lane_of[id] else { continue };
            let mut after = [None; 3];
            for &wait in step.waits.iter().chain(&copies.hazard[id]) {
                if let Some(other) = lane_of[wait].filter(|&other| other != lane) {
                    after[other.index()] = after[other.index()].max(Some(wait));
                }
            }
            lanes[lane.index()].push(Task { action: id, work, after, end, retires: 0..0 });
        }

        let residences = residences.finish();
        let mut ending: Table<ActionId, Vec<usize>> = Table::filled(schedule.steps.len(), Vec::new());
        for (index, residence) in residences.iter().enumerate().filter(|(_, residence)| residence.ends) {
            residence.accesses.iter().for_each(|&action| ending[action].push(index));
        }
        let mut retiring = Vec::new();
        for task in lanes.iter_mut().flatten() {
            let start = retiring.len();
            retiring.extend(&ending[task.action]);
            task.retires = start..retiring.len();
        }

        let homes = trace.persistent().iter().zip(&schedule.boundary).zip(&copies.homes).map(
            |((persistent, home), &host)| {
                let bytes = trace.bytes(persistent.begin);
                let device = home.device.map(|buffer| place(buffer, bytes));
                PersistentHome { bytes: bytes.get() as usize, device, host }
            },
        );
        let homes = homes.collect();
        Self { lanes, extents, retiring, residences, homes, actions: schedule.steps.len() }
    }
}

/// Follows buffers through their residences.
struct Residences<'a> {
    plan: &'a CheckedPlan,
    open: Table<BufferId, Option<Residence>>,
    done: Vec<Residence>,
}

impl<'a> Residences<'a> {
    fn new(plan: &'a CheckedPlan) -> Self {
        let mut this =
            Self { plan, open: Table::filled(plan.schedule().buffers.len(), None), done: Vec::new() };
        for buffer in plan.schedule().boundary.iter().filter_map(|home| home.device) {
            this.open[buffer] = Some(this.residence(buffer, None));
        }
        this
    }

    fn residence(&self, buffer: BufferId, first: Option<ActionId>) -> Residence {
        let bytes = self.plan.schedule().buffers[buffer].bytes;
        let offset = self.plan.placement().offsets[buffer].get() as usize;
        Residence {
            common: Extent { offset, len: bytes.get() as usize },
            load: bytes.align_up(self.plan.machine().align),
            first,
            accesses: Vec::new(),
            ends: false,
        }
    }

    fn access(&mut self, buffer: BufferId, action: ActionId, extent: Extent) {
        if self.open[buffer].is_none() {
            self.open[buffer] = Some(self.residence(buffer, Some(action)));
        }
        let Some(residence) = &mut self.open[buffer] else { return };
        residence.common.len = residence.common.len.min(extent.len);
        if residence.accesses.last() != Some(&action) {
            residence.accesses.push(action);
        }
    }

    fn close(&mut self, buffer: BufferId) {
        self.done.extend(self.open[buffer].take().map(|residence| Residence { ends: true, ..residence }));
    }

    fn finish(mut self) -> Vec<Residence> {
        self.done.extend(self.open.iter_mut().filter_map(|(_, open)| open.take()));
        self.done
    }
}

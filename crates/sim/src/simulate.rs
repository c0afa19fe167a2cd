//! Exact simulation of a schedule: every stream runs its actions in order of positions, each as soon as the stream is free and the action's
//! waits have finished. On a machine with a shared link both directions are one stream, in order of positions. There are no other delays,
//! so a run on a device differs only by its durations.

use elbowroom_ir::machine::Machine;
use elbowroom_ir::planning::Costs;
use elbowroom_ir::schedule::{Action, Schedule, Stream};
use elbowroom_ir::timeline::{Span, Timeline};
use elbowroom_ir::trace::Trace;
use elbowroom_ir::{ActionId, BufferId, Bytes, Id, Nanos, OpId, Table, TensorId};

use crate::live::LiveMemory;

/// Why a schedule cannot be simulated: it does not match its trace, or its waits cannot be met in order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// An op that is missing in the trace or the costs.
    #[error("{action} runs {op}, which the trace does not have")]
    UnknownOp {
        /// The action.
        action: ActionId,
        /// The op.
        op: OpId,
    },
    /// A tensor that is missing in the trace.
    #[error("{action} copies {value}, which the trace does not have")]
    UnknownValue {
        /// The action.
        action: ActionId,
        /// The tensor.
        value: TensorId,
    },
    /// A buffer that is missing in the schedule.
    #[error("{action} names {buffer}, which the schedule does not have")]
    UnknownBuffer {
        /// The action.
        action: ActionId,
        /// The buffer.
        buffer: BufferId,
    },
    /// A wait for itself or for a later action.
    #[error("{action} waits for {target}, which does not come before it")]
    WaitsForward {
        /// The action.
        action: ActionId,
        /// The action that it waits for.
        target: ActionId,
    },
}

/// Simulates a schedule. Takes time linear in the number of actions, apart from sorting the changes of live memory.
///
/// # Errors
/// The schedule does not match the trace, or a wait does not point backwards.
pub fn simulate(
    trace: &Trace,
    costs: &Costs,
    machine: &Machine,
    schedule: &Schedule,
) -> Result<Timeline, SimulateError> {
    let mut ends: Table<ActionId, Nanos> = Table::filled(schedule.steps.len(), Nanos::ZERO);
    let mut free = [Nanos::ZERO; 3];
    let mut timeline = Timeline::default();
    let (mut busy, mut last_op) = (Nanos::ZERO, Nanos::ZERO);
    let mut bytes = Residencies::new(schedule, machine);

    for (id, step) in schedule.steps.iter() {
        for &target in &step.waits {
            if target >= id {
                return Err(SimulateError::WaitsForward { action: id, target });
            }
        }
        bytes.known(id, &step.action)?;
        let Some(stream) = step.action.stream() else {
            if let Action::Release { buffer } = step.action {
                bytes.release(buffer);
            }
            continue;
        };
        let duration = duration(trace, costs, machine, id, &step.action)?;
        let start = step.waits.iter().map(|&w| ends[w]).fold(free[stream.index()], Nanos::max);
        let end = start + duration;
        ends[id] = end;
        free[stream.index()] = end;
        if machine.shared_link && stream != Stream::Compute {
            free[Stream::ToHost.index()] = end;
            free[Stream::ToDevice.index()] = end;
        }
        bytes.run(&step.action, start, end);
        timeline.spans.push(Span { action: id, stream, start, end });
        timeline.iteration = timeline.iteration.max(end);
        match &step.action {
            Action::Offload { tensor: value, .. } => timeline.traffic.to_host += trace.bytes(*value),
            Action::Prefetch { tensor: value, .. } => timeline.traffic.to_device += trace.bytes(*value),
            Action::Recompute(_) => {
                timeline.recomputed += 1;
                timeline.recompute_time += duration;
            }
            _ => {}
        }
        if stream == Stream::Compute {
            busy += duration;
            last_op = end;
        }
    }
    timeline.compute_idle = last_op - busy;
    timeline.peak_live = LiveMemory::of(schedule, machine).peak;
    timeline.live = bytes.curve();
    Ok(timeline)
}

/// Duration of an action on its stream.
fn duration(
    trace: &Trace,
    costs: &Costs,
    machine: &Machine,
    action: ActionId,
    what: &Action,
) -> Result<Nanos, SimulateError> {
    let size = |value: TensorId| {
        if value.index() < trace.tensors().len() {
            Ok(trace.bytes(value))
        } else {
            Err(SimulateError::UnknownValue { action, value })
        }
    };
    match what {
        Action::Compute(launch) | Action::Recompute(launch) => {
            costs.nanos.get(launch.op).copied().ok_or(SimulateError::UnknownOp { action, op: launch.op })
        }
        Action::Offload { tensor: value, .. } => Ok(machine.to_host.time(size(*value)?)),
        Action::Prefetch { tensor: value, .. } => Ok(machine.to_device.time(size(*value)?)),
        Action::Release { .. } | Action::HostRelease { .. } => Ok(Nanos::ZERO),
    }
}

/// Residencies in time: from the start of the action that takes a buffer to the end of its last access before its release.
struct Residencies<'a> {
    schedule: &'a Schedule,
    align: Bytes,
    alive: Table<BufferId, bool>,
    last_access: Table<BufferId, Nanos>,
    /// Time, bytes taken, bytes released.
    changes: Vec<(Nanos, Bytes, Bytes)>,
}

impl<'a> Residencies<'a> {
    fn new(schedule: &'a Schedule, machine: &Machine) -> Self {
        let buffers = schedule.buffers.len();
        let mut this = Self {
            schedule,
            align: machine.align,
            alive: Table::filled(buffers, false),
            last_access: Table::filled(buffers, Nanos::ZERO),
            changes: Vec::with_capacity(2 * buffers + 1),
        };
        this.changes.push((Nanos::ZERO, Bytes::ZERO, Bytes::ZERO));
        for buffer in schedule.boundary.iter().filter_map(|at_boundary| at_boundary.device) {
            if buffer.index() < buffers {
                this.take(buffer, Nanos::ZERO);
            }
        }
        this
    }

    fn known(&self, action: ActionId, what: &Action) -> Result<(), SimulateError> {
        let check = |buffer: BufferId| {
            if buffer.index() < self.alive.len() {
                Ok(())
            } else {
                Err(SimulateError::UnknownBuffer { action, buffer })
            }
        };
        match what {
            Action::Compute(launch) | Action::Recompute(launch) => launch
                .reads
                .iter()
                .chain(&launch.writes)
                .chain(&launch.workspace)
                .copied()
                .try_for_each(check),
            Action::Offload { from: buffer, .. }
            | Action::Prefetch { to: buffer, .. }
            | Action::Release { buffer } => check(*buffer),
            Action::HostRelease { .. } => Ok(()),
        }
    }

    fn size(&self, buffer: BufferId) -> Bytes {
        self.schedule.buffers[buffer].bytes.align_up(self.align)
    }

    fn take(&mut self, buffer: BufferId, at: Nanos) {
        if !std::mem::replace(&mut self.alive[buffer], true) {
            self.changes.push((at, self.size(buffer), Bytes::ZERO));
        }
    }

    fn touch(&mut self, buffer: BufferId, end: Nanos) {
        self.last_access[buffer] = self.last_access[buffer].max(end);
    }

    fn run(&mut self, action: &Action, start: Nanos, end: Nanos) {
        match action {
            Action::Compute(launch) | Action::Recompute(launch) => {
                for &buffer in &launch.writes {
                    self.take(buffer, start);
                    self.touch(buffer, end);
                }
                for &buffer in &launch.reads {
                    self.touch(buffer, end);
                }
                if let Some(buffer) = launch.workspace {
                    let size = self.size(buffer);
                    self.changes.push((start, size, Bytes::ZERO));
                    self.changes.push((end, Bytes::ZERO, size));
                }
            }
            Action::Offload { from, .. } => self.touch(*from, end),
            Action::Prefetch { to, .. } => {
                self.take(*to, start);
                self.touch(*to, end);
            }
            Action::Release { .. } | Action::HostRelease { .. } => {}
        }
    }

    fn release(&mut self, buffer: BufferId) {
        if std::mem::replace(&mut self.alive[buffer], false) {
            self.changes.push((self.last_access[buffer], Bytes::ZERO, self.size(buffer)));
        }
    }

    fn curve(mut self) -> Vec<(Nanos, Bytes)> {
        self.changes.sort_unstable_by_key(|&(at, ..)| at);
        let mut curve: Vec<(Nanos, Bytes)> = Vec::new();
        let (mut taken, mut given) = (Bytes::ZERO, Bytes::ZERO);
        for (at, plus, minus) in self.changes {
            taken += plus;
            given += minus;
            let load = taken.saturating_sub(given);
            match curve.last_mut() {
                Some(last) if last.0 == at => last.1 = load,
                _ => curve.push((at, load)),
            }
        }
        curve.dedup_by_key(|&mut (_, load)| load);
        curve
    }
}

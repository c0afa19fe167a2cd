//! From the events of a part to its schedule: residencies, buffers, releases, and the offsets that the plan has for them.

use std::collections::HashMap;

use elbowroom_ir::check::CheckedPlan;
use elbowroom_ir::packing::Interval;
use elbowroom_ir::schedule::{Action, BoundaryState, Buffer, Launch, Schedule, Step};
use elbowroom_ir::trace::{Op, Trace};
use elbowroom_ir::{BufferId, Bytes, Id, OpId, Table, TensorId};
use elbowroom_sim::liveness;

use super::events::{Event, Work};
use super::{Derived, Underivable};

/// Index of a residency.
type Stay = usize;

/// The index of an event from 1 on; 0 is the beginning of the iteration, one more than their number its end.
type Moment = usize;

/// One stay of a storage in the arena, or one workspace.
struct Residency {
    /// The buffer that it has in the plan of the whole, if it has one.
    origin: Option<BufferId>,
    bytes: Bytes,
    first: Moment,
    last: Moment,
    /// Whether it is the boundary buffer of a persistent tensor, at the beginning or at the end.
    at_boundary: bool,
    workspace: bool,
    buffer: BufferId,
}

/// One host copy.
struct HostCopy {
    tensor: TensorId,
    last: Moment,
    /// Whether it stays until the next iteration.
    stays: bool,
}

/// The residencies of a launch's operands.
#[derive(Default)]
struct Operands {
    reads: Vec<Stay>,
    writes: Vec<Stay>,
    workspace: Option<Stay>,
}

struct Assignment<'a> {
    whole: &'a CheckedPlan,
    part: &'a Trace,
    events: &'a [Event],
    residencies: Vec<Residency>,
    /// Where each tensor is, as of the last event.
    at: Table<TensorId, Option<Stay>>,
    copies: Vec<HostCopy>,
    on_host: Table<TensorId, Option<usize>>,
    /// For each event, the residencies that it uses.
    operands: Vec<Operands>,
    boundary: Vec<BoundaryState>,
}

/// Assigns residencies to the events and emits the schedule.
pub(super) fn assign(whole: &CheckedPlan, part: &Trace, events: &[Event]) -> Result<Derived, Underivable> {
    let mut assignment = Assignment {
        whole,
        part,
        events,
        residencies: Vec::new(),
        at: Table::filled(part.tensors().len(), None),
        copies: Vec::new(),
        on_host: Table::filled(part.tensors().len(), None),
        operands: Vec::with_capacity(events.len()),
        boundary: Vec::new(),
    };
    let begin = assignment.begin();
    for (index, event) in events.iter().enumerate() {
        assignment.event(index + 1, event)?;
    }
    let buffers = assignment.end(&begin)?;
    let offsets = assignment.offsets(buffers.len())?;
    Ok(Derived { schedule: assignment.schedule(buffers), offsets })
}

impl Assignment<'_> {
    fn open(&mut self, origin: Option<BufferId>, bytes: Bytes, first: Moment) -> Stay {
        let (at_boundary, workspace, buffer) = (false, false, BufferId::new(0));
        self.residencies.push(Residency {
            origin,
            bytes,
            first,
            last: first,
            at_boundary,
            workspace,
            buffer,
        });
        self.residencies.len() - 1
    }

    fn name(&self, tensor: TensorId) -> String {
        self.part.tensors()[tensor].name.clone()
    }

    /// The residency that holds a tensor, in use until this moment.
    fn used(&mut self, tensor: TensorId, moment: Moment) -> Result<Stay, Underivable> {
        let stay = self.at[tensor].ok_or_else(|| Underivable::Missing(self.name(tensor)))?;
        self.residencies[stay].last = moment;
        Ok(stay)
    }

    fn copy(&mut self, tensor: TensorId, moment: Moment) {
        self.on_host[tensor] = Some(self.copies.len());
        self.copies.push(HostCopy { tensor, last: moment, stays: false });
    }

    /// The boundary at the beginning. Returns the residencies of the boundary buffers.
    fn begin(&mut self) -> Vec<Option<Stay>> {
        let states = self.whole.schedule().boundary.iter().zip(self.part.persistent());
        let begin = states.map(|(state, pair)| {
            if state.host {
                self.copy(pair.begin, 0);
            }
            let stay = state.device.map(|buffer| self.open(Some(buffer), self.part.bytes(pair.begin), 0));
            if let Some(stay) = stay {
                self.residencies[stay].at_boundary = true;
                self.at[pair.begin] = Some(stay);
            }
            stay
        });
        begin.collect()
    }

    fn event(&mut self, moment: Moment, event: &Event) -> Result<(), Underivable> {
        let action = &self.whole.schedule().steps[event.step].action;
        let mut operands = Operands::default();
        match &event.work {
            Work::Run { op, dying, .. } => {
                if let Some(launch) = action.launch() {
                    operands = self.run(moment, *op, dying, launch)?;
                }
            }
            &Work::Out(tensor) => {
                operands.reads.push(self.used(tensor, moment)?);
                self.copy(tensor, moment);
            }
            &Work::In(tensor) => {
                let copy = self.on_host[tensor].ok_or_else(|| Underivable::Missing(self.name(tensor)))?;
                self.copies[copy].last = moment;
                let to = if let &Action::Prefetch { to, .. } = action { Some(to) } else { None };
                let stay = self.open(to, self.part.bytes(tensor), moment);
                self.at[tensor] = Some(stay);
                operands.writes.push(stay);
            }
        }
        self.operands.push(operands);
        Ok(())
    }

    /// Runs an op; `theirs` is its launch in the plan of the whole.
    fn run(
        &mut self,
        moment: Moment,
        op: OpId,
        dying: &[bool],
        theirs: &Launch,
    ) -> Result<Operands, Underivable> {
        let part = self.part;
        let op = &part.ops()[op];
        let reads = op.reads.iter().map(|&read| self.used(read, moment)).collect::<Result<Vec<Stay>, _>>()?;
        let mut taken: Vec<Stay> = Vec::new();
        let mut writes = Vec::with_capacity(op.outputs.len());
        for (&output, &buffer) in op.outputs.iter().zip(&theirs.writes) {
            let over = match op.overwrites(output) {
                Some(old) => {
                    let index = op.reads.iter().position(|&read| read == old).unwrap_or_default();
                    if !dying[index] {
                        return Err(Underivable::Overwritten(self.name(old)));
                    }
                    Some(index)
                }
                None => {
                    self.reused(op, dying, &reads, output, buffer).filter(|&i| !taken.contains(&reads[i]))
                }
            };
            let bytes = part.bytes(output);
            let stay = match over {
                Some(index) => {
                    let stay = reads[index];
                    taken.push(stay);
                    self.at[op.reads[index]] = None;
                    self.residencies[stay].bytes = bytes.max(self.residencies[stay].bytes);
                    stay
                }
                None => self.open(Some(buffer), bytes, moment),
            };
            writes.push((output, stay));
        }
        for &(output, stay) in &writes {
            self.at[output] = Some(stay);
        }
        let workspace = (!op.workspace.is_zero()).then(|| self.open(theirs.workspace, op.workspace, moment));
        if let Some(stay) = workspace {
            self.residencies[stay].workspace = true;
        }
        Ok(Operands { reads, writes: writes.into_iter().map(|(_, stay)| stay).collect(), workspace })
    }

    /// The read whose bytes the output takes over, as a position among the reads: if the plan writes the output in place, the part permits
    /// that, and the part does not need the input any more.
    fn reused(
        &self,
        op: &Op,
        dying: &[bool],
        reads: &[Stay],
        output: TensorId,
        buffer: BufferId,
    ) -> Option<usize> {
        let permitted = op.may_reuse.iter().filter(|reuse| reuse.output == output);
        let mut inputs = permitted
            .flat_map(|reuse| op.reads.iter().enumerate().filter(move |(_, read)| **read == reuse.input));
        let fits = |&(index, &read): &(usize, &TensorId)| {
            let origin = self.residencies[reads[index]].origin;
            dying[index] && origin == Some(buffer) && op.overwritten_by(read).is_none()
        };
        inputs.find(fits).map(|(index, _)| index)
    }

    /// The boundary at the end, and a buffer for every residency.
    fn end(&mut self, begin: &[Option<Stay>]) -> Result<Table<BufferId, Buffer>, Underivable> {
        let end = self.events.len() + 1;
        let mut buffers = Table::new();
        let mut shared: HashMap<Stay, BufferId> = HashMap::new();
        let states = self.whole.schedule().boundary.iter().zip(self.part.persistent()).zip(begin);
        for ((state, pair), &begin) in states {
            let elsewhere = || Underivable::Boundary(self.part.tensors()[pair.end].name.clone());
            if state.host {
                let copy = self.on_host[pair.end].ok_or_else(elsewhere)?;
                self.copies[copy].stays = true;
            }
            let mut device = None;
            if let (Some(begin), Some(origin)) = (begin, state.device) {
                let stay = self.at[pair.end].ok_or_else(elsewhere)?;
                let is_back = self.residencies[stay].origin == Some(origin)
                    && (stay == begin || self.residencies[begin].last < self.residencies[stay].first);
                if !is_back {
                    return Err(elsewhere());
                }
                (self.residencies[stay].last, self.residencies[stay].at_boundary) = (end, true);
                let bytes = self.residencies[begin].bytes.max(self.residencies[stay].bytes);
                let buffer = buffers.push(Buffer { bytes });
                shared.extend([(begin, buffer), (stay, buffer)]);
                device = Some(buffer);
            }
            self.boundary.push(BoundaryState { device, host: state.host });
        }
        for (stay, residency) in self.residencies.iter_mut().enumerate() {
            let own = || buffers.push(Buffer { bytes: residency.bytes });
            residency.buffer = shared.get(&stay).copied().unwrap_or_else(own);
        }
        Ok(buffers)
    }

    /// The offset of the plan for every residency that is not larger and not longer than the plan's, and for all boundary buffers.
    fn offsets(&self, buffers: usize) -> Result<Table<BufferId, Option<Bytes>>, Underivable> {
        let (schedule, placement) = (self.whole.schedule(), self.whole.placement());
        let alive = liveness::lifetimes(schedule);
        let end = (schedule.steps.len() as u64).saturating_sub(1);
        let position = |moment: Moment| match moment {
            0 => 0,
            moment => self.events.get(moment - 1).map_or(end, |event| event.step.index() as u64),
        };
        let span = |residency: &Residency| [position(residency.first), position(residency.last)];
        let kept = |residency: &Residency| {
            let origin = residency.origin?;
            let [first, last] = span(residency);
            let inside = |interval: &Interval| interval.start <= first && last < interval.end;
            let fits = residency.bytes <= schedule.buffers[origin].bytes && alive[origin].iter().any(inside);
            (fits || residency.at_boundary).then_some(origin)
        };
        let mut kept: Vec<Option<BufferId>> = self.residencies.iter().map(kept).collect();
        // A tensor that stays although the plan writes another one in its place has to make way.
        let mut by_origin: HashMap<BufferId, Vec<Stay>> = HashMap::new();
        for (stay, origin) in kept.iter().enumerate() {
            if let &Some(origin) = origin {
                by_origin.entry(origin).or_default().push(stay);
            }
        }
        for stays in by_origin.values_mut() {
            stays.sort_by_key(|&stay| self.residencies[stay].first);
            for (index, &earlier) in stays.iter().enumerate() {
                for &later in &stays[index + 1..] {
                    let [one, other] = [&self.residencies[earlier], &self.residencies[later]];
                    if one.last < other.first || one.buffer == other.buffer {
                        continue;
                    }
                    kept[if one.at_boundary { later } else { earlier }] = None;
                }
            }
        }
        // Boundary buffers stay where they are. Where they stay for longer than in the plan, others make way.
        let longer = self.residencies.iter().filter(|residency| {
            let [first, last] = span(residency);
            let inside = |interval: &Interval| interval.start <= first && last < interval.end;
            residency.at_boundary && residency.origin.is_some_and(|origin| !alive[origin].iter().any(inside))
        });
        for residency in longer {
            let Some(origin) = residency.origin else { continue };
            let (offset, bytes) = (placement.offsets[origin], schedule.buffers[origin].bytes);
            for (other, kept) in self.residencies.iter().zip(&mut kept) {
                let Some(theirs) = kept.filter(|_| other.buffer != residency.buffer) else { continue };
                let (start, size) = (placement.offsets[theirs], schedule.buffers[theirs].bytes);
                let apart = start + size <= offset || offset + bytes <= start;
                if !apart && other.first <= residency.last && residency.first <= other.last {
                    if other.at_boundary {
                        return Err(Underivable::Boundary("a persistent tensor".to_owned()));
                    }
                    *kept = None;
                }
            }
        }
        let mut offsets = Table::filled(buffers, None);
        for (residency, kept) in self.residencies.iter().zip(kept) {
            if let Some(origin) = kept {
                offsets[residency.buffer] = Some(placement.offsets[origin]);
            }
        }
        Ok(offsets)
    }

    /// The actions, with every release as early as possible.
    fn schedule(self, buffers: Table<BufferId, Buffer>) -> Schedule {
        let moments = self.events.len() + 1;
        let mut releases: Vec<Vec<Action>> = vec![Vec::new(); moments];
        for residency in self.residencies.iter().filter(|residency| !residency.workspace) {
            if let Some(here) = releases.get_mut(residency.last) {
                here.push(Action::Release { buffer: residency.buffer });
            }
        }
        for copy in self.copies.iter().filter(|copy| !copy.stays) {
            if let Some(here) = releases.get_mut(copy.last) {
                here.push(Action::HostRelease { tensor: copy.tensor });
            }
        }
        let buffer = |stay: Stay| self.residencies[stay].buffer;
        let mut steps = Table::new();
        let mut add = |action| {
            steps.push(Step { action, waits: Vec::new() });
        };
        let mut releases = releases.into_iter();
        releases.next().into_iter().flatten().for_each(&mut add);
        for ((event, operands), releases) in self.events.iter().zip(&self.operands).zip(releases) {
            let (reads, writes) = (&operands.reads, &operands.writes);
            add(match event.work {
                Work::Run { op, again, .. } => {
                    let launch = Launch {
                        op,
                        reads: reads.iter().copied().map(buffer).collect(),
                        writes: writes.iter().copied().map(buffer).collect(),
                        workspace: operands.workspace.map(buffer),
                    };
                    if again { Action::Recompute(launch) } else { Action::Compute(launch) }
                }
                Work::Out(tensor) => Action::Offload { tensor, from: buffer(reads[0]) },
                Work::In(tensor) => Action::Prefetch { tensor, to: buffer(writes[0]) },
            });
            releases.into_iter().for_each(&mut add);
        }
        Schedule { buffers, steps, boundary: self.boundary }
    }
}

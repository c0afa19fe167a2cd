//! The rules that can be decided action by action, without replay: L1, L4, L6, L10 and the form of the boundary (L9).

use std::collections::BTreeMap;

use super::{Report, Rule};
use crate::machine::Machine;
use crate::packing::Placement;
use crate::schedule::{Action, Launch, Schedule};
use crate::trace::{Again, Op, Trace};
use crate::{ActionId, BufferId, Bytes, Id, OpId, Table, TensorId};

/// The machine is usable.
pub fn machine(machine: &Machine, report: &mut Report) {
    if !machine.align.get().is_power_of_two() {
        let align = machine.align.get();
        report.add(
            Rule::L4,
            None,
            format!("the machine's alignment is {align}, which is not a power of two"),
        );
    }
}

/// Offsets for all buffers, aligned and within memory (L4).
pub fn placement(machine: &Machine, schedule: &Schedule, placement: &Placement, report: &mut Report) {
    let (buffers, offsets) = (schedule.buffers.len(), placement.offsets.len());
    if buffers != offsets {
        let what = format!("the placement has {offsets} offsets, but the schedule has {buffers} buffers");
        return report.add(Rule::L4, None, what);
    }
    let mut height = 0;
    for (id, buffer) in schedule.buffers.iter() {
        let (offset, size) = (placement.offsets[id].get(), buffer.bytes.get());
        if offset % machine.align.get() != 0 {
            let align = machine.align.get();
            report.add(Rule::L4, None, format!("{id} starts at byte {offset}, not at a multiple of {align}"));
        }
        match offset.checked_add(size).filter(|&end| end <= machine.memory.get()) {
            Some(end) => height = end.max(height),
            None => {
                let memory = machine.memory.get();
                let what = format!(
                    "{id} takes {size} bytes from byte {offset} on, but memory ends at byte {memory}"
                );
                report.add(Rule::L4, None, what);
            }
        }
    }
    if height != placement.height.get() {
        let said = placement.height.get();
        report.add(
            Rule::L4,
            None,
            format!("the height is given as {said} bytes, but the buffers reach {height}"),
        );
    }
}

/// Offsets at which no two buffers overlap.
pub fn apart(schedule: &Schedule, report: &mut Report) -> Vec<Bytes> {
    let mut next = Bytes::ZERO;
    let mut offsets = Vec::with_capacity(schedule.buffers.len());
    for buffer in schedule.buffers.values() {
        offsets.push(next);
        match next.checked_add(buffer.bytes) {
            Some(end) => next = end,
            None => {
                report.add(Rule::L4, None, "the buffers add up to 2^64 bytes or more".to_owned());
                return offsets;
            }
        }
    }
    offsets
}

/// Ids, arity, sizes and waits of every action; how often each op runs; the form of the boundary.
pub fn schedule(trace: &Trace, schedule: &Schedule, report: &mut Report) {
    let mut shape = ShapeChecker {
        trace,
        schedule,
        computed: Table::filled(trace.ops().len(), None),
        used: Table::filled(schedule.buffers.len(), false),
        report,
    };
    shape.boundary();
    for (id, step) in schedule.steps.iter() {
        shape.action(id, &step.action);
        shape.waits(id);
    }
    for (op, first) in shape.computed.iter() {
        if first.is_none() {
            let what = format!("{op} is never computed");
            shape.report.add(Rule::L6, None, what);
        }
    }
    for (buffer, used) in shape.used.iter() {
        if !used {
            shape.report.add(Rule::L1, None, format!("{buffer} is used by no action; leave it out"));
        }
    }
}

struct ShapeChecker<'a> {
    trace: &'a Trace,
    schedule: &'a Schedule,
    computed: Table<OpId, Option<ActionId>>,
    used: Table<BufferId, bool>,
    report: &'a mut Report,
}

impl ShapeChecker<'_> {
    fn boundary(&mut self) {
        let (at_boundaries, pairs) = (self.schedule.boundary.len(), self.trace.persistent().len());
        if at_boundaries != pairs {
            let what = format!(
                "the boundary has {at_boundaries} states, but the trace has {pairs} persistent tensors"
            );
            return self.report.add(Rule::L9, None, what);
        }
        for (at_boundary, pair) in self.schedule.boundary.iter().zip(self.trace.persistent()) {
            let begin = pair.begin;
            match at_boundary.device {
                None if !at_boundary.host => {
                    let what = format!("{begin} persists but has neither a boundary buffer nor a host copy");
                    self.report.add(Rule::L9, None, what);
                }
                None => {}
                Some(buffer) => {
                    if self.used.get(buffer) == Some(&true) {
                        let what =
                            format!("{buffer} is the boundary buffer of {begin} and of another tensor");
                        self.report.add(Rule::L9, None, what);
                    }
                    self.holds(None, buffer, begin);
                }
            }
        }
    }

    fn action(&mut self, id: ActionId, action: &Action) {
        match action {
            Action::Compute(launch) => {
                let Some(op) = self.launch(id, launch) else { return };
                for &other in &self.trace.ops()[op].after {
                    if self.computed[other].is_none() {
                        self.add(
                            Rule::L6,
                            id,
                            format!("{op} is computed before {other}, which it has to follow"),
                        );
                    }
                }
                match self.computed[op] {
                    None => self.computed[op] = Some(id),
                    Some(first) => {
                        self.add(Rule::L6, id, format!("{op} is computed here, but already at {first}"));
                    }
                }
            }
            Action::Recompute(launch) => {
                let Some(op) = self.launch(id, launch) else { return };
                if self.computed[op].is_none() {
                    self.add(Rule::L6, id, format!("{op} is recomputed before it is computed"));
                }
                if self.trace.ops()[op].again == Again::Never {
                    self.add(Rule::L6, id, format!("{op} is recomputed, but must run once"));
                }
            }
            &Action::Offload { tensor: value, from: buffer }
            | &Action::Prefetch { tensor: value, to: buffer } => {
                if self.value(id, value) {
                    self.holds(Some(id), buffer, value);
                }
            }
            &Action::Release { buffer } => {
                self.buffer(Some(id), buffer);
            }
            &Action::HostRelease { tensor: value } => {
                self.value(id, value);
            }
        }
    }

    /// The op, if it exists; reports everything that is wrong with the launch.
    fn launch(&mut self, id: ActionId, launch: &Launch) -> Option<OpId> {
        let trace = self.trace;
        let Some(op) = trace.ops().get(launch.op) else {
            let what = format!("{} does not exist; the trace has {} ops", launch.op, trace.ops().len());
            self.add(Rule::L1, id, what);
            return None;
        };
        if launch.reads.len() != op.reads.len() || launch.writes.len() != op.outputs.len() {
            let what = format!(
                "{} reads {} tensors and makes {}, but the launch has {} and {} buffers for them",
                launch.op,
                op.reads.len(),
                op.outputs.len(),
                launch.reads.len(),
                launch.writes.len()
            );
            self.add(Rule::L1, id, what);
            return Some(launch.op);
        }
        let named = op.reads.iter().zip(&launch.reads).chain(op.outputs.iter().zip(&launch.writes));
        for (&value, &buffer) in named {
            self.holds(Some(id), buffer, value);
        }
        match (launch.workspace, op.workspace) {
            (None, Bytes::ZERO) => {}
            (Some(_), Bytes::ZERO) => {
                self.add(Rule::L1, id, format!("{} needs no workspace, but has one", launch.op));
            }
            (None, bytes) => {
                let what = format!("{} needs {} bytes of workspace, but has none", launch.op, bytes.get());
                self.add(Rule::L1, id, what);
            }
            (Some(buffer), bytes) => {
                if let Some(size) = self.buffer(Some(id), buffer)
                    && size < bytes
                {
                    let (size, bytes) = (size.get(), bytes.get());
                    let what = format!("{buffer} has {size} bytes, too few for a workspace of {bytes}");
                    self.add(Rule::L4, id, what);
                }
            }
        }
        self.mutations(id, op, launch);
        Some(launch.op)
    }

    fn mutations(&mut self, id: ActionId, op: &Op, launch: &Launch) {
        // By the old tensor: the new one and its buffer. One op may update all parameters at once.
        let written: BTreeMap<TensorId, BufferId> =
            op.outputs.iter().copied().zip(launch.writes.iter().copied()).collect();
        let updated: BTreeMap<TensorId, TensorId> =
            op.mutates.iter().map(|mutation| (mutation.old, mutation.new)).collect();
        for (old, &buffer) in op.reads.iter().zip(&launch.reads) {
            let Some(new) = updated.get(old).filter(|new| written.get(new) != Some(&buffer)) else {
                continue;
            };
            let what = format!(
                "{} overwrites {old} with {new}, so both belong in one buffer, but it reads {buffer}",
                launch.op
            );
            self.add(Rule::L1, id, what);
        }
    }

    fn waits(&mut self, id: ActionId) {
        let step = &self.schedule.steps[id];
        if step.action.stream().is_none() && !step.waits.is_empty() {
            self.add(Rule::L10, id, "a release runs on no stream, so it waits for nothing".to_owned());
        }
        for &wait in &step.waits {
            if wait >= id {
                self.add(Rule::L10, id, format!("it waits for {wait}, which does not come before it"));
            } else if self.schedule.steps[wait].action.stream().is_none() {
                self.add(Rule::L10, id, format!("it waits for {wait}, a release, which runs on no stream"));
            }
        }
    }

    /// Whether the tensor exists.
    fn value(&mut self, id: ActionId, value: TensorId) -> bool {
        let known = value.index() < self.trace.tensors().len();
        if !known {
            let what =
                format!("{value} does not exist; the trace has {} tensors", self.trace.tensors().len());
            self.add(Rule::L1, id, what);
        }
        known
    }

    /// The buffer's size, if it exists; marks it used.
    fn buffer(&mut self, id: Option<ActionId>, buffer: BufferId) -> Option<Bytes> {
        let Some(found) = self.schedule.buffers.get(buffer) else {
            let count = self.schedule.buffers.len();
            let what = format!("{buffer} does not exist; the schedule has {count} buffers");
            self.report.add(Rule::L1, id, what);
            return None;
        };
        self.used[buffer] = true;
        Some(found.bytes)
    }

    /// The buffer exists and is large enough for the tensor.
    fn holds(&mut self, id: Option<ActionId>, buffer: BufferId, value: TensorId) {
        let Some(size) = self.buffer(id, buffer) else { return };
        let needed = self.trace.bytes(value);
        if size < needed {
            let (size, needed) = (size.get(), needed.get());
            let what = format!("{buffer} has {size} bytes, too few for {value} with {needed}");
            self.report.add(Rule::L4, id, what);
        }
    }

    fn add(&mut self, rule: Rule, id: ActionId, what: String) {
        self.report.add(rule, Some(id), what);
    }
}

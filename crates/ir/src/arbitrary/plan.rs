//! Legal plans by random decisions: a planner that optimizes nothing and shares no code with the real ones.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use ::arbitrary::{Result, Unstructured};

use super::placement::placement;
use crate::machine::{Channel, Machine};
use crate::packing::{Interval, Placement};
use crate::plan::Plan;
use crate::schedule::{Action, BoundaryState, Buffer, Launch, Schedule, Step};
use crate::trace::{Again, Reuse, Trace};
use crate::{ActionId, BufferId, Bytes, Nanos, OpId, Table, TensorId};

/// Draws a legal plan, and a machine on which it is legal.
pub fn plan(u: &mut Unstructured<'_>, trace: &Trace) -> Result<(Machine, Plan)> {
    let mut draft = PlanDraft::begin(u, trace)?;
    let mut left: BTreeSet<OpId> = trace.ops().ids().collect();
    while !left.is_empty() {
        let ready: Vec<OpId> = left.iter().copied().filter(|&op| draft.ready(op, &left)).collect();
        // Usually the trace's own order, sometimes any order that the tensors permit.
        let op = if u.ratio(3, 4)? { ready[0] } else { *u.choose(&ready)? };
        left.remove(&op);
        draft.clear_up(u)?;
        draft.compute(u, op)?;
    }
    draft.finish(u)?;

    let align = Bytes(*u.choose(&[1, 4, 8])?);
    let placement = placement(u, &draft.schedule, align)?;
    draft.wait(u, &placement)?;
    let spare = |u: &mut Unstructured<'_>| Ok(Bytes(*u.choose(&[0, 0, 64])?));
    let machine = Machine {
        name: "arbitrary".to_owned(),
        memory: placement.height + spare(u)?,
        align,
        host_memory: draft.host_peak + spare(u)?,
        to_host: Channel { latency: Nanos(u.int_in_range(0..=9)?), rate: 1_000_000_000 },
        to_device: Channel { latency: Nanos(u.int_in_range(0..=9)?), rate: 1_000_000_000 },
        shared_link: u.arbitrary()?,
        flops_per_second: 1_000_000_000,
        half_flops_per_second: None,
        bytes_per_second: 1_000_000_000,
        launch: Nanos(1),
    };
    Ok((machine, Plan { trace: trace.fingerprint(), schedule: draft.schedule, placement }))
}

/// The plan so far and the state that it leaves.
struct PlanDraft<'a> {
    trace: &'a Trace,
    schedule: Schedule,
    /// Positions at which each buffer is alive.
    alive: Table<BufferId, Vec<Interval>>,
    /// The buffer that holds a tensor.
    device: BTreeMap<TensorId, BufferId>,
    host: BTreeSet<TensorId>,
    host_bytes: Bytes,
    host_peak: Bytes,
    /// Ops not computed yet.
    left: BTreeSet<OpId>,
    /// The persistent tensor whose boundary buffer a buffer is.
    at_boundaries: BTreeMap<BufferId, usize>,
    /// Tensors that must not be overwritten by choice: inputs prefetched for an op that waits for its other inputs, and final tensors at
    /// the end.
    pinned: Vec<TensorId>,
}

impl<'a> PlanDraft<'a> {
    /// Draws the boundary.
    fn begin(u: &mut Unstructured<'_>, trace: &'a Trace) -> Result<Self> {
        let mut draft = Self {
            trace,
            schedule: Schedule::default(),
            alive: Table::new(),
            device: BTreeMap::new(),
            host: BTreeSet::new(),
            host_bytes: Bytes::ZERO,
            host_peak: Bytes::ZERO,
            left: trace.ops().ids().collect(),
            at_boundaries: BTreeMap::new(),
            pinned: Vec::new(),
        };
        for (index, pair) in trace.persistent().iter().enumerate() {
            let at_boundary = u.int_in_range(0..=3)?;
            let host = at_boundary >= 2;
            let device = (at_boundary != 3).then(|| draft.buffer(trace.bytes(pair.begin)));
            if let Some(buffer) = device {
                draft.device.insert(pair.begin, buffer);
                draft.at_boundaries.insert(buffer, index);
            }
            if host {
                draft.keep_on_host(pair.begin);
            }
            draft.schedule.boundary.push(BoundaryState { device, host });
        }
        Ok(draft)
    }

    /// Whether an op's inputs exist, the ops that it has to follow have run, and it overwrites nothing that an op still to come reads.
    fn ready(&self, op: OpId, left: &BTreeSet<OpId>) -> bool {
        let made = |t: &TensorId| self.trace.producer(*t).is_none_or(|producer| !left.contains(&producer));
        let op_ref = &self.trace.ops()[op];
        op_ref.reads.iter().all(made)
            && op_ref.after.iter().all(|other| !left.contains(other))
            && op_ref
                .mutates
                .iter()
                .all(|m| self.trace.users(m.old).iter().all(|user| *user == op || !left.contains(user)))
    }

    /// Tensors that a later op reads, or the next iteration.
    fn needed(&self) -> BTreeSet<TensorId> {
        let reads = self.left.iter().flat_map(|&op| self.trace.ops()[op].reads.iter().copied());
        // Tensors that have not been computed need no care.
        let made =
            |t: &TensorId| self.trace.producer(*t).is_none_or(|producer| !self.left.contains(&producer));
        reads.chain(self.trace.persistent().iter().map(|pair| pair.end)).filter(made).collect()
    }

    /// Whether a tensor can be obtained again if `without` are not on the device.
    fn obtainable(&self, value: TensorId, without: &[TensorId]) -> bool {
        if self.host.contains(&value) || (self.device.contains_key(&value) && !without.contains(&value)) {
            return true;
        }
        let Some(producer) = self.trace.producer(value) else { return false };
        let op = &self.trace.ops()[producer];
        op.again != Again::Never
            && op.mutates.is_empty()
            && !self.left.contains(&producer)
            && op.reads.iter().all(|&read| self.obtainable(read, without))
    }

    /// Whether all needed tensors stay obtainable if `values` are removed from the device while an op writes `outputs`.
    fn can_lose(&self, values: &[TensorId], outputs: &[TensorId]) -> bool {
        let mut needed = self.needed().into_iter().filter(|needed| !outputs.contains(needed));
        needed.all(|needed| self.obtainable(needed, values))
    }

    /// Between two ops: tensors are evicted, offloaded, prefetched early, or kept.
    fn clear_up(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        let resident: Vec<TensorId> = self.device.keys().copied().collect();
        for value in resident {
            let needed = self.needed().contains(&value);
            match u.int_in_range(0..=7)? {
                0..4 if !needed => self.drop(value),
                0..2 => self.drop(value),
                2..4 => {
                    self.offload(value);
                    self.drop(value);
                }
                4 => self.offload(value),
                _ => {}
            }
        }
        let copies: Vec<TensorId> = self.host.iter().copied().collect();
        for value in copies {
            match u.int_in_range(0..=7)? {
                0 if !self.device.contains_key(&value) => self.prefetch(u, value)?,
                1 => {
                    self.host.remove(&value);
                    let can_lose = self.can_lose(&[], &[]);
                    self.host.insert(value);
                    if can_lose {
                        self.release_on_host(value);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Releases a tensor's buffer if all needed tensors stay obtainable and the buffer may be released.
    fn drop(&mut self, value: TensorId) {
        let Some(&buffer) = self.device.get(&value) else { return };
        if self.can_lose(&[value], &[]) && !self.is_back(buffer) {
            self.device.remove(&value);
            self.release(buffer);
        }
    }

    /// Whether a buffer is a boundary buffer that has been released before; it cannot be taken a second time.
    fn is_back(&self, buffer: BufferId) -> bool {
        self.alive[buffer].len() > 1
    }

    fn offload(&mut self, value: TensorId) {
        if let Some(&from) = self.device.get(&value)
            && !self.host.contains(&value)
        {
            self.step(Action::Offload { tensor: value, from });
            self.keep_on_host(value);
        }
    }

    /// Prefetches a tensor, sometimes into the boundary buffer that its storage left. There it must be the final tensor, or become it by
    /// later mutations.
    fn prefetch(&mut self, u: &mut Unstructured<'_>, value: TensorId) -> Result<()> {
        let at_boundary =
            self.at_boundaries.iter().map(|(&buffer, &index)| (buffer, self.trace.persistent()[index]));
        let storage = self.trace.storage(value);
        let latest = |end| {
            let mut users = self.trace.users(value).iter();
            value == end
                || users
                    .any(|op| self.left.contains(op) && self.trace.ops()[*op].overwritten_by(value).is_some())
        };
        let mut left = at_boundary.filter(|(buffer, pair)| {
            self.trace.storage(pair.begin) == storage
                && self.trace.storage(pair.end) == storage
                && latest(pair.end)
                && self.alive[*buffer].len() == 1
                && self.alive[*buffer][0].end != u64::MAX
        });
        let left = left.next().map(|(buffer, _)| buffer);
        match left {
            Some(buffer) if u.ratio(3, 4)? => {
                let stay = self.open_end();
                self.alive[buffer].push(stay);
                self.step(Action::Prefetch { tensor: value, to: buffer });
                self.device.insert(value, buffer);
            }
            _ => {
                let to = self.buffer(self.trace.bytes(value));
                self.step(Action::Prefetch { tensor: value, to });
                self.device.insert(value, to);
            }
        }
        Ok(())
    }

    /// Brings a tensor to the device, by a copy or by recomputing it.
    fn fetch(&mut self, u: &mut Unstructured<'_>, value: TensorId) -> Result<()> {
        if self.device.contains_key(&value) {
            return Ok(());
        }
        let producer = self.trace.producer(value).filter(|&producer| {
            let op = &self.trace.ops()[producer];
            let again = op.again != Again::Never && op.mutates.is_empty();
            again && op.reads.iter().all(|&read| self.obtainable(read, &[]))
        });
        match producer {
            Some(op) if !self.host.contains(&value) || u.ratio(1, 4)? => {
                self.fetch_inputs(u, op)?;
                self.launch(u, op, true)
            }
            _ => self.prefetch(u, value),
        }
    }

    /// Brings all inputs of an op to the device. An input that was brought for one argument is kept while the next is brought.
    fn fetch_inputs(&mut self, u: &mut Unstructured<'_>, op: OpId) -> Result<()> {
        let reads = &self.trace.ops()[op].reads;
        self.pinned.extend(reads);
        for &read in reads {
            self.fetch(u, read)?;
        }
        self.pinned.truncate(self.pinned.len() - reads.len());
        Ok(())
    }

    fn compute(&mut self, u: &mut Unstructured<'_>, id: OpId) -> Result<()> {
        self.fetch_inputs(u, id)?;
        self.left.remove(&id);
        let op = &self.trace.ops()[id];
        let overwritten: Vec<TensorId> = op.mutates.iter().map(|m| m.old).collect();
        let lost = !self.can_lose(&overwritten, &op.outputs);
        for old in overwritten {
            if lost || u.ratio(1, 8)? {
                self.offload(old);
            }
        }
        self.launch(u, id, false)
    }

    /// Runs an op whose inputs are on the device.
    fn launch(&mut self, u: &mut Unstructured<'_>, id: OpId, again: bool) -> Result<()> {
        let trace = self.trace;
        let op = &trace.ops()[id];
        let reads: Vec<BufferId> = op.reads.iter().map(|read| self.device[read]).collect();
        let mut writes = Vec::new();
        let mut gone: Vec<TensorId> = op.mutates.iter().map(|m| m.old).collect();
        for &output in &op.outputs {
            if let Some(old) = op.overwrites(output) {
                writes.push(self.device[&old]);
                continue;
            }
            let candidate = op.may_reuse.iter().find(|&&Reuse { input, output: to }| {
                let buffer = self.device[&input];
                gone.push(input);
                let can_lose = self.can_lose(&gone, &op.outputs);
                gone.pop();
                let is_free =
                    !gone.contains(&input) && !self.pinned.contains(&input) && !self.is_back(buffer);
                to == output && is_free && can_lose
            });
            match candidate {
                Some(reuse) if u.ratio(2, 3)? => {
                    writes.push(self.device[&reuse.input]);
                    gone.push(reuse.input);
                }
                _ => writes.push(self.buffer(trace.bytes(output))),
            }
        }
        let workspace = (!op.workspace.is_zero()).then(|| self.buffer(op.workspace));
        let launch = Launch { op: id, reads, writes: writes.clone(), workspace };
        self.step(if again { Action::Recompute(launch) } else { Action::Compute(launch) });
        if let Some(buffer) = workspace {
            self.end_now(buffer);
        }
        for value in gone {
            self.device.remove(&value);
        }
        for (&output, buffer) in op.outputs.iter().zip(writes) {
            // Recomputing an op writes all its outputs; outputs that still exist are not wanted twice.
            match self.device.entry(output) {
                Entry::Occupied(_) => self.release(buffer),
                Entry::Vacant(entry) => {
                    entry.insert(buffer);
                }
            }
        }
        Ok(())
    }

    /// Restores the boundary state.
    fn finish(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        self.clear_up(u)?;
        let boundary = self.schedule.boundary.clone();
        let pairs = self.trace.persistent();
        let at_home = |draft: &Self, at_boundary: &BoundaryState, end| {
            at_boundary.device.is_some() && draft.device.get(&end).copied() == at_boundary.device
        };
        self.pinned.extend(pairs.iter().map(|pair| pair.end));
        for (at_boundary, pair) in boundary.iter().zip(pairs) {
            if !self.host.contains(&pair.end) && (at_boundary.host || !at_home(self, at_boundary, pair.end)) {
                self.fetch(u, pair.end)?;
                self.offload(pair.end);
            }
        }
        let kept: Vec<BufferId> = boundary
            .iter()
            .zip(pairs)
            .filter(|(at_boundary, pair)| at_home(self, at_boundary, pair.end))
            .filter_map(|(at_boundary, _)| at_boundary.device)
            .collect();
        for (value, buffer) in self.device.clone() {
            if !kept.contains(&buffer) {
                self.device.remove(&value);
                self.release(buffer);
            }
        }
        for (at_boundary, pair) in boundary.iter().zip(pairs) {
            if let Some(buffer) = at_boundary.device
                && !kept.contains(&buffer)
            {
                let stay = self.open_end();
                self.alive[buffer].push(stay);
                self.step(Action::Prefetch { tensor: pair.end, to: buffer });
                self.device.insert(pair.end, buffer);
            }
        }
        let copies: Vec<TensorId> = self.host.iter().copied().collect();
        for value in copies {
            if !boundary.iter().zip(pairs).any(|(at_boundary, pair)| at_boundary.host && pair.end == value) {
                self.release_on_host(value);
            }
        }
        Ok(())
    }

    /// Alive from the next action on, with open end.
    fn open_end(&self) -> Interval {
        Interval::new(self.schedule.steps.len() as u64, u64::MAX)
    }

    /// A buffer that is alive from the next action on.
    fn buffer(&mut self, bytes: Bytes) -> BufferId {
        self.alive.push(vec![self.open_end()]);
        self.schedule.buffers.push(Buffer { bytes })
    }

    fn end_now(&mut self, buffer: BufferId) {
        if let Some(interval) = self.alive[buffer].last_mut() {
            interval.end = self.schedule.steps.len() as u64;
        }
    }

    fn release(&mut self, buffer: BufferId) {
        self.end_now(buffer);
        self.step(Action::Release { buffer });
    }

    fn keep_on_host(&mut self, value: TensorId) {
        self.host.insert(value);
        self.host_bytes += self.trace.bytes(value);
        self.host_peak = self.host_peak.max(self.host_bytes);
    }

    fn release_on_host(&mut self, value: TensorId) {
        self.host.remove(&value);
        self.host_bytes -= self.trace.bytes(value);
        self.step(Action::HostRelease { tensor: value });
    }

    fn step(&mut self, action: Action) {
        self.schedule.steps.push(Step { action, waits: Vec::new() });
    }

    /// Adds the waits that every action needs: for the last conflicting access on every other stream, and for the host copies that it
    /// reads. Sometimes for every placement, as a planner does, which does not know the offsets.
    fn wait(&mut self, u: &mut Unstructured<'_>, placement: &Placement) -> Result<()> {
        let every_placement = u.ratio(1, 4)?;
        let mut accesses: Vec<Access> = Vec::new();
        let mut offloads: BTreeMap<TensorId, ActionId> = BTreeMap::new();
        let ids: Vec<ActionId> = self.schedule.steps.ids().collect();
        for id in ids {
            let action = &self.schedule.steps[id].action;
            let Some(stream) = action.stream() else { continue };
            let mut waits = BTreeSet::new();
            let touched = self.touched(action);
            let mut last: [Option<ActionId>; 3] = [None; 3];
            for earlier in &accesses {
                let conflict = touched.iter().any(|&(buffer, bytes, write)| {
                    let start = placement.offsets[buffer].get();
                    let meet = start < earlier.bytes.end && earlier.bytes.start < start + bytes.get();
                    let might_meet = every_placement && self.alive[earlier.buffer][0].end <= u64::from(id.0);
                    (write || earlier.write) && meet || write && might_meet
                });
                if conflict {
                    last[earlier.stream] = Some(earlier.action);
                }
            }
            match *action {
                Action::Offload { tensor: value, .. } => {
                    offloads.insert(value, id);
                }
                Action::Prefetch { tensor: value, .. } => waits.extend(offloads.get(&value)),
                _ => {}
            }
            let others = last.into_iter().enumerate().filter(|&(other, _)| other != stream.index());
            waits.extend(others.filter_map(|(_, action)| action));
            for (buffer, bytes, write) in touched {
                let start = placement.offsets[buffer].get();
                let bytes = start..start + bytes.get();
                accesses.push(Access { action: id, stream: stream.index(), buffer, bytes, write });
            }
            self.schedule.steps[id].waits = waits.into_iter().collect();
        }
        Ok(())
    }

    /// The buffers that an action accesses, how many of their bytes, and whether it writes them.
    fn touched(&self, action: &Action) -> Vec<(BufferId, Bytes, bool)> {
        match action {
            Action::Compute(launch) | Action::Recompute(launch) => {
                let op = &self.trace.ops()[launch.op];
                let reads =
                    op.reads.iter().zip(&launch.reads).map(|(&t, &b)| (b, self.trace.bytes(t), false));
                let writes =
                    op.outputs.iter().zip(&launch.writes).map(|(&t, &b)| (b, self.trace.bytes(t), true));
                reads.chain(writes).chain(launch.workspace.map(|b| (b, op.workspace, true))).collect()
            }
            &Action::Offload { tensor: value, from } => vec![(from, self.trace.bytes(value), false)],
            &Action::Prefetch { tensor: value, to } => vec![(to, self.trace.bytes(value), true)],
            Action::Release { .. } | Action::HostRelease { .. } => Vec::new(),
        }
    }
}

/// One action's access to bytes of the arena.
struct Access {
    action: ActionId,
    stream: usize,
    buffer: BufferId,
    bytes: Range<u64>,
    write: bool,
}

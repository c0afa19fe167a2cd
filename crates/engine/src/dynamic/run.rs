//! One dynamic iteration: see the [parent module](super).

use std::time::Instant;

use elbowroom_ir::order::{Order, OrderIndex};
use elbowroom_ir::planning::Freedom;
use elbowroom_ir::trace::{Op, Trace};
use elbowroom_ir::{Bytes, Nanos, OpId, Table, TensorId};

use super::allocator::DynamicAllocator;
use super::host_space::{HostNeeds, HostSpace, HostUse};
use super::{Candidate, Decider, DynamicExecution, DynamicReport, Event, Removal};
use crate::arena::Extent;
use crate::device::{Call, Device, Exchange, IterationKey};
use crate::error::EngineError;

/// An iteration that runs this many ops per op of its trace is given up: it keeps recomputing what it has just evicted.
const MAX_RUNS_PER_OP: usize = 100;

/// Compaction that would move more than this many times the wanted bytes is avoided by removing another tensor: if hardly more is free than
/// wanted, the free bytes are scattered over the whole arena, and every small tensor would move all of it.
const MAX_MOVED_RATIO: usize = 8;
/// At most one part in this many of the arena is freed for that purpose.
const FREE_SHARE: usize = 32;

/// Where a tensor is.
#[derive(Clone, Copy, Debug, Default)]
struct TensorState {
    /// Its offset in the arena.
    offset: Option<usize>,
    /// Whether a host copy exists.
    on_host: bool,
    /// Ops in progress that read it: it may be offloaded but not evicted.
    readers: u32,
    /// Whether the next op uses it: it may be moved but not removed.
    pinned: bool,
}

/// An iteration in progress.
pub(crate) struct DynamicRun<'a> {
    trace: &'a Trace,
    order: &'a Order,
    freedom: Freedom,
    decider: &'a mut dyn Decider,
    device: &'a dyn Device,
    needs: &'a HostNeeds,
    key: IterationKey,
    exchange: &'a mut Exchange,
    arena: DynamicAllocator,
    values: Table<TensorId, TensorState>,
    /// The bytes of every host copy.
    copies: Table<TensorId, Vec<Extent>>,
    space: HostSpace,
    /// Size of the host tier, and the current sum of all host copies.
    host: [u64; 2],
    /// Index in the order of the op in progress.
    at: OrderIndex,
    report: DynamicReport,
}

/// What a run needs apart from its [`DynamicExecution`].
pub(crate) struct RunSetup<'a> {
    pub trace: &'a Trace,
    pub device: &'a dyn Device,
    pub needs: &'a HostNeeds,
    pub key: IterationKey,
    pub exchange: &'a mut Exchange,
    pub align: usize,
    /// Size of the host tier.
    pub host: Bytes,
}

impl<'a> DynamicRun<'a> {
    /// A run that has not started, with an empty arena.
    pub fn new(setup: RunSetup<'a>, run_dynamic: DynamicExecution<'a>) -> Self {
        let RunSetup { trace, device, needs, key, exchange, align, host } = setup;
        Self {
            trace,
            order: run_dynamic.order,
            freedom: run_dynamic.freedom,
            decider: run_dynamic.decider,
            device,
            needs,
            key,
            exchange,
            arena: DynamicAllocator::new(device.limit().get() as usize, align),
            values: Table::filled(trace.tensors().len(), TensorState::default()),
            copies: Table::filled(trace.tensors().len(), Vec::new()),
            space: HostSpace::new(host.get() as usize),
            host: [host.get(), 0],
            at: 0,
            report: DynamicReport::default(),
        }
    }

    /// Declares where a tensor is when the iteration starts: at an offset of the arena, of the host tier, or both. Returns false if its bytes
    /// are not free.
    pub fn register(&mut self, value: TensorId, offset: Option<usize>, host: Option<usize>) -> bool {
        self.values[value] = TensorState { offset, ..TensorState::default() };
        if let Some(offset) = host {
            let copy = Extent { offset, len: self.bytes(value) };
            if !self.space.take(copy) {
                return false;
            }
            self.add_copy(value, vec![copy]);
        }
        let Some(offset) = offset else { return true };
        self.decider.note(Event::Available(value));
        self.arena.allocate_at(offset, self.bytes(value), Some(value))
    }

    /// Where a persistent tensor is: its offsets in the arena and in the host tier.
    pub fn location(&self, value: TensorId) -> (Option<usize>, Option<usize>) {
        let TensorState { offset, on_host, .. } = self.values[value];
        let copy = self.copies[value].first().map_or(0, |copy| copy.offset);
        (offset, on_host.then_some(copy))
    }

    /// Runs all ops. Afterwards only persistent tensors remain.
    pub fn run(&mut self) -> Result<(), EngineError> {
        let began = Instant::now();
        for (index, &op) in (0..).zip(self.order.ops()) {
            self.at = index;
            self.perform(op)?;
            let row = &self.trace.ops()[op];
            for &value in row.reads.iter().chain(&row.outputs) {
                if self.order.last_use(value) <= index {
                    self.discard(value);
                }
            }
        }
        let mut stays = Table::filled(self.values.len(), false);
        self.trace.persistent().iter().for_each(|pair| stays[pair.end] = true);
        for value in self.trace.tensors().ids().filter(|&value| !stays[value]) {
            self.discard(value);
        }
        self.report.iteration = began.elapsed().into();
        Ok(())
    }

    /// The report of the iteration.
    pub fn report(self) -> DynamicReport {
        self.report
    }

    fn bytes(&self, value: TensorId) -> usize {
        self.trace.bytes(value).get() as usize
    }

    fn exists(&self, value: TensorId) -> bool {
        self.values[value].offset.is_some() || self.values[value].on_host
    }

    /// Runs an op, after recomputing those of its inputs that have been evicted.
    fn perform(&mut self, op: OpId) -> Result<(), EngineError> {
        let trace = self.trace;
        let mut under_way = vec![(op, 0)];
        while let Some((op, next)) = under_way.last_mut() {
            let row = &trace.ops()[*op];
            if let Some(&read) = row.reads.get(*next) {
                if self.exists(read) {
                    self.values[read].readers += 1;
                    *next += 1;
                    continue;
                }
                // A tensor that cannot be recomputed is never evicted, and no op is an ancestor of itself; otherwise the run is out of
                // memory.
                let maker = trace.producer(read).filter(|maker| !under_way.iter().any(|(op, _)| op == maker));
                let maker = maker.ok_or_else(|| self.out_of_memory(Bytes::ZERO))?;
                under_way.push((maker, 0));
                continue;
            }
            let op = *op;
            under_way.pop();
            let wanted = under_way.last().and_then(|&(op, next)| trace.ops()[op].reads.get(next).copied());
            self.execute(op, wanted)?;
        }
        Ok(())
    }

    /// Runs an op whose operands all exist: for the first time, or to recompute `wanted`.
    fn execute(&mut self, op: OpId, wanted: Option<TensorId>) -> Result<(), EngineError> {
        let trace = self.trace;
        let (row, first) = (&trace.ops()[op], wanted.is_none());
        if self.report.ops.len() >= MAX_RUNS_PER_OP * trace.ops().len() {
            return Err(self.out_of_memory(Bytes::ZERO));
        }
        row.reads.iter().for_each(|&read| self.values[read].pinned = true);
        for &read in &row.reads {
            self.prefetch(read)?;
        }
        let over = self.overwritten_operands(row, first);
        let mut fresh = Vec::new();
        for (&output, over) in row.outputs.iter().zip(&over) {
            self.values[output].pinned = true;
            if over.is_none() && self.values[output].offset.is_none() {
                self.values[output].offset = Some(self.allocate(self.bytes(output), Some(output))?);
                fresh.push(output);
            }
        }
        let scratch = row.workspace.get() as usize;
        let workspace = match scratch {
            0 => Extent { offset: 0, len: 0 },
            len => Extent { offset: self.allocate(len, None)?, len },
        };
        let at = |this: &Self, value: TensorId, bytes: TensorId| Extent {
            offset: this.values[value].offset.unwrap_or_default(),
            len: this.bytes(bytes),
        };
        let reads: Vec<Extent> = row.reads.iter().map(|&read| at(self, read, read)).collect();
        let writes = row.outputs.iter().zip(&over);
        let writes: Vec<Extent> =
            writes.map(|(&output, over)| at(self, over.unwrap_or(output), output)).collect();
        let began = Instant::now();
        let (key, exchange) = (self.key, &mut *self.exchange);
        self.device.launch(Call { op, reads: &reads, writes: &writes, workspace, key, exchange })?;
        let took = Nanos::from(began.elapsed());

        if scratch > 0 {
            self.free(workspace.offset, scratch);
        }
        for (&output, &old) in row.outputs.iter().zip(&over) {
            if let Some(old) = old {
                let offset = self.values[old].offset.take();
                self.drop_copy(old);
                self.values[output].offset = offset;
                self.decider.note(Event::Unused(old));
                if let Some(offset) = offset {
                    self.arena.reassign(offset, self.bytes(output), output);
                    let rest = self.arena.rounded(self.bytes(output));
                    self.retire(offset + rest, self.arena.rounded(self.bytes(old)) - rest);
                }
                fresh.push(output);
            }
        }
        for &value in row.reads.iter().chain(&row.outputs) {
            self.values[value].pinned = false;
        }
        row.reads.iter().for_each(|&read| self.values[read].readers -= 1);
        self.report.ops.push((op, took));
        if !first {
            self.report.recomputed += 1;
            self.report.recompute_time += took;
        }
        self.decider.note(Event::OpRan { op, took });
        for &value in &fresh {
            self.decider.note(Event::Available(value));
        }
        // A recomputation also writes the op's other outputs. Those that are not needed any more are discarded.
        for value in fresh.into_iter().filter(|&value| !first && Some(value) != wanted) {
            if !self.order.can_recompute(value) || self.order.last_use(value) < self.at {
                self.discard(value);
            }
        }
        Ok(())
    }

    /// For each output, the operand whose bytes it takes over: the tensor that it overwrites, or one that it may reuse and that is not read
    /// after this op.
    fn overwritten_operands(&self, row: &Op, first: bool) -> Vec<Option<TensorId>> {
        let mut over: Vec<Option<TensorId>> =
            row.outputs.iter().map(|&output| row.overwrites(output)).collect();
        for reuse in &row.may_reuse {
            let Some(index) = row.outputs.iter().position(|&output| output == reuse.output) else { continue };
            let (input, value) = (reuse.input, self.values[reuse.input]);
            let last = self.order.last_use(input);
            let dies = if first { last <= self.at } else { last < self.at };
            let once = row.reads.iter().filter(|&&read| read == input).count() == 1;
            let there = self.values[reuse.output].offset.is_some();
            let enough = self.bytes(input) >= self.bytes(reuse.output);
            let free = over[index].is_none() && !over.contains(&Some(input));
            if free && dies && once && value.readers == 1 && !there && enough {
                over[index] = Some(input);
            }
        }
        over
    }

    /// Copies a tensor back from the host unless it is in the arena.
    fn prefetch(&mut self, value: TensorId) -> Result<(), EngineError> {
        if self.values[value].offset.is_some() {
            return Ok(());
        }
        if !self.values[value].on_host {
            return Err(self.out_of_memory(Bytes::ZERO));
        }
        let len = self.bytes(value);
        let offset = self.allocate(len, Some(value))?;
        let began = Instant::now();
        let failed = |source| EngineError::Swap { value, source };
        let mut to = Extent { offset, len };
        for copy in &self.copies[value] {
            self.device.load(copy.offset, to.part(0, copy.len), Instant::now()).map_err(failed)?;
            to = to.part(copy.len, to.len);
        }
        self.report.prefetch_copies.push((Bytes(len as u64), began.elapsed().into()));
        self.report.traffic.to_device += Bytes(len as u64);
        self.values[value].offset = Some(offset);
        self.decider.note(Event::Available(value));
        Ok(())
    }

    /// Allocates bytes of the arena, removing tensors as necessary.
    fn allocate(&mut self, bytes: usize, owner: Option<TensorId>) -> Result<usize, EngineError> {
        loop {
            if let Some(offset) = self.arena.allocate(bytes, owner) {
                self.report.measured_peak = self.report.measured_peak.max(Bytes((offset + bytes) as u64));
                return Ok(offset);
            }
            let (wanted, free) = (self.arena.rounded(bytes), self.arena.free_bytes());
            match wanted.checked_sub(free) {
                None | Some(0) => {
                    let expensive = self
                        .arena
                        .compaction_bytes(bytes)
                        .is_some_and(|moved| moved > MAX_MOVED_RATIO * wanted);
                    let enough_free = free - wanted >= self.arena.capacity() / FREE_SHARE;
                    if !expensive || enough_free || !self.evict_unread(wanted)? {
                        self.compact(bytes);
                    }
                }
                Some(missing) => self.evict(Bytes(missing as u64))?,
            }
        }
    }

    fn compact(&mut self, bytes: usize) {
        self.report.compactions += 1;
        for shift in self.arena.compact(bytes) {
            let Some(owner) = shift.owner else { continue };
            let len = self.bytes(owner);
            self.device.move_within(Extent { offset: shift.from, len }, shift.to);
            self.values[owner].offset = Some(shift.to);
            self.report.moved += Bytes(len as u64);
            let vacated = shift.from.max(shift.to + shift.len);
            self.retire(vacated, shift.from + shift.len - vacated);
        }
    }

    /// Removes one tensor that no op in progress reads, so that compaction moves fewer bytes. Returns false if there is none.
    fn evict_unread(&mut self, wanted: usize) -> Result<bool, EngineError> {
        let candidates = self.candidates(false);
        if candidates.is_empty() {
            return Ok(false);
        }
        self.evict_one_of(&candidates, Bytes(wanted as u64)).map(|()| true)
    }

    /// Removes one tensor.
    fn evict(&mut self, missing: Bytes) -> Result<(), EngineError> {
        let mut candidates = self.candidates(false);
        if candidates.is_empty() {
            candidates = self.candidates(true);
        }
        if candidates.is_empty() {
            return Err(self.out_of_memory(missing));
        }
        self.evict_one_of(&candidates, missing)
    }

    fn evict_one_of(&mut self, candidates: &[Candidate], missing: Bytes) -> Result<(), EngineError> {
        let (value, how) =
            self.decider.victim(missing, candidates).ok_or_else(|| self.out_of_memory(missing))?;
        let chosen = candidates.iter().find(|candidate| candidate.tensor == value);
        let allowed = chosen.is_some_and(|chosen| match how {
            Removal::Evict => chosen.may_evict,
            Removal::Offload => chosen.may_offload,
        });
        let (true, Some(offset)) = (allowed, self.values[value].offset) else {
            return Err(EngineError::IllegalVictim { value });
        };
        let len = self.bytes(value);
        // A tensor with a host copy is restored from there, so removing it counts as offloading.
        let how = if self.values[value].on_host { Removal::Offload } else { how };
        if how == Removal::Offload {
            self.report.offloaded += 1;
            self.store(value, Extent { offset, len })?;
        } else {
            self.report.evicted += 1;
        }
        self.values[value].offset = None;
        self.free(offset, len);
        self.decider.note(Event::Removed(value, how));
        Ok(())
    }

    fn store(&mut self, value: TensorId, from: Extent) -> Result<(), EngineError> {
        if self.values[value].on_host {
            return Ok(());
        }
        let one_range = match self.needs.uses[self.trace.storage(value)] {
            HostUse::Never => return Err(EngineError::IllegalVictim { value }),
            HostUse::OneRange => true,
            HostUse::Anywhere => false,
        };
        self.free_host_copies(value)?;
        let copies = self.space.allocate(from.len, one_range).ok_or(EngineError::IllegalVictim { value })?;
        let began = Instant::now();
        let failed = |source| EngineError::Swap { value, source };
        let mut rest = from;
        for copy in &copies {
            self.device.store(rest.part(0, copy.len), copy.offset, Instant::now()).map_err(failed)?;
            rest = rest.part(copy.len, rest.len);
        }
        self.report.offload_copies.push((Bytes(from.len as u64), began.elapsed().into()));
        self.report.traffic.to_host += Bytes(from.len as u64);
        self.add_copy(value, copies);
        Ok(())
    }

    /// Records the host copy of a tensor that has none.
    fn add_copy(&mut self, value: TensorId, copies: Vec<Extent>) {
        self.values[value].on_host = true;
        self.copies[value] = copies;
        self.host[1] += self.bytes(value) as u64;
        self.report.peak_host_bytes = self.report.peak_host_bytes.max(Bytes(self.host[1]));
    }

    /// Discards the host copy of a tensor, if there is one.
    fn drop_copy(&mut self, value: TensorId) {
        if std::mem::take(&mut self.values[value].on_host) {
            self.space.free(&std::mem::take(&mut self.copies[value]));
            self.host[1] -= self.bytes(value) as u64;
        }
    }

    /// Discards host copies of tensors that are in the arena as well, until another copy fits on the host.
    fn free_host_copies(&mut self, value: TensorId) -> Result<(), EngineError> {
        let bytes = self.bytes(value) as u64;
        while self.host[1] + bytes > self.host[0] {
            let duplicate = self.arena.owners().find(|&owner| self.values[owner].on_host);
            let duplicate = duplicate.ok_or(EngineError::IllegalVictim { value })?;
            self.drop_copy(duplicate);
        }
        Ok(())
    }

    /// The tensors that may be removed: those that no op in progress reads, or, with `readers`, those that one does and that can be
    /// offloaded.
    fn candidates(&self, readers: bool) -> Vec<Candidate> {
        let duplicate = self.arena.owners().filter(|&owner| self.values[owner].on_host);
        let duplicate: u64 = duplicate.map(|owner| self.bytes(owner) as u64).sum();
        let spare = (self.host[0] + duplicate).saturating_sub(self.host[1]);
        let largest = self.space.largest();
        let candidate = |value: TensorId| {
            let TensorState { on_host, readers: holds, pinned, .. } = self.values[value];
            // Bytes on the host are counted until a tensor's last use in the order.
            let needed = self.order.last_use(value) >= self.at;
            let bytes = self.bytes(value);
            let fits = match self.needs.uses[self.trace.storage(value)] {
                HostUse::Never => false,
                HostUse::OneRange => bytes <= largest,
                HostUse::Anywhere => bytes as u64 <= spare,
            };
            let may_evict = self.freedom.recompute && self.order.can_recompute(value) && !readers;
            let may_offload = on_host || (self.freedom.offload && needed && fits);
            let bytes = Bytes(self.arena.rounded(bytes) as u64);
            let wanted = !pinned && (holds > 0) == readers && (may_evict || may_offload);
            wanted.then_some(Candidate { tensor: value, bytes, may_evict, may_offload, on_host })
        };
        self.arena.owners().filter_map(candidate).collect()
    }

    /// Removes a tensor that no further op reads.
    fn discard(&mut self, value: TensorId) {
        self.drop_copy(value);
        if let Some(offset) = self.values[value].offset.take() {
            self.free(offset, self.bytes(value));
            self.decider.note(Event::Unused(value));
        }
    }

    fn free(&mut self, offset: usize, bytes: usize) {
        self.arena.free(offset);
        self.retire(offset, bytes);
    }

    fn retire(&self, offset: usize, len: usize) {
        if self.device.retires() && len > 0 {
            self.device.retire(Extent { offset, len });
        }
    }

    fn out_of_memory(&self, missing: Bytes) -> EngineError {
        let op = self.order.ops()[self.at as usize];
        EngineError::OutOfMemory { op, missing, limit: self.device.limit() }
    }
}

//! One iteration on demand: see the [module above](super).

use std::time::Instant;

use elbowroom_ir::order::{Order, Place};
use elbowroom_ir::planning::Freedom;
use elbowroom_ir::trace::{Op, Trace};
use elbowroom_ir::{Bytes, Nanos, OpId, Table, TensorId};

use super::room::Room;
use super::slots::Slots;
use super::{Candidate, Decider, Event, How, Improvise, ReactiveReport};
use crate::arena::Extent;
use crate::device::{Call, Device, Exchange, Turn};
use crate::error::EngineError;

/// An iteration that runs this many ops for each op of its trace is given up: it makes again what it has just dropped.
const MOST_RUNS: usize = 100;

/// Moving blocks together is dear if so many times the bytes that are wanted have to be moved. Then rather something more leaves: what is
/// free lies all over the arena when it is hardly more than what is wanted, and small values would move the whole arena each time.
const MOST_MOVED: usize = 8;
/// The share of the arena that is left free for that at most, one part in so many.
const SPARED: usize = 32;

/// Where a value is.
#[derive(Clone, Copy, Debug, Default)]
struct Value {
    /// Its first byte in the arena.
    place: Option<usize>,
    /// Whether its slot on the host holds a copy.
    kept: bool,
    /// Ops under way that read it, and so need it not to be lost.
    held: u32,
    /// Whether the op that runs next uses it, so that it may be moved but must not leave.
    pinned: bool,
}

/// An iteration under way.
pub(crate) struct Run<'a> {
    trace: &'a Trace,
    order: &'a Order,
    freedom: Freedom,
    decider: &'a mut dyn Decider,
    device: &'a dyn Device,
    slots: &'a Slots,
    turn: Turn,
    exchange: &'a mut Exchange,
    room: Room,
    values: Table<TensorId, Value>,
    /// Bytes that copies on the host may take together, and bytes that they take.
    host: [u64; 2],
    /// The place of the op under way.
    at: Place,
    report: ReactiveReport,
}

/// What a run is given besides the way to decide.
pub(crate) struct Setting<'a> {
    pub trace: &'a Trace,
    pub device: &'a dyn Device,
    pub slots: &'a Slots,
    pub turn: Turn,
    pub exchange: &'a mut Exchange,
    pub align: usize,
    /// Bytes that copies on the host may take together.
    pub host: Bytes,
}

impl<'a> Run<'a> {
    /// A run that has not begun, in an empty arena.
    pub fn new(setting: Setting<'a>, improvise: Improvise<'a>) -> Self {
        let Setting { trace, device, slots, turn, exchange, align, host } = setting;
        Self {
            trace,
            order: improvise.order,
            freedom: improvise.freedom,
            decider: improvise.decider,
            device,
            slots,
            turn,
            exchange,
            room: Room::new(device.limit().get() as usize, align),
            values: Table::filled(trace.tensors().len(), Value::default()),
            host: [host.get(), 0],
            at: 0,
            report: ReactiveReport::default(),
        }
    }

    /// A value is there from the beginning: in the arena, on the host or in both. False if other bytes are there.
    pub fn find(&mut self, value: TensorId, place: Option<usize>, kept: bool) -> bool {
        self.values[value] = Value { place, ..Value::default() };
        self.keep(value, kept);
        let Some(place) = place else { return true };
        self.decider.note(Event::Arrived(value));
        self.room.take_at(place, self.bytes(value), Some(value))
    }

    /// Where a value is: in the arena, and whether on the host.
    pub fn found(&self, value: TensorId) -> (Option<usize>, bool) {
        let Value { place, kept, .. } = self.values[value];
        (place, kept)
    }

    /// Runs all ops. Afterwards only persistent values are there.
    pub fn run(&mut self) -> Result<(), EngineError> {
        let began = Instant::now();
        for (place, &op) in (0..).zip(self.order.ops()) {
            self.at = place;
            self.perform(op)?;
            let row = &self.trace.ops()[op];
            for &value in row.reads.iter().chain(&row.outputs) {
                if self.order.last_use(value) <= place {
                    self.forget(value);
                }
            }
        }
        let mut stays = Table::filled(self.values.len(), false);
        self.trace.persistent().iter().for_each(|pair| stays[pair.end] = true);
        for value in self.trace.tensors().ids().filter(|&value| !stays[value]) {
            self.forget(value);
        }
        self.report.iteration = began.elapsed().into();
        Ok(())
    }

    /// What it was like.
    pub fn report(self) -> ReactiveReport {
        self.report
    }

    fn bytes(&self, value: TensorId) -> usize {
        self.trace.bytes(value).get() as usize
    }

    fn exists(&self, value: TensorId) -> bool {
        self.values[value].place.is_some() || self.values[value].kept
    }

    /// Runs an op, and before it, again, whatever makes what it reads and is not there.
    fn perform(&mut self, op: OpId) -> Result<(), EngineError> {
        let trace = self.trace;
        let mut under_way = vec![(op, 0)];
        while let Some((op, next)) = under_way.last_mut() {
            let row = &trace.ops()[*op];
            if let Some(&read) = row.reads.get(*next) {
                if self.exists(read) {
                    self.values[read].held += 1;
                    *next += 1;
                    continue;
                }
                // What cannot be made again does not get lost, and nothing is made of itself.
                let maker = trace.producer(read).filter(|maker| !under_way.iter().any(|(op, _)| op == maker));
                let maker = maker.ok_or_else(|| self.stuck(Bytes::ZERO))?;
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

    /// Runs an op all of whose operands exist and are held by it: for the first time, or because a value of it is `wanted`.
    fn execute(&mut self, op: OpId, wanted: Option<TensorId>) -> Result<(), EngineError> {
        let trace = self.trace;
        let (row, first) = (&trace.ops()[op], wanted.is_none());
        if self.report.ops.len() >= MOST_RUNS * trace.ops().len() {
            return Err(self.stuck(Bytes::ZERO));
        }
        row.reads.iter().for_each(|&read| self.values[read].pinned = true);
        for &read in &row.reads {
            self.fetch(read)?;
        }
        let over = self.written_over(row, first);
        let mut fresh = Vec::new();
        for (&output, over) in row.outputs.iter().zip(&over) {
            self.values[output].pinned = true;
            if over.is_none() && self.values[output].place.is_none() {
                self.values[output].place = Some(self.allocate(self.bytes(output), Some(output))?);
                fresh.push(output);
            }
        }
        let scratch = row.workspace.get() as usize;
        let workspace = match scratch {
            0 => Extent { offset: 0, len: 0 },
            len => Extent { offset: self.allocate(len, None)?, len },
        };
        let at = |this: &Self, value: TensorId, bytes: TensorId| Extent {
            offset: this.values[value].place.unwrap_or_default(),
            len: this.bytes(bytes),
        };
        let reads: Vec<Extent> = row.reads.iter().map(|&read| at(self, read, read)).collect();
        let writes = row.outputs.iter().zip(&over);
        let writes: Vec<Extent> =
            writes.map(|(&output, over)| at(self, over.unwrap_or(output), output)).collect();
        let began = Instant::now();
        let (turn, exchange) = (self.turn, &mut *self.exchange);
        self.device.launch(Call { op, reads: &reads, writes: &writes, workspace, turn, exchange })?;
        let took = Nanos::from(began.elapsed());

        if scratch > 0 {
            self.give(workspace.offset, scratch);
        }
        for (&output, &old) in row.outputs.iter().zip(&over) {
            if let Some(old) = old {
                let place = self.values[old].place.take();
                self.keep(old, false);
                self.values[output].place = place;
                self.decider.note(Event::Done(old));
                if let Some(place) = place {
                    self.room.hand_over(place, self.bytes(output), output);
                    let rest = self.room.rounded(self.bytes(output));
                    self.retire(place + rest, self.room.rounded(self.bytes(old)) - rest);
                }
                fresh.push(output);
            }
        }
        for &value in row.reads.iter().chain(&row.outputs) {
            self.values[value].pinned = false;
        }
        row.reads.iter().for_each(|&read| self.values[read].held -= 1);
        self.report.ops.push((op, took));
        if !first {
            self.report.recomputed += 1;
            self.report.recompute_time += took;
        }
        self.decider.note(Event::Ran { op, took });
        for &value in &fresh {
            self.decider.note(Event::Arrived(value));
        }
        // Made again by the way: what cannot be made again was given up for good, and of the rest nobody asked for what is not needed.
        for value in fresh.into_iter().filter(|&value| !first && Some(value) != wanted) {
            if !self.order.makes_again(value) || self.order.last_use(value) < self.at {
                self.forget(value);
            }
        }
        Ok(())
    }

    /// For each output the operand whose bytes it takes: the value that it overwrites, or one that may be reused and that nobody needs
    /// after this op.
    fn written_over(&self, row: &Op, first: bool) -> Vec<Option<TensorId>> {
        let mut over: Vec<Option<TensorId>> =
            row.outputs.iter().map(|&output| row.overwrites(output)).collect();
        for reuse in &row.may_reuse {
            let Some(index) = row.outputs.iter().position(|&output| output == reuse.output) else { continue };
            let (input, value) = (reuse.input, self.values[reuse.input]);
            let last = self.order.last_use(input);
            let dies = if first { last <= self.at } else { last < self.at };
            let once = row.reads.iter().filter(|&&read| read == input).count() == 1;
            let there = self.values[reuse.output].place.is_some();
            let enough = self.bytes(input) >= self.bytes(reuse.output);
            let free = over[index].is_none() && !over.contains(&Some(input));
            if free && dies && once && value.held == 1 && !there && enough {
                over[index] = Some(input);
            }
        }
        over
    }

    /// Brings a value back from the host, unless it is there.
    fn fetch(&mut self, value: TensorId) -> Result<(), EngineError> {
        if self.values[value].place.is_some() {
            return Ok(());
        }
        let slot = self.slots.offsets[self.trace.storage(value)];
        let slot = slot.filter(|_| self.values[value].kept).ok_or_else(|| self.stuck(Bytes::ZERO))?;
        let len = self.bytes(value);
        let offset = self.allocate(len, Some(value))?;
        let began = Instant::now();
        let failed = |source| EngineError::Fetch { value, source };
        self.device.load(slot, Extent { offset, len }, began).map_err(failed)?;
        self.report.loads.push((Bytes(len as u64), began.elapsed().into()));
        self.report.traffic.to_device += Bytes(len as u64);
        self.values[value].place = Some(offset);
        self.decider.note(Event::Arrived(value));
        Ok(())
    }

    /// Bytes of the arena, after making room.
    fn allocate(&mut self, bytes: usize, owner: Option<TensorId>) -> Result<usize, EngineError> {
        loop {
            if let Some(offset) = self.room.take(bytes, owner) {
                self.report.measured_peak = self.report.measured_peak.max(Bytes((offset + bytes) as u64));
                return Ok(offset);
            }
            let (wanted, free) = (self.room.rounded(bytes), self.room.free());
            match wanted.checked_sub(free) {
                None | Some(0) => {
                    let dear = self.room.effort(bytes).is_some_and(|moved| moved > MOST_MOVED * wanted);
                    let spared = free - wanted >= self.room.capacity() / SPARED;
                    if !dear || spared || !self.evict_cheaply(wanted)? {
                        self.compact(bytes);
                    }
                }
                Some(missing) => self.evict(Bytes(missing as u64))?,
            }
        }
    }

    fn compact(&mut self, bytes: usize) {
        self.report.compactions += 1;
        for shift in self.room.gather(bytes) {
            let Some(owner) = shift.owner else { continue };
            let len = self.bytes(owner);
            self.device.shift(Extent { offset: shift.from, len }, shift.to);
            self.values[owner].place = Some(shift.to);
            self.report.moved += Bytes(len as u64);
            let vacated = shift.from.max(shift.to + shift.len);
            self.retire(vacated, shift.from + shift.len - vacated);
        }
    }

    /// Lets one value leave that no op under way reads, so that fewer bytes have to be moved. False if there is none.
    fn evict_cheaply(&mut self, wanted: usize) -> Result<bool, EngineError> {
        let candidates = self.candidates(false);
        if candidates.is_empty() {
            return Ok(false);
        }
        self.evict_one_of(&candidates, Bytes(wanted as u64)).map(|()| true)
    }

    /// Lets one value leave.
    fn evict(&mut self, missing: Bytes) -> Result<(), EngineError> {
        let mut candidates = self.candidates(false);
        if candidates.is_empty() {
            candidates = self.candidates(true);
        }
        if candidates.is_empty() {
            return Err(self.stuck(missing));
        }
        self.evict_one_of(&candidates, missing)
    }

    fn evict_one_of(&mut self, candidates: &[Candidate], missing: Bytes) -> Result<(), EngineError> {
        let (value, how) = self.decider.victim(missing, candidates).ok_or_else(|| self.stuck(missing))?;
        let chosen = candidates.iter().find(|candidate| candidate.value == value);
        let allowed = chosen.is_some_and(|chosen| match how {
            How::Drop => chosen.may_drop,
            How::Offload => chosen.may_offload,
        });
        let (true, Some(offset)) = (allowed, self.values[value].place) else {
            return Err(EngineError::Victim { value });
        };
        let len = self.bytes(value);
        // What is on the host comes back from there, however it leaves.
        let how = if self.values[value].kept { How::Offload } else { how };
        if how == How::Offload {
            self.report.offloaded += 1;
            self.store(value, Extent { offset, len })?;
        } else {
            self.report.dropped += 1;
        }
        self.values[value].place = None;
        self.give(offset, len);
        self.decider.note(Event::Left(value, how));
        Ok(())
    }

    fn store(&mut self, value: TensorId, from: Extent) -> Result<(), EngineError> {
        if self.values[value].kept {
            return Ok(());
        }
        let slot = self.slots.offsets[self.trace.storage(value)].ok_or(EngineError::Victim { value })?;
        self.make_room_on_the_host(value)?;
        let began = Instant::now();
        self.device.store(from, slot, began).map_err(|source| EngineError::Fetch { value, source })?;
        self.report.stores.push((Bytes(from.len as u64), began.elapsed().into()));
        self.report.traffic.to_host += Bytes(from.len as u64);
        self.keep(value, true);
        Ok(())
    }

    /// Whether a copy of a value is on the host, from now on.
    fn keep(&mut self, value: TensorId, kept: bool) {
        if self.values[value].kept != kept {
            self.values[value].kept = kept;
            let (bytes, used) = (self.bytes(value) as u64, &mut self.host[1]);
            *used = if kept { *used + bytes } else { *used - bytes };
            self.report.most_on_host = self.report.most_on_host.max(Bytes(self.host[1]));
        }
    }

    /// Gives up copies of values that are in the arena as well, until one more finds room on the host.
    fn make_room_on_the_host(&mut self, value: TensorId) -> Result<(), EngineError> {
        let bytes = self.bytes(value) as u64;
        while self.host[1] + bytes > self.host[0] {
            let double = self.room.owners().find(|&owner| self.values[owner].kept);
            let double = double.ok_or(EngineError::Victim { value })?;
            self.keep(double, false);
        }
        Ok(())
    }

    /// The values that may leave: those that no op under way reads, or, where there are none, those that can go to the host.
    fn candidates(&self, held: bool) -> Vec<Candidate> {
        let double = self.room.owners().filter(|&owner| self.values[owner].kept);
        let double: u64 = double.map(|owner| self.bytes(owner) as u64).sum();
        let spare = (self.host[0] + double).saturating_sub(self.host[1]);
        let candidate = |value: TensorId| {
            let Value { kept, held: holds, pinned, .. } = self.values[value];
            // What is needed by the order has a slot of its own until then.
            let needed = self.order.last_use(value) >= self.at;
            let slot = self.slots.offsets[self.trace.storage(value)].is_some();
            let may_drop = self.freedom.recompute && self.order.makes_again(value) && !held;
            let fits = self.bytes(value) as u64 <= spare;
            let may_offload = kept || (self.freedom.offload && needed && slot && fits);
            let bytes = Bytes(self.room.rounded(self.bytes(value)) as u64);
            let wanted = !pinned && (holds > 0) == held && (may_drop || may_offload);
            wanted.then_some(Candidate { value, bytes, may_drop, may_offload, kept })
        };
        self.room.owners().filter_map(candidate).collect()
    }

    /// Nobody reads the value any more.
    fn forget(&mut self, value: TensorId) {
        self.keep(value, false);
        if let Some(offset) = self.values[value].place.take() {
            self.give(offset, self.bytes(value));
            self.decider.note(Event::Done(value));
        }
    }

    fn give(&mut self, offset: usize, bytes: usize) {
        self.room.give(offset);
        self.retire(offset, bytes);
    }

    fn retire(&self, offset: usize, len: usize) {
        if self.device.retires() && len > 0 {
            self.device.retire(Extent { offset, len });
        }
    }

    fn stuck(&self, missing: Bytes) -> EngineError {
        let op = self.order.ops()[self.at as usize];
        EngineError::NoRoom { op, missing, limit: self.device.limit() }
    }
}

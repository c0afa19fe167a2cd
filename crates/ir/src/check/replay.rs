//! The rules that need the arena's state at a position: L2, L3, L5, L7, L8, and L9 at the end. One pass over the actions.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::arena::{Arena, ByteContent, LiveRanges};
use super::order::HappensBefore;
use super::{Report, Rule};
use crate::machine::Machine;
use crate::schedule::{Action, Launch, Schedule};
use crate::trace::Trace;
use crate::{ActionId, BufferId, Bytes, Id, Table, TensorId};

/// The offsets of buffers.
#[derive(Clone, Copy)]
pub enum BufferLayout<'a> {
    /// At given offsets.
    Placed(&'a [Bytes]),
    /// No offsets yet: here every buffer gets bytes of its own, but any two buffers that are not alive together may share bytes later.
    Apart {
        /// Disjoint bytes for all buffers.
        offsets: &'a [Bytes],
        /// Limit on live memory.
        live_limit: Bytes,
    },
}

/// The state of a buffer's residency.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    /// Not written yet.
    Unborn,
    /// Alive; `returned` means that it was released before.
    Alive { returned: bool },
    /// Released. A boundary buffer that was not released before may be taken again.
    Released { at: ActionId, may_return: bool },
}

/// Replays a schedule whose shape is correct. Returns its peak memory.
pub fn replay(
    trace: &Trace,
    machine: &Machine,
    schedule: &Schedule,
    layout: BufferLayout<'_>,
    report: &mut Report,
) -> Bytes {
    let mut replay = ArenaReplay {
        trace,
        machine,
        schedule,
        layout,
        order: HappensBefore::new(schedule),
        arena: Arena::default(),
        life: Table::filled(schedule.buffers.len(), Life::Unborn),
        at_boundary: schedule.boundary.iter().filter_map(|state| state.device).collect(),
        live: LiveRanges::default(),
        touched: Table::filled(schedule.buffers.len(), [None; 3]),
        freed: [None; 3],
        load: 0,
        peak: 0,
        host: BTreeMap::new(),
        host_bytes: 0,
        report,
    };
    replay.begin();
    for (id, step) in schedule.steps.iter() {
        replay.step(id, &step.action);
    }
    replay.end();
    Bytes(u64::try_from(replay.peak).unwrap_or(u64::MAX))
}

struct ArenaReplay<'a> {
    trace: &'a Trace,
    machine: &'a Machine,
    schedule: &'a Schedule,
    layout: BufferLayout<'a>,
    order: HappensBefore,
    arena: Arena,
    life: Table<BufferId, Life>,
    /// The boundary buffers.
    at_boundary: BTreeSet<BufferId>,
    live: LiveRanges,
    /// The last action on each stream that accessed a buffer.
    touched: Table<BufferId, [Option<ActionId>; 3]>,
    /// The last action on each stream that accessed any released buffer.
    freed: [Option<ActionId>; 3],
    /// Live bytes; 128 bits, because sizes come from input.
    load: u128,
    peak: u128,
    /// Host copies with the offloads that made them; `None` for copies that exist at the start.
    host: BTreeMap<TensorId, Option<ActionId>>,
    host_bytes: u128,
    report: &'a mut Report,
}

impl ArenaReplay<'_> {
    /// The prologue: the boundary state holds the initial tensors.
    fn begin(&mut self) {
        for (at_boundary, pair) in self.schedule.boundary.iter().zip(self.trace.persistent()) {
            if let Some(buffer) = at_boundary.device {
                self.enter(None, buffer, false);
                let range = self.range(buffer, self.trace.bytes(pair.begin));
                let content = ByteContent { value: pair.begin, base: range.start };
                self.arena.overwrite(range, Some(content), None);
            }
            if at_boundary.host {
                self.keep_on_host(None, pair.begin);
            }
        }
    }

    fn step(&mut self, id: ActionId, action: &Action) {
        match action {
            Action::Compute(launch) | Action::Recompute(launch) => self.launch(id, launch),
            &Action::Offload { tensor: value, from } => {
                self.read(id, from, value);
                if self.host.contains_key(&value) {
                    self.add(Rule::L8, id, format!("{value} already has a host copy; release it first"));
                } else {
                    self.keep_on_host(Some(id), value);
                }
            }
            &Action::Prefetch { tensor: value, to } => {
                match self.host.get(&value) {
                    None => self.add(Rule::L5, id, format!("{value} has no host copy to prefetch")),
                    Some(&Some(offload)) if !self.order.before(offload, id) => {
                        let what = format!(
                            "{value} may not have been copied to the host yet ({offload}); wait for it"
                        );
                        self.add(Rule::L5, id, what);
                    }
                    Some(_) => {}
                }
                self.take(id, to);
                self.write(id, to, self.trace.bytes(value), Some(value));
            }
            &Action::Release { buffer } => self.release(id, buffer),
            &Action::HostRelease { tensor: value } => match self.host.remove(&value) {
                None => self.add(Rule::L8, id, format!("{value} has no host copy to release")),
                Some(_) => self.host_bytes -= u128::from(self.trace.bytes(value).get()),
            },
        }
    }

    fn launch(&mut self, id: ActionId, launch: &Launch) {
        let op = &self.trace.ops()[launch.op];
        for (&value, &buffer) in op.reads.iter().zip(&launch.reads) {
            self.read(id, buffer, value);
        }
        // Sets, because one op may have as many tensors as the whole trace.
        let mutated: BTreeSet<TensorId> = op.mutates.iter().map(|mutation| mutation.new).collect();
        let read: BTreeSet<BufferId> = launch.reads.iter().copied().collect();
        let reusable = self.reusable(launch);
        let mut written = BTreeSet::new();
        for (&output, &buffer) in op.outputs.iter().zip(&launch.writes) {
            if !written.insert(buffer) {
                let what = format!("{} writes {output} and another output to {buffer}", launch.op);
                self.add(Rule::L3, id, what);
            } else if mutated.contains(&output) {
                // Its shape is correct, so the buffer is the one from which the old tensor was read.
            } else if read.contains(&buffer) {
                if !reusable.contains(&(buffer, output)) {
                    let what = format!(
                        "{} writes {output} to {buffer}, which it also reads, and the trace does not permit that",
                        launch.op
                    );
                    self.add(Rule::L3, id, what);
                }
            } else {
                self.take(id, buffer);
            }
        }
        if let Some(buffer) = launch.workspace {
            self.take(id, buffer);
            self.write(id, buffer, op.workspace, None);
        }
        for (&output, &buffer) in op.outputs.iter().zip(&launch.writes) {
            self.write(id, buffer, self.trace.bytes(output), Some(output));
        }
        if let Some(buffer) = launch.workspace {
            self.release(id, buffer);
        }
    }

    /// The buffers that an op reads, each with an output that the trace permits to be written to it.
    fn reusable(&self, launch: &Launch) -> BTreeSet<(BufferId, TensorId)> {
        let op = &self.trace.ops()[launch.op];
        let inputs: BTreeSet<(TensorId, BufferId)> =
            op.reads.iter().copied().zip(launch.reads.iter().copied()).collect();
        let buffers = |input: TensorId| inputs.range((input, BufferId(0))..=(input, BufferId(u32::MAX)));
        let pairs = op.may_reuse.iter();
        pairs.flat_map(|pair| buffers(pair.input).map(|&(_, buffer)| (buffer, pair.output))).collect()
    }

    /// Begins a residency (L3) and, in a schedule without a placement, orders it after all that have ended (L7).
    fn take(&mut self, id: ActionId, buffer: BufferId) {
        let returned = match self.life[buffer] {
            Life::Unborn => false,
            Life::Released { may_return: true, .. } => true,
            Life::Alive { .. } => {
                let what = format!("{buffer} is written as if new, but it is alive; release it first");
                return self.add(Rule::L3, id, what);
            }
            Life::Released { at, .. } => {
                let what =
                    format!("{buffer} was released at {at} and does not come back; use another buffer");
                return self.add(Rule::L3, id, what);
            }
        };
        if let BufferLayout::Apart { live_limit, .. } = self.layout {
            for earlier in self.freed.into_iter().flatten() {
                if !self.order.before(earlier, id) {
                    let what = format!("{buffer} may get bytes that {earlier} still uses; wait for it");
                    self.add(Rule::L7, id, what);
                }
            }
            let load = self.load + self.size(buffer);
            if load > u128::from(live_limit.get()) {
                let limit = live_limit.get();
                self.add(
                    Rule::L4,
                    id,
                    format!("{buffer} raises live memory to {load} bytes; the limit is {limit}"),
                );
            }
        }
        self.enter(Some(id), buffer, returned);
    }

    /// Adds a buffer to the live ones. It must not overlap any of them.
    fn enter(&mut self, id: Option<ActionId>, buffer: BufferId, returned: bool) {
        let range = self.range(buffer, self.schedule.buffers[buffer].bytes);
        for (other, taken) in self.live.insert(buffer, range.clone()) {
            let what = format!(
                "{buffer} takes bytes {}..{}, but {other} is alive in {}..{}",
                range.start, range.end, taken.start, taken.end
            );
            self.report.add(Rule::L3, id, what);
        }
        self.life[buffer] = Life::Alive { returned };
        self.load += self.size(buffer);
        self.peak = self.peak.max(self.load);
    }

    fn release(&mut self, id: ActionId, buffer: BufferId) {
        let Life::Alive { returned } = self.life[buffer] else {
            return self.add(Rule::L3, id, format!("{buffer} is released, but it is not alive"));
        };
        let may_return = self.at_boundary.contains(&buffer) && !returned;
        self.life[buffer] = Life::Released { at: id, may_return };
        self.live.remove(buffer, self.range(buffer, Bytes::ZERO).start);
        self.load -= self.size(buffer);
        for (freed, touched) in self.freed.iter_mut().zip(self.touched[buffer]) {
            *freed = touched.max(*freed);
        }
    }

    /// A read of a whole tensor from the start of a live buffer (L2, L3), after its writer (L7).
    fn read(&mut self, id: ActionId, buffer: BufferId, value: TensorId) {
        if !matches!(self.life[buffer], Life::Alive { .. }) {
            let what = format!("{value} is read from {buffer}, which is not alive");
            return self.add(Rule::L3, id, what);
        }
        let range = self.range(buffer, self.trace.bytes(value));
        let wanted = ByteContent { value, base: range.start };
        let stream = self.touch(id, buffer);
        let mut wrong = None;
        let mut unordered = None;
        for (start, cell) in self.arena.tile(range.clone()) {
            if cell.content != Some(wanted) && wrong.is_none() {
                wrong = Some((start..cell.end, cell.content));
            }
            unordered = unordered.or(cell.writer.filter(|&writer| !self.order.before(writer, id)));
            cell.readers[stream] = Some(id);
        }
        if let Some((bytes, holds)) = wrong {
            let what = format!(
                "{value} is read from {buffer}, whose bytes {}..{} hold {}",
                bytes.start - range.start,
                bytes.end - range.start,
                describe(holds, value)
            );
            self.add(Rule::L2, id, what);
        }
        if let Some(writer) = unordered {
            let what =
                format!("{value} is read from {buffer}, which {writer} may still be writing; wait for it");
            self.add(Rule::L7, id, what);
        }
    }

    /// A write of `bytes` from the start of a buffer, after earlier accesses to these bytes (L7). `None` means workspace.
    fn write(&mut self, id: ActionId, buffer: BufferId, bytes: Bytes, value: Option<TensorId>) {
        let range = self.range(buffer, bytes);
        self.touch(id, buffer);
        let mut unordered = None;
        for (_, cell) in self.arena.tile(range.clone()) {
            let mut accesses = cell.readers.into_iter().chain([cell.writer]).flatten();
            // A launch's own reads count as before its writes.
            unordered = unordered.or(accesses.find(|&other| !self.order.before(other, id)));
        }
        if let Some(other) = unordered {
            let what = format!("{buffer} is written, but {other} may still be using its bytes; wait for it");
            self.add(Rule::L7, id, what);
        }
        let content = value.map(|value| ByteContent { value, base: range.start });
        self.arena.overwrite(range, content, Some(id));
    }

    /// Records that an action accesses a buffer, and returns the index of its stream.
    fn touch(&mut self, id: ActionId, buffer: BufferId) -> usize {
        let stream = self.schedule.steps[id].action.stream().map_or(0, |stream| stream.index());
        self.touched[buffer][stream] = Some(id);
        stream
    }

    fn keep_on_host(&mut self, id: Option<ActionId>, value: TensorId) {
        self.host.insert(value, id);
        self.host_bytes += u128::from(self.trace.bytes(value).get());
        let (bytes, limit) = (self.host_bytes, self.machine.host_memory.get());
        if bytes > u128::from(limit) {
            let what = format!("with {value} the host copies take {bytes} bytes; the host has {limit}");
            self.report.add(Rule::L8, id, what);
        }
    }

    /// The iteration ends as it began (L9).
    fn end(&mut self) {
        let mut kept_on_host = BTreeSet::new();
        for (at_boundary, pair) in self.schedule.boundary.iter().zip(self.trace.persistent()) {
            let end = pair.end;
            if let Some(buffer) = at_boundary.device {
                let range = self.range(buffer, self.trace.bytes(end));
                let wanted = ByteContent { value: end, base: range.start };
                let wrong = self.arena.tile(range).find(|(_, cell)| cell.content != Some(wanted));
                let wrong = wrong.map(|(_, cell)| cell.content);
                if !matches!(self.life[buffer], Life::Alive { .. }) {
                    let what =
                        format!("{buffer} is the boundary buffer of {end}, but at the end it is not alive");
                    self.report.add(Rule::L9, None, what);
                } else if let Some(holds) = wrong {
                    let what = format!(
                        "{buffer} is the boundary buffer of {end}, but at the end it holds {}",
                        describe(holds, end)
                    );
                    self.report.add(Rule::L9, None, what);
                }
            }
            if at_boundary.host {
                kept_on_host.insert(end);
                if !self.host.contains_key(&end) {
                    let what = format!("{end} should have a host copy at the end, but has none");
                    self.report.add(Rule::L9, None, what);
                }
            }
        }
        for buffer in self.live.buffers() {
            if !self.at_boundary.contains(&buffer) {
                self.report.add(Rule::L9, None, format!("{buffer} is still alive at the end; release it"));
            }
        }
        for (value, _) in std::mem::take(&mut self.host) {
            if !kept_on_host.contains(&value) {
                let what = format!("{value} still has a host copy at the end; release it");
                self.report.add(Rule::L9, None, what);
            }
        }
    }

    /// The first `bytes` of a buffer. Its end is below 2^64 by the rules of shape.
    fn range(&self, buffer: BufferId, bytes: Bytes) -> Range<u64> {
        let (BufferLayout::Placed(offsets) | BufferLayout::Apart { offsets, .. }) = self.layout;
        let start = offsets[buffer.index()].get();
        start..start + bytes.get()
    }

    /// What a buffer contributes to live memory.
    fn size(&self, buffer: BufferId) -> u128 {
        u128::from(self.schedule.buffers[buffer].bytes.get())
            .next_multiple_of(self.machine.align.get().into())
    }

    fn add(&mut self, rule: Rule, id: ActionId, what: String) {
        self.report.add(rule, Some(id), what);
    }
}

/// Describes what was found instead of a tensor.
fn describe(holds: Option<ByteContent>, wanted: TensorId) -> String {
    match holds {
        None => "nothing that may be read".to_owned(),
        Some(content) if content.value == wanted => format!("{wanted}, but shifted"),
        Some(content) => content.value.to_string(),
    }
}

//! Derives the waits of every action from the order of actions alone.
//!
//! Four reasons make an action wait for an action on another stream (on its own stream, order is enough):
//!
//! - it reads what the other wrote (a buffer, or a host copy);
//! - it writes to a buffer that the other read or wrote;
//! - it takes bytes that were another buffer's, and the other was the last to touch them;
//! - it writes a host copy that the other read.
//!
//! Streams are first-in first-out, so among several actions on one stream only the latest counts: an action has at most one wait per other
//! stream, and none that an earlier wait on its own stream already implies.
//!
//! Before placement any two buffers might share bytes. [`conservative`] orders every allocation of a buffer after the last access of every
//! buffer released before it; [`thin`] keeps only the waits between buffers that share bytes in a placement.

use std::collections::BTreeMap;

use elbowroom_ir::packing::Placement;
use elbowroom_ir::schedule::{Action, Schedule, Stream};
use elbowroom_ir::{ActionId, BufferId, Bytes, Id, TensorId};

/// The latest access per stream; `ActionId`s plus one, so that zero means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Latest([u32; 3]);

impl Latest {
    fn note(&mut self, stream: Stream, action: ActionId) {
        let slot = &mut self.0[stream.index()];
        *slot = (*slot).max(action.0 + 1);
    }

    fn join(&mut self, other: Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = (*mine).max(theirs);
        }
    }
}

/// Who last touched the bytes that a buffer is about to take.
trait Takeover {
    fn before(&mut self, buffer: BufferId) -> Latest;
    fn released(&mut self, buffer: BufferId, accesses: Latest);
}

/// Any released bytes may be these bytes.
#[derive(Clone, Debug, Default)]
struct AnyBytes(Latest);

impl Takeover for AnyBytes {
    fn before(&mut self, _: BufferId) -> Latest {
        self.0
    }
    fn released(&mut self, _: BufferId, accesses: Latest) {
        self.0.join(accesses);
    }
}

/// The arena, cut into stretches with one last toucher each: `start → (end, accesses)`.
struct PlacedBytes<'a> {
    schedule: &'a Schedule,
    placement: &'a Placement,
    stretches: BTreeMap<u64, (u64, Latest)>,
}

impl PlacedBytes<'_> {
    fn range(&self, buffer: BufferId) -> (u64, u64) {
        let start = self.placement.offsets.get(buffer).copied().unwrap_or(Bytes::ZERO).get();
        (start, start.saturating_add(self.schedule.buffers[buffer].bytes.get()))
    }

    fn overlapping(&self, start: u64, end: u64) -> Vec<(u64, u64, Latest)> {
        let mut found = Vec::new();
        for (&from, &(to, accesses)) in self.stretches.range(..end).rev() {
            if to <= start {
                break;
            }
            found.push((from, to, accesses));
        }
        found
    }
}

impl Takeover for PlacedBytes<'_> {
    fn before(&mut self, buffer: BufferId) -> Latest {
        let (start, end) = self.range(buffer);
        let mut latest = Latest::default();
        for (_, _, accesses) in self.overlapping(start, end) {
            latest.join(accesses);
        }
        latest
    }

    // The latest accesses of these bytes have waited for the earlier ones, so a wait for the latest is a wait for all.
    fn released(&mut self, buffer: BufferId, accesses: Latest) {
        let (start, end) = self.range(buffer);
        for (from, to, old) in self.overlapping(start, end) {
            self.stretches.remove(&from);
            if from < start {
                self.stretches.insert(from, (start, old));
            }
            if to > end {
                self.stretches.insert(end, (to, old));
            }
        }
        if start < end {
            self.stretches.insert(start, (end, accesses));
        }
    }
}

/// What is known of one buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Residency {
    alive: bool,
    /// Accesses since it was taken.
    accesses: Latest,
    /// The last write.
    written: Latest,
}

/// What is known of one host copy.
#[derive(Clone, Copy, Debug, Default)]
struct HostCopy {
    written: Latest,
    read: Latest,
}

/// Derives waits action by action.
#[derive(Clone, Debug)]
struct Deriver<T> {
    takeover: T,
    residencies: Vec<Residency>,
    hosts: Vec<HostCopy>,
    /// `implied[a][b]`: the latest action of stream b that stream a already waits for.
    implied: [Latest; 3],
}

impl<T: Takeover> Deriver<T> {
    fn new(takeover: T) -> Self {
        Self { takeover, residencies: Vec::new(), hosts: Vec::new(), implied: Default::default() }
    }

    fn residency(&mut self, buffer: BufferId) -> &mut Residency {
        if self.residencies.len() <= buffer.index() {
            self.residencies.resize(buffer.index() + 1, Residency::default());
        }
        &mut self.residencies[buffer.index()]
    }

    fn host(&mut self, value: TensorId) -> &mut HostCopy {
        if self.hosts.len() <= value.index() {
            self.hosts.resize(value.index() + 1, HostCopy::default());
        }
        &mut self.hosts[value.index()]
    }

    fn read(&mut self, buffer: BufferId, stream: Stream, action: ActionId, needs: &mut Latest) {
        let residency = self.residency(buffer);
        needs.join(residency.written);
        residency.accesses.note(stream, action);
    }

    fn write(&mut self, buffer: BufferId, stream: Stream, action: ActionId, needs: &mut Latest) {
        if self.residency(buffer).alive {
            needs.join(self.residency(buffer).accesses);
        } else {
            needs.join(self.takeover.before(buffer));
            let residency = self.residency(buffer);
            residency.alive = true;
            residency.accesses = Latest::default();
        }
        let residency = self.residency(buffer);
        residency.written = Latest::default();
        residency.written.note(stream, action);
        residency.accesses.note(stream, action);
    }

    /// The waits of the next action, and what follows from it for later ones.
    fn step(&mut self, id: ActionId, action: &Action, waits: &mut Vec<ActionId>) {
        waits.clear();
        let mut needs = Latest::default();
        let stream = match action {
            Action::Compute(launch) | Action::Recompute(launch) => {
                let (reads, writes) = (launch.reads.iter().copied(), launch.writes.iter().copied());
                return self.launch(id, reads, writes, launch.workspace, waits);
            }
            Action::Offload { tensor: value, from } => {
                self.read(*from, Stream::ToHost, id, &mut needs);
                let host = self.host(*value);
                needs.join(host.read);
                needs.join(host.written);
                *host = HostCopy::default();
                host.written.note(Stream::ToHost, id);
                Stream::ToHost
            }
            Action::Prefetch { tensor: value, to } => {
                let host = self.host(*value);
                needs.join(host.written);
                host.read.note(Stream::ToDevice, id);
                self.write(*to, Stream::ToDevice, id, &mut needs);
                Stream::ToDevice
            }
            Action::Release { buffer } => {
                let residency = self.residency(*buffer);
                residency.alive = false;
                let accesses = residency.accesses;
                self.takeover.released(*buffer, accesses);
                return;
            }
            Action::HostRelease { .. } => return,
        };
        self.wait(stream, needs, waits);
    }

    /// The same for an op.
    fn launch(
        &mut self,
        id: ActionId,
        reads: impl Iterator<Item = BufferId>,
        writes: impl Iterator<Item = BufferId>,
        workspace: Option<BufferId>,
        waits: &mut Vec<ActionId>,
    ) {
        waits.clear();
        let mut needs = Latest::default();
        for buffer in reads {
            self.read(buffer, Stream::Compute, id, &mut needs);
        }
        for buffer in writes {
            self.write(buffer, Stream::Compute, id, &mut needs);
        }
        if let Some(buffer) = workspace {
            needs.join(self.takeover.before(buffer));
            let mut accesses = Latest::default();
            accesses.note(Stream::Compute, id);
            self.takeover.released(buffer, accesses);
        }
        self.wait(Stream::Compute, needs, waits);
    }

    /// Lists what an action on a stream must wait for and the stream does not wait for yet.
    fn wait(&mut self, stream: Stream, needs: Latest, waits: &mut Vec<ActionId>) {
        for other in Stream::ALL {
            let target = needs.0[other.index()];
            if other != stream && target > self.implied[stream.index()].0[other.index()] {
                self.implied[stream.index()].0[other.index()] = target;
                waits.push(ActionId(target - 1));
            }
        }
    }
}

/// Derives conservative waits one action at a time, for those who make a schedule and need its times as they go.
#[derive(Clone, Debug)]
pub struct Conservative(Deriver<AnyBytes>);

impl Conservative {
    /// Nothing has happened yet; the home buffers of the boundary are alive.
    pub fn new(at_boundaries: impl Iterator<Item = BufferId>) -> Self {
        let mut deriver = Deriver::new(AnyBytes::default());
        for buffer in at_boundaries {
            deriver.residency(buffer).alive = true;
        }
        Self(deriver)
    }

    /// The waits of an op that reads, writes and uses as workspace these buffers, without an action to hold them.
    pub(crate) fn launch(
        &mut self,
        id: ActionId,
        reads: impl Iterator<Item = BufferId>,
        writes: impl Iterator<Item = BufferId>,
        workspace: Option<BufferId>,
        waits: &mut Vec<ActionId>,
    ) {
        self.0.launch(id, reads, writes, workspace, waits);
    }

    /// The waits of the next action; positions must come in order.
    pub fn step(&mut self, id: ActionId, action: &Action, waits: &mut Vec<ActionId>) {
        self.0.step(id, action, waits);
    }
}

/// Replaces all waits by those that order conflicting accesses for every placement.
pub fn conservative(schedule: &mut Schedule) {
    let at_boundaries: Vec<BufferId> =
        schedule.boundary.iter().filter_map(|at_boundary| at_boundary.device).collect();
    let mut deriver = Conservative::new(at_boundaries.into_iter());
    for (id, step) in schedule.steps.iter_mut() {
        deriver.step(id, &step.action, &mut step.waits);
    }
}

/// Replaces all waits by those that order conflicting accesses for this placement: an action that takes bytes waits only for those who
/// last touched these very bytes.
pub fn thin(schedule: &mut Schedule, placement: &Placement) {
    let mut derived: Vec<Vec<ActionId>> = Vec::with_capacity(schedule.steps.len());
    let mut deriver =
        Deriver::new(PlacedBytes { schedule: &*schedule, placement, stretches: BTreeMap::new() });
    for buffer in schedule.boundary.iter().filter_map(|at_boundary| at_boundary.device) {
        deriver.residency(buffer).alive = true;
    }
    for (id, step) in schedule.steps.iter() {
        let mut waits = Vec::new();
        deriver.step(id, &step.action, &mut waits);
        derived.push(waits);
    }
    for (step, waits) in schedule.steps.iter_mut().map(|(_, step)| step).zip(derived) {
        step.waits = waits;
    }
}

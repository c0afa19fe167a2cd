//! The simulation that decides the position of every action: an action starts when its memory is free. The rules are those of
//! [`lower`](crate::lower()).

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use elbowroom_ir::planning::Request;
use elbowroom_ir::schedule::{Action, BoundaryState, Launch, Schedule, Step, Stream};
use elbowroom_ir::{ActionId, Bytes, Id, Nanos, OpId, TensorId};

use super::outcome::{LowerError, Lowered, shortfall};
use super::prefetches::{PrefetchStarts, Rank, UNLISTED, ranks};
use super::program::{Close, Offload, Open, Program};
use super::waits::Conservative;
use crate::policy::{Boundary, Policy, PrefetchRule, SequenceIndex};

/// Numbers grouped by place, in one vector.
struct PlaceLists {
    starts: Vec<u32>,
    items: Vec<u32>,
}

impl PlaceLists {
    fn new(places: usize, of: impl Iterator<Item = (u32, SequenceIndex)> + Clone) -> Self {
        let mut starts = vec![0u32; places + 1];
        for (_, place) in of.clone() {
            starts[place as usize + 1] += 1;
        }
        for place in 0..places {
            starts[place + 1] += starts[place];
        }
        let mut next = starts.clone();
        let mut items = vec![0; starts[places] as usize];
        for (item, place) in of {
            items[next[place as usize] as usize] = item;
            next[place as usize] += 1;
        }
        Self { starts, items }
    }

    /// The numbers at a place, as positions in `items`.
    fn at(&self, place: usize) -> std::ops::Range<usize> {
        self.starts[place] as usize..self.starts[place + 1] as usize
    }
}

/// What happens at which place, known beforehand.
struct Agenda {
    /// Offloads by the place after which their tensor exists.
    made: PlaceLists,
    /// Offloads by the last use of their device copy.
    last_uses: PlaceLists,
    /// Residencies by the place after which they are over.
    closes: PlaceLists,
    /// Prefetches by the place that needs them.
    needs: PlaceLists,
    /// Prefetches by the earliest place at which they may start.
    starts: PlaceLists,
}

/// The state of the simulation.
pub(crate) struct Gate<'a> {
    request: &'a Request<'a>,
    policy: &'a Policy,
    program: &'a Program,
    agenda: Agenda,
    waits: Conservative,
    /// The places at which the limit holds; `None` for all.
    holds: Option<&'a [bool]>,
    /// Whether steps are kept, or only their times.
    record: bool,
    /// The longest iteration that is of interest.
    worst: u64,
    /// Time that each stream still has to work, as long as a longest iteration is given.
    ahead: [u64; 3],
    steps: Vec<Step>,
    ends: Vec<u64>,
    /// The waits of the action at hand.
    waiting: Vec<ActionId>,
    free: [u64; 3],
    iteration: u64,
    live_bytes: u64,
    peak: u64,
    host: u64,
    host_peak: u64,
    ran: Vec<bool>,
    /// Residencies that are on their way out, by the time at which their bytes are free.
    leaving: BinaryHeap<Reverse<(u64, u32)>>,
    released: Vec<bool>,
    /// Per offload: the end of its copy, and of the op that uses the device copy last. When both are known, it is leaving.
    copied: Vec<Option<u64>>,
    used: Vec<Option<u64>>,
    offload_rank: Vec<Rank>,
    /// Ranks of the offloads that are still to be made, if the policy lists an order.
    in_order: BTreeSet<Rank>,
    /// Offloads whose tensor exists, by rank.
    offers: BinaryHeap<Reverse<(Rank, u32)>>,
    /// Those that the policy holds, by the place until which it does.
    held: BTreeSet<(SequenceIndex, Rank, u32)>,
    /// Offloads that have not been made yet.
    offloads_left: usize,
    prefetch_rank: Vec<Rank>,
    /// Prefetches that may start, by rank. The first of them are looked at several times per place, far more often than the list changes.
    open_prefetches: Vec<(Rank, u32)>,
    /// Per prefetch: the end of its copy.
    prefetched: Vec<Option<u64>>,
}

impl<'a> Gate<'a> {
    pub(crate) fn new(
        request: &'a Request<'a>,
        policy: &'a Policy,
        program: &'a Program,
        starts: PrefetchStarts,
    ) -> Self {
        let places = policy.sequence.len() + 1;
        let offloads = || (0u32..).zip(&program.offloads).filter(|(_, copy)| copy.wanted);
        let closes = (0u32..).zip(&program.residencies).filter_map(|(i, r)| match r.close {
            Close::After(Some(place)) => Some((i, place)),
            _ => None,
        });
        let agenda = Agenda {
            made: PlaceLists::new(places, offloads().filter_map(|(i, copy)| Some((i, copy.made?)))),
            last_uses: PlaceLists::new(places, offloads().filter_map(|(i, copy)| Some((i, copy.gap.after?)))),
            closes: PlaceLists::new(places, closes),
            needs: PlaceLists::new(
                places,
                (0u32..).zip(program.prefetches.iter().map(|prefetch| prefetch.needed)),
            ),
            starts: PlaceLists::new(places, (0u32..).zip(starts.earliest.iter().copied())),
        };
        let at_boundaries = program
            .at_boundaries
            .iter()
            .flatten()
            .map(|&at_boundary| program.residencies[at_boundary as usize].buffer);
        let offload_rank = ranks(&policy.offloads, program.offloads.iter().map(|c| (c.gap, c.idle_from())));
        let listed =
            offloads().map(|(i, _)| offload_rank[i as usize]).filter(|&(listed, _)| listed != UNLISTED);
        let in_order = listed.collect();
        Self {
            request,
            policy,
            program,
            agenda,
            waits: Conservative::new(at_boundaries),
            holds: None,
            record: true,
            worst: u64::MAX,
            ahead: [0; 3],
            steps: Vec::new(),
            ends: Vec::with_capacity(3 * places),
            waiting: Vec::new(),
            free: [0; 3],
            iteration: 0,
            live_bytes: 0,
            peak: 0,
            host: 0,
            host_peak: 0,
            ran: vec![false; request.trace.ops().len()],
            leaving: BinaryHeap::new(),
            released: vec![false; program.residencies.len()],
            copied: vec![None; program.offloads.len()],
            used: vec![None; program.offloads.len()],
            offload_rank,
            in_order,
            offers: BinaryHeap::new(),
            held: BTreeSet::new(),
            offloads_left: offloads().count(),
            prefetch_rank: starts.rank,
            open_prefetches: Vec::new(),
            prefetched: vec![None; program.prefetches.len()],
        }
    }

    /// The same, with a limit at some places only, the boundary among them.
    pub(crate) fn holding(mut self, places: &'a [bool]) -> Self {
        self.holds = Some(places);
        self
    }

    /// The limit while the op at a place runs.
    fn limit(&self, place: usize) -> u64 {
        match self.holds {
            Some(holds) if !holds[place] => u64::MAX,
            _ => self.request.live_limit.get(),
        }
    }

    /// Runs, keeping the schedule.
    pub(crate) fn run(mut self) -> Result<Lowered, LowerError> {
        self.steps.reserve(3 * self.policy.sequence.len());
        self.go()?;
        let boundary = self.program.at_boundaries.iter().zip(&self.policy.boundaries);
        let boundary = boundary.map(|(at_boundary, boundary)| BoundaryState {
            device: at_boundary.map(|at_boundary| self.program.residencies[at_boundary as usize].buffer),
            host: *boundary != Boundary::Device,
        });
        let schedule = Schedule {
            boundary: boundary.collect(),
            buffers: self.program.buffers.clone(),
            steps: self.steps.into(),
        };
        Ok(Lowered { schedule, iteration: Nanos(self.iteration), peak: Bytes(self.peak) })
    }

    /// Runs for the times alone: iteration time and peak memory.
    pub(crate) fn measure(mut self) -> Result<(Nanos, Bytes), LowerError> {
        self.record = false;
        self.go()?;
        Ok((Nanos(self.iteration), Bytes(self.peak)))
    }

    /// The same, `None` if the iteration turns out to be longer than `worst`, which is
    /// known as soon as what a stream has done and what it still has to do exceed it.
    pub(crate) fn measure_within(mut self, worst: u64) -> Result<Option<(Nanos, Bytes)>, LowerError> {
        self.worst = worst;
        if worst != u64::MAX {
            let Request { trace, costs, machine, .. } = *self.request;
            let duration = |op: &OpId| costs.nanos.get(*op).map_or(0, |time| time.get());
            let copies = self.program.offloads.iter().filter(|copy| copy.wanted);
            self.ahead[Stream::Compute.index()] = self.policy.sequence.iter().map(duration).sum();
            self.ahead[Stream::ToHost.index()] =
                copies.map(|copy| machine.to_host.time(trace.bytes(copy.gap.value)).get()).sum();
            let prefetches = self.program.prefetches.iter();
            self.ahead[Stream::ToDevice.index()] =
                prefetches.map(|copy| machine.to_device.time(trace.bytes(copy.gap.value)).get()).sum();
        }
        self.record = false;
        self.go()?;
        Ok((!self.late()).then_some((Nanos(self.iteration), Bytes(self.peak))))
    }

    /// Whether the iteration is certainly longer than anybody cares.
    fn late(&self) -> bool {
        let least = |stream: Stream| self.free[stream.index()].saturating_add(self.ahead[stream.index()]);
        let link = if self.request.machine.shared_link {
            least(Stream::ToHost).saturating_add(self.ahead[Stream::ToDevice.index()])
        } else {
            least(Stream::ToHost).max(least(Stream::ToDevice))
        };
        least(Stream::Compute).max(link).max(self.iteration) > self.worst
    }

    fn go(&mut self) -> Result<(), LowerError> {
        self.begin();
        let places = self.policy.sequence.len();
        for place in 0..places {
            if self.late() {
                return Ok(());
            }
            self.place(place)?;
        }
        self.prefetch_needed(places)?;
        while let Some(copy) = self.next_offload() {
            self.offload(copy);
        }
        self.release_until(u64::MAX);

        let memory = self.request.machine.host_memory;
        if Bytes(self.host_peak) > memory {
            return Err(LowerError::Host { needed: Bytes(self.host_peak), memory });
        }
        Ok(())
    }

    fn begin(&mut self) {
        for &at_boundary in self.program.at_boundaries.iter().flatten() {
            self.take(self.program.residencies[at_boundary as usize].bytes);
        }
        for (pair, boundary) in self.request.trace.persistent().iter().zip(&self.policy.boundaries) {
            if *boundary != Boundary::Device {
                self.keep_copy(pair.begin);
            }
        }
        for &value in &self.program.stale {
            self.give_up_copy(value);
        }
        for residency in 0..self.program.residencies.len() {
            if self.program.residencies[residency].close == Close::After(None) {
                self.release(residency as u32);
            }
        }
        for (i, copy) in (0u32..).zip(&self.program.offloads).filter(|(_, copy)| copy.wanted) {
            if copy.made.is_none() {
                self.offer(i, 0);
            }
            if copy.gap.after.is_none() {
                self.used[i as usize] = Some(0);
            }
        }
    }

    fn place(&mut self, place: usize) -> Result<(), LowerError> {
        let program = self.program;
        let id = self.policy.sequence[place];
        let op = &self.request.trace.ops()[id];
        let duration = self.request.costs.nanos.get(id).copied().unwrap_or(Nanos::ZERO).get();
        let operands = program.operands(place);
        let (reads, writes) = operands.split_at(op.reads.len());
        let row = |&residency: &u32| &program.residencies[residency as usize];

        while let Some(&(until, rank, copy)) = self.held.first()
            && until as usize <= place
        {
            self.held.pop_first();
            self.offers.push(Reverse((rank, copy)));
        }
        let prefetched = self.prefetch_needed(place)?;
        let mut start = self.free[Stream::Compute.index()].max(prefetched);
        self.offload_until(start);
        self.release_until(start);
        let opens = |residency: &&u32| row(residency).open == Open::Op(place as SequenceIndex);
        let fresh: u64 = writes.iter().filter(opens).map(|r| row(r).bytes).sum();
        let workspace = op.workspace.align_up(self.request.machine.align).get();
        for at_boundary in writes.iter().filter(opens).filter_map(|r| row(r).follows) {
            start = start.max(self.vacate(at_boundary));
        }
        start = start.max(self.room_for(place, fresh + workspace)?);
        self.prefetch_until(place, start + duration, fresh + workspace);

        let again = std::mem::replace(&mut self.ran[id.index()], true);
        self.take(fresh + workspace);
        self.live_bytes -= workspace;
        let buffers = |operands: &'a [u32]| operands.iter().map(move |r| row(r).buffer);
        let scratch = program.workspaces[place];
        let action = ActionId::new(self.ends.len());
        self.waits.launch(action, buffers(reads), buffers(writes), scratch, &mut self.waiting);
        if self.record {
            let (reads, writes) = (buffers(reads).collect(), buffers(writes).collect());
            let launch = Launch { op: id, reads, writes, workspace: scratch };
            let action = if again { Action::Recompute(launch) } else { Action::Compute(launch) };
            self.steps.push(Step { action, waits: self.waiting.clone() });
        }
        let end = self.time(Some(Stream::Compute), duration);

        // Offloads that end while the op runs make room for prefetches that need not wait for its end.
        self.offload_until(end);
        self.release_until(end);
        self.prefetch_until(place, end, 0);
        for item in self.agenda.closes.at(place) {
            self.release(self.agenda.closes.items[item]);
        }
        for item in self.agenda.last_uses.at(place) {
            let copy = self.agenda.last_uses.items[item];
            self.used[copy as usize] = Some(end);
            self.leave(copy);
        }
        for item in self.agenda.made.at(place) {
            self.offer(self.agenda.made.items[item], place + 1);
        }
        Ok(())
    }

    /// Makes the prefetches that a place needs and that have not been made; returns when all of its prefetches are done.
    fn prefetch_needed(&mut self, place: usize) -> Result<u64, LowerError> {
        for item in self.agenda.starts.at(place) {
            let prefetch = self.agenda.starts.items[item];
            let open = (self.prefetch_rank[prefetch as usize], prefetch);
            if let Err(index) = self.open_prefetches.binary_search(&open) {
                self.open_prefetches.insert(index, open);
            }
        }
        let mut done = 0;
        for item in self.agenda.needs.at(place) {
            let prefetch = self.agenda.needs.items[item];
            let end = match self.prefetched[prefetch as usize] {
                Some(end) => end,
                None => {
                    let open = (self.prefetch_rank[prefetch as usize], prefetch);
                    if let Ok(index) = self.open_prefetches.binary_search(&open) {
                        self.open_prefetches.remove(index);
                    }
                    let residency = self.program.prefetches[prefetch as usize].residency;
                    self.leave_first(prefetch).into_iter().flatten().for_each(|r| {
                        self.vacate(r);
                    });
                    self.release_until(self.free[Stream::ToDevice.index()]);
                    self.room_for(place, self.program.residencies[residency as usize].bytes)?;
                    self.prefetch(prefetch)
                }
            };
            done = done.max(end);
        }
        Ok(done)
    }

    /// The residencies that must be over before a prefetch: the one that its tensor left, and an earlier one in its buffer.
    fn leave_first(&self, prefetch: u32) -> [Option<u32>; 2] {
        let prefetch = &self.program.prefetches[prefetch as usize];
        [prefetch.left, self.program.residencies[prefetch.residency as usize].follows]
    }

    /// Releases, and if need be offloads, until `bytes` more fit; returns when they do.
    fn room_for(&mut self, place: usize, bytes: u64) -> Result<u64, LowerError> {
        let limit = self.limit(place);
        let mut ready = 0;
        while self.live_bytes + bytes > limit {
            match self.leaving.peek() {
                // Waiting for a copy under way, unless another could be under way meanwhile.
                Some(&Reverse((time, residency)))
                    if self.offers.is_empty() || time <= self.free[Stream::ToHost.index()] =>
                {
                    self.leaving.pop();
                    self.release(residency);
                    ready = time;
                }
                _ => match self.next_offload() {
                    Some(copy) => self.offload(copy),
                    None => {
                        let (request, policy) = (self.request, self.policy);
                        let needed = self.live_bytes + bytes;
                        return Err(
                            shortfall(request, policy, self.program, place as SequenceIndex, needed).into()
                        );
                    }
                },
            }
        }
        Ok(ready)
    }

    /// Makes sure that one residency is over; returns when it is.
    fn vacate(&mut self, residency: u32) -> u64 {
        if self.released[residency as usize] {
            return 0;
        }
        let Close::Offload(copy) = self.program.residencies[residency as usize].close else { return 0 };
        while self.copied[copy as usize].is_none() {
            let Some(next) = self.next_offload() else { return 0 };
            self.offload(next);
        }
        let ready = self.copied[copy as usize].max(self.used[copy as usize]).unwrap_or(0);
        self.release(residency);
        ready
    }

    fn release_until(&mut self, time: u64) {
        while let Some(&Reverse((ready, residency))) = self.leaving.peek()
            && ready <= time
        {
            self.leaving.pop();
            self.release(residency);
        }
    }

    /// Starts offloads as long as their stream is free before a time, the first in rank among those whose tensor exists. If the policy lists
    /// them, the stream stays idle until the tensor of the next one exists.
    fn offload_until(&mut self, time: u64) {
        while self.free[Stream::ToHost.index()] < time
            && let Some(&Reverse((rank, copy))) = self.offers.peek()
            && self.in_order.first().is_none_or(|&next| rank <= next)
        {
            self.offers.pop();
            self.offload(copy);
        }
    }

    /// Starts prefetches as long as their stream is free before a time and `reserved` bytes still fit together with them at a place.
    fn prefetch_until(&mut self, place: usize, time: u64, reserved: u64) {
        let machine = self.request.machine;
        let limit = self.limit(place);
        let in_order = self.policy.prefetch == PrefetchRule::AfterOffloads;
        while self.free[Stream::ToDevice.index()] < time {
            // On a shared link offloads go first: they free memory that prefetches need.
            if (machine.shared_link && !self.offers.is_empty()) || (in_order && self.offloads_left > 0) {
                return;
            }
            // The first in rank whose bytes have left. More than a few that have not are not worth looking through.
            let candidates = self.open_prefetches.iter().take(if in_order { 1 } else { 8 });
            let over = |r: &u32| self.released[*r as usize];
            let mut candidates = candidates.map(|&(_, prefetch)| prefetch).enumerate();
            let Some((index, prefetch)) =
                candidates.find(|&(_, prefetch)| self.leave_first(prefetch).iter().flatten().all(over))
            else {
                return;
            };
            let residency = self.program.prefetches[prefetch as usize].residency;
            let bytes = self.program.residencies[residency as usize].bytes;
            if self.live_bytes + reserved + bytes > limit {
                return;
            }
            self.open_prefetches.remove(index);
            self.prefetch(prefetch);
        }
    }

    /// Offers an offload whose tensor exists when the op at a place is next, or holds it.
    fn offer(&mut self, copy: u32, place: usize) {
        let rank = self.offload_rank[copy as usize];
        match self.policy.held.get(&self.program.offloads[copy as usize].gap) {
            Some(&until) if until as usize > place => {
                self.held.insert((until, rank, copy));
            }
            _ => self.offers.push(Reverse((rank, copy))),
        }
    }

    /// The next offload where an op needs bytes: one that is held only if there is no other.
    fn next_offload(&mut self) -> Option<u32> {
        let offered = self.offers.pop().map(|Reverse((_, copy))| copy);
        offered.or_else(|| self.held.pop_first().map(|(_, _, copy)| copy))
    }

    fn offload(&mut self, copy: u32) {
        let Offload { gap, residency, closes, .. } = self.program.offloads[copy as usize];
        let from = self.program.residencies[residency as usize].buffer;
        let duration = self.request.machine.to_host.time(self.request.trace.bytes(gap.value)).get();
        self.keep_copy(gap.value);
        let end = self.emit(Action::Offload { tensor: gap.value, from }, duration);
        self.copied[copy as usize] = Some(end);
        self.in_order.remove(&self.offload_rank[copy as usize]);
        self.offloads_left -= 1;
        if closes {
            self.leave(copy);
        }
    }

    /// Puts the residency of an offload on its way out if both its copy and its last use have been placed.
    fn leave(&mut self, copy: u32) {
        let Offload { residency, closes, .. } = self.program.offloads[copy as usize];
        if closes && let (Some(copied), Some(used)) = (self.copied[copy as usize], self.used[copy as usize]) {
            self.leaving.push(Reverse((copied.max(used), residency)));
        }
    }

    fn prefetch(&mut self, prefetch: u32) -> u64 {
        let row = &self.program.prefetches[prefetch as usize];
        let residency = &self.program.residencies[row.residency as usize];
        let value = row.gap.value;
        let duration = self.request.machine.to_device.time(self.request.trace.bytes(value)).get();
        self.take(residency.bytes);
        let end = self.emit(Action::Prefetch { tensor: value, to: residency.buffer }, duration);
        self.prefetched[prefetch as usize] = Some(end);
        if row.last {
            self.give_up_copy(value);
        }
        end
    }

    fn release(&mut self, residency: u32) {
        if !std::mem::replace(&mut self.released[residency as usize], true) {
            let row = &self.program.residencies[residency as usize];
            self.live_bytes -= row.bytes;
            self.emit(Action::Release { buffer: row.buffer }, 0);
        }
    }

    fn keep_copy(&mut self, value: TensorId) {
        self.host += self.request.trace.bytes(value).get();
        self.host_peak = self.host_peak.max(self.host);
    }

    fn give_up_copy(&mut self, value: TensorId) {
        self.host -= self.request.trace.bytes(value).get();
        self.emit(Action::HostRelease { tensor: value }, 0);
    }

    fn take(&mut self, bytes: u64) {
        self.live_bytes += bytes;
        self.peak = self.peak.max(self.live_bytes);
    }

    /// Appends an action with its waits; returns when it ends.
    fn emit(&mut self, action: Action, duration: u64) -> u64 {
        self.waits.step(ActionId::new(self.ends.len()), &action, &mut self.waiting);
        let stream = action.stream();
        if self.record {
            self.steps.push(Step { action, waits: self.waiting.clone() });
        }
        self.time(stream, duration)
    }

    /// Runs the action at hand; returns when it ends.
    fn time(&mut self, stream: Option<Stream>, duration: u64) -> u64 {
        let mut end = 0;
        if let Some(stream) = stream {
            let free = self.free[stream.index()];
            end = self.waiting.iter().map(|wait| self.ends[wait.index()]).fold(free, u64::max) + duration;
            self.free[stream.index()] = end;
            self.ahead[stream.index()] = self.ahead[stream.index()].saturating_sub(duration);
            if self.request.machine.shared_link && stream != Stream::Compute {
                self.free[Stream::ToHost.index()] = end;
                self.free[Stream::ToDevice.index()] = end;
            }
            self.iteration = self.iteration.max(end);
        }
        self.ends.push(end);
        end
    }
}

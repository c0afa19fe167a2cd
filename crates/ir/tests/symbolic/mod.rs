//! Runs plans on symbolic bytes, under adversarial orders of the streams: a check of the checker, which does not rely on its results.
//!
//! A byte is a number that identifies its value and its index in the value. An action is two events, its start and its end.
//! When it starts it may already have written anything to its outputs, so they are poisoned; when it ends its inputs must be what they
//! were and its outputs still its own. Events of different streams are interleaved at random, obeying stream order and waits alone.

use elbowroom_ir::plan::Plan;
use elbowroom_ir::schedule::{Action, Launch};
use elbowroom_ir::trace::{Again, Reuse, Trace};
use elbowroom_ir::{BufferId, Bytes, Id, OpId, Table, TensorId};
use std::collections::BTreeMap;
use std::ops::Range;

type Outcome<T> = Result<T, &'static str>;

/// Runs two iterations, one after the other. `Err` if an op read other bytes than the trace demands, or the bytes at the end are wrong.
pub fn run(trace: &Trace, memory: Bytes, plan: &Plan, seed: u64) -> Outcome<()> {
    let mut state = State::new(trace, memory, plan, seed)?;
    let mut begins: Vec<u64> = (0..trace.persistent().len() as u64).map(|index| mix(0xbe61, index)).collect();
    state.prologue(&begins)?;
    for _ in 0..2 {
        state.values = reference(trace, &begins);
        state.iteration()?;
        begins = trace.persistent().iter().map(|pair| state.values[pair.end]).collect();
        state.boundary()?;
    }
    Ok(())
}

/// What every value is, by running the trace in its own order with every value in a place of its own.
fn reference(trace: &Trace, begins: &[u64]) -> Table<TensorId, u64> {
    let mut values = Table::filled(trace.tensors().len(), 0);
    for (pair, &value) in trace.persistent().iter().zip(begins) {
        values[pair.begin] = value;
    }
    for (id, op) in trace.ops().iter() {
        let inputs = op.reads.iter().fold(mix(0x09, u64::from(id.0)), |hash, &read| mix(hash, values[read]));
        for (index, &output) in op.outputs.iter().enumerate() {
            values[output] = mix(inputs, index as u64);
        }
    }
    values
}

/// Where a read or a write happens.
#[derive(Clone, Debug)]
enum Place {
    Arena(Range<usize>),
    Host(usize),
}

struct Access {
    place: Place,
    /// `None` for scratch.
    value: Option<TensorId>,
}

#[derive(Default)]
struct Program {
    stream: usize,
    waits: Vec<usize>,
    reads: Vec<Access>,
    writes: Vec<Access>,
    /// The op that it computes, for the first time or again.
    op: Option<OpId>,
}

struct Running {
    /// Inputs as they were at the start.
    seen: Vec<Vec<u64>>,
    poison: u64,
}

struct State<'a> {
    trace: &'a Trace,
    plan: &'a Plan,
    programs: Vec<Option<Program>>,
    arena: Vec<u64>,
    host: Vec<Vec<u64>>,
    /// The host slots of persistent values at the beginning and at the end.
    at_boundaries: Vec<(Option<usize>, Option<usize>)>,
    values: Table<TensorId, u64>,
    random: u64,
}

impl<'a> State<'a> {
    /// Translates the plan, as far as it can be understood at all.
    fn new(trace: &'a Trace, memory: Bytes, plan: &'a Plan, seed: u64) -> Outcome<Self> {
        let mut state = Self {
            trace,
            plan,
            programs: Vec::new(),
            arena: vec![0; memory.get() as usize],
            host: Vec::new(),
            at_boundaries: Vec::new(),
            values: Table::new(),
            random: seed,
        };
        let schedule = &plan.schedule;
        if schedule.boundary.len() != trace.persistent().len() || plan.trace != trace.fingerprint() {
            return Err("not for this trace");
        }
        let mut copies: BTreeMap<TensorId, usize> = BTreeMap::new();
        for (at_boundary, pair) in schedule.boundary.iter().zip(trace.persistent()) {
            let slot = at_boundary.host.then(|| state.slot(pair.begin));
            if let Some(slot) = slot {
                copies.insert(pair.begin, slot);
            }
            if at_boundary.device.is_none() && slot.is_none() {
                return Err("homeless");
            }
            state.at_boundaries.push((slot, None));
        }
        let mut runs = vec![0; trace.ops().len()];
        for step in schedule.steps.values() {
            let mut program = Program::default();
            match &step.action {
                Action::Compute(launch) | Action::Recompute(launch) => {
                    state.launch(launch, &mut program)?;
                    runs[launch.op.index()] += 1;
                }
                &Action::Offload { tensor: value, from } => {
                    program.reads.push(state.access(from, value)?);
                    let slot = state.slot(value);
                    program.writes.push(Access { place: Place::Host(slot), value: Some(value) });
                    copies.insert(value, slot);
                }
                &Action::Prefetch { tensor: value, to } => {
                    let &slot = copies.get(&value).ok_or("no host copy")?;
                    program.reads.push(Access { place: Place::Host(slot), value: Some(value) });
                    program.writes.push(state.access(to, value)?);
                }
                Action::Release { .. } => {}
                Action::HostRelease { tensor: value } => {
                    copies.remove(value).ok_or("no host copy to release")?;
                }
            }
            let program = step.action.stream().map(|stream| {
                program.stream = stream.index();
                program.waits = step.waits.iter().map(|wait| wait.index()).collect();
                program
            });
            state.programs.push(program);
        }
        for (op, runs) in trace.ops().values().zip(runs) {
            if runs == 0 || (runs > 1 && op.again == Again::Never) {
                return Err("an op that does not run as often as it must");
            }
        }
        for (index, (at_boundary, pair)) in schedule.boundary.iter().zip(trace.persistent()).enumerate() {
            if at_boundary.host {
                state.at_boundaries[index].1 = Some(*copies.get(&pair.end).ok_or("no host copy at the end")?);
            }
        }
        Ok(state)
    }

    fn slot(&mut self, value: TensorId) -> usize {
        self.host.push(vec![0; self.trace.bytes(value).get() as usize]);
        self.host.len() - 1
    }

    fn range(&self, buffer: BufferId, bytes: Bytes) -> Outcome<Range<usize>> {
        let offset = self.plan.placement.offsets.get(buffer).ok_or("unknown buffer")?;
        let (start, end) = (offset.get() as usize, (offset.get() + bytes.get()) as usize);
        if end > self.arena.len() || end > self.plan.placement.height.get() as usize {
            return Err("outside of the arena");
        }
        Ok(start..end)
    }

    fn access(&self, buffer: BufferId, value: TensorId) -> Outcome<Access> {
        if value.index() >= self.trace.tensors().len() {
            return Err("unknown value");
        }
        Ok(Access { place: Place::Arena(self.range(buffer, self.trace.bytes(value))?), value: Some(value) })
    }

    fn launch(&self, launch: &Launch, program: &mut Program) -> Outcome<()> {
        program.op = Some(launch.op);
        let op = self.trace.ops().get(launch.op).ok_or("unknown op")?;
        let arity = op.reads.len() == launch.reads.len() && op.outputs.len() == launch.writes.len();
        if !arity || launch.workspace.is_none() != op.workspace.is_zero() {
            return Err("arity");
        }
        for (&value, &buffer) in op.reads.iter().zip(&launch.reads) {
            program.reads.push(self.access(buffer, value)?);
        }
        for (&value, &buffer) in op.outputs.iter().zip(&launch.writes) {
            program.writes.push(self.access(buffer, value)?);
        }
        if let Some(buffer) = launch.workspace {
            let place = Place::Arena(self.range(buffer, op.workspace)?);
            program.writes.push(Access { place, value: None });
        }
        // What kernels can do: no overlap at all, except exact aliases that the trace names.
        for (index, write) in program.writes.iter().enumerate() {
            let bytes = write.bytes();
            if program.writes[..index].iter().any(|other| meet(&other.bytes(), &bytes)) {
                return Err("two outputs in one place");
            }
            for read in &program.reads {
                let alias = write.value.is_some_and(|output| {
                    let input = read.value.unwrap_or(output);
                    op.overwrites(output) == Some(input) || op.may_reuse.contains(&Reuse { input, output })
                });
                if meet(&read.bytes(), &bytes) && !(alias && read.bytes().start == bytes.start) {
                    return Err("an output over an input");
                }
            }
            if let Some(old) = write.value.and_then(|output| op.overwrites(output)) {
                let at_old = |read: &&Access| read.value == Some(old);
                if program.reads.iter().filter(at_old).any(|read| read.bytes().start != bytes.start) {
                    return Err("a mutation that is none");
                }
            }
        }
        Ok(())
    }

    /// The boundary, read as instructions.
    fn prologue(&mut self, begins: &[u64]) -> Outcome<()> {
        for (index, pair) in self.trace.persistent().iter().enumerate() {
            let bytes = self.trace.bytes(pair.begin);
            let content: Vec<u64> = (0..bytes.get()).map(|k| mix(begins[index], k)).collect();
            if let Some(buffer) = self.plan.schedule.boundary[index].device {
                let range = self.range(buffer, bytes)?;
                self.arena[range].copy_from_slice(&content);
            }
            if let Some(slot) = self.at_boundaries[index].0 {
                self.host[slot] = content;
            }
        }
        Ok(())
    }

    fn iteration(&mut self) -> Outcome<()> {
        let mut queues: [Vec<usize>; 3] = Default::default();
        for (id, program) in self.programs.iter().enumerate().rev() {
            if let Some(program) = program {
                queues[program.stream].push(id);
            }
        }
        // Some seeds run one stream as early as possible, others as late as possible.
        let favourite = self.draw(3);
        let hurry = self.draw(4);
        let mut running: [Option<Running>; 3] = [None, None, None];
        let mut done = vec![false; self.programs.len()];
        let mut ran = vec![false; self.trace.ops().len()];
        loop {
            let mut enabled: Vec<usize> = Vec::new();
            for stream in 0..3 {
                let Some(&next) = queues[stream].last() else { continue };
                let Some(program) = &self.programs[next] else { continue };
                for &wait in &program.waits {
                    if self.programs.get(wait).is_none_or(Option::is_none) {
                        return Err("a wait for nothing");
                    }
                }
                if running[stream].is_some() || program.waits.iter().all(|&wait| done[wait]) {
                    enabled.push(stream);
                }
            }
            if enabled.is_empty() {
                return if queues.iter().all(Vec::is_empty) {
                    Ok(())
                } else {
                    Err("streams block one another")
                };
            }
            let preferred: Vec<usize> = match hurry {
                0 => enabled.iter().copied().filter(|&stream| stream == favourite).collect(),
                1 => enabled.iter().copied().filter(|&stream| stream != favourite).collect(),
                // Starts first: as much as possible happens at once.
                2 => enabled.iter().copied().filter(|&stream| running[stream].is_none()).collect(),
                _ => Vec::new(),
            };
            let from = if preferred.is_empty() || self.draw(8) == 0 { &enabled } else { &preferred };
            let stream = from[self.draw(from.len())];
            let Some(&id) = queues[stream].last() else { continue };
            match running[stream].take() {
                None => running[stream] = Some(self.start(id)),
                Some(state) => {
                    self.end(id, &state)?;
                    done[id] = true;
                    let op = self.programs[id].as_ref().and_then(|program| program.op);
                    if let Some(op) = op {
                        if self.trace.ops()[op].after.iter().any(|other| !ran[other.index()]) {
                            return Err("an op before one that it has to follow");
                        }
                        ran[op.index()] = true;
                    }
                    queues[stream].pop();
                }
            }
        }
    }

    fn start(&mut self, id: usize) -> Running {
        let Some(program) = self.programs[id].take() else {
            unreachable!("only actions of a stream are started")
        };
        let seen = program.reads.iter().map(|read| self.bytes(&read.place).to_vec()).collect();
        let poison = self.next();
        for write in &program.writes {
            self.bytes_mut(&write.place).fill(poison);
        }
        self.programs[id] = Some(program);
        Running { seen, poison }
    }

    fn end(&mut self, id: usize, state: &Running) -> Outcome<()> {
        let Some(program) = self.programs[id].take() else { unreachable!("only what was started ends") };
        for (read, seen) in program.reads.iter().zip(&state.seen) {
            let now = self.bytes(&read.place);
            // Its own poison is where it writes over what it reads.
            if now.iter().zip(seen).any(|(now, seen)| now != seen && *now != state.poison) {
                return Err("an input changed while it was read");
            }
            let value = self.values[read.value.unwrap_or(TensorId(0))];
            if seen.iter().enumerate().any(|(k, &byte)| byte != mix(value, k as u64)) {
                return Err("a read found something else");
            }
        }
        for write in &program.writes {
            let value = write.value.map(|value| self.values[value]);
            for (k, byte) in self.bytes_mut(&write.place).iter_mut().enumerate() {
                if *byte != state.poison {
                    return Err("an output changed while it was written");
                }
                *byte = value.map_or(state.poison, |value| mix(value, k as u64));
            }
        }
        self.programs[id] = Some(program);
        Ok(())
    }

    /// Checks the end, keeps what the boundary keeps and destroys everything else.
    fn boundary(&mut self) -> Outcome<()> {
        let mut arena: Vec<u64> = vec![0xdead; self.arena.len()];
        let mut host: Vec<Vec<u64>> = self.host.iter().map(|slot| vec![0xdead; slot.len()]).collect();
        for (index, pair) in self.trace.persistent().iter().enumerate() {
            let value = self.values[pair.end];
            let bytes = self.trace.bytes(pair.end);
            let right =
                |bytes: &[u64]| bytes.iter().enumerate().all(|(k, &byte)| byte == mix(value, k as u64));
            if let Some(buffer) = self.plan.schedule.boundary[index].device {
                let range = self.range(buffer, bytes)?;
                if !right(&self.arena[range.clone()]) {
                    return Err("a home does not hold its value at the end");
                }
                arena[range.clone()].copy_from_slice(&self.arena[range]);
            }
            if let (Some(begin), Some(end)) = self.at_boundaries[index] {
                if !right(&self.host[end]) {
                    return Err("a host copy is wrong at the end");
                }
                host[begin] = self.host[end].clone();
            }
        }
        self.arena = arena;
        self.host = host;
        Ok(())
    }

    fn bytes(&self, place: &Place) -> &[u64] {
        match place {
            Place::Arena(range) => &self.arena[range.clone()],
            Place::Host(slot) => &self.host[*slot],
        }
    }

    fn bytes_mut(&mut self, place: &Place) -> &mut [u64] {
        match place {
            Place::Arena(range) => &mut self.arena[range.clone()],
            Place::Host(slot) => &mut self.host[*slot],
        }
    }

    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.random, 0x5eed)
    }

    fn draw(&mut self, below: usize) -> usize {
        (self.next() % below as u64) as usize
    }
}

impl Access {
    /// Bytes of the arena; nothing for the host.
    fn bytes(&self) -> Range<usize> {
        match &self.place {
            Place::Arena(range) => range.clone(),
            Place::Host(_) => 0..0,
        }
    }
}

fn meet(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// One number from two, well mixed.
fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(17) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

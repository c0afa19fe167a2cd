//! What follows from a policy before any time is known: which value is in which buffer at every op, which residences there are, when
//! each opens and closes, and which copies must be made.
//!
//! One pass over the sequence. A residence closes after the op that uses it last, or, if its value is offloaded, when that copy is done
//! too. Mutations stay in their residence; a chosen reuse hands the residence of a dying input to the output.

use elbowroom_ir::machine::Machine;
use elbowroom_ir::schedule::Buffer;
use elbowroom_ir::trace::{Again, Op, Trace};
use elbowroom_ir::{Bytes, Id, OpId, TensorId};

use crate::lower::program::{Close, Fetch, Offload, Open, Program, Residence};
use crate::policy::{Away, Gap, Place, Policy, Reuses, Station, Touch, Touches};

/// Why a policy contradicts itself or its trace. None of these depends on a limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// An op is missing from the sequence.
    #[error("the policy never runs {0}")]
    Missing(OpId),
    /// The sequence names an op that the trace does not have.
    #[error("the policy runs {0}, which the trace does not have")]
    Unknown(OpId),
    /// An op runs twice that must run once.
    #[error("the policy runs {0} again, which must run once only")]
    Again(OpId),
    /// A station is missing or superfluous.
    #[error("the policy has {stations} stations for {persistent} persistent values")]
    Stations {
        /// Stations in the policy.
        stations: usize,
        /// Persistent values of the trace.
        persistent: usize,
    },
    /// A value is read when it is nowhere.
    #[error(
        "at place {place}, {op} reads {value}, which was dropped, has no host copy and was not made again"
    )]
    Absent {
        /// Place in the sequence.
        place: Place,
        /// The op.
        op: OpId,
        /// The value.
        value: TensorId,
    },
    /// A value is overwritten in place while it is still needed from there.
    #[error("at place {place}, {op} overwrites {value}, which is needed later and has no host copy by then")]
    Overwritten {
        /// Place in the sequence.
        place: Place,
        /// The op.
        op: OpId,
        /// The value.
        value: TensorId,
    },
    /// The value of a boundary is not there at the end.
    #[error("{0} should be on the device when the iteration ends, but was dropped")]
    Left(TensorId),
    /// The value of a boundary cannot end where it began.
    #[error("{0} cannot end in the buffer of its beginning, which is still in use when it is made")]
    HomeTaken(TensorId),
}

/// What is known of one value during the pass.
#[derive(Clone, Copy, Default)]
struct State {
    residence: Option<u32>,
    /// Where it was made, or `None` if it was there.
    made: Option<Place>,
    host: Host,
    left: Option<u32>,
    gone: Option<Place>,
    /// The last fetch of its host copy.
    fetch: Option<u32>,
    /// The number of its next touch.
    next: u32,
    /// Index of the persistent pair that it begins or ends, plus one.
    begins: u32,
    ends: u32,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Host {
    #[default]
    None,
    Boundary,
    Offload(u32),
}

pub(crate) fn analyse(trace: &Trace, machine: &Machine, policy: &Policy) -> Result<Program, PolicyError> {
    sound(trace, policy)?;
    let touches = Touches::of(trace, &policy.sequence);
    let mut away = vec![None; touches.len()];
    for (&gap, &how) in &policy.away {
        if let Some(after) = gap.after.filter(|_| gap.value.index() < trace.tensors().len()) {
            let touched = touches.of_value(gap.value);
            if let Ok(index) = touched.binary_search_by_key(&after, |touch| touch.place) {
                away[touches.numbers(gap.value).start as usize + index] = Some(how);
            }
        }
    }
    analyse_gaps(trace, machine, policy, &touches, &away)
}

/// The same for a policy whose sequence is known to be sound, whose touches are known, and that says in `away`, per touch, how the value
/// is away in the gap that begins there; what it says of gaps between touches in its own way does not count.
pub(crate) fn analyse_gaps(
    trace: &Trace,
    machine: &Machine,
    policy: &Policy,
    touches: &Touches,
    away: &[Option<Away>],
) -> Result<Program, PolicyError> {
    let mut states = vec![State::default(); trace.tensors().len()];
    for (value, state) in trace.tensors().ids().zip(&mut states) {
        state.next = touches.numbers(value).start;
    }
    let mut pass = Pass {
        trace,
        policy,
        touches,
        align: machine.align,
        program: Program::default(),
        states,
        away,
        bound: vec![None; trace.storages().len()],
        taken: Vec::new(),
    };
    pass.begin();
    for place in 0..policy.sequence.len() {
        pass.place(place as Place)?;
    }
    pass.end()?;
    Ok(pass.program)
}

fn sound(trace: &Trace, policy: &Policy) -> Result<(), PolicyError> {
    let mut seen = vec![false; trace.ops().len()];
    for &op in &policy.sequence {
        let row = trace.ops().get(op).ok_or(PolicyError::Unknown(op))?;
        if std::mem::replace(&mut seen[op.index()], true) && row.again == Again::Never {
            return Err(PolicyError::Again(op));
        }
    }
    if let Some(missing) = seen.iter().position(|seen| !seen) {
        return Err(PolicyError::Missing(OpId::new(missing)));
    }
    let (stations, persistent) = (policy.stations.len(), trace.persistent().len());
    if stations != persistent {
        return Err(PolicyError::Stations { stations, persistent });
    }
    Ok(())
}

struct Pass<'a> {
    trace: &'a Trace,
    policy: &'a Policy,
    touches: &'a Touches,
    /// Per touch: how its value is away in the gap that begins there.
    away: &'a [Option<Away>],
    align: Bytes,
    program: Program,
    states: Vec<State>,
    /// Per storage: the persistent value that ends there, if its device home is another storage's.
    bound: Vec<Option<u32>>,
    /// Residences handed over at the current place.
    taken: Vec<u32>,
}

impl Pass<'_> {
    fn state(&mut self, value: TensorId) -> &mut State {
        &mut self.states[value.index()]
    }

    fn open(&mut self, value: TensorId, open: Open) -> u32 {
        let bytes = self.trace.bytes(value);
        let buffer = self.program.buffers.push(Buffer { bytes });
        let bytes = bytes.align_up(self.align).get();
        let close = Close::Never;
        self.program.residences.push(Residence { value, buffer, bytes, open, close, follows: None });
        (self.program.residences.len() - 1) as u32
    }

    fn close(&mut self, value: TensorId, residence: u32, close: Close, place: Option<Place>) {
        self.program.residences[residence as usize].close = close;
        let state = self.state(value);
        state.residence = None;
        state.left = Some(residence);
        state.gone = place;
    }

    fn station(&self, pair: u32) -> Option<Station> {
        pair.checked_sub(1).map(|pair| self.policy.stations[pair as usize])
    }

    fn begin(&mut self) {
        for (index, pair) in self.trace.persistent().iter().enumerate() {
            self.state(pair.begin).begins = index as u32 + 1;
            self.state(pair.end).ends = index as u32 + 1;
            let station = self.policy.stations[index];
            let mut home = None;
            if station != Station::Host {
                let residence = self.open(pair.begin, Open::Boundary);
                self.state(pair.begin).residence = Some(residence);
                home = Some(residence);
            }
            if station != Station::Device {
                self.state(pair.begin).host = Host::Boundary;
            }
            let (begin, end) = (self.trace.storage(pair.begin), self.trace.storage(pair.end));
            if home.is_some() && begin != end {
                self.bound[end.index()] = Some(index as u32);
            }
            self.program.homes.push(home);
        }
        for pair in self.trace.persistent() {
            if self.state(pair.begin).residence.is_some() {
                self.settle(pair.begin, None);
            }
        }
    }

    /// Notes that a place touches a value.
    fn touch(&mut self, value: TensorId, place: Place) {
        let next = self.states[value.index()].next;
        if next < self.touches.numbers(value).end && self.touches.at(next).place == place {
            self.states[value.index()].next += 1;
        }
    }

    /// The next touch of a value, if there is one.
    fn next(&self, value: TensorId) -> Option<Touch> {
        let next = self.states[value.index()].next;
        (next < self.touches.numbers(value).end).then(|| self.touches.at(next))
    }

    /// How the policy has a value away in the gap that begins after a place, its latest touch.
    fn away(&self, value: TensorId, place: Option<Place>) -> Option<Away> {
        match place {
            Some(_) => self.away[self.states[value.index()].next as usize - 1],
            None => self.policy.away.get(&Gap { value, after: None }).copied(),
        }
    }

    /// Whether anything needs the value on the device again: a touch, or the boundary.
    fn needed_again(&self, value: TensorId) -> bool {
        let station = self.station(self.states[value.index()].ends);
        self.next(value).is_some() || matches!(station, Some(Station::Device | Station::Both))
    }

    /// Whether the value gives up its residence after a place without an offload.
    fn gives_up(&self, value: TensorId, place: Place) -> bool {
        let state = &self.states[value.index()];
        let copied = state.host != Host::None;
        if !self.needed_again(value) {
            return state.ends == 0 || copied;
        }
        match self.away(value, Some(place)) {
            Some(Away::Drop) => true,
            Some(Away::Offload) => copied,
            None => false,
        }
    }

    /// Applies the policy to the gap of a resident value that begins after a place.
    fn settle(&mut self, value: TensorId, place: Option<Place>) {
        let state = self.states[value.index()];
        let Some(residence) = state.residence else { return };
        let copied = state.host != Host::None;
        let gap = Gap { value, after: place };
        let away = if self.needed_again(value) {
            self.away(value, place)
        } else if state.ends != 0 {
            Some(Away::Offload)
        } else {
            Some(Away::Drop)
        };
        let both = self.next(value).is_none() && self.station(state.ends) == Some(Station::Both);
        match away {
            Some(Away::Offload) if !copied => {
                let copy = self.offload(gap, residence, true);
                self.close(value, residence, Close::Offload(copy), place);
            }
            Some(_) => self.close(value, residence, Close::After(place), place),
            None if both && !copied => {
                self.offload(gap, residence, false);
            }
            None => {}
        }
    }

    fn offload(&mut self, gap: Gap, residence: u32, closes: bool) -> u32 {
        let copy = self.program.offloads.len() as u32;
        let state = self.state(gap.value);
        state.host = Host::Offload(copy);
        let made = state.made;
        self.program.offloads.push(Offload { gap, residence, made, wanted: false, closes });
        copy
    }

    fn fetch(&mut self, value: TensorId, needed: Place) -> Option<u32> {
        let state = self.states[value.index()];
        match state.host {
            Host::None => return None,
            Host::Boundary => {}
            Host::Offload(copy) => self.program.offloads[copy as usize].wanted = true,
        }
        let copy = self.program.fetches.len() as u32;
        let residence = self.open(value, Open::Fetch(copy));
        let gap = Gap { value, after: state.gone };
        self.program.fetches.push(Fetch { gap, residence, needed, left: state.left, last: false });
        let state = self.state(value);
        state.residence = Some(residence);
        state.left = None;
        state.fetch = Some(copy);
        Some(residence)
    }

    fn place(&mut self, place: Place) -> Result<(), PolicyError> {
        let trace = self.trace;
        let id = self.policy.sequence[place as usize];
        let op = &trace.ops()[id];
        self.taken.clear();
        self.program.operand_starts.push(self.program.operands.len() as u32);
        for &value in &op.reads {
            self.touch(value, place);
            let residence = match self.states[value.index()].residence {
                Some(residence) => residence,
                None => self.fetch(value, place).ok_or(PolicyError::Absent { place, op: id, value })?,
            };
            self.program.operands.push(residence);
        }
        let outputs = self.program.operands.len();
        for &value in &op.outputs {
            let residence = self.destination(place, id, op, value)?;
            self.program.operands.push(residence);
        }
        // Overwritten inputs are gone; the others and the outputs go where the policy says.
        for (index, &value) in op.reads.iter().enumerate() {
            let residence = self.program.operands[outputs - op.reads.len() + index];
            if self.states[value.index()].residence != Some(residence) {
                continue;
            }
            if self.taken.contains(&residence) {
                let state = self.state(value);
                state.residence = None;
                state.left = None;
                state.gone = Some(place);
            } else if !op.outputs.contains(&value) {
                self.settle(value, Some(place));
            }
        }
        for (index, &value) in op.outputs.iter().enumerate() {
            let residence = self.program.operands[outputs + index];
            self.touch(value, place);
            if self.states[value.index()].residence.is_some() {
                // It is still here from an earlier run: the new copy is not wanted.
                self.program.residences[residence as usize].close = Close::After(Some(place));
                self.settle(value, Some(place));
                continue;
            }
            let state = self.state(value);
            state.residence = Some(residence);
            state.made = Some(place);
            self.settle(value, Some(place));
        }
        let workspace =
            (!op.workspace.is_zero()).then(|| self.program.buffers.push(Buffer { bytes: op.workspace }));
        self.program.workspaces.push(workspace);
        Ok(())
    }

    /// The residence to which an op writes an output.
    fn destination(&mut self, place: Place, id: OpId, op: &Op, output: TensorId) -> Result<u32, PolicyError> {
        if let Some(old) = op.overwrites(output) {
            let state = self.states[old.index()];
            let lost = PolicyError::Overwritten { place, op: id, value: old };
            let residence = state.residence.filter(|r| !self.taken.contains(r)).ok_or(lost.clone())?;
            let next = self.next(old);
            if next.is_some_and(|touch| !touch.made) && !self.gives_up(old, place) {
                return Err(lost);
            }
            self.taken.push(residence);
            return Ok(residence);
        }
        for pair in op.may_reuse.iter().filter(|pair| pair.output == output) {
            let Some(residence) = self.states[pair.input.index()].residence else { continue };
            if self.chosen(output, residence)
                && op.overwritten_by(pair.input).is_none()
                && !op.outputs.contains(&pair.input)
                && !self.taken.contains(&residence)
                && self.gives_up(pair.input, place)
                && self.home_allows(residence, output)
            {
                self.taken.push(residence);
                return Ok(residence);
            }
        }
        Ok(self.open(output, Open::Op(place)))
    }

    /// Whether the policy lets an output take over a residence. Taking a larger one would keep bytes that are not needed, so
    /// [`Reuses::Every`] does not.
    fn chosen(&self, output: TensorId, residence: u32) -> bool {
        match &self.policy.reuses {
            Reuses::Every => {
                let bytes = self.trace.bytes(output).align_up(self.align).get();
                self.program.residences[residence as usize].bytes == bytes
            }
            Reuses::Never => false,
            Reuses::Only(outputs) => outputs.contains(&output),
        }
    }

    /// A home buffer is taken over by the value that must end there and by no other, and that value takes over no other buffer.
    fn home_allows(&self, residence: u32, output: TensorId) -> bool {
        match self.bound[self.trace.storage(output).index()] {
            Some(pair) => self.program.homes[pair as usize] == Some(residence),
            None => self.program.residences[residence as usize].open != Open::Boundary,
        }
    }

    fn end(&mut self) -> Result<(), PolicyError> {
        let end = self.policy.sequence.len() as Place;
        for (index, pair) in self.trace.persistent().iter().enumerate() {
            let station = self.policy.stations[index];
            if station != Station::Device {
                match self.states[pair.end.index()].host {
                    Host::Offload(copy) => self.program.offloads[copy as usize].wanted = true,
                    Host::Boundary => {}
                    Host::None => return Err(PolicyError::Left(pair.end)),
                }
            }
            let Some(home) = self.program.homes[index] else { continue };
            let residence = match self.states[pair.end.index()].residence {
                Some(residence) => residence,
                None => self.fetch(pair.end, end).ok_or(PolicyError::Left(pair.end))?,
            };
            if residence != home {
                self.return_home(pair.end, home, residence)?;
            }
        }
        self.program.operand_starts.push(self.program.operands.len() as u32);
        self.program.drop_unused_buffers();
        for copy in 0..self.program.offloads.len() {
            let Offload { gap, residence, wanted, closes, .. } = self.program.offloads[copy];
            if !wanted && closes {
                self.program.residences[residence as usize].close = Close::After(gap.after);
            }
        }
        for value in self.trace.tensors().ids() {
            let state = self.states[value.index()];
            let kept = matches!(self.station(state.ends), Some(Station::Host | Station::Both));
            match (state.host, state.fetch) {
                (Host::None, _) => {}
                _ if kept => {}
                (_, Some(fetch)) => self.program.fetches[fetch as usize].last = true,
                (Host::Boundary, None) => self.program.stale.push(value),
                (Host::Offload(_), None) => {}
            }
        }
        Ok(())
    }

    /// Binds the last residence of a persistent value to the buffer of its first.
    fn return_home(&mut self, end: TensorId, home: u32, residence: u32) -> Result<(), PolicyError> {
        let left = match self.program.residences[home as usize].close {
            Close::Never => return Err(PolicyError::HomeTaken(end)),
            Close::After(place) => place,
            Close::Offload(copy) => self.program.offloads[copy as usize].gap.after,
        };
        let opens = match self.program.residences[residence as usize].open {
            Open::Boundary => None,
            Open::Op(place) => Some(place),
            Open::Fetch(copy) => Some(self.program.fetches[copy as usize].needed),
        };
        if left >= opens {
            return Err(PolicyError::HomeTaken(end));
        }
        let buffer = self.program.residences[home as usize].buffer;
        let row = &mut self.program.residences[residence as usize];
        row.buffer = buffer;
        row.follows = Some(home);
        Ok(())
    }
}

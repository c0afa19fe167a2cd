//! The parser. It checks everything, allocates at most a small multiple of the text's size, and stops at the first error.

use std::str::FromStr;

use super::line::Line;
use super::{File, FileError, PlanFile, TraceFile};
use crate::machine::{Channel, Machine};
use crate::packing::Placement;
use crate::plan::Plan;
use crate::planning::{CostSource, Costs};
use crate::schedule::{Action, BoundaryState, Buffer, Launch, Schedule, Step};
use crate::trace::{
    Again, Fingerprint, Mutation, Op, Persistent, Phase, Reuse, Storage, Tensor, Trace, TraceData, Work,
};
use crate::{ActionId, BufferId, Bytes, Id, Nanos, OpId, StorageId, Table, TensorId};

impl FromStr for File {
    type Err = FileError;

    fn from_str(text: &str) -> Result<Self, FileError> {
        match header(text)?.0 {
            FileKind::Trace => TraceFile::from_str(text).map(|file| Self::Trace(Box::new(file))),
            FileKind::Plan => PlanFile::from_str(text).map(|file| Self::Plan(Box::new(file))),
        }
    }
}

impl FromStr for TraceFile {
    type Err = FileError;

    fn from_str(text: &str) -> Result<Self, FileError> {
        let (kind, lines) = header(text)?;
        if kind == FileKind::Plan {
            return Err(FileError::Kind { found: "plan", wanted: "trace" });
        }
        let mut data = TraceData::default();
        let mut named = false;
        let mut machine = None;
        let mut source = None;
        let mut nanos: Table<OpId, Nanos> = Table::new();
        for mut line in lines {
            if let Some(id) = line.try_id(StorageId::PREFIX)? {
                sequence(&mut line, StorageId(id), data.storages.len())?;
                data.storages.push(Storage { bytes: Bytes(line.number("a size in bytes")?) });
            } else if let Some(id) = line.try_id(TensorId::PREFIX)? {
                sequence(&mut line, TensorId(id), data.tensors.len())?;
                let storage = StorageId(line.id(StorageId::PREFIX)?);
                data.tensors.push(Tensor { storage, name: line.string("the tensor's name")? });
            } else if let Some(id) = line.try_id(OpId::PREFIX)? {
                sequence(&mut line, OpId(id), data.ops.len())?;
                let (op, duration) = op(&mut line)?;
                data.ops.push(op);
                if let Some(duration) = duration {
                    nanos.push(duration);
                }
            } else {
                match line.peek() {
                    Some("name") => {
                        once(&mut line, &mut named)?;
                        data.name = line.string("the trace's name")?;
                    }
                    Some("machine") => unique(&mut line, &mut machine, read_machine)?,
                    Some("costs") => unique(&mut line, &mut source, cost_source)?,
                    Some("persistent") => {
                        line.word();
                        let pairs = line.pairs(TensorId::PREFIX, TensorId)?;
                        let &[(begin, end)] = pairs.as_slice() else {
                            return Err(line.error("one pair of tensors like t1->t2 belongs on this line"));
                        };
                        data.persistent.push(Persistent { begin, end });
                    }
                    _ => {
                        return Err(line.expected(
                            "a line that begins with name, machine, costs, persistent or an id like s0, t0, op0",
                        ));
                    }
                }
            }
            line.end()?;
        }
        // Durations without a source are of unknown origin; somebody recorded them.
        let source = source.or((!nanos.is_empty()).then_some(CostSource::Recorded));
        let costs = source.map(|source| Costs { nanos, source });
        Self::new(Trace::new(data)?, costs, machine)
    }
}

impl FromStr for PlanFile {
    type Err = FileError;

    fn from_str(text: &str) -> Result<Self, FileError> {
        let (kind, lines) = header(text)?;
        if kind == FileKind::Trace {
            return Err(FileError::Kind { found: "trace", wanted: "plan" });
        }
        let mut schedule = Schedule::default();
        let mut placement = Placement::default();
        let (mut trace, mut machine, mut height) = (None, None, None);
        let mut last = 1;
        for mut line in lines {
            last = line.line_number();
            match line.peek() {
                Some("trace") => unique(&mut line, &mut trace, fingerprint)?,
                Some("machine") => unique(&mut line, &mut machine, read_machine)?,
                Some("height") => unique(&mut line, &mut height, |line| line.number("a height in bytes"))?,
                _ => {
                    if schedule_line(&mut line, &mut schedule)? {
                        if line.word() != Some("at") {
                            return Err(
                                line.error("a plan says where every buffer lies; add `at` and its offset")
                            );
                        }
                        placement.offsets.push(Bytes(line.number("an offset in bytes")?));
                    }
                }
            }
            line.end()?;
        }
        let missing = |line: &str| FileError::Syntax {
            line: last,
            column: 1,
            what: format!("the plan ends here without its `{line}` line; add it"),
        };
        placement.height = Bytes(height.ok_or_else(|| missing("height"))?);
        let trace = trace.ok_or_else(|| missing("trace"))?;
        Self::new(Plan { trace, schedule, placement }, machine.ok_or_else(|| missing("machine"))?)
    }
}

/// Reads the lines that say when things happen, without a header.
impl FromStr for Schedule {
    type Err = FileError;

    fn from_str(text: &str) -> Result<Self, FileError> {
        let mut schedule = Self::default();
        for mut line in lines(text) {
            schedule_line(&mut line, &mut schedule)?;
            line.end()?;
        }
        Ok(schedule)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Trace,
    Plan,
}

/// Lines that are neither blank nor comments.
fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let lines = text.strip_prefix('\u{feff}').unwrap_or(text).lines().enumerate();
    lines
        .map(|(index, text)| Line::new(text, index + 1))
        .filter_map(|mut line| (!line.is_done()).then_some(line))
}

/// The first line, and the lines after it.
fn header(text: &str) -> Result<(FileKind, impl Iterator<Item = Line<'_>>), FileError> {
    let mut lines = lines(text);
    let mut line = lines.next().unwrap_or(Line::new("", 1));
    let what = "`elbowroom trace 1` or `elbowroom plan 1` as the first line";
    if line.peek() != Some("elbowroom") {
        return Err(line.expected(what));
    }
    line.word();
    let kind = match line.peek() {
        Some("trace") => FileKind::Trace,
        Some("plan") => FileKind::Plan,
        _ => return Err(line.expected(what)),
    };
    line.word();
    if line.peek() != Some("1") {
        return Err(line.expected("version 1 of the format, the only one that this program reads"));
    }
    line.word();
    line.end()?;
    Ok((kind, lines))
}

/// Ids of one kind count up from zero, so that a single id cannot cause a large allocation.
fn sequence<K: Id>(line: &mut Line<'_>, id: K, len: usize) -> Result<(), FileError> {
    if id.index() == len {
        return Ok(());
    }
    Err(line
        .error(format!("{id} stands here, but the next of its kind is number {len}; ids count up from zero")))
}

/// Takes the next word; an error if it occurred before.
fn once(line: &mut Line<'_>, taken: &mut bool) -> Result<(), FileError> {
    if std::mem::replace(taken, true) {
        return Err(line.expected("each of these words once"));
    }
    line.word();
    Ok(())
}

/// Takes the next word and reads its argument; an error if it occurred before.
fn unique<'a, T>(
    line: &mut Line<'a>,
    slot: &mut Option<T>,
    read: impl FnOnce(&mut Line<'a>) -> Result<T, FileError>,
) -> Result<(), FileError> {
    once(line, &mut slot.is_some())?;
    *slot = Some(read(line)?);
    Ok(())
}

/// Takes the next word if it is one of those given.
fn one_of<T: Copy>(line: &mut Line<'_>, what: &str, words: &[(&str, T)]) -> Result<T, FileError> {
    let found = line.peek().and_then(|word| words.iter().find(|(known, _)| *known == word));
    match found {
        Some(&(_, meaning)) => {
            line.word();
            Ok(meaning)
        }
        None => {
            let known: Vec<&str> = words.iter().map(|&(word, _)| word).collect();
            Err(line.expected(&format!("{what} ({})", known.join(", "))))
        }
    }
}

fn cost_source(line: &mut Line<'_>) -> Result<CostSource, FileError> {
    let sources = [CostSource::Measured, CostSource::Recorded, CostSource::Captured, CostSource::Roofline];
    let words = sources.map(|source| (source.name(), source));
    one_of(line, "where durations come from", &words)
}

fn fingerprint(line: &mut Line<'_>) -> Result<Fingerprint, FileError> {
    let word = line.peek().unwrap_or("");
    if word.len() != 16 || !word.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(line.expected("the trace's fingerprint, 16 digits in hex"));
    }
    let fingerprint = word.parse().map_err(|_| line.expected("the trace's fingerprint"))?;
    line.word();
    Ok(fingerprint)
}

fn read_machine(line: &mut Line<'_>) -> Result<Machine, FileError> {
    let name = line.string("the machine's name")?;
    let memory = Bytes(key(line, "memory")?);
    let align = Bytes(key(line, "align")?);
    let host_memory = Bytes(key(line, "host-memory")?);
    let to_host = channel(line, "to-host")?;
    let to_device = channel(line, "to-device")?;
    one_of(line, "what the machine's line goes on with", &[("link", ())])?;
    let shared_link = one_of(line, "the kind of link", &[("shared", true), ("separate", false)])?;
    let flops_per_second = key(line, "flops-per-second")?;
    let bytes_per_second = key(line, "bytes-per-second")?;
    let launch = Nanos(key(line, "launch")?);
    let has_halves = line.peek() == Some("half-flops-per-second");
    let half_flops_per_second = if has_halves { Some(key(line, "half-flops-per-second")?) } else { None };
    Ok(Machine {
        name,
        memory,
        align,
        host_memory,
        to_host,
        to_device,
        shared_link,
        flops_per_second,
        half_flops_per_second,
        bytes_per_second,
        launch,
    })
}

fn channel(line: &mut Line<'_>, word: &str) -> Result<Channel, FileError> {
    let latency = Nanos(key(line, word)?);
    Ok(Channel { latency, rate: line.number("a rate in bytes per second")? })
}

/// A word and the number that it announces.
fn key(line: &mut Line<'_>, word: &str) -> Result<u64, FileError> {
    if line.peek() != Some(word) {
        return Err(line.expected(&format!("`{word}` and a number")));
    }
    line.word();
    line.number(word)
}

/// The rest of an op's line, with its duration if it is given.
fn op(line: &mut Line<'_>) -> Result<(Op, Option<Nanos>), FileError> {
    let kind = line.word_or_string("the op's kind, a word or a string")?;
    let name = line.string("the op's name")?;
    let phases = [("forward", Phase::Forward), ("backward", Phase::Backward), ("update", Phase::Update)];
    let phase = one_of(line, "the op's phase", &phases)?;
    let again = [("pure", Again::Pure), ("rng", Again::Rng { stream: 0 }), ("never", Again::Never)];
    let mut again = one_of(line, "whether the op may be recomputed", &again)?;
    if let Again::Rng { stream } = &mut again {
        *stream = line.number("a stream of random numbers")?;
    }
    let (mut reads, mut makes, mut mutates, mut reuses, mut after) = (None, None, None, None, None);
    let (mut workspace, mut flops, mut half_flops, mut moved, mut nanos, mut code) =
        (None, None, None, None, None, None);
    while let Some(word) = line.peek() {
        let tensors = |line: &mut Line<'_>| line.ids(TensorId::PREFIX, TensorId);
        let pairs = |line: &mut Line<'_>| line.pairs(TensorId::PREFIX, TensorId);
        match word {
            "reads" => unique(line, &mut reads, tensors)?,
            "makes" => unique(line, &mut makes, tensors)?,
            "mutates" => unique(line, &mut mutates, pairs)?,
            "reuses" => unique(line, &mut reuses, pairs)?,
            "after" => unique(line, &mut after, |line| line.ids(OpId::PREFIX, OpId))?,
            "workspace" => unique(line, &mut workspace, |line| line.number("a size in bytes"))?,
            "flops" => unique(line, &mut flops, |line| line.number("a number of operations"))?,
            "half-flops" => unique(line, &mut half_flops, |line| line.number("a number of operations"))?,
            "moved" => unique(line, &mut moved, |line| line.number("a number of bytes"))?,
            "nanos" => unique(line, &mut nanos, |line| line.number("a duration in nanoseconds"))?,
            "line" => unique(line, &mut code, |line| line.string("a line of code"))?,
            _ => {
                return Err(line.expected(
                    "one of reads, makes, mutates, reuses, after, workspace, flops, half-flops, moved, nanos, line, or the end of the line",
                ));
            }
        }
    }
    let op = Op {
        name,
        kind,
        phase,
        again,
        reads: reads.unwrap_or_default(),
        outputs: makes.unwrap_or_default(),
        mutates: mutates.unwrap_or_default().into_iter().map(|(old, new)| Mutation { old, new }).collect(),
        may_reuse: reuses
            .unwrap_or_default()
            .into_iter()
            .map(|(input, output)| Reuse { input, output })
            .collect(),
        after: after.unwrap_or_default(),
        workspace: Bytes(workspace.unwrap_or(0)),
        work: Work {
            flops: flops.unwrap_or(0),
            half_flops: half_flops.unwrap_or(0),
            moved: Bytes(moved.unwrap_or(0)),
        },
        line: code.unwrap_or_default(),
    };
    Ok((op, nanos.map(Nanos)))
}

/// A line with a buffer, a boundary state (`home`) or a step. Returns whether it is a buffer, which may be followed by an offset.
fn schedule_line(line: &mut Line<'_>, schedule: &mut Schedule) -> Result<bool, FileError> {
    if let Some(id) = line.try_id(BufferId::PREFIX)? {
        sequence(line, BufferId(id), schedule.buffers.len())?;
        schedule.buffers.push(Buffer { bytes: Bytes(line.number("a size in bytes")?) });
        return Ok(true);
    }
    if let Some(id) = line.try_id(ActionId::PREFIX)? {
        sequence(line, ActionId(id), schedule.steps.len())?;
        let action = action(line)?;
        let waits = follow(line, "waits", |line| line.ids(ActionId::PREFIX, ActionId))?;
        schedule.steps.push(Step { action, waits });
        return Ok(false);
    }
    if line.peek() != Some("home") {
        return Err(
            line.expected("a line that begins with trace, machine, height, home or an id like b0, a0")
        );
    }
    line.word();
    let device = line.try_id(BufferId::PREFIX)?.map(BufferId);
    let host = line.peek() == Some("host");
    if host {
        line.word();
    }
    schedule.boundary.push(BoundaryState { device, host });
    Ok(false)
}

/// The items after a word; none if the word is missing.
fn follow<'a, T: Default>(
    line: &mut Line<'a>,
    word: &str,
    read: impl FnOnce(&mut Line<'a>) -> Result<T, FileError>,
) -> Result<T, FileError> {
    if line.peek() != Some(word) {
        return Ok(T::default());
    }
    line.word();
    read(line)
}

fn action(line: &mut Line<'_>) -> Result<Action, FileError> {
    let verbs =
        ["compute", "recompute", "offload", "prefetch", "release", "host-release"].map(|verb| (verb, verb));
    let verb = one_of(line, "an action", &verbs)?;
    let between = |line: &mut Line<'_>, word| {
        let value = TensorId(line.id(TensorId::PREFIX)?);
        one_of(line, "what stands before a buffer", &[(word, ())])?;
        Ok::<_, FileError>((value, BufferId(line.id(BufferId::PREFIX)?)))
    };
    Ok(match verb {
        "compute" => Action::Compute(launch(line)?),
        "recompute" => Action::Recompute(launch(line)?),
        "offload" => {
            let (value, from) = between(line, "from")?;
            Action::Offload { tensor: value, from }
        }
        "prefetch" => {
            let (value, to) = between(line, "to")?;
            Action::Prefetch { tensor: value, to }
        }
        "release" => Action::Release { buffer: BufferId(line.id(BufferId::PREFIX)?) },
        _ => Action::HostRelease { tensor: TensorId(line.id(TensorId::PREFIX)?) },
    })
}

fn launch(line: &mut Line<'_>) -> Result<Launch, FileError> {
    let buffers = |line: &mut Line<'_>| line.ids(BufferId::PREFIX, BufferId);
    Ok(Launch {
        op: OpId(line.id(OpId::PREFIX)?),
        reads: follow(line, "reads", buffers)?,
        writes: follow(line, "writes", buffers)?,
        workspace: follow(line, "workspace", |line| line.id(BufferId::PREFIX).map(|id| Some(BufferId(id))))?,
    })
}

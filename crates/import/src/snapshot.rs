//! Memory snapshots of PyTorch's caching allocator: the pickle that `torch.cuda.memory._dump_snapshot` writes.
//!
//! A dictionary with `segments`, the state when the snapshot was taken (each with `blocks` of `address`, `size`, `requested_size`,
//! `state`), and `device_traces`: for each device the events that the allocator remembered (`action`, `addr`, `size`, `time_us`,
//! `frames`), where `torch.cuda.memory._record_memory_history` was on.
//!
//! An allocator does not know ops, so the trace has stand-ins: `alloc` writes a tensor and `free` reads it, so that the tensor lives
//! exactly from one to the other. An event lasts until the next one. Neither may be recomputed, and nothing records when a tensor was used
//! in between: such a trace suits placement and the study of live memory over time, while offloading its tensors is a guess
//! ([`Notes::remarks`]). Blocks that existed before the first event and were never freed are persistent; those that were freed are written
//! by one op at the beginning.
//!
//! [`Snapshot`] is the same as plain lifetimes, for packers.
//!
//! [`Notes::remarks`]: crate::Notes::remarks

use std::collections::BTreeMap;

use elbowroom_ir::packing::{Block, Interval, Problem};
use elbowroom_ir::planning::CostSource;
use elbowroom_ir::trace::{Again, Op, Persistent, Phase, Work};
use elbowroom_ir::{Bytes, Nanos, TensorId};

use crate::detect::Format;
use crate::error::ImportError;
use crate::finish::{ImportDraft, finish};
use crate::notes::Notes;
use crate::op_graph::OpGraph;
use crate::pickle::{Pickle, Ref};
use crate::{Imported, Options, Source};

/// A block of memory that was in use at some time of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Bytes requested.
    pub bytes: Bytes,
    /// The line of the program that made the request, if it was recorded.
    pub place: String,
    /// The event that allocated it; `None` if it existed before the first event.
    pub from: Option<usize>,
    /// The event that freed it; `None` if it existed after the last event.
    pub to: Option<usize>,
}

/// The history of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Everything that was in use at some time, by time of allocation.
    pub allocations: Vec<Allocation>,
    /// When each event happened, in nanoseconds from the first.
    pub times: Vec<Nanos>,
    /// Bytes that the allocator held from the driver when the snapshot was taken.
    pub reserved: Bytes,
}

impl Snapshot {
    /// Reads the history of a device; the first that has one if `device` is `None`. `file` is named in messages.
    pub fn read(bytes: &[u8], file: &str, device: Option<usize>) -> Result<Self, ImportError> {
        let bytes = crate::gzip::inflate(bytes, file)?;
        read(&Source { bytes: &bytes, file }, device)
    }

    /// Lifetimes as a placement problem over events, without empty allocations; block `k` is the `k`-th of the others.
    pub fn problem(&self, align: Bytes) -> Problem {
        let end = self.times.len() as u64 + 1;
        let blocks = self
            .allocations
            .iter()
            .filter(|a| !a.bytes.is_zero())
            .map(|a| {
                // Position 0 is before the first event.
                let start = a.from.map_or(0, |event| event as u64 + 1);
                let alive = vec![Interval::new(start, a.to.map_or(end, |event| event as u64 + 1))];
                Block { size: a.bytes, alive, windows: Vec::new(), align, fixed: None, hint: None }
            })
            .collect();
        Problem { blocks, capacity: None }
    }

    /// The history as an iteration of allocations and frees, named after a file.
    ///
    /// # Errors
    ///
    /// [`ImportError`] if the sizes or times add up to more than a trace holds.
    pub fn imported(&self, file: &str) -> Result<Imported, ImportError> {
        self.finished(&Source { bytes: &[], file })
    }

    fn finished(&self, source: &Source<'_>) -> Result<Imported, ImportError> {
        let graph = self.graph(source.stem());
        let mut notes = Notes::new(Format::MemorySnapshot);
        notes.remarks.push(
            "Ops stand for allocations and frees, so no use of a tensor is known in between: place it, but do not trust transfers planned for it."
                .to_owned(),
        );
        if !self.reserved.is_zero() {
            notes.remarks.push(format!("The allocator held {} when the snapshot was taken.", self.reserved));
        }
        let mut imported = finish(
            source,
            ImportDraft { data: graph.data, nanos: graph.nanos, costs_from: CostSource::Recorded, notes },
        )?;
        imported.notes.recorded_peak = Some(imported.notes.peak);
        Ok(imported)
    }

    fn graph(&self, name: &str) -> OpGraph {
        let mut graph = OpGraph::default();
        name.clone_into(&mut graph.data.name);
        let events = self.times.len();
        let (mut made, mut freed): (Vec<Vec<TensorId>>, Vec<Vec<TensorId>>) =
            (vec![Vec::new(); events], vec![Vec::new(); events]);
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let mut places = vec![""; events];
        for allocation in self.allocations.iter().filter(|a| !a.bytes.is_zero()) {
            let value = graph.value(allocation.place.clone(), allocation.bytes.get());
            match (allocation.from, allocation.to) {
                (None, None) => {
                    graph.data.persistent.push(Persistent { begin: value, end: value });
                    continue;
                }
                (None, Some(_)) => before.push(value),
                (Some(event), _) => {
                    made[event].push(value);
                    places[event] = &allocation.place;
                }
            }
            match allocation.to {
                Some(event) => freed[event].push(value),
                None => after.push(value),
            }
        }
        if !before.is_empty() {
            graph.push(stand_in("there before", "alloc", Vec::new(), before), Nanos::ZERO);
        }
        for event in 0..events {
            let next = self.times.get(event + 1).unwrap_or(&self.times[event]);
            let nanos = next.saturating_sub(self.times[event]);
            let (made, freed) = (std::mem::take(&mut made[event]), std::mem::take(&mut freed[event]));
            let kind = if freed.is_empty() { "alloc" } else { "free" };
            let name = if made.is_empty() { format!("{kind}@{event}") } else { places[event].to_owned() };
            graph.push(stand_in(&name, kind, freed, made), nanos);
        }
        if !after.is_empty() {
            graph.push(stand_in("there after", "free", after, Vec::new()), Nanos::ZERO);
        }
        graph
    }
}

fn stand_in(name: &str, kind: &str, reads: Vec<TensorId>, outputs: Vec<TensorId>) -> Op {
    Op {
        name: name.to_owned(),
        kind: kind.to_owned(),
        phase: Phase::Forward,
        again: Again::Never,
        reads,
        outputs,
        mutates: Vec::new(),
        may_reuse: Vec::new(),
        after: Vec::new(),
        workspace: Bytes::ZERO,
        work: Work::default(),
        line: String::new(),
    }
}

pub(crate) fn import(source: &Source<'_>, options: &Options) -> Result<Imported, ImportError> {
    read(source, options.device)?.finished(source)
}

/// Maximum length of a history, in microseconds: eleven days.
const LONGEST: u64 = 1_000_000_000_000;

/// A block in use while the history is read.
struct Open {
    index: usize,
    bytes: u64,
}

fn read(source: &Source<'_>, device: Option<usize>) -> Result<Snapshot, ImportError> {
    let pickle = Pickle::read(source.bytes).map_err(|error| ImportError::Pickle {
        file: source.file.to_owned(),
        byte: error.byte,
        what: error.what,
    })?;
    let traces = pickle.key(pickle.root(), "device_traces").ok_or_else(|| {
        source.wrong("the pickle is no memory snapshot: it has no `device_traces`; write one with torch.cuda.memory._dump_snapshot")
    })?;
    let devices = pickle.items(traces);
    let recorded =
        |index: &usize| devices.get(*index).is_some_and(|&events| !pickle.items(events).is_empty());
    let chosen = device.or_else(|| (0..devices.len()).find(recorded)).filter(recorded).ok_or_else(|| {
        let which = device.map_or_else(|| "no device".to_owned(), |d| format!("device {d}"));
        source.wrong(format!(
            "the snapshot has no history: {which} has events; call torch.cuda.memory._record_memory_history() before the iteration"
        ))
    })?;

    let mut snapshot = Snapshot::default();
    let mut open: BTreeMap<u64, Open> = BTreeMap::new();
    let mut before: Vec<Allocation> = Vec::new();
    let mut first_time = None;
    for (number, &event) in pickle.items(devices[chosen]).iter().enumerate() {
        let action = pickle
            .text(event, "action")
            .ok_or_else(|| source.wrong(format!("event {number} has no `action`")))?;
        let number_of = |key: &str| {
            pickle
                .int(event, key)
                .ok_or_else(|| source.wrong(format!("event {number} ({action}) has no number `{key}`")))
        };
        let is_alloc = match action {
            "alloc" => true,
            // The block can be used again only now; `free_requested` is when the program let go of it.
            "free_completed" => false,
            _ => continue,
        };
        let (address, bytes) = (number_of("addr")?, number_of("size")?);
        // Microseconds since 1970, of which only the differences matter.
        let time = pickle.int(event, "time_us").unwrap_or_default();
        let index = snapshot.times.len();
        let since = time.saturating_sub(*first_time.get_or_insert(time)).min(LONGEST);
        snapshot.times.push(Nanos(since * 1_000));
        if is_alloc {
            let allocation =
                Allocation { bytes: Bytes(bytes), place: place(&pickle, event), from: Some(index), to: None };
            let row = Open { index: snapshot.allocations.len(), bytes };
            // The free of the block that was there is missing from the history.
            if let Some(gone) = open.insert(address, row) {
                snapshot.allocations[gone.index].to = Some(index);
            }
            snapshot.allocations.push(allocation);
        } else {
            match open.remove(&address) {
                Some(row) => snapshot.allocations[row.index].to = Some(index),
                None => before.push(Allocation {
                    bytes: Bytes(bytes),
                    place: format!("block {address:#x}"),
                    from: None,
                    to: Some(index),
                }),
            }
        }
    }
    still_there(&pickle, chosen, &open, &mut before, &mut snapshot);
    snapshot.allocations.splice(0..0, before);
    Ok(snapshot)
}

/// Adds the active blocks that no event of the history allocated, and the bytes of all segments.
fn still_there(
    pickle: &Pickle,
    device: usize,
    open: &BTreeMap<u64, Open>,
    before: &mut Vec<Allocation>,
    snapshot: &mut Snapshot,
) {
    let segments = pickle.key(pickle.root(), "segments").map_or(&[][..], |list| pickle.items(list));
    for &segment in segments {
        if pickle.int(segment, "device").unwrap_or_default() != device as u64 {
            continue;
        }
        let size = pickle.int(segment, "total_size").unwrap_or_default();
        snapshot.reserved = Bytes(snapshot.reserved.get().saturating_add(size));
        let mut address = pickle.int(segment, "address").unwrap_or_default();
        for &block in pickle.key(segment, "blocks").map_or(&[][..], |list| pickle.items(list)) {
            // Older versions give no address: blocks then follow one another.
            address = pickle.int(block, "address").unwrap_or(address);
            let size = pickle.int(block, "size").unwrap_or_default();
            let bytes = pickle.int(block, "requested_size").unwrap_or(size);
            let in_use = pickle.text(block, "state") == Some("active_allocated");
            if in_use && open.get(&address).is_none_or(|row| row.bytes != bytes && row.bytes != size) {
                before.push(Allocation {
                    bytes: Bytes(bytes),
                    place: place(pickle, block),
                    from: None,
                    to: None,
                });
            }
            address = address.saturating_add(size);
        }
    }
}

/// Where an event or a block is from, in the terms of the program.
fn place(pickle: &Pickle, record: Ref) -> String {
    let frames = pickle.key(record, "frames").map_or(&[][..], |list| pickle.items(list));
    let python = |&&frame: &&Ref| pickle.text(frame, "filename").is_some_and(|file| file.ends_with(".py"));
    match frames.iter().find(python) {
        Some(&innermost) => {
            let own = frames.iter().filter(python).find(|&&frame| !of_pytorch(pickle, frame));
            match own {
                Some(&own) if own != innermost => {
                    format!("{} › {}", line_of(pickle, own), function_of(pickle, innermost))
                }
                _ => line_of(pickle, innermost),
            }
        }
        None => place_in_cpp(frames.iter().filter_map(|&frame| pickle.text(frame, "name"))),
    }
}

/// Whether a frame lies in PyTorch itself: its line says nothing about the program.
fn of_pytorch(pickle: &Pickle, frame: Ref) -> bool {
    pickle.text(frame, "filename").is_some_and(|file| file.split(['/', '\\']).any(|folder| folder == "torch"))
}

/// A frame as `function (file:line)`.
fn line_of(pickle: &Pickle, frame: Ref) -> String {
    let line = pickle.int(frame, "line").unwrap_or_default();
    format!("{} ({}:{line})", pickle.text(frame, "name").unwrap_or("?"), file_of(pickle, frame))
}

fn file_of(pickle: &Pickle, frame: Ref) -> &str {
    pickle.text(frame, "filename").unwrap_or("?").rsplit(['/', '\\']).next().unwrap_or("?")
}

/// The function of a frame; of a module's `forward`, the file that it lies in: `linear`.
fn function_of(pickle: &Pickle, frame: Ref) -> &str {
    match pickle.text(frame, "name") {
        Some("forward") | None => file_of(pickle, frame).trim_end_matches(".py"),
        Some(name) => name,
    }
}

/// A place without a line of Python, from the names of C++ functions, the innermost first. The backward pass runs in a thread of its own: there
/// the node of the graph says more than the allocator's functions, which are innermost.
fn place_in_cpp<'a>(names: impl Iterator<Item = &'a str> + Clone) -> String {
    let within = |name: &'a str, end: &str| {
        let head = name.split_once(end)?.0;
        Some(head.rsplit("::").next().unwrap_or(head))
    };
    let node = names
        .clone()
        .find_map(|name| name.starts_with("torch::autograd::").then(|| within(name, "::apply(")).flatten());
    let operator = || {
        names
            .clone()
            .filter(|name| name.starts_with("at::_ops::"))
            .filter_map(|name| within(name, "::call("))
            .last()
    };
    let backward = names.clone().any(|name| name.contains("torch::autograd::Engine::"));
    match (node.or_else(operator), names.clone().next()) {
        (Some(what), _) if backward => format!("{what} (backward pass)"),
        (Some(what), _) => what.to_owned(),
        (None, innermost) => innermost.unwrap_or("alloc").to_owned(),
    }
}

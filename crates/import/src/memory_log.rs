//! Logs of memory operations over several iterations, of which the repeated one becomes the trace (Zhang et al. 2019, section V).
//!
//! Text, an event a line: `malloc ID BYTES`, `free ID`, `read ID`, `write ID`. An identifier is any word without spaces, such as an address; it names
//! the block from its `malloc` to its `free`, after which it may name another. Empty lines and lines that begin with `#` say nothing.
//!
//! Two events are the same if they do the same to blocks of equal sizes. The iteration is the subsequence that repeats over the longest stretch at
//! the end of the log, twice at least; it begins where fewest bytes are alive. Blocks that live throughout are persistent, those that
//! are freed without having been requested are there at the beginning, as a batch is. The log does not tell which events belong to one
//! op, so each event is one, of one unit of time, and none may be recomputed.

use std::collections::HashMap;

use elbowroom_ir::Bytes;
use elbowroom_ir::Nanos;
use elbowroom_ir::planning::CostSource;
use elbowroom_ir::trace::{Again, Phase, Work};

use crate::detect::Format;
use crate::error::ImportError;
use crate::finish::{ImportDraft, finish};
use crate::notes::Notes;
use crate::storage_log::{LogOp, LogStorage, StorageLog, StorageRole};
use crate::{Imported, Options, Source};

/// Maximum number of events.
const MOST_EVENTS: usize = 1 << 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Malloc,
    Free,
    Read,
    Write,
}

impl Action {
    fn of(word: &str) -> Option<Self> {
        Some(match word {
            "malloc" => Self::Malloc,
            "free" => Self::Free,
            "read" => Self::Read,
            "write" => Self::Write,
            _ => return None,
        })
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Malloc => "malloc",
            Self::Free => "free",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Event {
    action: Action,
    /// Index of the block.
    block: usize,
}

/// A block, from one `malloc` to its `free`.
#[derive(Clone, Copy, Debug)]
struct LogBlock<'a> {
    id: &'a str,
    bytes: u64,
    /// The events that request and free it.
    from: usize,
    to: Option<usize>,
}

/// Whether a text begins like such a log.
pub fn begins_like(text: &[u8]) -> bool {
    let lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    let first = lines.into_iter().find(|line| !line.is_empty() && !line.starts_with(b"#"));
    let word = first.and_then(|line| line.split(u8::is_ascii_whitespace).next());
    word.and_then(|word| std::str::from_utf8(word).ok()).is_some_and(|word| Action::of(word).is_some())
}

fn read<'a>(source: &Source<'a>, text: &'a str) -> Result<(Vec<Event>, Vec<LogBlock<'a>>), ImportError> {
    let (mut events, mut blocks) = (Vec::new(), Vec::<LogBlock<'a>>::new());
    let mut open: HashMap<&str, usize> = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: String| ImportError::Line { file: source.file.to_owned(), line: number + 1, what };
        if events.len() == MOST_EVENTS {
            return Err(wrong(format!("more than {MOST_EVENTS} events; log fewer iterations")));
        }
        let mut words = line.split_whitespace();
        let action = words.next().and_then(Action::of);
        let (action, id) = action.zip(words.next()).ok_or_else(|| {
            wrong("no event; write `malloc ID BYTES`, `free ID`, `read ID` or `write ID`".to_owned())
        })?;
        let block = if action == Action::Malloc {
            let bytes =
                words.next().and_then(|word| word.parse().ok()).filter(|&bytes: &u64| bytes < 1 << 56);
            let bytes =
                bytes.ok_or_else(|| wrong("`malloc` without a number of bytes below 2^56".to_owned()))?;
            if open.insert(id, blocks.len()).is_some() {
                return Err(wrong(format!("`{id}` is requested again before it was freed")));
            }
            blocks.push(LogBlock { id, bytes, from: events.len(), to: None });
            blocks.len() - 1
        } else {
            let known = if action == Action::Free { open.remove(id) } else { open.get(id).copied() };
            known.ok_or_else(|| wrong(format!("`{}` of `{id}`, which is not allocated", action.name())))?
        };
        if words.next().is_some() {
            return Err(wrong("words after the event".to_owned()));
        }
        if action == Action::Free {
            blocks[block].to = Some(events.len());
        }
        events.push(Event { action, block });
    }
    Ok((events, blocks))
}

/// For each index, how many elements from there on equal those at the beginning.
fn matches(tokens: &[(u8, u64)]) -> Vec<usize> {
    let n = tokens.len();
    let mut matches = vec![0; n];
    let (mut left, mut right) = (0, 0);
    for at in 1..n {
        let mut length = if at < right { matches[at - left].min(right - at) } else { 0 };
        while at + length < n && tokens[length] == tokens[at + length] {
            length += 1;
        }
        matches[at] = length;
        if at + length > right {
            (left, right) = (at, at + length);
        }
    }
    matches
}

/// The period of the longest stretch at the end that has one, and of several the shortest. `None` if nothing occurs twice in a row.
fn period(events: &[Event], blocks: &[LogBlock<'_>]) -> Option<usize> {
    let tokens: Vec<(u8, u64)> =
        events.iter().rev().map(|event| (event.action as u8, blocks[event.block].bytes)).collect();
    let matches = matches(&tokens);
    let periods = (1..=tokens.len() / 2).filter(|&period| matches[period] >= period);
    periods.max_by_key(|&period| (period + matches[period], std::cmp::Reverse(period)))
}

/// Where fewest bytes are alive, of the places at which an iteration of this many events can begin.
fn beginning(events: &[Event], blocks: &[LogBlock<'_>], period: usize) -> usize {
    let (first, last) = (events.len() - 2 * period, events.len() - period);
    let mut live = 0u128;
    let mut best = (u128::MAX, first);
    for (at, event) in events[..last].iter().enumerate() {
        if at >= first {
            best = best.min((live, at));
        }
        let bytes = u128::from(blocks[event.block].bytes);
        match event.action {
            Action::Malloc => live += bytes,
            Action::Free => live -= bytes,
            Action::Read | Action::Write => {}
        }
    }
    best.1
}

pub fn import(source: &Source<'_>, options: &Options) -> Result<Imported, ImportError> {
    let text = std::str::from_utf8(source.bytes).map_err(|_| source.wrong("the log is no text in UTF-8"))?;
    let (events, blocks) = read(source, text)?;
    let period = period(&events, &blocks).ok_or_else(|| {
        source.wrong("no sequence of events occurs twice in a row at the end, so that no iteration is known; log two iterations or more")
    })?;
    let start = beginning(&events, &blocks, period);
    let end = start + period;
    let mut log = StorageLog::default();
    let mut storages: HashMap<usize, usize> = HashMap::new();
    for (index, block) in blocks.iter().enumerate() {
        let is_there = block.from < end && block.to.is_none_or(|to| to >= start);
        if !is_there {
            continue;
        }
        let role = match (block.from < start, block.to.is_some_and(|to| to < end)) {
            (true, false) => StorageRole::Persistent,
            (true, true) => StorageRole::Input,
            (false, freed) => {
                if !freed {
                    log.results.push(log.storages.len());
                }
                StorageRole::Made
            }
        };
        storages.insert(index, log.storages.len());
        log.storages.push(LogStorage { bytes: block.bytes, name: block.id.to_owned(), role });
    }
    for (index, event) in events[start..end].iter().enumerate() {
        let storage = storages[&event.block];
        let is_made = log.storages[storage].role == StorageRole::Made;
        let mut op = LogOp {
            name: format!("{}@{index}", event.action.name()),
            kind: event.action.name().to_owned(),
            phase: Phase::Forward,
            reads: Vec::new(),
            makes: Vec::new(),
            mutates: Vec::new(),
            depends_on_state: true,
            random: false,
            view: false,
            nanos: options.time_unit,
            work: Work::default(),
            frees: Vec::new(),
        };
        match event.action {
            Action::Malloc => op.makes.push(storage),
            Action::Write => {
                op.reads.push(storage);
                op.mutates.push(storage);
            }
            // A block is alive until it is freed.
            Action::Read | Action::Free => op.reads.push(storage),
        }
        if event.action == Action::Free && is_made {
            op.frees.push(storage);
        }
        log.ops.push(op);
    }
    let mut notes = Notes::new(Format::MemoryLog);
    notes.recorded_peak = Some(Bytes(log.recorded_peak().get()));
    notes.remarks.push(format!(
        "The iteration is the {period} events from event {} on, which repeat at the end of the log of {} events; each event is an op that is never recomputed.",
        start + 1,
        events.len()
    ));
    let (mut data, nanos): (_, Vec<Nanos>) = log.resolve(source.stem(), options).map_err(|error| {
        let place = error.op.map_or_else(String::new, |op| format!("event {} ", start + op + 1));
        source.wrong(format!("{place}{}", error.what))
    })?;
    data.ops.iter_mut().for_each(|(_, op)| op.again = Again::Never);
    finish(source, ImportDraft { data, nanos, costs_from: CostSource::Recorded, notes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    /// Iterations of a weight, a batch of activations and an update, after some noise.
    fn log(iterations: usize) -> String {
        let mut text = "# a test\nmalloc w 4000\nmalloc noise 77\nfree noise\n".to_owned();
        for i in 0..iterations {
            for layer in 0..3 {
                let _ = writeln!(text, "malloc {i}.{layer} {}\nread w\nwrite {i}.{layer}", 1_000 + layer);
            }
            for layer in (0..3).rev() {
                let _ = writeln!(text, "read {i}.{layer}\nfree {i}.{layer}");
            }
            text += "write w\n";
        }
        text
    }

    fn imported(text: &str) -> Result<Imported, ImportError> {
        crate::import(text.as_bytes(), "log.txt", &Options::default())
    }

    #[test]
    fn the_repeated_iteration_becomes_a_trace() {
        for iterations in [2, 3, 7] {
            let imported = imported(&log(iterations)).expect("a log");
            assert_eq!(imported.notes.kind, Format::MemoryLog);
            assert_eq!(imported.notes.recorded_peak, Some(Bytes(4_000 + 3_003)), "{iterations}");
            assert_eq!(imported.notes.peak, Bytes(4_000 + 3_003), "{iterations}");
            assert!(imported.trace.ops().values().all(|op| op.again == Again::Never));
            assert_eq!(imported.trace.persistent().len(), 1);
            assert!(imported.notes.remarks[0].contains("the 16 events"), "{:?}", imported.notes.remarks);
        }
    }

    #[test]
    fn what_is_no_log_is_refused_with_a_place() {
        let error = |text: &str| imported(text).expect_err("no log").to_string();
        assert!(error(&log(1)).contains("twice in a row"), "{}", error(&log(1)));
        for (text, what) in [
            ("malloc a 10\nmalloc a 10\n", "line 2: `a` is requested again"),
            ("malloc a 10\nfree b\n", "line 2: `free` of `b`"),
            ("malloc a 10\nfree a\nread a\n", "line 3: `read` of `a`"),
            ("malloc a\n", "line 1: `malloc` without a number"),
            ("malloc a 99999999999999999999\n", "line 1: `malloc` without a number"),
            ("malloc a 10 now\n", "line 1: words after"),
            ("malloc a 10\nmove a\n", "line 2: no event"),
        ] {
            assert!(error(text).contains(what), "{text}: {}", error(text));
        }
    }
}

//! Recorded op traces: what the prototype of dynamic tensor rematerialization logged of real PyTorch runs on a Titan V.
//!
//! One JSON object: `sizes` of all storages in bytes; `const` (or `const_first_op`), the storages that are there from the beginning;
//! `ops`, each with `name`, `t` nanoseconds, storages it `reads`, `writes` and `allocs`, storages freed after it (`frees`), and `pure`;
//! `backward_starts_at_op`, `total_time_ns`, `peak_bytes`. There is no optimizer step.
//!
//! A pure op that allocates nothing is a view; the next op carries its duration, so that the sum stays. The log does not tell parameters
//! from the batch, so everything that is there at the beginning persists, as its authors counted it.

use std::collections::BTreeMap;

use elbowroom_ir::planning::CostSource;
use elbowroom_ir::trace::{Phase, Work};
use elbowroom_ir::{Bytes, Nanos};
use serde::Deserialize;

use crate::detect::Format;
use crate::error::ImportError;
use crate::finish::{ImportDraft, finish};
use crate::notes::Notes;
use crate::storage_log::{LogOp, LogStorage, StorageLog, StorageRole};
use crate::{Imported, Options, Source};

#[derive(Deserialize)]
struct RecordedFile {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    source: Option<String>,
    sizes: Vec<u64>,
    #[serde(default)]
    const_first_op: BTreeMap<String, u64>,
    #[serde(default, rename = "const")]
    constants: Vec<usize>,
    ops: Vec<FileOp>,
    #[serde(default)]
    backward_starts_at_op: Option<usize>,
    #[serde(default)]
    total_time_ns: Option<u64>,
    #[serde(default)]
    peak_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct FileOp {
    name: String,
    t: u64,
    #[serde(default)]
    reads: Vec<usize>,
    #[serde(default)]
    writes: Vec<usize>,
    #[serde(default)]
    allocs: Vec<usize>,
    #[serde(default)]
    frees: Vec<usize>,
    #[serde(default = "pure")]
    pure: bool,
}

const fn pure() -> bool {
    true
}

pub fn import(source: &Source<'_>, options: &Options) -> Result<Imported, ImportError> {
    let file: RecordedFile = source.json()?;
    let mut log = StorageLog {
        storages: (0..file.sizes.len())
            .map(|s| LogStorage { bytes: file.sizes[s], name: format!("x{s}"), role: StorageRole::Made })
            .collect(),
        ..StorageLog::default()
    };
    let listed = file.const_first_op.keys().map(|key| key.parse().unwrap_or(usize::MAX));
    for storage in file.constants.iter().copied().chain(listed) {
        let Some(row) = log.storages.get_mut(storage) else {
            return Err(source.wrong("a constant is listed that is no index into `sizes`"));
        };
        row.role = StorageRole::Persistent;
    }
    let mut freed = vec![false; log.storages.len()];
    for (index, op) in file.ops.into_iter().enumerate() {
        let wrong = |what: String| source.wrong(format!("op {index} ({}): {what}", op.name));
        let named = op.reads.iter().chain(&op.writes).chain(&op.allocs).chain(&op.frees);
        if let Some(storage) = named.into_iter().find(|&&s| s >= freed.len()) {
            return Err(wrong(format!("storage {storage} is no index into `sizes`")));
        }
        for &storage in &op.frees {
            if log.storages[storage].role != StorageRole::Made || std::mem::replace(&mut freed[storage], true)
            {
                return Err(wrong(format!("it frees storage {storage}, which is constant or freed before")));
            }
        }
        let mutates: Vec<usize> = op.writes.iter().copied().filter(|s| !op.allocs.contains(s)).collect();
        let view = op.pure && op.allocs.is_empty();
        let backward = file.backward_starts_at_op.is_some_and(|start| index >= start);
        log.ops.push(LogOp {
            name: format!("{}@{index}", op.name),
            phase: if backward { Phase::Backward } else { Phase::Forward },
            reads: op.reads,
            makes: op.allocs,
            // A pure op that returns a storage it was given returns a view of it in addition to its other results.
            mutates: if op.pure { Vec::new() } else { mutates },
            depends_on_state: true,
            random: ["dropout", "bernoulli", "rand", "normal_"].iter().any(|r| op.name.contains(r))
                && !op.name.contains("backward"),
            kind: op.name,
            view,
            nanos: Nanos(op.t),
            work: Work::default(),
            frees: op.frees,
        });
    }
    let mut notes = Notes::new(Format::Recorded);
    notes.origin = file.source;
    notes.stated_peak = file.peak_bytes.map(Bytes);
    notes.stated_time = file.total_time_ns.map(Nanos);
    notes.recorded_peak = Some(log.recorded_peak());
    notes.remarks.push("Everything that is there at the beginning persists: the log does not distinguish parameters from the batch.".to_owned());
    log.results =
        (0..freed.len()).filter(|&s| log.storages[s].role == StorageRole::Made && !freed[s]).collect();
    let shown = log.show_running_statistics(running_statistics);
    if shown > 0 {
        notes.remarks.push(format!(
            "{shown} batch normalizations update their running statistics in an op of their own; the log hides these writes."
        ));
    }
    drop_never_made(&mut log);
    let name = file.name.unwrap_or_else(|| source.stem().to_owned());
    let (data, nanos) = log.resolve(&name, options).map_err(|error| {
        let place = error.op.map_or_else(String::new, |op| format!("op {} ", log.ops[op].name));
        source.wrong(format!("{place}{}", error.what))
    })?;
    finish(source, ImportDraft { data, nanos, costs_from: CostSource::Recorded, notes })
}

/// Of the constants that a batch normalization reads, in ascending order weight, bias, running mean and running variance, or the last
/// two alone: the running ones.
fn running_statistics(log: &StorageLog, op: &LogOp) -> Vec<usize> {
    let mut constants: Vec<usize> = op
        .reads
        .iter()
        .copied()
        .filter(|&s| log.storages[s].role == StorageRole::Persistent && log.storages[s].bytes > 0)
        .collect();
    constants.sort_unstable();
    constants.dedup();
    match constants[..] {
        [_, _, mean, variance] | [mean, variance]
            if log.storages[mean].bytes == log.storages[variance].bytes =>
        {
            vec![mean, variance]
        }
        _ => Vec::new(),
    }
}

/// A storage that no op allocates holds nothing and is no result.
fn drop_never_made(log: &mut StorageLog) {
    let mut made = vec![false; log.storages.len()];
    log.ops.iter().flat_map(|op| &op.makes).for_each(|&s| made[s] = true);
    log.results.retain(|&s| made[s]);
}

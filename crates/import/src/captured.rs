//! Iterations captured from PyTorch with fake tensors, one JSON object a line.
//!
//! `meta` says what was captured; `st` a storage (`s` id, `b` bytes, `c` class, `n` name, `d` what it stands for); `op` an op (`i` step,
//! `op` name, `n` node, `ph` phase, `r` storages read, `w` allocated, `m` written over, `v` 1 if only a view, `fl` floating-point
//! operations, `br`, `bw` bytes read and written, `us` its time by a device's data sheet, `f` flags such as `rng`); `free` (`i` after
//! step, `s` storage); `out` a result of a `joint` graph (`s` storage, `d` what it stands for).
//!
//! A `joint` graph is functional: forward and backward, without an optimizer. Its results are gradients and outputs, which stay until the
//! end, and new tensors of buffers, which are written in place here, as PyTorch does after the graph. An `eager` trace has everything in
//! true order, optimizer included; the update of batch normalization's running statistics is hidden in it and is made visible here.

use std::collections::{BTreeMap, HashMap};

use elbowroom_ir::Bytes;
use elbowroom_ir::planning::CostSource;
use elbowroom_ir::trace::{Phase, Work};
use serde::Deserialize;

use crate::detect::Format;
use crate::error::ImportError;
use crate::finish::{ImportDraft, duration, finish};
use crate::notes::Notes;
use crate::storage_log::{LogOp, LogStorage, StorageLog, StorageRole};
use crate::{Imported, Options, Source};

/// A line of any kind.
#[derive(Deserialize)]
struct CapturedLine {
    k: String,
    #[serde(default)]
    s: Option<u64>,
    #[serde(default)]
    b: Option<u64>,
    #[serde(default)]
    c: Option<String>,
    #[serde(default)]
    n: Option<String>,
    #[serde(default)]
    d: Option<String>,
    #[serde(default)]
    i: Option<u64>,
    #[serde(default)]
    op: Option<String>,
    #[serde(default)]
    ph: Option<String>,
    #[serde(default)]
    r: Vec<u64>,
    #[serde(default)]
    w: Vec<u64>,
    #[serde(default)]
    m: Vec<u64>,
    #[serde(default)]
    v: u8,
    #[serde(default)]
    fl: u64,
    #[serde(default)]
    br: u64,
    #[serde(default)]
    bw: u64,
    #[serde(default)]
    us: f64,
    #[serde(default)]
    f: Vec<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    torch: Option<String>,
    #[serde(default)]
    cost_gpu: Option<String>,
    #[serde(default, rename = "peak_MB")]
    peak_mib: Option<f64>,
}

#[derive(Default)]
struct CaptureReader {
    log: StorageLog,
    /// The file's numbers of storages and steps.
    storages: HashMap<u64, usize>,
    steps: HashMap<u64, usize>,
    /// The meaning of a storage, as the capture describes it.
    stands_for: BTreeMap<String, usize>,
    freed: Vec<bool>,
    buffers: Vec<bool>,
    /// The line of every op, for messages.
    lines: Vec<usize>,
    meta: Option<CapturedLine>,
}

pub fn import(source: &Source<'_>, options: &Options) -> Result<Imported, ImportError> {
    let mut reader = CaptureReader::default();
    for (index, text) in source.bytes.split(|&b| b == b'\n').enumerate() {
        if text.trim_ascii().is_empty() {
            continue;
        }
        let line: CapturedLine =
            serde_json::from_slice(text).map_err(|error| ImportError::json(source.file, index, &error))?;
        reader.line(line, index + 1).map_err(|what| ImportError::Line {
            file: source.file.to_owned(),
            line: index + 1,
            what,
        })?;
    }
    let CaptureReader { mut log, freed, buffers, lines, meta, .. } = reader;
    let recorded_peak = log.recorded_peak();
    let functional = meta.as_ref().and_then(|m| m.mode.as_deref()) == Some("joint");
    let mut notes = Notes::new(Format::Captured);
    notes.recorded_peak = Some(recorded_peak);
    if functional {
        log.update_in_place();
    } else {
        // An eager trace does not list its results; storages that were never freed are the results.
        log.results = (0..log.storages.len())
            .filter(|&s| log.storages[s].role == StorageRole::Made && !freed[s])
            .collect();
        let shown =
            log.show_running_statistics(|_, op| op.reads.iter().copied().filter(|&s| buffers[s]).collect());
        if shown > 0 {
            notes.remarks.push(format!(
                "{shown} batch normalizations update their running statistics in an op of their own; the capture hides these writes."
            ));
        }
    }
    let name = meta.as_ref().map_or_else(
        || source.stem().to_owned(),
        |m| {
            format!(
                "{} {}",
                m.model.as_deref().unwrap_or(source.stem()),
                m.mode.as_deref().unwrap_or("captured")
            )
        },
    );
    if let Some(meta) = &meta {
        notes.origin = meta.torch.as_ref().map(|torch| format!("PyTorch {torch}"));
        notes.stated_peak = meta.peak_mib.and_then(|mib| duration(mib, 1_048_576.0)).map(|n| Bytes(n.get()));
        let device = meta.cost_gpu.as_deref().unwrap_or("a device");
        notes.remarks.push(format!("Durations are estimates from the data sheet of {device}; workspaces of kernels are not in the capture."));
    }
    let (data, nanos) = log.resolve(&name, options).map_err(|error| match error.op {
        Some(op) => ImportError::Line { file: source.file.to_owned(), line: lines[op], what: error.what },
        None => source.wrong(error.what),
    })?;
    finish(source, ImportDraft { data, nanos, costs_from: CostSource::Captured, notes })
}

impl CaptureReader {
    fn line(&mut self, line: CapturedLine, number: usize) -> Result<(), String> {
        match line.k.as_str() {
            "meta" => self.meta = Some(line),
            "st" => self.storage(line)?,
            "op" => {
                self.lines.push(number);
                self.op(line)?;
            }
            "free" => {
                let storage = self.known(line.s.ok_or("a `free` lacks its storage `s`")?)?;
                let step = line.i.ok_or("a `free` lacks its step `i`")?;
                let op = *self
                    .steps
                    .get(&step)
                    .ok_or_else(|| format!("a `free` names step {step}, which no op has"))?;
                if self.log.storages[storage].role != StorageRole::Made {
                    return Err(format!(
                        "`{}` is freed, but was there before the iteration",
                        self.log.storages[storage].name
                    ));
                }
                if std::mem::replace(&mut self.freed[storage], true) {
                    return Err(format!("`{}` is freed twice", self.log.storages[storage].name));
                }
                self.log.ops[op].frees.push(storage);
            }
            "out" => {
                let storage = self.known(line.s.ok_or("an `out` lacks its storage `s`")?)?;
                let what = line.d.unwrap_or_default();
                let updated = what.split_once("mutated_input=").and_then(|(_, rest)| self.named(rest));
                match updated {
                    Some(now) if self.log.storages[now].role == StorageRole::Persistent => {
                        self.log.replaced.push((now, storage));
                    }
                    _ => self.log.results.push(storage),
                }
            }
            other => return Err(format!("a line of kind `{other}`, which this reader does not know")),
        }
        Ok(())
    }

    /// The storage with this description. The capture truncates long descriptions; a prefix of exactly one other description refers to that
    /// one.
    fn named(&self, what: &str) -> Option<usize> {
        let whole = what.strip_suffix(')').unwrap_or(what);
        if let Some(&storage) = self.stands_for.get(whole) {
            return Some(storage);
        }
        let mut begin_so =
            self.stands_for.range(what.to_owned()..).take_while(|(other, _)| other.starts_with(what));
        let (_, &storage) = begin_so.next()?;
        begin_so.next().is_none().then_some(storage)
    }

    fn storage(&mut self, line: CapturedLine) -> Result<(), String> {
        let id = line.s.ok_or("a storage lacks its id `s`")?;
        let class = line.c.unwrap_or_default();
        let role = match class.as_str() {
            "param" | "buffer" | "optstate" => StorageRole::Persistent,
            "input" | "tangent" => StorageRole::Input,
            _ => StorageRole::Made,
        };
        let index = self.log.storages.len();
        if self.storages.insert(id, index).is_some() {
            return Err(format!("storage {id} is declared twice"));
        }
        let mut name = line.n.unwrap_or_else(|| format!("storage {id}"));
        if let Some(what) = line.d {
            // `ParamAOTInput(target='net.conv1.weight')` names the parameter.
            if let Some((_, rest)) = what.split_once("target='") {
                rest.split('\'').next().unwrap_or(rest).clone_into(&mut name);
            }
            self.stands_for.insert(what, index);
        }
        let bytes = line.b.ok_or("a storage lacks its size `b`")?;
        self.log.storages.push(LogStorage { bytes, name, role });
        self.buffers.push(class == "buffer");
        self.freed.push(false);
        Ok(())
    }

    fn op(&mut self, line: CapturedLine) -> Result<(), String> {
        let step = line.i.ok_or("an op lacks its step `i`")?;
        if self.steps.insert(step, self.log.ops.len()).is_some() {
            return Err(format!("two ops have step {step}"));
        }
        let full = line.op.ok_or("an op lacks its name `op`")?;
        let phase = match line.ph.as_deref() {
            Some("fwd") => Phase::Forward,
            Some("bwd") => Phase::Backward,
            Some("opt") => Phase::Update,
            other => {
                return Err(format!("phase `{}` is none of fwd, bwd and opt", other.unwrap_or_default()));
            }
        };
        let kind = full.strip_prefix("aten.").unwrap_or(&full).split('.').next().unwrap_or(&full).to_owned();
        let known = |ids: &[u64]| ids.iter().map(|&id| self.known(id)).collect::<Result<Vec<_>, _>>();
        let op = LogOp {
            name: line.n.unwrap_or_else(|| format!("{kind}@{step}")),
            reads: known(&line.r)?,
            makes: known(&line.w)?,
            mutates: known(&line.m)?,
            kind,
            phase,
            depends_on_state: true,
            random: line.f.iter().any(|flag| flag == "rng"),
            view: line.v == 1,
            nanos: duration(line.us, 1e3).ok_or_else(|| format!("{} µs is no duration", line.us))?,
            work: Work { flops: line.fl, half_flops: 0, moved: Bytes(line.br.saturating_add(line.bw)) },
            frees: Vec::new(),
        };
        self.log.ops.push(op);
        Ok(())
    }

    fn known(&self, id: u64) -> Result<usize, String> {
        self.storages.get(&id).copied().ok_or_else(|| format!("storage {id} is not declared before"))
    }
}

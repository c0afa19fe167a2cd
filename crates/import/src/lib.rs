//! Reads iterations that other programs recorded, measured or captured, and makes traces of them.
//!
//! [`import`] finds the kind of a file from its content:
//!
//! | kind | what it holds | module |
//! | --- | --- | --- |
//! | chain profile | times and sizes of a chain of layers | [`chain`] |
//! | recorded op trace | every op of a real iteration with its measured time, its reads, writes, allocations and frees | `recorded` |
//! | captured PyTorch trace | the same from PyTorch with fake tensors, functional (`joint`) or in true order (`eager`), times from a data sheet | `captured` |
//! | measured op graph | forward and backward ops measured on a P100, with what a long run of Checkmate's solver reached | `monet` |
//! | Checkmate graph | node costs and sizes, as networkx writes them | `checkmate` |
//! | Chainer graph | variables and functions of a forward and backward pass | `chainer` |
//! | memory log | `malloc`, `free`, `read` and `write` over several iterations, as text | `memory_log` |
//! | PyTorch memory snapshot | the pickle that `torch.cuda.memory._dump_snapshot` writes | [`snapshot`] |
//!
//! Files may be gzipped. The result is a [`Trace`] that obeys the rules of [`elbowroom_ir::trace`], with [`Costs`] and [`Notes`] on what
//! the file states about itself and what importing changed:
//!
//! - Views are gone; their readers read the tensor whose bytes they show. Tensors of no bytes are gone; their readers
//!   [follow](elbowroom_ir::trace::Op::after) the ops that made them.
//! - Parameters, optimizer state and buffers are persistent. The batch is made by pure `input` ops of no duration, as if the host kept it for
//!   the iteration and its copy need not be counted; without [`Options::remake_inputs`] these ops run once.
//!   Results and gradients that outlive the iteration are read by one `never` op at its end, so that they stay until then.
//! - An op that writes over a persistent tensor is `never` recomputed and states the [mutation](elbowroom_ir::trace::Mutation). If it also
//!   makes other tensors it becomes two ops, a pure one with the whole duration and an update of no duration. That includes batch
//!   normalization, whose running statistics change although neither PyTorch's eager mode nor the recorded logs show the write.
//! - An op that writes over any other tensor becomes a function with a new tensor and the permission to
//!   [reuse](elbowroom_ir::trace::Op::may_reuse) the old one's bytes, so that planners may recompute it.
//! - A tensor lives until its last use. A program may have freed it later; [`Notes`] gives both peaks.
//!
//! # Example
//!
//! A profile of a chain of two layers:
//!
//! ```
//! use elbowroom_import::{Options, import};
//!
//! let profile = br#"{ "n": 2, "name": "two layers", "uF": [10, 10], "uB": [20, 20], "x": [1000, 2000, 1000] }"#;
//! let imported = import(profile, "two-layers.json", &Options::default())?;
//! println!("{} ops, {}", imported.trace.ops().len(), imported.costs.total());
//! # Ok::<(), elbowroom_import::ImportError>(())
//! ```

#![forbid(unsafe_code)]

mod captured;
pub mod chain;
mod chainer;
mod checkmate;
mod detect;
mod error;
mod finish;
mod gzip;
mod memory_log;
mod monet;
mod notes;
mod op_graph;
mod peak;
mod pickle;
mod recorded;
pub mod snapshot;
mod storage_log;

use elbowroom_ir::Nanos;
use elbowroom_ir::planning::Costs;
use elbowroom_ir::trace::Trace;

pub use chain::Chain;
pub use detect::Format;
pub use error::ImportError;
pub use notes::{Notes, Reference};

/// The units in which to read files that published solver results refer to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Units {
    /// Bytes and nanoseconds, workspaces included, with a persistent tensor for the parameters and a tensor for every gradient.
    #[default]
    Exact,
    /// As the published results count: sizes in whole KiB, times in whole 1/100 ms, no workspaces, no parameters. Then op `k` is node `k`
    /// of the file, and every op is pure. Use a limit on live memory with it.
    Published,
}

/// Import options.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// For measured op graphs.
    pub units: Units,
    /// The duration of one unit of time if the file does not state its unit (Checkmate and Chainer graphs).
    pub time_unit: Nanos,
    /// Whether the ops that provide the batch may be recomputed at no cost: true if the host keeps the batch and that copy need not be
    /// counted, as published figures assume; false if it can only be offloaded like any other tensor.
    pub remake_inputs: bool,
    /// Whether elementwise ops of suitable kinds may overwrite an input in place, even where the recorded program did not.
    pub inplace: bool,
    /// The device whose events are read from a memory snapshot; the first that has any if `None`.
    pub device: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            units: Units::Exact,
            time_unit: Nanos(1_000),
            remake_inputs: true,
            inplace: false,
            device: None,
        }
    }
}

impl Options {
    /// Chooses the units of measured op graphs.
    #[must_use]
    pub fn units(self, units: Units) -> Self {
        Self { units, ..self }
    }

    /// Sets the duration of one unit of time, for files that do not state it.
    #[must_use]
    pub fn time_unit(self, time_unit: Nanos) -> Self {
        Self { time_unit, ..self }
    }

    /// Chooses whether the ops that provide the batch may be recomputed at no cost.
    #[must_use]
    pub fn remake_inputs(self, remake_inputs: bool) -> Self {
        Self { remake_inputs, ..self }
    }

    /// Chooses whether elementwise ops of suitable kinds may overwrite an input in place.
    #[must_use]
    pub fn inplace(self, inplace: bool) -> Self {
        Self { inplace, ..self }
    }

    /// Selects the device whose events are read from a memory snapshot.
    #[must_use]
    pub fn device(self, device: impl Into<Option<usize>>) -> Self {
        Self { device: device.into(), ..self }
    }
}

/// An iteration read from a file.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The iteration.
    pub trace: Trace,
    /// The durations of its ops.
    pub costs: Costs,
    /// What the file states about itself, and what importing changed.
    pub notes: Notes,
}

/// Reads an iteration from the bytes of a file. The kind is determined from the content. The file's name is used in messages and, without
/// its extensions, as the trace's name if the file has none.
///
/// # Errors
/// The content is of no known kind, malformed, or inconsistent; the message says where and what to do.
pub fn import(bytes: &[u8], file_name_hint: &str, options: &Options) -> Result<Imported, ImportError> {
    let bytes = gzip::inflate(bytes, file_name_hint)?;
    let source = Source { bytes: &bytes, file: file_name_hint };
    match detect::kind(&source)? {
        Format::Chain => chain::import(&source, options),
        Format::Recorded => recorded::import(&source, options),
        Format::Captured => captured::import(&source, options),
        Format::MeasuredGraph => monet::import(&source, options),
        Format::CheckmateGraph => checkmate::import(&source, options),
        Format::ChainerGraph => chainer::import(&source, options),
        Format::MemoryLog => memory_log::import(&source, options),
        Format::MemorySnapshot => snapshot::import(&source, options),
    }
}

/// A file's content, with its name for messages.
#[derive(Clone, Copy)]
struct Source<'a> {
    bytes: &'a [u8],
    file: &'a str,
}

impl Source<'_> {
    /// Parses the whole content as one JSON document.
    fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, ImportError> {
        serde_json::from_slice(self.bytes).map_err(|error| ImportError::json(self.file, 0, &error))
    }

    /// An error about the content as a whole.
    fn wrong(&self, what: impl Into<String>) -> ImportError {
        ImportError::Content { file: self.file.to_owned(), what: what.into() }
    }

    /// The name of the file without folders and extensions.
    fn stem(&self) -> &str {
        let name = self.file.rsplit(['/', '\\']).next().unwrap_or(self.file);
        [".gz", ".json", ".jsonl", ".pickle", ".pkl", ".csv", ".txt", ".log"]
            .iter()
            .fold(name, |name, end| name.strip_suffix(end).unwrap_or(name))
    }
}

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

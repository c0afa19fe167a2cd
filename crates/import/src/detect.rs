//! What kind of file this is, from its content alone.

use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::Source;
use crate::error::ImportError;

/// The kinds of files that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// Times and sizes of a chain of layers.
    Chain,
    /// Ops of a real iteration with measured times.
    Recorded,
    /// An iteration captured from PyTorch, op by op.
    Captured,
    /// Ops measured on a P100, with published solver results.
    MeasuredGraph,
    /// OpNode costs and sizes, as networkx writes them.
    CheckmateGraph,
    /// Variables and functions of a forward and backward pass.
    ChainerGraph,
    /// Allocations, frees, reads and writes of several iterations, as text.
    MemoryLog,
    /// The allocations and frees that PyTorch's caching allocator remembers.
    MemorySnapshot,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Chain => "chain profile",
            Self::Recorded => "recorded op trace",
            Self::Captured => "captured PyTorch trace",
            Self::MeasuredGraph => "measured op graph",
            Self::CheckmateGraph => "Checkmate graph",
            Self::ChainerGraph => "Chainer graph",
            Self::MemoryLog => "memory log",
            Self::MemorySnapshot => "PyTorch memory snapshot",
        })
    }
}

/// The keys by which the kinds differ; what stands under them is looked at later.
#[derive(Deserialize)]
struct Keys {
    #[serde(rename = "uF")]
    forward_times: Option<IgnoredAny>,
    sizes: Option<IgnoredAny>,
    ops: Option<IgnoredAny>,
    nodes: Option<IgnoredAny>,
    links: Option<IgnoredAny>,
    edges: Option<IgnoredAny>,
    vars: Option<IgnoredAny>,
    functions: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct FirstLine {
    k: String,
}

/// Finds the kind, or says what the file seems to be instead.
pub fn kind(source: &Source<'_>) -> Result<Format, ImportError> {
    let unknown =
        |what: &str| Err(ImportError::UnknownKind { file: source.file.to_owned(), what: what.to_owned() });
    match source.bytes {
        [] => return unknown("the file is empty"),
        [0x80, 2..=5, ..] => return Ok(Format::MemorySnapshot),
        [b'P', b'K', 3, 4, ..] => return unknown("the file is a zip archive; unpack it first"),
        _ => {}
    }
    let Some(start) = source.bytes.iter().position(|b| !b.is_ascii_whitespace()) else {
        return unknown("the file is blank");
    };
    if source.bytes[start] != b'{' {
        if crate::memory_log::begins_like(source.bytes) {
            return Ok(Format::MemoryLog);
        }
        return unknown("the file does not begin like JSON or a pickle");
    }
    // One object a line: the first line is complete by itself.
    let first =
        source.bytes.split(|&b| b == b'\n').find(|line| !line.trim_ascii().is_empty()).unwrap_or_default();
    if let Ok(FirstLine { k }) = serde_json::from_slice(first) {
        return if k == "meta" || k == "st" || k == "op" {
            Ok(Format::Captured)
        } else {
            unknown("the file holds JSON lines, but the first is neither `meta` nor `st`")
        };
    }
    let keys: Keys = source.json()?;
    match keys {
        Keys { forward_times: Some(_), .. } => Ok(Format::Chain),
        Keys { sizes: Some(_), ops: Some(_), .. } => Ok(Format::Recorded),
        Keys { vars: Some(_), functions: Some(_), .. } => Ok(Format::ChainerGraph),
        Keys { nodes: Some(_), edges: Some(_), .. } => Ok(Format::MeasuredGraph),
        Keys { nodes: Some(_), links: Some(_), .. } => Ok(Format::CheckmateGraph),
        _ => unknown(
            "the file is JSON, but has none of the keys `uF`, `sizes` with `ops`, `nodes` with `edges` or `links`, `vars` with `functions`",
        ),
    }
}

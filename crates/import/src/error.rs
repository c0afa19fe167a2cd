//! Errors of importing.

use elbowroom_ir::trace::TraceError;

/// Why a file cannot be imported: where, what, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The content is of no known kind.
    #[error(
        "{file}: {what}, and no kind of trace known here; give a chain profile, a recorded or captured trace (.json, .jsonl), \
         a P100, Checkmate or Chainer graph, a PyTorch memory snapshot (.pickle), or a log of memory operations"
    )]
    UnknownKind {
        /// The file.
        file: String,
        /// What it is instead, if that can be determined.
        what: String,
    },
    /// The gzip data cannot be unpacked.
    #[error("{file}: the gzip data cannot be unpacked ({source}); copy or download the file again")]
    Gzip {
        /// The file.
        file: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file holds more data than any trace.
    #[error("{file}: holds more than {limit} bytes, which is no trace; check that this is the file you mean")]
    TooLarge {
        /// The file.
        file: String,
        /// The maximum.
        limit: u64,
    },
    /// The text is not JSON, or JSON of another form.
    #[error("{file}, line {line}, column {column}: {what}; record the file again, or correct it there")]
    Json {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1; 0 for the line as a whole.
        column: usize,
        /// What is wrong.
        what: String,
    },
    /// A line contains something impossible.
    #[error("{file}, line {line}: {what}; record the file again, or correct it there")]
    Line {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// The pickle cannot be read.
    #[error("{file}, byte {byte}: {what}; write the snapshot again with torch.cuda.memory._dump_snapshot")]
    Pickle {
        /// The file.
        file: String,
        /// Byte of the unpacked file, from 0.
        byte: usize,
        /// What is wrong.
        what: String,
    },
    /// Well-formed data that describe no iteration.
    #[error("{file}: {what}; record the file again, or correct it there")]
    Content {
        /// The file.
        file: String,
        /// What is wrong, and where.
        what: String,
    },
    /// The data violate a rule of traces.
    #[error("{file}: the ops do not make a trace: {source}; record the file again, or correct it there")]
    Trace {
        /// The file.
        file: String,
        /// The rule.
        source: TraceError,
    },
}

impl ImportError {
    /// Converts an error of the JSON reader, whose lines count from the one after `line_offset`.
    pub(crate) fn json(file: &str, line_offset: usize, error: &serde_json::Error) -> Self {
        // The reader appends the position to its message; here the position comes first.
        let text = error.to_string();
        let what = text.split(" at line ").next().unwrap_or(&text).to_owned();
        Self::Json {
            file: file.to_owned(),
            line: line_offset + error.line().max(1),
            column: error.column(),
            what,
        }
    }
}

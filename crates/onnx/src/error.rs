//! Why a file is not taken.

use std::io;
use std::path::PathBuf;

use elbowroom_graph::BuildError;

/// Why a file is not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnnxError {
    /// The file, or one with its weights, cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is no ONNX file, or a part of it is not valid.
    #[error("{} is not a whole ONNX file: {why}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The network as a whole cannot be trained as it is.
    #[error("{} cannot be used: {why}", path.display())]
    Network {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// An operation that does not exist here, or not in this form.
    #[error("{}: {op} (node `{node}`, opset {opset}): {why}", path.display())]
    Op {
        /// The file.
        path: PathBuf,
        /// Its kind: `Conv`.
        op: String,
        /// Its name, or that of its first result.
        node: String,
        /// The version of the set of operations that the file uses.
        opset: i64,
        /// What is missing, and what to do.
        why: String,
    },
    /// The network that the file describes has inconsistent extents.
    #[error("{}: {source}", path.display())]
    Build {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        source: Box<BuildError>,
    },
}

/// Why one operation is not taken: everything but its place.
#[derive(Debug)]
pub enum Refusal {
    /// In words.
    Why(String),
    /// The builder refused it.
    Build(BuildError),
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self::Why(why)
    }
}

impl From<&str> for Refusal {
    fn from(why: &str) -> Self {
        Self::Why(why.to_owned())
    }
}

impl From<BuildError> for Refusal {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

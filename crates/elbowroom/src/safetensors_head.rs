//! The head of a safetensors file: read, and checked against the length of the file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use safetensors::tensor::Metadata;

/// The format's own bound on its head.
const MAX_BYTES: u64 = 100_000_000;

/// An open file with its head. All bytes of all tensors are there; their values are not looked at.
#[derive(Debug)]
pub(crate) struct SafetensorsHead {
    pub file: File,
    /// The head as it is written in the file.
    pub text: Vec<u8>,
    pub metadata: Metadata,
    /// First byte of the tensors.
    pub data_start: u64,
}

/// Why a file has no such head.
#[derive(Debug)]
pub(crate) enum HeadError {
    /// The file cannot be read.
    Io(io::Error),
    /// The file is not a whole safetensors file: what is wrong with it.
    Format(String),
}

impl From<io::Error> for HeadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl SafetensorsHead {
    /// Opens a regular file.
    pub(crate) fn open(path: &Path) -> Result<Self, HeadError> {
        let broken = |why: String| Err(HeadError::Format(why));
        let kind = path.metadata()?;
        if !kind.is_file() {
            let what = if kind.is_dir() { "a folder" } else { "not a regular file" };
            return broken(format!("it is {what}"));
        }
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let mut word = [0; 8];
        if file.read_exact_at(&mut word, 0).is_err() {
            return broken(format!("it has only {len} bytes"));
        }
        let head_len = u64::from_le_bytes(word);
        if head_len > MAX_BYTES || head_len > len.saturating_sub(8) {
            return broken("its head is cut off, or it is no safetensors file".to_owned());
        }
        let mut text = vec![0; head_len as usize];
        file.read_exact_at(&mut text, 8)?;
        let metadata: Metadata = match serde_json::from_slice(&text) {
            Ok(metadata) => metadata,
            Err(error) => return broken(format!("its head cannot be read ({error})")),
        };
        let expected = (metadata.data_len() as u64).checked_add(8 + head_len);
        if expected != Some(len) {
            let promised = expected.map_or("more".to_owned(), |bytes| bytes.to_string());
            return broken(format!("it has {len} bytes, its head promises {promised}"));
        }
        Ok(Self { file, text, metadata, data_start: 8 + head_len })
    }
}

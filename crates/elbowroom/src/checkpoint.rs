//! Checkpoints: every persistent tensor and the number of finished iterations in one safetensors file.
//!
//! A file replaces the earlier one whole or not at all ([`write_whole`](crate::files::write_whole)). Tensors stream through one buffer in both directions, so
//! that saving needs no second copy of the model in memory.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, TensorInfo};

pub use safetensors::Dtype;

/// Key of the number of finished iterations in the file's metadata.
const ITERATION: &str = "iteration";
/// Key of the model's name.
const MODEL: &str = "model";
/// The format's own bound on its head.
const MAX_HEAD: u64 = 100_000_000;

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file cannot be written; an earlier file is untouched.
    #[error("cannot save to {}: {source}; the earlier checkpoint, if any, is untouched", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("cannot read the checkpoint {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not a complete checkpoint.
    #[error("{} is not a whole checkpoint: {why}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The file belongs to another model.
    #[error("{} does not belong to this model: {why}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What differs.
        why: String,
    },
}

/// One tensor of a checkpoint: its name, type and extents.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Unique within the file.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
}

impl Entry {
    /// Bytes of the tensor.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

/// Writes a checkpoint atomically. `read` fills the buffer with the value of the entry at that index.
///
/// # Errors
///
/// [`CheckpointError::Write`] if the file cannot be written or `read` fails; an earlier file is untouched.
pub fn save(
    path: &Path,
    model: &str,
    iterations_done: u64,
    entries: &[Entry],
    mut read: impl FnMut(usize, &mut [u8]) -> io::Result<()>,
) -> Result<(), CheckpointError> {
    let failed = |source| CheckpointError::Write { path: path.to_owned(), source };
    let mut offset = 0;
    let mut infos = Vec::with_capacity(entries.len());
    for entry in entries {
        let end = offset + entry.bytes();
        let info = TensorInfo { dtype: entry.dtype, shape: entry.shape.clone(), data_offsets: (offset, end) };
        infos.push((entry.name.clone(), info));
        offset = end;
    }
    let notes =
        [(ITERATION, iterations_done.to_string()), (MODEL, model.to_owned())].map(|(k, v)| (k.to_owned(), v));
    let metadata =
        Metadata::new(Some(HashMap::from(notes)), infos).map_err(|e| failed(io::Error::other(e)))?;
    let mut head = serde_json::to_vec(&metadata).map_err(|e| failed(e.into()))?;
    head.resize(head.len().next_multiple_of(8), b' ');

    crate::files::write_whole(path, |out| {
        out.write_all(&(head.len() as u64).to_le_bytes())?;
        out.write_all(&head)?;
        let mut value = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            value.resize(entry.bytes(), 0);
            read(index, &mut value)?;
            out.write_all(&value)?;
        }
        Ok(())
    })
    .map_err(failed)
}

/// An open checkpoint: its header is checked, its tensors are read one by one.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    data_start: u64,
    /// Number of iterations before it was saved.
    pub iterations_done: u64,
}

impl Checkpoint {
    /// Opens a file and checks that it is complete.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Read`] if the file cannot be read, [`CheckpointError::Format`] if it is not a complete checkpoint.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let unreadable = |source| CheckpointError::Read { path: path.to_owned(), source };
        let broken = |why: String| CheckpointError::Format { path: path.to_owned(), why };
        let file = File::open(path).map_err(unreadable)?;
        let len = file.metadata().map_err(unreadable)?.len();
        let mut word = [0; 8];
        file.read_exact_at(&mut word, 0).map_err(|_| broken(format!("it has only {len} bytes")))?;
        let head_len = u64::from_le_bytes(word);
        if head_len > MAX_HEAD || head_len > len.saturating_sub(8) {
            return Err(broken("its head is cut off, or it is no safetensors file".to_owned()));
        }
        let mut head = vec![0; head_len as usize];
        file.read_exact_at(&mut head, 8).map_err(unreadable)?;
        let metadata: Metadata =
            serde_json::from_slice(&head).map_err(|e| broken(format!("its head cannot be read ({e})")))?;
        let expected = 8 + head_len + metadata.data_len() as u64;
        if expected != len {
            return Err(broken(format!("it has {len} bytes, its head promises {expected}")));
        }
        let note = metadata.metadata().as_ref().and_then(|notes| notes.get(ITERATION));
        let iterations_done = note.and_then(|note| note.parse().ok()).ok_or_else(|| {
            broken("its metadata lacks the number of iterations before it was saved".to_owned())
        })?;
        Ok(Self { path: path.to_owned(), file, metadata, data_start: 8 + head_len, iterations_done })
    }

    /// Checks that the file holds exactly these tensors.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Mismatch`] if a tensor is missing, has another shape or type, or is not among the entries.
    pub fn expect(&self, entries: &[Entry]) -> Result<(), CheckpointError> {
        self.expect_among(entries)?;
        let theirs = self.metadata.offset_keys().len();
        if theirs != entries.len() {
            let why = format!("it holds {theirs} values, the model has {}", entries.len());
            return Err(CheckpointError::Mismatch { path: self.path.clone(), why });
        }
        Ok(())
    }

    /// Checks that the file holds these tensors among others: the parameters of a training, without the optimizer state.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Mismatch`] if a tensor is missing or has another shape or type.
    pub fn expect_among(&self, entries: &[Entry]) -> Result<(), CheckpointError> {
        let mismatch = |why| Err(CheckpointError::Mismatch { path: self.path.clone(), why });
        for entry in entries {
            match self.metadata.info(&entry.name) {
                None => return mismatch(format!("it lacks {}", entry.name)),
                Some(info) if info.shape != entry.shape || info.dtype != entry.dtype => {
                    let (theirs, ours) = (&info.shape, &entry.shape);
                    return mismatch(format!("{} has shape {theirs:?} there and {ours:?} here", entry.name));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Reads one tensor into a buffer of its size.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Mismatch`] if the file has no tensor of this name and size, [`CheckpointError::Read`] if it cannot be read.
    pub fn read(&self, name: &str, value: &mut [u8]) -> Result<(), CheckpointError> {
        let info =
            self.metadata.info(name).filter(|info| info.data_offsets.1 - info.data_offsets.0 == value.len());
        let info = info.ok_or_else(|| CheckpointError::Mismatch {
            path: self.path.clone(),
            why: format!("it has no {name} of {} bytes", value.len()),
        })?;
        let at = self.data_start + info.data_offsets.0 as u64;
        self.file
            .read_exact_at(value, at)
            .map_err(|source| CheckpointError::Read { path: self.path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        [("w", vec![2, 3]), ("b", vec![3])]
            .map(|(name, shape)| Entry { name: name.to_owned(), dtype: Dtype::F32, shape })
            .to_vec()
    }

    fn fill(index: usize, value: &mut [u8]) -> io::Result<()> {
        value.fill(index as u8 + 1);
        Ok(())
    }

    #[test]
    fn saved_tensors_are_read_and_other_models_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        save(&path, "m", 17, &entries(), fill).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.iterations_done, 17);
        checkpoint.expect(&entries()).unwrap();
        let mut bias = [0; 12];
        checkpoint.read("b", &mut bias).unwrap();
        assert_eq!(bias, [2; 12]);
        let mut other = entries();
        other[0].shape = vec![3, 2];
        assert!(checkpoint.expect(&other).unwrap_err().to_string().contains("[2, 3] there"));
        assert!(checkpoint.expect(&other[..1]).is_err());
        assert!(
            checkpoint.expect(&entries()[..1]).is_err() && checkpoint.expect_among(&entries()[..1]).is_ok()
        );
    }

    #[test]
    fn a_failed_save_leaves_the_earlier_checkpoint_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        save(&path, "m", 1, &entries(), fill).unwrap();
        let failing = |index, value: &mut [u8]| {
            if index == 1 { Err(io::Error::other("disk full")) } else { fill(index, value) }
        };
        let error = save(&path, "m", 2, &entries(), failing).unwrap_err();
        assert!(error.to_string().contains("untouched"), "{error}");
        assert_eq!(Checkpoint::open(&path).unwrap().iterations_done, 1);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn every_truncation_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        save(&path, "m", 1, &entries(), fill).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for len in 0..whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            assert!(Checkpoint::open(&path).is_err(), "{len} bytes");
        }
    }
}

//! Checkpoints: every persistent tensor, the number of finished iterations and the seed in one safetensors file.
//!
//! A file replaces the earlier one whole or not at all ([`write_whole`](crate::files::write_whole)). Tensors stream through one buffer in both
//! directions, so that saving needs no second copy of the model in memory.
//!
//! Every byte of a file is covered by the checksum in its metadata: a damaged file is refused before anything is trained on. The same state
//! is always written as the same bytes.

mod unused;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use elbowroom_engine::Digest;
use elbowroom_graph::Precision;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::ser::{Serialize, SerializeMap, Serializer};

pub use safetensors::Dtype;
pub use unused::UnusedRows;

use crate::safetensors_head::{HeadError, SafetensorsHead};

/// Key of the checksum in the file's metadata. It comes first, so that its place in the file is known.
const CHECKSUM: &str = "checksum";
/// Key of the number of finished iterations.
const ITERATION: &str = "iteration";
/// Key of the precision, absent where it is that of the tensors in the file.
const PRECISION: &str = "precision";
/// Key of the model's name.
const MODEL: &str = "model";
/// Key of the schedule of the learning rate.
const SCHEDULE: &str = "schedule";
/// Key of the seed.
const SEED: &str = "seed";
/// What precedes the checksum in the head.
const BEFORE_CHECKSUM: &str = r#"{"__metadata__":{"checksum":""#;
/// What stands for the checksum while it is computed: as many digits as it has.
const NO_CHECKSUM: &str = "00000000000000000000000000000000";

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
    /// The state cannot be saved, because a training cannot go on from it; an earlier file is untouched.
    #[error("{} is not saved: {name} contains {value}; the earlier checkpoint, if any, is untouched", path.display())]
    Diverged {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its first element that is not finite.
        value: f32,
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
    #[error("{} is not a whole checkpoint: {why}; give one that --save wrote", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The file contains values from which no training can go on.
    #[error("{} cannot be resumed: {name} contains {value}; use an earlier checkpoint", path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its first element that is not finite.
        value: f32,
    },
    /// The file belongs to another model.
    #[error("{} does not belong to this model: {why}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What differs.
        why: String,
    },
    /// The file belongs to a training with another seed.
    #[error("{} was trained with seed {saved}, not {requested}; use its seed, which is the default", path.display())]
    Seed {
        /// The file.
        path: PathBuf,
        /// The seed in the file.
        saved: u64,
        /// The seed that was requested.
        requested: u64,
    },
}

/// What a checkpoint says of the training that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Name of the model.
    pub model: String,
    /// Iterations finished before it was saved.
    pub iterations_done: u64,
    /// Seed of the training.
    pub seed: u64,
    /// The schedule of the learning rate with the iterations that it is made for; `None` if the rate is constant.
    pub schedule: Option<String>,
    /// How the training stored activations. What is saved is `f32` in any case.
    pub precision: Precision,
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

/// The head of a file, in an order that depends on nothing but its content.
struct Head<'a> {
    notes: BTreeMap<&'a str, Cow<'a, str>>,
    entries: &'a [Entry],
}

impl Head<'_> {
    /// The bytes of the head, padded as the format demands.
    fn bytes(&self) -> io::Result<Vec<u8>> {
        let mut head = serde_json::to_vec(self)?;
        head.resize(head.len().next_multiple_of(8), b' ');
        Ok(head)
    }
}

impl Serialize for Head<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1 + self.entries.len()))?;
        map.serialize_entry("__metadata__", &self.notes)?;
        let mut offset = 0;
        for entry in self.entries {
            let end = offset + entry.bytes();
            let shape = entry.shape.clone();
            map.serialize_entry(
                &entry.name,
                &TensorInfo { dtype: entry.dtype, shape, data_offsets: (offset, end) },
            )?;
            offset = end;
        }
        map.end()
    }
}

/// The checksum of a file: a digest of its head, in which [`NO_CHECKSUM`] stands for the checksum, and of the digests of its tensors.
fn checksum(head: &[u8], tensors: &[Digest]) -> String {
    let mut text = head.to_vec();
    for tensor in tensors {
        text.extend(tensor.to_string().into_bytes());
    }
    Digest::of(&text).to_string()
}

/// The first element of a tensor that is not finite; `None` if all are, or if the type has no such elements.
fn not_finite(dtype: Dtype, value: &[u8]) -> Option<f32> {
    let elements =
        value.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    if dtype == Dtype::F32 { elements.into_iter().find(|element| !element.is_finite()) } else { None }
}

/// Writes a checkpoint atomically. `read` fills the buffer with the value of the entry at that index; it is called twice for each entry,
/// because the checksum precedes the values in the file.
///
/// # Errors
///
/// [`CheckpointError::Diverged`] if an element is not finite, [`CheckpointError::Write`] if the file cannot be written or `read` fails; an
/// earlier file is untouched.
pub fn save(
    path: &Path,
    header: &Header,
    entries: &[Entry],
    mut read: impl FnMut(usize, &mut [u8]) -> io::Result<()>,
) -> Result<(), CheckpointError> {
    let failed = |source| CheckpointError::Write { path: path.to_owned(), source };
    let mut value = Vec::new();
    let mut digests = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        value.resize(entry.bytes(), 0);
        read(index, &mut value).map_err(failed)?;
        if let Some(value) = not_finite(entry.dtype, &value) {
            return Err(CheckpointError::Diverged { path: path.to_owned(), name: entry.name.clone(), value });
        }
        digests.push(Digest::of(&value));
    }
    let notes = [
        (CHECKSUM, NO_CHECKSUM.into()),
        (ITERATION, header.iterations_done.to_string().into()),
        (MODEL, header.model.as_str().into()),
        (SEED, header.seed.to_string().into()),
    ];
    let mut head = Head { notes: BTreeMap::from(notes), entries };
    if header.precision != Precision::default() {
        head.notes.insert(PRECISION, header.precision.name().into());
    }
    head.notes.extend(header.schedule.iter().map(|schedule| (SCHEDULE, schedule.as_str().into())));
    let checksum = checksum(&head.bytes().map_err(failed)?, &digests);
    head.notes.insert(CHECKSUM, checksum.into());
    let head = head.bytes().map_err(failed)?;

    crate::files::write_whole(path, |out| {
        out.write_all(&(head.len() as u64).to_le_bytes())?;
        out.write_all(&head)?;
        for (index, entry) in entries.iter().enumerate() {
            value.resize(entry.bytes(), 0);
            read(index, &mut value)?;
            out.write_all(&value)?;
        }
        Ok(())
    })
    .map_err(failed)
}

/// An open checkpoint: the whole file is checked, its tensors are read one by one.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    data_start: u64,
    /// The digests of the tensors when the file was checked.
    digests: HashMap<String, Digest>,
    /// What it says of its training.
    pub header: Header,
}

impl Checkpoint {
    /// Opens a file, checks that it is complete and undamaged, and that all its values are finite.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Read`] if the file cannot be read, [`CheckpointError::Format`] if it is not a complete checkpoint or was changed after
    /// it was written, [`CheckpointError::NotFinite`] if a value is not finite.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let broken = |why: String| CheckpointError::Format { path: path.to_owned(), why };
        let head = SafetensorsHead::open(path).map_err(|error| match error {
            HeadError::Io(source) => CheckpointError::Read { path: path.to_owned(), source },
            HeadError::Format(why) => broken(why),
        })?;
        let SafetensorsHead { file, text: mut head, metadata, data_start } = head;
        let first = BEFORE_CHECKSUM.len();
        let place = first..first + NO_CHECKSUM.len();
        if !head.starts_with(BEFORE_CHECKSUM.as_bytes()) || head.len() < place.end {
            return Err(broken(
                "it has no checksum, so that it is damaged or was not written by this version of elbowroom"
                    .to_owned(),
            ));
        }
        let found = head[place.clone()].to_vec();
        head[place].copy_from_slice(NO_CHECKSUM.as_bytes());

        let mut checkpoint = Self {
            path: path.to_owned(),
            file,
            header: header(&metadata).ok_or_else(|| {
                broken(
                    "its metadata lacks the number of iterations before it was saved, or the seed".to_owned(),
                )
            })?,
            metadata,
            data_start,
            digests: HashMap::new(),
        };
        let (mut value, mut digests, mut infinite) = (Vec::new(), Vec::new(), None);
        for name in checkpoint.metadata.offset_keys() {
            let Some(info) = checkpoint.metadata.info(&name) else { continue };
            value.resize(info.data_offsets.1 - info.data_offsets.0, 0);
            checkpoint.read_unchecked(info, &mut value)?;
            infinite = infinite.or_else(|| Some((name.clone(), not_finite(info.dtype, &value)?)));
            let digest = Digest::of(&value);
            digests.push(digest);
            checkpoint.digests.insert(name, digest);
        }
        if checksum(&head, &digests).as_bytes() != found {
            return Err(broken(
                "it was damaged after it was written: its checksum is that of other content".to_owned(),
            ));
        }
        match infinite {
            Some((name, value)) => Err(CheckpointError::NotFinite { path: path.to_owned(), name, value }),
            None => Ok(checkpoint),
        }
    }

    /// Checks that the file holds exactly these tensors.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Mismatch`] if a tensor is missing, has another shape or type, or is not among the entries.
    pub fn expect(&self, entries: &[Entry]) -> Result<(), CheckpointError> {
        self.expect_among(entries)?;
        let theirs = self.metadata.offset_keys().len() - self.unused(entries)?.len();
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

    /// The rows of these tensors that the training does not use and keeps.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Read`] if the system cannot give the file a second time.
    pub(crate) fn unused(&self, entries: &[Entry]) -> Result<Vec<UnusedRows>, CheckpointError> {
        let place = (&self.metadata, self.data_start);
        let rows = entries.iter().enumerate().filter_map(|(table, entry)| {
            UnusedRows::find(table, entry, place, self.metadata.info(&entry.name)?, &self.file).transpose()
        });
        let unreadable = |source| CheckpointError::Read { path: self.path.clone(), source };
        rows.collect::<io::Result<_>>().map_err(unreadable)
    }

    /// Checks that the file was saved by a training with this seed.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Seed`] if it was not.
    pub fn expect_seed(&self, requested: u64) -> Result<(), CheckpointError> {
        let saved = self.header.seed;
        if saved == requested {
            return Ok(());
        }
        Err(CheckpointError::Seed { path: self.path.clone(), saved, requested })
    }

    /// Reads one tensor into a buffer of its size.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Mismatch`] if the file has no tensor of this name and size, [`CheckpointError::Read`] if it cannot be read,
    /// [`CheckpointError::Format`] if it was changed after it was opened.
    pub fn read(&self, name: &str, value: &mut [u8]) -> Result<(), CheckpointError> {
        let info =
            self.metadata.info(name).filter(|info| info.data_offsets.1 - info.data_offsets.0 == value.len());
        let info = info.ok_or_else(|| CheckpointError::Mismatch {
            path: self.path.clone(),
            why: format!("it has no {name} of {} bytes", value.len()),
        })?;
        self.read_unchecked(info, value)?;
        if self.digests.get(name) != Some(&Digest::of(value)) {
            let why = format!("{name} was changed after the file was opened");
            return Err(CheckpointError::Format { path: self.path.clone(), why });
        }
        Ok(())
    }

    fn read_unchecked(&self, info: &TensorInfo, value: &mut [u8]) -> Result<(), CheckpointError> {
        let at = self.data_start + info.data_offsets.0 as u64;
        self.file
            .read_exact_at(value, at)
            .map_err(|source| CheckpointError::Read { path: self.path.clone(), source })
    }
}

/// What the metadata of a file says of its training; `None` if something is missing.
fn header(metadata: &Metadata) -> Option<Header> {
    let notes = metadata.metadata().as_ref()?;
    let number = |key: &str| notes.get(key)?.parse().ok();
    let model = notes.get(MODEL)?.clone();
    let schedule = notes.get(SCHEDULE).cloned();
    let precision = match notes.get(PRECISION) {
        Some(name) => name.parse().ok()?,
        None => Precision::default(),
    };
    Some(Header { model, iterations_done: number(ITERATION)?, seed: number(SEED)?, schedule, precision })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        [("w", vec![2, 3]), ("b", vec![3])]
            .map(|(name, shape)| Entry { name: name.to_owned(), dtype: Dtype::F32, shape })
            .to_vec()
    }

    fn header(iterations_done: u64) -> Header {
        Header { model: "m".to_owned(), iterations_done, seed: 5, schedule: None, precision: Precision::F32 }
    }

    fn fill(index: usize, value: &mut [u8]) -> io::Result<()> {
        value.fill(index as u8 + 1);
        Ok(())
    }

    #[test]
    fn saved_tensors_are_read_and_other_models_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        save(&path, &header(17), &entries(), fill).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.header, header(17));
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
        save(&path, &header(1), &entries(), fill).unwrap();
        // Each entry is read once for the checksum and once for the file.
        for failing_call in 0..4 {
            let mut calls = 0..;
            let failing = |index, value: &mut [u8]| match calls.next() == Some(failing_call) {
                true => Err(io::Error::other("disk full")),
                false => fill(index, value),
            };
            let error = save(&path, &header(2), &entries(), failing).unwrap_err();
            assert!(error.to_string().contains("untouched"), "{error}");
            assert_eq!(Checkpoint::open(&path).unwrap().header.iterations_done, 1);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
        }
    }

    #[test]
    fn every_truncation_and_every_changed_bit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        save(&path, &header(1), &entries(), fill).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for len in 0..whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            assert!(Checkpoint::open(&path).is_err(), "{len} bytes");
        }
        let mut changed = whole.clone();
        for bit in 0..8 * whole.len() {
            changed[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &changed).unwrap();
            assert!(Checkpoint::open(&path).is_err(), "bit {bit}");
            changed[bit / 8] ^= 1 << (bit % 8);
        }
        std::fs::write(&path, &whole).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        // The file is open, and another process writes into it.
        changed = [&whole[..whole.len() - 24], &[9; 24]].concat();
        std::fs::write(&path, &changed).unwrap();
        let error = checkpoint.read("b", &mut [0; 12]).unwrap_err().to_string();
        assert!(error.contains("changed after"), "{error}");
    }

    #[test]
    fn heads_that_promise_too_much_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let tensor =
            r#"{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]}"#;
        let head = format!(r#"{BEFORE_CHECKSUM}{NO_CHECKSUM}"}},"w":{tensor}}}"#);
        let file = [&(head.len() as u64).to_le_bytes()[..], head.as_bytes()].concat();
        std::fs::write(&path, file).unwrap();
        assert!(matches!(Checkpoint::open(&path), Err(CheckpointError::Format { .. })));
        assert!(Checkpoint::open(folder.path()).unwrap_err().to_string().contains("a folder"));
    }

    #[test]
    fn values_that_are_not_finite_are_neither_saved_nor_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        save(&path, &header(1), &entries(), fill).unwrap();
        for value in [f32::NAN, f32::NEG_INFINITY] {
            let diverged = |index, bytes: &mut [u8]| {
                fill(index, bytes)?;
                bytes[4..8].copy_from_slice(&value.to_le_bytes());
                Ok(())
            };
            let error = save(&path, &header(2), &entries(), diverged).unwrap_err();
            assert!(matches!(error, CheckpointError::Diverged { .. }), "{error}");
            assert_eq!(Checkpoint::open(&path).unwrap().header.iterations_done, 1);
        }
        // Another program could write such a file with a right checksum.
        let head = |checksum: &str| {
            let tensor = r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
            format!(r#"{BEFORE_CHECKSUM}{checksum}","iteration":"1","model":"m","seed":"0"}},"w":{tensor}}}"#)
        };
        let value = f32::NAN.to_le_bytes();
        let checksum = checksum(head(NO_CHECKSUM).as_bytes(), &[Digest::of(&value)]);
        let head = head(&checksum);
        let file = [&(head.len() as u64).to_le_bytes()[..], head.as_bytes(), &value].concat();
        std::fs::write(&path, file).unwrap();
        let error = Checkpoint::open(&path).unwrap_err();
        assert!(matches!(error, CheckpointError::NotFinite { .. }), "{error}");
        assert!(error.to_string().contains("w contains NaN"), "{error}");
    }

    #[test]
    fn the_same_state_is_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = folder.path().join(name);
            save(&path, &header(3), &entries(), fill).unwrap();
            std::fs::read(path).unwrap()
        };
        let first = write("first");
        assert!((0..16).all(|_| write("again") == first));
    }
}

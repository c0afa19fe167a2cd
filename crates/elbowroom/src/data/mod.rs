//! Data sets: where the batches of a training come from.
//!
//! A [`Dataset`] fills a [`Batch`] with samples that are named by index. CIFAR-10, MNIST, plain text and synthetic data are data sets of
//! this crate; [`Training::data`](crate::train::Training::data) takes any other. A [`Feed`] decides which samples an iteration sees: it
//! shuffles every epoch by seed, so that the samples depend on the seed and the iteration's number alone, and a resumed run sees what an
//! uninterrupted one would have seen.
//!
//! Files are streamed: a reader keeps a file handle, never the data.

mod augment;
mod batch;
mod cifar10;
mod feed;
mod images;
mod misfit;
mod mnist;
mod order;
mod pass;
pub(crate) use order::mix;
pub(crate) use pass::Pass;
pub mod sentences;
mod split;
mod synthetic;
mod text;
mod tokenizer;

use std::error::Error;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

pub use augment::Augmentation;
pub use batch::{Batch, ImageShape, TokenShape};
pub use cifar10::Cifar10;
pub use feed::{Feed, Samples};
pub use images::Images;
pub use mnist::Mnist;
pub(crate) use sentences::POOL;
pub use split::Subset;
pub use synthetic::Synthetic;
pub use text::{Text, Windows};
pub use tokenizer::Tokenizer;

use batch::Kind;

/// Samples that are found by index.
///
/// ```
/// use elbowroom::data::{Batch, DataError, Dataset};
///
/// /// Points on a line, with the side of zero on which each lies.
/// struct Line;
///
/// impl Dataset for Line {
///     fn samples(&self) -> Option<u64> {
///         Some(1000)
///     }
///
///     fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError> {
///         for (x, &index) in batch.reals("points", &[1])?.iter_mut().zip(indices) {
///             *x = index as f32 / 500.0 - 1.0;
///         }
///         for (side, &index) in batch.classes("labels", &[])?.iter_mut().zip(indices) {
///             *side = i32::from(index >= 500);
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait Dataset: Send {
    /// Number of samples, at least one. Indices are below it, and every epoch visits each sample once, in another order. `None` if there is
    /// no end: then the indices of a training count up from zero.
    fn samples(&self) -> Option<u64>;

    /// Fills every input of a batch with the samples of these indices, in their order: one index for each sample of the batch. What this
    /// writes may depend on the indices alone. The same data set fills batches of several sizes if the last batch of an epoch is smaller.
    ///
    /// # Errors
    ///
    /// Any [`DataError`]. It ends the training.
    fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError>;

    /// Names of the classes, in the order of their numbers; `None` if classes have numbers only.
    fn class_names(&self) -> Option<Vec<String>> {
        None
    }

    /// Gives the classes the numbers that they have in other data, which has these names in this order: held-out data may lack classes.
    ///
    /// # Errors
    ///
    /// [`DataError::Mismatch`] if the data has a class that the other data lacks.
    fn number_classes_as(&mut self, _names: &[String]) -> Result<(), DataError> {
        Ok(())
    }

    /// Samples that one epoch has, for batches like this one; `None` if the data has no epochs. By default the number of
    /// [samples](Self::samples). Data without an end can have epochs as well: the windows that fit into a text side by side.
    fn epoch(&self, _batch: &Batch) -> Option<u64> {
        self.samples()
    }
}

/// Why there is no data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not of the format that its name indicates.
    #[error("{} is not a whole {format} file: {why}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format expected.
        format: &'static str,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The folder holds no known data.
    #[error(
        "{} holds no data that can be read: expected data_batch_1.bin (CIFAR-10), train-images-idx3-ubyte (MNIST), a folder of JPEG or PNG images for each class, or a plain text file",
        .0.display()
    )]
    Unknown(PathBuf),
    /// The data does not fit the network.
    #[error("the data does not fit the network: {0}")]
    Mismatch(String),
    /// A data set has no samples, or more than an epoch can have.
    #[error("an epoch has from 1 to {} samples, the data set has {samples}", u32::MAX)]
    Samples {
        /// Samples of the data set.
        samples: u64,
    },
    /// Data without an end cannot be evaluated on.
    #[error("this data has no end, so that it cannot be evaluated on; name files with --eval-data")]
    Endless,
    /// There is no sample of this index.
    #[error("there is no sample {index}: the data set has {samples}")]
    Index {
        /// The index.
        index: u64,
        /// Samples of the data set.
        samples: u64,
    },
    /// A data set of the user failed.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}

/// The bytes of a file of at most `most` bytes, which may also be a pipe or a device: the size that the system states for these is no bound.
fn read_at_most(path: &Path, most: u64, format: &'static str) -> Result<Vec<u8>, DataError> {
    let file = File::open(path).map_err(DataError::io(path))?;
    let mut bytes = Vec::new();
    let stated = file.metadata().map_err(DataError::io(path))?.len();
    if stated <= most {
        file.take(most + 1).read_to_end(&mut bytes).map_err(DataError::io(path))?;
    }
    if stated > most || bytes.len() as u64 > most {
        let why = format!("it has more than {most} bytes, and no {format} has that many");
        return Err(DataError::Format { path: path.to_owned(), format, why });
    }
    Ok(bytes)
}

impl DataError {
    /// An error of a data set outside this crate.
    pub fn other(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

/// Opens the data at a path for a network whose inputs are those of `batch`: a folder of CIFAR-10 or MNIST files for images, a text file or
/// a folder of them for tokens. Without a path, makes [`Synthetic`] data from the seed.
///
/// # Errors
///
/// [`DataError::Mismatch`] if no reader makes what the network takes, and the errors of the readers.
pub fn open(batch: &Batch, path: Option<&Path>, seed: u64) -> Result<Box<dyn Dataset>, DataError> {
    open_tokenized(batch, path, seed, &Tokenizer::default())
}

/// As [`open()`], where a text is cut into tokens in another way.
///
/// # Errors
///
/// Those of [`open()`].
pub fn open_tokenized(
    batch: &Batch,
    path: Option<&Path>,
    seed: u64,
    tokenizer: &Tokenizer,
) -> Result<Box<dyn Dataset>, DataError> {
    let Some(kind) = batch.kind() else {
        let why = "no reader makes the inputs that it takes; implement Dataset for your data".to_owned();
        return Err(DataError::Mismatch(why));
    };
    let Some(path) = path else { return Ok(Box::new(Synthetic { seed })) };
    match kind {
        Kind::Images(_) if Cifar10::is_in(path) => Ok(Box::new(Cifar10::open(path)?)),
        Kind::Images(_) if Mnist::is_in(path) => Ok(Box::new(Mnist::open(path)?)),
        Kind::Images(_) if Images::is_in(path) => Ok(Box::new(Images::open(path)?)),
        Kind::Images(_) if is_table(path) => Ok(Box::new(Images::open_table(path)?)),
        Kind::Images(_) => Err(misfit::for_images(path)),
        Kind::Tokens(_) if misfit::is_no_text(path) => Err(misfit::for_text(path)),
        Kind::Tokens(_) => Ok(Box::new(Text::open_tokenized(path, seed, tokenizer)?)),
        Kind::Segments(_) | Kind::Points(_) | Kind::Targets(_) => Err(DataError::Mismatch(format!(
            "it trains on synthetic data only and cannot use {}; leave out --data",
            path.display()
        ))),
    }
}

/// Whether a path is a file that is named like a table.
fn is_table(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|end| end.eq_ignore_ascii_case("csv"))
}

/// Opens the held-out data at a path for a network whose inputs are those of `batch`, in an order of its own and with an end: for images the
/// test files of CIFAR-10 (`test_batch.bin`) or MNIST (`t10k-…`) in a folder, or its training files if it holds no test files, or one file
/// of CIFAR-10's form; for tokens the windows of a text, side by side.
///
/// # Errors
///
/// Those of [`open()`].
pub fn open_evaluation(
    batch: &Batch,
    path: &Path,
    tokenizer: &Tokenizer,
) -> Result<Box<dyn Dataset>, DataError> {
    match batch.kind() {
        Some(Kind::Images(_)) if Cifar10::is_test_in(path) => Ok(Box::new(Cifar10::open_test(path)?)),
        Some(Kind::Images(_)) if Mnist::is_test_in(path) => Ok(Box::new(Mnist::open_test(path)?)),
        Some(Kind::Tokens(shape)) if !misfit::is_no_text(path) => {
            Ok(Box::new(Windows::open_tokenized(path, shape.length, tokenizer)?))
        }
        _ => open_tokenized(batch, Some(path), 0, tokenizer),
    }
}

/// Whether a folder of training data holds test data as well.
pub fn holds_test_data(path: &Path) -> bool {
    Cifar10::is_test_in(path) && path.is_dir() || Mnist::is_test_in(path)
}

//! Where batches come from: CIFAR-10 and MNIST in their own binary formats, plain text, or numbers made on the spot.
//!
//! Files are streamed: a reader keeps a file handle and the order of one epoch, never the data. The samples of an iteration depend only on
//! the seed and the iteration's number, so that a resumed run sees what an uninterrupted one would have seen.

mod cifar10;
mod feed;
mod mnist;
mod order;
pub(crate) use order::mix;
pub mod sentences;
mod synthetic;
mod text;

use std::io;
use std::path::{Path, PathBuf};

pub use cifar10::Cifar10;
pub use feed::Feed;
pub use mnist::Mnist;
pub use synthetic::Synthetic;
pub use text::Text;

/// Why data cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not what its name promises.
    #[error("{} is not a whole {format} file: {why}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format expected.
        format: &'static str,
        /// What is wrong, and what to do.
        why: String,
    },
    /// Nothing known lies there.
    #[error(
        "{} holds no data that can be read: expected data_batch_1.bin (CIFAR-10), train-images-idx3-ubyte (MNIST) or a plain text file",
        .0.display()
    )]
    Unknown(PathBuf),
    /// The data does not fit the network.
    #[error("the data does not fit the network: {0}")]
    Mismatch(String),
}

impl DataError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

/// Images as a network wants them: `batch × channels × height × width`, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// Images in a batch.
    pub batch: usize,
    /// 3 for colour, 1 for grey.
    pub channels: usize,
    /// Pixels.
    pub height: usize,
    /// Pixels.
    pub width: usize,
    /// Number of classes that labels count.
    pub classes: usize,
}

/// A source of labelled images.
pub trait Images: Send {
    /// Fills a batch with the samples from place `first` of the endless sequence of epochs on: normalized pixels, and a class below `shape.classes` for each image.
    fn fill(
        &mut self,
        first: u64,
        shape: ImageShape,
        pixels: &mut [f32],
        labels: &mut [i32],
    ) -> Result<(), DataError>;
}

/// Token sequences as a network wants them: `batch × length`, each token below `vocabulary`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenShape {
    /// Sequences in a batch.
    pub batch: usize,
    /// Tokens in a sequence.
    pub length: usize,
    /// Number of different tokens.
    pub vocabulary: usize,
}

/// A source of token sequences.
pub trait Tokens: Send {
    /// Fills a batch with the samples from place `first` of an endless sequence on: tokens, and for each the token that follows it.
    fn fill(
        &mut self,
        first: u64,
        shape: TokenShape,
        tokens: &mut [i32],
        following: &mut [i32],
    ) -> Result<(), DataError>;
}

/// Opens a folder of labelled images, its format found from what lies in it.
pub fn open_images(folder: &Path, seed: u64) -> Result<Box<dyn Images>, DataError> {
    if Cifar10::is_in(folder) {
        Ok(Box::new(Cifar10::open(folder, seed)?))
    } else if Mnist::is_in(folder) {
        Ok(Box::new(Mnist::open(folder, seed)?))
    } else {
        std::fs::metadata(folder).map_err(DataError::io(folder))?;
        Err(DataError::Unknown(folder.to_owned()))
    }
}

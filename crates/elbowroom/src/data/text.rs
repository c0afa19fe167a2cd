//! Plain text for language models: every byte is a token, or a [`Tokenizer`] cuts the text into tokens. Training reads windows at random offsets,
//! evaluation windows side by side.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::batch::{Kind, TokenBatch};
use super::order::mix;
use super::{Batch, DataError, Dataset, Tokenizer};

/// Different tokens: the values of a byte.
pub const VOCABULARY: usize = 256;

/// One file of text, or all of a folder.
#[derive(Debug)]
pub struct Text {
    path: PathBuf,
    /// The text, file by file, or its tokens.
    parts: Vec<Part>,
    /// Number of tokens.
    len: u64,
    /// Bytes of a token in the file.
    width: usize,
    /// Number of different tokens, and what has them.
    vocabulary: usize,
    order: Order,
    window: Vec<u8>,
}

/// Bytes of a text that lie in one file.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    file: File,
    /// Where they begin and end in the text.
    start: u64,
    end: u64,
}

/// Where windows begin.
#[derive(Clone, Copy, Debug)]
enum Order {
    Random { seed: u64 },
    SideBySide,
}

impl Text {
    /// Whether a folder holds text.
    pub fn is_in(folder: &Path) -> bool {
        Self::first_in(folder).is_ok_and(|first| first.is_some())
    }

    /// The first file of a folder by name that ends in `.txt`.
    pub(super) fn first_in(folder: &Path) -> std::io::Result<Option<PathBuf>> {
        Ok(Self::files_in(folder)?.into_iter().next())
    }

    /// The files of a folder that end in `.txt`, by name.
    fn files_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
        let files = std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
        let mut files: Vec<PathBuf> =
            files.filter(|file| file.extension().is_some_and(|extension| extension == "txt")).collect();
        files.sort();
        Ok(files)
    }

    /// Opens a file, or all files of a folder that end in `.txt`, one behind the other by name. The seed determines where windows begin.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if a file cannot be opened, [`DataError::Unknown`] if a folder holds no text.
    pub fn open(path: &Path, seed: u64) -> Result<Self, DataError> {
        Self::open_tokenized(path, seed, &Tokenizer::default())
    }

    /// As [`open`](Self::open), cut into tokens in another way. The tokens are kept in a file without a name in the folder for temporary files.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), and [`DataError::Format`] if the text is not in UTF-8.
    pub fn open_tokenized(path: &Path, seed: u64, tokenizer: &Tokenizer) -> Result<Self, DataError> {
        let mut files = vec![path.to_owned()];
        if path.is_dir() {
            files = Self::files_in(path).map_err(DataError::io(path))?;
            if files.is_empty() {
                return Err(DataError::Unknown(path.to_owned()));
            }
        }
        let (mut parts, mut start) = (Vec::new(), 0);
        let (width, len) = match tokenizer.is_bytes() {
            true => {
                for path in files {
                    let file = File::open(&path).map_err(DataError::io(&path))?;
                    let end = start + file.metadata().map_err(DataError::io(&path))?.len();
                    parts.push(Part { path, file, start, end });
                    start = end;
                }
                (1, start)
            }
            false => {
                let (file, len) = tokenizer.encode_files(&files)?;
                parts.push(Part { path: path.to_owned(), file, start, end: 4 * len });
                (4, len)
            }
        };
        let (order, vocabulary) = (Order::Random { seed }, tokenizer.vocabulary());
        Ok(Self { path: path.to_owned(), parts, len, width, vocabulary, order, window: Vec::new() })
    }

    /// Reads the bytes of the text from `at` on into the window.
    fn read(&mut self, mut at: u64) -> Result<(), DataError> {
        let mut window = &mut self.window[..];
        let first = self.parts.partition_point(|part| part.end <= at);
        for part in &self.parts[first..] {
            let here = (part.end - at).min(window.len() as u64) as usize;
            let (bytes, rest) = window.split_at_mut(here);
            part.file.read_exact_at(bytes, at - part.start).map_err(DataError::io(&part.path))?;
            (window, at) = (rest, part.end);
            if window.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// The error for a text that is shorter than one sequence and the token that follows it.
    fn too_short(&self, length: usize) -> DataError {
        let what = if self.width == 1 { "bytes" } else { "tokens" };
        let shorter = match self.len {
            0 | 1 => String::new(),
            len => format!(", or --length {}", (len - 1).min(length as u64)),
        };
        let why = format!(
            "{} {what} are too few for one sequence of {length} and the one that follows; use a longer text{shorter}",
            self.len
        );
        DataError::Format { path: self.path.clone(), format: "text", why }
    }
}

impl Dataset for Text {
    /// Windows begin anywhere, so that there is no end.
    fn samples(&self) -> Option<u64> {
        None
    }

    fn epoch(&self, batch: &Batch) -> Option<u64> {
        match batch.kind() {
            Some(Kind::Tokens(shape)) => Some(windows(self.len, shape.length)).filter(|&windows| windows > 0),
            _ => None,
        }
    }

    fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError> {
        let TokenBatch { shape, tokens, following } = batch.tokens("text")?;
        let window = shape.length as u64 + 1;
        if shape.vocabulary < self.vocabulary {
            let tokens = match self.width {
                1 => "whose tokens are the 256 different bytes".to_owned(),
                _ => format!("whose tokenizer has {} tokens", self.vocabulary),
            };
            return Err(DataError::Mismatch(format!(
                "{} is a text, {tokens}, and the network has {} tokens; use --vocabulary {}",
                self.path.display(),
                shape.vocabulary,
                self.vocabulary
            )));
        }
        if self.len < window {
            return Err(self.too_short(shape.length));
        }
        let width = self.width;
        self.window.resize(width * (shape.length + 1), 0);
        for (row, (tokens, &index)) in tokens.chunks_exact_mut(shape.length.max(1)).zip(indices).enumerate() {
            let offset = match self.order {
                Order::Random { seed } => mix(seed, index) % (self.len - window + 1),
                Order::SideBySide => (index * shape.length as u64).min(self.len - window),
            };
            self.read(offset * width as u64)?;
            for (token, bytes) in tokens.iter_mut().zip(self.window.chunks_exact(width)) {
                *token = number(bytes);
            }
            let following = following.iter_mut().skip(row * shape.length).take(shape.length);
            for (token, bytes) in following.zip(self.window[width..].chunks_exact(width)) {
                *token = number(bytes);
            }
        }
        Ok(())
    }
}

/// The token that these little-endian bytes are.
fn number(bytes: &[u8]) -> i32 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | i32::from(byte))
}

/// The windows of a text side by side: a data set with an end.
#[derive(Debug)]
pub struct Windows {
    text: Text,
    samples: u64,
}

impl Windows {
    /// Opens a text, like [`Text::open`], for sequences of this many tokens. What is left behind the last whole window is not read.
    ///
    /// # Errors
    ///
    /// Those of [`Text::open`], and [`DataError::Format`] if the text is shorter than one window.
    pub fn open(path: &Path, length: usize) -> Result<Self, DataError> {
        Self::open_tokenized(path, length, &Tokenizer::default())
    }

    /// As [`open`](Self::open), cut into tokens in another way.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open) and of [`Text::open_tokenized`].
    pub fn open_tokenized(path: &Path, length: usize, tokenizer: &Tokenizer) -> Result<Self, DataError> {
        let text = Text { order: Order::SideBySide, ..Text::open_tokenized(path, 0, tokenizer)? };
        let samples = windows(text.len, length);
        if samples == 0 {
            return Err(text.too_short(length));
        }
        Ok(Self { text, samples })
    }
}

/// Windows of this many tokens, each with the token that follows it, that fit side by side.
fn windows(len: u64, length: usize) -> u64 {
    len.saturating_sub(1) / length.max(1) as u64
}

impl Dataset for Windows {
    fn samples(&self) -> Option<u64> {
        Some(self.samples)
    }

    fn fill(&mut self, indices: &[u64], batch: &mut Batch) -> Result<(), DataError> {
        self.text.fill(indices, batch)
    }
}

#[cfg(test)]
mod tests {
    use super::super::TokenShape;
    use super::*;

    #[test]
    fn all_texts_of_a_folder_are_one_by_name() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in
            [("b.txt", "defg"), ("a.txt", "abc"), ("c.txt", ""), ("d.txt", "h"), ("e.md", "no")]
        {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let mut windows = Windows::open(folder.path(), 3).unwrap();
        assert_eq!(windows.samples(), Some(2));
        let shape = TokenShape { batch: 2, length: 3, vocabulary: 256 };
        let mut batch = Batch::of_tokens(shape, true);
        windows.fill(&[0, 1], &mut batch).unwrap();
        let TokenBatch { tokens, following, .. } = batch.tokens("text").unwrap();
        let text = |tokens: &[i32]| tokens.iter().map(|&token| token as u8 as char).collect::<String>();
        assert_eq!((text(tokens), text(following)), ("abcdef".to_owned(), "bcdefg".to_owned()));
        // A window over all files, the empty one among them.
        let mut batch = Batch::of_tokens(TokenShape { batch: 1, length: 7, ..shape }, true);
        Text::open(folder.path(), 1).unwrap().fill(&[0], &mut batch).unwrap();
        let TokenBatch { following, .. } = batch.tokens("text").unwrap();
        assert_eq!(text(following), "bcdefgh");
    }

    #[test]
    fn the_following_token_follows() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.txt"), (0..=255).collect::<Vec<u8>>()).unwrap();
        let mut text = Text::open(folder.path(), 5).unwrap();
        let shape = TokenShape { batch: 4, length: 16, vocabulary: 256 };
        let mut batch = Batch::of_tokens(shape, true);
        text.fill(&[9, 10, 11, 12], &mut batch).unwrap();
        let TokenBatch { tokens, following, .. } = batch.tokens("text").unwrap();
        assert!(tokens.iter().zip(following.iter()).all(|(t, f)| t + 1 == *f));
        assert!(tokens[0] != tokens[16] || tokens[16] != tokens[32]);
        let mut windows = Windows::open(folder.path(), 16).unwrap();
        assert_eq!((windows.samples(), text.epoch(&batch)), (Some(15), Some(15)));
        windows.fill(&[0, 1, 2, 14], &mut batch).unwrap();
        let TokenBatch { tokens, .. } = batch.tokens("text").unwrap();
        assert_eq!([0, 16, 32, 48].map(|at| tokens[at]), [0, 16, 32, 224]);
        assert!(Windows::open(folder.path(), 256).is_err());
        let mut long = Batch::of_tokens(TokenShape { length: 256, ..shape }, true);
        let error = text.fill(&[0], &mut long).unwrap_err();
        assert!(error.to_string().contains("too few"), "{error}");
    }
}

//! Plain text for language models: every byte is a token, sequences are windows at random places.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::order::mix;
use super::{DataError, TokenShape, Tokens};

/// Different tokens: the values of a byte.
pub const VOCABULARY: usize = 256;

/// One file of text.
#[derive(Debug)]
pub struct Text {
    path: PathBuf,
    file: File,
    len: u64,
    seed: u64,
    window: Vec<u8>,
}

impl Text {
    /// Opens a file; of a folder, the first file ending in `.txt` by name.
    pub fn open(path: &Path, seed: u64) -> Result<Self, DataError> {
        let mut path = path.to_owned();
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).map_err(DataError::io(&path))?;
            let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
            let first = files.filter(|file| file.extension().is_some_and(|e| e == "txt")).min();
            path = first.ok_or(DataError::Unknown(path))?;
        }
        let file = File::open(&path).map_err(DataError::io(&path))?;
        let len = file.metadata().map_err(DataError::io(&path))?.len();
        Ok(Self { path, file, len, seed, window: Vec::new() })
    }
}

impl Tokens for Text {
    fn fill(
        &mut self,
        first: u64,
        shape: TokenShape,
        tokens: &mut [i32],
        following: &mut [i32],
    ) -> Result<(), DataError> {
        let window = shape.length as u64 + 1;
        if shape.vocabulary < VOCABULARY {
            return Err(DataError::Mismatch(format!(
                "text has 256 different bytes, the network knows {} tokens",
                shape.vocabulary
            )));
        }
        if self.len < window {
            let why =
                format!("{} bytes are too few for one sequence of {window}; use a longer text", self.len);
            return Err(DataError::Format { path: self.path.clone(), format: "text", why });
        }
        self.window.resize(shape.length + 1, 0);
        let rows = tokens.chunks_exact_mut(shape.length).zip(following.chunks_exact_mut(shape.length));
        for (i, (tokens, following)) in rows.enumerate() {
            let place = mix(self.seed, first + i as u64) % (self.len - window + 1);
            self.file.read_exact_at(&mut self.window, place).map_err(DataError::io(&self.path))?;
            for (token, &byte) in tokens.iter_mut().zip(&self.window) {
                *token = i32::from(byte);
            }
            for (token, &byte) in following.iter_mut().zip(&self.window[1..]) {
                *token = i32::from(byte);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_following_token_follows() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.txt"), (0..=255).collect::<Vec<u8>>()).unwrap();
        let mut text = Text::open(folder.path(), 5).unwrap();
        let shape = TokenShape { batch: 4, length: 16, vocabulary: 256 };
        let (mut tokens, mut following) = (vec![0; 64], vec![0; 64]);
        text.fill(9, shape, &mut tokens, &mut following).unwrap();
        assert!(tokens.iter().zip(&following).all(|(t, f)| t + 1 == *f));
        let long = TokenShape { length: 256, ..shape };
        let error = text.fill(0, long, &mut vec![0; 1024], &mut vec![0; 1024]).unwrap_err();
        assert!(error.to_string().contains("too few"), "{error}");
    }
}

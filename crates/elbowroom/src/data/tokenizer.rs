//! How text becomes tokens: a token for every byte, or byte pairs from a file.

mod byte_pairs;
mod pieces;

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::DataError;
use byte_pairs::BytePairs;

/// Bytes of text that are cut into tokens at once, if a word ends there.
const CHUNK: usize = 1 << 16;
/// Bytes after which a text is cut even if no word has ended: it has no words.
const LONGEST_CHUNK: usize = 1 << 20;

/// How text becomes tokens. By default every byte is a token.
///
/// ```
/// use elbowroom::data::Tokenizer;
///
/// let bytes = Tokenizer::default();
/// assert_eq!(bytes.vocabulary(), 256);
/// assert_eq!(bytes.encode("hé"), [104, 195, 169]);
/// assert_eq!(bytes.decode(&[104, 195, 169]), "hé");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tokenizer {
    pairs: Option<Arc<BytePairs>>,
}

impl Tokenizer {
    /// Reads a `tokenizer.json` of Hugging Face with byte pairs on bytes, as GPT-2, Llama 3 and others have it. No token is added at the
    /// beginning or the end of a text.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if the file cannot be read, [`DataError::Format`] if it describes another kind of tokenizer.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        Ok(Self { pairs: Some(Arc::new(BytePairs::open(path)?)) })
    }

    /// Whether every byte is a token.
    pub fn is_bytes(&self) -> bool {
        self.pairs.is_none()
    }

    /// Number of tokens that a network needs: the largest token plus one.
    pub fn vocabulary(&self) -> usize {
        self.pairs.as_ref().map_or(super::text::VOCABULARY, |pairs| pairs.vocabulary())
    }

    /// The tokens of a text.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        match &self.pairs {
            None => text.bytes().map(u32::from).collect(),
            Some(pairs) => {
                let mut tokens = Vec::new();
                pairs.encode(text, &mut tokens);
                tokens
            }
        }
    }

    /// The text of tokens. Bytes that are no text are replaced; tokens that the vocabulary lacks are left out.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = match &self.pairs {
            None => tokens.iter().filter_map(|&token| u8::try_from(token).ok()).collect(),
            Some(pairs) => tokens.iter().flat_map(|&token| pairs.bytes(token)).copied().collect(),
        };
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Writes the tokens of text files, one behind the other, to a file without a name, four bytes each, little-endian. The texts are read part
    /// by part. Returns the file and the number of tokens.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if the text cannot be read or the tokens cannot be written, [`DataError::Format`] if it is no text in UTF-8.
    pub(super) fn encode_files(&self, paths: &[PathBuf]) -> Result<(File, u64), DataError> {
        let last = paths.last().map(PathBuf::as_path).unwrap_or(Path::new(""));
        let mut out = BufWriter::new(tempfile::tempfile().map_err(unwritten(last))?);
        let mut count = 0;
        for path in paths {
            count += self.encode_file(path, &mut out)?;
        }
        let mut file = out.into_inner().map_err(|error| unwritten(last)(error.into_error()))?;
        file.rewind().map_err(unwritten(last))?;
        Ok((file, count))
    }

    /// Writes the tokens of one text file. Returns their number.
    fn encode_file(&self, path: &Path, out: &mut BufWriter<File>) -> Result<u64, DataError> {
        let mut text = File::open(path).map_err(DataError::io(path))?;
        let (mut waiting, mut count) = (Vec::new(), 0);
        loop {
            let read = Read::by_ref(&mut text).take(CHUNK as u64).read_to_end(&mut waiting);
            let ended = read.map_err(DataError::io(path))? == 0;
            let (chunk, whole) = match std::str::from_utf8(&waiting) {
                Ok(chunk) => (chunk, true),
                // A character may go on in the next part.
                Err(error) if error.error_len().is_none() && !ended => {
                    (std::str::from_utf8(&waiting[..error.valid_up_to()]).unwrap_or_default(), false)
                }
                Err(_) => {
                    let why = "it is not in UTF-8; convert it, or use --tokenizer bytes".to_owned();
                    return Err(DataError::Format { path: path.to_owned(), format: "text", why });
                }
            };
            let end = match (ended, last_end_of_word(chunk)) {
                (true, _) => chunk.len(),
                (false, Some(end)) => end,
                (false, None) if chunk.len() >= LONGEST_CHUNK && whole => chunk.len(),
                (false, None) => 0,
            };
            let tokens = self.encode(&chunk[..end]);
            count += tokens.len() as u64;
            for token in tokens {
                out.write_all(&token.to_le_bytes()).map_err(unwritten(path))?;
            }
            waiting.drain(..end);
            if ended {
                break;
            }
        }
        Ok(count)
    }
}

/// The error for tokens of a text that cannot be written.
fn unwritten(path: &Path) -> impl Fn(io::Error) -> DataError + '_ {
    |source| DataError::Io {
        path: path.to_owned(),
        source: io::Error::new(source.kind(), format!("its tokens cannot be kept in a file: {source}")),
    }
}

/// Where the last word of a text ends, if white space follows: no token reaches across.
fn last_end_of_word(text: &str) -> Option<usize> {
    let mut following = None;
    for (at, character) in text.char_indices().rev() {
        if character.is_alphanumeric() && following.is_some_and(char::is_whitespace) {
            return Some(at + character.len_utf8());
        }
        following = Some(character);
    }
    None
}

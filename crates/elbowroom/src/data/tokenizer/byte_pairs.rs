//! Byte pairs (Sennrich, Haddow, Birch 2016) on bytes, as GPT-2 has them, from the `tokenizer.json` of Hugging Face's library `tokenizers`.
//!
//! That library is not a dependency: without its defaults it brings 79 crates (version 1.0.0-rc.3), most of them to train tokenizers and for
//! kinds that language models on bytes do not have. The pieces are cut by the file's own patterns (`fancy-regex`).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::super::{DataError, read_at_most};
use super::pieces::Pieces;

/// Most bytes of a file: several times the largest one known.
const LARGEST_FILE: u64 = 128 << 20;
/// Most tokens: more than any vocabulary has, and far fewer than would fill the memory.
const MOST_TOKENS: u32 = 1 << 24;
/// Bytes of text whose characters stand for themselves in the vocabulary; the others are written as characters from U+0100 on.
const PLAIN: [std::ops::RangeInclusive<u8>; 3] = [b'!'..=b'~', 0xa1..=0xac, 0xae..=0xff];

/// The parts of the file that are read.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: Value,
    #[serde(default)]
    merges: Vec<Merge>,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
}

/// A merge is `"a b"`, or `["a", "b"]` in newer files.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Words(String),
    Pair(String, String),
}

/// Tokens that stand for sequences of bytes, and the pairs of tokens that become one.
#[derive(Debug)]
pub(super) struct BytePairs {
    pieces: Pieces,
    /// The bytes of every token, in one buffer.
    bytes: Vec<u8>,
    /// Where the bytes of a token begin and end.
    spans: Vec<(u32, u32)>,
    /// The tokens of single bytes.
    single: [u32; 256],
    /// For two tokens the rank of their merge and the token that they become.
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// Tokens by their bytes, if a piece that is a token stays whole.
    whole: Option<HashMap<Vec<u8>, u32>>,
    /// Tokens that are found in a text before it is cut into pieces, the longest first.
    added: Vec<(String, u32)>,
}

impl BytePairs {
    /// Reads a file.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let format = |why: String| DataError::Format { path: path.to_owned(), format: "tokenizer.json", why };
        if path.metadata().map_err(DataError::io(path))?.is_dir() {
            return Err(format("it is a folder; give the file tokenizer.json in it".to_owned()));
        }
        let content = read_at_most(path, LARGEST_FILE, "tokenizer.json")?;
        let file: File = serde_json::from_slice(&content)
            .map_err(|error| format(format!("{error}; give a tokenizer.json of Hugging Face, or bytes")))?;
        Self::parse(file).map_err(format)
    }

    fn parse(file: File) -> Result<Self, String> {
        let File { added_tokens, normalizer, pre_tokenizer, model } = file;
        // Old files do not name the kind of their model.
        let kind = model.kind.as_deref().unwrap_or("BPE");
        let Some(vocab) = model.vocab.as_object().filter(|_| kind == "BPE") else {
            return Err(format!(
                "its model is {kind}, and only BPE on bytes is read, as GPT-2 and Llama 3 have it"
            ));
        };
        if !normalizer.is_null() {
            let kind = normalizer["type"].as_str().unwrap_or("unknown");
            return Err(format!("its normalizer is {kind}, and only files without one are read"));
        }
        let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
        if affixes.iter().any(|affix| affix.as_deref().is_some_and(|affix| !affix.is_empty())) {
            return Err("its tokens have prefixes or suffixes, so that it does not work on bytes".to_owned());
        }
        let pieces = Pieces::parse(&pre_tokenizer)?;
        let byte_of: HashMap<char, u8> = (0..=255).map(|byte| (character(byte), byte)).collect();
        let mut by_name: HashMap<&str, u32> = HashMap::with_capacity(vocab.len());
        let mut contents: Vec<(u32, Vec<u8>)> = Vec::with_capacity(vocab.len() + added_tokens.len());
        for (name, id) in vocab {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| id < MOST_TOKENS);
            let id = id.ok_or_else(|| format!("token {name:?} has no number below {MOST_TOKENS}"))?;
            by_name.insert(name, id);
            // Characters beyond the alphabet of bytes occur in tokens that were added later, whose content is their text.
            let bytes: Option<Vec<u8>> = name.chars().map(|c| byte_of.get(&c).copied()).collect();
            contents.push((id, bytes.unwrap_or_else(|| name.as_bytes().to_vec())));
        }
        let mut added = Vec::new();
        for Added { id, content, single_word, lstrip, rstrip } in added_tokens {
            if single_word || lstrip || rstrip {
                return Err(format!(
                    "its added token {content:?} takes in white space or whole words, which is not read"
                ));
            }
            if id >= MOST_TOKENS {
                return Err(format!("token {content:?} has no number below {MOST_TOKENS}"));
            }
            contents.push((id, content.clone().into_bytes()));
            if !content.is_empty() {
                added.push((content, id));
            }
        }
        added.sort_by_key(|(content, _)| Reverse(content.len()));
        let mut single = [0; 256];
        for byte in 0..=255 {
            let mut name = [0; 4];
            let id = by_name.get(&*character(byte).encode_utf8(&mut name)).copied();
            single[usize::from(byte)] = id.ok_or_else(|| format!("it has no token for byte {byte}"))?;
        }
        let mut merges = HashMap::with_capacity(model.merges.len());
        for (rank, merge) in model.merges.iter().enumerate() {
            let pair = match merge {
                Merge::Words(words) => words.split_once(' '),
                Merge::Pair(left, right) => Some((left.as_str(), right.as_str())),
            };
            let known = pair.and_then(|(left, right)| {
                let whole = *by_name.get([left, right].concat().as_str())?;
                Some(((*by_name.get(left)?, *by_name.get(right)?), whole))
            });
            let (pair, whole) =
                known.ok_or_else(|| format!("merge {} is not one of its tokens", rank + 1))?;
            merges.entry(pair).or_insert((rank as u32, whole));
        }
        let count = contents.iter().map(|(id, _)| *id as usize + 1).max().unwrap_or(0);
        let whole = model
            .ignore_merges
            .then(|| contents.iter().take(vocab.len()).map(|(id, bytes)| (bytes.clone(), *id)).collect());
        let (mut spans, mut bytes) = (vec![(0, 0); count], Vec::new());
        for (id, content) in contents {
            let begin = bytes.len() as u32;
            bytes.extend(content);
            spans[id as usize] = (begin, bytes.len() as u32);
        }
        Ok(Self { pieces, bytes, spans, single, merges, whole, added })
    }

    /// The largest token plus one.
    pub fn vocabulary(&self) -> usize {
        self.spans.len()
    }

    /// The bytes that a token stands for; none for one that the vocabulary lacks.
    pub fn bytes(&self, token: u32) -> &[u8] {
        let (begin, end) = self.spans.get(token as usize).copied().unwrap_or_default();
        &self.bytes[begin as usize..end as usize]
    }

    /// Appends the tokens of a text.
    pub fn encode(&self, text: &str, tokens: &mut Vec<u32>) {
        let mut rest = text;
        while let Some((at, content, id)) = self.next_added(rest) {
            self.encode_plain(&rest[..at], tokens);
            tokens.push(id);
            rest = &rest[at + content..];
        }
        self.encode_plain(rest, tokens);
    }

    /// The first added token of a text, the longest of those that begin there: where it begins, its length and its number.
    fn next_added(&self, text: &str) -> Option<(usize, usize, u32)> {
        let found =
            self.added.iter().filter_map(|(content, id)| Some((text.find(content)?, content.len(), *id)));
        found.min_by_key(|&(at, length, _)| (at, Reverse(length)))
    }

    fn encode_plain(&self, text: &str, tokens: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let prefixed;
        let text = match self.pieces.prefix_space && !text.starts_with(char::is_whitespace) {
            true => {
                prefixed = format!(" {text}");
                &prefixed
            }
            false => text,
        };
        self.pieces.each(text, &mut |piece| self.merge(piece.as_bytes(), tokens));
    }

    /// Appends the tokens of a piece: of all neighbours that a merge names, those of the lowest rank are merged first, from left to right.
    fn merge(&self, piece: &[u8], tokens: &mut Vec<u32>) {
        if let Some(&token) = self.whole.as_ref().and_then(|whole| whole.get(piece)) {
            tokens.push(token);
            return;
        }
        let mut parts: Vec<u32> = piece.iter().map(|&byte| self.single[usize::from(byte)]).collect();
        let count = parts.len();
        // What lies before and behind a part; a part that was merged into the one before it is gone.
        let mut before: Vec<usize> = (0..count).map(|at| at.wrapping_sub(1)).collect();
        let mut behind: Vec<usize> = (1..=count).collect();
        let mut gone = vec![false; count];
        let mut waiting = BinaryHeap::new();
        let candidate = |parts: &[u32], left: usize, right: usize| {
            let pair = (*parts.get(left)?, *parts.get(right)?);
            let &(rank, whole) = self.merges.get(&pair)?;
            Some(Reverse((rank, left, right, pair, whole)))
        };
        waiting.extend((1..count).filter_map(|right| candidate(&parts, right - 1, right)));
        while let Some(Reverse((_, left, right, pair, whole))) = waiting.pop() {
            // The parts may have been merged with others since.
            let current = !gone[left] && !gone[right] && behind[left] == right;
            if !current || (parts[left], parts[right]) != pair {
                continue;
            }
            (parts[left], gone[right], behind[left]) = (whole, true, behind[right]);
            if let Some(before) = before.get_mut(behind[left]) {
                *before = left;
            }
            waiting.extend(candidate(&parts, left, behind[left]));
            waiting.extend(candidate(&parts, before[left], left));
        }
        tokens.extend(parts.iter().zip(&gone).filter(|(_, gone)| !**gone).map(|(part, _)| *part));
    }
}

/// The character that stands for a byte in the names of tokens.
fn character(byte: u8) -> char {
    let is_plain = |byte: u8| PLAIN.iter().any(|plain| plain.contains(&byte));
    if is_plain(byte) {
        return char::from(byte);
    }
    let shifted = (0..byte).filter(|&other| !is_plain(other)).count() as u32;
    char::from_u32(256 + shifted).unwrap_or(char::REPLACEMENT_CHARACTER)
}

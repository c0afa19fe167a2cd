//! The first step of byte pairs: patterns cut a text into pieces, and no token reaches across.

use fancy_regex::Regex;
use serde_json::Value;

/// How the pre-tokenizer `ByteLevel` cuts a text by itself (GPT-2).
const BYTE_LEVEL: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The patterns, one after the other: each cuts the pieces of the one before it.
#[derive(Debug)]
pub(super) struct Pieces {
    patterns: Vec<Regex>,
    /// Whether a space is put before a text that begins without one.
    pub prefix_space: bool,
}

impl Pieces {
    /// Reads the member `pre_tokenizer` of a file; or says what is not supported.
    pub fn parse(value: &Value) -> Result<Self, String> {
        let mut pieces = Self { patterns: Vec::new(), prefix_space: false };
        let mut bytes = false;
        let parts = match (kind(value), value["pretokenizers"].as_array()) {
            ("Sequence", Some(parts)) => parts.as_slice(),
            _ => std::slice::from_ref(value),
        };
        for part in parts {
            match kind(part) {
                "Split" => pieces.patterns.push(split(part)?),
                "Digits" => {
                    let each = part["individual_digits"].as_bool() == Some(true);
                    pieces.patterns.push(regex(if each { r"\p{N}" } else { r"\p{N}+" })?);
                }
                "ByteLevel" => {
                    bytes = true;
                    pieces.prefix_space |= part["add_prefix_space"].as_bool() == Some(true);
                    if part["use_regex"].as_bool() != Some(false) {
                        pieces.patterns.push(regex(BYTE_LEVEL)?);
                    }
                }
                other => {
                    return Err(format!(
                        "its pre-tokenizer is {other}, and only ByteLevel, Split and Digits are read"
                    ));
                }
            }
        }
        match bytes {
            true => Ok(pieces),
            false => Err("its pre-tokenizer has no ByteLevel, so that it does not work on bytes".to_owned()),
        }
    }

    /// Passes every piece of a text on, in order.
    pub fn each(&self, text: &str, visit: &mut dyn FnMut(&str)) {
        cut(&self.patterns, text, visit);
    }
}

/// The name of the kind of a part.
fn kind(value: &Value) -> &str {
    value["type"].as_str().unwrap_or("missing")
}

fn regex(pattern: &str) -> Result<Regex, String> {
    Regex::new(pattern).map_err(|error| format!("its pattern {pattern} cannot be read: {error}"))
}

/// The pattern of a part `Split`.
fn split(part: &Value) -> Result<Regex, String> {
    let behavior = part["behavior"].as_str().unwrap_or("missing");
    if behavior != "Isolated" || part["invert"].as_bool() == Some(true) {
        return Err(format!("its pre-tokenizer splits with behavior {behavior}, and only Isolated is read"));
    }
    match (part["pattern"]["Regex"].as_str(), part["pattern"]["String"].as_str()) {
        (Some(pattern), _) => regex(pattern),
        (None, Some(literal)) => regex(&fancy_regex::escape(literal)),
        (None, None) => Err("its pre-tokenizer splits without a pattern".to_owned()),
    }
}

/// Cuts a text into the matches of the first pattern and what lies between them, and those by the other patterns.
fn cut(patterns: &[Regex], text: &str, visit: &mut dyn FnMut(&str)) {
    if text.is_empty() {
        return;
    }
    let Some((first, rest)) = patterns.split_first() else { return visit(text) };
    let mut end = 0;
    // Where a pattern gives up, for too many steps back, what is left is one piece.
    for found in first.find_iter(text).map_while(Result::ok).filter(|found| found.end() > found.start()) {
        cut(rest, &text[end..found.start()], visit);
        cut(rest, found.as_str(), visit);
        end = found.end();
    }
    cut(rest, &text[end..], visit);
}

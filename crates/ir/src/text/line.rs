//! One line of text, taken apart word by word.

use super::FileError;
use crate::trace::LONGEST_NAME;

/// The unread part of a line.
pub struct Line<'a> {
    text: &'a str,
    number: usize,
    at: usize,
}

/// Whether a string can stand without quotes where a word is expected.
pub fn is_bare(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:+-/".contains(&b))
}

impl<'a> Line<'a> {
    /// A line with its number, from 1.
    pub fn new(text: &'a str, number: usize) -> Self {
        Self { text, number, at: 0 }
    }

    /// The line's number, from 1.
    pub fn line_number(&self) -> usize {
        self.number
    }

    /// Whether only blanks and a comment are left.
    pub fn is_done(&mut self) -> bool {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        trimmed.is_empty() || trimmed.starts_with('#')
    }

    /// The next word, without consuming it.
    pub fn peek(&mut self) -> Option<&'a str> {
        if self.is_done() {
            return None;
        }
        let rest = &self.text[self.at..];
        // A quote begins a string even without a blank before it; on its own it is not a word.
        let end = rest.char_indices().skip(1).find(|&(_, c)| c.is_whitespace() || c == '"' || c == '#');
        Some(&rest[..end.map_or(rest.len(), |(end, _)| end)])
    }

    /// The next word.
    pub fn word(&mut self) -> Option<&'a str> {
        let word = self.peek()?;
        self.at += word.len();
        Some(word)
    }

    /// An error at the next word.
    pub fn error(&mut self, what: impl Into<String>) -> FileError {
        self.is_done();
        let column = self.text[..self.at].chars().count() + 1;
        FileError::Syntax { line: self.number, column, what: what.into() }
    }

    /// An error that states what was expected and what was found.
    pub fn expected(&mut self, what: &str) -> FileError {
        let found = match self.peek() {
            None => "the line ends".to_owned(),
            Some(word) if word.chars().count() > 40 => {
                format!("found `{}...`", word.chars().take(40).collect::<String>())
            }
            Some(word) => format!("found `{word}`"),
        };
        self.error(format!("expected {what}, but {found}"))
    }

    /// A whole number.
    pub fn number(&mut self, what: &str) -> Result<u64, FileError> {
        let word = self.peek().unwrap_or("");
        if word.is_empty() || !word.bytes().all(|b| b.is_ascii_digit()) {
            return Err(self.expected(&format!("{what}, a whole number")));
        }
        let number = word.parse().map_err(|_| self.expected(&format!("{what}, a number below 2^64")))?;
        self.at += word.len();
        Ok(number)
    }

    /// An id with the given letters, if the next word looks like one.
    pub fn try_id(&mut self, prefix: &str) -> Result<Option<u32>, FileError> {
        let Some(word) = self.peek() else { return Ok(None) };
        let Some(digits) = word.strip_prefix(prefix) else { return Ok(None) };
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Ok(None);
        }
        let canonical = digits == "0" || !digits.starts_with('0');
        match digits.parse() {
            Ok(id) if canonical => {
                self.at += word.len();
                Ok(Some(id))
            }
            _ => Err(self.expected(&format!(
                "an id like {prefix}7, below {prefix}4294967296 and without leading zeros"
            ))),
        }
    }

    /// An id with the given letters.
    pub fn id(&mut self, prefix: &str) -> Result<u32, FileError> {
        match self.try_id(prefix)? {
            Some(id) => Ok(id),
            None => Err(self.expected(&format!("an id like {prefix}7"))),
        }
    }

    /// All ids with the given letters that follow.
    pub fn ids<K>(&mut self, prefix: &str, make: fn(u32) -> K) -> Result<Vec<K>, FileError> {
        let mut ids = Vec::new();
        while let Some(id) = self.try_id(prefix)? {
            ids.push(make(id));
        }
        Ok(ids)
    }

    /// All pairs `t1->t2` that follow.
    pub fn pairs<K>(&mut self, prefix: &str, make: fn(u32) -> K) -> Result<Vec<(K, K)>, FileError> {
        let mut pairs = Vec::new();
        while let Some(word) = self.peek().filter(|word| word.contains("->")) {
            let id = |text: &str| {
                let mut part = Line::new(text, 0);
                part.id(prefix).ok().filter(|_| part.is_done())
            };
            let pair = word.split_once("->").and_then(|(from, to)| Some((id(from)?, id(to)?)));
            let Some((from, to)) = pair else {
                return Err(self.expected(&format!("a pair of ids like {prefix}1->{prefix}2")));
            };
            pairs.push((make(from), make(to)));
            self.at += word.len();
        }
        Ok(pairs)
    }

    /// A string in quotes.
    pub fn string(&mut self, what: &str) -> Result<String, FileError> {
        if !self.peek().is_some_and(|word| word.starts_with('"')) {
            return Err(self.expected(&format!("{what} in quotes")));
        }
        let rest = &self.text[self.at + 1..];
        let mut string = String::new();
        let mut chars = rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += 1 + at + 1;
                    return Ok(string);
                }
                '\\' => {
                    let escaped = match chars.next().map(|(_, c)| c) {
                        Some(c @ ('"' | '\\')) => Some(c),
                        Some('n') => Some('\n'),
                        Some('r') => Some('\r'),
                        Some('t') => Some('\t'),
                        Some('u') => unicode(&mut chars),
                        _ => None,
                    };
                    let Some(c) = escaped else {
                        self.at += 1 + at;
                        return Err(self.error(
                            "this escape is unknown; use \\\" \\\\ \\n \\r \\t or \\u{...} with a character's number in hex",
                        ));
                    };
                    string.push(c);
                }
                c => string.push(c),
            }
            if string.len() > LONGEST_NAME {
                return Err(self.error(format!("{what} is longer than {LONGEST_NAME} bytes; shorten it")));
            }
        }
        Err(self.error(format!("the quotes of {what} are not closed; a string ends on its line")))
    }

    /// A word without quotes, or a string in quotes.
    pub fn word_or_string(&mut self, what: &str) -> Result<String, FileError> {
        match self.peek() {
            Some(word) if is_bare(word) && word.len() <= LONGEST_NAME => {
                self.at += word.len();
                Ok(word.to_owned())
            }
            _ => self.string(what),
        }
    }

    /// An error if anything is left on the line.
    pub fn end(&mut self) -> Result<(), FileError> {
        if self.is_done() { Ok(()) } else { Err(self.expected("the end of the line")) }
    }
}

/// The rest of `\u{...}`.
fn unicode(chars: &mut std::str::CharIndices<'_>) -> Option<char> {
    chars.next().filter(|&(_, c)| c == '{')?;
    let mut code = 0u32;
    for _ in 0..7 {
        match chars.next()?.1 {
            '}' => return char::from_u32(code),
            digit => code = code * 16 + digit.to_digit(16)?,
        }
    }
    None
}

//! Reading and writing the files that users name, so that every error names its file.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use elbowroom::ir::text::{self, File};

use crate::printer;

/// Bytes from which [`content`] decides what the file is and how much of it to read.
const HEAD: u64 = 1 << 16;

/// More bytes than any file of a kind has. The limits count bytes as they are read, because a pipe or a device states no size, and
/// hold a few million ops or buffers.
mod largest {
    /// A table of buffers.
    pub const TABLE: u64 = 256 << 20;
    /// A trace or a plan in text.
    pub const TEXT: u64 = 512 << 20;
    /// A trace or a plan in JSON, or a recorded iteration.
    pub const JSON: u64 = 512 << 20;
    /// A recorded iteration, compressed.
    pub const GZIP: u64 = 256 << 20;
    /// A memory snapshot of PyTorch, which names the Python code behind every allocation.
    pub const PICKLE: u64 = 1 << 30;
}

/// Refuses a folder where a file is meant.
pub fn expect_file(path: &Path, what: &str) -> Result<()> {
    if path.is_dir() {
        bail!("{} is a folder; give {what}", path.display());
    }
    Ok(())
}

/// The bytes of a file that holds a trace, a plan, a table of buffers or a recorded iteration. `what` names the kind for messages.
///
/// If the head is of none of these kinds, the result is the head alone: parsing it fails with the same error as parsing the whole file,
/// and a device like `/dev/zero` is not read without end.
pub fn content(path: &Path, what: &str) -> Result<Vec<u8>> {
    expect_file(path, what)?;
    content_of(open(path)?, path)
}

/// The same of standard input.
pub fn standard_input() -> Result<Vec<u8>> {
    content_of(io::stdin().lock(), Path::new("standard input"))
}

/// The bytes of a stream, which messages call `path`.
fn content_of(mut file: impl Read, path: &Path) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    let read = Read::by_ref(&mut file).take(HEAD).read_to_end(&mut head);
    read.with_context(|| format!("cannot read {}", path.display()))?;
    match largest(&head) {
        Some(limit) if head.len() as u64 == HEAD => rest(path, head, file, limit),
        _ => Ok(head),
    }
}

/// The bytes of a file of at most `limit` bytes, which may be a pipe or a device.
pub fn bounded(path: &Path, limit: u64) -> Result<Vec<u8>> {
    rest(path, Vec::new(), open(path)?, limit)
}

fn open(path: &Path) -> Result<std::fs::File> {
    std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Appends what follows the head, up to a file of `limit` bytes.
fn rest(path: &Path, mut head: Vec<u8>, file: impl Read, limit: u64) -> Result<Vec<u8>> {
    let cannot_read = || format!("cannot read {}", path.display());
    // A regular file states its size, so that one that is too large need not be read. That of a pipe or a device is 0.
    let fits = path.metadata().is_ok_and(|file| file.len() <= limit) || !path.exists();
    if !fits || !append(file, &mut head, limit).with_context(cannot_read)? {
        bail!(
            "{} has more than {limit} bytes; no file of this kind is that large, so check that this is the file you mean",
            path.display()
        );
    }
    Ok(head)
}

/// Appends a stream until `bytes` has `limit` bytes. Returns whether that was the whole stream.
fn append(mut stream: impl Read, bytes: &mut Vec<u8>, limit: u64) -> io::Result<bool> {
    Read::by_ref(&mut stream).take(limit.saturating_sub(bytes.len() as u64)).read_to_end(bytes)?;
    Ok(stream.read(&mut [0])? == 0)
}

/// The largest size of a file with this head; `None` if it is no trace, plan, table or recorded iteration.
fn largest(head: &[u8]) -> Option<u64> {
    let start = head.strip_prefix("\u{feff}".as_bytes()).unwrap_or(head).trim_ascii_start();
    match head {
        [0x1f, 0x8b, ..] => Some(largest::GZIP),
        [0x80, ..] => Some(largest::PICKLE),
        _ if head.contains(&0) => None,
        _ if start.starts_with(b"{") => Some(largest::JSON),
        _ if start.starts_with(b"elbowroom") || start.starts_with(b"#") => Some(largest::TEXT),
        _ => is_table(head).then_some(largest::TABLE),
    }
}

/// Whether the first line, blank lines and comments apart, is that of a table: nothing else that is read begins with words between commas,
/// semicolons or tabs, without brackets.
pub fn is_table(bytes: &[u8]) -> bool {
    let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let mut lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii_end);
    let head = lines.find(|line| !line.trim_ascii().is_empty() && !line.trim_ascii().starts_with(b"#"));
    let Some(head) = head else { return text.is_empty() };
    let plain = |&byte: &u8| (byte >= b' ' || byte == b'\t') && !b"{}[]".contains(&byte);
    head.iter().any(|byte| b",;\t".contains(byte))
        && head.iter().all(plain)
        && !head.starts_with(b"elbowroom")
}

/// The text of a file's bytes. `what` says what to give instead if they are none.
pub fn text<'a>(path: &Path, bytes: &'a [u8], what: &str) -> Result<&'a str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => bail!("{} is not a text file; give {what}", path.display()),
    }
}

/// A trace or a plan from a file, in text or in JSON.
pub fn parse(path: &Path) -> Result<File> {
    parse_content(path, &content(path, "a file with a trace or a plan")?)
}

/// A trace or a plan from a file's bytes, in text or in JSON.
pub fn parse_content(path: &Path, bytes: &[u8]) -> Result<File> {
    let content = text(path, bytes, "a trace or a plan that elbowroom wrote")?;
    let context = || format!("{} is neither a trace nor a plan of elbowroom", path.display());
    if text::is_json(content) {
        serde_json::from_str(content).with_context(context)
    } else {
        content.parse().with_context(context)
    }
}

/// Refuses a file that [`write()`] could not write, before the work whose result it is to hold.
pub fn expect_writable(path: &Path) -> Result<()> {
    elbowroom::files::expect_writable(path).with_context(|| format!("cannot write {}", path.display()))
}

/// A folder for files that a command writes. If it writes none, the folders that were made for them are removed again.
pub struct Folder {
    /// The innermost first.
    made: Vec<PathBuf>,
}

impl Folder {
    /// Makes the folder, unless it exists.
    pub fn make(path: &Path) -> Result<Self> {
        let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let made = path.ancestors().take_while(is_missing).map(Path::to_owned).collect();
        let folder = Self { made };
        std::fs::create_dir_all(path)
            .with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The system removes empty folders only.
        self.made.iter().take_while(|folder| std::fs::remove_dir(folder).is_ok()).for_each(drop);
    }
}

/// Writes a text to a file, whole or not at all; to standard output without one.
pub fn write(path: Option<&Path>, text: &str) -> Result<()> {
    let Some(path) = path else {
        let mut out = printer::output();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        return Ok(());
    };
    write_bytes(path, text.as_bytes())
}

/// Writes bytes to a file, whole or not at all.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    expect_file(path, "the name of the file to write")?;
    elbowroom::files::write_whole(path, |file| file.write_all(bytes))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a file part by part, whole or not at all.
pub fn write_parts(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    expect_file(path, "the name of the file to write")?;
    elbowroom::files::write_whole(path, |out| write(out))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_known_by_their_first_line() {
        for table in ["", "a,b", "\u{feff}id;lower", "# note\n\n1\t2\t3\n", "conv1/relu:0,1,2,3\r\n"] {
            assert!(is_table(table.as_bytes()), "{table:?}");
        }
        for other in
            ["elbowroom trace 1, x", "{\"a\": 1, \"b\": 2}", "[1, 2]", "# elbowroom", "\0,\0", "plain"]
        {
            assert!(!is_table(other.as_bytes()), "{other:?}");
        }
    }

    #[test]
    fn streams_are_read_up_to_the_limit() {
        let mut bytes = b"ab".to_vec();
        assert!(append(&b"cde"[..], &mut bytes, 5).unwrap());
        assert_eq!(bytes, b"abcde");
        assert!(!append(&b"f"[..], &mut bytes, 5).unwrap());
        assert!(!append(io::repeat(b'#'), &mut bytes, 1000).unwrap());
        assert_eq!(bytes.len(), 1000);
    }

    #[test]
    fn a_device_without_end_is_not_read_to_the_end() {
        let zero = Path::new("/dev/zero");
        assert_eq!(content(zero, "a trace").unwrap().len() as u64, HEAD);
        let error = bounded(zero, 1 << 20).unwrap_err().to_string();
        assert!(error.contains("/dev/zero has more than 1048576 bytes"), "{error}");
    }

    #[test]
    fn only_heads_of_known_kinds_are_read_on() {
        for (limit, heads) in [
            (largest::TEXT, &[&b"elbowroom trace 1\n"[..], b"# a comment"][..]),
            (largest::JSON, &["\u{feff} {\"k\"".as_bytes()]),
            (largest::TABLE, &[b"id,lower,upper,size\n1,2"]),
            (largest::GZIP, &[&[0x1f, 0x8b, 8]]),
            (largest::PICKLE, &[&[0x80, 4]]),
        ] {
            assert!(heads.iter().all(|head| largest(head) == Some(limit)), "{heads:?}");
        }
        for unknown in ["y\ny\ny\n", "\0\0", "{\0", "PK\u{3}\u{4}"] {
            assert_eq!(largest(unknown.as_bytes()), None, "{unknown}");
        }
    }

    #[test]
    fn a_file_that_is_too_large_is_refused_unread() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large.csv");
        let file = std::fs::File::create(&path).unwrap();
        (&file).write_all(b"id,lower,upper,size\n").unwrap();
        // The rest is a hole: it takes no space, and reading it would take memory.
        file.set_len(1 << 40).unwrap();
        (&file).write_all(&vec![b'1'; HEAD as usize]).unwrap();
        let error = content(&path, "a table").unwrap_err().to_string();
        assert!(error.contains("large.csv has more than 268435456 bytes"), "{error}");
    }
}

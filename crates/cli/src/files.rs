//! Reading and writing the files that users name, so that every error names its file.

use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use elbowroom::ir::text::{self, File};

/// More bytes than any trace, plan or table has. The limit counts bytes as they are read, because a pipe or a device states no size.
const LARGEST: u64 = 2 << 30;

/// Bytes from which [`content`] decides whether to read on.
const HEAD: u64 = 1 << 16;

/// Refuses a folder where a file is meant.
pub fn expect_file(path: &Path, what: &str) -> Result<()> {
    if path.is_dir() {
        bail!("{} is a folder; give {what}", path.display());
    }
    Ok(())
}

/// The bytes of a file that holds a trace, a plan, a table of buffers or a recorded iteration. `what` names the kind for messages.
///
/// If the head is of none of these kinds, the result is the head alone: whoever parses it reports the same error as for the whole file,
/// and a device like `/dev/zero` is not read without end.
pub fn content(path: &Path, what: &str) -> Result<Vec<u8>> {
    expect_file(path, what)?;
    let mut file = open(path)?;
    let mut head = Vec::new();
    let read = Read::by_ref(&mut file).take(HEAD).read_to_end(&mut head);
    read.with_context(|| format!("cannot read {}", path.display()))?;
    if (head.len() as u64) < HEAD || !is_known(&head) {
        return Ok(head);
    }
    rest(path, head, file, LARGEST)
}

/// The bytes of a file of at most `limit` bytes, which may be a pipe or a device.
pub fn bounded(path: &Path, limit: u64) -> Result<Vec<u8>> {
    rest(path, Vec::new(), open(path)?, limit)
}

fn open(path: &Path) -> Result<std::fs::File> {
    std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Appends what follows the head, up to a file of `limit` bytes.
fn rest(path: &Path, mut head: Vec<u8>, file: std::fs::File, limit: u64) -> Result<Vec<u8>> {
    let complete =
        append(file, &mut head, limit).with_context(|| format!("cannot read {}", path.display()))?;
    if !complete {
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

/// Whether a file with this head may be a trace, a plan, a table or a recorded iteration.
fn is_known(head: &[u8]) -> bool {
    let gzip_or_pickle = head.starts_with(&[0x1f, 0x8b]) || head.starts_with(&[0x80]);
    let start = head.strip_prefix("\u{feff}".as_bytes()).unwrap_or(head).trim_ascii_start();
    let text = [&b"elbowroom"[..], b"#", b"{"].into_iter().any(|word| start.starts_with(word));
    gzip_or_pickle || ((text || is_table(head)) && !head.contains(&0))
}

/// Whether the first line is the head of a table: nothing else that is read begins with plain words between commas.
pub fn is_table(bytes: &[u8]) -> bool {
    let head = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let plain = |&byte: &u8| byte.is_ascii_alphanumeric() || b", _-\"\r\t".contains(&byte);
    bytes.is_empty() || (head.contains(&b',') && head.iter().all(plain))
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

/// Writes a text to a file, whole or not at all; to standard output without one.
pub fn write(path: Option<&Path>, text: &str) -> Result<()> {
    let Some(path) = path else {
        io::stdout().lock().write_all(text.as_bytes())?;
        return Ok(());
    };
    expect_file(path, "the name of the file to write")?;
    elbowroom::files::write_whole(path, |file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for known in ["elbowroom trace 1\n", "\u{feff} {\"k\"", "# a comment", "id,lower,upper,size\n1,2"] {
            assert!(is_known(known.as_bytes()), "{known}");
        }
        for known in [&[0x1f, 0x8b, 8][..], &[0x80, 4]] {
            assert!(is_known(known), "{known:?}");
        }
        for unknown in ["y\ny\ny\n", "\0\0", "{\0", "PK\u{3}\u{4}"] {
            assert!(!is_known(unknown.as_bytes()), "{unknown}");
        }
    }
}

//! Reading and writing the files that users name, so that every error names its file.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use elbowroom::ir::text::{self, File};

/// More than any trace or plan: a guard against reading a disk image by mistake.
const LARGEST: u64 = 4 << 30;

/// Refuses a folder where a file is meant.
pub fn expect_file(path: &Path, what: &str) -> Result<()> {
    if path.is_dir() {
        bail!("{} is a folder; give {what}", path.display());
    }
    Ok(())
}

/// The whole text of a file.
pub fn read(path: &Path) -> Result<String> {
    let context = || format!("cannot read {}", path.display());
    expect_file(path, "a file with a trace or a plan")?;
    let metadata = fs::metadata(path).with_context(context)?;
    if metadata.len() > LARGEST {
        bail!(
            "{} has {} bytes; no trace or plan is that large, so check that this is the file you mean",
            path.display(),
            metadata.len()
        );
    }
    let bytes = fs::read(path).with_context(context)?;
    String::from_utf8(bytes).map_err(|_| {
        anyhow::anyhow!("{} is not a text file; give a trace or a plan that elbowroom wrote", path.display())
    })
}

/// A trace or a plan from a file, in text or in JSON.
pub fn parse(path: &Path) -> Result<File> {
    let content = read(path)?;
    let context = || format!("{} is neither a trace nor a plan of elbowroom", path.display());
    if text::is_json(&content) {
        serde_json::from_str(&content).with_context(context)
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

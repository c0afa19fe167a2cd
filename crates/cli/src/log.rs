//! The log of a training, a line of JSON for every iteration and evaluation. It contains whole lines, also on a full disk, and a log without a
//! line is not left behind.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::printer;

/// A file to which lines are appended.
pub struct Log {
    file: Mutex<File>,
    /// Where it is, if it did not exist before.
    new: Option<PathBuf>,
    /// What it is, for people.
    name: String,
}

impl Log {
    /// Opens a file, before the work whose lines it is to hold.
    pub fn open(path: &Path) -> Result<Self> {
        let name = format!("the log {}", path.display());
        let new = (!path.exists()).then(|| path.to_owned());
        let file = File::options().create(true).append(true).open(path);
        let file = file.with_context(|| format!("cannot write {name}"))?;
        Ok(Self { file: Mutex::new(file), new, name })
    }

    /// Appends a line, whole or not at all. The error names the log.
    pub fn append(&self, line: &Value) -> io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let before = file.metadata().ok().filter(fs::Metadata::is_file).map(|file| file.len());
        // One write, so that lines of several trainings do not mix.
        let written = file.write_all(format!("{line}\n").as_bytes());
        written.map_err(|error| {
            // On a full disk a part of the line may have been written. A file that cannot be cut either is no worse than before.
            let _ = before.map(|length| file.set_len(length));
            printer::unwritable(&self.name, &error)
        })
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let file = self.file.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = &self.new
            && file.metadata().is_ok_and(|file| file.is_file() && file.len() == 0)
        {
            // An empty file that cannot be removed does no harm.
            let _ = fs::remove_file(path);
        }
    }
}

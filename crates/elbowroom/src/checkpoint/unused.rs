//! Rows of a table that a network does not use and that the files of its training keep: positions of GPT beyond its sequences.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use safetensors::tensor::{Metadata, TensorInfo};

use super::Entry;

/// What follows the name of a table in the name of its unused rows, where a file holds them by themselves.
const END: &str = ".unused";

/// The rows of a table in a file that follow those that a network uses. They are read when they are needed.
#[derive(Debug)]
pub struct UnusedRows {
    /// Position of the table among the persistent tensors.
    pub(crate) table: usize,
    /// The rows as a tensor of their own, as a checkpoint holds them.
    pub(crate) entry: Entry,
    file: File,
    start: u64,
}

impl UnusedRows {
    /// The rows for a table of which a network uses these: those behind them in the table of the file, or those that the file holds by
    /// themselves. `None` if there are none.
    pub(crate) fn find(
        table: usize,
        used: &Entry,
        (metadata, data_start): (&Metadata, u64),
        theirs: &TensorInfo,
        file: &File,
    ) -> io::Result<Option<Self>> {
        let name = format!("{}{END}", used.name);
        let (info, skipped) = match metadata.info(&name) {
            Some(rows) if rows.dtype == used.dtype && rows.shape.get(1..) == used.shape.get(1..) => (rows, 0),
            _ => (theirs, used.shape.first().copied().unwrap_or(0)),
        };
        let rows = info.shape.first().map_or(0, |&rows| rows.saturating_sub(skipped));
        if rows == 0 || info.shape.len() != used.shape.len() {
            return Ok(None);
        }
        let shape = std::iter::once(rows).chain(used.shape[1..].iter().copied()).collect();
        let entry = Entry { name, dtype: used.dtype, shape };
        let start = data_start + info.data_offsets.1 as u64 - entry.bytes() as u64;
        Ok(Some(Self { table, entry, file: file.try_clone()?, start }))
    }

    /// Reads the rows into a buffer of their size.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub(crate) fn read(&self, value: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(value, self.start)
    }
}

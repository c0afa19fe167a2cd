//! `elbowroom pack --previous`: buffers stay where an earlier placement has them, if they can.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Result, bail};
use elbowroom::ir::Bytes;
use elbowroom::ir::Id;
use elbowroom::pack::Repacked;
use elbowroom::pack::csv::Buffers;
use serde::Serialize;

use super::{SHOWN, buffers};
use crate::printer::{self, counted, grouped, row};

/// The difference from the earlier placement.
#[derive(Serialize)]
pub(super) struct Changes {
    /// Ids of the buffers that have another offset than before.
    moved: Vec<String>,
    moved_bytes: Bytes,
    /// Bytes that every placement is proved to move.
    least_moved_bytes: Bytes,
    /// Buffers that the earlier table lacks.
    added: usize,
    /// Buffers that only the earlier table has.
    removed: usize,
    #[serde(skip)]
    kept: usize,
}

/// The earlier offsets of the buffers of a table.
pub(super) struct Previous {
    /// By buffer; `None` if it is new.
    pub(super) offsets: Vec<Option<Bytes>>,
    removed: usize,
}

impl Previous {
    /// Reads the earlier placement and finds the buffers of the table in it, by their ids.
    pub(super) fn read(path: &Path, table: &Buffers) -> Result<Self> {
        let earlier = buffers(path)?;
        let blocks = earlier.problem.blocks.values();
        let placed: HashMap<&str, Bytes> = (earlier.names.iter().zip(blocks))
            .filter_map(|(name, block)| Some((name.as_str(), block.fixed?)))
            .collect();
        if placed.is_empty() && !earlier.names.is_empty() {
            bail!(
                "{} has no offsets; --previous takes a table that `elbowroom pack -o` wrote, with a column `offset`",
                path.display()
            );
        }
        let offsets: Vec<Option<Bytes>> =
            table.names.iter().map(|name| placed.get(name.as_str()).copied()).collect();
        let found = offsets.iter().flatten().count();
        Ok(Self { offsets, removed: placed.len().saturating_sub(found) })
    }

    /// What a placement changes.
    pub(super) fn changes(&self, table: &Buffers, repacked: &Repacked) -> Changes {
        let earlier = self.offsets.iter().flatten().count();
        Changes {
            moved: repacked.moved.iter().map(|id| table.names[id.index()].clone()).collect(),
            moved_bytes: repacked.moved_bytes,
            least_moved_bytes: repacked.least_moved,
            added: self.offsets.len() - earlier,
            removed: self.removed,
            kept: earlier - repacked.moved.len(),
        }
    }
}

/// Prints the difference, with the first moved buffers by name.
pub(super) fn print(changes: &Changes) -> Result<()> {
    let exact = |bytes: Bytes| format!("{} bytes", grouped(bytes.get()));
    let proved = if changes.least_moved_bytes == changes.moved_bytes {
        "proved: no placement moves fewer bytes".to_owned()
    } else {
        format!("not proved; at least {} must move", exact(changes.least_moved_bytes))
    };
    let mut rows = vec![
        row("kept", counted(changes.kept as u64, "buffer"), "at their earlier offsets"),
        row("moved", counted(changes.moved.len() as u64, "buffer"), ""),
        row("moved bytes", exact(changes.moved_bytes), proved),
        row("added", counted(changes.added as u64, "buffer"), ""),
        row("removed", counted(changes.removed as u64, "buffer"), ""),
    ];
    if !changes.moved.is_empty() {
        let shown: Vec<&str> = changes.moved.iter().take(SHOWN).map(String::as_str).collect();
        let rest = changes.moved.len().saturating_sub(SHOWN);
        let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
        rows[1].note = format!("{}{more}", shown.join(", "));
    }
    printer::section("Changes", &rows)?;
    Ok(())
}

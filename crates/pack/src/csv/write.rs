//! Writes a table of buffers with their offsets.

use std::io::{self, Write};

use elbowroom_ir::packing::{Block, Placement};
use elbowroom_ir::{BufferId, Bytes};

use super::Buffers;
use super::dialect::quoted;

/// Writes buffers with the offsets of a placement, in order of their ids: columns `id,lower,upper,size`, `alignment`, `hint` and `gaps` where any
/// buffer has them, the columns that packing does not use, and `offset`. Reading the result pins every buffer where it lies.
pub fn write(buffers: &Buffers, placement: &Placement) -> String {
    let mut text = Vec::new();
    // Writing to memory does not fail, and only text is written.
    let written = write_to(&mut text, buffers, placement);
    written.ok().and_then(|()| String::from_utf8(text).ok()).unwrap_or_default()
}

/// The same, line by line into `out`, which should have a buffer.
///
/// # Errors
/// Those of `out`.
pub fn write_to(out: &mut dyn Write, buffers: &Buffers, placement: &Placement) -> io::Result<()> {
    write_offsets_to(out, buffers, |block| placement.offsets.get(block).copied())
}

/// The same with offsets from a function. The offset of a buffer that has none is left empty.
///
/// # Errors
/// Those of `out`.
pub fn write_offsets_to(
    out: &mut dyn Write,
    buffers: &Buffers,
    offset_of: impl Fn(BufferId) -> Option<Bytes>,
) -> io::Result<()> {
    let blocks = &buffers.problem.blocks;
    let sep = buffers.delimiter;
    let alignment = blocks.values().any(|block| block.align != Bytes(1));
    let hint = blocks.values().any(|block| block.hint.is_some());
    let gaps = blocks.values().any(|block| block.alive.len() > 1 || !block.windows.is_empty());
    write!(out, "id{sep}lower{sep}upper{sep}size")?;
    for (name, present) in [("alignment", alignment), ("hint", hint), ("gaps", gaps)] {
        if present {
            write!(out, "{sep}{name}")?;
        }
    }
    for name in &buffers.other_columns {
        write!(out, "{sep}{}", quoted(name, sep))?;
    }
    writeln!(out, "{sep}offset")?;
    let others = buffers.other_columns.len();
    for (at, ((id, block), name)) in blocks.iter().zip(&buffers.names).enumerate() {
        let lower = block.parts().map(|(during, ..)| during.start).min().unwrap_or(0);
        let upper = block.parts().map(|(during, ..)| during.end).max().unwrap_or(0);
        write!(out, "{}{sep}{lower}{sep}{upper}{sep}{}", quoted(name, sep), block.size.get())?;
        if alignment {
            write!(out, "{sep}{}", block.align.get())?;
        }
        if hint {
            match block.hint {
                Some(hint) => write!(out, "{sep}{}", hint.get())?,
                None => write!(out, "{sep}-1")?,
            }
        }
        if gaps {
            write!(out, "{sep}")?;
            write_gaps(out, block)?;
        }
        for field in &buffers.other_fields[at * others..(at + 1) * others] {
            write!(out, "{sep}{}", quoted(field, sep))?;
        }
        match offset_of(id) {
            Some(offset) => writeln!(out, "{sep}{}", offset.get())?,
            None => writeln!(out, "{sep}")?,
        }
    }
    Ok(())
}

/// The gaps of a block in order of time. Every stretch between two parts is a gap, and every window is one.
fn write_gaps(out: &mut dyn Write, block: &Block) -> io::Result<()> {
    let mut parts: Vec<_> = block.parts().collect();
    let whole = block.alive.len();
    let windows: Vec<bool> = (0..parts.len()).map(|at| at >= whole).collect();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_unstable_by_key(|&at| parts[at].0);
    parts = order.iter().map(|&at| parts[at]).collect();
    let mut end = None;
    let mut space = "";
    for (&at, (during, from, to)) in order.iter().zip(parts) {
        if let Some(end) = end.filter(|&end| end < during.start) {
            write!(out, "{space}{end}-{}", during.start)?;
            space = " ";
        }
        if windows[at] {
            write!(out, "{space}{}-{}@{from}:{to}", during.start, during.end)?;
            space = " ";
        }
        end = Some(during.end);
    }
    Ok(())
}

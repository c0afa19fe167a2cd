//! Rows of a table by number, and the gradient of the table.

use elbowroom_graph::op::Lookup;
use rayon::ThreadPool;

use super::Operands;
use super::elementwise::CHUNK;
use super::parallel::{Shared, each};

/// Columns of one task of the gradient.
const COLUMNS: usize = 64;

/// The row of the table that an id names.
fn row_of(id: i32, vocabulary: usize) -> Option<usize> {
    usize::try_from(id).ok().filter(|&id| id < vocabulary)
}

/// # Safety
/// As [`super::run`].
pub unsafe fn forward(o: &Operands<'_>, pool: &ThreadPool, lookup: Lookup) {
    let Lookup { rows, offset, stride, vocabulary, width } = lookup;
    // SAFETY: the result is apart from all operands.
    let (ids, table) = unsafe { (o.read::<i32>(0, lookup.span()), o.read::<f32>(1, vocabulary * width)) };
    let y = Shared::new(o.target::<f32>(0, rows * width));
    let together = CHUNK.div_ceil(width.max(1));
    each(pool, rows.div_ceil(together), |task| {
        for r in task * together..((task + 1) * together).min(rows) {
            // SAFETY: every task has its own rows.
            let to = unsafe { y.slice(r * width, width) };
            match row_of(ids[offset + r * stride], vocabulary) {
                Some(id) => to.copy_from_slice(&table[id * width..(id + 1) * width]),
                None => to.fill(0.0),
            }
        }
    });
}

/// Tasks own columns, so that every sum runs over ascending rows.
///
/// # Safety
/// As [`super::run`].
pub unsafe fn grad(o: &Operands<'_>, pool: &ThreadPool, lookup: Lookup, accumulate: bool) {
    let Lookup { rows, offset, stride, vocabulary, width } = lookup;
    // SAFETY: the result is apart from these operands.
    let (ids, dy) = unsafe { (o.read::<i32>(0, lookup.span()), o.read::<f32>(1, rows * width)) };
    let table = Shared::new(o.target::<f32>(0, vocabulary * width));
    each(pool, width.div_ceil(COLUMNS), |task| {
        let start = task * COLUMNS;
        let count = COLUMNS.min(width - start);
        // SAFETY: every task has its own columns.
        let part = |row: usize| unsafe { table.slice(row * width + start, count) };
        if !accumulate {
            (0..vocabulary).for_each(|row| part(row).fill(0.0));
        }
        for r in 0..rows {
            if let Some(id) = row_of(ids[offset + r * stride], vocabulary) {
                for (sum, &dy) in part(id).iter_mut().zip(&dy[r * width + start..][..count]) {
                    *sum += dy;
                }
            }
        }
    });
}

//! Rows of a table by number, and the gradient of the table.

use elbowroom_graph::op::Lookup;
use rayon::ThreadPool;

use super::Operands;
use super::parallel::{Shared, over_columns, over_rows};

/// The row of the table that an id names.
fn row_of(id: i32, lookup: &Lookup) -> Option<usize> {
    usize::try_from(id).ok()?.checked_sub(lookup.first).filter(|&row| row < lookup.vocabulary)
}

/// What happens to rows whose ids lie outside the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// They are zero.
    Zero,
    /// They stay as they are.
    Keep,
}

/// # Safety
/// As [`super::run`].
pub unsafe fn forward(o: &Operands<'_>, pool: &ThreadPool, lookup: Lookup, outside: Outside) {
    let Lookup { rows, places, vocabulary, width, .. } = lookup;
    // SAFETY: the result is apart from these operands.
    let (ids, table) = unsafe { (o.read::<i32>(0, lookup.span()), o.read::<f32>(1, vocabulary * width)) };
    let y = Shared::new(o.target::<f32>(0, rows * width));
    over_rows(pool, rows, width, |rows| {
        for r in rows {
            // SAFETY: every task has its own rows.
            let to = unsafe { y.slice(r * width, width) };
            match (row_of(ids[places.of(r)], &lookup), outside) {
                (Some(row), _) => to.copy_from_slice(&table[row * width..(row + 1) * width]),
                (None, Outside::Zero) => to.fill(0.0),
                (None, Outside::Keep) => {}
            }
        }
    });
}

/// Tasks own columns, so that every sum runs over ascending rows.
///
/// # Safety
/// As [`super::run`].
pub unsafe fn grad(o: &Operands<'_>, pool: &ThreadPool, lookup: Lookup, accumulate: bool) {
    let Lookup { rows, places, vocabulary, width, .. } = lookup;
    // SAFETY: the result is apart from these operands.
    let (ids, dy) = unsafe { (o.read::<i32>(0, lookup.span()), o.read::<f32>(1, rows * width)) };
    let table = Shared::new(o.target::<f32>(0, vocabulary * width));
    over_columns(pool, width, |start, count| {
        // SAFETY: every task has its own columns.
        let part = |row: usize| unsafe { table.slice(row * width + start, count) };
        if !accumulate {
            (0..vocabulary).for_each(|row| part(row).fill(0.0));
        }
        for r in 0..rows {
            if let Some(row) = row_of(ids[places.of(r)], &lookup) {
                for (sum, &dy) in part(row).iter_mut().zip(&dy[r * width + start..][..count]) {
                    *sum += dy;
                }
            }
        }
    });
}

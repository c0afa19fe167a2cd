//! Operations that move bytes: to and from the host, rows side by side, parts of rows.

use std::ops::Range;

use rayon::ThreadPool;

use super::parallel::{Shared, each, over_rows};
use super::{Element, Operands};

/// # Safety
/// As [`super::run`].
pub unsafe fn input(o: &Operands<'_>, from: &[u8]) {
    // SAFETY: the result is apart from the host's bytes.
    let to = unsafe { o.write::<u8>(0, o.writes[0].len()) };
    to.copy_from_slice(&from[..to.len()]);
}

/// # Safety
/// As [`super::run`].
pub unsafe fn output(o: &Operands<'_>, slot: usize, take: &(dyn Fn(usize, &[u8]) + Sync)) {
    // SAFETY: nothing is written.
    take(slot, unsafe { o.read::<u8>(0, o.reads[0].len()) });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn indices(o: &Operands<'_>, ids: &[i32]) {
    // SAFETY: there are no operands.
    unsafe { o.write::<i32>(0, ids.len()) }.copy_from_slice(ids);
}

/// # Safety
/// As [`super::run`].
pub unsafe fn concat(o: &Operands<'_>, pool: &ThreadPool, outer: usize, widths: &[usize]) {
    let total: usize = widths.iter().sum();
    let y = Shared::new(o.target::<f32>(0, outer * total));
    let mut start = 0;
    for (position, &width) in widths.iter().enumerate() {
        // SAFETY: the result is apart from all operands.
        let x = unsafe { o.read::<f32>(position, outer * width) };
        over_rows(pool, outer, width, |rows| {
            for r in rows {
                // SAFETY: this part of every row is written once.
                let to = unsafe { y.slice(r * total + start, width) };
                to.copy_from_slice(&x[r * width..(r + 1) * width]);
            }
        });
        start += width;
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn split(o: &Operands<'_>, pool: &ThreadPool, outer: usize, widths: &[usize]) {
    let total: usize = widths.iter().sum();
    // SAFETY: the results are apart from the operand.
    let x = unsafe { o.read::<f32>(0, outer * total) };
    let mut start = 0;
    for (position, &width) in widths.iter().enumerate() {
        let y = Shared::new(o.target::<f32>(position, outer * width));
        over_rows(pool, outer, width, |rows| {
            for r in rows {
                // SAFETY: every row of a result is written once.
                let to = unsafe { y.slice(r * width, width) };
                to.copy_from_slice(&x[r * total + start..][..width]);
            }
        });
        start += width;
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn slice(o: &Operands<'_>, pool: &ThreadPool, outer: usize, total: usize, part: Range<usize>) {
    // SAFETY: the result is apart from the operand.
    let x = unsafe { o.read::<f32>(0, outer * total) };
    let y = Shared::new(o.target::<f32>(0, outer * part.len()));
    over_rows(pool, outer, part.len(), |rows| {
        for r in rows {
            // SAFETY: every row is written once.
            let to = unsafe { y.slice(r * part.len(), part.len()) };
            to.copy_from_slice(&x[r * total + part.start..r * total + part.end]);
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn pad(o: &Operands<'_>, pool: &ThreadPool, outer: usize, total: usize, part: Range<usize>) {
    // SAFETY: the result is apart from the operand.
    let x = unsafe { o.read::<f32>(0, outer * part.len()) };
    let y = Shared::new(o.target::<f32>(0, outer * total));
    over_rows(pool, outer, total, |rows| {
        for r in rows {
            // SAFETY: every row is written once.
            let to = unsafe { y.slice(r * total, total) };
            to[..part.start].fill(0.0);
            to[part.clone()].copy_from_slice(&x[r * part.len()..(r + 1) * part.len()]);
            to[part.end..].fill(0.0);
        }
    });
}

/// Rows and columns of the square that one step of a transposition moves: its cache lines stay at hand on both sides.
const TILE: usize = 16;

/// A transposition of numbers, or of rows that stay together.
///
/// # Safety
/// As [`super::run`].
pub unsafe fn permute<T: Element>(
    o: &Operands<'_>,
    pool: &ThreadPool,
    batch: usize,
    matrix: [usize; 2],
    inner: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match inner {
            1 => transpose::<T>(o, pool, batch, matrix),
            _ => exchange::<T>(o, pool, batch, matrix, inner),
        }
    }
}

/// # Safety
/// As [`super::run`].
unsafe fn transpose<T: Element>(
    o: &Operands<'_>,
    pool: &ThreadPool,
    batch: usize,
    [rows, columns]: [usize; 2],
) {
    // SAFETY: the result is apart from the operand.
    let x = unsafe { o.read::<T>(0, batch * rows * columns) };
    let y = Shared::new(o.target::<T>(0, batch * rows * columns));
    let bands = columns.div_ceil(TILE);
    each(pool, batch * bands, |task| {
        let (matrix, band) = (task / bands * rows * columns, task % bands);
        for start in (0..rows).step_by(TILE) {
            for j in band * TILE..((band + 1) * TILE).min(columns) {
                let height = TILE.min(rows - start);
                // SAFETY: every task has its own rows of the result, and this part of a row is written once.
                let to = unsafe { y.slice(matrix + j * rows + start, height) };
                for (i, y) in to.iter_mut().enumerate() {
                    *y = x[matrix + (start + i) * columns + j];
                }
            }
        }
    });
}

/// A transposition of rows that stay together.
///
/// # Safety
/// As [`super::run`].
unsafe fn exchange<T: Element>(
    o: &Operands<'_>,
    pool: &ThreadPool,
    batch: usize,
    [rows, columns]: [usize; 2],
    inner: usize,
) {
    let len = batch * rows * columns * inner;
    // SAFETY: the result is apart from the operand.
    let x = unsafe { o.read::<T>(0, len) };
    let y = Shared::new(o.target::<T>(0, len));
    over_rows(pool, batch * columns, rows * inner, |bands| {
        for band in bands {
            let (matrix, j) = (band / columns * rows, band % columns);
            // SAFETY: every band is written once.
            let to = unsafe { y.slice(band * rows * inner, rows * inner) };
            for (i, to) in to.chunks_exact_mut(inner.max(1)).enumerate() {
                to.copy_from_slice(&x[((matrix + i) * columns + j) * inner..][..inner]);
            }
        }
    });
}

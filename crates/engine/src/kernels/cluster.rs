//! The parts of k-means (Lloyd, 1982) that are not products or sums by label: squares, nearest centroids, new centroids; and sums of
//! everything.

use rayon::ThreadPool;

use super::Operands;
use super::isa::vectorized;
use super::parallel::{CHUNK, Shared, each, over_rows};
use super::reduce::{Sums, total};

/// # Safety
/// As [`super::run`].
pub unsafe fn sum(o: &Operands<'_>, pool: &ThreadPool, len: usize, factor: f32) {
    // SAFETY: the result is apart from the operand.
    let (x, y) = unsafe { (o.read::<f32>(0, len), o.write::<f32>(0, 1)) };
    let sum = total(pool, len, |part| {
        let mut sums = Sums::<1>::new();
        vectorized(
            #[inline(always)]
            || sums.add1(&x[part], |x| [x]),
        );
        sums.total()[0]
    });
    y[0] = (sum * f64::from(factor)) as f32;
}

/// The sum of the squares.
fn squares(x: &[f32]) -> f64 {
    let mut sums = Sums::<1>::new();
    vectorized(
        #[inline(always)]
        || sums.add1(x, |x| [x * x]),
    );
    sums.total()[0]
}

/// # Safety
/// As [`super::run`].
pub unsafe fn row_squares(o: &Operands<'_>, pool: &ThreadPool, [rows, width]: [usize; 2]) {
    // SAFETY: the result is apart from the operand.
    let x = unsafe { o.read::<f32>(0, rows * width) };
    let results = Shared::new(o.target::<f32>(0, rows));
    let row = |r: usize| &x[r * width..(r + 1) * width];
    if width > CHUNK {
        // A weight whose norm is taken is a single row.
        for r in 0..rows {
            let sum = total(pool, width, |part| squares(&row(r)[part]));
            // SAFETY: the results are apart from the operand.
            unsafe { *results.add(r) = sum as f32 };
        }
        return;
    }
    over_rows(pool, rows, width, |rows| {
        for r in rows {
            // SAFETY: every task has its own rows.
            unsafe { *results.add(r) = squares(row(r)) as f32 };
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn nearest(o: &Operands<'_>, pool: &ThreadPool, [rows, clusters]: [usize; 2]) {
    // SAFETY: the results are apart from the operands.
    let (products, squares) = unsafe { (o.read::<f32>(0, rows * clusters), o.read::<f32>(1, clusters)) };
    let (nearest, gaps) = (Shared::new(o.target::<i32>(0, rows)), Shared::new(o.target::<f32>(1, rows)));
    over_rows(pool, rows, clusters, |rows| {
        for r in rows {
            let (mut best, mut gap) = (0, f32::INFINITY);
            let row = &products[r * clusters..(r + 1) * clusters];
            for (k, (&product, &square)) in row.iter().zip(squares).enumerate() {
                let here = square - 2.0 * product;
                if here < gap {
                    (best, gap) = (k, here);
                }
            }
            // SAFETY: every task has its own rows.
            unsafe {
                *nearest.add(r) = best as i32;
                *gaps.add(r) = gap;
            }
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn centroid_update(
    o: &Operands<'_>,
    pool: &ThreadPool,
    parts: &[usize],
    [clusters, width]: [usize; 2],
) {
    // SAFETY: the centroids are written here only; the other operands are apart.
    let sums = unsafe { o.read::<f32>(0, clusters * width) };
    // SAFETY: as above.
    let part = |(part, &rows): (usize, &usize)| unsafe { o.read::<i32>(2 + part, rows) };
    let parts: Vec<&[i32]> = parts.iter().enumerate().map(part).collect();
    let centroids = Shared::new(o.target::<f32>(0, clusters * width));
    each(pool, clusters, |k| {
        let nearest = parts.iter().flat_map(|part| part.iter());
        let count = nearest.filter(|&&nearest| nearest == k as i32).count();
        if count > 0 {
            // SAFETY: every task has its own centroid.
            let centroid = unsafe { centroids.slice(k * width, width) };
            for (c, &sum) in centroid.iter_mut().zip(&sums[k * width..(k + 1) * width]) {
                *c = sum / count as f32;
            }
        }
    });
}

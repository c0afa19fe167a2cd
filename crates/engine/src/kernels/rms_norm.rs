//! Normalization by the root mean square (Zhang and Sennrich, 2019), row by row.

use rayon::ThreadPool;

use super::Operands;
use super::elementwise::map2;
use super::isa::vectorized;
use super::parallel::{COLUMNS, Shared, over_columns, over_rows};
use super::reduce::Sums;

/// # Safety
/// As [`super::run`].
pub unsafe fn forward(o: &Operands<'_>, pool: &ThreadPool, [rows, width]: [usize; 2], epsilon: f32) {
    let x = Shared::new(o.source::<f32>(0, rows * width).cast_mut());
    let y = Shared::new(o.target::<f32>(0, rows * width));
    let roots = Shared::new(o.target::<f32>(1, rows));
    // SAFETY: the parameter is not written.
    let scale = unsafe { o.read::<f32>(1, width) };
    over_rows(pool, rows, width, |rows| {
        for r in rows {
            // SAFETY: every task has its own rows; the row is read as a slice before the first write.
            unsafe {
                vectorized(
                    #[inline(always)]
                    || {
                        let mut squares = Sums::<1>::new();
                        squares.add1(x.view(r * width, width), |x| [x * x]);
                        let mean = squares.total()[0] / width as f64;
                        let root = (1.0 / (mean + f64::from(epsilon)).sqrt()) as f32;
                        *roots.add(r) = root;
                        let (x, y) = (x.add(r * width), y.add(r * width));
                        map2(width, [x, scale.as_ptr()], y, |x, scale| (x * root) * scale);
                    },
                );
            }
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad(o: &Operands<'_>, pool: &ThreadPool, [rows, width]: [usize; 2]) {
    // SAFETY: no result reuses an operand.
    let (dy, x, roots, scale) = unsafe {
        let (dy, x) = (o.read::<f32>(0, rows * width), o.read::<f32>(1, rows * width));
        (dy, x, o.read::<f32>(2, rows), o.read::<f32>(3, width))
    };
    let dx = Shared::new(o.target::<f32>(0, rows * width));
    let scale_grad = Shared::new(o.target::<f32>(1, width));
    over_rows(pool, rows, width, |rows| {
        for r in rows {
            let root = roots[r];
            let (dy, x) = (&dy[r * width..][..width], &x[r * width..][..width]);
            // SAFETY: every task has its own rows.
            let dx = unsafe { dx.slice(r * width, width) };
            vectorized(
                #[inline(always)]
                || {
                    for ((dx, &dy), &scale) in dx.iter_mut().zip(dy).zip(scale) {
                        *dx = dy * scale;
                    }
                    let mut sums = Sums::<1>::new();
                    sums.add2(dx, x, |g, x| [g * (x * root)]);
                    let product = (sums.total()[0] / width as f64) as f32;
                    for (dx, &x) in dx.iter_mut().zip(x) {
                        *dx = root * (*dx - (x * root) * product);
                    }
                },
            );
        }
    });
    over_columns(pool, width, |start, count| {
        let mut products = [0.0f32; COLUMNS];
        vectorized(
            #[inline(always)]
            || {
                for (r, &root) in roots.iter().enumerate() {
                    let (dy, x) = (&dy[r * width + start..][..count], &x[r * width + start..][..count]);
                    for ((product, &dy), &x) in products.iter_mut().zip(dy).zip(x) {
                        *product += dy * (x * root);
                    }
                }
            },
        );
        // SAFETY: every task has its own columns.
        unsafe { scale_grad.slice(start, count).copy_from_slice(&products[..count]) };
    });
}

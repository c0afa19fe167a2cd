//! Layer normalization (Ba, Kiros and Hinton, 2016), row by row.

use rayon::ThreadPool;

use super::Operands;
use super::isa::vectorized;
use super::parallel::{COLUMNS, Shared, over_columns, over_rows};
use super::reduce::Sums;

/// # Safety
/// As [`super::run`].
pub unsafe fn forward(o: &Operands<'_>, pool: &ThreadPool, [rows, width]: [usize; 2], epsilon: f32) {
    let x = Shared::new(o.source::<f32>(0, rows * width).cast_mut());
    let y = Shared::new(o.target::<f32>(0, rows * width));
    let means = Shared::new(o.target::<f32>(1, rows));
    let roots = Shared::new(o.target::<f32>(2, rows));
    // SAFETY: the parameters are not written.
    let (scale, shift) = unsafe { (o.read::<f32>(1, width), o.read::<f32>(2, width)) };
    over_rows(pool, rows, width, |rows| {
        for r in rows {
            // SAFETY: every task has its own rows. The result is the operand or apart: one slice where they are the same.
            unsafe {
                vectorized(
                    #[inline(always)]
                    || {
                        let at = r * width;
                        let to = y.slice(at, width);
                        if x.add(at) != y.add(at) {
                            to.copy_from_slice(x.view(at, width));
                        }
                        let mut sums = Sums::<1>::new();
                        sums.add1(to, |x| [x]);
                        let mean = (sums.total()[0] / width as f64) as f32;
                        let mut squares = Sums::<1>::new();
                        squares.add1(to, |x| [(x - mean) * (x - mean)]);
                        let variance = squares.total()[0] / width as f64;
                        let root = (1.0 / (variance + f64::from(epsilon)).sqrt()) as f32;
                        *means.add(r) = mean;
                        *roots.add(r) = root;
                        for ((y, &scale), &shift) in to.iter_mut().zip(scale).zip(shift) {
                            *y = ((*y - mean) * root) * scale + shift;
                        }
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
    let (dy, x, means, roots, scale) = unsafe {
        let (dy, x) = (o.read::<f32>(0, rows * width), o.read::<f32>(1, rows * width));
        (dy, x, o.read::<f32>(2, rows), o.read::<f32>(3, rows), o.read::<f32>(4, width))
    };
    let dx = Shared::new(o.target::<f32>(0, rows * width));
    let scale_grad = Shared::new(o.target::<f32>(1, width));
    let shift_grad = Shared::new(o.target::<f32>(2, width));
    over_rows(pool, rows, width, |rows| {
        for r in rows {
            let (mean, root) = (means[r], roots[r]);
            let (dy, x) = (&dy[r * width..][..width], &x[r * width..][..width]);
            // SAFETY: every task has its own rows.
            let dx = unsafe { dx.slice(r * width, width) };
            vectorized(
                #[inline(always)]
                || {
                    for ((dx, &dy), &scale) in dx.iter_mut().zip(dy).zip(scale) {
                        *dx = dy * scale;
                    }
                    let mut sums = Sums::<2>::new();
                    sums.add2(dx, x, |g, x| [g, g * ((x - mean) * root)]);
                    let [sum, product] = sums.total().map(|total| (total / width as f64) as f32);
                    for (dx, &x) in dx.iter_mut().zip(x) {
                        *dx = root * ((*dx - sum) - ((x - mean) * root) * product);
                    }
                },
            );
        }
    });
    over_columns(pool, width, |start, count| {
        let (mut products, mut sums) = ([0.0f32; COLUMNS], [0.0f32; COLUMNS]);
        vectorized(
            #[inline(always)]
            || {
                for r in 0..rows {
                    let (mean, root) = (means[r], roots[r]);
                    let (dy, x) = (&dy[r * width + start..][..count], &x[r * width + start..][..count]);
                    for (((product, sum), &dy), &x) in products.iter_mut().zip(&mut sums).zip(dy).zip(x) {
                        *sum += dy;
                        *product += dy * ((x - mean) * root);
                    }
                }
            },
        );
        // SAFETY: every task has its own columns.
        unsafe {
            scale_grad.slice(start, count).copy_from_slice(&products[..count]);
            shift_grad.slice(start, count).copy_from_slice(&sums[..count]);
        }
    });
}

//! The softmax of rows, and its gradient.

use rayon::ThreadPool;

use super::Operands;
use super::elementwise::{map1, map2};
use super::isa::vectorized;
use super::math::exp;
use super::parallel::{Shared, over_rows};
use super::reduce::{Sums, max};

/// # Safety
/// As [`super::run`].
pub unsafe fn forward(o: &Operands<'_>, pool: &ThreadPool, [rows, width]: [usize; 2]) {
    let x = Shared::new(o.source::<f32>(0, rows * width).cast_mut());
    let y = Shared::new(o.target::<f32>(0, rows * width));
    over_rows(pool, rows, width, |rows| {
        for r in rows {
            // SAFETY: every task has its own rows; the result is the operand or apart.
            unsafe {
                let largest = max(x.view(r * width, width));
                let (x, row) = (x.add(r * width), y.add(r * width));
                vectorized(
                    #[inline(always)]
                    || {
                        map1(width, x, row, |x| exp(x - largest));
                        let mut sum = Sums::<1>::new();
                        sum.add1(y.view(r * width, width), |x| [x]);
                        let sum = sum.total()[0] as f32;
                        map1(width, row, row, |x| x / sum);
                    },
                );
            }
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad(o: &Operands<'_>, pool: &ThreadPool, [rows, width]: [usize; 2]) {
    let [dy, y] = [0, 1].map(|at| Shared::new(o.source::<f32>(at, rows * width).cast_mut()));
    let dx = Shared::new(o.target::<f32>(0, rows * width));
    over_rows(pool, rows, width, |rows| {
        for r in rows {
            // SAFETY: every task has its own rows, which are read as slices before the first write; the result is an operand or apart.
            unsafe {
                vectorized(
                    #[inline(always)]
                    || {
                        let at = r * width;
                        let mut sum = Sums::<1>::new();
                        sum.add2(dy.view(at, width), y.view(at, width), |dy, y| [dy * y]);
                        let sum = sum.total()[0] as f32;
                        map2(width, [dy.add(at), y.add(at)], dx.add(at), |dy, y| y * (dy - sum));
                    },
                );
            }
        }
    });
}

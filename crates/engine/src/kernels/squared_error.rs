//! The squared error and its gradient.

use rayon::ThreadPool;

use super::Operands;
use super::elementwise::map2;
use super::isa::vectorized;
use super::parallel::{Shared, chunks};
use super::reduce::{Sums, total};

/// # Safety
/// As [`super::run`].
pub unsafe fn forward(o: &Operands<'_>, pool: &ThreadPool, len: usize, factor: f32) {
    // SAFETY: the result is apart from the operands.
    let (a, b, loss) = unsafe { (o.read::<f32>(0, len), o.read::<f32>(1, len), o.write::<f32>(0, 1)) };
    let sum = total(pool, len, |part| {
        let mut sums = Sums::<1>::new();
        vectorized(
            #[inline(always)]
            || sums.add2(&a[part.clone()], &b[part], |a, b| [(a - b) * (a - b)]),
        );
        sums.total()[0]
    });
    loss[0] = (sum * f64::from(factor)) as f32;
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad(o: &Operands<'_>, pool: &ThreadPool, len: usize, factor: f32) {
    // SAFETY: the gradient of the loss is not written.
    let factor = 2.0 * factor * unsafe { o.read::<f32>(2, 1) }[0];
    let [a, b] = [0, 1].map(|position| Shared::new(o.source::<f32>(position, len).cast_mut()));
    let da = Shared::new(o.target::<f32>(0, len));
    chunks(pool, len, |start, len| {
        // SAFETY: the result is one of the operands or apart; chunks are apart.
        unsafe {
            vectorized(
                #[inline(always)]
                || map2(len, [a.add(start), b.add(start)], da.add(start), |a, b| factor * (a - b)),
            );
        }
    });
}

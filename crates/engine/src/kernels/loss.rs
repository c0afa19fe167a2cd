//! Cross entropy over a softmax, its gradient, and the rows that are classified correctly.

use std::sync::atomic::{AtomicUsize, Ordering};

use elbowroom_graph::op::Classification;
use rayon::ThreadPool;

use super::Operands;
use super::elementwise::map1;
use super::isa::vectorized;
use super::math::exp;
use super::parallel::{Shared, over_rows};
use super::reduce::{Sums, max};

/// The column that a label names.
fn class(label: i32, classes: usize) -> Option<usize> {
    usize::try_from(label).ok().filter(|&class| class < classes)
}

/// `ln Σ e^x`.
pub fn log_sum_exp(xs: &[f32]) -> f32 {
    let largest = max(xs);
    if largest == f32::NEG_INFINITY {
        return largest;
    }
    let mut sums = Sums::<1>::new();
    vectorized(
        #[inline(always)]
        || {
            sums.add1(
                xs,
                #[inline(always)]
                |x| [exp(x - largest)],
            )
        },
    );
    (f64::from(largest) + sums.total()[0].ln()) as f32
}

/// # Safety
/// As [`super::run`].
pub unsafe fn forward(o: &Operands<'_>, pool: &ThreadPool, loss: Classification) {
    let Classification { rows, classes, places, scale } = loss;
    // SAFETY: the results are apart from all operands.
    let (logits, labels) = unsafe { (o.read::<f32>(0, rows * classes), o.read::<i32>(1, loss.span())) };
    let lse = Shared::new(o.target::<f32>(1, rows));
    let row = |r: usize| &logits[r * classes..(r + 1) * classes];
    over_rows(pool, rows, classes, |rows| {
        for r in rows {
            // SAFETY: every task has its own rows.
            unsafe { *lse.add(r) = log_sum_exp(row(r)) };
        }
    });
    let mut sum = 0.0f64;
    for r in 0..rows {
        if let Some(class) = class(labels[places.of(r)], classes) {
            // SAFETY: all tasks are done.
            sum += f64::from(unsafe { *lse.add(r) }) - f64::from(row(r)[class]);
        }
    }
    // SAFETY: the loss is apart.
    unsafe { o.write::<f32>(0, 1)[0] = (sum * f64::from(scale)) as f32 };
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad(o: &Operands<'_>, pool: &ThreadPool, loss: Classification) {
    let Classification { rows, classes, places, scale } = loss;
    // SAFETY: these operands are not written.
    let (labels, lse, dloss) =
        unsafe { (o.read::<i32>(1, loss.span()), o.read::<f32>(2, rows), o.read::<f32>(3, 1)[0]) };
    let logits = Shared::new(o.source::<f32>(0, rows * classes).cast_mut());
    let dlogits = Shared::new(o.target::<f32>(0, rows * classes));
    let factor = dloss * scale;
    over_rows(pool, rows, classes, |rows| {
        for r in rows {
            // SAFETY: every task has its own rows; the result is the logits or apart.
            unsafe {
                let Some(class) = class(labels[places.of(r)], classes) else {
                    dlogits.slice(r * classes, classes).fill(0.0);
                    continue;
                };
                let lse = lse[r];
                let (from, to) = (logits.add(r * classes), dlogits.add(r * classes));
                let at_label = factor * (exp(*from.add(class) - lse) - 1.0);
                vectorized(
                    #[inline(always)]
                    || {
                        map1(
                            classes,
                            from,
                            to,
                            #[inline(always)]
                            |x| factor * exp(x - lse),
                        )
                    },
                );
                *to.add(class) = at_label;
            }
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn hits(o: &Operands<'_>, pool: &ThreadPool, loss: Classification) {
    let Classification { rows, classes, places, .. } = loss;
    // SAFETY: the result is apart from all operands.
    let (logits, labels) = unsafe { (o.read::<f32>(0, rows * classes), o.read::<i32>(1, loss.span())) };
    let count = AtomicUsize::new(0);
    over_rows(pool, rows, classes, |rows| {
        let hit = |&r: &usize| {
            let row = &logits[r * classes..(r + 1) * classes];
            class(labels[places.of(r)], classes).is_some_and(|class| {
                let at_label = row[class];
                // A row with an undefined logit is no hit.
                row[..class].iter().all(|&x| x < at_label) && row[class..].iter().all(|&x| x <= at_label)
            })
        };
        count.fetch_add(rows.filter(hit).count(), Ordering::Relaxed);
    });
    // SAFETY: the result is apart.
    unsafe { o.write::<f32>(0, 1)[0] = count.into_inner() as f32 };
}

//! Steps of the optimizers, in place, and the factor by which gradients are clipped.

use elbowroom_graph::op::{Adam, Sgd};
use rayon::ThreadPool;

use super::Operands;
use super::isa::vectorized;
use super::parallel::{Shared, chunks};

/// PyTorch's term that keeps the quotient finite.
const CLIP_EPSILON: f64 = 1e-6;

/// # Safety
/// As [`super::run`].
pub unsafe fn clip_factor(o: &Operands<'_>, max_norm: f32) {
    // SAFETY: the result is apart.
    unsafe {
        let norm = f64::from(o.read::<f32>(0, 1)[0]).sqrt();
        let factor = f64::from(max_norm) / (norm + CLIP_EPSILON);
        // Not `min`, which would hide a norm that is no number.
        o.write::<f32>(0, 1)[0] = if factor > 1.0 { 1.0 } else { factor as f32 };
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn sgd(o: &Operands<'_>, pool: &ThreadPool, len: usize, sgd: Sgd) {
    // SAFETY: the gradient is not written.
    let g = unsafe { o.read::<f32>(1, len) };
    let w = Shared::new(o.target::<f32>(0, len));
    let Sgd { learning_rate, momentum, weight_decay } = sgd;
    if momentum == 0.0 {
        chunks(pool, len, |start, len| {
            // SAFETY: chunks are apart.
            let w = unsafe { w.slice(start, len) };
            vectorized(
                #[inline(always)]
                || {
                    for (w, &g) in w.iter_mut().zip(&g[start..]) {
                        *w -= learning_rate * (g + weight_decay * *w);
                    }
                },
            );
        });
        return;
    }
    let m = Shared::new(o.target::<f32>(1, len));
    chunks(pool, len, |start, len| {
        // SAFETY: chunks are apart, and so are weights and momenta.
        let (w, m) = unsafe { (w.slice(start, len), m.slice(start, len)) };
        vectorized(
            #[inline(always)]
            || {
                for ((w, m), &g) in w.iter_mut().zip(m).zip(&g[start..]) {
                    *m = momentum * *m + (g + weight_decay * *w);
                    *w -= learning_rate * *m;
                }
            },
        );
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn adam(o: &Operands<'_>, pool: &ThreadPool, len: usize, adam: Adam, iteration: u64) {
    // SAFETY: the gradient is not written.
    let g = unsafe { o.read::<f32>(1, len) };
    let w = Shared::new(o.target::<f32>(0, len));
    let m = Shared::new(o.target::<f32>(1, len));
    let v = Shared::new(o.target::<f32>(2, len));
    let Adam { learning_rate, betas, epsilon, weight_decay } = adam;
    // Past 2³¹ steps the powers are zero anyway.
    let steps = i32::try_from(iteration.saturating_add(1)).unwrap_or(i32::MAX);
    let correction = betas.map(|beta| (1.0 / (1.0 - f64::from(beta).powi(steps))) as f32);
    let shrink = 1.0 - learning_rate * weight_decay;
    chunks(pool, len, |start, len| {
        // SAFETY: chunks are apart, and so are weights and moments.
        let (w, m, v) = unsafe { (w.slice(start, len), m.slice(start, len), v.slice(start, len)) };
        vectorized(
            #[inline(always)]
            || {
                for (((w, m), v), &g) in w.iter_mut().zip(m).zip(v).zip(&g[start..]) {
                    *m = betas[0] * *m + (1.0 - betas[0]) * g;
                    *v = betas[1] * *v + (1.0 - betas[1]) * (g * g);
                    let step = (*m * correction[0]) / ((*v * correction[1]).sqrt() + epsilon);
                    *w = *w * shrink - learning_rate * step;
                }
            },
        );
    });
}

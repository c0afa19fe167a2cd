//! Operations per channel over `[batch, channels, spatial]`: bias gradients and batch normalization (Ioffe and Szegedy, 2015).
//!
//! A task takes one channel. Its planes usually fit into the second-level cache, so that the second reading, for the variance and the
//! results, is cheap.

use elbowroom_graph::op::Channels;
use rayon::ThreadPool;

use super::Operands;
use super::elementwise::{CHUNK, map1, map2};
use super::isa::vectorized;
use super::parallel::{Shared, each};
use super::reduce::Sums;

/// Columns of one task where channels are the innermost extent.
const COLUMNS: usize = 64;

/// # Safety
/// As [`super::run`].
pub unsafe fn bias_grad(o: &Operands<'_>, pool: &ThreadPool, c: Channels) {
    let db = Shared::new(o.target::<f32>(0, c.channels));
    // SAFETY: the result is apart.
    let dy = unsafe { o.read::<f32>(0, c.len()) };
    if c.spatial == 1 {
        each(pool, c.channels.div_ceil(COLUMNS), |task| {
            let start = task * COLUMNS;
            let width = COLUMNS.min(c.channels - start);
            let mut sums = [0.0f32; COLUMNS];
            vectorized(
                #[inline(always)]
                || {
                    for row in dy.chunks_exact(c.channels) {
                        for (sum, &x) in sums.iter_mut().zip(&row[start..start + width]) {
                            *sum += x;
                        }
                    }
                },
            );
            // SAFETY: every task has its own channels.
            unsafe { db.slice(start, width) }.copy_from_slice(&sums[..width]);
        });
        return;
    }
    each(pool, c.channels, |channel| {
        let mut sums = Sums::<1>::new();
        vectorized(
            #[inline(always)]
            || {
                for at in planes(c, channel) {
                    sums.add1(&dy[at..at + c.spatial], |x| [x]);
                }
            },
        );
        // SAFETY: every task has its own channel.
        unsafe { *db.add(channel) = sums.total()[0] as f32 };
    });
}

/// The gradient of a product by channel: as [`bias_grad`], of `dy · x`.
///
/// # Safety
/// As [`super::run`].
pub unsafe fn mul_channel_grad(o: &Operands<'_>, pool: &ThreadPool, c: Channels) {
    let dw = Shared::new(o.target::<f32>(0, c.channels));
    // SAFETY: the result is apart.
    let (dy, x) = unsafe { (o.read::<f32>(0, c.len()), o.read::<f32>(1, c.len())) };
    if c.spatial == 1 {
        each(pool, c.channels.div_ceil(COLUMNS), |task| {
            let start = task * COLUMNS;
            let width = COLUMNS.min(c.channels - start);
            let mut sums = [0.0f32; COLUMNS];
            vectorized(
                #[inline(always)]
                || {
                    for (dy, x) in dy.chunks_exact(c.channels).zip(x.chunks_exact(c.channels)) {
                        let both = dy[start..start + width].iter().zip(&x[start..start + width]);
                        for (sum, (&dy, &x)) in sums.iter_mut().zip(both) {
                            *sum += dy * x;
                        }
                    }
                },
            );
            // SAFETY: every task has its own channels.
            unsafe { dw.slice(start, width) }.copy_from_slice(&sums[..width]);
        });
        return;
    }
    each(pool, c.channels, |channel| {
        let mut sums = Sums::<1>::new();
        vectorized(
            #[inline(always)]
            || {
                for at in planes(c, channel) {
                    sums.add2(&dy[at..at + c.spatial], &x[at..at + c.spatial], |dy, x| [dy * x]);
                }
            },
        );
        // SAFETY: every task has its own channel.
        unsafe { *dw.add(channel) = sums.total()[0] as f32 };
    });
}

/// Where the planes of a channel start.
#[inline(always)]
fn planes(c: Channels, channel: usize) -> impl Iterator<Item = usize> {
    (0..c.batch).map(move |n| (n * c.channels + channel) * c.spatial)
}

/// # Safety
/// As [`super::run`].
pub unsafe fn forward(o: &Operands<'_>, pool: &ThreadPool, c: Channels, epsilon: f32) {
    let x = Shared::new(o.source::<f32>(0, c.len()).cast_mut());
    let y = Shared::new(o.target::<f32>(0, c.len()));
    let means = Shared::new(o.target::<f32>(1, c.channels));
    let variances = Shared::new(o.target::<f32>(2, c.channels));
    // SAFETY: the parameters are not written.
    let (scale, shift) = unsafe { (o.read::<f32>(1, c.channels), o.read::<f32>(2, c.channels)) };
    each(pool, c.channels, |channel| {
        // SAFETY: every task has its own channel; all reads of it as a slice end before the first write.
        unsafe {
            vectorized(
                #[inline(always)]
                || {
                    let plane = |at: usize| x.view(at, c.spatial);
                    let mut sums = Sums::<1>::new();
                    for at in planes(c, channel) {
                        sums.add1(plane(at), |x| [x]);
                    }
                    let mean = (sums.total()[0] / c.per_channel() as f64) as f32;
                    let mut squares = Sums::<1>::new();
                    for at in planes(c, channel) {
                        squares.add1(plane(at), |x| [(x - mean) * (x - mean)]);
                    }
                    let variance = squares.total()[0] / c.per_channel() as f64;
                    *means.add(channel) = mean;
                    *variances.add(channel) = variance as f32;
                    let factor = scale[channel] * inverse_root(variance as f32, epsilon);
                    let shift = shift[channel];
                    for at in planes(c, channel) {
                        map1(c.spatial, x.add(at), y.add(at), |x| (x - mean) * factor + shift);
                    }
                },
            );
        }
    });
}

fn inverse_root(variance: f32, epsilon: f32) -> f32 {
    (1.0 / (f64::from(variance) + f64::from(epsilon)).sqrt()) as f32
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad(o: &Operands<'_>, pool: &ThreadPool, c: Channels, epsilon: f32) {
    let dy = Shared::new(o.source::<f32>(0, c.len()).cast_mut());
    let x = Shared::new(o.source::<f32>(1, c.len()).cast_mut());
    let dx = Shared::new(o.target::<f32>(0, c.len()));
    let scale_grad = Shared::new(o.target::<f32>(1, c.channels));
    let shift_grad = Shared::new(o.target::<f32>(2, c.channels));
    // SAFETY: statistics and parameters are not written.
    let [means, variances, scale] = unsafe { [2, 3, 4].map(|position| o.read::<f32>(position, c.channels)) };
    each(pool, c.channels, |channel| {
        let mean = means[channel];
        let root = inverse_root(variances[channel], epsilon);
        // SAFETY: every task has its own channel; all reads of it as a slice end before the first write.
        unsafe {
            vectorized(
                #[inline(always)]
                || {
                    let mut sums = Sums::<2>::new();
                    for at in planes(c, channel) {
                        let (dy, x) = (dy.view(at, c.spatial), x.view(at, c.spatial));
                        sums.add2(dy, x, |dy, x| [dy, dy * ((x - mean) * root)]);
                    }
                    let [sum, product] = sums.total();
                    *shift_grad.add(channel) = sum as f32;
                    *scale_grad.add(channel) = product as f32;
                    let count = c.per_channel() as f64;
                    let (sum, product) = ((sum / count) as f32, (product / count) as f32);
                    let factor = scale[channel] * root;
                    for at in planes(c, channel) {
                        map2(c.spatial, [dy.add(at), x.add(at)], dx.add(at), |dy, x| {
                            factor * ((dy - sum) - ((x - mean) * root) * product)
                        });
                    }
                },
            );
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn running_update(o: &Operands<'_>, channels: usize, count: usize, momentum: f32) {
    // SAFETY: the batch's statistics are not written; the running ones are written here only.
    let (mean, variance, means, variances) = unsafe {
        let (mean, variance) = (o.read::<f32>(0, channels), o.read::<f32>(1, channels));
        (mean, variance, o.write::<f32>(0, channels), o.write::<f32>(1, channels))
    };
    let unbiased = if count > 1 { (count as f64 / (count - 1) as f64) as f32 } else { 1.0 };
    for (running, &new) in means.iter_mut().zip(mean) {
        *running = (1.0 - momentum) * *running + momentum * new;
    }
    for (running, &new) in variances.iter_mut().zip(variance) {
        *running = (1.0 - momentum) * *running + momentum * (new * unbiased);
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn inference(o: &Operands<'_>, pool: &ThreadPool, c: Channels, epsilon: f32) {
    let x = Shared::new(o.source::<f32>(0, c.len()).cast_mut());
    let y = Shared::new(o.target::<f32>(0, c.len()));
    // SAFETY: statistics and parameters are not written.
    let [scale, shift, means, variances] =
        unsafe { [1, 2, 3, 4].map(|position| o.read::<f32>(position, c.channels)) };
    let together = CHUNK.div_ceil(c.spatial.max(1));
    let total = c.batch * c.channels;
    each(pool, total.div_ceil(together), |task| {
        for plane in task * together..((task + 1) * together).min(total) {
            let channel = plane % c.channels;
            let factor = scale[channel] * inverse_root(variances[channel], epsilon);
            let (mean, shift) = (means[channel], shift[channel]);
            let at = plane * c.spatial;
            // SAFETY: every task has its own planes; the result is the operand or apart.
            unsafe {
                vectorized(
                    #[inline(always)]
                    || map1(c.spatial, x.add(at), y.add(at), |x| (x - mean) * factor + shift),
                );
            }
        }
    });
}

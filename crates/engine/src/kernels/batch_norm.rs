//! Operations per channel over `[batch, channels, spatial]`: bias gradients and batch normalization (Ioffe and Szegedy, 2015).
//!
//! A task takes one channel. Its planes usually fit into the second-level cache, so that the second reading, for the variance and the
//! results, is cheap.

use elbowroom_graph::op::Channels;
use rayon::ThreadPool;

use super::Operands;
use super::elementwise::{map1, map2};
use super::isa::vectorized;
use super::parallel::{COLUMNS, Shared, each, over_columns, over_rows};
use super::reduce::Sums;

/// # Safety
/// As [`super::run`].
pub unsafe fn bias_grad(o: &Operands<'_>, pool: &ThreadPool, c: Channels) {
    let db = Shared::new(o.target::<f32>(0, c.channels));
    // SAFETY: the result is apart.
    unsafe {
        let dy = o.read::<f32>(0, c.len());
        channel_sums(
            pool,
            c,
            db,
            #[inline(always)]
            |sums, at| {
                for (sum, &x) in sums.iter_mut().zip(&dy[at..]) {
                    *sum += x;
                }
            },
            #[inline(always)]
            |sums, at| sums.add1(&dy[at..at + c.spatial], |x| [x]),
        );
    }
}

/// The gradient of a product by channel: as [`bias_grad`], of `dy · x`.
///
/// # Safety
/// As [`super::run`].
pub unsafe fn mul_channel_grad(o: &Operands<'_>, pool: &ThreadPool, c: Channels) {
    let dw = Shared::new(o.target::<f32>(0, c.channels));
    // SAFETY: the result is apart.
    unsafe {
        let (dy, x) = (o.read::<f32>(0, c.len()), o.read::<f32>(1, c.len()));
        channel_sums(
            pool,
            c,
            dw,
            #[inline(always)]
            |sums, at| {
                for (sum, (&dy, &x)) in sums.iter_mut().zip(dy[at..].iter().zip(&x[at..])) {
                    *sum += dy * x;
                }
            },
            #[inline(always)]
            |sums, at| sums.add2(&dy[at..at + c.spatial], &x[at..at + c.spatial], |dy, x| [dy * x]),
        );
    }
}

/// One sum for each channel. Where channels are the innermost extent, `add_row(sums, at)` adds one element to each sum of neighbouring
/// channels, the first of which lies at `at`; otherwise `add_plane(sum, at)` adds the plane that starts at `at`.
///
/// # Safety
/// `to` can be written for all channels, and the two functions do not read it.
unsafe fn channel_sums(
    pool: &ThreadPool,
    c: Channels,
    to: Shared<f32>,
    add_row: impl Fn(&mut [f32], usize) + Sync + Send,
    add_plane: impl Fn(&mut Sums<1>, usize) + Sync + Send,
) {
    if c.spatial == 1 {
        over_columns(pool, c.channels, |start, count| {
            let mut sums = [0.0f32; COLUMNS];
            vectorized(
                #[inline(always)]
                || {
                    for row in 0..c.batch {
                        add_row(&mut sums[..count], row * c.channels + start);
                    }
                },
            );
            // SAFETY: every task has its own channels.
            unsafe { to.slice(start, count) }.copy_from_slice(&sums[..count]);
        });
        return;
    }
    each(pool, c.channels, |channel| {
        let mut sums = Sums::<1>::new();
        vectorized(
            #[inline(always)]
            || {
                for at in planes(c, channel) {
                    add_plane(&mut sums, at);
                }
            },
        );
        // SAFETY: every task has its own channel.
        unsafe { *to.add(channel) = sums.total()[0] as f32 };
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
    let total = c.batch * c.channels;
    over_rows(pool, total, c.spatial, |planes| {
        for plane in planes {
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

//! Group normalization (Wu and He, 2018): the channels of a group of one image together.

use elbowroom_graph::op::Groups;
use rayon::ThreadPool;

use super::Operands;
use super::elementwise::map1;
use super::isa::vectorized;
use super::parallel::{Shared, each};
use super::reduce::Sums;

/// # Safety
/// As [`super::run`].
pub unsafe fn forward(o: &Operands<'_>, pool: &ThreadPool, groups: Groups, epsilon: f32) {
    let (c, len) = (groups.channels, groups.len());
    let x = Shared::new(o.source::<f32>(0, c.len()).cast_mut());
    let y = Shared::new(o.target::<f32>(0, c.len()));
    let means = Shared::new(o.target::<f32>(1, groups.count()));
    let roots = Shared::new(o.target::<f32>(2, groups.count()));
    // SAFETY: the parameters are not written.
    let (scale, shift) = unsafe { (o.read::<f32>(1, c.channels), o.read::<f32>(2, c.channels)) };
    let per = c.channels / groups.groups;
    each(pool, groups.count(), |index| {
        // SAFETY: every task has its own group; all reads of it as a slice end before the first write.
        unsafe {
            vectorized(
                #[inline(always)]
                || {
                    let at = index * len;
                    let mut sums = Sums::<1>::new();
                    sums.add1(x.view(at, len), |x| [x]);
                    let mean = (sums.total()[0] / len as f64) as f32;
                    let mut squares = Sums::<1>::new();
                    squares.add1(x.view(at, len), |x| [(x - mean) * (x - mean)]);
                    let variance = squares.total()[0] / len as f64;
                    let root = (1.0 / (variance + f64::from(epsilon)).sqrt()) as f32;
                    *means.add(index) = mean;
                    *roots.add(index) = root;
                    for k in 0..per {
                        let channel = index % groups.groups * per + k;
                        let (scale, shift) = (scale[channel], shift[channel]);
                        let at = at + k * c.spatial;
                        map1(c.spatial, x.add(at), y.add(at), |x| ((x - mean) * root) * scale + shift);
                    }
                },
            );
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad(o: &Operands<'_>, pool: &ThreadPool, groups: Groups) {
    let (c, len) = (groups.channels, groups.len());
    // SAFETY: no result reuses an operand.
    let (dy, x, means, roots, scale) = unsafe {
        let (dy, x) = (o.read::<f32>(0, c.len()), o.read::<f32>(1, c.len()));
        let (means, roots) = (o.read::<f32>(2, groups.count()), o.read::<f32>(3, groups.count()));
        (dy, x, means, roots, o.read::<f32>(4, c.channels))
    };
    let dx = Shared::new(o.target::<f32>(0, c.len()));
    let scale_grad = Shared::new(o.target::<f32>(1, c.channels));
    let shift_grad = Shared::new(o.target::<f32>(2, c.channels));
    let per = c.channels / groups.groups;
    each(pool, groups.count(), |index| {
        let (mean, root) = (means[index], roots[index]);
        vectorized(
            #[inline(always)]
            || {
                let [mut total, mut product] = [0.0f64; 2];
                let planes = (0..per).map(|k| (index % groups.groups * per + k, index * len + k * c.spatial));
                for (channel, at) in planes.clone() {
                    let mut sums = Sums::<2>::new();
                    let (dy, x) = (&dy[at..at + c.spatial], &x[at..at + c.spatial]);
                    sums.add2(dy, x, |dy, x| [dy, dy * ((x - mean) * root)]);
                    let sums = sums.total();
                    total += sums[0] * f64::from(scale[channel]);
                    product += sums[1] * f64::from(scale[channel]);
                }
                let [total, product] = [total, product].map(|sum| (sum / len as f64) as f32);
                for (channel, at) in planes {
                    let scale = scale[channel];
                    // SAFETY: every task has its own group.
                    let dx = unsafe { dx.slice(at, c.spatial) };
                    let operands = dy[at..at + c.spatial].iter().zip(&x[at..at + c.spatial]);
                    for (dx, (&dy, &x)) in dx.iter_mut().zip(operands) {
                        *dx = root * ((dy * scale - total) - ((x - mean) * root) * product);
                    }
                }
            },
        );
    });
    each(pool, c.channels, |channel| {
        vectorized(
            #[inline(always)]
            || {
                let [mut shift, mut scale] = [0.0f64; 2];
                for image in 0..c.batch {
                    let group = image * groups.groups + channel / per;
                    let (mean, root) = (means[group], roots[group]);
                    let at = (image * c.channels + channel) * c.spatial;
                    let mut sums = Sums::<2>::new();
                    let (dy, x) = (&dy[at..at + c.spatial], &x[at..at + c.spatial]);
                    sums.add2(dy, x, |dy, x| [dy, dy * ((x - mean) * root)]);
                    let sums = sums.total();
                    shift += sums[0];
                    scale += sums[1];
                }
                // SAFETY: every task has its own channel.
                unsafe {
                    *shift_grad.add(channel) = shift as f32;
                    *scale_grad.add(channel) = scale as f32;
                }
            },
        );
    });
}

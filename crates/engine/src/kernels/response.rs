//! Local response normalization (Krizhevsky et al., 2012) across neighbouring channels.

use elbowroom_graph::op::Response;
use rayon::ThreadPool;

use super::Operands;
use super::isa::vectorized;
use super::parallel::{Shared, each};

/// Elements of a plane that are worked on together, so that the sums over the neighbours stay in the first-level cache.
const PART: usize = 512;

/// `scale^−β`. The usual exponent needs roots only, which are vector instructions.
#[inline(always)]
fn power(scale: f32, beta: f32) -> f32 {
    if beta == 0.75 {
        let root = scale.sqrt();
        1.0 / (root * root.sqrt())
    } else {
        scale.powf(-beta)
    }
}

/// Runs `task(start of the image, channel, first element, elements)` for every part of every plane.
fn parts(pool: &ThreadPool, response: &Response, task: impl Fn(usize, usize, usize, usize) + Sync + Send) {
    let c = response.channels;
    each(pool, c.batch * c.channels, |plane| {
        let (image, channel) = (plane / c.channels * c.channels * c.spatial, plane % c.channels);
        for first in (0..c.spatial).step_by(PART) {
            task(image, channel, first, PART.min(c.spatial - first));
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn forward(o: &Operands<'_>, pool: &ThreadPool, response: Response) {
    let c = response.channels;
    // SAFETY: the results are apart from the operand.
    let x = unsafe { o.read::<f32>(0, c.len()) };
    let (y, scale) = (Shared::new(o.target::<f32>(0, c.len())), Shared::new(o.target::<f32>(1, c.len())));
    parts(pool, &response, |image, channel, first, len| {
        let at = image + channel * c.spatial + first;
        // SAFETY: every part is written once.
        let (y, scale) = unsafe { (y.slice(at, len), scale.slice(at, len)) };
        vectorized(
            #[inline(always)]
            || {
                scale.fill(response.k);
                for other in response.neighbours(channel) {
                    let x = &x[image + other * c.spatial + first..][..len];
                    scale.iter_mut().zip(x).for_each(|(scale, &x)| *scale += response.alpha * (x * x));
                }
                for ((y, &x), &scale) in y.iter_mut().zip(&x[at..at + len]).zip(&*scale) {
                    *y = x * power(scale, response.beta);
                }
            },
        );
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad(o: &Operands<'_>, pool: &ThreadPool, response: Response) {
    let c = response.channels;
    // SAFETY: the result is apart from the operands.
    let [dy, x, scale] = unsafe { [0, 1, 2].map(|position| o.read::<f32>(position, c.len())) };
    let dx = Shared::new(o.target::<f32>(0, c.len()));
    let factor = 2.0 * response.alpha * response.beta;
    parts(pool, &response, |image, channel, first, len| {
        let at = image + channel * c.spatial + first;
        // SAFETY: every part is written once.
        let dx = unsafe { dx.slice(at, len) };
        vectorized(
            #[inline(always)]
            || {
                let mut sums = [0.0f32; PART];
                for other in response.neighbours(channel) {
                    let from = image + other * c.spatial + first;
                    let (dy, x, scale) =
                        (&dy[from..from + len], &x[from..from + len], &scale[from..from + len]);
                    for (((sum, &dy), &x), &scale) in sums.iter_mut().zip(dy).zip(x).zip(scale) {
                        *sum += (dy * x) * (power(scale, response.beta) / scale);
                    }
                }
                let (dy, x, scale) = (&dy[at..at + len], &x[at..at + len], &scale[at..at + len]);
                for ((((dx, &dy), &x), &scale), &sum) in dx.iter_mut().zip(dy).zip(x).zip(scale).zip(&sums) {
                    *dx = dy * power(scale, response.beta) - (factor * x) * sum;
                }
            },
        );
    });
}

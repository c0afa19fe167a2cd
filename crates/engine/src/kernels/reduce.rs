//! Sums in an order fixed by extents: 64 interleaved partial sums, then eight of those in `f64`, then one.
//!
//! The partial sums keep vector units busy, and keep the error of long sums small.

use std::ops::Range;

use rayon::ThreadPool;

use super::isa::vectorized;
use super::number::Number;
use super::parallel::{CHUNK, Shared, each};

const LANES: usize = 64;
/// Tasks of a sum over everything.
const TASKS: usize = 64;
/// Elements of a vector of any processor, for the rest of a sum.
const PART: usize = 16;

/// `S` sums over the same elements, taken in together.
pub struct Sums<const S: usize>([[f32; LANES]; S]);

impl<const S: usize> Sums<S> {
    /// Sums of nothing.
    pub fn new() -> Self {
        Self([[0.0; LANES]; S])
    }

    /// Adds `f(xs[i])` for all `i`. Element `i` goes to partial sum `i mod 64`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // Plain index loops become vectors.
    pub fn add1(&mut self, xs: &[f32], f: impl Fn(f32) -> [f32; S]) {
        let whole = xs.chunks_exact(LANES);
        let parts = whole.remainder().chunks_exact(PART);
        let rest = whole.remainder().len() / PART * PART;
        for (j, &x) in parts.remainder().iter().enumerate() {
            let values = f(x);
            for s in 0..S {
                self.0[s][rest + j] += values[s];
            }
        }
        for (part, chunk) in parts.enumerate() {
            for j in 0..PART {
                let values = f(chunk[j]);
                for s in 0..S {
                    self.0[s][part * PART + j] += values[s];
                }
            }
        }
        if whole.len() == 0 {
            return;
        }
        // A local copy stays in registers.
        let mut sums = self.0;
        for chunk in whole {
            for j in 0..LANES {
                let values = f(chunk[j]);
                for s in 0..S {
                    sums[s][j] += values[s];
                }
            }
        }
        self.0 = sums;
    }

    /// Adds `f(xs[i], ys[i])` for all `i`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // As above.
    pub fn add2<T: Number>(&mut self, xs: &[T], ys: &[T], f: impl Fn(f32, f32) -> [f32; S]) {
        let (xs, ys) = (xs.chunks_exact(LANES), ys.chunks_exact(LANES));
        let (few, fewer) = (xs.remainder().chunks_exact(PART), ys.remainder().chunks_exact(PART));
        let rest = xs.remainder().len() / PART * PART;
        for (j, (&x, &y)) in few.remainder().iter().zip(fewer.remainder()).enumerate() {
            let values = f(x.float(), y.float());
            for s in 0..S {
                self.0[s][rest + j] += values[s];
            }
        }
        for (part, (x, y)) in few.zip(fewer).enumerate() {
            for j in 0..PART {
                let values = f(x[j].float(), y[j].float());
                for s in 0..S {
                    self.0[s][part * PART + j] += values[s];
                }
            }
        }
        if xs.len() == 0 {
            return;
        }
        let mut sums = self.0;
        for (x, y) in xs.zip(ys) {
            for j in 0..LANES {
                let values = f(x[j].float(), y[j].float());
                for s in 0..S {
                    sums[s][j] += values[s];
                }
            }
        }
        self.0 = sums;
    }

    /// The sums.
    pub fn total(&self) -> [f64; S] {
        self.0.map(|lanes| {
            // Eight chains keep the adders busy.
            let mut eight = [0.0f64; 8];
            for part in lanes.as_chunks::<8>().0 {
                for (sum, &lane) in eight.iter_mut().zip(part) {
                    *sum += f64::from(lane);
                }
            }
            eight.iter().sum()
        })
    }
}

/// The sum over `0..len` of what `part` gives for ranges, which are tasks of their own where there are many elements.
pub fn total(pool: &ThreadPool, len: usize, part: impl Fn(Range<usize>) -> f64 + Sync + Send) -> f64 {
    let size = len.div_ceil(TASKS).max(CHUNK).next_multiple_of(LANES);
    let mut totals = [0.0; TASKS];
    let shared = Shared::new(totals.as_mut_ptr());
    each(pool, len.div_ceil(size), |task| {
        let sum = part(task * size..((task + 1) * size).min(len));
        // SAFETY: there are at most as many tasks as totals, and every task has its own.
        unsafe { *shared.add(task) = sum };
    });
    totals.iter().sum()
}

/// The largest of some numbers; −∞ of none. NaNs are passed over.
pub fn max(xs: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    vectorized(
        #[inline(always)]
        || {
            let larger = |a: f32, b: f32| if b > a { b } else { a };
            let whole = xs.chunks_exact(LANES);
            for (lane, &x) in lanes.iter_mut().zip(whole.remainder()) {
                *lane = larger(*lane, x);
            }
            for chunk in whole {
                for j in 0..LANES {
                    lanes[j] = larger(lanes[j], chunk[j]);
                }
            }
        },
    );
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

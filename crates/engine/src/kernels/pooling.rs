//! Maximum and average pooling and their gradients, plane by plane.

use std::ops::Range;

use elbowroom_graph::op::Pool;
use rayon::ThreadPool;

use super::Operands;
use super::isa::vectorized;
use super::parallel::{Shared, over_rows};

/// The part of a window that lies on the input, along one axis: where the window at `position` starts (perhaps before the input), and
/// which of its elements exist.
fn inside(pool: &Pool, axis: usize, position: usize) -> (isize, Range<usize>) {
    let start = (position * pool.window.stride[axis]) as isize - pool.window.padding[axis] as isize;
    let first = (-start).max(0) as usize;
    let last = (pool.in_size[axis] as isize - start).clamp(0, pool.window.kernel[axis] as isize) as usize;
    (start, first.min(last)..last)
}

/// Tasks over ranges of planes.
fn planes(threads: &ThreadPool, pool: &Pool, task: impl Fn(usize) + Sync + Send) {
    over_rows(threads, pool.planes, area(pool.in_size), |planes| planes.for_each(&task));
}

const fn area(size: [usize; 2]) -> usize {
    size[0] * size[1]
}

/// # Safety
/// As [`super::run`].
pub unsafe fn max(o: &Operands<'_>, threads: &ThreadPool, pool: &Pool) {
    let (inputs, outputs) = (area(pool.in_size), area(pool.out_size));
    // SAFETY: the results are apart from the operand.
    let x = unsafe { o.read::<f32>(0, pool.planes * inputs) };
    let y = Shared::new(o.target::<f32>(0, pool.planes * outputs));
    let argmax = Shared::new(o.target::<u8>(1, pool.planes * outputs));
    planes(threads, pool, |plane| {
        let x = &x[plane * inputs..(plane + 1) * inputs];
        // SAFETY: every task has its own planes.
        let (y, argmax) =
            unsafe { (y.slice(plane * outputs, outputs), argmax.slice(plane * outputs, outputs)) };
        vectorized(
            #[inline(always)]
            || {
                if quartered(pool) {
                    max_quarters(x, pool.in_size[1], y, argmax);
                    return;
                }
                for p in 0..pool.out_size[0] {
                    let line = p * pool.out_size[1]..(p + 1) * pool.out_size[1];
                    max_line(x, pool, p, &mut y[line.clone()], &mut argmax[line]);
                }
            },
        );
    });
}

/// Whether windows of 2 × 2 cover the input once.
fn quartered(pool: &Pool) -> bool {
    let window = pool.window;
    (window.kernel, window.stride, window.padding) == ([2, 2], [2, 2], [0, 0])
        && pool.in_size == pool.out_size.map(|size| 2 * size)
}

/// The maximum pooling of networks for small images: all four elements of a window at once.
#[inline(always)]
fn max_quarters(x: &[f32], width: usize, y: &mut [f32], argmax: &mut [u8]) {
    let lines = y.chunks_exact_mut(width / 2).zip(argmax.chunks_exact_mut(width / 2));
    for ((y, argmax), lines) in lines.zip(x.chunks_exact(2 * width)) {
        let (upper, lower) = lines.split_at(width);
        let windows = upper.as_chunks::<2>().0.iter().zip(lower.as_chunks::<2>().0);
        for ((y, argmax), (upper, lower)) in y.iter_mut().zip(argmax).zip(windows) {
            let (mut best, mut at) = (upper[0], 0);
            larger(&mut best, &mut at, upper[1], 1);
            larger(&mut best, &mut at, lower[0], 2);
            larger(&mut best, &mut at, lower[1], 3);
            *y = best;
            *argmax = at as u8;
        }
    }
}

/// Columns of the output that are computed together.
const COLUMNS: usize = 64;

/// One line of a maximum pooling: one tap after the other, over all columns that it reaches.
#[inline(always)]
fn max_line(x: &[f32], pool: &Pool, line: usize, y: &mut [f32], argmax: &mut [u8]) {
    let (top, rows) = inside(pool, 0, line);
    let (kernel, stride, padding) = (pool.window.kernel[1], pool.window.stride[1], pool.window.padding[1]);
    for first in (0..y.len()).step_by(COLUMNS) {
        let count = COLUMNS.min(y.len() - first);
        let (mut best, mut at) = ([f32::NEG_INFINITY; COLUMNS], [0u32; COLUMNS]);
        for (q, at) in at[..count].iter_mut().enumerate() {
            // Where nothing is larger than −∞, the first element that exists.
            *at = (rows.start * kernel + padding.saturating_sub((first + q) * stride)) as u32;
        }
        for i in rows.clone() {
            let x = &x[(top + i as isize) as usize * pool.in_size[1]..][..pool.in_size[1]];
            for j in 0..kernel {
                // Columns q with 0 ≤ q · stride + j − padding < width.
                let low = padding.saturating_sub(j).div_ceil(stride).max(first);
                let high = (pool.in_size[1] + padding).saturating_sub(j).div_ceil(stride).min(first + count);
                if low >= high {
                    continue;
                }
                let seen = &x[low * stride + j - padding..=(high - 1) * stride + j - padding];
                let (best, at) = (&mut best[low - first..high - first], &mut at[low - first..high - first]);
                let tap = (i * kernel + j) as u32;
                match stride {
                    1 => {
                        for ((best, at), &x) in best.iter_mut().zip(at).zip(seen) {
                            larger(best, at, x, tap);
                        }
                    }
                    2 => {
                        // With the element behind the last one, if the line has it, all are halves of pairs.
                        let longer =
                            x.get(low * stride + j - padding..=(high - 1) * stride + j - padding + 1);
                        let (pairs, last) = longer.unwrap_or(seen).as_chunks::<2>();
                        for ((best, at), pair) in best.iter_mut().zip(at.iter_mut()).zip(pairs) {
                            larger(best, at, pair[0], tap);
                        }
                        for &x in last {
                            larger(&mut best[pairs.len()], &mut at[pairs.len()], x, tap);
                        }
                    }
                    _ => {
                        for (k, (best, at)) in best.iter_mut().zip(at).enumerate() {
                            larger(best, at, seen[k * stride], tap);
                        }
                    }
                }
            }
        }
        y[first..first + count].copy_from_slice(&best[..count]);
        for (to, &at) in argmax[first..first + count].iter_mut().zip(&at) {
            *to = at as u8;
        }
    }
}

/// Takes a number that is larger than all before it. A NaN stays, so that it is seen.
#[inline(always)]
fn larger(best: &mut f32, at: &mut u32, x: f32, tap: u32) {
    // Both are computed, without a branch, so that a loop is one of vectors.
    let taken = (x > *best) | x.is_nan();
    *best = if taken { x } else { *best };
    *at = if taken { tap } else { *at };
}

/// # Safety
/// As [`super::run`].
pub unsafe fn max_grad(o: &Operands<'_>, threads: &ThreadPool, pool: &Pool) {
    let (inputs, outputs) = (area(pool.in_size), area(pool.out_size));
    // SAFETY: the result is apart from all operands.
    let (dy, argmax) =
        unsafe { (o.read::<f32>(0, pool.planes * outputs), o.read::<u8>(1, pool.planes * outputs)) };
    let dx = Shared::new(o.target::<f32>(0, pool.planes * inputs));
    planes(threads, pool, |plane| {
        // SAFETY: every task has its own planes.
        let dx = unsafe { dx.slice(plane * inputs, inputs) };
        dx.fill(0.0);
        let lines = dy[plane * outputs..].iter().zip(&argmax[plane * outputs..]).take(outputs);
        for (at, (&dy, &argmax)) in lines.enumerate() {
            let (p, q) = (at / pool.out_size[1], at % pool.out_size[1]);
            let (i, j) =
                (usize::from(argmax) / pool.window.kernel[1], usize::from(argmax) % pool.window.kernel[1]);
            let row = (p * pool.window.stride[0] + i).wrapping_sub(pool.window.padding[0]);
            let column = (q * pool.window.stride[1] + j).wrapping_sub(pool.window.padding[1]);
            // Always so for positions that the forward pass wrote, unless a window lies wholly outside.
            if row < pool.in_size[0] && column < pool.in_size[1] {
                dx[row * pool.in_size[1] + column] += dy;
            }
        }
    });
}

/// The number by which a window's sum is divided, along one axis.
fn divisor(pool: &Pool, axis: usize, position: usize, count_padding: bool) -> usize {
    if count_padding {
        let start = position * pool.window.stride[axis];
        let end = pool.in_size[axis] + 2 * pool.window.padding[axis];
        pool.window.kernel[axis].min(end - start)
    } else {
        inside(pool, axis, position).1.len()
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn average(o: &Operands<'_>, threads: &ThreadPool, pool: &Pool, count_padding: bool) {
    let (inputs, outputs) = (area(pool.in_size), area(pool.out_size));
    // SAFETY: the result is apart from the operand.
    let x = unsafe { o.read::<f32>(0, pool.planes * inputs) };
    let y = Shared::new(o.target::<f32>(0, pool.planes * outputs));
    planes(threads, pool, |plane| {
        let x = &x[plane * inputs..(plane + 1) * inputs];
        // SAFETY: every task has its own planes.
        let y = unsafe { y.slice(plane * outputs, outputs) };
        for p in 0..pool.out_size[0] {
            let (top, rows) = inside(pool, 0, p);
            for q in 0..pool.out_size[1] {
                let (left, columns) = inside(pool, 1, q);
                let mut sum = 0.0f32;
                for i in rows.clone() {
                    let line = (top + i as isize) as usize * pool.in_size[1];
                    for j in columns.clone() {
                        sum += x[line + (left + j as isize) as usize];
                    }
                }
                let count = divisor(pool, 0, p, count_padding) * divisor(pool, 1, q, count_padding);
                y[p * pool.out_size[1] + q] = if count == 0 { 0.0 } else { sum / count as f32 };
            }
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn average_grad(o: &Operands<'_>, threads: &ThreadPool, pool: &Pool, count_padding: bool) {
    let (inputs, outputs) = (area(pool.in_size), area(pool.out_size));
    // SAFETY: the result is apart from the operand.
    let dy = unsafe { o.read::<f32>(0, pool.planes * outputs) };
    let dx = Shared::new(o.target::<f32>(0, pool.planes * inputs));
    planes(threads, pool, |plane| {
        let dy = &dy[plane * outputs..(plane + 1) * outputs];
        // SAFETY: every task has its own planes.
        let dx = unsafe { dx.slice(plane * inputs, inputs) };
        dx.fill(0.0);
        for p in 0..pool.out_size[0] {
            let (top, rows) = inside(pool, 0, p);
            for q in 0..pool.out_size[1] {
                let (left, columns) = inside(pool, 1, q);
                let count = divisor(pool, 0, p, count_padding) * divisor(pool, 1, q, count_padding);
                let share = dy[p * pool.out_size[1] + q] / count as f32;
                for i in rows.clone() {
                    let line = (top + i as isize) as usize * pool.in_size[1];
                    for j in columns.clone() {
                        dx[line + (left + j as isize) as usize] += share;
                    }
                }
            }
        }
    });
}

//! Maximum and average pooling and their gradients, plane by plane.

use std::ops::Range;

use elbowroom_graph::op::Pool;
use rayon::ThreadPool;

use super::Operands;
use super::elementwise::CHUNK;
use super::parallel::{Shared, each};

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
    let together = CHUNK.div_ceil((pool.in_size[0] * pool.in_size[1]).max(1));
    each(threads, pool.planes.div_ceil(together), |chunk| {
        (chunk * together..((chunk + 1) * together).min(pool.planes)).for_each(&task);
    });
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
        for p in 0..pool.out_size[0] {
            let (top, rows) = inside(pool, 0, p);
            for q in 0..pool.out_size[1] {
                let (left, columns) = inside(pool, 1, q);
                let mut best = None;
                for i in rows.clone() {
                    let line = (top + i as isize) as usize * pool.in_size[1];
                    for j in columns.clone() {
                        let x = x[line + (left + j as isize) as usize];
                        if best.is_none_or(|(largest, _)| x > largest) {
                            best = Some((x, i * pool.window.kernel[1] + j));
                        }
                    }
                }
                let (largest, at) = best.unwrap_or((0.0, 0));
                y[p * pool.out_size[1] + q] = largest;
                argmax[p * pool.out_size[1] + q] = at as u8;
            }
        }
    });
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

//! Operations that compute every element from the elements at the same place, in place or not.

use elbowroom_graph::op::{Channels, Function};
use rayon::ThreadPool;

use super::Operands;
use super::isa::vectorized;
use super::math;
use super::parallel::{Shared, chunks, over_rows};

/// `y[i] = f(x[i])` for `len` elements, where `y` may be `x`. A loop and always-inlined closures instead of `for_each`: a function that is
/// not inlined is not compiled for wide vectors.
///
/// # Safety
/// `x` can be read and `y` written for `len` elements; they are the same or do not overlap.
#[inline(always)]
pub unsafe fn map1(len: usize, x: *const f32, y: *mut f32, f: impl Fn(f32) -> f32) {
    // SAFETY: one slice where they are the same, two that do not overlap otherwise.
    unsafe {
        let to = std::slice::from_raw_parts_mut(y, len);
        if std::ptr::eq(x, y) {
            for y in to {
                *y = f(*y);
            }
        } else {
            let from = std::slice::from_raw_parts(x, len);
            for (y, &x) in to.iter_mut().zip(from) {
                *y = f(x);
            }
        }
    }
}

/// `y[i] = f(a[i], b[i])` for `len` elements, where `y` may be `a` or `b`.
///
/// # Safety
/// `a` and `b` can be read and `y` written for `len` elements; `y` is the same as an operand or does not overlap it.
#[inline(always)]
pub unsafe fn map2(len: usize, [a, b]: [*const f32; 2], y: *mut f32, f: impl Fn(f32, f32) -> f32) {
    // SAFETY: a mutable slice for `y`, and shared ones for the operands that lie elsewhere.
    unsafe {
        let to = std::slice::from_raw_parts_mut(y, len);
        match (std::ptr::eq(a, y), std::ptr::eq(b, y)) {
            (true, true) => {
                for y in to {
                    *y = f(*y, *y);
                }
            }
            (true, false) => {
                let b = std::slice::from_raw_parts(b, len);
                for (y, &b) in to.iter_mut().zip(b) {
                    *y = f(*y, b);
                }
            }
            (false, true) => {
                let a = std::slice::from_raw_parts(a, len);
                for (y, &a) in to.iter_mut().zip(a) {
                    *y = f(a, *y);
                }
            }
            (false, false) => {
                let (a, b) = (std::slice::from_raw_parts(a, len), std::slice::from_raw_parts(b, len));
                for ((y, &a), &b) in to.iter_mut().zip(a).zip(b) {
                    *y = f(a, b);
                }
            }
        }
    }
}

/// [`map1`] on all threads.
///
/// # Safety
/// As [`map1`].
#[inline(always)]
unsafe fn parallel1(
    pool: &ThreadPool,
    len: usize,
    x: *const f32,
    y: *mut f32,
    f: impl Fn(f32) -> f32 + Copy + Sync + Send,
) {
    let (x, y) = (Shared::new(x.cast_mut()), Shared::new(y));
    chunks(pool, len, |start, len| {
        // SAFETY: the caller's promise, chunk by chunk.
        unsafe {
            vectorized(
                #[inline(always)]
                || map1(len, x.add(start), y.add(start), f),
            )
        }
    });
}

/// [`map2`] on all threads.
///
/// # Safety
/// As [`map2`].
#[inline(always)]
unsafe fn parallel2(
    pool: &ThreadPool,
    len: usize,
    [a, b]: [*const f32; 2],
    y: *mut f32,
    f: impl Fn(f32, f32) -> f32 + Copy + Sync + Send,
) {
    let (a, b, y) = (Shared::new(a.cast_mut()), Shared::new(b.cast_mut()), Shared::new(y));
    chunks(pool, len, |start, len| {
        // SAFETY: the caller's promise, chunk by chunk.
        unsafe {
            vectorized(
                #[inline(always)]
                || map2(len, [a.add(start), b.add(start)], y.add(start), f),
            )
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn fill(o: &Operands<'_>, pool: &ThreadPool, len: usize, value: f32) {
    let y = Shared::new(o.target::<f32>(0, len));
    // SAFETY: the chunks are apart and inside the result.
    chunks(pool, len, |start, len| unsafe { y.slice(start, len) }.fill(value));
}

/// # Safety
/// As [`super::run`].
pub unsafe fn add(o: &Operands<'_>, pool: &ThreadPool, len: usize) {
    // SAFETY: the result is one of the operands or apart.
    unsafe { parallel2(pool, len, [o.source(0, len), o.source(1, len)], o.target(0, len), |a, b| a + b) }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn mul(o: &Operands<'_>, pool: &ThreadPool, len: usize) {
    // SAFETY: the result is one of the operands or apart.
    unsafe { parallel2(pool, len, [o.source(0, len), o.source(1, len)], o.target(0, len), |a, b| a * b) }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn accumulate(o: &Operands<'_>, pool: &ThreadPool, len: usize) {
    let sum: *mut f32 = o.target(0, len);
    // SAFETY: the result is the first operand.
    unsafe { parallel2(pool, len, [sum, o.source(1, len)], sum, |a, b| a + b) }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn scale(o: &Operands<'_>, pool: &ThreadPool, len: usize, factor: f32) {
    // SAFETY: the result is the operand or apart.
    unsafe { parallel1(pool, len, o.source(0, len), o.target(0, len), |x| factor * x) }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn scale_by(o: &Operands<'_>, pool: &ThreadPool, len: usize) {
    // SAFETY: the factor is not written; the result is the first operand or apart.
    unsafe {
        let factor = o.read::<f32>(1, 1)[0];
        parallel1(pool, len, o.source(0, len), o.target(0, len), |x| factor * x);
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn add_row(o: &Operands<'_>, pool: &ThreadPool, outer: usize, inner: usize) {
    if inner == 0 {
        return;
    }
    // SAFETY: the row is never overwritten; the result is the first operand or apart.
    let row = unsafe { o.read::<f32>(1, inner) };
    let a = Shared::new(o.source::<f32>(0, outer * inner).cast_mut());
    let y = Shared::new(o.target::<f32>(0, outer * inner));
    over_rows(pool, outer, inner, |rows| {
        for r in rows {
            // SAFETY: row `r` of both.
            unsafe {
                let (a, y) = (a.add(r * inner), y.add(r * inner));
                vectorized(
                    #[inline(always)]
                    || map2(inner, [a, row.as_ptr()], y, |a, b| a + b),
                );
            }
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn add_channel(o: &Operands<'_>, pool: &ThreadPool, c: Channels) {
    // SAFETY: the caller's promise.
    unsafe { with_channel(o, pool, c, |x, bias| x + bias) }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn mul_channel(o: &Operands<'_>, pool: &ThreadPool, c: Channels) {
    // SAFETY: the caller's promise.
    unsafe { with_channel(o, pool, c, |x, factor| x * factor) }
}

/// `y[n, c, s] = f(x[n, c, s], w[c])`.
///
/// # Safety
/// As [`super::run`].
#[inline(always)]
unsafe fn with_channel(
    o: &Operands<'_>,
    pool: &ThreadPool,
    c: Channels,
    f: impl Fn(f32, f32) -> f32 + Copy + Sync + Send,
) {
    // SAFETY: what a channel has is never overwritten; the result is the first operand or apart.
    let w = unsafe { o.read::<f32>(1, c.channels) };
    let x = Shared::new(o.source::<f32>(0, c.len()).cast_mut());
    let y = Shared::new(o.target::<f32>(0, c.len()));
    if c.spatial == 1 && c.channels > 0 {
        return over_rows(pool, c.batch, c.channels, |rows| {
            for row in rows {
                // SAFETY: every task has its own rows.
                unsafe {
                    let (x, y) = (x.add(row * c.channels), y.add(row * c.channels));
                    vectorized(
                        #[inline(always)]
                        || map2(c.channels, [x, w.as_ptr()], y, f),
                    );
                }
            }
        });
    }
    over_rows(pool, c.batch * c.channels, c.spatial, |planes| {
        for plane in planes {
            let w = w[plane % c.channels];
            // SAFETY: every task has its own planes.
            unsafe {
                let (x, y) = (x.add(plane * c.spatial), y.add(plane * c.spatial));
                vectorized(
                    #[inline(always)]
                    || map1(c.spatial, x, y, |x| f(x, w)),
                );
            }
        }
    });
}

/// Calls a loop with the function of a kind.
macro_rules! by_function {
    ($function:expr, $call:ident($($operand:expr),+), |$($x:ident),+| [$relu:ident, $gelu:ident, $tanh:ident, $sigmoid:ident, $relu6:ident, $silu:ident, $gelu_exact:ident, $hard_sigmoid:ident, $hard_swish:ident, $leaky_relu:ident, $clamp:ident, $elu:ident, $abs:ident, $exp:ident, $log:ident, $reciprocal:ident, $softplus:ident, $sqrt:ident, $step:ident]) => {
        match $function {
            Function::Relu => $call($($operand),+, #[inline(always)] |$($x),+| math::$relu($($x),+)),
            Function::Gelu => $call($($operand),+, #[inline(always)] |$($x),+| math::$gelu($($x),+)),
            Function::Tanh => $call($($operand),+, #[inline(always)] |$($x),+| math::$tanh($($x),+)),
            Function::Sigmoid => $call($($operand),+, #[inline(always)] |$($x),+| math::$sigmoid($($x),+)),
            Function::Relu6 => $call($($operand),+, #[inline(always)] |$($x),+| math::$relu6($($x),+)),
            Function::Silu => $call($($operand),+, #[inline(always)] |$($x),+| math::$silu($($x),+)),
            Function::GeluExact => $call($($operand),+, #[inline(always)] |$($x),+| math::$gelu_exact($($x),+)),
            Function::HardSigmoid => $call($($operand),+, #[inline(always)] |$($x),+| math::$hard_sigmoid($($x),+)),
            Function::HardSwish => $call($($operand),+, #[inline(always)] |$($x),+| math::$hard_swish($($x),+)),
            Function::LeakyRelu { slope } => $call($($operand),+, #[inline(always)] |$($x),+| math::$leaky_relu($($x),+, slope)),
            Function::Clamp { least, most } => $call($($operand),+, #[inline(always)] |$($x),+| math::$clamp($($x),+, least, most)),
            Function::Elu { alpha } => $call($($operand),+, #[inline(always)] |$($x),+| math::$elu($($x),+, alpha)),
            Function::Abs => $call($($operand),+, #[inline(always)] |$($x),+| math::$abs($($x),+)),
            Function::Exp => $call($($operand),+, #[inline(always)] |$($x),+| math::$exp($($x),+)),
            Function::Log => $call($($operand),+, #[inline(always)] |$($x),+| math::$log($($x),+)),
            Function::Reciprocal => $call($($operand),+, #[inline(always)] |$($x),+| math::$reciprocal($($x),+)),
            Function::Softplus => $call($($operand),+, #[inline(always)] |$($x),+| math::$softplus($($x),+)),
            Function::Sqrt => $call($($operand),+, #[inline(always)] |$($x),+| math::$sqrt($($x),+)),
            Function::Step { bound } => $call($($operand),+, #[inline(always)] |$($x),+| math::$step($($x),+, bound)),
        }
    };
}

/// # Safety
/// As [`super::run`].
pub unsafe fn map(o: &Operands<'_>, pool: &ThreadPool, len: usize, function: Function) {
    let (x, y) = (o.source(0, len), o.target(0, len));
    // SAFETY: the result is the operand or apart.
    unsafe {
        by_function!(function, parallel1(pool, len, x, y), |x| [
            relu,
            gelu,
            tanh,
            sigmoid,
            relu6,
            silu,
            gelu_exact,
            hard_sigmoid,
            hard_swish,
            leaky_relu,
            clamp,
            elu,
            abs,
            exp,
            log,
            reciprocal,
            softplus,
            sqrt,
            step
        ]);
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn map_grad(o: &Operands<'_>, pool: &ThreadPool, len: usize, function: Function) {
    let (operands, dx) = ([o.source(0, len), o.source(1, len)], o.target(0, len));
    // SAFETY: the result is one of the operands or apart.
    unsafe {
        by_function!(function, parallel2(pool, len, operands, dx), |dy, s| [
            relu_grad,
            gelu_grad,
            tanh_grad,
            sigmoid_grad,
            relu6_grad,
            silu_grad,
            gelu_exact_grad,
            hard_sigmoid_grad,
            hard_swish_grad,
            leaky_relu_grad,
            clamp_grad,
            elu_grad,
            abs_grad,
            exp_grad,
            log_grad,
            reciprocal_grad,
            softplus_grad,
            sqrt_grad,
            step_grad
        ]);
    }
}

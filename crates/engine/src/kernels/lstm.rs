//! The pointwise part of an LSTM step and its gradient.
//!
//! Results may lie where operands lie, several at once. A block of columns of one row is therefore copied out first, computed, and then
//! written.

use rayon::ThreadPool;

use super::Operands;
use super::isa::vectorized;
use super::math::{sigmoid, tanh};
use super::parallel::{Shared, over_rows};

/// Columns of one block: few enough for all of its values to stay in registers.
const BLOCK: usize = 32;

/// Blocks of columns of all rows: `task(row, first column, columns)`.
fn blocks(pool: &ThreadPool, [batch, hidden]: [usize; 2], task: impl Fn(usize, usize, usize) + Sync + Send) {
    // A row has the pre-activations of four gates.
    over_rows(pool, batch, 4 * hidden, |rows| {
        for row in rows {
            for column in (0..hidden).step_by(BLOCK) {
                task(row, column, BLOCK.min(hidden - column));
            }
        }
    });
}

/// A copy of some elements, and zeros.
///
/// # Safety
/// They can be read.
#[inline(always)]
unsafe fn load(from: Shared<f32>, at: usize, count: usize) -> [f32; BLOCK] {
    // A copy of a length that the compiler knows is a few moves, another one a call.
    if count == BLOCK {
        // SAFETY: the caller's promise; an array is aligned as its elements are.
        return unsafe { from.add(at).cast::<[f32; BLOCK]>().read() };
    }
    let mut block = [0.0; BLOCK];
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from.add(at), block.as_mut_ptr(), count) };
    block
}

/// # Safety
/// They can be written.
#[inline(always)]
unsafe fn store(block: &[f32; BLOCK], to: Shared<f32>, at: usize, count: usize) {
    if count == BLOCK {
        // SAFETY: the caller's promise; an array is aligned as its elements are.
        unsafe { to.add(at).cast::<[f32; BLOCK]>().write(*block) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(block.as_ptr(), to.add(at), count) };
}

/// # Safety
/// As [`super::run`].
pub unsafe fn forward(o: &Operands<'_>, pool: &ThreadPool, [batch, hidden]: [usize; 2]) {
    let (state, wide) = (batch * hidden, 4 * batch * hidden);
    let [a, b, c] =
        [(0, wide), (1, wide), (2, state)].map(|(i, len)| Shared::new(o.source::<f32>(i, len).cast_mut()));
    let [h, next, gates] =
        [(0, state), (1, state), (2, wide)].map(|(i, len)| Shared::new(o.target::<f32>(i, len)));
    blocks(pool, [batch, hidden], |row, column, count| {
        let (at, wide) = (row * hidden + column, row * 4 * hidden + column);
        // SAFETY: every task has its own rows, and a block is read before it is written.
        unsafe {
            vectorized(
                #[inline(always)]
                || {
                    let mut parts = [[0.0; BLOCK]; 4];
                    for (k, part) in parts.iter_mut().enumerate() {
                        let (a, b) = (load(a, wide + k * hidden, count), load(b, wide + k * hidden, count));
                        for j in 0..BLOCK {
                            let sum = a[j] + b[j];
                            part[j] = if k == 2 { tanh(sum) } else { sigmoid(sum) };
                        }
                    }
                    let mut c = load(c, at, count);
                    let mut out = [0.0; BLOCK];
                    for j in 0..BLOCK {
                        c[j] = parts[1][j] * c[j] + parts[0][j] * parts[2][j];
                        out[j] = parts[3][j] * tanh(c[j]);
                    }
                    for (k, part) in parts.iter().enumerate() {
                        store(part, gates, wide + k * hidden, count);
                    }
                    store(&c, next, at, count);
                    store(&out, h, at, count);
                },
            );
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad(o: &Operands<'_>, pool: &ThreadPool, [batch, hidden]: [usize; 2], carry: bool) {
    let (state, wide) = (batch * hidden, 4 * batch * hidden);
    let source = |i: usize, len: usize| Shared::new(o.source::<f32>(i, len).cast_mut());
    let (gates, c, next, dh) = (source(0, wide), source(1, state), source(2, state), source(3, state));
    let dnext = carry.then(|| source(4, state));
    let (d, dc) = (Shared::new(o.target::<f32>(0, wide)), Shared::new(o.target::<f32>(1, state)));
    blocks(pool, [batch, hidden], |row, column, count| {
        let (at, wide) = (row * hidden + column, row * 4 * hidden + column);
        // SAFETY: every task has its own rows, and a block is read before it is written.
        unsafe {
            vectorized(
                #[inline(always)]
                || {
                    let [i, f, g, out] = [0, 1, 2, 3].map(|k| load(gates, wide + k * hidden, count));
                    let (c, next, dh) = (load(c, at, count), load(next, at, count), load(dh, at, count));
                    let dnext = dnext.map_or([0.0; BLOCK], |dnext| load(dnext, at, count));
                    let mut parts = [[0.0; BLOCK]; 4];
                    let mut back = [0.0; BLOCK];
                    for j in 0..BLOCK {
                        let t = tanh(next[j]);
                        let e = dh[j] * out[j] * (1.0 - t * t) + dnext[j];
                        back[j] = e * f[j];
                        parts[0][j] = e * g[j] * i[j] * (1.0 - i[j]);
                        parts[1][j] = e * c[j] * f[j] * (1.0 - f[j]);
                        parts[2][j] = e * i[j] * (1.0 - g[j] * g[j]);
                        parts[3][j] = dh[j] * t * out[j] * (1.0 - out[j]);
                    }
                    for (k, part) in parts.iter().enumerate() {
                        store(part, d, wide + k * hidden, count);
                    }
                    store(&back, dc, at, count);
                },
            );
        }
    });
}

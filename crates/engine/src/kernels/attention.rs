//! Self-attention and its gradient by blocks of queries: of the probabilities only a block of rows exists at a time, and the backward
//! pass computes them again (Dao et al., *FlashAttention*, 2022; rows of keys stay whole here, because a first-level cache is no
//! scarce shared memory).

use std::ops::Range;

use elbowroom_graph::op::Heads;
use rayon::ThreadPool;

use super::Operands;
use super::isa::vectorized;
use super::math::exp;
use super::pack::Strided;
use super::parallel::{Shared, each};
use super::product::{Extents, Initial, Target, product};
use super::reduce::{Sums, max};

/// Queries of one block.
const QUERIES: usize = 64;
/// Tasks that run at the same time at most; each has scratch of its own.
const SLOTS: usize = 16;

/// Blocks of queries, each with the number of keys that it sees.
fn blocks(heads: Heads) -> impl Iterator<Item = (Range<usize>, usize)> {
    (0..heads.tokens).step_by(QUERIES).map(move |start| {
        let end = (start + QUERIES).min(heads.tokens);
        (start..end, if heads.causal { end } else { heads.tokens })
    })
}

/// Of queries with keys.
const fn scores(queries: usize, keys: usize, width: usize) -> Extents {
    Extents::new(queries, keys, width)
}

/// Of probabilities with values.
const fn mixture(queries: usize, keys: usize, width: usize) -> Extents {
    Extents::new(queries, width, keys)
}

/// Of transposed probabilities with gradients.
const fn spread(queries: usize, keys: usize, width: usize) -> Extents {
    Extents::new(keys, width, queries)
}

/// Floats of one slot: matrices of queries × keys, and scratch of the products.
fn slot(heads: Heads, matrices: usize, products: &[fn(usize, usize, usize) -> Extents]) -> [usize; 2] {
    let scratch = blocks(heads)
        .flat_map(|(queries, keys)| {
            products.iter().map(move |product| product(queries.len(), keys, heads.width).scratch_alone())
        })
        .max()
        .unwrap_or(0);
    [matrices * QUERIES.min(heads.tokens) * heads.tokens, scratch]
}

const FORWARD: [fn(usize, usize, usize) -> Extents; 2] = [scores, mixture];
const BACKWARD: [fn(usize, usize, usize) -> Extents; 3] = [scores, mixture, spread];

fn slots(heads: Heads) -> usize {
    (heads.batch * heads.heads).min(SLOTS)
}

/// Floats of scratch of [`forward`].
pub fn scratch(heads: Heads) -> usize {
    slots(heads) * slot(heads, 1, &FORWARD).iter().sum::<usize>()
}

/// Floats of scratch of [`grad`].
pub fn grad_scratch(heads: Heads) -> usize {
    slots(heads) * slot(heads, 2, &BACKWARD).iter().sum::<usize>()
}

/// One head of one sequence.
#[derive(Clone, Copy)]
struct Head {
    heads: Heads,
    batch: usize,
    head: usize,
}

impl Head {
    /// Floats of a row of `qkv`, and of `y`.
    fn row(self) -> [usize; 2] {
        let wide = self.heads.heads * self.heads.width;
        [3 * wide, wide]
    }

    /// Where the queries (0), keys (1) or values (2) of a token start in `qkv`.
    fn qkv(self, part: usize, token: usize) -> usize {
        let [row, wide] = self.row();
        (self.batch * self.heads.tokens + token) * row + part * wide + self.head * self.heads.width
    }

    /// Where a token's result starts in `y`.
    fn y(self, token: usize) -> usize {
        (self.batch * self.heads.tokens + token) * self.row()[1] + self.head * self.heads.width
    }

    /// Where a token's entry lies in `lse`.
    fn lse(self, token: usize) -> usize {
        (self.batch * self.heads.heads + self.head) * self.heads.tokens + token
    }
}

/// Rows of tokens as lines.
fn tokens(data: &[f32], row: usize) -> Strided<'_> {
    Strided { data, line_step: row, depth_step: 1 }
}

/// Columns of tokens as lines: the shared dimension runs over the tokens.
fn columns(data: &[f32], row: usize) -> Strided<'_> {
    Strided { data, line_step: 1, depth_step: row }
}

/// Runs `task` for every head with a slot of scratch, cut as [`slot`] says.
///
/// # Safety
/// `scratch` is the declared scratch of the operation.
unsafe fn each_head(
    pool: &ThreadPool,
    heads: Heads,
    scratch: &mut [f32],
    [matrices, products]: [usize; 2],
    task: impl Fn(Head, &mut [f32], &mut [f32]) + Sync + Send,
) {
    let (count, slots) = (heads.batch * heads.heads, slots(heads));
    let len = matrices + products;
    assert!(scratch.len() >= slots * len, "scratch as large as declared");
    let scratch = Shared::new(scratch.as_mut_ptr());
    each(pool, slots, |at| {
        // SAFETY: every task has its own slot.
        let slot = unsafe { scratch.slice(at * len, len) };
        let (matrix, product) = slot.split_at_mut(matrices);
        for index in (at..count).step_by(slots) {
            let head = Head { heads, batch: index / heads.heads, head: index % heads.heads };
            task(head, matrix, product);
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn forward(o: &Operands<'_>, pool: &ThreadPool, heads: Heads) {
    let Heads { batch, tokens: length, heads: count, width, causal } = heads;
    let (y_len, lse_len) = (batch * length * count * width, batch * count * length);
    // SAFETY: the results are apart from the operand.
    let qkv = unsafe { o.read::<f32>(0, 3 * y_len) };
    let y = Shared::new(o.target::<f32>(0, y_len));
    let lse = Shared::new(o.target::<f32>(1, lse_len));
    let sizes = slot(heads, 1, &FORWARD);
    let scale = (1.0 / (width as f64).sqrt()) as f32;
    // SAFETY: every head has its own columns of `y` and its own part of `lse`.
    unsafe {
        let scratch = o.scratch(slots(heads) * (sizes[0] + sizes[1]));
        each_head(pool, heads, scratch, sizes, |head, matrix, scratch| {
            let [row, y_row] = head.row();
            for (queries, keys) in blocks(heads) {
                let size = queries.len();
                let q = tokens(&qkv[head.qkv(0, queries.start)..], row);
                let k = tokens(&qkv[head.qkv(1, 0)..], row);
                let v = columns(&qkv[head.qkv(2, 0)..], row);
                let target = Target::matrix(Shared::new(matrix.as_mut_ptr()), keys);
                product(None, scores(size, keys, width), (&q, &k), Initial::Zero, target, scratch);
                let mut sums = [0.0f32; QUERIES];
                for (i, line) in matrix[..size * keys].chunks_exact_mut(keys).enumerate() {
                    let seen = if causal { queries.start + i + 1 } else { keys };
                    let largest = max(&line[..seen]) * scale;
                    vectorized(
                        #[inline(always)]
                        || {
                            for p in &mut line[..seen] {
                                *p = exp(*p * scale - largest);
                            }
                            line[seen..].fill(0.0);
                            let mut sum = Sums::<1>::new();
                            sum.add1(&line[..seen], |p| [p]);
                            let [sum] = sum.total();
                            sums[i] = sum as f32;
                            *lse.add(head.lse(queries.start + i)) = (f64::from(largest) + sum.ln()) as f32;
                        },
                    );
                }
                let p = tokens(&matrix[..size * keys], keys);
                let target = Target::matrix(Shared::new(y.add(head.y(queries.start))), y_row);
                product(None, mixture(size, keys, width), (&p, &v), Initial::Zero, target, scratch);
                for (i, sum) in sums[..size].iter().enumerate() {
                    for y in y.slice(head.y(queries.start + i), width) {
                        *y /= sum;
                    }
                }
            }
        });
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn grad(o: &Operands<'_>, pool: &ThreadPool, heads: Heads) {
    let Heads { batch, tokens: length, heads: count, width, causal } = heads;
    let (y_len, lse_len) = (batch * length * count * width, batch * count * length);
    // SAFETY: the result is apart from all operands.
    let (qkv, y, lse, dy) = unsafe {
        (
            o.read::<f32>(0, 3 * y_len),
            o.read::<f32>(1, y_len),
            o.read::<f32>(2, lse_len),
            o.read::<f32>(3, y_len),
        )
    };
    let dqkv = Shared::new(o.target::<f32>(0, 3 * y_len));
    let sizes = slot(heads, 2, &BACKWARD);
    let scale = (1.0 / (width as f64).sqrt()) as f32;
    // SAFETY: every head has its own columns of the result.
    unsafe {
        let scratch = o.scratch(slots(heads) * (sizes[0] + sizes[1]));
        each_head(pool, heads, scratch, sizes, |head, matrix, scratch| {
            let [row, y_row] = head.row();
            let half = matrix.len() / 2;
            let (p, ds) = matrix.split_at_mut(half);
            let into = |start: usize| Target::matrix(Shared::new(dqkv.add(start)), row);
            let (dk, dv) = (into(head.qkv(1, 0)), into(head.qkv(2, 0)));
            for token in 0..length {
                dqkv.slice(head.qkv(1, token), width).fill(0.0);
                dqkv.slice(head.qkv(2, token), width).fill(0.0);
            }
            for (queries, keys) in blocks(heads) {
                let size = queries.len();
                let from = |part, token| &qkv[head.qkv(part, token)..];
                let dy_block = &dy[head.y(queries.start)..];
                let (p, ds) = (&mut p[..size * keys], &mut ds[..size * keys]);
                let (p_target, ds_target) = (
                    Target::matrix(Shared::new(p.as_mut_ptr()), keys),
                    Target::matrix(Shared::new(ds.as_mut_ptr()), keys),
                );
                let extents = scores(size, keys, width);
                let operands = (&tokens(from(0, queries.start), row), &tokens(from(1, 0), row));
                product(None, extents, operands, Initial::Zero, p_target, scratch);
                let operands = (&tokens(dy_block, y_row), &tokens(from(2, 0), row));
                product(None, extents, operands, Initial::Zero, ds_target, scratch);
                for (i, (p, ds)) in p.chunks_exact_mut(keys).zip(ds.chunks_exact_mut(keys)).enumerate() {
                    let token = queries.start + i;
                    let seen = if causal { token + 1 } else { keys };
                    let lse = lse[head.lse(token)];
                    let mut delta = Sums::<1>::new();
                    let at = head.y(token);
                    delta.add2(&y[at..at + width], &dy[at..at + width], |y, dy| [y * dy]);
                    let delta = delta.total()[0] as f32;
                    vectorized(
                        #[inline(always)]
                        || {
                            for (p, ds) in p[..seen].iter_mut().zip(&mut ds[..seen]) {
                                *p = exp(*p * scale - lse);
                                *ds = *p * (*ds - delta) * scale;
                            }
                            p[seen..].fill(0.0);
                            ds[seen..].fill(0.0);
                        },
                    );
                }
                let (p, ds): (&[f32], &[f32]) = (p, ds);
                let extents = spread(size, keys, width);
                let operands = (&columns(p, keys), &columns(dy_block, y_row));
                product(None, extents, operands, Initial::Keep, dv, scratch);
                let operands = (&columns(ds, keys), &columns(from(0, queries.start), row));
                product(None, extents, operands, Initial::Keep, dk, scratch);
                let operands = (&tokens(ds, keys), &columns(from(1, 0), row));
                let dq = into(head.qkv(0, queries.start));
                product(None, mixture(size, keys, width), operands, Initial::Zero, dq, scratch);
            }
        });
    }
}

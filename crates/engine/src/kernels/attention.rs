//! Attention and its gradient by blocks of queries: of the probabilities only a block of rows exists at a time, and the backward
//! pass computes them again (Dao et al., *FlashAttention*, 2022; rows of keys stay whole here, because a first-level cache is no
//! scarce shared memory). With bf16 operands, products take probabilities and their gradients as the nearest bf16 numbers, as those of
//! PyTorch's autocast do; sums and exponentials are of the exact ones.

use std::ops::Range;

use elbowroom_graph::op::{Heads, Queries};
use rayon::ThreadPool;

use super::Operands;
use super::isa::vectorized;
use super::math::exp;
use super::number::{Factor, Number};
use super::pack::Strided;
use super::parallel::{Shared, each};
use super::product::{Extents, Initial, Target, product};
use super::reduce::{Sums, max};

/// Queries of one block.
const QUERIES: usize = 64;
/// Tasks that run at the same time at most; each has scratch of its own.
const SLOTS: usize = 16;

/// Attention with its operands in one tensor or in three.
#[derive(Clone, Copy)]
pub struct Attention {
    extents: Queries,
    /// Whether queries, keys and values lie side by side in one tensor.
    joined: bool,
}

impl From<Heads> for Attention {
    fn from(Heads { batch, tokens, heads, width, causal }: Heads) -> Self {
        let extents = Queries { batch, queries: tokens, keys: tokens, heads, shared: heads, width, causal };
        Self { extents, joined: true }
    }
}

impl From<Queries> for Attention {
    fn from(extents: Queries) -> Self {
        Self { extents, joined: false }
    }
}

impl Attention {
    /// The operand, the floats of a row of it, and where a row's queries (0), keys (1) or values (2) start.
    const fn part(self, part: usize) -> (usize, usize, usize) {
        let Queries { heads, shared, width, .. } = self.extents;
        let wide = heads * width;
        match (self.joined, part) {
            (true, _) => (0, 3 * wide, part * wide),
            (false, 0) => (0, wide, 0),
            (false, _) => (part, shared * width, 0),
        }
    }

    /// Rows of queries (0), keys (1) or values (2).
    const fn rows(self, part: usize) -> usize {
        self.extents.batch * if part == 0 { self.extents.queries } else { self.extents.keys }
    }

    /// Queries, keys or values to be read.
    ///
    /// # Safety
    /// As [`Operands::read`].
    unsafe fn read<'a, T: Number>(self, o: &Operands<'a>, part: usize) -> &'a [T] {
        let (operand, row, _) = self.part(part);
        // SAFETY: the caller's promise.
        unsafe { o.read::<T>(operand, self.rows(part) * row) }
    }

    /// Keys that a query sees.
    fn seen(self, query: usize) -> usize {
        if self.extents.causal { (query + 1).min(self.extents.keys) } else { self.extents.keys }
    }

    /// Blocks of queries, each with the number of keys that it sees.
    fn blocks(self) -> impl Iterator<Item = (Range<usize>, usize)> {
        (0..self.extents.queries).step_by(QUERIES).map(move |start| {
            let end = (start + QUERIES).min(self.extents.queries);
            (start..end, self.seen(end - 1))
        })
    }

    /// Floats of `y` and of `lse`.
    const fn results(self) -> [usize; 2] {
        let Queries { batch, queries, heads, width, .. } = self.extents;
        [batch * queries * heads * width, batch * heads * queries]
    }
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
fn slot(
    attention: Attention,
    matrices: usize,
    products: &[fn(usize, usize, usize) -> Extents],
) -> [usize; 2] {
    let Queries { queries: length, keys, width, .. } = attention.extents;
    let scratch = attention
        .blocks()
        .flat_map(|(queries, keys)| {
            products.iter().map(move |product| product(queries.len(), keys, width).scratch_alone())
        })
        .max()
        .unwrap_or(0);
    [matrices * QUERIES.min(length) * keys, scratch]
}

const FORWARD: [fn(usize, usize, usize) -> Extents; 2] = [scores, mixture];
const BACKWARD: [fn(usize, usize, usize) -> Extents; 3] = [scores, mixture, spread];

/// Floats of scratch of [`forward`].
pub fn scratch(attention: Attention) -> usize {
    let Queries { batch, heads, .. } = attention.extents;
    (batch * heads).min(SLOTS) * slot(attention, 1, &FORWARD).iter().sum::<usize>()
}

/// Floats of scratch of [`grad`].
pub fn grad_scratch(attention: Attention) -> usize {
    let Queries { batch, shared, .. } = attention.extents;
    (batch * shared).min(SLOTS) * slot(attention, 2, &BACKWARD).iter().sum::<usize>()
}

/// One head of one sequence.
#[derive(Clone, Copy)]
struct Head {
    attention: Attention,
    batch: usize,
    head: usize,
}

impl Head {
    /// Floats of a row of `y`.
    fn y_row(self) -> usize {
        self.attention.extents.heads * self.attention.extents.width
    }

    /// Where the queries (0), keys (1) or values (2) of a token start in their operand.
    fn at(self, part: usize, token: usize) -> usize {
        let Queries { queries, keys, heads, shared, width, .. } = self.attention.extents;
        let (_, row, first) = self.attention.part(part);
        let (tokens, head) =
            if part == 0 { (queries, self.head) } else { (keys, self.head / (heads / shared)) };
        (self.batch * tokens + token) * row + first + head * width
    }

    /// Where a query's result starts in `y`.
    fn y(self, token: usize) -> usize {
        (self.batch * self.attention.extents.queries + token) * self.y_row()
            + self.head * self.attention.extents.width
    }

    /// Where a query's entry lies in `lse`.
    fn lse(self, token: usize) -> usize {
        let Queries { queries, heads, .. } = self.attention.extents;
        (self.batch * heads + self.head) * queries + token
    }
}

/// Rows of tokens as lines.
fn tokens<T>(data: &[T], row: usize) -> Strided<'_, T> {
    Strided { data, line_step: row, depth_step: 1 }
}

/// Columns of tokens as lines: the shared dimension runs over the tokens.
fn columns<T>(data: &[T], row: usize) -> Strided<'_, T> {
    Strided { data, line_step: 1, depth_step: row }
}

/// Runs `task` for `count` numbers with a slot of scratch, cut as [`slot`] says.
///
/// # Safety
/// `scratch` is the declared scratch of the operation.
unsafe fn each_slot(
    pool: &ThreadPool,
    count: usize,
    scratch: &mut [f32],
    [matrices, products]: [usize; 2],
    task: impl Fn(usize, &mut [f32], &mut [f32]) + Sync + Send,
) {
    let slots = count.min(SLOTS);
    let len = matrices + products;
    assert!(scratch.len() >= slots * len, "scratch as large as declared");
    let scratch = Shared::new(scratch.as_mut_ptr());
    each(pool, slots, |at| {
        // SAFETY: every task has its own slot.
        let slot = unsafe { scratch.slice(at * len, len) };
        let (matrix, product) = slot.split_at_mut(matrices);
        for index in (at..count).step_by(slots) {
            task(index, matrix, product);
        }
    });
}

/// # Safety
/// As [`super::run`].
pub unsafe fn forward<T: Factor>(o: &Operands<'_>, pool: &ThreadPool, attention: Attention) {
    let Queries { batch, heads, width, .. } = attention.extents;
    let [y_len, lse_len] = attention.results();
    // SAFETY: the results are apart from the operands.
    let operands = [0, 1, 2].map(|part| unsafe { attention.read::<T>(o, part) });
    let rows = [0, 1, 2].map(|part| attention.part(part).1);
    let y = Shared::new(o.target::<f32>(0, y_len));
    let lse = Shared::new(o.target::<f32>(1, lse_len));
    let sizes = slot(attention, 1, &FORWARD);
    let scale = (1.0 / (width as f64).sqrt()) as f32;
    // SAFETY: every head has its own columns of `y` and its own part of `lse`.
    unsafe {
        let scratch = o.scratch(scratch(attention));
        each_slot(pool, batch * heads, scratch, sizes, |index, matrix, scratch| {
            let head = Head { attention, batch: index / heads, head: index % heads };
            for (queries, keys) in attention.blocks() {
                let size = queries.len();
                let q = tokens(&operands[0][head.at(0, queries.start)..], rows[0]);
                let k = tokens(&operands[1][head.at(1, 0)..], rows[1]);
                let v = columns(&operands[2][head.at(2, 0)..], rows[2]);
                let target = Target::matrix(Shared::new(matrix.as_mut_ptr()), keys);
                product(None, scores(size, keys, width), (&q, &k), Initial::Zero, target, scratch);
                let mut sums = [0.0f32; QUERIES];
                for (i, line) in matrix[..size * keys].chunks_exact_mut(keys).enumerate() {
                    let seen = attention.seen(queries.start + i);
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
                let p = T::weight(tokens(&matrix[..size * keys], keys));
                let target = Target::matrix(Shared::new(y.add(head.y(queries.start))), head.y_row());
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
pub unsafe fn grad<T: Factor>(o: &Operands<'_>, pool: &ThreadPool, attention: Attention) {
    let Queries { batch, keys: length, heads, shared, width, .. } = attention.extents;
    let [y_len, lse_len] = attention.results();
    let behind = if attention.joined { 1 } else { 3 };
    // SAFETY: the results are apart from all operands.
    let (operands, y, lse, dy) = unsafe {
        (
            [0, 1, 2].map(|part| attention.read::<T>(o, part)),
            o.read::<T>(behind, y_len),
            o.read::<f32>(behind + 1, lse_len),
            o.read::<T>(behind + 2, y_len),
        )
    };
    let rows = [0, 1, 2].map(|part| attention.part(part).1);
    let results = [0, 1, 2].map(|part| {
        let (result, row, _) = attention.part(part);
        Shared::new(o.target::<f32>(result, attention.rows(part) * row))
    });
    let sizes = slot(attention, 2, &BACKWARD);
    let scale = (1.0 / (width as f64).sqrt()) as f32;
    // SAFETY: every task has its own heads of keys and values, and all heads of queries that share them.
    unsafe {
        let scratch = o.scratch(grad_scratch(attention));
        each_slot(pool, batch * shared, scratch, sizes, |index, matrix, scratch| {
            let half = matrix.len() / 2;
            let (p, ds) = matrix.split_at_mut(half);
            let together = heads / shared;
            for member in 0..together {
                let head =
                    Head { attention, batch: index / shared, head: index % shared * together + member };
                let into = |part: usize, token: usize| {
                    Target::matrix(Shared::new(results[part].add(head.at(part, token))), rows[part])
                };
                if member == 0 {
                    for (part, token) in (0..length).flat_map(|token| [(1, token), (2, token)]) {
                        results[part].slice(head.at(part, token), width).fill(0.0);
                    }
                }
                for (queries, keys) in attention.blocks() {
                    let size = queries.len();
                    let from = |part: usize, token| &operands[part][head.at(part, token)..];
                    let dy_block = &dy[head.y(queries.start)..];
                    let (p, ds) = (&mut p[..size * keys], &mut ds[..size * keys]);
                    let (p_target, ds_target) = (
                        Target::matrix(Shared::new(p.as_mut_ptr()), keys),
                        Target::matrix(Shared::new(ds.as_mut_ptr()), keys),
                    );
                    let extents = scores(size, keys, width);
                    let pair = (&tokens(from(0, queries.start), rows[0]), &tokens(from(1, 0), rows[1]));
                    product(None, extents, pair, Initial::Zero, p_target, scratch);
                    let pair = (&tokens(dy_block, head.y_row()), &tokens(from(2, 0), rows[2]));
                    product(None, extents, pair, Initial::Zero, ds_target, scratch);
                    for (i, (p, ds)) in p.chunks_exact_mut(keys).zip(ds.chunks_exact_mut(keys)).enumerate() {
                        let token = queries.start + i;
                        let seen = attention.seen(token);
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
                    let pair = (&T::weight(columns(p, keys)), &columns(dy_block, head.y_row()));
                    product(None, extents, pair, Initial::Keep, into(2, 0), scratch);
                    let pair = (&T::weight(columns(ds, keys)), &columns(from(0, queries.start), rows[0]));
                    product(None, extents, pair, Initial::Keep, into(1, 0), scratch);
                    let pair = (&T::weight(tokens(ds, keys)), &columns(from(1, 0), rows[1]));
                    let dq = into(0, queries.start);
                    product(None, mixture(size, keys, width), pair, Initial::Zero, dq, scratch);
                }
            }
        });
    }
}

//! One matrix product for each member of a batch.

use elbowroom_graph::op::Products;
use rayon::ThreadPool;

use super::Operands;
use super::grouped::{each_slot, slots};
use super::number::Factor;
use super::pack::Strided;
use super::parallel::Shared;
use super::product::{self, Extents, Initial, Target};

/// The extents of one product.
const fn extents(p: &Products) -> Extents {
    Extents::new(p.rows, p.columns, p.depth)
}

/// Floats of scratch of [`product()`].
pub fn scratch(p: &Products) -> usize {
    match p.batch {
        1 => extents(p).scratch(),
        batch => slots(batch) * extents(p).scratch_alone(),
    }
}

/// # Safety
/// As [`super::run`].
pub unsafe fn product<T: Factor>(o: &Operands<'_>, pool: &ThreadPool, p: &Products) {
    let extents = extents(p);
    let [a_len, b_len, y_len] = [p.rows * p.depth, p.depth * p.columns, p.rows * p.columns];
    // SAFETY: the result is apart from all operands; the scratch is used once.
    let (a, b, scratch) =
        unsafe { (o.read::<T>(0, p.batch * a_len), o.read::<T>(1, p.batch * b_len), o.scratch(scratch(p))) };
    let y = Shared::new(o.target::<f32>(0, p.batch * y_len));
    let one = |member: usize, pool: Option<&ThreadPool>, scratch: &mut [f32]| {
        let a = &a[member * a_len..][..a_len];
        let b = &b[member * b_len..][..b_len];
        let [line_step, depth_step] = if p.transposed[0] { [1, p.rows] } else { [p.depth, 1] };
        let left = Strided { data: a, line_step, depth_step };
        let [line_step, depth_step] = if p.transposed[1] { [p.depth, 1] } else { [1, p.columns] };
        let right = Strided { data: b, line_step, depth_step };
        // SAFETY: every member has its own part of the result.
        unsafe {
            let target = Target::matrix(Shared::new(y.add(member * y_len)), p.columns);
            product::product(pool, extents, (&left, &right), Initial::Zero, target, scratch);
        }
    };
    match p.batch {
        // A single product has all threads.
        1 => one(0, Some(pool), scratch),
        batch => each_slot(pool, batch, scratch, extents.scratch_alone(), |member, scratch| {
            one(member, None, scratch);
        }),
    }
}

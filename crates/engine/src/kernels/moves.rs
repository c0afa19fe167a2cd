//! Rows side by side, parts of rows and transpositions, between operands of which some are bf16: every element is converted on its way, without a workspace.

use elbowroom_graph::{DType, Mixed, OpKind};
use rayon::ThreadPool;

use super::bf16::{self, Bf16};
use super::parallel::{Shared, over_rows};
use super::{Operands, check_typed, rows};

/// Whether [`run`] computes an op.
pub fn moves(mixed: &Mixed) -> bool {
    match mixed.kind {
        OpKind::Concat { .. } | OpKind::Split { .. } | OpKind::Slice { .. } | OpKind::Pad { .. } => true,
        OpKind::Transpose { .. } => mixed.inputs == [DType::Bf16] && mixed.outputs == [DType::Bf16],
        _ => false,
    }
}

/// Columns of a matrix: where it is, its type, the width of its rows, and the first of the columns.
#[derive(Clone, Copy)]
struct Columns {
    data: *mut [u8],
    dtype: DType,
    total: usize,
    start: usize,
}

/// # Safety
/// As [`super::run`].
pub unsafe fn run(mixed: &Mixed, o: &Operands<'_>, pool: &ThreadPool) {
    let read = |at: usize, total: usize, start: usize| Columns {
        data: o.reads[at].cast_mut(),
        dtype: mixed.inputs[at],
        total,
        start,
    };
    let write = |at: usize, total: usize, start: usize| Columns {
        data: o.writes[at],
        dtype: mixed.outputs[at],
        total,
        start,
    };
    // SAFETY: the results are apart from the operands, and every column of a result is written once.
    unsafe {
        match mixed.kind {
            OpKind::Concat { outer, ref widths } => {
                let (total, mut start) = (widths.iter().sum(), 0);
                for (at, &width) in widths.iter().enumerate() {
                    copy(pool, [outer, width], read(at, width, 0), write(0, total, start));
                    start += width;
                }
            }
            OpKind::Split { outer, ref widths } => {
                let (total, mut start) = (widths.iter().sum(), 0);
                for (at, &width) in widths.iter().enumerate() {
                    copy(pool, [outer, width], read(0, total, start), write(at, width, 0));
                    start += width;
                }
            }
            OpKind::Slice { outer, total, start, width } => {
                copy(pool, [outer, width], read(0, total, start), write(0, width, 0));
            }
            OpKind::Pad { outer, total, start, width } => {
                copy(pool, [outer, width], read(0, width, 0), write(0, total, start));
                clear(pool, [outer, start], write(0, total, 0));
                clear(pool, [outer, total - start - width], write(0, total, start + width));
            }
            OpKind::Transpose { batch, rows, columns, inner } => {
                rows::permute::<Bf16>(o, pool, batch, [rows, columns], inner);
            }
            _ => {}
        }
    }
}

/// Copies columns, as numbers of the type in which they are to be.
///
/// # Safety
/// Nothing else uses the target, and nothing writes the source.
unsafe fn copy(pool: &ThreadPool, [outer, width]: [usize; 2], from: Columns, to: Columns) {
    check_typed(from.dtype, from.data, outer * from.total);
    check_typed(to.dtype, to.data, outer * to.total);
    let (narrow, wide) = (Shared::new(from.data.cast::<Bf16>()), Shared::new(from.data.cast::<f32>()));
    let (to_narrow, to_wide) = (Shared::new(to.data.cast::<Bf16>()), Shared::new(to.data.cast::<f32>()));
    over_rows(pool, outer, width, |rows| {
        for row in rows {
            let (source, target) = (row * from.total + from.start, row * to.total + to.start);
            // SAFETY: the caller's promise; sizes were checked.
            unsafe {
                match (from.dtype, to.dtype) {
                    (DType::Bf16, DType::Bf16) => {
                        to_narrow.slice(target, width).copy_from_slice(narrow.view(source, width));
                    }
                    (DType::Bf16, _) => bf16::widen(narrow.view(source, width), to_wide.slice(target, width)),
                    (_, DType::Bf16) => {
                        bf16::narrow(wide.view(source, width), to_narrow.slice(target, width))
                    }
                    _ => to_wide.slice(target, width).copy_from_slice(wide.view(source, width)),
                }
            }
        }
    });
}

/// Sets columns to zero.
///
/// # Safety
/// Nothing else uses them.
unsafe fn clear(pool: &ThreadPool, [outer, width]: [usize; 2], to: Columns) {
    check_typed(to.dtype, to.data, outer * to.total);
    let (narrow, wide) = (Shared::new(to.data.cast::<Bf16>()), Shared::new(to.data.cast::<f32>()));
    let dtype = to.dtype;
    over_rows(pool, outer, width, |rows| {
        for row in rows {
            let start = row * to.total + to.start;
            // SAFETY: the caller's promise; sizes were checked.
            unsafe {
                match dtype {
                    DType::Bf16 => narrow.slice(start, width).fill(Bf16::default()),
                    _ => wide.slice(start, width).fill(0.0),
                }
            }
        }
    });
}

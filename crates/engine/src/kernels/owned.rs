//! Kernels on borrowed memory with a safe interface, for the interpreter and for tests.

use elbowroom_graph::OpKind;

use super::{Context, Operands, run, sound, workspace};

/// Bytes on the heap, aligned to 64.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    lines: Vec<CacheLine>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct CacheLine(#[allow(dead_code)] [u8; 64]);

impl Memory {
    /// `len` bytes of 0xFF, which are NaN as floats, so that a read before the first write is noticed.
    pub fn poisoned(len: usize) -> Self {
        Self { lines: vec![CacheLine([0xFF; 64]); len.div_ceil(64)], len }
    }

    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        Self { lines: vec![CacheLine([0; 64]); len.div_ceil(64)], len }
    }

    /// A copy of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut memory = Self::poisoned(bytes.len());
        memory.bytes_mut().copy_from_slice(bytes);
        memory
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the lines hold at least `len` bytes, all initialized.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; every pattern is a byte.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }

    /// The bytes as floats; a remainder of fewer than four bytes is left out.
    pub fn floats(&self) -> &[f32] {
        // SAFETY: aligned to 64, long enough, and every pattern is a float.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len / 4) }
    }

    /// The bytes as floats, for writing.
    pub fn floats_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len / 4) }
    }
}

/// Computes an op whose operands and results are entries of `memory`. A result that mutates or reuses an operand has that operand's index.
///
/// # Panics
/// The extents of the kind do not belong together or there is no kernel for its algorithm; results share memory in a way that the kind does not
/// permit; or operands are missing or too small.
pub fn run_owned(
    kind: &OpKind,
    memory: &mut [Memory],
    reads: &[usize],
    writes: &[usize],
    context: &Context<'_>,
) {
    // Before extents are multiplied.
    expect_sound(kind, reads, writes);
    let mut scratch = Memory::poisoned(workspace(kind).get() as usize);
    run_with(kind, memory, reads, writes, &mut scratch, context);
}

/// As [`run_owned`], with a workspace from the caller, at least as large as [`workspace`] requires.
///
/// # Panics
/// As [`run_owned`], and if the workspace is too small.
pub fn run_with(
    kind: &OpKind,
    memory: &mut [Memory],
    reads: &[usize],
    writes: &[usize],
    scratch: &mut Memory,
    context: &Context<'_>,
) {
    expect_sound(kind, reads, writes);
    let addresses: Vec<*mut [u8]> =
        memory.iter_mut().map(|memory| std::ptr::from_mut(memory.bytes_mut())).collect();
    let reads: Vec<*const [u8]> = reads.iter().map(|&read| addresses[read].cast_const()).collect();
    let writes: Vec<*mut [u8]> = writes.iter().map(|&write| addresses[write]).collect();
    let operands =
        Operands { reads: &reads, writes: &writes, workspace: scratch.bytes_mut(), factors_are_bf16: false };
    // SAFETY: the memory is borrowed for this call alone, aligned and distinct except as checked above, as are the extents; kernels check the
    // sizes.
    unsafe { run(kind, &operands, context) };
}

/// Panics if kernels may not run the kind, or if results share memory with operands, given by their indices, in a way that it does not
/// permit.
pub(super) fn expect_sound(kind: &OpKind, reads: &[usize], writes: &[usize]) {
    let fault = sound::fault(kind).or_else(|| sound::sharing_fault(kind, reads, writes));
    assert!(fault.is_none(), "{}", fault.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use elbowroom_graph::op::{Algorithm, Conv, Lookup, Places, Pool, Window};

    use super::*;

    /// Whether the kind is refused before a kernel runs. The operands are large, so that sizes alone refuse nothing that multiplies to little.
    fn is_refused(kind: &OpKind) -> bool {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let outputs = |_: usize, _: &[u8]| ();
        let context =
            Context { pool: &pool, seed: 0, iteration: 0, rate: 1.0, inputs: &[], outputs: &outputs };
        let mut memory = vec![Memory::zeroed(1 << 16); 6];
        let run = || run_owned(kind, &mut memory, &[0, 1, 2], &[3, 4, 5], &context);
        catch_unwind(AssertUnwindSafe(run)).is_err()
    }

    #[test]
    fn extents_that_do_not_belong_together_never_reach_a_kernel() {
        let conv = Conv {
            batch: 1,
            in_channels: 2,
            in_size: [6, 6],
            out_channels: 3,
            out_size: [6, 6],
            window: Window::square(3, 1, 1),
            algorithm: Algorithm::Tiled,
        };
        assert!(!is_refused(&OpKind::Conv2d { conv, bias: false }));
        let strided = Conv { out_size: [3, 3], window: Window::square(3, 2, 1), ..conv };
        let huge = 1 << 33;
        let faulty = [
            Conv { out_size: [40, 40], ..conv },
            Conv { window: Window::square(3, 0, 1), ..conv },
            Conv { window: Window::square(9, 1, 1), ..conv },
            Conv { algorithm: Algorithm::Direct, ..strided },
            Conv { algorithm: Algorithm::Winograd, ..strided },
            Conv { batch: huge, in_channels: huge, ..conv },
        ];
        for conv in faulty {
            for kind in [
                OpKind::Conv2d { conv, bias: false },
                OpKind::Conv2dGradInput(conv),
                OpKind::Conv2dGradWeight(conv),
            ] {
                assert!(is_refused(&kind), "{kind:?}");
            }
        }
        let window = Window::square(2, 2, 0);
        let pool = Pool { planes: 1, in_size: [4, 4], out_size: [2, 2], window };
        assert!(!is_refused(&OpKind::MaxPool(pool)));
        let lookup = Lookup { rows: huge, places: Places::ALL, first: 0, vocabulary: 1 << 31, width: huge };
        let others = [
            OpKind::MaxPool(Pool { out_size: [9, 9], ..pool }),
            OpKind::MaxPoolGrad(Pool { in_size: [huge, huge], ..pool }),
            OpKind::Slice { outer: 2, total: 4, start: 3, width: 2 },
            OpKind::Pad { outer: 2, total: 4, start: 3, width: 2 },
            // Four times this is zero.
            OpKind::Add { len: 1 << 62 },
            OpKind::AddRow { outer: huge, inner: 1 << 31 },
            OpKind::Embedding(lookup),
        ];
        for kind in others {
            assert!(is_refused(&kind), "{kind:?}");
        }
    }
}

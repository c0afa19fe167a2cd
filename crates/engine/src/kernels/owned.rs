//! Kernels on borrowed memory with a safe interface, for the interpreter and for tests.

use elbowroom_graph::OpKind;

use super::{Context, Operands, run, workspace};

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
/// Results share memory in a way that the kind does not permit, or operands are missing or too small.
pub fn run_owned(
    kind: &OpKind,
    memory: &mut [Memory],
    reads: &[usize],
    writes: &[usize],
    context: &Context<'_>,
) {
    let mut scratch = Memory::poisoned(workspace(kind).get() as usize);
    run_with(kind, memory, reads, writes, &mut scratch, context);
}

/// As [`run_owned`], with a workspace from the caller, at least as large as [`workspace`] requires.
pub fn run_with(
    kind: &OpKind,
    memory: &mut [Memory],
    reads: &[usize],
    writes: &[usize],
    scratch: &mut Memory,
    context: &Context<'_>,
) {
    expect_apart(kind, reads, writes);
    let addresses: Vec<*mut [u8]> =
        memory.iter_mut().map(|memory| std::ptr::from_mut(memory.bytes_mut())).collect();
    let reads: Vec<*const [u8]> = reads.iter().map(|&read| addresses[read].cast_const()).collect();
    let writes: Vec<*mut [u8]> = writes.iter().map(|&write| addresses[write]).collect();
    let operands = Operands { reads: &reads, writes: &writes, workspace: scratch.bytes_mut() };
    // SAFETY: the memory is borrowed for this call alone, aligned and distinct except as checked above; kernels check the sizes.
    unsafe { run(kind, &operands, context) };
}

/// Panics if results share memory with operands, given by their indices, in a way that the kind does not permit.
pub(super) fn expect_apart(kind: &OpKind, reads: &[usize], writes: &[usize]) {
    let (mutations, reusable) = (kind.mutations(), kind.reusable());
    for (output, write) in writes.iter().enumerate() {
        assert!(!writes[..output].contains(write), "results lie apart from each other");
        for (input, _) in reads.iter().enumerate().filter(|&(_, read)| read == write) {
            let permitted = mutations.contains(&(input, output))
                || reusable.iter().any(|reuse| (reuse.input, reuse.output) == (input, output));
            assert!(permitted, "result {output} of {} does not lie over operand {input}", kind.name());
        }
    }
    assert!(mutations.iter().all(|&(input, output)| reads[input] == writes[output]), "mutated in place");
}
